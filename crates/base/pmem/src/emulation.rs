//! Emulation of memory slower than this machine's: slowdown factors relative to DRAM (PMBD §V-C), a
//! latency per line, and a bandwidth cap. BPFS §5.4 adds the time of the traffic to that of DRAM.
//! Here an operation ends when its slowed-down time is over and the memory has moved its lines: the
//! later of the two, not their sum, as transfers overlap with other work of the processor.
//!
//! After an operation the thread polls the time-stamp counter until the delay is over. No cache is
//! modelled: each read costs as much as a miss, and a store through the cache costs per line when
//! it is flushed. The bandwidth cap applies to this region in this process.

use crate::Counters;
use crate::cpu::{cycles_per_ns, tsc};
use crate::flush::LINE;
use crate::memories::NamedMemory;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The requested slowdown. The default slows nothing down.
///
/// Parses from the name of a memory ([`crate::memories`]). Parses from, and displays as, a comma-separated
/// list such as `read=2x,write=4x,line=100ns,bandwidth=800MB/s`; see
/// [`FromStr`](#impl-FromStr-for-Emulation).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Emulation {
    /// Reads take this many times as long; at least 1.
    pub read_factor: f64,
    /// Writes, flushes and fences take this many times as long; at least 1.
    pub write_factor: f64,
    /// Nanoseconds added to each read, however long.
    pub read_access_ns: u64,
    /// Nanoseconds added to each flush and non-temporal write, however long.
    pub write_access_ns: u64,
    /// Nanoseconds added per 64-byte line read.
    pub read_line_ns: u64,
    /// Nanoseconds added per 64-byte line flushed or written non-temporally.
    pub write_line_ns: u64,
    /// Cap on the sum of bytes read, flushed and written non-temporally, in 10⁶ bytes per second.
    pub bandwidth_mb_per_s: Option<u64>,
    /// Cap on bytes read, if nothing else moves.
    pub read_mb_per_s: Option<u64>,
    /// Cap on bytes flushed and written non-temporally, if nothing else moves.
    pub write_mb_per_s: Option<u64>,
}

impl Default for Emulation {
    fn default() -> Self {
        Self {
            read_factor: 1.0,
            write_factor: 1.0,
            read_access_ns: 0,
            write_access_ns: 0,
            read_line_ns: 0,
            write_line_ns: 0,
            bandwidth_mb_per_s: None,
            read_mb_per_s: None,
            write_mb_per_s: None,
        }
    }
}

impl Emulation {
    /// Whether it slows nothing down.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }
}

/// An invalid part of an emulation string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "emulation `{part}`: {cause}; write for example optane, or read=2x,write=4x,line=100ns,bandwidth=800MB/s"
)]
pub struct ParseEmulationError {
    part: String,
    cause: &'static str,
}

impl FromStr for Emulation {
    type Err = ParseEmulationError;

    /// Parses the parts `read=Fx`, `write=Fx` (factors of 1 to 1000), `read-line=Nns`,
    /// `write-line=Nns`, `line=Nns` (both; up to 1 ms), the same with `-access`, `bandwidth=NMB/s`
    /// or `NGB/s` (decimal), `read-bandwidth`, `write-bandwidth`. The first part can be the name of
    /// a memory; further parts replace its numbers. The empty string and `off` mean no slowdown.
    fn from_str(s: &str) -> Result<Self, ParseEmulationError> {
        let mut asked = Self::default();
        if matches!(s.trim(), "" | "off") {
            return Ok(asked);
        }
        for (i, part) in s.split(',').map(str::trim).enumerate() {
            let fail = |cause| ParseEmulationError { part: part.to_owned(), cause };
            if let (0, Ok(memory)) = (i, part.parse::<NamedMemory>()) {
                asked = memory.emulation();
                continue;
            }
            let (key, value) = part.split_once('=').ok_or(fail("lacks a `=`"))?;
            match key {
                "read" => asked.read_factor = factor(value).map_err(fail)?,
                "write" => asked.write_factor = factor(value).map_err(fail)?,
                "read-line" => asked.read_line_ns = line_ns(value).map_err(fail)?,
                "write-line" => asked.write_line_ns = line_ns(value).map_err(fail)?,
                "line" => {
                    asked.read_line_ns = line_ns(value).map_err(fail)?;
                    asked.write_line_ns = asked.read_line_ns;
                }
                "read-access" => asked.read_access_ns = line_ns(value).map_err(fail)?,
                "write-access" => asked.write_access_ns = line_ns(value).map_err(fail)?,
                "access" => {
                    asked.read_access_ns = line_ns(value).map_err(fail)?;
                    asked.write_access_ns = asked.read_access_ns;
                }
                "bandwidth" => asked.bandwidth_mb_per_s = Some(bandwidth(value).map_err(fail)?),
                "read-bandwidth" => asked.read_mb_per_s = Some(bandwidth(value).map_err(fail)?),
                "write-bandwidth" => asked.write_mb_per_s = Some(bandwidth(value).map_err(fail)?),
                _ => {
                    return Err(fail(
                        "is none of read, write, line, access, bandwidth, or one of these after read- or write-",
                    ));
                }
            }
        }
        Ok(asked)
    }
}

