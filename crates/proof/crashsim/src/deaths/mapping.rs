//! A file that a process has mapped directly from the pool when it, or another one, dies.
//!
//! As long as it is mapped, its blocks stay where they are, and have the file's content, with zeros
//! behind its end. The engine does not see stores through the mapping: a sync makes them durable,
//! also after the process that stored has died.

use pmem::Medium;
use vfs::script::{Driver, Op, content};
use vfs::{Errno, Extent, FileSystem, Ino};

const BLOCK: u64 = 4096;
/// Bytes that are mapped behind the last block of the file.
const BEHIND: u64 = 2 * BLOCK;
/// Offsets and lengths of stores to a file: across lines, in its first and in its second block.
const STORED: [(u64, u64); 2] = [(40, 200), (BLOCK + 10, 60)];
/// Offset and length of a store behind the end of the file, in its last block.
const BEHIND_END: (u64, u64) = (BLOCK + 1100, 8);
/// The size to which a file grows at last.
const GROWN: u64 = 90_000;

/// A mapping for stores.
pub struct Mapping {
    path: &'static str,
    /// The file.
    pub ino: Ino,
    extents: Vec<Extent>,
}

impl Mapping {
    /// Maps an existing file for stores, from its start to two blocks behind its last one. The file
    /// must have at least two blocks, and the caller must keep it alive.
    pub fn make(fs: &dyn FileSystem, path: &'static str) -> Result<Self, String> {
        let failed = |e: Errno| format!("mapping {path}: {e}");
        let ino = Driver::new(fs).held(path).ok_or_else(|| failed(Errno::NOENT))?;
        let end = fs.getattr(ino).map_err(failed)?.size.next_multiple_of(BLOCK) + BEHIND;
        let extents = fs.map_range(ino, 0..end, true).map_err(failed)?;
        Ok(Self { path, ino, extents })
    }

    /// Returns the addresses of its blocks, in order.
    fn blocks(&self) -> impl Iterator<Item = u64> {
        let of = |extent: &Extent| extent.start..extent.start + extent.len;
        self.extents.iter().flat_map(move |extent| of(extent).step_by(BLOCK as usize))
    }

    fn put(&self, medium: &impl Medium, (at, len): (u64, u64), salt: u64) {
        let block = self.blocks().nth((at / BLOCK) as usize).expect("two blocks are mapped");
        medium.write(block + at % BLOCK, &content(salt, len));
    }

    /// Stores to the file through the mapping.
    pub fn store(&self, medium: &impl Medium, salt: u64) {
        STORED.into_iter().for_each(|place| self.put(medium, place, salt));
    }

    /// Stores behind the end of the file.
    pub fn store_behind_end(&self, medium: &impl Medium, salt: u64) {
        self.put(medium, BEHIND_END, salt);
    }

    /// Checks that the mapped bytes are the file's, and zeros behind its end.
    pub fn look(&self, fs: &dyn FileSystem, medium: &impl Medium) -> Result<(), String> {
        let mut held = vec![0; self.blocks().count() * BLOCK as usize];
        fs.read(self.ino, 0, &mut held).map_err(|e| format!("{}: {e}", self.path))?;
        let mut pieces = self.blocks().zip(held.chunks(BLOCK as usize));
        match pieces.all(|(at, piece)| medium.equals(at, piece)) {
            true => Ok(()),
            false => Err(format!("what is mapped of {} is not the file", self.path)),
        }
    }

    /// Makes stores through the mapping durable.
    pub fn sync(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let len = self.blocks().count() as u64 * BLOCK;
        fs.sync_range(self.ino, 0..len, false).map_err(|e| format!("msync {}: {e}", self.path))
    }

    fn failed(&self, e: Errno) -> String {
        format!("{} after a death: {e}", self.path)
    }

    /// Returns the size of the file.
    pub fn size(&self, fs: &dyn FileSystem) -> Result<u64, String> {
        Ok(fs.getattr(self.ino).map_err(|e| self.failed(e))?.size)
    }

    /// Lets the file grow, by another process.
    pub fn grow(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let grown = Driver::new(fs).run(&Op::truncate(self.path, GROWN), 0);
        grown.map_err(|e| self.failed(e))
    }

    /// Checks that it has grown by zeros.
    pub fn has_grown_from(&self, fs: &dyn FileSystem, had: u64) -> Result<(), String> {
        let mut new = vec![1; (GROWN - had) as usize];
        let n = fs.read(self.ino, had, &mut new).map_err(|e| self.failed(e))?;
        match n == new.len() && new.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(format!("{} does not grow by zeros after a death", self.path)),
        }
    }
}
