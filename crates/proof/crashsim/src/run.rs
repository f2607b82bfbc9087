//! Records one workload, then crashes it everywhere.

use crate::account::Account;
use crate::explore::{Budget, Explorer, Outcome, Point, State};
use crate::image::CrashImage;
use crate::lost::{self, Lost};
use crate::oracle::{Allowed, FoundState, Oracle};
use crate::persist::{Initial, Persistency, Semantics, Unit};
use crate::program;
use crate::promise::{History, Syncs};
use crate::recorder::Recorder;
use crate::stats::{Distinct, Stats};
use crate::target::{Strength, Target};
use crate::trace::{Action, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use vfs::model::Model;
use vfs::script::{Driver, Op};
use vfs::tree::{Tree, diff};
use vfs::{Durability, Errno};

/// A start for workloads: a sound pool, and the model of its content.
#[derive(Debug)]
pub struct Base {
    /// Its name in replay lines.
    pub name: &'static str,
    /// The operations that made it.
    pub script: Vec<Op>,
    /// The pool.
    pub bytes: Vec<u8>,
    /// The pool in the form of the state machine.
    pub(crate) initial: Initial,
    model: Model,
    fresh: Fresh,
}

/// The counts of a pool that was just formatted.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Blocks in use.
    pub blocks_used: u64,
    /// Blocks free and in use, together: the same in every pool of this length.
    pub blocks: u64,
}

/// Operations on a base; crashes are explored from operation `from` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name of the base.
    pub base: &'static str,
    /// The operations.
    pub ops: Vec<Op>,
    /// The first one to crash in.
    pub from: usize,
}

/// A workload that was run once, without a crash.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The accesses to memory.
    pub trace: Trace,
    /// The model's tree before each operation, and at the end, as [`Strength::read`] gives it.
    pub trees: Vec<Arc<Tree>>,
    /// For operations of two steps, the tree between them.
    pub between: BTreeMap<usize, Arc<Tree>>,
    /// Whether each operation promises that its stores are durable when it returns. A read may
    /// leave an access time that is not durable, and a failed operation stores that no reader sees.
    pub promises: Vec<bool>,
    /// Whether each operation makes all earlier ones durable. Used if the engine
    /// [keeps order](Strength::keeps_order).
    pub syncs: Vec<bool>,
    /// The state in each moment; empty if the engine [is ordered](Strength::is_ordered).
    pub history: History,
}

impl Recorded {
    /// Returns the moment after the last sync before the moment `now`; 0 without a sync.
    fn last_sync(&self, now: usize) -> usize {
        let before = &self.syncs[..now.min(self.syncs.len())];
        before.iter().rposition(|is_sync| *is_sync).map_or(0, |op| op + 1)
    }
}

/// Assigns every other operation to another thread. A fence then covers less, so the states of one
/// thread are still included, and operations that rely on each other's fences are found.
fn alternate_threads(trace: &mut Trace) {
    let mut thread = 1;
    for e in &mut trace.events {
        if let Action::Begin { op } = e.action {
            thread = (op % 2) as u8;
        }
        e.thread = thread;
    }
}

/// The point in a workload at which the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashAt {
    /// The operation in flight, or the one that has just returned.
    pub op: u32,
    /// Number of crash points of this operation before it.
    pub nth: u32,
}

/// A state that recovery did not turn into a legal one.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The crash point.
    pub at: CrashAt,
    /// The message.
    pub what: String,
    /// The state, as differences from one of the extremes.
    pub state: String,
    /// The words that did and did not persist, in the format's own terms.
    pub detail: Vec<String>,
    /// The lost words, as few as possible, and the lines of source that stored them.
    pub lost: Vec<Lost>,
    /// Number of verdicts with this cause: they have lost stores of the same lines.
    pub times: u64,
}

impl Violation {
    /// Makes a violation without a state.
    pub fn new(at: CrashAt, what: String) -> Self {
        let state = "all-but:".into();
        Self { at, what, state, detail: Vec::new(), lost: Vec::new(), times: 1 }
    }
}

