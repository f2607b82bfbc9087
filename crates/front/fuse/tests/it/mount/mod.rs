//! The front end over engines made for these tests: the requests it makes to them, and failures it
//! survives.
//!
//! Needs root and `/dev/fuse`.

#![allow(unsafe_code)]

mod beside;
mod writes;

use fuse::{
    Caching, CountedOp, MountAccess, MountFlags, MountOptions, MountPoint, MountWatch, OpCounters,
    Server, ServerOptions,
};
use mounts::{MountEvents, Opening, Requester, Ticket};
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vfs::model::Model;
use vfs::{
    Caller, Entry, Errno, FileSystem, Ino, KernelCache, Limits, Mappings, NewKind, NewNode,
    Openings, RenameFlags, Result,
};

/// A model that counts references and calls to `fsync`, and panics on request.
#[derive(Default)]
struct Probe {
    model: Model,
    /// References given out and not yet taken back.
    references: AtomicU64,
    fsyncs: AtomicU64,
    kernel_cache: KernelCache,
    /// Files announced as being executed.
    executed: Mutex<Vec<Ino>>,
    /// Files announced as possibly mapped.
    mapped: Mutex<Vec<Ino>>,
    /// Openings that were announced and their requesters; those that the server has answered; the
    /// inodes for which it has waited.
    announced_openings: Mutex<Vec<(Ticket, Opening, Requester)>>,
    answered: Mutex<Vec<Ino>>,
    waited: Mutex<Vec<Ino>>,
    /// Inodes of which to notify the kernel, and whether the server has to look.
    unnamed: Mutex<(Vec<Ino>, bool)>,
    news: Condvar,
    /// Whether another process uses the pool, and whether the kernel may keep anything.
    company: AtomicBool,
    /// The device of the mount.
    served: AtomicU64,
    keeps: AtomicBool,
}

impl MountEvents for Probe {
    fn mount_changes(&self) -> u64 {
        0
    }
    fn announce_mount_change(&self) {}
    fn is_executed(&self, ino: Ino) -> bool {
        self.executed.lock().unwrap().contains(&ino)
    }
    fn begin_execution(&self, ino: Ino) {
        self.executed.lock().unwrap().push(ino);
    }
    fn end_execution(&self, ino: Ino) {
        remove_one(&mut self.executed.lock().unwrap(), ino);
    }
    fn is_mapped(&self, ino: Ino) -> bool {
        self.mapped.lock().unwrap().contains(&ino)
    }
    fn is_mapped_directly(&self, _ino: Ino) -> bool {
        false
    }

    fn is_stored_to_directly(&self, _ino: Ino) -> bool {
        false
    }

    fn begin_mapping(&self, ino: Ino) -> Result<()> {
        self.mapped.lock().unwrap().push(ino);
        Ok(())
    }
    fn end_mapping(&self, ino: Ino) {
        remove_one(&mut self.mapped.lock().unwrap(), ino);
    }
    fn end_mappings(&self) {
        self.mapped.lock().unwrap().clear();
    }
    fn begin_opening(&self, opening: Opening, by: Requester) -> Result<Ticket> {
        let mut announced = self.announced_openings.lock().unwrap();
        let ticket = Ticket(NEXT_TICKET.fetch_add(1, Relaxed).into());
        announced.push((ticket, opening, by));
        Ok(ticket)
    }
    fn answer_opening(&self, ticket: Ticket, by: Requester) -> Option<Opening> {
        let mut announced = self.announced_openings.lock().unwrap();
        let at = announced.iter().position(|(t, _, b)| (*t, *b) == (ticket, by))?;
        let (_, opening, _) = announced.remove(at);
        self.answered.lock().unwrap().push(opening.ino);
        Some(opening)
    }
    fn end_opening(&self, ticket: Ticket) -> bool {
        let mut announced = self.announced_openings.lock().unwrap();
        let before = announced.len();
        announced.retain(|(other, ..)| *other != ticket);
        announced.len() == before
    }
    fn wait_for_openings(&self, ino: Ino, only_answered: bool) -> bool {
        assert!(only_answered, "the server would wait for itself");
        self.waited.lock().unwrap().push(ino);
        false
    }
    fn wait_for_unnamed(&self, patience: Duration, tell: &mut dyn FnMut(Ino)) -> Result<()> {
        let unnamed = self.unnamed.lock().unwrap();
        let nothing = |unnamed: &mut (Vec<Ino>, bool)| !std::mem::take(&mut unnamed.1);
        let (mut unnamed, _) = self.news.wait_timeout_while(unnamed, patience, nothing).unwrap();
        let inos = std::mem::take(&mut unnamed.0);
        drop(unnamed);
        inos.into_iter().for_each(tell);
        Ok(())
    }
    fn wake(&self) {
        self.unnamed.lock().unwrap().1 = true;
        self.news.notify_all();
    }
    fn has_company(&self) -> bool {
        self.company.load(SeqCst)
    }
    fn is_user(&self, _process: u32) -> bool {
        self.company.load(SeqCst)
    }
    fn let_kernel_keep(&self, keeps: bool) -> Result<bool> {
        let may = keeps && !self.has_company();
        self.keeps.store(may, SeqCst);
        Ok(may)
    }
    fn begin_serving(&self, device: u64) -> Result<()> {
        self.served.store(device, SeqCst);
        Ok(())
    }
    fn is_served_at(&self, device: u64) -> bool {
        self.served.load(SeqCst) == device
    }
    fn end_serving(&self) {
        self.served.store(0, SeqCst);
        self.end_mappings();
    }
}

