//! The working directory, and relative paths from it.
//!
//! A working directory in a pool is a description, [`Segment::cwd`](crate::family::Segment::cwd),
//! from which relative paths start. Any other working directory is the kernel's. A relative path
//! that leads from there into a pool by its text (`mnt/file`, `../mnt/file`) is served like the
//! absolute path. So is a path relative to a descriptor of the kernel's, if that is a directory
//! above the mount point.
//!
//! The kernel reports the path of the working directory without links, so that leading `..` can be
//! followed by its text. For each mount, two numbers are kept: the depth of the working directory,
//! and the number of components that it shares with the mount point ([`Prefix`]).
//!
//! - **cwd-L1** A call that changes the working directory changes the word of [`Cwd`] before it
//!   returns. A finding carries the word from before the look, and counts only while the word is
//!   the same.
//! - **cwd-L2** Before the first path is served by a prefix, the kernel has shown that the shortest
//!   path leads this user from the working directory to the mount. (The directory may lie where
//!   another mount hides it, or the user may no longer search it.)

use crate::creds::AccessMask;
use crate::family::{CWD, OfdInit};
use crate::held::{HeldInode, Want};
use crate::mount::ServedMount;
use crate::served::{CallResult, CallStop};
use crate::table::OfdRef;
use crate::walk::{Follow, PathWalk};
use os::threads::OwnU32;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use vfs::{Errno, FileKind, Ino};

/// The bits of the word that tell what is known. The bits above count changes.
const STATE: u32 = 3;
/// The next relative path finds out where the working directory is.
const UNKNOWN: u32 = 0;
/// The working directory is in a pool, or its place cannot be used. A path that is not relative to
/// a description is the kernel's.
const KERNEL: u32 = 1;
/// The working directory is outside of pools. The prefixes of mounts hold.
const OUTSIDE: u32 = 2;

/// State of the working directory, besides its description (cwd-L1).
#[derive(Default)]
pub(crate) struct Cwd {
    word: AtomicU32,
}

impl Cwd {
    #[inline]
    fn is_unknown(&self) -> bool {
        self.word.load(Acquire) & STATE == UNKNOWN
    }

    fn change(&self, state: u32) {
        let next = |word: u32| Some((word & !STATE).wrapping_add(STATE + 1) | state);
        let _ = self.word.fetch_update(AcqRel, Relaxed, next);
    }

    /// Notes that the working directory may be anywhere. The next relative path looks again.
    pub fn forget(&self) {
        self.change(UNKNOWN);
    }

    /// Notes that the kernel's working directory is in a pool.
    pub fn entered_pool(&self) {
        self.change(KERNEL);
    }

    /// Ends a look that began with `word`. Returns `false` if the word has changed since.
    fn finish_look(&self, word: u32, state: u32) -> bool {
        self.word.compare_exchange(word, word | state, AcqRel, Relaxed).is_ok()
    }
}

/// Position of the working directory relative to a mount point, in components of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathDepths {
    /// Components of the working directory.
    depth: u16,
    /// Components with which both paths begin.
    shared: u16,
}

/// Whether the kernel has shown that the shortest path leads to the mount (cwd-L2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    NotYet,
    Yes,
    Refused,
}

/// The way from the working directory to a mount point: [`PathDepths`], [`Shown`], and the word for
/// which they hold.
#[derive(Default)]
pub(crate) struct Prefix(AtomicU64);

impl Prefix {
    fn pack(word: u32, depths: PathDepths, shown: Shown) -> u64 {
        let high = word & !STATE | shown as u32;
        u64::from(high) << 32 | u64::from(depths.depth) << 16 | u64::from(depths.shared)
    }

    fn put(&self, word: u32, depths: PathDepths) {
        self.0.store(Self::pack(word, depths, Shown::NotYet), Release);
    }

