//! Aging: the layout of free space and files after a pool was held full while its files came and
//! went (SCMFS §5 leaves the question open).
//!
//! A pool is filled to a level with files of real sizes ([`sizes`](crate::sizes)), then churned:
//! files at random are removed, others created, so that the level holds; one of eight steps makes a
//! file grow in the midst of the others instead. The churn *allocates* space
//! ([`fallocate`](vfs::FileSystem::fallocate)), which takes it as writing does. Contents are
//! written only for the timed cases. Sizes are at most [`Scale::most`].
//!
//! Meanwhile the server's background work is done as a server does it
//! ([`Engine::maintain`](pool::Engine::maintain)): once a second, and again at once as long as
//! there is more. The clock of the pool advances a second in [`STEPS_A_SECOND`] steps.
//!
//! *Fresh* is a new pool of the same size with the same files of the same sizes in the same
//! directories, allocated one after the other. Both are measured in the same rounds, one after the
//! other. The aged pool should reach 0.9 of its speed.

use crate::inprocess::Pool;
use crate::rounds::{Case, Contender, Outcome, Plan, progress};
use crate::sizes::Sizes;
use crate::store::Store as _;
use crate::subjects::Subject;
use crate::workload::{Buffer, numbered};
use anyhow::{Context as _, Result};
use pool::MountOptions;
use rng::Rng;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Errno, Timestamp};

const DIRS: usize = 64;
const BLOCK: u64 = 4 << 10;
/// Bytes of a call on contents.
const CALL: usize = 1 << 20;
/// Speed of the aged pool relative to the fresh one.
const TARGET: f64 = 0.9;

/// Steps of the churn in a second of the pool's clock. With a mean size of 250 KiB that is 2 MB/s.
const STEPS_A_SECOND: u64 = 8;
/// Steps of the background work in a second at the most: a server waits for 10 ms after each.
const MAINTAIN_MOST: u64 = 100;

/// Seconds that the clock of pools is ahead.
static SECONDS: AtomicU64 = AtomicU64::new(0);

/// The clock of pools.
fn clock() -> Timestamp {
    Timestamp(Timestamp::now().0 + SECONDS.load(Relaxed) as i64 * 1_000_000_000)
}

/// Amounts that are churned and measured.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Bytes of the pools.
    pub pool: u64,
    /// The number of times its size that a pool is churned.
    pub churn: u64,
    /// Bytes of the longest file; never more than a quarter of a pool.
    pub most: u64,
    /// Levels that it is held at, in percent full.
    pub levels: Vec<u32>,
    /// Files whose contents are read and written.
    pub sample: usize,
}

impl Scale {
    /// Returns the full scale.
    pub fn full() -> Self {
        Self { pool: 4 << 30, churn: 100, most: 1 << 30, levels: vec![60, 75, 90], sample: 200 }
    }

    /// Returns the scale for a first look.
    pub fn quick() -> Self {
        Self { pool: 512 << 20, churn: 10, most: 32 << 20, ..Self::full() }
    }

    /// Returns the scale for tests.
    pub fn tiny() -> Self {
        Self { pool: 64 << 20, churn: 1, most: 4 << 20, levels: vec![75], sample: 10 }
    }
}

/// The layout of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shape {
    /// Bytes free.
    pub free_bytes: u64,
    /// The share of them in free aligned units of 2 MiB.
    pub free_huge_share: f64,
    /// Runs of free space.
    pub free_runs: u64,
    /// Bytes of the longest run.
    pub free_longest_bytes: u64,
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub file_bytes: u64,
    /// Runs of bytes of all files: mappings that the kernel would need to map them.
    pub runs: u64,
    /// Runs of the file with the most.
    pub runs_max: u64,
    /// Files that are in one run.
    pub contiguous_files: u64,
}

impl Shape {
    /// Returns the mean runs of a file.
    pub fn runs_per_file(&self) -> f64 {
        self.runs as f64 / self.files.max(1) as f64
    }

    /// Returns the mean bytes of a mapping.
    pub fn bytes_per_mapping(&self) -> f64 {
        self.file_bytes as f64 / self.runs.max(1) as f64
    }
}

