//! Contents of files: read, write, append, size.
//!
//! | write | update (§3.2) | cost |
//! |---|---|---|
//! | ≤ 8 bytes inside one aligned word of existing data | in place | 1 line, 1 fence |
//! | more, inside one line of existing data | in place, if the CPU stores lines | 1 line, 1 fence |
//! | more, up to 1008 bytes inside one block of existing data | in place, by a record | a record, its lines, 3 fences |
//! | inside the file | copy-on-write, one word commits | new blocks + 1 line, 2 fences |
//! | the same, up to 126 blocks under one block of pointers | copy-on-write, a record or a line of pointers commits | new blocks + a record, their lines, 4 fences; or + 1 line, 2 fences |
//! | from the end of the file on | in-place append, the size commits | data + 1 line, 2 fences |
//! | across the end of the file | copy-on-write, then root and size by a record | + record, 4 fences |

use crate::append::{AppendContent, blocks_to_append};
use crate::blocks::{KEEP, Txn};
use crate::crawler::{CommitMode, CrawlChange, Edit, Node, Trees, blocks_for};
use crate::extent::FileExtent as _;
use crate::fs::Files;
use crate::layout::*;
use crate::redo;
use crate::store::Store;
use namespace::{Storage as _, VInode};
use pmem::{Domain, Fenced, LINE, Medium, PmOff};
use std::ops::Range;
use vfs::{Errno, Ino, Result};
use zerocopy::IntoBytes as _;

/// Overwrites a range with bytes.
struct WriteEdit<'a, M> {
    store: &'a Store<M>,
    ino: Ino,
    range: Range<u64>,
    data: &'a [u8],
    /// Bytes beyond this size are not part of the file and not copied.
    size: u64,
    /// Whole blocks whose shadows are written already: the first blocks that were taken.
    written: Range<u64>,
}

impl<M: Medium> Edit for WriteEdit<'_, M> {
    fn ranges(&self) -> &[Range<u64>] {
        std::slice::from_ref(&self.range)
    }

    fn leaf(
        &mut self,
        txn: &mut Txn<'_>,
        old: Option<BlockNo>,
        base: u64,
        _mode: CommitMode,
    ) -> Result<CrawlChange> {
        let new = match self.written.contains(&base) {
            true => txn.taken((base - self.written.start) / BLOCK),
            false => self.shadow(txn, old, base),
        };
        if let Some(old) = old {
            txn.free(old);
        }
        Ok(CrawlChange::Shadow(Some(new)))
    }

    fn commit_pointers(
        &mut self,
        txn: &mut Txn<'_>,
        at: PmOff,
        pointers: &[Pointer],
    ) -> Result<bool> {
        let (store, bytes) = (self.store, pointers.as_bytes());
        if store.medium.stores_lines() && at.get() % LINE + bytes.len() as u64 <= LINE {
            let ready = txn.fence(&store.medium);
            store.publish_in_line(at, bytes, ready);
            let _ = store.medium.fence();
            return Ok(true);
        }
        if bytes.len() > records::DATA_MAX || !store.has_records() {
            return Ok(false);
        }
        // The tree may have become taller, which a restart would not undo. So if no record is free,
        // the block is copied.
        let Ok((number, _lock)) = store.hold_record(self.ino) else { return Ok(false) };
        redo::overwrite(&store.medium, number, at, bytes, txn.fence(&store.medium));
        Ok(true)
    }
}

impl<M: Medium> WriteEdit<'_, M> {
    /// Writes the shadow of a leaf.
    fn shadow(&self, txn: &mut Txn<'_>, old: Option<BlockNo>, base: u64) -> BlockNo {
        let range = &self.range;
        let (start, end) = (range.start.max(base), range.end.min(base + BLOCK));
        let from = (start - range.start) as usize;
        let data = &self.data[from..from + (end - start) as usize];
        let new = txn.take();
        let used = self.size.clamp(end, base + BLOCK) - base;
        self.store.shadow_leaf(new, old, used, start - base, data);
        new
    }
}