/// The results of exploring a workload.
#[derive(Debug, Default)]
pub struct Explored {
    /// Counts.
    pub stats: Stats,
    /// The first violations.
    pub violations: Vec<Violation>,
    /// Number of all violations.
    pub violations_total: u64,
}

impl Explored {
    /// Whether a state that has lost `all` adds nothing new: it has also lost the words of a known
    /// violation, and counts as that, or no more violations can be kept. This saves the search for
    /// the least lost words, which takes many recoveries.
    pub(crate) fn knows(&mut self, all: &[Lost]) -> bool {
        let is_part = |v: &&mut Violation| {
            !v.lost.is_empty() && lost::sites(&v.lost).is_subset(&lost::sites(all))
        };
        match self.violations.iter_mut().find(is_part) {
            Some(known) => {
                known.times += 1;
                true
            }
            None => self.violations.len() as u64 >= DETAILED,
        }
    }

    /// Keeps a violation, one for all that have lost stores of the same lines of source. `show`
    /// returns the state as one word, and as lines.
    pub(crate) fn keep(
        &mut self,
        at: CrashAt,
        what: String,
        lost: Vec<Lost>,
        show: impl FnOnce(&[Lost]) -> (String, Vec<String>),
    ) {
        let is_same = |v: &&mut Violation| lost::is_same((&v.lost, &v.what), (&lost, &what));
        if let Some(known) = self.violations.iter_mut().find(is_same) {
            known.times += 1;
        } else if (self.violations.len() as u64) < DETAILED {
            let (state, detail) = show(&lost);
            self.violations.push(Violation { at, what, state, detail, lost, times: 1 });
        }
    }
}

/// Settings for exploring a workload.
pub struct Settings<'a> {
    /// The rules.
    pub semantics: Semantics,
    /// The limits for each crash point.
    pub budget: Budget,
    /// The images met so far.
    pub distinct: &'a Distinct,
    /// The crash points met so far without a wrong state ([`Point::identity`]). They are explored
    /// once, whatever workload or mutant leads there.
    pub sound: &'a Distinct,
    /// Stop at the first violation.
    pub stop_early: bool,
    /// Only this crash point and, if it names one, this state ([`Violation::state`]).
    pub only: Option<(CrashAt, String)>,
}

impl Base {
    /// Formats a pool of `len` bytes and runs `script` in it.
    pub fn build<T: Target>(
        target: &T,
        name: &'static str,
        len: u64,
        script: Vec<Op>,
    ) -> Result<Self, String> {
        // The former content of the medium must not matter, nor that of free space.
        let garbage = (0..len / 8).flat_map(|i| rng::hash(i).to_le_bytes()).collect();
        let image = CrashImage::of(garbage);
        target.format(&image)?;
        let mounted = target.mount(&image)?;
        let blocks_used = mounted.blocks_used;
        let fresh = Fresh { blocks_used, blocks: mounted.fs.statfs().blocks_free + blocks_used };
        let blocks = target.check(&image)?.blocks;
        let counted = fresh.blocks + target.strength().kept_blocks;
        if counted != blocks {
            let what = "blocks are free or in use, and there are";
            return Err(format!("space: {counted} {what} {blocks}"));
        }
        let reached = target.blocks_of_fresh(&image.bytes());
        if blocks_used != reached {
            return Err(format!("space: {blocks_used} blocks in use, but {reached} are reached"));
        }
        drop(mounted);
        let model = Model::new();
        perform(target, &Recorder::new(&image), &model, &script, 0)?;
        let bytes = image.bytes();
        Ok(Self { name, script, initial: Initial::of(&bytes), bytes, model, fresh })
    }

