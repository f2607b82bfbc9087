//! Named memories: times of a line and the lines that are moved at the same time, each with its
//! source. Row buffers are not modelled: a read or write takes the time of one that misses them.

use super::config::Timing;
use serde::Serialize;
use std::str::FromStr;

/// A memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NamedMemory {
    /// Its name.
    pub name: &'static str,
    /// Nanoseconds for a read of a line.
    pub read_ns: u64,
    /// Nanoseconds for a write of a line.
    pub write_ns: u64,
    /// Banks: lines that are moved at the same time.
    pub banks: u32,
    /// The sources of the three numbers.
    pub source: &'static str,
}

/// All memories. The first is the default.
pub const MEMORIES: [NamedMemory; 6] = [
    NamedMemory {
        name: "pcm",
        read_ns: 55,
        write_ns: 150,
        banks: 8,
        source: "Lee et al., ISCA 2009: 22 and 60 cycles of 2.5 ns (tRCD, tRP), 8 banks; \
                 150 ns also BPFS §4.3",
    },
    NamedMemory {
        name: "stt-mram",
        read_ns: 10,
        write_ns: 10,
        banks: 8,
        source: "PMAL Table I; banks as pcm",
    },
    NamedMemory {
        name: "nvdimm-n",
        read_ns: 10,
        write_ns: 10,
        banks: 8,
        source: "DRAM with a flash copy: DRAM of PMAL Table I; banks as pcm",
    },
    NamedMemory {
        name: "cxl-near",
        read_ns: 140,
        write_ns: 140,
        banks: 64,
        source: "Melody (ASPLOS 2025): the least latency of its devices; 64 lines at a time give \
                 29 GB/s, an assumption",
    },
    NamedMemory {
        name: "cxl-far",
        read_ns: 410,
        write_ns: 410,
        banks: 64,
        source: "Melody: the greatest latency of its devices; 64 lines at a time, an assumption",
    },
    NamedMemory {
        name: "optane",
        read_ns: 305,
        write_ns: 865,
        banks: 188,
        source: "Izraelevitz et al., 2019: 305 ns for a random read; banks and write time so that \
                 six DIMMs read 39.4 and write 13.9 GB/s. The unit of 256 bytes is not modelled",
    },
];

impl NamedMemory {
    /// Returns these times with the caches of `timing`. The controller's queue has room for at
    /// least a write for each bank.
    pub fn timing(&self, timing: Timing) -> Timing {
        let Self { read_ns, write_ns, banks, .. } = *self;
        Timing { read_ns, write_ns, banks, queue: timing.queue.max(banks), ..timing }
    }

    /// Returns the bytes per second of all banks together, in 10^9: reading, and writing.
    pub fn gb_per_s(&self) -> (f64, f64) {
        let rate = |ns: u64| f64::from(self.banks) * crate::LINE as f64 / ns as f64;
        (rate(self.read_ns), rate(self.write_ns))
    }
}

impl FromStr for NamedMemory {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = MEMORIES.into_iter().find(|memory| memory.name == name);
        let names = MEMORIES.map(|memory| memory.name).join(", ");
        found.ok_or_else(|| format!("`{name}` is no memory: there are {names}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caches::HardwareConfig;
    use crate::caches::controller::Controller;

    #[test]
    fn the_default_hardware_has_the_first() {
        let timing = HardwareConfig::default().timing;
        assert_eq!(MEMORIES[0].timing(timing), timing);
    }

    /// The published rates of six DIMMs, within 10 %, when the queue is never empty.
    #[test]
    fn optane_writes_at_the_published_rate() {
        let optane: NamedMemory = "optane".parse().unwrap();
        let mut controller = Controller::new(optane.timing(HardwareConfig::default().timing), 1);
        let lines = 100_000;
        let last = (0..lines).map(|line| controller.write(0, line, None).completed).max().unwrap();
        let rate = (lines * crate::LINE) as f64 / last as f64;
        assert!((rate / 13.9 - 1.0).abs() < 0.1, "{rate}");
        assert!((optane.gb_per_s().0 / 39.4 - 1.0).abs() < 0.1);
    }

    #[test]
    fn names_are_known() {
        assert!(MEMORIES.iter().all(|memory| memory.name.parse() == Ok(*memory)));
        assert!("core".parse::<NamedMemory>().unwrap_err().contains("stt-mram"));
    }
}
