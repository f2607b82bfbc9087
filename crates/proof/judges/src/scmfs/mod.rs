//! The judge of SCMFS: names and attributes are atomic and durable on return, contents on `fsync`.
//! With all writes past the cache ([`Through`]), contents are durable on return, too.

pub mod collected;
mod decode;
pub mod mapped;
pub mod units;

use crate::{mounted, text, usage};
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Mounted, SharingProcess, Strength, Target, Usage};
use pmem::Medium;
use pool::{FormatOptions, MountOptions, WritePolicy};
use vfs::Durability;

/// SCMFS: names and attributes are atomic and durable on return, contents on `fsync`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scmfs;

/// The reason why stores of contents may stay in the caches.
const UNSYNCED: &str = "contents are durable on fsync";

impl Scmfs {
    /// Mounts a medium that the mount owns; for wrappers of media.
    pub fn mount_owned<'m, M: Medium + 'm>(medium: M) -> Result<Mounted<'m>, String> {
        mounted::mount::<M, scmfs::ScmfsFiles<M>>(medium)
    }
}

impl Target for Scmfs {
    fn strength(&self) -> Strength {
        Strength {
            durability: Durability::MetadataOnReturn,
            keeps_order: false,
            contents_on_return: false,
            residue_blocks: 8,
            kept_blocks: scmfs::KEPT_BLOCKS,
            leaves_stale: true,
            maps_files: true,
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

    fn share<'m, M: Medium>(
        &self,
        medium: &'m M,
        at: &Meeting,
    ) -> Result<Box<dyn SharingProcess + 'm>, String> {
        mounted::share::<M, scmfs::ScmfsFiles<Sited<&M>>>(medium, at)
    }

    fn has_steps_at_words(&self) -> bool {
        arena::atomic::ARE_STEPS
    }

    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String> {
        usage(&scmfs::check(medium, &mounted::options(false), &|_, _| {}).map_err(text)?)
    }

    fn blocks_of_fresh(&self, image: &[u8]) -> u64 {
        decode::blocks_reached(image)
    }

    fn repair<M: Medium>(&self, medium: &M) -> Result<(), String> {
        scmfs::check(medium, &mounted::options(true), &|_, _| {}).map(drop).map_err(text)
    }

    fn describe(&self, image: &[u8], word: u32) -> String {
        decode::word(image, word)
    }

    fn may_stay_unflushed(&self, site: &str) -> Option<&'static str> {
        site.starts_with("engines/scmfs/src/content.rs").then_some(UNSYNCED)
    }

    fn harmless(&self, word: &str) -> Option<&'static str> {
        mounted::harmless(word)
    }
}

/// SCMFS with all writes past the cache: contents are durable on return, too, although not atomic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Through;

impl Through {
    fn options() -> MountOptions {
        MountOptions { write_policy: WritePolicy::Through, ..mounted::mount_options() }
    }
}

/// Equals [`Scmfs`] except for the functions defined here.
impl Target for Through {
    crashsim::forward_target!(Scmfs; format, is_pool, check, blocks_of_fresh, repair, describe, harmless);

    fn strength(&self) -> Strength {
        Strength { contents_on_return: true, ..Scmfs.strength() }
    }

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        mounted::mount_with::<_, scmfs::ScmfsFiles<_>>(Sited(medium), &Self::options())
    }
}
