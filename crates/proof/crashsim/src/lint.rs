//! Problems that a trace shows without a crash: stores that are never made durable, flushes and
//! fences without effect, and stores that rely on a word that another thread may still lose.
//!
//! The last ([`Lint::leaning`]) is the inter-thread inconsistency of PMRace (ASPLOS 2022): thread B
//! loads a word that A has stored and no thread has made durable, and stores something itself. Each
//! store may persist by its own, so a crash can keep B's and lose A's. Three kinds of B's stores
//! are not reported: one made when A's word is durable; one through the cache into the same line,
//! which persists after it; and one in a later operation of B, which has its input from elsewhere.
//! A trace does not show whether B's store depends on the loaded word, or merely follows the load.

use crate::image::WordNo;
use crate::pending::Pending;
use crate::target::Target;
use crate::trace::{Action, Event, SiteId, Trace};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The problems, by line of source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lint {
    /// Number of stores through the cache that were never flushed, and that the engine does not
    /// justify. They are violations.
    pub unflushed: BTreeMap<String, u64>,
    /// Number of flushes of ranges in which no line had been stored to since its last flush, and of
    /// all flushes.
    pub clean: BTreeMap<String, (u64, u64)>,
    /// Number of fences with nothing to wait for, and of all fences.
    pub idle: BTreeMap<String, (u64, u64)>,
    /// Stores that rely on words that another thread may lose.
    pub leaning: Vec<Leaning>,
}

/// Stores made after loading a word that was not durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leaning {
    /// The line that stored the word that may be lost.
    pub lost: String,
    /// The line that loaded it in another thread.
    pub load: String,
    /// That thread's store, which may persist all the same.
    pub kept: String,
    /// One such word.
    pub word: WordNo,
    /// Description of the word, by the format's own rules.
    pub what: String,
    /// The reason that it does no harm, if the engine has one.
    pub harmless: Option<&'static str>,
    /// Index of such a store in the trace.
    pub event: usize,
    /// Number of occurrences.
    pub times: u64,
}

impl Lint {
    /// Adds the problems of another trace.
    pub fn add(&mut self, o: Self) {
        for (site, n) in o.unflushed {
            *self.unflushed.entry(site).or_default() += n;
        }
        for (mine, theirs) in [(&mut self.clean, o.clean), (&mut self.idle, o.idle)] {
            for (site, (n, of)) in theirs {
                let sum = mine.entry(site).or_default();
                *sum = (sum.0 + n, sum.1 + of);
            }
        }
        for l in o.leaning {
            let key = |l: &Leaning| (l.lost.clone(), l.load.clone(), l.kept.clone(), l.harmless);
            match self.leaning.iter_mut().find(|mine| key(mine) == key(&l)) {
                Some(mine) => mine.times += l.times,
                None => self.leaning.push(l),
            }
        }
    }
}

/// Examines a trace of an engine over memory that held `base`. The engine describes the words on
/// which stores rely.
pub fn lint_of<T: Target>(target: &T, base: &[u8], trace: &Trace) -> Lint {
    let mut lint = lint(trace);
    lint.unflushed.retain(|site, _| target.may_stay_unflushed(site).is_none());
    for l in &mut lint.leaning {
        let mut memory = base.to_vec();
        for e in &trace.events[..l.event] {
            if let Action::Store { addr, len, data, .. } = e.action {
                memory[addr as usize..(addr + len) as usize].copy_from_slice(trace.data(data, len));
            }
        }
        l.what = target.describe(&memory, l.word);
        l.harmless = target.harmless(&l.what);
    }
    // Merges entries that differ in the word only.
    let leaning = std::mem::take(&mut lint.leaning);
    lint.add(Lint { leaning, ..Lint::default() });
    lint
}

/// Examines a trace.
pub fn lint(trace: &Trace) -> Lint {
    let name = |site: SiteId| trace.sites[site as usize].clone();
    let mut lint = Lint { leaning: leaning(trace), ..Lint::default() };
    // Lines stored to and not flushed, each with the sites of the stores.
    let mut dirty: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut waiting: BTreeSet<u8> = BTreeSet::new();
    for e in &trace.events {
        match e.action {
            Action::Store { kind, .. } if kind.is_past_cache() => {
                waiting.insert(e.thread);
            }
            Action::Store { addr, len, .. } => {
                for line in addr / 64..(addr + len).div_ceil(64) {
                    dirty.entry(line).or_default().insert(e.site);
                }
            }
            Action::Flush { addr, len } => {
                let lines = addr / 64..(addr + len).div_ceil(64);
                let any = lines.filter(|line| dirty.remove(line).is_some()).count() > 0;
                let (clean, all) = lint.clean.entry(name(e.site)).or_default();
                *clean += u64::from(!any);
                *all += 1;
                waiting.insert(e.thread);
            }
            Action::Fence => {
                let (idle, all) = lint.idle.entry(name(e.site)).or_default();
                *idle += u64::from(!waiting.remove(&e.thread));
                *all += 1;
            }
            Action::Load { .. } | Action::Drain | Action::Begin { .. } | Action::End { .. } => {}
        }
    }
    for site in dirty.into_values().flatten() {
        *lint.unflushed.entry(name(site)).or_default() += 1;
    }
    lint
}

/// Words that a thread has loaded in its operation: the word and the line that stored it, and the
/// line that loaded it.
type Taint = BTreeMap<(WordNo, SiteId), SiteId>;

/// Finds stores that a thread makes in the operation in which it has loaded a word that another
/// thread may still lose.
fn leaning(trace: &Trace) -> Vec<Leaning> {
    let name = |site: SiteId| trace.sites[site as usize].clone();
    let mut found: BTreeMap<(SiteId, SiteId, SiteId, WordNo), (usize, u64)> = BTreeMap::new();
    let mut pending = Pending::default();
    let mut taints: BTreeMap<u8, Taint> = BTreeMap::new();
    for (i, e) in trace.events.iter().enumerate() {
        let taint = taints.entry(e.thread).or_default();
        match e.action {
            Action::Begin { .. } => taint.clear(),
            Action::Load { addr, len } => {
                let others = pending.within(addr, len).filter(|(_, w)| w.thread != e.thread);
                taint.extend(others.map(|(word, w)| ((word, w.site), e.site)));
            }
            Action::Store { .. } if !taint.is_empty() => {
                let undecided = |word, site| pending.writer(word).is_some_and(|w| w.site == site);
                taint.retain(|(word, site), _| undecided(*word, *site));
                for ((word, lost), load) in taint.iter().filter(|(t, _)| !follows(e, t.0, &pending))
                {
                    found.entry((*lost, *load, e.site, *word)).or_insert((i, 0)).1 += 1;
                }
            }
            _ => {}
        }
        pending.apply(e, 0);
    }
    let named = |((lost, load, kept, word), (event, times))| Leaning {
        lost: name(lost),
        load: name(load),
        kept: name(kept),
        word,
        what: String::new(),
        harmless: None,
        event,
        times,
    };
    found.into_iter().map(named).collect()
}

/// Whether a store can persist only after the word: both are in one line and through the cache.
fn follows(store: &Event, word: WordNo, pending: &Pending) -> bool {
    let Action::Store { kind, addr, len, .. } = store.action else { return false };
    let line = word / 8;
    let inside = addr / 64 == line && (addr + len.max(1) - 1) / 64 == line;
    inside && !kind.is_past_cache() && pending.writer(word).is_some_and(|w| w.cached)
}
