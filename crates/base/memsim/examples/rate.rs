//! Prints how many events of lines a second of processor time each ordering mode replays: from a
//! trace in a file, or from a made one, of which two thirds of the accesses miss all caches.
//!
//! ```text
//! cargo run --release -p memsim --example rate [OPERATIONS | TRACE]
//! ```

use memsim::caches::{HardwareConfig, OrderingMode, Simulator};
use memsim::summary::Summary;
use memsim::trace::{Action, MemoryEvent, Reader, StoreWay, Writer};
use rng::Rng;
use std::error::Error;
use std::fs::read_to_string;

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

fn main() -> Result<(), Box<dyn Error>> {
    let asked = std::env::args().nth(1).unwrap_or("500000".to_owned());
    let trace = match asked.parse() {
        Ok(operations) => trace(operations)?,
        Err(_) => std::fs::read(asked)?,
    };
    let begin = processor_ns()?;
    let found = Summary::of(&mut Reader::new(&trace[..])?)?;
    let lines = found.loads.lines + found.stores.lines + found.flushes.lines + found.fences;
    let rate = |since: u64| processor_ns().map(|now| lines as f64 * 1e3 / (now - since) as f64);
    println!("{lines} events of lines, {} bytes", trace.len());
    println!("{:14} {:7.1} M/s", "reader", rate(begin)?);
    for mode in OrderingMode::ALL {
        let begin = processor_ns()?;
        let config = HardwareConfig { mode, ..HardwareConfig::default() };
        let mut simulator = Simulator::new(config, ())?;
        simulator.replay(&mut Reader::new(&trace[..])?)?;
        println!("{mode:14} {:7.1} M/s", rate(begin)?);
    }
    Ok(())
}
