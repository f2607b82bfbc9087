//! Contents of files: chunks that are objects, and changed chunks that are not objects yet.
//!
//! - **content-C1** An object is never changed. A chunk that changes is staged, with its old object
//!   as its base, and becomes another object.
//! - **content-C2** The object that the journal records for a chunk is kept until the journal
//!   records another and that is committed. So the last committed content is complete at any time.
//! - **content-C3** At and beyond its size, a file has only zeros.

use crate::format::{BLOCK, ChunkRef, Chunks, Id, checksum};
use crate::lock;
use crate::staging::{Slot, Staging};
use crate::store::{Failure, RemoteStore};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use vfs::{Errno, Result, Seek};

/// The most bytes of a file's chunks that are uploaded at once, and the most chunks.
const UPLOAD_BYTES: u64 = 16 << 20;
const UPLOADS: usize = 8;
const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The place of contents: the store, and the staging file.
pub struct Space {
    pub store: RemoteStore,
    pub staging: Arc<Staging>,
    pub chunk_bytes: u64,
    pub epoch: u64,
    /// The number of the next object.
    next: AtomicU64,
    /// Objects that no file uses any more.
    freed: Mutex<Vec<Id>>,
}

impl Space {
    /// Makes the space for the holder of the lease in this epoch.
    pub fn new(store: RemoteStore, staging: Arc<Staging>, chunk_bytes: u64, epoch: u64) -> Self {
        let (next, freed) = (AtomicU64::new(0), Mutex::default());
        Self { store, staging, chunk_bytes, epoch, next, freed }
    }

    /// Returns a name that no object has or ever had.
    pub fn new_id(&self) -> Id {
        Id { epoch: self.epoch, number: self.next.fetch_add(1, Relaxed) }
    }

    /// Takes the objects that no file uses any more.
    pub fn take_freed(&self) -> Vec<Id> {
        std::mem::take(&mut lock(&self.freed))
    }

    /// Adds objects that no file uses any more.
    pub fn free(&self, ids: impl IntoIterator<Item = Id>) {
        lock(&self.freed).extend(ids);
    }

    /// Reads part of a chunk from its object into `buf`, which has zeros. Bytes that the object
    /// lacks stay zeros.
    fn read_object(&self, object: &ChunkRef, within: &Range<u64>, buf: &mut [u8]) -> Result<()> {
        let start = within.start.max(object.start.into());
        let end = within.end.min(object.end());
        if start >= end {
            return Ok(());
        }
        let base = u64::from(object.start);
        let name = object.id.name("data");
        let got = self.store.get_range(&name, start - base..end - base);
        let bytes = got.map_err(|err| failed(&name, &err))?;
        if bytes.len() == object.len as usize && checksum(&bytes) != object.crc {
            tracing::error!("{name}: its checksum is wrong");
            return Err(Errno::IO);
        }
        buf[(start - within.start) as usize..(end - within.start) as usize].copy_from_slice(&bytes);
        Ok(())
    }
}

/// Returns the error for a program if the store fails, and logs the reason.
pub fn failed(name: &str, err: &Failure) -> Errno {
    tracing::error!("{name}: {err}");
    Errno::IO
}

/// The content of a file, and its locks.
pub struct ObjectFile {
    /// Held by the thread that changes the content, or uploads it.
    pub io: Mutex<()>,
    pub content: RwLock<Content>,
    /// Whether the content has changes that the journal does not have. Set before a change, and
    /// cleared while the journal is locked.
    pub is_changed: AtomicBool,
    /// The size in the journal.
    pub logged_size: AtomicU64,
    /// The number of chunks that are not holes.
    pub chunks: AtomicU64,
}

/// The chunks of a file.
#[derive(Default)]
pub struct Content {
    chunks: BTreeMap<u64, ObjectChunk>,
    /// The objects that the journal has for chunks that changed since.
    logged: BTreeMap<u64, Option<ChunkRef>>,
}

enum ObjectChunk {
    Stored(ChunkRef),
    Staged(Staged),
}

/// A changed chunk.
struct Staged {
    slot: Slot,
    /// The object with the blocks that the slot lacks.
    base: Option<ChunkRef>,
}

impl ObjectFile {
    /// Makes a file with its committed chunks.
    pub fn new(chunks: Chunks, size: u64) -> Self {
        let count = chunks.len() as u64;
        let chunks = chunks.into_iter().map(|(index, object)| (index, ObjectChunk::Stored(object)));
        let content = Content { chunks: chunks.collect(), logged: BTreeMap::new() };
        Self {
            io: Mutex::new(()),
            content: RwLock::new(content),
            is_changed: AtomicBool::new(false),
            logged_size: AtomicU64::new(size),
            chunks: AtomicU64::new(count),
        }
    }

