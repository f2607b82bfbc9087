//! Cache misses of calls (SCMFS §4.2, Figures 6 and 7 c–h): instructions, and misses of the first
//! and the last level of caches, as valgrind's cachegrind simulates them with the caches of the
//! paper's machine.
//!
//! Each loop runs twice under valgrind, in a process of its own, with different numbers of calls:
//! the difference is what the calls cost, without the start. Engines are called through the process
//! layer. Valgrind does not see the kernel's code, so there are no rows of kernel file systems. Its
//! CPU has neither CLWB nor MOVDIR64B, so lines are flushed by CLFLUSH. In the paper, random reads
//! of 4 KiB miss the instruction cache 0.000042 times an instruction in SCMFS and 0.0134 times in
//! ext2 (Figure 6 c).

use crate::engine::size;
use crate::postmark::{self, Postmark};
use crate::rounds::progress;
use crate::store::Store as _;
use crate::subjects::{self, Subject};
use crate::tlb;
use crate::workload::Buffer;
use anyhow::{Context as _, Result, bail};
use rng::Rng;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};

/// Bytes of the file that loops read and write: more than the caches hold.
const FILE: u64 = 16 << 20;

/// Bytes, ways and line of the caches for instructions, for data, and of the last level: a core's
/// share of a Core 2 Quad Q8200, whatever this machine has.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=2097152,8,64"];

const K: usize = 1 << 10;
const M: usize = 1 << 20;

/// The operation of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Operation {
    /// Reads the record after the previous one.
    SequentialRead,
    /// Reads a record anywhere.
    RandomRead,
    /// Overwrites the record after the previous one.
    SequentialWrite,
    /// Overwrites a record anywhere.
    RandomWrite,
    /// Creates a file, closes and unlinks it.
    CreateUnlink,
    /// A transaction of PostMark's write-intensive load.
    Postmark,
}

use Operation::*;

impl Operation {
    const ALL: [Self; 6] =
        [SequentialRead, RandomRead, SequentialWrite, RandomWrite, CreateUnlink, Postmark];

    /// Returns whether it works by records, of several sizes.
    fn has_records(self) -> bool {
        matches!(self, SequentialRead | RandomRead | SequentialWrite | RandomWrite)
    }

    /// Returns its name in tables.
    fn name(self, record: usize) -> String {
        let what = match self {
            SequentialRead => "sequential read",
            RandomRead => "random read",
            SequentialWrite => "sequential write",
            RandomWrite => "random write",
            CreateUnlink => "create, close, unlink",
            Operation::Postmark => "PostMark transaction, write-intensive",
        };
        if self.has_records() { format!("{what} {}", size(record)) } else { what.to_owned() }
    }

    /// Returns its name on the command line.
    fn word(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |v| v.get_name().to_owned())
    }
}

/// Misses of one kind of call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The name of the configuration of an engine.
    pub subject: String,
    /// The name of the loop.
    pub operation: String,
    /// Calls that the counts are means of.
    pub calls: u64,
    /// Counts of each call.
    pub per_call: Counts<f64>,
}

/// Counts of cachegrind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts<T> {
    /// Instructions executed.
    pub instructions: T,
    /// Instruction fetches that the first level missed.
    pub l1_instruction_misses: T,
    /// Those that the last level missed, too.
    pub ll_instruction_misses: T,
    /// Loads and stores.
    pub data: T,
    /// Those that the first level missed.
    pub l1_data_misses: T,
    /// Those that the last level missed, too.
    pub ll_data_misses: T,
}

impl Counts<f64> {
    /// Misses of the first level by instruction.
    pub fn instruction_miss_rate(&self) -> f64 {
        self.l1_instruction_misses / self.instructions.max(1.0)
    }
}

/// Misses of caches and of TLBs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Of caches, simulated.
    pub caches: Vec<Row>,
    /// Of data TLBs, modelled.
    pub tlb: Vec<tlb::Row>,
}

