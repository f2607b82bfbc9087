//! `keepstone receive`

use std::fs::File;
use std::io::{self, BufReader, IsTerminal as _, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::pool::stream::{ReceiveError, StreamReader};
use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use pmem::{Access, OpenOptions};
use serde::Serialize;
use vfs::Errno;

use crate::snapshot::{attached, check_layout, roll_back_to};
use crate::{output, pool, size};

/// `keepstone receive`
#[derive(Debug, Args)]
pub struct ReceiveArgs {
    /// The pool: its path, its mount point, UUID=… or LABEL=…; or POOL@NAME, to give the snapshot
    /// another name than it has in the stream.
    pub pool: PathBuf,
    /// The file of the stream; `-`: stdin.
    #[arg(default_value = "-", conflicts_with = "abort")]
    pub file: PathBuf,
    /// Remove what has come of a snapshot that is not complete: POOL@NAME.
    #[arg(long)]
    pub abort: bool,
    /// Then make the snapshot the state of the pool, which no process uses.
    #[arg(long, conflicts_with = "abort")]
    pub rollback: bool,
}

#[derive(Debug, Serialize)]
struct Received {
    pool: String,
    snapshot: String,
    /// The base, as the sender names it. Null: the stream was full.
    from: Option<String>,
    /// The UUID of the sending pool.
    sender: String,
    /// Bytes of the stream.
    bytes: u64,
}

pub fn run(args: &ReceiveArgs, json: bool) -> Result<ExitCode> {
    let (path, name) = pool::absolute_with_snapshot(&args.pool)?;
    check_layout(&path)?;
    if args.abort {
        let Some(name) = name else {
            return Err(output::wrong_usage("name what is to be removed: POOL@NAME"));
        };
        return abort(&path, &name);
    }
    if args.rollback {
        drop(open_alone(&path)?);
    }
    let received = if args.file == Path::new("-") {
        if io::stdin().is_terminal() {
            let what = "stdin is a terminal; name a FILE, or a program before `|`";
            return Err(output::wrong_usage(what));
        }
        receive(&path, name, io::stdin().lock())?
    } else {
        let file = File::open(&args.file).with_context(|| args.file.display().to_string())?;
        receive(&path, name, file)?
    };
    if args.rollback {
        roll_back_to(&path, open_alone(&path)?, &received.snapshot)?;
    }
    if json {
        output::json(&received)?;
    } else {
        let snapshot = pool::of_snapshot(&path, &received.snapshot);
        say!("{}: received, {}", snapshot.display(), size::show(received.bytes));
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a pool that no other process uses.
fn open_alone(path: &Path) -> Result<pmem::Region> {
    pool::open(path, &OpenOptions::default(), Access::ReadWrite)
        .context("--rollback needs a pool that no process uses")
}

fn receive(path: &Path, name: Option<String>, source: impl Read) -> Result<Received> {
    let failed = |err: ReceiveError| anyhow::Error::new(err).context(path.display().to_string());
    let reader = StreamReader::new(BufReader::with_capacity(1 << 20, source))
        .map_err(|e| failed(e.into()))?;
    let head = reader.head();
    let snapshot = name.unwrap_or_else(|| head.snapshot.name.clone());
    let mut received = Received {
        pool: path.display().to_string(),
        snapshot: snapshot.clone(),
        from: head.base.as_ref().map(|base| base.name.clone()),
        sender: head.pool.to_string(),
        bytes: 0,
    };
    let region = pool::open_shared(path)?;
    let bar = super::bar();
    let done = engines::receive(region, &snapshot, reader, &mut |bytes| {
        received.bytes = bytes;
        bar.set_position(bytes);
    });
    bar.finish_and_clear();
    done.map(|()| received).map_err(|err| explain(err, path, &snapshot))
}

/// Explains why a snapshot was not received, and how to go on.
fn explain(err: ReceiveError, path: &Path, name: &str) -> anyhow::Error {
    let (pool, whole) = (path.display(), pool::of_snapshot(path, name));
    let shown = whole.display();
    let aborted = format!("`keepstone receive --abort {shown}` removes what has come");
    match err {
        ReceiveError::Exists(name) => {
            anyhow!("{pool}: has a snapshot {name} already; name another one: {pool}@NAME")
        }
        ReceiveError::Other(_) => {
            anyhow!("{shown}: is incomplete, and belongs to another stream; {aborted}")
        }
        ReceiveError::NoBase(base) => {
            anyhow!(
                "{pool}: has no snapshot that is the base {base} of the stream; receive that before"
            )
        }
        ReceiveError::Pool(::pool::Error::Errno(Errno::BUSY)) => {
            anyhow!("{shown}: another process receives it, or deletes it")
        }
        ReceiveError::Pool(::pool::Error::Errno(Errno::MLINK)) => {
            anyhow!("{pool}: has as many snapshots as it can have; delete one first")
        }
        err => {
            let err = match err {
                ReceiveError::Pool(::pool::Error::Errno(Errno::NOSPC)) => {
                    anyhow!("{pool}: no space for the snapshot")
                }
                err => anyhow::Error::new(err).context(shown.to_string()),
            };
            match token(path, name) {
                Some(token) => anyhow!(
                    "{err:#}\nWhat has come stays. Go on with `keepstone send … --resume {token} | keepstone receive {shown}`; {aborted}"
                ),
                None => err,
            }
        }
    }
}

/// Returns the token for what has come of a snapshot.
pub fn token(path: &Path, name: &str) -> Option<String> {
    let region = pool::open_to_look(path).ok()?;
    engines::stream_token(&region, name).ok()?.map(|token| token.to_string())
}

fn abort(path: &Path, name: &str) -> Result<ExitCode> {
    let shown = pool::of_snapshot(path, name);
    if token(path, name).is_none() {
        bail!("{}: is no incomplete snapshot", shown.display());
    }
    attached(path, |fs| match fs.delete_snapshot(name) {
        Err(Errno::BUSY) => bail!("{}: a process receives it; end that first", shown.display()),
        done => done.with_context(|| shown.display().to_string()),
    })?;
    say!("{}: removed", shown.display());
    Ok(ExitCode::SUCCESS)
}
