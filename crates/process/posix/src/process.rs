//! The process: how it starts and ends, and what happens to it: mounts, other users, fork and exec.

use crate::content::Contents;
use crate::cwd::WorkingDir;
use crate::descriptors::Descriptors;
use crate::family::{HIDDEN, Member, PARKED};
use crate::fd_allocator::FdAllocator;
use crate::lookup::Paths;
use crate::mount::Mount;
use crate::names::Names;
use crate::promote::Promotions;
use crate::sys::{Kernel, Raw};
use crate::table::Table;
use crate::task::Task;
use crate::walk::PathWalk;
use crate::{Errno, MountSpec};
use std::ops::Deref;
use std::sync::atomic::Ordering::*;

/// What this process knows of its descriptors and mounts. Any number of threads may call it.
///
/// The methods by the names of libc are the calls, most of them of the types below, to which this one dereferences;
/// the others prepare and follow what happens to the process (start, fork, exec, other users and limits).
pub struct Process {
    contents: Contents,
}

impl Deref for Process {
    type Target = Contents;

    #[inline]
    fn deref(&self) -> &Contents {
        &self.contents
    }
}

impl Process {
    /// Makes the shared memory of the family and claims its first segment. Opens no descriptor that
    /// stays.
    pub fn start() -> Result<Self, Errno> {
        Self::with_kernel(Box::new(Raw))
    }

    /// [`start`](Self::start) on another kernel.
    pub fn with_kernel(kernel: Box<dyn Kernel>) -> Result<Self, Errno> {
        arena::prepare();
        let table = Table::new(Task::new(kernel)?)?;
        let descriptors = Descriptors::new(Promotions::new(FdAllocator::new(table)));
        let paths = Paths::new(WorkingDir::new(PathWalk::new(descriptors)));
        Ok(Self { contents: Contents::new(Names::new(paths)) })
    }

    /// Adds a mount; it is attached at its first use. `ENOSPC` beyond 16 mounts.
    pub fn add_mount(&self, spec: MountSpec) -> Result<(), Errno> {
        self.mounts.add(Mount::new(spec))?;
        // What they have led to may lie behind it.
        self.forget_paths();
        self.cwd.forget();
        Ok(())
    }

    /// After a successful mount or umount by this process: what it and others find next is as it has
    /// made it.
    pub fn mounts_changed(&self) {
        let pools = self.mounts().filter_map(|(_, mount)| self.attach(mount).ok());
        pools.for_each(|pool| pool.events.announce_mount_change());
    }

    /// After a successful chroot, pivot_root, unshare or setns: paths are the kernel's from now on;
    /// open descriptors stay.
    pub fn namespace_changed(&self) {
        self.foreign_namespace.store(true, Relaxed);
    }

    /// Notes the same change of user, groups or capabilities by all threads: after libc's `setuid` and its like. May be called
    /// by a signal handler at any moment.
    pub fn credentials_changed(&self) {
        self.identities.changed();
        self.forget_where_user_leads();
    }

    /// Notes such a change by the calling thread: after `setfsuid`, `capset`, and all changes by number. May be called by
    /// a signal handler at any moment.
    pub fn thread_credentials_changed(&self) {
        self.identities.thread_changed();
        self.forget_where_user_leads();
    }

    fn forget_where_user_leads(&self) {
        self.mounts().for_each(|(_, mount)| mount.forget_reach());
        self.cwd.forget();
    }

    /// Before a `clone` that shares memory: it makes a thread that libc does not count. Without a thread pointer of its
    /// own (`shares_cells`), it shares what belongs to the calling thread.
    pub fn adds_uncounted_thread(&self, shares_cells: bool) {
        self.identities.add_uncounted(shares_cells);
    }

    /// Reads `RLIMIT_FSIZE` and `RLIMIT_NOFILE` again: after each setrlimit, prlimit.
    pub fn limits_changed(&self) {
        self.read_limits();
    }

    /// Before exec and posix_spawn: promotes every descriptor that is not close-on-exec. Fails with the first error,
    /// having gone through all.
    pub fn before_exec(&self) -> Result<(), Errno> {
        self.forget_paths();
        self.promote_inherited()
    }

    /// After fork, in the child, before anything else of this crate or of an engine.
    pub fn after_fork_child(&self) {
        self.identities.after_fork();
        self.path_cache.after_fork();
        // Another thread may have been about to change it.
        self.cwd.forget();
        self.become_child();
    }

    /// At a quiet exit: gives up everything that others would otherwise sweep. Descriptors answer
    /// `Kernel` from then on.
    pub fn detach(&self) {
        let member = self.member();
        self.set_member(Member::nobody());
        self.family.leave(member);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.forget_paths();
        let table = self.lock_table();
        for fd in 0..self.fd_end() {
            match self.entry(fd).map_or(0, |entry| entry.load(Acquire)) {
                0 => {}
                HIDDEN => self.unhide(fd),
                PARKED => drop(self.kernel.close(fd)),
                _ => {
                    drop(self.uninstall(&table, fd));
                    let _ = self.kernel.close(fd);
                }
            }
        }
        drop(table);
        self.set_cwd(None);
        self.detach();
    }
}
