//! Deaths of the server of a cache, and crashes of its machine, at each step of loads, write-back
//! and eviction.
//!
//! A program and a server use a pool of BPFS over the contract's model, which stands for the
//! directory below. They run once, on a recorder. Before each fence of the pool, and at each call
//! that changes or syncs the directory, all of it stops. The pool has any state that a power
//! failure may leave, which includes all stores, as after the death of a process. The directory
//! has everything, or only what was synced, or all names and attributes and only the content that
//! was synced. A new server goes on from there:
//!
//! - caches-J1: its tree is that before or after the call of the program in flight: nothing
//!   acknowledged is lost.
//! - caches-J2: it writes everything back, and then the directory equals the tree.
//! - caches-J3: the directory is usable without it. A name that was there, and that the program has
//!   not removed, is there. A name that is new, or leads to another file than before, leads to
//!   content that the program has written, whole.

use crate::backed::mount_with;
use crate::{mounted, text};
use backing::model::ModelBacking;
use backing::{Backing, Identity};
use crashsim::explore::Budget;
use crashsim::image::CrashImage;
use crashsim::persist::Semantics;
use crashsim::program::{Moment, find_bugs};
use crashsim::recorder::Recorder;
use crashsim::sited::Sited;
use crashsim::stats::{Distinct, Stats};
use crashsim::trace::Trace;
use crashsim::workload::POOL_BYTES;
use pmcache::{Loading, PRIVATE};
use pmem::Medium as _;
use pool::DurabilityMode::{self, Journal, Ordered};
use pool::{FormatOptions, MountOptions};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vfs::model::Model;
use vfs::tree::{Tree, diff, tree};
use vfs::{
    Attr, Backed, Caller, Entry, Errno, Fallocate, FileKind, FileSystem, Ino, Mappings, NewKind,
    NewNode, Openings, ROOT, RenameFlags, Result, SetAttr, SetTime, SetXattr, Timestamp,
};

/// The promise of the directory that it breaks, to test this judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Careless {
    /// None.
    Nothing,
    /// Syncs make no content durable.
    Content,
    /// Syncs make no names and attributes durable.
    Names,
}

/// Calls of the program after which a directory may still get a name with the content of before.
const RECENT: usize = 3;

/// A step of the program, or of the server.
enum Step {
    Program(fn(&dyn FileSystem) -> Result<()>),
    WriteBack,
    Evict,
}
use Step::{Evict, Program, WriteBack};

/// The pool has the clock of the directory below: a new server compares their times.
fn mount_options() -> MountOptions {
    MountOptions { clock: Timestamp::now, ..mounted::mount_options() }
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i / 8 * 13 + i % 8 + seed * 7) as u8 | 1).collect()
}

/// Finds the inode of a path, and calls `each` with it while it is referenced.
fn at<T>(fs: &dyn FileSystem, path: &str, each: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
    let mut ino = ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let found = fs.lookup(ino, name.as_bytes())?.ino;
        if ino != ROOT {
            fs.forget(ino, 1);
        }
        ino = found;
    }
    let done = each(ino);
    if ino != ROOT {
        fs.forget(ino, 1);
    }
    done
}

/// Calls `each` with the directory and the name of a path.
fn within<T>(
    fs: &dyn FileSystem,
    path: &str,
    each: impl FnOnce(Ino, &[u8]) -> Result<T>,
) -> Result<T> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    at(fs, dir, |dir| each(dir, name.as_bytes()))
}

fn make(fs: &dyn FileSystem, path: &str, kind: NewKind<'_>) -> Result<()> {
    let node = NewNode { kind, mode: 0o640, umask: 0 };
    let made = within(fs, path, |dir, name| fs.create(&Caller::ROOT, dir, name, &node))?;
    fs.forget(made.ino, 1);
    Ok(())
}

fn write(fs: &dyn FileSystem, path: &str, offset: u64, data: &[u8]) -> Result<()> {
    at(fs, path, |ino| fs.write(ino, offset, data))
}

fn read(fs: &dyn FileSystem, ino: Ino) -> Result<Vec<u8>> {
    let mut content = vec![0; fs.getattr(ino)?.size as usize];
    let n = fs.read(ino, 0, &mut content)?;
    content.truncate(n);
    Ok(content)
}

