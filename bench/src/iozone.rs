//! IOzone's matrix (SCMFS §4.2, Figures 6 and 7): records of 4 KiB to 8 MiB by eight workloads on
//! one open file, of the engines through the process layer, the kernel's file systems by system
//! calls, and bare copies.
//!
//! The workloads are those of IOzone by their published description. *re-read* reads what was just
//! read; *strided read* reads every 17th record, as IOzone does by default. No contender syncs;
//! without it, their promises differ.

use crate::engine::size;
use crate::flat::{Flat, Stores};
use crate::kernels::Kernels;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::Store;
use crate::subjects::{Subject, in_small_pages};
use crate::workload::Buffer;
use anyhow::Result;
use rng::Rng;
use std::cell::Cell;
use std::path::Path;

const COPY: &str = "raw memcpy";
const NT_COPY: &str = "raw NT copy + fence";
/// The least for a durable append: its length must not become durable before its bytes.
const NT_COPY_SIZED: &str = "raw NT copy + size word, 2 fences";

/// Records between those that a strided read reads, and one.
const STRIDE: u64 = 17;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A file that is empty is written from start to end.
    Write,
    /// A file is overwritten from start to end.
    Rewrite,
    /// A file is read from start to end.
    Read,
    /// A file that was just read is read again.
    Reread,
    /// Records anywhere are read.
    RandomRead,
    /// Records anywhere are overwritten.
    RandomWrite,
    /// A file is read from end to start.
    BackwardRead,
    /// Every 17th record is read, round and round.
    StridedRead,
}

use Workload::*;

impl Workload {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 8] =
        [Write, Rewrite, Read, Reread, RandomRead, RandomWrite, BackwardRead, StridedRead];

    /// Returns its name in cases and tables.
    pub fn name(self) -> &'static str {
        match self {
            Write => "write",
            Rewrite => "re-write",
            Read => "read",
            Reread => "re-read",
            RandomRead => "random read",
            RandomWrite => "random write",
            BackwardRead => "backward read",
            StridedRead => "strided read",
        }
    }

    /// Returns whether it stores.
    pub fn writes(self) -> bool {
        matches!(self, Write | Rewrite | RandomWrite)
    }

    /// Returns the record of the `i`th request, of `records`; random workloads choose any.
    pub fn record(self, i: u64, records: u64, rng: &mut Rng) -> u64 {
        match self {
            Write | Rewrite | Read | Reread => i % records,
            BackwardRead => records - 1 - i % records,
            StridedRead => i.wrapping_mul(STRIDE) % records,
            RandomRead | RandomWrite => rng.below_fast(records),
        }
    }
}

/// Sizes that are measured.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Bytes of the file.
    pub file: u64,
    /// Bytes of the records, powers of two.
    pub records: &'static [usize],
}

const K: usize = 1 << 10;
const M: usize = 1 << 20;

impl Scale {
    /// The paper's: 4 KiB to 8 MiB.
    pub const FULL: Self = Self {
        file: 128 << 20,
        records: &[
            4 * K,
            8 * K,
            16 * K,
            32 * K,
            64 * K,
            128 * K,
            256 * K,
            512 * K,
            M,
            2 * M,
            4 * M,
            8 * M,
        ],
    };
    /// For a first look.
    pub const QUICK: Self = Self { file: 128 << 20, records: &[4 * K, 64 * K, 512 * K, 8 * M] };
    /// To see that it works.
    pub const TINY: Self = Self { file: 1 << 20, records: &[4 * K, 64 * K] };
}

/// A system with the two files that workloads use.
struct Bench<'s, S: Store> {
    name: String,
    store: &'s S,
    /// Written once, before everything else.
    file: S::File,
    /// The file of [`Workload::Write`], which is empty at the start.
    fresh: S::File,
    bytes: u64,
}

impl<'s, S: Store> Bench<'s, S> {
    /// Makes both files, and writes `bytes` to the first.
    fn new(name: &str, store: &'s S, bytes: u64) -> Result<Self> {
        let root = store.root()?;
        let (file, fresh) = (store.create(&root, c"iozone")?, store.create(&root, c"iozone.new")?);
        let chunk = Buffer::new(M.min(bytes as usize));
        for offset in (0..bytes).step_by(chunk.get().len()) {
            store.write(&file, offset, chunk.get())?;
        }
        Ok(Self { name: name.to_owned(), store, file, fresh, bytes })
    }

    /// Returns one system under one workload.
    fn under(&self, workload: Workload, len: usize) -> Contender<'_> {
        let records = self.bytes / len as u64;
        let mut buf = Buffer::new(len);
        let mut rng = Rng::new(11);
        let mut at = 0;
        let mut pass = move |first: u64, ops: u64| {
            for i in first..first + ops {
                let offset = workload.record(i, records, &mut rng) * len as u64;
                match workload {
                    Write => self.store.write(&self.fresh, offset, buf.get())?,
                    _ if workload.writes() => self.store.write(&self.file, offset, buf.get())?,
                    _ => self.store.read(&self.file, offset, buf.get_mut())?,
                }
            }
            Ok(())
        };
        match workload {
            Write => Contender::new(&self.name, move |ops| pass(0, ops))
                .prepared(|_| self.store.truncate(&self.fresh, 0)),
            Reread => {
                // Both steps share the place; only one of them runs at a time.
                let place = std::rc::Rc::new((Cell::new(0), std::cell::RefCell::new(pass)));
                let again = place.clone();
                let pass = move |ops| {
                    let (at, pass) = &*place;
                    (pass.borrow_mut())(at.get(), ops)
                };
                Contender::new(&self.name, pass).prepared(move |ops| {
                    let (at, pass) = &*again;
                    at.set(at.get() + ops);
                    (pass.borrow_mut())(at.get(), ops)
                })
            }
            _ => Contender::new(&self.name, move |ops| {
                let first = at;
                at += ops;
                pass(first, ops)
            }),
        }
    }
}

