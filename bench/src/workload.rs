//! The workloads, the same for every system.

use crate::helper::{Helper, Work};
use crate::rounds::Contender;
use crate::store::Store;
use rng::Rng;
use std::cell::Cell;
use std::ffi::{CStr, CString};
use vfs::{Errno, Result};

/// Length of the file of the data cases (the paper's random writes go to 128 MB).
pub const FILE_BYTES: u64 = 128 << 20;
/// Names in the directory of most cases with names.
pub const NAMES: usize = 10_000;
/// Most bytes that a round of appends adds.
pub const APPEND_BYTES: u64 = 64 << 20;

/// Names of the PostMark-like case; about half of them exist at a time.
const POSTMARK_FILES: usize = 20_000;
const POSTMARK_MIN: usize = 500;
const POSTMARK_MAX: usize = 10_000;

/// A page-aligned buffer, so that alignment favours no contender.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Makes a buffer of `len` bytes, none of which is zero.
    pub fn new(len: usize) -> Self {
        let bytes: Vec<u8> = (0..len + 4096).map(|i| (i % 251) as u8 | 1).collect();
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }

    /// Returns its bytes, to write from.
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// Returns its bytes, to read into.
    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// The name of a numbered file.
pub struct Numbered([u8; 12]);

/// Returns a name such as `file-000123`, made on the stack, so that a contender waits for no memory
/// but the system's.
pub fn numbered(i: usize) -> Numbered {
    let mut name = *b"file-000000\0";
    let mut rest = i;
    for digit in name[5..11].iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    Numbered(name)
}

impl std::ops::Deref for Numbered {
    type Target = CStr;
    fn deref(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0).expect("one NUL, at the end")
    }
}

/// A system with its name and the files of the cases. Most methods return a [`Contender`], which
/// repeats the operation that the method's doc names.
pub struct Bed<'s, S: Store> {
    pub(crate) name: String,
    pub(crate) store: &'s S,
    pub(crate) root: S::Dir,
    pub(crate) other: S::Dir,
    crowd: S::Dir,
    names: usize,
    pub(crate) files: Vec<S::File>,
    /// The bytes of each of the files.
    pub(crate) bytes: u64,
}

/// The files of a [`Bed`].
#[derive(Clone, Copy, Debug)]
pub struct BedSize {
    /// Names in the directory of the cases with names.
    pub names: usize,
    /// Files of the data cases.
    pub files: usize,
    /// Bytes of each of them, a multiple of 1 MiB.
    pub bytes: u64,
}

impl<'s, S: Store> Bed<'s, S> {
    /// Makes a directory with `names` files, an empty one, and two files of [`FILE_BYTES`],
    /// written from start to end.
    pub fn new(name: &str, store: &'s S, names: usize) -> Result<Self> {
        Self::sized(name, store, BedSize { names, files: 2, bytes: FILE_BYTES })
    }

    /// [`new`](Self::new) with files of other sizes.
    pub fn sized(name: &str, store: &'s S, size: BedSize) -> Result<Self> {
        let BedSize { names, bytes, .. } = size;
        let root = store.root()?;
        let other = store.mkdir(&root, c"other")?;
        let chunk = Buffer::new(1 << 20);
        let mut files = Vec::new();
        for i in 0..size.files {
            let file = store.create(&root, &numbered(i))?;
            for offset in (0..bytes).step_by(1 << 20) {
                store.write(&file, offset, chunk.get())?;
            }
            files.push(file);
        }
        let crowd = store.mkdir(&root, c"crowd")?;
        for i in 0..names {
            store.close(store.create(&crowd, &numbered(i))?);
        }
        Ok(Self { name: name.to_owned(), store, root, other, crowd, names, files, bytes })
    }

    /// Makes a bed of one file or device of that many bytes, for the cases without names.
    pub fn of_file(name: &str, store: &'s S, file: S::File, bytes: u64) -> Result<Self> {
        let [root, other, crowd] = [store.root()?, store.root()?, store.root()?];
        let name = name.to_owned();
        Ok(Self { name, store, root, other, crowd, names: 0, files: vec![file], bytes })
    }