static NEXT_TICKET: AtomicU64 = AtomicU64::new(1);

/// Describes this thread.
fn this_thread(user: u32) -> Requester {
    Requester { thread: rustix::thread::gettid().as_raw_nonzero().get() as u32, user }
}

fn remove_one(announced: &mut Vec<Ino>, ino: Ino) {
    let at = announced.iter().position(|&other| other == ino).expect("it was announced");
    announced.remove(at);
}

impl Probe {
    fn given(&self, entry: Entry) -> Entry {
        self.references.fetch_add(1, Relaxed);
        entry
    }
}

impl FileSystem for Probe {
    vfs::forward!(self => self.model; root, durability, limits, getattr, setattr, readlink,
        unlink, rmdir, rename, rename_whiteout, readdir, read, write, append, drop_privileges,
        fallocate, seek, copy_range, clone_range, sync, getxattr, setxattr, listxattr, removexattr, statfs);

    fn kernel_cache(&self) -> KernelCache {
        self.kernel_cache
    }
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        match name {
            b"panic" => panic!("asked to"),
            b"damaged" => Err(Errno::UCLEAN),
            _ => Ok(self.given(self.model.lookup(dir, name)?)),
        }
    }
    fn forget(&self, ino: Ino, refs: u64) {
        self.references.fetch_sub(refs, Relaxed);
        self.model.forget(ino, refs);
    }
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        Ok(self.given(self.model.create(caller, dir, name, node)?))
    }
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        Ok(self.given(self.model.tmpfile(caller, dir, mode, umask)?))
    }
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        Ok(self.given(self.model.link(ino, dir, name)?))
    }
    fn fsync(&self, ino: Ino) -> Result<()> {
        self.fsyncs.fetch_add(1, Relaxed);
        self.model.fsync(ino)
    }
}

impl Mappings for Probe {}

impl Openings for Probe {}

/// A mounted probe; unmounted when dropped.
pub(crate) struct Mount {
    pub(crate) dir: PathBuf,
    probe: Arc<Probe>,
    counters: Arc<OpCounters>,
    mount_point: MountPoint,
    server: Option<JoinHandle<std::io::Result<()>>>,
    _scratch: tempfile::TempDir,
}

impl Mount {
    pub(crate) fn new(durable_on_return: bool) -> Self {
        let model = if durable_on_return { Model::new() } else { Model::durable_on_sync() };
        Self::cached(Probe { model, ..Probe::default() }, Caching::EXCLUSIVE)
    }

    /// Makes a mount of a pool that other processes change, too.
    pub(crate) fn shared() -> Self {
        let shared = |server: Server, probe: Arc<Probe>| server.shared(probe);
        Self::of(Probe::default(), Caching::NONE, shared)
    }

