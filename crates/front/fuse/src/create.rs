//! Creating files: with a name, which another process may take first, and without.
//!
//! The kernel sends a request to create if it knows of no such name, also if the program would open
//! an existing file. It would pass `EEXIST` on to that program. After `ESTALE` it looks the name up
//! again, once, and opens the file by its own rules. The name may be gone by then and be back at
//! the next request. So the server answers the common case at once: a regular file of the caller's
//! own, whose mode grants the access that the program wants. No rule of the kernel could refuse
//! that one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{FileHandle, INodeNo, ReplyCreate, Request};
use mounts::Ticket;
use vfs::{Caller, Entry, Errno, FileKind, FileSystem, Ino, NewNode, Result, SetAttr};

use crate::convert::caller;
use crate::counters::CountedOp;
use crate::server::Server;
use crate::{alias, convert};

/// Attempts to use a name that appears and disappears.
const ATTEMPTS: u32 = 100;

/// A file, and whether the request has made it.
struct Opened {
    entry: Entry,
    is_new: bool,
}

impl Server {
    /// Answers a request to create a file, and to open it.
    pub(crate) fn create_file(
        &self,
        req: &Request,
        (parent, name): (INodeNo, &OsStr),
        node: &NewNode<'_>,
        flags: i32,
        reply: ReplyCreate,
    ) {
        if self.options.caching.skip_opens {
            // The kernel then sends `mknod`, and needs no `release`.
            self.options.counters.count(CountedOp::Create);
            return reply.error(fuser::Errno::ENOSYS);
        }
        let now = self.caching();
        // The name of a ticket works once.
        let is_ticket = self.in_alias_dir(parent).is_some();
        let created = self.call(CountedOp::Create, |fs| {
            if let Some(shared) = self.in_alias_dir(parent) {
                // A process that opens it by a ticket counts its mappings itself.
                let ticket = Ticket::parse(name.as_bytes()).ok_or(Errno::NOENT)?;
                let opening = alias::announced(&*shared.events, ticket, req, true);
                let entry = alias::lookup(fs, &opening.ok_or(Errno::NOENT)?)?;
                self.note_alias(parent, name, INodeNo(entry.ino.0));
                let handle = FileHandle(self.begin_stores(INodeNo(entry.ino.0), flags));
                return Ok((Opened { entry, is_new: true }, handle));
            }
            let place = (convert::ino(parent), name.as_bytes());
            let opened = create_or_open(fs, &caller(req), place, node, flags)?;
            let ino = opened.entry.ino;
            if !opened.is_new && flags & libc::O_TRUNC != 0 {
                self.before_new_size(ino);
            }
            let handle =
                self.begin_use(INodeNo(ino.0), flags).inspect_err(|_| fs.forget(ino, 1))?;
            self.note_name(parent, name, INodeNo(ino.0));
            Ok((opened, handle))
        });
        match created {
            Ok((Opened { entry, is_new }, handle)) => reply.created(
                if is_ticket { &Duration::ZERO } else { &now.ttl },
                &convert::file_attr(&entry),
                convert::generation(&entry),
                handle,
                self.open_flags(&now, (INodeNo(entry.ino.0), is_new), (flags, handle), req.pid()),
            ),
            Err(err) => reply.error(err),
        }
    }

    /// Answers a request to make a file without a name, and to open it.
    pub(crate) fn create_nameless(
        &self,
        req: &Request,
        parent: INodeNo,
        node: &NewNode<'_>,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let now = self.caching();
        let made = self.call(CountedOp::Tmpfile, |fs| {
            if self.in_alias_dir(parent).is_some() {
                return Err(Errno::OPNOTSUPP);
            }
            let entry = fs.tmpfile(&caller(req), convert::ino(parent), node.mode, node.umask)?;
            let ino = INodeNo(entry.ino.0);
            let handle = self.begin_use(ino, flags).inspect_err(|_| fs.forget(entry.ino, 1))?;
            self.note_nameless(ino);
            Ok((entry, handle))
        });
        match made {
            Ok((entry, handle)) => reply.created(
                &now.ttl,
                &convert::file_attr(&entry),
                convert::generation(&entry),
                handle,
                self.open_flags(&now, (INodeNo(entry.ino.0), true), (flags, handle), req.pid()),
            ),
            Err(err) => reply.error(err),
        }
    }
}

/// Creates `name` in `dir`, or opens it if it exists and `flags` are without `O_EXCL`. Adds a
/// reference.
///
/// # Errors
/// `STALE` if the kernel is to look the name up again.
fn create_or_open(
    fs: &dyn FileSystem,
    caller: &Caller,
    (dir, name): (Ino, &[u8]),
    node: &NewNode<'_>,
    flags: i32,
) -> Result<Opened> {
    for _ in 0..ATTEMPTS {
        match fs.create(caller, dir, name, node) {
            Ok(entry) => return Ok(Opened { entry, is_new: true }),
            Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => {}
            Err(err) => return Err(err),
        }
        match fs.lookup(dir, name) {
            Ok(entry) => return open(fs, caller, entry, flags),
            Err(Errno::NOENT) => {}
            Err(err) => return Err(err),
        }
    }
    Err(Errno::STALE)
}

/// Opens the file that the lookup has found. Takes the reference back if it cannot be opened here.
fn open(fs: &dyn FileSystem, caller: &Caller, entry: Entry, flags: i32) -> Result<Opened> {
    let ino = entry.ino;
    let opened = if !may_open(caller, &entry, flags) {
        Err(Errno::STALE)
    } else if flags & libc::O_TRUNC != 0 {
        // As the kernel truncates: a process without privileges loses set-user-ID.
        let dropped = if caller.uid == 0 { Ok(()) } else { fs.drop_privileges(ino) };
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        dropped.and_then(|()| fs.setattr(caller, ino, &empty))
    } else {
        Ok(entry)
    };
    let opened = opened.inspect_err(|_| fs.forget(ino, 1));
    opened.map(|entry| Opened { entry, is_new: false })
}

/// Whether no rule could refuse the caller: it owns the regular file, and the owner's bits grant
/// the access.
fn may_open(caller: &Caller, attr: &Entry, flags: i32) -> bool {
    const READ: u32 = 0o400;
    const WRITE: u32 = 0o200;
    let mut wanted = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    };
    if flags & libc::O_TRUNC != 0 {
        wanted |= WRITE;
    }
    attr.kind == FileKind::File && attr.uid == caller.uid && attr.perm & wanted == wanted
}
