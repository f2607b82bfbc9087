//! What the kernel says about a file or device: file-system type, size and pages of a devdax
//! device, and the persistence domain of the platform.

use crate::error::Error;
use rustix::fd::AsFd;
use rustix::fs::{FileType, Stat, major, minor};
use serde::Serialize;
use std::fs;
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
    /// overlayfs; what lies below is not told.
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
        // linux/magic.h; xfs, btrfs and ramfs have theirs in their sources or there.
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

    /// Whether files live in memory only.
    pub fn in_memory(self) -> bool {
        matches!(self, FsType::Tmpfs | FsType::Ramfs | FsType::Hugetlbfs)
    }
}

/// What a region can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    File { fs: FsType, block_bytes: u64 },
    DevDax { len: u64, align: u64 },
}

impl Backing {
    /// Classifies an open file.
    pub(crate) fn of(path: &Path, fd: impl AsFd, stat: &Stat) -> Result<Self, Error> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let (fs, block_bytes) =
                    FsType::of(fd).map_err(|e| Error::io(path, "ask for the file system", e))?;
                Ok(Backing::File { fs, block_bytes })
            }
            FileType::CharacterDevice => DevDax::find(stat)
                .map(|d| Backing::DevDax {
                    len: d.len,
                    align: d.align,
                })
                .ok_or_else(|| Error::NotARegion {
                    path: path.to_owned(),
                    kind: "character device other than devdax",
                }),
            other => Err(Error::NotARegion {
                path: path.to_owned(),
                kind: kind(other),
            }),
        }
    }
}

pub(crate) fn kind(file_type: FileType) -> &'static str {
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

/// A devdax device by its sysfs attributes.
struct DevDax {
    len: u64,
    align: u64,
}

impl DevDax {
    fn find(stat: &Stat) -> Option<Self> {
        let dir = sysfs_dir("char", stat.st_rdev)?;
        // /sys/devices/…/dax0.0: subsystem dax.
        let subsystem = fs::canonicalize(dir.join("subsystem")).ok()?;
        if subsystem.file_name()? != "dax" {
            return None;
        }
        let attr = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
        let align: u64 = attr("align").unwrap_or(crate::mapping::HUGE_PAGE);
        Some(Self {
            len: attr("size")?,
            align: if align.is_power_of_two() {
                align
            } else {
                1 << 21
            },
        })
    }
}

fn sysfs_dir(class: &str, dev: u64) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/{class}/{}:{}", major(dev), minor(dev))).ok()
}

/// What the platform protects at a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlatformDomain {
    /// The caches as well (eADR).
    CpuCache,
    /// What has reached the memory controller (ADR).
    MemoryController,
    /// Persistent memory whose firmware does not say; treated as `MemoryController`.
    Unspecified,
}

impl PlatformDomain {
    fn parse(text: &str) -> Self {
        match text.trim() {
            "cpu_cache" => PlatformDomain::CpuCache,
            "memory_controller" => PlatformDomain::MemoryController,
            _ => PlatformDomain::Unspecified,
        }
    }

    /// The domain of the NVDIMM region below the block device that holds `stat`'s file, or below
    /// the character device that `stat` is. `None` where there is no such region.
    pub(crate) fn below(stat: &Stat) -> Option<Self> {
        let dir = match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice => sysfs_dir("char", stat.st_rdev)?,
            _ => sysfs_dir("block", stat.st_dev)?,
        };
        Self::of_device(&dir)
    }

    fn of_device(dir: &Path) -> Option<Self> {
        let own = dir
            .ancestors()
            .find_map(|d| fs::read_to_string(d.join("persistence_domain")).ok())
            .map(|text| Self::parse(&text));
        // A device-mapper device is as good as the worst below it.
        own.or_else(|| {
            let slaves: Vec<_> = fs::read_dir(dir.join("slaves")).ok()?.flatten().collect();
            let below: Option<Vec<Self>> = slaves
                .iter()
                .map(|s| Self::of_device(&fs::canonicalize(s.path()).ok()?))
                .collect();
            below?.into_iter().max_by_key(|d| *d as u8)
        })
    }

    /// The domains of all NVDIMM regions of this machine, by region name.
    pub(crate) fn all() -> Vec<(String, Self)> {
        let mut regions: Vec<_> = fs::read_dir("/sys/bus/nd/devices")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|d| {
                let text = fs::read_to_string(d.path().join("persistence_domain")).ok()?;
                Some((
                    d.file_name().to_string_lossy().into_owned(),
                    Self::parse(&text),
                ))
            })
            .collect();
        regions.sort_by(|a, b| a.0.cmp(&b.0));
        regions
    }
}
