//! Tests scans by several threads at mount: each thread must fence what it flushed, as only its own
//! fence completes its flushes.

use crate::watch::{Watch, Watched};
use crate::{Engine, Fs, mounted};
use pool::MountOptions;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::thread::{self, ThreadId};
use std::time::Duration;
use vfs::{Caller, FileSystem as _, NewKind, NewNode, ROOT};

/// The blocks that each thread has flushed, and the threads that have not fenced since.
#[derive(Default)]
struct Flushes {
    flushed: Mutex<HashMap<ThreadId, HashSet<u64>>>,
    unfenced: Mutex<HashSet<ThreadId>>,
}

impl Watch for Flushes {
    fn flush(&self, off: u64, _: u64) {
        let me = thread::current().id();
        self.flushed.lock().unwrap().entry(me).or_default().insert(off / 4096);
        self.unfenced.lock().unwrap().insert(me);
        // Lets other threads run.
        thread::sleep(Duration::from_micros(50));
    }
    fn fence(&self) {
        self.unfenced.lock().unwrap().remove(&thread::current().id());
    }
}

/// Tests that each thread that flushes in a scan fences as well, and that each directory is
/// flushed.
pub fn each_worker_fences_what_it_flushed<E: Engine>() {
    const DIRS: usize = 50;
    let fs = mounted::<E>(16 << 20);
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
        let medium = Watched { region, watch: Flushes::default() };
        let options = MountOptions { threads: Some(3), ..MountOptions::default() };
        let fs = Fs::<E, Watched<Flushes>>::mount(medium, &options).unwrap();
        let Watched { region: again, watch: Flushes { flushed, unfenced } } = fs.into_medium();
        assert!(unfenced.into_inner().unwrap().is_empty());
        let flushed = flushed.into_inner().unwrap();
        let blocks: HashSet<u64> = flushed.values().flatten().copied().collect();
        assert!(blocks.len() > DIRS, "the block of each directory, and more");
        // One thread may have done all the work before the others started.
        if flushed.len() > 1 {
            break;
        }
        region = again;
    }
}