    /// Returns what holds for `word`, if anything does.
    #[inline]
    fn get(&self, word: u32) -> Option<(PathDepths, Shown)> {
        let packed = self.0.load(Acquire);
        let high = (packed >> 32) as u32;
        let shown = match high & STATE {
            0 => Shown::NotYet,
            1 => Shown::Yes,
            _ => Shown::Refused,
        };
        let depths = PathDepths { depth: (packed >> 16) as u16, shared: packed as u16 };
        (high & !STATE == word & !STATE).then_some((depths, shown))
    }

    /// Stores what the kernel has shown, unless the word has changed.
    fn show(&self, word: u32, depths: PathDepths, shown: Shown) {
        let before = Self::pack(word, depths, Shown::NotYet);
        let _ = self.0.compare_exchange(before, Self::pack(word, depths, shown), AcqRel, Relaxed);
    }
}

/// The working directory, and relative paths that lead from there into a mount.
pub struct WorkingDir {
    path_walk: PathWalk,
    pub(crate) cwd: Cwd,
}

impl WorkingDir {
    pub(crate) fn new(path_walk: PathWalk) -> Self {
        Self { path_walk, cwd: Cwd::default() }
    }

    #[inline(always)]
    pub(crate) fn path_walk(&self) -> &PathWalk {
        &self.path_walk
    }

