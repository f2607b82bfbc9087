//! The scan of names. It derives the volatile state (§3.3), and finds violations. The engine finds
//! where content lies.
//!
//! The scan starts with the inode file and follows valid references: directories, in parallel, then
//! the inodes that their entries name. Everything is checked before it is trusted:
//!
//! - scan-S3: a directory has one name; the root and the directory of branches have none.
//! - scan-S4: a directory's block is a chain of sound entries, each name appears once.
//! - scan-S5: content beyond a file's end is left over from a crash, and so is an entry whose inode
//!   was never completed (dir-D4). They are not in use, and are cleared.
//! - scan-S6: everything that was read is durable when the scan returns. A process that was killed
//!   may have stored a commit and not flushed it. Other processes must not build on a change that a
//!   power failure would undo, nor see it. So the scan flushes everything that operations change in
//!   place: the inode file, inodes, directories, and the pointers to content. All else was durable
//!   before something led to it. As a fence completes the flushes of its own thread only, each
//!   worker fences.

use crate::derived::{Held, LIVE, REMOVED};
use crate::dir::Chain;
use crate::free::FreeRun;
use crate::fs::Core;
use crate::index::{Found, Next};
use crate::layout::*;
use crate::own_mode::MAY_HAVE_MODE;
use crate::store::Storage;
use crate::tables::{EntryPos, MAY_BE_CAPABLE, VInode};
use pmem::PmOff;
use pool::Problem;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Condvar, Mutex};
use vfs::{FileKind, Ino, ROOT, Result};

/// Problems beyond this number are counted, not listed.
const PROBLEMS_MAX: usize = 10_000;

/// Directories still to be scanned, shared by the workers.
#[derive(Default)]
struct Queue {
    state: Mutex<(Vec<Ino>, usize)>,
    more: Condvar,
}

impl Queue {
    /// Adds a directory to scan.
    fn push(&self, ino: Ino) {
        self.state.lock().expect("no worker panics").0.push(ino);
        self.more.notify_one();
    }

    /// Takes the next directory. If the queue is empty, waits for workers that may find more;
    /// returns `None` when all are idle. `finished`: the caller has scanned the directory that it
    /// took before.
    fn take(&self, finished: bool) -> Option<Ino> {
        let mut s = self.state.lock().expect("no worker panics");
        s.1 -= usize::from(finished);
        loop {
            if let Some(ino) = s.0.pop() {
                s.1 += 1;
                return Some(ino);
            }
            if s.1 == 0 {
                self.more.notify_all();
                return None;
            }
            s = self.more.wait(s).expect("no worker panics");
        }
    }
}

/// Options of a scan.
pub struct ScanOptions<'a> {
    /// Workers, the calling thread among them.
    pub threads: usize,
    /// Inodes that are in use even if no entry names them (sharing-R4 in [`crate::derived`]).
    pub held: &'a BTreeMap<Ino, Held>,
}

impl ScanOptions<'_> {
    /// Options for a pool that no process uses.
    pub fn fresh(threads: Option<usize>) -> Self {
        const NONE: &BTreeMap<Ino, Held> = &BTreeMap::new();
        Self { threads: pool::scan_threads(threads), held: NONE }
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// Live inodes.
    pub inodes: AtomicU64,
    /// Names.
    pub names: AtomicU64,
    /// Words that a crash left, and the value that they count as: mostly zero (scan-S5).
    pub stale: Mutex<Vec<(PmOff, u64)>>,
    problems: Mutex<Vec<Problem>>,
    problems_more: AtomicUsize,
}

impl Scan {
    /// Records a word that a crash left and that counts as zero (scan-S5).
    pub fn note_stale(&self, word: PmOff) {
        self.note_excess(word, 0);
    }

    /// Records a word that a crash left too large, and the value that counts.
    pub fn note_excess(&self, word: PmOff, counts: u64) {
        self.stale.lock().expect("no worker panics").push((word, counts));
    }

