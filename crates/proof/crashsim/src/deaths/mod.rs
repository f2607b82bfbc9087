//! A process dies in an operation, others recover and continue, and then the power fails.
//!
//! A death alone loses nothing: memory has every store of the dead process. Other processes see its
//! stores, but a power failure may still take back those that it had not flushed. So recovery has
//! to make durable what it finds before another process relies on it.
//!
//! A surviving process that shared the pool with the dead one recovers, or a process that joins and
//! gets the dead one's slot. If all processes of the pool were killed, the next mount recovers
//! ([`Scenario`]). Recovery takes back the files that the dead process held and mapped. Files that
//! other processes hold and map stay as before (`held`, `mapping`).
//!
//! The victim's operation is recorded once. Then a surviving process attaches to the base. The
//! victim's first steps are repeated without its knowledge, as by another process. Then it recovers
//! and does an operation of its own. In another scenario, the steps are repeated before the pool is
//! mounted again. The explorer ([`crate::run`]) sees a workload of three operations: the victim's,
//! the recovery, and that of the process that continues. Crashes in the first are other families'
//! task. When the second has returned, the tree that is seen then must survive; and the third must
//! change it as it changes the model. If content is durable on `fsync`, all of that holds for names
//! and attributes, and [`crate::promise`] judges content.

mod held;
mod mapping;

use crate::image::CrashImage;
use crate::persist::Semantics;
use crate::promise::{History, Syncs};
use crate::recorder::Recorder;
use crate::run::{Base, Recorded};
use crate::target::{Meeting, SharingProcess, Strength, Target};
use crate::trace::{Action, Event, StoreKind, Trace};
use held::{HeldResources, HeldSpace};
use mapping::Mapping;
use pmem::Medium;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use vfs::model::Model;
use vfs::script::{BadOp, Driver, Handles, Op, Pos};
use vfs::tree::{Tree, diff};
use vfs::{Errno, FileSystem};

/// The process that continues after a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A process that shared the pool with the dead one: it recovers.
    SurvivingProcess,
    /// A process that mounts the pool when no other process is left.
    NextMount,
    /// A surviving process that holds a file without a name, whose blocks are in use although no
    /// structure on media records that, and a removed directory.
    Holder,
    /// A process that joins after a surviving one has recovered. It gets the slot of the dead one,
    /// which held such files.
    Newcomer,
    /// A process that joins when all slots are taken. It gets the slot of the dead one with all
    /// that is counted there.
    Successor,
    /// A surviving process that has a file mapped directly from the pool. The dead one had, too,
    /// and has stored to it. If the dead one has done no step of its operation, no process
    /// recovers.
    Mapper,
}

/// Operations of a process that dies in the scenarios [`BESIDE`](Scenario::BESIDE). They store in
/// place, so that their steps can be repeated although another process has taken blocks meanwhile.
pub const HELD_BESIDE: [&str; 3] = ["utimes /a", "chmod /e 700", "unlink /b"];

/// Operations on a file that the dead process had mapped, one for each of [`HELD_BESIDE`].
const AFTER_MAPPING: [&str; 3] = ["write /a 100 5000", "truncate /a 100", "append /a 70000"];

/// First words of deaths in replay lines, for each scenario.
const NAMES: [(&str, Scenario); 6] = [
    ("next-mount ", Scenario::NextMount),
    ("holder ", Scenario::Holder),
    ("newcomer ", Scenario::Newcomer),
    ("successor ", Scenario::Successor),
    ("mapper ", Scenario::Mapper),
    ("", Scenario::SurvivingProcess),
];

impl Scenario {
    /// Scenarios for any operation.
    pub const ALL: [Self; 2] = [Self::SurvivingProcess, Self::NextMount];

    /// Scenarios for the operations [`HELD_BESIDE`].
    pub const BESIDE: [Self; 4] = [Self::Holder, Self::Newcomer, Self::Successor, Self::Mapper];

    /// Whether it can occur in an engine.
    fn suits(self, strength: Strength) -> bool {
        self != Self::Mapper || strength.maps_files
    }
}

/// The point at which a process died in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The operation.
    pub victim: Op,
    /// Number of its stores, flushes and fences that were done.
    pub steps: usize,
    /// The process that continues.
    pub scenario: Scenario,
}

/// The form in replay lines: `[next-mount |holder |newcomer |successor |mapper ]STEPS OPERATION`.
impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, scenario)| *scenario == self.scenario);
        write!(f, "{}{} {}", name.map_or("", |(name, _)| name), self.steps, self.victim)
    }
}

