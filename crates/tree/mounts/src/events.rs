//! Events that a mount's server announces to the processes that use the pool directly.

use crate::{Opening, Requester, Ticket};
use std::time::Duration;
use vfs::{Errno, Ino, Result};

/// Facts that the kernel reports only to a mount's server, which announces them to all users of the
/// pool.
///
/// An announcement makes other processes check for themselves, or leave a call to the kernel. So a
/// late announcement does no harm, nor do those of a server that was killed, or unmounted before
/// the kernel had reported everything.
pub trait MountEvents: Send + Sync {
    /// Returns the number of changes of the mount in the kernel's table: its
    /// [`MountState`](crate::MountState) has changed, or it is gone. Costs one load.
    fn mount_changes(&self) -> u64;

    /// Counts a change of the mount, so that other processes see another number of
    /// [`mount_changes`](Self::mount_changes) and read the kernel's table again.
    fn announce_mount_change(&self);

    /// Returns whether the kernel may be executing the file. Then the kernel decides whether it may
    /// be written (`ETXTBSY`). Costs one load.
    fn is_executed(&self, ino: Ino) -> bool;

    /// Announces that the kernel has opened the file to execute it. The caller holds the inode.
    fn begin_execution(&self, ino: Ino);

    /// Announces that the kernel has closed a file that it had opened to execute it.
    fn end_execution(&self, ino: Ino);

    /// Returns whether a process may map the file through the mount, so that the kernel may have
    /// pages of it. Costs one load.
    ///
    /// A process that changes content without the kernel asks before and after the change: a
    /// mapping that began meanwhile may have read pages before the change.
    fn is_mapped(&self, ino: Ino) -> bool;

    /// Returns whether a process maps the blocks of the file directly
    /// ([`vfs::Mappings::map_range`]): then the kernel must not have pages of it that can change.
    fn is_mapped_directly(&self, ino: Ino) -> bool;

    /// Returns whether a process may store through a direct mapping of the file
    /// ([`vfs::Mappings::map_range`]), so that the kernel's pages would differ from it.
    fn is_stored_to_directly(&self, ino: Ino) -> bool;

    /// Counts that a process may map the file from now on. The server counts each open file that a
    /// program has by an ordinary name; a program that uses the pool without the server counts each
    /// of its mappings. The caller holds the inode until [`end_mapping`](Self::end_mapping). When a
    /// process dies, its counts are removed with the rest of its state.
    ///
    /// # Errors
    /// Nothing is counted, and so nothing may be mapped; `EBUSY` if a living process maps its
    /// blocks directly ([`vfs::Mappings::map_range`]).
    fn begin_mapping(&self, ino: Ino) -> Result<()>;

    /// Takes back one count of [`begin_mapping`](Self::begin_mapping), if this process has any for
    /// the file.
    fn end_mapping(&self, ino: Ino);

    /// Takes back all counts of this process, for all files.
    fn end_mappings(&self);

    /// Announces that thread `by` of this process will open an inode through the mount, by a name
    /// made of the returned [`Ticket`]. The caller then opens that name and calls
    /// [`end_opening`](Self::end_opening). A process must have at most one opening at a time.
    ///
    /// With [`Opening::as_new`], the kernel takes the size from the server's answer, even if it has
    /// learned a later size meanwhile. Then mapped pages beyond the older size are gone for a
    /// moment. So the caller must check that the kernel has the right size before it ends the
    /// opening. A process that maps the file, or changes its size through the mount, waits for such
    /// openings ([`wait_for_openings`](Self::wait_for_openings)).
    ///
    /// # Errors
    /// Nothing is announced: `EOPNOTSUPP` if processes do not share the pool, `EIO` without random
    /// numbers, or this process cannot join the pool's users.
    fn begin_opening(&self, opening: Opening, by: Requester) -> Result<Ticket>;

    /// Takes the announcement of the opening with this ticket; the server calls this before it
    /// reads the attributes for its answer. `None` if this requester has not announced it within
    /// the last second, or if it was answered before.
    fn answer_opening(&self, ticket: Ticket, by: Requester) -> Option<Opening>;

    /// Ends an opening of this process. Returns whether the server had taken its announcement
    /// ([`answer_opening`](Self::answer_opening)).
    fn end_opening(&self, ticket: Ticket) -> bool;

    /// Waits until current openings of the inode have ended, but not for long: an opening process
    /// may have been killed. Returns whether there were any.
    ///
    /// `only_answered`: waits only for those whose announcement the server has taken. The server
    /// must set it, as the other openings may be waiting for the server.
    fn wait_for_openings(&self, ino: Ino, only_answered: bool) -> bool;

    /// Waits until inodes that the server holds have lost their last names by direct access. Calls
    /// `tell` for each, so that the kernel drops what it caches of the inode. Returns also without
    /// such inodes, after `patience` or a [`wake`](Self::wake). Only for the server.
    ///
    /// # Errors
    /// It is not possible to wait; trying again at once is of no use.
    fn wait_for_unnamed(&self, patience: Duration, tell: &mut dyn FnMut(Ino)) -> Result<()>;

    /// Ends the server's current or next [`wait_for_unnamed`](Self::wait_for_unnamed). Only for the
    /// server.
    fn wake(&self);

    /// Returns whether another process uses the pool, or has used it until a moment ago. Only for
    /// the server.
    fn has_company(&self) -> bool;

    /// Returns whether a living process with this number uses the pool directly. Only for the
    /// server.
    fn is_user(&self, process: u32) -> bool;

