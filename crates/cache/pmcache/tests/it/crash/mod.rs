//! Tests power failures and killed processes at every boundary: before each change of the pool,
//! which is atomic and durable on return, and before each call to the backing store. An attachment
//! of the state must have the acknowledged data, and no other.
//!
//! A power failure leaves the backing store as it was last synced, or with the first calls since
//! then. Sometimes a second failure occurs while the state of the first is attached, and a third,
//! or one call to the store fails meanwhile. In some runs calls to the store also fail while the
//! cache is used.

mod known;
mod states;

use crate::common::{Below, content, mount, options};
use backing::Backing;
use backing::model::ModelBacking;
use bpfs::Bpfs;
use known::{File, Known, Meta, USER};
use pmcache::{Cache, CacheOptions, Mode};
use pmem::Region;
use rng::Rng;
use states::{Left, attach_with_failure, bytes_of, crashes_while_attaching, with_old_data};
use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher as _};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::model::Model;
use vfs::{
    Caller, Delegations, Errno, Fallocate, FileSystem, Ino, Mappings, NewKind, NewNode, Openings,
    ROOT, RenameFlags, SetAttr, SetTime, Timestamp,
};

const POOL: u64 = 4 << 20;
const NAMES: u64 = 5;
/// A second crash follows at every boundary with a multiple of this number.
const SECOND_EVERY: u64 = 73;
/// A third crash follows at every boundary with a multiple of this number, at some steps.
const THIRD_EVERY: u64 = 4 * SECOND_EVERY;
/// The third crash takes every state of this step width that two crashes leave, and likewise of its
/// own steps.
const THIRD_STEP: usize = 17;
/// The store fails while a state is attached, at every boundary with a multiple of this number.
const FAILURE_EVERY: u64 = 31;
/// The number of calls of an attachment that fail, one in each.
const FAILING_CALLS: u64 = 24;
/// In a run with failures, one of this number of steps may meet one.
const STEP_FAILS: u64 = 4;

/// A pool that calls a function before each change.
struct Watched {
    pool: Arc<Bpfs<Region>>,
    tell: Arc<dyn Fn() + Send + Sync>,
}

impl Watched {
    fn told(&self) -> &Bpfs<Region> {
        (self.tell)();
        &self.pool
    }
}

impl FileSystem for Watched {
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, lookup, forget,
        getattr, readlink, readdir, read, drop_privileges, seek, fsync, sync, getxattr, listxattr,
        statfs);
    vfs::forward!(self => self.told(); setattr, create, tmpfile, unlink, rmdir, link, rename,
        rename_whiteout, write, append, fallocate, copy_range, setxattr, removexattr);
}

impl Mappings for Watched {}

impl Openings for Watched {}

impl Delegations for Watched {}

/// The choice of the calls to the store that fail.
#[derive(Default)]
struct Failures {
    /// The number of calls that succeed before the failure; negative: no call fails.
    calls_before: AtomicI64,
    /// Whether all calls after that fail, too.
    is_outage: AtomicBool,
    /// Whether a call has failed.
    has_failed: AtomicBool,
}

impl Failures {
    fn next(&self) -> Option<Errno> {
        let before = self.calls_before.load(Relaxed);
        if before < 0 {
            return None;
        }
        let is_last = before == 0 && self.is_outage.load(Relaxed);
        self.calls_before.store(if is_last { 0 } else { before - 1 }, Relaxed);
        if before > 0 {
            return None;
        }
        self.has_failed.store(true, Relaxed);
        Some(Errno::IO)
    }

    /// Sometimes makes one of the next calls fail.
    fn begin(&self, rng: &mut Rng) {
        if rng.below(STEP_FAILS) == 0 {
            self.is_outage.store(rng.below(2) == 0, Relaxed);
            self.calls_before.store(rng.below(12) as i64, Relaxed);
        }
    }

    fn end(&self) {
        self.calls_before.store(-1, Relaxed);
    }
}

fn letter(name: usize) -> [u8; 1] {
    [b'a' + name as u8]
}

