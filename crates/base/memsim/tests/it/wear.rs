//! Wear: counts of lines and words, and lifetimes.

use memsim::caches::{HardwareConfig, OrderingMode, Simulator};
use memsim::trace::{Action, MemoryEvent, StoreWay};
use memsim::wear::lifetime::{ENDURANCES, Levelling, Worn};
use memsim::wear::{HotLine, WearCounts};

fn counted(pages_max: usize, stores: &[(u64, u32)]) -> WearCounts {
    let config = HardwareConfig { mode: OrderingMode::WriteThrough, ..HardwareConfig::default() };
    let mut simulator = Simulator::new(config, WearCounts::new(pages_max)).unwrap();
    for (addr, len) in stores {
        let action = Action::Store { way: StoreWay::Cached, addr: *addr, len: *len, data: None };
        simulator.step(&MemoryEvent { thread: 0, gap_ns: 0, action });
    }
    simulator.finish().1
}

#[test]
fn lines_and_words_are_counted() {
    let counts = counted(10, &[(0, 8), (8, 8), (0, 8), (64, 64), (4096, 100)]);
    assert_eq!(
        counts.hottest(2),
        [HotLine { addr: 0, writes: 3 }, HotLine { addr: 64, writes: 1 }]
    );
    let totals = counts.totals();
    assert_eq!((totals.line_writes, totals.lines), (6, 4));
    assert_eq!((totals.line_max, totals.word_max), (3, 2));
    assert_eq!(totals.page_max, 4.0 / 64.0);
    assert_eq!(totals.page_words_max, 13.0 / 512.0);
}

#[test]
fn pages_beyond_the_bound_are_missed() {
    let counts = counted(1, &[(0, 8), (4096, 8), (0, 8)]);
    assert_eq!((counts.totals().line_writes, counts.missed()), (2, 1));
}

/// So sums of fractions are the same in each run.
#[test]
fn lines_are_in_ascending_order() {
    let stores: Vec<_> = (0..6400).rev().step_by(7).map(|line| (line * 64, 8)).collect();
    let lines: Vec<u64> = counted(1000, &stores).lines().map(|(line, _)| line).collect();
    assert_eq!(lines.len(), stores.len());
    assert!(lines.is_sorted());
}

fn worn() -> Worn {
    Worn { lines: 4096, run_s: 1.0, start_gap: Default::default(), swaps: Default::default() }
}

#[test]
fn levelling_makes_a_hot_spot_live_longer() {
    // Half of the stores go to one word.
    let stores: Vec<(u64, u32)> =
        (0..2000).map(|i| if i % 2 == 0 { (640, 8) } else { (i * 64 % (1 << 18), 8) }).collect();
    let counts = counted(1 << 20, &stores);
    for endurance in ENDURANCES {
        let lives = worn().lifetimes(&counts, endurance).unwrap();
        let of = |levelling| lives.iter().find(|l| l.levelling == levelling).unwrap();
        let none = of(Levelling::None);
        assert!((none.hours - endurance / 1000.0 / 3600.0).abs() < 1e-6 * none.hours);
        assert!(of(Levelling::Rotation).hours > 10.0 * none.hours);
        assert!(of(Levelling::PageSwaps).of_ideal > 0.7, "{lives:?}");
        assert!(of(Levelling::StartGap).of_ideal > 0.95, "{lives:?}");
        assert_eq!(of(Levelling::Ideal).of_ideal, 1.0);
    }
}

#[test]
fn rotating_words_helps_partial_writes_only() {
    let counts = counted(10, &[(0, 8), (8, 8), (16, 8), (24, 8)]);
    let lives = worn().lifetimes(&counts, 1e8).unwrap();
    assert_eq!(lives[1].hours / lives[0].hours, 4.0, "four words, each stored to once");
    assert_eq!(worn().lifetimes(&counted(10, &[]), 1e8), None);
}
