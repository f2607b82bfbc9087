//! Threads (SCMFS §4.2, Figures 9 and 10): records read and overwritten at random by several
//! threads at once, each in a file of its own, or written by all in one file, by calls and by loads
//! and stores of mapped memory; as a share of what bare copies by as many threads move in the same
//! rounds.

use crate::engine::size;
use crate::flat::{Flat, Lent, Stores};
use crate::kernels::Kernels;
use crate::mapped::{Mapped, Mapping};
use crate::rounds::{Case, Contender, Outcome, Plan, Timing};
use crate::store::Store;
use crate::subjects::Subject;
use crate::workload::{Buffer, numbered};
use anyhow::Result;
use rng::Rng;
use std::os::fd::AsFd as _;
use std::path::Path;

/// Bytes of the file of each thread.
const FILE: u64 = 64 << 20;
/// The contender that the others are shares of.
const COPY: &str = "raw memcpy";

/// The work of threads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Read,
    Write,
    /// Overwrites by all threads in one file.
    WriteOne,
}

/// The amount that is measured.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The most threads; each number from one on is a case.
    pub threads: usize,
    /// Bytes of each thread's file.
    pub file: u64,
    /// Bytes of records.
    pub records: Vec<usize>,
}

impl Scale {
    /// Returns the scale with at most `threads` threads.
    pub fn up_to(threads: usize) -> Self {
        Self { threads, file: FILE, records: vec![4 << 10, 64 << 10, 1 << 20] }
    }

    /// Returns the scale for tests.
    pub fn tiny() -> Self {
        Self { threads: 2, file: 1 << 20, records: vec![4 << 10] }
    }
}

/// A system with a file for each thread.
struct Bench<'s, S: Store> {
    name: String,
    store: &'s S,
    files: Vec<S::File>,
    bytes: u64,
}

impl<'s, S: Store> Bench<'s, S> {
    /// Makes a file for each thread, and writes it.
    fn new(name: impl Into<String>, store: &'s S, scale: &Scale) -> Result<Self> {
        let root = store.root()?;
        let chunk = Buffer::new(1 << 20);
        let mut files = Vec::new();
        for i in 0..scale.threads {
            let file = store.create(&root, &numbered(i))?;
            for offset in (0..scale.file).step_by(1 << 20) {
                store.write(&file, offset, chunk.get())?;
            }
            files.push(file);
        }
        Ok(Self { name: name.into(), store, files, bytes: scale.file })
    }

    /// Returns a contender whose `threads` share requests at random places.
    fn by(&self, threads: usize, len: usize, work: Work) -> Contender<'_> {
        let (writes, is_one) = (work != Work::Read, work == Work::WriteOne);
        let mut seed = 100;
        Contender::new(&self.name, move |ops| {
            seed += threads as u64;
            let work = |i: usize| {
                let file = &self.files[if is_one { 0 } else { i }];
                let mut rng = Rng::new(seed + i as u64);
                let mut buf = Buffer::new(len);
                for _ in 0..ops.div_ceil(threads as u64) {
                    let offset = rng.below_fast(self.bytes / len as u64) * len as u64;
                    match writes {
                        true => self.store.write(file, offset, buf.get())?,
                        false => self.store.read(file, offset, buf.get_mut())?,
                    }
                }
                Ok(())
            };
            let work = &work;
            std::thread::scope(|scope| {
                let others: Vec<_> = (1..threads).map(|i| scope.spawn(move || work(i))).collect();
                let own = work(0);
                let joined = others.into_iter().map(|other| other.join().expect("does not panic"));
                joined.fold(own, |all, one| all.and(one))
            })
        })
    }
}

