//! The contract's suite on directories of the kernel's file systems, and where these differ from it.

mod common;

use backing::{DirFs, Options};
use common::Disk;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::conformance::{Op, compare, gen_ops, scenarios};
use vfs::{FileKind, FileSystem, Ino, Result};

/// A directory of its own, removed at the end.
struct Fresh {
    fs: DirFs,
    dir: PathBuf,
    /// Link counts of directories are to be counted here, as the contract wants them.
    counts_links: bool,
}

impl Fresh {
    fn new(disk: &Disk, kind: &str, options: Options) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = disk.dir(&NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        Self { fs: DirFs::open(&dir, options).unwrap(), dir, counts_links: kind == "btrfs" }
    }

    fn counted(&self, mut attr: vfs::Attr) -> vfs::Attr {
        if self.counts_links && attr.kind == FileKind::Dir {
            attr.nlink = 0;
            let _ = self.fs.readdir(attr.ino, 0, &mut |entry| {
                attr.nlink += u32::from(entry.kind == FileKind::Dir);
                true
            });
        }
        attr
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl FileSystem for Fresh {
    vfs::forward!(self => self.fs; root, durability, kernel_cache, limits, forget, readlink, unlink, rmdir, rename, readdir,
        read, write, append, drop_privileges, fallocate, seek, copy_range, fsync, sync, getxattr, setxattr, listxattr,
        removexattr, statfs);

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<vfs::Entry> {
        self.fs.lookup(dir, name).map(|attr| self.counted(attr))
    }

    fn getattr(&self, ino: Ino) -> Result<vfs::Attr> {
        self.fs.getattr(ino).map(|attr| self.counted(attr))
    }

    fn setattr(&self, caller: &vfs::Caller, ino: Ino, set: &vfs::SetAttr) -> Result<vfs::Attr> {
        self.fs.setattr(caller, ino, set).map(|attr| self.counted(attr))
    }

    fn create(
        &self,
        caller: &vfs::Caller,
        dir: Ino,
        name: &[u8],
        node: &vfs::NewNode<'_>,
    ) -> Result<vfs::Entry> {
        self.fs.create(caller, dir, name, node).map(|attr| self.counted(attr))
    }

    fn tmpfile(&self, caller: &vfs::Caller, dir: Ino, mode: u32, umask: u32) -> Result<vfs::Entry> {
        self.fs.tmpfile(caller, dir, mode, umask)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<vfs::Entry> {
        self.fs.link(ino, dir, name)
    }
}

/// Runs all scenarios; those, and only those, that are in `differ` fail.
fn run_scenarios(kind: &str, options: Options, differ: &[&str]) {
    let disk = Disk::new(kind);
    let failed: Vec<&str> = scenarios()
        .into_iter()
        .filter(|(name, scenario)| {
            let fs = Fresh::new(&disk, kind, options);
            let failed = catch_unwind(AssertUnwindSafe(|| scenario(&fs))).is_err();
            if failed {
                eprintln!("^ {name} on {kind}\n");
            }
            failed
        })
        .map(|(name, _)| name)
        .collect();
    assert_eq!(failed, differ, "on {kind}");
}

#[test]
fn scenarios_on_ext4() {
    run_scenarios("ext4", Options::default(), &[]);
}

#[test]
fn scenarios_on_xfs() {
    run_scenarios("xfs", Options::default(), &[]);
}

#[test]
fn scenarios_on_btrfs() {
    run_scenarios("btrfs", Options::default(), &[]);
}

#[test]
fn scenarios_on_tmpfs() {
    run_scenarios("tmpfs", Options::default(), &[]);
}
