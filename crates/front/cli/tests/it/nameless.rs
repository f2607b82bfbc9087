//! Files without a name (`O_TMPFILE`), through mounts.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

use crate::attach::Cached;
use crate::common::{Sandbox, on_each_engine, wait_until};

on_each_engine!(of_a_pool, of_a_pool_that_nobody_shares, their_space_comes_back);

fn nameless(dir: &Path, flags: OFlags) -> rustix::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | flags;
    rustix::fs::open(dir, flags, Mode::from_raw_mode(0o640)).map(File::from)
}

fn name(file: &File, path: &Path) -> rustix::io::Result<()> {
    let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Checks the rules of `open(2)` for such files.
fn check(dir: &Path) {
    let sub = dir.join("sub");
    fs::create_dir(&sub).unwrap();
    let mut file = nameless(&sub, OFlags::empty()).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.len(), meta.mode()), (0, 0, 0o100_640));
    file.write_all(b"content").unwrap();
    file.rewind().unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    assert_eq!(fs::read_dir(&sub).unwrap().count(), 0, "no name is listed");
    // The file gets a name and keeps its content.
    name(&file, &sub.join("named")).unwrap();
    file.write_all_at(b"C", 0).unwrap();
    assert_eq!(fs::read_to_string(sub.join("named")).unwrap(), "Content");
    let meta = file.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.ino()), (1, fs::metadata(sub.join("named")).unwrap().ino()));
    assert_eq!(name(&file, &sub.join("named")), Err(Errno::EXIST));
    fs::remove_file(sub.join("named")).unwrap();
    // A file that must not get a name, and errors for paths that are not directories.
    let private = nameless(&sub, OFlags::EXCL).unwrap();
    assert_eq!(name(&private, &sub.join("refused")), Err(Errno::NOENT));
    assert_eq!(nameless(&dir.join("absent"), OFlags::empty()).unwrap_err(), Errno::NOENT);
    fs::write(dir.join("file"), "").unwrap();
    assert_eq!(nameless(&dir.join("file"), OFlags::empty()).unwrap_err(), Errno::NOTDIR);
    drop((file, private));
    fs::remove_dir(&sub).unwrap();
    fs::remove_file(dir.join("file")).unwrap();
}

fn of_a_pool(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    check(&s.dir);
    assert!(s.requests("tmpfile") >= 2);
}

fn of_a_pool_that_nobody_shares(layout: &str) {
    for options in ["exclusive", "exclusive,ask_open", "no_cache"] {
        let s = Sandbox::mounted_as(layout, &["-o", options]);
        check(&s.dir);
    }
}

fn their_space_comes_back(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let free = || s.stats()["space"]["blocks_free"].as_u64().unwrap();
    let mut file = nameless(&s.dir, OFlags::empty()).unwrap();
    file.write_all(&vec![1; 4 << 20]).unwrap();
    let before = free();
    drop(file);
    wait_until("its space is free", || free() >= before + 1024);
}

#[test]
fn of_a_cache() {
    let cached = Cached::new();
    cached.attach(&[]);
    check(&cached.data());
    let file = nameless(&cached.data(), OFlags::empty()).unwrap();
    file.write_all_at(b"below", 0).unwrap();
    name(&file, &cached.data().join("named")).unwrap();
    drop(file);
    cached.detach();
    assert_eq!(fs::read_to_string(cached.data().join("named")).unwrap(), "below");
}
