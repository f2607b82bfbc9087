//! Stubs for a build without the feature `ublk`.

use std::path::Path;

use anyhow::{Result, bail};

use crate::bdev::devices::Opened;
use crate::bdev::kernel::Attached;

const REMEDY: &str =
    "this keepstone has no ublk: build it with `cargo build --release --features ublk`";

/// Returns why this program cannot use ublk.
pub fn missing() -> Option<&'static str> {
    Some(REMEDY)
}

/// A type without values: such a device cannot exist.
pub enum LeftBehind {}

/// Finds no device.
pub fn left_behind(_pool: &Path) -> Result<Option<LeftBehind>> {
    Ok(None)
}

/// Releases no device.
pub fn let_go(_device: &str) -> Result<bool> {
    Ok(false)
}

/// Always fails.
pub fn attach(
    _opened: &Opened,
    _block: u32,
    _queues: usize,
    _depth: u16,
    _left: Option<LeftBehind>,
) -> Result<Attached> {
    bail!("{REMEDY}")
}
