//! The path cache: directories that paths have led to, so that they need not be walked again.
//!
//! - **path_cache-G1** An entry holds a reference to its directory, which therefore keeps its
//!   number. (If the directory is removed, its space comes back when the entry is used for another
//!   directory, or this process ends.)
//! - **path_cache-G2** An entry is valid while each directory of the path has the version that it
//!   had before the walk looked into it ([`vfs::FileSystem::version`]): names and permissions are
//!   as they were then. The directory at the end may change; permissions on it are checked each
//!   time.
//! - **path_cache-G3** An entry in use by a call is not given to another directory.
//!
//! Paths through a symbolic link or `..`, and long paths, are not cached.

#![allow(unsafe_code)]

use crate::mount::Mounts;
use os::threads::OwnU32;
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::*;
use vfs::Ino;

/// Entries, each for the paths of one hash.
const ENTRIES: usize = 64;
/// The longest path that is cached, in bytes.
const TEXT_BYTES: usize = 160;
/// The most directories of a path that is cached, without the last.
const STEPS: usize = 8;

/// Bit of an entry's word: a thread fills the entry.
const FILLING: u32 = 1 << 31;
/// Bit of an entry's word: the entry has a path. The bits below count the calls that use it.
const FILLED: u32 = 1 << 30;

/// Directories of a path, with their versions (path_cache-G2).
pub(crate) type Steps = SmallVec<[(Ino, u64); STEPS]>;

/// The key of a directory.
#[derive(Clone, Copy)]
pub(crate) struct PathKey<'a> {
    /// Index of the mount and the inode from which a relative path starts.
    pub start: Option<(usize, Ino)>,
    /// The path to the directory.
    pub text: &'a [u8],
    /// The user, by the address of the credentials, which do not move.
    pub creds: usize,
}

impl<'a> PathKey<'a> {
    /// Returns the key of the directory of a path's last name, and that name. `None` if it is not
    /// cached.
    pub fn of(
        path: &'a [u8],
        start: Option<(usize, Ino)>,
        creds: usize,
    ) -> Option<(Self, &'a [u8])> {
        let cut = path.iter().rposition(|&byte| byte == b'/')?;
        let (text, name) = (&path[..cut], &path[cut + 1..]);
        let is_name = !matches!(name, b"" | b"." | b"..");
        let is_kept = is_name && !text.is_empty() && text.len() <= TEXT_BYTES;
        is_kept.then_some((Self { start, text, creds }, name))
    }

    fn hash(&self) -> usize {
        const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
        let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
        let (words, rest) = self.text.as_chunks::<8>();
        let hash = words.iter().fold(self.text.len() as u64, |h, w| mix(h, u64::from_le_bytes(*w)));
        let hash = rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)));
        let hash = self.start.map_or(hash, |(_, ino)| mix(hash, ino.0));
        (hash >> 32) as usize % ENTRIES
    }
}

/// Content of an entry.
struct Cached {
    start: Option<(usize, Ino)>,
    text: SmallVec<[u8; TEXT_BYTES]>,
    creds: usize,
    mount_index: usize,
    /// [`ServedMount::state_id`](crate::mount::ServedMount::state_id) during the walk.
    state: usize,
    steps: Steps,
    dir: Ino,
}

impl Cached {
    #[inline]
    fn is(&self, key: &PathKey<'_>) -> bool {
        self.text[..] == *key.text && self.creds == key.creds && self.start == key.start
    }
}

/// An entry of the cache.
pub(crate) struct CacheEntry {
    word: OwnU32,
    cached: UnsafeCell<Option<Cached>>,
}

// SAFETY: only the thread that has set FILLING changes `cached`, and only threads that are counted
// in the word read it.
unsafe impl Sync for CacheEntry {}

/// An entry in use (path_cache-G3).
pub(crate) struct Used<'p> {
    entry: &'p CacheEntry,
}

impl Drop for Used<'_> {
    #[inline]
    fn drop(&mut self) {
        let _ = self.entry.word.modify(|word| Some(word - 1));
    }
}

impl CacheEntry {
    /// Returns the place for a directory, if no call uses the entry. The caller sets the word
    /// afterwards.
    #[allow(clippy::mut_from_ref)] // exclusive by the word
    fn fill(&self) -> Option<&mut Option<Cached>> {
        let word = self.word.load(Relaxed);
        let is_free = word & !FILLED == 0;
        // SAFETY: FILLING, so no other thread uses it.
        (is_free && self.word.exchange(word, FILLING)).then(|| unsafe { &mut *self.cached.get() })
    }

