//! A mounted pool as a file system with a backing store.

use crate::derived::SharedPool as _;
use crate::files::Files;
use crate::layout::BLOCK;
use crate::mounted::Pool;
use crate::store::Storage as _;
use std::ops::Range;
use vfs::{
    Backed, DirtyCount, Errno, FileKind, Ino, LoadedObject, Residence, Result, WaitingCalls,
};

impl<F: Files> Backed for Pool<F> {
    fn residence(&self, ino: Ino) -> Result<Residence> {
        self.files.op(|core| core.residence(ino))
    }
    fn load_name(&self, dir: Ino, name: &[u8], object: &LoadedObject<'_>) -> Result<Ino> {
        self.files.op(|core| core.load_name(dir, name, object))
    }
    fn load_link(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.files.op(|core| core.load_link(dir, name, ino))
    }
    fn finish_names(&self, dir: Ino) -> Result<()> {
        self.files.op(|core| core.finish_names(dir))
    }
    fn finish_links(&self, ino: Ino) -> Result<()> {
        self.files.op(|core| core.finish_links(ino))
    }
    fn absent_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.files.op(|_| self.files.absent_range(ino, from))
    }
    fn load_content(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u64> {
        self.files.op(|_| self.files.load_content(ino, offset, data))
    }
    fn load_hole(&self, ino: Ino, range: Range<u64>) -> Result<()> {
        self.files.op(|_| self.files.load_hole(ino, range.clone()))
    }
    fn dirty_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.files.op(|_| self.files.dirty_range(ino, from))
    }
    fn clean_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.files.op(|_| self.files.clean_range(ino, from))
    }
    fn hole_range(&self, ino: Ino, from: u64) -> Result<Option<Range<u64>>> {
        self.files.op(|_| self.files.hole_range(ino, from))
    }
    fn clean_content(&self, ino: Ino, range: Range<u64>, version: u64) -> Result<Option<u64>> {
        self.files.op(|_| self.files.clean_content(ino, range.clone(), version))
    }
    fn set_identity(&self, ino: Ino, identity: &[u8]) -> Result<()> {
        self.files.op(|core| core.set_identity(ino, identity))
    }
    fn begin_names_back(&self, dir: Ino, mark: u32) -> Result<()> {
        self.files.op(|core| core.begin_names_back(dir, mark))
    }
    fn begin_write_back(&self, ino: Ino) -> Result<()> {
        self.files.op(|core| core.begin_write_back(ino))
    }
    fn clean_inode(&self, ino: Ino, version: u64, stamp: u32) -> Result<Option<u64>> {
        self.files.op(|core| core.clean_inode(ino, version, stamp))
    }
    fn reload(&self, ino: Ino, object: &LoadedObject<'_>, was: u32) -> Result<bool> {
        self.files.op(|_| self.files.reload(ino, object, was, false))
    }
    fn replace(&self, ino: Ino, object: &LoadedObject<'_>, was: u32) -> Result<bool> {
        if object.attr.kind == FileKind::Dir {
            // Names that only the pool has would not be dirty any more.
            return Err(Errno::ISDIR);
        }
        self.files.op(|_| self.files.reload(ino, object, was, true))
    }
    fn make_dirty(&self, ino: Ino) -> Result<()> {
        self.files.op(|_| self.files.make_dirty(ino))
    }
    fn set_pinned(&self, ino: Ino, is_pinned: bool) -> Result<()> {
        self.files.op(|core| core.set_pinned(ino, is_pinned))
    }
    fn is_through(&self, ino: Ino) -> Result<bool> {
        self.files.op(|core| core.is_through(ino))
    }
    fn note_stamp(&self, ino: Ino, was: u32, stamp: u32) -> Result<bool> {
        self.files.op(|core| core.note_stamp(ino, was, stamp))
    }
    fn begin_names(&self, dir: Ino) -> Result<()> {
        self.files.op(|core| core.begin_names(dir))
    }
    fn each_name(&self, dir: Ino, each: &mut dyn FnMut(&[u8], Ino, FileKind)) -> Result<()> {
        self.files.op(|core| core.each_name(dir, each))
    }
    fn unload_name(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<bool> {
        self.files.op(|core| core.unload_name(dir, name, ino, false))
    }
    fn drop_name(&self, dir: Ino, name: &[u8], ino: Ino) -> Result<bool> {
        self.files.op(|core| core.unload_name(dir, name, ino, true))
    }
    fn each_inode(&self, each: &mut dyn FnMut(Ino, &Residence)) -> Result<()> {
        self.files.op(|core| core.each_inode(each))
    }
    fn take_use(&self, ino: Ino) -> bool {
        self.files.op(|core| Ok(core.take_use(ino))).unwrap_or(false)
    }
    fn set_through(&self, through: WaitingCalls) {
        self.files.tables().set_through(through);
    }
    fn through(&self) -> WaitingCalls {
        self.files.tables().through()
    }
    fn evict_content(&self, ino: Ino, range: Range<u64>) -> Result<u64> {
        self.files.op(|_| self.files.evict_content(ino, range.clone()))
    }
    fn evict_names(&self, dir: Ino) -> Result<bool> {
        self.files.op(|core| core.evict_names(dir))
    }
    fn dirty_count(&self) -> DirtyCount {
        let (inodes, blocks) = self.files.tables().dirty().get();
        DirtyCount { inodes, bytes: blocks * BLOCK }
    }
    fn gained(&self) -> u64 {
        self.files.state().growth().gained()
    }
    fn gain(&self, bytes: u64) {
        self.files.state().growth().gain(bytes);
    }
    fn settle(&self, bytes: u64) {
        self.files.state().growth().settle(bytes);
    }
    fn limit_growth(&self, bytes: u64) {
        self.files.state().growth().limit(bytes);
    }
}
