//! Mounting, serving and unmounting.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsPickFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_reconfigure, fspick,
};

pub use rustix::mount::MountFlags;

use crate::apart::call_apart;
use crate::expire::Expirer;
use crate::server::{Server, Shared};
use crate::table::{MountEntry, mount_at, mounts, mounts_within};
use crate::workers::Workers;
use mounts::FS_TYPE;

/// Time within which a server has to show that it lives.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The device from which requests are read.
const DEVICE: &str = "/dev/fuse";

/// [`FS_TYPE`] without `fuse.`.
const SUBTYPE: &str = "keepstone";

/// The users that may use the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountAccess {
    /// The user that mounts it.
    Owner,
    /// Every user, as owner, group, mode and ACL of each file allow (`allow_other`).
    All,
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source in `/proc/mounts`: the pool.
    pub source: String,
    /// Users that may use it.
    pub access: MountAccess,
    /// Flags of `mount(2)`: read-only, nosuid, nodev, noexec, …
    pub flags: MountFlags,
    /// Threads that answer requests at a time, not counting those whose requests wait.
    pub threads: usize,
}

/// Flags that the table of mounts shows for each mount, and their names there.
pub(crate) const SHOWN: [(MountFlags, &str); 7] = [
    (MountFlags::RDONLY, "ro"),
    (MountFlags::NOSUID, "nosuid"),
    (MountFlags::NODEV, "nodev"),
    (MountFlags::NOEXEC, "noexec"),
    (MountFlags::NOSYMFOLLOW, "nosymfollow"),
    (MountFlags::NOATIME, "noatime"),
    (MountFlags::NODIRATIME, "nodiratime"),
];

impl MountOptions {
    /// Returns the name of a requested flag that a mount lacks.
    fn missing_in(&self, entry: &MountEntry) -> Option<&'static str> {
        let asked = SHOWN.iter().filter(|(flag, _)| self.flags.contains(*flag));
        asked.map(|(_, name)| *name).find(|name| !entry.has_option(name))
    }
}

/// A mount that is not served yet: its requests wait.
pub struct Mounted {
    session: Session<Server>,
    workers: Arc<Workers>,
    shared: Option<Arc<Shared>>,
    mount_point: MountPoint,
}

/// The place and the device of a mount: another mount may take its place later.
#[derive(Clone, Debug)]
pub struct MountPoint {
    dir: PathBuf,
    device: (u32, u32),
}

