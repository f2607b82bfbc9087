//! What a trace shows without a crash: stores that are never made durable, flushes and fences in vain,
//! and stores that lean on what another thread may still lose.
//!
//! The last ([`Lint::leaning`]) is the inter-thread inconsistency of PMRace (ASPLOS 2022): thread B
//! loads a word that A has stored and nobody has made durable, and stores something itself. Each store
//! may persist by its own, so a crash can keep B's and lose A's. Not reported is a store that comes
//! when A's word is durable; one through the cache into the same line, which persists after it; and one
//! in a later operation of B, which has what it leans on from elsewhere. Whether B's store depends on
//! what was loaded, or merely follows, a trace does not tell.

use crate::image::WordNo;
use crate::pending::Pending;
use crate::target::Target;
use crate::trace::{Action, Event, SiteId, Trace};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What is odd, by line of source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lint {
    /// Stores through the cache that nothing flushed, and that the engine does not argue for: how many. They are
    /// violations.
    pub unflushed: BTreeMap<String, u64>,
    /// Flushes of ranges in which no line had been stored to since its last flush: how many, of how
    /// many.
    pub clean: BTreeMap<String, (u64, u64)>,
    /// Fences with nothing to wait for: how many, of how many.
    pub idle: BTreeMap<String, (u64, u64)>,
    /// Stores that lean on what another thread may lose.
    pub leaning: Vec<Leaning>,
}

/// Stores made after loading a word that was not durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leaning {
    /// The line that stored the word that may be lost.
    pub lost: String,
    /// The line by which another thread loaded it.
    pub load: String,
    /// That thread's store, which may persist all the same.
    pub kept: String,
    /// One such word.
    pub word: WordNo,
    /// What it is, by the format's own rules.
    pub what: String,
    /// Why that does no harm, if the engine says so.
    pub harmless: Option<&'static str>,
    /// Where in the trace such a store is.
    pub event: usize,
    /// How often.
    pub times: u64,
}

impl Lint {
    /// Adds what was found in another trace.
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

/// Looks at a trace of an engine over memory that held `base`, and lets the engine say what the words
/// are that others lean on.
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
    // Sums up what differs in the word only.
    let leaning = std::mem::take(&mut lint.leaning);
    lint.add(Lint { leaning, ..Lint::default() });
    lint
}

/// Looks at a trace.
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

/// What a thread has loaded in its operation: the word, who stored it, and the line that loaded it.
type Taint = BTreeMap<(WordNo, SiteId), SiteId>;

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
