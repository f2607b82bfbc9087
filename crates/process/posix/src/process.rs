//! The process: its start and end, and the events in between: mounts, other users, fork and exec.

use crate::content::FileContents;
use crate::cwd::WorkingDir;
use crate::descriptors::Descriptors;
use crate::family::{HIDDEN, Member, PARKED};
use crate::fd_allocator::FdAllocator;
use crate::lookup::Paths;
use crate::mount::ServedMount;
use crate::names::Names;
use crate::promote::Promotions;
use crate::sys::{Kernel, Raw};
use crate::table::DescriptorTable;
use crate::task::Task;
use crate::walk::PathWalk;
use crate::{Errno, MountSpec};
use std::sync::atomic::Ordering::*;

/// The POSIX state of this process: its descriptors and mounts. Any number of threads may call it.
///
/// Calls of libc are methods of the layers, by the same names: `process.contents().pwrite(…)`. The
/// methods of this type prepare and follow the events of a process: start, mounts, fork, exec,
/// other users and limits.
pub struct Process {
    contents: FileContents,
}

impl Process {
    /// Makes the shared memory of the family, and claims its first segment. Leaves no descriptor
    /// open.
    pub fn start() -> Result<Self, Errno> {
        Self::with_kernel(Box::new(Raw))
    }

    /// [`start`](Self::start) on another kernel.
    pub fn with_kernel(kernel: Box<dyn Kernel>) -> Result<Self, Errno> {
        arena::prepare();
        let table = DescriptorTable::new(Task::new(kernel)?)?;
        let descriptors = Descriptors::new(Promotions::new(FdAllocator::new(table)));
        let paths = Paths::new(WorkingDir::new(PathWalk::new(descriptors)));
        Ok(Self { contents: FileContents::new(Names::new(paths)) })
    }

    /// Open files and their contents: `open`, reads, writes, sizes, copies, locks.
    #[inline(always)]
    pub fn contents(&self) -> &FileContents {
        &self.contents
    }

    /// Names and attributes: calls on what paths lead to.
    #[inline(always)]
    pub fn names(&self) -> &Names {
        self.contents.names()
    }

    /// The working directory: `chdir`, `getcwd`.
    #[inline(always)]
    pub fn working_dir(&self) -> &WorkingDir {
        self.contents.working_dir()
    }

    /// Calls on descriptors: `close`, `dup`, `fcntl`.
    #[inline(always)]
    pub fn descriptors(&self) -> &Descriptors {
        self.contents.descriptors()
    }

    /// The kernel's descriptions of files of pools, and mappings.
    #[inline(always)]
    pub fn promotions(&self) -> &Promotions {
        self.contents.promotions()
    }

    /// Descriptors as the kernel gives them out, hidden and parked ones included.
    #[inline(always)]
    pub fn fd_allocator(&self) -> &FdAllocator {
        self.contents.fd_allocator()
    }

    /// The table of descriptors: which of them are served.
    #[inline(always)]
    pub fn table(&self) -> &DescriptorTable {
        self.contents.table()
    }

    /// The kernel, mounts, credentials, limits and umask.
    #[inline(always)]
    pub fn task(&self) -> &Task {
        self.contents.task()
    }

    /// Walks of paths, and the cache of directories that they have led to.
    #[inline(always)]
    pub fn path_walk(&self) -> &PathWalk {
        self.contents.path_walk()
    }

    /// Adds a mount, which is attached at its first use. `ENOSPC` beyond 16 mounts.
    pub fn add_mount(&self, spec: MountSpec) -> Result<(), Errno> {
        self.task().mounts.add(ServedMount::new(spec))?;
        // The mount may cover directories that paths have led to.
        self.path_walk().forget_paths();
        self.working_dir().cwd.forget();
        Ok(())
    }

    /// Announces a successful mount or umount by this process, so that every process looks at the
    /// kernel's table again.
    pub fn mounts_changed(&self) {
        let pools =
            self.task().mounts().filter_map(|(_, mount)| self.path_walk().attach(mount).ok());
        pools.for_each(|pool| pool.events.announce_mount_change());
    }

