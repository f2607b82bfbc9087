//! What became of the files that a process opened to write to, by the names that it gave: who makes one, writes to it some times
//! and removes it, over and over (the journal of a database), is served from the first call on, and so is who opens one that is
//! still delegated.

use crate::slab::{Room, Slab};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// So many names are remembered.
const NAMES: usize = 1 << 12;
/// A file of so many calls is worth being looked at, and delegated, at once.
const WORTH: u32 = 6;
/// In what is remembered of a name: such a file is worth it. The other bits are the name's.
const IS_WORTH: u32 = 1;
/// In what is noted of a descriptor: it only reads, and tells nothing about the name.
const READS_ONLY: u32 = 1;

/// A hint, and no more: what two threads note at once, or two names of one hash, may be lost.
pub struct Habits {
    names: Slab<AtomicU32>,
    /// The name by which a descriptor was opened, by its number plus one; 0: none.
    fds: Slab<AtomicU32>,
}

/// Stands for a name; never 0.
pub fn name_of(path: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    path.iter().fold(0x811c_9dc5, step) & !IS_WORTH | 2
}

impl Habits {
    /// What it takes of a room for so many descriptors.
    pub const fn bytes(fds: usize) -> usize {
        Slab::<AtomicU32>::bytes(NAMES) + Slab::<AtomicU32>::bytes(fds)
    }

    /// For so many descriptors.
    pub fn new(fds: usize, room: &mut Room) -> Self {
        Self { names: Slab::new(NAMES, room), fds: Slab::new(fds, room) }
    }

    fn place(&self, name: u32) -> &AtomicU32 {
        self.names.at((name >> 2) % NAMES as u32 + 1)
    }

    /// A descriptor was opened by a name, to read only or to write as well; 0: by none that counts. It is one that the table has.
    pub fn opened(&self, fd: i32, name: u32, reads_only: bool) {
        let noted = if name != 0 && reads_only { name | READS_ONLY } else { name };
        self.fds.at(fd as u32 + 1).store(noted, Relaxed);
    }

    /// Whether files of the descriptor's name have been worth it.
    pub fn promises(&self, fd: i32) -> bool {
        let name = self.fds.at(fd as u32 + 1).load(Relaxed);
        name != 0 && self.place(name).load(Relaxed) == name | IS_WORTH
    }

    /// A descriptor is closed after so many calls.
    pub fn closed(&self, fd: i32, calls: u32) {
        let name = self.fds.at(fd as u32 + 1).load(Relaxed);
        if name != 0 && name & READS_ONLY == 0 {
            let is_worth = if calls >= WORTH { IS_WORTH } else { 0 };
            self.place(name).store(name | is_worth, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_file_of_a_name_is_taken_for_the_last() {
        let mut room = Room::new(Habits::bytes(16)).unwrap();
        let habits = Habits::new(16, &mut room);
        let (journal, other) = (name_of(b"db-journal"), name_of(b"other"));
        habits.opened(3, journal, false);
        assert!(!habits.promises(3));
        habits.closed(3, WORTH);
        habits.opened(5, journal, false);
        habits.opened(3, other, false);
        assert!(habits.promises(5) && !habits.promises(3));
        habits.closed(5, WORTH - 1);
        assert!(!habits.promises(5));
        habits.opened(5, 0, true);
        habits.closed(5, 100);
        assert!(!habits.promises(5));
    }

    #[test]
    fn who_only_reads_profits_and_tells_nothing() {
        let mut room = Room::new(Habits::bytes(16)).unwrap();
        let habits = Habits::new(16, &mut room);
        let name = name_of(b"made");
        habits.opened(3, name, false);
        habits.closed(3, WORTH);
        habits.opened(3, name, true);
        assert!(habits.promises(3));
        habits.closed(3, 1);
        assert!(habits.promises(3));
    }
}
