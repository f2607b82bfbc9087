//! Calls on descriptors: `close`, `dup`, `fcntl`, `close_range`.
//!
//! - **descriptors-D1** The descriptor is the kernel's: a duplicate of a placeholder opened with
//!   `O_PATH`. The kernel keeps the lowest free descriptor, close-on-exec and limits (parked-N1–N4
//!   in `parked`).
//! - **descriptors-D2** An entry of the table is emptied before its descriptor is closed or parked,
//!   and filled after the descriptor was opened. So it never refers to a descriptor of another
//!   file.

use crate::family::{CREATED, HIDDEN, ON_KERNEL, OfdHandle, PARKED, PROMOTED, described};
use crate::noted::NoteReason;
use crate::promote::Promotions;
use crate::served::{CallResult, CallStop};
use crate::table::{OfdRef, TableLock};
use crate::{Errno, Served};
use std::sync::atomic::Ordering::*;
use vfs::FileKind;

/// `F_CREATED_QUERY` (Linux 6.12).
const CREATED_QUERY: i32 = 1024 + 4;
/// Flags that `F_SETFL` changes.
pub(crate) const SETTABLE: i32 =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME;

/// Calls on descriptors: `close`, `dup`, `fcntl`.
pub struct Descriptors {
    promotions: Promotions,
}

impl Descriptors {
    pub(crate) fn new(promotions: Promotions) -> Self {
        Self { promotions }
    }

    #[inline(always)]
    pub(crate) fn promotions(&self) -> &Promotions {
        &self.promotions
    }

    /// Promotes a file that has become standard input, output or error: libc reads and writes there
    /// by itself. Only regular files need that.
    fn promote_stream(&self, fd: i32, ofd: &OfdRef<'_>) -> Result<(), Errno> {
        let is_file = ofd.kind() == FileKind::File && ofd.oflags() & libc::O_PATH == 0;
        if fd <= 2 && is_file { self.promotions().promote_ofd(ofd) } else { Ok(()) }
    }

    /// Promotes like [`promote_stream`](Self::promote_stream), for a descriptor that the program
    /// does not know yet. Closes the descriptor if that fails.
    pub(crate) fn promote_new_stream(&self, fd: i32) -> Result<(), Errno> {
        if fd > 2 {
            return Ok(());
        }
        let Ok(ofd) = self.table().get(fd) else { return Ok(()) };
        self.promote_stream(fd, &ofd).inspect_err(|_| {
            let _ = self.close(fd);
        })
    }

    /// `close`.
    pub fn close(&self, fd: i32) -> Served<()> {
        self.close_call(fd).into()
    }

    fn close_call(&self, fd: i32) -> CallResult<()> {
        let entry = self.table().entry(fd).ok_or(CallStop::Kernel)?;
        match entry.load(Relaxed) {
            0 => return Err(CallStop::Kernel),
            HIDDEN | PARKED => return Err(Errno::BADF.into()),
            _ => {}
        }
        let table = self.table().lock_table();
        self.drop_locks(&table, fd);
        let _ofd = self.table().uninstall(&table, fd).ok_or(CallStop::Kernel)?;
        let closed = self.fd_allocator().give_fd(&table, fd);
        drop(table);
        Ok(closed?)
    }

    /// Ends this process's POSIX locks on the inode of a descriptor that is being closed. Closing
    /// any description ends them, except one of `O_PATH`. To be called with the table locked,
    /// before the entry changes.
    fn drop_locks(&self, table: &TableLock<'_>, fd: i32) {
        if self.promotions().noted.is_empty() {
            return;
        }
        let entry = self.table().entry(fd).map_or(0, |entry| entry.load(Acquire));
        let Some(handle) = described(entry) else { return };
        let ofd = self.table().family.ofd(handle);
        let (mount, ino) = (ofd.mount(), ofd.ino());
        if ofd.oflags() & libc::O_PATH != 0
            || !self.promotions().noted.remove(mount, ino, NoteReason::Locks)
        {
            return;
        }
        let mut ended = entry & ON_KERNEL != 0;
        while let Some(kept) = self.promotions().noted.take_kept(mount, ino) {
            self.fd_allocator().unhide(kept);
            ended = true;
        }
        if !ended {
            self.promotions().end_locks(table, ofd);
        }
    }

    /// `close_range`, with or without `CLOSE_RANGE_CLOEXEC`. Descriptors of our own stay.
    pub fn close_range(&self, first: u32, last: u32, flags: u32) -> Served<()> {
        self.close_range_call(first, last, flags).into()
    }