fn rename(fs: &dyn FileSystem, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
    within(fs, from, |from_dir, from| {
        within(fs, to, |to_dir, to| fs.rename((from_dir, from), (to_dir, to), flags))
    })
}

fn link(fs: &dyn FileSystem, of: &str, path: &str) -> Result<()> {
    let linked = at(fs, of, |ino| within(fs, path, |dir, name| fs.link(ino, dir, name)))?;
    fs.forget(linked.ino, 1);
    Ok(())
}

fn unlink(fs: &dyn FileSystem, path: &str) -> Result<()> {
    within(fs, path, |dir, name| fs.unlink(dir, name))
}

fn set(fs: &dyn FileSystem, path: &str, set: SetAttr) -> Result<()> {
    at(fs, path, |ino| fs.setattr(&Caller::ROOT, ino, &set).map(drop))
}

/// Makes what is below at first.
fn fill(fs: &dyn FileSystem) -> Result<()> {
    make(fs, "d", NewKind::Dir)?;
    for (path, seed, len) in
        [("d/a", 1, 5000), ("o", 2, 20_000), ("r", 3, 9000), ("gone", 4, 300), ("l", 5, 100)]
    {
        make(fs, path, NewKind::File)?;
        write(fs, path, 0, &bytes(seed, len))?;
    }
    link(fs, "l", "d/l2")?;
    set(fs, "", SetAttr { perm: Some(0o710), ..SetAttr::default() })
}

/// New files, files that replace others, changes in place, links, and names that change places.
const STEPS: &[Step] = &[
    Program(|fs| at(fs, "o", |ino| read(fs, ino).map(drop))),
    Program(|fs| write(fs, "o", 5000, &bytes(10, 6000))),
    Program(|fs| make(fs, "n", NewKind::File)),
    Program(|fs| write(fs, "n", 0, &bytes(11, 9000))),
    Program(|fs| make(fs, "t", NewKind::File)),
    Program(|fs| write(fs, "t", 0, &bytes(12, 5000))),
    Program(|fs| rename(fs, "t", "r", RenameFlags::empty())),
    WriteBack,
    Program(|fs| write(fs, "n", 100, &bytes(13, 50))),
    Program(|fs| write(fs, "o", 10, &bytes(17, 100))),
    Program(|fs| write(fs, "o", 13_000, &bytes(18, 100))),
    Program(|fs| rename(fs, "d/a", "b", RenameFlags::empty())),
    Program(|fs| link(fs, "o", "d/o2")),
    Program(|fs| unlink(fs, "gone")),
    Program(|fs| make(fs, "e", NewKind::Dir)),
    Program(|fs| make(fs, "e/x", NewKind::File)),
    Program(|fs| write(fs, "e/x", 0, &bytes(14, 4096))),
    Program(|fs| set(fs, "b", SetAttr { perm: Some(0o600), ..SetAttr::default() })),
    Program(|fs| at(fs, "l", |ino| fs.setxattr(ino, b"user.a", b"value", SetXattr::Any))),
    WriteBack,
    WriteBack,
    Evict,
    Program(|fs| at(fs, "r", |ino| fs.append(ino, &bytes(15, 3000)).map(drop))),
    Program(|fs| set(fs, "o", SetAttr { size: Some(6000), ..SetAttr::default() })),
    Program(|fs| at(fs, "n", |ino| fs.fallocate(ino, Fallocate::PunchHole, 0, 4096))),
    Program(|fs| unlink(fs, "b")),
    Program(|fs| make(fs, "b", NewKind::File)),
    Program(|fs| write(fs, "b", 0, &bytes(16, 700))),
    WriteBack,
    Program(|fs| rename(fs, "n", "b", RenameFlags::EXCHANGE)),
    Program(|fs| rename(fs, "e", "d/e", RenameFlags::empty())),
    Program(|fs| unlink(fs, "l")),
    WriteBack,
    WriteBack,
    Evict,
    Program(|fs| at(fs, "d/e/x", |ino| read(fs, ino).map(drop))),
    Program(|fs| unlink(fs, "d/e/x")),
    Program(|fs| within(fs, "d/e", |dir, name| fs.rmdir(dir, name))),
    WriteBack,
];

