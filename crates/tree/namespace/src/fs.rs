//! The operations, and the locks under which they run.

use crate::store::{Storage, report};
use std::ops::Deref;
use vfs::{Ino, Result};

/// The operations on names and attributes. Each may use the storage and the other operations.
pub struct Core<S>(pub S);

/// The operations use the storage's methods as their own.
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
        if self.is_backed() {
            self.mark_dirty(inos);
        }
        op().map_err(|e| report(inos[0], e))
    }
}
