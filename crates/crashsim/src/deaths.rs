//! A process dies in an operation, others recover and go on, and then the power fails.
//!
//! A death alone loses nothing: memory has every store that the dead made. But what they had stored and
//! not flushed, the others see, and a power failure may still take it back. So recovery has to make
//! durable what it finds before anybody builds on it.
//!
//! Who recovers is a surviving process, which shared the pool with the dead, or, where all who did have been
//! killed, the next mount ([`Scenario`]).
//!
//! The victim's operation is recorded once. Then a surviving process attaches to the base, the victim's first
//! steps are done again behind its back, as by another process, and that process recovers and does an
//! operation of its own; or they are done again before the pool is mounted anew. To the explorer
//! ([`crate::run`]) that is a workload of three operations: the victim's, the recovery, and that of who
//! goes on. Crashes in the first are other families' business. When the second has returned, the tree
//! that is seen then must survive; and what is done afterwards must do to it what it does to the model. Where content is
//! durable on `fsync`, all of that holds for names and attributes, and content is judged by [`crate::promise`].

use crate::image::CrashImage;
use crate::persist::Semantics;
use crate::promise::{History, Syncs};
use crate::recorder::Recorder;
use crate::run::{Base, Recorded};
use crate::target::{Strength, Target};
use crate::trace::{Action, Event, StoreKind, Trace};
use pmem::Medium;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use vfs::model::Model;
use vfs::script::{BadOp, Driver, Handles, Op, Pos, content, parse};
use vfs::tree::{Tree, diff};
use vfs::{Caller, Errno, FileKind, FileSystem, Ino};

/// Who goes on after a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A process that shared the pool with the dead one: it recovers.
    SurvivingProcess,
    /// A process that comes when nobody is left: it mounts the pool.
    NextMount,
    /// A surviving process that holds a file without a name, whose blocks are in use although nothing on media says so, and a
    /// removed directory.
    Holder,
}

/// Operations whose deaths a [`Scenario::Holder`] survives: they store in place, so that they do again what they did
/// although somebody has taken blocks meanwhile.
pub const HELD_BESIDE: [&str; 3] = ["utimes /a", "chmod /e 700", "unlink /b"];

impl Scenario {
    /// Those of any operation.
    pub const ALL: [Self; 2] = [Self::SurvivingProcess, Self::NextMount];
}

/// Where an operation ended for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The operation.
    pub victim: Op,
    /// How many of its stores, flushes and fences were done.
    pub steps: usize,
    /// Who goes on.
    pub scenario: Scenario,
}

/// What precedes the death in replay lines if nobody survives, or somebody who holds a file.
const NEXT_MOUNT: &str = "next-mount ";
const HOLDER: &str = "holder ";

/// As in replay lines: `[next-mount |holder ]STEPS OPERATION`.
impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.scenario {
            Scenario::SurvivingProcess => "",
            Scenario::NextMount => NEXT_MOUNT,
            Scenario::Holder => HOLDER,
        };
        write!(f, "{who}{} {}", self.steps, self.victim)
    }
}

impl FromStr for Death {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [(NEXT_MOUNT, Scenario::NextMount), (HOLDER, Scenario::Holder)];
        let named = named.iter().find_map(|(n, scenario)| Some((*scenario, text.strip_prefix(n)?)));
        let (scenario, text) = named.unwrap_or((Scenario::SurvivingProcess, text));
        let (steps, victim) = text.split_once(' ').ok_or("a death has steps and an operation")?;
        let steps = steps.parse().map_err(|_| format!("not a number of steps: `{steps}`"))?;
        let victim = victim.parse().map_err(|bad: BadOp| bad.to_string())?;
        Ok(Self { victim, steps, scenario })
    }
}

/// The operations of a workload.
const VICTIM: u32 = 0;
const RECOVERY: u32 = VICTIM + 1;
const AFTERWARDS: u32 = RECOVERY + 1;
/// A file that a [`Scenario::Holder`] has open loses its name.
const LAST_NAME: u32 = AFTERWARDS + 1;
/// Otherwise, where content is durable on `fsync`, everything is synced: also what the dead have stored.
const SYNC: u32 = AFTERWARDS + 1;

/// The first operation to crash in.
pub const FROM: usize = RECOVERY as usize;

/// Where who goes on writes to a file that the victim was to cut off.
const FAR: u64 = 70_000;