    /// Returns the problems, in the order of their objects.
    pub fn into_problems(self) -> Vec<Problem> {
        let mut p = self.problems.into_inner().expect("no worker panics");
        p.sort_by(|a, b| a.object.cmp(&b.object));
        let more = self.problems_more.into_inner();
        if more > 0 {
            p.push(Problem {
                object: "pool".into(),
                what: format!("{more} more problems are not listed"),
                remedy: None,
                repaired: false,
                fix: None,
            });
        }
        p
    }

    /// Records a violated invariant; `fix` is the word that a repair stores, with its description.
    pub fn problem(
        &self,
        object: impl Fn() -> String,
        what: String,
        fix: Option<((PmOff, u64), &str)>,
    ) {
        let mut list = self.problems.lock().expect("no worker panics");
        if list.len() == PROBLEMS_MAX {
            self.problems_more.fetch_add(1, Relaxed);
            return;
        }
        list.push(Problem {
            object: object(),
            what,
            remedy: fix.map(|(_, remedy)| remedy.to_owned()),
            repaired: false,
            fix: fix.map(|((at, value), _)| (at.get(), value)),
        });
    }
}

/// Returns the name of a directory in reports.
fn directory(dir: Ino) -> String {
    format!("directory inode {}", dir.0)
}

/// Returns whether an inode other than a file or directory can have this size, and any inode this
/// mode. Other code relies on both.
pub fn is_possible(kind: FileKind, mode: u32, size: u64, symlink: usize) -> bool {
    let may_be = match kind {
        FileKind::File | FileKind::Dir => true,
        FileKind::Symlink => (1..=symlink as u64).contains(&size),
        _ => size == 0,
    };
    may_be && mode == kind.mode_bits() | mode & 0o7777
}

impl<S: Storage> Core<S> {
    /// Scans the pool; `progress` receives the number of inodes found so far.
    pub fn scan(&self, o: &ScanOptions<'_>, progress: &(dyn Fn(u64) + Sync)) -> Scan {
        let scan = Scan::default();
        if self.scan_inodes(&scan) {
            self.scan_names(&scan, o.threads, progress);
            o.held.iter().for_each(|(ino, held)| self.adopt_orphan(&scan, *ino, *held));
        }
        self.end_scan(&scan);
        // The fence of this thread (scan-S6).
        let _ = self.medium().fence();
        self.tables().count_free_blocks();
        self.count_all_inodes();
        scan
    }

    /// Scans all directories, files and other inodes that have a name.
    fn scan_names(&self, scan: &Scan, threads: usize, progress: &(dyn Fn(u64) + Sync)) {
        let queue = Queue::default();
        let root = || "the root directory".to_owned();
        match self.tables().vinode(ROOT) {
            Ok(v) if ROOT.0 < self.tables().inode_slots() => {
                let mode = self.load(v, Word::Mode) as u32;
                if FileKind::from_mode(mode) == Some(FileKind::Dir) {
                    self.tables().mark_inode(ROOT);
                    self.adopt_inode(scan, Some(&queue), ROOT, v, 0);
                } else {
                    scan.problem(root, format!("its mode {mode:#o} is not a directory's"), None);
                }
            }
            _ => scan.problem(root, "the inode file does not hold it".into(), None),
        }
        // No name leads to it (branches-W1).
        if let Some(dir) = self.scan_branches_dir(scan)
            && let Ok(v) = self.tables().vinode(dir)
        {
            self.tables().mark_inode(dir);
            self.adopt_inode(scan, Some(&queue), dir, v, 0);
            v.parent.store(ROOT.0 as u32, Relaxed);
        }
        std::thread::scope(|s| {
            for _ in 1..threads {
                s.spawn(|| self.help_scan(scan, &queue, progress));
            }
            self.scan_dirs(scan, &queue, progress);
        });
    }

    /// Scans directories until none is left.
    fn scan_dirs(&self, scan: &Scan, queue: &Queue, progress: &(dyn Fn(u64) + Sync)) {
        let mut finished = false;
        while let Some(dir) = queue.take(finished) {
            self.scan_dir(scan, queue, dir);
            progress(scan.inodes.load(Relaxed));
            finished = true;
        }
    }

