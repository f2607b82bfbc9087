//! Open file descriptions that are served.

#![allow(unsafe_code)]

use crate::file::File;
use crate::position::Position;
use crate::slab::Zeroed;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Opened for reading.
pub const READS: u32 = 1;
/// Opened for writing.
pub const WRITES: u32 = 2;
/// Every write goes to the end.
pub const APPENDS: u32 = 4;
/// Its chunks are unmapped with it: it has locks of its own, or others share it (direct-E2).
pub const LEAVES_NOTHING: u32 = 8;

/// An open file description of which this process has descriptors.
pub struct Description {
    pub position: Position,
    flags: AtomicU32,
    /// Number of its descriptors.
    pub fds: AtomicU32,
    file: AtomicPtr<File>,
    /// Index of its file.
    pub file_index: AtomicU32,
}

// SAFETY: numbers and a null pointer, which `init` replaces before another thread looks.
unsafe impl Zeroed for Description {}

impl Description {
    /// Starts over. No other thread knows the place, or direct-E1.
    pub fn init(&self, file: &File, file_index: u32, flags: u32) {
        self.flags.store(flags, Relaxed);
        self.fds.store(1, Relaxed);
        self.file.store(std::ptr::from_ref(file).cast_mut(), Relaxed);
        self.file_index.store(file_index, Relaxed);
    }

    #[inline]
    pub fn file(&self) -> &File {
        // SAFETY: set by `init` to a place that stays a file.
        unsafe { &*self.file.load(Relaxed) }
    }

    #[inline]
    pub fn is(&self, flags: u32) -> bool {
        self.flags.load(Relaxed) & flags == flags
    }

    pub fn set(&self, flags: u32) {
        self.flags.fetch_or(flags, Relaxed);
    }

    pub fn clear(&self, flags: u32) {
        self.flags.fetch_and(!flags, Relaxed);
    }
}
