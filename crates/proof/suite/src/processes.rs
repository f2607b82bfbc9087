//! Tests several processes on one pool that are killed at any moment. Every completed operation is
//! kept, none is half visible, no lock stays taken, and nothing leaks.
//!
//! The test program starts itself again as a worker. A worker makes random changes to its own
//! files, in its own directory and in a shared one, and writes a byte to a pipe after each change.
//! The test kills it, replays the same random sequence in the contract's model, and compares. The
//! pool must hold the state after the reported operations, or after one more.
//!
//! `KEEPSTONE_KILLS` sets the number of kills. A failure prints the operations of the killed worker
//! ([`vfs::script`]).

use crate::{DIR, Engine, PoolFile, attach, has_atomic_contents, mount};
use pmem::{Access, Region};
use pool::CheckOptions;
use rng::Rng;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use vfs::model::Model;
use vfs::script::{Driver, Op};
use vfs::{Caller, FileKind, FileSystem, Ino, ROOT};

const WORKERS: u64 = 3;
const NAMES: u64 = 6;
const HELD_MAX: u32 = 20;
const POOL_BYTES: u64 = 24 << 20;
const ROLE: &str = "KEEPSTONE_TEST_WORKER";
const SHARED: &str = "/shared";

/// A worker's own directory.
fn own(id: u64) -> String {
    format!("/own{id}")
}

/// A worker's files. Paths map to numbers, in the order of the first path of each file, and numbers
/// to contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SuiteFiles {
    names: BTreeMap<String, usize>,
    contents: Vec<Vec<u8>>,
}

impl SuiteFiles {
    /// Reads the files of worker `id`.
    fn read(fs: &dyn FileSystem, id: u64) -> Self {
        let mut files = Self::default();
        let mut numbers = BTreeMap::new();
        for (path, ino) in list(fs, id) {
            let number = *numbers.entry(ino).or_insert_with(|| {
                let mut content = vec![0; 100_000];
                let n = fs.read(ino, 0, &mut content).unwrap();
                content.truncate(n);
                files.contents.push(content);
                files.contents.len() - 1
            });
            files.names.insert(path, number);
        }
        files
    }

    /// Makes a model with these files.
    fn model(&self, id: u64) -> Model {
        let model = Model::new();
        let mut driver = Driver::new(&model);
        let mut run = |op: Op| driver.run(&op, 0).unwrap();
        run(Op::mkdir(own(id)));
        run(Op::mkdir(SHARED));
        let mut first = BTreeMap::new();
        for (path, number) in &self.names {
            match first.insert(number, path) {
                Some(of) => run(Op::Link(of.clone(), path.clone())),
                None => run(Op::create(path.clone())),
            }
        }
        for (path, number) in &self.names {
            let content = &self.contents[*number];
            Driver::new(&model).with(path, |ino| model.write(ino, 0, content)).unwrap();
        }
        model
    }
}

/// Returns the paths of worker `id`, sorted.
fn list(fs: &dyn FileSystem, id: u64) -> BTreeMap<String, Ino> {
    let mut paths = BTreeMap::new();
    let prefix = format!("w{id}-");
    for dir in [own(id), SHARED.into()] {
        let list = &mut |e: &vfs::DirEntry<'_>| {
            if e.kind == FileKind::File && e.name.starts_with(prefix.as_bytes()) {
                paths.insert(format!("{dir}/{}", e.name.escape_ascii()), e.ino);
            }
            true
        };
        Driver::new(fs).with(&dir, |ino| fs.readdir(ino, 0, list)).unwrap();
    }
    paths
}

/// Chooses the next operation of worker `id`, whose files are in `model`.
fn next(model: &Model, id: u64, rng: &mut Rng) -> Op {
    let files = list(model, id);
    loop {
        let dir = if rng.below(3) == 0 { SHARED.into() } else { own(id) };
        let to = format!("{dir}/w{id}-{}", rng.below(NAMES));
        let free = !files.contains_key(&to);
        if files.is_empty() {
            return Op::create(to);
        }
        let (path, ino) = files.iter().nth(rng.below(files.len() as u64) as usize).unwrap();
        let (path, size) = (path.clone(), model.getattr(*ino).unwrap().size);
        return match rng.below(9) {
            0 | 1 if free => Op::create(to),
            2 if size < 40_000 => Op::append(path, 1 + rng.below(6000)),
            3 | 4 if size > 0 => {
                let at = rng.below(size);
                let most = [8, 5000][rng.below(2) as usize];
                Op::write(path, at, 1 + rng.below(most))
            }
            5 => Op::truncate(path, rng.below(size + 2000)),
            6 => Op::Unlink(path),
            7 => Op::Rename(path, to),
            8 if free => Op::Link(path, to),
            _ => continue,
        };
    }
}

