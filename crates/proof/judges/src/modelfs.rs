//! The judge of the model engine. A crash may lose everything since the last sync, but only all of
//! it from one moment on.

use crate::{text, usage};
use crashsim::sited::Sited;
use crashsim::target::{Mounted, Strength, Target, Usage, clock, start_clock};
use modelfs::layout::{BLOCK, HEADER, SAVED, half};
use pmem::Medium;
use pool::{CheckOptions, FormatOptions, MountOptions};
use vfs::Durability;

/// A model that is saved when it is synced.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelFs;

/// The label of every pool. No other field shows whether a superblock was written completely.
const LABEL: &str = "judged";

impl Target for ModelFs {
    fn strength(&self) -> Strength {
        Strength {
            durability: Durability::OnSync,
            keeps_order: false,
            contents_on_return: false,
            residue_blocks: 0,
            kept_blocks: 0,
            leaves_stale: false,
            maps_files: false,
        }
    }

    fn format<M: Medium>(&self, medium: &M) -> Result<(), String> {
        let options = FormatOptions { label: LABEL.to_owned(), ..FormatOptions::default() };
        modelfs::format(medium, &options).map(drop).map_err(text)
    }

    fn is_pool<M: Medium>(&self, medium: &M) -> bool {
        modelfs::info(medium).is_ok_and(|info| info.label == LABEL)
    }

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        start_clock();
        let options = MountOptions { clock, ..MountOptions::default() };
        let fs = modelfs::ModelFs::mount(Sited(medium), &options).map_err(text)?;
        let blocks_used = fs.mount_report().blocks_used;
        Ok(Mounted { fs: Box::new(fs), blocks_used })
    }

    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String> {
        usage(&modelfs::check(medium, &CheckOptions::default()).map_err(text)?)
    }

    fn blocks_of_fresh(&self, image: &[u8]) -> u64 {
        let at = half(image.len() as u64, 1) as usize;
        let len: [u8; 8] = image[at..at + 8].try_into().expect("eight bytes");
        (HEADER + u64::from_le_bytes(len)).div_ceil(BLOCK)
    }

    fn repair<M: Medium>(&self, _medium: &M) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self, _image: &[u8], word: u32) -> String {
        match u64::from(word) * 8 {
            SAVED => "how often the tree was saved".to_owned(),
            at if at < BLOCK => format!("superblock, at {at}"),
            at => format!("saved tree, at {at:#x}"),
        }
    }

    fn harmless(&self, _word: &str) -> Option<&'static str> {
        None
    }
}
