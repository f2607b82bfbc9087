//! The operations, and how they run: under which locks.

use crate::store::{Storage, report};
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
    /// Runs a change under exclusive locks on `inos`.
    pub fn change<T>(&self, inos: &[Ino], op: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_writable()?;
        let _locks = self.tables().lock_for_change(inos)?;
        op().map_err(|e| report(inos[0], e))
    }
}