/// One run: a cache and its expected state.
struct Run {
    cache: Cache<Watched, Below>,
    below: Below,
    known: Arc<Mutex<Known>>,
    is_watching: Arc<AtomicBool>,
    points: Arc<AtomicU64>,
    failures: Arc<Failures>,
    /// Decides which steps may meet a failure; `None`: no step does.
    failing: Option<Mutex<Rng>>,
    mode: Mode,
}

/// Returns the states after one more crash, after two, and after a failure of the store meanwhile.
fn further(first: &Left, point: u64, known: &Known, mode: Mode) -> Vec<(String, Left)> {
    let mut left = Vec::new();
    if point.is_multiple_of(SECOND_EVERY) {
        let second = crashes_while_attaching(first, mode);
        if point.is_multiple_of(THIRD_EVERY) {
            for second in second.iter().step_by(THIRD_STEP) {
                let third = crashes_while_attaching(second, mode).into_iter().step_by(THIRD_STEP);
                left.extend(third.map(|left| ("three crashes".to_owned(), left)));
            }
        }
        left.extend(second.into_iter().map(|left| ("two crashes".to_owned(), left)));
    }
    if point.is_multiple_of(FAILURE_EVERY) {
        let call = 1 + point / FAILURE_EVERY % FAILING_CALLS;
        match attach_with_failure(first, known, mode, call) {
            Ok(after) => left.extend(
                after.into_iter().map(|left| (format!("call {call} of attaching failed"), left)),
            ),
            Err(wrong) => panic!("{}: {wrong}", known.step),
        }
    }
    left
}

impl Run {
    fn new(
        seed: u64,
        mode: Mode,
        fails: bool,
        limits: impl Fn(CacheOptions) -> CacheOptions,
    ) -> Self {
        let region = Region::anonymous(POOL).unwrap();
        bpfs::format(&region, &pool::FormatOptions::default()).unwrap();
        let pool = Arc::new(mount(region));
        let below = Below(Arc::new(ModelBacking::new()));
        let known =
            Arc::new(Mutex::new(Known { names: vec![None; NAMES as usize], ..Known::default() }));
        let is_watching = Arc::new(AtomicBool::new(false));
        let points = Arc::new(AtomicU64::new(0));
        let tell: Arc<dyn Fn() + Send + Sync> = {
            let (pool, known) = (pool.clone(), known.clone());
            // A weak reference, as the backing holds this function.
            let model = Arc::downgrade(&below.0);
            let (is_watching, points) = (is_watching.clone(), points.clone());
            let history = Mutex::<states::History>::default();
            Arc::new(move || {
                let Some(below) = model.upgrade().filter(|_| is_watching.load(Relaxed)) else {
                    return;
                };
                let point = points.fetch_add(1, Relaxed);
                let bytes = Rc::new(bytes_of(&pool));
                let known = known.lock().unwrap();
                let state = |what: &str, model: Model| (what.to_owned(), bytes.clone(), model);
                let killed = || below.model().after_kill();
                let lost = || below.model().after_crash();
                let mut states = vec![state("killed", killed()), state("power failure", lost())];
                for number in 0..2 {
                    let number = (seed << 32 | point) << 1 | number;
                    let some = || history.lock().unwrap().note(&below.model(), number);
                    states.push(state("power failure, some was done", some()));
                    let names = with_old_data(some(), below.model().synced());
                    states.push(state("power failure, names were stored", names));
                }
                if point.is_multiple_of(SECOND_EVERY) || point.is_multiple_of(FAILURE_EVERY) {
                    for first in [lost(), killed()] {
                        let first = (bytes.to_vec(), first);
                        let more = further(&first, point, &known, mode).into_iter();
                        states
                            .extend(more.map(|(what, (pool, model))| (what, Rc::new(pool), model)));
                    }
                }
                // Many states are equal, above all if the backing store was not changed since its
                // last sync.
                let mut judged = HashSet::new();
                for (what, pool, model) in states {
                    let mut hasher = DefaultHasher::new();
                    hasher.write(&model.save());
                    if !judged.insert((Rc::as_ptr(&pool), hasher.finish())) {
                        continue;
                    }
                    if let Err(wrong) = known.judge(&pool, model, mode) {
                        let step = &known.step;
                        panic!(
                            "seed {seed}, {mode}, point {point}, during {step}, {what}: {wrong}"
                        );
                    }
                }
            })
        };
        for name in 0..2u64 {
            let ino = crate::common::file(&below, &[b'a' + name as u8]);
            let data: Vec<u8> = (0..30_000 + name * 400_000).map(|i| (i / 100 + 1) as u8).collect();
            below.write(ino, 0, &data).unwrap();
            below.sync().unwrap();
            let mut known = known.lock().unwrap();
            let identity = below.identity(ino).unwrap().0;
            known.names[name as usize] = Some(name as usize);
            let meta = Meta::of(&below, ino).unwrap();
            known.files.push(File { is_durable: true, ..File::new(identity, meta, data) });
        }
        let failures = Arc::new(Failures::default());
        failures.end();
        let (told, failing) = (tell.clone(), failures.clone());
        below.fail_where(move |_| {
            told();
            failing.next()
        });
        let watched = Watched { pool, tell };
        let options = limits(CacheOptions { mode, ..options() });
        let cache = Cache::attach(watched, below.clone(), "/below", options).unwrap();
        let failing = fails.then(|| Mutex::new(Rng::new(!seed)));
        Self { cache, below, known, is_watching, points, failures, failing, mode }
    }

