//! The server: an engine, its options, and the steps from a call to a reply.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fuser::{
    FileHandle, FopenFlags, INodeNo, Notifier, ReplyAttr, ReplyEmpty, ReplyEntry, Request,
};
use mounts::{MountEvents, Opening, SNAPSHOTS_DIR, SNAPSHOTS_NAME, Ticket, is_in_snapshots};
use vfs::{Durability, Entry, Errno, FileSystem, Ino, Right};

use crate::alias;
use crate::convert;
use crate::counters::CountedOp;
use crate::holes::Holes;
use crate::invalidate::Invalidator;
use crate::keeping::{Keeping, Now};
use crate::loads::Loads;
use crate::names::Names;
use crate::options::{BRIEF_STATS_XATTR, Rights, STATS_XATTR, ServerOptions, Stats};
use crate::privileges::Privileges;
use crate::rings::Rings;
use crate::workers::Workers;

/// A server of a file system to the kernel.
pub struct Server {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) options: ServerOptions,
    /// State of a pool that programs may use without asking this server.
    pub(crate) shared: Option<Arc<Shared>>,
    /// Rights for attributes that control the file system.
    rights: Option<Rights>,
    /// Loads what programs with direct access need.
    pub(crate) loads: Option<Loads>,
    /// Notifies the kernel, once it is connected.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    /// The threads that answer.
    pub(crate) workers: Arc<Workers>,
    pub(crate) holes: Holes,
    pub(crate) privileges: Privileges,
    /// The search for processes that have a ring of io_uring.
    rings: Rings,
}

/// The server's part in a pool that others use by direct access.
pub(crate) struct Shared {
    pub fs: Arc<dyn FileSystem>,
    pub events: Arc<dyn MountEvents>,
    /// Names that the kernel remembers.
    pub names: Names,
    pub keeping: Keeping,
}

/// Flag of an open by `execve(2)`: `FMODE_EXEC` of the kernel's `fs.h`.
const FMODE_EXEC: i32 = 0x20;
/// Bit of a handle: the file is executed.
const EXECUTED: u64 = 1;
/// Bit of a handle: the kernel may map the file.
const MAPPED: u64 = 2;
/// Bit of a handle: when it was opened, programs had mapped the file directly from the pool.
const UNMAPPED: u64 = 4;
/// Bits of a handle: the file may be written to; it may be read, and so mapped.
const WRITABLE: u64 = 8;
const READABLE: u64 = 16;
/// Bit of a handle: the kernel may map the file for stores, which is counted.
const STORABLE: u64 = 32;
/// Bit of a handle: the file or directory belongs to a snapshot, which counts it.
const OF_SNAPSHOT: u64 = 64;

/// Set-user-ID and set-group-ID.
const PRIVILEGES: u32 = 0o6000;
/// Passed to the kernel instead of an offset: it forgets attributes and keeps pages.
pub(crate) const ATTRIBUTES_ONLY: i64 = -1;

/// The engine's panic payloads are not inspected; the panic hook has already reported them.
const PANICKED: Errno = Errno::IO;

impl Server {
    /// Makes a server for `fs`, whose root must have FUSE's root number, 1. The kernel caches as
    /// much of the requested extent as the engine allows.
    ///
    /// # Errors
    /// As [`Caching::allowed_by`](crate::Caching::allowed_by).
    pub fn new(fs: Arc<dyn FileSystem>, options: ServerOptions) -> io::Result<Self> {
        assert_eq!(fs.root(), vfs::ROOT, "FUSE calls the root directory inode 1");
        let caching = options.caching.allowed_by(&*fs)?;
        let options = ServerOptions { caching, ..options };
        let workers = Workers::new(1);
        let (notifier, holes) = (Arc::default(), Holes::default());
        let (shared, rights, loads) = (None, None, None);
        let (privileges, rings) = (Privileges::default(), Rings::default());
        Ok(Self { fs, options, shared, rights, loads, notifier, holes, privileges, rings, workers })
    }

