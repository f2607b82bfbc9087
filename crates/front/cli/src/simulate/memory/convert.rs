//! `keepstone simulate memory import` and `export`: traces of other simulators.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use memsim::caches::{AnySink, OrderingMode, Simulator};
use memsim::crash_text;
use memsim::foreign::{self, TextFormat, TextWriter};

use super::hardware::HardwareArgs;
use crate::copies::replace_file;
use crate::output;

/// `keepstone simulate memory import`
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A text of another simulator.
    pub text: PathBuf,
    /// The memory trace to write.
    pub trace: PathBuf,
    /// Format of TEXT: ramulator2 (LoadStoreTrace), dramsim3, nvmain or gem5.
    #[arg(long, value_name = "FORMAT")]
    pub from: TextFormat,
    /// Nanoseconds of a cycle.
    #[arg(long, value_name = "NS", default_value_t = 1.0, value_parser = cycle)]
    pub cycle: f64,
}

/// `keepstone simulate memory export`
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A memory trace.
    pub trace: PathBuf,
    /// The text to write.
    pub text: PathBuf,
    /// Format of TEXT: ramulator2 (LoadStoreTrace), dramsim3, nvmain, gem5, or crash: for
    /// `keepstone crashtest --from-trace`; TRACE must have the stored bytes.
    #[arg(long, value_name = "FORMAT")]
    pub to: ExportFormat,
    /// Nanoseconds of a cycle.
    #[arg(long, value_name = "NS", default_value_t = 1.0, value_parser = cycle)]
    pub cycle: f64,
    /// Write what reaches the memory behind the caches, in this ordering mode, instead of all
    /// loads and stores.
    #[arg(long, value_name = "MODE")]
    pub through: Option<OrderingMode>,
    #[command(flatten)]
    pub hardware: HardwareArgs,
}

/// A format to export to.
#[derive(Clone, Copy, Debug)]
pub enum ExportFormat {
    Simulator(TextFormat),
    Crash,
}

impl FromStr for ExportFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "crash" => Ok(Self::Crash),
            _ => name.parse().map(Self::Simulator).map_err(|err| format!("{err}, crash")),
        }
    }
}

fn cycle(text: &str) -> Result<f64> {
    let ns: f64 = text.parse()?;
    ensure!((1e-3..=1e6).contains(&ns), "a number of nanoseconds, for example 0.5");
    Ok(ns)
}

pub fn import(args: &ImportArgs, json: bool) -> Result<()> {
    let named = || args.text.display().to_string();
    let input = BufReader::new(File::open(&args.text).with_context(named)?);
    let end = replace_file(&args.trace, |file| {
        foreign::import(args.from, input, args.cycle, file.try_clone()?).with_context(named)
    })?;
    if json {
        return output::json(&serde_json::json!({ "events": end.events }));
    }
    say!("{}: {} accesses", args.trace.display(), end.events);
    Ok(())
}

pub fn export(args: &ExportArgs, json: bool) -> Result<()> {
    let named = || args.trace.display().to_string();
    let mut reader = super::open(&args.trace)?;
    let config = args.hardware.config(args.through.unwrap_or(OrderingMode::Clwb))?;
    let ExportFormat::Simulator(format) = args.to else {
        if args.through.is_some() {
            return Err(output::wrong_usage("--to crash: it has no caches, so not with --through"));
        }
        let lines = crash_text::export(&mut reader, create(&args.text)?).with_context(named)?;
        return exported(args, json, lines, 0);
    };
    let mut writer = TextWriter::new(format, create(&args.text)?, args.cycle);
    let left_out = match args.through {
        None => writer.export(&mut reader).with_context(named)?,
        Some(_) => {
            let sink: AnySink<'_> = Some(&mut writer);
            let mut simulator = Simulator::new(config, sink)?;
            args.hardware.replay(&mut simulator, &mut reader).with_context(named)?;
            simulator.finish();
            0
        }
    };
    let accesses = writer.finish().with_context(|| args.text.display().to_string())?;
    exported(args, json, accesses, left_out)
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    Ok(BufWriter::new(File::create(path).with_context(|| path.display().to_string())?))
}

fn exported(args: &ExportArgs, json: bool, accesses: u64, left_out: u64) -> Result<()> {
    if json {
        return output::json(&serde_json::json!({ "accesses": accesses, "left_out": left_out }));
    }
    say!("{}: {accesses} accesses", args.text.display());
    if left_out > 0 {
        say!("left out, because the format has no word for them: {left_out} flushes and fences");
    }
    Ok(())
}
