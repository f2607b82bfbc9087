//! Prints how many events of lines a second of processor time each ordering mode replays: from a
//! trace in a file, or from a made one, of which two thirds of the accesses miss all caches. An
//! event of a line is a load, store or flush of one line, or a fence.
//!
//! ```text
//! cargo run --release -p memsim --example rate [OPERATIONS | TRACE] [MEMORY]
//! ```

use memsim::caches::memories::{MEMORIES, NamedMemory, timing};
use memsim::caches::{HardwareConfig, OrderingMode, Simulator, WriteSink};
use memsim::summary::Summary;
use memsim::trace::{Action, MemoryEvent, Reader, StoreWay, Writer};
use memsim::wear::WearCounts;
use rng::Rng;
use std::env::args;
use std::error::Error;
use std::fs::read_to_string;

type Outcome = Result<(), Box<dyn Error>>;

/// Makes a trace as a file system does: loads of words, stores of new lines, a flush of each, a
/// fence, a word that commits, and another fence.
fn trace(operations: u64) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut writer = Writer::new(Vec::new(), 1 << 30);
    let mut rng = Rng::new(1);
    for operation in 0..operations {
        let thread = (operation % 2) as u16;
        let mut push = |action| writer.push(&MemoryEvent { thread, gap_ns: 20, action });
        for _ in 0..8 {
            push(Action::Load { addr: rng.below(1 << 16) * 64, len: 8 })?;
        }
        let block = (1 << 28) + rng.below(1 << 14) * 4096;
        let way = StoreWay::Cached;
        push(Action::Store { way, addr: block, len: 512, data: None })?;
        push(Action::Flush { addr: block, len: 512 })?;
        push(Action::Fence)?;
        let addr = rng.below(1 << 14) * 64;
        push(Action::Store { way: StoreWay::Word, addr, len: 8, data: None })?;
        push(Action::Flush { addr, len: 8 })?;
        push(Action::Fence)?;
    }
    Ok(writer.finish(0)?.0)
}

/// Returns the nanoseconds that this thread has run, whatever else the machine does.
fn processor_ns() -> Result<u64, Box<dyn Error>> {
    let ran = read_to_string("/proc/thread-self/schedstat")?;
    Ok(ran.split(' ').next().ok_or("no time")?.parse()?)
}

/// Prints a row: the rate of `run`, which replays a trace of `lines` events of lines.
fn row(name: &str, lines: u64, run: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Outcome {
    let begin = processor_ns()?;
    run()?;
    println!("{name:14} {:7.1} M/s", lines as f64 * 1e3 / (processor_ns()? - begin) as f64);
    Ok(())
}

/// Replays a trace. The sink gets the writes.
fn replay(trace: &[u8], config: HardwareConfig, sink: impl WriteSink) -> Outcome {
    Simulator::new(config, sink)?.replay(&mut Reader::new(trace)?)?;
    Ok(())
}

fn main() -> Outcome {
    let asked = args().nth(1).unwrap_or("500000".to_owned());
    let trace = match asked.parse() {
        Ok(operations) => trace(operations)?,
        Err(_) => std::fs::read(asked)?,
    };
    let memory: NamedMemory = args().nth(2).as_deref().unwrap_or(MEMORIES[0].name).parse()?;
    let default = HardwareConfig::default();
    let default = HardwareConfig { timing: timing(&memory, default.timing), ..default };
    let found = Summary::of(&mut Reader::new(&trace[..])?)?;
    let Summary { loads, stores, nt_stores, flushes, fences, .. } = found;
    let lines = loads.lines + stores.lines + nt_stores.lines + flushes.lines + fences;
    println!("{lines} events of lines, {} bytes", trace.len());
    row("reader", lines, || {
        Summary::of(&mut Reader::new(&trace[..])?)?;
        Ok(())
    })?;
    for mode in OrderingMode::ALL {
        row(mode.name(), lines, || replay(&trace, HardwareConfig { mode, ..default }, ()))?;
    }
    row("clwb, wear", lines, || replay(&trace, default, WearCounts::new(1 << 20)))
}