    /// The working directory, if it is in a pool.
    #[inline]
    pub(crate) fn cwd(&self) -> CallResult<OfdRef<'_>> {
        self.table().get_entry(self.cwd_entry())
    }

    /// The table entry of the working directory.
    #[inline]
    pub(crate) fn cwd_entry(&self) -> &OwnU32 {
        let entry = &self.table().segment().cwd;
        if entry.load(Relaxed) == 0 && self.cwd.is_unknown() {
            self.find_cwd();
        }
        entry
    }

    /// Finds out where the working directory is, if that is unknown.
    #[cold]
    fn find_cwd(&self) {
        let word = self.cwd.word.load(Acquire);
        if word & STATE != UNKNOWN {
            return;
        }
        let mut buf = [0; libc::PATH_MAX as usize];
        let Ok(path) = self.task().kernel.getcwd(&mut buf) else {
            self.cwd.finish_look(word, KERNEL);
            return;
        };
        if self.task().mounts().any(|(_, mount)| mount.strip(path).is_some()) {
            if self.cwd.finish_look(word, KERNEL) {
                // If that fails, relative paths are the kernel's.
                let _ = self.enter_here(path);
            }
            return;
        }
        let names = || vfs::path::names(path);
        let depth = names().count() as u16;
        for (_, mount) in self.task().mounts() {
            let shared = names().zip(mount.names(0)).take_while(|(a, b)| a == b).count() as u16;
            mount.prefix.put(word, PathDepths { depth, shared });
        }
        self.cwd.finish_look(word, OUTSIDE);
    }

    /// Makes the directory at `path` the working directory, if the kernel is in it, too. A program
    /// with direct access may have moved the kernel's directory and created another at its path,
    /// of which the kernel learns later.
    fn enter_here(&self, path: &[u8]) -> CallResult<()> {
        let creds = &self.task().identity().effective;
        let held =
            self.path_walk().walk_absolute(Want::Hold, path, Follow::Always, creds)?.existing()?;
        let place = (self.task().mount(held.mount_index).spec.dev, held.ino.0);
        let is_here =
            || if self.task().kernel.here()? == place { Ok(()) } else { Err(CallStop::Kernel) };
        self.change_to(held, is_here)
    }

    /// Notes that the working directory is elsewhere. To be called after `chdir` or `fchdir` of the
    /// kernel succeeded, if the answer here was `Kernel`.
    pub fn left_pool(&self) {
        // cwd-L1: the word changes first, because a call without a description uses prefixes.
        self.cwd.forget();
        self.set_cwd(None);
    }

    /// Makes a directory the working directory, if this user may enter it and `by_kernel` confirms
    /// that it is the kernel's, too.
    pub(crate) fn change_to(
        &self,
        held: HeldInode<'_>,
        by_kernel: impl FnOnce() -> CallResult<()>,
    ) -> CallResult<()> {
        if held.kind != FileKind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        held.check(&self.task().identity().effective, AccessMask::EXEC)?;
        let init = OfdInit {
            mount: held.mount_index as u32,
            ino: held.ino,
            generation: held.attr()?.generation,
            kind: FileKind::Dir,
            flags: libc::O_PATH | libc::O_DIRECTORY,
            state: CWD,
        };
        by_kernel()?;
        self.cwd.entered_pool();
        held.into_reference()?;
        let described = self.table().describe(&init).inspect_err(|_| {
            self.task().mount(init.mount as usize).attached().fs.forget(init.ino, 1);
        });
        // Without a description, relative paths are the kernel's.
        self.set_cwd(described.ok());
        Ok(())
    }

    /// Makes a description the working directory, and takes over its hold.
    pub(crate) fn set_cwd(&self, ofd: Option<OfdRef<'_>>) {
        let handle = ofd.as_ref().map_or(0, |ofd| ofd.handle);
        std::mem::forget(ofd);
        let old = self.table().member().segment().cwd.swap(handle, AcqRel);
        if old != 0 {
            self.table().put(old);
        }
    }

    /// Returns the path of a working directory that has no description here, but is in a pool.
    pub(crate) fn path_of_kernels(&self) -> CallResult<Vec<u8>> {
        let mut buf = [0; libc::PATH_MAX as usize];
        let path = self.task().kernel.getcwd(&mut buf).map_err(|err| match err {
            // Libc may have asked before the kernel learned of the removal.
            Errno::NOENT => err.into(),
            _ => CallStop::Kernel,
        })?;
        let mut mounts = self.task().mounts();
        let (index, mount) =
            mounts.find(|(_, m)| m.strip(path).is_some()).ok_or(CallStop::Kernel)?;
        self.path_walk().reach_mount(mount)?;
        match self.task().kernel.here()? {
            (dev, ino) if dev == mount.spec.dev && !mounts::is_in_snapshots(Ino(ino)) => {
                self.promotions().path_of(index, Ino(ino)).map_err(|err| match err {
                    Errno::STALE => Errno::NOENT.into(),
                    err => err.into(),
                })
            }
            _ => Err(CallStop::Kernel),
        }
    }

    /// Finds the mount into which a relative path leads from a working directory outside. Returns
    /// the mount, and the rest of the path below the mount point.
    pub(crate) fn mount_by_prefix<'a>(
        &self,
        path: &'a [u8],
    ) -> CallResult<(usize, &ServedMount, &'a [u8])> {
        let word = self.cwd.word.load(Acquire);
        if word & STATE != OUTSIDE {
            return Err(CallStop::Kernel);
        }
        let (climbed, names) = climb(path);
        let mut best: Option<(usize, &ServedMount, &[u8])> = None;
        for (i, mount) in self.task().mounts() {
            let Some((depths, _)) = mount.prefix.get(word) else { continue };
            let at = usize::from(depths.depth).saturating_sub(climbed);
            if at <= usize::from(depths.shared)
                && let Some(rest) = mount.strip_names(names, at)
                && best.is_none_or(|(_, _, other)| rest.len() <= other.len())
            {
                best = Some((i, mount, rest));
            }
        }
        let (index, mount, rest) = best.ok_or(CallStop::Kernel)?;
        self.path_walk().reach_mount(mount)?;
        self.check_prefix(mount, word)?;
        let slashes = rest.iter().take_while(|&&b| b == b'/').count();
        Ok((index, mount, &rest[slashes..]))
    }

    /// Finds the mount into which a relative path leads from a directory of the kernel's. Returns
    /// the mount, and the rest of the path below the mount point. Asks the kernel only if the
    /// path's text leads there from a directory above the mount point.
    pub(crate) fn mount_below<'a>(
        &self,
        dirfd: i32,
        path: &'a [u8],
    ) -> CallResult<(usize, &ServedMount, &'a [u8])> {
        if self.path_walk().foreign_namespace.load(Relaxed) {
            return Err(CallStop::Kernel);
        }
        for (index, mount) in self.task().mounts() {
            let depth = mount.names(0).count();
            for passed in 0..depth {
                let Some(rest) = mount.strip_names(path, passed) else { continue };
                let mut above = SmallVec::<[u8; 256]>::from_slice(b"/");
                for name in mount.names(0).take(passed) {
                    above.extend_from_slice(name);
                    above.push(b'/');
                }
                let (device, ino, _) = self.task().kernel.identity(dirfd)?;
                if self.task().kernel.place(&above) == Ok((device, ino)) {
                    self.path_walk().reach_mount(mount)?;
                    let slashes = rest.iter().take_while(|&&b| b == b'/').count();
                    return Ok((index, mount, &rest[slashes..]));
                }
            }
        }
        Err(CallStop::Kernel)
    }

    /// Checks cwd-L2. If threads may have different users, asks the kernel each time. A longer path
    /// to the mount leads through directories above its mount point, which are checked as for
    /// absolute paths.
    fn check_prefix(&self, mount: &ServedMount, word: u32) -> CallResult<()> {
        let (depths, mut shown) = mount.prefix.get(word).ok_or(CallStop::Kernel)?;
        if shown == Shown::NotYet || self.task().identities.differ() {
            let climb = std::iter::repeat_n(&b".."[..], (depths.depth - depths.shared).into());
            let mut path = SmallVec::<[u8; 256]>::new();
            for name in climb.chain(mount.names(depths.shared.into())) {
                path.extend_from_slice(name);
                path.push(b'/');
            }
            let leads_there =
                self.task().kernel.place(&path).is_ok_and(|(dev, _)| dev == mount.spec.dev);
            shown = if leads_there { Shown::Yes } else { Shown::Refused };
            mount.prefix.show(word, depths, shown);
        }
        if shown == Shown::Yes { Ok(()) } else { Err(CallStop::Kernel) }
    }
}

