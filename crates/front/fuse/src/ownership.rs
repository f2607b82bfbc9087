//! Checks of a requester against the present owner of an inode.
//!
//! Before changes of modes, owners, given times and ACLs, the kernel sends no question: it compares
//! the requester with the owner that it has in memory. In a sticky directory it does so before a
//! removal, too. That is a former owner if the inode was changed without this mount: by a program
//! with direct access, through another mount, or in the directory below a cache. So the server
//! compares again, by the rules of `setattr_prepare` and `check_sticky` of the kernel.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use fuser::{INodeNo, Request};
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT};
use vfs::rules::{S_ISGID, S_ISUID};
use vfs::{Attr, Errno, FileSystem, Ino, Result, SetAttr, SetTime};

use crate::convert;
use crate::server::Server;
use crate::setgid::is_in_group;

/// Sticky bit of a mode.
const S_ISVTX: u32 = 0o1000;

/// Capabilities (`capability.h`).
const CAP_CHOWN: u32 = 0;
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;

/// The rights of a process, as `/proc` shows them.
struct Requester<'r> {
    req: &'r Request,
}

impl Requester<'_> {
    fn is_owner(&self, attr: &Attr) -> bool {
        self.req.uid() == attr.uid
    }

    /// Returns whether the process has a capability over an inode: its user namespace must have the
    /// inode's owner and group. A process that cannot be seen has none.
    fn can(&self, capability: u32, attr: &Attr) -> bool {
        if self.req.uid() == 0 {
            return true;
        }
        let process = format!("/proc/{}", self.req.pid());
        let read = |name: &str| fs::read_to_string(format!("{process}/{name}")).unwrap_or_default();
        effective(&read("status")) & 1 << capability != 0
            && is_mapped(&read("uid_map"), attr.uid)
            && is_mapped(&read("gid_map"), attr.gid)
    }

    fn owns(&self, attr: &Attr, otherwise: u32) -> Result<()> {
        match self.is_owner(attr) || self.can(otherwise, attr) {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }
}

/// Returns the effective capabilities in the status of a process.
fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}

/// Returns whether a user namespace has a user or group ID: each line of its map has the first ID
/// inside, the first outside, and their number.
fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (_, Some(Ok(first)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&id.into())
    })
}

impl Server {
    /// Returns a change of attributes as far as the requester may make it: like the kernel, without
    /// set-group-ID for a group that is not the requester's.
    ///
    /// # Errors
    /// `EPERM` if only the owner may make it.
    pub(crate) fn check_change(
        &self,
        fs: &dyn FileSystem,
        req: &Request,
        ino: Ino,
        mut set: SetAttr,
    ) -> Result<SetAttr> {
        let sets_time = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let is_asked = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
        if self.shared.is_none() || !(is_asked || sets_time(set.atime) || sets_time(set.mtime)) {
            return Ok(set);
        }
        let (attr, requester) = (fs.getattr(ino)?, Requester { req });
        if set.uid.is_some_and(|uid| uid != attr.uid) && !requester.can(CAP_CHOWN, &attr) {
            return Err(Errno::PERM);
        }
        if set.uid.is_some() || set.gid.is_some() {
            requester.owns(&attr, CAP_CHOWN)?;
        }
        if sets_time(set.atime) || sets_time(set.mtime) {
            requester.owns(&attr, CAP_FOWNER)?;
        }
        // Anybody's write and change of an owner take set-user-ID and set-group-ID, and no more.
        let takes_bits = |perm: u32| {
            attr.perm & !(S_ISUID | S_ISGID) == perm & !(S_ISUID | S_ISGID)
                && perm & !attr.perm == 0
        };
        if let Some(perm) = set.perm.filter(|perm| !takes_bits(*perm)) {
            requester.owns(&attr, CAP_FOWNER)?;
            let group = set.gid.unwrap_or(attr.gid);
            let may_stay = || is_in_group(req, group) || requester.can(CAP_FSETID, &attr);
            if perm & S_ISGID != 0 && !may_stay() {
                set.perm = Some(perm & !S_ISGID);
            }
        }
        Ok(set)
    }

    /// Checks that the requester may set or remove an attribute: an ACL is the owner's.
    pub(crate) fn check_acl(
        &self,
        fs: &dyn FileSystem,
        req: &Request,
        (ino, name): (Ino, &OsStr),
    ) -> Result<()> {
        if self.shared.is_none() || ![ACL_ACCESS, ACL_DEFAULT].contains(&name.as_bytes()) {
            return Ok(());
        }
        Requester { req }.owns(&fs.getattr(ino)?, CAP_FOWNER)
    }

    /// Checks that the requester may remove or rename a name, if its directory is sticky. A name
    /// that does not exist is no error.
    pub(crate) fn check_sticky(
        &self,
        fs: &dyn FileSystem,
        req: &Request,
        (parent, name): (INodeNo, &OsStr),
    ) -> Result<()> {
        if self.shared.is_none() || req.uid() == 0 {
            return Ok(());
        }
        let parent = convert::ino(parent);
        let (dir, requester) = (fs.getattr(parent)?, Requester { req });
        if dir.perm & S_ISVTX == 0 || requester.is_owner(&dir) {
            return Ok(());
        }
        match fs.peek(parent, name.as_bytes()) {
            Ok(attr) => requester.owns(&attr, CAP_FOWNER),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_read_from_proc() {
        assert_eq!(effective("Name:\tx\nCapEff:\t0000000000000009\nCapBnd:\tff\n"), 9);
        assert_eq!(effective(""), 0);
        let first = "         0          0 4294967295\n";
        assert!(is_mapped(first, 0) && is_mapped(first, 70_000));
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        for (id, mapped) in
            [(0, false), (1000, true), (1001, false), (100_000, true), (165_535, true)]
        {
            assert_eq!(is_mapped(rootless, id), mapped, "{id}");
        }
        assert!(!is_mapped("165536\n", 0) && !is_mapped("", 0));
    }
}
