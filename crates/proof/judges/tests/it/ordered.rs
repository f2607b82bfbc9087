//! Stores of SCMFS that are not durable at two critical moments. The first is the return of
//! operations that store no content. The second is a mount without order (`consistency=none`): the
//! usage word of the pool must be correct after every crash. It must be durable as "unordered"
//! before any other unordered store, and become "closed" only after all of these are durable
//! (usage-U1, usage-U2).

use crate::common::{Wrapped, Wrapper};
use crashsim::image::CrashImage;
use crashsim::persist::{Initial, Persistency, Semantics};
use crashsim::recorder::Recorder;
use crashsim::run::Base;
use crashsim::trace::{Action, Trace};
use crashsim::workload;
use judges::scmfs::Scmfs;
use pmem::{Fenced, Medium};
use pool::{Consistency, MountOptions};
use scmfs::layout::{POOL_USAGE, usage};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfs::script::{Driver, Op, parse};
use vfs::{FileSystem as _, tree};

/// Stops ordering on request, as a region can: it then flushes nothing, and a fence makes nothing
/// durable.
#[derive(Default)]
struct Switch(AtomicBool);

impl Wrapped for Switch {
    fn flush(&self, medium: &dyn Medium, off: u64, len: u64) {
        if !self.0.load(Relaxed) {
            medium.flush(off, len);
        }
    }
    fn fence(&self, medium: &dyn Medium) -> Fenced {
        if self.0.load(Relaxed) { CrashImage::new(4096).fence() } else { medium.fence() }
    }
    fn set_ordered(&self, _: &dyn Medium, ordered: bool) -> bool {
        self.0.store(!ordered, Relaxed);
        true
    }
}

/// Records a mount of this pool without order, from its start to its end.
fn record(base: &Base, workload: Vec<Op>) -> (Trace, tree::Tree) {
    let recorder = Recorder::new(CrashImage::of(base.bytes.clone()));
    let medium = Wrapper(Box::new(Switch::default()), &recorder);
    let options = MountOptions {
        consistency: Consistency::None,
        threads: Some(1),
        ..MountOptions::default()
    };
    let fs = scmfs::Scmfs::mount(medium, &options).unwrap();
    let tree = {
        let mut driver = Driver::new(&fs);
        for (i, op) in (1..).zip(workload) {
            // Some operations of the explorer fail here.
            let _ = driver.run(&op, i);
        }
        driver.close_all();
        tree::tree(&fs).unwrap()
    };
    fs.close().unwrap();
    drop(fs);
    (recorder.into_trace(), tree)
}

#[test]
fn a_pool_says_what_a_crash_would_find() {
    let base =
        Base::build(&Scmfs, "file", 256 * 4096, parse("create /a; write /a 0 9000").unwrap());
    let base = base.unwrap();
    let ops = "create /n; write /n 5 20000; append /a 300; rename /n /m; mkdir /d";
    let undecided = says_what_a_crash_would_find(&base, parse(ops).unwrap());
    assert_eq!(undecided, 0, "closed, and not durable");
}

/// Runs the sequences of the explorer without order.
#[test]
fn a_pool_says_so_whatever_is_done() {
    let bases = workload::bases(&Scmfs).unwrap();
    let base = bases.iter().find(|base| base.name == "worn").unwrap();
    for ops in workload::sequences() {
        says_what_a_crash_would_find(base, ops);
    }
}

/// Checks the usage word over the run. Returns the number of undecided stores when the pool is
/// marked as closed; stores to freed space may be undecided.
fn says_what_a_crash_would_find(base: &Base, ops: Vec<Op>) -> usize {
    let (trace, tree) = record(base, ops);
    let mut undecided = 0;
    let mut memory = Persistency::over(Semantics::Adr, Initial::of(&base.bytes));
    let mut said = Vec::new();
    for event in &trace.events {
        if let Action::Store { addr, len, data, .. } = event.action {
            let word = (POOL_USAGE.get() / 8) as u32;
            if u64::from(addr) == POOL_USAGE.get() {
                let says = u64::from_le_bytes(trace.data(data, len).try_into().unwrap());
                if says == usage::CLOSED {
                    undecided = memory.units().len();
                }
                said.push(says);
            } else {
                assert!(
                    said.is_empty() || memory.durable(word) == usage::UNORDERED,
                    "before it is said"
                );
            }
        }
        memory.apply(&trace, event);
    }
    assert_eq!(said, [usage::UNORDERED, usage::CLOSED]);

    // No undecided store persists.
    let mut words = base.bytes.clone();
    for (word, bytes) in words.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&memory.durable(word as u32).to_le_bytes());
    }
    let image = CrashImage::of(words);
    let again = scmfs::Scmfs::mount(&image, &MountOptions::default()).unwrap();
    assert_eq!(tree::diff(&tree, &tree::tree(&again).unwrap()), None);
    undecided
}

/// Operations that change maps and sizes, with and without tables, and no content.
const MAPS: &str = "\
    create /a; allocate /a 0 40960; truncate /a 5000; truncate /a 20000; punch /a 0 4096; truncate /a 9000; truncate /a 0; \
    create /b; allocate /b 0 2097152; truncate /b 1048576; truncate /b 8192; allocate-keep /b 8192 65536; truncate /b 4096; \
    create /c; truncate /c 8388608; allocate /c 4194304 40960; truncate /c 4210688; truncate /c 4202496; punch /c 4194304 4096; \
    truncate /c 4096; rename /c /b; unlink /a; truncate /b 0";

/// A truncation is durable when it returns. Afterwards another thread may make the file longer
/// without blocks of its own, while other files own the blocks that were cut.
#[test]
fn what_returns_and_stores_no_content_is_durable() {
    for enabled in [false, true] {
        let base = Base::build(&Scmfs, "empty", 4 << 20, Vec::new()).unwrap();
        let recorder = Recorder::new(CrashImage::of(base.bytes.clone()));
        let prealloc = pool::Prealloc { enabled, blocks_max: 4, ..pool::Prealloc::default() };
        let options = MountOptions { threads: Some(1), prealloc, ..MountOptions::default() };
        let fs = scmfs::Scmfs::mount(&recorder, &options).unwrap();
        let ops: Vec<Op> = parse(MAPS).unwrap();
        let mut driver = Driver::new(&fs);
        for (i, op) in (0..).zip(&ops) {
            recorder.begin(i);
            driver.run(op, u64::from(i)).unwrap();
            recorder.end(i);
        }
        drop(fs);
        let trace = recorder.into_trace();
        let mut memory = Persistency::over(Semantics::Adr, Initial::of(&base.bytes));
        for event in &trace.events {
            memory.apply(&trace, event);
            if let Action::End { op } = event.action {
                let pending = memory.units();
                let words: Vec<_> = pending.iter().flat_map(|unit| &unit.words).collect();
                assert!(
                    words.is_empty(),
                    "{} has returned, and words {words:?} may be lost",
                    ops[op as usize]
                );
            }
        }
    }
}