/// The result of one pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The name of the configuration of an engine.
    pub subject: String,
    /// The level that it was held at, in percent full.
    pub level: u32,
    /// Bytes of the pool.
    pub pool_bytes: u64,
    /// Bytes that were allocated after it was full, by its size.
    pub churned: f64,
    /// Steps that found no space and succeeded after another removal.
    pub retries: u64,
    /// Its layout after the churn.
    pub aged: Shape,
    /// The layout of the same files in a new pool.
    pub fresh: Shape,
    /// Speed of the aged pool against the fresh one.
    pub outcomes: Vec<Outcome>,
}

/// Runs every level on every subject. Pools are made in `dir`, which should be a tmpfs.
pub fn run(plan: &Plan, subjects: &[Subject], scale: &Scale, dir: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for subject in subjects {
        for &level in &scale.levels {
            if plan.wants(&format!("aging/{}/{level}", subject.name)) {
                let row = age(plan, subject, scale, level, dir);
                rows.push(row.with_context(|| format!("{} at {level} %", subject.name))?);
            }
        }
    }
    Ok(rows)
}

/// Ages a pool of `subject`, filled to `level` percent, and measures it against a fresh pool with
/// the same files.
fn age(plan: &Plan, subject: &Subject, scale: &Scale, level: u32, dir: &Path) -> Result<Row> {
    let name = format!("{} at {level} %", subject.name);
    let options = MountOptions { clock, ..subject.options.clone() };
    let subject = &Subject { options, ..subject.clone() };
    let mut aged = Files::new(subject.pool(dir, scale.pool)?)?;
    let room = scale.pool / 100 * u64::from(level);
    let mut churn = Churn {
        rng: Rng::new(7),
        sizes: Sizes::agrawal(scale.most.min(scale.pool / 4)),
        retries: 0,
    };
    while aged.allocated < room {
        churn.add(&mut aged, room)?;
    }
    let wanted = scale.pool * scale.churn;
    let bar = progress(&format!("age {name}"), wanted >> 20);
    let (mut churned, mut steps) = (0, 0u64);
    while churned < wanted {
        churned += churn.step(&mut aged, room)?;
        steps += 1;
        if steps % STEPS_A_SECOND == 0 {
            SECONDS.fetch_add(1, Relaxed);
            aged.maintain()?;
        }
        bar.set_position(churned >> 20);
    }
    bar.finish_and_clear();
    let fresh = aged.again(subject.pool(dir, scale.pool)?)?;
    let shapes = [aged.shape()?, fresh.shape()?];
    let outcomes = measure(plan, subject.name, level, scale, &aged, &fresh)?;
    let [aged, fresh] = shapes;
    Ok(Row {
        subject: subject.name.to_owned(),
        level,
        pool_bytes: scale.pool,
        churned: churned as f64 / scale.pool as f64,
        retries: churn.retries,
        aged,
        fresh,
        outcomes,
    })
}

/// A pool and the files in it, by number.
struct Files {
    pool: Pool,
    dirs: Vec<i32>,
    /// Bytes of each; `None`: the file was removed.
    sizes: Vec<Option<u64>>,
    /// Numbers of files that exist.
    live: Vec<usize>,
    /// Numbers of removed files.
    free: Vec<usize>,
    /// Bytes that the files take, in whole blocks.
    allocated: u64,
}

impl Files {
    fn new(pool: Pool) -> Result<Self> {
        let root = pool.root()?;
        let dirs =
            (0..DIRS).map(|i| pool.mkdir(&root, &numbered(i))).collect::<vfs::Result<_>>()?;
        Ok(Self { pool, dirs, sizes: vec![], live: vec![], free: vec![], allocated: 0 })
    }

    /// Does the background work of one second.
    fn maintain(&self) -> Result<()> {
        for _ in 0..MAINTAIN_MOST {
            if !self.pool.engine().maintain()? {
                break;
            }
        }
        Ok(())
    }

    fn dir(&self, file: usize) -> &i32 {
        &self.dirs[file % DIRS]
    }