    /// Notes the expected state, runs the call, and notes that it has returned.
    fn step(
        &self,
        step: String,
        note: impl FnOnce(&mut Known),
        call: impl FnOnce() -> vfs::Result<()>,
        done: impl FnOnce(&mut Known),
    ) {
        {
            let mut known = self.known.lock().unwrap();
            known.step += &format!("; {step}");
            note(&mut known);
        }
        if let Some(failing) = &self.failing {
            self.failures.begin(&mut failing.lock().unwrap());
        }
        self.is_watching.store(true, Relaxed);
        let result = call();
        self.is_watching.store(false, Relaxed);
        self.failures.end();
        match result {
            Ok(()) => {
                let mut known = self.known.lock().unwrap();
                done(&mut known);
                for file in &mut known.files {
                    file.now = file.then.take().unwrap_or_else(|| std::mem::take(&mut file.now));
                }
            }
            Err(Errno::IO) if self.failures.has_failed.load(Relaxed) => self.look_again(),
            Err(err) => panic!("{step}: {err}"),
        }
    }

    /// Finds out what a failed call has done.
    fn look_again(&self) {
        let mut known = self.known.lock().unwrap();
        known.step += " (failed)";
        for name in 0..NAMES as usize {
            known.names[name] = None;
            let Ok(entry) = self.cache.lookup(ROOT, &letter(name)) else { continue };
            let identity = self.below.identity(entry.ino).unwrap().0;
            let meta = Meta::of(&self.cache, entry.ino).unwrap();
            let has = content(&self.cache, entry.ino).unwrap();
            self.cache.forget(entry.ino, 1);
            let known_file = known.files.iter().position(|file| file.identity == identity);
            let file = known_file.unwrap_or_else(|| {
                known.files.push(File::new(identity, meta.clone(), has.clone()));
                known.files.len() - 1
            });
            known.names[name] = Some(file);
            let step = known.step.clone();
            let file = &mut known.files[file];
            file.compare("after a failure", &has).unwrap_or_else(|wrong| panic!("{step}: {wrong}"));
            assert!(file.metas.contains(&meta), "{step}: {meta:?}");
            file.metas.push(meta);
            (file.now, file.then, file.is_gone) = (has, None, false);
        }
        let Known { files, names, .. } = &mut *known;
        for (i, file) in files.iter_mut().enumerate() {
            file.is_gone |= !names.contains(&Some(i));
            file.then = None;
        }
    }