    /// Asks, with `keeps`, whether the kernel may cache the server's answers, and records the
    /// result. Returns whether it may: only while no other process uses the pool. Without `keeps`,
    /// withdraws the permission, after the kernel has dropped everything. A process that begins to
    /// use the pool wakes the server and waits for that. Only for the server.
    ///
    /// # Errors
    /// The permission cannot be recorded, so the kernel must not cache anything.
    fn let_kernel_keep(&self, keeps: bool) -> Result<bool>;

    /// Announces that this server serves the mount whose files have this `st_dev`.
    ///
    /// # Errors
    /// As [`begin_mapping`](Self::begin_mapping).
    fn begin_serving(&self, device: u64) -> Result<()>;

    /// Returns whether a living process serves the pool by the mount with this `st_dev`. Any mount
    /// can name any pool, but only the pool's server can announce itself here.
    fn is_served_at(&self, device: u64) -> bool;

    /// Ends the announcements for the mount of this process, and takes back its mappings.
    fn end_serving(&self);
}

/// A type that passes these calls on to another object.
pub trait HasMountEvents: Send + Sync {
    /// Returns the object to which calls are passed on.
    fn mount_events(&self) -> impl MountEvents;
}

impl<T: HasMountEvents> MountEvents for T {
    #[inline]
    fn mount_changes(&self) -> u64 {
        self.mount_events().mount_changes()
    }

    fn announce_mount_change(&self) {
        self.mount_events().announce_mount_change();
    }

    fn is_executed(&self, ino: Ino) -> bool {
        self.mount_events().is_executed(ino)
    }

    fn begin_execution(&self, ino: Ino) {
        self.mount_events().begin_execution(ino);
    }

    fn end_execution(&self, ino: Ino) {
        self.mount_events().end_execution(ino);
    }

    #[inline]
    fn is_mapped(&self, ino: Ino) -> bool {
        self.mount_events().is_mapped(ino)
    }

    fn is_mapped_directly(&self, ino: Ino) -> bool {
        self.mount_events().is_mapped_directly(ino)
    }

    fn is_stored_to_directly(&self, ino: Ino) -> bool {
        self.mount_events().is_stored_to_directly(ino)
    }

    fn begin_mapping(&self, ino: Ino) -> Result<()> {
        self.mount_events().begin_mapping(ino)
    }

    fn end_mapping(&self, ino: Ino) {
        self.mount_events().end_mapping(ino);
    }

    fn end_mappings(&self) {
        self.mount_events().end_mappings();
    }

    fn begin_opening(&self, opening: Opening, by: Requester) -> Result<Ticket> {
        self.mount_events().begin_opening(opening, by)
    }

    fn answer_opening(&self, ticket: Ticket, by: Requester) -> Option<Opening> {
        self.mount_events().answer_opening(ticket, by)
    }

    fn end_opening(&self, ticket: Ticket) -> bool {
        self.mount_events().end_opening(ticket)
    }

    fn wait_for_openings(&self, ino: Ino, only_answered: bool) -> bool {
        self.mount_events().wait_for_openings(ino, only_answered)
    }

    fn wait_for_unnamed(&self, patience: Duration, tell: &mut dyn FnMut(Ino)) -> Result<()> {
        self.mount_events().wait_for_unnamed(patience, tell)
    }

    fn wake(&self) {
        self.mount_events().wake();
    }

    fn has_company(&self) -> bool {
        self.mount_events().has_company()
    }

    fn is_user(&self, process: u32) -> bool {
        self.mount_events().is_user(process)
    }

    fn let_kernel_keep(&self, keeps: bool) -> Result<bool> {
        self.mount_events().let_kernel_keep(keeps)
    }

    fn begin_serving(&self, device: u64) -> Result<()> {
        self.mount_events().begin_serving(device)
    }

    fn is_served_at(&self, device: u64) -> bool {
        self.mount_events().is_served_at(device)
    }

    fn end_serving(&self) {
        self.mount_events().end_serving();
    }
}

/// The events of an engine whose pools only one process uses at a time: it announces nothing.
pub struct NoMountEvents;

impl MountEvents for NoMountEvents {
    fn mount_changes(&self) -> u64 {
        0
    }

    fn announce_mount_change(&self) {}

    fn is_executed(&self, _ino: Ino) -> bool {
        false
    }

    fn begin_execution(&self, _ino: Ino) {}

    fn end_execution(&self, _ino: Ino) {}

    fn is_mapped(&self, _ino: Ino) -> bool {
        false
    }

    fn is_mapped_directly(&self, _ino: Ino) -> bool {
        false
    }

    fn is_stored_to_directly(&self, _ino: Ino) -> bool {
        false
    }

    fn begin_mapping(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }

    fn end_mapping(&self, _ino: Ino) {}

    fn end_mappings(&self) {}

    fn begin_opening(&self, _opening: Opening, _by: Requester) -> Result<Ticket> {
        Err(Errno::OPNOTSUPP)
    }

    fn answer_opening(&self, _ticket: Ticket, _by: Requester) -> Option<Opening> {
        None
    }

    fn end_opening(&self, _ticket: Ticket) -> bool {
        false
    }

    fn wait_for_openings(&self, _ino: Ino, _only_answered: bool) -> bool {
        false
    }

    fn wait_for_unnamed(&self, _patience: Duration, _tell: &mut dyn FnMut(Ino)) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn wake(&self) {}

    fn has_company(&self) -> bool {
        false
    }

    fn is_user(&self, _process: u32) -> bool {
        false
    }

    fn let_kernel_keep(&self, _keeps: bool) -> Result<bool> {
        Ok(false)
    }

    fn begin_serving(&self, _device: u64) -> Result<()> {
        Ok(())
    }

    fn is_served_at(&self, _device: u64) -> bool {
        false
    }

    fn end_serving(&self) {}
}
