//! Making changes durable: chunks, then the journal, then the manifest.
//!
//! Locks, in the order they are taken: [`Core::committed`]; a file's `io`, of two files the one of the lower inode first; its
//! `content`; [`Core::journal`]; any one of the others.
//!
//! - **commit-C1** What a commit replaces is deleted after it. Where that fails it is garbage, which is collected by who opens the
//!   tree next: what nothing names of those who held it before.

use crate::content::{Content, File, Space, failed};
use crate::format::{Contents, Id, Kind, Manifest, Op, Part, seal};
use crate::journal::{Journal, Taken};
use crate::lease::{Held, Lost};
use crate::manifest::{Committed, Needed, Refused, snapshot};
use crate::replay::{CAPABILITY, Clock, set_content};
use crate::{Options, lock, read, write};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vfs::model::Model;
use vfs::{Errno, FileSystem as _, Ino, Result, Timestamp};

/// A manifest names no more logs than this for small snapshots, and than that for large ones: who opens the tree gets each.
const LOGS: std::ops::RangeInclusive<u64> = 32..=1000;
/// A snapshot costs no more for each commit than so many bytes, as long as there may be more logs.
const SNAPSHOT_SHARE: u64 = 32 << 10;
/// Logs of fewer bytes than this are no reason for a snapshot.
const LOG_BYTES: u64 = 1 << 20;
/// For so long files are uploaded after one could not be.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many files are uploaded at once.
const PARALLEL: usize = 8;
/// So many objects are deleted by one request, and by a commit if nobody else does it.
const DELETE_AT: usize = 1000;

/// A directory, and a name in it.
pub type Name = (Ino, Box<[u8]>);

/// What is open.
pub struct Core {
    pub options: Options,
    /// Which tree it is.
    pub id: [u8; 16],
    pub space: Space,
    /// Names and attributes. Files in it have sizes and no bytes.
    pub tree: Model,
    pub clock: Clock,
    /// Files that are, or were, not all holes.
    pub files: Mutex<HashMap<Ino, Arc<File>>>,
    /// Those of them that have something of which the journal does not tell.
    pub changed: Mutex<HashMap<Ino, Arc<File>>>,
    pub journal: Mutex<Journal>,
    pub committed: Mutex<Committed>,
    pub lease: Mutex<Held>,
    /// Another holder has the tree.
    pub is_fenced: AtomicBool,
    /// Where inodes were last reached.
    pub places: Mutex<HashMap<Ino, Name>>,
    /// Objects to be deleted.
    pub garbage: Mutex<Vec<(&'static str, Id)>>,
    /// Objects of those who held the tree before that are needed, until the others are deleted.
    pub needed: Mutex<Option<Needed>>,
}

/// What the journal says, at one moment, of the whole tree.
struct Cut {
    /// With the sizes that files had then.
    tree: Model,
    contents: Contents,
    /// Sizes of files that changed since the journal said something of their content.
    sizes: Vec<(Ino, u64)>,
}

impl Core {
    /// The tree, for a change; with the time of the call (objects-J1).
    ///
    /// # Errors
    /// `EROFS` where another holder has it.
    pub fn change<T>(
        &self,
        act: impl FnOnce(&Model, Timestamp, &mut Journal) -> Result<T>,
    ) -> Result<T> {
        if self.is_fenced.load(Relaxed) {
            return Err(Errno::ROFS);
        }
        let mut journal = lock(&self.journal);
        let now = Timestamp::now();
        self.clock.set(now);
        act(&self.tree, now, &mut journal)
    }

    /// The tree, for a change of a file's content: the capability goes first (vfs-C5).
    pub fn change_content<T>(&self, ino: Ino, act: impl FnOnce(&Model) -> Result<T>) -> Result<T> {
        self.change(|tree, now, journal| {
            if tree.getxattr(ino, CAPABILITY).is_ok() {
                tree.removexattr(ino, CAPABILITY)?;
                let name = CAPABILITY.to_vec();
                journal.record(now, Op::Removexattr { ino, name });
                journal.note_change(ino);
            }
            act(tree)
        })
    }

    /// After a name or a reference went: an inode that nothing holds any more is forgotten.
    pub fn bury(&self, journal: &mut Journal, ino: Ino) {
        if self.tree.getattr(ino) == Err(Errno::STALE) {
            lock(&self.places).remove(&ino);
            lock(&self.changed).remove(&ino);
            if let Some(file) = lock(&self.files).remove(&ino) {
                journal.bury(ino, file);
            }
        }
    }