/// Parses a factor such as `2x`.
fn factor(value: &str) -> Result<f64, &'static str> {
    let number = value.strip_suffix('x').ok_or("needs a factor such as 2x")?;
    match number.parse::<f64>() {
        Ok(f) if (1.0..=1000.0).contains(&f) => Ok(f),
        Ok(_) => Err("needs a factor from 1x to 1000x"),
        Err(_) => Err("needs a factor such as 2x"),
    }
}

/// Parses a time per line or access, such as `100ns`.
fn line_ns(value: &str) -> Result<u64, &'static str> {
    let number = value.strip_suffix("ns").ok_or("needs a time such as 100ns")?;
    match number.parse::<u64>() {
        Ok(ns) if ns <= 1_000_000 => Ok(ns),
        Ok(_) => Err("needs at most 1000000ns"),
        Err(_) => Err("needs a time such as 100ns"),
    }
}

/// Parses a rate such as `800MB/s` or `2GB/s`. Returns it in MB/s.
fn bandwidth(value: &str) -> Result<u64, &'static str> {
    const NEED: &str = "needs a rate such as 800MB/s or 2GB/s";
    let (number, scale) = if let Some(n) = value.strip_suffix("MB/s") {
        (n, 1)
    } else {
        (value.strip_suffix("GB/s").ok_or(NEED)?, 1000)
    };
    match number.parse::<u64>() {
        Ok(n) if (1..=1_000_000).contains(&n) => Ok(n * scale),
        Ok(_) => Err("needs a rate above zero and at most 1000000 of its unit"),
        Err(_) => Err(NEED),
    }
}

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.read_factor != 1.0 {
            parts.push(format!("read={}x", self.read_factor));
        }
        if self.write_factor != 1.0 {
            parts.push(format!("write={}x", self.write_factor));
        }
        for (key, ns) in [
            ("read-access", self.read_access_ns),
            ("write-access", self.write_access_ns),
            ("read-line", self.read_line_ns),
            ("write-line", self.write_line_ns),
        ] {
            if ns != 0 {
                parts.push(format!("{key}={ns}ns"));
            }
        }
        for (key, rate) in [
            ("bandwidth", self.bandwidth_mb_per_s),
            ("read-bandwidth", self.read_mb_per_s),
            ("write-bandwidth", self.write_mb_per_s),
        ] {
            parts.extend(rate.map(|rate| format!("{key}={rate}MB/s")));
        }
        f.pad(&if parts.is_empty() { "off".to_owned() } else { parts.join(",") })
    }
}

/// The lines that an operation moves. Stores through the cache move no lines until they are
/// flushed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) lines_read: u64,
    pub(crate) lines_written: u64,
}

