//! Runs the contract's suite on directories of kernel file systems, and lists the differences.

use crate::common::Disk;
use backing::{DirFs, DirOptions};
use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::conformance::{compare, gen_ops, scenarios};
use vfs::script::{Op, When};
use vfs::{FileKind, FileSystem, Ino, Mappings, Openings, Result, Timestamp};

/// A new directory, removed at the end.
struct Fresh {
    fs: DirFs,
    dir: PathBuf,
    /// Whether this wrapper has to count the links of directories, as the contract demands them.
    counts_links: bool,
    /// Change times that a test set, which the kernel does not support: the kernel's time instead,
    /// and the time that was set.
    ctimes: Mutex<HashMap<Ino, (Timestamp, Timestamp)>>,
}

impl Fresh {
    fn new(disk: &Disk, kind: &str, options: DirOptions) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = disk.dir(&NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        Self {
            fs: DirFs::open(&dir, options).unwrap(),
            dir,
            counts_links: kind == "btrfs",
            ctimes: Mutex::default(),
        }
    }

    /// Returns attributes as the contract demands them: with the change time that was set last, if
    /// nothing changed since.
    fn counted(&self, mut attr: vfs::Attr) -> vfs::Attr {
        if let Some((kernel, set)) = self.ctimes.lock().unwrap().get(&attr.ino)
            && *kernel == attr.ctime
        {
            attr.ctime = *set;
        }
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
    vfs::forward!(self => self.fs; root, durability, kernel_cache, limits, forget, readlink,
        unlink, rmdir, rename, rename_whiteout, readdir, read, write, append, drop_privileges,
        fallocate, seek, copy_range, clone_range, fsync, sync, getxattr, setxattr, listxattr, removexattr,
        statfs);

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<vfs::Entry> {
        self.fs.lookup(dir, name).map(|attr| self.counted(attr))
    }

    fn getattr(&self, ino: Ino) -> Result<vfs::Attr> {
        self.fs.getattr(ino).map(|attr| self.counted(attr))
    }

    fn setattr(&self, caller: &vfs::Caller, ino: Ino, set: &vfs::SetAttr) -> Result<vfs::Attr> {
        let attr = self.fs.setattr(caller, ino, set)?;
        if let Some(ctime) = set.ctime {
            self.ctimes.lock().unwrap().insert(ino, (attr.ctime, ctime));
        }
        Ok(self.counted(attr))
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
        self.fs.link(ino, dir, name).map(|attr| self.counted(attr))
    }
}

impl Mappings for Fresh {}

impl Openings for Fresh {}

/// The differences of all file systems: times have a limited range, and a capability must be valid
/// (`tests/it/dirfs.rs` sets real ones).
const EVERYWHERE: [&str; 4] = [
    "attrs::times_of_every_age_are_kept",
    "attrs::capabilities_are_dropped",
    "attrs::changes_of_content_drop_capabilities",
    "attrs::capabilities_stay_where_nothing_changes",
];

/// Returns the scenarios that differ on a file system, with the reasons.
fn differences(kind: &str) -> Vec<&'static str> {
    let more: &[&str] = match kind {
        "ext4" => &[
            // The kernel returns `EPERM`.
            "life::a_tmpfile_in_a_removed_directory_works",
            // All attributes together have one block.
            "life::space_comes_back",
            "xattr::values_are_replaced",
            "xattr::values_are_limited",
            "xattr::many_attributes_work",
            "xattr::attributes_go_with_the_inode",
        ],
        "xfs" => &[
            // Minor numbers have only 18 bits.
            "names::each_kind_is_created",
            // Symbolic links have at most 1023 bytes.
            "life::space_comes_back",
            // An exchange sets no `ctime`.
            "attrs::renames_set_times",
        ],
        "btrfs" => &[
            // Exchanged names get new positions.
            "listing::entries_that_are_renamed_over_are_listed_once",
            // Inodes are not counted, and space is allocated late.
            "data::statfs_is_plausible",
            "data::writing_takes_space",
            // Ranges cannot be collapsed or inserted.
            "ranges::collapse_closes_the_gap",
            "ranges::insert_opens_a_gap",
            "ranges::shifts_of_sparse_files_work",
            "ranges::fallocate_sets_times",
            // Values are limited to the size of a node.
            "xattr::values_are_replaced",
            "xattr::values_are_limited",
        ],
        _ => &[
            // Exchanged names get new positions.
            "listing::entries_that_are_renamed_over_are_listed_once",
            // Ranges can only be allocated and punched.
            "ranges::zeroed_ranges_read_as_zeros",
            "ranges::zeroing_can_grow",
            "ranges::collapse_closes_the_gap",
            "ranges::insert_opens_a_gap",
            "ranges::shifts_of_sparse_files_work",
            "ranges::fallocate_sets_times",
            // A removal sets no `ctime` of the inode that had the name.
            "attrs::removals_set_times",
        ],
    };
    [&EVERYWHERE, more].concat()
}

