//! `keepstone-bench`: measures Keepstone against its peers, in one run.
//!
//! Reading order: [`rounds`] (the method), [`store`] and [`workload`] (systems and loads),
//! [`engine`], [`traffic`], [`scan`], [`fuse`], [`direct`], [`chell`], [`cached`], [`bdev`],
//! [`nbd`], [`sensitivity`] (measurements); of the paper on SCMFS, [`aging`], [`iozone`],
//! [`postmark`], [`scaling`], [`ratios`], [`misses`] and [`tlb`], on the engines that [`subjects`]
//! lists; [`targets`], with [`loads`] and [`statistics`] (`run` and `scale`, on targets of the
//! user); [`text`], [`tables`], [`report`], [`about`], [`plot`] and [`output`] (results). [`pool`],
//! [`inprocess`], [`kernels`], [`ramdisk`], [`looped`], [`peer`], [`flat`], [`mapped`], [`raw`] and
//! [`xdd`] make and use the contenders.

#[macro_use]
mod output;

mod about;
mod aging;
mod bdev;
mod cached;
mod chell;
mod direct;
mod engine;
mod flat;
mod fuse;
mod generate;
mod helper;
mod inprocess;
mod iozone;
mod kernels;
mod loads;
mod looped;
mod machine;
mod mapped;
mod misses;
mod nbd;
mod nbd_client;
mod peer;
mod plot;
mod pool;
mod posix;
mod postmark;
mod ramdisk;
mod ratios;
mod raw;
mod report;
mod rounds;
mod scaling;
mod scan;
mod sensitivity;
mod sizes;
mod statistics;
mod store;
mod subjects;
mod tables;
mod targets;
mod text;
mod tlb;
mod traffic;
mod workload;
mod xdd;

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use machine::Origin;
use pool::Backing;
use report::{Results, Section};
use rounds::{Clock, Plan};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use targets::{Amount, Amounts, Stopped, WrongUsage};

/// Measures directories, pools, caches and devices against each other (`run`), and how costs grow
/// (`scale`). The other commands make the measurements of Keepstone's documents.
#[derive(Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "\
Example: keepstone bench run tmpfs pool dir:/var/tmp --quick
         keepstone bench engine overwrite/4K read/4K --quick

Times are of use only relative to those of the peers in the same run.

