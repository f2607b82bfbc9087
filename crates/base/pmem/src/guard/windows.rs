//! Protection by the page table (§IV-B1): the region's mapping is read-only. The pages or the chunk
//! of a store are made writable for that store, or for some time.

use super::Tally;
use super::chunk::ChunkTable;
use super::file::ByFile;
use crate::{Error, Region};
use std::io;
use std::sync::Arc;

/// The part that is made writable, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowPolicy {
    /// The pages of the store, during the store.
    Pages,
    /// The chunk, during the store.
    Strict,
    /// The chunk, during several stores.
    Kept,
    /// The page of a stored word, during the store. All other stores go through the file.
    File,
}

/// The bytes of a scattered store from which on lifting the protection is cheaper than copying by a
/// system call and writing back its lines.
const LIFT_MIN: u64 = 16 << 10;

/// A region whose mapping is read-only.
#[derive(Debug)]
pub(super) struct Windows {
    policy: WindowPolicy,
    /// The file, for stores that are not worth a window.
    file: Option<ByFile>,
    table: Arc<ChunkTable>,
}

impl Windows {
    /// Makes the mapping of the region read-only. Stores then open windows as `policy` requires.
    pub(super) fn new(
        region: &Region,
        policy: WindowPolicy,
        tally: Arc<Tally>,
    ) -> Result<Self, Error> {
        region.forbid_stores().map_err(|e| Error::Io {
            path: region.path().to_owned(),
            action: "make the mapping read-only",
            source: e.into(),
        })?;
        let file = match policy {
            WindowPolicy::Kept | WindowPolicy::File => ByFile::of(region),
            WindowPolicy::Pages | WindowPolicy::Strict => None,
        };
        Ok(Self { policy, file, table: Arc::new(ChunkTable::new(region, tally)) })
    }

    pub(super) fn health(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), ByFile::health)
    }

    /// As [`Guarded::bulk`](super::Guarded).
    pub(super) fn bulk(
        &self,
        off: u64,
        len: u64,
        put: impl Fn(*mut u8, u64, u64),
        by_file: impl Fn(&ByFile, u64, u64),
    ) {
        let table = &self.table;
        if let (WindowPolicy::File, Some(file)) = (self.policy, &self.file) {
            return by_file(file, off, len);
        }
        table.each_chunk(off, len, |chunk, off, len| {
            let put = || put(table.base(), off, len);
            match self.policy {
                WindowPolicy::Pages | WindowPolicy::File => table.lift_pages(chunk, off, len, put),
                WindowPolicy::Strict => table.lift_chunk(chunk, put),
                WindowPolicy::Kept if !table.is_cold(chunk) => ChunkTable::keep(table, chunk, put),
                WindowPolicy::Kept => match &self.file {
                    Some(file) if len < LIFT_MIN => {
                        table.rather(chunk, || by_file(file, off, len));
                    }
                    _ if table.rather_lift(chunk, off, len, &put) => {}
                    _ => ChunkTable::keep(table, chunk, put),
                },
            }
        });
    }

    /// Lets `put` store to the word at `off`, in place (guard-G3).
    pub(super) fn word(&self, off: u64, put: impl FnOnce(*mut u8)) {
        let table = &self.table;
        let put = || put(table.base());
        match self.policy {
            WindowPolicy::Pages | WindowPolicy::File => {
                table.lift_pages(table.chunk_of(off), off, 8, put)
            }
            WindowPolicy::Strict => table.lift_chunk(table.chunk_of(off), put),
            WindowPolicy::Kept => ChunkTable::keep(table, table.chunk_of(off), put),
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.table.stop();
    }
}