/// The calls of the program so far, and the directory, at the return of a call.
struct Mark {
    /// Calls of the program that have returned.
    done: usize,
    /// The directory as processes see it, and as a crash of the machine leaves it.
    live: Arc<Model>,
    durable: Arc<Model>,
    /// The directory after a crash that all names and attributes survive, but of contents only
    /// those that were synced.
    named: Arc<Model>,
}

/// The directory, which is copied at each change.
struct Observed<'r> {
    below: ModelBacking,
    recorder: &'r Recorder<CrashImage>,
    marks: &'r Mutex<Vec<Mark>>,
    /// Names and attributes when they were synced the last time.
    synced_names: Mutex<Model>,
    /// Contents of files when they were synced the last time, by lives of inodes.
    synced: Mutex<BTreeMap<(Ino, Timestamp), Vec<u8>>>,
    careless: Careless,
}

impl Observed<'_> {
    /// Makes a call, and notes the result. `is_programs`: whether the program makes the call.
    fn marked<T>(&self, is_programs: bool, call: impl FnOnce() -> T) -> T {
        let number = self.marks().len() as u32;
        self.recorder.begin(number);
        let result = call();
        self.mark(is_programs);
        self.recorder.end(number);
        result
    }

    fn mark(&self, is_programs: bool) {
        let model = self.below.model();
        let mut marks = self.marks();
        let done = marks.last().map_or(0, |last| last.done) + usize::from(is_programs);
        let mark = match marks.last().filter(|_| is_programs) {
            Some(Mark { live, durable, named, .. }) => {
                Mark { done, live: live.clone(), durable: durable.clone(), named: named.clone() }
            }
            None => {
                let with = |names: &Model| {
                    let model = self.with_synced_content(names).expect("the model fails no call");
                    Arc::new(model)
                };
                let durable = with(&locked(&self.synced_names));
                Mark { done, live: Arc::new(model.after_kill()), durable, named: with(&model) }
            }
        };
        marks.push(mark);
    }

    /// Copies a directory, with the contents that were synced.
    fn with_synced_content(&self, names: &Model) -> Result<Model> {
        let copy = names.after_kill();
        let synced = locked(&self.synced);
        for (ino, content) in files(&copy)?.into_values() {
            let Attr { btime, mtime, ctime, .. } = copy.getattr(ino)?;
            let empty = Vec::new();
            let synced = synced.get(&(ino, btime)).unwrap_or(&empty);
            if *synced != content {
                let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                copy.setattr(&Caller::ROOT, ino, &cut)?;
                copy.write(ino, 0, synced)?;
                let mtime = Some(SetTime::At(mtime));
                let times = SetAttr { mtime, ctime: Some(ctime), ..SetAttr::default() };
                copy.setattr(&Caller::ROOT, ino, &times)?;
            }
        }
        // All of it is on the disk.
        copy.sync()?;
        Ok(copy)
    }

    /// Notes that names and attributes are durable.
    fn note_synced_names(&self) {
        *locked(&self.synced_names) = self.below.model().after_kill();
    }

    /// Notes that the contents of all files, or of one, are durable.
    fn note_synced(&self, only: Option<Ino>) -> Result<()> {
        let model = self.below.model();
        let inos = match only {
            Some(ino) => vec![ino],
            None => files(&model)?.into_values().map(|(ino, _)| ino).collect(),
        };
        for ino in inos {
            let Attr { kind, btime, .. } = model.getattr(ino)?;
            if kind == FileKind::File {
                locked(&self.synced).insert((ino, btime), read(&*model, ino)?);
            }
        }
        Ok(())
    }

    fn marks(&self) -> MutexGuard<'_, Vec<Mark>> {
        locked(self.marks)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FileSystem for Observed<'_> {
    vfs::forward!(self => self.below; root, durability, kernel_cache, limits, lookup, forget,
        getattr, readlink, readdir, read, seek, getxattr, listxattr, statfs);

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Entry> {
        self.marked(false, || self.below.setattr(caller, ino, set))
    }
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.marked(false, || self.below.create(caller, dir, name, node))
    }
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.marked(false, || self.below.tmpfile(caller, dir, mode, umask))
    }
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.marked(false, || self.below.unlink(dir, name))
    }
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.marked(false, || self.below.rmdir(dir, name))
    }
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.marked(false, || self.below.link(ino, dir, name))
    }
    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.marked(false, || self.below.rename(from, to, flags))
    }
    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.marked(false, || self.below.rename_whiteout(caller, from, to, flags))
    }
    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.marked(false, || self.below.write(ino, offset, data))
    }
    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.marked(false, || self.below.append(ino, data))
    }
    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.marked(false, || self.below.drop_privileges(ino))
    }
    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.marked(false, || self.below.fallocate(ino, mode, offset, len))
    }
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.marked(false, || self.below.copy_range(from, to, len))
    }
    fn fsync(&self, ino: Ino) -> Result<()> {
        if self.careless == Careless::Content {
            return Ok(());
        }
        self.marked(false, || {
            self.below.fsync(ino)?;
            self.note_synced(Some(ino))
        })
    }
    fn sync(&self) -> Result<()> {
        self.marked(false, || {
            self.below.sync()?;
            self.note_synced_names();
            self.note_synced(None)
        })
    }
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.marked(false, || self.below.setxattr(ino, name, value, mode))
    }
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.marked(false, || self.below.removexattr(ino, name))
    }
}

