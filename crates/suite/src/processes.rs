//! Several processes on one pool, killed at any moment: no completed operation is lost, none is half
//! visible, no lock stays taken, nothing leaks.
//!
//! The test program starts itself again as a worker. A worker makes random changes to files of its
//! own, in a directory of its own and in one that all share, and says by a byte on a pipe when each
//! is complete. The test kills it, follows the same random sequence in a model, and compares: the
//! pool holds the state after the operations that were reported, or after one more.
//!
//! `KEEPSTONE_KILLS` sets the number of kills.

use crate::{DIR, Engine, FILE, Fs, PoolFile, Rng, attach, has_atomic_contents, mount};
use pmem::{Access, Region};
use pool::CheckOptions;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vfs::{Caller, FileKind, FileSystem as _, Ino, ROOT, RenameFlags, SetAttr};

const WORKERS: u64 = 3;
const NAMES: u64 = 6;
const HELD_MAX: u32 = 20;
const POOL_BYTES: u64 = 24 << 20;
const ROLE: &str = "KEEPSTONE_TEST_WORKER";

/// A worker's name in one of its two directories.
type Name = (bool, String);

/// One call.
#[derive(Clone, Debug)]
enum Op {
    Create(Name),
    Append(Name, usize, u8),
    Write(Name, u64, usize, u8),
    Truncate(Name, u64),
    Unlink(Name),
    Rename(Name, Name),
    Link(Name, Name),
}

/// What a worker's files are: names lead to numbers, numbers to contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    names: BTreeMap<Name, usize>,
    contents: Vec<Vec<u8>>,
}

impl Model {
    fn pick(&self, rng: &mut Rng) -> Option<Name> {
        let n = self.names.len() as u64;
        (n > 0).then(|| self.names.keys().nth(rng.below(n) as usize).unwrap().clone())
    }

    fn next(&self, id: u64, rng: &mut Rng) -> Op {
        let fresh = |rng: &mut Rng| (rng.below(3) == 0, format!("w{id}-{}", rng.below(NAMES)));
        loop {
            let to = fresh(rng);
            let free = !self.names.contains_key(&to);
            let Some(name) = self.pick(rng) else { return Op::Create(to) };
            let size = self.contents[self.names[&name]].len() as u64;
            return match rng.below(9) {
                0 | 1 if free => Op::Create(to),
                2 if size < 40_000 => {
                    Op::Append(name, 1 + rng.below(6000) as usize, rng.below(255) as u8)
                }
                3 | 4 if size > 0 => {
                    let at = rng.below(size);
                    let most = [8, 5000][rng.below(2) as usize];
                    Op::Write(name, at, 1 + rng.below(most) as usize, rng.below(255) as u8)
                }
                5 => Op::Truncate(name, rng.below(size + 2000)),
                6 => Op::Unlink(name),
                7 => Op::Rename(name, to),
                8 if free => Op::Link(name, to),
                _ => continue,
            };
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(name) => {
                self.contents.push(Vec::new());
                self.names.insert(name.clone(), self.contents.len() - 1);
            }
            Op::Append(name, len, byte) => {
                let c = &mut self.contents[self.names[name]];
                c.resize(c.len() + len, *byte);
            }
            Op::Write(name, at, len, byte) => {
                let c = &mut self.contents[self.names[name]];
                let end = *at as usize + len;
                c.resize(c.len().max(end), 0);
                c[*at as usize..end].fill(*byte);
            }
            Op::Truncate(name, size) => self.contents[self.names[name]].resize(*size as usize, 0),
            Op::Unlink(name) => drop(self.names.remove(name)),
            Op::Rename(from, to) => {
                let file = self.names[from];
                if self.names.get(to) != Some(&file) {
                    self.names.remove(from);
                    self.names.insert(to.clone(), file);
                }
            }
            Op::Link(name, to) => {
                self.names.insert(to.clone(), self.names[name]);
            }
        }
    }

    /// Numbers files by their first names, and forgets those without.
    fn canonical(&self) -> Self {
        let mut known = BTreeMap::new();
        let mut c = Self::default();
        for (name, file) in &self.names {
            let number = *known.entry(*file).or_insert_with(|| {
                c.contents.push(self.contents[*file].clone());
                c.contents.len() - 1
            });
            c.names.insert(name.clone(), number);
        }
        c
    }
}

