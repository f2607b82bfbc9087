//! Properties of a file or device, from the kernel: the type of file system, size and pages of a
//! devdax device, and the persistence domain of the platform.
//!
//! Regions are also opened inside programs whose libc file functions are interposed, so sysfs is
//! read by direct system calls instead of `std::fs`.

use crate::error::Error;
use crate::mapping::HUGE_PAGE;
use rustix::fd::AsFd;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, major, minor};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// File systems that matter to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// tmpfs, which also holds memfds and `/dev/shm`.
    Tmpfs,
    /// ramfs.
    Ramfs,
    /// hugetlbfs.
    Hugetlbfs,
    /// ext2, ext3 or ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// overlayfs, which does not report the file systems below it.
    Overlay,
    /// A FUSE file system.
    Fuse,
    /// NFS.
    Nfs,
    /// Another type, with its magic number.
    Other(u64),
}

impl FsType {
    pub(crate) fn of(fd: impl AsFd) -> rustix::io::Result<(Self, u64)> {
        let s = rustix::fs::fstatfs(fd)?;
        Ok((Self::from_magic(s.f_type as u64), s.f_bsize as u64))
    }

    fn from_magic(magic: u64) -> Self {
        // The numbers are in linux/magic.h, or in the sources of the file systems.
        match magic {
            0x0102_1994 => FsType::Tmpfs,
            0x8584_58f6 => FsType::Ramfs,
            0x9584_58f6 => FsType::Hugetlbfs,
            0xef53 => FsType::Ext4,
            0x5846_5342 => FsType::Xfs,
            0x9123_683e => FsType::Btrfs,
            0x794c_7630 => FsType::Overlay,
            0x6573_5546 => FsType::Fuse,
            0x6969 => FsType::Nfs,
            other => FsType::Other(other),
        }
    }

    /// Whether `fallocate` reserves space for later stores, and gives it back.
    pub(crate) fn reserves_space(self) -> bool {
        matches!(self, FsType::Tmpfs | FsType::Ext4 | FsType::Xfs | FsType::Btrfs)
    }

    /// Whether files live in memory only.
    pub fn in_memory(self) -> bool {
        matches!(self, FsType::Tmpfs | FsType::Ramfs | FsType::Hugetlbfs)
    }
}

/// Returns the file system of a regular file, if system calls can write to it.
pub(crate) fn writable_fs(file: impl AsFd) -> Option<FsType> {
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    // Files of hugetlbfs can only be mapped.
    FsType::of(file).ok().map(|(fs, _)| fs).filter(|fs| is_file && *fs != FsType::Hugetlbfs)
}

/// The file or device behind a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    File { fs: FsType, block_bytes: u64 },
    DevDax { len: u64, align: u64 },
}

impl Backing {
    /// Refuses files that are neither regular files nor devdax devices.
    pub(crate) fn check_kind(path: &Path, stat: &Stat) -> Result<(), Error> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(()),
            FileType::CharacterDevice if DevDax::find(stat).is_some() => return Ok(()),
            FileType::CharacterDevice => "character device other than devdax",
            other => kind(other),
        };
        Err(Error::NotARegion { path: path.to_owned(), kind })
    }

    /// Classifies an open file.
    pub(crate) fn of(path: &Path, fd: impl AsFd, stat: &Stat) -> Result<Self, Error> {
        Self::check_kind(path, stat)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let (fs, block_bytes) =
                    FsType::of(fd).map_err(|e| Error::io(path, "ask for the file system", e))?;
                Ok(Backing::File { fs, block_bytes })
            }
            other => match DevDax::find(stat) {
                Some(DevDax { len, align }) => Ok(Backing::DevDax { len, align }),
                // The device was removed just now.
                None => Err(Error::NotARegion { path: path.to_owned(), kind: kind(other) }),
            },
        }
    }
}

impl Backing {
    /// Returns the bytes of the pages that map it: the unit of mappings and of their protection.
    pub(crate) fn page_bytes(self) -> u64 {
        match self {
            Backing::DevDax { align, .. } => align,
            Backing::File { fs, block_bytes } if fs.in_memory() => block_bytes,
            Backing::File { .. } => rustix::param::page_size() as u64,
        }
    }
}

/// Names the type of a file, for messages.
fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device (mount a DAX file system on it, or make it devdax)",
        _ => "file of unknown type",
    }
}

/// The sysfs attributes of a devdax device.
struct DevDax {
    len: u64,
    align: u64,
}

impl DevDax {
    /// Reads the attributes of a character device. `None` if it is not devdax.
    fn find(stat: &Stat) -> Option<Self> {
        let dir = sysfs_dir("char", stat.st_rdev);
        let subsystem = rustix::fs::readlink(dir.join("subsystem"), Vec::new()).ok()?;
        if !subsystem.as_bytes().ends_with(b"/dax") {
            return None;
        }
        let attribute = |name: &str| read_text(&dir.join(name))?.trim().parse::<u64>().ok();
        let align = attribute("align").filter(|a| a.is_power_of_two()).unwrap_or(HUGE_PAGE);
        Some(Self { len: attribute("size")?, align })
    }
}