    /// Makes a mount of a pool that others may use, but do not; with a file, a directory with one
    /// in it, and in the kernel's cache all of them.
    pub(crate) fn alone() -> Self {
        let shared = |server: Server, probe: Arc<Probe>| server.shared(probe);
        let mount = Self::of(Probe::default(), Caching::EXCLUSIVE, shared);
        mount.is_alone();
        fs::write(mount.path("file"), "content").unwrap();
        fs::create_dir(mount.path("dir")).unwrap();
        fs::write(mount.path("dir/inner"), "inner").unwrap();
        mount.seen();
        mount
    }

    fn is_alone(&self) {
        self.probe.company.store(false, SeqCst);
        until(|| self.probe.keeps.load(SeqCst));
    }

    /// Lets another process use the pool.
    fn has_company(&self) {
        self.probe.company.store(true, SeqCst);
        self.probe.wake();
        until(|| !self.probe.keeps.load(SeqCst));
    }

    /// Returns what programs see, and the number of requests that it took, except those for times.
    fn seen(&self) -> (Vec<String>, u64) {
        let asked = || {
            let ops =
                [CountedOp::Lookup, CountedOp::Read, CountedOp::ReadDir, CountedOp::ReadDirPlus];
            ops.into_iter().map(|op| self.counters.calls(op)).sum::<u64>()
        };
        let before = asked();
        let mut seen = vec![];
        for dir in ["", "dir"] {
            let mut names: Vec<_> = fs::read_dir(self.path(dir))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            seen.extend(names);
        }
        for name in ["file", "dir/inner", "absent"] {
            seen.push(match fs::metadata(self.path(name)) {
                Ok(attr) => format!("{name} {} {:o}", attr.len(), attr.mode() & 0o777),
                Err(err) => format!("{name} {:?}", err.kind()),
            });
            seen.extend(fs::read_to_string(self.path(name)));
        }
        (seen, asked() - before)
    }

    /// Makes a mount of a pool that only the mount changes.
    fn cached(probe: Probe, caching: Caching) -> Self {
        Self::of(probe, caching, |server, _| server)
    }

    fn of(
        probe: Probe,
        caching: Caching,
        set_up: impl FnOnce(Server, Arc<Probe>) -> Server,
    ) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount: run them as root");
        let scratch = tempfile::Builder::new().prefix("keepstone-").tempdir().unwrap();
        let probe = Arc::new(probe);
        let counters = Arc::new(OpCounters::default());
        let options = ServerOptions { caching, counters: counters.clone(), stats: None };
        let server = set_up(Server::new(probe.clone(), options).unwrap(), probe.clone());
        let options = MountOptions {
            source: scratch.path().display().to_string(),
            access: MountAccess::All,
            flags: MountFlags::NOSUID,
            threads: 3,
        };
        let mounted = fuse::mount(server, scratch.path(), &options).unwrap();
        let mount_point = mounted.mount_point();
        let server = Some(std::thread::spawn(|| mounted.serve()));
        let dir = scratch.path().to_owned();
        Self { dir, probe, counters, mount_point, server, _scratch: scratch }
    }

    /// Makes a mount whose kernel keeps names and asks the server to create files.
    pub(crate) fn asked_to_create() -> Self {
        let caching = Caching { skip_opens: false, ..Caching::EXCLUSIVE };
        Self::cached(Probe::default(), caching)
    }

    pub(crate) fn model(&self) -> &Model {
        &self.probe.model
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Unmounts and waits for the server.
    fn end(&mut self, grace: Duration) {
        if let Some(server) = self.server.take() {
            self.mount_point.end(grace).unwrap();
            server.join().unwrap().unwrap();
        }
    }
}

impl Drop for Mount {
    /// Files that a test has closed or unmapped may be in use for some moments.
    fn drop(&mut self) {
        self.end(Duration::from_secs(10));
    }
}

#[test]
fn panics_end_a_request_and_not_the_mount() {
    let mount = Mount::new(true);
    for _ in 0..10 {
        let failed = fs::metadata(mount.path("panic")).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(mount.counters.snapshot().panics, 10);
    fs::write(mount.path("file"), "content").unwrap();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "content");
}

