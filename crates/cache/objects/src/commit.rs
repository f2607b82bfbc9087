//! Making changes durable: chunks, then the journal, then the manifest.
//!
//! Locks are taken in this order: [`Core::committed`]; a file's `io` (of two files, first that of
//! the lower inode); its `content`; [`Core::journal`]; any one of the others.
//!
//! - **commit-C1** Objects that a commit replaces are deleted after it. If that fails they are
//!   garbage. The next process that opens the tree deletes it: all objects of earlier holders that
//!   the manifest does not need.

use crate::content::{Content, ObjectFile, Space, failed};
use crate::format::{Contents, Id, Kind, Manifest, Op, Part, seal};
use crate::journal::{Journal, Taken};
use crate::lease::{HeldLease, LeaseLost};
use crate::manifest::{Committed, Needed, Refused, snapshot};
use crate::replay::{CAPABILITY, Clock, set_content};
use crate::{StoreOptions, lock, read, write};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vfs::model::Model;
use vfs::{Errno, FileSystem as _, Ino, Result, Timestamp};

/// The most logs of a manifest, for small and for large snapshots. A process that opens the tree
/// gets each log.
const LOGS: std::ops::RangeInclusive<u64> = 32..=1000;
/// The bytes of a snapshot for each commit until the next one: larger snapshots are made after more
/// logs, up to the limit.
const SNAPSHOT_SHARE: u64 = 32 << 10;
/// The least bytes of logs that cause a snapshot.
const LOG_BYTES: u64 = 1 << 20;
/// The time since its start after which a sync with a failed upload gives up on the other files.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most files that are uploaded at once.
const PARALLEL: usize = 8;
/// The most objects of a request that deletes them, and the number from which on a commit deletes
/// garbage.
const DELETE_AT: usize = 1000;

/// An open tree.
pub struct Core {
    pub options: StoreOptions,
    /// The ID of the tree.
    pub id: [u8; 16],
    pub space: Space,
    /// Names and attributes. Files in it have sizes and no bytes.
    pub tree: Model,
    pub clock: Clock,
    /// Files that are not all holes, or were not before.
    pub files: Mutex<HashMap<Ino, Arc<ObjectFile>>>,
    /// Files with changes that the journal does not have.
    pub changed: Mutex<HashMap<Ino, Arc<ObjectFile>>>,
    pub journal: Mutex<Journal>,
    pub committed: Mutex<Committed>,
    pub lease: Mutex<HeldLease>,
    /// Whether another holder has the tree.
    pub is_fenced: AtomicBool,
    /// Objects to be deleted.
    pub garbage: Mutex<Vec<(&'static str, Id)>>,
    /// The objects of earlier holders that are needed, until the others are deleted.
    pub needed: Mutex<Option<Needed>>,
}

/// The whole tree at one moment, as the journal has it.
struct Cut {
    /// The tree, with the sizes of files at that moment.
    tree: Model,
    contents: Contents,
    /// The sizes in the journal of files whose content has changed since.
    sizes: Vec<(Ino, u64)>,
}

impl Core {
    /// Changes the tree by `act`, at the current time (objects-J1).
    ///
    /// # Errors
    /// `EROFS` if another holder has the tree.
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

    /// Changes the tree together with a file's content: first removes the capability (vfs-C5).
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

    /// Forgets an inode that has no name or reference any more. To be called after one was removed.
    pub fn bury(&self, journal: &mut Journal, ino: Ino) {
        if self.tree.getattr(ino) == Err(Errno::STALE) {
            lock(&self.changed).remove(&ino);
            if let Some(file) = lock(&self.files).remove(&ino) {
                journal.bury(ino, file);
            }
        }
    }

