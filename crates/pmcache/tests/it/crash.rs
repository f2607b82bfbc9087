//! Power failures and killed processes at every boundary: before each change of the pool, which is atomic and durable on return,
//! and before each call to the file system below. What is attached there has what was acknowledged, and nothing else.
//!
//! A power failure leaves below what was last synced, or that and some of what was done since: the first so many calls. Now and
//! then a second one comes while what the first has left is attached.

use crate::common::{Below, content, mount, options};
use backing::Backing;
use backing::model::ModelBacking;
use bpfs::Bpfs;
use pmcache::{Cache, Mode, Options};
use pmem::{Medium as _, Region};
use rng::Rng;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher as _};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::model::Model;
use vfs::{
    Caller, Fallocate, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, SetAttr, SetTime,
    Timestamp,
};

const POOL: u64 = 4 << 20;
const NAMES: u64 = 5;
/// At one boundary of so many a second crash follows.
const SECOND_EVERY: u64 = 37;

/// Tells before each change of the pool.
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
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, lookup, forget, getattr, readlink, readdir, read,
        drop_privileges, seek, fsync, sync, getxattr, listxattr, statfs);
    vfs::forward!(self => self.told(); setattr, create, tmpfile, unlink, rmdir, link, rename, rename_whiteout,
        write, append, fallocate,
        copy_range, setxattr, removexattr);
}

/// Permissions, owner, and an extended attribute.
#[derive(Clone, Debug, PartialEq)]
struct Meta {
    perm: u32,
    uid: u32,
    user: Option<Vec<u8>>,
}

/// The extended attribute.
const USER: &[u8] = b"user.x";

impl Meta {
    fn of(fs: &impl FileSystem, ino: Ino) -> vfs::Result<Self> {
        let attr = fs.getattr(ino)?;
        let user = match fs.getxattr(ino, USER) {
            Err(vfs::Errno::NODATA) => None,
            user => Some(user?),
        };
        Ok(Self { perm: attr.perm, uid: attr.uid, user })
    }
}

/// What is known of a file.
#[derive(Clone)]
struct File {
    identity: Vec<u8>,
    /// The attributes that it may have: those it has had since it was synced, and is to get.
    metas: Vec<Meta>,
    /// What it has been told to have.
    now: Vec<u8>,
    /// What it has when what is under way is done.
    then: Option<Vec<u8>>,
    /// Whether it has to be there after a power failure.
    is_durable: bool,
    /// Whether its last name is gone, or going.
    is_gone: bool,
    /// Whether that is durable.
    is_gone_for_good: bool,
    /// The name that it durably has.
    durable_name: Option<usize>,
}

impl File {
    fn new(identity: Vec<u8>, meta: Meta, now: Vec<u8>) -> Self {
        Self {
            identity,
            metas: vec![meta],
            now,
            then: None,
            is_durable: false,
            is_gone: false,
            is_gone_for_good: false,
            durable_name: None,
        }
    }
}

#[derive(Default)]
struct Known {
    files: Vec<File>,
    /// Which of them has which name.
    names: Vec<Option<usize>>,
    /// References to files, new ones above all.
    held: Vec<Ino>,
    /// What is being done.
    step: String,
}

/// One run: a cache and what it should have.
struct Run {
    cache: Cache<Watched, Below>,
    below: Below,
    known: Arc<Mutex<Known>>,
    is_watching: Arc<AtomicBool>,
    points: Arc<AtomicU64>,
    mode: Mode,
}

fn bytes_of(pool: &Bpfs<Region>) -> Vec<u8> {
    let medium = pool.medium();
    let mut bytes = vec![0; medium.len() as usize];
    medium.read(0, &mut bytes);
    bytes
}

/// States of the file system below since it was last synced.
#[derive(Default)]
struct History {
    durable: Vec<u8>,
    since: Vec<Vec<u8>>,
}

impl History {
    /// Notes how it is now, and gives one of them.
    fn note(&mut self, model: &Model, number: u64) -> Model {
        let (now, durable) = (model.save(), model.after_crash().save());
        if durable != self.durable {
            *self = Self { durable, since: Vec::new() };
        }
        if self.since.last() != Some(&now) {
            self.since.push(now);
        }
        let chosen = Rng::new(number).below(self.since.len() as u64);
        load(&self.since[chosen as usize])
    }
}