/// An operation that was run once, to its end.
#[derive(Debug)]
pub struct Victim {
    op: Op,
    strength: Strength,
    semantics: Semantics,
    recorded: Recorded,
    steps: Vec<Event>,
}

impl Victim {
    /// Runs an operation on a copy of the base. `None` where its death is another matter:
    ///
    /// - It stores one word of data in place: recovery makes metadata durable, and does not read data. Such a
    ///   word may be seen and then be lost (SEMANTICS says so).
    /// - It is many operations.
    /// - It stores nothing, as its file is not there.
    pub fn record<T: Target>(
        target: &T,
        base: &Base,
        op: &Op,
        semantics: Semantics,
    ) -> Result<Option<Self>, String> {
        let is_word = |at: &Pos, len: &u64| match at {
            Pos::At(off) => off / 8 == (off + len.max(&1) - 1) / 8,
            // Where that is, is not known yet.
            Pos::End(_) | Pos::Limit(_) => true,
        };
        if matches!(op, Op::Write(_, at, len, _) if is_word(at, len))
            || matches!(op, Op::Fill(_) | Op::Remount)
        {
            return Ok(None);
        }
        let recorded = base.record(target, std::slice::from_ref(op), 0, semantics)?;
        let begun = |e: &&Event| !matches!(e.action, Action::Begin { .. });
        let steps = recorded.trace.events.iter().skip_while(begun);
        let steps = steps.filter(|e| {
            matches!(e.action, Action::Store { .. } | Action::Flush { .. } | Action::Fence)
        });
        let steps: Vec<Event> = steps.copied().collect();
        if steps.is_empty() {
            return Ok(None);
        }
        let strength = target.strength();
        Ok(Some(Self { op: op.clone(), strength, semantics, recorded, steps }))
    }

    /// Where it can die in its last so many steps, with each of these who can go on.
    pub fn deaths(&self, scenarios: &[Scenario], last: usize) -> impl Iterator<Item = Death> {
        let at = move |steps| {
            let death =
                move |scenario: &_| Death { victim: self.op.clone(), steps, scenario: *scenario };
            scenarios.iter().map(death)
        };
        let steps = self.steps.len();
        (steps.saturating_sub(last)..=steps).flat_map(at)
    }

    /// What is done after the recovery. A file that was cut off grows again: what is left beyond its end
    /// would show.
    fn afterwards(&self, scenario: Scenario) -> Op {
        match &self.op {
            // It takes blocks that look free.
            _ if scenario == Scenario::Holder => Op::append("/a", FAR),
            Op::Truncate(path, _) => Op::write(path.clone(), FAR, 10),
            // A record that is done once more would bring the name back.
            Op::Rename(_, to) => Op::Unlink(to.clone()),
            _ => Op::create("/after"),
        }
    }

