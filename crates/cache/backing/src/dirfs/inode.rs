//! Attributes and identities of inodes, from the kernel's answers.

use crate::Identity;
use crate::nodes::{FoundNode, Key};
use crate::sys::Handle;
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};
use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use vfs::{Attr, Errno, FileKind, Ino, Result, Timestamp};

/// The first byte of an identity with a handle. The kind of the handle (4 bytes), its bytes, and
/// the birth time (8) follow.
const BY_HANDLE: u8 = 1;
/// The first byte of an identity without a handle. The device (0 for the root's), the inode number
/// and the birth time follow (8 bytes each).
const BY_NUMBER: u8 = 2;

/// The type of FUSE file systems, whose handles are valid only while the kernel remembers the
/// inode.
const FUSE_MAGIC: u64 = 0x6573_5546;

/// Returns the kernel's attributes of an inode.
pub fn stat(fd: BorrowedFd<'_>) -> Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, wanted)
}

pub fn key_of(stat: &Statx) -> Key {
    (rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino)
}

pub fn kind_of(stat: &Statx) -> Result<FileKind> {
    FileKind::from_mode(u32::from(stat.stx_mode)).ok_or(Errno::IO)
}

fn time(time: StatxTimestamp) -> Timestamp {
    Timestamp::from_parts(time.tv_sec, time.tv_nsec)
}

/// Converts attributes to the contract's. The generation is the part of the birth time that differs
/// most.
pub fn attr(ino: Ino, stat: &Statx) -> Result<Attr> {
    let btime = time(stat.stx_btime);
    Ok(Attr {
        ino,
        generation: btime.0 as u32,
        kind: kind_of(stat)?,
        perm: u32::from(stat.stx_mode) & 0o7777,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor) as u32,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime,
    })
}

/// Returns the kind and the bytes of the handle in an identity, if it has one.
fn parts(identity: &Identity) -> Option<(i32, &[u8])> {
    let (kind, bytes) = identity.0.strip_prefix(&[BY_HANDLE])?.split_first_chunk()?;
    let (bytes, _btime) = bytes.split_last_chunk::<8>()?;
    Some((i32::from_le_bytes(*kind), bytes))
}

/// Returns the part of an identity before the birth time, which events do not have.
pub fn key(identity: &[u8]) -> &[u8] {
    identity.split_last_chunk::<8>().map_or(identity, |(key, _)| key)
}

/// Returns the [`key`] of the inode with this handle in the format of the kernel's events.
pub fn key_of_told(handle: &[u8]) -> Option<Vec<u8>> {
    let (kind, bytes) = handle.split_first_chunk()?;
    Some([&[BY_HANDLE][..], &i32::from_ne_bytes(*kind).to_le_bytes(), bytes].concat())
}

/// Returns the [`key`] of an open file, whose file system has handles.
pub fn key_of_file(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let Handle { kind, bytes } = Handle::of(fd, c"")?;
    Ok([&[BY_HANDLE][..], &kind.to_le_bytes(), &bytes].concat())
}

/// The way in which inodes are identified.
pub struct Identities {
    /// The device of the root.
    pub root_dev: u64,
    /// Whether the root's file system has lasting handles.
    has_handles: bool,
}

impl Identities {
    /// Finds the way for the file system of `root`, whose device is `root_dev`.
    pub fn new(root: &OwnedFd, root_dev: u64) -> Result<Self> {
        let is_fuse = rustix::fs::fstatfs(root)?.f_type as u64 == FUSE_MAGIC;
        let has_handles = !is_fuse && Handle::of(root.as_fd(), c"").is_ok();
        Ok(Self { root_dev, has_handles })
    }

    /// Returns the inode of a descriptor that has these attributes.
    pub fn found(&self, fd: Arc<OwnedFd>, stat: &Statx) -> Result<FoundNode> {
        let key = key_of(stat);
        let btime = time(stat.stx_btime).0.to_le_bytes();
        let mut identity;
        if self.has_handles && key.0 == self.root_dev {
            let handle = Handle::of(fd.as_fd(), c"")?;
            identity = vec![BY_HANDLE];
            identity.extend(handle.kind.to_le_bytes());
            identity.extend(handle.bytes);
        } else {
            identity = vec![BY_NUMBER];
            let device = if key.0 == self.root_dev { 0 } else { key.0 };
            identity.extend(device.to_le_bytes());
            identity.extend(key.1.to_le_bytes());
        }
        identity.extend(btime);
        Ok(FoundNode { fd, key, kind: kind_of(stat)?, identity: Identity(identity) })
    }

    /// Returns whether inodes on the root's file system are identified by their handles.
    pub fn has_handles(&self) -> bool {
        self.has_handles
    }

    /// Returns the handle in an identity, if it has one.
    pub fn handle(&self, identity: &Identity) -> Option<Handle> {
        let (kind, bytes) = parts(identity)?;
        Some(Handle { kind, bytes: bytes.to_vec() })
    }

    /// Returns whether the entry `name` of `dir`, which has inode number `number` in the listing,
    /// may have this identity. If it may not, the caller need not open it.
    pub fn may_be(
        &self,
        identity: &Identity,
        dir: BorrowedFd<'_>,
        name: &CStr,
        number: u64,
    ) -> bool {
        match self.handle(identity) {
            // Without a handle, the caller opens the entry and so gets the error.
            Some(wanted) => Handle::of(dir, name).ok().is_none_or(|handle| handle == wanted),
            None => {
                let wanted = identity.0.get(9..17).and_then(|bytes| bytes.first_chunk());
                wanted.is_some_and(|wanted| number == u64::from_le_bytes(*wanted)) || number == 0
            }
        }
    }
}
