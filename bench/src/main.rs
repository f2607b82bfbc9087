//! `keepstone-bench`: measures Keepstone against its peers, in one run.
//!
//! Reading order: [`rounds`] (the method), [`store`] and [`workload`] (who does what), [`engine`],
//! [`traffic`], [`scan`], [`fuse`], [`direct`], [`chell`], [`bdev`], [`nbd`], [`sensitivity`] (what is measured),
//! [`text`], [`report`] and [`plot`] (results). [`pool`], [`ramdisk`], [`looped`], [`peer`] and [`raw`] make and use
//! what is compared.

mod bdev;
mod chell;
mod direct;
mod engine;
mod fuse;
mod helper;
mod looped;
mod machine;
mod nbd;
mod nbd_client;
mod peer;
mod plot;
mod pool;
mod posix;
mod ramdisk;
mod raw;
mod report;
mod rounds;
mod scan;
mod sensitivity;
mod store;
mod text;
mod traffic;
mod workload;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use machine::Origin;
use pool::Backing;
use report::{Results, Section};
use rounds::Plan;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measures Keepstone against tmpfs, ext4, bare copies and other FUSE servers, in one run.
#[derive(Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "\
Example: keepstone-bench engine overwrite/4K read/4K --quick

Times are of use only relative to those of the peers in the same run."
)]
struct Cli {
    /// Print results as JSON on stdout.
    #[arg(long, global = true)]
    json: bool,
    /// Write results as JSON to FILE too, for `report`.
    #[arg(long, value_name = "FILE", global = true, overrides_with = "save")]
    save: Option<PathBuf>,
    /// Measure less: 15 rounds, shorter ones, smaller pools.
    #[arg(long, global = true)]
    quick: bool,
    /// Exit with status 1 where a target is missed.
    #[arg(long, global = true)]
    strict: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The engine, called directly, against tmpfs, ext4 on a RAM disk (as root), and bare copies.
    Engine {
        #[command(flatten)]
        cases: Cases,
        /// What stands in for persistent memory.
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
        /// The keepstone program. Default: the one beside this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
        /// Where scripts/lib-peers.sh has put passthrough_ll and passthrough_hp.
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
        /// What the pool is laid out for, as `keepstone mkfs` has it.
        #[arg(long, default_value = "bpfs")]
        layout: String,
        /// The keepstone program, with libkeepstone.so beside it. Default: the one beside this
        /// program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Files of tmpfs under `keepstone run --direct` against the same calls by the kernel.
    Chell {
        #[command(flatten)]
        cases: Cases,
        /// The keepstone program, with libkeepstone.so beside it. Default: the one beside this
        /// program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Block devices, called directly: protections, write schemes, atomic blocks.
    Bdev {
        #[command(flatten)]
        cases: Cases,
    },
    /// Block devices through their servers: NBD against nbdkit and qemu-nbd, loop devices (as root).
    Nbd {
        #[command(flatten)]
        cases: Cases,
        /// The keepstone program. Default: the one beside this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Applications on block devices of memory that is 1 to 10 times slower for reading, 1 to 50 times for writing
    /// (as root).
    Sensitivity {
        #[command(flatten)]
        cases: Cases,
        /// The keepstone program. Default: the one beside this program.
        #[arg(long)]
        keepstone: Option<PathBuf>,
    },
    /// Put saved results into the tables of a document.
    Report {
        /// The document, with the places marked `<!-- bench: NAME -->` to `<!-- bench end -->`.
        #[arg(long, default_value = "docs/PERFORMANCE.md")]
        into: PathBuf,
        /// What `--save` has written.
        results: Vec<PathBuf>,
    },
}

/// What cases to run, and where.
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
    /// Slices are short, so that most rounds escape the scheduler on a busy machine; but not so short that
    /// mostly what the contender before has driven from the caches is measured.
    fn plan(&self, quick: bool) -> Plan {
        let (rounds, slice_ms) = if quick { (15, 3) } else { (31, 20) };
        Plan {
            rounds: self.rounds.map_or(rounds, usize::from),
            slice: Duration::from_millis(slice_ms),
            filter: self.filter.clone(),
            solo: self.solo,
        }
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

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let origin = Origin::here();
    let section = match &cli.command {
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
            report::update(into, results)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let results = Results { origin, section };
    let json = serde_json::to_string_pretty(&results)?;
    if let Some(path) = &cli.save {
        std::fs::write(path, &json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if cli.json {
        println!("{json}");
    } else {
        results.print();
    }
    let failed = cli.strict && results.missed() > 0;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
