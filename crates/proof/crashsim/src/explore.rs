//! Explores all states of one crash point, and judges them.
//!
//! The units of a crash point ([`Unit`]) span a product of states, often astronomically many.
//! Recovery is run on one of them, and the image notes which undecided words it read, in order.
//! Every state that agrees on those words ends in the same way. So the next states to run are those
//! that differ in one of these words: a decision tree over what recovery reads, explored completely
//! (the idea of Jaaru, ASPLOS 2021). If the tree has more leaves than the budget allows, the rest
//! is counted as skipped.
//!
//! In addition, states are enumerated one by one, up to [`Budget::states`], and by a plan beyond
//! that (`plan`), and each is looked up in the tree. So "distinct states" is a count of images that
//! existed as such, each with a verdict, and a second way to make states checks the tree.

use crate::image::{CrashImage, WordNo};
use crate::persist::{Persistency, Unit, mix};
use crate::plan;
use crate::stats::{Distinct, Stats};
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// The limits for one crash point.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Enumerate all states of a point that has at most this number; otherwise follow the plan.
    pub states: u64,
    /// Recoveries at most.
    pub runs: u64,
    /// Random samples of the plan.
    pub samples: u64,
    /// Their seed.
    pub seed: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { states: 1 << 12, runs: 1 << 10, samples: 64, seed: 1 }
    }
}

/// The index of the content that each unit of a crash point has.
pub type State = Vec<u16>;

/// The result of a recovery: the state that it found, or an error.
pub type Outcome<S> = Result<S, String>;

/// One crash point: the durable bytes are in the image, the rest is undecided.
pub struct Point {
    units: Arc<[Unit]>,
    base_hash: u64,
    /// The change to the hash that each content of each unit makes.
    deltas: Vec<Vec<u64>>,
    /// Undecided words in order, with their unit and place in it.
    words: Vec<(WordNo, u32, u16)>,
}

impl Point {
    /// Makes the crash point after the events that `p` has applied.
    pub fn new(p: &Persistency, units: Arc<[Unit]>) -> Self {
        let mut words = Vec::new();
        for (u, unit) in units.iter().enumerate() {
            let of_unit = unit.words.iter().enumerate();
            words.extend(of_unit.map(|(i, w)| (*w, u as u32, i as u16)));
        }
        words.sort_unstable();
        let delta = |unit: &Unit, values: &[u64]| {
            let words = unit.words.iter().zip(values);
            words.fold(0, |h, (w, v)| h ^ mix(*w, p.durable(*w)) ^ mix(*w, *v))
        };
        let deltas = |u: &Unit| u.contents.iter().map(|c| delta(u, c)).collect();
        let deltas = units.iter().map(deltas).collect();
        Self { units, base_hash: p.hash(), deltas, words }
    }

    /// Returns the number of states, as a power of two.
    pub fn states_log2(&self) -> f64 {
        self.units.iter().map(|u| (u.contents.len() as f64).log2()).sum()
    }

    /// Returns the units.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Returns a word's unit and its place in that.
    ///
    /// # Panics
    /// If the word is decided.
    fn place(&self, word: WordNo) -> (usize, usize) {
        let i = self
            .words
            .binary_search_by_key(&word, |(w, ..)| *w)
            .expect("only undecided words are watched");
        (self.words[i].1 as usize, self.words[i].2 as usize)
    }

    /// Returns the words and values of a state.
    pub fn overlay(&self, state: &[u16]) -> Vec<(WordNo, u64)> {
        let units = self.units.iter().zip(state);
        units
            .flat_map(|(u, c)| u.words.iter().copied().zip(u.contents[*c as usize].iter().copied()))
            .collect()
    }

    /// Returns the state in which everything persisted, or nothing.
    pub fn extreme(&self, all: bool) -> State {
        let pick = |u: &Unit| if all { u.all as u16 } else { 0 };
        self.units.iter().map(pick).collect()
    }