    /// Returns the base that a crash in the last of `ops` leaves, at the last crash point from
    /// which the next mount has something to clear. No undecided word persists; the operation must
    /// have taken effect by then.
    pub fn crashed<T: Target>(
        &self,
        target: &T,
        name: &'static str,
        ops: Vec<Op>,
    ) -> Result<Self, String> {
        let recorder = Recorder::new(CrashImage::of(self.bytes.clone()));
        let model = self.model.clone();
        perform(target, &recorder, &model, &ops, 0)?;
        let trace = recorder.into_trace();
        let image = CrashImage::of(self.bytes.clone());
        let mut p = Persistency::over(Semantics::Adr, self.initial.clone());
        let (mut last, mut stale) = (false, None);
        for e in &trace.events {
            if let Action::Begin { op } = e.action {
                last = op as usize + 1 == ops.len();
            }
            if last && e.action == Action::Fence && target.check(&image)?.stale != 0 {
                stale = Some(image.bytes());
            }
            p.apply(&trace, e);
            image.make_durable(&p.take_durable_words());
        }
        let bytes = stale.ok_or("no crash leaves anything to clear")?;
        let script = [self.script.clone(), ops].concat();
        Ok(Self { name, script, model, ..self.left(bytes) })
    }

    /// Makes a base of the bytes that a crash of this one has left, from which the same tree is
    /// recovered.
    pub(crate) fn left(&self, bytes: Vec<u8>) -> Self {
        let (script, model) = (self.script.clone(), self.model.clone());
        let initial = Initial::of(&bytes);
        Self { name: self.name, script, bytes, initial, model, fresh: self.fresh }
    }

    /// Makes a base of the same length that holds no pool, only zeros: to be formatted.
    pub fn blank(&self) -> Self {
        let bytes = vec![0; self.bytes.len()];
        let (initial, model) = (Initial::of(&bytes), Model::new());
        Self { name: "blank", script: Vec::new(), initial, bytes, model, fresh: self.fresh }
    }

    /// Returns the counts of a fresh pool of this length.
    pub fn fresh(&self) -> Fresh {
        self.fresh
    }

    /// Returns a copy of the model of the pool's content.
    pub fn model(&self) -> Model {
        self.model.clone()
    }

    /// Runs operations on a copy of the base, in memory under these rules, and records them.
    pub fn record<T: Target>(
        &self,
        target: &T,
        ops: &[Op],
        from: usize,
        semantics: Semantics,
    ) -> Result<Recorded, String> {
        let recorder = Recorder::new(CrashImage::under(semantics, self.bytes.clone()));
        let model = self.model.clone();
        // Epochs that a crash undoes may be those of earlier operations.
        let from = if semantics.has_epochs() { 0 } else { from };
        let Performed { trees, between, worked, syncs, history } =
            perform(target, &recorder, &model, ops, from)?;
        if let Some(at) = recorder.unrecorded() {
            return Err(format!("a store near {at:#x} went past the medium"));
        }
        let mut trace = recorder.into_trace();
        // A program's epochs are in order on whatever processor it runs (BPFS §3.5): one context.
        if !semantics.has_epochs() {
            alternate_threads(&mut trace);
        }
        let promises = ops.iter().zip(worked).map(|(op, worked)| worked && !op.reads()).collect();
        Ok(Recorded { trace, trees, between, promises, syncs, history })
    }
}

/// The effects of operations on the model.
struct Performed {
    /// The trees before each operation from `from` on, and at the end; earlier ones are empty.
    trees: Vec<Arc<Tree>>,
    /// As [`Recorded::between`].
    between: BTreeMap<usize, Arc<Tree>>,
    /// Whether each operation succeeded.
    worked: Vec<bool>,
    /// As [`Recorded::syncs`].
    syncs: Vec<bool>,
    /// As [`Recorded::history`].
    history: History,
}

