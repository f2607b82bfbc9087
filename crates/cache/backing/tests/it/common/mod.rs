//! Kernel file systems to test on. Each is unmounted at the end, also if a test fails.

use backing::{DirFs, DirOptions};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use vfs::{Caller, FileSystem, Ino, NewKind, NewNode};

/// A mounted file system.
pub struct Disk {
    point: PathBuf,
    // Dropped after the mount.
    dir: TempDir,
}

/// The file systems that tests run on.
pub const KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "tmpfs"];

impl Disk {
    /// Makes a new file system of this kind, on a loop device if it needs one.
    pub fn new(kind: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("keepstone-backing-").tempdir().unwrap();
        let point = dir.path().join("mount");
        fs::create_dir(&point).unwrap();
        if kind == "tmpfs" {
            run(Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=512m,nr_inodes=300k", "tmpfs"])
                .arg(&point));
        } else {
            let image = dir.path().join("image");
            fs::File::create(&image).unwrap().set_len(600 << 20).unwrap();
            let mut mkfs = Command::new(format!("mkfs.{kind}"));
            let options: &[&str] = match kind {
                "ext4" => &["-q", "-F", "-N", "150000"],
                "xfs" => &["-q", "-f"],
                _ => &["-q", "-f"],
            };
            run(mkfs.args(options).arg(&image));
            // The loop device goes with the mount.
            run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point));
        }
        Self { point, dir }
    }

    /// Creates a directory in it.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.point.join(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Mounts an empty file system over the directory `name`, until the result is dropped.
    pub fn mount_over(&self, name: &str) -> Over {
        let point = self.point.join(name);
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&point));
        Over(point)
    }

    /// Makes everything durable.
    pub fn sync(&self) {
        rustix::fs::syncfs(fs::File::open(&self.point).unwrap()).unwrap();
    }

    /// Mounts the state that a crash now would leave.
    pub fn after_crash(self, fs: DirFs) -> Self {
        let image = self.dir.path().join("image");
        let copy = self.dir.path().join("copy");
        run(Command::new("cp").arg("--sparse=always").arg(&image).arg(&copy));
        drop(fs);
        run(Command::new("umount").arg(&self.point));
        run(Command::new("mount").args(["-o", "loop"]).arg(&copy).arg(&self.point));
        self
    }
}

/// A file system that is mounted over a directory.
pub struct Over(PathBuf);

impl Drop for Over {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

pub fn open(dir: &Path) -> DirFs {
    DirFs::open(dir, DirOptions::default()).unwrap()
}

/// Opens a directory as on a system on which handles cannot be opened.
pub fn open_without_handles(dir: &Path) -> DirFs {
    DirFs::open(dir, DirOptions { opens_handles: false, ..DirOptions::default() }).unwrap()
}

/// Opens a directory as if its handles were too long for identities.
pub fn open_with_long_handles(dir: &Path) -> DirFs {
    DirFs::open(dir, DirOptions { handle_max: 1, ..DirOptions::default() }).unwrap()
}

pub fn node(kind: NewKind<'_>, mode: u32) -> NewNode<'_> {
    NewNode { kind, mode, umask: 0 }
}

/// Creates a file, and keeps the reference.
pub fn file(fs: &impl FileSystem, dir: Ino, name: &[u8]) -> Ino {
    fs.create(&Caller::ROOT, dir, name, &node(NewKind::File, 0o644)).unwrap().ino
}

/// Creates a directory, and keeps the reference.
pub fn directory(fs: &impl FileSystem, dir: Ino, name: &[u8]) -> Ino {
    fs.create(&Caller::ROOT, dir, name, &node(NewKind::Dir, 0o755)).unwrap().ino
}

/// Returns the number of descriptors of this process.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the bytes that users can still write.
pub fn room(fs: &DirFs) -> u64 {
    let stat = fs.statfs();
    stat.blocks_available * u64::from(stat.block_size)
}
