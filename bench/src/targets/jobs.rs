//! The work of `scale`: how the cost of operations changes with the number of files, the sizes of
//! files, and the number of threads or processes. A worker does it in the directory of a target.

use super::worker::{Answer, Order};
use crate::posix::Libc;
use crate::store::Store;
use crate::workload::{Buffer, numbered};
use anyhow::{Context as _, Result, bail};
use rng::Rng;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of the calls on contents.
const BLOCK: usize = 4096;
/// Calls on contents for each size of files.
const CALLS: u64 = 2000;
/// Calls on names for each number of files.
const LOOKUPS: u64 = 10_000;
/// Bytes of the file of each thread.
const OWN_BYTES: u64 = 4 << 20;
/// The time until all threads or processes have started.
const START_MS: u64 = 400;

/// A piece of work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Makes `count` files in one directory, and uses their names.
    Make {
        /// The number of files.
        count: usize,
    },
    /// Removes these files.
    Remove {
        /// The number of files.
        count: usize,
    },
    /// Makes a file of `bytes`, written from start to end or sparse, and uses it at random.
    Size {
        /// Bytes.
        bytes: u64,
        /// The file is a single hole.
        sparse: bool,
    },
    /// Lets `users` threads or processes work at the same time, each in a directory of its own.
    Users {
        /// The number.
        users: u64,
        /// Processes instead of threads.
        processes: bool,
        /// The time of each kind of work, in milliseconds.
        ms: u64,
    },
    /// The work of one process of [`Job::Users`].
    Share {
        /// Its number.
        user: u64,
        /// The time of each kind of work, in milliseconds.
        ms: u64,
        /// The time of the monotonic clock at which the first kind begins, in milliseconds.
        at_ms: u64,
    },
}

/// A result: its name and its value.
pub type Measured = (String, f64);

/// Does a job in a directory.
pub fn run(store: &Libc, dir: &Path, job: Job) -> Result<Vec<Measured>> {
    match job {
        Job::Make { count } => make(store, count),
        Job::Remove { count } => remove(store, count),
        Job::Size { bytes, sparse } => size(store, bytes, sparse),
        Job::Users { users, processes: false, ms } => threads(store, users, ms),
        Job::Users { users, processes: true, ms } => processes(dir, users, ms),
        Job::Share { user, ms, at_ms } => {
            let share = Share::new(store, user)?;
            let counts = share.all(ms, at_ms)?;
            Ok(WORKS.iter().zip(counts).map(|(name, n)| ((*name).to_owned(), n as f64)).collect())
        }
    }
}

/// Returns the mean time of `ops` operations, in nanoseconds.
fn mean(ops: u64, work: impl FnOnce() -> vfs::Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64 / ops.max(1) as f64)
}

fn make(store: &Libc, count: usize) -> Result<Vec<Measured>> {
    let dir = store.mkdir(&store.root()?, c"many")?;
    let create = mean(count as u64, || {
        (0..count).try_for_each(|i| store.create(&dir, &numbered(i)).map(|file| store.close(file)))
    })?;
    let lookups = LOOKUPS.min(count as u64);
    let mut rng = Rng::new(3);
    let mut any = || numbered(rng.below_fast(count as u64) as usize);
    let stat = mean(lookups, || (0..lookups).try_for_each(|_| store.stat(&dir, &any()).map(drop)))?;
    let open = mean(lookups, || {
        (0..lookups).try_for_each(|_| store.open(&dir, &any()).map(|file| store.close(file)))
    })?;
    let list = mean(count as u64, || store.list(&dir).map(drop))?;
    let named = [("create", create), ("stat", stat), ("open+close", open), ("list, a name", list)];
    Ok(named.map(|(name, ns)| (name.to_owned(), ns)).to_vec())
}

fn remove(store: &Libc, count: usize) -> Result<Vec<Measured>> {
    let root = store.root()?;
    let dir = store.open_dir(&root, c"many")?;
    let unlink =
        mean(count as u64, || (0..count).try_for_each(|i| store.unlink(&dir, &numbered(i))))?;
    store.rmdir(&root, c"many")?;
    Ok(vec![("unlink".to_owned(), unlink)])
}

fn size(store: &Libc, bytes: u64, sparse: bool) -> Result<Vec<Measured>> {
    let root = store.root()?;
    let file = store.create(&root, c"large")?;
    let mut results = Vec::new();
    if sparse {
        store.truncate(&file, bytes)?;
    } else {
        let chunk = Buffer::new(1 << 20);
        let write = mean(bytes >> 20, || {
            (0..bytes).step_by(1 << 20).try_for_each(|at| store.write(&file, at, chunk.get()))
        })?;
        results.push(("write, 1 MiB".to_owned(), write));
    }
    let kind = if sparse { " of a hole" } else { "" };
    let mut buf = Buffer::new(BLOCK);
    let blocks = bytes / BLOCK as u64;
    let mut rng = Rng::new(5);
    let mut places = || rng.below_fast(blocks) * BLOCK as u64;
    let read =
        mean(CALLS, || (0..CALLS).try_for_each(|_| store.read(&file, places(), buf.get_mut())))?;
    results.push((format!("read, 4 KiB{kind}"), read));
    let write =
        mean(CALLS, || (0..CALLS).try_for_each(|_| store.write(&file, places(), buf.get())))?;
    results.push((format!("write, 4 KiB{kind}"), write));
    store.close(file);
    store.unlink(&root, c"large")?;
    Ok(results)
}

