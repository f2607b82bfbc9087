//! The requests that wait for each bank, and the one that begins next (controller-Q3).
//!
//! - waiting-W1: Each bank has chosen one of its requests. A choice changes if the bank serves a
//!   request, or if a better one comes; nothing else has an influence on it.

use super::banks::{BankPlace, Banks, RowChange, ServedRequest};
use super::controller::{EpochId, LineWrite};

/// The place of a request in the order in which a bank takes them. The least comes first: the time
/// from which it may begin; then reads, then requests whose row is in a buffer, then older ones.
/// That is, from the highest bits on: 64 bits of time, one for a write, one for a row that is in no
/// buffer, and the place among all requests.
pub(super) type Rank = u128;

const IS_WRITE: u64 = 1 << 63;
const IS_MISS: u64 = 1 << 62;
/// The rank of no request.
const NONE: Rank = Rank::MAX;

/// No context, or no core.
const NOBODY: u32 = u32::MAX;

/// A request that no bank has begun. Optional parts are plain numbers, so that a request is copied
/// part by part: to copy in one go what was just written in parts makes the processor wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRequest {
    /// Its rank without the time.
    rank: u64,
    /// The time at which it came.
    pub(super) came: u64,
    /// The time from which it may begin if its bank is free.
    pub(super) ready: u64,
    /// Its number among writes.
    pub(super) number: u64,
    pub(super) line: u64,
    pub(super) place: BankPlace,
    epoch_number: u64,
    /// The context of its epoch.
    context: u32,
    /// The core whose next fence waits for it.
    fenced_by: u32,
}

impl WaitingRequest {
    /// Makes a read. `order` is its place among all requests.
    #[inline]
    pub(super) fn read(order: u64, line: u64, place: BankPlace, came: u64) -> Self {
        let write = LineWrite { line, ..LineWrite::default() };
        Self { rank: order, ..Self::write(order, 0, write, place, came) }
    }

    #[inline(always)]
    pub(super) fn write(
        order: u64,
        number: u64,
        write: LineWrite,
        place: BankPlace,
        came: u64,
    ) -> Self {
        let LineWrite { line, epoch, fenced_by } = write;
        Self {
            rank: order | IS_WRITE,
            came,
            ready: came,
            number,
            line,
            place,
            epoch_number: epoch.map_or(0, |epoch| epoch.number),
            context: epoch.map_or(NOBODY, |epoch| epoch.context),
            fenced_by: fenced_by.unwrap_or(NOBODY),
        }
    }

    #[inline]
    pub(super) fn is_write(&self) -> bool {
        self.rank & IS_WRITE != 0
    }

    /// Returns its epoch.
    #[inline]
    pub(super) fn epoch(&self) -> Option<EpochId> {
        let Self { context, epoch_number: number, .. } = *self;
        (context != NOBODY).then_some(EpochId { context, number })
    }

    /// Returns the core whose next fence waits for it.
    #[inline]
    pub(super) fn fenced_by(&self) -> Option<u32> {
        (self.fenced_by != NOBODY).then_some(self.fenced_by)
    }

    /// Returns its rank at a bank that is free from then on.
    #[inline]
    fn rank(&self, free: u64) -> Rank {
        Rank::from(self.ready.max(free)) << 64 | Rank::from(self.rank)
    }

    #[inline]
    fn set_miss(&mut self, is_miss: bool) {
        self.rank = self.rank & !IS_MISS | if is_miss { IS_MISS } else { 0 };
    }
}

/// The requests that may begin and have not.
#[derive(Debug)]
pub(super) struct WaitingRequests {
    /// The requests of each bank, in no order.
    of_banks: Vec<Vec<WaitingRequest>>,
    /// The index of the request that each bank has chosen.
    chosen: Vec<u32>,
    /// A binary tree of ranks: node 1 is the root, the children of node `n` are `2n` and `2n + 1`,
    /// and the last half are the choices of the banks. Other nodes are the least of their children.
    ranks: Vec<Rank>,
    /// The bank of each node's rank.
    banks: Vec<u32>,
    len: usize,
    has_rows: bool,
}

impl WaitingRequests {
    pub(super) fn new(banks: usize, has_rows: bool) -> Self {
        let nodes = 2 * banks.next_power_of_two();
        Self {
            of_banks: vec![Vec::new(); banks],
            chosen: vec![0; banks],
            ranks: vec![NONE; nodes],
            banks: vec![0; nodes],
            len: 0,
            has_rows,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the time at which a bank next begins a request, and that bank.
    #[inline]
    pub(super) fn next(&self) -> Option<(u64, usize)> {
        let rank = self.ranks[1];
        (rank != NONE).then_some(((rank >> 64) as u64, self.banks[1] as usize))
    }

    /// Returns the requests of a bank.
    pub(super) fn of_bank(&self, bank: usize) -> impl Iterator<Item = &WaitingRequest> {
        self.of_banks[bank].iter()
    }

    /// Adds a request. Inlined, so that its parts are written to their place at once.
    #[inline(always)]
    pub(super) fn add(&mut self, mut request: WaitingRequest, banks: &Banks) {
        let bank = request.place.bank();
        if self.has_rows {
            request.set_miss(!banks.is_hit(request.place));
        }
        let rank = request.rank(banks.free(bank));
        let requests = &mut self.of_banks[bank];
        let index = requests.len() as u32;
        requests.push(request);
        self.len += 1;
        if rank < self.ranks[self.leaf(bank)] {
            self.set(bank, rank, index);
        }
    }

    /// Removes the request that a bank has chosen. The bank has to choose again when it has served
    /// that one.
    #[inline]
    pub(super) fn take(&mut self, bank: usize) -> WaitingRequest {
        self.len -= 1;
        self.of_banks[bank].swap_remove(self.chosen[bank] as usize)
    }

    /// Lets a bank choose that has served a request (waiting-W1).
    #[inline]
    pub(super) fn choose(&mut self, bank: usize, served: ServedRequest) {
        let (mut least, mut chosen) = (NONE, 0);
        for (index, request) in (0..).zip(&mut self.of_banks[bank]) {
            if let Some(RowChange { opened, closed }) = served.rows {
                if request.place.row == opened {
                    request.set_miss(false);
                } else if Some(request.place.row) == closed {
                    request.set_miss(true);
                }
            }
            let rank = request.rank(served.end);
            let is_less = rank < least;
            least = if is_less { rank } else { least };
            chosen = if is_less { index } else { chosen };
        }
        self.set(bank, least, chosen);
    }

    /// Returns the node of a bank.
    #[inline]
    fn leaf(&self, bank: usize) -> usize {
        self.ranks.len() / 2 + bank
    }

    /// Sets the choice of a bank.
    #[inline]
    fn set(&mut self, bank: usize, mut rank: Rank, index: u32) {
        self.chosen[bank] = index;
        let mut at = self.leaf(bank);
        let mut bank = bank as u32;
        (self.ranks[at], self.banks[at]) = (rank, bank);
        while at > 1 {
            let (other, its_bank) = (self.ranks[at ^ 1], self.banks[at ^ 1]);
            let is_less = other < rank;
            rank = if is_less { other } else { rank };
            bank = if is_less { its_bank } else { bank };
            at /= 2;
            (self.ranks[at], self.banks[at]) = (rank, bank);
        }
    }
}
