//! Each request becomes one call of the contract.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, FopenFlags, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use mounts::SNAPSHOTS_DIR;
use vfs::{CLONE_UNIT, Errno, Need, NewKind, NewNode, SetAttr, SetXattr, access};

use crate::capabilities::CAPABILITIES;
use crate::counters::CountedOp;
use crate::options::StatsReader;
use crate::server::Server;
use crate::workers::begin;
use crate::{alias, convert, listing, setgid};

/// Largest write in one request, in bytes; the kernel splits a longer `write(2)`.
const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Requests that the kernel may have in flight without a waiting process (read-ahead, mapped pages,
/// asynchronous direct I/O). The kernel counts those of all users together; beyond this number all
/// users wait. So it is larger than the number of waiting requests that one user can have
/// ([`Workers`](crate::workers)).
const BACKGROUND_MAX: u16 = 4096;

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl fuser::Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut granted = CAPABILITIES & config.capabilities();
        if self.options.caching.writeback {
            granted |= InitFlags::FUSE_WRITEBACK_CACHE & config.capabilities();
        }
        // A kernel without this capability would take `ENOSYS` to an open for a failure.
        self.options.caching.skip_opens &= granted.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        config.add_capabilities(granted).expect("a subset of what the kernel offers");
        config.set_max_write(MAX_WRITE_BYTES).expect("within fuser's limit");
        config.set_max_background(BACKGROUND_MAX).expect("not zero");
        tracing::debug!("kernel ABI {}, capabilities {granted:?}", config.kernel_abi());
        Ok(())
    }

    /// Closes the engine: after an unmount all is durable, whatever the engine promised before.
    fn destroy(&mut self) {
        if let Err(err) = self.fs.close() {
            tracing::error!("what was changed last may not be durable: {err}");
        }
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        begin!(self, reply, [req, name], lookup(&req, parent, &name, reply));
        if self.is_alias_dir(parent, name) {
            self.options.counters.count(CountedOp::Lookup);
            return reply.entry(&alias::DIR_TTL, &alias::dir_attr(), fuser::Generation(0));
        }
        if self.in_alias_dir(parent).is_some() {
            // The kernel then sends a request to create it.
            self.options.counters.count(CountedOp::Lookup);
            return reply.error(fuser::Errno::ENOENT);
        }
        let now = self.caching();
        let alias = self.announced_in(req, (parent, name));
        let is_kept = alias.is_none() && !Self::is_of_snapshots((parent, name));
        let found = match &alias {
            Some(opening) => self.call(CountedOp::Lookup, |fs| alias::lookup(fs, opening)),
            None => {
                self.call(CountedOp::Lookup, |fs| fs.lookup(convert::ino(parent), name.as_bytes()))
            }
        };
        match found {
            Ok(entry) => {
                let attr = convert::file_attr(&entry);
                match alias {
                    Some(_) => self.note_alias(parent, name, attr.ino),
                    None => self.note_name(parent, name, attr.ino),
                }
                let ttl = if is_kept { &now.ttl } else { &Duration::ZERO };
                reply.entry(ttl, &attr, convert::generation(&entry));
            }
            Err(fuser::Errno::ENOENT) if is_kept => {
                match self.ttl_of_absent(&now, (parent, name)) {
                    Some(ttl) => reply.entry(ttl, &convert::absent(), fuser::Generation(0)),
                    None => reply.error(fuser::Errno::ENOENT),
                }
            }
            Err(err) => reply.error(err),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if self.in_alias_dir(ino).is_some() {
            return self.options.counters.count(CountedOp::Forget);
        }
        if let Some(shared) = &self.shared {
            shared.names.forget(ino, nlookup);
        }
        self.holes.forget(convert::ino(ino));
        let _ = self.call(CountedOp::Forget, |fs| {
            fs.forget(convert::ino(ino), nlookup);
            Ok(())
        });
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        begin!(self, reply, [req], getattr(&req, ino, _fh, reply));
        if self.in_alias_dir(ino).is_some() {
            self.options.counters.count(CountedOp::GetAttr);
            return reply.attr(&alias::DIR_TTL, &alias::dir_attr());
        }
        self.attr(CountedOp::GetAttr, reply, |fs| fs.getattr(convert::ino(ino)));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        begin!(
            self,
            reply,
            [req],
            setattr(
                &req, ino, mode, uid, gid, size, atime, mtime, ctime, _fh, _crtime, _chgtime,
                _bkuptime, _flags, reply
            )
        );
        let ino = convert::ino(ino);
        let set = SetAttr {
            perm: mode.map(|m| m & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            ctime: ctime.map(convert::timestamp),
        };
        self.attr(CountedOp::SetAttr, reply, |fs| {
            // While it changes a size, the kernel writes no pages back.
            if set.mtime.is_some() && set.size.is_none() {
                self.write_pages_back(ino);
            }
            if set.size.is_some() {
                self.drop_privileges_for(fs, req, ino)?;
            } else if set == SetAttr::default() {
                self.drop_before_write(fs, req, ino)?;
            }
            let set = self.check_change(fs, req, ino, set)?;
            let attr = fs.setattr(&convert::caller(req), ino, &set)?;
            if set.size.is_some() {
                self.before_new_size(ino);
            }
            Ok(attr)
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        begin!(self, reply, [req], readlink(&req, ino, reply));
        match self.call(CountedOp::ReadLink, |fs| fs.readlink(convert::ino(ino))) {
            Ok(target) => reply.data(&target),
            Err(err) => reply.error(err),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        begin!(self, reply, [req, name], mknod(&req, parent, &name, mode, umask, rdev, reply));
        self.entry(CountedOp::MkNod, reply, (parent, name), |fs| {
            let kind = convert::new_kind(mode, rdev)?;
            let node = NewNode { kind, mode: mode & 0o7777, umask };
            fs.create(&convert::caller(req), convert::ino(parent), name.as_bytes(), &node)
        });
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        begin!(self, reply, [req, name], mkdir(&req, parent, &name, mode, umask, reply));
        let node = NewNode { kind: NewKind::Dir, mode: mode & 0o7777, umask };
        self.entry(CountedOp::MkDir, reply, (parent, name), |fs| {
            fs.create(&convert::caller(req), convert::ino(parent), name.as_bytes(), &node)
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        begin!(self, reply, [req, name], unlink(&req, parent, &name, reply));
        self.change_names(CountedOp::Unlink, reply, (parent, name), None, |fs| {
            self.check_sticky(fs, req, (parent, name))?;
            fs.unlink(convert::ino(parent), name.as_bytes())
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        begin!(self, reply, [req, name], rmdir(&req, parent, &name, reply));
        self.change_names(CountedOp::RmDir, reply, (parent, name), None, |fs| {
            self.check_sticky(fs, req, (parent, name))?;
            fs.rmdir(convert::ino(parent), name.as_bytes())
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        begin!(
            self,
            reply,
            [req, link_name, target],
            symlink(&req, parent, &link_name, &target, reply)
        );
        let kind = NewKind::Symlink(target.as_os_str().as_bytes());
        let node = NewNode { kind, mode: 0o777, umask: 0 };
        self.entry(CountedOp::Symlink, reply, (parent, link_name), |fs| {
            fs.create(&convert::caller(req), convert::ino(parent), link_name.as_bytes(), &node)
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        begin!(
            self,
            reply,
            [req, name, newname],
            rename(&req, parent, &name, newparent, &newname, flags, reply)
        );
        self.change_names(
            CountedOp::Rename,
            reply,
            (parent, name),
            Some((newparent, newname)),
            |fs| {
                self.check_sticky(fs, req, (parent, name))?;
                self.check_sticky(fs, req, (newparent, newname))?;
                let from = (convert::ino(parent), name.as_bytes());
                let to = (convert::ino(newparent), newname.as_bytes());
                match convert::rename_flags(flags)? {
                    (flags, true) => fs.rename_whiteout(&convert::caller(req), from, to, flags),
                    (flags, false) => fs.rename(from, to, flags),
                }
            },
        );
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        begin!(self, reply, [req, newname], link(&req, ino, newparent, &newname, reply));
        self.entry(CountedOp::Link, reply, (newparent, newname), |fs| {
            fs.link(convert::ino(ino), convert::ino(newparent), newname.as_bytes())
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        begin!(self, reply, [req], open(&req, ino, flags, reply));
        self.options.counters.count(CountedOp::Open);
        if self.options.caching.skip_opens {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let now = self.caching();
        match self.begin_use(ino, flags.0) {
            Ok(handle) => {
                let how = self.open_flags(&now, (ino, false), (flags.0, handle), req.pid());
                reply.opened(handle, how);
            }
            Err(err) => reply.error(convert::errno(err)),
        }
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        begin!(self, reply, [req], read(&req, ino, fh, offset, size, flags, lock_owner, reply));
        READ_BUFFER.with_borrow_mut(|buf| {
            let size = size as usize;
            if buf.len() < size {
                buf.resize(size, 0);
            }
            let ino = convert::ino(ino);
            let read = self.call(CountedOp::Read, |fs| {
                // A read by a call has an owner, a read of pages has none.
                if lock_owner.is_none() {
                    self.check_page(ino, fh, false)?;
                }
                let mut read = || fs.read(ino, offset, &mut buf[..size]);
                let len = match flags.0 & libc::O_NOATIME {
                    0 => read(),
                    _ => access::unrecorded(read),
                }?;
                if lock_owner.is_none() {
                    self.holes.note_pages(ino, offset, &buf[..len]);
                }
                Ok(len)
            });
            match read {
                Ok(len) => {
                    self.options.counters.add_read(len);
                    reply.data(&buf[..len]);
                }
                Err(err) => reply.error(err),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        begin!(
            self,
            reply,
            [req, data],
            write(&req, ino, fh, offset, &data, write_flags, flags, _lock_owner, reply)
        );
        let ino = convert::ino(ino);
        let written = self.call(CountedOp::Write, |fs| {
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_privileges(fs, ino)?;
            }
            // The kernel writes back mapped pages, to the place from which it read them.
            let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
            if mapped {
                self.check_page(ino, fh, true)?;
            }
            // The kernel may not know the end of the file.
            if self.shared.is_some() && flags.0 & libc::O_APPEND != 0 && !mapped {
                fs.append(ino, data)?;
            } else {
                fs.write(ino, offset, data)?;
            }
            // Pages never change the size, and a process that opens the file may be waiting for
            // them.
            if !mapped {
                self.before_new_size(ino);
            }
            Ok(())
        });
        match written {
            Ok(()) => {
                self.options.counters.add_written(data.len());
                reply.written(data.len() as u32);
            }
            Err(err) => reply.error(err),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // The kernel still writes mapped pages back at the point where it would have sent the
        // request.
        self.never_again(CountedOp::Flush, reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.options.counters.count(CountedOp::Release);
        self.end_use(ino, fh);
        reply.ok();
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        begin!(self, reply, [req], fsync(&req, ino, _fh, _datasync, reply));
        self.sync(CountedOp::FSync, ino, reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        begin!(self, reply, [req], opendir(&req, ino, _flags, reply));
        self.options.counters.count(CountedOp::OpenDir);
        let now = self.caching();
        if let Some(handle) = self.open_snapshot_dir(ino) {
            // The kernel keeps no listing, as snapshots are made and deleted.
            return reply.opened(handle, FopenFlags::empty());
        }
        if !now.keep_cache {
            reply.opened(FileHandle(0), FopenFlags::empty());
        } else if self.shared.is_some() {
            // It drops them on every change of its own.
            let keeps = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
            reply.opened(FileHandle(0), keeps);
        } else {
            // The kernel asks no more, and then also keeps listings.
            reply.error(fuser::Errno::ENOSYS);
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.end_use(ino, fh);
        reply.ok();
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        begin!(self, reply, [req], readdir(&req, ino, _fh, offset, reply));
        if self.in_alias_dir(ino).is_some() {
            self.options.counters.count(CountedOp::ReadDir);
            return reply.ok();
        }
        let listed = self.call(CountedOp::ReadDir, |fs| {
            fs.readdir(convert::ino(ino), offset, &mut |entry| {
                let name = OsStr::from_bytes(entry.name);
                let kind = convert::file_type(entry.kind);
                !reply.add(INodeNo(entry.ino.0), entry.cookie, kind, name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(err) => reply.error(err),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        begin!(self, reply, [req], readdirplus(&req, ino, _fh, offset, reply));
        if self.in_alias_dir(ino).is_some() {
            self.options.counters.count(CountedOp::ReadDirPlus);
            return reply.ok();
        }
        let now = self.caching();
        let listed = self.call(CountedOp::ReadDirPlus, |fs| {
            let note = |name: &OsStr, found| self.note_name(ino, name, found);
            let dir = convert::ino(ino);
            let ttl = if dir == SNAPSHOTS_DIR { Duration::ZERO } else { now.ttl };
            listing::add_entries(fs, (dir, offset), &ttl, &note, &mut reply)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(err) => reply.error(err),
        }
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        begin!(self, reply, [req], fsyncdir(&req, ino, _fh, _datasync, reply));
        self.sync(CountedOp::FSyncDir, ino, reply);
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        begin!(self, reply, [req], statfs(&req, _ino, reply));
        match self.call(CountedOp::StatFs, |fs| Ok(fs.statfs())) {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_available,
                s.inodes,
                s.inodes_free,
                s.block_size,
                self.fs.limits().name as u32,
                s.block_size,
            ),
            Err(err) => reply.error(err),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        begin!(
            self,
            reply,
            [req, name, value],
            setxattr(&req, ino, &name, &value, flags, _position, reply)
        );
        let computed = self.stats_of(ino, name).is_some();
        let ino = convert::ino(ino);
        self.empty(CountedOp::SetXattr, reply, |fs| {
            if computed {
                return Err(Errno::PERM);
            }
            let mode = match flags {
                0 => SetXattr::Any,
                libc::XATTR_CREATE => SetXattr::Create,
                libc::XATTR_REPLACE => SetXattr::Replace,
                _ => return Err(Errno::INVAL),
            };
            self.check_right(fs, req, (ino, name), true)?;
            fs.setxattr(ino, name.as_bytes(), value, mode)?;
            setgid::clear_for_stranger(fs, req, ino, name.as_bytes())
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        begin!(self, reply, [req, name], getxattr(&req, ino, &name, size, reply));
        let reader = StatsReader::of(req.uid());
        let value = self.call(CountedOp::GetXattr, |fs| match self.stats_of(ino, name) {
            Some((stats, is_brief)) => Ok(stats(reader, is_brief)),
            None if self.in_alias_dir(ino).is_some() => Err(Errno::NODATA),
            None => {
                self.check_right(fs, req, (convert::ino(ino), name), false)?;
                fs.getxattr(convert::ino(ino), name.as_bytes())
            }
        });
        match value {
            Ok(value) => convert::reply_value(reply, size, &value),
            Err(err) => reply.error(err),
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        begin!(self, reply, [req], listxattr(&req, ino, size, reply));
        match self.call(CountedOp::ListXattr, |fs| fs.listxattr(convert::ino(ino))) {
            Ok(names) => {
                // Like the kernel's own file systems: only the superuser sees trusted names.
                let visible = |name: &&Vec<u8>| req.uid() == 0 || !name.starts_with(b"trusted.");
                let terminated = names.iter().filter(visible).flat_map(|name| [name, &b"\0"[..]]);
                convert::reply_value(reply, size, &terminated.collect::<Vec<_>>().concat());
            }
            Err(err) => reply.error(err),
        }
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        begin!(self, reply, [req, name], removexattr(&req, ino, &name, reply));
        let computed = self.stats_of(ino, name).is_some();
        self.empty(CountedOp::RemoveXattr, reply, |fs| {
            if computed {
                return Err(Errno::PERM);
            }
            self.check_right(fs, req, (convert::ino(ino), name), true)?;
            fs.removexattr(convert::ino(ino), name.as_bytes())?;
            self.privileges.note_removed(req, ino, name);
            Ok(())
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        begin!(self, reply, [req, name], create(&req, parent, &name, mode, umask, flags, reply));
        let node = NewNode { kind: NewKind::File, mode: mode & 0o7777, umask };
        self.create_file(req, (parent, name), &node, flags, reply);
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: INodeNo,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        begin!(self, reply, [req], tmpfile(&req, parent, mode, umask, flags, reply));
        let node = NewNode { kind: NewKind::File, mode: mode & 0o7777, umask };
        self.create_nameless(req, parent, &node, flags, reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        begin!(
            self,
            reply,
            [req, in_data],
            ioctl(&req, ino, _fh, _flags, cmd, &in_data, _out_size, reply)
        );
        if cmd == Need::COMMAND {
            return match self.load(req, ino, in_data) {
                Ok(result) => reply.ioctl(result, &[]),
                Err(err) => reply.error(err),
            };
        }
        reply.error(fuser::Errno::ENOTTY);
    }

    fn poll(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        begin!(self, reply, [req], poll(&req, _ino, _fh, _ph, _events, _flags, reply));
        // The kernel then answers itself: a file is always ready.
        self.options.counters.count(CountedOp::Poll);
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        begin!(self, reply, [req], fallocate(&req, ino, _fh, offset, length, mode, reply));
        let ino = convert::ino(ino);
        self.empty(CountedOp::Fallocate, reply, |fs| {
            let mode = convert::fallocate(mode)?;
            self.drop_privileges_for(fs, req, ino)?;
            fs.fallocate(ino, mode, offset, length)?;
            self.before_new_size(ino);
            Ok(())
        });
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        begin!(self, reply, [req], lseek(&req, ino, _fh, offset, whence, reply));
        let found = self.call(CountedOp::Lseek, |fs| {
            let whence = convert::seek(whence)?;
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            let hears_opens = !self.options.caching.skip_opens;
            self.holes.seek(fs, convert::ino(ino), (offset, whence), hears_opens)
        });
        match found {
            Ok(offset) => reply.offset(offset as i64),
            Err(err) => reply.error(err),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        begin!(
            self,
            reply,
            [req],
            copy_file_range(
                &req, ino_in, _fh_in, offset_in, ino_out, _fh_out, offset_out, len, flags, reply
            )
        );
        let to = convert::ino(ino_out);
        let copied = self.call(CountedOp::CopyFileRange, |fs| {
            if !flags.is_empty() {
                return Err(Errno::INVAL);
            }
            self.drop_privileges_for(fs, req, to)?;
            // The reply has 32 bits for the count. Whole blocks can be shared.
            let len = len.min(u64::from(u32::MAX) + 1 - CLONE_UNIT);
            let copied = fs.copy_range((convert::ino(ino_in), offset_in), (to, offset_out), len)?;
            self.before_new_size(to);
            Ok(copied)
        });
        match copied {
            Ok(len) => reply.written(len as u32),
            Err(err) => reply.error(err),
        }
    }
}
