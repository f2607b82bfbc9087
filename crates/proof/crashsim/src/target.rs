//! A storage engine to test, and its promises.

use pmem::Medium;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::tree::{Tree, WalkError, tree, tree_without_content};
use vfs::{Durability, FileSystem, Timestamp};

/// The promises of an engine: a row of SEMANTICS as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strength {
    /// The time from which an operation survives. Operations on names and attributes are atomic and
    /// survive in program order in any case. So does content if all is durable on return; else
    /// [`crate::promise`] has its rules.
    pub durability: Durability,
    /// Whether a crash leaves the state of one moment, content too, if not all is durable on
    /// return: operations are atomic and survive in program order, up to some moment since the last
    /// sync.
    pub keeps_order: bool,
    /// Whether content, too, is durable when an operation returns, though not atomic: as if each
    /// operation ended in a sync.
    pub contents_on_return: bool,
    /// Blocks that may stay in use after everything was deleted, in addition to those of a fresh
    /// pool: blocks that the engine never gives back, such as the leaves of an inode file.
    pub residue_blocks: u64,
    /// Blocks that are free but not reported as free: they are reserved for removals.
    pub kept_blocks: u64,
    /// Whether operations commit before they are finished, so that a crash leaves work for the next
    /// mount to clear.
    pub leaves_stale: bool,
    /// Whether processes can map files directly from the pool ([`vfs::Mappings::map_range`]).
    pub maps_files: bool,
}

impl Strength {
    /// Whether operations are atomic, and survive in the order of the program, content too.
    pub fn is_ordered(&self) -> bool {
        self.durability == Durability::OnReturn || self.keeps_order
    }

    /// Reads the part of `fs` that must be as at one moment: all of it, or all except the content
    /// of files, which [`crate::promise`] judges.
    ///
    /// # Errors
    /// As [`vfs::tree::tree`].
    pub fn read(&self, fs: &dyn FileSystem) -> Result<Tree, WalkError> {
        if self.is_ordered() { tree(fs) } else { tree_without_content(fs) }
    }
}

/// A mounted engine.
pub struct Mounted<'m> {
    /// The file system.
    pub fs: Box<dyn FileSystem + 'm>,
    /// Blocks in use, as counted by the mount.
    pub blocks_used: u64,
}

/// The meeting point of processes that share a pool: processes with the same one share it.
#[derive(Debug)]
pub struct Meeting(u64);

impl Default for Meeting {
    /// Makes one that no process uses yet.
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl Meeting {
    /// Returns its unique name.
    pub fn name(&self) -> String {
        format!("crashsim-{}-{}", std::process::id(), self.0)
    }
}

/// A process that shares a pool with others. Dropping it makes it die outside of operations: the
/// files that it holds and maps stay counted until another process takes them back.
pub trait SharingProcess {
    /// The file system.
    fn fs(&self) -> &dyn FileSystem;

    /// Recovers after another process has died in an operation.
    fn recover(&self) -> Result<(), String>;

    /// Takes back the files of processes that have died outside of operations.
    fn reap(&self) -> Result<(), String>;
}

/// The counts of a check of a sound pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Blocks free and in use, together: derived from the length of the medium, not counted.
    pub blocks: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Live inodes.
    pub inodes: u64,
    /// Leftovers of a crash that the next mount clears.
    pub stale: u64,
}

/// A storage engine that the explorer can test.
pub trait Target: Sync {
    /// Returns its promises.
    fn strength(&self) -> Strength;

    /// Formats a medium.
    fn format<M: Medium>(&self, medium: &M) -> Result<(), String>;

    /// Whether the medium identifies itself as a pool.
    fn is_pool<M: Medium>(&self, medium: &M) -> bool;

    /// Mounts it, which includes recovery.
    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String>;

    /// Whether several processes can [`share`](Self::share) it.
    fn is_shared(&self) -> bool {
        false
    }

