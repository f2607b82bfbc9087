//! Attaching: a pool becomes the cache of a directory, or continues as that.

use crate::cnode::CONFLICT;
use crate::counters::{CacheCounts, Trouble};
use crate::drain::Backlog;
use crate::node::{CacheNode, Cnode};
use crate::openers::Openers;
use crate::punch::Unpunched;
use crate::record::{self, Fingerprint, Flags, MARK, MARK_MAX, Mark};
use crate::space::Resident;
use crate::table::NodeTable;
use crate::{BLOCK, Cache, CacheOptions, lock, write};
use backing::{Backing, Identity};
use std::sync::{Mutex, OnceLock};
use vfs::{
    Caller, Durability, Errno, FileKind, FileSystem, Ino, NewKind, NewNode, RenameFlags, Result,
};

/// The reason why a pool cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool holds other files.
    #[error(
        "the pool holds files and is no cache; a cache needs a pool of its own: format one with `keepstone mkfs`"
    )]
    Occupied,
    /// The pool is the cache of another directory.
    #[error(
        "the pool is the cache of {0}, which this directory is not; attach it there, or format a pool for this one"
    )]
    OtherDirectory(String),
    /// The mark of the pool is invalid.
    #[error("the pool's file `cache` is no description of a cache that this program knows: {0}")]
    Mark(String),
    /// The engine's guarantees are too weak.
    #[error(
        "a cache needs a pool in which every operation is durable on return: of the layout bpfs, on persistent memory or in \
         DRAM (/dev/shm), not in an ordinary file"
    )]
    NotDurable,
    /// A call failed.
    #[error("{0}")]
    Errno(#[from] Errno),
}

/// A file with data in the cache that the backing store lacks, and that cannot be found there.
pub(crate) struct Lost {
    /// The name of its shadow.
    pub name: Vec<u8>,
    why: Errno,
}

impl<P: FileSystem, B: Backing> Cache<P, B> {
    /// Attaches a pool to a directory, which is called `directory` in messages. Recovers the state
    /// from earlier attachments. The time for that grows only with the number of files with data
    /// that is not written back.
    ///
    /// # Errors
    /// As [`Error`] describes. The pool is then unchanged.
    pub fn attach(
        pool: P,
        backing: B,
        directory: &str,
        options: CacheOptions,
    ) -> std::result::Result<Self, Error> {
        if pool.durability() != Durability::OnReturn {
            return Err(Error::NotDurable);
        }
        let root = record::hex(&backing.identity(backing.root())?.0);
        match read_mark(&pool)? {
            Some(mark) if mark.root == root => {}
            Some(mark) => {
                return Err(Error::OtherDirectory(record::shown(mark.directory.as_bytes())));
            }
            None if options.read_only => return Err(Error::Errno(Errno::ROFS)),
            None => make(
                &pool,
                &Mark { version: record::VERSION, directory: directory.to_owned(), root },
            )?,
        }
        let dir = |name| pool.peek(pool.root(), name).map(|attr| attr.ino);
        let (nodes, dirty) = (dir(record::NODES)?, dir(record::DIRTY)?);
        let resident = Resident::new(options.policy);
        let mut cache = Self {
            openers: Openers::default(),
            pool,
            backing,
            options,
            nodes,
            dirty,
            table: NodeTable::default(),
            shadows: Mutex::new(()),
            backlog: Backlog::default(),
            delegating: OnceLock::new(),
            resident,
            counts: CacheCounts::default(),
            lost: Mutex::default(),
            removed: Mutex::default(),
            names: Mutex::default(),
            news: Mutex::default(),
            records_births: false,
            watching: Mutex::default(),
        };
        // The delegations were made by the previous server.
        cache.pool.recall(None)?;
        cache.recover()?;
        cache.records_births = cache.begin_births()?;
        Ok(cache)
    }

