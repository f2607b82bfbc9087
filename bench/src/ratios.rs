//! The aims of SCMFS, each with its target: overwriting in place against tmpfs, pre-allocation and
//! null files against SCMFS without them (SCMFS §3.3), and mapped files against those of tmpfs
//! (§3.4).
//!
//! The raw rows are the least that each needs: a copy, lines that are fenced one after the other,
//! or anonymous memory.

use crate::engine::size;
use crate::flat::{Flat, Stores};
use crate::inprocess::Pool;
use crate::mapped::{Mapping, accesses, touches};
use crate::raw;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::{Durable, Kernel, Store, open_dir};
use crate::subjects::{self, Subject};
use crate::workload::{Buffer, FILE_BYTES, numbered};
use anyhow::Result;
use pmem::Region;
use rng::Rng;
use std::cell::RefCell;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::rc::Rc;

/// Bytes of the file that is overwritten and mapped.
const FILE: u64 = 64 << 20;
/// Bytes of it that a second-level cache holds.
const CACHED: u64 = 256 << 10;
/// Bytes that one round appends, to all files.
const APPENDED: u64 = 32 << 20;
const POOL: u64 = 512 << 20;
const BLOCK: usize = 4 << 10;

/// Runs the cases. Pools and files are made in `dir`, which should be a tmpfs.
pub fn run(plan: &Plan, dir: &Path) -> Result<Vec<Outcome>> {
    let home = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let floor = Region::create(home.path().join("floor"), FILE_BYTES)?;
    let tmpfs = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let tmpfs = Kernel::new(open_dir(tmpfs.path())?, Durable::Never);
    let pools = pools_of(subjects::by_prealloc(), dir)?;
    let by_policy = pools_of(subjects::by_write_policy(), dir)?;
    let mut outcomes = Vec::new();
    for file in [FILE, CACHED] {
        for then in [Then::Nothing, Then::Read] {
            let target = if (file, then) == (FILE, Then::Nothing) { 2.5 } else { 1.0 };
            let flat = Flat::like_a_pool(dir, 1, FILE, Stores::Cached)?;
            let subjects = [&pools[0], &by_policy[0], &by_policy[1]];
            overwriting(plan, (file, then, target), subjects, &tmpfs, &flat, &mut outcomes)?;
        }
    }
    mapping(plan, &pools[0], &tmpfs, &mut outcomes)?;
    for files in [1, 4, 64] {
        appending(plan, &pools, &floor, files, &mut outcomes)?;
    }
    for len in [64, 16 << 10] {
        creating(plan, &pools, &floor, len, &mut outcomes)?;
    }
    Ok(outcomes)
}

type Named = (&'static str, Pool);

fn pools_of(subjects: impl IntoIterator<Item = Subject>, dir: &Path) -> Result<Vec<Named>> {
    subjects.into_iter().map(|subject| Ok((subject.name, subject.pool(dir, POOL)?))).collect()
}

/// Makes a file of `bytes`.
fn written<S: Store>(store: &S, bytes: u64) -> Result<S::File> {
    let file = store.create(&store.root()?, c"written")?;
    let chunk = Buffer::new(CACHED as usize);
    for offset in (0..bytes).step_by(CACHED as usize) {
        store.write(&file, offset, chunk.get())?;
    }
    Ok(file)
}

/// Removes it again.
fn remove<S: Store>(store: &S, file: S::File) -> Result<()> {
    store.close(file);
    Ok(store.unlink(&store.root()?, c"written")?)
}

/// The call after each overwrite.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Nothing,
    /// Reads the written block.
    Read,
}

/// Measures overwrites of blocks of a file of `bytes`: by default, through the cache, and bypassing
/// it.
fn overwriting(
    plan: &Plan,
    (bytes, then, target): (u64, Then, f64),
    subjects: [&Named; 3],
    tmpfs: &Kernel,
    flat: &Flat,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let of = size(bytes as usize);
    let what = if then == Then::Read { "overwrite+read" } else { "overwrite" };
    let files = subjects.map(|(_, pool)| written(pool, bytes));
    let files = files.into_iter().collect::<Result<Vec<_>>>()?;
    let (theirs, bare) = (written(tmpfs, bytes)?, written(flat, bytes)?);
    let mut case = Case::new(
        format!("ratios/{what}/4K/of-{of}"),
        format!("at random in {of}, durable on fsync; past the cache: on return"),
    )
    .bytes(BLOCK as u64);
    for ((name, pool), file) in subjects.into_iter().zip(&files) {
        case = case.with(overwrites(name, (pool, file), bytes, then));
    }
    let case = case
        .with(overwrites("tmpfs", (tmpfs, &theirs), bytes, then))
        .floor(overwrites("raw memcpy", (flat, &bare), bytes, then))
        .target("tmpfs", target);
    plan.run(case, outcomes)?;
    for ((_, pool), file) in subjects.into_iter().zip(files) {
        remove(pool, file)?;
    }
    remove(tmpfs, theirs)
}

/// Overwrites random blocks of a file of `bytes`; reads each back if `then` is [`Then::Read`].
fn overwrites<'s, S: Store>(
    name: &str,
    (store, file): (&'s S, &'s S::File),
    bytes: u64,
    then: Then,
) -> Contender<'s> {
    let mut data = Buffer::new(BLOCK);
    let mut rng = Rng::new(31);
    Contender::new(name, move |ops| {
        for _ in 0..ops {
            let offset = rng.below_fast(bytes / BLOCK as u64) * BLOCK as u64;
            store.write(file, offset, data.get())?;
            if then == Then::Read {
                store.read(file, offset, data.get_mut())?;
            }
        }
        Ok(())
    })
}

