//! The kind of region that a path is, or would be, for `keepstone doctor` and `info`.

use crate::domain::Domain;
use crate::error::Error;
use crate::host::{Backing, FsType, PlatformDomain};
use crate::huge;
use crate::mapping::HUGE_PAGE;
use crate::open::{Access, map_backing};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, Stat, major, minor};
use rustix::io::Errno;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// A region that exists or could be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeReport {
    /// The path that was probed.
    pub path: PathBuf,
    /// The kind of file at the path.
    pub kind: ProbeKind,
    /// The file system; `None` for a device.
    pub fs: Option<FsType>,
    /// The persistence domain that opening, or creating and opening, yields.
    pub domain: Domain,
    /// Whether fenced data survives a power failure.
    pub durable: bool,
    /// The meaning of the domain, in a sentence.
    pub explanation: &'static str,
    /// The persistence domain that the NVDIMM region below reports; `None` if there is no such
    /// region.
    pub platform: Option<PlatformDomain>,
    /// Bytes of the file or device; `None` if it does not exist yet.
    pub len: Option<u64>,
    /// The largest pages that can back the mapping, in bytes. Whether they do depends on the layout
    /// of the file on the medium.
    pub page_bytes: u64,
    /// Whether these are huge pages.
    pub huge_pages: bool,
}

/// The kind of a probed path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// A regular file.
    File,
    /// A devdax device.
    DevDax,
    /// A directory in which a region could be created.
    Directory,
    /// Nothing, in a directory in which a region could be created.
    Missing,
}

/// Finds out what kind of region `path` is, or would be if it were created.
///
/// Opens no file for writing, except for a directory on a disk or DAX file system: there it creates
/// a nameless temporary file. If that is not allowed, the report assumes the page cache.
///
/// # Errors
/// If `path` and its parent cannot be opened, or cannot hold a region.
pub fn probe(path: impl AsRef<Path>) -> Result<ProbeReport, Error> {
    let path = path.as_ref();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => {
            let stat = stat(path, &fd)?;
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                probe_directory(path, path, &stat, ProbeKind::Directory)
            } else {
                probe_open(path, &fd, &stat)
            }
        }
        Err(Errno::NOENT) => {
            let parent = match path.parent() {
                Some(p) if !p.as_os_str().is_empty() => p,
                _ => Path::new("."),
            };
            let fd = rustix::fs::open(parent, flags | OFlags::DIRECTORY, Mode::empty())
                .map_err(|e| Error::io(parent, "open the directory", e))?;
            probe_directory(path, parent, &stat(parent, &fd)?, ProbeKind::Missing)
        }
        Err(e) => Err(Error::io(path, "open the file", e)),
    }
}

fn stat(path: &Path, fd: &OwnedFd) -> Result<Stat, Error> {
    rustix::fs::fstat(fd).map_err(|e| Error::io(path, "examine the file", e))
}

/// Reports on an open file or devdax device. Maps it for a moment.
fn probe_open(path: &Path, fd: &OwnedFd, stat: &Stat) -> Result<ProbeReport, Error> {
    let backing = Backing::of(path, fd, stat)?;
    let (kind, len, map_len) = match backing {
        Backing::File { .. } => {
            let len = stat.st_size as u64;
            // A mapping may be longer than the file as long as its end is not touched.
            (ProbeKind::File, len, len.max(1))
        }
        Backing::DevDax { len, .. } => (ProbeKind::DevDax, len, len),
    };
    let (_, domain) = map_backing(path, fd, stat, backing, map_len, Access::ReadOnly)?;
    Ok(report(path, kind, backing, stat, domain, Some(len)))
}

/// Reports on a file that would be made in a directory. Maps a temporary file, unless the file
/// system is in memory.
fn probe_directory(
    path: &Path,
    dir: &Path,
    dir_stat: &Stat,
    kind: ProbeKind,
) -> Result<ProbeReport, Error> {
    let (fs, block_bytes) = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .and_then(FsType::of)
        .map_err(|e| Error::io(dir, "ask for the file system", e))?;
    let backing = Backing::File { fs, block_bytes };
    let domain = if fs.in_memory() {
        Domain::Volatile
    } else {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => {
                let file_stat = stat(path, &fd)?;
                map_backing(path, &fd, &file_stat, backing, 1, Access::ReadWrite)?.1
            }
            Err(_) => Domain::PageCache,
        }
    };
    Ok(report(path, kind, backing, dir_stat, domain, None))
}

/// Makes the report from these findings, and adds the size of pages.
fn report(
    path: &Path,
    kind: ProbeKind,
    backing: Backing,
    stat: &Stat,
    domain: Domain,
    len: Option<u64>,
) -> ProbeReport {
    let small = rustix::param::page_size() as u64;
    let (fs, page_bytes) = match backing {
        Backing::DevDax { align, .. } => (None, align),
        Backing::File { fs, block_bytes } => {
            let page_bytes = match (fs, domain) {
                (FsType::Hugetlbfs, _) => block_bytes,
                (FsType::Tmpfs, _) if tmpfs_has_huge_pages(stat) => HUGE_PAGE,
                (_, Domain::MapSync | Domain::CpuCache) => HUGE_PAGE,
                _ => small,
            };
            (Some(fs), page_bytes)
        }
    };
    ProbeReport {
        path: path.to_owned(),
        kind,
        fs,
        domain,
        durable: domain.durable(),
        explanation: domain.explain(),
        platform: PlatformDomain::below(stat),
        len,
        page_bytes,
        huge_pages: page_bytes > small,
    }
}

/// Whether a region created on the tmpfs that holds `stat`'s file gets huge pages. It does if the
/// option `huge=` of the mount allows them, or if the kernel can replace small pages; and not if
/// the system-wide setting forbids them.
fn tmpfs_has_huge_pages(stat: &Stat) -> bool {
    let policy = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    match policy.unwrap_or_default() {
        p if p.contains("[deny]") => return false,
        p if p.contains("[force]") => return true,
        _ => {}
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = format!("{}:{}", major(stat.st_dev), minor(stat.st_dev));
    mounts
        .lines()
        // "36 35 98:0 /root /mount options … - type source super-options"
        .filter(|line| line.split(' ').nth(2) == Some(&device))
        .filter_map(|line| line.rsplit(' ').next())
        .flat_map(|options| options.split(','))
        .any(|o| o.strip_prefix("huge=").is_some_and(|mode| mode != "never"))
        || huge::possible()
}
