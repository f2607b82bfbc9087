//! Conversions between the types of the contract and those of `fuser`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo, Request, TimeOrNow};
use vfs::{
    Attr, Caller, Errno, Fallocate, FileKind, Ino, NewKind, RenameFlags, Result, Seek, SetTime,
    Timestamp,
};

/// `st_blksize`.
const BLKSIZE: u32 = 4096;

/// Returns the user and group of a requester.
pub(crate) fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid(), gid: req.gid() }
}

pub(crate) fn errno(err: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(err.raw_os_error())
}

pub(crate) fn ino(ino: INodeNo) -> Ino {
    Ino(ino.0)
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Dir => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::Char => FileType::CharDevice,
        FileKind::Block => FileType::BlockDevice,
    }
}

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLKSIZE,
        flags: 0,
    }
}

pub(crate) fn generation(attr: &Attr) -> Generation {
    Generation(u64::from(attr.generation))
}

/// Returns the attributes of a reply for "no such name" that may be cached: an entry with inode
/// number 0.
pub(crate) fn absent() -> FileAttr {
    only_kind(Ino(0), FileKind::File)
}

/// Returns attributes of which only the inode number and the kind are valid.
pub(crate) fn only_kind(ino: Ino, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLKSIZE,
        flags: 0,
    }
}

/// Converts the arguments of `mknod(2)`.
pub(crate) fn new_kind(mode: u32, rdev: u32) -> Result<NewKind<'static>> {
    Ok(match FileKind::from_mode(mode) {
        Some(FileKind::File) => NewKind::File,
        Some(FileKind::Fifo) => NewKind::Fifo,
        Some(FileKind::Socket) => NewKind::Socket,
        Some(FileKind::Char) => NewKind::Char(rdev),
        Some(FileKind::Block) => NewKind::Block(rdev),
        Some(FileKind::Dir | FileKind::Symlink) | None => return Err(Errno::INVAL),
    })
}

fn system_time(t: Timestamp) -> SystemTime {
    let magnitude = Duration::from_nanos(t.0.unsigned_abs());
    if t.0 >= 0 { UNIX_EPOCH + magnitude } else { UNIX_EPOCH - magnitude }
}

/// Converts the time in a request.
///
/// `fuser` 0.18 computes a time before 1970 as `EPOCH - (-secs) - nanos`; the kernel means `EPOCH -
/// (-secs) + nanos`. This function separates the two parts again to correct that.
pub(crate) fn timestamp(t: SystemTime) -> Timestamp {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => {
            Timestamp::from_parts(i64::try_from(d.as_secs()).unwrap_or(i64::MAX), d.subsec_nanos())
        }
        Err(before) => {
            let d = before.duration();
            let secs = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
            Timestamp::from_parts(-secs, d.subsec_nanos())
        }
    }
}

pub(crate) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(timestamp(t)),
    }
}

pub(crate) fn fallocate(mode: i32) -> Result<Fallocate> {
    const KEEP_SIZE_PUNCH_HOLE: i32 = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
    const KEEP_SIZE_ZERO_RANGE: i32 = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_ZERO_RANGE;
    Ok(match mode {
        0 => Fallocate::Allocate { keep_size: false },
        libc::FALLOC_FL_KEEP_SIZE => Fallocate::Allocate { keep_size: true },
        KEEP_SIZE_PUNCH_HOLE => Fallocate::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size: false },
        KEEP_SIZE_ZERO_RANGE => Fallocate::ZeroRange { keep_size: true },
        libc::FALLOC_FL_COLLAPSE_RANGE => Fallocate::Collapse,
        libc::FALLOC_FL_INSERT_RANGE => Fallocate::Insert,
        _ => return Err(Errno::OPNOTSUPP),
    })
}

pub(crate) fn seek(whence: i32) -> Result<Seek> {
    match whence {
        libc::SEEK_DATA => Ok(Seek::Data),
        libc::SEEK_HOLE => Ok(Seek::Hole),
        _ => Err(Errno::INVAL),
    }
}

/// Returns how to rename, and whether that leaves a whiteout.
pub(crate) fn rename_flags(flags: fuser::RenameFlags) -> Result<(RenameFlags, bool)> {
    let others = flags - fuser::RenameFlags::RENAME_WHITEOUT;
    Ok((RenameFlags::from_bits(others.bits()).ok_or(Errno::INVAL)?, others != flags))
}

/// Answers a request for `value` that has room for `size` bytes; 0 asks for the length.
pub(crate) fn reply_value(reply: fuser::ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(fuser::Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_ways() {
        for nanos in [0, 1, 999_999_999, 1_700_000_000_123_456_789, -1, -500_000_000, i64::MIN] {
            let t = Timestamp(nanos);
            let sent = system_time(t);
            let back = match sent.duration_since(UNIX_EPOCH) {
                Ok(d) => d.as_nanos() as i128,
                Err(e) => -(e.duration().as_nanos() as i128),
            };
            assert_eq!(back, i128::from(nanos));
        }
        // fuser converts (-2 s, 500 000 000 ns), which is -1.5 s, to this.
        let received = UNIX_EPOCH - Duration::new(2, 500_000_000);
        assert_eq!(timestamp(received), Timestamp(-1_500_000_000));
    }

    #[test]
    fn fallocate_modes() {
        assert_eq!(fallocate(3), Ok(Fallocate::PunchHole));
        assert_eq!(fallocate(0x11), Ok(Fallocate::ZeroRange { keep_size: true }));
        assert_eq!(fallocate(0x40), Err(Errno::OPNOTSUPP));
        assert_eq!(fallocate(2), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn whiteouts_are_no_flag_of_the_contract() {
        let whiteout = fuser::RenameFlags::RENAME_WHITEOUT;
        assert_eq!(rename_flags(whiteout), Ok((RenameFlags::empty(), true)));
        let exchange = rename_flags(fuser::RenameFlags::RENAME_EXCHANGE);
        assert_eq!(exchange, Ok((RenameFlags::EXCHANGE, false)));
        assert_eq!(rename_flags(fuser::RenameFlags::from_bits_retain(8)), Err(Errno::INVAL));
    }
}
