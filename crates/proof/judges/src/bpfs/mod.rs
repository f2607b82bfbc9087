//! The judge of BPFS: every operation is atomic, and durable on return.

pub mod branches;
pub mod commands;
mod decode;
mod ordered;
pub mod shared;
pub mod snapshots;
mod streams;

pub use ordered::{Ordered, sequences as ordered_sequences};

use crate::{mounted, text, usage};
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Mounted, SharingProcess, Strength, Target, Usage};
use pmem::Medium;
use pool::FormatOptions;
use vfs::Durability;

/// BPFS: every operation is atomic, and durable on return.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bpfs;

impl Bpfs {
    /// Mounts a medium that the mount owns; for wrappers of media.
    pub fn mount_owned<'m, M: Medium + 'm>(medium: M) -> Result<Mounted<'m>, String> {
        mounted::mount::<M, bpfs::Files<M>>(medium)
    }
}

impl Target for Bpfs {
    fn strength(&self) -> Strength {
        Strength {
            durability: Durability::OnReturn,
            keeps_order: false,
            contents_on_return: false,
            residue_blocks: 8,
            kept_blocks: bpfs::KEPT_BLOCKS,
            leaves_stale: true,
            maps_files: false,
        }
    }

    fn format<M: Medium>(&self, medium: &M) -> Result<(), String> {
        let options = FormatOptions::default();
        bpfs::format(medium, &options).map(drop).map_err(text)
    }

    fn is_pool<M: Medium>(&self, medium: &M) -> bool {
        bpfs::info(medium).is_ok()
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
        mounted::share::<M, bpfs::Files<Sited<&M>>>(medium, at)
    }

    fn has_steps_at_words(&self) -> bool {
        arena::atomic::ARE_STEPS
    }

    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String> {
        usage(&bpfs::check(medium, &mounted::options(false), &|_, _| {}).map_err(text)?)
    }

    fn blocks_of_fresh(&self, image: &[u8]) -> u64 {
        decode::blocks_reached(image)
    }

    fn repair<M: Medium>(&self, medium: &M) -> Result<(), String> {
        bpfs::check(medium, &mounted::options(true), &|_, _| {}).map(drop).map_err(text)
    }

    fn describe(&self, image: &[u8], word: u32) -> String {
        decode::word(image, word)
    }

    fn harmless(&self, word: &str) -> Option<&'static str> {
        mounted::harmless(word)
    }
}
