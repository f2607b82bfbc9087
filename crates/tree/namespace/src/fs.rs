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
        self.change_if(inos, || Ok(()), op)
    }

    /// As [`change`](Self::change). In a pool with a backing store, fails before anything changes
    /// if `is_present` does: it checks that the change needs nothing that is absent (backed-K1).
    pub fn change_if<T>(
        &self,
        inos: &[Ino],
        is_present: impl FnOnce() -> Result<()>,
        op: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.change_unsettled(inos, is_present, || {
            self.settle();
            op()
        })
    }

    /// As [`change_if`](Self::change_if), for an operation that itself makes what an earlier one
    /// has left durable ([`Storage::settle`]), in time.
    pub fn change_unsettled<T>(
        &self,
        inos: &[Ino],
        is_present: impl FnOnce() -> Result<()>,
        op: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        self.own_inodes(inos)?;
        let _locks = self.tables().lock_for_change(inos)?;
        if self.is_backed() {
            is_present()?;
            self.mark_dirty(inos);
        }
        op().map_err(|e| report(inos[0], e))
    }
}
