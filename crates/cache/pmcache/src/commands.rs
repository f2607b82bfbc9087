//! Status and commands of a cache.

use crate::control::{Command, FileStatus};
use crate::counters::{CacheCounters, Status, Trouble, Written};
use crate::loading::Loading;
use crate::resolve::KeptSide;
use crate::{BLOCK, lock};
use backing::{Backing, Reach, Watch};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use vfs::{Backed, Errno, FileKind, Ino, Result};

/// Passes until everything is below that was dirty at first, while programs change more.
pub(crate) const PASSES: u32 = 16;
/// The longest pause between two of them.
const PAUSE_MAX: Duration = Duration::from_millis(256);

/// Tells why an inode cannot be written back, and what to do.
fn unwritable(errno: Errno) -> String {
    match errno {
        Errno::XDEV => "the file system of the directory does not move this there (an overlay moves directories of its \
                        lower layer with redirect_dir=on): move it back"
            .to_owned(),
        errno => format!("cannot be written: {errno}"),
    }
}

/// The write-backs of a cache so far.
pub(crate) struct History {
    /// The last pass.
    last: Written,
    /// The beginning of the last pass that left nothing.
    clean_since: Instant,
    bytes: u64,
    inodes: u64,
    failures: u64,
    /// The watch for changes by others.
    watching: Watching,
}

impl Default for History {
    fn default() -> Self {
        let (last, watching) = (Written::default(), Watching::default());
        Self { last, clean_since: Instant::now(), bytes: 0, inodes: 0, failures: 0, watching }
    }
}

/// The state of the watch for changes by other processes.
#[derive(Clone, Default)]
struct Watching {
    how: Watch,
    reach: Reach,
    /// The reason why changes are not watched.
    problem: Option<String>,
}

/// The parts of files in a pool.
#[derive(Clone, Copy, Default)]
struct HeldBytes {
    /// Bytes of content in the pool.
    cached: u64,
    /// Bytes of them that the backing store lacks.
    dirty: u64,
}

impl History {
    /// Returns whether changes by others are watched in this way.
    pub(crate) fn is_watching(&self, how: Watch) -> bool {
        self.watching.how == how
    }
}

impl<P: Backed, B: Backing> Loading<P, B> {
    /// Writes back until nothing is left that was dirty at the beginning. The backing store keeps
    /// the names of files that programs have open without a name.
    ///
    /// # Errors
    /// The first error of an inode, `ESTALE` for a conflict, and `EAGAIN` if programs change inodes
    /// faster than they are written back.
    pub fn write_back_all(&self) -> Result<()> {
        self.write_back_until(|written| written.left == written.held)
    }

    /// Writes back as [`write_back_all`](Self::write_back_all), and waits some seconds for the
    /// removal of files that ended programs had open.
    ///
    /// # Errors
    /// As `write_back_all`; `EAGAIN` also if programs have such files open still.
    pub(crate) fn write_back_at_end(&self) -> Result<()> {
        self.write_back_until(|written| written.left == 0)
    }

    fn write_back_until(&self, is_done: impl Fn(&Written) -> bool) -> Result<()> {
        for pass in 0..PASSES {
            let written = self.write_back()?;
            match (written.errors.first(), written.conflicts.first()) {
                (Some((_, e)), _) => return Err(*e),
                (None, Some(_)) => return Err(Errno::STALE),
                (None, None) if is_done(&written) => return Ok(()),
                // The references of ended programs, and those of the kernel, go within a second.
                (None, None) => thread::sleep(PAUSE_MAX.min(Duration::from_millis(1 << pass))),
            }
        }
        Err(Errno::AGAIN)
    }

    /// Writes back if something may have been dirty for `max_age`. Long-lived processes call this
    /// periodically.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back); those of single inodes are in the status.
    pub fn write_back_when_due(&self, max_age: Duration) -> Result<()> {
        if lock(self.history()).clean_since.elapsed() < max_age {
            return Ok(());
        }
        self.write_back().map(drop)
    }

