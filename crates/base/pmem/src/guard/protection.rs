//! The kinds of protection, and the bytes that each leaves exposed.

use super::key;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The way in which persistent memory is protected from stores that do not go through its medium.
///
/// Each documents its *exposure*: the bytes that a stray write could change, by which threads, and
/// how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// No protection. Exposed: everything, always.
    None,
    /// The pages of each store are made writable for it, and read-only after it (§IV-B1). Exposed:
    /// these pages, to all threads, during the store.
    Pages,
    /// The pages of an access are mapped during it, and no others (§IV-B2). Exposed: the pages of
    /// the store, at an address that no other thread knows, during the store.
    Window,
    /// The first of several stores makes a chunk of 2 MiB writable. It becomes read-only when it
    /// has not been stored to for 0.1 to 0.3 ms, at the latest after some 2 ms. Stores to chunks
    /// that are rarely stored to go through the file. Exposed: at most 64 chunks and one for each
    /// thread, to all threads, for that time.
    Chunk,
    /// A chunk of 2 MiB is made writable for each store. Exposed: the chunk, to all threads, during
    /// the store.
    ChunkStrict,
    /// Stores go through the file, by system calls. Only words that commit are stored through a
    /// mapping of their page, as with `Pages`. Exposed: only such pages.
    Pwrite,
    /// The writable mapping has a protection key, which only the storing thread enables, for
    /// itself. Exposed: everything to the storing thread during the store; nothing to other
    /// threads.
    Pkey,
}

impl Protection {
    /// All protections.
    pub const ALL: [Protection; 7] = [
        Protection::None,
        Protection::Pages,
        Protection::Window,
        Protection::Chunk,
        Protection::ChunkStrict,
        Protection::Pwrite,
        Protection::Pkey,
    ];

    /// Whether this machine has it: only keys may be missing.
    pub fn available(self) -> bool {
        self != Self::Pkey || key::available()
    }

    /// Returns the best that this machine has: keys if the CPU has them, else chunks.
    pub fn best() -> Self {
        if Self::Pkey.available() { Self::Pkey } else { Self::Chunk }
    }

    /// Returns the name that [`Display`](fmt::Display), [`FromStr`] and serde use.
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

/// A name that does not belong to a protection of [`Protection::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown protection `{0}`; use auto, none, pages, window, chunk, chunk-strict, pwrite or pkey"
)]
pub struct UnknownProtection(pub String);

impl FromStr for Protection {
    type Err = UnknownProtection;

    /// Parses a [`name`](Self::name), or `auto` for the [best](Self::best).
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
