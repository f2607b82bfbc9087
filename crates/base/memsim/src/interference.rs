//! A program in DRAM beside a file system in persistent memory, on the same channels (§5.3.2,
//! Figure 6).
//!
//! The first core replays a trace of the file system. The second runs a loop that uses DRAM much,
//! as the paper's NAS MG does: a stencil over a grid that no cache holds. The core whose clock is
//! behind goes on, one line at a time. Both do the same work in each system, so the work in a
//! microsecond stands for the instructions in a cycle of the paper.

use crate::LINE;
use crate::caches::{BadConfig, HardwareConfig, OrderingMode, Simulator, VolatileRanks};
use crate::trace::{Action, MemoryEvent, Reader, StoreWay, TraceError, lines};
use serde::Serialize;
use std::io::Read;

/// The first address of DRAM. Regions of persistent memory are below.
const DRAM: u64 = 1 << 47;
/// Lines of a row of the stencil's grid, rows of a plane, and planes. A grid has 16 MiB.
const ROW: u64 = 16;
const ROWS: u64 = 128;
const PLANES: u64 = 128;
/// Rows that a line of the result depends on: three in each of three planes.
const NEIGHBOURS: u64 = 9;
/// Nanoseconds of computation for a line of the result: 8 points of 27 terms.
const COMPUTE_NS: u64 = 40;

/// The file system's memory and order, by the names of Figure 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileMemory {
    /// Persistent memory, and each store written through.
    WriteThrough,
    /// Persistent memory, and the epoch hardware.
    Epoch,
    /// DRAM, without any order.
    Dram,
}

impl FileMemory {
    /// All, in the order of the figure.
    pub const ALL: [Self; 3] = [Self::WriteThrough, Self::Epoch, Self::Dram];
}

/// The rates of both programs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// The file system's memory and order; `None`: the stencil ran alone.
    pub backing: Option<FileMemory>,
    /// Lines that the file system accessed in a microsecond.
    pub file_system: f64,
    /// Lines of the result that the stencil computed in a microsecond.
    pub stencil: f64,
    /// Nanoseconds of the run.
    pub time_ns: u64,
}

/// A failed run.
#[derive(Debug, thiserror::Error)]
pub enum InterferenceError {
    /// No hardware has this configuration.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// The stencil: reads nine rows, computes, and stores a line of another grid.
#[derive(Debug, Default)]
struct Stencil {
    /// Accesses so far.
    at: u64,
}

impl Stencil {
    /// Lines of the result so far.
    fn done(&self) -> u64 {
        self.at / (NEIGHBOURS + 1)
    }

    /// Returns the next access.
    fn next(&mut self) -> MemoryEvent<'static> {
        let grid = ROW * ROWS * PLANES;
        let (line, access) = (self.done(), self.at % (NEIGHBOURS + 1));
        self.at += 1;
        let at = |grid_number: u64, line: u64| DRAM + (grid_number * grid + line % grid) * LINE;
        let len = LINE as u32;
        if access < NEIGHBOURS {
            let neighbour = line + access / 3 * ROW * ROWS + access % 3 * ROW;
            let action = Action::Load { addr: at(0, neighbour), len };
            return MemoryEvent { thread: 1, gap_ns: 0, action };
        }
        let action = Action::Store { way: StoreWay::Cached, addr: at(1, line), len, data: None };
        MemoryEvent { thread: 1, gap_ns: COMPUTE_NS, action }
    }
}

/// Returns the hardware of a run. The first cores' caches and the memory are those of `config`.
fn hardware(config: HardwareConfig, backing: FileMemory, dram_ns: (u64, u64)) -> HardwareConfig {
    let mut timing = config.timing;
    let (read_ns, write_ns) = dram_ns;
    timing.volatile = Some(VolatileRanks { from: DRAM, read_ns, write_ns, banks: timing.banks });
    if backing == FileMemory::Dram {
        (timing.read_ns, timing.write_ns, timing.rows) = (read_ns, write_ns, None);
    }
    let mode = match backing {
        FileMemory::WriteThrough => OrderingMode::WriteThrough,
        FileMemory::Epoch => OrderingMode::Epoch,
        FileMemory::Dram => OrderingMode::Eadr,
    };
    HardwareConfig { mode, timing, cores: 2, volatile_from: DRAM, ..config }
}

