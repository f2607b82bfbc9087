//! Sensitivity of applications to the speed of persistent memory (PMBD §V-C, Figure 15): SQLite,
//! and plain reads and writes, on ext4 on loop devices whose memory is emulated to be 1 to 10 times
//! slower for reading, or 1 to 50 times for writing.
//!
//! The paper uses tpch for reading much and tpcc for writing often; here these are a query over a
//! whole table that is not in the page cache, and short durable transactions. All contenders of a
//! case do the same in the same rounds, so the slowdown is a ratio within rounds, as everywhere.

use crate::looped::{BLOCK, Loop, Mount};
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::workload::Buffer;
use anyhow::{Context as _, Result, ensure};
use rng::Rng;
use rustix::fs::{Advice, OFlags};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Bytes of a device.
const DEVICE_BYTES: u64 = 192 << 20;

/// Bytes of the file for plain reads and writes.
const FILE_BYTES: u64 = 32 << 20;

/// Bytes of a sequential request.
const STREAM: usize = 256 << 10;

/// Slowdown factors, as in the paper.
const READ_FACTORS: [u32; 3] = [2, 5, 10];
const WRITE_FACTORS: [u32; 5] = [2, 5, 10, 20, 50];

/// Rows of the table that transactions change, and of the one that queries read.
const ACCOUNTS: u64 = 20_000;
const ITEMS: u64 = 60_000;

/// Transactions of one operation: enough that the message to the process that does them does not
/// count.
const TRANSACTIONS: u64 = 16;

/// The accesses that are made slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slowed {
    /// Reading.
    Reads,
    /// Writing.
    Writes,
}

impl Slowed {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Reads, Self::Writes];

    /// Returns its word in names of cases and options.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reads => "read",
            Self::Writes => "write",
        }
    }

    fn factors(self) -> &'static [u32] {
        match self {
            Self::Reads => &READ_FACTORS,
            Self::Writes => &WRITE_FACTORS,
        }
    }
}

/// The load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Transactions,
    Query,
    Random(Slowed),
    Stream(Slowed),
}

impl Load {
    const ALL: [Self; 6] = [
        Self::Transactions,
        Self::Query,
        Self::Random(Slowed::Reads),
        Self::Random(Slowed::Writes),
        Self::Stream(Slowed::Reads),
        Self::Stream(Slowed::Writes),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Transactions => "SQLite transactions",
            Self::Query => "SQLite query",
            Self::Random(Slowed::Reads) => "4K random reads",
            Self::Random(Slowed::Writes) => "4K random writes",
            Self::Stream(Slowed::Reads) => "256K sequential reads",
            Self::Stream(Slowed::Writes) => "256K sequential writes",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Transactions => {
                "16 of three updates and an insertion, committed and durable (WAL, synchronous=full)"
            }
            Self::Query => "a sum over a table of 8 MiB that is not in the page cache",
            Self::Random(_) | Self::Stream(_) => "O_DIRECT in a file of 32 MiB",
        }
    }
}

/// Runs the cases, as root. Devices are made in `dir`, which should be a tmpfs.
pub fn run(plan: &Plan, keepstone: &Path, dir: &Path) -> Result<Vec<Outcome>> {
    ensure!(rustix::process::geteuid().is_root(), "loop devices are for root; run as root");
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let mut outcomes = Vec::new();
    let dram = Machine::start("1×", keepstone, tmp.path(), None)?;
    for slowed in Slowed::ALL {
        let start = |factor: &u32| {
            let emulate = format!("{}={factor}x", slowed.word());
            Machine::start(&format!("{factor}×"), keepstone, tmp.path(), Some(&emulate))
        };
        let slower = slowed.factors().iter().map(start).collect::<Result<Vec<_>>>()?;
        for load in Load::ALL {
            let name = format!("{}/{}", slowed.word(), load.name());
            let mut case = Case::new(name, load.what());
            for machine in std::iter::once(&dram).chain(&slower) {
                case = case.with(machine.contender(load));
            }
            plan.run(case, &mut outcomes)?;
        }
    }
    Ok(outcomes)
}

/// Returns the factor that the name of a contender stands for.
pub fn factor(name: &str) -> Option<f64> {
    name.strip_suffix('×')?.parse().ok()
}

/// A device of some speed, with the loads that run on it.
struct Machine {
    name: String,
    transactions: RefCell<Session>,
    query: RefCell<Session>,
    items: File,
    file: File,
    // Dropped in this order, after all that uses them.
    _mount: Mount,
    _device: Loop,
}

