//! Commands of users for single files, through attributes that only the cache has.
//!
//! A command is an extended attribute named [`COMMANDS`] and the command's name. Reading it runs
//! commands that change nothing visible and need only the right to read the file. Setting it, to
//! any value, runs those that need the right to write. No other file system accepts such names, so
//! a command that reaches the wrong one fails without effect.
//!
//! - **control-A1** A pinned file is not evicted, before and after a restart, until it is unpinned
//!   or removed (within the bounds of pins-P1 and pins-P2). It is still dropped and read again
//!   after other processes change it in the backing store. Only the file's owner and root set and
//!   remove pins.

use crate::content::FETCH_MAX;
use crate::delegate::DELEGATION;
use crate::drain::is_being_written_back;
use crate::node::{CacheNode, CacheNodeState, Cnode};
use crate::options::Mode;
use crate::record::Flags;
use crate::{BLOCK, Cache, write};
use backing::Backing;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use vfs::{Errno, FileKind, FileSystem, Ino, Result, Right, Seek, SetAttr};

/// The prefix of attributes that are commands.
pub const COMMANDS: &str = "keepstone.cache.";

/// The attribute with the guarantee for writes to one file: the name of a [`Mode`]. It is stored
/// with the backing file.
pub const DATA: &str = "user.keepstone.data";

/// The attribute with the time for which the cache relies on a comparison with the backing store,
/// in ns, in decimal. Every file has it, unless the cache compares at each call.
pub const COHERENCE: &str = "keepstone.cache.coherence";

/// The time between two looks at a file that another thread writes back.
const WAIT: Duration = Duration::from_millis(1);
/// The number of attempts to write back a file that is written to meanwhile.
const TRIES: usize = 64;