impl<M: Medium> Trees<M> {
    /// Writes a shadow of the leaf `old` (`None`: a hole): its first `used` bytes, with `data` at
    /// `at`.
    fn shadow_leaf(&self, new: BlockNo, old: Option<BlockNo>, used: u64, at: u64, data: &[u8]) {
        if data.len() as u64 == BLOCK {
            return self.medium.write_nt(new.at(0), data);
        }
        let mut block = [0; BLOCK as usize];
        let Some(old) = old else {
            block[at as usize..at as usize + data.len()].copy_from_slice(data);
            return self.medium.write_nt(new.at(0), &block[..used.next_multiple_of(LINE) as usize]);
        };
        // Whole unchanged lines are copied past the cache; lines that `data` shares are put
        // together first.
        let start = at - at % LINE;
        let end = (at + data.len() as u64).next_multiple_of(LINE);
        let rest = used.next_multiple_of(LINE);
        let lines = &mut block[..(end - start) as usize];
        for line in [start, end - LINE] {
            let i = (line - start) as usize;
            self.medium.read(old.at(line), &mut lines[i..i + LINE as usize]);
        }
        let from = (at - start) as usize;
        lines[from..from + data.len()].copy_from_slice(data);
        if start > 0 {
            self.medium.copy_nt(new.at(0), old.at(0), start);
        }
        self.medium.write_nt(new.at(start), lines);
        if rest > end {
            self.medium.copy_nt(new.at(end), old.at(end), rest - end);
        }
    }
}

impl<M: Medium> Store<M> {
    /// Returns whether contiguous pointers may be committed by a record: only if fences are no
    /// system calls, and so cheaper than copying a block.
    fn has_records(&self) -> bool {
        self.medium.0.domain() != Domain::PageCache
    }

    /// Commits bytes of one line by storing it whole: durable after the next fence.
    fn publish_in_line(&self, at: PmOff, data: &[u8], ready: Fenced) {
        let inside = (at.get() % LINE) as usize;
        let off = at - inside as u64;
        let mut line = [0; LINE as usize];
        // If all of the line is new, it is not read first: the store would wait for the line to
        // come and go.
        if data.len() < line.len() {
            self.medium.read(off, &mut line);
        }
        line[inside..inside + data.len()].copy_from_slice(data);
        self.medium.publish_line(off, &line, ready);
    }

    /// Copies content out, holes as zeros; returns the number of bytes.
    pub fn read_content(&self, v: &VInode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let size = self.load(v, Word::Size);
        if offset >= size || buf.is_empty() {
            return Ok(0);
        }
        let len = (size - offset).min(buf.len() as u64);
        let buf = &mut buf[..len as usize];
        if let Some((at, have)) = self.in_extent(v, offset)?
            && have >= len
        {
            self.medium.read(at, buf);
            return Ok(len as usize);
        }
        let root = self.root(v)?;
        if offset / BLOCK == (offset + len - 1) / BLOCK {
            match self.find_block(root, offset)? {
                None => buf.fill(0),
                Some(block) => self.medium.read(block.at(offset % BLOCK), buf),
            }
            return Ok(len as usize);
        }
        let range = offset..offset + len;
        let mut piece = Piece { pm: PmOff::new(0), at: 0, len: 0 };
        let mut done = offset;
        self.visit(Node::top(root), &range, &mut |block, base| {
            let (start, end) = (range.start.max(base), range.end.min(base + BLOCK));
            let pm = block.at(start - base);
            if !piece.extend(pm, start, end - start) {
                self.medium.prefetch(pm, (end - start).min(256));
                done = piece.copy_out(self, done, offset, buf);
                piece = Piece { pm, at: start, len: end - start };
            }
            Ok(true)
        })?;
        done = piece.copy_out(self, done, offset, buf);
        buf[(done - offset) as usize..].fill(0);
        Ok(len as usize)
    }

    /// Drops the part of the tree beyond `size`, which was committed (crawler-T3), and frees its
    /// blocks.
    ///
    /// It has no fence of its own: until the pointers are durably null they lie beyond a durable
    /// size, where mount does not follow them (scan-S5). The caller flushes the inode's first line
    /// and fences before it gives the lock back, so that no other thread grows the file over them.
    pub fn prune(&self, v: &VInode, size: u64) -> Result<()> {
        v.cut_extent(&(size..u64::MAX));
        let root = self.root_if_present(self.load(v, Word::Root))?;
        let mut blocks = Vec::new();
        let mut each = |b| blocks.push(b);
        let count = if size == 0 {
            let count = self.take_down(Node::top(root), &mut v.block_count(), &mut each)?;
            self.medium.store_u64(self.word_at(v, Word::Root), 0);
            count
        } else {
            self.prune_node(Node::top(root), size, &mut each)?
        };
        v.add_blocks(-(count as i64));
        if !blocks.is_empty() {
            self.v.release(&blocks);
        }
        Ok(())
    }

