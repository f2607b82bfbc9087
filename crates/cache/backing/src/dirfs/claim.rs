//! Exclusive use of a directory by one cache.
//!
//! A cache locks its directory (`flock(2)`). But every user who may read the directory can lock it,
//! too. So a lock counts only if its holder is a server of this user or of root. That is a process
//! with such a user ID that runs this program, or a program called `keepstone`. One that was killed
//! has its lock until the kernel has released its memory, and is waited for.

use super::inode::stat;
use os::ending;
use rustix::fs::FlockOperation;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use vfs::{Errno, Result};

/// Locks a directory as long as the descriptor is open.
///
/// # Errors
/// `EWOULDBLOCK` if another cache has it.
pub fn take(dir: &OwnedFd) -> Result<()> {
    let found = stat(dir.as_fd())?;
    let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
    let inode = format!("{major:02x}:{minor:02x}:{}", found.stx_ino);
    let is_taken = |errno: &Errno| *errno == Errno::WOULDBLOCK;
    let is_ending = || {
        let holders = holders(&inode).unwrap_or_default();
        holders.into_iter().any(|pid| is_trusted(pid) && ending::is_ending(pid))
    };
    let lock = || rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive);
    match ending::after_ending(is_taken, is_ending, lock) {
        // If the table cannot be read, the lock counts.
        Err(Errno::WOULDBLOCK)
            if holders(&inode).is_some_and(|pids| !pids.into_iter().any(is_cache)) =>
        {
            Ok(())
        }
        taken => taken,
    }
}

/// Returns the processes that hold the lock on an inode, as `/proc/locks` shows; `None` if that
/// cannot be read.
fn holders(inode: &str) -> Option<Vec<u32>> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    Some(locks.lines().filter_map(|line| holder(line, inode)).collect())
}

/// Returns the process that a line of `/proc/locks` names as the holder of a lock on a whole file
/// (`flock`). Waiting processes hold no lock.
fn holder(line: &str, inode: &str) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let is_lock = words.next() == Some("FLOCK");
    let pid = words.nth(2)?.parse().ok()?;
    (is_lock && words.next() == Some(inode)).then_some(pid)
}

/// Returns whether a process is of root or of this user.
fn is_trusted(pid: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| [0, own].contains(&found.uid()))
}

/// Returns whether a process is a server of root or of this user.
fn is_cache(pid: u32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let program = |process: PathBuf| fs::read_link(process.join("exe")).ok();
    let name = |program: &PathBuf| program.file_name().map(|name| name.to_owned());
    let theirs = program(process);
    let is_same = theirs.is_some() && theirs == program("/proc/self".into());
    let is_named = theirs
        .as_ref()
        .and_then(name)
        .is_some_and(|name| name.to_string_lossy().split(' ').next() == Some("keepstone"));
    is_trusted(pid) && (is_same || is_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_found_in_the_table() {
        let table = "1: POSIX  ADVISORY  WRITE 12 00:1f:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 34 00:1f:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 56 00:1f:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 78 00:1f:770 0 EOF\n";
        let found: Vec<_> = table.lines().filter_map(|line| holder(line, "00:1f:77")).collect();
        assert_eq!(found, [34]);
    }
}