    /// Changes the content. The caller holds [`io`](Self::io).
    pub fn change<T>(&self, act: impl FnOnce(&mut Content) -> Result<T>) -> Result<T> {
        self.is_changed.store(true, Relaxed);
        let mut content = crate::write(&self.content);
        let result = act(&mut content);
        self.chunks.store(content.chunks.len() as u64, Relaxed);
        result
    }

    /// Uploads the staged chunks for which `which` returns true, given the index and whether the
    /// whole chunk changed. The caller holds [`io`](Self::io).
    ///
    /// # Errors
    /// `EIO`. Chunks that were not uploaded stay staged.
    pub fn upload(&self, space: &Space, which: impl Fn(u64, bool) -> bool) -> Result<()> {
        let staged = crate::read(&self.content).staged(which);
        let at_once = ((UPLOAD_BYTES / space.chunk_bytes) as usize).clamp(1, UPLOADS);
        for few in staged.chunks(at_once) {
            let assembled: Vec<(u64, u32, Vec<u8>)> = {
                let content = crate::read(&self.content);
                few.iter().map(|index| content.assemble(space, *index)).collect::<Result<_>>()?
            };
            let mut objects = Vec::new();
            let mut made = Vec::new();
            for (index, start, bytes) in assembled {
                let (id, len) = (space.new_id(), bytes.len() as u32);
                let object = ChunkRef { id, start, len, crc: checksum(&bytes) };
                made.push((index, (len > 0).then_some(object)));
                if len > 0 {
                    objects.push((id.name("data"), bytes));
                }
            }
            let put = space.store.put_all(objects);
            if let Err((name, err)) = put {
                space.free(made.into_iter().filter_map(|(_, object)| Some(object?.id)));
                return Err(failed(&name, &err));
            }
            let mut content = crate::write(&self.content);
            for (index, object) in made {
                content.replace(space, index, object.map(ObjectChunk::Stored));
            }
            self.chunks.store(content.chunks.len() as u64, Relaxed);
        }
        Ok(())
    }
}

impl Content {
    /// Reads into `buf`, which has zeros.
    pub fn read(&self, space: &Space, offset: u64, buf: &mut [u8]) -> Result<()> {
        let range = offset..offset + buf.len() as u64;
        for (index, within) in pieces(space.chunk_bytes, range) {
            let at = (index * space.chunk_bytes + within.start - offset) as usize;
            let part = &mut buf[at..][..(within.end - within.start) as usize];
            if let Some(chunk) = self.chunks.get(&index) {
                chunk.read(space, within, part)?;
            }
        }
        Ok(())
    }

    /// Prepares a write to `range`, so that it can only fail if the staging file fails. Changes no
    /// content.
    ///
    /// # Errors
    /// `EIO` if the store fails, `ENOSPC` if there is no space for staging.
    pub fn prepare(&mut self, space: &Space, range: Range<u64>) -> Result<()> {
        for (index, within) in pieces(space.chunk_bytes, range) {
            let staged = self.stage(space, index);
            staged.slot.reserve(within.clone())?;
            let edges = [within.start, within.end].into_iter().filter(|edge| edge % BLOCK != 0);
            for block in edges.map(|edge| edge / BLOCK) {
                staged.fill(space, block)?;
            }
        }
        Ok(())
    }

    /// Writes to a range that was [prepared](Self::prepare).
    pub fn write(&mut self, space: &Space, offset: u64, data: &[u8]) -> Result<()> {
        let range = offset..offset + data.len() as u64;
        for (index, within) in pieces(space.chunk_bytes, range) {
            let at = (index * space.chunk_bytes + within.start - offset) as usize;
            let part = &data[at..][..(within.end - within.start) as usize];
            self.stage(space, index).slot.write(within.start, part)?;
        }
        Ok(())
    }