    /// Leaves all paths to the kernel, after a successful chroot, pivot_root, unshare or setns.
    /// Open descriptors stay.
    pub fn namespace_changed(&self) {
        self.path_walk().foreign_namespace.store(true, Relaxed);
    }

    /// Notes the same change of user, groups or capabilities by all threads: after libc's `setuid`
    /// and its like. A signal handler may call it at any moment.
    pub fn credentials_changed(&self) {
        self.task().identities.changed();
        self.forget_where_user_leads();
    }

    /// Notes such a change by the calling thread: after `setfsuid`, `capset`, and all changes by
    /// number. A signal handler may call it at any moment.
    pub fn thread_credentials_changed(&self) {
        self.task().identities.thread_changed();
        self.forget_where_user_leads();
    }

    fn forget_where_user_leads(&self) {
        self.task().mounts().for_each(|(_, mount)| mount.forget_reach());
        self.working_dir().cwd.forget();
    }

    /// Prepares a `clone` that shares memory: it makes a thread that libc does not count. If
    /// `shares_cells`, the new thread has no thread pointer of its own, and shares the cells of the
    /// calling thread.
    pub fn adds_uncounted_thread(&self, shares_cells: bool) {
        self.task().identities.add_uncounted(shares_cells);
    }

    /// Reads `RLIMIT_FSIZE` and `RLIMIT_NOFILE` again, after `setrlimit` or `prlimit`.
    pub fn limits_changed(&self) {
        self.fd_allocator().read_limits();
    }

    /// Promotes every descriptor that is not close-on-exec, before exec and posix_spawn. Returns
    /// the first error, but goes through all.
    pub fn before_exec(&self) -> Result<(), Errno> {
        self.path_walk().forget_paths();
        self.promotions().promote_inherited()
    }

    /// Ends this process's mappings of files by the kernel, before another program takes the
    /// process over. If that fails, call [`exec_failed`](Self::exec_failed).
    pub fn before_image_ends(&self) {
        self.promotions().before_image_ends();
    }

    /// Takes back [`before_image_ends`](Self::before_image_ends): no other program has taken this
    /// process over.
    pub fn exec_failed(&self) {
        self.promotions().exec_failed();
    }

    /// Prepares a fork, or a vfork made as a fork. Must be followed by
    /// [`after_fork_parent`](Self::after_fork_parent) in this thread and
    /// [`after_fork_child`](Self::after_fork_child) in the child.
    pub fn before_fork(&self) {
        self.promotions().before_fork();
    }

    /// Waits in the parent until the child has copied the table and holds its inodes. `child` is
    /// its process ID, or -1 if fork failed.
    pub fn after_fork_parent(&self, child: i32) {
        self.promotions().after_fork_parent(child);
    }

    /// Takes over from the parent in a forked child, before any other call of this crate or of an
    /// engine.
    pub fn after_fork_child(&self) {
        self.task().identities.after_fork();
        self.path_walk().path_cache.after_fork();
        // Another thread of the parent may have been changing it.
        self.working_dir().cwd.forget();
        self.promotions().become_child();
    }

    /// Gives up everything that other processes would otherwise sweep, before the process exits.
    /// Descriptors answer `Kernel` from then on.
    pub fn detach(&self) {
        let member = self.table().member();
        self.table().set_member(Member::nobody());
        self.table().family.leave(member);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.path_walk().forget_paths();
        let table = self.table().lock_table();
        for fd in 0..self.table().fd_end() {
            match self.table().entry(fd).map_or(0, |entry| entry.load(Acquire)) {
                0 => {}
                HIDDEN => self.fd_allocator().unhide(fd),
                PARKED => drop(self.task().kernel.close(fd)),
                _ => {
                    drop(self.table().uninstall(&table, fd));
                    let _ = self.task().kernel.close(fd);
                }
            }
        }
        drop(table);
        self.working_dir().set_cwd(None);
        self.detach();
    }
}
