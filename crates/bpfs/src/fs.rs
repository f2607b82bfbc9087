//! The operations on contents of files; those on names and attributes are [`namespace::Core`]'s.

use crate::store::Store;
use namespace::Core;
use std::ops::Deref;

/// The operations. Each may use all that is below, and others.
pub struct Files<M>(pub Core<Store<M>>);

/// What is below is used as if it were its own.
impl<M> Deref for Files<M> {
    type Target = Core<Store<M>>;

    #[inline]
    fn deref(&self) -> &Core<Store<M>> {
        &self.0
    }
}
