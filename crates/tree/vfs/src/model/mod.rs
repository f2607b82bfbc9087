//! The contract as a program: a file system in memory, written to be obviously right.
//!
//! Every call takes one lock, checks everything, and only then changes something (vfs-C1, vfs-C2).
//! The model has no limit on space, so it never gives `ENOSPC` for it. File contents are kept in
//! blocks that exist once written, so a file of 2^48 bytes costs only its written blocks. Clones
//! share blocks, so keeping a model per crash point is cheap.
//!
//! Invariants:
//!
//! - **model-M1** Every entry of every directory names an inode that exists.
//! - **model-M2** `nlink` of a file is the number of its entries; of a directory 2 plus its
//!   subdirectories, or 0 once removed.
//! - **model-M3** An inode exists while it has a name or a reference (vfs-C4); the root always.
//! - **model-M4** The parents of a directory lead to the root, or to a removed directory.
//! - **model-M5** A file has no bytes other than zeros at or beyond its size.

mod attrs;
mod data;
mod names;
mod saved;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use crate::rules::SYMLINK_PERM;
use crate::{
    Attr, Caller, DirEntry, Durability, Entry, Errno, Fallocate, FileKind, FileSystem, Ino,
    KernelCache, Limits, Mappings, NewNode, Openings, ROOT, RenameFlags, Result, Seek, SetAttr,
    SetXattr, StatFs, Timestamp,
};
use data::{BLOCK_SIZE, Sparse};
use names::Dir;

type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A [`FileSystem`] in memory. Its root directory is owned by 0:0 with mode 0755.
pub struct Model {
    state: Mutex<State>,
    clock: Clock,
    /// The state that would survive a crash; `None`: everything.
    durable: Option<Mutex<State>>,
}

impl Model {
    /// Makes an empty file system with the time of day.
    pub fn new() -> Self {
        Self::with_clock(Timestamp::now)
    }