/// Runs operations on an engine and on the model.
fn perform<T: Target, M: pmem::Medium>(
    target: &T,
    recorder: &Recorder<M>,
    model: &Model,
    ops: &[Op],
    from: usize,
) -> Result<Performed, String> {
    let strength = target.strength();
    // A crash may undo operations before those that are crashed.
    let from = if strength.keeps_order { 0 } else { from };
    let (mut worked, mut synced) = (Vec::new(), Vec::new());
    let mut between = BTreeMap::new();
    let mut trees = vec![Arc::default(); from];
    // Notes the tree before operation `id`, unless the operation before changed nothing.
    let note = |trees: &mut Vec<Arc<Tree>>, id: usize| {
        if trees.len() == id {
            let tree = strength.read(model).map_err(|e| format!("the model: {e}"))?;
            trees.push(Arc::new(tree));
        }
        Ok::<(), String>(())
    };
    let mut oracle = Driver::new(model);
    let mut lives = BTreeSet::new();
    let mut history = History::default();
    let contents_on_return = strength.contents_on_return;
    let remember = |history: &mut History, open, syncs| match strength.is_ordered() {
        true => Ok(()),
        false => history.note(model, open, syncs),
    };
    remember(&mut history, oracle.handles(), Syncs::All)?;
    let mut id = 0;
    for (part, ops) in ops.split(|op| *op == Op::Remount).enumerate() {
        if part > 0 {
            note(&mut trees, id)?;
            recorder.begin(id as u32);
            oracle.close_all();
        }
        let mounted = target.mount(recorder).map_err(|e| format!("mount: {e}"))?;
        if part > 0 {
            recorder.end(id as u32);
            worked.push(true);
            synced.push(true);
            remember(&mut history, oracle.handles(), Syncs::All)?;
            id += 1;
        }
        let account = Account::open(&mounted);
        let mut engine = Driver::new(&*mounted.fs);
        for op in ops {
            note(&mut trees, id)?;
            if id >= from && oracle.is_capable(op) {
                let tree = revoked(strength, model, &oracle, op)?;
                if !strength.is_ordered() {
                    history.note_between(&tree);
                }
                between.insert(id, Arc::new(tree));
            }
            recorder.begin(id as u32);
            let changed = both(&mut engine, &mut oracle, op, id as u64)?;
            recorder.end(id as u32);
            if let Some(life) = engine.take_born().filter(|life| !lives.insert(*life)) {
                return Err(format!("{op}: {life:?}, inode and generation, has lived before"));
            }
            worked.push(changed);
            let syncs = if contents_on_return { Syncs::All } else { Syncs::by(op, &oracle) };
            synced.push(syncs != Syncs::Nothing);
            remember(&mut history, oracle.handles(), syncs)?;
            if !changed && id >= from && !between.contains_key(&id) {
                trees.push(trees[id].clone());
            }
            id += 1;
        }
        engine.close_all();
        mounted.fs.close().map_err(|e| format!("close: {e}"))?;
        account.close(target, &mounted, recorder.inner())?;
    }
    note(&mut trees, id)?;
    Ok(Performed { trees, between, worked, syncs: synced, history })
}

/// Returns the model's tree after the first of an operation's two steps.
fn revoked(
    strength: Strength,
    model: &Model,
    driver: &Driver<'_>,
    op: &Op,
) -> Result<Tree, String> {
    let model = model.clone();
    let revoked = Driver::with_handles(&model, driver.handles()).revoke(op);
    revoked.map_err(|e| format!("the model, before {op}: {e}"))?;
    strength.read(&model).map_err(|e| format!("the model: {e}"))
}

/// Runs one operation on both; returns whether it succeeded. The model has no limit on space. If
/// the engine has found no space for the second of two steps, the model does the first.
fn both(
    engine: &mut Driver<'_>,
    model: &mut Driver<'_>,
    op: &Op,
    salt: u64,
) -> Result<bool, String> {
    if let Op::Fill(place) = op {
        let append = Op::append(place.clone(), 4096);
        while both(engine, model, &append, salt)? {}
        return Ok(true);
    }
    let got = engine.run(op, salt);
    if got == Err(Errno::NOSPC) {
        if model.is_capable(op) && !engine.is_capable(op) {
            model.revoke(op).map_err(|e| format!("the model, before {op}: {e}"))?;
        }
        return Ok(false);
    }
    let want = model.run(op, salt);
    match got == want {
        true => Ok(got.is_ok()),
        false => Err(format!("{op}: the engine says {got:?}, the model {want:?}")),
    }
}

