//! Who has a pool open: for messages.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::control;

/// Who has locked the file at `path`, in words, as far as this process may know.
pub fn of(path: &Path) -> Option<String> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let stat = path.metadata().ok()?;
    let (major, minor) = (libc::major(stat.dev()), libc::minor(stat.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", stat.ino());
    let pid = locks.lines().find_map(|line| holder(line, &file))?;
    Some(described(pid, path).unwrap_or_else(|| "a process of another container".to_owned()))
}

/// The process that holds a lock of `file`, by a line of `/proc/locks` (`proc_locks(5)`).
fn holder(line: &str, file: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    match fields[..] {
        [_, "FLOCK", _, _, pid, of, ..] if of == file => pid.parse().ok(),
        _ => None,
    }
}

fn described(pid: u32, path: &Path) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let who = format!("{} (pid {pid})", name.trim_end());
    let served = control::servers().unwrap_or_default().into_iter().find(|s| s.pid() == Some(pid));
    if let Some(server) = served {
        let places = server.places();
        return Some(format!(
            "{who}, which serves it as {places}; `keepstone bdev stop {pid}` ends that"
        ));
    }
    let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let mounts = mounts::PoolMount::find(&table);
    let mount =
        mounts.iter().find(|mount| Path::new(&*String::from_utf8_lossy(&mount.pool)) == path);
    Some(match mount {
        Some(mount) => {
            let dir = String::from_utf8_lossy(&mount.dir);
            format!("{who}, which has it mounted on {dir}; `keepstone umount {dir}` ends that")
        }
        None => who,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_holder_of_this_file_is_named() {
        let file = "00:19:62";
        assert_eq!(holder("1: FLOCK  ADVISORY  WRITE 3012 00:19:62 0 EOF", file), Some(3012));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 3012 00:19:62 0 EOF",
            "1: FLOCK  ADVISORY  WRITE 3012 00:19:63 0 EOF",
            "1: POSIX  ADVISORY  WRITE 3012 00:19:62 0 EOF",
            "",
        ] {
            assert_eq!(holder(other, file), None, "{other}");
        }
    }
}
