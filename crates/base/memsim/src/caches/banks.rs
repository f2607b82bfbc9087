//! Channels, banks and row buffers: how long a request takes once it begins.
//!
//! - banks-B1: Channels take turns, with pieces of [`super::Channels::interleave_bytes`]. Rows of a
//!   channel take turns in its banks. Without row buffers a row is a line.
//! - banks-B2: A bank serves one request at a time; banks work at the same time.
//! - banks-B3: Without row buffers, a read takes [`Timing::read_ns`] and a write
//!   [`Timing::write_ns`].
//! - banks-B4: With row buffers, an access to a row in a buffer takes [`RowBuffers::hit_ns`].
//!   Another row takes the place of the one that was not used for longest. If that was stored to,
//!   it is written first, which takes `write_ns`. A read then fetches its row in `read_ns`, a write
//!   does not, and either takes `hit_ns` more.
//! - banks-B5: At last a line occupies the channel's bus for [`super::Channels::bus_ns`], one line
//!   after the other. Its bank waits for the bus.
//! - banks-B6: Lines of volatile memory are in banks of their own, without row buffers, which take
//!   [`VolatileRanks::read_ns`] and [`VolatileRanks::write_ns`]. With volatile memory, a line takes
//!   the bus at the first time at which it is free: a slow write does not hold it before its end.

use super::config::{RowBuffers, Timing, VolatileRanks};
use crate::LINE;
use serde::Serialize;
use std::collections::VecDeque;

/// The place of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BankPlace {
    channel: u32,
    /// The bank, counted through all channels.
    bank: u32,
    pub(super) row: u64,
}

impl BankPlace {
    pub(super) fn channel(self) -> usize {
        self.channel as usize
    }

    pub(super) fn bank(self) -> usize {
        self.bank as usize
    }
}

/// A request that a bank has served.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedRequest {
    /// The time from which the bank is free.
    pub(super) end: u64,
    /// With row buffers: what the request changed.
    pub(super) rows: Option<RowChange>,
}

/// Rows that an access has put into a buffer, or left there, and removed from one.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowChange {
    pub(super) opened: u64,
    pub(super) closed: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    row: u64,
    is_dirty: bool,
}

#[derive(Clone, Debug, Default)]
struct Bank {
    /// The time from which it is free.
    free: u64,
    /// Rows in buffers, the last used at the end.
    open: Vec<Row>,
}

/// Counts of a memory with row buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowCounts {
    /// Requests to a row in a buffer.
    pub hits: u64,
    /// Requests to another row.
    pub misses: u64,
    /// Rows that were written from a buffer to the memory's cells.
    pub writes: u64,
}

/// A number to divide by. Divisions by powers of two are shifts: the processor divides much slower.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    number: u64,
    /// The shift, if the number is a power of two.
    shift: Option<u32>,
}

impl Divisor {
    fn new(number: u64) -> Self {
        Self { number, shift: number.is_power_of_two().then(|| number.trailing_zeros()) }
    }

    /// Returns the quotient and the rest.
    #[inline]
    fn divide(self, by_this: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (by_this >> shift, by_this & (self.number - 1)),
            None => (by_this / self.number, by_this % self.number),
        }
    }
}

/// Times that a bus remembers. Banks work ahead of each other by less than that many lines.
const TAKEN_MAX: usize = 1024;

/// Takes a bus for `bus_ns`, at the first time from `from` on at which it is free. Returns it.
fn take(taken: &mut VecDeque<u64>, from: u64, bus_ns: u64) -> u64 {
    let mut at = from;
    let mut place = taken.partition_point(|start| start + bus_ns <= from);
    while place < taken.len() && taken[place] < at + bus_ns {
        at = taken[place] + bus_ns;
        place += 1;
    }
    taken.insert(place, at);
    if taken.len() > TAKEN_MAX {
        taken.pop_front();
    }
    at
}

/// The memory behind the controller.
#[derive(Debug)]
pub(super) struct Banks {
    timing: Timing,
    /// Channels, and the lines after which the next one follows.
    channels: Divisor,
    interleave: Divisor,
    /// Lines of a row, and banks of a channel.
    row_lines: Divisor,
    bank_count: Divisor,
    banks: Vec<Bank>,
    /// The time from which each channel's bus is free.
    buses: Vec<u64>,
    /// With volatile memory: the times at which each bus is taken, in order.
    taken: Vec<VecDeque<u64>>,
    pub(super) counts: RowCounts,
}