/// Whether a worker's files are as before or after its last operation; or, where writes are not atomic, have of each byte what
/// it was before or after.
fn is_right<E: Engine>([before, after]: &[Model; 2], now: &Model) -> bool {
    let is_torn = |((now, before), after): ((&Vec<u8>, &Vec<u8>), &Vec<u8>)| {
        [before.len(), after.len()].contains(&now.len())
            && now
                .iter()
                .enumerate()
                .all(|(i, byte)| [before.get(i), after.get(i)].contains(&Some(byte)))
    };
    let have_same_names = now.names == before.names && now.names == after.names;
    let contents = now.contents.iter().zip(&before.contents).zip(&after.contents);
    now == before
        || now == after
        || !has_atomic_contents::<E>() && have_same_names && contents.into_iter().all(is_torn)
}

/// A worker's view of the pool.
struct Place<'a, E: Engine> {
    fs: &'a Fs<E>,
    id: u64,
    own: Ino,
    shared: Ino,
    held: Cell<u32>,
}

impl<'a, E: Engine> Place<'a, E> {
    fn new(fs: &'a Fs<E>, id: u64) -> Self {
        let dir = |name: &str| fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
        Self { fs, id, own: dir(&format!("own{id}")), shared: dir("shared"), held: Cell::new(0) }
    }

    fn dir(&self, name: &Name) -> Ino {
        if name.0 { self.shared } else { self.own }
    }

    fn with<T>(&self, name: &Name, f: impl FnOnce(Ino) -> vfs::Result<T>) -> vfs::Result<T> {
        let ino = self.fs.lookup(self.dir(name), name.1.as_bytes())?.ino;
        let result = f(ino);
        self.fs.forget(ino, 1);
        result
    }

    fn apply(&self, op: &Op) -> vfs::Result<()> {
        let fs = self.fs;
        match op {
            Op::Create(name) => {
                let made = fs.create(&Caller::ROOT, self.dir(name), name.1.as_bytes(), &FILE)?;
                fs.forget(made.ino, 1);
                Ok(())
            }
            Op::Append(name, len, byte) => {
                self.with(name, |ino| fs.append(ino, &vec![*byte; *len]).map(drop))
            }
            Op::Write(name, at, len, byte) => {
                self.with(name, |ino| fs.write(ino, *at, &vec![*byte; *len]))
            }
            Op::Truncate(name, size) => self.with(name, |ino| {
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, ino, &set).map(drop)
            }),
            Op::Unlink(name) => {
                // Some are held, and then removed: the reference dies with the process.
                if self.held.get() < HELD_MAX && name.1.ends_with('1') {
                    self.held.set(self.held.get() + 1);
                    fs.lookup(self.dir(name), name.1.as_bytes())?;
                }
                fs.unlink(self.dir(name), name.1.as_bytes())
            }
            Op::Rename(from, to) => {
                let at = |n: &Name| (self.dir(n), n.1.clone());
                let (from, to) = (at(from), at(to));
                let flags = RenameFlags::empty();
                fs.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), flags)
            }
            Op::Link(name, to) => self.with(name, |ino| {
                let made = fs.link(ino, self.dir(to), to.1.as_bytes())?;
                fs.forget(made.ino, 1);
                Ok(())
            }),
        }
    }

    fn load(&self) -> Model {
        let mut m = Model::default();
        let mut files = BTreeMap::new();
        let mut names = Vec::new();
        for (dir, is_shared) in [(self.own, false), (self.shared, true)] {
            let list = &mut |e: &vfs::DirEntry<'_>| {
                let name = String::from_utf8(e.name.to_vec()).unwrap();
                if e.kind == FileKind::File && name.starts_with(&format!("w{}-", self.id)) {
                    names.push(((is_shared, name), e.ino));
                }
                true
            };
            self.fs.readdir(dir, 0, list).unwrap();
        }
        names.sort();
        for (name, ino) in names {
            let number = *files.entry(ino).or_insert_with(|| {
                let mut content = vec![0; 100_000];
                let n = self.fs.read(ino, 0, &mut content).unwrap();
                content.truncate(n);
                m.contents.push(content);
                m.contents.len() - 1
            });
            m.names.insert(name, number);
        }
        m
    }
}