/// Returns the sysfs directory of a device, which is a symbolic link into the tree of devices.
fn sysfs_dir(class: &str, dev: u64) -> PathBuf {
    format!("/sys/dev/{class}/{}:{}", major(dev), minor(dev)).into()
}

/// Reads a sysfs attribute, which has at most a page.
fn read_text(path: &Path) -> Option<String> {
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = vec![0; 4096];
    let len = rustix::io::read(&fd, &mut text).ok()?;
    text.truncate(len);
    String::from_utf8(text).ok()
}

/// Lists the names in a directory; none if it cannot be read.
fn names_in(path: &Path) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .and_then(Dir::new)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "." && name != "..")
        .collect()
}

/// The part of the platform that survives a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlatformDomain {
    /// The memory controller and the CPU caches (eADR).
    CpuCache,
    /// The memory controller: stores that have reached it survive (ADR).
    MemoryController,
    /// Unknown, as the firmware does not report it; treated as `MemoryController`.
    Unspecified,
}

impl PlatformDomain {
    /// Parses the content of the sysfs attribute `persistence_domain`.
    fn parse(text: &str) -> Self {
        match text.trim() {
            "cpu_cache" => PlatformDomain::CpuCache,
            "memory_controller" => PlatformDomain::MemoryController,
            _ => PlatformDomain::Unspecified,
        }
    }

    /// Returns the domain of the NVDIMM region below a character device, or below the block device
    /// that holds a file. `None` if there is no such region.
    pub(crate) fn below(stat: &Stat) -> Option<Self> {
        Self::of_device(&match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => sysfs_dir("char", stat.st_rdev),
            _ => sysfs_dir("block", stat.st_dev),
        })
    }

    /// Finds the domain of a device by its sysfs directory: its own or that of a device above it,
    /// or else the weakest of the devices that it is made of.
    fn of_device(dir: &Path) -> Option<Self> {
        // The kernel resolves `..` after the symbolic link, so these paths are the parent devices.
        let mut above = dir.to_owned();
        for _ in 0..MAX_DEPTH {
            if let Some(text) = read_text(&above.join("persistence_domain")) {
                return Some(Self::parse(&text));
            }
            above.push("..");
        }
        // A device-mapper device has the weakest domain of the devices below it.
        let slaves = dir.join("slaves");
        let below: Option<Vec<Self>> =
            names_in(&slaves).iter().map(|name| Self::of_device(&slaves.join(name))).collect();
        below?.into_iter().max_by_key(|domain| *domain as u8)
    }

    /// Returns the names of all NVDIMM regions of this machine, with their domains.
    pub(crate) fn all() -> Vec<(String, Self)> {
        let devices = Path::new("/sys/bus/nd/devices");
        let mut regions: Vec<_> = names_in(devices)
            .into_iter()
            .filter_map(|name| {
                let text = read_text(&devices.join(&name).join("persistence_domain"))?;
                Some((name, Self::parse(&text)))
            })
            .collect();
        regions.sort_by(|a, b| a.0.cmp(&b.0));
        regions
    }
}

/// The most parent devices to check in sysfs; NVDIMM regions are some six above their block
/// devices.
const MAX_DEPTH: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_domain_is_that_of_the_region_above_the_device() {
        // …/region0/namespace0.0/block/pmem0 with a device-mapper device on top.
        let root = tempfile::tempdir().unwrap();
        let region = root.path().join("ndbus0/region0");
        let pmem = region.join("namespace0.0/block/pmem0");
        let mapper = root.path().join("virtual/block/dm-0");
        fs::create_dir_all(&pmem).unwrap();
        fs::create_dir_all(mapper.join("slaves")).unwrap();
        std::os::unix::fs::symlink(&pmem, mapper.join("slaves/pmem0")).unwrap();
        assert_eq!(PlatformDomain::of_device(&pmem), None);
        for (text, want) in [
            ("cpu_cache\n", PlatformDomain::CpuCache),
            ("memory_controller\n", PlatformDomain::MemoryController),
            ("\n", PlatformDomain::Unspecified),
        ] {
            fs::write(region.join("persistence_domain"), text).unwrap();
            assert_eq!(PlatformDomain::of_device(&pmem), Some(want));
            assert_eq!(PlatformDomain::of_device(&mapper), Some(want));
        }
        // If a second part is not persistent memory, the mapped device is not, either.
        let disk = root.path().join("virtual/block/sda");
        fs::create_dir_all(&disk).unwrap();
        std::os::unix::fs::symlink(&disk, mapper.join("slaves/sda")).unwrap();
        assert_eq!(PlatformDomain::of_device(&mapper), None);
    }
}