    /// Mounts it as one of several processes, those of a meeting.
    fn share<'m, M: Medium>(
        &self,
        _medium: &'m M,
        _at: &Meeting,
    ) -> Result<Box<dyn SharingProcess + 'm>, String> {
        Err("processes cannot share it".to_owned())
    }

    /// Whether it calls [`crate::schedule::step_at_word`] before changing words of memory that
    /// threads share.
    fn has_steps_at_words(&self) -> bool {
        false
    }

    /// Checks it without changing anything; any problem is an error.
    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String>;

    /// Counts the blocks in use of a pool that was just formatted, in its image, without the
    /// engine.
    fn blocks_of_fresh(&self, image: &[u8]) -> u64;

    /// Repairs it without mounting.
    fn repair<M: Medium>(&self, medium: &M) -> Result<(), String>;

    /// Describes the 8-byte word number `word` of an image, by the format's own rules. Reports show
    /// this text, and merge words with the same one.
    fn describe(&self, image: &[u8], word: u32) -> String;

    /// Returns the reason that the loss of a word so described does no harm although another thread
    /// has loaded it and continued ([`crate::lint::Leaning`]); `None`: it may do harm.
    fn harmless(&self, word: &str) -> Option<&'static str>;

    /// Returns the reason that stores of this file and line of source may never be flushed; `None`:
    /// that is a violation.
    fn may_stay_unflushed(&self, _site: &str) -> Option<&'static str> {
        None
    }
}

/// Implements methods of [`Target`] by calling those of another target, for targets that differ
/// from it in a few methods only. [`vfs::forward!`] does the same for file systems.
#[macro_export]
macro_rules! forward_target {
    ($to:expr; $first:ident $(, $more:ident)+ $(,)?) => {
        $crate::forward_target!($to; $first);
        $( $crate::forward_target!($to; $more); )+
    };
    ($to:expr; strength) => {
        fn strength(&self) -> $crate::target::Strength {
            $to.strength()
        }
    };
    ($to:expr; format) => {
        fn format<M: ::pmem::Medium>(&self, medium: &M) -> Result<(), String> {
            $to.format(medium)
        }
    };
    ($to:expr; is_pool) => {
        fn is_pool<M: ::pmem::Medium>(&self, medium: &M) -> bool {
            $to.is_pool(medium)
        }
    };
    ($to:expr; is_shared) => {
        fn is_shared(&self) -> bool {
            $to.is_shared()
        }
    };
    ($to:expr; has_steps_at_words) => {
        fn has_steps_at_words(&self) -> bool {
            $to.has_steps_at_words()
        }
    };
    ($to:expr; check) => {
        fn check<M: ::pmem::Medium>(&self, medium: &M) -> Result<$crate::target::Usage, String> {
            $to.check(medium)
        }
    };
    ($to:expr; blocks_of_fresh) => {
        fn blocks_of_fresh(&self, image: &[u8]) -> u64 {
            $to.blocks_of_fresh(image)
        }
    };
    ($to:expr; repair) => {
        fn repair<M: ::pmem::Medium>(&self, medium: &M) -> Result<(), String> {
            $to.repair(medium)
        }
    };
    ($to:expr; describe) => {
        fn describe(&self, image: &[u8], word: u32) -> String {
            $to.describe(image, word)
        }
    };
    ($to:expr; harmless) => {
        fn harmless(&self, word: &str) -> Option<&'static str> {
            $to.harmless(word)
        }
    };
    ($to:expr; may_stay_unflushed) => {
        fn may_stay_unflushed(&self, site: &str) -> Option<&'static str> {
            $to.may_stay_unflushed(site)
        }
    };
}

thread_local! {
    static TICKS: Cell<i64> = const { Cell::new(0) };
}

/// Returns a time that advances at every second call. So traces do not depend on the time of day,
/// and some operations set the same time as the one before them: then none of their steps waits for
/// a change of time.
pub fn clock() -> Timestamp {
    Timestamp(TICKS.replace(TICKS.get() + 1) / 2)
}

/// Starts the [`clock`] of this thread; to be called in each mount.
pub fn start_clock() {
    TICKS.set(2_000_000);
}
