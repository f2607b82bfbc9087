//! The mounts of pools, with their flags.

use crate::ask::{identify, newest_mount};
use crate::table::{FS_TYPE, Line, unescape};

/// A mount of a pool that paths lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMount {
    /// The mount point, an absolute path.
    pub dir: Vec<u8>,
    /// The pool.
    pub pool: Vec<u8>,
    /// Major and minor number of the device of the files in it.
    pub device: (u32, u32),
    /// The user who has mounted it. Any user can mount a FUSE file system that names any pool.
    pub user: Option<u32>,
    /// The state that may change while it is mounted.
    pub state: MountState,
}

/// The state that may change while a pool is mounted: it is remounted, or something is mounted in
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountState {
    /// `ST_RDONLY`, `ST_NOEXEC`, `ST_NOSUID`, … as `statvfs` shows them.
    pub flags: u64,
    /// Mount points below: absolute paths.
    pub nested: Vec<Vec<u8>>,
}

impl PoolMount {
    /// Finds the mounts of pools in the kernel's table. Leaves out those that a later mount hides,
    /// and bind mounts of a part of a pool.
    pub fn find(table: &[u8]) -> Vec<Self> {
        if !table.windows(FS_TYPE.len()).any(|part| part == FS_TYPE.as_bytes()) {
            return Vec::new();
        }
        of_lines(table, |line| line.is_pool() && line.root == b"/")
    }

    /// Writes the mounts of pools in `table` on one line, for child processes, which read it by
    /// [`announced`](Self::announced). `newest` is the result of [`newest_mount`] before the table
    /// was read.
    pub fn announce(table: &[u8], newest: u64) -> Vec<u8> {
        let found = Self::find(table);
        let is_found = |line: &&[u8]| {
            Line::parse(line).is_some_and(|line| {
                let dir = unescape(line.dir);
                found.iter().any(|mount| (&mount.dir, mount.device) == (&dir, line.device))
            })
        };
        let lines = table.split(|&byte| byte == b'\n').filter(is_found);
        lines.fold(newest.to_string().into_bytes(), |text, line| [&text, &b"\t"[..], line].concat())
    }

    /// Returns whether one of these users has mounted it.
    pub fn is_by(&self, users: &[u32]) -> bool {
        self.user.is_some_and(|user| users.contains(&user))
    }

    /// Parses the line of [`announce`](Self::announce) and asks the kernel for the current state of
    /// each mount. Any user may have written the line, so the pool and user of each mount must be
    /// those that the kernel reports.
    ///
    /// Returns `None` if the caller must read the table instead: a mount was added since, or one is
    /// not found at its path (for example after a `chroot`).
    pub fn announced(text: &[u8]) -> Option<Vec<Self>> {
        // The table contains no tabs: they are escaped.
        let mut lines = text.split(|&byte| byte == b'\t');
        let newest: u64 = std::str::from_utf8(lines.next()?).ok()?.parse().ok()?;
        if newest_mount() != Some(newest) {
            return None;
        }
        let mut found = Self::find(&lines.collect::<Vec<_>>().join(&b'\n'));
        for mount in &mut found {
            let known = identify(&mount.dir, mount.device)?;
            let is_it = known.source == mount.pool && known.user == mount.user;
            mount.state = is_it.then_some(known.state)?;
        }
        Some(found)
    }
}

