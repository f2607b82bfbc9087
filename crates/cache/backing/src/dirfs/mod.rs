//! A directory of a kernel file system.
//!
//! All calls work relative to descriptors of the directory, so that another file system may be
//! mounted over it afterwards. Operations that the kernel does in one step are left to it. For
//! those that take several kernel calls, locks keep out other calls of this object (vfs-C1).
//! Changes by other processes are seen as by any process, and are not prevented.
//!
//! - **dirfs-B1** A name is a single component and is never followed. No call leaves the tree
//!   except `..`, which is checked.
//! - **dirfs-B2** No lock that all calls share is held while contents are read, written or synced.
//! - **dirfs-B3** An inode that loses its last name while it is referenced is held by a descriptor
//!   opened before that.
//! - **dirfs-B4** A thread has other IDs, another umask and fewer capabilities than its own only
//!   within a call that creates or stores something.
//! - **dirfs-B5** An identity may name any inode of the file system, and comes from records that
//!   other users may have written. So [`find`](Backing::find) proves that the inode lies within the
//!   directory, and each later use proves it again until a caller looks the inode up by a name. The
//!   proof for a directory is the way up, and for anything else a name within the directory that
//!   leads to it. A hard link in the directory is such a name, even if there are other names
//!   outside. An inode without any name is usable as long as it is referenced.
//! - **dirfs-B6** A mount within the directory is not entered (`EXDEV`): its files have no handles
//!   here, and its flags may forbid more.
//! - **dirfs-B7** Blocks that ext4 reserves for the superuser are not available to users. Data is
//!   stored as another user and without `CAP_SYS_RESOURCE`; only calls that create for the
//!   superuser get those blocks.
//! - **dirfs-B8** An overlay copies a file to its upper layer at the first change, then gives it
//!   another handle and birth time. So inodes of overlays are identified by their numbers, which
//!   stay. Those of overlays with layers on several file systems do not (without `xino`), and such
//!   files are not entered (`EXDEV`).
//!
//! If the process may open handles (`CAP_DAC_READ_SEARCH`, not on FUSE), inodes are held by their
//! handles, and few descriptors are open. Otherwise each referenced inode has a descriptor, and the
//! process's limit of descriptors is raised. Inode numbers are the file system's own.
//!
//! Differences between kernel file systems and the contract:
//!
//! - `ctime` cannot be set: [`SetAttr::ctime`] is ignored.
//! - Link counts of directories are 1 on btrfs and some others.
//! - Files of ext4 have at most 2^32 - 1 blocks, symbolic links of XFS at most 1023 bytes;
//!   [`Limits`] states this. Extended attributes run out of space (`ENOSPC`) long before their
//!   limit on ext4 and btrfs; setting one checks no limit of the list of names.
//! - `trusted.` and `security.` attributes belong to the superuser, and `security.capability` must
//!   hold a valid capability.
//! - `fallocate`: tmpfs cannot collapse, insert or zero ranges, and btrfs cannot collapse or insert
//!   (`EOPNOTSUPP`). An allocation within the file sets no `mtime` on most file systems.
//! - A write that runs out of space is undone beyond the old end of the file; the bytes that it
//!   overwrote before that stay changed.
//! - Copies may share blocks. If setting several attributes at once fails, some may be set.
//! - A file that was recently written through this object cannot be executed in the backing store
//!   (`ETXTBSY`), and a file that is executed cannot be written here. Reads update no `atime` if
//!   the process may choose that.
//! - `tmpfile` in a removed directory is refused by ext4 (`EPERM`). Device numbers of XFS have
//!   minors of 18 bits. Times are limited to the range of the file system. A listing may miss or
//!   repeat names that are exchanged meanwhile on btrfs and tmpfs. An exchange sets no `ctime` on
//!   XFS, nor does a removal on tmpfs.

mod attrs;
mod behind;
mod claim;
mod data;
mod durable;
mod find;
mod inode;
mod limits;
mod listing;
mod long_handles;
mod names;