/// The kind of operation, which selects the slowdown factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// An [`Emulation`] in cycles of the time-stamp counter.
#[derive(Debug)]
pub(crate) struct Emulator {
    read_extra: f64,
    write_extra: f64,
    read_line_cycles: u64,
    write_line_cycles: u64,
    read_access_cycles: u64,
    write_access_cycles: u64,
    /// Cycles for which one line that is read occupies the memory; 0 if bandwidth is not capped.
    read_occupancy: u64,
    /// The same for a line that is written.
    write_occupancy: u64,
    /// The time until which lines moved so far occupy the memory.
    busy_until: AtomicU64,
}

impl Emulator {
    /// Converts the options to cycles of this CPU.
    pub(crate) fn new(asked: &Emulation) -> Self {
        let cycles = |ns: f64| (ns * cycles_per_ns()).ceil() as u64;
        let occupancy =
            |rate: Option<u64>| rate.map_or(0, |rate| cycles(LINE as f64 * 1000.0 / rate as f64));
        let line = occupancy(asked.bandwidth_mb_per_s);
        Self {
            read_extra: asked.read_factor - 1.0,
            write_extra: asked.write_factor - 1.0,
            read_line_cycles: cycles(asked.read_line_ns as f64),
            write_line_cycles: cycles(asked.write_line_ns as f64),
            read_access_cycles: cycles(asked.read_access_ns as f64),
            write_access_cycles: cycles(asked.write_access_ns as f64),
            read_occupancy: line.max(occupancy(asked.read_mb_per_s)),
            write_occupancy: line.max(occupancy(asked.write_mb_per_s)),
            busy_until: AtomicU64::new(0),
        }
    }

    /// Does `op`, then waits for the additional time that slower memory would have taken.
    #[inline(never)]
    pub(crate) fn slowed<R>(
        &self,
        direction: Direction,
        moved: Moved,
        counters: &Counters,
        op: impl FnOnce() -> R,
    ) -> R {
        let start = tsc();
        let result = op();
        let end = tsc();
        let extra = match direction {
            Direction::Read => self.read_extra,
            Direction::Write => self.write_extra,
        };
        let delay = (end.saturating_sub(start) as f64 * extra) as u64
            + moved.lines_read.min(1) * self.read_access_cycles
            + moved.lines_written.min(1) * self.write_access_cycles
            + moved.lines_read * self.read_line_cycles
            + moved.lines_written * self.write_line_cycles;
        let target = self.occupy(start, moved).max(end + delay);
        let mut now = end;
        while now < target {
            std::hint::spin_loop();
            now = tsc();
        }
        counters.count_emulated(now.saturating_sub(end));
        result
    }

    /// Occupies the memory for the moved lines, from `now` on. Returns the time at which that ends.
    fn occupy(&self, now: u64, moved: Moved) -> u64 {
        let cycles =
            moved.lines_read * self.read_occupancy + moved.lines_written * self.write_occupancy;
        if cycles == 0 {
            return 0;
        }
        let free_from = |busy: u64| busy.max(now);
        let before = self
            .busy_until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |b| Some(free_from(b) + cycles))
            .unwrap_or_else(|b| b);
        free_from(before) + cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memories::MEMORIES;
    use proptest::prelude::*;

    #[test]
    fn parses_the_documented_form() {
        let got: Emulation = "read=2x,write=4.5x,line=100ns,bandwidth=800MB/s".parse().unwrap();
        let want = Emulation {
            read_factor: 2.0,
            write_factor: 4.5,
            read_line_ns: 100,
            write_line_ns: 100,
            bandwidth_mb_per_s: Some(800),
            ..Emulation::default()
        };
        assert_eq!(got, want);
        for memory in MEMORIES {
            assert_eq!(memory.name.parse(), Ok(memory.emulation()));
        }
        let slower: Emulation = "optane,write-bandwidth=2GB/s".parse().unwrap();
        assert_eq!((slower.read_access_ns, slower.write_mb_per_s), (204, Some(2000)));
        assert!("off".parse::<Emulation>().unwrap().is_off());
        assert_eq!("bandwidth=2GB/s".parse::<Emulation>().unwrap().bandwidth_mb_per_s, Some(2000));
    }