/// Runs the matrix: the first subject against all others. Pools and files are made in `dir`, which
/// should be a tmpfs.
pub fn run(plan: &Plan, subjects: &[Subject], scale: Scale, dir: &Path) -> Result<Vec<Outcome>> {
    let room = (4 * scale.file).max(64 << 20);
    let small = [in_small_pages()];
    let pools: Vec<_> = subjects
        .iter()
        .chain(&small)
        .map(|s| Ok((s.name, s.pool(dir, room)?)))
        .collect::<Result<_>>()?;
    let kernels = Kernels::mounted(dir, room)?;
    let flat = |stores| Flat::like_a_pool(dir, 2, scale.file, stores);
    let (cached, fenced) = (flat(Stores::Cached)?, flat(Stores::Fenced)?);
    let sized = flat(Stores::Sized)?;
    let engines: Vec<_> = pools
        .iter()
        .map(|(name, pool)| Bench::new(name, pool, scale.file))
        .collect::<Result<_>>()?;
    let others: Vec<_> = kernels
        .each
        .iter()
        .map(|(name, kernel, _)| Bench::new(name, kernel, scale.file))
        .collect::<Result<_>>()?;
    let cached = Bench::new(COPY, &cached, scale.file)?;
    let fenced = Bench::new(NT_COPY, &fenced, scale.file)?;
    let sized = Bench::new(NT_COPY_SIZED, &sized, scale.file)?;
    let mut outcomes = Vec::new();
    for workload in Workload::ALL {
        for &len in scale.records {
            let name = format!("iozone/{}/{}", workload.name(), size(len));
            let mut case = Case::new(name, format!("{} of {}", workload.name(), size(len)))
                .bytes(len as u64)
                .ops_max(if workload == Write { scale.file / len as u64 } else { 1 << 20 });
            for engine in &engines {
                case = case.with(engine.under(workload, len));
            }
            for other in &others {
                case = case.with(other.under(workload, len));
            }
            case = case.floor(cached.under(workload, len));
            if workload.writes() {
                case = case.with(fenced.under(workload, len));
            }
            if workload == Write {
                case = case.with(sized.under(workload, len));
            }
            // From 64 KiB to 1 MiB, the target of each engine is the speed of the copies that it
            // has to make.
            if (64 * K..=M).contains(&len) {
                let copies = match workload {
                    Write => NT_COPY_SIZED,
                    _ if workload.writes() => NT_COPY,
                    _ => COPY,
                };
                case = case.target(copies, 0.95);
                let other = subjects.iter().find(|other| other.layout != subjects[0].layout);
                if let Some(other) = other {
                    case = case.target(other.name, 1.0);
                }
            }
            // "Performance is doubled in all the workloads with the record length 4k bytes" (§4.2).
            if len == 4 * K {
                case = case.target("ext2", 2.0);
            }
            plan.run(case, &mut outcomes)?;
        }
    }
    Ok(outcomes)
}

/// Returns the workload of a case, and bytes of its records.
pub fn cell(outcome: &Outcome) -> Option<(Workload, u64)> {
    let name = outcome.name.strip_prefix("iozone/")?.split_once('/')?.0;
    let workload = Workload::ALL.into_iter().find(|workload| workload.name() == name)?;
    Some((workload, outcome.bytes_per_op))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_workload_stays_in_the_file_and_passes_visit_all_of_it() {
        for workload in Workload::ALL {
            for records in [2, 16, 1024] {
                let mut rng = Rng::new(3);
                let seen: BTreeSet<u64> =
                    (0..records).map(|i| workload.record(i, records, &mut rng)).collect();
                assert!(seen.iter().all(|record| *record < records), "{workload:?}");
                let is_random = matches!(workload, RandomRead | RandomWrite);
                assert!(is_random || seen.len() as u64 == records, "{workload:?}: {seen:?}");
            }
        }
    }

    #[test]
    fn directions_and_strides() {
        let mut rng = Rng::new(1);
        let mut first = |workload: Workload| -> Vec<u64> {
            (0..4).map(|i| workload.record(i, 64, &mut rng)).collect()
        };
        assert_eq!(first(Read), [0, 1, 2, 3]);
        assert_eq!(first(BackwardRead), [63, 62, 61, 60]);
        assert_eq!(first(StridedRead), [0, 17, 34, 51]);
    }

    #[test]
    fn records_divide_files() {
        for scale in [Scale::FULL, Scale::QUICK, Scale::TINY] {
            assert!(scale.records.iter().all(|len| scale.file % *len as u64 == 0));
        }
        assert_eq!(Scale::FULL.records.first(), Some(&4096));
        assert_eq!(Scale::FULL.records.last(), Some(&(8 << 20)));
    }
}