use crate::caller::Unreserved;
use crate::descriptors::Descriptors;
use crate::locks::{self, Locks};
use crate::nodes::{FoundNode, Nodes};
use crate::{Backing, Change, Identity, Opening, Reach, Watch};
use behind::Watching;
use inode::{Identities, key_of, stat};
use rustix::fs::{FlockOperation, Mode, OFlags, Statx};
use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use vfs::{
    Attr, Caller, DirEntry, Durability, Entry, Errno, Fallocate, FileKind, FileSystem, Ino,
    KernelCache, Limits, Mappings, NewNode, Openings, ROOT, RenameFlags, Result, Seek, SetAttr,
    SetXattr, StatFs,
};

/// Options for the use of a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirOptions {
    /// The maximum number of descriptors of inodes that are kept open, if handles can be opened.
    pub inodes_open: usize,
    /// The maximum number of descriptors of contents that are kept open.
    pub contents_open: usize,
    /// Whether to hold inodes by their handles if that works.
    pub opens_handles: bool,
    /// The longest handle in an identity, in bytes; at most [`DirOptions::HANDLE_MAX`]. Longer ones
    /// are identified by numbers.
    pub handle_max: usize,
}

impl DirOptions {
    /// The longest handle that an identity has room for, in bytes.
    pub const HANDLE_MAX: usize = inode::HANDLE_MAX;
}

impl Default for DirOptions {
    fn default() -> Self {
        let handle_max = Self::HANDLE_MAX;
        Self { inodes_open: 512, contents_open: 256, opens_handles: true, handle_max }
    }
}

/// A directory of a kernel file system, presented as a file system.
pub struct DirFs {
    dir: PathBuf,
    /// The directory, open with `O_PATH`.
    root: Arc<OwnedFd>,
    /// The directory, open for reading and locked against other caches.
    locked: OwnedFd,
    identities: Identities,
    /// The ID of the mount of the root; 0 before Linux 5.8.
    root_mount: u64,
    /// The flags of `mount(2)` of the root's mount.
    mount_flags: MountFlags,
    /// Whether the file system reserves blocks for the superuser.
    keeps_reserve: bool,
    opens_handles: bool,
    limits: &'static Limits,
    nodes: Mutex<Nodes>,
    inodes_open: Descriptors,
    contents_open: Descriptors,
    /// A descriptor on each other file system that lookups have met.
    mounts: Mutex<HashMap<u64, Arc<OwnedFd>>>,
    /// Locks of the names in a directory: shared to look up, exclusive to change.
    names: Locks,
    /// Locks of the contents of a file.
    contents: Locks,
    /// The lock of attributes: exclusive to set several at once.
    attrs: RwLock<()>,
    /// The watch for changes by other processes, once it was requested.
    watching: OnceLock<Watching>,
}

/// Releases the lock now. Otherwise a child that was just forked would keep it until it executes a
/// program.
impl Drop for DirFs {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.locked, FlockOperation::Unlock);
    }
}

