//! What there is where the program was built without the feature.

use std::path::Path;

use anyhow::{Result, bail};

use crate::bdev::devices::Opened;
use crate::bdev::kernel::Attached;

const REMEDY: &str =
    "this keepstone has no ublk: build it with `cargo build --release --features ublk`";

/// Why this program cannot use ublk.
pub fn missing() -> Option<&'static str> {
    Some(REMEDY)
}

/// Does not exist.
pub enum LeftBehind {}

/// None.
pub fn left_behind(_pool: &Path) -> Result<Option<LeftBehind>> {
    Ok(None)
}

/// There is none.
pub fn let_go(_device: &str) -> Result<bool> {
    Ok(false)
}

/// Fails.
pub fn attach(
    _opened: &Opened,
    _block: u32,
    _queues: usize,
    _depth: u16,
    _left: Option<LeftBehind>,
) -> Result<Attached> {
    bail!("{REMEDY}")
}