    /// Zeroes a range of a file of `size` bytes. A chunk that has only zeros then becomes a hole.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn zero(&mut self, space: &Space, size: u64, mut range: Range<u64>) -> Result<()> {
        if range.end >= size {
            // content-C3: bytes beyond are zeros.
            range.end = range.end.next_multiple_of(space.chunk_bytes);
        }
        let indices = range.start / space.chunk_bytes..range.end.div_ceil(space.chunk_bytes);
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        for (index, chunk) in self.chunks.range(indices) {
            let Some((index, within)) = clip(space.chunk_bytes, *index, &range) else { continue };
            let extent = chunk.extent().unwrap_or_default();
            if within.start <= extent.start && extent.end <= within.end {
                whole.push(index);
            } else if within.start < extent.end && extent.start < within.end {
                parts.push((index, within));
            }
        }
        for (index, within) in &parts {
            let base = index * space.chunk_bytes;
            self.prepare(space, base + within.start..base + within.end)?;
        }
        for index in whole {
            self.note(index);
            self.replace(space, index, None);
        }
        for (index, within) in parts {
            self.stage(space, index).slot.zero(within)?;
        }
        Ok(())
    }

    /// Moves the content from `from` on to `to`, both multiples of [`BLOCK`], in a file of `size`
    /// bytes. The bytes between are removed, or become zeros.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare). Then nothing has changed.
    pub fn shift(&mut self, space: &Space, size: u64, from: u64, to: u64) -> Result<()> {
        let mut moved = Self::default();
        let mut buf = Vec::new();
        let mut at = from;
        while let Some(start) = self.seek(space, size, at, Seek::Data) {
            let end =
                self.seek(space, size, start, Seek::Hole).unwrap_or(size).min(start + (1 << 20));
            buf.clear();
            buf.resize((end - start) as usize, 0);
            self.read(space, start, &mut buf)?;
            let target = start - from + to;
            moved.prepare(space, target..target + buf.len() as u64)?;
            moved.write(space, target, &buf)?;
            at = end;
        }
        let first = from.min(to);
        let boundary = first / space.chunk_bytes;
        let boundary_end = (boundary + 1) * space.chunk_bytes;
        self.prepare(space, first..boundary_end)?;
        let end = (size - from + to).max(size).next_multiple_of(space.chunk_bytes);
        self.zero(space, size, first..end)?;
        for (index, chunk) in moved.chunks {
            if index == boundary {
                let mut bytes = vec![0; (boundary_end - first) as usize];
                chunk.read(space, first % space.chunk_bytes..space.chunk_bytes, &mut bytes)?;
                self.write(space, first, &bytes)?;
            } else {
                self.note(index);
                self.replace(space, index, Some(chunk));
            }
        }
        Ok(())
    }

    /// As [`vfs::FileSystem::seek`] in a file of `size` bytes: holes are whole chunks, and the ends
    /// of chunks that their objects leave out.
    pub fn seek(&self, space: &Space, size: u64, offset: u64, whence: Seek) -> Option<u64> {
        if offset >= size {
            return None;
        }
        let chunks = self.chunks.range(offset / space.chunk_bytes..);
        let extents = chunks.filter_map(|(index, chunk)| {
            let extent = chunk.extent()?;
            let base = index * space.chunk_bytes;
            Some(base + extent.start..base + extent.end)
        });
        let mut hole = offset;
        for extent in extents.filter(|extent| extent.end > offset) {
            if whence == Seek::Data {
                let data = extent.start.max(offset);
                return (data < size).then_some(data);
            }
            if extent.start > hole {
                break;
            }
            hole = extent.end;
        }
        (whence == Seek::Hole).then_some(hole.min(size))
    }

    /// Takes the changes for the journal, after all chunks were uploaded. Also returns the objects
    /// that the journal then no longer has.
    pub fn take_changes(&mut self) -> (Vec<(u64, Option<ChunkRef>)>, Vec<Id>) {
        let logged = std::mem::take(&mut self.logged);
        let stored = |index| match self.chunks.get(index) {
            Some(ObjectChunk::Stored(object)) => Some(*object),
            Some(ObjectChunk::Staged(_)) => unreachable!("all is uploaded"),
            None => None,
        };
        let changes = logged.keys().map(|index| (*index, stored(index))).collect();
        (changes, logged.into_values().flatten().map(|object| object.id).collect())
    }

    /// Returns all objects of a deleted file.
    pub fn objects(&self) -> Vec<Id> {
        let logged = self.logged.values().flatten().copied();
        let now = self.chunks.values().filter_map(ObjectChunk::object);
        logged.chain(now).map(|object| object.id).collect()
    }

    /// Returns the staged chunks for which `which` returns true.
    fn staged(&self, which: impl Fn(u64, bool) -> bool) -> Vec<u64> {
        let chosen = self.chunks.iter().filter(|(index, chunk)| match chunk {
            ObjectChunk::Staged(staged) => which(**index, staged.slot.is_full()),
            ObjectChunk::Stored(_) => false,
        });
        chosen.map(|(index, _)| *index).collect()
    }

    /// Remembers the journal's object for a chunk that is about to change.
    fn note(&mut self, index: u64) {
        if !self.logged.contains_key(&index) {
            let object = match self.chunks.get(&index) {
                Some(ObjectChunk::Stored(object)) => Some(*object),
                _ => None,
            };
            self.logged.insert(index, object);
        }
    }

    /// Returns a chunk as a staged one.
    fn stage(&mut self, space: &Space, index: u64) -> &mut Staged {
        self.note(index);
        let slot = || ObjectChunk::Staged(Staged { slot: space.staging.slot(), base: None });
        let chunk = self.chunks.entry(index).or_insert_with(slot);
        if let ObjectChunk::Stored(object) = chunk {
            *chunk =
                ObjectChunk::Staged(Staged { slot: space.staging.slot(), base: Some(*object) });
        }
        match chunk {
            ObjectChunk::Staged(staged) => staged,
            ObjectChunk::Stored(_) => unreachable!("it was staged"),
        }
    }

    /// Replaces a chunk, which was [noted](Self::note). Frees its object if the journal never had
    /// it.
    fn replace(&mut self, space: &Space, index: u64, chunk: Option<ObjectChunk>) {
        let old = match chunk {
            Some(chunk) => self.chunks.insert(index, chunk),
            None => self.chunks.remove(&index),
        };
        if let Some(object) = old.as_ref().and_then(ObjectChunk::object)
            && self.logged.get(&index) != Some(&Some(object))
        {
            space.free([object.id]);
        }
    }

    /// Reads a staged chunk without the zeros at both ends. Returns its index, the offset of its
    /// first byte, and its bytes.
    fn assemble(&self, space: &Space, index: u64) -> Result<(u64, u32, Vec<u8>)> {
        let Some(chunk) = self.chunks.get(&index) else { return Ok((index, 0, Vec::new())) };
        let extent = chunk.extent().unwrap_or_default();
        let mut bytes = vec![0; (extent.end - extent.start) as usize];
        chunk.read(space, extent.clone(), &mut bytes)?;
        let is_zero = |block: &[u8]| *block == ZEROS[..block.len()];
        let last = bytes.chunks(BLOCK as usize).rposition(|block| !is_zero(block));
        bytes.truncate(last.map_or(0, |last| (last + 1) * BLOCK as usize));
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(end);
        let first = bytes.chunks(BLOCK as usize).position(|block| !is_zero(block)).unwrap_or(0);
        bytes.drain(..first * BLOCK as usize);
        Ok((index, extent.start as u32 + (first as u32) * BLOCK as u32, bytes))
    }
}