/// Explores the crashes of a recorded workload.
pub fn explore<T: Target>(
    target: &T,
    base: &Base,
    from: usize,
    recorded: &Recorded,
    settings: &Settings<'_>,
) -> Explored {
    let oracle = Oracle::new(target, base.fresh);
    let recover = |image: &CrashImage| oracle.recover(image);
    let image = CrashImage::of(base.bytes.clone());
    let mut run = Run {
        target,
        recorded,
        tree_hashes: recorded.trees.iter().map(hash_of).collect(),
        between_hashes: recorded.between.iter().map(|(op, tree)| (*op, hash_of(tree))).collect(),
        settings,
        p: Persistency::over(settings.semantics, base.initial.clone()),
        explorer: Explorer::new(&image, &recover, settings.budget, settings.distinct),
        found: Explored::default(),
        at: CrashAt { op: 0, nth: 0 },
        begun: false,
        seen: 0,
        own: 0..0,
        stored_at: Vec::new(),
        epoch_of: None,
    };
    let mut returned = true;
    let mut fresh_stores = false;
    for (i, event) in recorded.trace.events.iter().enumerate() {
        run.seen = i;
        let active = run.at.op as usize >= from;
        let crash = match event.action {
            Action::Fence => active && fresh_stores,
            Action::End { .. } => active,
            _ => false,
        };
        if let Action::End { .. } = event.action {
            returned = true;
            run.own.end = run.p.stores() + 1;
        }
        if crash {
            oracle.next_point();
            run.crash(returned);
            fresh_stores = false;
            if settings.stop_early && run.found.violations_total > 0 {
                break;
            }
        }
        match event.action {
            Action::Begin { op } => {
                run.at = CrashAt { op, nth: 0 };
                run.begun = true;
                run.own = run.p.stores() + 1..u32::MAX;
                returned = false;
            }
            Action::Store { .. } => {
                fresh_stores = true;
                run.stored_at.push(event.site);
                run.epoch_of.get_or_insert(run.at.op as usize);
            }
            Action::Fence => run.epoch_of = None,
            _ => {}
        }
        run.p.apply(&recorded.trace, event);
        let durable = run.p.take_durable_words();
        if !durable.is_empty() {
            image.make_durable(&durable);
        }
        let visible = matches!(event.action, Action::Store { .. }) && !durable.is_empty();
        if visible && run.at.op as usize >= from {
            // eADR: every store is durable at once, so every store is a crash point.
            oracle.next_point();
            run.seen = i + 1;
            run.crash(false);
        }
    }
    run.found.stats = run.explorer.stats.clone();
    run.found
}

/// An exploration under way.
struct Run<'a, T> {
    target: &'a T,
    recorded: &'a Recorded,
    /// Hashes of the recorded trees, and of those between.
    tree_hashes: Vec<u64>,
    between_hashes: BTreeMap<usize, u64>,
    settings: &'a Settings<'a>,
    p: Persistency,
    explorer: Explorer<'a, FoundState>,
    found: Explored,
    at: CrashAt,
    /// Whether an operation has begun.
    begun: bool,
    /// Number of events of the trace before the crash.
    seen: usize,
    /// Numbers of the stores ([`Unit::since`]) of the operation in flight, or of the one that has
    /// just returned. The stores of an unmount do not count.
    own: Range<u32>,
    /// The source line of each store, in order.
    stored_at: Vec<u32>,
    /// The operation in flight when the epoch that now lasts began.
    epoch_of: Option<usize>,
}

/// The legal results of a recovery.
enum Legal<'a> {
    /// One of these.
    Trees(Vec<Arc<Tree>>),
    /// Any state that an engine of this durability may leave between these moments.
    Mixtures(&'a History, Durability, RangeInclusive<usize>, Allowed),
}

/// Violations of a workload, and of a crash point, that are kept with all their details.
pub(crate) const DETAILED: u64 = 3;

