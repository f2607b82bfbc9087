//! A directory of a kernel file system.
//!
//! Everything is done relative to descriptors of the directory, so that something may be mounted over it afterwards. What the
//! kernel does in one step it is left to; where a call takes several, locks keep other calls of this object out (vfs-C1). Who
//! changes the directory beside us is seen as by any process, and is not kept out.
//!
//! - **dirfs-B1** A name is one component and never followed: no call leaves the tree but `..`, which is checked.
//! - **dirfs-B2** No lock that all calls share is held while contents are read, written or made durable.
//! - **dirfs-B3** What loses its last name while it is referenced is held by a descriptor from before that.
//! - **dirfs-B5** An identity leads anywhere on the file system, and comes from records that others may have written. So what
//!   [`find`](Backing::find) gives is proven to lie within the directory then, and again at each use until a caller looks it
//!   up by a name: a directory by the way up, anything else by a name that leads to it. A hard link in the directory is such
//!   a name, whatever other names there are. An inode without any name is used as long as it is referenced.
//! - **dirfs-B6** A mount below the directory is not entered (`EXDEV`) if it forbids more than users of this object are
//!   forbidden: set-user-ID programs, devices, execution, symbolic links.
//! - **dirfs-B7** Blocks that ext4 keeps for the superuser are not for users: what is stored is stored as another user, and
//!   without `CAP_SYS_RESOURCE`, as which no call but those that create for the superuser gets them.
//! - **dirfs-B4** A thread has other IDs, another umask and fewer capabilities than its own only within a call that creates or
//!   stores.
//!
//! Inodes are held by their handles where the process may open these (`CAP_DAC_READ_SEARCH`, not on FUSE), with a few
//! descriptors open; elsewhere each that is referenced has a descriptor, and the process's limit is raised for that. Numbers of
//! inodes are the file system's own.
//!
//! Where a kernel's file system differs from the contract:
//!
//! - `ctime` cannot be set: [`SetAttr::ctime`] is ignored.
//! - Link counts of directories are 1 on btrfs and some others.
//! - Files of ext4 end at 2^32 - 1 blocks, links of XFS after 1023 bytes: [`Limits`] say so. Extended attributes find no space
//!   (`ENOSPC`) long before their limit on ext4 and btrfs; the list of names has no limit when one is set.
//! - `trusted.` and `security.` attributes are the superuser's, and `security.capability` must be one.
//! - `fallocate`: tmpfs neither collapses, inserts nor zeroes ranges, btrfs does not collapse or insert (`EOPNOTSUPP`); what
//!   it allocates in the file sets no `mtime` on most.
//! - A write that finds no space midway is cut off beyond the old end of the file; what it overwrote before that stays.
//! - Copies may share blocks. Several attributes that are set at once may be set in part where one fails.
//! - A file that was written through this object a while ago cannot be executed beside it (`ETXTBSY`), nor written here while
//!   it is executed. Reading leaves no `atime`, where the process may choose.
//! - `tmpfile` in a removed directory is refused by ext4 (`EPERM`); device numbers of XFS have minors of 18 bits; times end
//!   where the file system's do. Names that are exchanged while a directory is listed may be missed or met twice on btrfs and
//!   tmpfs, what is exchanged keeps its `ctime` on XFS, and what is removed keeps it on tmpfs.
//! - A mount below the directory is entered; it is not moved or linked across (`EXDEV`). Files there have descriptors.

mod attrs;
mod behind;
mod claim;
mod data;
mod durable;
mod find;
mod inode;
mod limits;
mod listing;
mod names;

use crate::caller::Unreserved;
use crate::descriptors::Descriptors;
use crate::locks::{self, Locks};
use crate::nodes::{Changes, Found, Nodes};
use crate::{Backing, Change, Frozen, Identity, Opening, Reach, Watch};
use behind::Watching;
use inode::{Identities, key_of, stat};
use rustix::fs::{FlockOperation, Mode, OFlags, Statx};
use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use vfs::{
    Attr, Caller, Delegations, DirEntry, Durability, Entry, Errno, Fallocate, FileKind, FileSystem,
    Ino, KernelCache, Limits, Mappings, NewNode, Openings, ROOT, RenameFlags, Result, Seek,
    SetAttr, SetXattr, StatFs,
};

/// How a directory is used.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Descriptors of inodes that are kept open at most, where handles can be opened.
    pub inodes_open: usize,
    /// Descriptors of contents that are kept open at most.
    pub contents_open: usize,
    /// Hold inodes by their handles where that works.
    pub opens_handles: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { inodes_open: 512, contents_open: 256, opens_handles: true }
    }
}

