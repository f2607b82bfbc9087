//! Set-group-ID and access ACLs, and other rules that depend on the caller's groups.
//!
//! An owner that is not in the file's group loses the set-group-ID bit when it sets an access ACL,
//! as with `chmod(2)`. The kernel requests that by a flag of the extended `setxattr` request, which
//! `fuser` 0.18 does not know, so the rule is applied here.

use fuser::Request;
use vfs::acl::ACL_ACCESS;
use vfs::rules::S_ISGID;
use vfs::{Attr, Errno, FileSystem, Ino, Result, SetAttr};

use crate::convert::caller;

const S_IWGRP: u32 = 0o020;
const S_IWOTH: u32 = 0o002;

/// Clears the bit after a process that is neither privileged nor in the group has set an access
/// ACL.
pub(crate) fn clear_for_stranger(
    fs: &dyn FileSystem,
    req: &Request,
    ino: Ino,
    xattr: &[u8],
) -> Result<()> {
    if xattr != ACL_ACCESS || req.uid() == 0 {
        return Ok(());
    }
    let attr = fs.getattr(ino)?;
    if attr.perm & S_ISGID == 0 || is_in_group(req, attr.gid) {
        return Ok(());
    }
    let set = SetAttr { perm: Some(attr.perm & !S_ISGID), ..SetAttr::default() };
    fs.setattr(&caller(req), ino, &set).map(|_| ())
}

/// Whether mode and groups let a process write that does not own the file. If the file has an
/// access ACL, the answer is no.
pub(crate) fn may_write(fs: &dyn FileSystem, req: &Request, attr: &Attr) -> Result<bool> {
    if attr.perm & (S_IWGRP | S_IWOTH) == 0 {
        return Ok(false);
    }
    match fs.getxattr(attr.ino, ACL_ACCESS) {
        Err(Errno::NODATA) => {
            let bit = if is_in_group(req, attr.gid) { S_IWGRP } else { S_IWOTH };
            Ok(attr.perm & bit != 0)
        }
        found => found.and(Ok(false)),
    }
}

/// Whether `gid` is the group, or a supplementary group, of the process; unknown counts as no.
pub(crate) fn is_in_group(req: &Request, gid: u32) -> bool {
    let status = || std::fs::read_to_string(format!("/proc/{}/status", req.pid()));
    req.gid() == gid || status().is_ok_and(|status| groups_in(&status).any(|group| group == gid))
}

fn groups_in(status: &str) -> impl Iterator<Item = u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or("");
    line.split_whitespace().filter_map(|gid| gid.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_status() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        assert_eq!(groups_in(status).collect::<Vec<_>>(), [4, 24, 1000]);
        assert_eq!(groups_in("Name:\tx\nGroups:\t\n").count(), 0);
        assert_eq!(groups_in("").count(), 0);
    }
}
