//! The processes that use a mount or a pool.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use os::ending::is_ending;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::locks::LockFiles;
use crate::pool;
use crate::shown;

/// Most users that a message names.
const USERS_MAX: usize = 5;

/// Returns whether a process is stopped.
pub fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Describes the processes that have a lock on `pool`, with a remedy for each; for servers, also
/// the mount point. Processes in other PID namespaces are not visible.
pub fn holders(pool: &Path) -> Vec<String> {
    pids(pool).map(|pid| holder(pid, pool).what).take(USERS_MAX).collect()
}

/// Describes the process among [`holders`] that serves a mount of the pool, unless it is ending.
pub fn server(pool: &Path) -> Option<String> {
    let living = pids(pool).filter(|pid| !is_ending(*pid));
    living.map(|pid| holder(pid, pool)).find(|holder| holder.serves).map(|holder| holder.what)
}

/// Returns whether a process that has a lock on `file` is ending. A killed process keeps the lock
/// until the kernel has released its memory.
pub fn is_about_to_be_free(file: &Path) -> bool {
    pids(file).any(is_ending)
}

/// Describes the processes that have a lock on `pool` and are stopped. Other processes may wait for
/// what they hold.
pub fn stopped(pool: &Path) -> Vec<String> {
    let show = |pid: u32| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let uid = fs::metadata(&process).map_or(0, |found| found.uid());
        format!("{} (pid {pid}, user {uid})", name(&process))
    };
    pids(pool).filter(|pid| is_stopped(*pid)).map(show).take(USERS_MAX).collect()
}

/// A process that has a pool locked.
struct Holder {
    /// Whether it serves a mount of it.
    serves: bool,
    /// The process, and a remedy.
    what: String,
}

fn pids(file: &Path) -> impl Iterator<Item = u32> + use<> {
    let pids: BTreeSet<u32> = LockFiles::read().on(file).into_iter().map(|lock| lock.pid).collect();
    pids.into_iter().filter(|pid| *pid > 0)
}

fn holder(pid: u32, pool: &Path) -> Holder {
    let pool = pool.canonicalize().unwrap_or_else(|_| pool.to_owned());
    let process = PathBuf::from(format!("/proc/{pid}"));
    let who = format!("{} (pid {pid})", name(&process));
    let table = fs::read(process.join("mountinfo")).unwrap_or_default();
    let mut mounts = fuse::mounts_in(&table).into_iter().rev();
    let is_of_pool = |mount: &fuse::MountEntry| pool::of_source(mount.source.clone()) == pool;
    let mounted = mounts.find(|mount| mount.claims_keepstone() && is_of_pool(mount));
    let (Some(mount), "keepstone") = (mounted, &*name(&process)) else {
        return Holder { serves: false, what: format!("{who}; end it, then try again") };
    };
    let dir = shown::name(&mount.dir.to_string_lossy());
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let there = namespace(&process);
    let what = if there.is_some() && there != namespace(Path::new("/proc/self")) {
        format!(
            "{who}, mounted on {dir} in another mount namespace; unmount it there \
             (`nsenter --mount --target {pid} keepstone umount {dir}`), then try again"
        )
    } else {
        format!("{who}, mounted on {dir}; unmount it (`keepstone umount {dir}`), then try again")
    };
    // The server of a branch or snapshot does not serve the pool's own tree.
    Holder { serves: mount.source == pool, what }
}

/// Returns the name of a process in `/proc`.
fn name(process: &Path) -> String {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    shown::name(String::from_utf8_lossy(&name).trim())
}

/// A loop device.
pub struct LoopDevice {
    /// Its path.
    pub name: String,
    /// The path of its backing file.
    file: String,
}

impl fmt::Display for LoopDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the loop device {} (backing file {})", self.name, shown::name(&self.file))
    }
}

/// Finds loop devices whose backing file lies on the mount at `dir`.
pub fn loop_devices(dir: &Path) -> Vec<LoopDevice> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let read = |device: fs::DirEntry| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        // Includes backing files that have been unlinked.
        let file = file.trim_end_matches('\n').to_owned();
        let name = format!("/dev/{}", device.file_name().to_string_lossy());
        Path::new(&file).starts_with(dir).then_some(LoopDevice { name, file })
    };
    devices.filter_map(read).take(USERS_MAX).collect()
}

/// Finds processes with a working directory, an open file or a mapping on the mount at `dir`, as
/// `name (pid)`. Ignores uses of a mount that lies below it at the same path, and processes that
/// this user may not inspect.
pub fn users(dir: &Path) -> Vec<String> {
    let (Ok(processes), Some(mount)) = (fs::read_dir("/proc"), mount_of(dir)) else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter(|process| process.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter(|process| uses(&process.path(), &|link: &Path| mount_of(link) == Some(mount)))
        .map(|process| {
            let pid = process.file_name();
            format!("{} (pid {})", name(&process.path()), pid.to_string_lossy())
        })
        .take(USERS_MAX)
        .collect()
}

/// Finds processes with a working directory or an open file below `dir`, an absolute path, as
/// `name (pid)`. Ignores processes that this user may not inspect.
pub fn users_below(dir: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lies_below = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    processes
        .filter(|process| process.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter(|process| uses(&process.path(), &lies_below))
        .map(|process| {
            let pid = process.file_name();
            format!("{} (pid {})", name(&process.path()), pid.to_string_lossy())
        })
        .take(USERS_MAX)
        .collect()
}

/// Returns the ID of the mount that a path leads to, without asking its server.
fn mount_of(path: &Path) -> Option<u64> {
    let how = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, how, StatxFlags::MNT_ID).ok()?;
    StatxFlags::from_bits_retain(found.stx_mask)
        .contains(StatxFlags::MNT_ID)
        .then_some(found.stx_mnt_id)
}

/// Returns whether a working directory, an open file or a mapping of a process leads somewhere.
fn uses(process: &Path, leads_there: &dyn Fn(&Path) -> bool) -> bool {
    let any_in = |list: &str| {
        let links = fs::read_dir(process.join(list)).into_iter().flatten().flatten();
        links.map(|link| link.path()).any(|link| leads_there(&link))
    };
    ["cwd", "root", "exe"].iter().any(|link| leads_there(&process.join(link)))
        || any_in("fd")
        || any_in("map_files")
}