/// Returns whether a worker's files are as before or after its last operation. If writes are not
/// atomic, each byte may be as before or after.
fn is_right<E: Engine>([before, after]: &[SuiteFiles; 2], now: &SuiteFiles) -> bool {
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

fn seed(id: u64, life: u64) -> Rng {
    Rng::new(
        (id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (life + 1).wrapping_mul(0xd134_2543_de82_ef95),
    )
}

/// Runs as a worker until killed.
pub fn worker<E: Engine>() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut parts = role.splitn(3, ' ');
    let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
    let (id, life) = (number(), number());
    let pool = PathBuf::from(parts.next().unwrap());
    let fs = attach::<E>(&pool);
    let model = SuiteFiles::read(&fs, id).model(id);
    let (mut pool, mut follower) = (Driver::new(&fs), Driver::new(&model));
    let mut rng = seed(id, life);
    let mut held = 0;
    let mut done = std::io::stderr();
    for number in 0.. {
        let op = next(&model, id, &mut rng);
        if let Op::Unlink(path) = &op
            && held < HELD_MAX
            && path.ends_with('1')
        {
            // The worker holds some files before it removes them; these references end with the
            // process.
            held += 1;
            pool.held(path).expect("it has its name");
        }
        pool.run(&op, number).unwrap_or_else(|e| panic!("{op}: {e}"));
        follower.run(&op, number).unwrap_or_else(|e| panic!("{op} on the model: {e}"));
        if done.write_all(b".").is_err() {
            return;
        }
    }
}

/// A worker process.
struct Worker {
    child: Child,
    life: u64,
    before: SuiteFiles,
}

/// The expected state after a worker was killed.
struct Killed {
    /// Its files after the reported operations, and after one more.
    right: [SuiteFiles; 2],
    /// These operations.
    script: String,
}

impl Worker {
    fn start(pool: &Path, id: u64, life: u64, before: SuiteFiles) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "suite::processes::worker", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{id} {life} {}", pool.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, life, before }
    }

    /// Kills the worker and computes the expected state.
    fn kill(mut self, id: u64) -> Killed {
        // The pipe holds 64 KiB, more than a worker writes in its short life.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut reported = Vec::new();
        self.child.stderr.take().unwrap().read_to_end(&mut reported).unwrap();
        if let Some(at) = reported.iter().position(|b| *b != b'.') {
            panic!("worker {id}: {}", String::from_utf8_lossy(&reported[at..]));
        }
        let model = self.before.model(id);
        let mut driver = Driver::new(&model);
        let mut rng = seed(id, self.life);
        let mut script = String::new();
        let mut run = |number| {
            let op = next(&model, id, &mut rng);
            driver.run(&op, number).unwrap_or_else(|e| panic!("{op} on the model: {e}"));
            script += &format!("{op}\n");
        };
        let reported = reported.len() as u64;
        (0..reported).for_each(&mut run);
        let before = SuiteFiles::read(&model, id);
        run(reported);
        Killed { right: [before, SuiteFiles::read(&model, id)], script }
    }
}

/// Tests that nothing that workers reported is lost when they are killed and new ones are started.
pub fn killed_processes_do_no_harm<E: Engine>() {
    let kills: u64 = std::env::var("KEEPSTONE_KILLS").map_or(60, |n| n.parse().unwrap());
    let pool = PoolFile::new::<E>("kills", POOL_BYTES);
    let fs = attach::<E>(&pool.0);
    for name in (0..WORKERS).map(|id| format!("own{id}")).chain(["shared".into()]) {
        fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &DIR).unwrap();
    }
    let mut workers: Vec<_> =
        (0..WORKERS).map(|id| Some(Worker::start(&pool.0, id, 0, SuiteFiles::default()))).collect();
    let mut rng = Rng::new(0x5eed_0000_0001);
    for life in 1..=kills {
        std::thread::sleep(Duration::from_micros(10_000 + rng.below(30_000)));
        let id = rng.below(WORKERS);
        let Killed { right, script } = workers[id as usize].take().expect("it runs").kill(id);
        let now = SuiteFiles::read(&fs, id);
        assert!(
            is_right::<E>(&right, &now),
            "worker {id}, life {life}: {now:?}\nis neither {right:?}, which is after\n{script}"
        );
        workers[id as usize] = Some(Worker::start(&pool.0, id, life, now));
    }
    for (id, worker) in workers.into_iter().enumerate() {
        let id = id as u64;
        let Killed { right, script } = worker.expect("it runs").kill(id);
        let now = SuiteFiles::read(&fs, id);
        assert!(is_right::<E>(&right, &now), "worker {id} at the end, after\n{script}");
    }
    while fs.reap_processes().unwrap() > 0 {}
    eprintln!("{kills} kills, {} of them inside an operation", fs.recoveries());

    // Nothing leaks: a fresh scan finds the same free blocks and inodes.
    let shared = fs.statfs();
    drop(fs);
    let region = Region::open(&pool.0, Access::ReadWrite).unwrap();
    let report = E::check(&region, &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let fresh = mount::<E, _>(region).statfs();
    assert_eq!((shared.blocks_free, shared.inodes_free), (fresh.blocks_free, fresh.inodes_free));
}
