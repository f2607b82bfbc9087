//! An open file.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use vfs::{Entry, Errno, Fallocate, FileKind, Ino, NewKind, NewNode, SetAttr};

use crate::lent::Lent;
use crate::pool::caller;
use crate::{Map, MapMut, Metadata, Pool};

/// How to open a file, as [`std::fs::OpenOptions`].
///
/// ```
/// # use keepstone_library as keepstone;
/// # let dir = tempfile::tempdir()?;
/// # let pool = keepstone::NewPool::new(16 << 20).create(dir.path().join("pool"))?;
/// use std::io::Write as _;
///
/// let mut log = keepstone::OpenOptions::new().append(true).create(true).open(&pool, "log")?;
/// log.write_all(b"started\n")?;
/// assert_eq!(pool.read_to_string("log")?, "started\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// All options are `false`, and the permission bits of a new file are 0666.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
        }
    }

    /// Allows reads.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Allows writes.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Allows writes, and lets [`Write`] write to the end of the file, wherever that is then.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Empties the file. Needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Creates the file, and fails with `EEXIST` if it exists.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Sets the permission bits of a file that is created. The umask is not applied.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOSPC`; `EISDIR` for a directory; `EINVAL` for other kinds of files,
    /// and for `truncate` without `write`.
    pub fn open(&self, pool: &Pool, path: impl AsRef<Path>) -> io::Result<File> {
        if self.truncate && !self.write {
            return Err(Errno::INVAL.into());
        }
        let entry = self.find(pool, path.as_ref())?;
        let file = File {
            pool: pool.clone(),
            ino: entry.ino,
            reads: self.read,
            writes: self.write || self.append,
            appends: self.append,
            offset: Mutex::new(0),
            lent: Lent::default(),
        };
        match entry.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Finds or creates a file, with a reference.
    fn find(&self, pool: &Pool, path: &Path) -> Result<Entry, Errno> {
        let node = NewNode { kind: NewKind::File, mode: self.mode & 0o7777, umask: 0 };
        if self.create_new {
            return pool.at(path, |fs, dir, name| fs.create(&caller(), dir, name, &node));
        }
        loop {
            match pool.find(path) {
                Err(Errno::NOENT) if self.create => {}
                found => return found,
            }
            match pool.at(path, |fs, dir, name| fs.create(&caller(), dir, name, &node)) {
                // Another program has created it, unless that is a link that leads nowhere.
                Err(Errno::EXIST) if pool.find(path) != Err(Errno::NOENT) => {}
                made => return made,
            }
        }
    }
}

/// An open regular file of a [`Pool`]. It keeps the pool open.
///
/// Reads and writes work at an offset of the file ([`Read`], [`Write`], [`Seek`]) or at a given one
/// ([`read_at`](Self::read_at), [`write_at`](Self::write_at)). A write is atomic, however long it
/// is (library-L1). In a pool of durable memory it is durable when it returns, with the layout
/// `scmfs` when [`sync_all`](Self::sync_all) has returned.
pub struct File {
    pool: Pool,
    ino: Ino,
    reads: bool,
    writes: bool,
    appends: bool,
    offset: Mutex<u64>,
    lent: Lent,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("pool", &self.pool).field("ino", &self.ino.0).finish()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.lent.close(self.pool.fs(), self.ino);
        self.pool.fs().forget(self.ino, 1);
    }
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(pool: &Pool, path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).open(pool, path)
    }

    /// Opens a file for writing. Creates it if it does not exist, and else empties it.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(pool: &Pool, path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(pool, path)
    }

    fn must_read(&self) -> Result<(), Errno> {
        if self.reads { Ok(()) } else { Err(Errno::BADF) }
    }

    fn must_write(&self) -> Result<(), Errno> {
        if self.writes { Ok(()) } else { Err(Errno::BADF) }
    }

    /// Reads at an offset; returns the number of bytes, which is smaller only at the end of the
    /// file.
    ///
    /// # Errors
    /// `EBADF` if the file is not open for reading; `EIO` if the pool's memory fails.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.must_read()?;
        Ok(self.pool.fs().read(self.ino, offset, buf)?)
    }

    /// Writes all of `data` at an offset, as one atomic change.
    ///
    /// # Errors
    /// `EBADF` if the file is not open for writing, `ENOSPC`, `EFBIG`; `EIO` if the pool's memory
    /// fails. The file has not changed then.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.must_write()?;
        Ok(self.pool.fs().write(self.ino, offset, data)?)
    }

    /// Writes all of `data` at the end of the file, as one atomic change; returns its offset.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn append(&self, data: &[u8]) -> io::Result<u64> {
        self.must_write()?;
        Ok(self.pool.fs().append(self.ino, data)?)
    }

    /// Calls `f` with the offset, and advances that by the result.
    fn move_by(&self, f: impl FnOnce(&mut u64) -> io::Result<usize>) -> io::Result<usize> {
        let mut offset = self.offset.lock().map_err(|_| Errno::IO)?;
        let moved = f(&mut offset)?;
        *offset += moved as u64;
        Ok(moved)
    }

    /// Cuts the file off at this size, or makes it longer by zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.must_write()?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        Ok(self.pool.fs().setattr(&caller(), self.ino, &set).map(drop)?)
    }

    /// Allocates space for a range of bytes, so that writes to it cannot lack any. The file becomes
    /// longer if the range ends behind it.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.fallocate(Fallocate::Allocate { keep_size: false }, range)
    }

    /// Frees a range of bytes, which then reads as zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.fallocate(Fallocate::PunchHole, range)
    }

    /// Changes the allocation of a range of bytes.
    #[doc(hidden)]
    pub fn fallocate(&self, mode: Fallocate, range: Range<u64>) -> io::Result<()> {
        self.must_write()?;
        let len = range.end.saturating_sub(range.start);
        Ok(self.pool.fs().fallocate(self.ino, mode, range.start, len)?)
    }

    /// Makes the content and the names of the file durable. With the layout `bpfs` they are
    /// already.
    ///
    /// # Errors
    /// `EIO` if they are not known to be durable.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(self.pool.fs().fsync(self.ino)?)
    }

    /// Returns the attributes of the file.
    ///
    /// # Errors
    /// `EIO` if the pool's memory fails.
    pub fn metadata(&self) -> io::Result<Metadata> {
        Ok(Metadata(self.pool.fs().getattr(self.ino)?))
    }
}