    /// Counts the caller as a user of the entry, if it has a directory.
    #[inline]
    fn enter(&self) -> Option<Used<'_>> {
        let counted = self.word.modify(|word| (word & FILLED != 0).then_some(word + 1));
        counted.ok().map(|_| Used { entry: self })
    }
}

impl Used<'_> {
    fn cached(&self) -> Option<&Cached> {
        // SAFETY: this call is counted, so no thread changes it.
        unsafe { (*self.entry.cached.get()).as_ref() }
    }

    /// The directory that [`PathCache::find`] has found, with the index of its mount.
    pub fn dir(&self) -> (usize, Ino) {
        let cached = self.cached().expect("found to be filled");
        (cached.mount_index, cached.dir)
    }
}

/// The entries of a process, made at the first use.
#[derive(Default)]
pub(crate) struct PathCache(OnceLock<Box<[CacheEntry]>>);

impl PathCache {
    fn entries(&self) -> &[CacheEntry] {
        self.0.get().map_or(&[], |entries| entries)
    }

    fn make_entries(&self) -> &[CacheEntry] {
        let entry = |_| CacheEntry { word: OwnU32::new(0), cached: UnsafeCell::new(None) };
        self.0.get_or_init(|| (0..ENTRIES).map(entry).collect())
    }

    /// Finds the directory with this key, and holds it while the result lives.
    pub fn find(&self, mounts: &Mounts, key: &PathKey<'_>) -> Option<Used<'_>> {
        let used = self.entries().get(key.hash())?.enter()?;
        let cached = used.cached()?;
        if !cached.is(key) {
            return None;
        }
        let mount = mounts.get(cached.mount_index);
        let fs = &mount.attached().fs;
        let is_as_before = mount.state_id() == cached.state
            && cached.steps.iter().all(|&(ino, version)| fs.version(ino) == Some(version));
        is_as_before.then_some(used)
    }

    /// Caches a directory that a walk has found and the caller holds. `state` is that of the mount
    /// before the walk.
    pub fn keep(
        &self,
        mounts: &Mounts,
        key: &PathKey<'_>,
        (mount_index, state): (usize, usize),
        steps: &Steps,
        dir: Ino,
    ) {
        // The path may end at the root of a mount inside this one.
        let mountpoint = |index| &mounts.get(index).spec.mountpoint;
        let is_nested =
            |index| index != mount_index && mountpoint(index).starts_with(mountpoint(mount_index));
        let may_end_elsewhere =
            key.start.is_none() && mounts.iter().any(|(index, _)| is_nested(index));
        if steps.spilled() || may_end_elsewhere {
            return;
        }
        let entry = &self.make_entries()[key.hash()];
        let Some(cached) = entry.fill() else { return };
        let mut before = None;
        match cached {
            // The path has changed, but still leads to this directory.
            Some(cached)
                if cached.is(key) && (cached.mount_index, cached.dir) == (mount_index, dir) =>
            {
                (cached.state, cached.steps) = (state, steps.clone());
            }
            _ => {
                let fs = &mounts.get(mount_index).attached().fs;
                let new = fs.lookup(dir, b".").is_ok().then(|| Cached {
                    start: key.start,
                    text: SmallVec::from_slice(key.text),
                    creds: key.creds,
                    mount_index,
                    state,
                    steps: steps.clone(),
                    dir,
                });
                before = std::mem::replace(cached, new);
            }
        }
        let word = if cached.is_some() { FILLED } else { 0 };
        entry.word.store(word, Release);
        give_back(mounts, before);
    }

    /// Forgets all paths. A directory in use is given back when its entry is needed.
    pub fn clear(&self, mounts: &Mounts) {
        for entry in self.entries() {
            let is_used = |word: u32| word & FILLED != 0 && word != FILLED;
            let _ = entry.word.modify(|word| is_used(word).then_some(word & !FILLED));
            if let Some(cached) = entry.fill() {
                let before = cached.take();
                entry.word.store(0, Release);
                give_back(mounts, before);
            }
        }
    }

    /// Empties the cache in a forked child. Its references are the parent's, and other threads of
    /// the parent may have left entries in any state.
    pub fn after_fork(&self) {
        for entry in self.entries() {
            // An entry that was never used is not copied for the child.
            if entry.word.load(Relaxed) != 0 {
                // SAFETY: the child has one thread, which is in no call.
                unsafe { entry.cached.get().write(None) };
                entry.word.store(0, Relaxed);
            }
        }
    }
}

/// Gives back the reference of an entry (path_cache-G1).
fn give_back(mounts: &Mounts, cached: Option<Cached>) {
    if let Some(cached) = cached {
        mounts.get(cached.mount_index).attached().fs.forget(cached.dir, 1);
    }
}
