//! The counts of a trace.

use crate::trace::{Action, MemoryEvent, Reader, StoreWay, TraceError, lines};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;

/// Accesses of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Class {
    /// Number of accesses.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The lines that they touch, each access for itself.
    pub lines: u64,
}

impl Class {
    fn add(&mut self, addr: u64, len: u32) {
        let lines = lines(addr, len);
        self.count += 1;
        self.bytes += u64::from(len);
        self.lines += lines.end - lines.start;
    }
}

/// The counts of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Number of events.
    pub events: u64,
    /// Threads that made them.
    pub threads: u64,
    /// Nanoseconds that the recorded run took; 0: unknown.
    pub elapsed_ns: u64,
    /// The longest sum of computation times of a thread, in nanoseconds.
    pub compute_ns: u64,
    /// Loads.
    pub loads: Class,
    /// Stores through the cache.
    pub stores: Class,
    /// Stores past the cache.
    pub nt_stores: Class,
    /// Flushes.
    pub flushes: Class,
    /// Fences.
    pub fences: u64,
    /// Barriers.
    pub barriers: u64,
    /// Operations that started.
    pub operations: u64,
    /// Bytes of stores whose content is in the trace.
    pub data_bytes: u64,
    #[serde(skip)]
    compute: BTreeMap<u16, u64>,
}

impl Summary {
    /// Counts the rest of a trace.
    pub fn of<R: Read>(reader: &mut Reader<R>) -> Result<Self, TraceError> {
        let mut summary = Self { region_bytes: reader.region_len(), ..Self::default() };
        while let Some(event) = reader.next_event()? {
            summary.add(&event);
        }
        summary.elapsed_ns = reader.finished().unwrap_or_default().elapsed_ns;
        Ok(summary)
    }

    fn add(&mut self, event: &MemoryEvent<'_>) {
        self.events += 1;
        let compute = self.compute.entry(event.thread).or_default();
        *compute = compute.saturating_add(event.gap_ns);
        self.compute_ns = self.compute_ns.max(*compute);
        self.threads = self.compute.len() as u64;
        match event.action {
            Action::Load { addr, len } => self.loads.add(addr, len),
            Action::Store { way, addr, len, data } => {
                self.data_bytes += data.map_or(0, <[u8]>::len) as u64;
                match way {
                    StoreWay::Cached | StoreWay::Word => self.stores.add(addr, len),
                    StoreWay::PastCache | StoreWay::Line => self.nt_stores.add(addr, len),
                }
            }
            Action::Flush { addr, len } => self.flushes.add(addr, len),
            Action::Fence => self.fences += 1,
            Action::Barrier => self.barriers += 1,
            Action::Begin { .. } => self.operations += 1,
            Action::Return { .. } => {}
        }
    }
}