    /// What follows when it dies after its first `steps` steps.
    pub fn dies<T: Target>(
        &self,
        target: &T,
        base: &Base,
        steps: usize,
        scenario: Scenario,
    ) -> Result<Recorded, String> {
        let recorder = Recorder::new(CrashImage::under(self.semantics, base.bytes.clone()));
        let mut history = History::default();
        // What is durable, and what it is when the victim has begun.
        let mut begin = |fs: &dyn FileSystem| {
            self.remember(&mut history, fs, Syncs::All)?;
            self.remember(&mut history, fs, Syncs::Nothing)
        };
        let (found, after, last) = match scenario {
            Scenario::SurvivingProcess | Scenario::Holder => {
                let process = target.share(&recorder)?;
                let fs = process.fs();
                // What it has looked at before must not keep it from finding what is there now.
                self.seen(fs)?;
                begin(fs)?;
                let held = (scenario == Scenario::Holder).then(|| Held::make(fs)).transpose()?;
                self.die(&recorder, steps);
                recorder.begin(RECOVERY);
                process.recover()?;
                recorder.end(RECOVERY);
                if let Some(held) = &held {
                    held.count(fs)?;
                }
                let (found, after) = self.go_on(&recorder, base, fs, scenario, &mut history)?;
                let mut last = None;
                if held.is_none() {
                    last = self.sync(&recorder, fs, &after, &mut history)?;
                }
                if let Some(held) = held {
                    recorder.begin(LAST_NAME);
                    held.take_name(fs)?;
                    recorder.end(LAST_NAME);
                    last = Some(self.seen(fs)?);
                    self.remember(&mut history, fs, Syncs::Nothing)?;
                    held.end(fs)?;
                }
                (found, after, last)
            }
            Scenario::NextMount => {
                // The victim's: what an earlier crash has left is cleared before its operation.
                begin(&*target.mount(&recorder)?.fs)?;
                self.die(&recorder, steps);
                recorder.begin(RECOVERY);
                let next = target.mount(&recorder)?;
                recorder.end(RECOVERY);
                let fs = &*next.fs;
                let (found, after) = self.go_on(&recorder, base, fs, scenario, &mut history)?;
                let last = self.sync(&recorder, fs, &after, &mut history)?;
                (found, after, last)
            }
        };
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
            // What the dead left and nobody sees need not be durable.
            promises: vec![false, false, true, true],
            history,
        })
    }

    /// Does the first steps, as another process.
    fn die<M: Medium>(&self, recorder: &Recorder<M>, steps: usize) {
        recorder.begin(VICTIM);
        let done = &self.steps[..steps.min(self.steps.len())];
        // Another thread to the recorder: its flushes wait for its fences only.
        std::thread::scope(|s| {
            s.spawn(|| {
                do_again(recorder, &self.recorded.trace, done);
                recorder.drain();
            });
        });
        recorder.end(VICTIM);
    }

    /// Does an operation after the recovery; returns what is seen before it and after it.
    fn go_on<M: Medium>(
        &self,
        recorder: &Recorder<M>,
        base: &Base,
        fs: &dyn FileSystem,
        scenario: Scenario,
        history: &mut History,
    ) -> Result<(Arc<Tree>, Arc<Tree>), String> {
        let found = self.seen(fs)?;
        self.remember(history, fs, Syncs::Nothing)?;
        let op = self.afterwards(scenario);
        recorder.begin(AFTERWARDS);
        let done = Driver::new(fs).run(&op, 0);
        recorder.end(AFTERWARDS);
        let after = self.seen(fs)?;
        self.remember(history, fs, Syncs::Nothing)?;
        if done == Err(Errno::NOSPC) {
            return Ok((found, after));
        }
        // Of half an operation that is legal, no model is at hand.
        if let Some(model) = self.model_of(base, &found) {
            let wanted = Driver::new(&model).run(&op, 0);
            if wanted != done {
                return Err(format!("{op} after a death: {done:?}, the model {wanted:?}"));
            }
            if let Some(differs) = diff(&*self.seen(&model)?, &after) {
                return Err(format!("{op} after a death: {differs}"));
            }
        }
        Ok((found, after))
    }

    /// Syncs where that does something; returns what is seen then.
    fn sync<M: Medium>(
        &self,
        recorder: &Recorder<M>,
        fs: &dyn FileSystem,
        after: &Arc<Tree>,
        history: &mut History,
    ) -> Result<Option<Arc<Tree>>, String> {
        if self.strength.is_ordered() {
            return Ok(None);
        }
        recorder.begin(SYNC);
        fs.sync().map_err(|e| format!("sync after a death: {e}"))?;
        recorder.end(SYNC);
        self.remember(history, fs, Syncs::All)?;
        Ok(Some(after.clone()))
    }

    fn seen(&self, fs: &dyn FileSystem) -> Result<Arc<Tree>, String> {
        self.strength.read(fs).map(Arc::new).map_err(|e| format!("walk: {e}"))
    }

    fn remember(
        &self,
        history: &mut History,
        fs: &dyn FileSystem,
        syncs: Syncs,
    ) -> Result<(), String> {
        if self.strength.is_ordered() {
            Ok(())
        } else {
            history.note(fs, Handles::default(), syncs)
        }
    }

    /// The model of what was found: before the victim's operation, or after it.
    fn model_of(&self, base: &Base, found: &Arc<Tree>) -> Option<Model> {
        let done = self.recorded.trees.iter().position(|tree| tree == found)?;
        let model = base.model();
        if done > 0 {
            let _ = Driver::new(&model).run(&self.op, 0);
        }
        Some(model)
    }
}

/// A file with a name, which a surviving process holds, too.
const NAMED: &str = "/d/z";

/// Makes a directory of several blocks and removes it while it is open.
const REMOVED: &str = "mkdir /d/held; open /d/held 0; link /o %0/LONG-0; link /o %0/LONG-1; link /o %0/LONG-2; link /o %0/LONG-3; \
    link /o %0/LONG-4; link /o %0/LONG-5; link /o %0/LONG-6; link /o %0/LONG-7; link /o %0/LONG-8; link /o %0/LONG-9; \
    unlink %0/LONG-0; unlink %0/LONG-1; unlink %0/LONG-2; unlink %0/LONG-3; unlink %0/LONG-4; unlink %0/LONG-5; unlink %0/LONG-6; \
    unlink %0/LONG-7; unlink %0/LONG-8; unlink %0/LONG-9; rmdir /d/held";

