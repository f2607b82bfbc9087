//! Handing descriptors to the kernel, and processes that come and go.
//!
//! - **M1** A description has at most one description K in the kernel. It is opened through the mount
//!   when first needed, kept at a hidden number, and inherited over fork.
//! - **M2** Before a fork every description gets its K, so that a family that materialises one later
//!   shares the kernel's offset.
//! - **M3** What is materialised stays so. Each process puts K onto its numbers when it next touches
//!   one of them.

use crate::Errno;
use crate::family::{CWD, Handle, MATERIALISED, Ofd, PARKED, Place, Segment, described};
use crate::process::{OfdRef, Process, TableLock};
use crate::served::{Call, Stop};
use mounts::Alias;
use std::sync::atomic::Ordering::*;
use vfs::{FileKind, FileSystem, Ino};

/// How long the parent of a fork waits for the child to hold its inodes before it looks whether the
/// child is alive, in nanoseconds.
const LOOK_NS: i64 = 5_000_000;

impl Process {
    /// Makes `fd` the kernel's from now on; nothing happens if it is already. What is parked is
    /// closed (N3).
    pub fn materialise(&self, fd: i32) -> Result<(), Errno> {
        if self.entry(fd).is_some_and(|entry| entry.load(Relaxed) == PARKED) {
            self.unpark();
        }
        match self.get(fd) {
            Ok(ofd) => self.materialise_ofd(&ofd),
            Err(Stop::Kernel) => Ok(()),
            Err(Stop::Errno(errno)) => Err(errno),
        }
    }

    /// Makes a description the kernel's.
    pub(crate) fn materialise_ofd(&self, ofd: &OfdRef<'_>) -> Result<(), Errno> {
        let k = self.kernel_fd(ofd)?;
        match ofd.lock_position() {
            Ok(position) => {
                if ofd.oflags() & libc::O_PATH == 0 {
                    self.kernel.seek_to(k, position.get())?;
                }
                ofd.mark(MATERIALISED);
            }
            Err(Stop::Kernel) => return Ok(()),
            Err(Stop::Errno(errno)) => return Err(errno),
        }
        self.adopt(ofd.handle)
    }

    /// Puts the kernel's description of a materialised description onto every number of this process
    /// that refers to it.
    #[cold]
    pub(crate) fn adopt(&self, handle: Handle) -> Result<(), Errno> {
        let table = self.lock_table();
        for fd in 0..self.fd_end() {
            if self.entry(fd).is_some_and(|entry| entry.load(Acquire) == handle) {
                let k = self.kernel_fd_locked(&table, handle)?;
                self.kernel.dup3(k, fd, self.kernel.is_cloexec(fd)?)?;
                drop(self.uninstall(&table, fd));
            }
        }
        Ok(())
    }

    /// The kernel's descriptor for a description, opened if need be (M1).
    pub(crate) fn kernel_fd(&self, ofd: &OfdRef<'_>) -> Result<i32, Errno> {
        self.kernel_fd_locked(&self.lock_table(), ofd.handle)
    }

    fn kernel_fd_locked(&self, _table: &TableLock<'_>, handle: Handle) -> Result<i32, Errno> {
        let place = self.place();
        let slot = &place.segment().kernel[handle as usize - 1];
        let k = slot.load(Acquire);
        if k > 0 {
            return Ok(k - 1);
        }
        let ofd = self.family.ofd(handle);
        let flags = ofd.oflags() & !(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_TMPFILE);
        let fd = self.hide(self.open_inode(ofd, flags | libc::O_CLOEXEC)?)?;
        if ofd.is(MATERIALISED) && flags & libc::O_PATH == 0 {
            // Another process's K could not be inherited: at least it starts where that one did.
            self.kernel.seek_to(fd, ofd.offset.load(Relaxed))?;
        }
        slot.store(fd + 1, Release);
        Ok(fd)
    }

    /// Opens the inode of a description through the mount.
    fn open_inode(&self, ofd: &Ofd, flags: i32) -> Result<i32, Errno> {
        let directory = ofd.kind() == FileKind::Dir;
        let kind = if directory { libc::O_DIRECTORY } else { libc::O_NOFOLLOW };
        self.kernel.open(&self.path_to(ofd)?, flags | kind)
    }

    /// A path that leads to the inode of a description through the mount: for a directory its own,
    /// unless it was removed, otherwise the alias.
    ///
    /// Directories have one name, and opening them by another would move them in the kernel's view.
    pub(crate) fn path_to(&self, ofd: &Ofd) -> Result<Vec<u8>, Errno> {
        if ofd.kind() == FileKind::Dir {
            match self.path_of(ofd.mount(), ofd.ino()) {
                Err(Errno::NOENT) => {}
                path => return path,
            }
        }
        let mount = self.mount(ofd.mount());
        let secret = mount.attached().secret;
        let alias = Alias { secret, ino: ofd.ino(), generation: ofd.generation() };
        Ok([&mount.spec.mountpoint[..], b"/", alias.to_string().as_bytes()].concat())
    }