    /// Nulls the pointers of a subtree that lie beyond `size`, in place: the path to `size` is the
    /// inode's own. Calls `each` for every block that becomes free; returns the number of blocks
    /// that were below.
    fn prune_node(&self, node: Node, size: u64, each: &mut dyn FnMut(BlockNo)) -> Result<u64> {
        let Some(block) = node.block else { return Ok(0) };
        if node.height == 0 || node.base + span(node.height) <= size {
            return Ok(0);
        }
        let below = span(node.height - 1);
        let pointers = self.load_pointers(node.block);
        let mut nulled: Option<Range<PmOff>> = None;
        let mut count = 0;
        for i in size.saturating_sub(node.base) / below..FANOUT {
            let child = node.child(i, self.block_if_present(pointers[i as usize])?);
            if pointers[i as usize].is_null() {
                continue;
            }
            if child.base < size {
                count += self.prune_node(child, size, each)?;
            } else {
                count += self.take_down(child, &mut { u64::MAX }, each)?;
                let slot = block.at(i * 8);
                self.medium.store_u64(slot, 0);
                nulled = Some(nulled.map_or(slot, |n| n.start)..slot + 8);
            }
        }
        if let Some(n) = nulled {
            self.medium.flush(n.start, n.end - n.start);
        }
        Ok(count)
    }
}

