//! The names under which the kernel remembers inodes of a pool that other processes change, too.
//!
//! The kernel keeps the inode of each name that it has looked up until a notification removes the
//! name; there are notifications for names only. If a file is renamed or removed by direct access,
//! the kernel would keep its inode for good, and so the file's space.
//!
//! - To handle a notification, the kernel takes the directory's lock. It also holds that lock while
//!   it waits for an answer from this server. So a separate thread notifies it, never one that
//!   answers requests.
//! - A name that an inode lost may belong to another inode by now, which the kernel has found there
//!   since and may use. Such a name is not removed: the kernel has dropped the first inode by
//!   itself.

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

/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 64;
/// A name in a directory.
pub(crate) type EntryName = (INodeNo, OsString);

/// The kernel's state of one inode.
#[derive(Default)]
struct Known {
    /// Lookups that the kernel has not taken back.
    lookups: u64,
    /// The names under which it found the inode, mostly one.
    names: Vec<EntryName>,
    /// The phase of caching in which it was opened last ([`Now::phase`](crate::keeping::Now)).
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
    /// Names that the kernel has to forget, with the inode that it should forget; `None`: whatever
    /// inode is there.
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

    /// Notes that an answer will lead the kernel from `name` to the inode, and counts that as a
    /// lookup.
    pub fn add(&self, parent: INodeNo, name: &OsStr, ino: INodeNo) {
        let mut shard = self.shard(ino);
        let known = shard.entry(ino.0).or_default();
        known.lookups += 1;
        known.add(parent, name);
    }

    /// Notes that an answer will give the kernel an inode without a name, and counts that as a
    /// lookup.
    pub fn add_nameless(&self, ino: INodeNo) {
        self.shard(ino).entry(ino.0).or_default().lookups += 1;
    }

    /// Notes that the kernel opens an inode in a phase of caching
    /// ([`Now::phase`](crate::keeping::Now)). Returns whether it has opened it before in that
    /// phase; if so, its pages may stay (keeping-K4).
    pub fn opened(&self, ino: INodeNo, phase: u32) -> bool {
        let mut shard = self.shard(ino);
        let known = shard.get_mut(&ino.0);
        known.is_some_and(|known| std::mem::replace(&mut known.opened, phase) == phase)
    }

    /// Takes back lookups that the kernel has returned.
    pub fn forget(&self, ino: INodeNo, lookups: u64) {
        let mut shard = self.shard(ino);
        if let Some(known) = shard.get_mut(&ino.0) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                shard.remove(&ino.0);
            }
        }
    }

    /// Notes that the kernel has given the inode another name.
    pub fn renamed(&self, ino: INodeNo, parent: INodeNo, name: &OsStr) {
        if let Some(known) = self.shard(ino).get_mut(&ino.0) {
            known.add(parent, name);
        }
    }

    /// Notes that the kernel itself has removed a name of the inode. Returns whether it may know
    /// others.
    pub fn removed(&self, ino: INodeNo, parent: INodeNo, name: &OsStr) -> bool {
        self.shard(ino).get_mut(&ino.0).is_some_and(|known| {
            known.names.retain(|at| !is_at(at, parent, name));
            !known.names.is_empty()
        })
    }

    /// Makes the kernel forget the inode as soon as no process uses it.
    pub fn expire(&self, ino: INodeNo) {
        let names = self.shard(ino).get_mut(&ino.0).map(|known| std::mem::take(&mut known.names));
        lock(&self.stale).extend(names.into_iter().flatten().map(|at| (at, Some(ino))));
    }

    /// Makes the kernel forget a name.
    pub fn expire_name(&self, parent: INodeNo, name: &OsStr) {
        lock(&self.stale).push(((parent, name.to_owned()), None));
    }

    /// Calls `f` with each inode that the kernel has, and its names.
    pub fn for_each(&self, f: &mut dyn FnMut(INodeNo, &[EntryName])) {
        for shard in &self.shards {
            // `f` may notify the kernel, which may send requests that need this lock.
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

    /// Notifies the kernel of names to forget, until [`end`](Self::end).
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

    /// Notifies the kernel of all names in `stale`. Skips names that lead to another inode by now.
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

    /// Whether the kernel has found another inode under a name.
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

/// Locks a mutex even after a panic: no panic leaves its content half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
