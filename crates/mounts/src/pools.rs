//! Where pools are mounted, and on what terms.

use crate::table::{FS_TYPE, Line, unescape};

/// A mount of a pool that paths lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMount {
    /// Where: absolute.
    pub dir: Vec<u8>,
    /// The pool.
    pub pool: Vec<u8>,
    /// Major and minor number of the device of what is in it.
    pub device: (u32, u32),
    /// What may change while it is mounted.
    pub terms: Terms,
}

/// What may change while a pool is mounted: it is remounted, or something is mounted in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// `ST_RDONLY`, `ST_NOEXEC`, `ST_NOSUID`, … as `statvfs` shows them.
    pub flags: u64,
    /// Mount points below: absolute paths.
    pub nested: Vec<Vec<u8>>,
}

impl PoolMount {
    /// Finds them in the kernel's table. Left out are those that a later mount hides, and bind mounts
    /// of a part of a pool.
    pub fn find(table: &[u8]) -> Vec<Self> {
        if !table.windows(FS_TYPE.len()).any(|part| part == FS_TYPE.as_bytes()) {
            return Vec::new();
        }
        let lines = table.split(|&byte| byte == b'\n').filter_map(Line::parse);
        let lines: Vec<_> = lines.map(|line| (unescape(line.dir), line)).collect();
        let mut found = Vec::new();
        for (index, (dir, line)) in lines.iter().enumerate() {
            let hidden = lines[index + 1..].iter().any(|(later, _)| covers(later, dir));
            if line.is_keepstone() && line.root == b"/" && !hidden {
                let below = |other: &&(Vec<u8>, Line<'_>)| other.0 != *dir && covers(dir, &other.0);
                let terms = Terms {
                    flags: flags(line.options) | flags(line.super_options),
                    nested: lines.iter().filter(below).map(|(other, _)| other.clone()).collect(),
                };
                let pool = unescape(line.source);
                found.push(Self { dir: dir.clone(), pool, device: line.device, terms });
            }
        }
        found
    }
}

/// Whether `path` is `dir` or below it: absolute paths without links.
fn covers(dir: &[u8], path: &[u8]) -> bool {
    let dir = if dir == b"/" { b"" } else { dir };
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

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
                _ => 0,
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str =
        "36 35 0:98 / /mnt/pool rw,noatime - fuse.keepstone /dev/shm/p rw,user_id=0\n";

    fn found(table: &str) -> Vec<PoolMount> {
        PoolMount::find(table.as_bytes())
    }

    #[test]
    fn a_remount_changes_the_terms() {
        let [mount] = &found(POOL)[..] else { panic!("there is one") };
        assert_eq!((&mount.dir[..], &mount.pool[..]), (&b"/mnt/pool"[..], &b"/dev/shm/p"[..]));
        assert_eq!(mount.terms, Terms { flags: libc::ST_NOATIME, nested: vec![] });
        for read_only in [POOL.replace("rw,noatime", "ro"), POOL.replace("rw,user", "ro,user")] {
            assert_eq!(found(&read_only)[0].terms.flags & libc::ST_RDONLY, libc::ST_RDONLY);
        }
    }

    #[test]
    fn mounts_lie_below_above_and_beside() {
        let other = |dir: &str| format!("{POOL}40 36 0:99 / {dir} rw - tmpfs none rw\n");
        assert_eq!(found(&other("/mnt/pool/a"))[0].terms.nested, [b"/mnt/pool/a"]);
        assert!(found(&other("/mnt/pools"))[0].terms.nested.is_empty());
        assert_eq!(found(&other("/mnt/pool")), []);
        assert_eq!(found(&other("/mnt")), []);
        assert_eq!(found(&POOL.replace(" / ", " /part ")), []);
    }
}