    /// Notes that the conflict of an inode is resolved.
    pub(crate) fn note_resolved(&self, ino: Ino) {
        lock(self.history()).last.conflicts.retain(|other| *other != ino);
    }

    /// Notes the result of a pass that began at this time.
    pub(crate) fn note_pass(&self, begun: Instant, written: &Written) {
        let mut history = lock(self.history());
        history.bytes += written.bytes;
        history.inodes += written.inodes.saturating_sub(written.left);
        history.failures += written.errors.len() as u64;
        // Inodes that failed are tried again after the same time.
        if written.left == 0 || !written.errors.is_empty() || !written.conflicts.is_empty() {
            history.clean_since = begun;
        }
        history.last = written.clone();
    }

    /// Notes for [`status`](Self::status) how changes by others are reported, or why they are not.
    pub fn note_watch(&self, how: Watch, reach: Reach, problem: Option<String>) {
        lock(self.history()).watching = Watching { how, reach, problem };
    }

    /// Returns the status of the cache. Looks only at inodes that have trouble.
    pub fn status(&self) -> Status {
        let space = self.pool().statfs();
        let bytes = |blocks: u64| blocks * u64::from(space.block_size);
        let dirty = self.pool().dirty_count();
        let conflicts = self.conflicting().unwrap_or_default();
        let history = lock(self.history());
        let watching = history.watching.clone();
        let oldest = if dirty.inodes == 0 { Duration::ZERO } else { history.clean_since.elapsed() };
        let troubles = self.troubles(&history.last, conflicts);
        Status {
            mode: self.promise(),
            watch: watching.how.to_string(),
            watch_reach: (watching.how != Watch::Off).then(|| watching.reach.name().to_owned()),
            watch_problem: watching.problem,
            size_bytes: bytes(space.blocks),
            used_bytes: bytes(space.blocks - space.blocks_free),
            pinned_bytes: self.all_pinned_bytes(),
            pinned_bytes_max: self.evict_options().pin_max,
            dirty_bytes: dirty.bytes,
            dirty_files: dirty.inodes,
            oldest_dirty_ms: oldest.as_millis() as u64,
            counters: CacheCounters {
                fetched_bytes: self.loaded_bytes(),
                drained_bytes: history.bytes,
                drained_files: history.inodes,
                failures: history.failures,
                evicted_blocks: self.evict_counters().evicted_bytes / BLOCK,
                openers_waited: self.openings().waited.load(Relaxed),
                openers_late: self.openings().late.load(Relaxed),
                inode_walks: self.inode_walks(),
            },
            troubled_files: troubles.len() as u64,
            troubles,
        }
    }

    /// Describes the inodes that a pass could not write back.
    fn troubles(&self, written: &Written, mut conflicts: BTreeSet<Ino>) -> Vec<Trouble> {
        conflicts.extend(&written.conflicts);
        let conflicts = conflicts.iter().map(|ino| {
            let what = "others have changed it below, and programs here: nothing of it is written back; keep one of the two \
                        with `keepstone attach resolve PATH --keep cache` or `directory`, or remove one";
            (*ino, what.to_owned())
        });
        let errors = written.errors.iter().map(|(ino, e)| (*ino, unwritable(*e)));
        let all: Vec<_> = conflicts.chain(errors).collect();
        if all.is_empty() {
            return Vec::new();
        }
        let wanted = all.iter().map(|(ino, _)| *ino).collect();
        let paths = self.paths_of(&wanted).unwrap_or_default();
        let path_of = |ino| match paths.get(&ino).map(Vec::as_slice) {
            None => format!("inode {}", ino.0),
            Some(b"") => ".".to_owned(),
            Some(path) => String::from_utf8_lossy(path).into_owned(),
        };
        let trouble = |(ino, what)| Trouble {
            path: path_of(ino),
            what,
            dirty_bytes: self.held(ino).map_or(0, |held| held.dirty),
        };
        all.into_iter().map(trouble).collect()
    }