    /// Creates a file of `size` bytes.
    fn create(&mut self, size: u64) -> vfs::Result<()> {
        let file = self.free.pop().unwrap_or_else(|| {
            self.sizes.push(None);
            self.sizes.len() - 1
        });
        match self.make(file, size) {
            Ok(()) => {
                self.sizes[file] = Some(size);
                self.live.push(file);
                self.allocated += size.next_multiple_of(BLOCK);
                Ok(())
            }
            Err(err) => {
                self.free.push(file);
                Err(err)
            }
        }
    }

    /// Creates a file with `size` bytes allocated; removes it if there is no room.
    fn make(&self, file: usize, size: u64) -> vfs::Result<()> {
        let open = self.pool.create(self.dir(file), &numbered(file))?;
        let made = self.pool.allocate(open, 0, size);
        self.pool.close(open);
        if made.is_err() {
            self.pool.unlink(self.dir(file), &numbered(file))?;
        }
        made
    }

    /// Lets a file grow to `size` bytes.
    fn grow(&mut self, file: usize, size: u64) -> vfs::Result<()> {
        let old = self.sizes[file].unwrap_or(0);
        let open = self.pool.open(self.dir(file), &numbered(file))?;
        let grown = self.pool.allocate(open, old, size - old);
        self.pool.close(open);
        grown?;
        self.sizes[file] = Some(size);
        self.allocated += size.next_multiple_of(BLOCK) - old.next_multiple_of(BLOCK);
        Ok(())
    }

    /// Removes a file at random, if any exists.
    fn remove(&mut self, rng: &mut Rng) -> vfs::Result<()> {
        if self.live.is_empty() {
            return Ok(());
        }
        let file = self.live.swap_remove(rng.below_fast(self.live.len() as u64) as usize);
        self.pool.unlink(self.dir(file), &numbered(file))?;
        self.allocated -= self.sizes[file].take().unwrap_or(0).next_multiple_of(BLOCK);
        self.free.push(file);
        Ok(())
    }

    /// Creates the same files in a new pool.
    fn again(&self, pool: Pool) -> Result<Self> {
        let mut new = Self::new(pool)?;
        new.sizes.clone_from(&self.sizes);
        new.live.clone_from(&self.live);
        new.live.sort_unstable();
        new.free.clone_from(&self.free);
        new.allocated = self.allocated;
        for &file in &new.live {
            new.make(file, new.sizes[file].unwrap_or(0))?;
        }
        Ok(new)
    }

    /// Measures how scattered the files and the free space are.
    fn shape(&self) -> Result<Shape> {
        let engine = self.pool.engine();
        let free = engine.free_space();
        let mut shape = Shape {
            free_bytes: free.bytes,
            free_huge_share: free.huge_share(),
            free_runs: free.runs,
            free_longest_bytes: free.longest_bytes,
            files: self.live.len() as u64,
            file_bytes: 0,
            runs: 0,
            runs_max: 0,
            contiguous_files: 0,
        };
        for &file in &self.live {
            let size = self.sizes[file].unwrap_or(0);
            let runs = self.runs(file, size)?;
            shape.file_bytes += size;
            shape.runs += runs;
            shape.runs_max = shape.runs_max.max(runs);
            shape.contiguous_files += u64::from(runs == 1);
        }
        Ok(shape)
    }

    /// Counts the runs of memory that a file lies in.
    fn runs(&self, file: usize, size: u64) -> Result<u64> {
        let engine = self.pool.engine();
        let open = self.pool.open(self.dir(file), &numbered(file))?;
        let ino = self.pool.ino(open)?;
        let (mut at, mut runs, mut end) = (0, 0, 0);
        while at < size {
            let piece = engine.get_read_buf(ino, at, size - at)?;
            anyhow::ensure!(!piece.is_empty(), "file {file} ends at {at} of {size} bytes");
            let start = piece.as_ptr() as usize;
            runs += u64::from(start != end);
            end = start + piece.len();
            at += piece.len() as u64;
        }
        self.pool.close(open);
        Ok(runs)
    }