#[test]
fn unknown_commands_are_refused() {
    let mount = Mount::shared();
    let file = fs::File::create_new(mount.path("file")).unwrap();
    for command in [3 << 30 | 32 << 16 | 0x4b01, 1 << 30 | 8 << 16] {
        let mut bytes = [0_u8; 32];
        // SAFETY: the command contains the number of bytes, which are at most as many.
        let told = unsafe { libc::ioctl(file.as_raw_fd(), command, &mut bytes) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((told, errno), (-1, Some(libc::ENOTTY)), "{command:x}");
    }
}

#[test]
fn errno_of_the_engine_reaches_the_program() {
    let mount = Mount::new(true);
    let failed = fs::metadata(mount.path("damaged")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EUCLEAN));
}

#[test]
fn fsync_reaches_an_engine_that_needs_it() {
    for (durable_on_return, expected) in [(false, 5), (true, 0)] {
        let mount = Mount::new(durable_on_return);
        let mut file = fs::File::create(mount.path("file")).unwrap();
        for _ in 0..5 {
            file.write_all(b"x").unwrap();
            file.sync_all().unwrap();
        }
        assert_eq!(mount.probe.fsyncs.load(Relaxed), expected);
        // After one answer the kernel does not ask again.
        let asked = if durable_on_return { 1 } else { 5 };
        assert_eq!(mount.counters.calls(CountedOp::FSync), asked);
    }
}

/// An engine has limits of its own, and the mount applies them.
#[test]
fn limits_are_those_of_the_engine() {
    const SMALL: Limits = Limits { name: 20, file_size: 10_000, ..Limits::MAX };
    let model = Model::with_limits(&SMALL);
    let mount = Mount::cached(Probe { model, ..Probe::default() }, Caching::EXCLUSIVE);
    assert_eq!(rustix::fs::statvfs(&mount.dir).unwrap().f_namemax, 20);
    let file = fs::File::create(mount.path(&"n".repeat(20))).unwrap();
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    let long = fs::File::create(mount.path(&"n".repeat(21))).map(drop);
    assert_eq!(errno(long), Some(libc::ENAMETOOLONG));
    file.set_len(10_000).unwrap();
    assert_eq!(errno(file.set_len(10_001)), Some(libc::EFBIG));
    assert_eq!(errno(file.write_all_at(b"x", 10_000)), Some(libc::EFBIG));
}

/// The kernel asks again for whatever changes by itself.
#[test]
fn the_kernel_keeps_what_the_engine_allows() {
    let now = Duration::ZERO;
    for (kernel_cache, keeps_names, keeps_pages) in
        [(KernelCache::WhileAlone, true, true), (KernelCache::UpTo(now), false, false)]
    {
        let mount = Mount::cached(Probe { kernel_cache, ..Probe::default() }, Caching::EXCLUSIVE);
        fs::write(mount.path("file"), "content").unwrap();
        let asked = |op| mount.counters.calls(op);
        let before = (asked(CountedOp::Lookup), asked(CountedOp::Read));
        for _ in 0..10 {
            assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
        }
        let (lookups, reads) =
            (asked(CountedOp::Lookup) - before.0, asked(CountedOp::Read) - before.1);
        assert_eq!(lookups < 10, keeps_names, "{lookups} lookups");
        assert_eq!(reads < 10, keeps_pages, "{reads} reads");
    }
}

/// In a pool that others may use, the kernel keeps everything while they do not, and nothing of it
/// when they have come.
#[test]
fn the_kernel_keeps_what_it_is_told_until_somebody_comes() {
    let mount = Mount::alone();
    let model = &mount.probe.model;
    let old = [
        "dir",
        "file",
        "inner",
        "file 7 644",
        "content",
        "dir/inner 5 644",
        "inner",
        "absent NotFound",
    ];
    assert_eq!(mount.seen(), (old.map(String::from).to_vec(), 0));
    let open = fs::File::open(mount.path("file")).unwrap();

    mount.has_company();
    let lookup = |dir, name| {
        let entry = model.lookup(dir, name).unwrap();
        model.forget(entry.ino, 1);
        entry.ino
    };
    let (file, dir) = (lookup(vfs::ROOT, b"file"), lookup(vfs::ROOT, b"dir"));
    // Others leave a file to the kernel that it may map; they change attributes, names and other
    // files.
    let perm = vfs::SetAttr { perm: Some(0o600), ..Default::default() };
    model.setattr(&Caller::ROOT, file, &perm).unwrap();
    model.rename((dir, b"inner"), (vfs::ROOT, b"absent"), RenameFlags::empty()).unwrap();
    model.write(lookup(vfs::ROOT, b"absent"), 0, b"OUTER!").unwrap();
    let new = [
        "absent",
        "dir",
        "file",
        "file 7 600",
        "content",
        "dir/inner NotFound",
        "absent 6 644",
        "OUTER!",
    ];
    let (seen, asked) = mount.seen();
    assert_eq!(seen, new);
    assert!(asked > 5, "{asked}");
    assert!(mount.seen().1 > 5, "it keeps what it is told");
    assert_eq!(open.metadata().unwrap().mode() & 0o777, 0o600);

    // Pages left from that time are not the file's when the mount is alone again.
    assert_eq!(fs::read_to_string(mount.path("absent")).unwrap(), "OUTER!");
    model.write(lookup(vfs::ROOT, b"absent"), 0, b"INNER?").unwrap();
    mount.is_alone();
    assert_eq!(fs::read_to_string(mount.path("absent")).unwrap(), "INNER?");
    mount.seen();
    assert_eq!(mount.seen().1, 0);
}