/// The amount that is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Calls of the longer run, less those of the shorter one.
    pub calls: u64,
    /// Bytes of records, for the first configuration of each engine; the others have the first of
    /// them.
    pub records: &'static [usize],
    /// The amount that the model of TLBs traces.
    pub tlb: tlb::Scale,
}

impl Scale {
    /// The full scale.
    pub const FULL: Self =
        Self { calls: 20_000, records: &[4 * K, 64 * K, 512 * K, 8 * M], tlb: tlb::Scale::FULL };
    /// The scale for a first look.
    pub const QUICK: Self =
        Self { calls: 2_000, records: &[4 * K, 512 * K], tlb: tlb::Scale::FULL };
    /// The scale for tests.
    pub const TINY: Self = Self { calls: 50, records: &[4 * K], tlb: tlb::Scale::TINY };
}

/// Simulates loops whose names contain one of `filter` (all, where it is empty), and models TLBs.
pub fn run(subjects: &[Subject], filter: &[String], scale: Scale, dir: &Path) -> Result<Report> {
    let wants = |name: &str| filter.is_empty() || filter.iter().any(|part| name.contains(part));
    let mut loops = Vec::new();
    for (i, subject) in subjects.iter().enumerate() {
        let is_first = subjects[..i].iter().all(|before| before.layout != subject.layout);
        for operation in Operation::ALL {
            let several = is_first && operation.has_records();
            let records = if several { scale.records } else { &scale.records[..1] };
            let each = records.iter().map(|record| (subject, operation, *record));
            loops.extend(each.filter(|(_, operation, record)| wants(&operation.name(*record))));
        }
    }
    if !loops.is_empty() {
        require_valgrind()?;
    }
    let bar = progress("under valgrind", loops.len() as u64);
    let mut caches = Vec::new();
    for (subject, operation, record) in loops {
        // The same bytes as with records of 4 KiB.
        let calls = (scale.calls * 4 * K as u64 / record as u64).max(10);
        caches.push(simulate(subject, operation, record, calls, dir)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let tlb = if wants("tlb") { tlb::run(subjects, scale.tlb, dir)? } else { Vec::new() };
    Ok(Report { caches, tlb })
}

fn require_valgrind() -> Result<()> {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        bail!(
            "valgrind is not installed, which simulates caches: install the package valgrind (`apt-get install valgrind`), \
             or run `keepstone-bench misses tlb` for the model of TLBs alone"
        );
    }
    Ok(())
}

/// Counts per call: the difference between a long run and a short one under valgrind, so that
/// start-up does not count.
fn simulate(
    subject: &Subject,
    operation: Operation,
    record: usize,
    calls: u64,
    dir: &Path,
) -> Result<Row> {
    let warm = (calls / 10).max(10);
    let few = under_valgrind(subject, operation, record, warm, dir)?;
    let many = under_valgrind(subject, operation, record, warm + calls, dir)?;
    let each =
        |of: fn(&Counts<u64>) -> u64| of(&many).saturating_sub(of(&few)) as f64 / calls as f64;
    let per_call = Counts {
        instructions: each(|c| c.instructions),
        l1_instruction_misses: each(|c| c.l1_instruction_misses),
        ll_instruction_misses: each(|c| c.ll_instruction_misses),
        data: each(|c| c.data),
        l1_data_misses: each(|c| c.l1_data_misses),
        ll_data_misses: each(|c| c.ll_data_misses),
    };
    let (subject, operation) = (subject.name.to_owned(), operation.name(record));
    Ok(Row { subject, operation, calls, per_call })
}

/// Runs this program's `miss-loop` under cachegrind; returns its totals.
fn under_valgrind(
    subject: &Subject,
    operation: Operation,
    record: usize,
    calls: u64,
    dir: &Path,
) -> Result<Counts<u64>> {
    let out = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=cachegrind", "--cache-sim=yes", "--quiet"])
        .args(CACHES)
        .arg(format!("--cachegrind-out-file={}", out.path().display()))
        .arg(std::env::current_exe()?)
        .args(["miss-loop", subject.name, &operation.word(), &calls.to_string()])
        .args(["--record", &record.to_string(), "--dir"])
        .arg(dir)
        .stdout(Stdio::null());
    let shown = format!("{command:?}");
    crate::ramdisk::run(&mut command)?;
    let text = std::fs::read_to_string(out.path())?;
    parse(&text).with_context(|| format!("{shown} counted nothing that is understood"))
}

/// Returns the totals of a file of cachegrind: its lines `events:` and `summary:`.
fn parse(text: &str) -> Option<Counts<u64>> {
    let line = |key: &str| text.lines().rev().find_map(|line| line.strip_prefix(key));
    let names: Vec<&str> = line("events:")?.split_whitespace().collect();
    let values: Option<Vec<u64>> =
        line("summary:")?.split_whitespace().map(|value| value.parse().ok()).collect();
    let values = values?;
    let of = |name: &str| {
        let place = names.iter().position(|other| *other == name)?;
        values.get(place).copied()
    };
    Some(Counts {
        instructions: of("Ir")?,
        l1_instruction_misses: of("I1mr")?,
        ll_instruction_misses: of("ILmr")?,
        data: of("Dr")? + of("Dw")?,
        l1_data_misses: of("D1mr")? + of("D1mw")?,
        ll_data_misses: of("DLmr")? + of("DLmw")?,
    })
}

/// Runs the loop; called under valgrind.
pub fn work(name: &str, operation: Operation, calls: u64, record: usize, dir: &Path) -> Result<()> {
    let subject = subjects::all().into_iter().find(|subject| subject.name == name);
    let subject = subject.with_context(|| format!("{name}: not a configuration"))?;
    let pool = subject.pool(dir, 4 * FILE)?;
    let root = pool.root()?;
    let mut buf = Buffer::new(record);
    let record = record as u64;
    let records = FILE / record;
    let file = pool.create(&root, c"file")?;
    if operation.has_records() {
        let chunk = Buffer::new(1 << 20);
        for offset in (0..FILE).step_by(1 << 20) {
            pool.write(&file, offset, chunk.get())?;
        }
    }
    let mut rng = Rng::new(17);
    match operation {
        SequentialRead => {
            for i in 0..calls {
                pool.read(&file, i % records * record, buf.get_mut())?;
            }
        }
        RandomRead => {
            for _ in 0..calls {
                pool.read(&file, rng.below_fast(records) * record, buf.get_mut())?;
            }
        }
        SequentialWrite => {
            for i in 0..calls {
                pool.write(&file, i % records * record, buf.get())?;
            }
        }
        RandomWrite => {
            for _ in 0..calls {
                pool.write(&file, rng.below_fast(records) * record, buf.get())?;
            }
        }
        CreateUnlink => {
            for _ in 0..calls {
                pool.close(pool.create(&root, c"new")?);
                pool.unlink(&root, c"new")?;
            }
        }
        Operation::Postmark => {
            let scale = postmark::Scale { files: 1000, dirs: 10, ..postmark::Scale::TINY };
            let mut load = Postmark::new(&pool, postmark::MIXES[1], scale)?;
            load.create(scale.files as u64)?;
            load.transact(calls)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_found_by_their_names() {
        let text = "desc: I1 cache: 32768 B\ncmd: x\nevents: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nfl=a.c\nfn=f\n\
                    1 2 3 4 5 6 7 8 9 10\nsummary: 100 10 1 50 5 2 30 3 1\n";
        let counts = parse(text).unwrap();
        assert_eq!(counts.instructions, 100);
        assert_eq!((counts.l1_instruction_misses, counts.ll_instruction_misses), (10, 1));
        assert_eq!((counts.data, counts.l1_data_misses, counts.ll_data_misses), (80, 8, 3));
        assert_eq!(parse("events: Ir\nsummary: 1\n"), None);
        assert_eq!(parse(""), None);
        let rate = Counts { instructions: 200.0, l1_instruction_misses: 1.0, ..Counts::default() };
        assert_eq!(rate.instruction_miss_rate(), 0.005);
    }
}
