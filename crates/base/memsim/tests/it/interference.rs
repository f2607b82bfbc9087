//! A program in DRAM beside a file system in persistent memory (BPFS Figure 6).

use memsim::caches::controller::{Controller, LineWrite};
use memsim::caches::memories::{NamedMemory, timing};
use memsim::caches::{Channels, HardwareConfig, Timing, VolatileRanks};
use memsim::interference::{FileMemory, alone, beside};
use memsim::trace::{Action, MemoryEvent, Reader, StoreWay, Writer};

const DRAM_NS: (u64, u64) = (10, 10);

fn memory() -> HardwareConfig {
    let config = HardwareConfig::default();
    let memory: NamedMemory = "pcm-rows".parse().unwrap();
    HardwareConfig { timing: timing(&memory, config.timing), ..config }
}

/// Returns a trace of operations that each store to a line ten times, with a barrier after each.
fn trace(operations: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, 1 << 30);
    let mut push = |action| writer.push(&MemoryEvent { thread: 0, gap_ns: 0, action }).unwrap();
    for op in 0..operations {
        push(Action::Begin { op });
        for i in 0..10 {
            let addr = u64::from(op) * 4096 + i % 2 * 64;
            push(Action::Load { addr: addr + 2048, len: 8 });
            push(Action::Store { way: StoreWay::Cached, addr, len: 8, data: None });
        }
        push(Action::Fence);
        push(Action::Return { op });
    }
    writer.finish(0).unwrap();
    bytes
}

#[test]
fn traffic_to_persistent_memory_does_not_slow_down_a_program_in_dram() {
    let trace = trace(3000);
    let rates = FileMemory::ALL.map(|backing| {
        let mut reader = Reader::new(&trace[..]).unwrap();
        beside(&mut reader, memory(), backing, DRAM_NS, 2000).unwrap()
    });
    let alone = alone(memory(), DRAM_NS, rates[0].time_ns).unwrap();
    println!("{rates:?} {alone:?}");
    let [through, epoch, dram] = rates;
    assert!(epoch.file_system > through.file_system * 1.02);
    assert!(dram.file_system >= epoch.file_system);
    for with in rates {
        assert!(with.stencil > alone.stencil * 0.85 && with.stencil <= alone.stencil * 1.01);
    }
}

#[test]
fn the_same_input_gives_the_same_rates() {
    let trace = trace(50);
    let run = || {
        let mut reader = Reader::new(&trace[..]).unwrap();
        beside(&mut reader, memory(), FileMemory::Epoch, DRAM_NS, 0).unwrap()
    };
    assert_eq!(run(), run());
}

/// banks-B6: volatile memory waits for the bus, and for no bank of persistent memory.
#[test]
fn volatile_memory_has_banks_of_its_own() {
    let base = HardwareConfig::default().timing;
    let volatile = Some(VolatileRanks { from: 1 << 20, read_ns: 10, write_ns: 20, banks: 1 });
    let read_during_a_write = |bus_ns: u64, line: u64| {
        let channels = Channels { bus_ns, ..Channels::ONE };
        let timing = Timing { read_ns: 50, write_ns: 150, banks: 1, volatile, channels, ..base };
        let mut controller = Controller::new(timing, 1, false);
        controller.write(0, LineWrite { line: 1, ..LineWrite::default() });
        // Another write makes the bank begin the first one.
        controller.write(1, LineWrite { line: 2, ..LineWrite::default() });
        controller.read(1, line)
    };
    assert_eq!(read_during_a_write(0, 3), 200);
    assert_eq!(read_during_a_write(0, 1 << 14), 11);
    assert_eq!(read_during_a_write(5, 1 << 14), 16);
}

#[test]
fn volatile_memory_begins_where_the_hardware_says() {
    let ranks = VolatileRanks { from: 4096, read_ns: 1, write_ns: 1, banks: 1 };
    let with = |ranks, volatile_from| {
        let timing = Timing { volatile: Some(ranks), ..HardwareConfig::default().timing };
        HardwareConfig { timing, volatile_from, ..HardwareConfig::default() }.check()
    };
    assert_eq!(with(ranks, 4096), Ok(()));
    assert!(with(ranks, 8192).is_err());
    assert!(with(VolatileRanks { banks: 0, ..ranks }, 4096).is_err());
}