    /// Uploads what changed of a file, and has the journal say so.
    ///
    /// # Errors
    /// `EIO`. What is not uploaded stays staged.
    pub fn record_content(&self, ino: Ino, file: &File) -> Result<()> {
        let _io = lock(&file.io);
        if !file.is_changed.load(Relaxed) {
            return Ok(());
        }
        file.upload(&self.space, |_, _| true)?;
        let mut content = write(&file.content);
        let mut journal = lock(&self.journal);
        // A file that is gone needs none.
        if let Ok(attr) = self.tree.getattr(ino) {
            let (chunks, old) = content.take_changes();
            let (size, mtime, ctime) = (attr.size, attr.mtime, attr.ctime);
            journal.note_content(ino, &chunks);
            journal.record(Timestamp::now(), Op::Content { ino, size, mtime, ctime, chunks });
            self.space.free(old);
            file.logged_size.store(size, Relaxed);
        }
        file.is_changed.store(false, Relaxed);
        lock(&self.changed).remove(&ino);
        Ok(())
    }

    /// Makes all names and attributes durable, and each content that the journal tells of.
    ///
    /// # Errors
    /// `EROFS` where another holder has the tree; `EIO` where it is not known to be durable.
    pub fn commit(&self) -> Result<()> {
        let mut committed = lock(&self.committed);
        if self.is_fenced.load(Relaxed) {
            return Err(Errno::ROFS);
        }
        let (taken, freed, cut) = {
            let mut journal = lock(&self.journal);
            let cut = (!journal.is_empty() && wants_snapshot(&committed.manifest, journal.len()))
                .then(|| self.cut(&journal));
            (journal.take(), self.space.take_freed(), cut)
        };
        let mut replaced = Vec::new();
        if !taken.records.is_empty() {
            let put = match cut {
                Some(cut) => self.put_snapshot(&mut committed, cut, &mut replaced),
                None => self.put_log(&mut committed, &taken),
            };
            if let Err(errno) = put {
                self.space.free(freed);
                lock(&self.journal).give_back(taken);
                return Err(errno);
            }
            lock(&self.journal).is_durable(&taken);
        }
        let dead = taken.dead.iter().flat_map(|file| read(&file.content).objects());
        replaced.extend(freed.into_iter().chain(dead).map(|id| ("data", id)));
        let is_much = {
            let mut garbage = lock(&self.garbage);
            garbage.extend(replaced);
            garbage.len() >= DELETE_AT
        };
        if is_much {
            self.delete_garbage();
        }
        Ok(())
    }

    fn cut(&self, journal: &Journal) -> Cut {
        let changed = lock(&self.changed);
        let changed = changed.iter().filter(|(_, file)| file.is_changed.load(Relaxed));
        let sizes = changed.map(|(ino, file)| (*ino, file.logged_size.load(Relaxed))).collect();
        Cut { tree: self.tree.clone(), contents: journal.contents.clone(), sizes }
    }

    fn put_log(&self, committed: &mut Committed, taken: &Taken) -> Result<()> {
        let object = seal(Kind::Log, &taken.records);
        let part = self.put_part(Kind::Log, object)?;
        let mut next = committed.manifest.clone();
        next.logs.push(part);
        self.publish(committed, next)
    }

    fn put_snapshot(
        &self,
        committed: &mut Committed,
        cut: Cut,
        replaced: &mut Vec<(&'static str, Id)>,
    ) -> Result<()> {
        for (ino, size) in cut.sizes {
            // Of one that went just now, with the last reference to it.
            let Ok(attr) = cut.tree.getattr(ino) else { continue };
            set_content(&cut.tree, ino, (size, attr.mtime, attr.ctime))?;
        }
        let object = snapshot(&cut.tree, &cut.contents);
        let part = self.put_part(Kind::Snapshot, object)?;
        let next = Manifest { snapshot: part, logs: Vec::new(), ..committed.manifest.clone() };
        let last = committed.manifest.clone();
        self.publish(committed, next)?;
        replaced.push(("snapshot", last.snapshot.id));
        replaced.extend(last.logs.iter().map(|part| ("log", part.id)));
        Ok(())
    }

    fn put_part(&self, kind: Kind, object: Vec<u8>) -> Result<Part> {
        let put = Part::put(&self.space.store, kind, self.space.new_id(), object);
        put.map_err(|err| failed("a commit", &err))
    }

    fn publish(&self, committed: &mut Committed, next: Manifest) -> Result<()> {
        let next = Manifest { sequence: next.sequence + 1, ..next };
        match committed.publish(&self.space.store, next) {
            Ok(()) => Ok(()),
            Err(Refused::Failed(err)) => Err(failed("a commit", &err)),
            Err(Refused::Fenced) => {
                self.fence("a commit was refused");
                Err(Errno::ROFS)
            }
        }
    }

    /// Nothing is changed from now on.
    fn fence(&self, how: &str) {
        if !self.is_fenced.swap(true, Relaxed) {
            tracing::error!(
                "{how}: another process has taken the tree, as this one's lease was not renewed in time. What the pool has is \
                 kept; attach it again where the tree is to be used"
            );
        }
    }

    /// Files that have something of which the journal does not tell.
    fn changed_files(&self) -> Vec<(Ino, Arc<File>)> {
        lock(&self.changed).iter().map(|(ino, file)| (*ino, file.clone())).collect()
    }

    /// Changes a file's content. The caller holds its `io`.
    pub fn change_file<T>(
        &self,
        ino: Ino,
        file: &Arc<File>,
        act: impl FnOnce(&mut Content) -> Result<T>,
    ) -> Result<T> {
        lock(&self.changed).insert(ino, file.clone());
        file.change(act)
    }

    /// Makes everything durable. Where a file fails others are tried still, but not for long: the store may be away.
    ///
    /// # Errors
    /// The first one.
    pub fn sync(&self) -> Result<()> {
        let began = Instant::now();
        let is_hopeless = |result: Result<()>| result.is_err() && began.elapsed() >= PATIENCE;
        let files = self.changed_files();
        let (few, left) = (files.len().min(PARALLEL), Mutex::new(files.into_iter()));
        let record = || {
            let mut result = Ok(());
            while !is_hopeless(result) {
                let next = lock(&left).next();
                let Some((ino, file)) = next else { break };
                result = result.and(self.record_content(ino, &file));
            }
            result
        };
        let recorded = std::thread::scope(|scope| {
            let others: Vec<_> = (1..few).map(|_| scope.spawn(record)).collect();
            let own = record();
            let join = |other: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                other.join().expect("no upload panics")
            };
            others.into_iter().map(join).fold(own, |all, one| all.and(one))
        });
        if is_hopeless(recorded) { recorded } else { self.commit().and(recorded) }
    }