    /// Overwrites `len` bytes at random multiples of `len`.
    pub fn overwrite(&self, len: usize) -> Contender<'_> {
        let data = Buffer::new(len);
        let mut rng = Rng::new(1);
        Contender::new(&self.name, move |ops| {
            overwrite_file(self.store, (&self.files[0], self.bytes), &mut rng, data.get(), ops)
        })
    }

    /// [`overwrite`](Self::overwrite) by two threads, each in its own file.
    pub fn overwrite_by_two(&self, len: usize) -> Contender<'_> {
        let data = Buffer::new(len);
        let mut seed = 1;
        Contender::new(format!("{}, 2 threads", self.name), move |ops| {
            seed += 2;
            by_two(|i| {
                let mut rng = Rng::new(seed + i as u64);
                overwrite_file(
                    self.store,
                    (&self.files[i], self.bytes),
                    &mut rng,
                    data.get(),
                    ops / 2,
                )
            })
        })
    }

    /// [`overwrite`](Self::overwrite) by four threads, all in one file.
    pub fn overwrite_by_four(&self, len: usize) -> Contender<'_> {
        let data = Buffer::new(len);
        let mut seed = 1;
        Contender::new(format!("{}, 4 threads", self.name), move |ops| {
            seed += 4;
            by_threads(4, |i| {
                let mut rng = Rng::new(seed + i);
                overwrite_file(
                    self.store,
                    (&self.files[0], self.bytes),
                    &mut rng,
                    data.get(),
                    ops / 4,
                )
            })
        })
    }

    /// [`overwrite`](Self::overwrite) by this process, and by another one in its own file.
    pub fn overwrite_by_processes<'a>(
        &'a self,
        len: usize,
        other: Option<Helper>,
    ) -> Option<Contender<'a>> {
        let mut other = other?;
        let data = Buffer::new(len);
        let mut rng = Rng::new(1);
        Some(Contender::new(format!("{}, 2 processes", self.name), move |ops| {
            other.beside(Work::Overwrite, (len, ops / 2), || {
                overwrite_file(
                    self.store,
                    (&self.files[0], self.bytes),
                    &mut rng,
                    data.get(),
                    ops / 2,
                )
            })
        }))
    }

    /// [`read`](Self::read) by this process, and by another one from its own file.
    pub fn read_by_processes<'a>(
        &'a self,
        len: usize,
        other: Option<Helper>,
    ) -> Option<Contender<'a>> {
        let mut other = other?;
        let mut buf = Buffer::new(len);
        let mut rng = Rng::new(2);
        Some(Contender::new(format!("{}, 2 processes", self.name), move |ops| {
            other.beside(Work::Read, (len, ops / 2), || {
                read_file(
                    self.store,
                    (&self.files[0], self.bytes),
                    &mut rng,
                    buf.get_mut(),
                    ops / 2,
                )
            })
        }))
    }

    /// Reads `len` bytes at random multiples of `len`.
    pub fn read(&self, len: usize) -> Contender<'_> {
        let mut buf = Buffer::new(len);
        let mut rng = Rng::new(2);
        Contender::new(&self.name, move |ops| {
            read_file(self.store, (&self.files[0], self.bytes), &mut rng, buf.get_mut(), ops)
        })
    }

    /// [`read`](Self::read) by two threads, each from its own file.
    pub fn read_by_two(&self, len: usize) -> Contender<'_> {
        let mut seed = 2;
        Contender::new(format!("{}, 2 threads", self.name), move |ops| {
            seed += 2;
            by_two(|i| {
                let mut rng = Rng::new(seed + i as u64);
                let mut buf = Buffer::new(len);
                read_file(
                    self.store,
                    (&self.files[i], self.bytes),
                    &mut rng,
                    buf.get_mut(),
                    ops / 2,
                )
            })
        })
    }

    /// Appends `len` bytes to a file that starts each round empty.
    pub fn append(&self, len: usize) -> Result<Contender<'_>> {
        let name = CString::new(format!("append-{len}")).expect("no NUL in it");
        let file = std::rc::Rc::new(self.store.create(&self.root, &name)?);
        let again = file.clone();
        let end = std::rc::Rc::new(Cell::new(0));
        let start = end.clone();
        let data = Buffer::new(len);
        let run = move |ops| {
            for _ in 0..ops {
                self.store.append(&file, end.get(), data.get())?;
                end.set(end.get() + len as u64);
            }
            Ok(())
        };
        Ok(Contender::new(&self.name, run).prepared(move |_| {
            start.set(0);
            self.store.truncate(&again, 0)
        }))
    }

    /// Creates, closes and unlinks a file.
    pub fn create_unlink(&self) -> Contender<'_> {
        Contender::new(&self.name, |ops| self.come_and_go(&self.root, c"new", ops))
    }

    /// [`create_unlink`](Self::create_unlink) by two threads, each in its own directory.
    pub fn create_unlink_by_two(&self) -> Contender<'_> {
        Contender::new(format!("{}, 2 threads", self.name), |ops| {
            by_two(|i| self.come_and_go([&self.root, &self.other][i], c"new", ops / 2))
        })
    }

    /// Creates, closes and unlinks a file `ops` times.
    fn come_and_go(&self, dir: &S::Dir, name: &CStr, ops: u64) -> Result<()> {
        for _ in 0..ops {
            self.store.close(self.store.create(dir, name)?);
            self.store.unlink(dir, name)?;
        }
        Ok(())
    }

    /// Renames a file and renames it back: within one directory, or between two (`across`). Counts
    /// each rename as an operation, and rounds odd numbers up.
    pub fn rename(&self, across: bool) -> Result<Contender<'_>> {
        let here = &self.root;
        let there = if across { &self.other } else { here };
        let name = if across { c"across" } else { c"within" };
        let moved = c"moved";
        self.store.close(self.store.create(here, name)?);
        Ok(Contender::new(&self.name, move |ops| {
            for _ in 0..ops.div_ceil(2) {
                self.store.rename((here, name), (there, moved))?;
                self.store.rename((there, moved), (here, name))?;
            }
            Ok(())
        }))
    }

    /// Finds out that one name exists and another does not, as calls that change two names have to.
    pub fn look_twice(&self) -> impl FnMut() -> Result<()> {
        let (there, missing) = (numbered(0), numbered(self.names));
        move || {
            self.store.stat(&self.crowd, &there)?;
            match self.store.stat(&self.crowd, &missing) {
                Err(Errno::NOENT) => Ok(()),
                looked => looked.and(Err(Errno::EXIST)),
            }
        }
    }

    fn any_name(&self, rng: &mut Rng) -> Numbered {
        numbered(rng.below_fast(self.names as u64) as usize)
    }

    /// Looks a random name up and reads its attributes.
    pub fn stat(&self) -> Contender<'_> {
        let mut rng = Rng::new(3);
        Contender::new(&self.name, move |ops| {
            for _ in 0..ops {
                self.store.stat(&self.crowd, &self.any_name(&mut rng))?;
            }
            Ok(())
        })
    }

    /// Opens and closes a random file.
    pub fn open_close(&self) -> Contender<'_> {
        let mut rng = Rng::new(4);
        Contender::new(&self.name, move |ops| {
            for _ in 0..ops {
                let name = self.any_name(&mut rng);
                self.store.close(self.store.open(&self.crowd, &name)?);
            }
            Ok(())
        })
    }

    /// Transactions as PostMark does them, on files of 500 bytes to 10 KB in one directory: one
    /// reads a file or appends to it, and creates a file or removes one.
    pub fn postmark(&self) -> Result<Contender<'_>> {
        let dir = self.store.mkdir(&self.root, c"postmark")?;
        let mut rng = Rng::new(5);
        let mut buf = Buffer::new(POSTMARK_MAX);
        let mut sizes = vec![0u64; POSTMARK_FILES];
        let run = move |ops| {
            for _ in 0..ops {
                self.transaction(&dir, &mut sizes, buf.get_mut(), &mut rng)?;
            }
            Ok(())
        };
        Ok(Contender::new(&self.name, run))
    }

    /// Does one transaction. `sizes` are those of the files; 0: the file does not exist. Half of
    /// them exist in the mean.
    fn transaction(
        &self,
        dir: &S::Dir,
        sizes: &mut [u64],
        buf: &mut [u8],
        rng: &mut Rng,
    ) -> Result<()> {
        let mut pick = || rng.below_fast(sizes.len() as u64) as usize;
        let (used, changed) = (pick(), pick());
        if sizes[used] > 0 {
            let file = self.store.open(dir, &numbered(used))?;
            let room = POSTMARK_MAX as u64 - sizes[used];
            if rng.below_fast(2) == 0 || room == 0 {
                self.store.read(&file, 0, &mut buf[..sizes[used] as usize])?;
            } else {
                let len = 1 + rng.below_fast(room);
                self.store.append(&file, sizes[used], &buf[..len as usize])?;
                sizes[used] += len;
            }
            self.store.close(file);
        }
        if sizes[changed] > 0 {
            self.store.unlink(dir, &numbered(changed))?;
            sizes[changed] = 0;
        } else {
            let file = self.store.create(dir, &numbered(changed))?;
            let len =
                POSTMARK_MIN as u64 + rng.below_fast((POSTMARK_MAX / 2 - POSTMARK_MIN) as u64);
            self.store.write(&file, 0, &buf[..len as usize])?;
            self.store.close(file);
            sizes[changed] = len;
        }
        Ok(())
    }

    /// Lists the directory of files.
    pub fn list(&self) -> Contender<'_> {
        Contender::new(&self.name, |ops| {
            for _ in 0..ops {
                if self.store.list(&self.crowd)? < self.names as u64 {
                    return Err(Errno::IO);
                }
            }
            Ok(())
        })
    }
}

/// Overwrites random blocks of a file of that many bytes.
pub fn overwrite_file<S: Store>(
    store: &S,
    (file, bytes): (&S::File, u64),
    rng: &mut Rng,
    data: &[u8],
    ops: u64,
) -> Result<()> {
    let len = data.len() as u64;
    for _ in 0..ops {
        store.write(file, rng.below_fast(bytes / len) * len, data)?;
    }
    Ok(())
}

/// Reads random blocks of a file of that many bytes.
pub fn read_file<S: Store>(
    store: &S,
    (file, bytes): (&S::File, u64),
    rng: &mut Rng,
    buf: &mut [u8],
    ops: u64,
) -> Result<()> {
    let len = buf.len() as u64;
    for _ in 0..ops {
        store.read(file, rng.below_fast(bytes / len) * len, buf)?;
    }
    Ok(())
}

/// Lets `threads` threads work, which get the numbers from 0 on.
pub fn by_threads(threads: u64, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|i| scope.spawn(move || work(i))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("does not panic"))
    })
}

/// Lets two threads work, number 0 and number 1.
pub fn by_two(work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let second = scope.spawn(|| work(1));
        let first = work(0);
        let second = second.join().expect("the second thread does not panic");
        first.and(second)
    })
}
