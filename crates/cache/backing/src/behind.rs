//! Changes that other processes make in a backing store behind its cache, as far as the store can
//! report them.

use std::fmt;
use std::str::FromStr;
use vfs::Ino;

/// The way in which a cache notices changes by other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// The backing reports nothing; the cache compares attributes.
    #[default]
    Off,
    /// The backing reports [changes](Change).
    Notify,
    /// The backing reports changes, and a process that opens a file by a
    /// [guarded](crate::Backing::guard_names) name waits for an answer ([`Opening`]).
    Permission,
}

impl Watch {
    /// All ways, with their names.
    pub const NAMES: [(Self, &str); 3] =
        [(Self::Off, "off"), (Self::Notify, "notify"), (Self::Permission, "permission")];
}

impl FromStr for Watch {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, known)| *known == name);
        let found = found.map(|(watch, _)| *watch);
        found.ok_or_else(|| format!("`{name}` is none of off, notify, permission"))
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(watch, _)| watch == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// The changes that the backing can report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// All changes of inodes that were looked up, by whatever name they are made.
    #[default]
    Whole,
    /// Changes by a name in a directory that was looked up.
    Directories,
}

impl Reach {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Directories => "directories",
        }
    }
}

/// A change by other processes. A caller that reads an inode after the report sees it as it was at
/// the change, or later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Changes were lost: any inode and any name may have changed.
    Lost,
    /// The content of a file.
    Content(Ino),
    /// Attributes of an inode, including extended ones, or its link count.
    Attributes(Ino),
    /// A name in a directory was added, removed, or leads to another inode.
    Name(Ino, Vec<u8>),
}

/// A pending opening of a file in a [guarded](crate::Backing::guard_names) directory: the process
/// waits. Dropping this value permits the opening, so drop it before the backing.
pub struct Opening {
    /// The [key](crate::Backing::key) of the file's identity.
    pub key: Vec<u8>,
    /// The process; 0 if this process cannot see it.
    pub pid: u32,
    permit: Option<Box<dyn FnOnce() + Send>>,
}

impl Opening {
    /// Makes an opening that is permitted by a call of `permit`.
    pub fn new(key: Vec<u8>, pid: u32, permit: impl FnOnce() + Send + 'static) -> Self {
        Self { key, pid, permit: Some(Box::new(permit)) }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit();
        }
    }
}