impl Banks {
    pub(super) fn new(timing: Timing) -> Self {
        let channels = timing.channels.count as usize;
        let row_lines = timing.rows.map_or(1, |rows| rows.bytes / LINE);
        Self {
            timing,
            channels: Divisor::new(timing.channels.count.into()),
            interleave: Divisor::new(timing.channels.interleave_bytes / LINE),
            row_lines: Divisor::new(row_lines),
            bank_count: Divisor::new(timing.banks.into()),
            banks: vec![Bank::default(); channels * timing.all_banks() as usize],
            buses: vec![0; channels],
            taken: vec![VecDeque::new(); channels],
            counts: RowCounts::default(),
        }
    }

    /// Returns the number of banks of all channels.
    pub(super) fn count(&self) -> usize {
        self.banks.len()
    }

    /// Returns the place of a line (banks-B1).
    #[inline(always)]
    pub(super) fn place(&self, line: u64) -> BankPlace {
        let (mut channel, mut within) = (0, line);
        if self.channels.number > 1 {
            let (piece, in_piece) = self.interleave.divide(line);
            (within, channel) = self.channels.divide(piece);
            within = within * self.interleave.number + in_piece;
        }
        let channel = channel as u32;
        let first = channel * self.timing.all_banks();
        // banks-B6
        if let Some(VolatileRanks { banks, .. }) = self.volatile(line) {
            let bank = first + self.timing.banks + (within % u64::from(banks)) as u32;
            return BankPlace { channel, bank, row: within };
        }
        let (row, _) = self.row_lines.divide(within);
        let (_, bank) = self.bank_count.divide(row);
        BankPlace { channel, bank: first + bank as u32, row }
    }

    /// Returns the ranks of volatile memory if the line is there.
    fn volatile(&self, line: u64) -> Option<VolatileRanks> {
        self.timing.volatile.filter(|ranks| line >= ranks.from / LINE)
    }

    /// Returns the ranks of volatile memory if the place is there.
    fn volatile_at(&self, place: BankPlace) -> Option<VolatileRanks> {
        let ranks = self.timing.volatile?;
        (place.bank % self.timing.all_banks() >= self.timing.banks).then_some(ranks)
    }

    /// Returns the time from which a bank is free (banks-B2).
    pub(super) fn free(&self, bank: usize) -> u64 {
        self.banks[bank].free
    }

    /// Whether the row is in a buffer.
    pub(super) fn is_hit(&self, place: BankPlace) -> bool {
        let open = &self.banks[place.bank as usize].open;
        open.iter().any(|open| open.row == place.row)
    }

    /// Serves a request that begins at `at`, when its bank is free.
    #[inline]
    pub(super) fn serve(&mut self, place: BankPlace, is_write: bool, at: u64) -> ServedRequest {
        let Timing { read_ns, write_ns, rows, channels, .. } = self.timing;
        let mut change = None;
        let took = match (self.volatile_at(place), rows) {
            // banks-B6
            (Some(ranks), _) if is_write => ranks.write_ns,
            (Some(ranks), _) => ranks.read_ns,
            // banks-B3
            (None, None) if is_write => write_ns,
            (None, None) => read_ns,
            (None, Some(rows)) => {
                let (took, closed) = self.access(place, is_write, rows);
                change = Some(RowChange { opened: place.row, closed });
                took
            }
        };
        // banks-B5
        let bus = &mut self.buses[place.channel as usize];
        let end = match channels.bus_ns {
            0 => at + took,
            bus_ns if self.timing.volatile.is_some() => {
                take(&mut self.taken[place.channel as usize], at + took, bus_ns) + bus_ns
            }
            bus_ns => (at + took).max(*bus) + bus_ns,
        };
        *bus = (*bus).max(end);
        self.banks[place.bank as usize].free = end;
        ServedRequest { end, rows: change }
    }

    /// Returns the time of an access through row buffers (banks-B4), and the row that is no longer
    /// in one.
    fn access(&mut self, place: BankPlace, is_write: bool, rows: RowBuffers) -> (u64, Option<u64>) {
        let open = &mut self.banks[place.bank as usize].open;
        let mut took = rows.hit_ns;
        let mut row = Row { row: place.row, is_dirty: false };
        let mut closed = None;
        match open.iter().position(|open| open.row == place.row) {
            Some(at) => {
                self.counts.hits += 1;
                row = open.remove(at);
            }
            None => {
                self.counts.misses += 1;
                if open.len() == rows.buffers as usize {
                    let oldest = open.remove(0);
                    closed = Some(oldest.row);
                    if oldest.is_dirty {
                        self.counts.writes += 1;
                        took += self.timing.write_ns;
                    }
                }
                if !is_write {
                    took += self.timing.read_ns;
                }
            }
        }
        row.is_dirty |= is_write;
        open.push(row);
        (took, closed)
    }
}