/// These names and files, but with the content that was synced last.
fn with_old_data(model: Model, synced: Model) -> Model {
    let over = |model| Below(Arc::new(ModelBacking::over(model)));
    let (now, synced) = (over(model), over(synced));
    for name in names_of(&now) {
        let ino = now.lookup(ROOT, &name).unwrap().ino;
        let attr = now.getattr(ino).unwrap();
        let (mtime, ctime) = (Some(SetTime::At(attr.mtime)), Some(attr.ctime));
        let is_old = synced.identity(ino).ok() == now.identity(ino).ok();
        let old = if is_old { content(&synced, ino).unwrap() } else { Vec::new() };
        let set = |set: SetAttr| now.setattr(&Caller::ROOT, ino, &set).unwrap();
        set(SetAttr { size: Some(0), ..SetAttr::default() });
        now.write(ino, 0, &old).unwrap();
        set(SetAttr { size: Some(old.len() as u64), mtime, ctime, ..SetAttr::default() });
    }
    let saved = now.model().save();
    load(&saved)
}

/// As it was when it was saved, all of it durable.
fn load(saved: &[u8]) -> Model {
    let model = Model::load(saved, Timestamp::now).unwrap();
    model.after_crash()
}

/// What a second crash leaves at each step of attaching what a first one has left: pools, and what is below.
fn crashes_while_attaching(pool: &[u8], model: Model, mode: Mode) -> Vec<(Vec<u8>, Model)> {
    let region = Region::anonymous(pool.len() as u64).unwrap();
    region.write(0, pool);
    let pool = Arc::new(mount(region));
    let below = Below(Arc::new(ModelBacking::over(model)));
    let states = Arc::new(Mutex::new(Vec::new()));
    let tell: Arc<dyn Fn() + Send + Sync> = {
        let (pool, states, model) = (pool.clone(), states.clone(), Arc::downgrade(&below.0));
        Arc::new(move || {
            let Some(below) = model.upgrade() else { return };
            let mut states = states.lock().unwrap();
            let (now, synced) = (below.model().after_kill(), below.model().after_crash());
            let names = with_old_data(load(&now.save()), below.model().synced());
            states.extend([now, synced, names].map(|model| (bytes_of(&pool), model)));
        })
    };
    let told = tell.clone();
    below.fail_where(move |_| {
        told();
        None
    });
    let watched = Watched { pool, tell };
    drop(Cache::attach(watched, below.clone(), "/below", Options { mode, ..options() }).unwrap());
    below.heal();
    std::mem::take(&mut *states.lock().unwrap())
}

fn reattach(pool: &[u8], model: Model, mode: Mode) -> (crate::common::Tested, Below) {
    let region = Region::anonymous(pool.len() as u64).unwrap();
    region.write(0, pool);
    let below = Below(Arc::new(ModelBacking::over(model)));
    let cache =
        Cache::attach(mount(region), below.clone(), "/below", Options { mode, ..options() });
    (cache.unwrap(), below)
}

fn names_of(below: &Below) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut emit = |entry: &vfs::DirEntry<'_>| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        true
    };
    below.readdir(ROOT, 0, &mut emit).unwrap();
    names
}

/// Attaches what is left, and judges it.
fn judge(pool: &[u8], model: Model, known: &Known, mode: Mode) -> Result<(), String> {
    let (cache, below) = reattach(pool, model, mode);
    let mut seen = Vec::new();
    for name in names_of(&below) {
        let shown = String::from_utf8_lossy(&name).into_owned();
        let ino = cache.lookup(ROOT, &name).map_err(|err| format!("{shown}: lookup: {err}"))?.ino;
        let identity = below.identity(ino).unwrap().0;
        let got = content(&cache, ino).map_err(|err| format!("{shown}: read: {err}"))?;
        let by_identity = known.files.iter().position(|file| file.identity == identity);
        // What was made again has another identity, and its name.
        let index = by_identity.or(known.names[usize::from(name[0] - b'a')]);
        match index.map(|index| &known.files[index]) {
            Some(file) if file.is_gone_for_good => {
                return Err(format!("{shown}: a removed file is back"));
            }
            Some(file) => {
                compare(&shown, &got, file)?;
                let meta = Meta::of(&cache, ino).map_err(|err| format!("{shown}: stat: {err}"))?;
                if !file.metas.contains(&meta) {
                    return Err(format!("{shown}: {meta:?} is none of {:?}", file.metas));
                }
            }
            None if got.is_empty() => {}
            None => return Err(format!("{shown}: a new file has {} bytes", got.len())),
        }
        let grown = got.len() as u64 + 9000;
        let set = SetAttr { size: Some(grown), ..SetAttr::default() };
        cache.setattr(&Caller::ROOT, ino, &set).map_err(|err| format!("{shown}: grow: {err}"))?;
        let more = content(&cache, ino).map_err(|err| format!("{shown}: read: {err}"))?;
        if more[..got.len()] != got[..] || more[got.len()..].iter().any(|byte| *byte != 0) {
            return Err(format!(
                "{shown}: grown from {}, it has something else than zeros",
                got.len()
            ));
        }
        seen.push((name, ino, index, more));
    }
    for (i, file) in known.files.iter().enumerate() {
        let has_name =
            |name: &[u8]| file.durable_name.is_none_or(|durable| name == [b'a' + durable as u8]);
        let is_seen = seen.iter().any(|(name, _, index, _)| *index == Some(i) && has_name(name));
        if file.is_durable && !file.is_gone && !is_seen {
            return Err("a file is gone".to_owned());
        }
    }
    let troubles = cache.status().troubles;
    // In the other modes what nobody has synced may be lost, and is told of.
    if mode == Mode::Journal && !troubles.is_empty() {
        return Err(format!("{troubles:?}"));
    }
    cache.drain_all(&|_| {}).map_err(|err| format!("drain: {err}"))?;
    if cache.status().dirty_bytes != 0 {
        return Err("something is left to be written back".to_owned());
    }
    for (name, ino, _, shown) in &seen {
        if content(&below, *ino).unwrap() != *shown {
            return Err(format!("{}: below is something else", String::from_utf8_lossy(name)));
        }
    }
    Ok(())
}

