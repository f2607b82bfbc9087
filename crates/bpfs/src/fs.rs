//! The operations of the file system, and how they run: under which locks.

use crate::store::{Stop, Store, report};
use crate::volatile::Locks;
use pmem::Medium;
use std::ops::Deref;
use vfs::{Ino, Result};

/// The operations. Each may use all that is below, and others.
pub struct Core<M>(pub Store<M>);

/// What is below is used as if it were its own.
impl<M> Deref for Core<M> {
    type Target = Store<M>;

    #[inline]
    fn deref(&self) -> &Store<M> {
        &self.0
    }
}

impl<M: Medium> Core<M> {
    /// Runs a change under exclusive locks on `inos`; if it needs to copy the leaves of the first
    /// `wide` of them, once more under wide locks.
    pub fn change<T>(
        &self,
        inos: &[Ino],
        wide: usize,
        op: impl Fn(&Locks<'_>) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        self.check_writable()?;
        for wide in [0, wide] {
            let locks = self.v.lock_for_change(inos, wide)?;
            match op(&locks) {
                Ok(t) => return Ok(t),
                Err(Stop::Errno(e)) => return Err(report(inos[0], e)),
                Err(Stop::Wide) => {}
            }
        }
        unreachable!("an operation under wide locks asked for wide locks");
    }
}
