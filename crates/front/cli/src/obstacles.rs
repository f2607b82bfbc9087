//! Reasons why `keepstone run` cannot serve a mount in user space, as far as they are visible
//! without asking its server.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use fuse::MountEntry;
use mounts::{Line, unescape};
use rustix::fs::{AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::locks::LockFiles;
use crate::pool;

/// The reason why a mount cannot be served, and a remedy.
#[derive(Debug)]
pub struct Obstacle {
    /// The mount point of the pool.
    pub dir: PathBuf,
    /// The reason, in words.
    pub why: String,
    /// The remedy.
    pub remedy: String,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (dir, why, remedy) = (self.dir.display(), &self.why, &self.remedy);
        write!(f, "{dir}: {why}, so all calls go through the mount; {remedy}")
    }
}

/// Finds the pools among `mounts` that cannot be served, with the reasons.
pub fn of_mounts(mounts: &[MountEntry]) -> Vec<Obstacle> {
    let locks = LockFiles::read();
    let pools = mounts.iter().filter(|mount| mount.claims_keepstone());
    pools.filter_map(|mount| of_mount(mount, mounts, &locks)).collect()
}

/// Finds the reason, if any, why the mount on `dir` cannot be served.
pub fn of_dir(dir: &Path) -> Option<Obstacle> {
    let mounts = fuse::mounts().ok()?;
    let mount = mounts.iter().rev().find(|mount| mount.dir == dir && mount.claims_keepstone())?;
    of_mount(mount, &mounts, &LockFiles::read())
}

fn of_mount(mount: &MountEntry, mounts: &[MountEntry], locks: &LockFiles) -> Option<Obstacle> {
    // Of a branch, too.
    let file = pool::of_source(mount.source.clone());
    let (dir, pool) = (mount.dir.display(), file.display());
    let obstacle =
        |why: String, remedy: String| Some(Obstacle { dir: mount.dir.clone(), why, remedy });
    if mount.is_of_another() {
        let user =
            mount.user.map_or_else(|| "another user".to_owned(), |user| format!("user {user}"));
        let remedy = "run the program as that user, or mount the pool as root".to_owned();
        return obstacle(
            format!("{user} has mounted it, and such a mount could claim any pool"),
            remedy,
        );
    }
    if is_on_server(&file, mounts) {
        return None;
    }
    if mount.options.split(',').any(|option| option == "ro") {
        let remedy =
            "mount it without `-o ro`, if programs are to use the pool directly".to_owned();
        return obstacle("mounted read-only".to_owned(), remedy);
    }
    let holders = locks.on(&file);
    if holders.iter().any(|lock| lock.exclusive) {
        let why = "the mount has the pool for itself".to_owned();
        let remedy = format!(
            "unmount it (`keepstone umount {dir}`), and mount it with `keepstone mount -o direct {pool} {dir}`"
        );
        return obstacle(why, remedy);
    }
    let may = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    match accessat(CWD, &file, may, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => {
            let user = rustix::process::geteuid().as_raw();
            let group = rustix::process::getegid().as_raw();
            let why = format!("user {user} may not open the pool {pool} for reading and writing");
            let remedy = format!("as its owner: `chgrp {group} {pool} && chmod 660 {pool}`");
            return obstacle(why, remedy);
        }
        Err(Errno::NOENT) => {
            let why = format!("the pool {pool} is not in this mount namespace");
            let remedy = "run the program where the mount's server runs, or make the pool and /dev/shm visible \
                          here by the same paths";
            return obstacle(why, remedy.to_owned());
        }
        _ => {}
    }
    // The table hides locks of processes in other PID namespaces, or shows them with ID 0.
    if !holders.iter().any(|lock| is_in_our_namespaces(lock.pid)) {
        let why = "its server is in another PID or time namespace, or has ended".to_owned();
        let remedy =
            "run the program where the server runs, or a server in this container".to_owned();
        return obstacle(why, remedy);
    }
    None
}

/// Returns the reason why no file below `dir`, an absolute path without links, can be served by
/// `run --direct`: neither its file system nor one that is mounted below is a tmpfs or has DAX.
/// `table` is the table of mounts.
pub fn of_direct(dir: &Path, table: &[u8]) -> Option<String> {
    let place = |line: &Line<'_>| PathBuf::from(OsString::from_vec(unescape(line.dir)));
    let lines = table.split(|&byte| byte == b'\n').filter_map(Line::parse);
    let (below, others): (Vec<_>, Vec<_>) =
        lines.map(|line| (place(&line), line)).partition(|(place, _)| place.starts_with(dir));
    // The last one of a path is on top.
    let above = others.into_iter().filter(|(place, _)| dir.starts_with(place));
    let above = above.max_by_key(|(place, _)| place.as_os_str().len());
    let is_served = |line: &Line<'_>| {
        let mut options = line.super_options.split(|&byte| byte == b',');
        let has_dax = options.any(|option| option.starts_with(b"dax") && option != b"dax=never");
        has_dax || matches!(line.fs_type, b"tmpfs" | b"devtmpfs")
    };
    let is_covered = below.iter().any(|(place, _)| place == dir);
    let own = above.filter(|_| !is_covered);
    if below.iter().chain(&own).any(|(_, line)| is_served(line)) {
        return None;
    }
    let (_, line) = own.iter().chain(&below).next()?;
    let fs_type = String::from_utf8_lossy(line.fs_type);
    Some(format!(
        "--direct {}: {fs_type} without DAX, so the kernel serves its files; name a directory on a \
         tmpfs, or on ext4 or XFS mounted with `-o dax`",
        dir.display()
    ))
}

/// Returns whether a path lies on the mount of a server. Such a path is not inspected further,
/// because the server may not answer.
fn is_on_server(path: &Path, mounts: &[MountEntry]) -> bool {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.dir));
    let above = above.max_by_key(|mount| mount.dir.as_os_str().len());
    let types = ["fuse", "nfs", "cifs", "9p"];
    above.is_some_and(|mount| types.iter().any(|name| mount.fs_type.starts_with(name)))
}

/// Returns whether process `pid` is in the PID and time namespaces of this process. The ID 0 is in
/// another.
fn is_in_our_namespaces(pid: u32) -> bool {
    let is_same = |kind: &str| {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{kind}"));
        // The links of other users' processes cannot be read; assume that they match.
        of(&pid.to_string()).map_or(true, |there| of("self").is_ok_and(|here| here == there))
    };
    pid > 0 && is_same("pid") && is_same("time")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
        21 1 254:1 / / rw - ext4 /dev/vda rw\n\
        22 21 0:5 / /dev rw - devtmpfs none rw\n\
        23 22 0:6 / /dev/shm rw - tmpfs none rw\n\
        24 21 259:0 / /mnt/pm\\040em rw - ext4 /dev/pmem0 rw,dax=always\n\
        25 21 254:2 / /srv rw - tmpfs none rw\n\
        26 25 254:3 / /srv rw - xfs /dev/vdb rw,dax=never\n";

    #[test]
    fn only_memory_is_served_directly() {
        for dir in ["/dev/shm", "/dev/shm/a", "/dev", "/", "/mnt/pm em/a", "/mnt"] {
            assert_eq!(of_direct(Path::new(dir), TABLE), None, "{dir}");
        }
        for (dir, kind) in [("/etc", "ext4"), ("/srv/a", "xfs"), ("/devices", "ext4")] {
            let why = of_direct(Path::new(dir), TABLE).unwrap();
            assert!(why.contains(&format!("{dir}: {kind} without DAX")), "{why}");
        }
    }
}