/// Returns the number of directories that a relative path first climbs, and the rest of it.
fn climb(path: &[u8]) -> (usize, &[u8]) {
    let (mut climbed, mut rest) = (0, path);
    loop {
        let len = rest.iter().take_while(|&&b| b == b'.').count();
        if !matches!(len, 1 | 2) || !matches!(rest.get(len), None | Some(b'/')) {
            return (climbed, rest);
        }
        climbed += len - 1;
        let slashes = rest[len..].iter().take_while(|&&b| b == b'/').count();
        rest = &rest[len + slashes..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_dots_climb() {
        let cases = [
            ("a/b", 0, "a/b"),
            ("../a", 1, "a"),
            ("./..//.././a/..", 2, "a/.."),
            ("..", 1, ""),
            ("./", 0, ""),
            (".a/..", 0, ".a/.."),
            ("..a", 0, "..a"),
            (".../a", 0, ".../a"),
            ("", 0, ""),
        ];
        for (path, climbed, rest) in cases {
            assert_eq!(climb(path.as_bytes()), (climbed, rest.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_prefix_is_believed_with_its_word_only() {
        let (cwd, prefix) = (Cwd::default(), Prefix::default());
        let word = || cwd.word.load(Relaxed);
        let (before, depths) = (word(), PathDepths { depth: 3, shared: 2 });
        prefix.put(before, depths);
        assert!(cwd.finish_look(before, OUTSIDE));
        prefix.show(word(), depths, Shown::Yes);
        assert_eq!(prefix.get(word()), Some((depths, Shown::Yes)));
        cwd.forget();
        assert_eq!(prefix.get(word()), None);
        prefix.show(word(), depths, Shown::Refused);
        assert_eq!(prefix.get(word()), None);
        assert!(!cwd.finish_look(before, OUTSIDE), "a look that comes too late");
    }
}
