//! Attributes and identities of inodes, from the kernel's answers.

use super::long_handles::{LongHandles, number_of};
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
/// The longest handle in an identity, in bytes.
pub const HANDLE_MAX: usize = Identity::LEN_MAX - 13;
/// The first byte of an identity without a handle. The device (0 for the root's), the inode number
/// and the birth time follow (8 bytes each).
const BY_NUMBER: u8 = 2;
/// The first byte of an identity with the number of a longer handle ([`LongHandles`]). The number
/// (16 bytes) and the birth time (8) follow.
const BY_LONG_HANDLE: u8 = 3;

/// The type of FUSE file systems, whose handles are valid only while the kernel remembers the
/// inode.
const FUSE_MAGIC: u64 = 0x6573_5546;

/// The type of overlays. An inode that is copied to the upper layer gets another handle and another
/// birth time.
const OVERLAY_MAGIC: u64 = 0x794c_7630;

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

/// Returns the part of an identity before the birth time, which events do not have.
pub fn key(identity: &[u8]) -> &[u8] {
    identity.split_last_chunk::<8>().map_or(identity, |(key, _)| key)
}

/// The way in which inodes are identified.
pub struct Identities {
    /// The device of the root.
    pub root_dev: u64,
    /// Whether the root's file system has lasting handles.
    has_handles: bool,
    /// Whether the root lies on an overlay (dirfs-B8).
    is_overlay: bool,
    /// The longest handle in an identity, in bytes.
    handle_max: usize,
    long: LongHandles,
}

impl Identities {
    /// Finds the way for the file system of `root`, whose device is `root_dev`. Identities contain
    /// handles of up to `handle_max` bytes.
    pub fn new(root: &OwnedFd, root_dev: u64, handle_max: usize) -> Result<Self> {
        let magic = rustix::fs::fstatfs(root)?.f_type as u64;
        let is_overlay = magic == OVERLAY_MAGIC;
        let has_handles =
            magic != FUSE_MAGIC && !is_overlay && Handle::of(root.as_fd(), c"").is_ok();
        let (handle_max, long) = (handle_max.min(HANDLE_MAX), LongHandles::default());
        Ok(Self { root_dev, has_handles, is_overlay, handle_max, long })
    }

    /// Returns the [`key`] of the inode with a handle of this kind and these bytes.
    fn key_of_handle(&self, kind: i32, bytes: &[u8]) -> Vec<u8> {
        if bytes.len() > self.handle_max {
            return [&[BY_LONG_HANDLE][..], &number_of(kind, bytes)].concat();
        }
        [&[BY_HANDLE][..], &kind.to_le_bytes(), bytes].concat()
    }

    /// Returns the [`key`] of the inode with this handle in the format of the kernel's events.
    pub fn key_of_told(&self, handle: &[u8]) -> Option<Vec<u8>> {
        let (kind, bytes) = handle.split_first_chunk()?;
        Some(self.key_of_handle(i32::from_ne_bytes(*kind), bytes))
    }

    /// Returns the [`key`] of an open file, whose file system has handles.
    pub fn key_of_file(&self, fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
        let Handle { kind, bytes } = Handle::of(fd, c"")?;
        Ok(self.key_of_handle(kind, &bytes))
    }

    /// Returns the inode of a descriptor that has these attributes. `EXDEV` if it has no lasting
    /// identity (dirfs-B8).
    pub fn found(&self, fd: Arc<OwnedFd>, stat: &Statx) -> Result<FoundNode> {
        let key = key_of(stat);
        if self.is_overlay && key.0 != self.root_dev {
            return Err(Errno::XDEV);
        }
        let btime = if self.is_overlay { 0 } else { time(stat.stx_btime).0 };
        let btime = btime.to_le_bytes();
        let (mut identity, mut long_handle) = (Vec::new(), None);
        if self.has_handles && key.0 == self.root_dev {
            let handle = Handle::of(fd.as_fd(), c"")?;
            identity = self.key_of_handle(handle.kind, &handle.bytes);
            if handle.bytes.len() > self.handle_max {
                long_handle = Some(self.long.note(handle));
            }
        } else {
            identity.push(BY_NUMBER);
            let device = if key.0 == self.root_dev { 0 } else { key.0 };
            identity.extend(device.to_le_bytes());
            identity.extend(key.1.to_le_bytes());
        }
        identity.extend(btime);
        let (kind, identity) = (kind_of(stat)?, Identity(identity));
        Ok(FoundNode { fd, key, kind, identity, long_handle })
    }

    /// Returns whether inodes on the root's file system are identified by their handles.
    pub fn has_handles(&self) -> bool {
        self.has_handles
    }

    /// Returns whether the inode of an identity has a handle.
    pub fn has_handle(&self, identity: &Identity) -> bool {
        matches!(identity.0.first(), Some(&(BY_HANDLE | BY_LONG_HANDLE)))
    }

    /// Returns the handle of an identity, if it is known.
    pub fn handle(&self, identity: &Identity) -> Option<Arc<Handle>> {
        let (way, rest) = identity.0.split_first()?;
        let (handle, _btime) = rest.split_last_chunk::<8>()?;
        if *way == BY_LONG_HANDLE {
            return self.long.get(handle.try_into().ok()?);
        }
        let (kind, bytes) = handle.split_first_chunk().filter(|_| *way == BY_HANDLE)?;
        Some(Arc::new(Handle { kind: i32::from_le_bytes(*kind), bytes: bytes.to_vec() }))
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
        match self.has_handle(identity) {
            // Without a handle, the caller opens the entry and so gets the error.
            true => Handle::of(dir, name).ok().is_none_or(|handle| {
                let has_key = key(&identity.0) == self.key_of_handle(handle.kind, &handle.bytes);
                if handle.bytes.len() > self.handle_max {
                    self.long.note(handle);
                }
                has_key
            }),
            false => {
                let wanted = identity.0.get(9..17).and_then(|bytes| bytes.first_chunk());
                wanted.is_some_and(|wanted| number == u64::from_le_bytes(*wanted)) || number == 0
            }
        }
    }
}