impl Machine {
    /// Makes a device with an ext4 and two databases on it. `emulate` is the option that slows
    /// memory down.
    fn start(name: &str, keepstone: &Path, dir: &Path, emulate: Option<&str>) -> Result<Self> {
        let mut options = vec!["--through", "server"];
        if let Some(emulate) = emulate {
            options.extend(["--emulate", emulate]);
        }
        let device = Loop::keepstone(keepstone, dir, DEVICE_BYTES, &options)?;
        let mount = device.ext4()?;
        let mut transactions = Session::start(&mount.path().join("accounts"))?;
        transactions.run(&format!(
            "PRAGMA journal_mode=wal; PRAGMA synchronous=full;
             CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, filler BLOB);
             CREATE TABLE history (account INTEGER, amount INTEGER, filler BLOB);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ACCOUNTS})
             INSERT INTO account SELECT i, 0, randomblob(80) FROM n;"
        ))?;
        let mut query = Session::start(&mount.path().join("items"))?;
        query.run(&format!(
            "CREATE TABLE item (price INTEGER, quantity INTEGER, filler BLOB);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ITEMS})
             INSERT INTO item SELECT i % 97, i % 13, randomblob(120) FROM n;
             PRAGMA cache_size=64;"
        ))?;
        let items = File::open(mount.path().join("items"))?;
        items.sync_all()?;
        let direct = OFlags::DIRECT.bits() as i32;
        let mut file = File::options();
        let file = file.read(true).write(true).create(true).truncate(true).custom_flags(direct);
        let file = file.open(mount.path().join("file"))?;
        let data = Buffer::new(1 << 20);
        for off in (0..FILE_BYTES).step_by(1 << 20) {
            file.write_all_at(data.get(), off)?;
        }
        file.sync_all()?;
        Ok(Self {
            name: name.to_owned(),
            transactions: transactions.into(),
            query: query.into(),
            items,
            file,
            _mount: mount,
            _device: device,
        })
    }

    /// Returns the contender of this machine under a load.
    fn contender(&self, load: Load) -> Contender<'_> {
        let mut rng = Rng::new(9);
        match load {
            Load::Transactions => Contender::new(&self.name, move |ops| {
                let mut script = String::new();
                for _ in 0..ops * TRANSACTIONS {
                    transaction(&mut script, &mut rng);
                }
                self.transactions.borrow_mut().run(&script).map_err(|_| vfs::Errno::IO)
            }),
            Load::Query => Contender::new(&self.name, |ops| {
                (0..ops).try_for_each(|_| {
                    rustix::fs::fadvise(&self.items, 0, None, Advice::DontNeed)
                        .map_err(|_| vfs::Errno::IO)?;
                    let sum = "SELECT sum(price * quantity) FROM item;";
                    self.query.borrow_mut().run(sum).map_err(|_| vfs::Errno::IO)
                })
            }),
            Load::Random(verb) => self.plain(verb, BLOCK, move |places| rng.below_fast(places)),
            Load::Stream(verb) => {
                let mut next = 0;
                self.plain(verb, STREAM, move |places| (next % places, next += 1).0)
            }
        }
    }

    /// Returns a contender that makes requests of `len` bytes, at multiples of that.
    fn plain<'a>(
        &'a self,
        verb: Slowed,
        len: usize,
        mut place: impl FnMut(u64) -> u64 + 'a,
    ) -> Contender<'a> {
        let mut buffer = Buffer::new(len);
        Contender::new(&self.name, move |ops| {
            (0..ops).try_for_each(|_| {
                let off = place(FILE_BYTES / len as u64) * len as u64;
                let done = match verb {
                    Slowed::Reads => self.file.read_exact_at(buffer.get_mut(), off),
                    Slowed::Writes => self.file.write_all_at(buffer.get(), off),
                };
                done.map_err(|_| vfs::Errno::IO)
            })
        })
    }
}

/// Appends a transaction to a script of SQLite.
fn transaction(script: &mut String, rng: &mut Rng) {
    script.push_str("BEGIN;\n");
    for _ in 0..3 {
        let account = 1 + rng.below_fast(ACCOUNTS);
        let _ = writeln!(script, "UPDATE account SET balance = balance + 1 WHERE id = {account};");
    }
    let account = 1 + rng.below_fast(ACCOUNTS);
    let _ = writeln!(script, "INSERT INTO history VALUES ({account}, 3, zeroblob(40)); COMMIT;");
}

/// A process of SQLite's shell that has a database open.
struct Session {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Session {
    /// Opens a database in a process of SQLite's shell.
    fn start(database: &Path) -> Result<Self> {
        let mut child = Command::new("stdbuf")
            .args(["-o0", "sqlite3", "-bail"])
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run stdbuf (package coreutils)")?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        Ok(Self { child, orders, answers })
    }

    /// Runs a script to its end.
    fn run(&mut self, script: &str) -> Result<()> {
        const END: &str = "end of script";
        let orders = self.orders.as_mut().expect("open until it is dropped");
        writeln!(orders, "{script}\n.print {END}")?;
        let mut line = String::new();
        while line.trim_end() != END {
            line.clear();
            ensure!(self.answers.read_line(&mut line)? > 0, "sqlite3 failed; is it installed?");
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}
