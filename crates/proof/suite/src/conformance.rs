//! The contract's suite ([`vfs::conformance`]) on an engine.

use crate::{Engine, Fs, mounted};
use vfs::FileSystem;
use vfs::conformance::{run_all, run_generated};

fn make<E: Engine>() -> Box<dyn FileSystem>
where
    Fs<E>: 'static,
{
    Box::new(mounted::<E>(64 << 20))
}

/// Each promise by itself.
pub fn scenarios<E: Engine>()
where
    Fs<E>: 'static,
{
    run_all(make::<E>);
}

/// `KEEPSTONE_OPS` and `KEEPSTONE_SEED` choose more, or one again.
pub fn generated<E: Engine>()
where
    Fs<E>: 'static,
{
    run_generated(make::<E>, 60, 400);
}

/// Many threads at once.
pub fn stress<E: Engine>() {
    for seed in 0..8 {
        vfs::conformance::stress(&mounted::<E>(64 << 20), 4, 1500, seed).unwrap();
    }
}