impl Mappings for Observed<'_> {}

impl Openings for Observed<'_> {}

impl Backing for Observed<'_> {
    fn identity(&self, ino: Ino) -> Result<Identity> {
        self.below.identity(ino)
    }
    fn find(&self, identity: &Identity) -> Result<Entry> {
        self.below.find(identity)
    }
    fn sync_metadata(&self, ino: Ino) -> Result<()> {
        if self.careless == Careless::Names {
            return Ok(());
        }
        self.marked(false, || {
            self.below.sync_metadata(ino)?;
            self.note_synced_names();
            Ok(())
        })
    }
    fn key<'i>(&self, identity: &'i [u8]) -> &'i [u8] {
        self.below.key(identity)
    }
}

/// Explores all of it; the error is the first broken promise.
pub fn explore(distinct: &Distinct) -> std::result::Result<Stats, String> {
    let mut stats = Stats::default();
    for mode in [Journal, Ordered] {
        stats.add(&explore_over(Careless::Nothing, mode, distinct)?);
    }
    Ok(stats)
}

/// Explores the steps in a mode, over a directory that may break a promise.
pub fn explore_over(
    careless: Careless,
    mode: DurabilityMode,
    distinct: &Distinct,
) -> std::result::Result<Stats, String> {
    let budget = Budget { states: 1 << 4, runs: 16, samples: 2, ..Budget::default() };
    let run = CacheRun::record(careless, mode)?;
    run.check_usable()?;
    let initial = &run.initial;
    // All words count: what a new server reads depends on the directory, too.
    let recover = |image: &CrashImage| {
        let mut now = vec![0; initial.len()];
        Sited(image).read(0, &mut now);
        let words = now.chunks_exact(8).zip(initial.chunks_exact(8)).enumerate();
        let changed = words.filter(|(_, (now, before))| now != before);
        let word = |(i, (now, _)): (usize, (&[u8], _))| (i, now.try_into().unwrap_or_default());
        Ok(changed.map(word).collect::<Vec<(usize, [u8; 8])>>())
    };
    let known = RefCell::new(HashSet::new());
    let judge =
        |now: Moment, words: &Vec<(usize, [u8; 8])>| run.go_on(now, words, &mut known.borrow_mut());
    let (trace, semantics) = (&run.trace, Semantics::Adr);
    let (stats, bugs) = find_bugs(trace, initial, semantics, budget, distinct, &recover, &judge);
    match bugs.first() {
        Some(bug) => Err(format!("{mode}: {bug}")),
        None => Ok(stats),
    }
}

/// Steps that have run.
struct CacheRun {
    mode: DurabilityMode,
    initial: Vec<u8>,
    trace: Trace,
    marks: Vec<Mark>,
    /// The tree, and the contents of its files, after a number of calls of the program.
    trees: Vec<Tree>,
    contents: Vec<BTreeMap<String, Vec<u8>>>,
}

