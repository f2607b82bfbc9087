//! What is tested: a storage engine, and what it promises.

use crate::sited::Sited;
use pmem::Medium;
use std::cell::Cell;
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Durability, FileSystem, Timestamp};

/// The promises of an engine: a row of SEMANTICS as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strength {
    /// When an operation survives. Operations on names and attributes are atomic and survive in program order,
    /// whatever this says; so does content where all is durable on return, else as [`crate::promise`] says.
    pub durability: Durability,
    /// Blocks that may stay in use after everything was deleted, besides those of a fresh pool:
    /// what the engine never gives back, such as the leaves of an inode file.
    pub residue_blocks: u64,
}

/// A mounted engine.
pub struct Mounted<'m> {
    /// The file system.
    pub fs: Box<dyn FileSystem + 'm>,
    /// Blocks in use, as mounting found.
    pub blocks_used: u64,
}

/// A process that shares a pool with others.
pub trait Survivor {
    /// The file system.
    fn fs(&self) -> &dyn FileSystem;

    /// Does what follows when another process has died in an operation.
    fn recover(&self) -> Result<(), String>;
}

/// What a check found in a sound pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in use.
    pub blocks_used: u64,
    /// Live inodes.
    pub inodes: u64,
    /// Leftovers of a crash that the next mount clears.
    pub stale: u64,
}

/// A storage engine that the explorer can test.
pub trait Target: Sync {
    /// What it promises.
    fn strength(&self) -> Strength;

    /// Formats a medium.
    fn format<M: Medium>(&self, medium: &M) -> Result<(), String>;

    /// Whether it says of itself that it is a pool.
    fn is_pool<M: Medium>(&self, medium: &M) -> bool;

    /// Mounts it: recovery.
    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String>;

    /// Mounts it as one of several processes.
    fn share<'m, M: Medium>(&self, _medium: &'m M) -> Result<Box<dyn Survivor + 'm>, String> {
        Err("processes cannot share it".to_owned())
    }

    /// Checks it without changing anything; any problem is an error.
    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String>;

    /// Repairs it without mounting.
    fn repair<M: Medium>(&self, medium: &M) -> Result<(), String>;

    /// Says what a word of an image is, by the format's own rules.
    fn describe(&self, image: &[u8], word: u32) -> String;

    /// Why it does no harm if a word so described is lost although another thread has loaded it and
    /// gone on ([`crate::lint::Leaning`]); `None`: it may do harm.
    fn harmless(&self, word: &str) -> Option<&'static str>;

    /// Why stores of this file and line of source may never be flushed; `None`: that is a violation.
    fn may_stay_unflushed(&self, _site: &str) -> Option<&'static str> {
        None
    }
}

thread_local! {
    static TICKS: Cell<i64> = const { Cell::new(0) };
}

/// A clock that every question moves on, so that traces do not depend on the time of day.
fn clock() -> Timestamp {
    Timestamp(TICKS.replace(TICKS.get() + 1))
}

/// Words of BPFS that may be lost although others have loaded them: how their descriptions end, and
/// why.
const HARMLESS: [(&str, &str); 1] = [(
    ": atime",
    "access times are stored without a fence; none is atomic with anything (§3.6), and all that one \
     decides is whether the next is stored",
)];

/// BPFS: every operation atomic and durable on return.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bpfs;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Bpfs {
    /// Mounts a medium of its own: for wrappers of media.
    pub fn mount_owned<'m, M: Medium + 'm>(medium: M) -> Result<Mounted<'m>, String> {
        let fs = bpfs::Bpfs::mount(medium, &mount_options()).map_err(text)?;
        let blocks_used = fs.mount_report().blocks_used;
        Ok(Mounted { fs: Box::new(fs), blocks_used })
    }
}

/// Those under which runs repeat. Starts the clock.
fn mount_options() -> bpfs::MountOptions {
    TICKS.set(1_000_000);
    bpfs::MountOptions { read_only: false, threads: Some(1), clock, seed: Some(7) }
}

impl<M: Medium> Survivor for bpfs::Bpfs<M> {
    fn fs(&self) -> &dyn FileSystem {
        self
    }

    fn recover(&self) -> Result<(), String> {
        self.rehearse_recovery().map_err(text)
    }
}

impl Target for Bpfs {
    fn strength(&self) -> Strength {
        Strength { durability: Durability::OnReturn, residue_blocks: 8 }
    }

    fn format<M: Medium>(&self, medium: &M) -> Result<(), String> {
        let options = bpfs::FormatOptions::default();
        bpfs::format(medium, &options).map(drop).map_err(text)
    }

    fn is_pool<M: Medium>(&self, medium: &M) -> bool {
        bpfs::info(medium).is_ok()
    }

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        Self::mount_owned(Sited(medium))
    }

    fn share<'m, M: Medium>(&self, medium: &'m M) -> Result<Box<dyn Survivor + 'm>, String> {
        static SHARED: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), SHARED.fetch_add(1, Relaxed));
        let path = format!("/dev/shm/keepstone-crashsim-{process}-{number}");
        let place = arena::Place::private(CString::new(path).map_err(text)?, 0);
        let fs = bpfs::Bpfs::attach(Sited(medium), &place, &mount_options()).map_err(text)?;
        Ok(Box::new(fs))
    }

    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String> {
        let report = bpfs::check(medium, &options(false), &|_, _| {}).map_err(text)?;
        match report.problems.first() {
            Some(problem) => Err(problem.to_string()),
            None => Ok(Usage {
                blocks_used: report.blocks_used,
                inodes: report.inodes,
                stale: report.stale_words,
            }),
        }
    }

    fn repair<M: Medium>(&self, medium: &M) -> Result<(), String> {
        bpfs::check(medium, &options(true), &|_, _| {}).map(drop).map_err(text)
    }

    fn describe(&self, image: &[u8], word: u32) -> String {
        crate::decode::bpfs_word(image, word)
    }

    fn harmless(&self, word: &str) -> Option<&'static str> {
        HARMLESS.iter().find(|(end, _)| word.ends_with(end)).map(|(_, why)| *why)
    }
}

fn options(repair: bool) -> bpfs::CheckOptions {
    bpfs::CheckOptions { repair, threads: Some(1) }
}
