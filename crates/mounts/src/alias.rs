//! Names for inodes instead of paths.

use std::fmt;
use vfs::Ino;

const PREFIX: &str = ".keepstone-";

/// The name of an inode in one of its lives, in the root of the mount:
/// `.keepstone-SECRET-INODE-GENERATION`, the secret as 16 hexadecimal digits, the others decimal.
///
/// A process that uses the pool directly sometimes needs the kernel's own description of a file that it
/// knows by inode number only: the file may have been renamed or unlinked since. It opens this name,
/// which is never listed and never kept by the kernel. The secret is known only to those who may open
/// the pool for writing: everybody else has to come by a path and be allowed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Of the pool.
    pub secret: u64,
    /// Whose name it is.
    pub ino: Ino,
    /// Its life: inodes are used again.
    pub generation: u32,
}

impl Alias {
    /// The alias that `name` has the form of.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let (secret, rest) = name.split_once('-')?;
        let (ino, generation) = rest.split_once('-')?;
        let secret = Some(secret).filter(|digits| digits.len() == 16)?;
        Some(Self {
            secret: u64::from_str_radix(secret, 16).ok()?,
            ino: Ino(ino.parse().ok()?),
            generation: generation.parse().ok()?,
        })
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}-{}-{}", self.secret, self.ino.0, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let alias = Alias { secret: 0xab, ino: Ino(12), generation: 3 };
        assert_eq!(alias.to_string(), ".keepstone-00000000000000ab-12-3");
        assert_eq!(Alias::parse(alias.to_string().as_bytes()), Some(alias));
        for wrong in ["", ".keepstone-", ".keepstone-ab-12-3", ".keepstone-00000000000000ab-12"] {
            assert_eq!(Alias::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