/// Runs all scenarios; exactly those that differ must fail. XFS and btrfs free and count removed
/// blocks in the background, so an unexpected failure must occur repeatedly.
fn run_scenarios(kind: &str, options: DirOptions) {
    const TRIES: usize = 3;
    let disk = Disk::new(kind);
    let mut differ = differences(kind);
    let fails = |name: &str, scenario: fn(&dyn FileSystem)| {
        let fs = Fresh::new(&disk, kind, options);
        let fails = catch_unwind(AssertUnwindSafe(|| scenario(&fs))).is_err();
        if fails {
            eprintln!("^ {name} on {kind}\n");
        }
        fails
    };
    let mut failed: Vec<&str> = scenarios()
        .into_iter()
        .filter(|(name, scenario)| {
            let tries = if differ.contains(name) { 1 } else { TRIES };
            (0..tries).all(|_| fails(name, *scenario))
        })
        .map(|(name, _)| name)
        .collect();
    failed.sort_unstable();
    differ.sort_unstable();
    assert_eq!(failed, differ, "on {kind}");
}

/// Returns a generated call if it means the same on this file system, with times that all file
/// systems can store.
fn adapted(kind: &str, mut op: Op) -> Option<Op> {
    let keep = |time: &mut Option<When>| {
        if let Some(When(Some(ns))) = time {
            *ns = ns.rem_euclid(1 << 60);
        }
    };
    match &mut op {
        Op::Setattr(_, set) => {
            keep(&mut set.atime);
            keep(&mut set.mtime);
        }
        Op::SetXattr(_, name, ..) if name == "security.capability" => return None,
        // XFS supports fewer device numbers.
        Op::Mknod(_, device, ..) | Op::MknodBlock(_, device, ..) => *device &= 0xfff,
        // XFS gives a whiteout the group of a directory with the bit, and no default ACL.
        Op::RenameWhiteout(..) if kind == "xfs" => return None,
        Op::Collapse(..) | Op::Insert(..) if matches!(kind, "btrfs" | "tmpfs") => return None,
        Op::Zero(..) | Op::ZeroKeep(..) if kind == "tmpfs" => return None,
        _ => {}
    }
    Some(op)
}

/// Compares a file system with the model on generated calls.
fn run_generated(kind: &str, options: DirOptions) {
    let disk = Disk::new(kind);
    for seed in 0..6 {
        let ops: Vec<Op> =
            gen_ops(seed, 300).into_iter().filter_map(|op| adapted(kind, op)).collect();
        let make = || -> Box<dyn FileSystem> { Box::new(Fresh::new(&disk, kind, options)) };
        if let Err(failure) = compare(make().as_ref(), &ops) {
            panic!("on {kind}, seed {seed}: {failure}");
        }
    }
}

/// Options without handles: each inode has a descriptor.
fn without_handles() -> DirOptions {
    DirOptions { opens_handles: false, ..DirOptions::default() }
}

/// Options with the fewest descriptors.
fn few_descriptors() -> DirOptions {
    DirOptions { inodes_open: 1, contents_open: 1, ..DirOptions::default() }
}

#[test]
fn scenarios_on_ext4() {
    run_scenarios("ext4", few_descriptors());
}

#[test]
fn scenarios_on_xfs() {
    run_scenarios("xfs", DirOptions::default());
}

#[test]
fn scenarios_on_btrfs() {
    run_scenarios("btrfs", DirOptions::default());
}

#[test]
fn scenarios_on_tmpfs() {
    run_scenarios("tmpfs", without_handles());
}

#[test]
fn generated_on_ext4() {
    run_generated("ext4", DirOptions::default());
    run_generated("ext4", without_handles());
}

#[test]
fn generated_on_xfs() {
    run_generated("xfs", few_descriptors());
}

#[test]
fn generated_on_btrfs() {
    run_generated("btrfs", DirOptions::default());
}

#[test]
fn generated_on_tmpfs() {
    run_generated("tmpfs", few_descriptors());
}