/// A command for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Return the status of the file in the cache.
    Status,
    /// Read all of it into the cache.
    Warm,
    /// Read all of it into the cache and keep it there (control-A1).
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
/// reserve space, release it, or change the guarantee for writes. Warming needs the right to read.
pub fn right(name: &[u8], changes: bool) -> Right {
    match Command::of_attribute(name) {
        // It may remove what belongs to others, in either of them.
        Some(Ok(Command::KeepCache | Command::KeepDirectory)) => Right::Server,
        _ if name == DELEGATION.as_bytes() => Right::Writer,
        Some(Ok(Command::Pin | Command::Unpin | Command::Invalidate)) => Right::Owner,
        None if changes && name == DATA.as_bytes() => Right::Owner,
        _ => Right::Anyone,
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Returns the guarantee for writes to a file: that of its attribute, or else the one of the
    /// cache.
    pub(crate) fn mode_of(&self, ino: Ino, state: &mut CacheNodeState) -> Mode {
        if let Some(mode) = state.mode {
            return mode;
        }
        // An unreadable attribute counts as missing.
        let own = self.backing.getxattr(ino, DATA.as_bytes()).ok().and_then(|text| parse(&text));
        *state.mode.insert(own.unwrap_or(self.options.mode))
    }

    /// Checks a value for the attribute of the guarantee for writes.
    ///
    /// # Errors
    /// `EINVAL` if it is not a mode, or the inode is not a regular file.
    pub(crate) fn check_mode(&self, ino: Ino, value: &[u8]) -> Result<()> {
        let is_file = self.backing.getattr(ino)?.kind == FileKind::File;
        if is_file && parse(value).is_some() { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Runs a command that only reads. Returns the status of the file afterwards: [`FileStatus`] in
    /// JSON.
    ///
    /// # Errors
    /// `EPERM` for other commands. For warming, `ENOSPC` if the pool cannot hold the file.
    pub(crate) fn control(&self, ino: Ino, command: Command) -> Result<Vec<u8>> {
        if !command.only_reads() {
            return Err(Errno::PERM);
        }
        let node = self.file(ino, Errno::INVAL)?;
        if command == Command::Warm {
            self.warm(&node)?;
        }
        serde_json::to_vec(&self.file_status(&node)?).map_err(|_| Errno::IO)
    }

    /// Runs a command.
    ///
    /// # Errors
    /// As [`control`](Self::control) for warming; `ENOSPC` and `EDQUOT` for pinning beyond the
    /// limits (pins-P1); errors of the backing store for writing back. `EROFS` in a read-only
    /// cache.
    pub(crate) fn control_to_change(&self, ino: Ino, command: Command) -> Result<()> {
        if self.options.read_only {
            return Err(Errno::ROFS);
        }
        if command == Command::Flush && ino == self.backing.root() {
            return self.drain_all(&|_| {});
        }
        let node = self.file(ino, Errno::INVAL)?;
        match command {
            Command::Status => Ok(()),
            Command::Warm => self.warm(&node),
            Command::Pin => {
                self.set_pinned(&node, true)?;
                // After a failure the file stays pinned, to be warmed again or unpinned.
                self.warm(&node)
            }
            Command::Unpin => self.set_pinned(&node, false),
            Command::Flush => self.flush(&node),
            Command::Invalidate => self.invalidate(&node),
            Command::KeepCache | Command::KeepDirectory => Err(Errno::OPNOTSUPP),
        }
    }

    /// Reads all of a file into the cache, a piece at a time, so that other threads can use it in
    /// between.
    pub(crate) fn warm(&self, node: &CacheNode) -> Result<()> {
        let mut at = 0;
        loop {
            let mut state = write(&node.state);
            let cnode = self.cnode(node, &mut state)?;
            if at >= cnode.size {
                return Ok(());
            }
            let end = (at + FETCH_MAX).min(cnode.size.next_multiple_of(BLOCK));
            match self.fetch_whole(node, cnode, &(at..end)) {
                // Another process has truncated it.
                Err(Errno::AGAIN) => {}
                fetched => {
                    fetched?;
                    at = end;
                }
            }
        }
    }

    /// Pins or unpins a file, durably. Counts the pin for the owner of the backing file; fails if
    /// that is over the limits.
    fn set_pinned(&self, node: &CacheNode, is_pinned: bool) -> Result<()> {
        // Pins from earlier attachments count, too.
        while is_pinned && self.crawl()? {}
        let mut state = write(&node.state);
        let cnode = self.cnode(node, &mut state)?;
        if is_pinned {
            let uid = self.backing.getattr(node.ino)?.uid;
            self.count_pin(cnode.shadow, uid, cnode.size)?;
            self.set_shadow(cnode, &SetAttr { uid: Some(uid), ..SetAttr::default() })?;
        } else {
            self.resident.pins.remove(cnode.shadow);
        }
        let mut flags = cnode.record.state;
        flags.set(Flags::PINNED, is_pinned);
        self.set_state(cnode, flags)?;
        if !is_pinned && cnode.slot.is_none() {
            let blocks = cnode.size.div_ceil(BLOCK);
            cnode.slot = Some(self.resident.insert(cnode.shadow, blocks, Some(node.ino)));
        }
        Ok(())
    }

    /// Writes back the current data of a file, including data that another thread is writing back.
    pub(crate) fn flush(&self, node: &Arc<CacheNode>) -> Result<()> {
        loop {
            self.drain(std::slice::from_ref(node))?;
            if !is_being_written_back(node) {
                return Ok(());
            }
            std::thread::sleep(WAIT);
        }
    }

    /// Drops the cached data of a file after everything written before was written back.
    ///
    /// # Errors
    /// `EBUSY` if the file is written to faster than it is written back.
    fn invalidate(&self, node: &Arc<CacheNode>) -> Result<()> {
        for _ in 0..TRIES {
            self.flush(node)?;
            let mut state = write(&node.state);
            self.load(node, &mut state)?;
            if state.dirty().is_none() {
                let attr = self.backing.getattr(node.ino)?;
                return self.forget_content(&mut state, &attr);
            }
        }
        Err(Errno::BUSY)
    }

    /// Returns the number of bytes of a file that are in the pool.
    fn cached_bytes(&self, cnode: &Cnode) -> Result<u64> {
        let (mut bytes, mut at) = (0, 0);
        loop {
            let start = match self.pool.seek(cnode.shadow, at, Seek::Data) {
                Err(Errno::NXIO) => return Ok(bytes),
                start => start?,
            };
            at = self.pool.seek(cnode.shadow, start, Seek::Hole)?;
            bytes += at - start;
        }
    }

    /// Returns the status of a file.
    fn file_status(&self, node: &CacheNode) -> Result<FileStatus> {
        let size_bytes = self.getattr(node.ino)?.size;
        let mut state = write(&node.state);
        self.load(node, &mut state)?;
        let mode = self.mode_of(node.ino, &mut state).to_string();
        let mut status =
            FileStatus { size_bytes, cached_bytes: 0, dirty_bytes: 0, is_pinned: false, mode };
        status.dirty_bytes = self.dirty_bytes(&state);
        if let Some(cnode) = &state.cached {
            status.cached_bytes = self.cached_bytes(cnode)?;
            status.is_pinned = cnode.record.state.contains(Flags::PINNED);
        }
        Ok(status)
    }
}

fn parse(value: &[u8]) -> Option<Mode> {
    std::str::from_utf8(value).ok()?.parse().ok()
}
