//! The shared L2 cache: its lines, which cores may have them, and which words are dirty.

use super::config::CacheSize;
use super::sets::Sets;

/// The end of a list of lines.
const NONE: u32 = u32::MAX;

/// The state of a dirty line, without its words.
#[derive(Clone, Copy, Debug, Default)]
struct DirtyLine {
    /// The time of the last store. The line is not written before that, even by a core whose clock
    /// is behind.
    stored_at: u64,
    prev: u32,
    next: u32,
    /// Its list (simulator-S2): an epoch's entry, or the last one.
    list: u8,
}

/// A list of dirty lines, in the order in which they became dirty.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// A line that was dirty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cleaned {
    pub(super) words: u8,
    pub(super) list: usize,
    pub(super) stored_at: u64,
}

/// The cache.
#[derive(Debug)]
pub(super) struct L2Cache {
    /// The data of a line: the cores whose L1 cache has it, and maybe some that have evicted it.
    pub(super) sets: Sets<u64>,
    /// The dirty words of each place. 0: the line is clean.
    words: Vec<u8>,
    dirty: Vec<DirtyLine>,
    /// One for each entry of the table of epochs, and one for dirty lines without an epoch.
    lists: Vec<List>,
    /// Dirty lines.
    pub(super) dirty_count: u64,
    /// The most dirty lines at a time.
    pub(super) dirty_max: u64,
}

impl L2Cache {
    pub(super) fn new(size: CacheSize, epochs: u32) -> Self {
        let sets = Sets::new(size);
        let empty = List { head: NONE, tail: NONE };
        Self {
            words: vec![0; sets.places()],
            dirty: vec![DirtyLine::default(); sets.places()],
            lists: vec![empty; epochs as usize + 1],
            sets,
            dirty_count: 0,
            dirty_max: 0,
        }
    }

    /// Returns the list of dirty lines without an epoch.
    #[inline]
    pub(super) fn unordered(&self) -> usize {
        self.lists.len() - 1
    }

    #[inline]
    pub(super) fn is_dirty(&self, place: usize) -> bool {
        self.words[place] != 0
    }

    /// Returns the list of a dirty line.
    #[inline]
    pub(super) fn list(&self, place: usize) -> Option<usize> {
        self.is_dirty(place).then(|| self.dirty[place].list.into())
    }

    /// Returns the line of a list that became dirty first.
    #[inline]
    pub(super) fn first_of(&self, list: usize) -> Option<usize> {
        let head = self.lists[list].head;
        (head != NONE).then_some(head as usize)
    }

    /// Marks words as dirty. A line that was clean joins `list`.
    #[inline]
    pub(super) fn make_dirty(&mut self, place: usize, list: usize, words: u8, now: u64) {
        if !self.is_dirty(place) {
            let tail = self.lists[list].tail;
            self.dirty[place] =
                DirtyLine { stored_at: now, prev: tail, next: NONE, list: list as u8 };
            match tail {
                NONE => self.lists[list].head = place as u32,
                tail => self.dirty[tail as usize].next = place as u32,
            }
            self.lists[list].tail = place as u32;
            self.dirty_count += 1;
            self.dirty_max = self.dirty_max.max(self.dirty_count);
        }
        self.words[place] |= words;
        self.dirty[place].stored_at = now;
    }

    /// Makes a line clean. Returns what was dirty.
    #[inline]
    pub(super) fn clean(&mut self, place: usize) -> Option<Cleaned> {
        let words = std::mem::take(&mut self.words[place]);
        if words == 0 {
            return None;
        }
        let DirtyLine { stored_at, prev, next, list } = self.dirty[place];
        let ends = &mut self.lists[usize::from(list)];
        match prev {
            NONE => ends.head = next,
            prev => self.dirty[prev as usize].next = next,
        }
        match next {
            NONE => ends.tail = prev,
            next => self.dirty[next as usize].prev = prev,
        }
        self.dirty_count -= 1;
        Some(Cleaned { words, list: list.into(), stored_at })
    }
}
