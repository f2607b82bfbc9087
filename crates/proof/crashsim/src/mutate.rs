//! Bugs planted in traces: a checker that cannot fail is worthless.
//!
//! A mutant's behaviour with one wrong line is derived from the recorded one: a flush or fence left
//! out, stores swapped, torn, delayed beyond the next commit, made too early, lost. So one
//! recording serves all mutants, and no engine has test hooks.

use crate::image::WordNo;
use crate::trace::{Action, Event, SiteId, StoreKind, Trace};
use serde::Serialize;

/// A kind of error in one line of source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bug {
    /// The flush is missing.
    DropFlush,
    /// The fence is missing: what follows is not ordered after what precedes.
    DropFence,
    /// The flush comes after the fence that was to cover it.
    FlushAfterFence,
    /// Of several lines only the first is flushed.
    ShortFlush,
    /// The store is missing (lost, or a stale value persisted).
    DropStore,
    /// The store comes after the next commit: commit before data, size before data.
    DelayStore,
    /// The word or line is stored and durable when the operation starts: commit before the data
    /// that it names.
    EarlyStore,
    /// The word is stored as two halves, the line as words.
    TearStore,
    /// The store changes places with the one before it in its line.
    SwapStores,
    /// The last line of a non-temporal write is missing.
    ShortStore,
    /// The block that a pointer led to is written to before the pointer is replaced: a freed block
    /// is reused too early.
    EarlyReuse,
    /// A block is changed word by word before its copy is made: an update in place.
    InPlace,
}

impl Bug {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::DropFlush,
        Self::DropFence,
        Self::FlushAfterFence,
        Self::ShortFlush,
        Self::DropStore,
        Self::DelayStore,
        Self::EarlyStore,
        Self::TearStore,
        Self::SwapStores,
        Self::ShortStore,
        Self::EarlyReuse,
        Self::InPlace,
    ];

    /// Whether a step of this kind can have this bug.
    fn fits(self, action: &Action) -> bool {
        match action {
            Action::Flush { addr, len } => match self {
                Self::DropFlush | Self::FlushAfterFence => true,
                Self::ShortFlush => addr / 64 != (addr + len.max(&1) - 1) / 64,
                _ => false,
            },
            Action::Fence => self == Self::DropFence,
            Action::Store { kind, len, .. } => match self {
                Self::DropStore | Self::DelayStore => true,
                Self::EarlyStore | Self::TearStore => {
                    matches!(kind, StoreKind::Word | StoreKind::Line)
                }
                Self::SwapStores | Self::EarlyReuse => *kind == StoreKind::Word,
                Self::ShortStore => *kind == StoreKind::Nt && *len > 64,
                Self::InPlace => *kind == StoreKind::Nt && *len == 4096,
                _ => false,
            },
            _ => false,
        }
    }
}

/// A bug in a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Mutant {
    /// The line.
    pub site: String,
    /// The error in it.
    pub bug: Bug,
}

/// Returns all mutants that a trace can have from operation `from` on.
pub fn mutants(trace: &Trace, from: u32) -> Vec<Mutant> {
    let mut all = Vec::new();
    let mut active = from == 0;
    for e in &trace.events {
        if let Action::Begin { op } = e.action {
            active = op >= from;
        }
        let bugs = Bug::ALL.into_iter().filter(|b| active && b.fits(&e.action));
        all.extend(bugs.map(|b| (e.site, b)));
    }
    all.sort_unstable();
    all.dedup();
    let named =
        |(site, bug): (SiteId, Bug)| Mutant { site: trace.sites[site as usize].clone(), bug };
    all.into_iter().map(named).collect()
}

/// Returns the trace of a program with this bug over memory that starts as `base`; `None` if the
/// bug changes nothing.
pub fn mutate(trace: &Trace, base: &[u8], mutant: &Mutant) -> Option<Trace> {
    let site = trace.sites.iter().position(|s| *s == mutant.site)? as SiteId;
    let mut m = Mutation {
        out: Trace { events: Vec::with_capacity(trace.events.len()), ..trace.clone() },
        memory: base.to_vec(),
        delayed: Vec::new(),
        opened: 0,
    };
    for e in &trace.events {
        let hit = e.site == site && mutant.bug.fits(&e.action);
        if hit {
            m.step(mutant.bug, e);
        } else {
            m.out.events.push(*e);
        }
        m.follow(e);
    }
    m.release(true);
    (m.out.events != trace.events).then_some(m.out)
}

struct Mutation {
    out: Trace,
    /// Memory as the program sees it.
    memory: Vec<u8>,
    /// Steps held back, each with the number of fences it still waits for.
    delayed: Vec<(u32, Event)>,
    /// Index in `out` of the start of the operation.
    opened: usize,
}

impl Mutation {
    /// Applies an original event to the memory, and releases delayed steps at fences and ends of
    /// operations.
    fn follow(&mut self, e: &Event) {
        match e.action {
            Action::Store { addr, len, data, .. } => {
                let bytes = self.out.data(data, len).to_vec();
                self.memory[addr as usize..(addr + len) as usize].copy_from_slice(&bytes);
            }
            Action::Begin { .. } => self.opened = self.out.events.len(),
            Action::Fence => {
                for (fences, _) in &mut self.delayed {
                    *fences -= 1;
                }
                self.release(false);
            }
            Action::End { .. } => {
                let end = self.out.events.pop();
                self.release(true);
                self.out.events.extend(end);
            }
            Action::Load { .. } | Action::Flush { .. } | Action::Drain => {}
        }
    }

