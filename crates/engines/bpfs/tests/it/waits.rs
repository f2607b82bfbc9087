//! Waits for PM other than fences: to load from a line that is being flushed takes as long as a
//! fence.

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

/// Lines that were flushed since the last fence, and the first loads from them.
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

/// Returns whether an operation changes at most one word of an inode at once, and no access time.
/// (Other operations copy inodes whose times they have flushed.)
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
            // So each operation stores another time.
            let clock = || Timestamp(NOW.fetch_add(1, Relaxed));
            let options = MountOptions { clock, ..MountOptions::default() };
            let fs = Bpfs::mount(medium, &options).unwrap();
            // A mount flushes clean lines, which takes no time.
            fs.medium().watch.loads.lock().unwrap().clear();
            let mut handles = Handles::new(ROOT);
            for op in gen_ops(seed, 400) {
                // No line of earlier operations counts as in flight any more.
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
