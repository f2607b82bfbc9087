//! Loads of programs that need their data after a crash, and loads in order: further methods of
//! [`Bed`], for `run` and `scale`.

use crate::rounds::Contender;
use crate::store::Store;
use crate::workload::{Bed, Buffer};
use rng::Rng;
use std::cell::Cell;
use std::ffi::CString;
use vfs::Result;

/// Bytes of a page of the databases that [`Bed::journal`] and [`Bed::append_sync`] stand for.
pub const PAGE: usize = 4096;

/// The order of the places of calls in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// At random multiples of the length.
    Random,
    /// From start to end, and again.
    InOrder,
}

/// The places of calls of one length in a file.
struct Places {
    order: Order,
    count: u64,
    next: u64,
    rng: Rng,
}

impl Places {
    fn new(order: Order, bytes: u64, len: usize) -> Self {
        Self { order, count: (bytes / len as u64).max(1), next: 0, rng: Rng::new(11) }
    }

    /// Returns the number of the next place.
    fn draw(&mut self) -> u64 {
        if self.order == Order::Random {
            return self.rng.below_fast(self.count);
        }
        let place = self.next;
        self.next = if place + 1 == self.count { 0 } else { place + 1 };
        place
    }
}

impl<S: Store> Bed<'_, S> {
    /// Reads `len` bytes.
    pub fn read_by(&self, order: Order, len: usize) -> Contender<'_> {
        let mut buf = Buffer::new(len);
        let mut places = Places::new(order, self.bytes, len);
        Contender::new(&self.name, move |ops| {
            for _ in 0..ops {
                let at = places.draw() * len as u64;
                self.store.read(&self.files[0], at, buf.get_mut())?;
            }
            Ok(())
        })
    }

    /// Overwrites `len` bytes; makes each write durable if it `syncs`.
    pub fn write_by(&self, order: Order, len: usize, syncs: bool) -> Contender<'_> {
        let data = Buffer::new(len);
        let mut places = Places::new(order, self.bytes, len);
        let file = &self.files[0];
        Contender::new(&self.name, move |ops| {
            for _ in 0..ops {
                self.store.write(file, places.draw() * len as u64, data.get())?;
                if syncs {
                    self.store.sync(file)?;
                }
            }
            Ok(())
        })
    }

    /// Appends a record of `len` bytes to a log that starts each round empty, and makes it durable.
    pub fn append_sync(&self, len: usize) -> Result<Contender<'_>> {
        let name = CString::new(format!("log-{len}")).expect("no NUL in it");
        let log = std::rc::Rc::new(self.store.create(&self.root, &name)?);
        let emptied = log.clone();
        let end = std::rc::Rc::new(Cell::new(0));
        let start = end.clone();
        let data = Buffer::new(len);
        let run = move |ops| {
            for _ in 0..ops {
                self.store.append(&log, end.get(), data.get())?;
                self.store.sync(&log)?;
                end.set(end.get() + len as u64);
            }
            Ok(())
        };
        Ok(Contender::new(&self.name, run).prepared(move |_| {
            start.set(0);
            self.store.truncate(&emptied, 0)
        }))
    }

    /// Changes a page as a database with a rollback journal does (SQLite's default): creates the
    /// journal, saves the page in it, syncs it, overwrites the page, syncs the file, and removes
    /// the journal.
    pub fn journal(&self) -> Contender<'_> {
        let mut page = Buffer::new(PAGE);
        let mut places = Places::new(Order::Random, self.bytes, PAGE);
        let (file, header) = (&self.files[0], [7; 512]);
        Contender::new(&self.name, move |ops| {
            for _ in 0..ops {
                let at = places.draw() * PAGE as u64;
                self.store.read(file, at, page.get_mut())?;
                let journal = self.store.create(&self.root, c"journal")?;
                self.store.append(&journal, 0, &header)?;
                self.store.append(&journal, header.len() as u64, page.get())?;
                self.store.sync(&journal)?;
                self.store.write(file, at, page.get())?;
                self.store.sync(file)?;
                self.store.close(journal);
                self.store.unlink(&self.root, c"journal")?;
            }
            Ok(())
        })
    }

    /// Replaces a file of `len` bytes as editors and package managers do: writes a new file, syncs
    /// it, and renames it over the old one.
    pub fn replace(&self, len: usize) -> Contender<'_> {
        let data = Buffer::new(len);
        let (new, old) = (c"replace.new", c"replace");
        Contender::new(&self.name, move |ops| {
            for _ in 0..ops {
                let file = self.store.create(&self.root, new)?;
                self.store.append(&file, 0, data.get())?;
                self.store.sync(&file)?;
                self.store.close(file);
                self.store.rename((&self.root, new), (&self.root, old))?;
            }
            Ok(())
        })
    }

    /// Makes a directory and removes it.
    pub fn make_dir(&self) -> Contender<'_> {
        Contender::new(&self.name, |ops| {
            for _ in 0..ops {
                self.store.mkdir(&self.other, c"directory")?;
                self.store.rmdir(&self.other, c"directory")?;
            }
            Ok(())
        })
    }
}