    /// Releases steps that have waited long enough.
    fn release(&mut self, all: bool) {
        let out = &mut self.out.events;
        self.delayed.retain(|(fences, e)| {
            let go = all || *fences == 0;
            if go {
                out.push(*e);
                if let Action::Store {
                    kind: StoreKind::Plain | StoreKind::Word, addr, len, ..
                } = e.action
                {
                    out.push(Event { action: Action::Flush { addr, len }, ..*e });
                }
                if !matches!(e.action, Action::Flush { .. }) {
                    out.push(Event { action: Action::Fence, ..*e });
                }
            }
            !go
        });
    }

    fn word(&self, addr: u32) -> u64 {
        let bytes = &self.memory[addr as usize..addr as usize + 8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Applies the bug to a step.
    fn step(&mut self, bug: Bug, e: &Event) {
        let action = |action| Event { action, ..*e };
        match (bug, e.action) {
            (Bug::DropFlush | Bug::DropFence | Bug::DropStore, _) => {}
            (Bug::FlushAfterFence, _) => self.delayed.push((1, *e)),
            (Bug::DelayStore, _) => self.delayed.push((2, *e)),
            (Bug::ShortFlush, Action::Flush { addr, .. }) => {
                let len = 64 - addr % 64;
                self.out.events.push(action(Action::Flush { addr, len }));
            }
            (Bug::EarlyStore, Action::Store { addr, len, .. }) => {
                let early = [*e, action(Action::Flush { addr, len }), action(Action::Fence)];
                let at = self.opened;
                self.out.events.splice(at..at, early);
            }
            (Bug::TearStore, Action::Store { kind: StoreKind::Line, addr, len, data }) => {
                let old = &self.memory[addr as usize..(addr + len) as usize];
                let words = old.chunks(8).zip(self.out.data(data, len).chunks(8));
                let kind = match words.filter(|(old, new)| old != new).count() {
                    // One word only: nothing to tear.
                    0 | 1 => StoreKind::Line,
                    _ => StoreKind::Nt,
                };
                self.out.events.push(action(Action::Store { kind, addr, len, data }));
            }
            (Bug::TearStore, Action::Store { addr, data, .. }) => {
                let (old, new) = (self.word(addr), self.out.data(data, 8));
                let new = u64::from_le_bytes(new.try_into().expect("eight bytes"));
                if (old ^ new) as u32 == 0 || (old ^ new) >> 32 == 0 {
                    // One half only: nothing to tear.
                    return self.out.events.push(*e);
                }
                for half in [0, 4] {
                    self.out.events.push(action(Action::Store {
                        kind: StoreKind::Plain,
                        addr: addr + half,
                        len: 4,
                        data: data + half,
                    }));
                }
            }
            (Bug::SwapStores, Action::Store { addr, .. }) => {
                let out = &mut self.out.events;
                let same_line = |p: &Event| matches!(p.action, Action::Store { addr: a, .. } if a / 64 == addr / 64);
                let at = match out.last() {
                    Some(last) if same_line(last) => out.len() - 1,
                    _ => out.len(),
                };
                out.insert(at, *e);
            }
            (Bug::ShortStore, Action::Store { kind, addr, len, data }) => {
                let len = len - 64;
                self.out.events.push(action(Action::Store { kind, addr, len, data }));
            }
            (Bug::EarlyReuse, Action::Store { addr, data, .. }) => {
                let new = self.out.data(data, 8).try_into().expect("eight bytes");
                let points = (u64::from_le_bytes(new) & !7).is_multiple_of(4096);
                let block = self.word(addr) & !7;
                let inside = (4096..self.memory.len() as u64).contains(&block);
                if points && inside && block.is_multiple_of(4096) {
                    let data = self.out.keep(&[0xdb; 4096]);
                    let addr = block as u32;
                    let scribble = Action::Store { kind: StoreKind::Nt, addr, len: 4096, data };
                    self.out.events.push(action(scribble));
                }
                self.out.events.push(*e);
            }
            (Bug::InPlace, Action::Store { addr, data, .. }) => {
                for (word, value) in self.changes_of_copy(addr, data) {
                    let (addr, data) = (word * 8, self.out.keep(&value.to_le_bytes()));
                    self.out.events.push(action(Action::Store {
                        kind: StoreKind::Word,
                        addr,
                        len: 8,
                        data,
                    }));
                    self.out.events.push(action(Action::Flush { addr, len: 8 }));
                    self.out.events.push(action(Action::Fence));
                }
                self.out.events.push(*e);
            }
            _ => self.out.events.push(*e),
        }
    }

    /// Returns, if the block to be stored at `addr` is a copy of another with a few words changed,
    /// those words, with their addresses in the original.
    fn changes_of_copy(&self, addr: u32, data: u32) -> Vec<(WordNo, u64)> {
        const FEW: usize = 6;
        let new = self.out.data(data, 4096);
        let differ = |block: usize| -> Vec<(WordNo, u64)> {
            let old = &self.memory[block..block + 4096];
            let words = old.chunks_exact(8).zip(new.chunks_exact(8)).enumerate();
            words
                .filter(|(_, (a, b))| a != b)
                .map(|(i, (_, b))| {
                    let value = u64::from_le_bytes(b.try_into().expect("eight bytes"));
                    ((block / 8 + i) as WordNo, value)
                })
                .take(FEW + 1)
                .collect()
        };
        let others = (1..self.memory.len() / 4096).map(|b| b * 4096);
        others
            .filter(|b| *b != addr as usize)
            .map(differ)
            .find(|d| (2..=FEW).contains(&d.len()))
            .unwrap_or_default()
    }
}