/// Access without a copy.
impl File {
    /// Maps `len` bytes from `offset` on as one piece of memory, to be read.
    ///
    /// # Errors
    /// `EINVAL` if the range is empty or ends behind the file. `EOPNOTSUPP` if the bytes do not lie
    /// in one piece, or are a hole, and the layout cannot map them as one: read them instead, or
    /// map what [`map_some`](Self::map_some) gives.
    pub fn map(&self, offset: u64, len: usize) -> io::Result<Map<'_>> {
        self.check_range(offset, len)?;
        let map = self.map_some(offset, len)?;
        if map.len() == len { Ok(map) } else { Err(Errno::OPNOTSUPP.into()) }
    }

    /// As [`map`](Self::map), but of as many of `len` bytes as lie in one piece: none at the end of
    /// the file and, with the layout `bpfs`, in holes.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn map_some(&self, offset: u64, len: usize) -> io::Result<Map<'_>> {
        self.must_read()?;
        let (addr, len) = self.lent.read(self.pool.fs(), self.ino, offset, len)?;
        Ok(Map::new(self, addr, len))
    }

    /// Maps `len` bytes from `offset` on as one piece of memory, to be stored to. Layout `scmfs`.
    ///
    /// # Errors
    /// `EINVAL` if the range is empty or ends behind the file ([`set_len`](Self::set_len) makes it
    /// longer). `EOPNOTSUPP` with other layouts, and if too much of the range would have to be
    /// allocated. `EBUSY` while a program has the file open through a mount.
    pub fn map_mut(&self, offset: u64, len: usize) -> io::Result<MapMut<'_>> {
        self.check_range(offset, len)?;
        let map = self.map_mut_some(offset, len)?;
        if map.len() == len { Ok(map) } else { Err(Errno::INVAL.into()) }
    }

    /// As [`map_mut`](Self::map_mut), but of as many of `len` bytes as the file has there.
    ///
    /// # Errors
    /// As [`map_mut`](Self::map_mut).
    #[doc(hidden)]
    pub fn map_mut_some(&self, offset: u64, len: usize) -> io::Result<MapMut<'_>> {
        self.must_write()?;
        let (addr, len) = self.lent.write(self.pool.fs(), self.ino, offset, len)?;
        Ok(MapMut::new(self, addr, len))
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<(), Errno> {
        let end = offset.checked_add(len as u64).ok_or(Errno::INVAL)?;
        let size = self.pool.fs().getattr(self.ino)?.size;
        if len == 0 || end > size { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Returns the memory that is lent of this file, and what gives it back.
    pub(crate) fn lent(&self) -> (&Lent, &dyn pool::Engine, Ino) {
        (&self.lent, self.pool.fs(), self.ino)
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.move_by(|offset| self.read_at(buf, *offset))
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.move_by(|offset| {
            if self.appends {
                *offset = self.append(data)?;
            } else {
                self.write_at(data, *offset)?;
            }
            Ok(data.len())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut place = self.offset.lock().map_err(|_| Errno::IO)?;
        let (base, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (*place, by),
            SeekFrom::End(by) => (self.metadata()?.len(), by),
        };
        *place = base.checked_add_signed(by).ok_or(Errno::INVAL)?;
        Ok(*place)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