    /// Finds the files with data that is not written back.
    fn recover(&self) -> Result<()> {
        let mut names = Vec::new();
        self.pool.readdir(self.dirty, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        // Files that have to be created again come last: their names may belong to files that are
        // removed again.
        for is_last in [false, true] {
            names.retain(|name| match self.recover_file(name, is_last) {
                Ok(is_done) => !is_done,
                // It stays unchanged and is reported.
                Err(why) => {
                    lock(&self.lost).push(Lost { name: name.clone(), why });
                    false
                }
            });
        }
        Ok(())
    }

    /// Recovers a file. Returns whether it is done; files that have to be created again are left
    /// for the last pass.
    fn recover_file(&self, name: &[u8], is_last: bool) -> Result<bool> {
        let identity = Identity(record::identity_of(name).ok_or(Errno::UCLEAN)?);
        let found = {
            let _shadows = lock(&self.shadows);
            self.find(name)?
        };
        let Some(cnode) = found else {
            // The bitmap marks blocks of a shadow that does not exist.
            if !self.options.read_only {
                self.pool.unlink(self.dirty, name)?;
            }
            return Ok(true);
        };
        let is_to_be_made = cnode.birth.is_some() && !self.options.read_only;
        let done = match self.backing.find(&identity, &cnode.record.hint) {
            Ok(entry) if entry.kind == FileKind::File => match self.remove_again(&entry, &cnode) {
                Ok(false) => self.take_up(entry.ino, cnode),
                removed => {
                    self.release(&cnode);
                    removed.map(|_| self.note_removed(name.to_vec(), cnode.dirty_bytes()))
                }
            },
            // Its removal is not durable yet.
            Err(Errno::STALE) if cnode.record.state.contains(Flags::ORPHAN) => {
                self.release(&cnode);
                self.note_removed(name.to_vec(), cnode.dirty_bytes());
                Ok(())
            }
            Err(Errno::STALE) if is_to_be_made && !is_last => {
                self.release(&cnode);
                return Ok(false);
            }
            Err(Errno::STALE) if is_to_be_made => {
                let made = self.make_again(&cnode);
                self.release(&cnode);
                // Its content is durable in the new file, but the name of that is not durable yet.
                made.map(|()| self.note_removed(name.to_vec(), cnode.dirty_bytes()))
            }
            other => {
                self.release(&cnode);
                Err(other.err().unwrap_or(Errno::STALE))
            }
        };
        done.map(|()| true)
    }

    /// Recovers a file that could not be recovered when the pool was attached, before its size and
    /// times are returned to a caller.
    pub(crate) fn find_lost(&self, ino: Ino) -> Result<()> {
        if lock(&self.lost).is_empty() {
            return Ok(());
        }
        let node = self.table.get(ino);
        let found = self.load(&node, &mut write(&node.state));
        match found {
            // The next attachment removes it again.
            Ok(()) | Err(Errno::STALE) => Ok(()),
            Err(err) => {
                self.retire(&node);
                Err(err)
            }
        }
    }

    /// Gives back the references to a shadow that is not used after all.
    pub(crate) fn release(&self, cnode: &Cnode) {
        self.pool.forget(cnode.shadow, 1);
        if let Some(dirty) = &cnode.dirty {
            self.pool.forget(dirty.bitmap, 1);
        }
    }

    /// Adds a found file with data that is not written back, and keeps a reference to it.
    fn take_up(&self, ino: Ino, mut cnode: Cnode) -> Result<()> {
        let node = self.table.keep(ino);
        let mut state = write(&node.state);
        self.resume(&node, &mut cnode).inspect_err(|_| self.release(&cnode))?;
        self.admit(ino, &mut cnode);
        state.cached = Some(cnode);
        Ok(())
    }

    /// Continues with a shadow from an earlier attachment that has data which is not written back.
    /// Compares the backing file with the fingerprint (pmcache-C4), and completes operations that
    /// were interrupted.
    ///
    /// # Errors
    /// Errors of the backing store and the pool. Nothing has changed, and the call can be repeated.
    pub(crate) fn resume(&self, node: &CacheNode, cnode: &mut Cnode) -> Result<()> {
        let attr = self.backing.getattr(node.ino)?;
        let found = Fingerprint::of(&attr);
        let (before, state) = (cnode.record.left, cnode.record.state - Flags::ORPHAN);
        if state.contains(Flags::CONFLICT) || !cnode.record.may_have_left(&found) {
            if self.options.read_only {
                return Ok(());
            }
            if !state.contains(Flags::CONFLICT) {
                tracing::error!("{}: {CONFLICT}", self.name_for_people(node.ino, cnode));
            }
            return self.set_state(cnode, state | Flags::CONFLICT);
        }
        let is_other = state.contains(Flags::BUSY) || !found.has_same_content(&before);
        if is_other {
            cnode.record.left = found;
        }
        if self.options.read_only {
            return Ok(());
        }
        let taken = if is_other { (state - Flags::BUSY) | Flags::UNSYNCED } else { state };
        self.set_state(cnode, taken)?;
        // While the cache was changing the file, its record had an older time.
        if state.contains(Flags::BUSY) || found.ctime <= before.ctime {
            self.restore_attributes(&attr, cnode)?;
        }
        match self.punch(node, cnode) {
            // No call that depends on it has returned.
            Err(Unpunched::Refused(err)) if err != Errno::IO => self.drop_intent(cnode),
            done => done.map_err(Errno::from),
        }
    }

    /// Discards the data of a file that other processes have changed or removed in the backing
    /// store, and that [`status`](Self::status) lists (pmcache-C6). Returns the number of bytes, or
    /// `None` if there is no such file.
    ///
    /// # Errors
    /// Errors of the pool.
    pub fn discard(&self, path: &[u8]) -> Result<Option<u64>> {
        for (_, node) in self.backlog.files() {
            let mut state = write(&node.state);
            let Some(cnode) = &mut state.cached else { continue };
            let is_refused =
                cnode.record.state.contains(Flags::CONFLICT) || self.is_frozen(node.ino);
            if !is_refused || self.name_for_people(node.ino, cnode).as_bytes() != path {
                continue;
            }
            let bytes = cnode.dirty_bytes();
            self.clear_birth(cnode)?;
            self.end_dirty(&node, cnode)?;
            cnode.record.state -= Flags::CONFLICT;
            self.drop_intent(cnode)?;
            let attr = self.backing.getattr(node.ino)?;
            self.forget_content(&mut state, &attr)?;
            return Ok(Some(bytes));
        }
        let known = self.lost();
        let found = known.iter().position(|trouble| trouble.path.as_bytes() == path);
        let Some(index) = found else { return Ok(None) };
        let name = lock(&self.lost)[index].name.clone();
        self.unlink_both(&name)?;
        lock(&self.lost).remove(index);
        Ok(Some(known[index].dirty_bytes))
    }

    /// Returns the files with data in the cache that cannot be found in the backing store.
    pub(crate) fn lost(&self) -> Vec<Trouble> {
        let describe = |lost: &Lost| {
            let shadow = self.pool.peek(self.nodes, &lost.name);
            let blocks = shadow.as_ref().map_or(0, |attr| attr.blocks);
            let record = shadow.and_then(|attr| self.pool.getxattr(attr.ino, record::RECORD));
            let record = record.and_then(|bytes| record::Record::from_bytes(&bytes));
            let hint = record.map(|record| record.hint).unwrap_or_default();
            let what = match lost.why {
                Errno::STALE => {
                    "it was removed below, or moved out of the directory, while the cache had changes for it, which are kept; \
                                 `keepstone attach discard` drops them"
                        .to_owned()
                }
                Errno::EXIST => {
                    "it was made shortly before a power failure and has to be made again, but its name is another file's now; \
                                 `keepstone attach discard` drops what the cache has for it"
                        .to_owned()
                }
                why => format!("the cache has changes for it and cannot find it: {why}"),
            };
            let path = record::shown(&hint);
            Trouble { path, what, dirty_bytes: blocks * 512 / BLOCK * BLOCK }
        };
        lock(&self.lost).iter().map(describe).collect()
    }
}

/// Returns the directory whose cache a pool is, if it is a cache.
pub fn directory_of(pool: &dyn FileSystem) -> Option<String> {
    let has = |name| pool.peek(pool.root(), name).is_ok();
    let is_one = has(MARK) && has(record::NODES) && has(record::DIRTY);
    is_one.then(|| read_mark(pool)).and_then(|mark| mark.ok()?).map(|mark| mark.directory)
}

/// Reads the mark of a pool; `None` if the pool is empty.
fn read_mark(pool: &dyn FileSystem) -> std::result::Result<Option<Mark>, Error> {
    let mark = match pool.peek(pool.root(), MARK) {
        Ok(mark) => mark,
        Err(Errno::NOENT) => {
            let mut is_empty = true;
            let ours = [&b"."[..], b"..", record::NODES, record::DIRTY, NEW_MARK];
            pool.readdir(pool.root(), 0, &mut |entry| {
                is_empty &= ours.contains(&entry.name);
                is_empty
            })?;
            return if is_empty { Ok(None) } else { Err(Error::Occupied) };
        }
        Err(err) => return Err(err.into()),
    };
    let wrong = |why: String| Error::Mark(why);
    if mark.kind != FileKind::File || mark.size > MARK_MAX {
        return Err(wrong(format!("it has {} bytes", mark.size)));
    }
    let mut bytes = vec![0; mark.size as usize];
    let len = pool.read(mark.ino, 0, &mut bytes)?;
    let mark: Mark = serde_json::from_slice(&bytes[..len]).map_err(|err| wrong(err.to_string()))?;
    if mark.version != record::VERSION {
        return Err(wrong(format!(
            "its version is {}, this program knows version {}",
            mark.version,
            record::VERSION
        )));
    }
    Ok(Some(mark))
}

/// The name of a mark before it is committed.
const NEW_MARK: &[u8] = b"cache.new";

/// Makes a cache of an empty pool. The rename of the mark is the commit.
fn make(pool: &impl FileSystem, mark: &Mark) -> std::result::Result<(), Error> {
    let dir = NewNode { kind: NewKind::Dir, mode: 0o700, umask: 0 };
    for name in [record::NODES, record::DIRTY] {
        match pool.create(&Caller::ROOT, pool.root(), name, &dir) {
            Ok(made) => pool.forget(made.ino, 1),
            Err(Errno::EXIST) => {}
            Err(err) => return Err(err.into()),
        }
    }
    let bytes = serde_json::to_vec(mark).map_err(|err| Error::Mark(err.to_string()))?;
    let file = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };
    let made = match pool.create(&Caller::ROOT, pool.root(), NEW_MARK, &file) {
        Err(Errno::EXIST) => pool.lookup(pool.root(), NEW_MARK)?,
        made => made?,
    };
    let written = pool.write(made.ino, 0, &bytes).and_then(|()| {
        let size = Some(bytes.len() as u64);
        pool.setattr(&Caller::ROOT, made.ino, &vfs::SetAttr { size, ..Default::default() })
    });
    pool.forget(made.ino, 1);
    written?;
    pool.rename((pool.root(), NEW_MARK), (pool.root(), MARK), RenameFlags::empty())?;
    Ok(())
}
