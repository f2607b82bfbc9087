//! `fanotify(7)`, which `rustix` lacks: groups, marks, events.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use vfs::{Errno, Result};

/// The size of the part that all events have (`fanotify_event_metadata`), in bytes.
const METADATA: usize = size_of::<libc::fanotify_event_metadata>();
/// The size of the head of an information record about a file, in bytes: its type (1), a byte, its
/// length (2), and the file system (8).
const RECORD_HEAD: usize = 12;
/// The size of the head of the handle that follows, in bytes: the length of the handle's bytes (4)
/// and its kind (4).
const HANDLE_HEAD: usize = 8;

/// A group: a set of marks and a queue of events.
#[derive(Clone)]
pub struct Group(Arc<OwnedFd>);

/// An event.
pub struct Event<'a> {
    /// The flags `FAN_…`; several if events were merged.
    pub mask: u64,
    /// The process that caused it; 0 if that is unknown.
    pub pid: i32,
    /// The open file, if the group gets descriptors.
    pub fd: Option<OwnedFd>,
    /// The inode: the kind of its handle in the CPU's byte order, and its bytes.
    pub object: Option<&'a [u8]>,
    /// The handle of a directory, in the same form, and the name in it that was used.
    pub entry: Option<(&'a [u8], &'a [u8])>,
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl Group {
    /// Makes a group with these flags (`FAN_…`). Reading its events does not block.
    ///
    /// # Errors
    /// `EPERM` if the process may not have such a group; `ENOSYS` or `EINVAL` if the kernel does
    /// not support it.
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

    /// Returns the group with a descriptor that is higher than another group's.
    pub fn above(self, other: &Self) -> Result<Self> {
        if self.0.as_raw_fd() > other.0.as_raw_fd() {
            return Ok(self);
        }
        let fd = rustix::io::fcntl_dupfd_cloexec(&*self.0, other.0.as_raw_fd() + 1)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Adds or removes (`FAN_MARK_…`) a mark for these events on the file of `fd`, which is open
    /// with `O_PATH` or better.
    ///
    /// # Errors
    /// The kernel's errors; `EPERM` if the process may not make such a mark.
    pub fn mark(&self, flags: u32, mask: u64, fd: BorrowedFd<'_>) -> Result<()> {
        let path = CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("no NUL in it");
        // SAFETY: The path ends in NUL, and is only read.
        let result = unsafe {
            let group = self.0.as_raw_fd();
            libc::fanotify_mark(group, flags, mask, libc::AT_FDCWD, path.as_ptr())
        };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// Returns the descriptor, for polling.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Reads pending events, as many as fit into `buf`. Returns whether there were any.
    pub fn read(&self, buf: &mut [u8], mut each: impl FnMut(Event<'_>)) -> Result<bool> {
        let len = match rustix::io::retry_on_intr(|| rustix::io::read(&*self.0, &mut *buf)) {
            Err(Errno::AGAIN) => return Ok(false),
            len => len?,
        };
        let mut rest = &buf[..len];
        // SAFETY: The bytes were just read, and `rest` no longer has the events that were split
        // off.
        while let Some((event, next)) = unsafe { split(rest) } {
            each(event?);
            rest = next;
        }
        Ok(len > 0)
    }

    /// Answers a permission event, which came with `fd`: the process may go on.
    pub fn permit(&self, fd: &OwnedFd) -> Result<()> {
        let mut bytes = fd.as_raw_fd().to_ne_bytes().to_vec();
        bytes.extend(libc::FAN_ALLOW.to_ne_bytes());
        rustix::io::retry_on_intr(|| rustix::io::write(&*self.0, &bytes)).map(drop)
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Splits the first event from the bytes that were read. Returns it and the rest; `EPROTO` if the
/// kernel uses another version of the protocol.
///
/// # Safety
/// The bytes were read from a group, and each event is split off only once, so that its descriptor
/// has no other owner.
unsafe fn split(bytes: &[u8]) -> Option<(Result<Event<'_>>, &[u8])> {
    let head = bytes.get(..METADATA)?;
    let len = u32::from_ne_bytes(word(head, 0)?) as usize;
    let (version, head_len) = (head[4], u16::from_ne_bytes(word(head, 6)?) as usize);
    let (event, rest) = (bytes.get(..len)?, &bytes[len..]);
    let records = event.get(head_len..)?;
    let fd = i32::from_ne_bytes(word(head, 16)?);
    // SAFETY: The kernel opened it for the reader of the event, which is split off once.
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

/// Reads the information records of an event that concern files.
fn describe<'a>(mut records: &'a [u8], event: &mut Event<'a>) {
    while let Some(len) = word(records, 2).map(|len| u16::from_ne_bytes(len) as usize) {
        let Some(record) = records.get(..len).filter(|_| len > 0) else { return };
        records = &records[len..];
        let Some(bytes) = word(record, RECORD_HEAD).map(u32::from_ne_bytes) else { continue };
        // The kind is between the length and the bytes.
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
