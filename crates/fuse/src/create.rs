//! Creating a file whose name another process may take first.
//!
//! The kernel asks to create where it knows of no such name, also if the program would open an existing file. It would pass
//! `EEXIST` on to that program. `ESTALE` makes it look the name up again, once, and open by its own rules what is there. The
//! name may be gone by then and be back at the next request, so the common case is served at once: a regular file of the
//! caller's own, whose mode grants what the program asks for. No rule of the kernel's could refuse that one.

use vfs::{Caller, Entry, Errno, FileKind, FileSystem, Ino, NewNode, Result, SetAttr};

/// Attempts at a name that comes and goes.
const ATTEMPTS: u32 = 100;

/// A file, and whether the request has made it.
pub(crate) struct Opened {
    pub entry: Entry,
    pub is_new: bool,
}

/// Creates `name` in `dir`, or opens it if it exists and `flags` are without `O_EXCL`. Adds a reference.
///
/// # Errors
/// `STALE` if the kernel is to look the name up again.
pub(crate) fn create_or_open(
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

/// Opens what the lookup has found. Takes the reference back if it cannot be opened here.
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

/// Whether no rule could refuse the caller: it owns the regular file, and the owner's bits grant the access.
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