    /// Returns a hash of the image of a state.
    pub fn hash(&self, state: &[u16]) -> u64 {
        let deltas = self.deltas.iter().zip(state);
        deltas.fold(self.base_hash, |h, (d, c)| h ^ d[*c as usize])
    }

    /// Returns a hash of this point: of all its images, and of the legal trees here.
    pub fn identity(&self, legal: &[u64]) -> u64 {
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        hasher.hash_one((self.base_hash, &self.deltas, legal))
    }

    /// Returns a hash of the image of a state and the tree that it must lead to, distinct from
    /// hashes of points.
    pub fn identity_of(&self, state: &[u16], legal: u64) -> u64 {
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        hasher.hash_one((self.hash(state), legal))
    }

    /// Returns the place of a word and its value in a state.
    fn read(&self, word: WordNo, state: &[u16]) -> ((usize, usize), u64) {
        let place = self.place(word);
        let content = &self.units[place.0].contents[state[place.0] as usize];
        (place, content[place.1])
    }
}

/// The contents of units that agree with the words read so far.
struct Candidates<'p> {
    point: &'p Point,
    of: HashMap<usize, Vec<u16>>,
}

impl<'p> Candidates<'p> {
    fn new(point: &'p Point) -> Self {
        Self { point, of: HashMap::new() }
    }

    fn get(&mut self, unit: usize) -> &mut Vec<u16> {
        let n = self.point.units[unit].contents.len() as u16;
        self.of.entry(unit).or_insert_with(|| (0..n).collect())
    }

    /// Returns the values that a word can still have.
    fn values(&mut self, (unit, i): (usize, usize)) -> Vec<u64> {
        let contents = &self.point.units[unit].contents;
        let mut values: Vec<u64> =
            self.get(unit).iter().map(|c| contents[*c as usize][i]).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Keeps the contents that agree with a word that was read.
    fn agree(&mut self, (unit, i): (usize, usize), value: u64) {
        let contents = &self.point.units[unit].contents;
        self.get(unit).retain(|c| contents[*c as usize][i] == value);
    }

    /// Returns the state in which everything persisted that may have, given the words read.
    fn fullest(&self) -> State {
        let mut state = self.point.extreme(true);
        for (unit, left) in &self.of {
            if !left.contains(&state[*unit]) {
                state[*unit] = *left.last().expect("what was read is possible");
            }
        }
        state
    }

    /// Returns the share of all states that agree.
    fn share(&self) -> f64 {
        let narrowed = |(unit, left): (&usize, &Vec<u16>)| {
            left.len() as f64 / self.point.units[*unit].contents.len() as f64
        };
        self.of.iter().map(narrowed).product()
    }
}

/// A node of the decision tree: after the words read so far, this word decides.
enum SearchNode {
    Reads { place: (usize, usize), next: HashMap<u64, usize> },
    Ends { outcome: usize },
}

/// The outcomes of a crash point, by the words that recovery reads.
struct Tree<S> {
    nodes: Vec<SearchNode>,
    outcomes: Vec<(State, Outcome<S>)>,
}

impl<S> Tree<S> {
    fn new() -> Self {
        Self { nodes: Vec::new(), outcomes: Vec::new() }
    }

    /// Returns the outcome of the states that agree with `state` on what recovery reads.
    fn find(&self, point: &Point, state: &[u16]) -> Option<usize> {
        let mut at = 0;
        loop {
            match self.nodes.get(at)? {
                SearchNode::Ends { outcome } => return Some(*outcome),
                SearchNode::Reads { place, next } => {
                    let content = &point.units[place.0].contents[state[place.0] as usize];
                    at = *next.get(&content[place.1])?;
                }
            }
        }
    }

