//! Checks whether other users can change a file that this process trusts.
//!
//! A server trusts its pool: inodes can make programs set-user-ID, and the records of a cache name
//! the files to write. So a user with write permission on the pool could act as the user that runs
//! the server.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Returns why a user other than root and the user of this process may change `file`, or replace it
/// by another file; `None` if no such user may.
///
/// # Errors
/// If the file, or a directory above it, cannot be inspected.
pub fn changeable_by(file: &Path) -> Result<Option<String>> {
    let file = file.canonicalize().with_context(|| file.display().to_string())?;
    let look = |path: &Path| path.symlink_metadata().with_context(|| path.display().to_string());
    let found = look(&file)?;
    if let Some(owner) = foreign_owner(&found) {
        return Ok(Some(format!("it belongs to user {owner}")));
    }
    // The group bits show the mask of an ACL, so they bound what the ACL grants.
    if found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Ok(Some(format!("its mode is {:o}", found.mode() & 0o7777)));
    }
    for dir in file.ancestors().skip(1) {
        let found = look(dir)?;
        if let Some(owner) = foreign_owner(&found) {
            return Ok(Some(format!("the directory {} belongs to user {owner}", dir.display())));
        }
        let is_open = found.mode() & WRITABLE_BY_OTHERS != 0 && found.mode() & STICKY == 0;
        if is_open {
            let mode = found.mode() & 0o7777;
            return Ok(Some(format!("the mode of the directory {} is {mode:o}", dir.display())));
        }
    }
    Ok(None)
}

/// Refuses a file in a directory like `/dev/shm`, if another user may have put it at a name that
/// this user is known to choose. (The kernel does so for `O_CREAT`, see `fs.protected_regular`.)
///
/// # Errors
/// That, with `remedy`.
pub fn refuse_planted(file: &Path, remedy: &str) -> Result<()> {
    let Ok(found) = file.metadata() else { return Ok(()) };
    let Some(owner) = foreign_owner(&found) else { return Ok(()) };
    let real = file.canonicalize().with_context(|| file.display().to_string())?;
    let dir = real.parent().unwrap_or(Path::new("/")).metadata();
    if dir.is_ok_and(|dir| dir.mode() & STICKY != 0 && dir.mode() & WRITABLE_BY_OTHERS != 0) {
        bail!(
            "{}: belongs to user {owner}, who may have put it there for others to use; {remedy}",
            file.display()
        );
    }
    Ok(())
}

fn foreign_owner(found: &Metadata) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    Some(found.uid()).filter(|owner| *owner != 0 && *owner != own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn owners_modes_and_directories_are_looked_at() {
        assert!(rustix::process::geteuid().is_root(), "run as root: files of other users are made");
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("dir");
        let file = dir.join("pool");
        fs::create_dir(&dir).unwrap();
        fs::write(&file, "").unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
        let why = || changeable_by(&file).unwrap().unwrap_or_default();
        mode(&dir, 0o755).unwrap();
        for (bits, what) in [(0o600, ""), (0o644, ""), (0o660, "660"), (0o602, "602")] {
            mode(&file, bits).unwrap();
            assert!(why().contains(what) && why().is_empty() == what.is_empty(), "{}", why());
        }
        mode(&file, 0o600).unwrap();
        for (bits, is_open) in [(0o777, true), (0o1777, false), (0o770, true), (0o755, false)] {
            mode(&dir, bits).unwrap();
            assert_eq!(why().contains("dir is"), is_open, "{bits:o}: {}", why());
        }
        chown(&file, Some(12345), None).unwrap();
        assert_eq!(why(), "it belongs to user 12345");
        chown(&file, Some(0), None).unwrap();
        chown(&dir, Some(12345), None).unwrap();
        assert!(why().ends_with("dir belongs to user 12345"), "{}", why());
    }
}
