//! A server in a process of its own.
//!
//! The command starts itself again with `--daemon`, and waits for one line of JSON on the server's
//! standard output: the report that it is ready, or the reason why it is not.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Weak;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::output;

/// Returns the path of the log of the server of the pool with this UUID.
pub fn log_path(uuid: &str) -> PathBuf {
    runtime_dir().join(format!("{uuid}.log"))
}

/// Removes the log of a server if it is empty.
pub fn remove_if_empty(log: &Path) {
    if std::fs::metadata(log).is_ok_and(|log| log.len() == 0) {
        let _ = std::fs::remove_file(log);
    }
}

/// The line that the server sends, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Report<R> {
    Ready(R),
    Failed(String),
}

/// Returns whether standard error of this process is the journal of systemd (systemd.exec(5)). A
/// server in the background then logs there.
pub fn logs_to_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let found = rustix::fs::fstat(rustix::stdio::stderr());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Notifies systemd that the server is ready, if it runs as a service (`Type=notify`).
pub fn notify_ready() {
    if let Err(err) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!("cannot notify systemd: {err}");
    }
}

/// Starts a server with these arguments, whose standard error goes to the file `log` or to the
/// journal, and waits until it is ready.
pub fn start<R: DeserializeOwned>(args: Vec<OsString>, log: &Path) -> Result<R> {
    let stderr = if logs_to_journal() { Stdio::inherit() } else { open_log(log)?.into() };
    let mut server = Command::new(std::env::current_exe()?)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
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
            let (status, log) = (server.wait()?, log.display());
            bail!("the server ended before it was ready ({status}); see {log}")
        }
    }
}

/// Runs the server that [`start`] started. `serve` calls its argument when it is ready, and returns
/// at its end.
pub fn serve<R: Serialize>(serve: impl FnOnce(&dyn Fn(&R) -> Result<()>) -> Result<()>) {
    // A session of its own, so that no terminal's signals reach it.
    let _ = rustix::process::setsid();
    crate::log::serve();
    let ready = |ready: &R| {
        send(&Report::Ready(ready))?;
        // The process that started this one ends now, and with it the other end of the pipe. The
        // server also leaves its working directory, so that it keeps no file system from being
        // unmounted.
        rustix::stdio::dup2_stdout(File::open("/dev/null")?)?;
        Ok(std::env::set_current_dir("/")?)
    };
    if let Err(err) = serve(&ready) {
        output::error(&err, false);
        // After readiness no process reads this line; the log has the error.
        let _ = send(&Report::<()>::Failed(output::in_a_line(&err)));
        std::process::exit(1);
    }
}

fn send<R: Serialize>(report: &Report<R>) -> Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    Ok(std::io::stdout().lock().write_all(line.as_bytes())?)
}

/// Returns the directory of the sockets and logs of servers: `/run/keepstone` for root, a directory
/// in their own runtime directory for other users.
pub fn runtime_dir() -> PathBuf {
    let user = rustix::process::geteuid();
    // The XDG Base Directory Specification requires to ignore a relative path.
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        _ if user.is_root() => PathBuf::from("/run/keepstone"),
        Some(dir) => dir.join("keepstone"),
        None => std::env::temp_dir().join(format!("keepstone-{}", user.as_raw())),
    }
}

/// Creates a directory for this user alone, and its parents, unless they exist.
///
/// # Errors
/// If it, or [`runtime_dir`] above it, does not belong to this user, or other users may write
/// there: any user can create a directory in `/tmp`.
pub fn make_private(dir: &Path) -> Result<()> {
    let base = runtime_dir();
    if dir != base && dir.starts_with(&base) {
        make_one_private(&base)?;
    }
    make_one_private(dir)
}

fn make_one_private(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("{}: cannot be made", dir.display()))?;
    let found = dir.symlink_metadata().with_context(|| dir.display().to_string())?;
    let remedy = "remove it, or name another place in XDG_RUNTIME_DIR";
    if !found.is_dir() {
        bail!("{}: is no directory, and this program does not follow it; {remedy}", dir.display());
    }
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        bail!("{}: belongs to user {}, not to {user}; {remedy}", dir.display(), found.uid());
    }
    if found.mode() & 0o022 != 0 {
        bail!(
            "{}: other users may write there and mislead this program; `chmod go-w {0}`",
            dir.display()
        );
    }
    Ok(())
}

/// Opens the log of a server for appending, in a directory for this user alone.
fn open_log(log: &Path) -> Result<File> {
    make_private(log.parent().unwrap_or(Path::new("/")))?;
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(log).with_context(|| format!("{}: cannot open the log", log.display()))
}

/// Writes a file that only this user can read.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = || path.display().to_string();
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path).with_context(shown)?;
    file.write_all(bytes).with_context(shown)
}

/// Repeats `step` in a thread for as long as `of` exists: after `pause` if the step returned that
/// there is more to do, else after `every`.
pub fn maintain<T: ?Sized + Send + Sync + 'static>(
    of: Weak<T>,
    every: Duration,
    pause: Duration,
    step: impl Fn(&T) -> bool + Send + 'static,
) {
    std::thread::spawn(move || {
        while let Some(of) = of.upgrade() {
            let more = step(&of);
            drop(of);
            std::thread::sleep(if more { pause } else { every });
        }
    });
}
