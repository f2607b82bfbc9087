//! The names under which the kernel remembers inodes of a pool that others change, too.
//!
//! The kernel keeps the inode of each name that it has looked up until it is told that the name is gone, and can
//! be told by name only. One that was renamed or removed beside the mount it would keep for good, and the file's
//! space with it.
//!
//! - The kernel takes the directory's lock for what it is told, and holds that lock while it waits for an answer
//!   from this server. So a thread of its own tells it, never one that answers requests.
//! - What lost its name may have left it to another inode, which the kernel has found there since and may work in. The
//!   name is that one's then, and the kernel has let the first go by itself.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fuser::{INodeNo, Notifier};
use mounts::MountEvents;
use vfs::FileSystem;

use crate::convert;
use crate::keeping::{Keeper, Keeping};

/// Parts of the table that have locks of their own.
const SHARDS: usize = 64;
/// A name in a directory.
pub(crate) type EntryName = (INodeNo, OsString);

/// What the kernel knows of one inode.
#[derive(Default)]
struct Known {
    /// As many lookups as it has not taken back.
    lookups: u64,
    /// Where it found it, mostly once.
    names: Vec<EntryName>,
    /// The phase in which it was opened last (`Keeping`).
    opened: u32,
}

impl Known {
    fn add(&mut self, parent: INodeNo, name: &OsStr) {
        if !self.names.iter().any(|at| is_at(at, parent, name)) {
            self.names.push((parent, name.to_owned()));
        }
    }
}

fn is_at(at: &EntryName, parent: INodeNo, name: &OsStr) -> bool {
    at.0 == parent && at.1 == name
}

/// All names that the kernel knows.
pub(crate) struct Names {
    shards: [Mutex<HashMap<u64, Known>>; SHARDS],
    /// Names that the kernel is to forget, with the inode that is to be forgotten, or whatever is there.
    stale: Mutex<Vec<(EntryName, Option<INodeNo>)>>,
    has_ended: AtomicBool,
}

impl Names {
    pub fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            stale: Mutex::default(),
            has_ended: AtomicBool::new(false),
        }
    }

    fn shard(&self, ino: INodeNo) -> MutexGuard<'_, HashMap<u64, Known>> {
        lock(&self.shards[ino.0 as usize % SHARDS])
    }

    /// The kernel is about to be told that `name` leads to the inode, and counts that as a lookup.
    pub fn add(&self, parent: INodeNo, name: &OsStr, ino: INodeNo) {
        let mut shard = self.shard(ino);
        let known = shard.entry(ino.0).or_default();
        known.lookups += 1;
        known.add(parent, name);
    }

    /// The kernel is about to learn of an inode without a name, and counts that as a lookup.
    pub fn add_nameless(&self, ino: INodeNo) {
        self.shard(ino).entry(ino.0).or_default().lookups += 1;
    }

    /// The kernel opens an inode; whether it has since this phase began.
    pub fn opened(&self, ino: INodeNo, phase: u32) -> bool {
        let mut shard = self.shard(ino);
        let known = shard.get_mut(&ino.0);
        known.is_some_and(|known| std::mem::replace(&mut known.opened, phase) == phase)
    }

    /// The kernel takes lookups back.
    pub fn forget(&self, ino: INodeNo, lookups: u64) {
        let mut shard = self.shard(ino);
        if let Some(known) = shard.get_mut(&ino.0) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                shard.remove(&ino.0);
            }
        }
    }

    /// The kernel has given what it knows another name.
    pub fn renamed(&self, ino: INodeNo, parent: INodeNo, name: &OsStr) {
        if let Some(known) = self.shard(ino).get_mut(&ino.0) {
            known.add(parent, name);
        }
    }

    /// The kernel has taken away a name of the inode itself. Whether it may know others.
    pub fn removed(&self, ino: INodeNo, parent: INodeNo, name: &OsStr) -> bool {
        self.shard(ino).get_mut(&ino.0).is_some_and(|known| {
            known.names.retain(|at| !is_at(at, parent, name));
            !known.names.is_empty()
        })
    }

    /// The kernel is to forget the inode as soon as nobody uses it.
    pub fn expire(&self, ino: INodeNo) {
        let names = self.shard(ino).get_mut(&ino.0).map(|known| std::mem::take(&mut known.names));
        lock(&self.stale).extend(names.into_iter().flatten().map(|at| (at, Some(ino))));
    }

    /// The kernel is to forget a name.
    pub fn expire_name(&self, parent: INodeNo, name: &OsStr) {
        lock(&self.stale).push(((parent, name.to_owned()), None));
    }

    /// All inodes that the kernel has, with their names.
    pub fn for_each(&self, f: &mut dyn FnMut(INodeNo, &[EntryName])) {
        for shard in &self.shards {
            // What the kernel is told while it is locked, it may answer by requests that need it.
            let known = lock(shard)
                .iter()
                .map(|(ino, known)| (*ino, known.names.clone()))
                .collect::<Vec<_>>();
            known.iter().for_each(|(ino, names)| f(INodeNo(*ino), names));
        }
    }

    /// Whether the kernel has the inode, or is about to.
    pub fn has(&self, ino: INodeNo) -> bool {
        self.shard(ino).contains_key(&ino.0)
    }

    /// Tells the kernel what it is to forget, until [`end`](Self::end).
    pub fn tell(
        &self,
        fs: &dyn FileSystem,
        (events, keeping): (&dyn MountEvents, &Keeping),
        notifier: &Notifier,
    ) {
        let mut keeper = Keeper::new((keeping, self), events, notifier);
        while !self.has_ended.load(Acquire) {
            let waited = events.wait_for_unnamed(keeper.look(), &mut |ino| {
                self.expire(INodeNo(ino.0));
                self.tell_stale(fs, notifier);
            });
            if let Err(err) = waited {
                tracing::error!("space of files removed beside the mount may stay taken: {err}");
                return;
            }
            self.tell_stale(fs, notifier);
        }
    }

    fn tell_stale(&self, fs: &dyn FileSystem, notifier: &Notifier) {
        let stale = std::mem::take(&mut *lock(&self.stale));
        for (at, ino) in stale {
            if ino.is_some_and(|ino| self.is_of_another(fs, &at, ino)) {
                continue;
            }
            let (parent, name) = at;
            if let Err(err) = notifier.inval_entry(parent, &name) {
                tracing::debug!("the kernel does not forget a name in {parent}: {err}");
            }
        }
    }

    /// Whether the kernel has found another inode by a name.
    fn is_of_another(&self, fs: &dyn FileSystem, at: &EntryName, ino: INodeNo) -> bool {
        let (parent, name) = at;
        let Ok(attr) = fs.peek(convert::ino(*parent), name.as_bytes()) else { return false };
        let other = INodeNo(attr.ino.0);
        let is_known = |known: &Known| known.names.contains(at);
        other != ino && self.shard(other).get(&other.0).is_some_and(is_known)
    }

    /// Ends [`tell`](Self::tell).
    pub fn end(&self, events: &dyn MountEvents) {
        self.has_ended.store(true, Release);
        events.wake();
    }
}

/// Of what no panic leaves half-done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
