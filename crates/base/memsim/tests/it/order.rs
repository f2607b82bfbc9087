//! The order of epochs, checked against the rule itself (§4.4): when a write is issued to
//! persistent memory, all writes of all previous epochs have been committed. The check knows
//! nothing of caches. It sees each store, and each write with its times.

use memsim::caches::controller::WriteEnd;
use memsim::caches::{
    CacheSize, Channels, HardwareConfig, OrderingMode, RowBuffers, Simulator, Timing, WriteBack,
    WriteSink,
};
use memsim::trace::{Action, MemoryEvent, StoreWay};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Caches so small that lines are evicted all the time.
fn config(cores: u32, epochs: u32, queue: u32, rows: Option<RowBuffers>) -> HardwareConfig {
    HardwareConfig {
        mode: OrderingMode::Epoch,
        cores,
        l1: CacheSize { bytes: 2 * 64, ways: 2 },
        l2: CacheSize { bytes: 8 * 64, ways: 4 },
        epochs,
        timing: Timing {
            l1_ns: 1,
            l2_ns: 5,
            read_ns: 30,
            write_ns: 100,
            banks: 3,
            queue,
            rows,
            channels: Channels::ONE,
            volatile: None,
        },
        ..HardwareConfig::default()
    }
}

/// Keeps writes, and their times by number.
#[derive(Debug, Default)]
struct Writes {
    writes: Vec<WriteBack>,
    ends: BTreeMap<u64, WriteEnd>,
}

impl WriteSink for Writes {
    fn write(&mut self, write: WriteBack) {
        self.writes.push(write);
    }
    fn ended(&mut self, end: WriteEnd) {
        self.ends.insert(end.number, end);
    }
}

/// A step of a thread: of which line, or a barrier.
#[derive(Clone, Copy, Debug)]
enum Step {
    Load(u64),
    Store(u64),
    Barrier,
}

fn steps() -> impl Strategy<Value = Vec<(u16, u64, Step)>> {
    let step = prop_oneof![
        3 => (0u64..12).prop_map(Step::Load),
        6 => (0u64..12).prop_map(Step::Store),
        2 => Just(Step::Barrier),
    ];
    prop::collection::vec((0u16..3, prop_oneof![4 => Just(0u64), 1 => 0u64..400], step), 1..120)
}

fn event((thread, gap_ns, step): (u16, u64, Step)) -> MemoryEvent<'static> {
    let action = match step {
        Step::Load(line) => Action::Load { addr: line * 64, len: 8 },
        Step::Store(line) => {
            Action::Store { way: StoreWay::Word, addr: line * 64, len: 8, data: None }
        }
        Step::Barrier => Action::Barrier,
    };
    MemoryEvent { thread, gap_ns, action }
}

/// A store, and the time at which it is in memory.
#[derive(Clone, Copy, Debug)]
struct Stored {
    at: usize,
    core: u32,
    epoch: u64,
    line: u64,
    durable: Option<u64>,
}

/// At step `at`, `core` accessed a line that `other` had stored to in `epoch`. From then on, its
/// stores come after that one, and after all of earlier epochs of the other core. Stores within an
/// epoch have no order, so others of the same epoch may still come later.
#[derive(Clone, Copy, Debug)]
struct Edge {
    at: usize,
    line: u64,
    core: u32,
    other: u32,
    epoch: u64,
}

#[derive(Debug, Default)]
struct Oracle {
    stored: Vec<Stored>,
    edges: Vec<Edge>,
    epochs: [u64; 3],
}

impl Oracle {
    /// Checks the writes that a step caused, which come before its own access.
    fn written(&mut self, writes: &[WriteBack], ends: &BTreeMap<u64, WriteEnd>) {
        for write in writes {
            let id = write.epoch.unwrap();
            let WriteEnd { begun, ended, .. } = ends[&write.accepted.number];
            assert!(begun >= write.accepted.at);
            let covered: Vec<usize> = (0..self.stored.len())
                .filter(|i| self.stored[*i].line == write.line && self.stored[*i].durable.is_none())
                .collect();
            assert!(!covered.is_empty(), "{write:?} writes nothing");
            for i in covered {
                let store = self.stored[i];
                assert_eq!((store.core, store.epoch), (id.context, id.number), "{write:?}");
                for before in self.stored.iter().filter(|before| self.precedes(before, &store)) {
                    let is_durable = before.durable.is_some_and(|end| end <= begun);
                    assert!(is_durable, "{write:?} of {store:?} before {before:?}");
                }
                self.stored[i].durable = Some(ended);
            }
        }
    }

    fn precedes(&self, before: &Stored, store: &Stored) -> bool {
        before.core == store.core && before.epoch < store.epoch
            || self.edges.iter().any(|edge| {
                edge.core == store.core
                    && edge.at < store.at
                    && edge.other == before.core
                    && before.at < edge.at
                    && (before.epoch < edge.epoch || before.line == edge.line)
            })
    }

    fn step(&mut self, at: usize, core: u32, step: Step) {
        let epoch = self.epochs[core as usize];
        match step {
            Step::Barrier => self.epochs[core as usize] += 1,
            Step::Load(line) | Step::Store(line) => {
                let last = self.stored.iter().rev().find(|stored| stored.line == line);
                if let Some(last) = last.filter(|last| last.core != core) {
                    self.edges.push(Edge { at, line, core, other: last.core, epoch: last.epoch });
                }
                if matches!(step, Step::Store(_)) {
                    self.stored.push(Stored { at, core, epoch, line, durable: None });
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn epochs_are_written_in_order(
        steps in steps(), cores in 1u32..=3, epochs in 1u32..6, queue in 1u32..20,
        rows in prop::option::of(1u32..3),
    ) {
        let rows = rows.map(|buffers| RowBuffers { bytes: 128, buffers, hit_ns: 10 });
        let config = config(cores, epochs, queue, rows);
        let mut simulator = Simulator::new(config, Writes::default()).unwrap();
        let mut seen = Vec::new();
        for step in &steps {
            simulator.step(&event(*step));
            seen.push(simulator.sink().writes.len());
        }
        let (report, Writes { writes, ends }) = simulator.finish();
        prop_assert_eq!(ends.len(), writes.len());
        let mut oracle = Oracle::default();
        let mut from = 0;
        for (at, (step, until)) in steps.iter().zip(seen).enumerate() {
            oracle.written(&writes[from..until], &ends);
            from = until;
            oracle.step(at, u32::from(step.0) % cores, step.2);
        }
        oracle.written(&writes[from..], &ends);
        let left = oracle.stored.iter().find(|stored| stored.durable.is_none());
        prop_assert!(left.is_none(), "{left:?} was never written");
        prop_assert!(report.counts.epochs_in_flight_max <= u64::from(epochs));
        prop_assert!(report.counts.queue_max <= u64::from(queue));
    }
}