/// Returns the parts of an access that lie in one line each. Other actions are one part.
fn parts<'a>(action: &Action<'a>) -> impl Iterator<Item = Action<'a>> + use<'a> {
    let action = *action;
    let range = match action {
        Action::Load { addr, len } | Action::Store { addr, len, .. } => lines(addr, len),
        _ => 0..1,
    };
    range.map(move |line| {
        let cut = |addr: u64, len: u32| {
            let end = (addr + u64::from(len)).min((line + 1) * LINE);
            let start = addr.max(line * LINE);
            (start, (end - start) as u32)
        };
        match action {
            Action::Load { addr, len } => {
                let (addr, len) = cut(addr, len);
                Action::Load { addr, len }
            }
            Action::Store { way, addr, len, .. } => {
                let (addr, len) = cut(addr, len);
                Action::Store { way, addr, len, data: None }
            }
            other => other,
        }
    })
}

/// Both programs on their hardware.
struct InterferenceRun {
    simulator: Simulator<()>,
    stencil: Stencil,
    /// Lines that the file system accessed.
    accesses: u64,
}

impl InterferenceRun {
    /// Replays an event of the file system, and of the stencil what comes before it.
    fn step(&mut self, event: &MemoryEvent<'_>, computation_ns: u64) {
        let is_begin = matches!(event.action, Action::Begin { .. });
        let mut gap_ns = if is_begin { computation_ns } else { 0 };
        for action in parts(&event.action) {
            while self.simulator.now(1) < self.simulator.now(0) {
                self.simulator.step(&self.stencil.next());
            }
            self.accesses +=
                u64::from(matches!(action, Action::Load { .. } | Action::Store { .. }));
            self.simulator.step(&MemoryEvent { thread: 0, gap_ns, action });
            gap_ns = 0;
        }
    }
}

/// Runs a trace beside the stencil. Each operation of the trace computes for `computation_ns`.
/// `dram_ns` are the times of a read and a write of DRAM.
pub fn beside<R: Read>(
    reader: &mut Reader<R>,
    config: HardwareConfig,
    backing: FileMemory,
    dram_ns: (u64, u64),
    computation_ns: u64,
) -> Result<Rates, InterferenceError> {
    let simulator = Simulator::new(hardware(config, backing, dram_ns), ())?;
    let mut run = InterferenceRun { simulator, stencil: Stencil::default(), accesses: 0 };
    while let Some(event) = reader.next_event()? {
        run.step(&event, computation_ns);
    }
    let InterferenceRun { simulator, stencil, accesses } = run;
    let times = [simulator.now(0), simulator.now(1)];
    let rate = |work: u64, ns: u64| work as f64 * 1e3 / ns.max(1) as f64;
    Ok(Rates {
        backing: Some(backing),
        file_system: rate(accesses, times[0]),
        stencil: rate(stencil.done(), times[1]),
        time_ns: times[0].max(times[1]),
    })
}

/// Runs the stencil alone, for `time_ns`.
pub fn alone(
    config: HardwareConfig,
    dram_ns: (u64, u64),
    time_ns: u64,
) -> Result<Rates, InterferenceError> {
    let mut simulator = Simulator::new(hardware(config, FileMemory::Dram, dram_ns), ())?;
    let mut stencil = Stencil::default();
    while simulator.now(1) < time_ns {
        simulator.step(&stencil.next());
    }
    let time_ns = simulator.now(1);
    let stencil = stencil.done() as f64 * 1e3 / time_ns.max(1) as f64;
    Ok(Rates { backing: None, file_system: 0.0, stencil, time_ns })
}