fn compare(name: &str, got: &[u8], file: &File) -> Result<(), String> {
    if got == file.now || file.then.as_ref().is_some_and(|then| got == *then) {
        return Ok(());
    }
    let differs = got.iter().zip(&file.now).position(|(a, b)| a != b);
    let then = file.then.as_ref().map(Vec::len);
    Err(format!(
        "{name}: {} bytes instead of {}, or {then:?}; first difference {differs:?}",
        got.len(),
        file.now.len()
    ))
}

impl Run {
    fn new(seed: u64, mode: Mode, limits: impl Fn(Options) -> Options) -> Self {
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
            // Not the whole backing, which holds this.
            let model = Arc::downgrade(&below.0);
            let (is_watching, points) = (is_watching.clone(), points.clone());
            let history = Mutex::<History>::default();
            Arc::new(move || {
                let Some(below) = model.upgrade().filter(|_| is_watching.load(Relaxed)) else {
                    return;
                };
                let point = points.fetch_add(1, Relaxed);
                let bytes = Rc::new(bytes_of(&pool));
                let known = known.lock().unwrap();
                let killed = below.model().after_kill();
                let mut states = vec![("killed", bytes.clone(), killed)];
                let lost = || below.model().after_crash();
                states.push(("power failure", bytes.clone(), lost()));
                for number in 0..2 {
                    let number = (seed << 32 | point) << 1 | number;
                    let some = || history.lock().unwrap().note(&below.model(), number);
                    states.push(("power failure, some was done", bytes.clone(), some()));
                    let names = with_old_data(some(), below.model().synced());
                    states.push(("power failure, names were stored", bytes.clone(), names));
                }
                if point.is_multiple_of(SECOND_EVERY) {
                    let first = [below.model().after_crash(), below.model().after_kill()];
                    let twice = first
                        .into_iter()
                        .flat_map(|model| crashes_while_attaching(&bytes, model, mode))
                        .map(|(pool, model)| ("two crashes", Rc::new(pool), model));
                    states.extend(twice);
                }
                // Many are the same, above all where nothing was done below since it was synced.
                let mut judged = HashSet::new();
                for (what, pool, model) in states {
                    let mut hasher = DefaultHasher::new();
                    hasher.write(&model.save());
                    if !judged.insert((Rc::as_ptr(&pool), hasher.finish())) {
                        continue;
                    }
                    if let Err(wrong) = judge(&pool, model, &known, mode) {
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
        let told = tell.clone();
        below.fail_where(move |_| {
            told();
            None
        });
        let watched = Watched { pool, tell };
        let options = limits(Options { mode, ..options() });
        let cache = Cache::attach(watched, below.clone(), "/below", options).unwrap();
        Self { cache, below, known, is_watching, points, mode }
    }

    /// Notes what will be, does it, and notes that it is.
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
        self.is_watching.store(true, Relaxed);
        let result = call();
        self.is_watching.store(false, Relaxed);
        result.unwrap_or_else(|err| panic!("{step}: {err}"));
        let mut known = self.known.lock().unwrap();
        done(&mut known);
        for file in &mut known.files {
            file.now = file.then.take().unwrap_or_else(|| std::mem::take(&mut file.now));
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
        let ino = self.cache.lookup(ROOT, &[b'a' + name as u8]).unwrap().ino;
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

    fn random(&self, rng: &mut Rng) {
        let name = rng.below(NAMES) as usize;
        let letter = [b'a' + name as u8];
        let file = self.known.lock().unwrap().names[name];
        let Some(file) = file else {
            let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
            let made = std::cell::Cell::new(None);
            let call = || {
                self.cache
                    .create(&Caller::ROOT, ROOT, &letter, &node)
                    .map(|entry| made.set(Some(entry.ino)))
            };
            return self.step(
                format!("create {name}"),
                |_| (),
                call,
                |known| {
                    let identity = self.below.identity(made.get().unwrap()).unwrap().0;
                    let meta = Meta { perm: 0o644, uid: 0, user: None };
                    known.names[name] = Some(known.files.len());
                    known.files.push(File::new(identity, meta, vec![]));
                    // Who is not referenced is not known to be new.
                    if name > 0 {
                        known.held.push(made.get().unwrap());
                    } else {
                        self.cache.forget(made.get().unwrap(), 1);
                    }
                },
            );
        };
        let size = self.known.lock().unwrap().files[file].now.len() as u64;
        let cache = &self.cache;
        // Removals, and syncs of names, oftener, and changes of attributes.
        let kind = match rng.below(24) {
            18 | 19 => 11,
            20 => 14,
            21 => 9,
            kind => kind,
        };
        match kind {
            0..=4 => {
                let at = if rng.below(3) == 0 { size } else { rng.below(size + 10_000) };
                let at = at.min(700_000);
                let data = vec![rng.below(255) as u8 + 1; rng.below(20_000) as usize + 1];
                let to = |then: &mut Vec<u8>| {
                    then.resize(then.len().max(at as usize + data.len()), 0);
                    then[at as usize..at as usize + data.len()].copy_from_slice(&data);
                };
                self.change(&format!("write {at}+{}", data.len()), name, to, |ino| {
                    cache.write(ino, at, &data)
                });
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
            9 => {
                let ino = cache.lookup(ROOT, &letter).unwrap().ino;
                let durable = |known: &mut Known| {
                    let file = &mut known.files[file];
                    file.is_durable = true;
                    file.metas.drain(..file.metas.len() - 1);
                };
                self.step(format!("fsync {name}"), |_| (), || cache.fsync(ino), durable);
                cache.forget(ino, 1);
            }
            10 => {
                let to = rng.below(NAMES) as usize;
                if to == name {
                    return;
                }
                let new = [b'a' + to as u8];
                let call = || cache.rename((ROOT, &letter), (ROOT, &new), RenameFlags::empty());
                let going = |known: &mut Known| {
                    known.files[file].durable_name = None;
                    if let Some(gone) = known.names[to] {
                        known.files[gone].is_gone = true;
                    }
                };
                self.step(format!("rename {name} to {to}"), going, call, |known| {
                    known.names[to] = known.names[name].take();
                });
            }
            11 => {
                let going = |known: &mut Known| known.files[file].is_gone = true;
                let done = |known: &mut Known| known.names[name] = None;
                self.step(format!("unlink {name}"), going, || cache.unlink(ROOT, &letter), done);
            }
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
            14 | 15 => self.step(
                "fsync of the directory".to_owned(),
                |_| (),
                || cache.fsync(ROOT),
                |known| {
                    for (name, file) in known.names.iter().enumerate() {
                        let Some(file) = file.map(|file| &mut known.files[file]) else { continue };
                        (file.is_durable, file.durable_name) = (true, Some(name));
                    }
                    for file in &mut known.files {
                        file.is_gone_for_good = file.is_gone;
                    }
                },
            ),
            16 => self.step("drain".to_owned(), |_| (), || cache.drain_all(&|_| {}), |_| ()),
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
        let ino = self.cache.lookup(ROOT, &[b'a' + name as u8]).unwrap().ino;
        let step = format!("attributes of {name}: {meta:?}");
        let note = |known: &mut Known| known.files[file].metas.push(meta);
        self.step(step, note, || call(ino), |_| ());
        self.cache.forget(ino, 1);
    }
}

/// Runs from `first` on, as many as the environment wants times `count`.
fn run(first: u64, count: u64, steps: usize, mode: Mode, limits: impl Fn(Options) -> Options) {
    let times: u64 = std::env::var("KEEPSTONE_TIMES").map_or(1, |times| times.parse().unwrap());
    let mut points = 0;
    for seed in first..first + count * times {
        let run = Run::new(seed, mode, &limits);
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
    run(0, 3, 40, Mode::Journal, |options| options);
}

#[test]
fn what_was_synced_is_there_in_every_mode() {
    run(200, 2, 40, Mode::Writeback, |options| options);
    run(300, 2, 40, Mode::Ordered, |options| options);
}

/// Where hardly anything may be only in the cache.
#[test]
fn it_is_there_where_much_is_written_back() {
    run(400, 2, 40, Mode::Journal, |options| Options {
        cap: 64 << 10,
        high: 32 << 10,
        low: 8 << 10,
        ..options
    });
    run(500, 1, 30, Mode::Journal, |options| Options { write_through: true, ..options });
}
