//! The contract's model as a backing. A crash loses what was not synced, and calls fail on request.
//!
//! After a crash that undid a creation, the model assigns the inode number again. So identities are
//! numbers with birth times.

use crate::{Backing, Change, Identity, Reach, Watch};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::Duration;
use vfs::model::Model;
use vfs::{
    Caller, Entry, Errno, FileSystem, Ino, Mappings, NewNode, Openings, RenameFlags, Result,
};
use vfs::{SetAttr, SetXattr, StatFs};

/// The calls that are counted and that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // Each is named as its method.
pub enum ModelCall {
    Lookup,
    Getattr,
    Setattr,
    Create,
    Tmpfile,
    Readlink,
    Unlink,
    Rmdir,
    Link,
    Rename,
    Readdir,
    Read,
    Write,
    Append,
    DropPrivileges,
    Fallocate,
    Seek,
    CopyRange,
    Fsync,
    Sync,
    Getxattr,
    Setxattr,
    Listxattr,
    Removexattr,
    Identity,
    Find,
    SyncMetadata,
}

/// A function that decides which calls fail, with which error.
type Fault = Box<dyn FnMut(ModelCall) -> Option<Errno> + Send>;

/// A [`Model`] as a [`Backing`].
pub struct ModelBacking {
    model: RwLock<Model>,
    fault: Mutex<Option<Fault>>,
    counts: Mutex<BTreeMap<ModelCall, u64>>,
    /// Whether names or attributes changed since the last sync.
    is_metadata_changed: AtomicBool,
    syncs_as_whole: AtomicBool,
    /// Changes by other processes.
    changes: ChangeQueue,
}

/// A queue from which one thread takes changes that others put into it.
struct ChangeQueue(Mutex<Sender<Change>>, Mutex<Receiver<Change>>);

impl ChangeQueue {
    fn new() -> Self {
        let (sender, receiver) = channel();
        Self(Mutex::new(sender), Mutex::new(receiver))
    }

    fn put(&self, change: Change) {
        locked(&self.0).send(change).expect("the receiver is beside the sender");
    }

    /// Waits for a change, at most for `limit`, and takes all that are there.
    fn take(&self, limit: Duration, each: &mut dyn FnMut(Change)) {
        let receiver = locked(&self.1);
        match receiver.recv_timeout(limit) {
            Ok(first) => std::iter::once(first).chain(receiver.try_iter()).for_each(each),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

impl Default for ModelBacking {
    fn default() -> Self {
        Self::new()
    }
}

/// Forwards calls to the model and counts them.
macro_rules! counted {
    ($($method:ident $call:ident),+ $(,)?) => {
        $( vfs::forward!(self => self.call(ModelCall::$call)?; $method); )+
    };
}

impl ModelBacking {
    /// Makes an empty backing that loses in a crash what was not synced.
    pub fn new() -> Self {
        Self::over(Model::durable_on_sync())
    }

    /// Makes a backing over this model.
    pub fn over(model: Model) -> Self {
        Self {
            model: RwLock::new(model),
            fault: Mutex::new(None),
            counts: Mutex::new(BTreeMap::new()),
            is_metadata_changed: AtomicBool::new(false),
            syncs_as_whole: AtomicBool::new(false),
            changes: ChangeQueue::new(),
        }
    }

    /// Acts as a backing that can only be synced as a whole, from now on.
    pub fn sync_as_whole(&self) {
        self.syncs_as_whole.store(true, Ordering::Relaxed);
    }

    /// Reports a change to the watching thread, as if another process had made it in the backing
    /// store.
    pub fn tell(&self, change: Change) {
        self.changes.put(change);
    }

    /// Loses all data that was not synced, and every reference.
    pub fn crash(&self) {
        let mut model = self.model.write().expect("no call panics while it changes the model");
        *model = model.after_crash();
        self.all_is_durable();
    }

    /// Makes `calls` fail with `errno` from now on, and change nothing.
    pub fn fail(&self, calls: &'static [ModelCall], errno: Errno) {
        self.fail_where(move |call| calls.contains(&call).then_some(errno));
    }

    /// Calls `fault` for each call from now on; the call fails with the error that it returns.
    pub fn fail_where(&self, fault: impl FnMut(ModelCall) -> Option<Errno> + Send + 'static) {
        *locked(&self.fault) = Some(Box::new(fault));
    }

    /// Ends the faults.
    pub fn heal(&self) {
        *locked(&self.fault) = None;
    }

    /// Returns the number of times that `call` was made, including failures.
    pub fn count(&self, call: ModelCall) -> u64 {
        locked(&self.counts).get(&call).copied().unwrap_or_default()
    }

    /// Returns the model, for access without faults and counters.
    pub fn model(&self) -> RwLockReadGuard<'_, Model> {
        self.model.read().expect("no call panics while it changes the model")
    }

    /// Counts a call and returns the model, unless the call is to fail.
    fn call(&self, call: ModelCall) -> Result<RwLockReadGuard<'_, Model>> {
        *locked(&self.counts).entry(call).or_default() += 1;
        let errno = locked(&self.fault).as_mut().and_then(|fault| fault(call));
        errno.map_or_else(|| Ok(self.model()), Err)
    }

    fn all_is_durable(&self) {
        self.is_metadata_changed.store(false, Ordering::Release);
    }

    /// As [`call`](Self::call), for a call that changes names or attributes.
    fn change(&self, call: ModelCall) -> Result<RwLockReadGuard<'_, Model>> {
        let model = self.call(call)?;
        self.is_metadata_changed.store(true, Ordering::Release);
        Ok(model)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this")
}

impl FileSystem for ModelBacking {
    vfs::forward!(self => self.model(); root, durability, forget, clone_range);

