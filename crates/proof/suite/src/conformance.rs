//! Runs the contract's suite ([`vfs::conformance`]) on an engine.

use crate::{Engine, Fs, mounted};
use vfs::FileSystem;
use vfs::conformance::{run_all, run_generated};

fn make<E: Engine>() -> Box<dyn FileSystem>
where
    Fs<E>: 'static,
{
    Box::new(mounted::<E>(64 << 20))
}

/// Tests each promise by itself.
pub fn scenarios<E: Engine>()
where
    Fs<E>: 'static,
{
    run_all(make::<E>);
}

/// Tests generated sequences. `KEEPSTONE_OPS` sets their length, and `KEEPSTONE_SEED` selects one
/// seed.
pub fn generated<E: Engine>()
where
    Fs<E>: 'static,
{
    run_generated(make::<E>, 60, 400);
}

/// Tests many threads at once.
pub fn stress<E: Engine>() {
    for seed in 0..8 {
        vfs::conformance::stress(&mounted::<E>(64 << 20), 4, 1500, seed).unwrap();
    }
}
