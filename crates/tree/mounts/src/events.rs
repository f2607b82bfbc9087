//! What a mount's server announces for those who use the pool beside it.

use crate::{Opening, Requester, Ticket};
use std::time::Duration;
use vfs::{Errno, Ino, Result};

/// What the kernel tells the server of a mount and nobody else, announced where all can see it who use the
/// pool.
///
/// What is announced makes others look for themselves, or leave a call to the kernel: it may come late, and
/// what a server leaves that was killed, or unmounted before the kernel had told it all, does no harm.
pub trait MountEvents: Send + Sync {
    /// How often the kernel's table of mounts has said something else of the mount: other
    /// [`MountState`](crate::MountState), or nothing any more. One load.
    fn mount_changes(&self) -> u64;

    /// Announces such a change.
    fn announce_mount_change(&self);

    /// Whether the kernel may be executing the file: whether somebody may write to it is the kernel's
    /// to say then (`ETXTBSY`). One load.
    fn is_executed(&self, ino: Ino) -> bool;

    /// Announces that the kernel has opened the file to execute it. The caller holds the inode.
    fn begin_execution(&self, ino: Ino);

    /// Announces that it has closed what it opened so.
    fn end_execution(&self, ino: Ino);

    /// Whether somebody may map the file through the mount, so that the kernel may have pages of it. One load.
    ///
    /// Whoever changes content without the kernel asks before and again afterwards: a mapping that began
    /// meanwhile may have read pages before the change.
    fn is_mapped(&self, ino: Ino) -> bool;

    /// Whether somebody maps the file where it lies ([`vfs::FileSystem::map_range`]): then the kernel is to have no pages of it
    /// that change.
    fn is_mapped_directly(&self, ino: Ino) -> bool;

    /// Whether somebody may store through such a mapping, so that pages of the kernel's would not be what the file holds.
    fn is_stored_to_directly(&self, ino: Ino) -> bool;

    /// Counts that somebody may map the file from now on: the server for each open file that a program
    /// has by an ordinary name, a program that uses the pool without the server for each of its mappings.
    /// The caller holds the inode until [`end_mapping`](Self::end_mapping). What a process has not ended
    /// ends with it, when somebody clears away what it left.
    ///
    /// # Errors
    /// Nothing is counted, and so nothing may be mapped; `EBUSY` where a process that lives maps it where it lies
    /// ([`vfs::FileSystem::map_range`]).
    fn begin_mapping(&self, ino: Ino) -> Result<()>;

    /// Takes back one such count of this process, if it has one.
    fn end_mapping(&self, ino: Ino);

    /// Takes back all counts of this process.
    fn end_mappings(&self);

    /// Announces that the thread `by` of this process is having the kernel open an inode by a name of the
    /// [`Ticket`], one at a time.
    ///
    /// If that is for a new file, the kernel believes the size in the answer, even if it has learned of a
    /// later one meanwhile: for a moment, mapped pages beyond the older size are gone. So who opens looks
    /// afterwards whether the kernel has the right size, and ends the opening only then; and who maps the file, or
    /// changes its size through the mount, waits for those under way.
    ///
    /// # Errors
    /// As [`begin_mapping`](Self::begin_mapping).
    fn begin_opening(&self, opening: Opening, by: Requester) -> Result<Ticket>;

    /// For the server, about to look at what it answers to an opening with this ticket: what was announced. `None` if it was not
    /// announced by this requester within the last second, or was answered before.
    fn answer_opening(&self, ticket: Ticket, by: Requester) -> Option<Opening>;

    /// Ends an opening of this process. Returns whether it was answered.
    fn end_opening(&self, ticket: Ticket) -> bool;

    /// Waits until openings of the inode have ended that are under way: all, or for the server, for which some may be
    /// waiting, those that it has answered. Does not wait for long: who opens may have been killed. Whether there were
    /// any.
    fn wait_for_openings(&self, ino: Ino, only_answered: bool) -> bool;

    /// For the server: waits until inodes that it holds have lost their last names beside the mount, and calls
    /// `tell` for each, so that the kernel learns of it and gives up what it remembers. Returns as well where
    /// there is none, after `patience` or a [`wake`](Self::wake).
    ///
    /// # Errors
    /// That one cannot wait; trying again at once is no use.
    fn wait_for_unnamed(&self, patience: Duration, tell: &mut dyn FnMut(Ino)) -> Result<()>;

    /// Ends such a wait, or else the next one.
    fn wake(&self);

    /// For the server: whether another process uses the pool, or has until a moment ago.
    fn has_company(&self) -> bool;

    /// For the server: says whether the kernel may keep what it is told, and whether it may: not where there is company. Who
    /// comes [wakes](Self::wake) the server and waits until it has said no.
    ///
    /// # Errors
    /// That cannot be said, so it may not.
    fn let_kernel_keep(&self, keeps: bool) -> Result<bool>;

    /// For the server: announces that it serves the mount whose files have this `st_dev`.
    ///
    /// # Errors
    /// As [`begin_mapping`](Self::begin_mapping).
    fn begin_serving(&self, device: u64) -> Result<()>;

    /// Whether a process that lives serves the pool by the mount with this `st_dev`. Any mount can name any pool; its server
    /// alone can say so here.
    fn is_served_at(&self, device: u64) -> bool;

    /// The mount of this process has ended: takes back its mappings, and nothing is announced for it any more.
    fn end_serving(&self);
}

/// Who leaves all of that to something else, to which calls are passed on.
pub trait HasMountEvents: Send + Sync {
    /// What does it.
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

/// Of an engine whose pools one process uses at a time: nothing is announced to anybody.
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