/// Measures loads and stores of mapped memory, at random and for the first time.
fn mapping(
    plan: &Plan,
    (name, pool): &Named,
    tmpfs: &Kernel,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    const LEN: usize = FILE as usize;
    let (file, theirs) = (written(pool, FILE)?, written(tmpfs, FILE)?);
    for (word, stores) in [("load", false), ("store", true)] {
        let case = Case::new(format!("ratios/mapped/{word}"), "8 bytes at random in 64 MiB")
            .bytes(8)
            .with(accesses(name, Mapping::of_pool(pool, file, LEN)?, stores)?)
            .with(accesses("tmpfs", Mapping::of_file(theirs.as_fd(), LEN)?, stores)?)
            .floor(accesses("raw anonymous huge pages", Mapping::anonymous(LEN)?, stores)?)
            .target("tmpfs", 1.0);
        plan.run(case, outcomes)?;
    }
    let theirs = theirs.as_fd();
    for (word, stores) in [("first-load", false), ("first-store", true)] {
        let case = Case::new(format!("ratios/mapped/{word}"), "of a page of a new mapping")
            .fixed(FILE / 4096, plan.rounds)
            .with(touches(name, move || Mapping::of_pool(pool, file, LEN), stores))
            .with(touches("tmpfs", move || Mapping::of_file(theirs, LEN), stores))
            .with(touches("raw anonymous huge pages", || Mapping::anonymous(LEN), stores))
            .target("tmpfs", 1.0);
        plan.run(case, outcomes)?;
    }
    pool.close(file);
    Ok(())
}

/// Files that are created again, untimed, before each round.
struct Anew<'p> {
    pool: &'p Pool,
    dir: i32,
    files: Vec<i32>,
    names: usize,
}

impl<'p> Anew<'p> {
    fn new(pool: &'p Pool) -> Result<Self> {
        Ok(Self { pool, dir: pool.root()?, files: Vec::new(), names: 0 })
    }

    /// Removes the files that exist.
    fn clear(&mut self) -> vfs::Result<()> {
        self.files.drain(..).for_each(|file| self.pool.close(file));
        for i in 0..std::mem::take(&mut self.names) {
            self.pool.unlink(&self.dir, &numbered(i))?;
        }
        Ok(())
    }

    fn create(&mut self) -> vfs::Result<i32> {
        let file = self.pool.create(&self.dir, &numbered(self.names))?;
        self.names += 1;
        Ok(file)
    }
}

/// Measures appends to `files` new files round-robin: the effect of pre-allocation.
fn appending(
    plan: &Plan,
    pools: &[Named],
    floor: &Region,
    files: usize,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let what = format!("4 KiB to {files} new files in turns");
    let mut case = Case::new(format!("ratios/append/{files}"), what)
        .bytes(BLOCK as u64)
        .ops_max(APPENDED / BLOCK as u64);
    for (name, pool) in pools.iter().filter(|(name, _)| *name != "no null files") {
        let anew = Rc::new(RefCell::new(Anew::new(pool)?));
        let before = anew.clone();
        let data = Buffer::new(BLOCK);
        let contender = Contender::new(*name, move |ops| {
            let anew = anew.borrow();
            for i in 0..ops {
                let (turn, file) = (i / files as u64, i as usize % files);
                anew.pool.append(&anew.files[file], turn * BLOCK as u64, data.get())?;
            }
            Ok(())
        });
        case = case.with(contender.prepared(move |_| {
            let mut anew = before.borrow_mut();
            anew.clear()?;
            for _ in 0..files {
                let file = anew.create()?;
                anew.files.push(file);
            }
            Ok(())
        }));
    }
    case = case.floor(raw::shadow_to(floor, 0, BLOCK)).target("no pre-allocation", 1.3);
    plan.run(case, outcomes)?;
    clear(pools, files)
}

/// Measures the creation of files of `len` bytes: the effect of null files.
fn creating(
    plan: &Plan,
    pools: &[Named],
    floor: &Region,
    len: usize,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    /// The largest number of null files.
    const FILES: u64 = 256;
    let what = format!("a file with {}", size(len));
    let mut case = Case::new(format!("ratios/create/{}", size(len)), what).ops_max(FILES);
    for (name, pool) in pools {
        let anew = Rc::new(RefCell::new(Anew::new(pool)?));
        let before = anew.clone();
        let data = Buffer::new(len);
        let contender = Contender::new(*name, move |ops| {
            let mut anew = anew.borrow_mut();
            for _ in 0..ops {
                let file = anew.create()?;
                anew.pool.write(&file, 0, data.get())?;
                anew.pool.close(file);
            }
            Ok(())
        });
        case = case.with(contender.prepared(move |_| before.borrow_mut().clear()));
    }
    case = case.floor(raw::create_in(floor, 0)).target("no null files", 1.3);
    case = case.target("no pre-allocation", 1.3);
    plan.run(case, outcomes)?;
    clear(pools, FILES as usize)
}

/// Removes the files that the last round of a case has left.
fn clear(pools: &[Named], names: usize) -> Result<()> {
    for (_, pool) in pools {
        let root = pool.root()?;
        for i in 0..names {
            match pool.unlink(&root, &numbered(i)) {
                Ok(()) | Err(vfs::Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}