impl DirFs {
    /// Opens the directory `dir`, and raises the process's limit of descriptors.
    ///
    /// # Errors
    /// The kernel's errors; `WouldBlock` if another `DirFs` has the directory open.
    pub fn open(dir: &Path, options: DirOptions) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::open_at(rustix::fs::open(dir, flags, Mode::empty())?, dir, options)
    }

    /// As [`open`](Self::open), for the directory of the descriptor `root`, whose path is `dir`.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_at(root: OwnedFd, dir: &Path, options: DirOptions) -> io::Result<Self> {
        let root = Arc::new(root);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let locked = rustix::fs::openat(&root, ".", flags, Mode::empty())?;
        claim::take(&locked).map_err(|errno| {
            let what = match errno {
                Errno::WOULDBLOCK => "is in use below another cache".into(),
                errno => format!("cannot be locked: {errno}"),
            };
            io::Error::new(io::Error::from(errno).kind(), format!("{} {what}", dir.display()))
        })?;
        raise_limit();
        let stat = stat(root.as_fd())?;
        let mounted = mount_flags(locked.as_fd())?;
        let identities = Identities::new(&locked, key_of(&stat).0, options.handle_max)?;
        let found = identities.found(root.clone(), &stat)?;
        let opens_handles = options.opens_handles
            && identities.handle(&found.identity).is_some_and(|h| h.open(locked.as_fd()).is_ok());
        Ok(Self {
            dir: dir.to_path_buf(),
            limits: limits::of(&locked)?,
            identities,
            root_mount: stat.stx_mnt_id,
            mount_flags: mounted,
            keeps_reserve: keeps_reserve(&locked)?,
            locked,
            opens_handles,
            nodes: Mutex::new(Nodes::new(found)),
            inodes_open: Descriptors::new(options.inodes_open),
            contents_open: Descriptors::new(options.contents_open),
            mounts: Mutex::default(),
            names: Locks::new(),
            contents: Locks::new(),
            attrs: RwLock::new(()),
            watching: OnceLock::new(),
            root,
        })
    }

    /// Returns the path of the directory, as given when it was opened.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the flags of the mount of the directory.
    pub fn mount_flags(&self) -> MountFlags {
        self.mount_flags
    }

    /// Returns a guard that a call holds while it stores data for users (dirfs-B7); `None` if no
    /// blocks are reserved for the superuser.
    fn leave_reserve(&self) -> Result<Option<Unreserved>> {
        self.keeps_reserve.then(Unreserved::new).transpose()
    }

    /// Fails with `EXDEV` if an inode is on a mount within the directory (dirfs-B6). Subvolumes of
    /// btrfs are devices on the same mount.
    fn check_mount(&self, stat: &Statx) -> Result<()> {
        let is_roots = match self.root_mount {
            0 => key_of(stat).0 == self.identities.root_dev,
            mount => stat.stx_mnt_id == mount,
        };
        if is_roots { Ok(()) } else { Err(Errno::XDEV) }
    }

    /// Returns whether inodes are held by handles, so that few descriptors suffice for many inodes.
    pub fn opens_handles(&self) -> bool {
        self.opens_handles
    }

    /// Returns the number of inodes in the table: those referenced, those above them, and those
    /// that are not durable.
    pub fn nodes_held(&self) -> usize {
        self.nodes().len()
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a node of this identity keeps a descriptor all the time.
    fn keeps_open(&self, identity: &Identity) -> bool {
        !self.opens_handles || !self.identities.has_handle(identity)
    }

    /// Returns a descriptor of a known inode, with its kind.
    fn inode(&self, ino: Ino) -> Result<DirInode> {
        match self.try_inode(ino) {
            // The inode may just have lost its last name and got an anchor.
            Err(Errno::STALE) => self.try_inode(ino),
            result => result,
        }
    }

    /// As [`inode`](Self::inode), at the first attempt.
    fn try_inode(&self, ino: Ino) -> Result<DirInode> {
        let (inode, is_recorded) = self.open_inode(ino)?;
        if is_recorded {
            self.check_within(ino, &inode)?;
        }
        Ok(inode)
    }

    /// Returns a descriptor of an inode, and whether the caller must prove that the inode is in the
    /// directory (dirfs-B5).
    fn open_inode(&self, ino: Ino) -> Result<(DirInode, bool)> {
        let (serial, kind, identity, long_handle, is_recorded) = {
            let nodes = self.nodes();
            let node = nodes.get(ino)?;
            let (serial, kind) = (node.serial, node.kind);
            let is_recorded = node.is_recorded && !node.is_nameless;
            if let Some(fd) = node.anchor.clone() {
                return Ok((DirInode { fd, kind, serial }, is_recorded));
            }
            (serial, kind, node.identity.clone(), node.long_handle.clone(), is_recorded)
        };
        if let Some(fd) = self.inodes_open.get((serial, false)) {
            return Ok((DirInode { fd, kind, serial }, is_recorded));
        }
        let handle = long_handle.or_else(|| self.identities.handle(&identity));
        let handle = handle.ok_or(Errno::STALE)?;
        let fd = Arc::new(handle.open(self.locked.as_fd())?);
        self.inodes_open.put((serial, false), fd.clone());
        Ok((DirInode { fd, kind, serial }, is_recorded))
    }

    /// Returns a descriptor of a known directory; `ENOTDIR` for other kinds.
    fn directory(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Dir { Ok(inode.fd) } else { Err(Errno::NOTDIR) }
    }

    /// Returns the inode of a descriptor.
    fn found(&self, fd: Arc<OwnedFd>) -> Result<FoundNode> {
        let stat = stat(fd.as_fd())?;
        self.identities.found(fd, &stat)
    }

    /// Adds a reference to a found inode. `place` is the name by which it was found, if any.
    fn enter(&self, found: FoundNode, place: Option<(Ino, &[u8])>) -> Result<Entry> {
        let (fd, dev) = (found.fd.clone(), found.key.0);
        self.mark_directory(&found);
        let keeps_open = self.keeps_open(&found.identity);
        let stat = {
            let _whole = locks::shared(&self.attrs);
            stat(fd.as_fd())?
        };
        self.check_mount(&stat)?;
        if dev != self.identities.root_dev {
            lock(&self.mounts).entry(dev).or_insert_with(|| fd.clone());
        }
        let (ino, serial) = {
            let mut nodes = self.nodes();
            let (ino, serial) = nodes.enter(found, keeps_open);
            if let Some((dir, name)) = place {
                nodes.set_place(ino, dir, name);
            }
            if stat.stx_nlink == 0 {
                nodes.set_nameless(ino, &fd, true, keeps_open);
            }
            (ino, serial)
        };
        if !keeps_open {
            self.inodes_open.put((serial, false), fd);
        }
        self.drop_descriptors();
        inode::attr(ino, &stat)
    }

    /// Closes the cached descriptors of nodes that were dropped.
    fn drop_descriptors(&self) {
        let dropped = self.nodes().take_dropped();
        for serial in dropped {
            self.inodes_open.drop_node(serial);
            self.contents_open.drop_node(serial);
        }
    }

    /// Returns a descriptor to read a file, or to read and write it, or to list a directory.
    fn content(&self, inode: &DirInode, writes: bool) -> Result<Arc<OwnedFd>> {
        let open = [(inode.serial, true), (inode.serial, false)];
        let usable = if writes { &open[..1] } else { &open[..] };
        if let Some(fd) = usable.iter().find_map(|key| self.contents_open.get(*key)) {
            return Ok(fd);
        }
        let access = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        let fd = Arc::new(reopen_quietly(&inode.fd, access)?);
        self.contents_open.put((inode.serial, writes), fd.clone());
        Ok(fd)
    }
}

