//! `keepstone send`

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::pool::stream::{SendError, SendRequest, StreamRecord, StreamToken, StreamWriter};
use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use pmem::Medium as _;
use serde::Serialize;

use crate::copies::replace_file;
use crate::snapshot::{check_layout, name};
use crate::{output, pool, size};

/// `keepstone send`
#[derive(Debug, Args)]
pub struct SendArgs {
    /// The snapshot: POOL@NAME; POOL is a path, a mount point, UUID=… or LABEL=….
    #[arg(value_name = "POOL@NAME")]
    pub snapshot: PathBuf,
    /// Send what differs from this older snapshot, which the receiver has. Default: everything.
    #[arg(long, value_name = "OLD", value_parser = name)]
    pub from: Option<String>,
    /// The file of the stream. Default: stdout.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Continue where a receiver has stopped, which has printed this token.
    #[arg(long, value_name = "TOKEN")]
    pub resume: Option<StreamToken>,
}

#[derive(Debug, Default, Serialize)]
struct Sent {
    pool: String,
    snapshot: String,
    /// Null: the stream is full.
    from: Option<String>,
    /// Bytes of the stream.
    bytes: u64,
    /// Bytes of contents in it.
    data_bytes: u64,
    /// Bytes that were read from the pool.
    read_bytes: u64,
    /// Inodes that are new or have changed.
    inodes: u64,
    /// Inodes that the base has and the snapshot has not.
    gone: u64,
}

pub fn run(args: &SendArgs, json: bool) -> Result<ExitCode> {
    if args.output.is_none() {
        if json {
            let what = "--json: the stream goes to stdout; name --output FILE";
            return Err(output::wrong_usage(what));
        }
        if io::stdout().is_terminal() {
            let what = "stdout is a terminal; name --output FILE, or a program after `|`";
            return Err(output::wrong_usage(what));
        }
    }
    let (path, snapshot) = pool::absolute_with_snapshot(&args.snapshot)?;
    let Some(snapshot) = snapshot else {
        let what = "name a snapshot: POOL@NAME; `keepstone snapshot create` makes one";
        return Err(output::wrong_usage(what));
    };
    check_layout(&path)?;
    check_names(&path, [Some(&snapshot), args.from.as_ref()])?;
    let request = SendRequest { snapshot, base: args.from.clone(), resume: args.resume };
    let sent = match &args.output {
        None => send(&path, &request, io::stdout().lock())?,
        Some(file) => replace_file(file, |to: &File| send(&path, &request, to))?,
    };
    if json {
        output::json(&sent)?;
    } else if args.output.is_some() {
        say!(
            "{}: {} inodes, {} gone, {}",
            pool::of_snapshot(&path, &request.snapshot).display(),
            sent.inodes,
            sent.gone,
            size::show(sent.bytes)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses names that are no complete snapshots, before the stream begins.
fn check_names(path: &Path, names: [Option<&String>; 2]) -> Result<()> {
    let all = engines::snapshots(&pool::open_to_look(path)?)?;
    for name in names.into_iter().flatten() {
        if !all.iter().any(|snapshot| !snapshot.is_incomplete && snapshot.name == *name) {
            return Err(explain(SendError::NoSnapshot(name.clone()), path));
        }
    }
    Ok(())
}

fn send(path: &Path, request: &SendRequest, out: impl Write) -> Result<Sent> {
    let bar = super::bar();
    let region = pool::open_to_look(path)?;
    let mut sent = Sent {
        pool: path.display().to_string(),
        snapshot: request.snapshot.clone(),
        from: request.base.clone(),
        ..Sent::default()
    };
    let mut writer = StreamWriter::new(BufWriter::with_capacity(1 << 20, out))?;
    let all = engines::send(&region, request, &mut |record| {
        match &record {
            StreamRecord::Inode(_) => sent.inodes += 1,
            StreamRecord::Data(_, _, bytes) => sent.data_bytes += bytes.len() as u64,
            StreamRecord::Gone(_, count) => sent.gone += count,
            _ => {}
        }
        writer.write(&record)?;
        bar.set_position(writer.bytes());
        Ok(())
    });
    all.map_err(|err| explain(err, path))?;
    sent.bytes = writer.bytes();
    sent.read_bytes = region.counters().snapshot().bytes_read;
    writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.flush()?;
    bar.finish_and_clear();
    Ok(sent)
}

/// Explains why a stream was not sent.
fn explain(err: SendError, path: &Path) -> anyhow::Error {
    let pool = path.display();
    match err {
        SendError::NoSnapshot(name) => anyhow!(
            "{pool}: has no snapshot {name}, or it is incomplete; `keepstone snapshot list {pool}` lists them"
        ),
        SendError::Sink(err) => anyhow::Error::new(err).context("the stream"),
        err => Err::<(), _>(err).context(pool.to_string()).expect_err("it is one"),
    }
}
