//! Opening and creating regions: files, devdax devices, anonymous memory.

use crate::domain::Domain;
use crate::emulation::Emulation;
use crate::error::Error;
use crate::flush::FlushInstruction;
use crate::host::{Backing, FsType, PlatformDomain};
use crate::huge;
use crate::lock;
use crate::mapping::Mapping;
use crate::naming;
use crate::observe::SharedObserver;
use crate::region::{Parts, Region};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mm::MapFlags;
use std::ops::Range;
use std::path::Path;

/// Whether stores are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store panics.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// The other processes that may have the region open, as locks on its file decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// None.
    Exclusive,
    /// Those with a shared lock for the same [`Access`]: processes attached to one pool, or readers
    /// of a pool that no process writes to.
    Shared,
    /// Any process, at the caller's risk.
    None,
}

impl Lock {
    /// Returns the operation that converts the previous lock to this one, without waiting.
    pub(crate) fn operation(self) -> FlockOperation {
        match self {
            Self::Exclusive => FlockOperation::NonBlockingLockExclusive,
            Self::Shared => FlockOperation::NonBlockingLockShared,
            Self::None => FlockOperation::NonBlockingUnlock,
        }
    }
}

/// How to open a region. The default suits a pool that one process uses.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The persistence domain to assume instead of the detected one. The region reports it whether
    /// or not it is true.
    pub domain: Option<Domain>,
    /// The flush instruction to use instead of the best of this CPU, which must have it.
    pub flush: Option<FlushInstruction>,
    /// Whether to do without [`Medium::store_line`](crate::Medium::store_line), as on a CPU without
    /// MOVDIR64B.
    pub without_line_stores: bool,
    /// Emulated speed.
    pub emulation: Option<Emulation>,
    /// Sees all accesses.
    pub observer: Option<SharedObserver>,
    /// Whether to fault in all pages at once, so that no later access has to.
    pub populate: bool,
    /// The processes that may open it at the same time; by default none for [`Access::ReadWrite`],
    /// and any for [`Access::ReadOnly`].
    pub lock: Option<Lock>,
    /// Whether `create` may leave the file sparse. A store then raises SIGBUS when the file
    /// system is full; by default the space is allocated.
    pub sparse: bool,
    /// The least length in bytes of an existing region; at least 1, unless `may_be_empty`.
    pub min_len: u64,
    /// Bytes of address space to reserve for a file, so that it can grow while it is mapped
    /// ([`Medium::grow`](crate::Medium::grow)).
    pub reserve: u64,
    /// Whether `open` accepts an empty file, which grows later (`reserve`).
    pub may_be_empty: bool,
}

impl OpenOptions {
    /// Maps `len` bytes of zeroed anonymous memory. A child process gets a copy.
    pub fn anonymous(&self, len: u64) -> Result<Region, Error> {
        let path = Path::new("anonymous memory");
        check_len(path, len)?;
        let mapping = Mapping::anonymous(len, MapFlags::empty())
            .map_err(|e| Error::io(path, "map memory", e))?;
        let grain = rustix::param::page_size() as u64;
        let mapped = Mapped { mapping, grain, domain: Domain::Volatile };
        self.finish(path, mapped, len, Access::ReadWrite, None)
    }

    /// Creates a file of `len` bytes, zeroed and allocated, and maps it for reading and writing.
    /// `path` must not exist, unless it is a devdax device of at least `len` bytes. The region is
    /// then its first `len` bytes, with their present content.
    pub fn create(&self, path: impl AsRef<Path>, len: u64) -> Result<Region, Error> {
        self.create_by(path.as_ref(), len, naming::named)
    }

    /// Does the same, but [`Region::name_file`] gives the file its name: a process that is killed
    /// before leaves nothing. On file systems without nameless files it has its name at once.
    pub fn create_nameless(&self, path: impl AsRef<Path>, len: u64) -> Result<Region, Error> {
        self.create_by(path.as_ref(), len, naming::nameless)
    }

    fn create_by(
        &self,
        path: &Path,
        len: u64,
        new_file: fn(&Path) -> Result<OwnedFd, Error>,
    ) -> Result<Region, Error> {
        check_len(path, len)?;
        if rustix::fs::stat(path).is_ok_and(|s| is_char_device(&s)) {
            let enough = OpenOptions { min_len: len.max(self.min_len), ..self.clone() };
            return enough.map_existing(path, Access::ReadWrite, Some(len));
        }
        let fd = new_file(path)?;
        let has_name = naming::has_name(&fd);
        let region = self.extend(path, &fd, 0..len).and_then(|()| {
            let stat = stat(path, &fd)?;
            let in_memory = FsType::of(&fd).is_ok_and(|(fs, _)| fs.in_memory());
            // tmpfs clears a page when it is first touched. Do that now, not during later
            // operations.
            let populate = self.populate || in_memory && !self.sparse;
            let options = OpenOptions { populate, ..self.clone() };
            options.map(path, fd, &stat, Access::ReadWrite, None)
        });
        if region.is_err() && has_name {
            // We made the file (EXCL), and it is useless.
            let _ = rustix::fs::unlink(path);
        }
        region
    }

