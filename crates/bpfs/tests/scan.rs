//! Several threads scan a pool that is mounted: what one of them has flushed, only its own fence completes.

use bpfs::{Bpfs, FormatOptions, MountOptions};
use pmem::{Counters, Domain, Fenced, Medium, Region};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::thread::{self, ThreadId};
use std::time::Duration;
use vfs::{Caller, FileSystem as _, NewKind, NewNode, ROOT};

/// A medium that knows which blocks each thread has flushed, and which of them it has not fenced since.
struct Watched {
    region: Region,
    flushed: Mutex<HashMap<ThreadId, HashSet<u64>>>,
    unfenced: Mutex<HashSet<ThreadId>>,
}

impl Medium for Watched {
    fn len(&self) -> u64 {
        self.region.len()
    }
    fn domain(&self) -> Domain {
        self.region.domain()
    }
    fn counters(&self) -> &Counters {
        self.region.counters()
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.region.read(off, buf);
    }
    fn load_u64(&self, off: u64) -> u64 {
        self.region.load_u64(off)
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.region.equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        self.region.write(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.region.write_nt(off, data);
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        self.region.copy_nt(dst, src, len);
    }
    fn zero_nt(&self, off: u64, len: u64) {
        self.region.zero_nt(off, len);
    }
    fn store_u64(&self, off: u64, value: u64) {
        self.region.store_u64(off, value);
    }
    fn flush(&self, off: u64, len: u64) {
        let me = thread::current().id();
        self.flushed.lock().unwrap().entry(me).or_default().insert(off / 4096);
        self.unfenced.lock().unwrap().insert(me);
        // Others get a turn.
        thread::sleep(Duration::from_micros(50));
        self.region.flush(off, len);
    }
    fn fence(&self) -> Fenced {
        self.unfenced.lock().unwrap().remove(&thread::current().id());
        self.region.fence()
    }
}

#[test]
fn each_worker_fences_what_it_flushed() {
    const DIRS: usize = 50;
    let region = Region::anonymous(16 << 20).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let fs = Bpfs::mount(region, &MountOptions::default()).unwrap();
    let make = |dir, name: &[u8], kind| {
        let node = NewNode { kind, mode: 0o755, umask: 0 };
        fs.create(&Caller::ROOT, dir, name, &node).unwrap().ino
    };
    for i in 0..DIRS {
        let dir = make(ROOT, format!("d{i}").as_bytes(), NewKind::Dir);
        make(dir, b"f", NewKind::File);
    }
    let mut region = fs.into_medium();
    loop {
        let medium = Watched { region, flushed: Mutex::default(), unfenced: Mutex::default() };
        let options = MountOptions { threads: 3, ..MountOptions::default() };
        let fs = Bpfs::mount(medium, &options).unwrap();
        let Watched { region: again, flushed, unfenced } = fs.into_medium();
        assert!(unfenced.into_inner().unwrap().is_empty());
        let flushed = flushed.into_inner().unwrap();
        let blocks: HashSet<u64> = flushed.values().flatten().copied().collect();
        assert!(blocks.len() > DIRS, "the block of each directory, and more");
        // One may have done it all before the others had started.
        if flushed.len() > 1 {
            break;
        }
        region = again;
    }
}