/// A file without a name and a removed directory that a surviving process holds.
struct Held {
    ino: Ino,
    /// The directory.
    removed: Ino,
    content: Vec<u8>,
    /// The file with a name and its size, where the base has it.
    named: Option<(Ino, u64)>,
    /// Free blocks since it was made.
    free: u64,
}

impl Held {
    fn make(fs: &dyn FileSystem) -> Result<Self, String> {
        let text = |e: Errno| format!("a file to hold: {e}");
        let made = fs.tmpfile(&Caller::ROOT, fs.root(), 0o600, 0).map_err(text)?;
        let mut driver = Driver::new(fs);
        for op in parse(&REMOVED.replace("LONG", &"l".repeat(250))).map_err(|e| e.to_string())? {
            driver.run(&op, 0).map_err(|e| format!("a directory to hold: {op}: {e}"))?;
        }
        let removed = driver.handles()[0].ok_or("a directory to hold is not held")?;
        let content = content(HELD_SALT, 3 * 4096);
        fs.write(made.ino, 0, &content).map_err(text)?;
        let named = match Driver::new(fs).held(NAMED) {
            Some(ino) => Some((ino, fs.getattr(ino).map_err(text)?.size)),
            None => None,
        };
        Ok(Self { ino: made.ino, removed, content, named, free: fs.statfs().blocks_free })
    }

    /// The file with a name loses it, and is there as long as it is held.
    fn take_name(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let Some((ino, size)) = self.named else { return Ok(()) };
        let unlinked = Driver::new(fs).run(&Op::Unlink(NAMED.into()), 0);
        unlinked.map_err(|e| format!("unlink {NAMED} after a death: {e}"))?;
        match fs.getattr(ino) {
            Ok(attr) if attr.size == size => Ok(()),
            found => {
                Err(format!("a held file is gone with its last name after a recovery: {found:?}"))
            }
        }
    }

    /// Its blocks are in use, and no others.
    fn count(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let free = fs.statfs().blocks_free;
        match free == self.free {
            true => Ok(()),
            false => {
                Err(format!("space: {free} blocks are free after a recovery, not {}", self.free))
            }
        }
    }

    /// The removed directory is still one, takes no names, and no other inode has its number.
    fn look_at_removed(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let kind = fs.getattr(self.removed).map(|attr| attr.kind);
        let handles = [Some(self.removed), None, None, None, None, None];
        let made = Driver::with_handles(fs, handles).run(&Op::create("%0/n"), 0);
        if kind != Ok(FileKind::Dir) || made != Err(Errno::NOENT) {
            let what = "a held, removed directory after a recovery";
            return Err(format!("{what}: {kind:?}, and a name in it: {made:?}"));
        }
        let make = |_| fs.tmpfile(&Caller::ROOT, fs.root(), 0o600, 0).map(|made| made.ino);
        let made: Vec<Ino> = (0..FILES_AFTER).map_while(|i| make(i).ok()).collect();
        made.iter().for_each(|ino| fs.forget(*ino, 1));
        match made.iter().find(|ino| [self.removed, self.ino].contains(ino)) {
            Some(ino) => Err(format!("{ino:?} is held, and after a recovery another file")),
            None => Ok(()),
        }
    }

    /// It holds what was written, and is given back.
    fn end(self, fs: &dyn FileSystem) -> Result<(), String> {
        let mut found = vec![0; self.content.len() + 1];
        let n = fs.read(self.ino, 0, &mut found).map_err(|e| format!("a held file: {e}"))?;
        if found[..n] != self.content {
            return Err("a file without a name has lost its content in a recovery".into());
        }
        self.look_at_removed(fs)?;
        let before = fs.statfs().blocks_free;
        if let Some((ino, _)) = self.named {
            fs.forget(ino, 1);
        }
        fs.forget(self.ino, 1);
        fs.forget(self.removed, 1);
        match fs.statfs().blocks_free > before {
            true => Ok(()),
            false => Err("a held file does not give its blocks back after a recovery".into()),
        }
    }
}

/// Files that are made after a recovery, to see which inode numbers they get.
const FILES_AFTER: usize = 8;

/// Makes the content of held files their own.
const HELD_SALT: u64 = 99;

/// Does again what a recorded run did.
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
