//! What waits for PM besides fences: to load from a line that is being flushed takes as long as one.

use bpfs::{Bpfs, FormatOptions, MountOptions};
use pmem::{Domain, LINE, Medium};
use std::backtrace::Backtrace;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use suite::flushed;
use suite::watch::{Watch, Watched};
use vfs::conformance::{Handles, apply, gen_ops};
use vfs::script::Op;
use vfs::{ROOT, Timestamp};

/// Lines that have been flushed, and no fence has come since; and the first loads from such.
#[derive(Default)]
struct InFlight {
    lines: Mutex<HashSet<u64>>,
    loads: Mutex<Vec<Backtrace>>,
}

fn lines(off: u64, len: u64) -> std::ops::Range<u64> {
    off / LINE..(off + len).div_ceil(LINE)
}

impl Watch for InFlight {
    fn load(&self, off: u64, len: u64) {
        let waits = lines(off, len).any(|line| self.lines.lock().unwrap().contains(&line));
        if waits {
            self.loads.lock().unwrap().push(Backtrace::force_capture());
        }
    }
    fn flush(&self, off: u64, len: u64) {
        self.lines.lock().unwrap().extend(lines(off, len));
    }
    fn fence(&self) {
        self.lines.lock().unwrap().clear();
    }
}

/// Whether an operation changes no two words of an inode at once, nor times of an access. (Else it copies inodes
/// whose times it has flushed.)
fn is_in_place(op: &Op) -> bool {
    use Op::*;
    matches!(
        op,
        Create(..)
            | Mkdir(..)
            | Symlink(..)
            | Mkfifo(..)
            | Mksocket(..)
            | Mknod(..)
            | MknodBlock(..)
            | Tmpfile(..)
            | Link(..)
            | Unlink(_)
            | Rmdir(_)
            | Append(..)
    )
}

#[test]
fn operations_in_place_load_nothing_that_they_are_flushing() {
    static NOW: AtomicI64 = AtomicI64::new(1);
    for without_line_stores in [false, true] {
        for seed in 0..40 {
            let region = flushed(without_line_stores).anonymous(64 << 20).unwrap();
            assert_ne!(region.domain(), Domain::CpuCache);
            bpfs::format(&region, &FormatOptions::default()).unwrap();
            let medium = Watched { region, watch: InFlight::default() };
            // So every time that an operation stores is another one.
            let clock = || Timestamp(NOW.fetch_add(1, Relaxed));
            let options = MountOptions { clock, ..MountOptions::default() };
            let fs = Bpfs::mount(medium, &options).unwrap();
            // A mount flushes what is clean, which takes no time.
            fs.medium().watch.loads.lock().unwrap().clear();
            let mut handles = Handles::new(ROOT);
            for op in gen_ops(seed, 400) {
                // Of what comes before, nothing is waited for any more.
                fs.medium().watch.fence();
                apply(&fs, &mut handles, &op);
                let loads = std::mem::take(&mut *fs.medium().watch.loads.lock().unwrap());
                if let (Some(load), true) = (loads.first(), is_in_place(&op)) {
                    panic!("{op} loads from a line that it is flushing:\n{load}");
                }
            }
        }
    }
}
