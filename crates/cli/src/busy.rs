//! Who uses a mount.

use std::fs;
use std::path::Path;

/// Users named at most.
const USERS_MAX: usize = 5;

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
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("{} (pid {})", name.trim(), process.file_name().to_string_lossy())
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
