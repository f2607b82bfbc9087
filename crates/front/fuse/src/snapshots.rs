//! The directory of snapshots below a mount: `.snapshots/NAME` shows each snapshot of the pool.
//!
//! [`SnapshotDir`] stands in front of the pool's file system, and answers calls for the directory
//! and all inodes below it.
//!
//! - **snapshots-B1** Nothing below the directory changes: every call that would change something
//!   gives `EROFS`.
//! - **snapshots-B2** The number of an inode identifies its snapshot
//!   ([`mounts::snapshot_inode`]) for as long as the server runs, also after the snapshot was
//!   deleted. No number is given to another snapshot: calls for a deleted one give `ESTALE`.
//! - **snapshots-B3** A snapshot is loaded when a call needs more than the attributes of its root.
//!   It is unloaded when it was not used for [`IDLE`], when more than [`LOADED_MAX`] are loaded, or
//!   when a command is about to delete it ([`RELEASE_XATTR`]). A call then loads it again, so
//!   programs do not notice.
//! - **snapshots-B4** A snapshot of which programs have files or directories open stays loaded. A
//!   loaded snapshot is not deleted ([`SnapshotSource::open`]).
//!
//! No references are counted: each inode of a snapshot has a name there, which stays.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mounts::{
    SNAPSHOT_NUMBER_MAX, SNAPSHOTS_DIR, SNAPSHOTS_NAME, is_in_snapshots, snapshot_inode,
    split_snapshot_inode,
};
use vfs::{
    Attr, Caller, DirEntry, Entry, Errno, Fallocate, FileKind, FileSystem, Ino, NewNode, ROOT,
    RenameFlags, Result, Seek, SetAttr, SetXattr,
};

use crate::names::lock;

/// Time after which a snapshot that is not used is unloaded.
const IDLE: Duration = Duration::from_secs(60);
/// Snapshots that stay loaded although programs have nothing of them open.
const LOADED_MAX: usize = 4;

/// The beginning of the name of an attribute of the root directory; the name of a snapshot follows.
/// A read unloads that snapshot, so that a command can delete it. `EBUSY` if programs have files or
/// directories of it open.
pub const RELEASE_XATTR: &str = "user.keepstone.release-snapshot.";

/// A snapshot, as a pool lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSnapshot {
    /// Its name.
    pub name: String,
    /// Time of creation, in nanoseconds since 1970. No two snapshots of a pool have the same name
    /// and time.
    pub created_ns: u64,
}

/// The root directory of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotRoot {
    /// Its attributes.
    pub attr: Attr,
    /// Whether it has extended attributes.
    pub has_xattrs: bool,
}

/// The snapshots of a pool.
pub trait SnapshotSource: Send + Sync {
    /// Returns the snapshots that can be read, in the order of their creation.
    fn list(&self) -> Result<Vec<ListedSnapshot>>;

    /// Reads the root directory of a snapshot, without loading the snapshot.
    fn root(&self, name: &str) -> Result<SnapshotRoot>;

    /// Loads a snapshot. It is not deleted before the result is dropped.
    fn open(&self, name: &str) -> Result<Arc<dyn FileSystem>>;
}

/// A snapshot that a program has entered.
struct Entered {
    listed: ListedSnapshot,
    root: SnapshotRoot,
    /// Files and directories that are open.
    open: AtomicU64,
    loaded: Mutex<Option<Loaded>>,
}

struct Loaded {
    fs: Arc<dyn FileSystem>,
    used: Instant,
}

/// The snapshots that programs have entered, by the number in their inodes (snapshots-B2). `None`:
/// the snapshot was deleted.
type Numbers = HashMap<u32, Option<Arc<Entered>>>;

/// A file system, with its snapshots below `.snapshots` of its root.
pub struct SnapshotDir {
    pool: Arc<dyn FileSystem>,
    source: Box<dyn SnapshotSource>,
    numbers: Mutex<Numbers>,
}

/// The object of a call.
enum Target {
    Pool,
    /// The directory of snapshots.
    Dir,
    /// An inode of a snapshot.
    Within(SnapshotInode),
}