    /// Scans as a worker other than the calling thread; ends with the fence of this thread.
    fn help_scan(&self, scan: &Scan, queue: &Queue, progress: &(dyn Fn(u64) + Sync)) {
        self.scan_dirs(scan, queue, progress);
        // The fence of this worker (scan-S6).
        let _ = self.medium().fence();
    }

    /// Adds an inode without a name that is in use to the derived state.
    fn adopt_orphan(&self, scan: &Scan, ino: Ino, held: Held) {
        let Ok(v) = self.tables().vinode(ino) else { return };
        if ino.0 >= self.tables().inode_slots() || !self.tables().mark_inode(ino) {
            return;
        }
        match FileKind::from_mode(self.load(v, Word::Mode) as u32) {
            Some(kind) => {
                let flags = if kind == FileKind::Dir { REMOVED } else { held.unnamed };
                self.adopt_inode(scan, None, ino, v, flags);
                self.note_unnamed(ino);
            }
            None => {
                scan.problem(|| format!("inode {}", ino.0), "it is in use, but free".into(), None)
            }
        }
    }

    /// Adds an inode to the derived state; queues a directory that has a name.
    fn adopt_inode(&self, scan: &Scan, queue: Option<&Queue>, ino: Ino, v: &VInode, flags: u32) {
        scan.inodes.fetch_add(1, Relaxed);
        let object = || format!("inode {}", ino.0);
        let mode = self.load(v, Word::Mode) as u32;
        let kind = FileKind::from_mode(mode).expect("the caller checked the mode");
        let unread = match self.load(v, Word::Xattr) {
            0 => 0,
            _ => MAY_BE_CAPABLE | MAY_HAVE_MODE,
        };
        v.begin(kind, flags | unread | self.residence_flags(v, kind));
        let size = self.load(v, Word::Size);
        if size > S::LIMITS.file_size || kind == FileKind::Dir && !size.is_multiple_of(BLOCK) {
            scan.problem(object, format!("its size {size} is impossible"), None);
            return;
        }
        let mut blocks = 0;
        if let (FileKind::Dir, Some(queue)) = (kind, queue) {
            queue.push(ino);
        } else {
            blocks += self.scan_content(scan, &object, v, size, &mut |_, _| {});
        }
        if self.load(v, Word::Xattr) != 0 {
            blocks += self.scan_attributes(scan, &object, v);
        }
        v.add_blocks(blocks as i64);
    }

    /// Scans the entries of a directory that the caller has taken from the queue.
    fn scan_dir(&self, scan: &Scan, queue: &Queue, dir: Ino) {
        let Ok(v) = self.tables().vinode(dir) else { return };
        let object = || directory(dir);
        let size = self.load(v, Word::Size);
        let mut leaves = Vec::new();
        let blocks = self.scan_content(scan, &object, v, size, &mut |block, _| {
            self.medium().flush(block, BLOCK);
            leaves.push(block);
        });
        v.add_blocks(blocks as i64);
        for block in leaves {
            if self.scan_dir_block(scan, queue, dir, v, block).is_err() {
                scan.problem(object, "too many directories".into(), None);
            }
        }
    }

    /// Adds a block of a directory to the derived state, with the inodes that its entries name.
    /// Fails if the derived state has no room.
    fn scan_dir_block(
        &self,
        scan: &Scan,
        queue: &Queue,
        dir: Ino,
        v: &VInode,
        block: PmOff,
    ) -> Result<()> {
        let data = self.load_dir_block(block);
        let handle = self.tables().add_dir_block(v, block)?;
        let free = &self.tables().dir_block(handle).free;
        for life in Chain::new(&data).flatten().filter_map(|e| e.life) {
            self.prefetch_inode(Next::Scan, life.ino);
        }
        for e in Chain::new(&data) {
            let e = match e {
                Ok(e) => e,
                Err(off) => {
                    self.report_broken_chain(scan, dir, block, off);
                    continue;
                }
            };
            match e.life {
                None => free.set(e.run(), true),
                Some(life) if self.is_left_over(life) => {
                    scan.note_stale(block + e.off);
                    free.set(e.run(), true);
                }
                Some(life) => {
                    let at = (e.off + DIRENT_HEADER) as usize;
                    let name = &data[at..at + e.word.name_len];
                    let found = Found { ino: life.ino, pos: EntryPos::new(handle, e.off) };
                    self.scan_entry(scan, queue, dir, v, found, name);
                }
            }
        }
        self.set_run(v, handle, free.best())
    }

