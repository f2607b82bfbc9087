//! Names for inodes instead of paths.
//!
//! A process that uses the pool directly sometimes needs the kernel's own description of a file that
//! it knows by inode number only: the file may have been renamed or unlinked since. It opens the
//! name made by [`name`] in the root of the mount. The name is never listed and never kept by the
//! kernel, and contains a secret that only those know who may open the pool for writing: everybody
//! else has to come by a path and be allowed to.

use vfs::{Entry, Errno, FileSystem, Ino, Result};

const PREFIX: &str = ".keepstone-";

/// What a server has to know of a pool that others use without it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    pub(crate) secret: u64,
}

/// The alias of an inode in one of its lives: `.keepstone-SECRET-INODE-GENERATION`, the secret as 16
/// hexadecimal digits, the others decimal.
pub fn name(secret: u64, ino: Ino, generation: u32) -> String {
    format!("{PREFIX}{secret:016x}-{}-{generation}", ino.0)
}

impl Sharing {
    /// The inode that `name` is the alias of, if it has the form of one with this secret.
    pub(crate) fn parse(&self, name: &[u8]) -> Option<(Ino, u32)> {
        let name = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let (secret, rest) = name.split_once('-')?;
        let (ino, generation) = rest.split_once('-')?;
        let known = secret.len() == 16 && u64::from_str_radix(secret, 16).ok()? == self.secret;
        Some((Ino(ino.parse().ok()?), generation.parse().ok()?)).filter(|_| known)
    }
}

/// The inode `ino` if it still is in its life number `generation`; else `ENOENT`. Adds a reference.
pub(crate) fn lookup(fs: &impl FileSystem, (ino, generation): (Ino, u32)) -> Result<Entry> {
    let entry = fs.lookup(ino, b".").map_err(|err| match err {
        Errno::STALE => Errno::NOENT,
        err => err,
    })?;
    if entry.generation == generation {
        return Ok(entry);
    }
    fs.forget(ino, 1);
    Err(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_secret_opens() {
        let sharing = Sharing { secret: 0xab };
        let alias = name(0xab, Ino(12), 3);
        assert_eq!(alias, ".keepstone-00000000000000ab-12-3");
        assert_eq!(sharing.parse(alias.as_bytes()), Some((Ino(12), 3)));
        assert_eq!(Sharing { secret: 0xac }.parse(alias.as_bytes()), None);
        for wrong in ["", ".keepstone-", ".keepstone-ab-12-3", ".keepstone-00000000000000ab-12"] {
            assert_eq!(sharing.parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
