//! No thread uses a block again while another reads it without a copy.

use super::{AtomicU64, explore};
use crate::{Arena, Bitmap, Layout, LockMode, Pins, RwLock, Span};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// A file of one block in a pool of two. Loom reports if a thread reads a block while another
/// writes it.
struct PinnedFile {
    arena: Arena,
    pins: Pins,
    used: Bitmap,
    /// Guards the number of the file's block.
    lock: Span<RwLock>,
    block: AtomicU64,
    blocks: [UnsafeCell<()>; 2],
}

impl PinnedFile {
    fn new() -> Arc<Self> {
        let mut layout = Layout::default();
        let pins = Pins::plan(&mut layout, 2, 1);
        let used = Bitmap::plan(&mut layout, 2);
        let lock = layout.table(1);
        let arena = Arena::anonymous(&layout).unwrap();
        used.init(&arena);
        used.set(&arena, 0);
        let blocks = [UnsafeCell::new(()), UnsafeCell::new(())];
        Arc::new(Self { arena, pins, used, lock, block: AtomicU64::new(0), blocks })
    }

    fn lock(&self) -> &RwLock {
        &self.arena.table(self.lock)[0]
    }

    /// Reads the file's block in place.
    fn read(&self) {
        self.pins.add(&self.arena).unwrap();
        self.lock().lock(LockMode::Shared);
        let block = self.block.load(Relaxed);
        self.lock().unlock(LockMode::Shared);
        self.blocks[block as usize].with(|_| ());
        if self.pins.remove(&self.arena) {
            self.drain();
        }
    }

    fn drain(&self) {
        self.pins.drain(&self.arena, |block| {
            assert!(self.used.clear(&self.arena, block), "deferred blocks are in use");
        });
    }

    /// Writes the file to another block, if one is free.
    fn write(&self) {
        let Some(new) = self.used.claim(&self.arena, 0..2, 1) else { return };
        self.blocks[new.start as usize].with_mut(|_| ());
        self.lock().lock(LockMode::Exclusive);
        let old = self.block.swap(new.start, Relaxed);
        match self.pins.defer(&self.arena, &[old as u32]) {
            true => self.drain(),
            false => assert!(self.used.clear(&self.arena, old), "it was in use"),
        }
        self.lock().unlock(LockMode::Exclusive);
    }
}

/// A reader, and a writer that needs the block that the reader may have.
#[test]
fn what_is_read_is_not_used_again() {
    explore(|| {
        let file = PinnedFile::new();
        let reader = {
            let file = file.clone();
            thread::spawn(move || file.read())
        };
        file.write();
        file.write();
        reader.join().unwrap();
        assert_eq!(file.used.count(&file.arena), 1, "what was deferred comes back");
    });
}

/// Two readers: the last to end frees the deferred block.
#[test]
fn the_last_reader_frees() {
    explore(|| {
        let file = PinnedFile::new();
        let reader = |file: &Arc<PinnedFile>| {
            let file = file.clone();
            thread::spawn(move || file.read())
        };
        let readers = [reader(&file), reader(&file)];
        file.write();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(file.used.count(&file.arena), 1);
    });
}