    /// Opens the files of a sample.
    fn open(&self, sample: &[usize]) -> vfs::Result<Vec<(i32, u64)>> {
        let open = |&file: &usize| {
            let open = self.pool.open(self.dir(file), &numbered(file))?;
            Ok((open, self.sizes[file].unwrap_or(0)))
        };
        sample.iter().map(open).collect()
    }
}

/// The churn: files that come and go.
struct Churn {
    rng: Rng,
    sizes: Sizes,
    retries: u64,
}

impl Churn {
    /// Adds a file after removing others to make room. Returns its bytes.
    fn add(&mut self, files: &mut Files, room: u64) -> Result<u64> {
        let size = self.sizes.draw(&mut self.rng);
        while files.allocated > 0 && files.allocated + size > room {
            files.remove(&mut self.rng)?;
            if files.allocated + size > room && files.live.len() == 1 {
                break;
            }
        }
        self.retrying(files, |files| files.create(size))?;
        Ok(size)
    }

    /// Adds a file or lets one grow. Returns the bytes that this took.
    fn step(&mut self, files: &mut Files, room: u64) -> Result<u64> {
        if self.rng.below_fast(8) > 0 || files.live.is_empty() {
            return self.add(files, room);
        }
        let file = files.live[self.rng.below_fast(files.live.len() as u64) as usize];
        let old = files.sizes[file].unwrap_or(0);
        let more = old.min(room / 16);
        while files.allocated + more > room && files.live.len() > 1 {
            files.remove(&mut self.rng)?;
        }
        // Making room may have removed this file.
        if files.sizes[file] != Some(old) {
            return Ok(0);
        }
        match files.grow(file, old + more) {
            Ok(()) => Ok(more),
            Err(Errno::NOSPC) => {
                self.retries += 1;
                files.remove(&mut self.rng)?;
                Ok(0)
            }
            Err(err) => Err(err.into()),
        }
    }

    /// Retries `body` after removing a file as long as there is no space for it.
    fn retrying(
        &mut self,
        files: &mut Files,
        mut body: impl FnMut(&mut Files) -> vfs::Result<()>,
    ) -> Result<()> {
        loop {
            match body(files) {
                Err(Errno::NOSPC) if !files.live.is_empty() => {
                    self.retries += 1;
                    files.remove(&mut self.rng)?;
                }
                done => return Ok(done?),
            }
        }
    }
}

/// Times reading, overwriting and creating in both pools, one after the other.
fn measure(
    plan: &Plan,
    subject: &str,
    level: u32,
    scale: &Scale,
    aged: &Files,
    fresh: &Files,
) -> Result<Vec<Outcome>> {
    let mut rng = Rng::new(23);
    // Evenly over the files, and several times more than the caches hold.
    let step = aged.live.len().div_ceil(scale.sample).max(1);
    let mut left: u64 = scale.pool / 4;
    let mut sample = Vec::new();
    for &file in fresh.live.iter().skip(rng.below_fast(step as u64) as usize).step_by(step) {
        let size = fresh.sizes[file].unwrap_or(0);
        if size <= left {
            left -= size;
            sample.push(file);
        }
    }
    let sizes = Sizes::agrawal(1 << 20);
    let created: Vec<u64> = (0..sample.len()).map(|_| sizes.draw(&mut rng)).collect();
    let rounds = plan.rounds;
    let ops = sample.len() as u64;
    let bytes: u64 = sample.iter().filter_map(|&file| fresh.sizes[file]).sum();
    let case = |kind: &str, what: String| {
        Case::new(format!("aging/{subject}/{level}/{kind}"), what)
            .fixed(ops, rounds)
            .target("fresh", TARGET)
    };
    let of_all = format!("{ops} files of {} KiB in the mean", (bytes / ops.max(1)) >> 10);
    let read = case("read", format!("read {of_all}, whole")).bytes(bytes / ops.max(1));
    let write = case("write", format!("overwrite {of_all}, whole")).bytes(bytes / ops.max(1));
    let random = Case::new(format!("aging/{subject}/{level}/read 4K"), "anywhere in these files")
        .bytes(BLOCK)
        .fixed(ops * 64, rounds)
        .target("fresh", TARGET);
    let mean = created.iter().sum::<u64>() / ops.max(1);
    let what = format!("create, write and close files of {} KiB in the mean", mean >> 10);
    let create = case("create", what).bytes(mean);
    let mut outcomes = Vec::new();
    let (mut cases, mut creates) = ([read, random, write], create);
    for (name, files) in [("aged", aged), ("fresh", fresh)] {
        let open = files.open(&sample)?;
        let all = Buffer::new(CALL);
        for (file, size) in &open {
            whole(*size, |at, len| files.pool.write(file, at, &all.get()[..len]))?;
        }
        let [read, random, write] = cases;
        cases = [
            read.with(reads(name, &files.pool, open.clone())),
            random.with(random_reads(name, &files.pool, open.clone())),
            write.with(writes(name, &files.pool, open)),
        ];
        creates = creates.with(creations(name, &files.pool, created.clone())?);
    }
    for case in cases {
        plan.run(case, &mut outcomes)?;
    }
    plan.run(creates, &mut outcomes)?;
    Ok(outcomes)
}