/// Parses the form in replay lines.
impl FromStr for Death {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = NAMES.iter().find_map(|(name, who)| Some((*who, text.strip_prefix(name)?)));
        let (scenario, text) = named.ok_or("a death has a scenario")?;
        let (steps, victim) = text.split_once(' ').ok_or("a death has steps and an operation")?;
        let steps = steps.parse().map_err(|_| format!("not a number of steps: `{steps}`"))?;
        let victim = victim.parse().map_err(|bad: BadOp| bad.to_string())?;
        Ok(Self { victim, steps, scenario })
    }
}

/// Numbers of the operations of a workload.
const VICTIM: u32 = 0;
const RECOVERY: u32 = VICTIM + 1;
const AFTERWARDS: u32 = RECOVERY + 1;
/// The first of the last operations. In the scenarios [`BESIDE`](Scenario::BESIDE), a file that is
/// held loses its name, or files are stored to through a mapping, and synced. Otherwise, if content
/// is durable on `fsync`, everything is synced, including stores of the dead process.
const LAST: u32 = AFTERWARDS + 1;

/// The first operation to crash in.
pub const FROM: usize = RECOVERY as usize;

/// Offset at which the process that continues writes to a file that the victim was about to
/// truncate.
const FAR: u64 = 70_000;

/// Bytes that the process that continues appends to a file: several blocks.
const NEAR: u64 = 9_000;

/// A number of processes that is below the maximum of a pool.
const FEW_SLOTS: usize = 16;

/// An operation that was run once, to its end.
#[derive(Debug)]
pub struct Victim {
    op: Op,
    strength: Strength,
    semantics: Semantics,
    recorded: Recorded,
    steps: Vec<Event>,
    /// Number of steps that the operation itself makes: the later ones belong to the unmount that
    /// follows.
    own: usize,
}

impl Victim {
    /// Runs an operation on a copy of the base. `None` if its death is not tested here:
    ///
    /// - It stores one word of data in place: recovery makes metadata durable, and does not read
    ///   data. Such a word may be seen and then be lost (SEMANTICS has that).
    /// - It consists of many operations.
    /// - It stores nothing, as its file does not exist.
    pub fn record<T: Target>(
        target: &T,
        base: &Base,
        op: &Op,
        semantics: Semantics,
    ) -> Result<Option<Self>, String> {
        let is_word = |at: &Pos, len: &u64| match at {
            Pos::At(off) => off / 8 == (off + len.max(&1) - 1) / 8,
            // The offset is not known yet.
            Pos::End(_) | Pos::Limit(_) => true,
        };
        if matches!(op, Op::Write(_, at, len, _) if is_word(at, len))
            || matches!(op, Op::Fill(_) | Op::Remount)
        {
            return Ok(None);
        }
        let recorded = base.record(target, std::slice::from_ref(op), 0, semantics)?;
        let begun = |e: &&Event| !matches!(e.action, Action::Begin { .. });
        let events = recorded.trace.events.iter().skip_while(begun);
        let is_step = |e: &&Event| {
            matches!(e.action, Action::Store { .. } | Action::Flush { .. } | Action::Fence)
        };
        let is_own = |e: &&Event| !matches!(e.action, Action::End { .. });
        let own = events.clone().take_while(is_own).filter(is_step).count();
        let steps: Vec<Event> = events.filter(is_step).copied().collect();
        if steps.is_empty() {
            return Ok(None);
        }
        let strength = target.strength();
        Ok(Some(Self { op: op.clone(), strength, semantics, recorded, steps, own }))
    }

    /// Returns its deaths at each of the last `last` steps, in each of these scenarios.
    pub fn deaths(&self, scenarios: &[Scenario], last: usize) -> impl Iterator<Item = Death> {
        let at = move |steps| {
            let death =
                move |scenario: &_| Death { victim: self.op.clone(), steps, scenario: *scenario };
            scenarios.iter().filter(move |scenario| scenario.suits(self.strength)).map(death)
        };
        let steps = self.steps.len();
        (steps.saturating_sub(last)..=steps).flat_map(at)
    }

