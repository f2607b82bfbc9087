//! Servers under comparison, as children of this process.

use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Starts a program that is told to end when this process does, however that ends.
pub fn start(words: &[PathBuf]) -> Result<Child> {
    Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run setpriv (package util-linux)")
}
