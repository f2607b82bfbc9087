//! What front ends need beside files: [`pool::Engine`] and [`pool::Processes`].

use crate::{Scmfs, place};
use arena::{Look, Paused};
use derived::SharedPool as _;
use pmem::Region;
use pool::{Engine, Error, MountReport, Processes, ReadBuf};
use std::io;
use std::os::fd::BorrowedFd;
use vfs::{Ino, Result};

impl Engine for Scmfs<Region> {
    fn region(&self) -> &Region {
        &self.core.medium
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.core.medium.descriptor().into_iter().chain(self.core.v.arena.descriptor()).collect()
    }

    fn mount_report(&self) -> &MountReport {
        &self.report
    }

    fn record_access(&self, files: bool, dirs: bool) {
        self.core.v.record_access(files, dirs);
    }

    fn get_read_buf(&self, ino: Ino, offset: u64, count: u64) -> Result<ReadBuf<'_>> {
        Ok(ReadBuf::new(self, self.core.get_read_buf(ino, offset, count)?))
    }

    fn put_read_buf(&self) {
        self.core.put_read_buf();
    }
}

impl Processes for Scmfs<Region> {
    fn secret(&self) -> u64 {
        self.core.v.secret()
    }

    fn reap_processes(&self) -> Result<usize> {
        self.core.reap_processes(Look::Thorough)
    }

    fn follow_owner(&self) -> io::Result<()> {
        match place(&self.core.medium) {
            Ok(place) => place.follow_owner(),
            Err(Error::Shared(err)) => Err(err),
            Err(err) => Err(io::Error::other(err)),
        }
    }

    fn pause(&self) -> Option<Paused<'_>> {
        self.core.v.arena.pause()
    }

    fn begin_fork(&self) {
        self.core.v.arena.begin_fork();
    }

    fn end_fork(&self) {
        self.core.v.arena.end_fork();
    }
}