    /// Returns the bytes of a file that the backing store lacks.
    pub(crate) fn dirty_bytes(&self, ino: Ino) -> u64 {
        self.held(ino).map_or(0, |held| held.dirty)
    }

    /// Returns the parts of a file that are in the pool.
    fn held(&self, ino: Ino) -> Result<HeldBytes> {
        let attr = self.pool().getattr(ino)?;
        if attr.kind != FileKind::File {
            return Ok(HeldBytes::default());
        }
        let sum = |next: &dyn Fn(u64) -> Result<Option<std::ops::Range<u64>>>| -> Result<u64> {
            let (mut bytes, mut at) = (0, 0);
            while let Some(range) = next(at)? {
                let end = range.end.min(attr.size);
                bytes += end.saturating_sub(range.start);
                at = range.end.next_multiple_of(BLOCK);
            }
            Ok(bytes)
        };
        let absent = sum(&|at| self.pool().absent_range(ino, at))?;
        let dirty = sum(&|at| self.pool().dirty_range(ino, at))?;
        Ok(HeldBytes { cached: attr.size.saturating_sub(absent), dirty })
    }

    /// Runs a command that only reads, by the name of its attribute. Returns the status of the file
    /// afterwards: [`FileStatus`] in JSON.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another name, `EPERM` for other commands, `EINVAL` if it is no file.
    pub(crate) fn read_command(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let command = Command::of_attribute(name).unwrap_or(Err(Errno::OPNOTSUPP))?;
        if !command.only_reads() {
            return Err(Errno::PERM);
        }
        let attr = self.pool().getattr(ino)?;
        if attr.kind != FileKind::File {
            return Err(Errno::INVAL);
        }
        if command == Command::Warm {
            self.warm(ino, attr.size)?;
        }
        let HeldBytes { cached, dirty } = self.held(ino)?;
        let status = FileStatus {
            size_bytes: attr.size,
            cached_bytes: cached,
            dirty_bytes: dirty,
            is_pinned: self.pool().residence(ino)?.is_pinned,
            mode: match self.pool().getxattr(ino, vfs::DATA) {
                Ok(own) => {
                    format!("{}, own mode {}", self.promise(), String::from_utf8_lossy(&own))
                }
                Err(_) => self.promise(),
            },
        };
        serde_json::to_vec(&status).map_err(|_| Errno::IO)
    }

    /// Runs a command, by the name of its attribute.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another name; `EBUSY` for a file in use whose content cannot go, and while
    /// programs change it too fast; those of [`pin`](Self::pin), of [`resolve`](Self::resolve), and
    /// of [`write_back_all`](Self::write_back_all).
    pub(crate) fn change_command(&self, ino: Ino, name: &[u8]) -> Result<()> {
        // For `EAGAIN` the kernel would return `EOPNOTSUPP` to the program.
        self.try_command(ino, name).map_err(|e| if e == Errno::AGAIN { Errno::BUSY } else { e })
    }

    fn try_command(&self, ino: Ino, name: &[u8]) -> Result<()> {
        match Command::of_attribute(name).unwrap_or(Err(Errno::OPNOTSUPP))? {
            Command::Status => Ok(()),
            Command::Warm => self.warm(ino, self.pool().getattr(ino)?.size),
            Command::Flush => self.write_back_all(),
            Command::Invalidate => {
                self.write_back_all()?;
                self.pool().evict_content(ino, 0..u64::MAX)?;
                if self.pool().residence(ino)?.is_pinned {
                    self.must_load(ino);
                }
                let left = self.held(ino)?;
                if left.dirty == 0 { Ok(()) } else { Err(Errno::BUSY) }
            }
            Command::Pin => self.pin(ino),
            Command::Unpin => self.unpin(ino),
            Command::KeepCache => self.resolve(ino, KeptSide::Cache),
            Command::KeepDirectory => self.resolve(ino, KeptSide::Directory),
        }
    }
}