    /// Serves a pool that other processes change without asking this server. They can open files by
    /// [tickets](Ticket) that they announce. A write to a file that is open for appending goes to
    /// its current end, not to the end that the kernel remembers. The server announces the files
    /// that the kernel executes or may map among the mount events. The kernel keeps something only
    /// while there are no other users.
    #[must_use]
    pub fn shared(mut self, events: Arc<dyn MountEvents>) -> Self {
        let fs = self.fs.clone();
        // The server can announce only files whose opening it sees.
        self.options.caching.skip_opens = false;
        let (names, keeping) = (Names::new(), Keeping::default());
        self.shared = Some(Arc::new(Shared { fs, events, names, keeping }));
        self
    }

    /// Restricts attributes of the file system that are commands, or on which others depend.
    #[must_use]
    pub fn restricted(self, rights: Rights) -> Self {
        Self { rights: Some(rights), ..self }
    }

    /// Returns `EPERM` unless the requester may read, or change, the attribute.
    pub(crate) fn check_right(
        &self,
        fs: &dyn FileSystem,
        req: &Request,
        (ino, name): (Ino, &OsStr),
        changes: bool,
    ) -> vfs::Result<()> {
        if changes {
            self.check_acl(fs, req, (ino, name))?;
        }
        let right = self.rights.map_or(Right::Anyone, |rights| rights(name.as_bytes(), changes));
        if right == Right::Anyone || req.uid() == 0 {
            return Ok(());
        }
        let attr = fs.getattr(ino)?;
        let may = match right {
            Right::Server => rustix::process::geteuid().as_raw() == req.uid(),
            Right::Owner | Right::Anyone => attr.uid == req.uid(),
        };
        if may { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Returns a handle by which other threads make the kernel forget what it keeps.
    pub fn invalidator(&self) -> Invalidator {
        Invalidator(self.notifier.clone())
    }

    /// Returns `st_mode` of the root directory, which `mount(2)` needs.
    pub(crate) fn root_mode(&self) -> io::Result<u32> {
        let attr = self.fs.getattr(vfs::ROOT)?;
        Ok(attr.kind.mode_bits() | attr.perm)
    }

    /// Returns the extent to which the kernel may keep an answer. Call it before the answer is
    /// made; drop it when that has gone out.
    pub(crate) fn caching(&self) -> Now<'_> {
        match &self.shared {
            Some(shared) => shared.keeping.now(&self.options.caching),
            None => Now::always(&self.options.caching),
        }
    }

    /// Returns the lifetime of an answer that there is no such name; `None`: the kernel may not
    /// keep it.
    pub(crate) fn ttl_of_absent<'n>(
        &self,
        now: &'n Now<'_>,
        (parent, name): (INodeNo, &OsStr),
    ) -> Option<&'n Duration> {
        let is_kept = !now.ttl.is_zero()
            && self.shared.as_ref().is_none_or(|shared| shared.keeping.note_absent(parent, name));
        is_kept.then_some(&now.ttl)
    }

    /// Counts the request and its time, and calls the engine; a panic becomes `EIO`.
    pub(crate) fn call<T>(
        &self,
        op: CountedOp,
        f: impl FnOnce(&dyn FileSystem) -> vfs::Result<T>,
    ) -> Result<T, fuser::Errno> {
        self.options.counters.count(op);
        let begun = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| f(&*self.fs))).unwrap_or_else(|_| {
            self.options.counters.add_panic();
            tracing::error!("{} ended with EIO because the engine panicked", op.name());
            Err(PANICKED)
        });
        self.options.counters.took(op, begun.elapsed());
        result.map_err(|err| {
            if matches!(err, Errno::IO | Errno::UCLEAN) {
                tracing::warn!("{} failed: {err}", op.name());
            }
            convert::errno(err)
        })
    }

    /// Calls `f`, and answers with the entry, which counts as a lookup of `name` in `parent`.
    pub(crate) fn entry(
        &self,
        op: CountedOp,
        reply: ReplyEntry,
        (parent, name): (INodeNo, &OsStr),
        f: impl FnOnce(&dyn FileSystem) -> vfs::Result<Entry>,
    ) {
        let now = self.caching();
        match self.call(op, f) {
            Ok(entry) => {
                let attr = convert::file_attr(&entry);
                self.note_name(parent, name, attr.ino);
                reply.entry(&now.ttl, &attr, convert::generation(&entry));
            }
            Err(err) => reply.error(err),
        }
    }

    /// Notes that an answer gives the kernel a name. To be called before the answer goes out, as
    /// the kernel may take the lookup back at once.
    pub(crate) fn note_name(&self, parent: INodeNo, name: &OsStr, ino: INodeNo) {
        if let Some(shared) = &self.shared {
            shared.names.add(parent, name, ino);
        }
    }

    /// As [`note_name`](Self::note_name), for a file that has no name yet.
    pub(crate) fn note_nameless(&self, ino: INodeNo) {
        if let Some(shared) = &self.shared {
            shared.names.add_nameless(ino);
        }
    }

    /// As [`note_name`](Self::note_name), for a name that the kernel must not remember.
    pub(crate) fn note_alias(&self, parent: INodeNo, name: &OsStr, ino: INodeNo) {
        if let Some(shared) = &self.shared {
            shared.names.add(parent, name, ino);
            shared.names.expire_name(parent, name);
            shared.events.wake();
        }
    }

    /// Answers a request that removes or moves a name. The kernel changes its own names as those of
    /// the pool change. But it may know the inodes of `name` and `onto` by other names, too.
    pub(crate) fn change_names(
        &self,
        op: CountedOp,
        reply: ReplyEmpty,
        name: (INodeNo, &OsStr),
        onto: Option<(INodeNo, &OsStr)>,
        f: impl FnOnce(&dyn FileSystem) -> vfs::Result<()>,
    ) {
        let Some(shared) = &self.shared else { return self.empty(op, reply, f) };
        let leads_to = |(parent, name): (INodeNo, &OsStr)| {
            let attr = self.fs.peek(convert::ino(parent), name.as_bytes()).ok()?;
            Some(INodeNo(attr.ino.0))
        };
        let [source, target] = [Some(name), onto].map(|place| leads_to(place?));
        let done = self.call(op, f);
        if done.is_ok() {
            let gone = [(Some(name), source), (onto, target)];
            for ((parent, name), ino) in gone.into_iter().filter_map(|(at, ino)| at.zip(ino)) {
                if shared.names.removed(ino, parent, name) {
                    shared.names.expire(ino);
                    shared.events.wake();
                }
            }
            // The target, too: an exchange moves both.
            let new = [(onto, source), (onto.and(Some(name)), target)];
            for ((parent, name), ino) in new.into_iter().filter_map(|(at, ino)| at.zip(ino)) {
                shared.names.renamed(ino, parent, name);
            }
        }
        match done {
            Ok(()) => reply.ok(),
            Err(err) => reply.error(err),
        }
    }

    /// Calls `f`, and answers with the attributes.
    pub(crate) fn attr(
        &self,
        op: CountedOp,
        reply: ReplyAttr,
        f: impl FnOnce(&dyn FileSystem) -> vfs::Result<vfs::Attr>,
    ) {
        let now = self.caching();
        match self.call(op, f) {
            Ok(attr) => {
                if attr.ino == vfs::ROOT
                    && let Some(shared) = &self.shared
                {
                    shared.keeping.note_root();
                }
                reply.attr(&now.ttl, &convert::file_attr(&attr));
            }
            Err(err) => reply.error(err),
        }
    }

    /// Calls `f`, and answers without data.
    pub(crate) fn empty(
        &self,
        op: CountedOp,
        reply: ReplyEmpty,
        f: impl FnOnce(&dyn FileSystem) -> vfs::Result<()>,
    ) {
        match self.call(op, f) {
            Ok(()) => reply.ok(),
            Err(err) => reply.error(err),
        }
    }

    /// Clears set-user-ID and set-group-ID before a request changes content. On such a request the
    /// kernel keeps the mode that it remembers, and would execute programs by it.
    pub(crate) fn drop_privileges(&self, fs: &dyn FileSystem, ino: Ino) -> vfs::Result<()> {
        let had = fs.getattr(ino)?.perm & PRIVILEGES;
        fs.drop_privileges(ino)?;
        if had != 0
            && !self.caching().ttl.is_zero()
            && let Some(notifier) = self.notifier.get()
            && let Err(err) = notifier.inval_inode(INodeNo(ino.0), ATTRIBUTES_ONLY, 0)
        {
            tracing::error!("the kernel may keep set-user-ID of inode {ino}: {err}");
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// Makes the kernel write back what programs have stored through mappings, so that their
    /// changes precede the next step. Other threads answer these requests meanwhile.
    pub(crate) fn write_pages_back(&self, ino: Ino) {
        let hears_opens = !self.options.caching.skip_opens;
        if self.holes.may_be_stored_to(ino, hears_opens)
            && let Some(notifier) = self.notifier.get()
            && let Err(err) = notifier.inval_inode(INodeNo(ino.0), 0, 0)
            && err.raw_os_error() != Some(libc::ENOENT)
        {
            tracing::warn!("pages of inode {ino} may be written back late: {err}");
        }
    }

    /// As [`drop_privileges`](Self::drop_privileges), if an unprivileged process changes content by
    /// a request without a flag for that (see the crate's documentation).
    pub(crate) fn drop_privileges_for(
        &self,
        fs: &dyn FileSystem,
        req: &Request,
        ino: Ino,
    ) -> vfs::Result<()> {
        if req.uid() == 0 { Ok(()) } else { self.drop_privileges(fs, ino) }
    }

    /// Answers `ENOSYS` to a request whose answer would always be "nothing to do": the kernel
    /// remembers that and stops asking.
    pub(crate) fn never_again(&self, op: CountedOp, reply: ReplyEmpty) {
        self.options.counters.count(op);
        reply.error(fuser::Errno::ENOSYS);
    }

    /// Answers a request to sync. If operations are durable on return, the answer is `ENOSYS`, and
    /// the kernel sends no more such requests.
    pub(crate) fn sync(&self, op: CountedOp, ino: INodeNo, reply: ReplyEmpty) {
        if self.fs.durability() == Durability::OnReturn {
            self.never_again(op, reply);
        } else {
            self.empty(op, reply, |fs| fs.fsync(convert::ino(ino)));
        }
    }

    /// Returns the flags with which the kernel opens a file, new or not, for a thread.
    ///
    /// `O_DIRECT` alone bypasses the page cache, and moves the position of asynchronous requests
    /// ([`Rings`]). `FOPEN_DIRECT_IO` does not move it, so the server returns that only if the
    /// kernel may keep no pages. On a shared pool, a direct writer that does not read also gets it:
    /// if such a write failed, the kernel would truncate a file that has grown by direct access to
    /// the size that it remembers.
    pub(crate) fn open_flags(
        &self,
        now: &Now<'_>,
        (ino, is_new): (INodeNo, bool),
        (flags, handle): (i32, FileHandle),
        thread: u32,
    ) -> FopenFlags {
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        if handle.0 & OF_SNAPSHOT != 0 {
            // Its content never changes (snapshots-B1, snapshots-B2).
            let keeps = self.options.caching.keep_cache;
            return if keeps { FopenFlags::FOPEN_KEEP_CACHE } else { direct };
        }
        let writes_only = handle.0 & (READABLE | WRITABLE) == WRITABLE;
        // A mount alone asks only for parallel direct writes (`ask_open`).
        let is_direct = self.shared.is_none() || writes_only;
        if flags & libc::O_DIRECT != 0 && is_direct {
            return direct;
        }
        if !now.keep_cache {
            let by_position = || flags & libc::O_DIRECT != 0 || self.rings.has_ring(thread);
            return if self.may_have_pages(flags, handle) && by_position() {
                // The kernel drops its earlier pages.
                FopenFlags::empty()
            } else {
                direct
            };
        }
        let is_first = |shared: &Arc<Shared>| !shared.names.opened(ino, now.phase);
        // keeping-K4.
        if self.shared.as_ref().is_some_and(is_first) && !is_new {
            FopenFlags::empty()
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }

    /// Whether the kernel can have pages of a file that programs may use directly, while the handle
    /// is open. If the handle reads, it is [counted](Self::begin_mapping), and every process uses
    /// the file through the kernel. Appends stay one request each; the page cache would split them.
    fn may_have_pages(&self, flags: i32, handle: FileHandle) -> bool {
        let is_counted = handle.0 & (READABLE | WRITABLE) != 0 && handle.0 & UNMAPPED == 0;
        self.shared.is_some() && is_counted && flags & libc::O_APPEND == 0
    }

    /// Returns the opening that the requester has announced, if `name` in `parent` is the name of a
    /// ticket.
    pub(crate) fn announced_in(
        &self,
        req: &Request,
        (parent, name): (INodeNo, &OsStr),
    ) -> Option<Opening> {
        let shared = self.shared.as_ref().filter(|_| parent == INodeNo::ROOT)?;
        alias::announced(&*shared.events, Ticket::parse_root(name.as_bytes())?, req, false)
    }

    /// Whether `name` in `parent` is the virtual directory of aliases.
    pub(crate) fn is_alias_dir(&self, parent: INodeNo, name: &OsStr) -> bool {
        let is_it = parent == INodeNo::ROOT && name.as_bytes() == Ticket::DIR.as_bytes();
        is_it && self.shared.is_some()
    }

    /// Returns the shared state, if requests for `ino` are for the virtual directory of aliases.
    pub(crate) fn in_alias_dir(&self, ino: INodeNo) -> Option<&Shared> {
        self.shared.as_deref().filter(|_| ino == alias::DIR)
    }

    /// Whether `name` in `parent` leads, or may lead, to the directory of snapshots or to one of
    /// them. Programs that use the pool directly change what it leads to, so the kernel must not
    /// remember it.
    pub(crate) fn is_of_snapshots((parent, name): (INodeNo, &OsStr)) -> bool {
        let is_dir = parent == INodeNo::ROOT && name.as_bytes() == SNAPSHOTS_NAME.as_bytes();
        is_dir || convert::ino(parent) == SNAPSHOTS_DIR
    }

    fn events(&self) -> Option<&dyn MountEvents> {
        self.shared.as_ref().map(|shared| &*shared.events)
    }

    /// Announces to programs with direct access that a program has opened a regular file by an
    /// ordinary name. The handle records what its release takes back.
    pub(crate) fn begin_use(&self, ino: INodeNo, flags: i32) -> vfs::Result<FileHandle> {
        if is_in_snapshots(convert::ino(ino)) {
            // Programs find it only through the mount: nothing is announced.
            if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
                return Err(Errno::ROFS);
            }
            self.fs.opened(convert::ino(ino));
            return Ok(FileHandle(READABLE | OF_SNAPSHOT));
        }
        let mut uses = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READABLE,
            libc::O_WRONLY => WRITABLE,
            _ => READABLE | WRITABLE,
        };
        let Some(events) = self.events() else {
            if uses & READABLE != 0 {
                self.fs.opened(convert::ino(ino));
            }
            return Ok(FileHandle(uses | self.begin_stores(ino, flags)));
        };
        // A file that is not open for reading cannot be mapped. If it is open for appends, the
        // kernel has to know its end: it takes the position after an append from there.
        if uses & READABLE != 0 || flags & libc::O_APPEND != 0 {
            uses |= Self::begin_mapping(events, convert::ino(ino), flags)?;
        }
        if flags & FMODE_EXEC != 0 {
            events.begin_execution(convert::ino(ino));
            uses |= EXECUTED;
        }
        events.wait_for_openings(convert::ino(ino), true);
        Ok(FileHandle(uses | self.begin_stores(ino, flags)))
    }

    /// Counts an open directory below the directory of snapshots; `None` for other directories, and
    /// if no process can delete a snapshot meanwhile.
    pub(crate) fn open_snapshot_dir(&self, ino: INodeNo) -> Option<FileHandle> {
        let is_counted = self.shared.is_some() && is_in_snapshots(convert::ino(ino));
        is_counted.then(|| {
            self.fs.opened(convert::ino(ino));
            FileHandle(OF_SNAPSHOT)
        })
    }

    /// Counts a handle by which programs may map the file through the mount for stores: one opened
    /// for reading and writing. Returns [`STORABLE`] for it, else 0.
    pub(crate) fn begin_stores(&self, ino: INodeNo, flags: i32) -> u64 {
        if flags & libc::O_ACCMODE != libc::O_RDWR {
            return 0;
        }
        self.holes.begin_stores(convert::ino(ino));
        STORABLE
    }

    /// Counts that the kernel may map the opened file; returns the handle's bit, [`MAPPED`]. While
    /// programs map the file directly from the pool, nothing is counted and the bit is
    /// [`UNMAPPED`]: [`check_page`](Self::check_page) then refuses pages.
    ///
    /// # Errors
    /// `EBUSY` if these mappings may store and the file is opened for reading and writing, as the
    /// kernel's own mappings for stores require.
    fn begin_mapping(events: &dyn MountEvents, ino: Ino, flags: i32) -> vfs::Result<u64> {
        match events.begin_mapping(ino) {
            Ok(()) => Ok(MAPPED),
            Err(Errno::BUSY) => {
                let maps_stores = flags & libc::O_ACCMODE == libc::O_RDWR;
                let is_refused = maps_stores && events.is_stored_to_directly(ino);
                if is_refused { Err(Errno::BUSY) } else { Ok(UNMAPPED) }
            }
            Err(err) => Err(err),
        }
    }

    /// Returns `EIO` if the kernel reads or writes back a page of a file that programs map directly
    /// from the pool: the page could differ from what these see.
    pub(crate) fn check_page(&self, ino: Ino, handle: FileHandle, writes: bool) -> vfs::Result<()> {
        let Some(events) = self.events().filter(|_| handle.0 & UNMAPPED != 0) else {
            return Ok(());
        };
        let differs = match writes {
            true => events.is_mapped_directly(ino),
            false => events.is_stored_to_directly(ino),
        };
        if differs { Err(Errno::IO) } else { Ok(()) }
    }

    /// Waits for openings before an answer may change the size that the kernel knows: no older
    /// answer may come after it ([`MountEvents::begin_opening`]).
    pub(crate) fn before_new_size(&self, ino: Ino) {
        if let Some(events) = self.events() {
            events.wait_for_openings(ino, true);
        }
    }

    /// Takes back what [`begin_use`](Self::begin_use) announced.
    pub(crate) fn end_use(&self, ino: INodeNo, handle: FileHandle) {
        if handle.0 & OF_SNAPSHOT != 0 {
            return self.fs.closed(convert::ino(ino));
        }
        if handle.0 & STORABLE != 0 {
            self.holes.end_stores(convert::ino(ino));
        }
        let Some(events) = self.events() else {
            if handle.0 & READABLE != 0 {
                self.fs.closed(convert::ino(ino));
            }
            return;
        };
        if handle.0 & MAPPED != 0 {
            events.end_mapping(convert::ino(ino));
        }
        if handle.0 & EXECUTED != 0 {
            events.end_execution(convert::ino(ino));
        }
    }

    pub(crate) fn stats_of(&self, ino: INodeNo, name: &OsStr) -> Option<(&Stats, bool)> {
        let is_brief = name.as_bytes() == BRIEF_STATS_XATTR.as_bytes();
        let is_asked =
            ino == INodeNo::ROOT && (is_brief || name.as_bytes() == STATS_XATTR.as_bytes());
        self.options.stats.as_ref().filter(|_| is_asked).map(|stats| (stats, is_brief))
    }
}
