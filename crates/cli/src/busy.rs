//! Who uses a mount, and who a pool.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Users named at most.
const USERS_MAX: usize = 5;

/// The processes that have a lock on `pool`, with what to do about each: servers with the directory where
/// they have it mounted. Those in other PID namespaces are not seen.
pub fn holders(pool: &Path) -> Vec<String> {
    let pids: BTreeSet<u32> = locks(pool).into_iter().map(|lock| lock.pid).collect();
    let pool = pool.canonicalize().unwrap_or_else(|_| pool.to_owned());
    let pids = pids.into_iter().filter(|pid| *pid > 0);
    pids.map(|pid| holder(pid, &pool)).take(USERS_MAX).collect()
}

/// Whether those who have `pool` open would share it; `None` where nobody has, as far as can be seen.
pub fn is_shared(pool: &Path) -> Option<bool> {
    let locks = locks(pool);
    (!locks.is_empty()).then(|| locks.iter().all(|lock| !lock.exclusive))
}

/// An `flock`.
struct Lock {
    exclusive: bool,
    /// 0 in another PID namespace.
    pid: u32,
}

/// Those on `pool`.
fn locks(pool: &Path) -> Vec<Lock> {
    let Ok(stat) = fs::metadata(pool) else { return Vec::new() };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let file = format!("{:02x}:{:02x}:{}", major(stat.dev()), minor(stat.dev()), stat.ino());
    locks.lines().filter_map(|line| lock(line, &file)).collect()
}

/// The `flock` that a line of `/proc/locks` tells of, if it is on `file`:
/// `1: FLOCK  ADVISORY  WRITE 4711 00:19:42 0 EOF`.
fn lock(line: &str, file: &str) -> Option<Lock> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let is_flock = fields.next()? == "FLOCK";
    let exclusive = fields.nth(1)? == "WRITE";
    let pid = fields.next()?.parse().unwrap_or(0);
    (is_flock && fields.next()? == file).then_some(Lock { exclusive, pid })
}

fn holder(pid: u32, pool: &Path) -> String {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let who = format!("{} (pid {pid})", name(&process));
    let table = fs::read(process.join("mountinfo")).unwrap_or_default();
    let mut mounts = fuse::mounts_in(&table).into_iter().rev();
    let mounted = mounts.find(|mount| mount.is_keepstone() && mount.source == pool);
    let (Some(mount), "keepstone") = (mounted, &*name(&process)) else {
        return format!("{who}; end it, then try again");
    };
    let dir = mount.dir.display();
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let there = namespace(&process);
    if there.is_some() && there != namespace(Path::new("/proc/self")) {
        return format!(
            "{who}, mounted on {dir} in another mount namespace; unmount it there \
             (`nsenter --mount --target {pid} keepstone umount {dir}`), then try again"
        );
    }
    format!("{who}, mounted on {dir}; unmount it (`keepstone umount {dir}`), then try again")
}

/// The name of a process in `/proc`.
fn name(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned()
}

/// Processes with a working directory, an open file or a mapping below `dir`, as `name (pid)`.
/// Only those that this user may look at.
pub fn users(dir: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter(|process| process.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter(|process| uses(&process.path(), dir))
        .map(|process| {
            let pid = process.file_name();
            format!("{} (pid {})", name(&process.path()), pid.to_string_lossy())
        })
        .take(USERS_MAX)
        .collect()
}

fn uses(process: &Path, dir: &Path) -> bool {
    let below = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    let any_in = |list: &str| {
        let links = fs::read_dir(process.join(list)).into_iter().flatten().flatten();
        links.map(|link| link.path()).any(|link| below(&link))
    };
    ["cwd", "root", "exe"].iter().any(|link| below(&process.join(link)))
        || any_in("fd")
        || any_in("map_files")
}