/// A program keeps its working directory when the kernel forgets, and mounts stay mounted.
#[test]
fn directories_in_use_outlast_what_the_kernel_forgets() {
    let mount = Mount::alone();
    let within = mount.path("dir");
    let status =
        Command::new("mount").args(["-t", "tmpfs", "keepstone-test"]).arg(&within).status();
    assert!(status.unwrap().success());
    fs::create_dir(mount.path("place")).unwrap();
    let place = fs::File::open(mount.path("place")).unwrap();
    fs::write(within.join("there"), "").unwrap();
    for _ in 0..2 {
        mount.has_company();
        assert!(fs::metadata(mount.path("place")).is_ok());
        assert!(within.join("there").exists(), "what was mounted is gone");
        let shown = fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd())).unwrap();
        assert_eq!(shown, mount.path("place"));
        mount.is_alone();
    }
    assert!(Command::new("umount").arg(&within).status().unwrap().success());
}

/// vfs-C6: the kernel may hold writes back only if nothing is promised before a sync.
#[test]
fn writes_are_kept_back_only_where_they_are_durable_on_sync() {
    let writeback = Caching { writeback: true, ..Caching::EXCLUSIVE };
    let options = |caching| ServerOptions { caching, counters: Arc::default(), stats: None };
    let refused = |model: Model, caching| Server::new(Arc::new(model), options(caching)).is_err();
    assert!(refused(Model::new(), writeback));
    assert!(!refused(Model::new(), Caching::EXCLUSIVE));
    assert!(refused(Model::durable_on_sync(), Caching { writeback: true, ..Caching::NONE }));

    let model = Model::durable_on_sync();
    let mount = Mount::cached(Probe { model, ..Probe::default() }, writeback);
    let mut file = fs::File::create(mount.path("file")).unwrap();
    for _ in 0..1000 {
        file.write_all(b"0123456789").unwrap();
    }
    file.sync_all().unwrap();
    let writes = mount.counters.calls(CountedOp::Write);
    assert!((1..500).contains(&writes), "1000 calls became {writes} writes");
    let left = mount.probe.model.after_crash();
    let left = left.lookup(vfs::ROOT, b"file").unwrap();
    assert_eq!(left.size, 10_000);
    // Appended at the end of the file, though only the kernel knew it.
    let mut end = fs::OpenOptions::new().append(true).open(mount.path("file")).unwrap();
    end.write_all(b"end").unwrap();
    drop((file, end));
    assert!(fs::read(mount.path("file")).unwrap().ends_with(b"789end"));
    assert_eq!(mount.probe.model.lookup(vfs::ROOT, b"file").unwrap().size, 10_003);
}

/// vfs-C4: the kernel forgets exactly as many references as it was given.
#[test]
fn references_balance() {
    let mount = Mount::new(true);
    for i in 0..300 {
        fs::write(mount.path(&format!("file{i}")), "").unwrap();
    }
    fs::create_dir_all(mount.path("a/b/c")).unwrap();
    fs::hard_link(mount.path("file0"), mount.path("a/link")).unwrap();
    // Listings with attributes give references too; those that do not fit are taken back.
    for _ in 0..3 {
        drop_caches();
        let sizes = fs::read_dir(&mount.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.count(), 301);
    }
    assert!(mount.counters.calls(CountedOp::ReadDirPlus) > 0);
    assert!(mount.probe.references.load(Relaxed) > 300);
    for i in 0..300 {
        fs::remove_file(mount.path(&format!("file{i}"))).unwrap();
    }
    fs::remove_file(mount.path("a/link")).unwrap();
    fs::remove_dir_all(mount.path("a")).unwrap();
    until(|| {
        drop_caches();
        mount.probe.references.load(Relaxed) == 0
    });
    assert_eq!(mount.probe.statfs().inodes_free, Model::new().statfs().inodes_free);
}

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