/// Mounts `server` on `dir`. When it returns, programs can use the mount; their requests wait for
/// [`Mounted::serve`].
///
/// A Keepstone mount there whose server is dead is replaced: in one step if the kernel can (Linux
/// 6.5), so that no process sees the directory below meanwhile.
pub fn mount(mut server: Server, dir: &Path, options: &MountOptions) -> io::Result<Mounted> {
    Workers::prepare_allocator();
    let workers = Workers::new(options.threads);
    server.workers = workers.clone();
    let options = &MountOptions { threads: workers.threads(), ..options.clone() };
    // A dead mount does not resolve paths.
    let dir = if is_stale(dir)? { dir.to_owned() } else { dir.canonicalize()? };
    let root_mode = server.root_mode()?;
    let (shared, notifier) = (server.shared.clone(), server.notifier.clone());
    let keeps = !server.options.caching.ttl.is_zero();
    let is_dead = clear_dead(&dir)?;
    let (session, device) = match is_dead {
        true => replace(server, &dir, root_mode, options)?,
        false => attach(server, &dir, root_mode, options)?,
    };
    let _ = notifier.set(session.notifier());
    if let Some(shared) = shared.as_ref().filter(|_| keeps)
        && let Some(expirer) = device.ok().and_then(Expirer::new)
    {
        shared.keeping.begin(expirer);
    }
    let entry = mount_at(&dir)?.ok_or_else(|| io::Error::other("the new mount has vanished"))?;
    if let Some(flag) = options.missing_in(&entry) {
        let _ = unmount(&dir, true);
        let what = format!("the kernel does not keep the mount option `{flag}`; leave it out");
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    if let Some(shared) = &shared {
        shared.events.begin_serving(rustix::fs::makedev(entry.device.0, entry.device.1))?;
    }
    Ok(Mounted { session, workers, shared, mount_point: MountPoint { dir, device: entry.device } })
}

impl Mounted {
    /// Returns the place of the mount.
    pub fn mount_point(&self) -> MountPoint {
        self.mount_point.clone()
    }

    /// Answers requests until the file system is unmounted, then drops the server.
    pub fn serve(self) -> io::Result<()> {
        let Self { session, workers, shared, .. } = self;
        let Some(shared) = shared else { return run(session, &workers) };
        let notifier = session.notifier();
        let result = std::thread::scope(|scope| {
            let Shared { fs, events, names, keeping, .. } = &*shared;
            scope.spawn(move || names.tell(&**fs, (&**events, keeping), &notifier));
            let result = run(session, &workers);
            names.end(&**events);
            result
        });
        // The kernel does not close files that are still open.
        shared.events.end_serving();
        result
    }
}

/// Answers requests until the connection ends, then releases all threads. A connection that was cut
/// ([`MountPoint::end`]) counts as success; reading the next request then fails with
/// `ECONNABORTED`.
fn run<S: fuser::Filesystem>(session: Session<S>, workers: &Workers) -> io::Result<()> {
    let result = std::thread::scope(|scope| {
        scope.spawn(|| workers.monitor());
        let result = session.run();
        workers.end_all();
        result
    });
    match result {
        Err(err) if err.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
        result => result,
    }
}

impl MountPoint {
    /// Sets flags of the mount, if it is still there. Those of its file system stay as they are.
    pub fn add_flags(&self, flags: MountFlags) -> io::Result<()> {
        let Some(entry) = self.entry()? else { return Ok(()) };
        let mut had = entry.flags();
        had.set(MountFlags::RELATIME, entry.has_option("relatime"));
        Ok(rustix::mount::mount_remount(&self.dir, had | flags | MountFlags::BIND, "")?)
    }

    /// Returns the line of the mount, if it is still there.
    fn entry(&self) -> io::Result<Option<MountEntry>> {
        Ok(mount_at(&self.dir)?.filter(|entry| entry.device == self.device))
    }

    /// Makes the kernel forget names and inodes that no process uses, if this process may: it
    /// prunes them when a file system is configured again. Nothing is configured. The kernel writes
    /// back pages before, so no thread that answers its requests may wait for this.
    ///
    /// # Errors
    /// `EPERM` for other users than root.
    pub fn forget_unused(&self) -> io::Result<()> {
        let picked = fspick(CWD, &self.dir, FsPickFlags::FSPICK_CLOEXEC)?;
        match self.entry()? {
            Some(_) => Ok(fsconfig_reconfigure(&picked)?),
            None => Ok(()),
        }
    }

    /// Returns the major and minor number of the mounted file system's device.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// Unmounts, waiting up to `grace` for programs to close their files. Then it writes back what
    /// programs stored through mappings, and cuts the connection. Requests under way fail with
    /// `ECONNABORTED`, later calls on open files with `ENOTCONN`.
    ///
    /// # Errors
    /// As `umount(2)`, except `EBUSY`. If another process has unmounted it, that is success.
    pub fn end(&self, grace: Duration) -> io::Result<()> {
        let deadline = Instant::now() + grace;
        loop {
            if self.entry()?.is_none() {
                // Another process has unmounted or lazily detached it; it ends when its users do.
                return Ok(());
            }
            match unmount(&self.dir, false) {
                Err(err) if is_busy(&err) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(err) if is_busy(&err) => break,
                done => return done,
            }
        }
        tracing::warn!("{} is still in use; cutting the connection", self.dir.display());
        if let Ok(root) = rustix::fs::open(&self.dir, OFlags::RDONLY, Mode::empty()) {
            let _ = rustix::fs::syncfs(&root);
        }
        match rustix::mount::unmount(&self.dir, UnmountFlags::FORCE) {
            Ok(()) => Ok(()),
            // FORCE has cut the connection all the same, so the mount has to be hidden.
            Err(_) => self.hide(),
        }
    }

    /// Removes a mount whose connection is cut from the tree. While the kernel ends the requests
    /// that were under way, it returns their error to processes that walk to the mount, and
    /// sometimes to this one.
    fn hide(&self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match unmount(&self.dir, true) {
                Err(err) if err.kind() == io::ErrorKind::ConnectionAborted && tries < 100 => {
                    if self.entry()?.is_none() {
                        return Ok(());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    tries += 1;
                }
                done => return done,
            }
        }
    }
}

fn is_busy(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::ResourceBusy
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.acl = match options.access {
        MountAccess::Owner => SessionACL::Owner,
        MountAccess::All => SessionACL::All,
    };
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    config
}

/// A mount, and the device from which its requests are read.
type Attached<S> = (Session<S>, io::Result<OwnedFd>);

/// Mounts and completes the protocol's handshake.
///
/// Root calls `mount(2)` itself, because `fuser` would not pass the subtype on; other users go
/// through `fusermount3`.
pub(crate) fn attach<S: fuser::Filesystem>(
    server: S,
    dir: &Path,
    root_mode: u32,
    options: &MountOptions,
) -> io::Result<Attached<S>> {
    let mut config = config(options);
    if !rustix::process::geteuid().is_root() {
        config.mount_options = fusermount_options(options);
        let before = open_devices()?;
        // The message of fusermount3 ends with a newline.
        let trimmed =
            |err: io::Error| io::Error::new(err.kind(), err.to_string().trim().to_owned());
        let session = Session::new(server, dir, &config).map_err(trimmed)?;
        return Ok((session, new_device(&before)));
    }
    let device = mount_as_root(dir, root_mode, options)?;
    let again = device.try_clone();
    let acl = config.acl;
    let session = Session::from_fd(server, device, acl, config).inspect_err(|_| {
        let _ = unmount(dir, true);
    })?;
    Ok((session, again))
}

/// Returns descriptors of this process that are FUSE devices.
fn open_devices() -> io::Result<Vec<i32>> {
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        if std::fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(DEVICE)) {
            found.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
    }
    Ok(found)
}