/// A directory of a kernel file system, as a file system of its own.
pub struct DirFs {
    dir: PathBuf,
    /// `O_PATH`.
    root: Arc<OwnedFd>,
    /// Open for reading, and locked against other users like us.
    locked: OwnedFd,
    identities: Identities,
    /// The mount that the root lies on, by its number; 0 before Linux 5.8.
    root_mount: u64,
    /// Flags of `mount(2)` that hold for users of this object (dirfs-B6): at first those of that mount.
    forbidden: AtomicU32,
    /// Whether the file system keeps blocks for the superuser.
    keeps_reserve: bool,
    opens_handles: bool,
    limits: &'static Limits,
    nodes: Mutex<Nodes>,
    inodes_open: Descriptors,
    contents_open: Descriptors,
    /// A descriptor on each other file system that was met.
    mounts: Mutex<HashMap<u64, Arc<OwnedFd>>>,
    /// Names in a directory: shared to look up, exclusive to change.
    names: Locks,
    /// Contents of a file.
    contents: Locks,
    /// Attributes: exclusive to set several.
    attrs: RwLock<()>,
    /// What tells of others, once that was asked for.
    watching: OnceLock<Watching>,
}

/// The lock goes now, not when a child that was just forked, and has the descriptor until it executes something, does.
impl Drop for DirFs {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.locked, FlockOperation::Unlock);
    }
}