/// A descriptor of an inode, `O_PATH` or better.
struct DirInode {
    fd: Arc<OwnedFd>,
    kind: FileKind,
    serial: u64,
}

/// Returns whether a file system reserves blocks for user 0: ext2 to ext4, and F2FS with an option.
fn keeps_reserve(root: &OwnedFd) -> Result<bool> {
    const EXT: u64 = 0xef53;
    const F2FS: u64 = 0xf2f5_2010;
    Ok(matches!(rustix::fs::fstatfs(root)?.f_type as u64, EXT | F2FS))
}

/// Returns the flags of the mount of a descriptor.
fn mount_flags(fd: BorrowedFd<'_>) -> Result<MountFlags> {
    /// `ST_NOSYMFOLLOW`.
    const NOSYMFOLLOW: u64 = 0x2000;
    let found = rustix::fs::fstatvfs(fd)?.f_flag.bits();
    let flags = [
        (u64::from(libc::ST_RDONLY as u32), MountFlags::RDONLY),
        (u64::from(libc::ST_NOSUID as u32), MountFlags::NOSUID),
        (u64::from(libc::ST_NODEV as u32), MountFlags::NODEV),
        (u64::from(libc::ST_NOEXEC as u32), MountFlags::NOEXEC),
        (NOSYMFOLLOW, MountFlags::NOSYMFOLLOW),
    ];
    let set = flags.into_iter().filter(|(bit, _)| found & bit != 0);
    Ok(set.fold(MountFlags::empty(), |all, (_, flag)| all | flag))
}

/// Opens another descriptor of the same inode.
fn reopen(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::open(link_to(fd), flags | OFlags::CLOEXEC, Mode::empty())
}

