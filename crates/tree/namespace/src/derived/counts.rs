//! Counts by process and inode: references and mappings, so that those of dead processes can be
//! taken back.

use arena::{Arena, Layout, Span};
use os::threads::OwnU64;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use vfs::Ino;

/// One count for each process and inode; no counts if only one process can use the pool.
#[derive(Clone, Copy)]
pub struct Counts {
    table: Option<Span<OwnU64>>,
    inodes: usize,
}

impl Counts {
    /// Plans the counts; `processes` is 0 if only one process can use the pool.
    pub fn plan(layout: &mut Layout, processes: usize, inodes: usize) -> Self {
        Self { table: (processes > 0).then(|| layout.table(processes * inodes)), inodes }
    }

    /// Returns the count of a process for an inode; `None` if no counts are kept.
    #[inline]
    fn of<'a>(&self, arena: &'a Arena, process: usize, ino: Ino) -> Option<&'a OwnU64> {
        arena.table(self.table?).get(self.index(process, ino))
    }

    #[inline]
    fn index(&self, process: usize, ino: Ino) -> usize {
        process * self.inodes + ino.0 as usize
    }

    /// Prefetches the count of this process for an inode.
    #[inline]
    pub fn prefetch(&self, arena: &Arena, ino: Ino) {
        if let (Some(table), Ok(process)) = (self.table, arena.process()) {
            arena.prefetch(table, self.index(process, ino));
        }
    }

    /// Returns whether counts are kept, so that this process needs its slot number.
    #[inline]
    pub fn are_kept(&self) -> bool {
        self.table.is_some()
    }

    /// Returns the count of a process for an inode.
    pub fn get(&self, arena: &Arena, process: usize, ino: Ino) -> u64 {
        self.of(arena, process, ino).map_or(0, |count| count.load(Acquire))
    }

    /// Adds one.
    #[inline]
    pub fn add(&self, arena: &Arena, process: usize, ino: Ino) {
        if let Some(own) = self.of(arena, process, ino) {
            let _ = own.modify(|have| Some(have + 1));
        }
    }

    /// Takes up to `n` from a count; returns the number taken, which is `n` if no counts are kept.
    #[inline]
    pub fn take(&self, arena: &Arena, process: usize, ino: Ino, n: u64) -> u64 {
        self.of(arena, process, ino).map_or(n, |own| {
            match own.modify(|have| Some(have.saturating_sub(n))) {
                Ok(had) | Err(had) => had.min(n),
            }
        })
    }

    /// Adds one to a part of a count: the bits from `shift` on, up to `max`. Returns whether there
    /// was room.
    #[must_use]
    pub fn add_part(
        &self,
        arena: &Arena,
        process: usize,
        ino: Ino,
        (shift, max): (u32, u64),
    ) -> bool {
        self.of(arena, process, ino).is_none_or(|own| {
            own.modify(|have| (have >> shift & max < max).then(|| have + (1 << shift))).is_ok()
        })
    }

    /// Takes up to `n` from one part of a count; returns the number taken, which is `n` if no
    /// counts are kept.
    pub fn take_part(
        &self,
        arena: &Arena,
        process: usize,
        ino: Ino,
        (shift, max): (u32, u64),
        n: u64,
    ) -> u64 {
        let part = |have: u64| (have >> shift & max).min(n);
        self.of(arena, process, ino).map_or(n, |own| {
            match own.modify(|have| Some(have - (part(have) << shift))) {
                Ok(had) | Err(had) => part(had),
            }
        })
    }

    /// Calls `each` with the inodes that a process counts, and their counts. Returns the number of
    /// counts read.
    pub fn for_each(&self, arena: &Arena, process: usize, mut each: impl FnMut(Ino, u64)) -> usize {
        let Some(table) = self.table else { return 0 };
        let range = self.of_process(process);
        let first = range.start;
        arena.for_each_backed(table, range, |i, count| match count.load(Relaxed) {
            0 => {}
            count => each(Ino((i - first) as u64), count),
        })
    }

    /// Clears all counts of a dead process.
    pub fn clear(&self, arena: &Arena, process: usize) -> io::Result<()> {
        match self.table {
            Some(table) => arena.clear(table, self.of_process(process)),
            None => Ok(()),
        }
    }

    fn of_process(&self, process: usize) -> Range<usize> {
        let first = process * self.inodes;
        first..first + self.inodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_counts_for_itself() {
        let mut layout = Layout::default();
        let counts = Counts::plan(&mut layout, 3, 1000);
        let arena = &Arena::anonymous(&layout).unwrap();
        assert!(counts.are_kept());
        for _ in 0..3 {
            counts.add(arena, 1, Ino(7));
        }
        counts.add(arena, 2, Ino(7));
        counts.add(arena, 1, Ino(999));
        assert_eq!(counts.take(arena, 1, Ino(7), 2), 2);
        assert_eq!((counts.get(arena, 1, Ino(7)), counts.get(arena, 2, Ino(7))), (1, 1));
        let mut found = Vec::new();
        counts.for_each(arena, 1, |ino, count| found.push((ino.0, count)));
        assert_eq!(found, [(7, 1), (999, 1)]);
        assert_eq!(counts.take(arena, 1, Ino(7), 5), 1, "no more than there are");
        assert_eq!(counts.take(arena, 1, Ino(7), 5), 0);
        assert_eq!(counts.get(arena, 2, Ino(7)), 1);
    }

    #[test]
    fn one_process_needs_no_counts() {
        let mut layout = Layout::default();
        let counts = Counts::plan(&mut layout, 0, 1000);
        let arena = &Arena::anonymous(&layout).unwrap();
        assert!(!counts.are_kept());
        counts.add(arena, 0, Ino(7));
        assert_eq!(counts.get(arena, 0, Ino(7)), 0);
        assert_eq!(counts.take(arena, 0, Ino(7), 5), 5, "the sum of all is told to take them");
        assert_eq!(counts.for_each(arena, 0, |_, _| unreachable!()), 0);
    }
}