    /// Changes the content of a file.
    fn change(
        &self,
        step: &str,
        name: usize,
        to: impl FnOnce(&mut Vec<u8>),
        call: impl FnOnce(Ino) -> vfs::Result<()>,
    ) {
        let file = self.known.lock().unwrap().names[name].unwrap();
        let ino = self.cache.lookup(ROOT, &letter(name)).unwrap().ino;
        let note = |known: &mut Known| {
            let mut then = known.files[file].now.clone();
            to(&mut then);
            known.files[file].then = Some(then);
        };
        let is_content = ["write", "trunc", "punch"].iter().any(|kind| step.starts_with(kind));
        let is_journal = self.mode == Mode::Journal && is_content;
        self.step(
            format!("{step} {name}"),
            note,
            || call(ino),
            |known| known.files[file].is_durable |= is_journal,
        );
        self.cache.forget(ino, 1);
    }

    /// Returns the file of a name.
    fn file(&self, name: usize) -> Option<usize> {
        self.known.lock().unwrap().names[name]
    }

    fn create(&self, name: usize) {
        let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
        let made = Cell::new(None);
        let call = || {
            let made_now = self.cache.create(&Caller::ROOT, ROOT, &letter(name), &node)?;
            made.set(Some(made_now.ino));
            Ok(())
        };
        let done = |known: &mut Known| {
            let ino = made.get().unwrap();
            let identity = self.below.identity(ino).unwrap().0;
            let meta = Meta { perm: 0o644, uid: 0, user: None };
            known.names[name] = Some(known.files.len());
            known.files.push(File::new(identity, meta, vec![]));
            // A file without a reference is not known to be new.
            if name > 0 {
                known.held.push(ino);
            } else {
                self.cache.forget(ino, 1);
            }
        };
        self.step(format!("create {name}"), |_| (), call, done);
    }

    fn write(&self, name: usize, at: u64, data: &[u8]) {
        let to = |then: &mut Vec<u8>| {
            then.resize(then.len().max(at as usize + data.len()), 0);
            then[at as usize..at as usize + data.len()].copy_from_slice(data);
        };
        self.change(&format!("write {at}+{}", data.len()), name, to, |ino| {
            self.cache.write(ino, at, data)
        });
    }

    fn unlink(&self, name: usize) {
        let file = self.file(name).unwrap();
        let going = |known: &mut Known| known.files[file].is_gone = true;
        let done = |known: &mut Known| known.names[name] = None;
        let call = || self.cache.unlink(ROOT, &letter(name));
        self.step(format!("unlink {name}"), going, call, done);
    }

    /// Renames a file. The file that had the new name is removed then, or gets the old name with
    /// `EXCHANGE`.
    fn rename(&self, name: usize, to: usize, flags: RenameFlags) {
        let (moved, other) = (self.file(name).unwrap(), self.file(to));
        let swaps = flags.contains(RenameFlags::EXCHANGE);
        let call = || self.cache.rename((ROOT, &letter(name)), (ROOT, &letter(to)), flags);
        let going = |known: &mut Known| {
            known.files[moved].durable_name = None;
            if let Some(other) = other {
                known.files[other].durable_name = None;
                known.files[other].is_gone = !swaps;
            }
        };
        let done = |known: &mut Known| {
            known.names[to] = Some(moved);
            known.names[name] = other.filter(|_| swaps);
        };
        let what = if swaps { "swap" } else { "rename" };
        self.step(format!("{what} {name} to {to}"), going, call, done);
    }

    fn fsync(&self, name: usize) {
        let file = self.file(name).unwrap();
        let ino = self.cache.lookup(ROOT, &letter(name)).unwrap().ino;
        let durable = |known: &mut Known| {
            let file = &mut known.files[file];
            file.is_durable = true;
            file.metas.drain(..file.metas.len() - 1);
        };
        self.step(format!("fsync {name}"), |_| (), || self.cache.fsync(ino), durable);
        self.cache.forget(ino, 1);
    }

    fn fsync_directory(&self) {
        let durable = |known: &mut Known| {
            let Known { files, names, .. } = known;
            for (name, file) in names.iter().enumerate() {
                let Some(file) = file.map(|file| &mut files[file]) else { continue };
                (file.is_durable, file.durable_name) = (true, Some(name));
            }
            for file in files {
                file.is_gone_for_good = file.is_gone;
            }
        };
        let call = || self.cache.fsync(ROOT);
        self.step("fsync of the directory".to_owned(), |_| (), call, durable);
    }