impl<M: Medium> Files<M> {
    /// Implements `FileSystem::read`.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let v = self.v.vinode(ino)?;
        self.prefetch_extent(v, offset, buf.len() as u64);
        self.read_by(ino, v, |v| self.read_content(v, offset, buf))
    }

    /// Implements `FileSystem::write`.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        if self.overwrite(ino, offset, data) {
            return Ok(());
        }
        let range = offset..offset.saturating_add(data.len() as u64);
        let is_present = || self.check_present(ino, |_| range);
        self.change_unsettled(&[ino], is_present, || {
            let v = self.live_file(ino)?;
            self.write_content(ino, v, offset, data)
        })
    }

    /// Implements `Files::append`.
    pub fn append(&self, ino: Ino, data: &[u8]) -> Result<u64> {
        let len = data.len() as u64;
        let is_present = || self.check_present(ino, |size| size..size.saturating_add(len));
        self.change_unsettled(&[ino], is_present, || {
            let v = self.live_file(ino)?;
            let offset = self.load(v, Word::Size);
            self.write_content(ino, v, offset, data)?;
            Ok(offset)
        })
    }

    /// Overwrites a range with whole blocks in it. The shadows of these depend on nothing that may
    /// change, so they are written before the file's lock is taken. So several writers of one file
    /// wait only while others change the tree. Facts about the tree are assumed, and checked again
    /// under the lock. `false` if an assumption was wrong or anything else is in the way; the file
    /// is unchanged then.
    fn overwrite(&self, ino: Ino, offset: u64, data: &[u8]) -> bool {
        let Ok(end) = LIMITS.end_of(offset, data.len() as u64) else { return false };
        let whole = offset.next_multiple_of(BLOCK)..end - end % BLOCK;
        if whole.is_empty() || self.check_writable().is_err() {
            return false;
        }
        let Ok(v) = self.v.vinode(ino) else { return false };
        let Ok(root) = self.root(v) else { return false };
        // It stays so while the operation lasts: no snapshot is made meanwhile.
        if !self.owns(&[ino]) {
            return false;
        }
        let height = root.height();
        if end > self.load(v, Word::Size).min(span(height)) {
            return false;
        }
        let range = offset..end;
        self.prefetch_rest(root, &range);
        let need = blocks_for(height, std::slice::from_ref(&range));
        let done = self.transact(need, KEEP, |txn| {
            // All blocks first: in a pool whose free blocks are scattered, each takes an atomic
            // operation, which waits for the non-temporal stores before it.
            for _ in whole.clone().step_by(BLOCK as usize) {
                txn.take();
            }
            for (i, base) in (0..).zip(whole.clone().step_by(BLOCK as usize)) {
                let at = (base - offset) as usize;
                self.medium.write_nt(txn.taken(i).at(0), &data[at..at + BLOCK as usize]);
            }
            let is_one = range == whole && whole.end - whole.start == BLOCK;
            let written = is_one.then(|| self.v.order(&self.medium));
            let _lock = self.v.lock_exclusive(&[ino])?;
            if is_one {
                // Another thread may have left a commit since that fence.
                self.settle();
            }
            let v = self.live_file(ino)?;
            if self.is_backed() {
                self.check_range(v, &range)?;
                self.check_growth(v, &range)?;
                self.mark_dirty(&[ino]);
            }
            let root = self.root(v)?;
            let size = self.load(v, Word::Size);
            if end > size || root.height() != height {
                return Err(Errno::AGAIN);
            }
            self.revoke_capability(v)?;
            v.cut_extent(&range);
            let replaces = written.is_some() && self.owns_path(root, offset)?;
            self.counted(v, range.clone(), || match written {
                Some(written) if replaces => self.replace_leaf(txn, v, root, offset, written),
                _ => {
                    self.touch_modified(v);
                    let store: &Store<M> = self;
                    let mut edit = WriteEdit { store, ino, range, data, size, written: whole };
                    self.edit_tree(txn, v, root, &mut edit)
                }
            })?;
            self.gain(v, txn.delta());
            Ok(())
        });
        done.is_ok()
    }

    /// Prefetches the unchanged parts of the first and last block of a write: they are copied after
    /// the other blocks were written.
    fn prefetch_rest(&self, root: Root, range: &Range<u64>) {
        let before = range.start - range.start % BLOCK..range.start;
        let behind = range.end..range.end.next_multiple_of(BLOCK);
        for rest in [before, behind] {
            if !rest.is_empty()
                && let Ok(Some(block)) = self.find_block(root, rest.start)
            {
                self.medium.prefetch(block.at(rest.start % BLOCK), rest.end - rest.start);
            }
        }
    }

    /// Replaces a leaf by the one block that was taken and is durable.
    fn replace_leaf(
        &self,
        txn: &mut Txn<'_>,
        v: &VInode,
        root: Root,
        offset: u64,
        written: Fenced,
    ) -> Result<()> {
        let slot = self.find_slot(root, self.word_at(v, Word::Root), offset)?;
        let (slot, old) = slot.ok_or(Errno::AGAIN)?;
        self.keep_mode(txn, v)?;
        self.touch_modified(v);
        old.into_iter().for_each(|old| txn.free(old));
        self.medium.publish_word(slot, Pointer::to(txn.taken(0)).word(), written);
        txn.end_commit(&self.medium, slot);
        Ok(())
    }

    /// Writes under the file's lock. Commits, and stores to what the pool shows, come after the
    /// pending commit (order-O2).
    pub fn write_content(&self, ino: Ino, v: &VInode, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = LIMITS.end_of(offset, data.len() as u64)?;
        self.check_growth(v, &(offset..end))?;
        self.revoke_capability(v)?;
        let size = self.load(v, Word::Size);
        self.counted(v, offset.min(size)..end, || self.write_range(ino, v, size, offset, data))
    }

    /// Writes up to a byte that a file may have, and does not count.
    fn write_range(&self, ino: Ino, v: &VInode, size: u64, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        let root = self.root(v)?;
        if offset >= size {
            return self.append_content(v, root, size, offset..end, AppendContent::Bytes(data));
        }
        if end > size {
            return self.write_across_end(ino, v, root, size, offset, data);
        }
        let is_one = offset / BLOCK == (end - 1) / BLOCK;
        if is_one
            && self.owns_block(root, offset)?
            && self.write_in_place(ino, v, root, offset, data)?
        {
            return Ok(());
        }
        let range = offset..end;
        v.cut_extent(&range);
        // One more than the crawl needs, to replace a leaf directly.
        let need = blocks_to_append(root, &range) + 1;
        self.transact(need, KEEP, |txn| {
            if is_one
                && self.owns_path(root, offset)?
                && self.write_leaf(txn, v, root, size, offset, data)?
            {
                self.gain(v, txn.delta());
                return Ok(());
            }
            self.touch_modified(v);
            // A tree may be shorter than its file (§3.1).
            let root = self.grow(txn, self.word_at(v, Word::Root), root, end);
            let mut edit = WriteEdit { store: self, ino, range, data, size, written: 0..0 };
            self.edit_tree(txn, v, root, &mut edit)?;
            self.gain(v, txn.delta());
            Ok(())
        })
    }

    /// Overwrites part of a block in place, if there is a way to; `false` if not.
    fn write_in_place(
        &self,
        ino: Ino,
        v: &VInode,
        root: Root,
        offset: u64,
        data: &[u8],
    ) -> Result<bool> {
        let end = offset + data.len() as u64;
        if offset / 8 == (end - 1) / 8 && self.write_word(v, root, offset, data)? {
            return Ok(true);
        }
        if offset / LINE == (end - 1) / LINE
            && self.can_store_lines()
            && self.write_line(v, root, offset, data)?
        {
            return Ok(true);
        }
        Ok(data.len() <= records::DATA_MAX
            && self.can_record()
            && self.write_recorded(ino, v, root, offset, data)?)
    }

    /// Overwrites part of one leaf: the crawl for the most frequent case, without its generality.
    /// `false` if the tree has no slot for that leaf yet. The new block is taken before the tree is
    /// read, so that the CPU can wait for the pointers while it copies.
    fn write_leaf(
        &self,
        txn: &mut Txn<'_>,
        v: &VInode,
        root: Root,
        size: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<bool> {
        let new = txn.take();
        let Some((slot, old)) = self.find_slot(root, self.word_at(v, Word::Root), offset)? else {
            txn.free(new);
            return Ok(false);
        };
        self.keep_mode(txn, v)?;
        let base = offset - offset % BLOCK;
        let used = size.min(base + BLOCK) - base;
        self.shadow_leaf(new, old, used, offset - base, data);
        self.touch_modified(v);
        if let Some(old) = old {
            txn.free(old);
        }
        txn.commit(&self.medium, slot, Pointer::to(new).word());
        Ok(true)
    }

    /// Updates one word in place (§3.2); `false` if there is no block yet.
    fn write_word(&self, v: &VInode, root: Root, offset: u64, data: &[u8]) -> Result<bool> {
        let Some(pm) = self.find_byte(v, root, offset)? else { return Ok(false) };
        self.settle();
        self.unmark_block(v, root, offset)?;
        let at = (offset % 8) as usize;
        let word = pm - at as u64;
        let mut bytes = self.medium.load_u64(word).to_le_bytes();
        bytes[at..at + data.len()].copy_from_slice(data);
        let ready = Fenced::not_needed("the word is all that changes");
        self.medium.publish_word(word, u64::from_le_bytes(bytes), ready);
        self.medium.flush(word, 8);
        self.touch_modified(v);
        let _ = self.medium.fence();
        Ok(true)
    }

    /// Returns whether data may change in place by a line: the medium supports it, and there are no
    /// readers without a copy.
    fn can_store_lines(&self) -> bool {
        self.medium.stores_lines() && !self.is_lent()
    }

    /// Returns whether data may change in place by a record: records are worth it, and there are no
    /// readers without a copy.
    fn can_record(&self) -> bool {
        self.has_records() && !self.is_lent()
    }

    /// Updates a part of a block in place by a record; `false` if there is no block yet.
    fn write_recorded(
        &self,
        ino: Ino,
        v: &VInode,
        root: Root,
        offset: u64,
        data: &[u8],
    ) -> Result<bool> {
        let Some(pm) = self.find_byte(v, root, offset)? else { return Ok(false) };
        self.settle();
        self.unmark_block(v, root, offset)?;
        let (number, _lock) = self.hold_record(ino)?;
        self.touch_modified(v);
        redo::overwrite(
            &self.medium,
            number,
            pm,
            data,
            Fenced::not_needed("data leads to nothing"),
        );
        Ok(true)
    }

    /// Updates one line in place, as [`write_word`](Self::write_word) does a word; `false` if there
    /// is no block yet.
    fn write_line(&self, v: &VInode, root: Root, offset: u64, data: &[u8]) -> Result<bool> {
        let Some(pm) = self.find_byte(v, root, offset)? else { return Ok(false) };
        self.settle();
        self.unmark_block(v, root, offset)?;
        self.publish_in_line(pm, data, Fenced::not_needed("the line is all that changes"));
        self.touch_modified(v);
        let _ = self.medium.fence();
        Ok(true)
    }

    /// Writes across the end of a file: root and size change together (§3.4 copies the inode).
    #[allow(clippy::too_many_arguments)]
    fn write_across_end(
        &self,
        ino: Ino,
        v: &VInode,
        root: Root,
        size: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let range = offset..offset + data.len() as u64;
        let end = range.end;
        v.cut_extent(&range);
        let record = self.hold_record(ino)?;
        self.transact(blocks_to_append(root, &range), KEEP, |txn| {
            let root = self.grow(txn, self.word_at(v, Word::Root), root, end);
            self.touch_modified(v);
            let mut edit = WriteEdit { store: self, ino, range, data, size, written: 0..0 };
            let change = self.edit(txn, Node::top(root), CommitMode::Copy, &mut edit)?;
            let CrawlChange::Shadow(block) = change else {
                return Err(Errno::UCLEAN);
            };
            let delta = txn.delta();
            let root = Root::new(block, root.height()).word();
            self.commit_held(&record, v, &[(Word::Root, root), (Word::Size, end)]);
            self.gain(v, delta);
            Ok(())
        })
    }

    /// Implements `FileSystem::copy_range`, as one operation: shares many whole blocks, copies
    /// block by block if it appends whole ones, else reads, then writes.
    pub fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        const AT_ONCE: u64 = 16 << 20;
        let ((src, src_off), (dst, dst_off)) = (from, to);
        let mut inos = [src, dst];
        inos.sort_unstable();
        let inos = if src == dst { &inos[..1] } else { &inos[..] };
        let is_present = || {
            let len = len.min(AT_ONCE);
            self.check_present(src, |_| src_off..src_off.saturating_add(len))?;
            let size = self.live_file(src).map_or(0, |s| self.load(s, Word::Size));
            let have = size.saturating_sub(src_off).min(len);
            self.check_present(dst, |_| dst_off..dst_off.saturating_add(have))
        };
        self.change_if(inos, is_present, || {
            let (s, d) = (self.live_file(src)?, self.live_file(dst)?);
            let have = self.load(s, Word::Size).saturating_sub(src_off).min(len);
            if have == 0 {
                return Ok(0);
            }
            let dst_end = LIMITS.end_of(dst_off, have)?;
            if src == dst && src_off < dst_end && dst_off < src_off + have {
                return Err(Errno::INVAL);
            }
            if self.copy_by_sharing((src, s, src_off), (dst, d, dst_off), have)? {
                return Ok(have);
            }
            let have = have.min(AT_ONCE);
            let size = self.load(d, Word::Size);
            if dst_off >= size && dst_off.is_multiple_of(BLOCK) && src_off.is_multiple_of(BLOCK) {
                self.revoke_capability(d)?;
                let blocks = self.blocks_of(s, src_off..src_off + have)?;
                let (content, range) = (AppendContent::Blocks(&blocks), dst_off..dst_off + have);
                let append = || self.append_content(d, self.root(d)?, size, range, content);
                self.counted(d, size..dst_off + have, append)?;
                return Ok(have);
            }
            let mut data = vec![0; have as usize];
            self.read_content(s, src_off, &mut data)?;
            self.write_content(dst, d, dst_off, &data)?;
            Ok(have)
        })
    }

    /// Returns the blocks of a range that starts at a block boundary; `None` for holes.
    fn blocks_of(&self, v: &VInode, range: Range<u64>) -> Result<Vec<Option<BlockNo>>> {
        let mut blocks = vec![None; (range.end - range.start).div_ceil(BLOCK) as usize];
        self.visit(Node::top(self.root(v)?), &range, &mut |block, base| {
            blocks[((base - range.start) / BLOCK) as usize] = Some(block);
            Ok(true)
        })?;
        Ok(blocks)
    }
}

/// Contiguous bytes to copy out: one copy for as many blocks as lie together.
struct Piece {
    pm: PmOff,
    at: u64,
    len: u64,
}

impl Piece {
    /// Adds the next bytes, if they are contiguous; returns whether they were.
    fn extend(&mut self, pm: PmOff, at: u64, len: u64) -> bool {
        let fits = self.len > 0 && pm == self.pm + self.len && at == self.at + self.len;
        if fits {
            self.len += len;
        }
        fits
    }

    /// Copies the piece out, and zeroes the hole since `done`; returns the new value of `done`.
    fn copy_out<M: Medium>(&self, trees: &Trees<M>, done: u64, offset: u64, buf: &mut [u8]) -> u64 {
        if self.len == 0 {
            return done;
        }
        buf[(done - offset) as usize..(self.at - offset) as usize].fill(0);
        let from = (self.at - offset) as usize;
        trees.medium.read(self.pm, &mut buf[from..from + self.len as usize]);
        self.at + self.len
    }
}