    counted! {
        lookup Lookup, getattr Getattr, readlink Readlink, readdir Readdir, read Read, write Write, append Append,
        fallocate Fallocate, seek Seek, copy_range CopyRange, getxattr Getxattr, listxattr Listxattr,
    }

    fn kernel_cache(&self) -> vfs::KernelCache {
        vfs::KernelCache::UpTo(std::time::Duration::from_secs(1))
    }

    fn limits(&self) -> &'static vfs::Limits {
        self.model().limits()
    }

    fn statfs(&self) -> StatFs {
        self.model().statfs()
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Entry> {
        self.change(ModelCall::Setattr)?.setattr(caller, ino, set)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        self.change(ModelCall::Create)?.create(caller, dir, name, node)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        self.change(ModelCall::Tmpfile)?.tmpfile(caller, dir, mode, umask)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.change(ModelCall::Unlink)?.unlink(dir, name)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.change(ModelCall::Rmdir)?.rmdir(dir, name)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.change(ModelCall::Link)?.link(ino, dir, name)
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        self.change(ModelCall::Rename)?.rename(from, to, flags)
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.change(ModelCall::Rename)?.rename_whiteout(caller, from, to, flags)
    }

    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.change(ModelCall::DropPrivileges)?.drop_privileges(ino)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.change(ModelCall::Setxattr)?.setxattr(ino, name, value, mode)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(ModelCall::Removexattr)?.removexattr(ino, name)
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        // One sync of the model makes everything durable.
        let model = self.call(ModelCall::Fsync)?;
        self.all_is_durable();
        model.fsync(ino)
    }

    fn sync(&self) -> Result<()> {
        let model = self.call(ModelCall::Sync)?;
        self.all_is_durable();
        model.sync()
    }
}

impl Mappings for ModelBacking {}

impl Openings for ModelBacking {}

impl Backing for ModelBacking {
    fn syncs_as_whole(&self) -> bool {
        self.syncs_as_whole.load(Ordering::Relaxed)
    }

    fn identity(&self, ino: Ino) -> Result<Identity> {
        let attr = self.call(ModelCall::Identity)?.getattr(ino)?;
        Ok(Identity([ino.0.to_le_bytes(), attr.btime.0.to_le_bytes()].concat()))
    }

    fn find(&self, identity: &Identity) -> Result<Entry> {
        let model = self.call(ModelCall::Find)?;
        let (ino, btime) = identity.0.split_first_chunk().ok_or(Errno::INVAL)?;
        let ino = Ino(u64::from_le_bytes(*ino));
        let found = model.lookup(ino, b".")?;
        if found.btime.0.to_le_bytes() == btime {
            return Ok(found);
        }
        model.forget(ino, 1);
        Err(Errno::STALE)
    }

    fn sync_metadata(&self, ino: Ino) -> Result<()> {
        let model = self.call(ModelCall::SyncMetadata)?;
        if !self.is_metadata_changed.load(Ordering::Acquire) {
            return model.getattr(ino).map(drop);
        }
        self.all_is_durable();
        model.fsync(ino)
    }

    fn watch(&self, _how: Watch) -> Result<Reach> {
        Ok(Reach::Whole)
    }

    fn key<'i>(&self, identity: &'i [u8]) -> &'i [u8] {
        identity.first_chunk::<8>().map_or(identity, |number| number)
    }

    fn wait_for_changes(
        &self,
        limit: Duration,
        number: &dyn Fn(&[u8]) -> Option<Ino>,
        tell: &mut dyn FnMut(Change),
    ) -> Result<()> {
        self.changes.take(limit, &mut |change| {
            let numbered = |ino: Ino| number(&ino.0.to_le_bytes());
            let known = match change {
                Change::Lost => Some(Change::Lost),
                Change::Content(ino) => numbered(ino).map(Change::Content),
                Change::Attributes(ino) => numbered(ino).map(Change::Attributes),
                Change::Name(dir, name) => numbered(dir).map(|dir| Change::Name(dir, name)),
            };
            known.into_iter().for_each(&mut *tell);
        });
        Ok(())
    }
}
