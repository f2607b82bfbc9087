//! The operations, and how they run: under which locks.

use crate::store::{Stop, Storage, report};
use derived::Locks;
use std::ops::Deref;
use vfs::{Ino, Result};

/// The operations on names and attributes. Each may use all that is below, and others.
pub struct Core<S>(pub S);

/// What is below is used as if it were its own.
impl<S> Deref for Core<S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Storage> Core<S> {
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
            let locks = self.tables().lock_for_change(inos, wide, S::INODE)?;
            match op(&locks) {
                Ok(t) => return Ok(t),
                Err(Stop::Errno(e)) => return Err(report(inos[0], e)),
                Err(Stop::Wide) => {}
            }
        }
        unreachable!("an operation under wide locks asked for wide locks");
    }
}
