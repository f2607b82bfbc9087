//! Delegations of files that this process has closed. If it opens one again, it continues with the
//! delegation, without a request, for as long as the pool confirms it (delegation-D1).

use crate::delegation::By;
use crate::file;
use crate::lock::Held;
use crate::slab::{Room, Slab, Zeroed};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Delegation, Ino};

/// Files that are remembered. Each has one place, where the last file stays.
const PLACES: u64 = 1 << 10;

/// A file, and its delegation. Changed and read with the tables locked.
struct RememberedPlace {
    dev: AtomicU64,
    ino: AtomicU64,
    /// 0: the place is empty.
    number: AtomicU64,
    shadow: AtomicU64,
    pool: AtomicU64,
}

// SAFETY: numbers.
#[allow(unsafe_code)]
unsafe impl Zeroed for RememberedPlace {}

/// Files that were closed while they were delegated.
pub struct Remembered(Slab<RememberedPlace>);

impl Remembered {
    /// Bytes of a room that `new` takes.
    pub const BYTES: usize = Slab::<RememberedPlace>::bytes(PLACES as usize);

    pub fn new(room: &mut Room) -> Self {
        Self(Slab::new(PLACES as usize, room))
    }

    fn place(&self, dev: u64, ino: u64) -> &RememberedPlace {
        self.0.at((file::hash(dev, ino) % PLACES) as u32 + 1)
    }

    /// Remembers a delegated file that is closed.
    pub fn note(&self, _held: &Held<'_>, (dev, ino): (u64, u64), by: By) {
        let place = self.place(dev, ino);
        place.dev.store(dev, Relaxed);
        place.ino.store(ino, Relaxed);
        place.number.store(by.number.0, Relaxed);
        place.shadow.store(by.shadow.0, Relaxed);
        place.pool.store(by.pool.into(), Relaxed);
    }

    /// Removes and returns the delegation of a file.
    pub fn take(&self, _held: &Held<'_>, (dev, ino): (u64, u64)) -> Option<By> {
        let place = self.place(dev, ino);
        let is_it = place.ino.load(Relaxed) == ino && place.dev.load(Relaxed) == dev;
        let number = if is_it { place.number.swap(0, Relaxed) } else { 0 };
        let shadow = Ino(place.shadow.load(Relaxed));
        let pool = place.pool.load(Relaxed) as u32;
        (number != 0).then_some(By { number: Delegation(number), shadow, pool })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Lock;

    #[test]
    fn a_file_is_remembered_once() {
        let (mut room, lock) = (Room::new(Remembered::BYTES).unwrap(), Lock::default());
        let (remembered, held) = (Remembered::new(&mut room), lock.hold());
        let by = |number| By { number: Delegation(number), shadow: Ino(7), pool: 3 };
        remembered.note(&held, (1, 5), by(9));
        remembered.note(&held, (1, 5), by(10));
        assert!(remembered.take(&held, (2, 5)).is_none());
        let taken = remembered.take(&held, (1, 5)).unwrap();
        assert_eq!((taken.number, taken.shadow, taken.pool), (Delegation(10), Ino(7), 3));
        assert!(remembered.take(&held, (1, 5)).is_none());
    }
}
