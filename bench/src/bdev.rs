//! Block devices, called directly: the cost of protecting PM, and the best way to store bytes
//! (PMBD, Figures 3, 8, 9 and 11).
//!
//! Every contender has a file of its own, filled before it is measured, so that all page tables are
//! as after some use. A device serves a request in the thread that calls it, so the paper's queue
//! depth of 32 is 32 threads here.

use crate::engine::size;
use crate::raw;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::workload::{Buffer, FILE_BYTES, by_threads};
use anyhow::{Context as _, Result};
use pmbd::{BlockDevice, Buffering, Durability, Options, Protection, Scheme};
use pmem::{Access, OpenOptions};
use rng::Rng;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const SUBJECT: &str = "keepstone";
const BARE: &str = "unprotected";

/// Requests from one barrier to the next, where the scheme needs barriers.
const BARRIER_EVERY: u64 = 32;

/// A device and its name in the tables.
struct Device {
    name: String,
    device: Arc<dyn BlockDevice>,
    /// Requests between two barriers of a writer; 0: no barriers.
    barrier_every: u64,
    /// Whether a round ends with a barrier, so that it includes what write buffers still hold.
    ends_with_barrier: bool,
    /// The number of sequential requests so far.
    next: AtomicU64,
}

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Sequential,
    Random,
}

impl Device {
    fn new(dir: &Path, name: &str, options: Options) -> Result<Self> {
        // Each device has its own file: several kinds of case may use the same name.
        let path = tempfile::Builder::new().tempfile_in(dir)?.into_temp_path().keep()?;
        std::fs::remove_file(&path)?;
        pmbd::create(&path, FILE_BYTES, options.atomic)?;
        let device = pmbd::open(&path, &options).with_context(|| name.to_owned())?;
        // The mapping needs no name, and no file stays behind however the process ends.
        std::fs::remove_file(&path)?;
        let data = Buffer::new(1 << 20);
        // Twice, so that with atomic blocks the spare blocks have been used, too.
        for off in (0..2 * FILE_BYTES).step_by(1 << 20) {
            device.write(off % FILE_BYTES, data.get(), Durability::AtBarrier)?;
        }
        let barrier_every = if options.scheme == Scheme::Wb { BARRIER_EVERY } else { 0 };
        let ends_with_barrier = options.buffering.is_some();
        let (name, next) = (name.to_owned(), AtomicU64::new(0));
        Ok(Self { name, device, barrier_every, ends_with_barrier, next })
    }

    /// Chooses the place of the next request of `len` bytes, a multiple of `len`. Sequential
    /// requests of all threads share one position.
    fn offset(&self, pattern: Pattern, rng: &mut Rng, len: u64) -> u64 {
        let places = FILE_BYTES / len;
        len * match pattern {
            Pattern::Sequential => self.next.fetch_add(1, Relaxed) % places,
            Pattern::Random => rng.below_fast(places),
        }
    }

