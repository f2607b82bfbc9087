//! The server as a process of its own.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::{Plan, Ready, serve};
use crate::{output, pool};

/// What the server sends, once, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Report {
    Ready(Ready),
    Failed(String),
}

/// Starts a server for `plan` and waits until it is ready.
pub fn start(plan: &Plan) -> Result<Ready> {
    let (log_path, log) = open_log(plan)?;
    let mut server = Command::new(std::env::current_exe()?)
        .args(arguments(plan))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the server")?;
    let mut line = String::new();
    let stdout = server.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line)?;
    match serde_json::from_str(&line) {
        Ok(Report::Ready(ready)) => Ok(ready),
        Ok(Report::Failed(reason)) => {
            server.wait()?;
            Err(anyhow!(reason))
        }
        Err(_) => {
            let status = server.wait()?;
            bail!(
                "{}: the server ended before it was ready ({status}); see {}",
                plan.pool.display(),
                log_path.display()
            )
        }
    }
}

/// Is the server that [`start`] started. Does not return before the mount ends.
pub fn serve(plan: &Plan) {
    // A session of its own, so that no terminal's signals reach it.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let mut uuid = String::new();
    let served = serve::run(plan, |ready| {
        uuid.clone_from(&ready.uuid);
        send(&Report::Ready(ready.clone()))?;
        // Whoever started us is gone now, and so is the other end.
        Ok(rustix::stdio::dup2_stdout(File::open("/dev/null")?)?)
    });
    if let Err(err) = served {
        output::error(&err);
        // After readiness nobody reads it; the log has it.
        let _ = send(&Report::Failed(format!("{err:#}")));
        std::process::exit(1);
    }
    remove_empty_log(&uuid);
}

fn send(report: &Report) -> Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    Ok(std::io::stdout().lock().write_all(line.as_bytes())?)
}

/// The command line that gives the server the same plan.
fn arguments(plan: &Plan) -> Vec<OsString> {
    let options = &plan.options;
    let mut args: Vec<OsString> = vec!["mount".into(), "--daemon".into()];
    let list = options.to_list();
    if !list.is_empty() {
        args.extend(["-o".into(), list.into()]);
    }
    args.extend(["--".into(), plan.pool.clone().into(), plan.dir.clone().into()]);
    args
}

/// The log of a pool's server: `/run/keepstone/UUID.log` for root, for other users below their
/// own runtime directory.
fn log_path(uuid: &str) -> PathBuf {
    let root = rustix::process::geteuid().is_root();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if root => PathBuf::from("/run/keepstone"),
        Some(dir) => PathBuf::from(dir).join("keepstone"),
        None => {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("keepstone-{user}"))
        }
    };
    dir.join(format!("{uuid}.log"))
}

fn open_log(plan: &Plan) -> Result<(PathBuf, File)> {
    let (info, _) = pool::info(&plan.pool)?;
    let path = log_path(&info.uuid.to_string());
    let opened = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path.parent().expect("it has a directory"))
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&path));
    let log = opened.with_context(|| format!("{}: cannot open the log", path.display()))?;
    Ok((path, log))
}

/// Leaves no log of a server that had nothing to say.
fn remove_empty_log(uuid: &str) {
    let path = log_path(uuid);
    if std::fs::metadata(&path).is_ok_and(|log| log.len() == 0) {
        let _ = std::fs::remove_file(path);
    }
}