    /// Maps an existing file or devdax device completely.
    ///
    /// The file must keep its length: access beyond a new, earlier end raises SIGBUS.
    pub fn open(&self, path: impl AsRef<Path>, access: Access) -> Result<Region, Error> {
        self.map_existing(path.as_ref(), access, None)
    }

    /// Opens a file or devdax device and maps `len` bytes of it, or all. Refuses other kinds of
    /// files.
    fn map_existing(&self, path: &Path, access: Access, len: Option<u64>) -> Result<Region, Error> {
        let mode = match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        // Check the kind first, as opening has side effects on some devices (a tape winds), and
        // obscure errors on others (a socket). If `stat` fails, the open reports a better error.
        if let Ok(stat) = rustix::fs::stat(path) {
            Backing::check_kind(path, &stat)?;
        }
        // Without NONBLOCK, the open of a fifo would block. Files and devdax ignore it.
        let flags = mode | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| Error::io(path, "open the file", e))?;
        let stat = stat(path, &fd)?;
        self.map(path, fd, &stat, access, len)
    }

    /// Extends a file to the end of `new`, and allocates that range.
    pub(crate) fn extend(&self, path: &Path, fd: &OwnedFd, new: Range<u64>) -> Result<(), Error> {
        let len = new.end;
        check_file_limit(path, len)?;
        if !self.sparse {
            check_room(path, fd, len - new.start)?;
        }
        rustix::fs::ftruncate(fd, len).map_err(|e| match e {
            Errno::INVAL => Error::BadLength {
                path: path.to_owned(),
                len,
                cause: "the file system refuses it; on hugetlbfs use a multiple of its page size"
                    .to_owned(),
            },
            e => Error::io(path, "set the length", e),
        })?;
        if self.sparse { Ok(()) } else { allocate(path, fd, new) }
    }

    /// Locks, classifies and maps `fd`. `len` shortens a device.
    fn map(
        &self,
        path: &Path,
        fd: OwnedFd,
        stat: &Stat,
        access: Access,
        len: Option<u64>,
    ) -> Result<Region, Error> {
        let backing = Backing::of(path, &fd, stat)?;
        let file_len = match backing {
            Backing::File { .. } => stat.st_size as u64,
            Backing::DevDax { len, .. } => len,
        };
        let need = self.min_len.max(u64::from(!self.may_be_empty));
        if file_len < need {
            return Err(Error::TooShort { path: path.to_owned(), len: file_len, need });
        }
        let lock = self.lock.unwrap_or(match access {
            Access::ReadOnly => Lock::None,
            Access::ReadWrite => Lock::Exclusive,
        });
        lock::take(path, &fd, lock, access)?;
        let mapped_len = match backing {
            // hugetlbfs would have to reserve the huge pages at once.
            Backing::File { fs, .. } if fs != FsType::Hugetlbfs => file_len.max(self.reserve),
            _ => file_len,
        };
        let (mapping, domain) = map_backing(path, &fd, stat, backing, mapped_len, access)?;
        let mapped = Mapped { mapping, grain: backing.page_bytes(), domain };
        self.finish(path, mapped, len.unwrap_or(file_len), access, Some(fd))
    }

    /// Makes the region of a mapping: applies the chosen domain, huge pages and pre-faulting.
    fn finish(
        &self,
        path: &Path,
        mapped: Mapped,
        len: u64,
        access: Access,
        file: Option<OwnedFd>,
    ) -> Result<Region, Error> {
        let Mapped { mapping, grain, domain: found } = mapped;
        let domain = self.domain.unwrap_or(found);
        if domain != found {
            tracing::warn!(path = %path.display(), %found, %domain, "persistence domain overridden");
        }
        if found == Domain::Volatile {
            // A hint: if it is refused, small pages are used.
            let _ = mapping.advise_huge();
        }
        if self.populate {
            match mapping.populate(len, access == Access::ReadWrite) {
                // Kernels before 5.14 do not have this advice.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(e) => return Err(Error::io(path, "fault in the pages", e)),
            }
        }
        tracing::debug!(path = %path.display(), len, %domain, ?access, "region mapped");
        let emulation = self.emulation.filter(|e| !e.is_off());
        Ok(Region::new(Parts {
            path: path.to_owned(),
            mapping,
            len,
            grain,
            domain,
            access,
            flush: self.flush,
            stores_lines: !self.without_line_stores,
            emulation,
            observer: self.observer.clone(),
            file,
        }))
    }
}