/// Returns a duplicate of the device that was not open `before`: `fuser` does not expose its own.
fn new_device(before: &[i32]) -> io::Result<OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let now = open_devices()?;
    let mut new = now.into_iter().filter(|fd| !before.contains(fd));
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    let fd = new.next().ok_or(Errno::NODEV)?;
    Ok(pidfd_getfd(&own, fd, PidfdGetfdFlags::empty())?)
}

/// Unmounts dead mounts at `dir` that lie on other Keepstone mounts; returns whether a dead one is
/// on top then.
fn clear_dead(dir: &Path) -> io::Result<bool> {
    while is_stale(dir)? {
        let is_ours = |entry: &MountEntry| entry.dir == dir && entry.claims_keepstone();
        if mounts()?.iter().filter(|entry| is_ours(entry)).count() == 1 {
            return Ok(true);
        }
        unmount(dir, true)?;
    }
    Ok(false)
}

/// As [`attach`], but replaces a dead mount.
fn replace<S: fuser::Filesystem>(
    server: S,
    dir: &Path,
    root_mode: u32,
    options: &MountOptions,
) -> io::Result<Attached<S>> {
    let new = match rustix::process::geteuid().is_root() {
        true => detached_mount(root_mode, options),
        false => Err(Errno::PERM.into()),
    };
    let Ok((device, new)) = new else {
        unmount(dir, true)?;
        return attach(server, dir, root_mode, options);
    };
    let config = config(options);
    let again = device.try_clone();
    let session = Session::from_fd(server, device, config.acl, config)?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    if rustix::mount::move_mount(&new, "", rustix::fs::CWD, dir, how).is_ok() {
        unmount(dir, true)?;
    } else {
        // Before Linux 6.5: two steps, without a pause between them.
        unmount(dir, true)?;
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&new, "", rustix::fs::CWD, dir, how)?;
    }
    Ok((session, again))
}

