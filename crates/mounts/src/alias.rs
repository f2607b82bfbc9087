//! Names for inodes instead of paths.

use std::fmt;
use vfs::Ino;

const PREFIX: &str = ".keepstone-";
/// Digits of the secret.
const SECRET_LEN: usize = 16;

/// The name of an inode in one of its lives. The secret is written as 16 hexadecimal digits, all other numbers
/// are decimal.
///
/// A process that uses the pool directly sometimes needs the kernel's own description of a file that it
/// knows by inode number only: the file may have been renamed or unlinked since. It opens a name that is never
/// listed and never kept by the kernel. The secret is known only to those who may open
/// the pool for writing: everybody else has to come by a path and be allowed to. There are two such names:
///
/// - `.keepstone-SECRET-INODE-GENERATION` in the root of the mount ([`Display`](fmt::Display)): the kernel
///   checks the permissions of the inode.
/// - `INODE-GENERATION-NONCE` ([`file_name`](Self::file_name)) in the virtual directory `.keepstone-SECRET`
///   ([`dir_name`](Self::dir_name)) of the root, for regular files, with `O_CREAT`: the name never exists, so the
///   kernel asks the server to create it, and takes what that opens for a new file, of which it checks no
///   permission. The secret is a capability. The nonce is the ticket that
///   [`MountEvents::begin_opening`](crate::MountEvents::begin_opening) gives: where the name is known, the kernel does not ask.
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
        Self::of_inode(parse_secret(secret)?, rest)
    }

    /// The name of the virtual directory.
    pub fn dir_name(secret: u64) -> String {
        format!("{PREFIX}{secret:016x}")
    }

    /// The secret in what has the form of a virtual directory's name.
    pub fn parse_dir(name: &[u8]) -> Option<u64> {
        parse_secret(std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?)
    }

    /// The name in the virtual directory.
    pub fn file_name(&self, nonce: u64) -> String {
        format!("{}-{}-{nonce}", self.ino.0, self.generation)
    }

    /// The alias and the nonce that `name` in the virtual directory of `secret` has the form of.
    pub fn parse_file(secret: u64, name: &[u8]) -> Option<(Self, u64)> {
        let (inode, nonce) = std::str::from_utf8(name).ok()?.rsplit_once('-')?;
        Some((Self::of_inode(secret, inode)?, nonce.parse().ok()?))
    }

    /// From `INODE-GENERATION`.
    fn of_inode(secret: u64, name: &str) -> Option<Self> {
        let (ino, generation) = name.split_once('-')?;
        Some(Self { secret, ino: Ino(ino.parse().ok()?), generation: generation.parse().ok()? })
    }
}

fn parse_secret(digits: &str) -> Option<u64> {
    let digits = Some(digits).filter(|digits| digits.len() == SECRET_LEN)?;
    u64::from_str_radix(digits, 16).ok()
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", Self::dir_name(self.secret), self.ino.0, self.generation)
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

    #[test]
    fn names_in_the_virtual_directory() {
        let alias = Alias { secret: 0xab, ino: Ino(12), generation: 3 };
        let dir = Alias::dir_name(alias.secret);
        assert_eq!(dir, ".keepstone-00000000000000ab");
        assert_eq!(Alias::parse_dir(dir.as_bytes()), Some(alias.secret));
        assert_eq!(Alias::parse_dir(alias.to_string().as_bytes()), None);
        assert_eq!(alias.file_name(7), "12-3-7");
        assert_eq!(Alias::parse_file(alias.secret, b"12-3-7"), Some((alias, 7)));
        for wrong in ["", "12", "12-3", "12-3-", "12-3-x", "x-3-7", "12-3-7-7"] {
            assert_eq!(Alias::parse_file(alias.secret, wrong.as_bytes()), None, "{wrong}");
        }
    }
}
