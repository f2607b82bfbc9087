//! The requests that wait for each bank, and the one that begins next (controller-Q3).
//!
//! - waiting-W1: Each bank has chosen one of its requests. A choice changes if the bank serves a
//!   request, or if a better one comes; nothing else has an influence on it.

use super::banks::{BankPlace, Banks, RowChange, Served};
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

/// A request that no bank has begun.
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
    /// `None`: it is a read.
    pub(super) write: Option<LineWrite>,
    pub(super) place: BankPlace,
}

impl WaitingRequest {
    /// Makes a read. `order` is its place among all requests.
    pub(super) fn read(order: u64, place: BankPlace, came: u64) -> Self {
        Self { rank: order, came, ready: came, number: 0, write: None, place }
    }

    pub(super) fn write(
        order: u64,
        number: u64,
        write: LineWrite,
        place: BankPlace,
        came: u64,
    ) -> Self {
        Self { rank: order | IS_WRITE, came, ready: came, number, write: Some(write), place }
    }

    pub(super) fn is_write(&self) -> bool {
        self.write.is_some()
    }

    /// Returns the number of its epoch.
    #[inline]
    pub(super) fn epoch_number(&self) -> Option<u64> {
        self.write?.epoch.map(|EpochId { number, .. }| number)
    }

    /// Returns its rank at a bank that is free from then on.
    #[inline]
    fn rank(&self, free: u64) -> Rank {
        Rank::from(self.ready.max(free)) << 64 | Rank::from(self.rank)
    }

    fn set_miss(&mut self, is_miss: bool) {
        self.rank = self.rank & !IS_MISS | if is_miss { IS_MISS } else { 0 };
    }
}

/// The choice of a bank, or the best choice of several.
#[derive(Clone, Copy, Debug)]
struct Choice {
    rank: Rank,
    bank: u32,
    /// Its index among the requests of the bank.
    index: u32,
}

const NO_CHOICE: Choice = Choice { rank: NONE, bank: 0, index: 0 };

/// The requests that may begin and have not.
#[derive(Debug)]
pub(super) struct WaitingRequests {
    /// The requests of each bank, in no order.
    of_banks: Vec<Vec<WaitingRequest>>,
    /// A binary tree: node 1 is the root, the children of node `n` are `2n` and `2n + 1`, and the
    /// last half are the choices of the banks. Other nodes are the better one of their children.
    tree: Vec<Choice>,
    len: usize,
    has_rows: bool,
}

impl WaitingRequests {
    pub(super) fn new(banks: usize, has_rows: bool) -> Self {
        Self {
            of_banks: vec![Vec::new(); banks],
            tree: vec![NO_CHOICE; 2 * banks.next_power_of_two()],
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
        let Choice { rank, bank, .. } = self.tree[1];
        (rank != NONE).then_some(((rank >> 64) as u64, bank as usize))
    }

    /// Returns the requests of a bank.
    pub(super) fn of_bank(&self, bank: usize) -> impl Iterator<Item = &WaitingRequest> {
        self.of_banks[bank].iter()
    }

    /// Adds a request.
    #[inline]
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
        if rank < self.tree[self.leaf(bank)].rank {
            self.set(Choice { rank, bank: bank as u32, index });
        }
    }

    /// Removes the request that a bank has chosen. The bank has to choose again when it has served
    /// that one.
    #[inline]
    pub(super) fn take(&mut self, bank: usize) -> WaitingRequest {
        self.len -= 1;
        let Choice { index, .. } = self.tree[self.leaf(bank)];
        self.of_banks[bank].swap_remove(index as usize)
    }

    /// Lets a bank choose that has served a request.
    #[inline]
    pub(super) fn choose(&mut self, bank: usize, served: Served) {
        let mut best = Choice { bank: bank as u32, ..NO_CHOICE };
        for (index, request) in (0..).zip(&mut self.of_banks[bank]) {
            if let Some(RowChange { opened, closed }) = served.rows {
                if request.place.row == opened {
                    request.set_miss(false);
                } else if Some(request.place.row) == closed {
                    request.set_miss(true);
                }
            }
            let rank = request.rank(served.end);
            if rank < best.rank {
                best = Choice { rank, index, ..best };
            }
        }
        self.set(best);
    }

    /// Returns the node of a bank.
    #[inline]
    fn leaf(&self, bank: usize) -> usize {
        self.tree.len() / 2 + bank
    }

    /// Sets the choice of a bank.
    #[inline]
    fn set(&mut self, choice: Choice) {
        let mut at = self.leaf(choice.bank as usize);
        self.tree[at] = choice;
        while at > 1 {
            let (choice, other) = (self.tree[at], self.tree[at ^ 1]);
            at /= 2;
            self.tree[at] = if choice.rank < other.rank { choice } else { other };
        }
    }
}