/// Makes a mount that is not attached to the tree yet, and the device from which its requests are
/// read.
fn detached_mount(root_mode: u32, options: &MountOptions) -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::mount::*;
    let device = open_device()?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| fsconfig_set_string(&context, key, value);
    set("source", &options.source)?;
    set("subtype", SUBTYPE)?;
    set("fd", &device.as_raw_fd().to_string())?;
    set("rootmode", &format!("{root_mode:o}"))?;
    set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getegid().as_raw().to_string())?;
    fsconfig_set_flag(&context, "default_permissions")?;
    if options.access == MountAccess::All {
        fsconfig_set_flag(&context, "allow_other")?;
    }
    let of_file_system = [
        (MountFlags::RDONLY, "ro"),
        (MountFlags::SYNCHRONOUS, "sync"),
        (MountFlags::DIRSYNC, "dirsync"),
        (MountFlags::LAZYTIME, "lazytime"),
    ];
    for (_, key) in of_file_system.iter().filter(|(flag, _)| options.flags.contains(*flag)) {
        fsconfig_set_flag(&context, *key)?;
    }
    fsconfig_create(&context)?;
    let of_mount = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (MountFlags::NODIRATIME, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (MountFlags::NOSYMFOLLOW, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
        (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (MountFlags::STRICTATIME, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
    ];
    let set = of_mount.into_iter().filter(|(flag, _)| options.flags.contains(*flag));
    let attributes = set.fold(MountAttrFlags::empty(), |all, (_, attribute)| all | attribute);
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok((device, mount))
}

fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Mounts by `mount(2)`; returns the device that serves it.
fn mount_as_root(dir: &Path, root_mode: u32, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let mut data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.access == MountAccess::All {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("no NUL in it");
    rustix::mount::mount(&options.source, dir, FS_TYPE, options.flags, &*data)?;
    Ok(device)
}

/// Returns options for `fusermount3`, which refuses options that it does not know.
fn fusermount_options(options: &MountOptions) -> Vec<MountOption> {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = vec![
        MountOption::FSName(source),
        MountOption::Subtype(SUBTYPE.into()),
        MountOption::DefaultPermissions,
    ];
    let flags = [
        (MountFlags::RDONLY, MountOption::RO),
        (MountFlags::NOSUID, MountOption::NoSuid),
        (MountFlags::NODEV, MountOption::NoDev),
        (MountFlags::NOEXEC, MountOption::NoExec),
        (MountFlags::NOATIME, MountOption::NoAtime),
        (MountFlags::SYNCHRONOUS, MountOption::Sync),
        (MountFlags::DIRSYNC, MountOption::DirSync),
        (MountFlags::NODIRATIME, MountOption::CUSTOM("nodiratime".into())),
        (MountFlags::STRICTATIME, MountOption::CUSTOM("strictatime".into())),
        (MountFlags::LAZYTIME, MountOption::CUSTOM("lazytime".into())),
        (MountFlags::NOSYMFOLLOW, MountOption::CUSTOM("nosymfollow".into())),
    ];
    let set = flags.into_iter().filter(|(flag, _)| options.flags.contains(*flag));
    list.extend(set.map(|(_, option)| option));
    list
}

/// Changes the flags of the mount at `dir`, read-only among them. The kernel enforces them without
/// asking the server.
pub fn remount(dir: &Path, flags: MountFlags) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(dir, flags, "")?)
}

/// Unmounts `dir`. `lazy`: hides it now, ends it when its last user is gone. Otherwise fails with
/// `EBUSY` while it is in use.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let how = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, how | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => unmount_as_user(dir, lazy),
        result => Ok(result?),
    }
}

/// Unmounts through `fusermount3`, whose message is the error; its kind is `ResourceBusy` if the
/// mount is in use.
fn unmount_as_user(dir: &Path, lazy: bool) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if let Some(user) = mount_at(dir)?.and_then(|entry| entry.user).filter(|user| *user != own) {
        let why = format!("user {user} has mounted it; only that user and root may unmount it");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir);
    let output = command.output().map_err(|err| {
        io::Error::new(err.kind(), format!("cannot run fusermount3 (package fuse3): {err}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = message.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, message))
}

/// Whether a Keepstone mount stands at `dir` whose server is dead (killed, for example): every use
/// of it gives `ENOTCONN`.
pub fn is_stale(dir: &Path) -> io::Result<bool> {
    if !mount_at(dir)?.is_some_and(|entry| entry.is_keepstone()) {
        return Ok(false);
    }
    let path = CString::new(dir.as_os_str().as_bytes())?;
    // The kernel may answer `stat` from its cache; `statfs` always asks the server. A server that
    // does not answer in time lives.
    let asked = call_apart(ANSWER_WITHIN, 0, |_| rustix::fs::statfs(&*path).map(|_| 0))?;
    Ok(matches!(asked, Some(Err(errno)) if is_of_dead_server(errno)))
}

/// Whether this error of a call on a mount means that its server is dead.
pub fn is_of_dead_server(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Opens the directory below any mounts at `dir`, an absolute path, for its path. Root only.
///
/// # Errors
/// `EPERM` for other users; `Busy` if there are mounts within `dir` as well: these would not be
/// seen.
pub fn open_below(dir: &Path) -> io::Result<OwnedFd> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    if mounts_within(dir)?.next().is_some() {
        let what = format!("{}: something is mounted within it", dir.display());
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
    }
    let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    // A copy of the mount without the mounts on it.
    let bare = rustix::mount::open_tree(rustix::fs::CWD, parent, how)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&bare, name, flags, Mode::empty())?)
}