    /// Adds a run. `false` if an earlier recovery has read something else in the same situation,
    /// which means that recovery is not deterministic.
    fn add(&mut self, path: &[((usize, usize), u64)], state: State, outcome: Outcome<S>) -> bool {
        self.outcomes.push((state, outcome));
        let end = SearchNode::Ends { outcome: self.outcomes.len() - 1 };
        let mut link: Option<(usize, u64)> = None;
        let mut at = (!self.nodes.is_empty()).then_some(0);
        for (place, value) in path {
            let node = match at {
                Some(n) => n,
                None => {
                    self.attach(link, SearchNode::Reads { place: *place, next: HashMap::new() })
                }
            };
            match &self.nodes[node] {
                SearchNode::Reads { place: p, next } if p == place => at = next.get(value).copied(),
                _ => return false,
            }
            link = Some((node, *value));
        }
        match at {
            Some(n) => matches!(self.nodes[n], SearchNode::Ends { .. }),
            None => {
                self.attach(link, end);
                true
            }
        }
    }

    /// Adds a node below `link`: the parent and the value read there; `None` for the root. Returns
    /// its number.
    fn attach(&mut self, link: Option<(usize, u64)>, node: SearchNode) -> usize {
        self.nodes.push(node);
        let new = self.nodes.len() - 1;
        if let Some((parent, value)) = link
            && let SearchNode::Reads { next, .. } = &mut self.nodes[parent]
        {
            next.insert(value, new);
        }
        new
    }
}

/// The explorer: runs recoveries and counts them.
pub struct Explorer<'a, S> {
    /// The image on which states are laid.
    pub image: &'a CrashImage,
    /// Recovers the image.
    pub recover: &'a dyn Fn(&CrashImage) -> Outcome<S>,
    /// The limits.
    pub budget: Budget,
    /// The images met so far.
    pub distinct: &'a Distinct,
    /// The counts.
    pub stats: Stats,
    known: HashMap<u64, Outcome<S>>,
    /// Whether the last recovery also read variants of the state that it was given.
    has_varied: bool,
}

impl<'a, S: Clone> Explorer<'a, S> {
    /// Makes an explorer that has explored nothing yet.
    pub fn new(
        image: &'a CrashImage,
        recover: &'a dyn Fn(&CrashImage) -> Outcome<S>,
        budget: Budget,
        distinct: &'a Distinct,
    ) -> Self {
        Self {
            image,
            recover,
            budget,
            distinct,
            stats: Stats::default(),
            known: HashMap::new(),
            has_varied: false,
        }
    }

    /// Runs recovery on one state; also returns the undecided words it read.
    pub fn run(&mut self, point: &Point, state: &[u16]) -> (Vec<WordNo>, Outcome<S>) {
        self.image.lay_among(&point.overlay(state), &point.units);
        let outcome = (self.recover)(self.image);
        let reads = self.image.reads();
        self.has_varied = self.image.has_varied();
        self.image.reset();
        self.stats.recovered += 1;
        (reads, outcome)
    }

    /// Returns the memory of a state.
    pub fn image_of(&self, point: &Point, state: &[u16]) -> Vec<u8> {
        self.image.lay(&point.overlay(state), &[]);
        let bytes = self.image.bytes();
        self.image.reset();
        bytes
    }

    /// Makes as many units as possible persist, then as many as possible of the others not, while
    /// the outcome stays wrong.
    pub fn shrink(
        &mut self,
        point: &Point,
        mut state: State,
        mut what: String,
        wrong: &dyn Fn(&Outcome<S>) -> Option<String>,
    ) -> (State, String) {
        const UNITS_MAX: usize = 600;
        if point.units().len() > UNITS_MAX {
            return (state, what);
        }
        let (none, all) = (point.extreme(false), point.extreme(true));
        for extreme in [&all, &none] {
            for u in 0..state.len() {
                if state[u] == all[u] || state[u] == extreme[u] {
                    continue;
                }
                let old = std::mem::replace(&mut state[u], extreme[u]);
                match wrong(&self.run(point, &state).1) {
                    Some(now) => what = now,
                    None => state[u] = old,
                }
            }
        }
        (state, what)
    }