fn seed(id: u64, life: u64) -> Rng {
    Rng::new(
        (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (life + 1).wrapping_mul(0xd134_2543_de82_ef95),
    )
}

/// The worker: runs until killed.
pub fn worker<E: Engine>() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut parts = role.splitn(3, ' ');
    let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
    let (id, life) = (number(), number());
    let pool = PathBuf::from(parts.next().unwrap());
    let fs = attach::<E>(&pool);
    let place = Place::<E>::new(&fs, id);
    let mut model = place.load();
    let mut rng = seed(id, life);
    let mut done = std::io::stderr();
    loop {
        let op = model.next(id, &mut rng);
        place.apply(&op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        model.apply(&op);
        if done.write_all(b".").is_err() {
            return;
        }
    }
}

/// A worker as the test sees it.
struct Worker {
    child: Child,
    life: u64,
    before: Model,
}

impl Worker {
    fn start(pool: &Path, id: u64, life: u64, before: Model) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "suite::processes::worker", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{id} {life} {}", pool.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, life, before }
    }

    /// Kills it; the models that are right after the operations it reported.
    fn kill(mut self, id: u64) -> [Model; 2] {
        // The pipe holds 64 KiB, more than a worker writes in its short life.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut reported = Vec::new();
        self.child.stderr.take().unwrap().read_to_end(&mut reported).unwrap();
        if let Some(at) = reported.iter().position(|b| *b != b'.') {
            panic!("worker {id}: {}", String::from_utf8_lossy(&reported[at..]));
        }
        let mut model = self.before;
        let mut rng = seed(id, self.life);
        for _ in 0..reported.len() {
            let op = model.next(id, &mut rng);
            model.apply(&op);
        }
        let mut after = model.clone();
        after.apply(&model.next(id, &mut rng));
        [model.canonical(), after.canonical()]
    }
}

/// Workers are killed and started anew, and nothing that they reported is lost.
pub fn killed_processes_do_no_harm<E: Engine>() {
    let kills: u64 = std::env::var("KEEPSTONE_KILLS").map_or(60, |n| n.parse().unwrap());
    let pool = PoolFile::new::<E>("kills", POOL_BYTES);
    let fs = attach::<E>(&pool.0);
    for name in (0..WORKERS).map(|id| format!("own{id}")).chain(["shared".into()]) {
        fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &DIR).unwrap();
    }
    let places: Vec<_> = (0..WORKERS).map(|id| Place::<E>::new(&fs, id)).collect();
    let mut workers: Vec<_> =
        (0..WORKERS).map(|id| Some(Worker::start(&pool.0, id, 0, Model::default()))).collect();
    let mut rng = Rng::new(0x5eed_0000_0001);
    for life in 1..=kills {
        std::thread::sleep(Duration::from_micros(10_000 + rng.below(30_000)));
        let id = rng.below(WORKERS);
        let right = workers[id as usize].take().expect("it runs").kill(id);
        let start = Instant::now();
        let now = places[id as usize].load();
        assert!(start.elapsed() < Duration::from_secs(20), "something was stuck");
        assert!(
            is_right::<E>(&right, &now),
            "worker {id}, life {life}: {now:?}\nis neither {right:?}"
        );
        workers[id as usize] = Some(Worker::start(&pool.0, id, life, now));
    }
    for (id, worker) in workers.into_iter().enumerate() {
        let right = worker.expect("it runs").kill(id as u64);
        assert!(is_right::<E>(&right, &places[id].load()), "worker {id} at the end");
    }
    while fs.reap_processes().unwrap() > 0 {}
    eprintln!("{kills} kills, {} of them inside an operation", fs.recoveries());
    drop(places);

    // Nothing leaks: what is free is what a fresh scan finds free.
    let shared = fs.statfs();
    drop(fs);
    let region = Region::open(&pool.0, Access::ReadWrite).unwrap();
    let report = E::check(&region, &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let fresh = mount::<E, _>(region).statfs();
    assert_eq!((shared.blocks_free, shared.inodes_free), (fresh.blocks_free, fresh.inodes_free));
}