impl CacheRun {
    fn record(careless: Careless, mode: DurabilityMode) -> std::result::Result<Self, String> {
        let image = CrashImage::new(POOL_BYTES);
        let options = FormatOptions { is_backed: true, ..FormatOptions::default() };
        bpfs::format(&Sited(&image), &options).map_err(text)?;
        let initial = image.bytes();
        let recorder = Recorder::new(CrashImage::under(Semantics::Adr, initial.clone()));
        let below = ModelBacking::new();
        fill(&below).and_then(|()| below.sync()).map_err(text)?;
        let wanted = Model::new();
        fill(&wanted).map_err(text)?;
        let (mut trees, mut contents) = (vec![tree(&wanted).map_err(text)?], Vec::new());
        contents.push(contents_of(&wanted)?);
        let marks = Mutex::default();
        {
            let synced_names = Mutex::new(below.model().after_kill());
            let (recorder, marks, synced) = (&recorder, &marks, Mutex::default());
            let below = Observed { below, recorder, marks, synced_names, synced, careless };
            below.note_synced(None).map_err(text)?;
            below.mark(false);
            let fs = Loading::attach(mount_with(recorder, mode, &mount_options())?, below)
                .map_err(text)?;
            for (i, step) in STEPS.iter().enumerate() {
                let failed = |e: Errno| format!("step {i}: {e}");
                match step {
                    Program(call) => {
                        fs.backing().marked(true, || call(&fs)).map_err(failed)?;
                        call(&wanted).map_err(failed)?;
                        trees.push(tree(&wanted).map_err(text)?);
                        contents.push(contents_of(&wanted)?);
                    }
                    WriteBack => {
                        let written = fs.write_back().map_err(failed)?;
                        if let Some((ino, e)) = written.errors.first() {
                            return Err(format!("step {i}: {ino}: {e}"));
                        }
                    }
                    Evict => while fs.make_room(1 << 30).map_err(failed)? {},
                }
            }
        }
        let marks = marks.into_inner().unwrap_or_else(PoisonError::into_inner);
        let trace = recorder.into_trace();
        Ok(Self { mode, initial, trace, marks, trees, contents })
    }

    /// Lets new servers go on from a state of the pool at a moment (caches-J1, caches-J2).
    fn go_on(
        &self,
        now: Moment,
        words: &[(usize, [u8; 8])],
        known: &mut HashSet<u64>,
    ) -> std::result::Result<(), String> {
        // The mark before the first call has the number 0.
        let (first, last) = (now.returned as usize, now.begun as usize);
        let mut bytes = self.initial.clone();
        for (i, word) in words {
            bytes[i * 8..i * 8 + 8].copy_from_slice(word);
        }
        let marks = &self.marks[first..=last.min(self.marks.len() - 1)];
        // In `ordered`, the last operation that has returned may be lost (order-O1).
        let oldest = marks[0].done.saturating_sub(usize::from(self.mode == Ordered));
        let newest = marks[marks.len() - 1].done;
        let mut belows: Vec<&Arc<Model>> = Vec::new();
        for model in marks.iter().flat_map(|mark| [&mark.live, &mark.durable, &mark.named]) {
            if !belows.iter().any(|known| Arc::ptr_eq(known, model)) {
                belows.push(model);
            }
        }
        for below in belows {
            let hasher = BuildHasherDefault::<DefaultHasher>::new();
            if known.insert(hasher.hash_one((words, Arc::as_ptr(below) as usize, oldest, newest))) {
                self.take_over(&bytes, below, oldest, newest)?;
            }
        }
        Ok(())
    }