    /// Explores a crash point: calls `verdict` once for each different recovery, with a state that
    /// leads to it.
    pub fn explore(
        &mut self,
        point: &Point,
        verdict: &mut dyn FnMut(&mut Self, &State, &Outcome<S>),
    ) {
        let mut tree = Tree::new();
        let unknown = if point.units.is_empty() {
            let hash = point.hash(&[]);
            let outcome = match self.known.get(&hash) {
                Some(known) => known.clone(),
                None => self.run(point, &[]).1,
            };
            tree.add(&[], State::new(), outcome);
            0.0
        } else {
            self.follow_reads(point, &mut tree)
        };
        self.stats.count_point(point.states_log2(), unknown);
        self.enumerate(point, &mut tree);
        for (state, outcome) in &tree.outcomes {
            verdict(self, state, outcome);
        }
    }

    /// Runs states that differ in words that recovery reads; returns the share of states that no
    /// run stands for.
    fn follow_reads(&mut self, point: &Point, tree: &mut Tree<S>) -> f64 {
        let mut open: Vec<Vec<(WordNo, u64)>> = vec![Vec::new()];
        let mut covered: f64 = 0.0;
        let mut runs = 0;
        while let Some(path) = open.pop() {
            if runs == self.budget.runs {
                self.stats.cut_points += 1;
                return 1.0 - covered;
            }
            runs += 1;
            let mut candidates = Candidates::new(point);
            for (word, value) in &path {
                candidates.agree(point.place(*word), *value);
            }
            let state = candidates.fullest();
            let (reads, outcome) = self.run(point, &state);
            // An outcome of this state alone also holds for an equal image without undecided words.
            if runs == 1 && !self.has_varied {
                self.known.insert(point.hash(&state), outcome.clone());
            }
            let mut all = Candidates::new(point);
            let mut steps: Vec<(WordNo, u64)> = Vec::with_capacity(reads.len());
            for (i, word) in reads.iter().enumerate() {
                let (place, value) = point.read(*word, &state);
                if i >= path.len() {
                    for other in all.values(place).into_iter().filter(|v| *v != value) {
                        let mut next = steps.clone();
                        next.push((*word, other));
                        open.push(next);
                    }
                }
                all.agree(place, value);
                steps.push((*word, value));
            }
            covered += all.share();
            let placed: Vec<_> = steps.iter().map(|(w, v)| (point.place(*w), *v)).collect();
            if !tree.add(&placed, state, outcome) {
                self.stats.unsteady += 1;
            }
        }
        0.0
    }

    /// Enumerates states and looks each up; runs those that no recovery so far stands for.
    fn enumerate(&mut self, point: &Point, tree: &mut Tree<S>) {
        let read = tree.read_units();
        let (budget, mut runs) = (self.budget, 0);
        plan::enumerate(point, &budget, &read, &mut |state| {
            self.stats.enumerated += 1;
            if !self.distinct.insert(point.hash(&state)) {
                return;
            }
            if tree.find(point, &state).is_none() {
                if runs == self.budget.runs {
                    self.stats.not_run += 1;
                    return;
                }
                runs += 1;
                let (reads, outcome) = self.run(point, &state);
                let path: Vec<_> = reads.iter().map(|w| point.read(*w, &state)).collect();
                tree.add(&path, state, outcome);
            }
            self.stats.distinct += 1;
        });
    }
}

impl<S> Tree<S> {
    /// Returns the units that some recovery read.
    fn read_units(&self) -> Vec<usize> {
        let unit = |n: &SearchNode| match n {
            SearchNode::Reads { place, .. } => Some(place.0),
            SearchNode::Ends { .. } => None,
        };
        let mut units: Vec<usize> = self.nodes.iter().filter_map(unit).collect();
        units.sort_unstable();
        units.dedup();
        units
    }
}
