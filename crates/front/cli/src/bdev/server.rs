//! The process of a server: its start, the directory of its sockets, and its end.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use fuse::StopSignals;
use serde::de::DeserializeOwned;

use crate::background;

/// Starts this command line again as a server, and waits until it is ready. Inserts `--daemon`
/// after the word `command`.
pub fn start<R: DeserializeOwned>(command: &str) -> Result<R> {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let at = args.iter().position(|word| word == command).context("the command is not there")?;
    args.insert(at + 1, "--daemon".into());
    background::start(args, &runtime_dir()?.join("servers.log"))
}

/// Waits for a signal to end. The next signal ends the process at once.
pub fn wait_for_signal(stop: StopSignals) {
    let (signal, sender) = stop.wait();
    tracing::info!("signal {signal} from process {sender}: stopping");
    std::thread::spawn(move || {
        let (signal, sender) = stop.wait();
        tracing::warn!("signal {signal} from process {sender}: leaving at once");
        std::process::exit(1);
    });
}

/// Returns the directory of the sockets and logs of these servers.
pub fn runtime_dir() -> Result<PathBuf> {
    let dir = background::runtime_dir().join("bdev");
    background::make_private(&dir)?;
    Ok(dir)
}
