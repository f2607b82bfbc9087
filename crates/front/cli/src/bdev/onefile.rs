//! A file system of one file, the content of a device, on which a loop device can be set up.
//!
//! The kernel caches no pages of the file, so content is in memory only once. A barrier of the file
//! system on the loop device becomes a barrier of the pool's device. Punched holes read as zeros,
//! as `fallocate(2)` promises; the loop device relies on that.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, WriteFlags,
};
use pmbd::{BlockDevice, Durability, RequestTimes, TimedRequest, Zeroing};

use super::devices;

/// Name of the file.
pub const NAME: &str = "disk";

const DISK: INodeNo = INodeNo(2);

/// Longest request, in bytes: the kernel's own limit.
const REQUEST_BYTES: u32 = 1 << 20;

/// Requests that the kernel may send before one is answered.
const BACKGROUND_MAX: u16 = 256;

/// Block size that `stat` and `statfs` report, and granularity of discarding.
const BLOCK: u32 = 4096;

/// How long the kernel may cache names and attributes: for ever, because they never change.
const ALWAYS: Duration = Duration::from_secs(1 << 30);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system.
pub struct OneFile {
    device: Arc<dyn BlockDevice>,
    /// The pool that the kernel may use directly, and whether it does.
    pool: Option<File>,
    passed: Arc<AtomicBool>,
    /// The kernel's name for `pool`, for as long as the file is open.
    backing: Mutex<Option<BackingId>>,
    /// The times of requests.
    times: Arc<RequestTimes>,
}

impl OneFile {
    /// Creates a file with the content of `device`. If there is a `pool`, its bytes are those of
    /// the device, and `passed` becomes true if the kernel uses it directly.
    pub fn new(
        device: Arc<dyn BlockDevice>,
        pool: Option<File>,
        passed: Arc<AtomicBool>,
        times: Arc<RequestTimes>,
    ) -> Self {
        Self { device, pool, passed, backing: Mutex::default(), times }
    }

    /// Lets the kernel use the pool directly (passthrough), if it can.
    fn pass(&self, reply: &ReplyOpen) -> Option<MutexGuard<'_, Option<BackingId>>> {
        let mut backing = self.backing.lock().ok()?;
        if backing.is_none() {
            let opened = reply.open_backing(self.pool.as_ref()?);
            *backing = opened.inspect_err(|err| tracing::info!("no passthrough: {err}")).ok();
        }
        self.passed.store(backing.is_some(), Ordering::Relaxed);
        Some(backing)
    }

    /// Makes everything durable, including content that the kernel has copied directly.
    fn barrier(&self) -> Result<(), pmbd::Error> {
        if let Some(pool) = self.pool.as_ref().filter(|_| self.passed.load(Ordering::Relaxed)) {
            pool.sync_data()?;
        }
        self.device.barrier()
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let disk = ino == DISK;
        let size = if disk { self.device.size() } else { 0 };
        let write = if self.device.is_read_only() { 0 } else { 0o200 };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if disk { FileType::RegularFile } else { FileType::Directory },
            perm: if disk { 0o400 | write } else { 0o500 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }

    /// Does a request, and answers it.
    fn finish(
        &self,
        kind: TimedRequest,
        reply: ReplyEmpty,
        request: impl FnOnce() -> Result<(), pmbd::Error>,
    ) {
        let start = Instant::now();
        match request() {
            Ok(()) => {
                reply.ok();
                self.times.record(kind, start);
            }
            Err(err) => reply.error(errno(&err)),
        }
    }

    /// Writes zeros, in requests of a size that the device accepts.
    fn zero(&self, mut off: u64, len: u64, how: Zeroing) -> Result<(), pmbd::Error> {
        let end = off.saturating_add(len).min(self.device.size());
        let most = u64::from(self.device.block_sizes().maximum);
        while off < end {
            let part = most.min(end - off);
            self.device.write_zeroes(off, part, how, Durability::AtBarrier)?;
            off += part;
        }
        Ok(())
    }
}

fn errno(err: &pmbd::Error) -> Errno {
    Errno::from_i32(devices::errno(err))
}

impl Filesystem for OneFile {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_DIO;
        if self.pool.is_some() {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
            config.set_max_stack_depth(1).map_err(|_| io::ErrorKind::Unsupported)?;
        }
        let granted = wanted & config.capabilities();
        config.add_capabilities(granted).map_err(|_| io::ErrorKind::Unsupported)?;
        config.set_max_write(REQUEST_BYTES).map_err(|_| io::ErrorKind::Unsupported)?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| io::ErrorKind::Unsupported)?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&ALWAYS, &self.attr(DISK), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ALWAYS, &self.attr(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if let Some(backing) = self.pass(&reply)
            && let Some(backing) = &*backing
        {
            return reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), backing);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.device.size().saturating_sub(offset);
        let len = left.min(size.into()) as usize;
        BUFFER.with_borrow_mut(|buf| {
            if buf.len() < len {
                buf.resize(len, 0);
            }
            let start = Instant::now();
            match self.device.read(offset, &mut buf[..len]) {
                Ok(()) => {
                    reply.data(&buf[..len]);
                    self.times.record(TimedRequest::Read, start);
                }
                Err(err) => reply.error(errno(&err)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let start = Instant::now();
        match self.device.write(offset, data, Durability::AtBarrier) {
            Ok(()) => {
                reply.written(data.len() as u32);
                self.times.record(TimedRequest::Write, start);
            }
            Err(err) => reply.error(errno(&err)),
        }
    }

    /// Does nothing at a `close(2)`. After `ENOSYS` the kernel does not ask again. The same holds
    /// for extended attributes.
    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.finish(TimedRequest::Flush, reply, || self.barrier());
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (keep_space, kind) = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE => (false, TimedRequest::Discard),
            libc::FALLOC_FL_ZERO_RANGE => (true, TimedRequest::Zero),
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let how = Zeroing { keep_space, only_fast: false };
        self.finish(kind, reply, || self.zero(offset, length, how));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.device.size() / u64::from(BLOCK);
        reply.statfs(blocks, 0, 0, 2, 0, BLOCK, NAME.len() as u32, BLOCK);
    }
}
