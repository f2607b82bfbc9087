//! Commands of users for single files, through attributes that only the cache has.
//!
//! A command is an extended attribute named [`COMMANDS`] and the command's name. Reading it runs
//! commands that change nothing visible and need only the right to read the file. Setting it, to
//! any value, runs those that need the right to write. No other file system accepts such names, so
//! a command that reaches the wrong one fails without effect.

use serde::{Deserialize, Serialize};
use vfs::{COMMANDS, Errno, Result, Right};

/// A command for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Return the status of the file in the cache.
    Status,
    /// Read all of it into the cache.
    Warm,
    /// Read all of it into the cache and keep it there.
    Pin,
    /// Remove the pin.
    Unpin,
    /// Write back the file; for the root: all files.
    Flush,
    /// Write back the file, and drop its cached data.
    Invalidate,
    /// Resolve the conflict of an inode: keep what the cache has.
    KeepCache,
    /// Resolve the conflict of an inode: keep what the directory has.
    KeepDirectory,
}

/// The status of a file in a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// The size of the file in bytes.
    pub size_bytes: u64,
    /// Bytes of it that are in the pool.
    pub cached_bytes: u64,
    /// Bytes that are not written back yet.
    pub dirty_bytes: u64,
    /// Whether it is pinned.
    pub is_pinned: bool,
    /// The guarantee for writes.
    pub mode: String,
}

impl Command {
    /// All commands, with their names.
    pub const NAMES: [(Self, &str); 8] = [
        (Self::Status, "status"),
        (Self::Warm, "warm"),
        (Self::Pin, "pin"),
        (Self::Unpin, "unpin"),
        (Self::Flush, "flush"),
        (Self::Invalidate, "invalidate"),
        (Self::KeepCache, "keep-cache"),
        (Self::KeepDirectory, "keep-directory"),
    ];

    /// Returns the name of its attribute.
    pub fn attribute(self) -> String {
        let named = Self::NAMES.iter().find(|(command, _)| *command == self);
        format!("{COMMANDS}{}", named.map_or("", |(_, name)| name))
    }

    /// Returns whether it needs only the right to read the file.
    pub fn only_reads(self) -> bool {
        matches!(self, Self::Status | Self::Warm)
    }

    /// Returns the command of an attribute, if the name has the prefix of commands; `EOPNOTSUPP`
    /// for an unknown command.
    pub(crate) fn of_attribute(name: &[u8]) -> Option<Result<Self>> {
        let name = name.strip_prefix(COMMANDS.as_bytes())?;
        let found = Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name);
        Some(found.map(|(command, _)| *command).ok_or(Errno::OPNOTSUPP))
    }
}

/// Returns the right that is needed to read or change an attribute of this name. Only the owner may
/// reserve space or release it. Warming needs the right to read.
pub fn right(name: &[u8], _changes: bool) -> Right {
    match Command::of_attribute(name) {
        // It may remove what belongs to others, in either of them.
        Some(Ok(Command::KeepCache | Command::KeepDirectory)) => Right::Server,
        Some(Ok(Command::Pin | Command::Unpin | Command::Invalidate)) => Right::Owner,
        _ => Right::Anyone,
    }
}
