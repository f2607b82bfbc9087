//! Servers under comparison, as children of this process.

use anyhow::{Context as _, Result};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts a program as [`command`] does, without input and output.
pub fn start(words: &[PathBuf]) -> Result<Child> {
    let mut command = command(words);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("cannot run setpriv (package util-linux)")
}

/// Makes the command of a program that receives a signal to end when this process ends for any
/// reason. The keyboard does not signal it, so that this process can end it in order.
pub fn command(words: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).args(words).process_group(0);
    command
}

/// Waits until a program has ended by itself, and kills it if that takes longer than `within`.
pub fn end(child: &mut Child, within: Duration) {
    let deadline = Instant::now() + within;
    let has_ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
    while Instant::now() < deadline {
        if has_ended(child) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    // A process that waits for a broken device does not end; it is not waited for.
    for _ in 0..100 {
        if has_ended(child) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