/// Runs the cases: the first subject against all others. Pools and files are made in `dir`, which
/// should be a tmpfs.
pub fn run(plan: &Plan, subjects: &[Subject], scale: &Scale, dir: &Path) -> Result<Vec<Outcome>> {
    let files = scale.threads as u64;
    let room = (2 * files * scale.file + (64 << 20)).next_multiple_of(2 << 20);
    let pools: Vec<_> =
        subjects.iter().map(|s| Ok((s.name, s.pool(dir, room)?))).collect::<Result<_>>()?;
    let kernels = Kernels::mounted(dir, 2 * room)?;
    let mut mapped = Vec::new();
    for (name, _, root) in &kernels.each {
        mapped.push((format!("{name}, mapped"), Flat::mapped(root.as_fd(), files, scale.file)?));
    }
    let copy = Flat::like_a_pool(dir, files, scale.file, Stores::Cached)?;
    let fenced = Flat::like_a_pool(dir, files, scale.file, Stores::Fenced)?;
    let lent: Vec<_> =
        pools.iter().map(|(name, pool)| (format!("{name}, lent"), Lent(pool))).collect();

    let engines: Vec<_> =
        pools.iter().map(|(name, pool)| Bench::new(*name, pool, scale)).collect::<Result<_>>()?;
    let others: Vec<_> = kernels
        .each
        .iter()
        .map(|(name, kernel, _)| Bench::new(*name, kernel, scale))
        .collect::<Result<_>>()?;
    let mapped: Vec<_> =
        mapped.iter().map(|(name, flat)| Bench::new(name, flat, scale)).collect::<Result<_>>()?;
    // The same files, which exist already.
    let mut borrowed = Vec::new();
    for ((name, store), engine) in lent.iter().zip(&engines) {
        let inodes = engine.files.iter().map(|file| store.0.ino(*file));
        let files = inodes.collect::<vfs::Result<_>>()?;
        borrowed.push(Bench { name: name.clone(), store, files, bytes: scale.file });
    }
    // Only engines that map files in place; for others the kernel maps its own pages.
    let lies: Vec<_> = pools.iter().map(|(name, pool)| (*name, Mapped(pool))).collect();
    let mut direct = Vec::new();
    for (((name, store), engine), subject) in lies.iter().zip(&engines).zip(subjects) {
        if subject.layout == engines::Layout::Scmfs {
            let map = |file: &i32| Mapping::of_pool(store.0, *file, scale.file as usize);
            let files = engine.files.iter().map(map).collect::<vfs::Result<_>>()?;
            direct.push(Bench { name: format!("{name}, mapped"), store, files, bytes: scale.file });
        }
    }
    let copy = Bench::new(COPY, &copy, scale)?;
    let fenced = Bench::new("raw NT copy + fence", &fenced, scale)?;

    let mut outcomes = Vec::new();
    for work in [Work::Read, Work::Write, Work::WriteOne] {
        let (word, where_to) = match work {
            Work::Read => ("read", "each thread in its own file"),
            Work::Write => ("write", "each thread in its own file"),
            Work::WriteOne => ("write-one", "all threads in one file"),
        };
        for &len in &scale.records {
            for threads in 1..=scale.threads {
                let name = format!("scaling/{word}/{}/{threads}", size(len));
                let mut case = Case::new(name, format!("{} at random, {where_to}", size(len)));
                case = case.bytes(len as u64);
                for engine in &engines {
                    case = case.with(engine.by(threads, len, work));
                }
                for store in borrowed.iter().filter(|_| work == Work::Read) {
                    case = case.with(store.by(threads, len, work));
                }
                for store in &direct {
                    case = case.with(store.by(threads, len, work));
                }
                for other in &others {
                    case = case.with(other.by(threads, len, work));
                }
                for other in &mapped {
                    case = case.with(other.by(threads, len, work));
                }
                case = case.with(copy.by(threads, len, work));
                if work != Work::Read {
                    case = case.with(fenced.by(threads, len, work));
                }
                let plan = Plan { threads: threads as u32, filter: plan.filter.clone(), ..*plan };
                plan.run(case, &mut outcomes)?;
            }
        }
    }
    Ok(outcomes)
}

/// Returns the share of the bandwidth of bare copies that a contender of a case reaches.
pub fn share(outcome: &Outcome, timing: &Timing) -> Option<f64> {
    let copy = outcome.timings.iter().find(|timing| timing.name == COPY)?;
    Some(copy.subject_speed.median / timing.subject_speed.median)
}