    /// Attaches a pool with these bytes over a directory.
    fn take_over(
        &self,
        bytes: &[u8],
        below: &Model,
        oldest: usize,
        newest: usize,
    ) -> std::result::Result<(), String> {
        let image = CrashImage::of(bytes.to_vec());
        let report = bpfs::check(&Sited(&image), &mounted::options(false), &|_, _| {});
        if let Some(problem) = report.map_err(text)?.problems.first() {
            return Err(problem.to_string());
        }
        let pool = mount_with(&image, self.mode, &mount_options())?;
        let fs = Loading::attach(pool, ModelBacking::over(below.clone()));
        let fs = fs.map_err(|e| format!("the pool is not attached again: {e}"))?;
        load_names(&fs).map_err(|e| format!("its names: {e}"))?;
        let found = tree(&fs).map_err(|e| format!("its tree: {e}"))?;
        let legal = &self.trees[oldest..=newest];
        if !legal.contains(&found) {
            let what = diff(&found, &self.trees[newest]).unwrap_or_default();
            return Err(format!("its tree is that of no moment: {what}"));
        }
        fs.write_back_all().map_err(|e| format!("it is not written back: {e}"))?;
        let written = tree(fs.backing()).map_err(|e| format!("the directory: {e}"))?;
        if written != found {
            let what = diff(&written, &found).unwrap_or_default();
            return Err(format!("it was not all written back: {what}"));
        }
        Ok(())
    }

    /// Checks the directory at each mark (caches-J3).
    fn check_usable(&self) -> std::result::Result<(), String> {
        let first = files(&self.marks[0].live).map_err(text)?;
        let mut before = [first.clone(), first.clone(), first.clone()];
        for (i, mark) in self.marks.iter().enumerate() {
            // The call in flight may have changed the pool.
            let newest = (mark.done + 1).min(self.trees.len() - 1);
            let trees = &self.trees[..=newest];
            let contents = &self.contents[mark.done.saturating_sub(RECENT)..=newest];
            let models = [&mark.live, &mark.durable, &mark.named];
            for (model, before) in models.into_iter().zip(&mut before) {
                let now = files(model).map_err(text)?;
                let stays = |path: &&String| {
                    trees.iter().all(|tree| tree.nodes().contains_key(path.as_bytes()))
                };
                if let Some(path) = first.keys().filter(stays).find(|path| !now.contains_key(*path))
                {
                    return Err(format!("call {i}: the directory has lost {path}"));
                }
                for (path, (ino, content)) in &now {
                    let is_new = before.get(path).is_none_or(|(other, _)| other != ino);
                    if is_new && !contents.iter().any(|known| known.get(path) == Some(content)) {
                        return Err(format!("call {i}: {path} shows what no program has written"));
                    }
                }
                *before = now;
            }
        }
        Ok(())
    }
}

/// Returns the files of a directory and of those in it, with their inodes and contents. Leaves out
/// private names.
fn files(fs: &Model) -> Result<BTreeMap<String, (Ino, Vec<u8>)>> {
    let (mut all, mut pending) = (BTreeMap::new(), vec![(String::new(), ROOT)]);
    while let Some((path, dir)) = pending.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, &mut |e| {
            if !matches!(e.name, b"." | b"..") && !e.name.starts_with(PRIVATE) {
                names.push((e.name.to_vec(), e.ino, e.kind));
            }
            true
        })?;
        for (name, ino, kind) in names {
            let slash = if path.is_empty() { "" } else { "/" };
            let path = format!("{path}{slash}{}", String::from_utf8_lossy(&name));
            match kind {
                FileKind::Dir => pending.push((path, ino)),
                FileKind::File => _ = all.insert(path, (ino, read(fs, ino)?)),
                _ => {}
            }
        }
    }
    Ok(all)
}

/// Returns the contents of files by their paths.
fn contents_of(fs: &Model) -> std::result::Result<BTreeMap<String, Vec<u8>>, String> {
    let files = files(fs).map_err(text)?.into_iter();
    Ok(files.map(|(path, (_, content))| (path, content)).collect())
}

/// Loads all names. Then no file has absent links, which a crash may have brought back
/// ([`Backed::finish_links`]).
fn load_names<P: Backed, B: Backing>(fs: &Loading<P, B>) -> Result<()> {
    let mut pending = vec![ROOT];
    while let Some(dir) = pending.pop() {
        fs.readdir(dir, 0, &mut |e| {
            let is_inside = e.kind == FileKind::Dir && !matches!(e.name, b"." | b"..");
            pending.extend(is_inside.then_some(e.ino));
            true
        })?;
    }
    let mut linked = Vec::new();
    fs.pool().each_inode(&mut |ino, residence| {
        linked.extend((residence.absent_links > 0).then_some(ino));
    })?;
    linked.into_iter().try_for_each(|ino| fs.pool().finish_links(ino))
}
