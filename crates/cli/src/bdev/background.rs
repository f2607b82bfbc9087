//! A server as a process of its own.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use fuse::StopSignals;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::output;

/// What the server sends, once, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Report<R> {
    Ready(R),
    Failed(String),
}

/// Starts this command line again as a server, and waits until it is ready. `command` is the word that
/// `--daemon` follows.
pub fn start<R: DeserializeOwned>(command: &str) -> Result<R> {
    let (log_path, log) = open_log()?;
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let at = args.iter().position(|word| word == command).context("the command is not there")?;
    args.insert(at + 1, "--daemon".into());
    let mut server = Command::new(std::env::current_exe()?)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the server")?;
    let mut line = String::new();
    let stdout = server.stdout.take().context("its output is piped")?;
    BufReader::new(stdout).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Report::Ready(ready)) => Ok(ready),
        Ok(Report::Failed(reason)) => {
            server.wait()?;
            Err(anyhow!(reason))
        }
        Err(_) => {
            let status = server.wait()?;
            let log = log_path.display();
            bail!("the server ended before it was ready ({status}); see {log}")
        }
    }
}

/// Is the server that [`start`] started: `serve` says when it is ready, and returns at its end.
pub fn serve<R: Serialize>(serve: impl FnOnce(&dyn Fn(&R) -> Result<()>) -> Result<()>) {
    // A session of its own, so that no terminal's signals reach it.
    let _ = rustix::process::setsid();
    let ready = |ready: &R| {
        send(&Report::Ready(ready))?;
        // Whoever started us is gone now, and so is the other end. No directory is kept from being
        // unmounted.
        rustix::stdio::dup2_stdout(File::open("/dev/null")?)?;
        Ok(std::env::set_current_dir("/")?)
    };
    if let Err(err) = serve(&ready) {
        output::error(&err);
        // After readiness nobody reads it; the log has it.
        let _ = send(&Report::<()>::Failed(format!("{err:#}")));
        std::process::exit(1);
    }
}

fn send<R: Serialize>(report: &Report<R>) -> Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    Ok(std::io::stdout().lock().write_all(line.as_bytes())?)
}

/// Waits until the process is told to end. The next time, it ends at once.
pub fn wait_for_signal(stop: StopSignals) {
    let (signal, sender) = stop.wait();
    tracing::info!("signal {signal} from process {sender}: stopping");
    std::thread::spawn(move || {
        let (signal, sender) = stop.wait();
        tracing::warn!("signal {signal} from process {sender}: leaving at once");
        std::process::exit(1);
    });
}

/// Where sockets and logs of servers are: `/run/keepstone/bdev` for root, for other users below their
/// own runtime directory.
pub fn runtime_dir() -> Result<PathBuf> {
    let root = rustix::process::geteuid().is_root();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if root => PathBuf::from("/run/keepstone"),
        Some(dir) => PathBuf::from(dir).join("keepstone"),
        None => {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("keepstone-{user}"))
        }
    };
    let dir = dir.join("bdev");
    make_private(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
    Ok(dir)
}

fn make_private(dir: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn open_log() -> Result<(PathBuf, File)> {
    let path = runtime_dir()?.join("servers.log");
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("{}: cannot open the log", path.display()))?;
    Ok((path, log))
}
