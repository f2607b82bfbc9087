//! Calls on a pool with a backing store, by any process: what a call needs is loaded, and the call
//! is repeated.
//!
//! - loader-L1: a call is repeated only after an error that changed nothing: [`ABSENT`] (backed-K1)
//!   or `ENOSPC` (vfs-C2).
//! - loader-L2: the error of a load is the error of the call.
//! - loader-L3: a read of more than the pool has room for is done in pieces, so it is not atomic.
//! - loader-L4: syncs, or all changes of content, wait for the backing store if the pool is set so
//!   ([`WaitingCalls`]). If that fails, the call fails, and the pool keeps the change.
//!
//! The server of the pool loads by itself. Another process [sends](Need::to_bytes) its needs to the
//! server.

use crate::{
    ABSENT, Attr, Backed, Caller, DirEntry, Durability, Entry, Errno, Fallocate, FileSystem, Ino,
    Mappings, NewNode, Openings, RenameFlags, Result, Seek, SetAttr, SetXattr, StatFs,
    WaitingCalls,
};

/// Most bytes that one call copies between files.
const COPY_MAX: u64 = 16 << 20;
/// The same as a part of the pool: the pool has to have room for both ranges at once.
const COPY_SHARE: u64 = 16;

/// Attempts of a call that finds nothing to load, while other threads evict what it needs.
const IDLE_ATTEMPTS: u32 = 16;

/// Attempts of a call, while other calls evict what it has loaded.
const ATTEMPTS: u32 = 64;

/// Bytes of room that a call without content needs.
const ROOM: u64 = 64 << 10;

/// Bytes that are read at once if a pool has no room for more.
const PIECE: usize = 256 << 10;

/// A part of the pool that a call may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// All names of a directory.
    Names(Ino),
    /// The same, and that its entry of this name can go.
    Removal(Ino, &'a [u8]),
    /// A range of a file's content, from a byte up to another one or the end of the file.
    Content(Ino, u64, u64),
    /// The same; if it reaches behind the end, also the last block.
    Extension(Ino, u64, u64),
    /// The holes of a file from a byte on.
    Holes(Ino, u64),
    /// Free space in the pool, in bytes.
    Room(u64),
    /// An inode with a name, or everything, in the backing store, durably there.
    Synced(Option<Ino>),
}

impl<'a> Need<'a> {
    /// Bytes of a need that is sent: four numbers, and a name.
    pub const LEN: usize = LEN;
    /// The command by which it is sent: `_IOW('K', 2, char[LEN])`.
    pub const COMMAND: u32 = 1 << 30 | (LEN as u32) << 16 | (b'K' as u32) << 8 | 2;

    /// Encodes it: its kind with the length of its name in the high half, up to three numbers in
    /// the machine's byte order, and the name. `None` if the name is too long.
    pub fn to_bytes(&self) -> Option<[u8; LEN]> {
        let (kind, numbers, name): (u64, [u64; 3], &[u8]) = match *self {
            Self::Names(dir) => (1, [dir.0, 0, 0], b""),
            Self::Removal(dir, name) => (2, [dir.0, 0, 0], name),
            Self::Content(ino, start, end) => (3, [ino.0, start, end], b""),
            Self::Extension(ino, start, end) => (4, [ino.0, start, end], b""),
            Self::Holes(ino, from) => (5, [ino.0, from, 0], b""),
            Self::Room(bytes) => (6, [0, bytes, 0], b""),
            Self::Synced(ino) => (7, [ino.map_or(0, |ino| ino.0), 0, 0], b""),
        };
        let mut bytes = [0; LEN];
        let (head, tail) = bytes.split_at_mut(32);
        tail.get_mut(..name.len())?.copy_from_slice(name);
        let [first, second, third] = numbers;
        let words = [kind | (name.len() as u64) << 32, first, second, third];
        for (to, word) in head.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        Some(bytes)
    }

    /// Decodes what [`to_bytes`](Self::to_bytes) has made; `None` for anything else.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (head, tail) = bytes.split_at_checked(32).filter(|_| bytes.len() == LEN)?;
        let word = |i: usize| {
            let word = head.get(8 * i..8 * i + 8)?.try_into().ok()?;
            Some(u64::from_ne_bytes(word))
        };
        let (kind, ino) = (word(0)?, Ino(word(1)?));
        let name = tail.get(..usize::try_from(kind >> 32).ok()?)?;
        Some(match kind as u32 {
            1 => Self::Names(ino),
            2 => Self::Removal(ino, name),
            3 => Self::Content(ino, word(2)?, word(3)?),
            4 => Self::Extension(ino, word(2)?, word(3)?),
            5 => Self::Holes(ino, word(2)?),
            6 => Self::Room(word(2)?),
            7 => Self::Synced(Some(ino).filter(|ino| ino.0 != 0)),
            _ => return None,
        })
    }
}