    fn close_range_call(&self, first: u32, last: u32, flags: u32) -> CallResult<()> {
        let end = self.table().fd_end() as u32;
        let known = libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE;
        if first > last || first >= end || flags & !known != 0 {
            return Err(CallStop::Kernel);
        }
        if flags & libc::CLOSE_RANGE_UNSHARE != 0 {
            // The range lies above every descriptor. It closes nothing, but gives this thread its
            // own table.
            self.task().kernel.close_range(u32::MAX, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
        }
        self.fd_allocator().unpark();
        let flags = flags & libc::CLOSE_RANGE_CLOEXEC;
        self.fd_allocator().forget_fd_records(first as i32..last.min(end - 1) as i32 + 1);
        if flags == 0 {
            for fd in first..=last.min(end - 1) {
                let _ = self.close_call(fd as i32);
            }
        }
        self.close_range_in_kernel(first, last, flags)?;
        if flags == 0 {
            self.fd_allocator().fd_freed(first as i32);
        }
        Ok(())
    }

    /// Makes the kernel's `close_range` for all parts of a range between hidden descriptors, which
    /// stay open. A process that shares only this one's table of descriptors, not its memory, needs
    /// just this.
    pub fn close_range_in_kernel(&self, first: u32, last: u32, flags: u32) -> Result<(), Errno> {
        let end = self.table().fd_end() as u32;
        let mut from = first;
        for fd in
            (first..end.min(last.saturating_add(1))).filter(|&fd| self.table().hides(fd as i32))
        {
            if from < fd {
                self.task().kernel.close_range(from, fd - 1, flags)?;
            }
            from = fd + 1;
        }
        if from <= last {
            self.task().kernel.close_range(from, last, flags)?;
        }
        Ok(())
    }

    /// `dup`.
    pub fn dup(&self, fd: i32) -> Served<i32> {
        self.dup_from(fd, 0, false).into()
    }

    /// `F_DUPFD` and `F_DUPFD_CLOEXEC`.
    fn dup_from(&self, fd: i32, min: i32, cloexec: bool) -> CallResult<i32> {
        let ofd = self.table().get(fd)?;
        let table = self.table().lock_table();
        self.fd_allocator().unpark_all(&table);
        let new = if min == 0 {
            self.fd_allocator().parked.raise(|| self.task().kernel.dup(fd, 0, cloexec))?
        } else {
            self.task().kernel.dup(fd, min, cloexec)?
        };
        if self.table().entry(new).is_none() {
            let _ = self.fd_allocator().close_fd(new);
            drop(table);
            // The descriptor is beyond our table, so it is the kernel's.
            self.promotions().promote_ofd(&ofd)?;
            return Err(CallStop::Kernel);
        }
        self.fd_allocator().copy_fd_record(fd, new, cloexec);
        let before = self.table().install(&table, new, ofd, self.on_kernel(fd));
        drop((table, before));
        self.promote_new_stream(new)?;
        Ok(new)
    }

    /// Returns [`ON_KERNEL`] if a descriptor is a duplicate of the kernel's description. To be
    /// called with the table locked.
    fn on_kernel(&self, fd: i32) -> OfdHandle {
        self.table().entry(fd).map_or(0, |entry| entry.load(Acquire) & ON_KERNEL)
    }

    /// `dup2`. `old`, `new`, both or neither may be ours.
    pub fn dup2(&self, old: i32, new: i32) -> Served<i32> {
        if old == new {
            return self.table().get(old).map(|_| new).into();
        }
        self.dup_to(old, new, false).into()
    }

    /// `dup3`.
    pub fn dup3(&self, old: i32, new: i32, flags: i32) -> Served<i32> {
        if old == new || flags & !libc::O_CLOEXEC != 0 {
            return Served::Kernel;
        }
        self.dup_to(old, new, flags & libc::O_CLOEXEC != 0).into()
    }

    /// Does `dup2` and `dup3` for different descriptors. Moves a descriptor of our own out of the
    /// way.
    fn dup_to(&self, old: i32, new: i32, cloexec: bool) -> CallResult<i32> {
        if new < 0 {
            return self.table().get(old).and(Err(Errno::BADF.into()));
        }
        self.fd_allocator().unpark();
        if self.table().entry(new).is_some_and(|entry| entry.load(Acquire) == HIDDEN) {
            self.relocate(new)?;
            // The moved descriptor is still open, unseen by the program.
            let put_over = self.put_over(old, new, cloexec, true);
            return put_over.inspect_err(|_| {
                let _ = self.fd_allocator().close_fd(new);
            });
        }
        let is_ours = self.table().owns(new);
        self.put_over(old, new, cloexec, is_ours)
    }

    /// Makes `new`, which the library knows if it `is_ours`, a duplicate of `old`.
    fn put_over(&self, old: i32, new: i32, cloexec: bool, is_ours: bool) -> CallResult<i32> {
        let ofd = match self.table().get(old) {
            Ok(ofd) => ofd,
            Err(CallStop::Kernel) if is_ours => {
                let table = self.table().lock_table();
                self.task().kernel.dup3(old, new, cloexec)?;
                self.drop_locks(&table, new);
                self.fd_allocator().forget_fd_records(new..new + 1);
                let before = self.table().uninstall(&table, new);
                drop((table, before));
                return Ok(new);
            }
            Err(stop) => return Err(stop),
        };
        if self.table().entry(new).is_none() {
            self.promotions().promote_ofd(&ofd)?;
            return Err(CallStop::Kernel);
        }
        self.promote_stream(new, &ofd)?;
        let table = self.table().lock_table();
        self.task().kernel.dup3(old, new, cloexec)?;
        self.drop_locks(&table, new);
        self.fd_allocator().copy_fd_record(old, new, cloexec);
        let before = self.table().install(&table, new, ofd, self.on_kernel(old));
        drop((table, before));
        Ok(new)
    }

    /// Moves a descriptor of our own whose number the program wants.
    fn relocate(&self, fd: i32) -> CallResult<()> {
        let _table = self.table().lock_table();
        let Some(entry) = self.table().entry(fd).filter(|entry| entry.load(Acquire) == HIDDEN)
        else {
            return Ok(());
        };
        let moved = self.task().kernel.dup(fd, fd + 1, true)?;
        let placeholder = self.task().mounts().find(|(_, mount)| mount.placeholder() == fd);
        let capability =
            self.task().mounts().find(|(_, mount)| mount.capability() == Some(Some(fd)));
        if let Some((_, mount)) = placeholder {
            mount.move_placeholder(moved);
        } else if let Some((_, mount)) = capability {
            mount.set_capability(Some(moved));
        } else if !self.promotions().noted.move_kept(fd, moved) {
            // The front end had it hidden, and knows it by its number.
            let _ = self.task().kernel.close(moved);
            return Err(Errno::BADF.into());
        }
        self.fd_allocator().mark_hidden(moved);
        entry.store(0, Release);
        Ok(())
    }

    /// `fcntl` without a pointer argument: `F_DUPFD*`, `F_*FD`, `F_*FL`, `F_GETLEASE`…
    pub fn fcntl(&self, fd: i32, cmd: i32, arg: libc::c_long) -> Served<i32> {
        self.fcntl_call(fd, cmd, arg).into()
    }

    fn fcntl_call(&self, fd: i32, cmd: i32, arg: libc::c_long) -> CallResult<i32> {
        let ofd = self.table().get(fd)?;
        let path_only = ofd.oflags() & libc::O_PATH != 0;
        match cmd {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let min = i32::try_from(arg).map_err(|_| Errno::INVAL)?;
                drop(ofd);
                self.dup_from(fd, min, cmd == libc::F_DUPFD_CLOEXEC)
            }
            // The kernel keeps this flag on the descriptor (descriptors-D1).
            libc::F_GETFD => {
                Ok(if self.task().kernel.is_cloexec(fd)? { libc::FD_CLOEXEC } else { 0 })
            }
            libc::F_SETFD => {
                let cloexec = arg as i32 & libc::FD_CLOEXEC != 0;
                let _table = self.table().lock_table();
                self.task().kernel.set_cloexec(fd, cloexec)?;
                self.fd_allocator().copy_fd_record(fd, fd, cloexec);
                Ok(0)
            }
            libc::F_GETFL => Ok(ofd.oflags()),
            _ if path_only => Err(Errno::BADF.into()),
            // The kernel creates nothing when it opens what a description is promoted to.
            CREATED_QUERY => Ok(i32::from(ofd.is(CREATED))),
            libc::F_SETFL => {
                let asked = arg as i32;
                let had = ofd.oflags();
                if asked & !had & libc::O_NOATIME != 0
                    && !self.task().identity().effective.owns(&ofd.attr()?)
                {
                    return Err(Errno::PERM.into());
                }
                let flags = had & !SETTABLE | asked & SETTABLE;
                if ofd.is(PROMOTED) {
                    self.promotions().adopt(&ofd)?;
                    self.task().kernel.set_status(fd, flags)?;
                }
                ofd.flags.store(flags as u32, Relaxed);
                Ok(0)
            }
            _ => {
                self.promotions().promote_ofd(&ofd)?;
                Err(CallStop::Kernel)
            }
        }
    }

    /// Whether the kernel has a description for `fd`, too.
    pub fn is_promoted(&self, fd: i32) -> bool {
        let handle = self.table().entry(fd).map_or(0, |entry| entry.load(Acquire));
        handle == 0
            || described(handle).is_some_and(|ofd| self.table().family.ofd(ofd).is(PROMOTED))
    }
}