    /// Gives a name to another file, as programs do: saves a file by a new one, swaps two files, or
    /// removes a file and reuses its name. With syncs in between, or without.
    fn give_name_away(&self, rng: &mut Rng, name: usize) {
        let others = |is_free: bool| {
            let other = |other: &usize| *other != name && self.file(*other).is_none() == is_free;
            (0..NAMES as usize).filter(other).collect::<Vec<_>>()
        };
        let mut pick = |names: Vec<usize>| {
            (!names.is_empty()).then(|| names[rng.below(names.len() as u64) as usize])
        };
        let (free, taken) = (pick(others(true)), pick(others(false)));
        let data = vec![rng.below(255) as u8 + 1; 1 + rng.below(9000) as usize];
        let [syncs_file, syncs_directory] = [0; 2].map(|_| rng.below(2) == 0);
        match (rng.below(4), free, taken) {
            (0, Some(temporary), _) => {
                self.create(temporary);
                if self.file(temporary).is_some() {
                    self.write(temporary, 0, &data);
                }
                if syncs_file && self.file(temporary).is_some() {
                    self.fsync(temporary);
                }
                if self.file(temporary).is_some() {
                    self.rename(temporary, name, RenameFlags::empty());
                }
            }
            (1, _, Some(other)) => self.rename(name, other, RenameFlags::EXCHANGE),
            (2, _, Some(other)) => {
                self.unlink(name);
                if syncs_directory {
                    self.fsync_directory();
                }
                self.rename(other, name, RenameFlags::empty());
            }
            _ => {
                self.unlink(name);
                if self.file(name).is_none() {
                    self.create(name);
                }
                if self.file(name).is_some() {
                    self.write(name, 0, &data);
                }
            }
        }
        if syncs_file && self.file(name).is_some() {
            self.fsync(name);
        }
        if syncs_directory {
            self.fsync_directory();
        }
    }

    fn random(&self, rng: &mut Rng) {
        let name = rng.below(NAMES) as usize;
        let Some(file) = self.file(name) else { return self.create(name) };
        let size = self.known.lock().unwrap().files[file].now.len() as u64;
        let cache = &self.cache;
        // Makes removals, syncs of names, and changes of attributes more frequent.
        let kind = match rng.below(28) {
            18 | 19 => 11,
            20 => 14,
            21 => 9,
            kind => kind,
        };
        match kind {
            0..=4 => {
                let at = if rng.below(3) == 0 { size } else { rng.below(size + 10_000) };
                let data = vec![rng.below(255) as u8 + 1; rng.below(20_000) as usize + 1];
                self.write(name, at.min(700_000), &data);
            }
            5 | 6 => {
                let to = match rng.below(3) {
                    0 => 0,
                    1 => rng.below(size + 1),
                    _ => (size + rng.below(20_000)).min(700_000),
                };
                let set = SetAttr { size: Some(to), ..SetAttr::default() };
                let call = |ino| cache.setattr(&Caller::ROOT, ino, &set).map(drop);
                self.change(
                    &format!("truncate {to}"),
                    name,
                    |then| then.resize(to as usize, 0),
                    call,
                );
            }
            7 => {
                let start = rng.below(size + 1);
                let len = if rng.below(2) == 0 { 1 + rng.below(30_000) } else { 300_000 };
                let end = (start + len).min(size) as usize;
                let zero = |then: &mut Vec<u8>| then[start as usize..end].fill(0);
                self.change(&format!("punch {start}+{len}"), name, zero, |ino| {
                    cache.fallocate(ino, Fallocate::PunchHole, start, len)
                });
            }
            8 => {
                let at = rng.below(size + 1);
                self.change(
                    "read",
                    name,
                    |_| (),
                    |ino| cache.read(ino, at, &mut vec![0; 50_000]).map(drop),
                );
            }
            9 => self.fsync(name),
            10 => {
                let to = rng.below(NAMES) as usize;
                if to != name {
                    self.rename(name, to, RenameFlags::empty());
                }
            }
            11 => self.unlink(name),
            12 => {
                let time = Some(SetTime::At(Timestamp(rng.below(1 << 30) as i64)));
                let set = SetAttr { mtime: time, ..SetAttr::default() };
                self.change(
                    "utimes",
                    name,
                    |_| (),
                    |ino| cache.setattr(&Caller::ROOT, ino, &set).map(drop),
                );
            }
            13 => self.step("maintain".to_owned(), |_| (), || cache.maintain().map(drop), |_| ()),
            14 | 15 => self.fsync_directory(),
            16 => self.step("drain".to_owned(), |_| (), || cache.drain_all(&|_| {}), |_| ()),
            24.. => self.give_name_away(rng, name),
            _ => self.set_meta(rng, name, file),
        }
    }

