//! How a region is protected from stray writes: stores through wild pointers (PMBD §IV-B).

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// How persistent memory is kept from being written by anything but its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Protection {
    /// Not at all.
    None,
}

impl Protection {
    /// All of them.
    pub const ALL: [Protection; 1] = [Protection::None];

    /// The best that this machine has.
    pub fn best() -> Self {
        Self::None
    }

    /// The name that [`Display`](fmt::Display), [`FromStr`] and serde use.
    pub fn name(self) -> &'static str {
        match self {
            Protection::None => "none",
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
#[error("unknown protection `{0}`; use auto or {known}", known = Protection::ALL.map(Protection::name).join(", "))]
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