    /// Makes `ops` writes of `data`, with barriers in between if the device needs them. Any error
    /// becomes `EIO`.
    fn write_some(&self, pattern: Pattern, seed: u64, data: &[u8], ops: u64) -> vfs::Result<()> {
        let mut rng = Rng::new(seed);
        for i in 1..=ops {
            let off = self.offset(pattern, &mut rng, data.len() as u64);
            self.device.write(off, data, Durability::AtBarrier).map_err(failed)?;
            if self.barrier_every != 0 && i % self.barrier_every == 0 {
                self.device.barrier().map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Makes `ops` reads into `buf`. Any error becomes `EIO`.
    fn read_some(&self, pattern: Pattern, seed: u64, buf: &mut [u8], ops: u64) -> vfs::Result<()> {
        let mut rng = Rng::new(seed);
        for _ in 0..ops {
            let off = self.offset(pattern, &mut rng, buf.len() as u64);
            self.device.read(off, buf).map_err(failed)?;
        }
        Ok(())
    }

    fn contender(&self, load: Load) -> Contender<'_> {
        let Load { write, len, pattern, threads } = load;
        let mut seed = 0;
        let buffers: Vec<_> = (0..threads).map(|_| Mutex::new(Buffer::new(len))).collect();
        Contender::new(&self.name, move |ops| {
            seed += threads;
            let work = |i: u64, ops: u64| {
                let mut buffer = buffers[i as usize].lock().expect("no worker panics");
                match write {
                    true => self.write_some(pattern, seed + i, buffer.get(), ops),
                    false => self.read_some(pattern, seed + i, buffer.get_mut(), ops),
                }
            };
            match threads {
                1 => work(0, ops)?,
                _ => by_threads(threads, |i| work(i, ops.div_ceil(threads)))?,
            }
            if write && self.ends_with_barrier {
                self.device.barrier().map_err(failed)?;
            }
            Ok(())
        })
    }
}

/// Maps every error to one, since their kinds do not matter to a measurement.
fn failed(_: pmbd::Error) -> vfs::Errno {
    vfs::Errno::IO
}

/// The load of a case.
#[derive(Clone, Copy)]
struct Load {
    write: bool,
    len: usize,
    pattern: Pattern,
    threads: u64,
}

impl Load {
    fn case<'a>(self, kind: &str) -> Case<'a> {
        let verb = if self.write { "write" } else { "read" };
        let (short, long) = match self.pattern {
            Pattern::Sequential => ("seq", "one after the other"),
            Pattern::Random => ("rand", "at random places"),
        };
        let (len, threads) = (size(self.len), self.threads);
        let plural = if threads == 1 { "" } else { "s" };
        Case::new(
            format!("{kind}/{verb}/{len}/{short}/{threads}"),
            format!("{verb} {len} {long} in 128 MiB, {threads} thread{plural}"),
        )
        .bytes(self.len as u64)
    }

    fn all() -> impl Iterator<Item = Self> {
        [true, false].into_iter().flat_map(|write| {
            [4 << 10, 256 << 10].into_iter().flat_map(move |len| {
                [Pattern::Sequential, Pattern::Random].into_iter().flat_map(move |pattern| {
                    [1, 2, 32].map(|threads| Self { write, len, pattern, threads })
                })
            })
        })
    }
}

/// Runs the cases. Files are made in `dir`, which should be a tmpfs.
pub fn run(plan: &Plan, dir: &Path) -> Result<Vec<Outcome>> {
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let mut outcomes = Vec::new();
    protections(plan, tmp.path(), &mut outcomes)?;
    buffers(plan, tmp.path(), &mut outcomes)?;
    schemes(plan, tmp.path(), &mut outcomes)?;
    atomic_blocks(plan, tmp.path(), &mut outcomes)?;
    Ok(outcomes)
}

/// Measures the default protection against an unprotected device and the other protections.
fn protections(plan: &Plan, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let of = |name: &str, protection| {
        Device::new(dir, name, Options { protection, ..Options::default() })
    };
    let subject = of(SUBJECT, Protection::best())?;
    let bare = of(BARE, Protection::None)?;
    let others = Protection::ALL.into_iter().filter(|p| *p != Protection::None);
    let others = others.filter(|p| p.available() && *p != Protection::best());
    let others = others.map(|p| of(p.name(), p)).collect::<Result<Vec<_>>>()?;
    let floor = {
        let path: PathBuf = dir.join("floor");
        pmbd::create(&path, FILE_BYTES, None)?;
        OpenOptions { populate: true, ..OpenOptions::default() }.open(path, Access::ReadWrite)?
    };
    for load in Load::all() {
        let mut case =
            load.case("protect").with(subject.contender(load)).with(bare.contender(load));
        let at_least = match (load.write, load.len) {
            (true, 4096) => 0.75,
            (true, _) => 0.9,
            (false, _) => 0.85,
        };
        case = case.target(BARE, at_least);
        for other in &others {
            // For a read, only private mappings and the subject do any work.
            if load.write || other.name == Protection::Window.name() {
                case = case.with(other.contender(load));
            }
        }
        if load.write && load.len == 4096 && load.pattern == Pattern::Random {
            case = case.target(Protection::Pages.name(), 10.0);
            if load.threads == 1 {
                case = case.with(raw::nt_copy_to(&floor, 0, load.len));
            }
        }
        plan.run(case, outcomes)?;
    }
    Ok(())
}

/// Measures page protection with the paper's optimisations (Figures 5 and 6): 16 MiB of buffers.
fn buffers(plan: &Plan, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let options = Options { protection: Protection::Pages, ..Options::default() };
    let one = Buffering { buffers: 1, ..Buffering::default() };
    let of = |name: &str, buffering| Device::new(dir, name, Options { buffering, ..options });
    let devices = [
        of("pages, 16 buffers", Some(Buffering { buffers: 16, ..one }))?,
        of("pages, 1 buffer", Some(one))?,
        of("pages, 1 buffer, unsorted", Some(Buffering { batching: false, ..one }))?,
        of("pages", None)?,
        Device::new(dir, BARE, Options { protection: Protection::None, ..options })?,
    ];
    for load in Load::all().filter(|l| l.write) {
        plan.run(with_all(load.case("buffers"), &devices, load), outcomes)?;
    }
    Ok(())
}

/// Measures the write schemes, unprotected.
fn schemes(plan: &Plan, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let of = |scheme: Scheme| {
        let name = match scheme {
            Scheme::Wb => format!("wb, barrier every {BARRIER_EVERY}"),
            scheme => scheme.to_string(),
        };
        let options = Options { protection: Protection::None, scheme, ..Options::default() };
        Device::new(dir, &name, options)
    };
    let devices = Scheme::ALL.into_iter().map(of).collect::<Result<Vec<_>>>()?;
    for load in Load::all().filter(|l| l.write) {
        plan.run(with_all(load.case("scheme"), &devices, load), outcomes)?;
    }
    Ok(())
}

fn with_all<'a>(case: Case<'a>, devices: &'a [Device], load: Load) -> Case<'a> {
    devices.iter().fold(case, |case, device| case.with(device.contender(load)))
}

/// Measures blocks that are never torn, and checksums.
fn atomic_blocks(plan: &Plan, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let of = |name: &str, atomic, checksums| {
        Device::new(dir, name, Options { atomic, checksums, ..Options::default() })
    };
    let devices = [
        of("atomic 4K", Some(4096), false)?,
        of("atomic 4K, checked", Some(4096), true)?,
        of("not atomic", None, false)?,
    ];
    for load in Load::all().filter(|l| l.pattern == Pattern::Random) {
        plan.run(with_all(load.case("atomic"), &devices, load), outcomes)?;
    }
    Ok(())
}
