//! What users ask of a cache for one file, through attributes that only the cache has.
//!
//! A command is an extended attribute named [`COMMANDS`] and the command's name: reading it carries out what changes nothing
//! that programs see and needs no right but to read the file; setting it, to any value, what needs the right to write. No
//! other file system takes such names, so that a command which reaches the wrong one fails and leaves nothing.
//!
//! - **control-A1** What is pinned is not evicted, before and after a restart, until it is unpinned or removed (pins-P1 and
//!   P2 have the bounds). It is still dropped and read again after a change below by others. Pins are set and taken
//!   away by the file's owner and by root.

use crate::content::FETCH_MAX;
use crate::delegate::DELEGATION;
use crate::drain::is_being_written_back;
use crate::node::{Cnode, Node, State};
use crate::options::Mode;
use crate::record::Flags;
use crate::{BLOCK, Cache, write};
use backing::Backing;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use vfs::{Errno, FileKind, FileSystem, Ino, Result, Right, Seek, SetAttr};

/// Attributes that are commands begin so.
pub const COMMANDS: &str = "keepstone.cache.";

/// The attribute that says what writes to one file promise: the name of a [`Mode`]. It is kept with the file below.
pub const DATA: &str = "user.keepstone.data";

/// The attribute that every file of a cache has, unless others' changes are looked for at each call: for how long the cache
/// believes what it has found below, in ns, in decimal.
pub const COHERENCE: &str = "keepstone.cache.coherence";

/// How long to wait for another thread that writes a file back, each time.
const WAIT: Duration = Duration::from_millis(1);
/// A file that was written to this often while it was written back is left alone.
const TRIES: usize = 64;

/// What can be asked for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Say what the cache has of it.
    Status,
    /// Read all of it into the cache.
    Warm,
    /// The same, and keep it there (control-A1).
    Pin,
    /// Evict it like any other.
    Unpin,
    /// Write back what it has; of the root: all files.
    Flush,
    /// Write back what it has, and forget what was cached.
    Invalidate,
}

/// What a cache has of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Bytes of it that are in the pool.
    pub cached_bytes: u64,
    /// Bytes that are not below yet.
    pub dirty_bytes: u64,
    /// Whether it is pinned.
    pub is_pinned: bool,
    /// What a write promises.
    pub mode: String,
}

impl Command {
    /// All of them, with their names.
    pub const NAMES: [(Self, &str); 6] = [
        (Self::Status, "status"),
        (Self::Warm, "warm"),
        (Self::Pin, "pin"),
        (Self::Unpin, "unpin"),
        (Self::Flush, "flush"),
        (Self::Invalidate, "invalidate"),
    ];

    /// Its attribute.
    pub fn attribute(self) -> String {
        let named = Self::NAMES.iter().find(|(command, _)| *command == self);
        format!("{COMMANDS}{}", named.map_or("", |(_, name)| name))
    }

    /// Whether it needs only the right to read the file.
    pub fn only_reads(self) -> bool {
        matches!(self, Self::Status | Self::Warm)
    }

    /// The command that an attribute is, if it is one; `EOPNOTSUPP` where there is none of this name.
    pub(crate) fn of_attribute(name: &[u8]) -> Option<Result<Self>> {
        let name = name.strip_prefix(COMMANDS.as_bytes())?;
        let found = Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name);
        Some(found.map(|(command, _)| *command).ok_or(Errno::OPNOTSUPP))
    }
}

/// The right that reading or changing an attribute of this name takes. Only the owner may keep space from others, take it back, or
/// change the promise of writes. Warming takes the right to read.
pub fn right(name: &[u8], changes: bool) -> Right {
    match Command::of_attribute(name) {
        _ if name == DELEGATION.as_bytes() => Right::Writer,
        Some(Ok(Command::Pin | Command::Unpin | Command::Invalidate)) => Right::Owner,
        None if changes && name == DATA.as_bytes() => Right::Owner,
        _ => Right::Anyone,
    }
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// What writes to a file promise: as its attribute says, else as the cache was attached.
    pub(crate) fn mode_of(&self, ino: Ino, state: &mut State) -> Mode {
        if let Some(mode) = state.mode {
            return mode;
        }
        // Where it cannot be read it says nothing.
        let own = self.backing.getxattr(ino, DATA.as_bytes()).ok().and_then(|text| parse(&text));
        *state.mode.insert(own.unwrap_or(self.options.mode))
    }

    /// Whether this can be what writes to a file promise.
    ///
    /// # Errors
    /// `EINVAL` where it is no mode, or no regular file.
    pub(crate) fn check_mode(&self, ino: Ino, value: &[u8]) -> Result<()> {
        let is_file = self.backing.getattr(ino)?.kind == FileKind::File;
        if is_file && parse(value).is_some() { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Carries out a command that only reads, and says how it stands with the file then: [`FileStatus`] in JSON.
    ///
    /// # Errors
    /// `EPERM` for other commands. For warming, `ENOSPC` where the pool cannot hold the file.
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

    /// Carries out a command.
    ///
    /// # Errors
    /// As [`control`](Self::control) for warming; for pinning, `ENOSPC` and `EDQUOT` beyond what may be pinned (pins-P1); of
    /// the file system below for writing back. `EROFS` where nothing may be
    /// changed.
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
                // What was pinned before a failure stays so: to be warmed again, or unpinned.
                self.warm(&node)
            }
            Command::Unpin => self.set_pinned(&node, false),
            Command::Flush => self.flush(&node),
            Command::Invalidate => self.invalidate(&node),
        }
    }

    /// Reads all of a file into the cache, a piece at a time, so that others go on.
    pub(crate) fn warm(&self, node: &Node) -> Result<()> {
        let mut at = 0;
        loop {
            let mut state = write(&node.state);
            let cnode = self.cnode(node, &mut state)?;
            if at >= cnode.size {
                return Ok(());
            }
            let end = (at + FETCH_MAX).min(cnode.size.next_multiple_of(BLOCK));
            match self.fetch_whole(node, cnode, &(at..end)) {
                // Others have cut it.
                Err(Errno::AGAIN) => {}
                fetched => {
                    fetched?;
                    at = end;
                }
            }
        }
    }

    fn set_pinned(&self, node: &Node, is_pinned: bool) -> Result<()> {
        // Pins from before this cache was attached count, too.
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

    /// Writes back what a file has now, also what another thread is at.
    pub(crate) fn flush(&self, node: &Arc<Node>) -> Result<()> {
        loop {
            self.drain(std::slice::from_ref(node))?;
            if !is_being_written_back(node) {
                return Ok(());
            }
            std::thread::sleep(WAIT);
        }
    }

    /// Forgets what is cached of a file, when all that was written before is below.
    ///
    /// # Errors
    /// `EBUSY` where it is written to faster than it is written back.
    fn invalidate(&self, node: &Arc<Node>) -> Result<()> {
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

    /// Bytes of a file that are in the pool.
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

    fn file_status(&self, node: &Node) -> Result<FileStatus> {
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