impl ObjectChunk {
    /// Reads part of the chunk into `buf`, which has zeros.
    fn read(&self, space: &Space, within: Range<u64>, buf: &mut [u8]) -> Result<()> {
        let staged = match self {
            Self::Stored(object) => return space.read_object(object, &within, buf),
            Self::Staged(staged) => staged,
        };
        let mut at = within.start;
        while at < within.end {
            let is_here = staged.slot.has(at / BLOCK);
            let mut end = at;
            while end < within.end && staged.slot.has(end / BLOCK) == is_here {
                end = (end / BLOCK + 1) * BLOCK;
            }
            let run = at..end.min(within.end);
            let part =
                &mut buf[(run.start - within.start) as usize..(run.end - within.start) as usize];
            match (&staged.base, is_here) {
                (_, true) => staged.slot.read(run.start, part)?,
                (Some(base), false) => space.read_object(base, &run, part)?,
                (None, false) => {}
            }
            at = run.end;
        }
        Ok(())
    }

    /// Returns the object that has the chunk, or part of it.
    fn object(&self) -> Option<ChunkRef> {
        match self {
            Self::Stored(object) => Some(*object),
            Self::Staged(staged) => staged.base,
        }
    }

    /// Returns the whole blocks of the chunk outside of which there are only zeros.
    fn extent(&self) -> Option<Range<u64>> {
        let of_object = self
            .object()
            .map(|object| u64::from(object.start)..object.end().next_multiple_of(BLOCK));
        let of_slot = match self {
            Self::Stored(_) => None,
            Self::Staged(staged) => staged.slot.bounds(),
        };
        let of_slot = of_slot.map(|blocks| blocks.start * BLOCK..blocks.end * BLOCK);
        match (of_object, of_slot) {
            (Some(a), Some(b)) => Some(a.start.min(b.start)..a.end.max(b.end)),
            (a, b) => a.or(b),
        }
    }
}

impl Staged {
    /// Copies a block from the base to the slot, if the slot lacks it.
    fn fill(&mut self, space: &Space, block: u64) -> Result<()> {
        if self.slot.has(block) {
            return Ok(());
        }
        let mut bytes = [0; BLOCK as usize];
        let at = block * BLOCK;
        if let Some(base) = &self.base {
            space.read_object(base, &(at..at + BLOCK), &mut bytes)?;
        }
        self.slot.write(at, &bytes)
    }
}

/// Returns the part of a chunk that a range covers.
fn clip(chunk_bytes: u64, index: u64, range: &Range<u64>) -> Option<(u64, Range<u64>)> {
    let base = index * chunk_bytes;
    let (start, end) = (range.start.max(base), range.end.min(base + chunk_bytes));
    (start < end).then(|| (index, start - base..end - base))
}

/// Iterates over the parts of chunks that a range covers, in order.
fn pieces(chunk_bytes: u64, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let indices = range.start / chunk_bytes..range.end.div_ceil(chunk_bytes);
    indices.filter_map(move |index| clip(chunk_bytes, index, &range))
}