    /// Uploads chunks before they are committed, where more is staged than there may be: first whole ones of the file that is
    /// about to be written to, whose `io` is held, but the one where that begins.
    ///
    /// # Errors
    /// `EIO`.
    pub fn make_room(&self, ino: Ino, file: &File, first: u64) -> Result<()> {
        let is_over = || self.space.staging.bytes() > self.options.staged_max;
        if !is_over() {
            return Ok(());
        }
        file.upload(&self.space, |index, is_full| is_full && index != first)?;
        if !is_over() {
            return Ok(());
        }
        file.upload(&self.space, |_, _| true)?;
        for (other, file) in self.changed_files() {
            if !is_over() {
                break;
            }
            if other == ino {
                continue;
            }
            // Who has it is busy with the same.
            if let Ok(_io) = file.io.try_lock() {
                file.upload(&self.space, |_, _| true)?;
            }
        }
        Ok(())
    }

    /// Deletes what commits have replaced (commit-C1).
    pub fn delete_garbage(&self) {
        let garbage = std::mem::take(&mut *lock(&self.garbage));
        for folder in crate::format::FOLDERS {
            let ids: Vec<Id> =
                garbage.iter().filter(|(of, _)| *of == folder).map(|(_, id)| *id).collect();
            if !ids.is_empty() {
                let left = self.space.store.delete(folder, ids);
                lock(&self.garbage).extend(left.into_iter().map(|id| (folder, id)));
            }
        }
    }

    /// Deletes what those have left who held the tree before (commit-C1); how many objects.
    ///
    /// # Errors
    /// `EIO`. It may be called again.
    pub fn collect(&self) -> Result<usize> {
        let Some(needed) = lock(&self.needed).take() else { return Ok(0) };
        let mut count = 0;
        let mut result = Ok(());
        for (folder, ids) in &needed {
            let listed = match self.space.store.list(folder) {
                Ok(listed) => listed,
                Err(err) => {
                    result = Err(failed(folder, &err));
                    continue;
                }
            };
            let is_left = |id: &Id| id.epoch < self.space.epoch && !ids.contains(id);
            let left: Vec<Id> = listed.into_iter().filter(is_left).collect();
            count += left.len();
            for few in left.chunks(DELETE_AT) {
                if !self.space.store.delete(folder, few.to_vec()).is_empty() {
                    result = Err(Errno::IO);
                }
            }
        }
        if result.is_err() {
            *lock(&self.needed) = Some(needed);
        }
        result.map(|()| count)
    }

    /// Counts the lease up.
    pub fn renew(&self) {
        match lock(&self.lease).renew(&self.space.store) {
            Ok(()) => {}
            Err(Lost::To(other)) => self.fence(&format!("process {} on {}", other.pid, other.host)),
            Err(Lost::Unknown(err)) => {
                tracing::warn!("the lease cannot be renewed: {err}");
            }
        }
    }

    /// Gives the lease back.
    pub fn release(&self) {
        if self.is_fenced.load(Relaxed) {
            return;
        }
        if let Err(Lost::Unknown(err)) = lock(&self.lease).release(&self.space.store) {
            tracing::warn!("the lease cannot be given back, it ends by itself: {err}");
        }
    }
}

/// Whether the tree is to be put whole rather than one more log.
fn wants_snapshot(manifest: &Manifest, more: u64) -> bool {
    let logs: u64 = manifest.logs.iter().map(|part| part.len).sum();
    let most = (manifest.snapshot.len / SNAPSHOT_SHARE).clamp(*LOGS.start(), *LOGS.end());
    manifest.logs.len() as u64 >= most || logs + more > manifest.snapshot.len.max(LOG_BYTES)
}