impl DirFs {
    /// Opens the directory `dir`, and raises the process's limit of descriptors.
    ///
    /// # Errors
    /// What the kernel says; `WouldBlock` where another `DirFs` has the directory open.
    pub fn open(dir: &Path, options: Options) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::open_at(rustix::fs::open(dir, flags, Mode::empty())?, dir, options)
    }

    /// As [`open`](Self::open) the directory that `root` is, which is called `dir`.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_at(root: OwnedFd, dir: &Path, options: Options) -> io::Result<Self> {
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
        let identities = Identities::new(&locked, key_of(&stat).0)?;
        let found = identities.found(root.clone(), &stat)?;
        let opens_handles = options.opens_handles
            && identities.handle(&found.identity).is_some_and(|h| h.open(locked.as_fd()).is_ok());
        Ok(Self {
            dir: dir.to_path_buf(),
            limits: limits::of(&locked)?,
            identities,
            root_mount: stat.stx_mnt_id,
            forbidden: AtomicU32::new(mounted.bits()),
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

    /// The directory, as it was called when it was opened.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Flags of the mount that the directory lies on.
    pub fn mount_flags(&self) -> MountFlags {
        MountFlags::from_bits_retain(self.forbidden.load(Relaxed))
    }

    /// Users of this object are forbidden what these flags forbid, in place of those of the directory's mount (dirfs-B6).
    pub fn serve_with(&self, flags: MountFlags) {
        self.forbidden.store(flags.bits(), Relaxed);
    }

    /// Is held by a call while it stores data for users (dirfs-B7). `None` if no blocks are kept for the superuser.
    fn leave_reserve(&self) -> Result<Option<Unreserved>> {
        self.keeps_reserve.then(Unreserved::new).transpose()
    }

    /// Fails if an inode is on a mount within the directory that forbids more than users of this object are forbidden (dirfs-B6).
    fn check_mount(&self, fd: &OwnedFd, stat: &Statx) -> Result<()> {
        let is_roots = stat.stx_mnt_id == self.root_mount;
        if is_roots && key_of(stat).0 == self.identities.root_dev {
            return Ok(());
        }
        let allowed = self.mount_flags() | MountFlags::RDONLY;
        if allowed.contains(mount_flags(fd.as_fd())?) { Ok(()) } else { Err(Errno::XDEV) }
    }

    /// Whether inodes are held by handles, so that few descriptors do for many.
    pub fn opens_handles(&self) -> bool {
        self.opens_handles
    }

    /// How many inodes are in the table: those referenced, those above them, and those that are not durable.
    pub fn nodes_held(&self) -> usize {
        self.nodes().len()
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a node of this identity has a descriptor all the time.
    fn keeps_open(&self, identity: &Identity) -> bool {
        !self.opens_handles || self.identities.handle(identity).is_none()
    }

    /// A descriptor of a known inode, and what it is of.
    fn inode(&self, ino: Ino) -> Result<Inode> {
        match self.try_inode(ino) {
            // It may have lost its last name, and got an anchor, just now.
            Err(Errno::STALE) => self.try_inode(ino),
            result => result,
        }
    }

    fn try_inode(&self, ino: Ino) -> Result<Inode> {
        let (inode, is_recorded) = self.open_inode(ino)?;
        if is_recorded {
            self.check_within(ino, &inode)?;
        }
        Ok(inode)
    }

    /// The same, and whether it is to be proven that it is in the directory (dirfs-B5).
    fn open_inode(&self, ino: Ino) -> Result<(Inode, bool)> {
        let (serial, kind, identity, is_recorded) = {
            let nodes = self.nodes();
            let node = nodes.get(ino)?;
            let (serial, kind) = (node.serial, node.kind);
            let is_recorded = node.is_recorded && !node.is_nameless;
            if let Some(fd) = node.anchor.clone() {
                return Ok((Inode { fd, kind, serial }, is_recorded));
            }
            (serial, kind, node.identity.clone(), is_recorded)
        };
        if let Some(fd) = self.inodes_open.get((serial, false)) {
            return Ok((Inode { fd, kind, serial }, is_recorded));
        }
        let handle = self.identities.handle(&identity).ok_or(Errno::STALE)?;
        let fd = Arc::new(handle.open(self.locked.as_fd())?);
        self.inodes_open.put((serial, false), fd.clone());
        Ok((Inode { fd, kind, serial }, is_recorded))
    }

    /// A descriptor of a known directory. `ENOTDIR` where it is none.
    fn directory(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Dir { Ok(inode.fd) } else { Err(Errno::NOTDIR) }
    }

    /// What a descriptor is of.
    fn found(&self, fd: Arc<OwnedFd>) -> Result<Found> {
        let stat = stat(fd.as_fd())?;
        self.identities.found(fd, &stat)
    }

    /// Adds a reference to what was found under this name, if it was by a name.
    fn enter(&self, found: Found, place: Option<(Ino, &[u8])>) -> Result<Entry> {
        let (fd, dev) = (found.fd.clone(), found.key.0);
        self.mark_directory(&found);
        let keeps_open = self.keeps_open(&found.identity);
        let stat = {
            let _whole = locks::shared(&self.attrs);
            stat(fd.as_fd())?
        };
        self.check_mount(&fd, &stat)?;
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

    /// Closes what the caches have of nodes that were dropped.
    fn drop_descriptors(&self) {
        let dropped = self.nodes().take_dropped();
        for serial in dropped {
            self.inodes_open.drop_node(serial);
            self.contents_open.drop_node(serial);
        }
    }

    /// A descriptor to read, or write and read, a file by; or to list a directory.
    fn content(&self, inode: &Inode, writes: bool) -> Result<Arc<OwnedFd>> {
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
struct Inode {
    fd: Arc<OwnedFd>,
    kind: FileKind,
    serial: u64,
}

/// Whether a file system keeps blocks for user 0: ext2 to ext4, and F2FS with an option.
fn keeps_reserve(root: &OwnedFd) -> Result<bool> {
    const EXT: u64 = 0xef53;
    const F2FS: u64 = 0xf2f5_2010;
    Ok(matches!(rustix::fs::fstatfs(root)?.f_type as u64, EXT | F2FS))
}

/// Flags of the mount that a descriptor is of.
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

/// Another descriptor of the same inode.
fn reopen(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::open(link_to(fd), flags | OFlags::CLOEXEC, Mode::empty())
}

/// As [`reopen`], to read without a trace where we may: a cache reads when it wants, not when somebody does.
fn reopen_quietly(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    match reopen(fd, flags | OFlags::NOATIME) {
        Err(Errno::PERM) => reopen(fd, flags),
        result => result,
    }
}

/// A path that leads to an inode and is followed no further.
fn link_to(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the process have as many descriptors as it may. Where it may not, there are fewer.
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

    /// Others may change the directory.
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

impl Delegations for DirFs {}

impl Backing for DirFs {
    fn identity(&self, ino: Ino) -> Result<Identity> {
        Ok(self.nodes().get(ino)?.identity.clone())
    }

    fn find(&self, identity: &Identity, hint: &[u8]) -> Result<Entry> {
        self.find_identity(identity, hint)
    }

    fn path(&self, ino: Ino) -> Option<Vec<u8>> {
        self.nodes().path(ino)
    }

    fn sync_metadata(&self, ino: Ino) -> Result<()> {
        self.make_metadata_durable(ino)
    }

    fn is_placed(&self, ino: Ino) -> bool {
        let nodes = self.nodes();
        let has_no_changes = |changes: Option<Changes>| changes.is_none_or(|c| c.dirs.is_empty());
        nodes.lost_at().is_none() && nodes.get(ino).is_ok() && has_no_changes(nodes.changes(ino))
    }

    fn frozen(&self, ino: Ino) -> Result<Frozen> {
        Ok(attrs::frozen(&stat(self.inode(ino)?.fd.as_fd())?))
    }

    fn room(&self) -> Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.locked)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn watch(&self, how: Watch) -> Result<Reach> {
        self.begin_watching(how)
    }

    fn wait_for_changes(&self, limit: Duration, tell: &mut dyn FnMut(Change)) -> Result<()> {
        self.take_changes(limit, tell)
    }

    fn guard(&self, ino: Ino) -> Result<()> {
        self.set_guarded(ino, true)
    }

    fn unguard(&self, ino: Ino) {
        // What exists no more has no guard either.
        let _ = self.set_guarded(ino, false);
    }

    fn wait_for_openings(&self, limit: Duration, tell: &mut dyn FnMut(Opening)) -> Result<()> {
        self.take_openings(limit, tell)
    }
}