/// Returns the mounts that `wanted` accepts and no later one hides.
fn of_lines(table: &[u8], wanted: impl Fn(&Line<'_>) -> bool) -> Vec<PoolMount> {
    let lines = table.split(|&byte| byte == b'\n').filter_map(Line::parse);
    let lines: Vec<_> = lines.map(|line| (unescape(line.dir), line)).collect();
    let mut found = Vec::new();
    for (index, (dir, line)) in lines.iter().enumerate() {
        let hidden = lines[index + 1..].iter().any(|(later, _)| covers(later, dir));
        if wanted(line) && !hidden {
            let below = |other: &&(Vec<u8>, Line<'_>)| other.0 != *dir && covers(dir, &other.0);
            let state = MountState {
                flags: flags(line.options) | flags(line.super_options),
                nested: lines.iter().filter(below).map(|(other, _)| other.clone()).collect(),
            };
            let pool = unescape(line.source);
            let user = line.user();
            found.push(PoolMount { dir: dir.clone(), pool, device: line.device, user, state });
        }
    }
    found
}

/// Returns whether `path` is `dir` or below it; both are absolute paths without links.
fn covers(dir: &[u8], path: &[u8]) -> bool {
    let dir = if dir == b"/" { b"" } else { dir };
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// `ST_NOSYMFOLLOW` of Linux 5.10, which libc does not define.
pub const ST_NOSYMFOLLOW: u64 = 0x2000;

/// Converts mount options to the flags of `statvfs`. Ignores other options.
fn flags(options: &[u8]) -> u64 {
    let options = options.split(|&byte| byte == b',');
    options.fold(0, |flags, option| {
        flags
            | match option {
                b"ro" => libc::ST_RDONLY,
                b"nosuid" => libc::ST_NOSUID,
                b"nodev" => libc::ST_NODEV,
                b"noexec" => libc::ST_NOEXEC,
                b"noatime" => libc::ST_NOATIME,
                b"nodiratime" => libc::ST_NODIRATIME,
                b"relatime" => libc::ST_RELATIME,
                b"sync" => libc::ST_SYNCHRONOUS,
                b"nosymfollow" => ST_NOSYMFOLLOW,
                _ => 0,
            }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns all mounts of the table, of any type.
    pub(crate) fn all(table: &[u8]) -> Vec<PoolMount> {
        of_lines(table, |_| true)
    }

    const POOL: &str =
        "36 35 0:98 / /mnt/pool rw,noatime - fuse.keepstone /dev/shm/p rw,user_id=0\n";

    fn found(table: &str) -> Vec<PoolMount> {
        PoolMount::find(table.as_bytes())
    }

    #[test]
    fn a_remount_changes_the_flags() {
        let [mount] = &found(POOL)[..] else { panic!("there is one") };
        assert_eq!((&mount.dir[..], &mount.pool[..]), (&b"/mnt/pool"[..], &b"/dev/shm/p"[..]));
        assert_eq!(mount.state, MountState { flags: libc::ST_NOATIME, nested: vec![] });
        for read_only in [POOL.replace("rw,noatime", "ro"), POOL.replace("rw,user", "ro,user")] {
            assert_eq!(found(&read_only)[0].state.flags & libc::ST_RDONLY, libc::ST_RDONLY);
        }
    }

    #[test]
    fn an_announcement_holds_while_no_mount_comes() {
        let nobody = "7 1 0:5 / /nowhere rw - fuse.keepstone /dev/shm/q rw\n";
        let Some(newest) = newest_mount() else { return assert_eq!(found(POOL).len(), 1) };
        let announced = |table: &str, newest| {
            PoolMount::announced(&PoolMount::announce(table.as_bytes(), newest))
        };
        assert_eq!(announced("40 36 0:99 / /mnt rw - tmpfs none rw\n", newest), Some(vec![]));
        assert_eq!(announced("", newest + 1), None);
        assert_eq!(announced(nobody, newest), None, "it does not stand there");
        for text in [&b""[..], b"\t", b"x\t", b"1"] {
            assert_eq!(PoolMount::announced(text), None);
        }
    }

    #[test]
    fn mounts_lie_below_above_and_beside() {
        let other = |dir: &str| format!("{POOL}40 36 0:99 / {dir} rw - tmpfs none rw\n");
        assert_eq!(found(&other("/mnt/pool/a"))[0].state.nested, [b"/mnt/pool/a"]);
        assert!(found(&other("/mnt/pools"))[0].state.nested.is_empty());
        assert_eq!(found(&other("/mnt/pool")), []);
        assert_eq!(found(&other("/mnt")), []);
        assert_eq!(found(&POOL.replace(" / ", " /part ")), []);
    }
}
