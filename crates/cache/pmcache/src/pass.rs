//! The inodes and directories that a pass of write-back compares, and names below that the pool
//! does not have.

use backing::Identity;
use std::collections::{BTreeMap, HashMap};
use vfs::{FileKind, Ino};

/// Fewest inodes that are synced by one sync of the whole backing store.
pub const SYNCED_TOGETHER: usize = 32;

/// Attempts to find a private name that is free.
pub const NAMES_MAX: u32 = 1000;

/// An inode that is compared.
#[derive(Clone, Copy)]
pub(crate) struct Dirty {
    pub ino: Ino,
    pub kind: FileKind,
    /// Its version before it was compared.
    pub version: u64,
}

/// A directory whose names are compared.
pub(crate) struct Dir {
    pub ino: Ino,
    pub names: BTreeMap<Vec<u8>, (Ino, FileKind)>,
}

/// A name below: its directory and itself.
pub(crate) type NameBelow = (Ino, Vec<u8>);

/// A name below that the pool does not have.
pub(crate) struct Extra {
    pub place: NameBelow,
    pub identity: Identity,
    pub kind: FileKind,
    /// Whether the pool has had it (writeback-W8).
    pub is_known: bool,
}

/// Names below that the pool does not have, those in a directory after that of the directory.
#[derive(Default)]
pub(crate) struct Extras {
    pub list: Vec<Option<Extra>>,
    /// Places in the list.
    of: HashMap<Identity, Vec<usize>>,
}

impl Extras {
    pub fn push(&mut self, extra: Extra) {
        self.of.entry(extra.identity.clone()).or_default().push(self.list.len());
        self.list.push(Some(extra));
    }

    /// Takes a name of an object.
    pub fn take(&mut self, identity: &Identity) -> Option<Extra> {
        let at = self.of.get_mut(identity)?.pop()?;
        self.list[at].take()
    }
}
