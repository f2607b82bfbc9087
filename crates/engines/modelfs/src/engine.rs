//! The functions that front ends need besides file access: [`pool::Engine`].

use crate::ModelFs;
use pmem::Region;
use pool::{Engine, FreeSpace, MountReport, ReadBuf};
use std::os::fd::BorrowedFd;
use vfs::{Errno, FileSystem as _, Ino, Result};

impl Engine for ModelFs<Region> {
    fn region(&self) -> &Region {
        &self.medium
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.medium.descriptor().into_iter().collect()
    }

    fn mount_report(&self) -> &MountReport {
        &self.report
    }

    /// Places are decided when the model is saved, so all free space is contiguous.
    fn free_space(&self) -> FreeSpace {
        let space = self.statfs();
        let mut free = FreeSpace::default();
        free.add(space.blocks - space.blocks_free..space.blocks, u64::from(space.block_size));
        free
    }

    fn record_access(&self, _files: bool, _dirs: bool, _strictly: bool) {}

    fn get_read_buf(&self, _ino: Ino, _offset: u64, _count: u64) -> Result<ReadBuf<'_>> {
        Err(Errno::OPNOTSUPP)
    }

    fn put_read_buf(&self) {}
}