#[test]
fn a_busy_mount_is_cut_off_after_its_grace() {
    let mut mount = Mount::new(true);
    let file = fs::File::create(mount.path("file")).unwrap();
    mount.end(Duration::from_millis(100));
    assert!(!is_mounted(&mount.dir));
    let failed = (&file).write_all(b"x").unwrap_err();
    assert!(
        matches!(failed.kind(), ErrorKind::NotConnected | ErrorKind::ConnectionAborted),
        "{failed}"
    );
}

#[test]
fn an_idle_mount_ends_at_once() {
    let mut mount = Mount::new(true);
    fs::write(mount.path("file"), "content").unwrap();
    mount.end(Duration::from_secs(60));
    assert!(!is_mounted(&mount.dir));
    assert_eq!(fs::read_dir(&mount.dir).unwrap().count(), 0);
}

#[test]
fn an_alias_opens_what_has_no_path_any_more() {
    let mount = Mount::shared();
    fs::write(mount.path("file"), "content").unwrap();
    let entry = mount.probe.lookup(vfs::ROOT, b"file").unwrap();
    let announce = |generation, as_new, by| {
        let opening = Opening { ino: entry.ino, generation, as_new };
        mount.path(&mount.probe.begin_opening(opening, by).unwrap().root_name())
    };
    let me = this_thread(0);
    let alias = || announce(entry.generation, false, me);
    let name = alias();
    assert_eq!(fs::read_to_string(&name).unwrap(), "content");
    assert_eq!(fs::read(&name).unwrap_err().kind(), ErrorKind::NotFound, "once");
    fs::remove_file(mount.path("file")).unwrap();
    let opened = fs::File::open(alias()).unwrap();
    assert_eq!(std::io::read_to_string(&opened).unwrap(), "content");
    // The name that the kernel shows opens nothing.
    let shown = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    assert!(fs::read(shown).is_err());
    let wrong = [
        announce(entry.generation + 1, false, me),
        announce(entry.generation, true, me),
        announce(entry.generation, false, Requester { thread: me.thread + 1, ..me }),
        announce(entry.generation, false, Requester { user: 65534, ..me }),
        mount.path(&Ticket(u128::MAX).root_name()),
    ];
    for wrong in wrong {
        assert_eq!(fs::read(wrong).unwrap_err().kind(), ErrorKind::NotFound);
    }
    // Another thread cannot use what this one has announced, and does not use it up.
    let name = alias();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(fs::read(&name).unwrap_err().kind(), ErrorKind::NotFound));
    });
    assert_eq!(fs::read_to_string(&name).unwrap(), "content");
    drop(opened);
    assert_eq!(fs::read_dir(&mount.dir).unwrap().count(), 0);
    mount.probe.forget(entry.ino, 1);
}

/// Another writer has moved the end of the file since the kernel looked.
#[test]
fn appends_go_to_the_end_as_it_is() {
    let mount = Mount::shared();
    let mut log = fs::File::options().create(true).append(true).open(mount.path("log")).unwrap();
    log.write_all(b"one ").unwrap();
    let ino = mount.probe.model.lookup(vfs::ROOT, b"log").unwrap().ino;
    mount.probe.append(ino, b"two ").unwrap();
    log.write_all(b"three").unwrap();
    let mut content = [0; 20];
    let len = mount.probe.read(ino, 0, &mut content).unwrap();
    assert_eq!(&content[..len], b"one two three");
}

/// Waits for what the kernel reports later: it does not wait when it closes a file, and an unmount
/// overtakes that.
fn until(done: impl Fn() -> bool) {
    let late = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < late, "it never happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_mounted(dir: &Path) -> bool {
    fuse::mount_at(dir).unwrap().is_some()
}
