//! BPFS in the mode `ordered`: operations are atomic and survive in order, and are durable when
//! something is synced.

use super::Bpfs;
use crate::{mounted, text};
use crashsim::forward_target;
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Mounted, SharingProcess, Strength, Target};
use pmem::Medium;
use pool::DurabilityMode;
use vfs::Durability;
use vfs::script::{Op, parse};

/// BPFS in this mode. All else is as in [`Bpfs`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Ordered;

/// Writes, and operations that could spoil what a write has left: its commit, the block that it
/// replaced, or bytes that the pool had shown before it.
const SEQUENCES: [&str; 14] = [
    "write /a 0 4096; write /a 0 4096; write /a 0 4096",
    "write /a 0 4096; write /a 4096 4096; fsync /a; write /a 0 4096",
    "write /a 0 4096; fsync /a",
    "write /a 0 4096; sync; write /a 0 4096",
    "append /a 4096; append /a 4096; fsync /a; append /a 100",
    "append /a 100; write /a 0 8; append /a 100; write /a 100 64; append /a 100; write /a 200 500",
    "write /a 0 4096; write /a 0 8; fsync /a",
    "append /a 100; write /a 10 9000; append /a 10; write /a 8000 9000",
    "write /a 0 4096; create /n; append /n 5000; write /n 0 4096; unlink /n",
    "append /a 5000; truncate /a 100; append /a 5000",
    "write /a 0 4096; punch /a 0 4096; append /a 9000; write /a 0 4096",
    "write /a 0 4096; unlink /a; create /n; append /n 9000",
    "write /a 0 4096; rename /a /d/n; append /d/n 4096; rename /d/n /a",
    "write /a 100 2000; write /a 100 2000; chmod /a 600; write /a 100 2000",
];

/// Returns chosen sequences for this mode.
pub fn sequences() -> Vec<Vec<Op>> {
    SEQUENCES.iter().map(|text| parse(text).expect("operations")).collect()
}

impl Target for Ordered {
    forward_target!(Bpfs; format, is_pool, is_shared, has_steps_at_words, check, blocks_of_fresh,
        repair, describe, harmless);

    fn strength(&self) -> Strength {
        let durability = Durability::OnSync;
        Strength { durability, keeps_order: true, ..Bpfs.strength() }
    }

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        let options = mounted::mount_options();
        let fs = bpfs::Bpfs::mount(Sited(medium), &options).map_err(text)?;
        fs.set_durability(DurabilityMode::Ordered).map_err(text)?;
        let blocks_used = fs.mount_report().blocks_used;
        Ok(Mounted { fs: Box::new(fs), blocks_used })
    }

    fn share<'m, M: Medium>(
        &self,
        medium: &'m M,
        at: &Meeting,
    ) -> Result<Box<dyn SharingProcess + 'm>, String> {
        let options = mounted::mount_options();
        let pool = mounted::attach::<M, bpfs::Files<Sited<&M>>>(medium, at, &options)?;
        pool.set_durability(DurabilityMode::Ordered).map_err(text)?;
        Ok(mounted::sharing(pool))
    }
}
