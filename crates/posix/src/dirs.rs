//! Directories that paths have led to: the way there need not be gone again.
//!
//! - **G1** A place holds a reference to its directory, which therefore keeps its number. (The space
//!   of a directory that is removed meanwhile comes back when the place is used for another, or this
//!   process ends.)
//! - **G2** A place is believed while each directory on the way has the version that it had before the
//!   walk looked into it ([`vfs::FileSystem::version`]): names and permissions are as they were then. The
//!   directory at the end may change; what may be done there is looked at each time.
//! - **G3** A place in use by a call is not given to another directory.
//!
//! Ways that lead through a symbolic link or `..`, or are long, are not kept.

use crate::process::Process;
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering::*};
use vfs::Ino;

/// Places, each for the paths of one hash.
const PLACES: usize = 64;
/// Longer paths are not kept, in bytes.
const TEXT_BYTES: usize = 160;
/// Nor those through more directories, without the last.
const STEPS: usize = 8;

/// Of a place's word: somebody fills it.
const FILLING: u32 = 1 << 31;
/// Of a place's word: there is a way in it. Below are the calls that use it.
const FILLED: u32 = 1 << 30;

/// Directories on the way, with their versions (G2).
pub(crate) type Steps = SmallVec<[(Ino, u64); STEPS]>;

/// Where a way begins and what it looks like.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    /// Index of the mount and the inode that a relative path starts from.
    pub start: Option<(usize, Ino)>,
    /// The path to the directory.
    pub text: &'a [u8],
    /// Whose permissions: the address of the credentials, which stays theirs.
    pub creds: usize,
}

impl<'a> Way<'a> {
    /// The way to the directory of a path's last name, and that name. `None` where it is not kept.
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
        (hash >> 32) as usize % PLACES
    }
}

/// What a place is filled with.
struct Known {
    start: Option<(usize, Ino)>,
    text: SmallVec<[u8; TEXT_BYTES]>,
    creds: usize,
    mount_index: usize,
    /// [`Mount::terms`](crate::mount::Mount::terms) during the walk.
    terms: usize,
    steps: Steps,
    dir: Ino,
}

impl Known {
    #[inline]
    fn is(&self, way: &Way<'_>) -> bool {
        self.text[..] == *way.text && self.creds == way.creds && self.start == way.start
    }
}

/// A place for a directory.
pub(crate) struct Place {
    word: AtomicU32,
    known: UnsafeCell<Option<Known>>,
}

// SAFETY: `known` is changed by who has made the word FILLING only, and looked at by those who have
// counted themselves in it only.
unsafe impl Sync for Place {}

/// A place in use (G3).
pub(crate) struct Used<'p> {
    place: &'p Place,
}

impl Drop for Used<'_> {
    #[inline]
    fn drop(&mut self) {
        loop {
            let word = self.place.word.load(Relaxed);
            if threads::exchange_u32(&self.place.word, word, word - 1) {
                return;
            }
        }
    }
}

impl Place {
    /// Where a way can be put, if no call uses the place. The caller changes the word afterwards.
    #[allow(clippy::mut_from_ref)] // exclusive by the word
    fn fill(&self) -> Option<&mut Option<Known>> {
        let word = self.word.load(Relaxed);
        let is_free = word & !FILLED == 0;
        // SAFETY: FILLING, so nobody else is at it.
        (is_free && threads::exchange_u32(&self.word, word, FILLING))
            .then(|| unsafe { &mut *self.known.get() })
    }

    /// Counts the caller in, if there is a way.
    #[inline]
    fn enter(&self) -> Option<Used<'_>> {
        loop {
            let word = self.word.load(Acquire);
            if word & FILLED == 0 {
                return None;
            }
            if threads::exchange_u32(&self.word, word, word + 1) {
                return Some(Used { place: self });
            }
        }
    }
}

