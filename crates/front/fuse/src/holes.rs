//! Holes that programs may have stored to through mappings by the kernel.
//!
//! The kernel asks for the place of data (`SEEK_DATA`) without writing back pages first. Until then
//! the server does not know of a store to a page of a hole, and a sparse copy would lose it.
//!
//! - **holes-H1** Before a page of a hole is dirty, the kernel reads it: as zeros, by a request
//!   without an owner. The server then notes its range, and forgets it with the inode.
//! - **holes-H2** Pages are dirty only while a file is open for reading and writing, which a shared
//!   mapping for stores requires: the kernel writes them back when the mapping ends, and closes the
//!   file after that.
//!
//! So a noted range counts as data while such a handle is open; if the kernel opens files without a
//! request, it always does.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use vfs::{Errno, FileSystem, Ino, Result, Seek};

use crate::names::lock;

/// Bytes of a page.
const PAGE: usize = 4096;

#[derive(Default)]
pub(crate) struct Holes(Mutex<HashMap<Ino, Known>>);

/// The state of a file.
#[derive(Default)]
struct Known {
    /// Range from the first page of zeros that the kernel has read to the end of the last one, in
    /// bytes.
    zeros: Range<u64>,
    /// Number of handles by which programs can map it for stores.
    handles: u64,
}

impl Holes {
    /// Notes a new handle by which programs can map the file for stores.
    pub fn begin_stores(&self, ino: Ino) {
        lock(&self.0).entry(ino).or_default().handles += 1;
    }

    pub fn end_stores(&self, ino: Ino) {
        let mut all = lock(&self.0);
        let Some(known) = all.get_mut(&ino) else { return };
        known.handles = known.handles.saturating_sub(1);
        if known.handles == 0 && known.zeros.is_empty() {
            all.remove(&ino);
        }
    }

    /// Notes pages that the kernel is about to get (holes-H1).
    pub fn note_pages(&self, ino: Ino, offset: u64, content: &[u8]) {
        let is_zero = |page: &&[u8]| page.iter().all(|byte| *byte == 0);
        let page_at = |at: usize| offset + (at * PAGE) as u64;
        let Some(first) = content.chunks(PAGE).position(|page| is_zero(&page)) else { return };
        let count = content.len().div_ceil(PAGE);
        let last = content.chunks(PAGE).rposition(|page| is_zero(&page)).unwrap_or(count - 1);
        let found = page_at(first)..page_at(last + 1);
        let mut all = lock(&self.0);
        let zeros = &mut all.entry(ino).or_default().zeros;
        *zeros = match zeros.is_empty() {
            true => found,
            false => zeros.start.min(found.start)..zeros.end.max(found.end),
        };
    }

    /// Forgets an inode that the kernel has dropped, with its pages.
    pub fn forget(&self, ino: Ino) {
        let mut all = lock(&self.0);
        if all.get(&ino).is_some_and(|known| known.handles == 0) {
            all.remove(&ino);
        }
    }

    /// Whether the kernel may have pages that programs have stored to. If it opens files without a
    /// request, only pages of holes are known.
    pub fn may_be_stored_to(&self, ino: Ino, hears_opens: bool) -> bool {
        let all = lock(&self.0);
        all.get(&ino).is_some_and(|known| known.handles > 0 || !hears_opens)
    }

    /// Returns the range of stores that only the kernel knows (holes-H2). `hears_opens`: handles
    /// are counted.
    fn stored_to(&self, ino: Ino, hears_opens: bool) -> Range<u64> {
        let all = lock(&self.0);
        let known = all.get(&ino).filter(|known| known.handles > 0 || !hears_opens);
        known.map_or(0..0, |known| known.zeros.clone())
    }

    /// Finds data or a hole at or after `offset`, as [`FileSystem::seek`].
    pub fn seek(
        &self,
        fs: &dyn FileSystem,
        ino: Ino,
        (offset, whence): (u64, Seek),
        hears_opens: bool,
    ) -> Result<u64> {
        let stored = self.stored_to(ino, hears_opens);
        let found = fs.seek(ino, offset, whence);
        if stored.is_empty() {
            return found;
        }
        let size = fs.getattr(ino)?.size;
        let stored = stored.start..stored.end.min(size);
        if offset >= size || offset >= stored.end {
            return found;
        }
        match whence {
            Seek::Data => match found {
                Ok(data) => Ok(data.min(stored.start.max(offset))),
                Err(Errno::NXIO) => Ok(stored.start.max(offset)),
                Err(err) => Err(err),
            },
            Seek::Hole => match found? {
                hole if stored.contains(&hole) && stored.end == size => Ok(size),
                hole if stored.contains(&hole) => fs.seek(ino, stored.end, Seek::Hole),
                hole => Ok(hole),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::model::Model;
    use vfs::{Caller, NewKind, NewNode, SetAttr};

    const MIB: u64 = 1 << 20;

    /// Makes a file of 1 MiB, with data in its second page.
    fn sparse() -> (Model, Ino) {
        let model = Model::new();
        let caller = Caller { uid: 0, gid: 0 };
        let node = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };
        let ino = model.create(&caller, vfs::ROOT, b"file", &node).unwrap().ino;
        let size = SetAttr { size: Some(MIB), ..SetAttr::default() };
        model.setattr(&caller, ino, &size).unwrap();
        model.write(ino, PAGE as u64, &[7; PAGE]).unwrap();
        (model, ino)
    }

    #[test]
    fn pages_of_holes_are_data_while_they_may_be_stored_to() {
        let (model, ino) = sparse();
        let holes = Holes::default();
        let page = PAGE as u64;
        let seek = |offset, whence| holes.seek(&model, ino, (offset, whence), true);
        holes.begin_stores(ino);
        let mut pages = vec![0; 4 * PAGE];
        pages[PAGE] = 7;
        holes.note_pages(ino, 64 * page, &pages[PAGE..2 * PAGE]);
        assert_eq!(
            seek(2 * page, Seek::Data),
            Err(Errno::NXIO),
            "a page with data is none of a hole"
        );
        holes.note_pages(ino, 64 * page, &pages);
        assert_eq!(seek(0, Seek::Data), Ok(page));
        assert_eq!(seek(page, Seek::Hole), Ok(2 * page));
        assert_eq!(seek(2 * page, Seek::Data), Ok(64 * page));
        assert_eq!(seek(65 * page, Seek::Data), Ok(65 * page));
        assert_eq!(seek(64 * page, Seek::Hole), Ok(68 * page));
        assert_eq!(seek(68 * page, Seek::Data), Err(Errno::NXIO));
        assert_eq!(seek(MIB, Seek::Hole), Err(Errno::NXIO));
        holes.note_pages(ino, MIB - page, &pages[..PAGE - PAGE / 2]);
        holes.note_pages(ino, MIB - page, &[0; PAGE]);
        assert_eq!(seek(64 * page, Seek::Hole), Ok(MIB));
        holes.end_stores(ino);
        assert_eq!(seek(2 * page, Seek::Data), Err(Errno::NXIO));
        assert_eq!(holes.seek(&model, ino, (2 * page, Seek::Data), false), Ok(64 * page));
        holes.forget(ino);
        assert_eq!(holes.seek(&model, ino, (2 * page, Seek::Data), false), Err(Errno::NXIO));
    }
}