    /// The path of a directory, by looking for it in its parents. `ENOENT` where it is removed.
    pub(crate) fn path_of(&self, mount: usize, dir: Ino) -> Result<Vec<u8>, Errno> {
        let mount = self.mount(mount);
        let fs = mount.attached().fs.as_ref();
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = dir;
        while at != fs.root() {
            let parent = fs.peek(at, b"..")?.ino;
            names.push(name_in(fs, parent, at)?);
            at = parent;
        }
        let mut path = mount.spec.mountpoint.clone();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Before exec and posix_spawn: materialises every descriptor that is not close-on-exec. Fails
    /// with the first error, having gone through all.
    pub fn before_exec(&self) -> Result<(), Errno> {
        self.forget_ways();
        self.unpark();
        let mut result = Ok(());
        for fd in 0..self.fd_end() {
            let handle = self.entry(fd).map_or(0, |entry| entry.load(Acquire));
            if described(handle).is_some() && !self.kernel.is_cloexec(fd).unwrap_or(true) {
                result = result.and(self.materialise(fd));
            }
        }
        result
    }

    /// Before fork (and vfork made as fork). Must be followed by
    /// [`after_fork_parent`](Self::after_fork_parent) in this thread and
    /// [`after_fork_child`](Self::after_fork_child) in the child.
    pub fn before_fork(&self) {
        for fd in 0..self.fd_end() {
            if let Ok(ofd) = self.get(fd)
                && !ofd.is(CWD)
            {
                // M2; without a K the description is shared as long as nobody materialises it.
                let _ = self.kernel_fd(&ofd);
            }
        }
        let table = self.lock_table();
        self.unpark_all(&table);
        std::mem::forget(table);
        let shares = self.mounts().any(|(_, mount)| mount.if_attached().is_some());
        self.shares_with_child.store(shares, Relaxed);
        self.place().segment().ready.store(0, Release);
    }

    /// After fork, in the parent; `child` is its process ID, or -1 where fork failed. Waits until the
    /// child has copied the table, which must not change before, and holds its inodes, so that what
    /// the parent closes next stays alive for it.
    pub fn after_fork_parent(&self, child: i32) {
        use rustix::thread::futex;
        let place = self.place();
        let word = &place.segment().ready;
        let shares = self.shares_with_child.load(Relaxed);
        while child > 0 && shares && word.load(Acquire) == 0 {
            let timeout = futex::Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
            let slept = futex::wait(word, futex::Flags::empty(), 0, Some(&timeout));
            if slept == Err(Errno::TIMEDOUT) && !arena::ProcessId::is_taken(child as u32) {
                break;
            }
        }
        self.reset_table_lock();
    }

    /// After fork, in the child, before anything else of this crate or of an engine.
    pub fn after_fork_child(&self) {
        self.reset_table_lock();
        self.noted.after_fork();
        self.dirs.after_fork();
        // Another thread may have been about to change it.
        self.cwd.forget();
        let parent = self.place();
        let shares = self.shares_with_child.load(Relaxed);
        match self.family.claim() {
            Ok(place) => {
                self.set_place(place);
                if shares {
                    self.inherit(parent.segment(), place.segment());
                }
            }
            Err(_) => self.set_place(Place::nowhere()),
        }
        if shares {
            let ready = &parent.segment().ready;
            ready.store(1, Release);
            let _ = rustix::thread::futex::wake(ready, rustix::thread::futex::Flags::empty(), 1);
        }
    }

    /// Takes over what the parent has, which waits meanwhile.
    fn inherit(&self, old: &Segment, new: &Segment) {
        let end = old.fd_end.load(Acquire);
        new.fd_end.store(end, Relaxed);
        let hold = |handle: Handle| new.holds(handle).fetch_add(1, Relaxed) == 0;
        for (from, to) in old.kernel[..self.family.end()].iter().zip(&new.kernel) {
            to.store(from.load(Acquire), Relaxed);
        }
        self.mounts().filter_map(|(_, m)| m.if_attached()).for_each(|pool| (pool.after_fork)());
        let fds = old.fds[..end as usize].iter().zip(&new.fds).map(|(a, b)| (a.load(Acquire), b));
        for (handle, entry) in fds.chain([(old.cwd.load(Acquire), &new.cwd)]) {
            entry.store(handle, Relaxed);
            if described(handle).is_some_and(&hold) {
                self.family.add_holder(handle);
                let ofd = self.family.ofd(handle);
                // The parent still holds it, so it is there.
                let _ = self.mount(ofd.mount()).attached().fs.lookup(ofd.ino(), b".");
            }
        }
        // The kernel's descriptors of descriptions that only calls of the parent were using.
        for handle in 1..=self.family.end() as Handle {
            let slot = &new.kernel[handle as usize - 1];
            if slot.load(Relaxed) > 0 && self.holds(handle) == 0 {
                self.unhide(slot.swap(0, Relaxed) - 1);
            }
        }
    }

    /// How many holds this process has (F1).
    fn holds(&self, handle: Handle) -> u32 {
        self.place().segment().holds(handle).load(Acquire)
    }

    /// Makes every description of an inode the kernel's, and those that are opened later, too: it is
    /// about to be mapped shared.
    pub(crate) fn materialise_inode(&self, mount: usize, ino: Ino) -> Call<()> {
        self.noted.add(mount, ino, crate::noted::Why::Mapped);
        for fd in 0..self.fd_end() {
            if let Ok(ofd) = self.get(fd)
                && ofd.ino() == ino
                && ofd.mount_index() == mount
            {
                self.materialise_ofd(&ofd)?;
            }
        }
        Ok(())
    }
}

/// The name of `child` in `dir`.
fn name_in(fs: &dyn FileSystem, dir: Ino, child: Ino) -> Result<Vec<u8>, Errno> {
    let mut found = None;
    fs.readdir(dir, 2, &mut |entry| {
        if entry.ino == child {
            found = Some(entry.name.to_vec());
        }
        found.is_none()
    })?;
    found.ok_or(Errno::NOENT)
}