impl Used<'_> {
    fn known(&self) -> Option<&Known> {
        // SAFETY: counted in, so nobody changes it.
        unsafe { (*self.place.known.get()).as_ref() }
    }

    /// What [`Dirs::find`] has found: the directory, with the index of its mount.
    pub fn dir(&self) -> (usize, Ino) {
        let known = self.known().expect("found to be filled");
        (known.mount_index, known.dir)
    }
}

/// The places of a process; apart from it, as programs with small stacks begin with it there.
pub(crate) struct Dirs(Box<[Place; PLACES]>);

impl Default for Dirs {
    fn default() -> Self {
        let place = |_| Place { word: AtomicU32::new(0), known: UnsafeCell::new(None) };
        let places: Box<[Place]> = (0..PLACES).map(place).collect();
        Self(places.try_into().unwrap_or_else(|_| unreachable!("it has that many")))
    }
}

impl Dirs {
    fn place(&self, way: &Way<'_>) -> &Place {
        &self.0[way.hash()]
    }

    /// The directory at the end of a way, held while the result is.
    pub fn find(&self, process: &Process, way: &Way<'_>) -> Option<Used<'_>> {
        let used = self.place(way).enter()?;
        let known = used.known()?;
        if !known.is(way) {
            return None;
        }
        let mount = process.mount(known.mount_index);
        let fs = &mount.attached().fs;
        let is_as_before = mount.terms() == known.terms
            && known.steps.iter().all(|&(ino, version)| fs.version(ino) == Some(version));
        is_as_before.then_some(used)
    }

    /// Keeps a way that a walk has gone, to a directory that the caller holds. `terms` is from before.
    pub fn keep(
        &self,
        process: &Process,
        way: &Way<'_>,
        (mount_index, terms): (usize, usize),
        steps: &Steps,
        dir: Ino,
    ) {
        // What a path ends with may be the root of a mount inside this one.
        let mountpoint = |index| &process.mount(index).spec.mountpoint;
        let is_nested =
            |index| index != mount_index && mountpoint(index).starts_with(mountpoint(mount_index));
        let may_end_elsewhere =
            way.start.is_none() && process.mounts().any(|(index, _)| is_nested(index));
        if steps.spilled() || may_end_elsewhere {
            return;
        }
        let place = self.place(way);
        let Some(known) = place.fill() else { return };
        let mut before = None;
        match known {
            // Something has changed on the way, but it leads there still.
            Some(known)
                if known.is(way) && (known.mount_index, known.dir) == (mount_index, dir) =>
            {
                (known.terms, known.steps) = (terms, steps.clone());
            }
            _ => {
                let fs = &process.mount(mount_index).attached().fs;
                let new = fs.lookup(dir, b".").is_ok().then(|| Known {
                    start: way.start,
                    text: SmallVec::from_slice(way.text),
                    creds: way.creds,
                    mount_index,
                    terms,
                    steps: steps.clone(),
                    dir,
                });
                before = std::mem::replace(known, new);
            }
        }
        let word = if known.is_some() { FILLED } else { 0 };
        place.word.store(word, Release);
        give_back(process, before);
    }

    /// Forgets all ways. Directories in use are given back when their places are needed.
    pub fn clear(&self, process: &Process) {
        for place in self.0.iter() {
            let mut word = place.word.load(Relaxed);
            while word & FILLED != 0 && word != FILLED {
                if threads::exchange_u32(&place.word, word, word & !FILLED) {
                    break;
                }
                word = place.word.load(Relaxed);
            }
            if let Some(known) = place.fill() {
                let before = known.take();
                place.word.store(0, Release);
                give_back(process, before);
            }
        }
    }

    /// After a fork, in the child: the references are the parent's, and other threads, which are gone,
    /// may have left anything.
    pub fn after_fork(&self) {
        for place in self.0.iter() {
            // SAFETY: there is one thread, and it is in no call.
            unsafe { place.known.get().write(None) };
            place.word.store(0, Relaxed);
        }
    }
}

/// G1, at its end.
fn give_back(process: &Process, known: Option<Known>) {
    if let Some(known) = known {
        process.mount(known.mount_index).attached().fs.forget(known.dir, 1);
    }
}
