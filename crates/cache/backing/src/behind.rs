//! What others do to a backing behind the cache that is over it, as far as the backing can tell.

use std::fmt;
use std::str::FromStr;
use vfs::Ino;

/// How what others do is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// Not at all: whoever wants to know compares attributes.
    #[default]
    Off,
    /// The backing tells of [changes](Change).
    Notify,
    /// The same; and who opens a file that is [guarded](crate::Backing::guard) waits for an answer ([`Opening`]).
    Permission,
}

impl Watch {
    /// All of them, with their names.
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

/// How far the backing can tell of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Of all that is looked up, by whatever name it is changed.
    #[default]
    Whole,
    /// Of what is changed by a name in a directory that was looked up.
    Directories,
}

impl Reach {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Directories => "directories",
        }
    }
}

/// What others have changed. Only of inodes that are referenced, or were met on the way to such; who looks at one after he was
/// told sees it as it was then, or later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// More changed than could be told. What may have is told next, as far as it is known; names that were absent are not.
    Lost,
    /// The content of a file.
    Content(Ino),
    /// Attributes of an inode, extended ones included, or how many names it has.
    Attributes(Ino),
    /// A name in a directory came, went, or leads elsewhere.
    Name(Ino, Vec<u8>),
}

/// Somebody opens a guarded file, and waits until he is answered. Where the answer is dropped instead, he may. It goes before the
/// backing does, which may otherwise wait for it.
pub struct Opening {
    /// The file.
    pub ino: Ino,
    /// The process; 0 where it is none that this process can see.
    pub pid: u32,
    answer: Option<Answer>,
}

/// Called once: whether the file may be opened.
type Answer = Box<dyn FnOnce(bool) + Send>;

impl Opening {
    /// One that is answered by calling `answer`.
    pub fn new(ino: Ino, pid: u32, answer: impl FnOnce(bool) + Send + 'static) -> Self {
        Self { ino, pid, answer: Some(Box::new(answer)) }
    }

    /// Lets him, or refuses it.
    pub fn answer(mut self, may: bool) {
        self.give(may);
    }

    fn give(&mut self, may: bool) {
        if let Some(answer) = self.answer.take() {
            answer(may);
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.give(true);
    }
}