/// A mapping, the size of its pages in bytes, and the domain found.
struct Mapped {
    mapping: Mapping,
    grain: u64,
    domain: Domain,
}

/// Fails if a region cannot have this length.
fn check_len(path: &Path, len: u64) -> Result<(), Error> {
    let cause = match len {
        0 => "a region has at least one byte",
        _ if len > isize::MAX as u64 / 2 => "that is more than there are addresses",
        _ => return Ok(()),
    };
    Err(Error::BadLength { path: path.to_owned(), len, cause: cause.to_owned() })
}

/// Allocates the holes in a range of a file, on tmpfs with huge pages if there are any.
pub(crate) fn allocate(path: &Path, fd: &OwnedFd, range: Range<u64>) -> Result<(), Error> {
    if FsType::of(fd).is_ok_and(|(fs, _)| fs == FsType::Tmpfs) {
        huge::allocate(fd, range.clone());
    }
    let len = range.end - range.start;
    match rustix::fs::fallocate(fd, FallocateFlags::empty(), range.start, len) {
        // Some file systems cannot reserve space; go on without.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(e) => Err(Error::io(path, "allocate space", e)),
    }
}

/// Fails if the file system has too little room, before gigabytes are allocated to find that out.
pub(crate) fn check_room(path: &Path, fd: &OwnedFd, need: u64) -> Result<(), Error> {
    let Ok(fs) = rustix::fs::fstatvfs(fd) else { return Ok(()) };
    let root = rustix::process::geteuid().is_root();
    let free = fs.f_frsize.saturating_mul(if root { fs.f_bfree } else { fs.f_bavail });
    // A tmpfs without a limit reports 0 blocks.
    if fs.f_blocks == 0 || need <= free {
        return Ok(());
    }
    let cause = format!("{need} bytes more are needed, and its file system has {free} free");
    Err(Error::NoSpace { path: path.to_owned(), cause })
}

/// Fails if the length exceeds the limit of file sizes: such a file would end the process by
/// SIGXFSZ.
fn check_file_limit(path: &Path, len: u64) -> Result<(), Error> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if len > limit => Err(Error::BadLength {
            path: path.to_owned(),
            len,
            cause: format!("this process may make files of {limit} bytes (`ulimit -f`)"),
        }),
        _ => Ok(()),
    }
}

fn stat(path: &Path, fd: &OwnedFd) -> Result<Stat, Error> {
    rustix::fs::fstat(fd).map_err(|e| Error::io(path, "examine the file", e))
}

fn is_char_device(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
}

/// Maps `len` bytes of a file, by `MAP_SYNC` if its file system supports that. Returns the mapping
/// and its persistence domain.
pub(crate) fn map_backing(
    path: &Path,
    fd: &OwnedFd,
    stat: &Stat,
    backing: Backing,
    len: u64,
    access: Access,
) -> Result<(Mapping, Domain), Error> {
    let writable = access == Access::ReadWrite;
    let map = |flags| Mapping::file(fd.as_fd(), len, backing.page_bytes(), writable, flags);
    let failed = |e| Error::io(path, "map the file", e);
    match backing {
        Backing::DevDax { .. } => {
            let mapping = map(MapFlags::SHARED).map_err(failed)?;
            Ok((mapping, dev_dax_domain(stat)))
        }
        Backing::File { fs, .. } if fs.in_memory() => {
            let mapping = map(MapFlags::SHARED).map_err(failed)?;
            Ok((mapping, Domain::Volatile))
        }
        Backing::File { .. } => match map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
            Ok(mapping) => Ok((mapping, fs_dax_domain(stat))),
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                let mapping = map(MapFlags::SHARED).map_err(failed)?;
                Ok((mapping, Domain::PageCache))
            }
            Err(e) => Err(failed(e)),
        },
    }
}

/// Returns the domain of a file that was mapped with `MAP_SYNC`.
pub(crate) fn fs_dax_domain(stat: &Stat) -> Domain {
    match PlatformDomain::below(stat) {
        Some(PlatformDomain::CpuCache) => Domain::CpuCache,
        _ => Domain::MapSync,
    }
}

/// Returns the domain of a devdax device. A device without an NVDIMM region below it is volatile
/// memory (hmem, volatile CXL).
pub(crate) fn dev_dax_domain(stat: &Stat) -> Domain {
    match PlatformDomain::below(stat) {
        Some(PlatformDomain::CpuCache) => Domain::CpuCache,
        Some(_) => Domain::DevDax,
        None => Domain::Volatile,
    }
}
