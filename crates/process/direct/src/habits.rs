//! Remembers by name how often a process used the files that it opened to write to. A database
//! makes its journal, writes to it a few times and removes it, over and over. Such a file is served
//! from the first call on, and so is a file whose delegation still holds when it is opened again.

use crate::slab::{Room, Slab};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Names that are remembered.
const NAMES: usize = 1 << 12;
/// Calls from which a file is worth being looked at, and delegated, at once.
const WORTH: u32 = 6;
/// Bit in the word of a name: its file was worth it. The other bits are the name's.
const IS_WORTH: u32 = 1;
/// Bit in the word of a descriptor: it only reads, so its calls do not count for the name.
const READS_ONLY: u32 = 1;

/// The table of names: only a hint. Entries of two threads at once, or of two names with one hash,
/// may be lost.
pub struct Habits {
    names: Slab<AtomicU32>,
    /// The name by which a descriptor was opened, by its number plus one; 0: unknown.
    fds: Slab<AtomicU32>,
}

/// Returns a hash that stands for a name; never 0.
pub fn name_of(path: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    path.iter().fold(0x811c_9dc5, step) & !IS_WORTH | 2
}

impl Habits {
    /// Returns the bytes of a room for `fds` descriptors.
    pub const fn bytes(fds: usize) -> usize {
        Slab::<AtomicU32>::bytes(NAMES) + Slab::<AtomicU32>::bytes(fds)
    }

    /// Makes the tables for `fds` descriptors.
    pub fn new(fds: usize, room: &mut Room) -> Self {
        Self { names: Slab::new(NAMES, room), fds: Slab::new(fds, room) }
    }

    fn place(&self, name: u32) -> &AtomicU32 {
        self.names.at((name >> 2) % NAMES as u32 + 1)
    }

    /// Notes the name by which a descriptor of the table was opened, to read only or to write as
    /// well; 0: no name that counts.
    pub fn opened(&self, fd: i32, name: u32, reads_only: bool) {
        let noted = if name != 0 && reads_only { name | READS_ONLY } else { name };
        self.fds.at(fd as u32 + 1).store(noted, Relaxed);
    }

    /// Whether files of the descriptor's name were worth it.
    pub fn promises(&self, fd: i32) -> bool {
        let name = self.fds.at(fd as u32 + 1).load(Relaxed);
        name != 0 && self.place(name).load(Relaxed) == name | IS_WORTH
    }

    /// Notes that a descriptor is closed after `calls` calls.
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