    /// Returns the operation after the recovery. A file that was truncated grows again: leftovers
    /// beyond its end would show.
    fn afterwards(&self, scenario: Scenario) -> Op {
        match &self.op {
            op if scenario == Scenario::Mapper => {
                let op = op.to_string();
                let which = HELD_BESIDE.iter().position(|beside| *beside == op).unwrap_or(0);
                AFTER_MAPPING[which].parse().expect("an operation")
            }
            // It takes blocks that look free.
            _ if scenario == Scenario::Holder => Op::append("/a", FAR),
            _ if Scenario::BESIDE.contains(&scenario) => Op::append("/a", NEAR),
            Op::Truncate(path, _) => Op::write(path.clone(), FAR, 10),
            // If a redo record was applied again, it would bring the name back.
            Op::Rename(_, to) => Op::Unlink(to.clone()),
            _ => Op::create("/after"),
        }
    }

    /// Runs the death after its first `steps` steps, and the operations that follow.
    pub fn dies<T: Target>(
        &self,
        target: &T,
        base: &Base,
        steps: usize,
        scenario: Scenario,
    ) -> Result<Recorded, String> {
        if !scenario.suits(self.strength) {
            return Err("no file of this engine can be mapped".to_owned());
        }
        let recorder = Recorder::new(CrashImage::under(self.semantics, base.bytes.clone()));
        let mut aftermath = Aftermath {
            victim: self,
            target,
            base,
            recorder: &recorder,
            steps,
            scenario,
            together: Meeting::default(),
            history: History::default(),
        };
        let Seen { found, after, last } = aftermath.run()?;
        let history = aftermath.history;
        let legal = || self.recorded.trees.iter().chain(self.recorded.between.values());
        if !legal().any(|legal| *legal == found) {
            let differs = |legal: &Arc<_>| diff(legal, &found).unwrap_or_default();
            let differences: Vec<_> = legal().map(differs).collect();
            return Err(format!("half of it is there: {}", differences.join("\n  or: ")));
        }
        let before = self.recorded.trees[0].clone();
        let mut trees = vec![before.clone(), before, found, after];
        trees.extend(last);
        Ok(Recorded {
            trace: recorder.into_trace(),
            trees,
            between: BTreeMap::new(),
            // Stores of the dead process that no operation sees need not be durable, nor stores
            // through a mapping.
            promises: vec![false, false, true, scenario != Scenario::Mapper, true],
            syncs: Vec::new(),
            history,
        })
    }

    fn seen(&self, fs: &dyn FileSystem) -> Result<Arc<Tree>, String> {
        self.strength.read(fs).map(Arc::new).map_err(|e| format!("walk: {e}"))
    }

    /// Returns the model of the tree that was found: before the victim's operation, or after it.
    fn model_of(&self, base: &Base, found: &Arc<Tree>) -> Option<Model> {
        let done = self.recorded.trees.iter().position(|tree| tree == found)?;
        let model = base.model();
        if done > 0 {
            let _ = Driver::new(&model).run(&self.op, 0);
        }
        Some(model)
    }
}

/// The trees seen after the recovery, after the operation that follows, and after each of the last
/// ones.
struct Seen {
    found: Arc<Tree>,
    after: Arc<Tree>,
    last: Vec<Arc<Tree>>,
}

/// A death and the operations that follow it.
struct Aftermath<'a, T> {
    victim: &'a Victim,
    target: &'a T,
    base: &'a Base,
    recorder: &'a Recorder<CrashImage>,
    steps: usize,
    scenario: Scenario,
    together: Meeting,
    history: History,
}

/// A process of an [`Aftermath`].
type Process<'a> = Box<dyn SharingProcess + 'a>;

impl<'a, T: Target> Aftermath<'a, T> {
    /// Plays the scenario: the death, the recovery, and the operation that follows. Returns the
    /// trees seen.
    fn run(&mut self) -> Result<Seen, String> {
        match self.scenario {
            Scenario::SurvivingProcess => self.survived(),
            Scenario::NextMount => self.mounted_next(),
            Scenario::Holder => self.held(),
            Scenario::Newcomer | Scenario::Successor => self.joined(),
            Scenario::Mapper => self.mapped(),
        }
    }

