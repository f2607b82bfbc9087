//! Writes of lines and words. Memory is bounded by a number of pages.

use crate::caches::{WriteBack, WriteSink};
use serde::Serialize;
use std::collections::HashMap;

/// Lines of a page of 4 KiB.
pub(super) const PAGE_LINES: u64 = 64;
/// Words of a page.
const PAGE_WORDS: usize = 512;

/// The writes of a page.
#[derive(Clone, Debug)]
struct PageCounts {
    lines: [u32; PAGE_LINES as usize],
    words: [u32; PAGE_WORDS],
}

/// Counts writes to memory.
#[derive(Debug)]
pub struct WearCounts {
    /// The places of pages in `counts`.
    pages: HashMap<u64, usize>,
    #[expect(clippy::vec_box, reason = "a list that grows must not need twice the memory")]
    counts: Vec<Box<PageCounts>>,
    /// The page that was written last, and its place: most writes are to the same page again.
    last: Option<(u64, usize)>,
    pages_max: usize,
    /// Writes to pages that were not counted, because there are too many.
    missed: u64,
}

/// A line with many writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HotLine {
    /// Its address.
    pub addr: u64,
    /// Its writes.
    pub writes: u64,
}

/// Sums of all counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WearTotals {
    /// Writes of lines.
    pub line_writes: u64,
    /// Lines with writes.
    pub lines: u64,
    /// Writes of the line with the most.
    pub line_max: u64,
    /// Stores to the word with the most, each write of its line counted once.
    pub word_max: u64,
    /// The mean of the lines of the page with the most writes.
    pub page_max: f64,
    /// The mean of the words of the page with the most stores to words.
    pub page_words_max: f64,
}

impl WearCounts {
    /// Counts at most `pages_max` pages of 4 KiB; each takes 2.3 KB of memory.
    pub fn new(pages_max: usize) -> Self {
        Self { pages: HashMap::new(), counts: Vec::new(), last: None, pages_max, missed: 0 }
    }

    /// Returns the writes that were not counted, because they were to too many pages.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Returns all lines with writes and their counts, in ascending order: so sums of fractions are
    /// the same in each run.
    pub fn lines(&self) -> impl Iterator<Item = (u64, u32)> {
        let mut pages: Vec<_> = self.pages.iter().map(|(page, place)| (*page, *place)).collect();
        pages.sort_unstable();
        pages.into_iter().flat_map(|(page, place)| {
            let counts = &self.counts[place];
            let with_writes = |(at, n): (usize, &u32)| (*n > 0).then_some((at as u64, *n));
            let of_page = counts.lines.iter().enumerate().filter_map(with_writes);
            of_page.map(move |(at, n)| (page * PAGE_LINES + at, n))
        })
    }

    /// Returns the `count` lines with the most writes, the most first.
    pub fn hottest(&self, count: usize) -> Vec<HotLine> {
        let mut lines: Vec<(u64, u32)> = self.lines().collect();
        lines.sort_unstable_by_key(|(line, writes)| (std::cmp::Reverse(*writes), *line));
        lines.truncate(count);
        let hot = |(line, writes): (u64, u32)| HotLine {
            addr: line * crate::LINE,
            writes: writes.into(),
        };
        lines.into_iter().map(hot).collect()
    }

    /// Returns the sums.
    pub fn totals(&self) -> WearTotals {
        let mut totals = WearTotals::default();
        for PageCounts { lines, words } in self.counts.iter().map(|page| &**page) {
            let sum = |counts: &[u32]| counts.iter().map(|n| u64::from(*n)).sum::<u64>();
            let max = |counts: &[u32]| u64::from(*counts.iter().max().expect("a page has lines"));
            totals.line_writes += sum(lines);
            totals.lines += lines.iter().filter(|n| **n > 0).count() as u64;
            totals.line_max = totals.line_max.max(max(lines));
            totals.word_max = totals.word_max.max(max(words));
            let mean = |counts: &[u32]| sum(counts) as f64 / counts.len() as f64;
            totals.page_max = totals.page_max.max(mean(lines));
            totals.page_words_max = totals.page_words_max.max(mean(words));
        }
        totals
    }
}

impl WearCounts {
    /// Returns the place of a page in `counts`. `None` if there are too many pages.
    fn place(&mut self, page: u64) -> Option<usize> {
        if let Some((last, place)) = self.last
            && last == page
        {
            return Some(place);
        }
        let place = match self.pages.get(&page) {
            Some(place) => *place,
            None if self.pages.len() >= self.pages_max => return None,
            None => {
                self.pages.insert(page, self.counts.len());
                self.counts.push(Box::new(PageCounts { lines: [0; _], words: [0; _] }));
                self.counts.len() - 1
            }
        };
        self.last = Some((page, place));
        Some(place)
    }
}

impl WriteSink for WearCounts {
    fn write(&mut self, write: WriteBack) {
        let Some(place) = self.place(write.line / PAGE_LINES) else {
            self.missed += 1;
            return;
        };
        let counts = &mut self.counts[place];
        let at = (write.line % PAGE_LINES) as usize;
        counts.lines[at] = counts.lines[at].saturating_add(1);
        for (word, count) in counts.words[at * 8..at * 8 + 8].iter_mut().enumerate() {
            *count = count.saturating_add(u32::from(write.words >> word & 1));
        }
    }
}
