//! Caches: counts against a model without sets or lists, conservation of lines, and each rule.

use memsim::caches::{
    CacheSize, Channels, HardwareConfig, HardwareReport, OrderingMode, Simulator, Timing, WriteBack,
};
use memsim::trace::{Action, MemoryEvent, StoreWay};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const TIMING: Timing = Timing {
    l1_ns: 1,
    l2_ns: 10,
    read_ns: 50,
    write_ns: 100,
    banks: 4,
    queue: 16,
    rows: None,
    channels: Channels::ONE,
    volatile: None,
};

/// One set per cache: two lines in each L1 cache, `l2` lines in the L2 cache.
fn config(mode: OrderingMode, cores: u32, l2: u32) -> HardwareConfig {
    HardwareConfig {
        mode,
        cores,
        l1: CacheSize { bytes: 2 * 64, ways: 2 },
        l2: CacheSize { bytes: u64::from(l2) * 64, ways: l2 },
        timing: TIMING,
        ..HardwareConfig::default()
    }
}

fn load(thread: u16, line: u64) -> MemoryEvent<'static> {
    MemoryEvent { thread, gap_ns: 0, action: Action::Load { addr: line * 64, len: 8 } }
}

fn store(thread: u16, line: u64) -> MemoryEvent<'static> {
    stored(thread, StoreWay::Word, line, 8)
}

fn stored(thread: u16, way: StoreWay, line: u64, len: u32) -> MemoryEvent<'static> {
    let action = Action::Store { way, addr: line * 64, len, data: None };
    MemoryEvent { thread, gap_ns: 0, action }
}

fn flush(thread: u16, line: u64) -> MemoryEvent<'static> {
    MemoryEvent { thread, gap_ns: 0, action: Action::Flush { addr: line * 64, len: 64 } }
}

fn fence(thread: u16) -> MemoryEvent<'static> {
    MemoryEvent { thread, gap_ns: 0, action: Action::Fence }
}

