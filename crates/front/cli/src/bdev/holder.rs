//! The process that has a pool open, for messages.

use std::fs;
use std::path::Path;

use super::control;
use crate::locks::LockFiles;

/// Describes the process that has locked the file at `path`, as far as this process can see it.
pub fn of(path: &Path) -> Option<String> {
    let pid = LockFiles::read().on(path).first()?.pid;
    Some(described(pid, path).unwrap_or_else(|| "a process of another container".to_owned()))
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