/// The kinds of work of a thread or process.
const WORKS: [&str; 3] = ["read, 4 KiB", "overwrite, 4 KiB", "create+unlink"];

/// The directory and file of one thread or process.
struct Share<'s> {
    store: &'s Libc,
    dir: <Libc as Store>::Dir,
    file: <Libc as Store>::File,
    user: u64,
}

impl<'s> Share<'s> {
    fn new(store: &'s Libc, user: u64) -> vfs::Result<Self> {
        let name = CString::new(format!("user-{user}")).expect("no NUL in it");
        let dir = store.mkdir(&store.root()?, &name)?;
        let file = store.create(&dir, c"own")?;
        let chunk = Buffer::new(1 << 20);
        for at in (0..OWN_BYTES).step_by(1 << 20) {
            store.write(&file, at, chunk.get())?;
        }
        Ok(Self { store, dir, file, user })
    }

    /// Does each kind of work for that time, and returns the operations of each. `at_ms` is the
    /// time of the first; each further one begins [`START_MS`] after the end of the one before.
    fn all(self, ms: u64, at_ms: u64) -> vfs::Result<[u64; WORKS.len()]> {
        let mut counts = [0; WORKS.len()];
        for (work, count) in counts.iter_mut().enumerate() {
            let begins = at_ms + work as u64 * (ms + START_MS);
            std::thread::sleep(Duration::from_millis(begins.saturating_sub(now_ms())));
            *count = self.work(work, Duration::from_millis(ms))?;
        }
        let root = self.store.root()?;
        self.store.close(self.file);
        self.store.unlink(&self.dir, c"own")?;
        let name = CString::new(format!("user-{}", self.user)).expect("no NUL in it");
        self.store.rmdir(&root, &name)?;
        Ok(counts)
    }

    /// Does one kind of work for that time.
    fn work(&self, work: usize, time: Duration) -> vfs::Result<u64> {
        /// Operations between two looks at the clock.
        const BATCH: u64 = 16;
        let mut buf = Buffer::new(BLOCK);
        let mut rng = Rng::new(self.user + 1);
        let start = Instant::now();
        let mut count = 0;
        while start.elapsed() < time {
            for _ in 0..BATCH {
                let at = rng.below_fast(OWN_BYTES / BLOCK as u64) * BLOCK as u64;
                match work {
                    0 => self.store.read(&self.file, at, buf.get_mut())?,
                    1 => self.store.write(&self.file, at, buf.get())?,
                    _ => {
                        self.store.close(self.store.create(&self.dir, c"new")?);
                        self.store.unlink(&self.dir, c"new")?;
                    }
                }
            }
            count += BATCH;
        }
        Ok(count)
    }
}

/// Returns the time of the monotonic clock, which all processes share, in milliseconds.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Returns operations a second from the sums of counts.
fn rates(sums: [f64; WORKS.len()], ms: u64) -> Vec<Measured> {
    let rate = |sum: f64| sum * 1000.0 / ms as f64;
    WORKS.iter().zip(sums).map(|(name, sum)| ((*name).to_owned(), rate(sum))).collect()
}

fn threads(store: &Libc, users: u64, ms: u64) -> Result<Vec<Measured>> {
    let shares: vfs::Result<Vec<_>> = (0..users).map(|user| Share::new(store, user)).collect();
    let shares = shares?;
    let at_ms = now_ms() + START_MS;
    let counts = std::thread::scope(|scope| {
        let all: Vec<_> =
            shares.into_iter().map(|share| scope.spawn(move || share.all(ms, at_ms))).collect();
        all.into_iter()
            .map(|one| one.join().expect("does not panic"))
            .collect::<vfs::Result<Vec<_>>>()
    })?;
    let mut sums = [0.0; WORKS.len()];
    for one in counts {
        sums.iter_mut().zip(one).for_each(|(sum, count)| *sum += count as f64);
    }
    Ok(rates(sums, ms))
}

/// A process of [`Job::Users`], which ends when this is dropped.
struct User(Child);

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn processes(dir: &Path, users: u64, ms: u64) -> Result<Vec<Measured>> {
    let mut children = Vec::new();
    for _ in 0..users {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .arg(dir)
            .args(["--bytes", "0", "--names", "0", "--bare"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start another process")?;
        let answers = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
        children.push((User(child), answers));
    }
    let answer = |answers: &mut dyn Iterator<Item = std::io::Result<String>>| -> Result<Answer> {
        Ok(serde_json::from_str(&answers.next().context("a process ended")??)?)
    };
    for (_, answers) in &mut children {
        let Answer::Ready = answer(answers)? else { bail!("a process is not ready") };
    }
    let at_ms = now_ms() + START_MS + 10 * users;
    for (user, (child, _)) in (0..).zip(&mut children) {
        let order = Order::Scale(Job::Share { user, ms, at_ms });
        let pipe = child.0.stdin.as_mut().expect("it was asked for");
        writeln!(pipe, "{}", serde_json::to_string(&order)?)?;
    }
    let mut sums = [0.0; WORKS.len()];
    for (_, answers) in &mut children {
        match answer(answers)? {
            Answer::Scaled(counts) => {
                sums.iter_mut().zip(counts).for_each(|(sum, (_, count))| *sum += count);
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(rates(sums, ms))
}
