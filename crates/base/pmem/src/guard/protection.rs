//! The ways of protecting, and what each leaves exposed.

use super::key;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// How persistent memory is kept from being written by anything but its medium.
///
/// Each says its *window of exposure*: which bytes a stray write could change, by whom, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Not at all. Exposed: everything, always.
    None,
    /// The pages of each store are made writable for it, and read-only after it (§IV-B1). Exposed: these
    /// pages, to all threads, during the store.
    Pages,
    /// Nothing is mapped but what is being read or stored, while that takes (§IV-B2). Exposed: the
    /// pages of the store, at an address that nobody else has been told, during the store.
    Window,
    /// A chunk of 2 MiB is made writable by the first of several stores and read-only when it has not been
    /// stored to for 0.1 to 0.3 ms, at the latest after some 2 ms; stores to chunks that are rarely
    /// stored to go through the file. Exposed: at most 64 chunks and one for each thread, to all threads,
    /// for that time.
    Chunk,
    /// A chunk of 2 MiB is made writable for each store. Exposed: the chunk, to all threads, during the
    /// store.
    ChunkStrict,
    /// Stores go through the file, by system calls; only the words that commit go through a mapping of
    /// their page, as `Pages` does it. Exposed: nothing, but for such pages.
    Pwrite,
    /// The writable mapping has a protection key, which only the storing thread enables, for itself.
    /// Exposed: to other threads nothing; to the storing thread everything, during the store.
    Pkey,
}

impl Protection {
    /// All of them.
    pub const ALL: [Protection; 7] = [
        Protection::None,
        Protection::Pages,
        Protection::Window,
        Protection::Chunk,
        Protection::ChunkStrict,
        Protection::Pwrite,
        Protection::Pkey,
    ];

    /// Whether this machine has it: only keys are not everywhere.
    pub fn available(self) -> bool {
        self != Self::Pkey || key::available()
    }

    /// The best that this machine has: keys where the CPU has them, else chunks.
    pub fn best() -> Self {
        if Self::Pkey.available() { Self::Pkey } else { Self::Chunk }
    }

    /// The name that [`Display`](fmt::Display), [`FromStr`] and serde use.
    pub fn name(self) -> &'static str {
        match self {
            Protection::None => "none",
            Protection::Pages => "pages",
            Protection::Window => "window",
            Protection::Chunk => "chunk",
            Protection::ChunkStrict => "chunk-strict",
            Protection::Pwrite => "pwrite",
            Protection::Pkey => "pkey",
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A protection that is none of [`Protection::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown protection `{0}`; use auto, none, pages, window, chunk, chunk-strict, pwrite or pkey"
)]
pub struct UnknownProtection(pub String);

impl FromStr for Protection {
    type Err = UnknownProtection;

    /// A [`name`](Self::name), or `auto` for the [best](Self::best).
    fn from_str(s: &str) -> Result<Self, UnknownProtection> {
        if s == "auto" {
            return Ok(Self::best());
        }
        let known = Self::ALL.into_iter().find(|p| p.name() == s);
        known.ok_or_else(|| UnknownProtection(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for protection in Protection::ALL {
            assert_eq!(protection.to_string().parse(), Ok(protection));
            let unknown = UnknownProtection(String::new()).to_string();
            assert!(unknown.contains(protection.name()), "{unknown}");
        }
        assert_eq!("auto".parse(), Ok(Protection::best()));
        assert!("steel".parse::<Protection>().is_err());
    }
}