    #[test]
    fn errors_name_the_part() {
        for (text, hint) in [
            ("read", "lacks a `=`"),
            ("read=2", "2x"),
            ("read=0.5x", "1x to 1000x"),
            ("read=NaNx", "1x to 1000x"),
            ("write=-1x", "1x to 1000x"),
            ("line=100", "100ns"),
            ("line=9999999999ns", "at most"),
            ("bandwidth=0MB/s", "above zero"),
            ("bandwidth=12", "800MB/s"),
            ("speed=2x", "none of"),
            ("read=2x,,", "lacks a `=`"),
            ("read=2x,optane", "lacks a `=`"),
            ("flash", "for example optane"),
        ] {
            let error = text.parse::<Emulation>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn display_round_trips(
            read in 10u32..10_000, write in 10u32..10_000,
            read_line_ns in 0u64..=1_000_000, write_line_ns in 0u64..=1_000_000,
            bandwidth_mb_per_s in proptest::option::of(1u64..1_000_000),
            read_access_ns in 0u64..=1_000_000, write_access_ns in 0u64..=1_000_000,
            read_mb_per_s in proptest::option::of(1u64..1_000_000),
            write_mb_per_s in proptest::option::of(1u64..1_000_000),
        ) {
            let e = Emulation {
                read_factor: f64::from(read) / 10.0,
                write_factor: f64::from(write) / 10.0,
                read_access_ns, write_access_ns, read_line_ns, write_line_ns,
                bandwidth_mb_per_s, read_mb_per_s, write_mb_per_s,
            };
            prop_assert_eq!(e.to_string().parse(), Ok(e));
        }
    }

    #[test]
    fn waits_at_least_as_long_as_asked() {
        let counters = Counters::default();
        let polled = |asked: &str, moved| {
            let before = counters.snapshot();
            let emulator = Emulator::new(&asked.parse().unwrap());
            emulator.slowed(Direction::Write, moved, &counters, || ());
            emulator.slowed(Direction::Read, moved, &counters, || ());
            (counters.snapshot() - before).emulated_cycles as f64 / cycles_per_ns()
        };
        let moved = Moved { lines_read: 3, lines_written: 5 };
        assert!(polled("read-line=1000ns", moved) >= 2.0 * 3000.0);
        assert!(polled("write-line=1000ns", moved) >= 2.0 * 5000.0);
        assert!(polled("line=1000ns", moved) >= 2.0 * 8000.0);
        assert!(polled("access=1000ns", moved) >= 2.0 * 2000.0);
        assert_eq!(polled("line=1000ns,access=1000ns", Moved::default()), 0.0);
    }

    #[test]
    fn bandwidth_is_shared() {
        // 64 bytes at 64 MB/s occupy the memory for 1 µs.
        let emulator = Emulator::new(&"bandwidth=64MB/s".parse().unwrap());
        let line = emulator.write_occupancy;
        assert!((line as f64 / cycles_per_ns() - 1000.0).abs() < 2.0);
        let one = Moved { lines_read: 0, lines_written: 1 };
        assert_eq!(emulator.occupy(1_000_000, one), 1_000_000 + line);
        assert_eq!(emulator.occupy(1_000_001, one), 1_000_000 + 2 * line);
        assert_eq!(emulator.occupy(1_000_000 + 9 * line, one), 1_000_000 + 10 * line);
        let halves =
            Emulator::new(&"read-bandwidth=64MB/s,write-bandwidth=32MB/s".parse().unwrap());
        assert_eq!((halves.read_occupancy, halves.write_occupancy), (line, 2 * line));
    }

    #[test]
    fn factors_scale_what_the_operation_took() {
        let counters = Counters::default();
        let emulator = Emulator::new(&"read=3x".parse().unwrap());
        let took = emulator.slowed(Direction::Read, Moved::default(), &counters, || {
            let start = tsc();
            while tsc() < start + 10_000 {}
            10_000
        });
        assert!(counters.snapshot().emulated_cycles >= 2 * took);
        let before = counters.snapshot();
        emulator.slowed(Direction::Write, Moved::default(), &counters, || ());
        assert_eq!((counters.snapshot() - before).emulated_cycles, 0);
    }
}
