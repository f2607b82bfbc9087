//! The contract's suite on directories of the kernel's file systems, and where these differ from it.

use crate::common::Disk;
use backing::{DirFs, Options};
use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::conformance::{compare, gen_ops, scenarios};
use vfs::script::{Op, When};
use vfs::{Delegations, FileKind, FileSystem, Ino, Mappings, Openings, Result, Timestamp};

/// A directory of its own, removed at the end.
struct Fresh {
    fs: DirFs,
    dir: PathBuf,
    /// Link counts of directories are to be counted here, as the contract wants them.
    counts_links: bool,
    /// Change times that were set, which the kernel does not do: what it has instead, and the time.
    ctimes: Mutex<HashMap<Ino, (Timestamp, Timestamp)>>,
}

impl Fresh {
    fn new(disk: &Disk, kind: &str, options: Options) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = disk.dir(&NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        Self {
            fs: DirFs::open(&dir, options).unwrap(),
            dir,
            counts_links: kind == "btrfs",
            ctimes: Mutex::default(),
        }
    }

    /// Attributes as the contract wants them: with the change time that was set last, if nothing changed since.
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
        fallocate, seek, copy_range, fsync, sync, getxattr, setxattr, listxattr, removexattr,
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

impl Delegations for Fresh {}

/// What all have: times end somewhere, and a capability must be one (`tests/it/dirfs.rs` sets real ones).
const EVERYWHERE: [&str; 4] = [
    "attrs::times_of_every_age_are_kept",
    "attrs::capabilities_are_dropped",
    "attrs::changes_of_content_drop_capabilities",
    "attrs::capabilities_stay_where_nothing_changes",
];

/// The scenarios that differ on a file system, for these reasons.
fn differences(kind: &str) -> Vec<&'static str> {
    let more: &[&str] = match kind {
        "ext4" => &[
            // `EPERM`.
            "life::a_tmpfile_in_a_removed_directory_works",
            // Attributes of all names together have a block.
            "life::space_comes_back",
            "xattr::values_are_replaced",
            "xattr::values_are_limited",
            "xattr::many_attributes_work",
            "xattr::attributes_go_with_the_inode",
        ],
        "xfs" => &[
            // Minor numbers have 18 bits.
            "names::each_kind_is_created",
            // Symbolic links end at 1023 bytes.
            "life::space_comes_back",
            // What is exchanged keeps its `ctime`.
            "attrs::renames_set_times",
        ],
        "btrfs" => &[
            // What is exchanged takes new places.
            "listing::entries_that_are_renamed_over_are_listed_once",
            // Inodes are not counted, and space is taken late.
            "data::statfs_is_plausible",
            "data::writing_takes_space",
            // There is neither collapse nor insert.
            "ranges::collapse_closes_the_gap",
            "ranges::insert_opens_a_gap",
            "ranges::shifts_of_sparse_files_work",
            "ranges::fallocate_sets_times",
            // Values end at the size of a node.
            "xattr::values_are_replaced",
            "xattr::values_are_limited",
        ],
        _ => &[
            // What is exchanged takes new places.
            "listing::entries_that_are_renamed_over_are_listed_once",
            // Ranges can be allocated and punched only.
            "ranges::zeroed_ranges_read_as_zeros",
            "ranges::zeroing_can_grow",
            "ranges::collapse_closes_the_gap",
            "ranges::insert_opens_a_gap",
            "ranges::shifts_of_sparse_files_work",
            "ranges::fallocate_sets_times",
            // A name removed sets no `ctime` of what had it.
            "attrs::removals_set_times",
        ],
    };
    [&EVERYWHERE, more].concat()
}

/// Runs all scenarios; those that differ fail, and no others. XFS and btrfs free in the background what was removed, and count it
/// then: what fails beyond the differences has to fail again.
fn run_scenarios(kind: &str, options: Options) {
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

/// A generated call, if it means the same on this file system, with times that all can keep.
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
        // XFS has fewer numbers.
        Op::Mknod(_, device, ..) | Op::MknodBlock(_, device, ..) => *device &= 0xfff,
        Op::Collapse(..) | Op::Insert(..) if matches!(kind, "btrfs" | "tmpfs") => return None,
        Op::Zero(..) | Op::ZeroKeep(..) if kind == "tmpfs" => return None,
        _ => {}
    }
    Some(op)
}

/// Compares with the model on generated calls.
fn run_generated(kind: &str, options: Options) {
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

/// Without handles, too: each inode by its descriptor.
fn without_handles() -> Options {
    Options { opens_handles: false, ..Options::default() }
}

/// As few descriptors as can be.
fn few_descriptors() -> Options {
    Options { inodes_open: 1, contents_open: 1, ..Options::default() }
}

#[test]
fn scenarios_on_ext4() {
    run_scenarios("ext4", few_descriptors());
}

#[test]
fn scenarios_on_xfs() {
    run_scenarios("xfs", Options::default());
}

#[test]
fn scenarios_on_btrfs() {
    run_scenarios("btrfs", Options::default());
}

#[test]
fn scenarios_on_tmpfs() {
    run_scenarios("tmpfs", without_handles());
}

#[test]
fn generated_on_ext4() {
    run_generated("ext4", Options::default());
    run_generated("ext4", without_handles());
}

#[test]
fn generated_on_xfs() {
    run_generated("xfs", few_descriptors());
}

#[test]
fn generated_on_btrfs() {
    run_generated("btrfs", Options::default());
}

#[test]
fn generated_on_tmpfs() {
    run_generated("tmpfs", few_descriptors());
}
