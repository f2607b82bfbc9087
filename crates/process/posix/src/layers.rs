//! The layers of this crate, from the highest to the lowest, and how each reaches those below it.
//!
//! A layer owns the one below it and has an accessor for it. This module adds accessors for the layers further
//! down, so that a call names the layer that answers: `self.table().get(fd)`. No layer has an accessor for one above it:
//! so the compiler holds that none calls what is above it. ([`Process`](crate::Process) stands on the highest.)

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

/// Adds accessors to a layer, which forward to the layer that it owns, and goes on with that one.
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