    /// Makes an empty file system with its own clock, which each changing call reads once.
    pub fn with_clock(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State::new(clock()));
        Self { state, clock: Arc::new(clock), durable: None }
    }

    /// Makes an empty file system that loses unsynced changes in a crash ([`Durability::OnSync`]).
    /// It tests that front ends sync as such engines require (vfs-C6). One `fsync` makes everything
    /// durable. No time repeats, so that birth times tell lives of one inode number apart.
    pub fn durable_on_sync() -> Self {
        let last = AtomicI64::new(0);
        let model = Self::with_clock(move || {
            let now = Timestamp::now().0;
            let last = last.fetch_update(Relaxed, Relaxed, |last| Some(now.max(last + 1)));
            Timestamp(now.max(last.unwrap_or(now) + 1))
        });
        let durable = Some(Mutex::new(model.state().clone()));
        Self { durable, ..model }
    }

    /// As `new`, with limits of its own, to test front ends with the limits of an engine.
    pub fn with_limits(limits: &'static Limits) -> Self {
        let model = Self::new();
        model.state().limits = limits;
        model
    }

    /// Returns the state that a crash now would leave, mounted again.
    pub fn after_crash(&self) -> Self {
        let mut state = self.durable().unwrap_or_else(|| self.state()).clone();
        state.forget_all();
        let durable = self.durable.is_some().then(|| Mutex::new(state.clone()));
        Self { state: Mutex::new(state), clock: self.clock.clone(), durable }
    }

    /// Returns the durable state as its current users see it: also files without a name.
    pub fn synced(&self) -> Self {
        let state = self.durable().unwrap_or_else(|| self.state()).clone();
        Self { state: Mutex::new(state), clock: self.clock.clone(), durable: None }
    }

    /// Returns the state that others find after all current users were killed: everything, durable
    /// or not.
    pub fn after_kill(&self) -> Self {
        let mut state = self.state().clone();
        state.forget_all();
        let durable = self.durable().map(|durable| Mutex::new(durable.clone()));
        Self { state: Mutex::new(state), clock: self.clock.clone(), durable }
    }

    /// Returns the number of names.
    pub fn names(&self) -> u64 {
        let names = |inode: &Inode| match &inode.node {
            Node::Dir(dir) => dir.entries.len() as u64,
            _ => 0,
        };
        self.state().inodes.values().map(names).sum()
    }

    /// Makes everything completed durable.
    fn make_durable(&self, state: &State) {
        if let Some(mut durable) = self.durable() {
            durable.clone_from(state);
        }
    }

    fn durable(&self) -> Option<MutexGuard<'_, State>> {
        let durable = self.durable.as_ref()?;
        Some(durable.lock().expect("no call panics while it holds what is durable"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no call panics while it holds the state")
    }

    /// Returns the state and the time of the call; the lock is taken first, so that times never run
    /// back.
    fn state_now(&self) -> (MutexGuard<'_, State>, Timestamp) {
        let state = self.state();
        (state, (self.clock)())
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Model {
    fn clone(&self) -> Self {
        let state = self.state();
        let durable = self.durable().map(|durable| Mutex::new(durable.clone()));
        Self { state: Mutex::new(state.clone()), clock: self.clock.clone(), durable }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("inodes", &self.state().inodes).finish()
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct State {
    inodes: BTreeMap<Ino, Inode>,
    next_ino: u64,
    #[serde(skip, default = "largest")]
    limits: &'static Limits,
}

/// Returns the limits of models without limits of their own.
fn largest() -> &'static Limits {
    &Limits::MAX
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Inode {
    node: Node,
    perm: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    #[serde(skip)]
    refs: u64,
    /// Whether it came from `tmpfile` and was never named.
    #[serde(skip)]
    linkable: bool,
    #[serde(serialize_with = "saved::save_time", deserialize_with = "saved::load_time")]
    atime: Timestamp,
    #[serde(serialize_with = "saved::save_time", deserialize_with = "saved::load_time")]
    mtime: Timestamp,
    #[serde(serialize_with = "saved::save_time", deserialize_with = "saved::load_time")]
    ctime: Timestamp,
    #[serde(serialize_with = "saved::save_time", deserialize_with = "saved::load_time")]
    btime: Timestamp,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Node {
    File(Sparse),
    Dir(Dir),
    Symlink(Vec<u8>),
    /// A pipe, a socket, or a device with its number.
    Special(FileKind, u32),
}

impl Inode {
    /// Makes a node without a name, owned by 0:0.
    fn new(node: Node, now: Timestamp) -> Self {
        Self {
            perm: SYMLINK_PERM,
            uid: 0,
            gid: 0,
            nlink: if matches!(node, Node::Dir(_)) { 2 } else { 0 },
            refs: 0,
            linkable: false,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: BTreeMap::new(),
            node,
        }
    }

    fn kind(&self) -> FileKind {
        match self.node {
            Node::File(_) => FileKind::File,
            Node::Dir(_) => FileKind::Dir,
            Node::Symlink(_) => FileKind::Symlink,
            Node::Special(kind, _) => kind,
        }
    }

    fn is_dir(&self) -> bool {
        self.kind() == FileKind::Dir
    }

    fn attr(&self, ino: Ino) -> Attr {
        let (size, blocks) = match &self.node {
            Node::File(data) => (data.size(), data.blocks()),
            Node::Symlink(target) => (target.len() as u64, 0),
            Node::Dir(_) | Node::Special(..) => (0, 0),
        };
        Attr {
            ino,
            generation: 0,
            kind: self.kind(),
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: if let Node::Special(_, rdev) = self.node { rdev } else { 0 },
            size,
            blocks: blocks * (BLOCK_SIZE / 512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }

    /// Records a change of content.
    fn modified(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
    }
}

impl State {
    fn new(now: Timestamp) -> Self {
        let mut root = Inode::new(Node::Dir(Dir::new(ROOT)), now);
        root.perm = 0o755;
        let inodes = BTreeMap::from([(ROOT, root)]);
        Self { inodes, next_ino: ROOT.0 + 1, limits: largest() }
    }

    fn inode(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Errno::STALE)
    }

    fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::STALE)
    }

    /// Drops all references.
    fn forget_all(&mut self) {
        let held: Vec<_> = self.inodes.iter().map(|(&ino, inode)| (ino, inode.refs)).collect();
        held.into_iter().for_each(|(ino, refs)| self.forget(ino, refs));
    }

    fn statfs(&self) -> StatFs {
        let used: u64 = self.inodes.iter().map(|(&ino, inode)| inode.attr(ino).blocks).sum();
        let blocks = self.limits.file_size / BLOCK_SIZE;
        let inodes = u64::from(u32::MAX);
        StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks,
            blocks_free: blocks.saturating_sub(used / (BLOCK_SIZE / 512)),
            blocks_available: blocks.saturating_sub(used / (BLOCK_SIZE / 512)),
            inodes,
            inodes_free: inodes.saturating_sub(self.inodes.len() as u64),
        }
    }
}

impl FileSystem for Model {
    fn root(&self) -> Ino {
        ROOT
    }

    fn kernel_cache(&self) -> KernelCache {
        KernelCache::WhileAlone
    }

    fn limits(&self) -> &'static Limits {
        self.state().limits
    }

    fn durability(&self) -> Durability {
        if self.durable.is_some() { Durability::OnSync } else { Durability::OnReturn }
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.state().lookup(dir, name)
    }

    fn forget(&self, ino: Ino, refs: u64) {
        self.state().forget(ino, refs);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.state().inode(ino).map(|inode| inode.attr(ino))
    }

    fn setattr(&self, _caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let (mut state, now) = self.state_now();
        state.setattr(now, ino, set)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        let (mut state, now) = self.state_now();
        state.create(now, caller, dir, name, node)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        let (mut state, now) = self.state_now();
        state.tmpfile(now, caller, dir, mode, umask)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.state().inode(ino)?.node {
            Node::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.unlink(now, dir, name)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.rmdir(now, dir, name)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let (mut state, now) = self.state_now();
        state.link(now, ino, dir, name)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.rename(now, from, to, flags)
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.rename_whiteout(now, caller, from, to, flags)
    }

    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.state().readdir(dir, cookie, emit)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.state().file(ino)?.read(offset, buf))
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.write(now, ino, offset, data)
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        let (mut state, now) = self.state_now();
        let end = state.file(ino)?.size();
        state.write(now, ino, end, data)?;
        Ok(end)
    }

    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.drop_privileges(now, ino)
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.fallocate(now, ino, mode, offset, len)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let state = self.state();
        let data = state.file(ino)?;
        let found = match whence {
            _ if offset >= data.size() => None,
            Seek::Data => data.next_data(offset),
            Seek::Hole => Some(data.next_hole(offset)),
        };
        found.ok_or(Errno::NXIO)
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let (mut state, now) = self.state_now();
        state.copy_range(now, from, to, len)
    }

    fn clone_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.clone_range(now, from, to, len)
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        let state = self.state();
        state.inode(ino)?;
        self.make_durable(&state);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.make_durable(&self.state());
        Ok(())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.state().inode(ino)?.xattrs.get(name).cloned().ok_or(Errno::NODATA)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.setxattr(now, ino, name, value, mode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.state().inode(ino)?.xattrs.keys().cloned().collect())
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let (mut state, now) = self.state_now();
        state.removexattr(now, ino, name)
    }

    fn statfs(&self) -> StatFs {
        self.state().statfs()
    }
}

impl Mappings for Model {}

impl Openings for Model {}