    /// Reports that scan-S4 does not hold from `off` on in a block.
    fn report_broken_chain(&self, scan: &Scan, dir: Ino, block: PmOff, off: u64) {
        let what = format!("block {block:#x}: the chain of entries breaks at byte {off}");
        let free = FreeRun { off, len: BLOCK - off };
        // Both words of the broken header matter; the word that names an inode is repaired first.
        let at = block + off;
        let fix = if self.medium().load_u64(at) != 0 {
            ((at, 0), "drop the broken entry (check again to repair the chain)")
        } else {
            ((at + 8, free.word()), "drop what follows in the block")
        };
        scan.problem(|| directory(dir), what, Some(fix));
    }

    /// Checks an entry and adds it to the derived state, with its inode if that has no other name
    /// so far. Reports what is wrong with it.
    #[allow(clippy::too_many_arguments)]
    fn scan_entry(
        &self,
        scan: &Scan,
        queue: &Queue,
        dir: Ino,
        d: &VInode,
        found: Found,
        name: &[u8],
    ) {
        let (ino, at) = (found.ino, self.tables().entry_at(found.pos));
        let object = || {
            format!("{}, entry {:?} at {at:#x}", directory(dir), name.escape_ascii().to_string())
        };
        let bad = |what: String| {
            scan.problem(object, what, Some(((at, 0), "drop the entry")));
        };
        if S::LIMITS.check_name(name).is_err() {
            return bad("the name is not allowed".into());
        }
        if ino.0 >= self.tables().inode_slots() {
            return bad(format!("it names inode {}, which does not exist", ino.0));
        }
        let Ok(v) = self.tables().vinode(ino) else {
            return bad(format!("it names inode {}, which cannot exist", ino.0));
        };
        let mode = self.load(v, Word::Mode) as u32;
        let Some(kind) = FileKind::from_mode(mode) else {
            return bad(format!(
                "it names inode {}, whose mode {mode:#o} is no kind of file",
                ino.0
            ));
        };
        let size = self.load(v, Word::Size);
        if !is_possible(kind, mode, size, S::LIMITS.symlink) {
            return bad(format!(
                "it names inode {}, which no {kind:?} can be: mode {mode:#o}, size {size}",
                ino.0
            ));
        }
        if let Some(what) = self.branch_problem(dir, name, kind) {
            return bad(what);
        }
        // Each name appears once (scan-S4).
        if self.find_name(dir, name).is_some() {
            return bad("the name appears twice".into());
        }
        // A directory has one name (scan-S3).
        let first = self.tables().mark_inode(ino);
        if !first && kind == FileKind::Dir {
            return bad(format!("{} has another name", directory(ino)));
        }
        if first {
            self.adopt_inode(scan, Some(queue), ino, v, 0);
        } else {
            // Another worker may be adopting it; its links must not be lost.
            while v.state.load(Acquire) & LIVE == 0 {
                std::hint::spin_loop();
            }
        }
        if kind == FileKind::Dir {
            v.parent.store(dir.0 as u32, Relaxed);
            d.links.fetch_add(1, Relaxed);
        } else if v.links.fetch_add(1, Relaxed) >= S::LIMITS.links {
            bad(format!("inode {} has more than {} names", ino.0, S::LIMITS.links));
        }
        if self.index_name(dir, name, found).is_err() {
            bad("too many names".into());
        }
        d.entries.fetch_add(1, Relaxed);
        scan.names.fetch_add(1, Relaxed);
    }

    /// Clears the words that a crash left (scan-S5). The scan has made durable the state that they
    /// are in (scan-S6). Durable on return.
    pub(crate) fn clear_stale(&self, words: &[(PmOff, u64)]) {
        for &(at, value) in words {
            self.medium().store_u64(at, value);
            self.medium().flush(at, 8);
        }
        if !words.is_empty() {
            let _ = self.medium().fence();
        }
    }
}
