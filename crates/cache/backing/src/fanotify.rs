//! `fanotify(7)`, of which `rustix` has nothing: groups, marks, events.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use vfs::{Errno, Result};

/// Bytes of the part that all events have, as `fanotify_event_metadata` says.
const METADATA: usize = size_of::<libc::fanotify_event_metadata>();
/// Of an information record about a file: its type, a byte, its length (2), and the file system (8).
const RECORD_HEAD: usize = 12;
/// A handle follows: the length of its bytes (4), its kind (4), its bytes.
const HANDLE_HEAD: usize = 8;

/// A group: what is marked by it, and a queue of events.
#[derive(Clone)]
pub struct Group(Arc<OwnedFd>);

/// What happened.
pub struct Event<'a> {
    /// `FAN_…`, several where they were merged.
    pub mask: u64,
    /// The process that did it; 0 where that is not to be known.
    pub pid: i32,
    /// The file, opened, where the group gets descriptors.
    pub fd: Option<OwnedFd>,
    /// The inode: the kind of its handle, in the CPU's order, and its bytes.
    pub object: Option<&'a [u8]>,
    /// A directory, described so, and the name in it by which it was done.
    pub entry: Option<(&'a [u8], &'a [u8])>,
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl Group {
    /// A group with these flags (`FAN_…`), which does not block whoever reads its events.
    ///
    /// # Errors
    /// `EPERM` where the process may not have such a group; `ENOSYS`, `EINVAL` where the kernel has none.
    pub fn new(flags: u32) -> Result<Self> {
        let of_events = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME;
        let flags = flags | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        // SAFETY: It takes no pointers.
        let fd = unsafe { libc::fanotify_init(flags, of_events as u32) };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: The kernel has just made it for us.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// The same by a descriptor that is higher than another group's.
    pub fn above(self, other: &Self) -> Result<Self> {
        if self.0.as_raw_fd() > other.0.as_raw_fd() {
            return Ok(self);
        }
        let fd = rustix::io::fcntl_dupfd_cloexec(&*self.0, other.0.as_raw_fd() + 1)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Adds or removes (`FAN_MARK_…`) a mark for these events on what `fd` is open on, `O_PATH` or better.
    ///
    /// # Errors
    /// What the kernel says; `EPERM` where the process may not mark it so.
    pub fn mark(&self, flags: u32, mask: u64, fd: BorrowedFd<'_>) -> Result<()> {
        let path = CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("no NUL in it");
        // SAFETY: The path ends in NUL, and is only read.
        let result = unsafe {
            let group = self.0.as_raw_fd();
            libc::fanotify_mark(group, flags, mask, libc::AT_FDCWD, path.as_ptr())
        };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// For who waits for events.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Reads events that are there, as many as `buf` holds; whether any were.
    pub fn read(&self, buf: &mut [u8], mut each: impl FnMut(Event<'_>)) -> Result<bool> {
        let len = match rustix::io::retry_on_intr(|| rustix::io::read(&*self.0, &mut *buf)) {
            Err(Errno::AGAIN) => return Ok(false),
            len => len?,
        };
        let mut rest = &buf[..len];
        // SAFETY: They were just read, and what was split off is left behind.
        while let Some((event, next)) = unsafe { split(rest) } {
            each(event?);
            rest = next;
        }
        Ok(len > 0)
    }

    /// Answers an event of permission, which `fd` came with.
    pub fn answer(&self, fd: &OwnedFd, may: bool) -> Result<()> {
        let response = if may { libc::FAN_ALLOW } else { libc::FAN_DENY };
        let mut bytes = fd.as_raw_fd().to_ne_bytes().to_vec();
        bytes.extend(response.to_ne_bytes());
        rustix::io::retry_on_intr(|| rustix::io::write(&*self.0, &bytes)).map(drop)
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The first event of what was read, and what follows it; `EPROTO` where the kernel speaks another version.
///
/// # Safety
/// The bytes were read from a group, and each event is split off once: its descriptor is nobody else's.
unsafe fn split(bytes: &[u8]) -> Option<(Result<Event<'_>>, &[u8])> {
    let head = bytes.get(..METADATA)?;
    let len = u32::from_ne_bytes(word(head, 0)?) as usize;
    let (version, head_len) = (head[4], u16::from_ne_bytes(word(head, 6)?) as usize);
    let (event, rest) = (bytes.get(..len)?, &bytes[len..]);
    let records = event.get(head_len..)?;
    let fd = i32::from_ne_bytes(word(head, 16)?);
    // SAFETY: The kernel has opened it for who reads the event, which is split off once.
    let fd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
    if version != libc::FANOTIFY_METADATA_VERSION {
        return Some((Err(Errno::PROTO), rest));
    }
    let mask = u64::from_ne_bytes(word(head, 8)?);
    let pid = i32::from_ne_bytes(word(head, 20)?);
    let mut event = Event { mask, pid, fd, object: None, entry: None };
    describe(records, &mut event);
    Some((Ok(event), rest))
}

/// Reads the information records of an event, as far as they are about files.
fn describe<'a>(mut records: &'a [u8], event: &mut Event<'a>) {
    while let Some(len) = word(records, 2).map(|len| u16::from_ne_bytes(len) as usize) {
        let Some(record) = records.get(..len).filter(|_| len > 0) else { return };
        records = &records[len..];
        let Some(bytes) = word(record, RECORD_HEAD).map(u32::from_ne_bytes) else { continue };
        // The kind stands between the length and the bytes.
        let end = RECORD_HEAD + HANDLE_HEAD + bytes as usize;
        let Some(handle) = record.get(RECORD_HEAD + 4..end) else { continue };
        let name = record[end..].split(|byte| *byte == 0).next().unwrap_or_default();
        match record[0] {
            libc::FAN_EVENT_INFO_TYPE_FID => event.object = Some(handle),
            libc::FAN_EVENT_INFO_TYPE_DFID_NAME => event.entry = Some((handle, name)),
            libc::FAN_EVENT_INFO_TYPE_DFID => event.entry = Some((handle, b".")),
            _ => {}
        }
    }
}
