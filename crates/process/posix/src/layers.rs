//! The layers of this crate, from the highest to the lowest, and the accessors by which each
//! reaches those below it.
//!
//! A layer owns the layer below it and has an accessor for it. This module adds accessors for the
//! layers further down, so that a call names the layer that answers: `self.table().get(fd)`. A
//! layer has no accessor for a layer above it. So the compiler ensures that no call goes up.
//! [`Process`](crate::Process) owns the highest layer.

use crate::content::FileContents;
use crate::cwd::WorkingDir;
use crate::descriptors::Descriptors;
use crate::fd_allocator::FdAllocator;
use crate::lookup::Paths;
use crate::names::Names;
use crate::promote::Promotions;
use crate::table::DescriptorTable;
use crate::task::Task;
use crate::walk::PathWalk;

/// Adds accessors to a layer, which forward to the layer that it owns, and continues with that
/// layer.
macro_rules! layers {
    ($Layer:ident, $owned:ident: $Owned:ident $(, $below:ident: $Below:ident)*) => {
        impl $Layer {
            $(
                #[inline(always)]
                pub(crate) fn $below(&self) -> &$Below {
                    self.$owned().$below()
                }
            )*
        }
        layers!($Owned $(, $below: $Below)*);
    };
    ($Lowest:ident) => {};
}

layers!(
    FileContents,
    names: Names,
    paths: Paths,
    working_dir: WorkingDir,
    path_walk: PathWalk,
    descriptors: Descriptors,
    promotions: Promotions,
    fd_allocator: FdAllocator,
    table: DescriptorTable,
    task: Task
);