/// As [`reopen`], but reads through it set no access times if the process may choose that: a cache
/// reads at times of its own.
fn reopen_quietly(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    match reopen(fd, flags | OFlags::NOATIME) {
        Err(Errno::PERM) => reopen(fd, flags),
        result => result,
    }
}

/// Returns a path that leads to the inode of a descriptor and is followed no further.
fn link_to(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Raises the limit of descriptors as far as the process may.
fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

impl FileSystem for DirFs {
    fn root(&self) -> Ino {
        ROOT
    }

    fn durability(&self) -> Durability {
        Durability::OnSync
    }

    /// Other processes may change the directory.
    fn kernel_cache(&self) -> KernelCache {
        KernelCache::UpTo(Duration::from_secs(1))
    }

    fn limits(&self) -> &'static Limits {
        self.limits
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.look_up(dir, name)
    }

    fn forget(&self, ino: Ino, refs: u64) {
        self.nodes().forget(ino, refs);
        self.drop_descriptors();
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.inode(ino)?;
        let _whole = locks::shared(&self.attrs);
        inode::attr(ino, &stat(inode.fd.as_fd())?)
    }

    fn setattr(&self, _caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.set_attrs(ino, set)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.create_named(caller, dir, name, node)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.create_nameless(caller, dir, mode, umask)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(Errno::INVAL);
        }
        Ok(rustix::fs::readlinkat(&inode.fd, "", Vec::new())?.into_bytes())
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove(dir, name, false)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove(dir, name, true)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.add_name(ino, dir, name)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.move_name(from, to, flags, None)
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_name(from, to, flags, Some(caller))
    }

    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(dir, cookie, emit)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(ino, offset, buf)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(ino, Some(offset), data).map(drop)
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        self.write_at(ino, None, data)
    }

    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.clear_privileges(ino)
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.allocate(ino, mode, offset, len)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.seek_from(ino, offset, whence)
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.copy(from, to, len)
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        self.make_durable(ino)
    }

    fn sync(&self) -> Result<()> {
        self.make_all_durable()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(ino, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.set_xattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.list_xattrs(ino)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.remove_xattr(ino, name)
    }

    fn statfs(&self) -> StatFs {
        let Ok(stat) = rustix::fs::fstatvfs(&self.locked) else {
            return StatFs {
                block_size: 4096,
                blocks: 0,
                blocks_free: 0,
                blocks_available: 0,
                inodes: 0,
                inodes_free: 0,
            };
        };
        StatFs {
            block_size: u32::try_from(stat.f_frsize).unwrap_or(4096),
            blocks: stat.f_blocks,
            blocks_free: stat.f_bavail,
            blocks_available: stat.f_bavail,
            inodes: stat.f_files,
            inodes_free: stat.f_ffree.min(stat.f_files),
        }
    }
}

impl Mappings for DirFs {}

impl Openings for DirFs {}

impl Backing for DirFs {
    fn identity(&self, ino: Ino) -> Result<Identity> {
        Ok(self.nodes().get(ino)?.identity.clone())
    }

    fn find(&self, identity: &Identity) -> Result<Entry> {
        self.find_identity(identity)
    }

    fn sync_metadata(&self, ino: Ino) -> Result<()> {
        self.make_metadata_durable(ino)
    }

    fn watch(&self, how: Watch) -> Result<Reach> {
        self.begin_watching(how)
    }

    fn key<'i>(&self, identity: &'i [u8]) -> &'i [u8] {
        inode::key(identity)
    }

    fn wait_for_changes(
        &self,
        limit: Duration,
        number: &dyn Fn(&[u8]) -> Option<Ino>,
        tell: &mut dyn FnMut(Change),
    ) -> Result<()> {
        self.take_changes(limit, number, tell)
    }

    fn guard_names(&self, dir: Ino) -> Result<()> {
        self.guard_directory(dir)
    }

    fn wait_for_openings(&self, limit: Duration, tell: &mut dyn FnMut(Opening)) -> Result<()> {
        self.take_openings(limit, tell)
    }
}