/// Calls `part` with offsets and lengths of calls that go through a file.
fn whole(size: u64, mut part: impl FnMut(u64, usize) -> vfs::Result<()>) -> vfs::Result<()> {
    for at in (0..size).step_by(CALL) {
        part(at, (size - at).min(CALL as u64) as usize)?;
    }
    Ok(())
}

/// Returns a contender that reads whole files; an operation is a file.
fn reads<'a>(name: &str, pool: &'a Pool, open: Vec<(i32, u64)>) -> Contender<'a> {
    let mut buf = Buffer::new(CALL);
    Contender::new(name, move |ops| {
        for (file, size) in open.iter().take(ops as usize) {
            whole(*size, |at, len| pool.read(file, at, &mut buf.get_mut()[..len]))?;
        }
        Ok(())
    })
}

/// Returns a contender that reads random blocks of random files.
fn random_reads<'a>(name: &str, pool: &'a Pool, open: Vec<(i32, u64)>) -> Contender<'a> {
    let mut buf = Buffer::new(BLOCK as usize);
    let mut rng = Rng::new(29);
    let big: Vec<_> = open.into_iter().filter(|(_, size)| *size >= BLOCK).collect();
    Contender::new(name, move |ops| {
        for _ in 0..ops {
            let (file, size) = big[rng.below_fast(big.len() as u64) as usize];
            pool.read(&file, rng.below_fast(size / BLOCK) * BLOCK, buf.get_mut())?;
        }
        Ok(())
    })
}

/// Returns a contender that overwrites whole files; an operation is a file.
fn writes<'a>(name: &str, pool: &'a Pool, open: Vec<(i32, u64)>) -> Contender<'a> {
    let buf = Buffer::new(CALL);
    Contender::new(name, move |ops| {
        for (file, size) in open.iter().take(ops as usize) {
            whole(*size, |at, len| pool.write(file, at, &buf.get()[..len]))?;
        }
        Ok(())
    })
}

/// Returns a contender that creates files in its own directory, which is empty when a round starts.
fn creations<'a>(name: &str, pool: &'a Pool, sizes: Vec<u64>) -> Result<Contender<'a>> {
    let dir = pool.mkdir(&pool.root()?, c"created")?;
    let buf = Buffer::new(CALL);
    let made = std::rc::Rc::new(std::cell::Cell::new(0));
    let before = made.clone();
    let run = move |ops| {
        for (i, size) in sizes.iter().enumerate().take(ops as usize) {
            let file = pool.create(&dir, &numbered(i))?;
            made.set(i + 1);
            whole(*size, |at, len| pool.write(&file, at, &buf.get()[..len]))?;
            pool.close(file);
        }
        Ok(())
    };
    Ok(Contender::new(name, run)
        .prepared(move |_| (0..before.take()).try_for_each(|i| pool.unlink(&dir, &numbered(i)))))
}
