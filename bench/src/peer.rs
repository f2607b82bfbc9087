//! Servers under comparison, as children of this process.

use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Starts a program that receives a signal to end when this process ends for any reason.
pub fn start(words: &[PathBuf]) -> Result<Child> {
    Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run setpriv (package util-linux)")
}