    /// Changes permissions, the owner or the extended attribute of a file.
    fn set_meta(&self, rng: &mut Rng, name: usize, file: usize) {
        let mut meta = self.known.lock().unwrap().files[file].metas.last().unwrap().clone();
        let set = |set: SetAttr, ino| self.cache.setattr(&Caller::ROOT, ino, &set).map(drop);
        let number = rng.below(8) as u32;
        let call: Box<dyn FnOnce(Ino) -> vfs::Result<()> + '_> = match rng.below(4) {
            0 => {
                meta.perm = 0o600 + number;
                Box::new(move |ino| {
                    set(SetAttr { perm: Some(0o600 + number), ..SetAttr::default() }, ino)
                })
            }
            1 => {
                meta.uid = number;
                Box::new(move |ino| set(SetAttr { uid: Some(number), ..SetAttr::default() }, ino))
            }
            2 if meta.user.is_some() => {
                meta.user = None;
                Box::new(|ino| self.cache.removexattr(ino, USER))
            }
            _ => {
                let value = vec![number as u8; 10 + number as usize];
                meta.user = Some(value.clone());
                Box::new(move |ino| self.cache.setxattr(ino, USER, &value, vfs::SetXattr::Any))
            }
        };
        let ino = self.cache.lookup(ROOT, &letter(name)).unwrap().ino;
        let step = format!("attributes of {name}: {meta:?}");
        let note = |known: &mut Known| known.files[file].metas.push(meta);
        self.step(step, note, || call(ino), |_| ());
        self.cache.forget(ino, 1);
    }
}

/// Runs `count` seeds from `first` on, times the factor in the environment.
fn run(
    first: u64,
    count: u64,
    steps: usize,
    (mode, fails): (Mode, bool),
    limits: impl Fn(CacheOptions) -> CacheOptions,
) {
    let times: u64 = std::env::var("KEEPSTONE_TIMES").map_or(1, |times| times.parse().unwrap());
    let mut points = 0;
    for seed in first..first + count * times {
        let run = Run::new(seed, mode, fails, &limits);
        let mut rng = Rng::new(seed);
        for _ in 0..steps {
            run.random(&mut rng);
        }
        points += run.points.load(Relaxed);
    }
    assert!(points > 100, "{points}");
}

#[test]
fn what_was_written_is_there_after_any_crash() {
    run(0, 2, 40, (Mode::Journal, false), |options| options);
}

#[test]
fn what_was_synced_is_there_in_every_mode() {
    run(200, 1, 40, (Mode::Writeback, false), |options| options);
    run(300, 1, 40, (Mode::Ordered, false), |options| options);
}

/// Hardly any data may be unwritten here.
#[test]
fn it_is_there_where_much_is_written_back() {
    run(400, 2, 40, (Mode::Journal, false), |options| CacheOptions {
        cap: 64 << 10,
        high: 32 << 10,
        low: 8 << 10,
        ..options
    });
    let through = |options| CacheOptions { write_through: true, ..options };
    run(500, 1, 30, (Mode::Journal, false), through);
}

#[test]
fn it_is_there_where_the_store_fails_meanwhile() {
    run(600, 2, 40, (Mode::Journal, true), |options| options);
    run(700, 1, 40, (Mode::Writeback, true), |options| options);
}