/// An inode of a snapshot.
struct SnapshotInode {
    number: u32,
    snapshot: Arc<Entered>,
    ino: Ino,
}

impl SnapshotDir {
    /// Puts the snapshots of `source` below the root of `pool`.
    pub fn new(pool: Arc<dyn FileSystem>, source: Box<dyn SnapshotSource>) -> Self {
        Self { pool, source, numbers: Mutex::default() }
    }

    /// Unloads snapshots that were not used for some time. To be called periodically.
    pub fn unload_idle(&self) {
        for snapshot in self.entered() {
            let mut loaded = lock(&snapshot.loaded);
            let is_idle = loaded.as_ref().is_some_and(|loaded| loaded.used.elapsed() >= IDLE);
            if is_idle && snapshot.open.load(SeqCst) == 0 {
                *loaded = None;
            }
        }
    }

    /// Unloads a snapshot that is about to be deleted.
    fn release(&self, name: &[u8]) -> Result<()> {
        for snapshot in self.entered().filter(|one| one.listed.name.as_bytes() == name) {
            if snapshot.open.load(SeqCst) != 0 {
                return Err(Errno::BUSY);
            }
            *lock(&snapshot.loaded) = None;
        }
        Ok(())
    }

    fn entered(&self) -> impl Iterator<Item = Arc<Entered>> + use<> {
        let entered: Vec<_> = lock(&self.numbers).values().flatten().cloned().collect();
        entered.into_iter()
    }

    fn target(&self, ino: Ino) -> Result<Target> {
        if !is_in_snapshots(ino) {
            return Ok(Target::Pool);
        }
        let Some((number, ino)) = split_snapshot_inode(ino) else {
            return if ino == SNAPSHOTS_DIR { Ok(Target::Dir) } else { Err(Errno::STALE) };
        };
        let snapshot = lock(&self.numbers).get(&number).cloned().flatten();
        let snapshot = snapshot.ok_or(Errno::STALE)?;
        Ok(Target::Within(SnapshotInode { number, snapshot, ino }))
    }

    /// Returns an inode below the directory of snapshots; `None` for one of the pool.
    fn inside(&self, ino: Ino, of_dir: Errno) -> Result<Option<SnapshotInode>> {
        match self.target(ino)? {
            Target::Pool => Ok(None),
            Target::Dir => Err(of_dir),
            Target::Within(inside) => Ok(Some(inside)),
        }
    }

    /// Returns the file system of a snapshot (snapshots-B3).
    fn load(&self, snapshot: &Entered) -> Result<Arc<dyn FileSystem>> {
        let mut loaded = lock(&snapshot.loaded);
        if let Some(loaded) = &mut *loaded {
            loaded.used = Instant::now();
            return Ok(loaded.fs.clone());
        }
        let check_exists = || match self.source.list()?.contains(&snapshot.listed) {
            true => Ok(()),
            false => Err(Errno::STALE),
        };
        check_exists()?;
        let fs = self.source.open(&snapshot.listed.name)?;
        // It is not deleted any more, but it may have been, and another one made.
        check_exists()?;
        *loaded = Some(Loaded { fs: fs.clone(), used: Instant::now() });
        drop(loaded);
        self.unload_surplus();
        Ok(fs)
    }

    /// Unloads the snapshots whose last use is the longest ago, if too many are loaded.
    fn unload_surplus(&self) {
        let used = |snapshot: &Entered| {
            let is_open = snapshot.open.load(SeqCst) != 0;
            // One that is being loaded is in use.
            let loaded = snapshot.loaded.try_lock().ok()?;
            loaded.as_ref().filter(|_| !is_open).map(|loaded| loaded.used)
        };
        let mut all: Vec<_> = self.entered().filter_map(|one| Some((used(&one)?, one))).collect();
        all.sort_by_key(|(used, _)| *used);
        let surplus = all.len().saturating_sub(LOADED_MAX);
        for (_, snapshot) in &all[..surplus] {
            if let Ok(mut loaded) = snapshot.loaded.try_lock() {
                *loaded = None;
            }
        }
    }

