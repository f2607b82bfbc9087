//! Names that open an inode once, in place of paths.

use std::fmt;
use vfs::Ino;

const PREFIX: &str = ".keepstone-";
/// Digits of a ticket.
const TICKET_LEN: usize = 32;

/// The number of an opening that a process has announced
/// ([`MountEvents::begin_opening`](crate::MountEvents::begin_opening)). No two openings have the
/// same, and no process can guess one.
///
/// A process that uses the pool directly sometimes needs the kernel's own description of a file
/// that it knows by inode number only: the file may have been renamed or unlinked since. It
/// announces the inode in the memory that the pool's users share, and opens a name that carries the
/// ticket alone, as 32 hexadecimal digits. Such a name is never listed. The server looks up the
/// announcement: the name works once, within a second, for the thread that has announced it, with
/// the same user. A name that `/proc/self/fd` or inotify shows later opens nothing. There are two
/// such names:
///
/// - `.keepstone-TICKET` in the root of the mount ([`root_name`](Self::root_name)): the kernel
///   checks the permissions of the inode.
/// - `TICKET` ([`Display`](fmt::Display)) in the virtual directory [`DIR`](Self::DIR) of the root,
///   for regular files, with `O_CREAT`. The name never exists, so the kernel asks the server to
///   create it. The kernel takes the opened file for a new one, and so checks no permission of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u128);

impl Ticket {
    /// The virtual directory. The name is no secret: the directory opens nothing by itself.
    pub const DIR: &str = ".keepstone-promote";

    /// Returns the name in the root.
    pub fn root_name(&self) -> String {
        format!("{PREFIX}{self}")
    }

    /// Parses a name in the root; `None` if it does not have that form.
    pub fn parse_root(name: &[u8]) -> Option<Self> {
        Self::parse(name.strip_prefix(PREFIX.as_bytes())?)
    }

    /// Parses a name in the virtual directory; `None` if it does not have that form.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let digits =
            Some(name).filter(|name| name.len() == TICKET_LEN && name.iter().all(is_digit))?;
        u128::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok().map(Self)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A file that the kernel opens for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Number of the inode.
    pub ino: Ino,
    /// Its generation: inode numbers are used again.
    pub generation: u32,
    /// Whether it is opened by a name in the virtual directory, so that the kernel takes it for a
    /// new file.
    pub as_new: bool,
}

/// The thread on whose behalf the kernel asks a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// Its number, in the namespace of the pool's users.
    pub thread: u32,
    /// The user of its file system calls.
    pub user: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let ticket = Ticket(0xab << 100 | 7);
        let (name, digits) = (ticket.root_name(), ticket.to_string());
        assert_eq!(name, ".keepstone-00000ab0000000000000000000000007");
        assert_eq!(Ticket::parse_root(name.as_bytes()), Some(ticket));
        assert_eq!(Ticket::parse(digits.as_bytes()), Some(ticket));
        assert_eq!(Ticket::parse_root(digits.as_bytes()), None);
        assert_eq!(Ticket::parse_root(Ticket::DIR.as_bytes()), None);
        for wrong in [
            "",
            "7",
            &digits[1..],
            &format!("{digits}0"),
            &digits.replace('a', "A"),
            &digits.replace('a', "+"),
        ] {
            assert_eq!(Ticket::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