    /// Uploads changed chunks of a file, and records them in the journal.
    ///
    /// # Errors
    /// `EIO`. Chunks that are not uploaded stay staged.
    pub fn record_content(&self, ino: Ino, file: &ObjectFile) -> Result<()> {
        let _io = lock(&file.io);
        if !file.is_changed.load(Relaxed) {
            return Ok(());
        }
        file.upload(&self.space, |_, _| true)?;
        let mut content = write(&file.content);
        let mut journal = lock(&self.journal);
        // A deleted file needs no record.
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

    /// Makes all names and attributes durable, and all recorded contents.
    ///
    /// # Errors
    /// `EROFS` if another holder has the tree; `EIO` if the changes may not be durable.
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

    /// Copies the state that a snapshot has to contain. The caller holds the journal.
    fn cut(&self, journal: &Journal) -> Cut {
        let changed = lock(&self.changed);
        let changed = changed.iter().filter(|(_, file)| file.is_changed.load(Relaxed));
        let sizes = changed.map(|(ino, file)| (*ino, file.logged_size.load(Relaxed))).collect();
        Cut { tree: self.tree.clone(), contents: journal.contents.clone(), sizes }
    }

    /// Puts the records as a log, and commits a manifest with it.
    fn put_log(&self, committed: &mut Committed, taken: &Taken) -> Result<()> {
        let object = seal(Kind::Log, &taken.records);
        let part = self.put_part(Kind::Log, object)?;
        let mut next = committed.manifest.clone();
        next.logs.push(part);
        self.publish(committed, next)
    }

    /// Puts a snapshot of `cut`, and commits a manifest with it alone. Adds the objects that it
    /// replaces to `replaced`.
    fn put_snapshot(
        &self,
        committed: &mut Committed,
        cut: Cut,
        replaced: &mut Vec<(&'static str, Id)>,
    ) -> Result<()> {
        for (ino, size) in cut.sizes {
            // The file was deleted just now, with the last reference to it.
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

    /// Commits the next manifest. `EROFS` if another holder has the tree, `EIO` if the store fails.
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

    /// Refuses all changes from now on.
    fn fence(&self, how: &str) {
        if !self.is_fenced.swap(true, Relaxed) {
            tracing::error!(
                "{how}: another process has taken the tree, as this one's lease was not renewed in time. What the pool has is \
                 kept; attach it again where the tree is to be used"
            );
        }
    }

    /// Returns the files with changes that the journal does not have.
    fn changed_files(&self) -> Vec<(Ino, Arc<ObjectFile>)> {
        lock(&self.changed).iter().map(|(ino, file)| (*ino, file.clone())).collect()
    }

    /// Changes a file's content. The caller holds its `io`.
    pub fn change_file<T>(
        &self,
        ino: Ino,
        file: &Arc<ObjectFile>,
        act: impl FnOnce(&mut Content) -> Result<T>,
    ) -> Result<T> {
        lock(&self.changed).insert(ino, file.clone());
        file.change(act)
    }

    /// Makes all changes durable. If a file fails, tries the others, but not for long: the store
    /// may be unreachable.
    ///
    /// # Errors
    /// The first error.
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

    /// Uploads chunks before they are committed, if too many bytes are staged. Begins with
    /// completely changed chunks of the file that is about to be written, whose `io` the caller
    /// holds, but not with the chunk in which the write begins (`first`).
    ///
    /// # Errors
    /// `EIO`.
    pub fn make_room(&self, ino: Ino, file: &ObjectFile, first: u64) -> Result<()> {
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
            // If the lock is taken, its holder is likely to upload the file.
            if let Ok(_io) = file.io.try_lock() {
                file.upload(&self.space, |_, _| true)?;
            }
        }
        Ok(())
    }

    /// Deletes objects that commits have replaced (commit-C1).
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

    /// Deletes objects of earlier holders that the tree did not need when it was opened
    /// (commit-C1). Returns their number. After one success there are no more: it returns 0.
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

    /// Renews the lease.
    pub fn renew(&self) {
        match lock(&self.lease).renew(&self.space.store) {
            Ok(()) => {}
            Err(LeaseLost::To(other)) => {
                self.fence(&format!("process {} on {}", other.pid, other.host))
            }
            Err(LeaseLost::Unknown(err)) => {
                tracing::warn!("the lease cannot be renewed: {err}");
            }
        }
    }

    /// Gives the lease back.
    pub fn release(&self) {
        if self.is_fenced.load(Relaxed) {
            return;
        }
        if let Err(LeaseLost::Unknown(err)) = lock(&self.lease).release(&self.space.store) {
            tracing::warn!("the lease cannot be given back, it ends by itself: {err}");
        }
    }
}

/// Whether the next commit should put a snapshot of the tree instead of one more log.
fn wants_snapshot(manifest: &Manifest, more: u64) -> bool {
    let logs: u64 = manifest.logs.iter().map(|part| part.len).sum();
    let most = (manifest.snapshot.len / SNAPSHOT_SHARE).clamp(*LOGS.start(), *LOGS.end());
    manifest.logs.len() as u64 >= most || logs + more > manifest.snapshot.len.max(LOG_BYTES)
}