The commands from `engine` to `misses` have two more options. --dram: pools in DRAM are not \
flushed, as by `run`; without it, DRAM is used as if it were persistent memory. --strict: the \
exit status is 1 if a row misses its target."
)]
struct Cli {
    /// Print results as JSON on stdout.
    #[arg(long, global = true)]
    json: bool,
    /// Write results as JSON to FILE too, for `report`.
    #[arg(long, value_name = "FILE", global = true, overrides_with = "save")]
    save: Option<PathBuf>,
    /// Measure less: fewer and shorter rounds, smaller files and pools.
    #[arg(long, global = true)]
    quick: bool,
    /// Measure next to nothing, to see that it works: of aging, iozone, postmark, ratios, scaling
    /// and misses.
    #[arg(long, global = true, hide = true)]
    tiny: bool,
    /// Exit with status 1 if a row misses its target; not of `run` and `scale`.
    #[arg(long, global = true, hide = true)]
    strict: bool,
    /// Measure pools in DRAM without flushes; writes of up to a page go through the caches.
    /// Without it, `run` and `scale` do so, too, and the others as if DRAM were persistent memory.
    #[arg(long, global = true, hide = true)]
    dram: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The same loads on targets of your choice, which are set up and removed.
    #[command(after_help = "\
Example: keepstone bench run tmpfs pool cache:/var/tmp dir:/var/tmp --quick --html bench.html
         keepstone bench run disk=dir:/srv pool:/mnt/pmem,layout=scmfs,mount --case fsync
         keepstone bench run tmpfs pool --save new.json --baseline old.json

Targets: dir:DIR       a new directory in DIR; with `direct`, under `keepstone run`
         tmpfs         the same in /dev/shm
         pool[:DIR]    a new pool in DIR (default /dev/shm), under `keepstone run`; options: mount
                       (through the mount), layout=bpfs|scmfs, size=BYTES, o=OPTIONS (of the mount,
                       with + for ,)
         pool:POOL     a pool that exists: files are made in a new directory and removed
         cache:DIR     a new directory in DIR, with a new pool as its cache; options: mount, size=
         bdev[:DIR]    ext4 on a block device whose pool is in DIR (root); size=
         loop[:DIR]    ext4 on a loop device on a file in DIR (root); size=
         device:FILE   a device: reads only, or with `overwrite` also writes, which destroy its data

The first target is measured twice; the ratio of both is the noise. Ratios are medians over \
rounds, with the interval that holds the true one with a probability of 95 %. `=` marks ratios \
that do not differ from the noise.

Exit status: 0 done; 1 a target or case failed; 2 wrong usage; 3 a ratio is worse than \
--baseline.")]
    Run(targets::RunArgs),
    /// Write the results of `run`, as --save has written them, as documents.
    #[command(after_help = "Example: keepstone bench page results.json --html bench.html")]
    Page {
        /// The results.
        results: PathBuf,
        #[command(flatten)]
        pages: targets::Pages,
    },
    /// The cost of operations by numbers and sizes of files, threads, processes and sizes of pools.
    #[command(after_help = "\
Example: keepstone bench scale pool tmpfs dir:/var/tmp --files 1000000 --html scale.html

Targets are those of `run`. Files: 1000, 10 000, … up to --files in one directory; of new pools \
also the time to mount and the DRAM for each file. Sizes: files of 1 MiB, 16 MiB, … up to --file, \
then sparse ones up to --sparse. Users: 1, 2, 4, … threads and processes up to --users. Pools: \
new ones of 1 GiB, 16 GiB, … up to --pool, which take space only as files need it.

Exit status: 0 done; 1 a target or a part failed; 2 wrong usage.")]
    Scale(targets::ScaleArgs),
    /// The process that works for `run` and `scale`.
    #[command(hide = true)]
    Worker(targets::WorkerArgs),
    /// Write the man pages, and print the commands and options as JSON, for `keepstone generate`.
    #[command(hide = true)]
    Generate {
        /// The directory of man pages.
        man: PathBuf,
    },
    /// The engine, called directly, against tmpfs, ext4 on a RAM disk (as root), and bare copies.
    Engine {
        #[command(flatten)]
        cases: Cases,
        /// Memory that stands in for persistent memory.
        #[arg(long, value_enum, default_value_t = Backing::Anonymous)]
        backing: Backing,
    },
    /// Bytes that the paper's microbenchmarks write to the medium.
    Traffic,
    /// Time to mount pools of up to a million files.
    Mount,
    /// Mounts of Keepstone against libfuse's passthrough examples over tmpfs (as root).
    Fuse {
        #[command(flatten)]
        cases: Cases,
        /// The keepstone program. Default: the one in the directory of this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
        /// Directory in which scripts/lib/peers.sh has put passthrough_ll and passthrough_hp.
        #[arg(long, default_value = ".work/peers")]
        peers: PathBuf,
        /// Let the scheduler place client and servers. Default: all on one CPU.
        #[arg(long)]
        unbound: bool,
    },
    /// Programs under `keepstone run` against the same programs on kernel file systems.
    Direct {
        #[command(flatten)]
        cases: Cases,
        /// Layout of the pool, as for `keepstone mkfs`.
        #[arg(long, default_value = "bpfs")]
        layout: String,
        /// The keepstone program, with libkeepstone.so in the same directory. Default: the one in
        /// the directory of this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Files of tmpfs under `keepstone run --direct` against the same calls by the kernel.
    Chell {
        #[command(flatten)]
        cases: Cases,
        /// The keepstone program, with libkeepstone.so in the same directory. Default: the one in
        /// the directory of this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Files of a cache over a directory under `keepstone run` against the page cache of the
    /// directory's file system.
    Cached {
        #[command(flatten)]
        cases: Cases,
        /// Place of the directory: on the file system that is cached.
        #[arg(long, default_value = "/var/tmp")]
        below: PathBuf,
        /// The keepstone program, with libkeepstone.so in the same directory. Default: the one in
        /// the directory of this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Block devices, called directly: protections, write schemes, atomic blocks.
    Bdev {
        #[command(flatten)]
        cases: Cases,
    },
    /// Block devices through their servers: NBD against nbdkit and qemu-nbd, loop devices (as
    /// root).
    Nbd {
        #[command(flatten)]
        cases: Cases,
        /// The keepstone program. Default: the one in the directory of this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Applications on block devices of memory that is 1 to 10 times slower for reading, 1 to 50
    /// times for writing (as root).
    Sensitivity {
        #[command(flatten)]
        cases: Cases,
        /// The keepstone program. Default: the one in the directory of this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Full pools after churning: free space in huge pages, runs of files, speed against new pools.
    #[command(after_help = "Example: keepstone bench aging scmfs/90 --churn 20 --quick

Cases are aging/ENGINE/LEVEL. Space is churned by fallocate, which takes it as writing does.")]
    Aging {
        #[command(flatten)]
        cases: Cases,
        /// Clock of the measurements; `cpu` for busy machines.
        #[arg(long, value_enum, default_value_t = Clock::Wall)]
        clock: Clock,
        /// Only engines of this layout: scmfs, bpfs. Default: all.
        #[arg(long)]
        layout: Option<String>,
        /// Multiple of its size that a pool is churned. Default: 100, with --quick 10.
        #[arg(long, value_name = "TIMES")]
        churn: Option<u64>,
        /// Size of pools in MiB. Default: 4096, with --quick 512.
        #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..))]
        pool: Option<u64>,
    },
    /// IOzone's workloads by records of 4 KiB to 8 MiB, against tmpfs, ramfs, ext2 and ext4 (as
    /// root) and bare copies.
    #[command(after_help = "Example: keepstone bench iozone 'random read' /4K --quick

Cases are iozone/WORKLOAD/RECORD; WORKLOAD is write, re-write, read, re-read, random read, random \
write, backward read or strided read.")]
    Iozone {
        #[command(flatten)]
        cases: Cases,
        /// Clock of the measurements; `cpu` for busy machines.
        #[arg(long, value_enum, default_value_t = Clock::Wall)]
        clock: Clock,
        /// The engine that the others are compared with: scmfs or bpfs.
        #[arg(long, default_value = "scmfs")]
        layout: String,
    },
    /// PostMark: 400 000 transactions on 10 000 files, read- and write-intensive, against the same
    /// systems.
    #[command(after_help = "Example: keepstone bench postmark write-intensive --quick

Cases are postmark/LOAD/PHASE; LOAD is read-intensive or write-intensive, PHASE create, \
transactions or remove. The number of rounds is fixed.")]
    Postmark {
        #[command(flatten)]
        cases: Cases,
        /// Clock of the measurements; `cpu` for busy machines.
        #[arg(long, value_enum, default_value_t = Clock::Wall)]
        clock: Clock,
        /// The engine that the others are compared with: scmfs or bpfs.
        #[arg(long, default_value = "scmfs")]
        layout: String,
    },
    /// Threads that read and write by calls and through mapped memory, as shares of what bare
    /// copies move.
    #[command(after_help = "Example: keepstone bench scaling read/4K --threads 4 --quick

Cases are scaling/KIND/RECORD/THREADS; KIND is read, write, or write-one, where all write to one \
file.")]
    Scaling {
        #[command(flatten)]
        cases: Cases,
        /// Clock of the measurements; `cpu` for busy machines.
        #[arg(long, value_enum, default_value_t = Clock::Wall)]
        clock: Clock,
        /// The engine that the others are compared with: scmfs or bpfs.
        #[arg(long, default_value = "scmfs")]
        layout: String,
        /// Most threads.
        #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
        threads: u8,
    },
    /// Overwriting, appending, creating, and mapped memory of SCMFS against tmpfs, and against
    /// SCMFS without pre-allocation.
    #[command(after_help = "Example: keepstone bench ratios append --quick

Cases are ratios/overwrite/4K, ratios/mapped/KIND, ratios/append/FILES and ratios/create/SIZE.")]
    Ratios {
        #[command(flatten)]
        cases: Cases,
        /// Clock of the measurements; `cpu` for busy machines.
        #[arg(long, value_enum, default_value_t = Clock::Wall)]
        clock: Clock,
    },
    /// Cache misses of calls, simulated by valgrind, and data-TLB misses, modelled.
    #[command(after_help = "Example: keepstone bench misses 'random read' tlb --quick

Cases are calls by their names in the table, and tlb.")]
    Misses {
        /// Parts of the names of calls to run, and `tlb`. Default: all.
        filter: Vec<String>,
        /// Only engines of this layout: scmfs, bpfs. Default: all.
        #[arg(long)]
        layout: Option<String>,
        /// Where pools are made; should be a tmpfs.
        #[arg(long, default_value = "/dev/shm")]
        dir: PathBuf,
    },
    /// The loop that `misses` runs under valgrind.
    #[command(hide = true)]
    MissLoop {
        /// Name of the configuration.
        subject: String,
        /// Operation of the loop.
        operation: misses::Operation,
        /// Number of calls.
        calls: u64,
        /// Bytes of the records that are read or written.
        #[arg(long, default_value_t = 4096)]
        record: usize,
        /// Directory of the pool.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Write saved results as documents and plots, one document for each subcommand.
    ///
    /// Example: keepstone bench report .work/bench/engine.json
    Report {
        /// The directory for documents and plots.
        #[arg(long, value_name = "DIR", default_value = "docs/measurements")]
        into: PathBuf,
        /// Files that `--save` has written.
        results: Vec<PathBuf>,
    },
}

/// The cases to run, and the place of files.
#[derive(Args)]
struct Cases {
    /// Parts of the names of cases to run. Default: all.
    filter: Vec<String>,
    /// Rounds of each case. Default: 31, with --quick 15.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Leave the peers out, to profile Keepstone alone.
    #[arg(long)]
    solo: bool,
    /// Where files are made; should be a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
}

impl Cases {
    /// Makes the plan. Slices are short, so that most rounds escape the scheduler on a busy
    /// machine, but not so short that refilling the caches after another contender dominates.
    fn plan(&self, quick: bool) -> Plan {
        let (rounds, slice_ms) = if quick { (15, 3) } else { (31, 20) };
        Plan {
            rounds: self.rounds.map_or(rounds, usize::from),
            slice: Duration::from_millis(slice_ms),
            filter: self.filter.clone(),
            solo: self.solo,
            clock: Clock::Wall,
            threads: 1,
        }
    }
}

impl Cli {
    /// Chooses one of three scales.
    fn scale<T>(&self, full: T, quick: T, tiny: T) -> T {
        match (self.tiny, self.quick) {
            (true, _) => tiny,
            (_, true) => quick,
            _ => full,
        }
    }

    /// Makes a plan as [`Cases::plan`], with fewer rounds for many cases and contenders.
    fn plan(&self, cases: &Cases, clock: Clock) -> Plan {
        let (rounds, slice_ms) = self.scale((11, 15), (7, 4), (1, 1));
        Plan {
            rounds: cases.rounds.map_or(rounds, usize::from),
            slice: Duration::from_millis(slice_ms),
            clock,
            ..cases.plan(self.quick)
        }
    }

    /// Runs a measurement of the paper on SCMFS; `None` for other commands.
    fn scmfs(&self) -> Result<Option<Section>> {
        Ok(Some(match &self.command {
            Command::Aging { cases, clock, layout, churn, pool } => {
                let mut scale =
                    self.scale(aging::Scale::full(), aging::Scale::quick(), aging::Scale::tiny());
                scale.churn = churn.unwrap_or(scale.churn);
                scale.pool = pool.map_or(scale.pool, |mib| mib << 20);
                let subjects = subjects::only(layout.as_deref())?;
                Section::Aging(aging::run(
                    &self.plan(cases, *clock),
                    &subjects,
                    &scale,
                    &cases.dir,
                )?)
            }
            Command::Iozone { cases, clock, layout } => {
                use iozone::Scale;
                let scale = self.scale(Scale::FULL, Scale::QUICK, Scale::TINY);
                let subjects = subjects::first_of(layout)?;
                Section::Iozone(iozone::run(
                    &self.plan(cases, *clock),
                    &subjects,
                    scale,
                    &cases.dir,
                )?)
            }
            Command::Postmark { cases, clock, layout } => {
                use postmark::Scale;
                let scale = self.scale(Scale::FULL, Scale::QUICK, Scale::TINY);
                let subjects = subjects::first_of(layout)?;
                Section::Postmark(postmark::run(
                    &self.plan(cases, *clock),
                    &subjects,
                    scale,
                    &cases.dir,
                )?)
            }
            Command::Scaling { cases, clock, layout, threads } => {
                use scaling::Scale;
                let full = Scale::up_to(usize::from(*threads));
                let scale = self.scale(full.clone(), full, Scale::tiny());
                let subjects = subjects::first_of(layout)?;
                Section::Scaling(scaling::run(
                    &self.plan(cases, *clock),
                    &subjects,
                    &scale,
                    &cases.dir,
                )?)
            }
            Command::Ratios { cases, clock } => {
                Section::Ratios(ratios::run(&self.plan(cases, *clock), &cases.dir)?)
            }
            Command::Misses { filter, layout, dir } => {
                use misses::Scale;
                let scale = self.scale(Scale::FULL, Scale::QUICK, Scale::TINY);
                let subjects = subjects::only(layout.as_deref())?;
                Section::Misses(misses::run(&subjects, filter, scale, dir)?)
            }
            _ => return Ok(None),
        }))
    }
}

fn programs(keepstone: Option<&Path>, peers: &Path) -> Result<fuse::Programs> {
    let keepstone = match keepstone {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("keepstone"),
    };
    Ok(fuse::Programs {
        keepstone: std::path::absolute(keepstone)?,
        layout: "bpfs".to_owned(),
        peers: peers.to_owned(),
    })
}

/// Reports that the user has stopped the program.
fn stopped(err: &anyhow::Error) -> ExitCode {
    tell!("{err}");
    ExitCode::from(Stopped::EXIT)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let status = work(&cli).unwrap_or_else(|err| {
        if cli.json {
            say!("{:#}", serde_json::json!({ "error": format!("{err:#}") }));
        } else {
            tell!("keepstone bench: {err:#}");
        }
        match err.is::<WrongUsage>() {
            true => ExitCode::from(WrongUsage::EXIT),
            false => ExitCode::FAILURE,
        }
    });
    if output::is_lost() { ExitCode::FAILURE } else { status }
}

#[allow(unsafe_code)]
fn work(cli: &Cli) -> Result<ExitCode> {
    if let Command::Worker(args) = &cli.command {
        targets::work(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Generate { man } = &cli.command {
        say!("{}", generate::run(Cli::command(), man)?);
        return Ok(ExitCode::SUCCESS);
    }
    // Children of this program inherit it.
    let as_pm = match &cli.command {
        Command::Run(args) => args.as_pm,
        Command::Scale(args) => args.as_pm,
        _ => !cli.dram,
    };
    // SAFETY: there is no other thread yet.
    unsafe { std::env::set_var("KEEPSTONE_DRAM_AS_PM", if as_pm { "1" } else { "" }) };
    let origin = Origin::here(!as_pm);
    let section = match &cli.command {
        Command::Run(args) => {
            let amount = cli.scale(Amount::FULL, Amount::QUICK, Amount::TINY);
            match targets::run(args, amount) {
                Err(err) if err.is::<Stopped>() => return Ok(stopped(&err)),
                report => Section::Targets(report?),
            }
        }
        Command::Scale(args) => {
            let amounts = cli.scale(Amounts::FULL, Amounts::QUICK, Amounts::TINY);
            match targets::scale(args, amounts) {
                Err(err) if err.is::<Stopped>() => return Ok(stopped(&err)),
                growth => Section::Growth(growth?),
            }
        }
        Command::Page { results, pages } => {
            let results = targets::saved(results)?;
            pages.write(&results)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Engine { cases, backing } => {
            Section::Engine(engine::run(&cases.plan(cli.quick), *backing, &cases.dir)?)
        }
        Command::Traffic => Section::Traffic(traffic::run()?),
        Command::Mount => Section::Mount(scan::run(cli.quick)?),
        Command::Fuse { cases, keepstone, peers, unbound } => {
            let programs = programs(keepstone.as_deref(), &std::path::absolute(peers)?)?;
            Section::Fuse(fuse::run(&cases.plan(cli.quick), &programs, &cases.dir, !unbound)?)
        }
        Command::Direct { cases, layout, keepstone } => {
            let programs = programs(keepstone.as_deref(), Path::new(""))?;
            let programs = fuse::Programs { layout: layout.clone(), ..programs };
            Section::Direct(direct::run(&cases.plan(cli.quick), &programs, &cases.dir)?)
        }
        Command::Chell { cases, keepstone } => {
            let programs = programs(keepstone.as_deref(), Path::new(""))?;
            Section::Chell(chell::run(&cases.plan(cli.quick), &programs, &cases.dir)?)
        }
        Command::Cached { cases, below, keepstone } => {
            let programs = programs(keepstone.as_deref(), Path::new(""))?;
            let plan = cases.plan(cli.quick);
            Section::Cached(cached::run(&plan, &programs, &cases.dir, below)?)
        }
        Command::Bdev { cases } => Section::Bdev(bdev::run(&cases.plan(cli.quick), &cases.dir)?),
        Command::Nbd { cases, keepstone } => {
            let programs = programs(keepstone.as_deref(), Path::new(""))?;
            Section::Nbd(nbd::run(&cases.plan(cli.quick), &programs.keepstone, &cases.dir)?)
        }
        Command::Sensitivity { cases, keepstone } => {
            let keepstone = programs(keepstone.as_deref(), Path::new(""))?.keepstone;
            Section::Sensitivity(sensitivity::run(&cases.plan(cli.quick), &keepstone, &cases.dir)?)
        }
        Command::Report { into, results } => {
            report::write(into, results)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::MissLoop { subject, operation, calls, record, dir } => {
            misses::work(subject, *operation, *calls, *record, dir)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => cli.scmfs()?.context("every command is one or the other")?,
    };
    let results = Results { origin, section };
    let json = serde_json::to_string_pretty(&results)?;
    if let Some(path) = &cli.save {
        std::fs::write(path, &json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if cli.json {
        say!("{json}");
    } else {
        results.print();
    }
    if let Command::Run(args) = &cli.command {
        args.pages.write(&results)?;
        let is_worse = targets::compare(args, results.targets()?)?;
        let failed = results.targets()?.failed() > 0;
        return Ok(match (is_worse, failed) {
            (true, _) => ExitCode::from(targets::EXIT_WORSE),
            (false, true) => ExitCode::FAILURE,
            (false, false) => ExitCode::SUCCESS,
        });
    }
    if let (Command::Scale(args), Section::Growth(growth)) = (&cli.command, &results.section) {
        args.write(&results.origin, growth)?;
        let failed = !growth.failures.is_empty();
        return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let failed = cli.strict && results.missed() > 0;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