    /// Starts a process that shares the pool with the others.
    fn share(&self) -> Result<Process<'a>, String> {
        self.target.share(self.recorder, &self.together)
    }

    /// Starts a process before the victim begins. It reads the tree: its caches must not hide later
    /// changes from it.
    fn survivor(&self) -> Result<Process<'a>, String> {
        let process = self.share()?;
        self.victim.seen(process.fs())?;
        Ok(process)
    }

    /// Runs [`Scenario::SurvivingProcess`].
    fn survived(&mut self) -> Result<Seen, String> {
        let process = self.survivor()?;
        self.begin(process.fs())?;
        self.die();
        self.recovering(|_| process.recover())?;
        let seen = self.go_on(process.fs())?;
        self.sync(process.fs(), seen)
    }

    /// Runs [`Scenario::NextMount`].
    fn mounted_next(&mut self) -> Result<Seen, String> {
        // The victim's mount: it clears leftovers of an earlier crash before the operation.
        let mount = self.target.mount(self.recorder)?;
        self.begin(&*mount.fs)?;
        drop(mount);
        self.die();
        let next = self.recovering(|it| it.target.mount(it.recorder))?;
        let seen = self.go_on(&*next.fs)?;
        self.sync(&*next.fs, seen)
    }

    /// Runs [`Scenario::Holder`].
    fn held(&mut self) -> Result<Seen, String> {
        let process = self.survivor()?;
        let fs = process.fs();
        self.begin(fs)?;
        let held = HeldResources::make(fs)?;
        self.die();
        self.recovering(|_| process.recover())?;
        held.count(fs)?;
        let seen = self.go_on(fs)?;
        let seen = self.last(fs, seen, Syncs::Nothing, |_| held.take_name(fs))?;
        held.end(fs)?;
        Ok(seen)
    }

    /// Runs [`Scenario::Newcomer`] and [`Scenario::Successor`].
    fn joined(&mut self) -> Result<Seen, String> {
        let survivor = self.survivor()?;
        let fs = survivor.fs();
        self.begin(fs)?;
        let space = HeldSpace::of(fs);
        let dead = self.share()?;
        let held = HeldResources::make(dead.fs())?;
        let is_full = self.scenario == Scenario::Successor;
        let others = if is_full { self.fill_slots()? } else { Vec::new() };
        drop(dead);
        self.die();
        let newcomer = self.recovering(|it| {
            if !is_full {
                survivor.recover()?;
            }
            let newcomer = it.share()?;
            newcomer.recover()?;
            Ok(newcomer)
        })?;
        drop(others);
        space.is_as_before(fs)?;
        let seen = self.go_on(newcomer.fs())?;
        self.last(fs, seen, Syncs::Nothing, |_| held.lose_name(fs))
    }

    /// Starts processes until all slots are taken.
    fn fill_slots(&self) -> Result<Vec<Process<'a>>, String> {
        let mut others = Vec::new();
        loop {
            match self.share() {
                Ok(process) => others.push(process),
                Err(_) if others.len() > FEW_SLOTS => return Ok(others),
                Err(what) => return Err(format!("a process that joins: {what}")),
            }
        }
    }

    /// Runs [`Scenario::Mapper`].
    fn mapped(&mut self) -> Result<Seen, String> {
        let survivor = self.survivor()?;
        let fs = survivor.fs();
        self.remember(fs, Syncs::All)?;
        let own = Mapping::make(fs, "/d/z")?;
        let space = HeldSpace::of(fs);
        let dead = self.share()?;
        let of_dead = Mapping::make(dead.fs(), "/a")?;
        of_dead.store(self.recorder, 1);
        of_dead.store_behind_end(self.recorder, 1);
        own.store(self.recorder, 2);
        drop(dead);
        self.remember(fs, Syncs::Nothing)?;
        self.die();
        let is_inside = self.steps > 0;
        self.recovering(|_| if is_inside { survivor.recover() } else { survivor.reap() })?;
        space.is_as_before(fs)?;
        own.look(fs, self.recorder)?;
        let seen = self.go_on(fs)?;
        own.look(fs, self.recorder)?;
        let had = of_dead.size(fs)?;
        let seen = self.last(fs, seen, Syncs::Nothing, |it| {
            own.store(it.recorder, 3);
            of_dead.grow(fs)
        })?;
        of_dead.has_grown_from(fs, had)?;
        let seen = self.last(fs, seen, Syncs::All, |_| {
            own.sync(fs)?;
            fs.fsync(of_dead.ino).map_err(|e| format!("fsync after a death: {e}"))
        })?;
        own.look(fs, self.recorder)?;
        Ok(seen)
    }

    /// Notes the tree as durable, and again for the time when the victim has begun.
    fn begin(&mut self, fs: &dyn FileSystem) -> Result<(), String> {
        self.remember(fs, Syncs::All)?;
        self.remember(fs, Syncs::Nothing)
    }

    /// Repeats the first steps, as another process.
    fn die(&self) {
        let Victim { recorded, steps, own, .. } = self.victim;
        self.recorder.begin(VICTIM);
        // The unmount is left out, as other processes use the pool: it would make cached contents
        // count as durable.
        let most = if self.scenario == Scenario::Mapper { *own } else { steps.len() };
        let done = &steps[..self.steps.min(most)];
        // The recorder sees another thread: only its own fences wait for its flushes.
        std::thread::scope(|s| {
            s.spawn(|| {
                do_again(self.recorder, &recorded.trace, done);
                self.recorder.drain();
            });
        });
        self.recorder.end(VICTIM);
    }

    fn recovering<R>(&self, recover: impl FnOnce(&Self) -> Result<R, String>) -> Result<R, String> {
        self.recorder.begin(RECOVERY);
        let recovered = recover(self)?;
        self.recorder.end(RECOVERY);
        Ok(recovered)
    }

    /// Does an operation after the recovery.
    fn go_on(&mut self, fs: &dyn FileSystem) -> Result<Seen, String> {
        let victim = self.victim;
        let found = victim.seen(fs)?;
        self.remember(fs, Syncs::Nothing)?;
        let op = victim.afterwards(self.scenario);
        self.recorder.begin(AFTERWARDS);
        let done = Driver::new(fs).run(&op, 0);
        self.recorder.end(AFTERWARDS);
        let after = victim.seen(fs)?;
        self.remember(fs, Syncs::Nothing)?;
        // There is no model of half an operation, even if that is legal.
        if done != Err(Errno::NOSPC)
            && let Some(model) = victim.model_of(self.base, &found)
        {
            let wanted = Driver::new(&model).run(&op, 0);
            if wanted != done {
                return Err(format!("{op} after a death: {done:?}, the model {wanted:?}"));
            }
            if let Some(differs) = diff(&*victim.seen(&model)?, &after) {
                return Err(format!("{op} after a death: {differs}"));
            }
        }
        Ok(Seen { found, after, last: Vec::new() })
    }

    /// Makes a further change, which makes `syncs` durable.
    fn last(
        &mut self,
        fs: &dyn FileSystem,
        mut seen: Seen,
        syncs: Syncs,
        change: impl FnOnce(&Self) -> Result<(), String>,
    ) -> Result<Seen, String> {
        let op = LAST + seen.last.len() as u32;
        self.recorder.begin(op);
        change(self)?;
        self.recorder.end(op);
        seen.last.push(self.victim.seen(fs)?);
        self.remember(fs, syncs)?;
        Ok(seen)
    }

    /// Syncs, if a sync has an effect.
    fn sync(&mut self, fs: &dyn FileSystem, seen: Seen) -> Result<Seen, String> {
        if self.victim.strength.is_ordered() {
            return Ok(seen);
        }
        let sync = |_: &Self| fs.sync().map_err(|e| format!("sync after a death: {e}"));
        self.last(fs, seen, Syncs::All, sync)
    }

    /// Notes content, if that is durable only on sync; `syncs` is what has just been synced.
    fn remember(&mut self, fs: &dyn FileSystem, syncs: Syncs) -> Result<(), String> {
        if self.victim.strength.is_ordered() {
            Ok(())
        } else {
            self.history.note(fs, Handles::default(), syncs)
        }
    }
}

/// Repeats steps of a recorded run.
pub fn do_again(medium: &impl Medium, trace: &Trace, steps: &[Event]) {
    for step in steps {
        match step.action {
            Action::Store { kind, addr, len, data } => {
                let bytes = trace.data(data, len);
                match kind {
                    StoreKind::Plain => medium.write(addr.into(), bytes),
                    StoreKind::Nt => medium.write_nt(addr.into(), bytes),
                    StoreKind::Line => {
                        let line = bytes.try_into().expect("a line has 64 bytes");
                        medium.store_line(addr.into(), line);
                    }
                    StoreKind::Word => {
                        let word = bytes.try_into().expect("a word has eight bytes");
                        medium.store_u64(addr.into(), u64::from_le_bytes(word));
                    }
                }
            }
            Action::Flush { addr, len } => medium.flush(addr.into(), len.into()),
            Action::Fence => drop(medium.fence()),
            Action::Drain | Action::Load { .. } | Action::Begin { .. } | Action::End { .. } => {}
        }
    }
}