/// The prefix of extended attributes that are commands for the server of a pool with a backing
/// store. No file system has attributes of such names.
pub const COMMANDS: &str = "keepstone.cache.";

/// The extended attribute with the mode of durability of one file, which can be stronger than that
/// of its pool.
pub const DATA: &[u8] = b"user.keepstone.data";

/// Longest name in a need.
const NAME_MAX: usize = 255;
/// Bytes of a need that is sent.
const LEN: usize = 32 + NAME_MAX;

/// A pool with a backing store in a process that uses it. It is a file system without absent parts,
/// because its calls load what they need.
pub trait Loader: Mappings + Openings + Send + Sync {
    /// The type of the pool.
    type Pool: FileSystem + ?Sized;

    /// Returns the pool.
    fn pool(&self) -> &Self::Pool;

    /// Loads what is absent of a need; returns whether anything was. For [`Need::Room`] returns
    /// whether space became free. For [`Need::Synced`] waits.
    ///
    /// # Errors
    /// Those of the backing store and of the pool.
    fn load(&self, need: &Need<'_>) -> Result<bool>;

    /// Returns the pool as one with absent parts; `None` if it has no backing store.
    fn backed(&self) -> Option<&dyn Backed>;

    /// Implements [`FileSystem::statfs`]: the space that programs see.
    fn space(&self) -> StatFs;

    /// Implements [`FileSystem::close`].
    ///
    /// # Errors
    /// Those of the pool and of the backing store.
    fn finish(&self) -> Result<()> {
        self.pool().close()
    }

    /// Implements [`FileSystem::getxattr`] for a name that the pool refuses: a command that reads.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if there is no such command.
    fn ask(&self, _ino: Ino, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Implements [`FileSystem::setxattr`] for a name that the pool refuses: a command.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if there is no such command.
    fn tell(&self, _ino: Ino, _name: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}

/// Makes a call on the pool. Loads what it needs and repeats it while something is absent, or while
/// there is no space for it.
#[inline]
pub fn load_for<L: Loader + ?Sized, T>(
    loader: &L,
    needs: &[Need<'_>],
    mut call: impl FnMut() -> Result<T>,
) -> Result<T> {
    match call() {
        // loader-L1.
        Err(errno @ (ABSENT | Errno::NOSPC)) => repeat(loader, needs, errno, &mut call),
        done => done,
    }
}

/// Repeats a call that failed so.
#[cold]
fn repeat<L: Loader + ?Sized, T>(
    loader: &L,
    needs: &[Need<'_>],
    mut errno: Errno,
    call: &mut dyn FnMut() -> Result<T>,
) -> Result<T> {
    let mut idle = 0;
    for _ in 0..ATTEMPTS {
        if errno == Errno::NOSPC {
            if idle >= IDLE_ATTEMPTS || !loader.load(&Need::Room(room(needs)))? {
                return Err(errno);
            }
            idle += 1;
        } else {
            let mut has_loaded = false;
            for need in needs {
                // loader-L2.
                has_loaded |= loader.load(need)?;
            }
            idle = if has_loaded { 0 } else { idle + 1 };
            if idle > IDLE_ATTEMPTS {
                // The pool names as absent what nothing loads.
                return Err(Errno::UCLEAN);
            }
        }
        match call() {
            Err(failed @ (ABSENT | Errno::NOSPC)) => errno = failed,
            done => return done,
        }
    }
    // The call needs more than fits at once.
    Err(Errno::NOSPC)
}

/// Reads in pieces (loader-L3).
#[cold]
fn read_pieces<L: Loader>(loader: &L, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    for piece in buf.chunks_mut(PIECE) {
        let len = piece.len();
        let n = loader.read(ino, offset.saturating_add(done as u64), piece)?;
        done += n;
        if n < len {
            break;
        }
    }
    Ok(done)
}

/// Seeks in a file with absent content. It becomes known where the backing store has holes; the
/// rest of what is absent is data.
#[cold]
fn seek_absent<L: Loader>(loader: &L, ino: Ino, mut at: u64, whence: Seek) -> Result<u64> {
    loader.load(&Need::Holes(ino, at))?;
    let size = loader.pool().getattr(ino)?.size;
    let mut idle = 0;
    while at < size {
        match loader.pool().seek(ino, at, whence) {
            Err(ABSENT) => {}
            done => return done,
        }
        let Some(pool) = loader.backed() else { return Err(Errno::UCLEAN) };
        let Some(absent) = pool.absent_range(ino, at)? else {
            // Another thread may have loaded it.
            idle += 1;
            if idle > IDLE_ATTEMPTS {
                return Err(Errno::UCLEAN);
            }
            continue;
        };
        if whence == Seek::Data {
            return Ok(absent.start.max(at));
        }
        match pool.hole_range(ino, at)? {
            Some(hole) if hole.start < absent.start => return Ok(hole.start.max(at)),
            _ => at = absent.end,
        }
    }
    Ok(size)
}

/// Returns the most bytes that a call for `len` bytes copies at once.
fn copy_max<L: Loader>(loader: &L, len: u64) -> u64 {
    if len <= PIECE as u64 {
        return len;
    }
    let space = loader.pool().statfs();
    let share = space.blocks * u64::from(space.block_size) / COPY_SHARE;
    share.clamp(PIECE as u64, COPY_MAX)
}

/// Copies between files, at most `len` bytes.
fn copy_at_most<L: Loader>(loader: &L, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
    // An engine may look at the last block of a source that ends before the range.
    let needs = [change(from.0, from.1, len), change(to.0, to.1, len)];
    load_for(loader, &needs, || loader.pool().copy_range(from, to, len))
}

/// Waits until an inode, or everything, is in the backing store, if calls of this kind do so
/// (loader-L4).
#[inline]
fn sync_through<L: Loader>(loader: &L, ino: Option<Ino>, kind: WaitingCalls) -> Result<()> {
    let waits = through(loader) >= kind
        || match (ino, loader.backed()) {
            (Some(ino), Some(pool)) => kind == WaitingCalls::Writes && pool.is_through(ino)?,
            _ => false,
        };
    if !waits {
        return Ok(());
    }
    loader.load(&Need::Synced(ino)).map(drop)
}

/// Returns which calls wait for the backing store.
#[inline]
fn through<L: Loader>(loader: &L) -> WaitingCalls {
    loader.backed().map_or(WaitingCalls::Nothing, Backed::through)
}

/// Makes a call that changes the content of a file, and waits if such calls do so.
#[inline]
fn change_content<L: Loader, T>(
    loader: &L,
    ino: Ino,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let done = call()?;
    sync_through(loader, Some(ino), WaitingCalls::Writes)?;
    Ok(done)
}

/// Returns the bytes of space that a call with these needs takes at most, about.
fn room(needs: &[Need<'_>]) -> u64 {
    let content = needs.iter().map(|need| match need {
        Need::Extension(_, start, end) => end.saturating_sub(*start),
        _ => 0,
    });
    content.max().unwrap_or(0).saturating_add(ROOM)
}

/// Returns the range of a file from `offset` on, which a call changes, as a need.
fn change(ino: Ino, offset: u64, len: u64) -> Need<'static> {
    Need::Extension(ino, offset, offset.saturating_add(len))
}

impl<L: Loader> FileSystem for L {
    crate::forward!(self => self.pool(); root, kernel_cache, limits, forget, getattr,
        readlink, drop_privileges, listxattr, version);

    fn durability(&self) -> Durability {
        match through(self) {
            WaitingCalls::Nothing => self.pool().durability(),
            WaitingCalls::Syncs | WaitingCalls::Writes => Durability::OnSync,
        }
    }

    fn fsync(&self, ino: Ino) -> Result<()> {
        self.pool().fsync(ino)?;
        sync_through(self, Some(ino), WaitingCalls::Syncs)
    }

    fn sync(&self) -> Result<()> {
        self.pool().sync()?;
        sync_through(self, None, WaitingCalls::Syncs)
    }

    fn statfs(&self) -> StatFs {
        self.space()
    }

    fn close(&self) -> Result<()> {
        self.finish()
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        load_for(self, &[Need::Names(dir)], || self.pool().lookup(dir, name))
    }

    fn lookup_into(&self, dir: Ino, name: &[u8], entry: &mut Entry) -> Result<()> {
        load_for(self, &[Need::Names(dir)], || self.pool().lookup_into(dir, name, entry))
    }

    fn peek_into(&self, dir: Ino, name: &[u8], attr: &mut Attr) -> Result<()> {
        load_for(self, &[Need::Names(dir)], || self.pool().peek_into(dir, name, attr))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let size = set.size.unwrap_or(0);
        let need = change(ino, size.saturating_sub(1), 1);
        let call = || load_for(self, &[need], || self.pool().setattr(caller, ino, set));
        if set.size.is_some() { change_content(self, ino, call) } else { call() }
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Entry> {
        load_for(self, &[Need::Names(dir)], || self.pool().create(caller, dir, name, node))
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, umask: u32) -> Result<Entry> {
        load_for(self, &[], || self.pool().tmpfile(caller, dir, mode, umask))
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        load_for(self, &[Need::Removal(dir, name)], || self.pool().unlink(dir, name))
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        load_for(self, &[Need::Removal(dir, name)], || self.pool().rmdir(dir, name))
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        load_for(self, &[Need::Names(dir)], || self.pool().link(ino, dir, name))
    }

    fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), flags: RenameFlags) -> Result<()> {
        let needs = [Need::Names(from.0), Need::Removal(to.0, to.1)];
        load_for(self, &needs, || self.pool().rename(from, to, flags))
    }

    fn rename_whiteout(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let needs = [Need::Names(from.0), Need::Removal(to.0, to.1)];
        load_for(self, &needs, || self.pool().rename_whiteout(caller, from, to, flags))
    }

    fn readdir(
        &self,
        dir: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        load_for(self, &[Need::Names(dir)], || self.pool().readdir(dir, cookie, emit))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let need = Need::Content(ino, offset, offset.saturating_add(buf.len() as u64));
        match load_for(self, &[need], || self.pool().read(ino, offset, buf)) {
            Err(Errno::NOSPC) if buf.len() > PIECE => read_pieces(self, ino, offset, buf),
            done => done,
        }
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let need = change(ino, offset, data.len() as u64);
        change_content(self, ino, || {
            load_for(self, &[need], || self.pool().write(ino, offset, data))
        })
    }

    fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        // It needs the last block, and room for the data.
        let need = Need::Extension(ino, u64::MAX - data.len() as u64, u64::MAX);
        change_content(self, ino, || load_for(self, &[need], || self.pool().append(ino, data)))
    }

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        let need = match mode {
            Fallocate::Collapse | Fallocate::Insert => Need::Content(ino, 0, u64::MAX),
            _ => change(ino, offset, len),
        };
        change_content(self, ino, || {
            load_for(self, &[need], || self.pool().fallocate(ino, mode, offset, len))
        })
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        match self.pool().seek(ino, offset, whence) {
            Err(ABSENT) => seek_absent(self, ino, offset, whence),
            done => done,
        }
    }

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        let most = copy_max(self, len);
        change_content(self, to.0, || match copy_at_most(self, from, to, len.min(most)) {
            Err(Errno::NOSPC) if len > PIECE as u64 => copy_at_most(self, from, to, PIECE as u64),
            done => done,
        })
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        match load_for(self, &[], || self.pool().setxattr(ino, name, value, mode)) {
            Err(Errno::OPNOTSUPP) => self.tell(ino, name),
            done => done,
        }
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match self.pool().getxattr(ino, name) {
            Err(refused @ (Errno::OPNOTSUPP | Errno::NODATA)) => match self.ask(ino, name) {
                Err(Errno::OPNOTSUPP) => Err(refused),
                done => done,
            },
            done => done,
        }
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        load_for(self, &[], || self.pool().removexattr(ino, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_read_as_they_were_sent() {
        let long = [b'n'; NAME_MAX];
        for need in [
            Need::Names(Ino(7)),
            Need::Removal(Ino(1), b"name"),
            Need::Removal(Ino(u64::MAX), &long),
            Need::Content(Ino(2), 0, u64::MAX),
            Need::Extension(Ino(3), 4096, 8192),
            Need::Holes(Ino(4), 5),
            Need::Room(1 << 20),
            Need::Synced(Some(Ino(6))),
            Need::Synced(None),
        ] {
            assert_eq!(Need::from_bytes(&need.to_bytes().unwrap()), Some(need));
        }
        assert_eq!(Need::Removal(Ino(1), &[b'n'; NAME_MAX + 1]).to_bytes(), None);
        let mut bytes = Need::Removal(Ino(1), b"name").to_bytes().unwrap();
        assert_eq!(Need::from_bytes(&bytes[1..]), None);
        bytes[4..8].copy_from_slice(&256u32.to_ne_bytes());
        assert_eq!(Need::from_bytes(&bytes), None, "a name that is too long");
        assert_eq!(Need::from_bytes(&[0; Need::LEN]), None, "an unknown kind");
        assert_eq!(Need::from_bytes(&[]), None);
    }
}