fn run(config: HardwareConfig, events: &[MemoryEvent<'_>]) -> (HardwareReport, Vec<WriteBack>) {
    let mut simulator = Simulator::new(config, Vec::new()).unwrap();
    events.iter().for_each(|event| simulator.step(event));
    simulator.finish()
}

fn lines(writes: &[WriteBack]) -> Vec<u64> {
    writes.iter().map(|write| write.line).collect()
}

/// The events that caused writes before the end: their lines in order.
fn before_end(config: HardwareConfig, events: &[MemoryEvent<'_>]) -> Vec<u64> {
    let mut simulator = Simulator::new(config, Vec::new()).unwrap();
    events.iter().for_each(|event| simulator.step(event));
    lines(simulator.sink())
}

#[test]
fn flushes_write_back_and_fences_wait() {
    let events = [store(0, 1), flush(0, 1), flush(0, 1), flush(0, 9), fence(0), load(0, 1)];
    let (report, writes) = run(config(OrderingMode::Clwb, 1, 4), &events);
    assert_eq!(lines(&writes), [1]);
    let counts = report.counts;
    assert_eq!((counts.flushes, counts.useless_flushes, counts.l1_hits), (1, 2, 1));
    // A read, three flushes; the first write begins at 51.
    assert_eq!((counts.fence_wait_ns, report.time_ns), (100 - 2, 50 + 1 + 100 + 1));
    let adr = HardwareConfig { is_queue_durable: true, ..config(OrderingMode::Clwb, 1, 4) };
    assert_eq!(run(adr, &events).0.counts.fence_wait_ns, 0);
}

#[test]
fn a_store_past_the_cache_takes_the_cached_line_along() {
    let events =
        [store(0, 1), stored(0, StoreWay::Line, 2, 64), stored(0, StoreWay::PastCache, 1, 16)];
    let (report, writes) = run(config(OrderingMode::Clwb, 1, 4), &events);
    assert_eq!(lines(&writes), [2, 1]);
    assert_eq!(writes.iter().map(|w| w.words).collect::<Vec<_>>(), [0xff, 3]);
    assert_eq!((report.counts.memory_reads, report.dirty_at_end), (1, 0));
}

#[test]
fn write_through_writes_each_store() {
    let events = [store(0, 1), store(0, 1), flush(0, 1), store(0, 2), fence(0)];
    let (report, writes) = run(config(OrderingMode::WriteThrough, 1, 4), &events);
    assert_eq!(lines(&writes), [1, 1, 2]);
    assert_eq!((report.counts.ignored_flushes, report.counts.dirty_max), (1, 0));
}

#[test]
fn flushing_all_empties_the_caches() {
    let events = [load(0, 3), store(0, 1), store(0, 1), store(0, 2), fence(0), load(0, 3)];
    let (report, writes) = run(config(OrderingMode::FlushAll, 1, 4), &events);
    assert_eq!(lines(&writes), [1, 2]);
    assert_eq!(report.counts.memory_reads, 4, "line 3 twice");
}

#[test]
fn durable_caches_write_nothing_for_fences() {
    let events = [store(0, 1), flush(0, 1), fence(0), store(0, 1), fence(0)];
    let (report, writes) = run(config(OrderingMode::Eadr, 1, 4), &events);
    assert_eq!((lines(&writes), report.dirty_at_end), (vec![1], 1));
    assert_eq!((report.counts.fence_wait_ns, report.counts.dirty_max), (0, 1));
}

#[test]
fn whole_lines_are_stored_without_a_read() {
    let whole = stored(0, StoreWay::Cached, 1, 64);
    assert_eq!(run(config(OrderingMode::Clwb, 1, 4), &[whole]).0.counts.memory_reads, 0);
    let part = stored(0, StoreWay::Cached, 1, 63);
    assert_eq!(run(config(OrderingMode::Clwb, 1, 4), &[part]).0.counts.memory_reads, 1);
}

#[test]
fn stores_of_one_epoch_are_combined() {
    let events = [store(0, 1), store(0, 1), flush(0, 1), store(0, 1), fence(0), store(0, 2)];
    let (report, writes) = run(config(OrderingMode::Epoch, 1, 4), &events);
    assert_eq!((lines(&writes), report.dirty_at_end), (vec![1, 2], 2));
    assert_eq!((report.counts.epochs, report.counts.epochs_in_flight_max), (2, 2));
    assert_eq!(writes.iter().map(|w| w.epoch.unwrap().number).collect::<Vec<_>>(), [0, 1]);
}

/// simulator-R2
#[test]
fn a_line_of_an_older_epoch_is_written_with_all_of_it() {
    let events =
        [store(0, 1), fence(0), store(0, 2), store(0, 3), fence(0), store(0, 4), store(0, 2)];
    let config = config(OrderingMode::Epoch, 1, 8);
    assert_eq!(before_end(config, &events), [1, 2, 3]);
    assert_eq!(run(config, &events).0.counts.same_line_conflicts, 1);
}

/// simulator-R3
#[test]
fn a_line_of_another_core_is_written_before_it_is_read() {
    let config = config(OrderingMode::Epoch, 2, 8);
    let of_first = [store(0, 1), fence(0), store(0, 2), fence(0), store(0, 3)];
    for access in [load(1, 2), store(1, 2)] {
        let events = [&of_first[..], &[access]].concat();
        assert_eq!(before_end(config, &events), [1, 2], "line 3 is newer");
        let counts = run(config, &events).0.counts;
        assert_eq!(counts.cross_core_conflicts, 1);
        assert!(counts.fence_wait_ns >= 2 * TIMING.write_ns);
    }
    let other = [&of_first[..], &[load(1, 4), load(0, 2)]].concat();
    assert_eq!(before_end(config, &other), [0; 0], "no line of another core");
}

/// simulator-R1
#[test]
fn a_ninth_epoch_waits_for_the_first() {
    let config = config(OrderingMode::Epoch, 1, 32);
    let epochs = |count: u64| (0..count).flat_map(|line| [store(0, line), fence(0)]);
    let eight: Vec<_> = epochs(8).collect();
    assert_eq!(before_end(config, &eight), [0; 0]);
    let nine: Vec<_> = epochs(9).collect();
    assert_eq!(before_end(config, &nine), [0]);
    let counts = run(config, &nine).0.counts;
    assert_eq!((counts.epoch_table_full, counts.epochs_in_flight_max), (1, 8));
    assert_eq!(counts.fence_wait_ns, TIMING.write_ns);
    // The entry that was taken first is the other core's.
    let shared: Vec<_> = [store(1, 20)].into_iter().chain(epochs(8)).collect();
    let two = HardwareConfig { cores: 2, ..config };
    assert_eq!(before_end(two, &shared), [20]);
}

/// simulator-R4
#[test]
fn lines_of_newer_epochs_are_evicted_last() {
    let config = config(OrderingMode::Epoch, 1, 4);
    let events = [store(0, 1), fence(0), store(0, 2), store(0, 3), load(0, 4)];
    let others = [load(0, 1), load(0, 2), load(0, 3), load(0, 1), load(0, 5)];
    assert_eq!(before_end(config, &[&events[..], &others].concat()), [0; 0], "line 4 is clean");
    // All four lines are dirty: that of the oldest epoch goes first.
    let full = [store(0, 1), fence(0), store(0, 2), fence(0), store(0, 3), store(0, 4), load(0, 5)];
    assert_eq!(before_end(config, &full), [1]);
    let counts = run(config, &full).0.counts;
    assert_eq!((counts.evictions, counts.forced_evictions), (1, 0));
}

/// simulator-R4: with sets, the oldest line can be in another one.
#[test]
fn older_epochs_are_written_before_a_line_that_must_go() {
    let l2 = CacheSize { bytes: 4 * 64, ways: 2 };
    let config = HardwareConfig { l2, ..config(OrderingMode::Epoch, 1, 4) };
    let events = [store(0, 1), fence(0), store(0, 2), fence(0), store(0, 4), load(0, 6)];
    assert_eq!(before_end(config, &events), [1, 2]);
    assert_eq!(run(config, &events).0.counts.forced_evictions, 1);
}

/// simulator-R5
#[test]
fn a_queued_line_of_another_core_is_waited_for() {
    let config = config(OrderingMode::Epoch, 2, 8);
    // The second store to line 1 writes its epoch, of which line 2 is then clean, and queued.
    let of_first = [store(0, 1), store(0, 2), fence(0), store(0, 1)];
    for access in [load(1, 2), store(1, 2)] {
        let events = [&of_first[..], &[access]].concat();
        assert_eq!(before_end(config, &events), [1, 2]);
        let counts = run(config, &events).0.counts;
        assert_eq!(counts.cross_core_conflicts, 0);
        assert!(counts.fence_wait_ns > TIMING.write_ns / 2, "{counts:?}");
    }
    let own = [&of_first[..], &[load(0, 2)]].concat();
    assert_eq!(run(config, &own).0.counts.fence_wait_ns, 0);
}

#[test]
fn volatile_lines_have_no_epoch() {
    let config = HardwareConfig { volatile_from: 2 * 64, ..config(OrderingMode::Epoch, 2, 8) };
    let events = [store(0, 1), store(0, 2), fence(0), store(0, 2), load(1, 2)];
    let (report, writes) = run(config, &events);
    assert_eq!(report.counts.cross_core_conflicts + report.counts.same_line_conflicts, 0);
    assert_eq!(writes.iter().map(|w| w.epoch.is_some()).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn wrong_configurations_are_refused() {
    let good = HardwareConfig::default();
    assert_eq!(good.check(), Ok(()));
    let cache = |bytes, ways| CacheSize { bytes, ways };
    for (wrong, word) in [
        (HardwareConfig { l1: cache(3 * 64, 1), ..good }, "power of two"),
        (HardwareConfig { l1: cache(0, 1), ..good }, "power of two"),
        (HardwareConfig { l1: cache(64, 0), ..good }, "ways"),
        (HardwareConfig { l2: cache(1 << 40, 16), ..good }, "at most"),
        (HardwareConfig { l2: cache(32 << 10, 8), ..good }, "cannot be smaller"),
        (HardwareConfig { cores: 0, ..good }, "at least 1"),
        (HardwareConfig { cores: 65, ..good }, "at most 64"),
        (HardwareConfig { epochs: 65, ..good }, "at most 64"),
        (HardwareConfig { timing: Timing { banks: 0, ..TIMING }, ..good }, "banks"),
        (HardwareConfig { timing: Timing { queue: 0, ..TIMING }, ..good }, "queue"),
        (HardwareConfig { timing: Timing { read_ns: u64::MAX, ..TIMING }, ..good }, "ns"),
    ] {
        let text = wrong.check().unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
}

fn events() -> impl Strategy<Value = Vec<MemoryEvent<'static>>> {
    let event = (0u16..4, 0u64..20, 0u8..8).prop_map(|(thread, line, what)| match what {
        0 | 1 => load(thread, line),
        2 | 3 => store(thread, line),
        4 => stored(thread, StoreWay::PastCache, line, 64),
        5 => stored(thread, StoreWay::Cached, line, 100),
        6 => flush(thread, line),
        _ => fence(thread),
    });
    prop::collection::vec(event, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// Each line that was stored to is written, at most once for each store, with the words that
    /// were stored to. No other line is written.
    #[test]
    fn no_line_is_lost_or_invented(events in events(), cores in 1u32..4, l2 in 2u32..5) {
        let mut stores = BTreeMap::<u64, u64>::new();
        for event in &events {
            if let Action::Store { addr, len, .. } = event.action {
                for line in memsim::trace::lines(addr, len) {
                    *stores.entry(line).or_default() += 1;
                }
            }
        }
        for mode in OrderingMode::ALL {
            let l2 = CacheSize { bytes: (64 << l2) * 2, ways: 1 << l2 };
            let config = HardwareConfig { l2, ..config(mode, cores, 8) };
            let (report, writes) = run(config, &events);
            let mut written = BTreeMap::<u64, u64>::new();
            for write in &writes {
                prop_assert!(write.words != 0);
                *written.entry(write.line).or_default() += 1;
            }
            prop_assert!(written.keys().eq(stores.keys()), "{mode}");
            prop_assert!(written.iter().all(|(line, n)| *n <= stores[line]), "{mode}");
            let counts = report.counts;
            let all = counts.memory_writes + report.dirty_at_end;
            prop_assert_eq!(all, writes.len() as u64);
            prop_assert_eq!(counts.stores, stores.values().sum::<u64>());
            let misses = counts.loads + counts.stores - counts.nt_stores - counts.l1_hits - counts.l2_hits;
            prop_assert!(counts.memory_reads <= misses);
            prop_assert!(report.time_ns <= report.durable_ns);
        }
    }

    /// Hits of one core in caches of one set each, against lists in order of use.
    #[test]
    fn hits_are_those_of_lists(lines_used in prop::collection::vec((0u64..12, any::<bool>()), 1..300)) {
        let (mut l1, mut l2) = (Vec::<u64>::new(), Vec::<u64>::new());
        let (mut l1_hits, mut l2_hits, mut dirty, mut writes) = (0, 0, BTreeSet::new(), 0);
        let mut events = Vec::new();
        for (line, is_store) in lines_used {
            events.push(if is_store { store(0, line) } else { load(0, line) });
            if let Some(at) = l1.iter().position(|l| *l == line) {
                l1_hits += 1;
                l1.remove(at);
            } else {
                if let Some(at) = l2.iter().position(|l| *l == line) {
                    l2_hits += 1;
                    l2.remove(at);
                } else if l2.len() == 5 {
                    let out = l2.remove(0);
                    l1.retain(|l| *l != out);
                    writes += u64::from(dirty.remove(&out));
                }
                l2.push(line);
                if l1.len() == 2 {
                    l1.remove(0);
                }
            }
            l1.push(line);
            if is_store {
                dirty.insert(line);
            }
        }
        let (report, _) = run(config(OrderingMode::Clwb, 1, 5), &events);
        let counts = report.counts;
        prop_assert_eq!((counts.l1_hits, counts.l2_hits), (l1_hits, l2_hits));
        prop_assert_eq!((counts.memory_writes, report.dirty_at_end), (writes, dirty.len() as u64));
    }
}