impl<T: Target> Run<'_, T> {
    /// Explores a power failure here.
    fn crash(&mut self, returned: bool) {
        let at = self.at;
        self.at.nth += 1;
        let only = self.settings.only.as_ref();
        if only.is_some_and(|(only, _)| *only != at) {
            return;
        }
        let op = at.op as usize;
        let Strength { durability, keeps_order, .. } = self.target.strength();
        let has_epochs = self.settings.semantics.has_epochs();
        let (first, last) = match self.begun {
            // Recovery of the base, before any operation.
            false => (0, 0),
            // What has returned is lost with its epoch.
            true if has_epochs && returned => (self.epoch_of.unwrap_or(op + 1), op + 1),
            true if has_epochs => (self.epoch_of.unwrap_or(op), op + 1),
            true => (op + usize::from(returned), op + 1),
        };
        let recorded = self.recorded;
        let (legal, legal_hashes) = if durability == Durability::OnReturn || keeps_order {
            let first = if keeps_order { recorded.last_sync(first) } else { first };
            let mut trees = recorded.trees[first..=last].to_vec();
            trees.extend(recorded.between.range(first..last).map(|(_, tree)| tree.clone()));
            let mut hashes = self.tree_hashes[first..=last].to_vec();
            hashes.extend(self.between_hashes.range(first..last).map(|(_, hash)| *hash));
            (Legal::Trees(trees), hashes)
        } else {
            let until = recorded.history.until(last);
            let hash = hash_of(&(until, first));
            let moments = first..=last;
            (
                Legal::Mixtures(&recorded.history, durability, moments, Allowed::default()),
                vec![hash],
            )
        };
        let units = self.p.units();
        let promises = || durability != Durability::OnSync && recorded.promises[op] && !has_epochs;
        if returned && self.begun && promises() {
            self.check_durable(at, &units);
        }
        let point = Point::new(&self.p, units);
        if let Some((_, named)) = only {
            return self.replay(&point, at, named, &legal);
        }
        let identity = point.identity(&legal_hashes);
        if self.settings.sound.contains(identity) {
            return self.explorer.stats.count_point(point.states_log2(), 0.0);
        }
        let wrong_before = self.found.violations_total;
        let mut wrong: Vec<(State, String)> = Vec::new();
        let mut stored: Vec<(State, Arc<Tree>)> = Vec::new();
        let mut total = 0;
        self.explorer.explore(&point, &mut |_, state, outcome| match judge(outcome, &legal) {
            Err(what) => {
                total += 1;
                if total <= DETAILED {
                    wrong.push((state.clone(), what));
                }
            }
            Ok(found) if found.stored => stored.push((state.clone(), found.tree.clone())),
            Ok(_) => {}
        });
        self.found.violations_total += total;
        for (state, what) in wrong {
            let all = lost::lost(&self.recorded.trace, self.seen, &point, &state);
            if self.found.knows(&all) {
                continue;
            }
            let wrong = |outcome: &Outcome<FoundState>| judge(outcome, &legal).err();
            let (state, what) = self.explorer.shrink(&point, state, what, &wrong);
            self.report(&point, at, &state, what);
        }
        for (state, tree) in stored {
            if let Err(what) = self.crash_again(&point, &state, &tree, &legal) {
                self.found.violations_total += 1;
                self.report(&point, at, &state, what);
            }
        }
        if self.found.violations_total == wrong_before {
            self.settings.sound.insert(identity);
        }
    }

    /// Judges one state and reports it, whatever the verdict.
    fn replay(&mut self, point: &Point, at: CrashAt, named: &str, legal: &Legal<'_>) {
        let Some(state) = crate::show::parse(point, named) else {
            let what = format!("this crash point has no state `{named}`");
            self.found.violations_total += 1;
            return self.found.violations.push(Violation::new(at, what));
        };
        let (_, outcome) = self.explorer.run(point, &state);
        let verdict = judge(&outcome, legal).cloned();
        let verdict = verdict.and_then(|found| match found.stored {
            true => self.crash_again(point, &state, &found.tree, legal),
            false => Ok(()),
        });
        self.found.violations_total += u64::from(verdict.is_err());
        let what = verdict.err().unwrap_or_else(|| "recovered as it must".into());
        self.report(point, at, &state, what);
    }

    /// Checks oracle-O6: the stores of an operation that has returned are durable, except those
    /// that the engine may leave in caches.
    fn check_durable(&mut self, at: CrashAt, units: &Arc<[Unit]>) {
        let may_stay = |store: u32| {
            let site = &self.recorded.trace.sites[self.stored_at[store as usize - 1] as usize];
            self.target.may_stay_unflushed(site).is_some()
        };
        let fresh = |u: &&Unit| self.own.contains(&u.since) && !may_stay(u.since);
        let Some(left) = units.iter().find(fresh) else { return };
        let point = Point::new(&self.p, units.clone());
        let what = format!(
            "the operation has returned, but a store to {:#x} may be lost",
            left.words[0] * 8
        );
        self.found.violations_total += 1;
        self.report(&point, at, &point.extreme(false), what);
    }

    fn report(&mut self, point: &Point, at: CrashAt, state: &State, what: String) {
        let lost = lost::lost(&self.recorded.trace, self.seen, point, state);
        self.found.keep(at, what, lost, |lost| {
            crate::show::state(self.target, self.explorer.image, point, state, lost)
        });
    }

    /// Checks oracle-O5: the power fails while recovery stores. The next recovery must find the
    /// same tree or, if content is not durable on return, another legal one.
    fn crash_again(
        &mut self,
        point: &Point,
        state: &State,
        tree: &Arc<Tree>,
        legal: &Legal<'_>,
    ) -> Result<(), String> {
        let identity = point.identity_of(state, hash_of(tree));
        if self.settings.sound.contains(identity) {
            return Ok(());
        }
        self.explorer.stats.nested += 1;
        let image = self.explorer.image;
        image.lay(&point.overlay(state), &[]);
        let bytes = image.bytes();
        image.reset();
        let same = Legal::Trees(vec![tree.clone()]);
        let legal = if let Legal::Trees(_) = legal { &same } else { legal };
        for repair in [false, true] {
            let recorder = Recorder::new(CrashImage::of(bytes.clone()));
            match repair {
                true => self.target.repair(&recorder)?,
                false => drop(self.target.mount(&recorder)?),
            }
            let trace = recorder.into_trace();
            let mut wrong = None;
            let stats = program::explore(
                &trace,
                &bytes,
                self.settings.semantics,
                self.settings.budget,
                self.settings.distinct,
                self.explorer.recover,
                &mut |_, outcome| {
                    if let Err(what) = judge(outcome, legal) {
                        wrong.get_or_insert(what);
                    }
                },
            );
            self.explorer.stats.add(&stats);
            if let Some(what) = wrong {
                let how = if repair { "check --repair" } else { "mounting" };
                return Err(format!("after a second crash, while {how}: {what}"));
            }
        }
        self.settings.sound.insert(identity);
        Ok(())
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::new().hash_one(value)
}

/// Checks whether the model allows an outcome.
fn judge<'o>(
    outcome: &'o Result<FoundState, String>,
    legal: &Legal<'_>,
) -> Result<&'o FoundState, String> {
    let found = outcome.as_ref().map_err(String::clone)?;
    let legal = match legal {
        Legal::Trees(trees) => trees,
        Legal::Mixtures(history, durability, now, allowed) => {
            let ask = || history.allows(*durability, now.clone(), &found.tree, &found.contents);
            return allowed.admits(found, ask).map(|()| found);
        }
    };
    if legal.contains(&found.tree) {
        return Ok(found);
    }
    let differs = |t: &Arc<Tree>| diff(t, &found.tree).unwrap_or_default();
    let mut lines: Vec<String> = legal.iter().map(differs).collect();
    lines.dedup();
    Err(format!("the tree is none that is allowed: {}", lines.join("\n  or: ")))
}
