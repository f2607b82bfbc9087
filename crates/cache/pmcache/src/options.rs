//! The guarantees of a cache.

use std::fmt;
use std::str::FromStr;

/// The guarantee for a write that has returned, after a crash (in ext4's terms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The data is in the cache; the existence of a file is durable on `fsync` (Chell-Cache).
    Writeback,
    /// The data is durable before the size is; a file never shows another file's bytes (PMAL-O).
    Ordered,
    /// The write is atomic and durable, and so is the existence of the file (PMAL).
    #[default]
    Journal,
}

impl Mode {
    /// All modes, with their names.
    pub const NAMES: [(Self, &str); 3] =
        [(Self::Writeback, "writeback"), (Self::Ordered, "ordered"), (Self::Journal, "journal")];
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(_, known)| *known == name);
        let found = found.map(|(mode, _)| *mode);
        found.ok_or_else(|| format!("`{name}` is none of writeback, ordered, journal"))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMES.iter().find(|(mode, _)| mode == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}