    /// Returns the snapshot of this name with its number, which it gets if it has none.
    fn enter(&self, name: &[u8]) -> Result<(u32, Arc<Entered>)> {
        let all = self.source.list()?;
        let listed = all.iter().find(|one| one.name.as_bytes() == name).ok_or(Errno::NOENT)?;
        let is_it = |entered: &Option<Arc<Entered>>| {
            entered.as_ref().is_some_and(|entered| entered.listed == *listed)
        };
        let find = |numbers: &Numbers| {
            let found = numbers.iter().find(|(_, entered)| is_it(entered));
            found.and_then(|(number, entered)| Some((*number, entered.clone()?)))
        };
        if let Some(found) = find(&lock(&self.numbers)) {
            return Ok(found);
        }
        let root = self.source.root(&listed.name)?;
        // It may have been deleted, and another one made.
        if !self.source.list()?.contains(listed) {
            return Err(Errno::NOENT);
        }
        let mut numbers = lock(&self.numbers);
        if let Some(found) = find(&numbers) {
            return Ok(found);
        }
        forget_deleted(&mut numbers, &all);
        let (open, loaded) = (AtomicU64::new(0), Mutex::new(None));
        let entered = Arc::new(Entered { listed: listed.clone(), root, open, loaded });
        // A number that mostly stays the same when the server is started again.
        let first = (listed.created_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32;
        for step in 0..SNAPSHOT_NUMBER_MAX {
            let number = first.wrapping_add(step) % SNAPSHOT_NUMBER_MAX + 1;
            if let Place::Vacant(place) = numbers.entry(number) {
                place.insert(Some(entered.clone()));
                return Ok((number, entered));
            }
        }
        Err(Errno::NFILE)
    }

    /// Returns the attributes of the directory of snapshots: those of the pool's root, but all
    /// users may read it and none may write it.
    fn dir_attr(&self) -> Result<Attr> {
        let root = self.pool.getattr(ROOT)?;
        Ok(Attr {
            ino: SNAPSHOTS_DIR,
            generation: 0,
            perm: 0o555,
            nlink: 2,
            size: 0,
            blocks: 0,
            ..root
        })
    }

    /// Whether a name in a directory leads to the directory of snapshots, because the pool has no
    /// such entry.
    fn is_dir(&self, dir: Ino, name: &[u8]) -> Result<bool> {
        if dir != ROOT || name != SNAPSHOTS_NAME.as_bytes() {
            return Ok(false);
        }
        match self.pool.peek(dir, name) {
            Err(Errno::NOENT) => Ok(true),
            found => found.map(|_| false),
        }
    }

    /// Checks that a call which makes or removes a name works on the pool (snapshots-B1). `taken`:
    /// the error for the name of the directory of snapshots.
    fn check_name(&self, (dir, name): (Ino, &[u8]), taken: Errno) -> Result<()> {
        check_writable(dir)?;
        if self.is_dir(dir, name)? { Err(taken) } else { Ok(()) }
    }

    /// Lists the directory of snapshots. The cookie is the position of an entry, which may change
    /// when snapshots are made or deleted.
    fn list(&self, cookie: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let all = self.source.list()?;
        let dots = [(SNAPSHOTS_DIR, "."), (ROOT, "..")].into_iter();
        let snapshots = all.iter().map(|one| (SNAPSHOTS_DIR, one.name.as_str()));
        let from = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (at, (ino, name)) in dots.chain(snapshots).enumerate().skip(from) {
            let (name, cookie) = (name.as_bytes(), at as u64 + 1);
            if !emit(&DirEntry { ino, kind: FileKind::Dir, name, cookie }) {
                break;
            }
        }
        Ok(())
    }

    /// Calls `change` with the snapshot of an inode, to count what is open.
    fn count_open(&self, ino: Ino, change: impl FnOnce(&Entered)) {
        if let Ok(Target::Within(inside)) = self.target(ino) {
            change(&inside.snapshot);
        }
    }
}

/// Marks the numbers of snapshots that are not among `all` (snapshots-B2).
fn forget_deleted(numbers: &mut MutexGuard<'_, Numbers>, all: &[ListedSnapshot]) {
    for entered in numbers.values_mut() {
        let is_gone = |one: &Arc<Entered>| one.open.load(SeqCst) == 0 && !all.contains(&one.listed);
        if entered.as_ref().is_some_and(is_gone) {
            *entered = None;
        }
    }
}

/// Returns `EROFS` for an inode below the directory of snapshots (snapshots-B1).
fn check_writable(ino: Ino) -> Result<()> {
    if is_in_snapshots(ino) { Err(Errno::ROFS) } else { Ok(()) }
}

impl SnapshotInode {
    fn is_root(&self) -> bool {
        self.ino == ROOT
    }

