//! SCMFS, judged: names and attributes atomic and durable on return, contents on fsync.

mod decode;

use crate::{text, usage};
use crashsim::sited::Sited;
use crashsim::target::{Mounted, Strength, Survivor, Target, Usage, clock, start_clock};
use pmem::Medium;
use pool::{CheckOptions, FormatOptions, MountOptions};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Durability, FileSystem};

/// Words of SCMFS that may be lost although others have loaded them: how their descriptions end, and
/// why.
const HARMLESS: [(&str, &str); 1] = [(
    ": atime",
    "access times are stored without a fence; none is atomic with anything (§3.6), and all that one \
     decides is whether the next is stored",
)];

/// SCMFS: names and attributes atomic and durable on return, contents on fsync.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scmfs;

/// Why stores of contents may stay in the caches.
const UNSYNCED: &str = "contents are durable on fsync";

impl Scmfs {
    /// Mounts a medium of its own: for wrappers of media.
    pub fn mount_owned<'m, M: Medium + 'm>(medium: M) -> Result<Mounted<'m>, String> {
        let fs = scmfs::Scmfs::mount(medium, &mount_options()).map_err(text)?;
        let blocks_used = fs.mount_report().blocks_used;
        Ok(Mounted { fs: Box::new(fs), blocks_used })
    }
}

/// Those under which runs repeat. Starts the clock.
fn mount_options() -> MountOptions {
    start_clock();
    MountOptions { read_only: false, threads: Some(1), clock, seed: Some(7) }
}

/// One of several processes.
struct Shared<M: Medium>(scmfs::Scmfs<M>);

impl<M: Medium> Survivor for Shared<M> {
    fn fs(&self) -> &dyn FileSystem {
        &self.0
    }

    fn recover(&self) -> Result<(), String> {
        self.0.rehearse_recovery().map_err(text)
    }
}

impl Target for Scmfs {
    fn strength(&self) -> Strength {
        Strength {
            durability: Durability::MetadataOnReturn,
            residue_blocks: 8,
            kept_blocks: scmfs::KEPT_BLOCKS,
            leaves_stale: true,
        }
    }

    fn format<M: Medium>(&self, medium: &M) -> Result<(), String> {
        let options = FormatOptions::default();
        scmfs::format(medium, &options).map(drop).map_err(text)
    }

    fn is_pool<M: Medium>(&self, medium: &M) -> bool {
        scmfs::info(medium).is_ok()
    }

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        Self::mount_owned(Sited(medium))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn share<'m, M: Medium>(&self, medium: &'m M) -> Result<Box<dyn Survivor + 'm>, String> {
        static SHARED: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), SHARED.fetch_add(1, Relaxed));
        let path = format!("/dev/shm/keepstone-crashsim-{process}-{number}");
        let place = arena::Place::private(CString::new(path).map_err(text)?, 0);
        let fs = scmfs::Scmfs::attach(Sited(medium), &place, &mount_options()).map_err(text)?;
        Ok(Box::new(Shared(fs)))
    }

    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String> {
        usage(&scmfs::check(medium, &options(false), &|_, _| {}).map_err(text)?)
    }

    fn blocks_of_fresh(&self, image: &[u8]) -> u64 {
        decode::blocks_reached(image)
    }

    fn repair<M: Medium>(&self, medium: &M) -> Result<(), String> {
        scmfs::check(medium, &options(true), &|_, _| {}).map(drop).map_err(text)
    }

    fn describe(&self, image: &[u8], word: u32) -> String {
        decode::word(image, word)
    }

    fn may_stay_unflushed(&self, site: &str) -> Option<&'static str> {
        site.starts_with("scmfs/src/content.rs").then_some(UNSYNCED)
    }

    fn harmless(&self, word: &str) -> Option<&'static str> {
        HARMLESS.iter().find(|(end, _)| word.ends_with(end)).map(|(_, why)| *why)
    }
}

fn options(repair: bool) -> CheckOptions {
    CheckOptions { repair, threads: Some(1) }
}
