//! The parts of the protocol that a server uses.

use fuser::InitFlags;

/// The capabilities that a server requests, in the order of `FUSE_INIT`.
///
/// Left out on purpose: `POSIX_LOCKS`, `FLOCK_LOCKS` (the kernel keeps locks itself),
/// `WRITEBACK_CACHE` (a write is durable on return), `ATOMIC_O_TRUNC` (the truncation then comes as
/// a `setattr`, one code path), `AUTO_INVAL_DATA` (requested only if other programs write),
/// `SPLICE_*` (`fuser` copies), `ASYNC_DIO` (asynchronous direct writes concurrent with buffered
/// readers leave stale pages, and do not move the file's position).
pub(crate) const CAPABILITIES: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_NO_OPEN_SUPPORT)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