    /// Turns attributes of the snapshot into those of the mount.
    fn shown(&self, attr: Attr) -> Result<Attr> {
        let ino = snapshot_inode(self.number, attr.ino).ok_or(Errno::OVERFLOW)?;
        Ok(Attr { ino, ..attr })
    }

    /// Returns the attributes of the root, if the snapshot still exists.
    fn root_attr(&self, source: &dyn SnapshotSource) -> Result<Attr> {
        let exists = source.list()?.contains(&self.snapshot.listed);
        if exists { self.shown(self.snapshot.root.attr) } else { Err(Errno::STALE) }
    }
}

impl FileSystem for SnapshotDir {
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, sync, statfs);

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let inside = match self.target(dir)? {
            Target::Pool if self.is_dir(dir, name)? => return self.dir_attr(),
            Target::Pool => return self.pool.lookup(dir, name),
            Target::Dir if name == b"." => return self.dir_attr(),
            Target::Dir if name == b".." => return self.pool.lookup(ROOT, b"."),
            Target::Dir => {
                let (number, snapshot) = self.enter(name).map_err(|err| match err {
                    // It is being deleted.
                    Errno::BUSY => Errno::NOENT,
                    err => err,
                })?;
                let root = snapshot.root.attr;
                return SnapshotInode { number, snapshot, ino: ROOT }.shown(root);
            }
            Target::Within(inside) => inside,
        };
        match name {
            b"." if inside.is_root() => inside.root_attr(&*self.source),
            b".." if inside.is_root() => self.dir_attr(),
            b"." => inside.shown(self.load(&inside.snapshot)?.getattr(inside.ino)?),
            _ => {
                let found = self.load(&inside.snapshot)?.peek(inside.ino, name)?;
                if found.ino == ROOT {
                    inside.root_attr(&*self.source)
                } else {
                    inside.shown(found)
                }
            }
        }
    }

    fn forget(&self, ino: Ino, refs: u64) {
        if !is_in_snapshots(ino) {
            self.pool.forget(ino, refs);
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        match self.target(ino)? {
            Target::Pool => self.pool.getattr(ino),
            Target::Dir => self.dir_attr(),
            Target::Within(inside) if inside.is_root() => inside.root_attr(&*self.source),
            Target::Within(inside) => {
                inside.shown(self.load(&inside.snapshot)?.getattr(inside.ino)?)
            }
        }
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        check_writable(ino)?;
        self.pool.setattr(caller, ino, set)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.check_name((dir, name), Errno::EXIST)?;
        self.pool.create(caller, dir, name, node)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        check_writable(dir)?;
        self.pool.tmpfile(caller, dir, mode, umask)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match self.inside(ino, Errno::INVAL)? {
            None => self.pool.readlink(ino),
            Some(inside) => self.load(&inside.snapshot)?.readlink(inside.ino),
        }
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_name((dir, name), Errno::ISDIR)?;
        self.pool.unlink(dir, name)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_name((dir, name), Errno::BUSY)?;
        self.pool.rmdir(dir, name)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_name((dir, name), Errno::EXIST)?;
        if is_in_snapshots(ino) {
            return Err(Errno::XDEV);
        }
        self.pool.link(ino, dir, name)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.check_name(from, Errno::BUSY)?;
        self.check_name(to, Errno::BUSY)?;
        self.pool.rename(from, to, flags)
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.check_name(from, Errno::BUSY)?;
        self.check_name(to, Errno::BUSY)?;
        self.pool.rename_whiteout(caller, from, to, flags)
    }

    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let inside = match self.target(dir)? {
            Target::Pool => return self.pool.readdir(dir, cookie, emit),
            Target::Dir => return self.list(cookie, emit),
            Target::Within(inside) => inside,
        };
        self.load(&inside.snapshot)?.readdir(inside.ino, cookie, &mut |entry| {
            let ino = match entry.name {
                b".." if inside.is_root() => SNAPSHOTS_DIR,
                // Only the number 0 would end a listing.
                _ => snapshot_inode(inside.number, entry.ino).unwrap_or(SNAPSHOTS_DIR),
            };
            emit(&DirEntry { ino, ..*entry })
        })
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self.inside(ino, Errno::ISDIR)? {
            None => self.pool.read(ino, offset, buf),
            Some(inside) => self.load(&inside.snapshot)?.read(inside.ino, offset, buf),
        }
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        check_writable(ino)?;
        self.pool.write(ino, offset, data)
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        check_writable(ino)?;
        self.pool.append(ino, data)
    }

    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        check_writable(ino)?;
        self.pool.drop_privileges(ino)
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        check_writable(ino)?;
        self.pool.fallocate(ino, mode, offset, len)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        match self.inside(ino, Errno::ISDIR)? {
            None => self.pool.seek(ino, offset, whence),
            Some(inside) => self.load(&inside.snapshot)?.seek(inside.ino, offset, whence),
        }
    }

    /// Between the pool and a snapshot, or two snapshots, as between two file systems: `EXDEV`.
    /// The kernel copies then.
    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        check_writable(to.0)?;
        match is_in_snapshots(from.0) {
            true => Err(Errno::XDEV),
            false => self.pool.copy_range(from, to, len),
        }
    }

    fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        check_writable(to.0)?;
        match is_in_snapshots(from.0) {
            true => Err(Errno::XDEV),
            false => self.pool.clone_range(from, to, len),
        }
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        // Nothing of a snapshot changes, and all of it is durable.
        if is_in_snapshots(ino) { Ok(()) } else { self.pool.fsync(ino) }
    }

    fn close(&self) -> Result<()> {
        lock(&self.numbers).clear();
        self.pool.close()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if ino == ROOT
            && let Some(snapshot) = name.strip_prefix(RELEASE_XATTR.as_bytes())
        {
            return self.release(snapshot).map(|()| Vec::new());
        }
        match self.inside(ino, Errno::NODATA)? {
            None => self.pool.getxattr(ino, name),
            Some(inside) if inside.is_root() && !inside.snapshot.root.has_xattrs => {
                Err(Errno::NODATA)
            }
            Some(inside) => self.load(&inside.snapshot)?.getxattr(inside.ino, name),
        }
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        check_writable(ino)?;
        self.pool.setxattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        match self.target(ino)? {
            Target::Pool => self.pool.listxattr(ino),
            Target::Dir => Ok(Vec::new()),
            Target::Within(inside) if inside.is_root() && !inside.snapshot.root.has_xattrs => {
                Ok(Vec::new())
            }
            Target::Within(inside) => self.load(&inside.snapshot)?.listxattr(inside.ino),
        }
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        check_writable(ino)?;
        self.pool.removexattr(ino, name)
    }
}

impl vfs::Mappings for SnapshotDir {}

impl vfs::Openings for SnapshotDir {
    fn opened(&self, ino: Ino) {
        match is_in_snapshots(ino) {
            true => self.count_open(ino, |snapshot| {
                snapshot.open.fetch_add(1, SeqCst);
                // snapshots-B4. An error meets the call that reads.
                let _ = self.load(snapshot);
            }),
            false => self.pool.opened(ino),
        }
    }

    fn closed(&self, ino: Ino) {
        match is_in_snapshots(ino) {
            true => self.count_open(ino, |snapshot| {
                snapshot.open.fetch_sub(1, SeqCst);
            }),
            false => self.pool.closed(ino),
        }
    }
}
