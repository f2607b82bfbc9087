//! Named memories: their times, rows, banks and channels, each number with its source. The models
//! of `memsim` and the emulation of slower memory ([`Emulation`]) use the same numbers.

use crate::Emulation;
use crate::flush::LINE;
use serde::Serialize;
use std::str::FromStr;

/// A memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NamedMemory {
    /// Its name.
    pub name: &'static str,
    /// Nanoseconds to read a line, or a row if there are row buffers, from the cells.
    pub read_ns: u64,
    /// Nanoseconds to write a line or row to the cells.
    pub write_ns: u64,
    /// Banks of a channel: lines or rows that move at the same time.
    pub banks: u32,
    /// Row buffers.
    pub rows: Option<NamedRows>,
    /// Channels.
    pub channels: NamedChannels,
    /// Nanoseconds until a line is durable that is written alone.
    pub durable_ns: u64,
    /// Nanoseconds that DRAM takes for a read, and until a write is done, in the same sources.
    pub dram_ns: (u64, u64),
    /// The sources of the numbers.
    pub source: &'static str,
}

/// Row buffers of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NamedRows {
    /// Bytes of a row.
    pub bytes: u64,
    /// Rows that a bank holds.
    pub buffers: u32,
    /// Nanoseconds for an access to one of them.
    pub hit_ns: u64,
}

/// Channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NamedChannels {
    /// Their number.
    pub count: u32,
    /// Bytes after which the next one follows.
    pub interleave_bytes: u64,
    /// Nanoseconds for which a line occupies the bus.
    pub bus_ns: u64,
    /// Nanoseconds that a read takes in addition, and that occupy nothing.
    pub fixed_ns: u64,
}

/// One channel, whose bus takes no time.
const ONE: NamedChannels =
    NamedChannels { count: 1, interleave_bytes: 4096, bus_ns: 0, fixed_ns: 0 };

/// DRAM of PMAL Table I.
const DRAM_CELLS: (u64, u64) = (10, 10);
/// DRAM of Yang et al., FAST 2020, Figure 2: a random read (101.5 ns), and a store past the cache
/// (86.9 ns), without fractions.
const DRAM_OF_FAST: (u64, u64) = (101, 86);

/// All memories. The first is the default of the models.
pub const MEMORIES: [NamedMemory; 8] = [
    NamedMemory {
        name: "pcm",
        read_ns: 55,
        write_ns: 150,
        banks: 8,
        rows: None,
        channels: ONE,
        durable_ns: 150,
        dram_ns: DRAM_CELLS,
        source: "Lee et al., ISCA 2009: 22 and 60 cycles of 2.5 ns (tRCD, tRP), 8 banks; \
                 150 ns also BPFS §4.3. No row buffers, as for single lines",
    },
    NamedMemory {
        name: "pcm-rows",
        read_ns: 55,
        write_ns: 150,
        banks: 8,
        rows: Some(NamedRows { bytes: 512, buffers: 4, hit_ns: 13 }),
        channels: NamedChannels { bus_ns: 10, ..ONE },
        durable_ns: 150,
        dram_ns: DRAM_CELLS,
        source: "Lee et al., ISCA 2009: as pcm, with four row buffers of 512 bytes, 5 cycles for \
                 a column (tCL), 4 for a line on the bus (tCCD)",
    },
    NamedMemory {
        name: "stt-mram",
        read_ns: 10,
        write_ns: 10,
        banks: 8,
        rows: None,
        channels: ONE,
        durable_ns: 10,
        dram_ns: DRAM_CELLS,
        source: "PMAL Table I; banks as pcm",
    },
    NamedMemory {
        name: "reram",
        read_ns: 25,
        write_ns: 10,
        banks: 4,
        rows: Some(NamedRows { bytes: 256, buffers: 1, hit_ns: 15 }),
        channels: NamedChannels { count: 2, interleave_bytes: 256, bus_ns: 10, fixed_ns: 0 },
        durable_ns: 10,
        dram_ns: DRAM_CELLS,
        source: "NVMain, RRAM_ISSCC_2012_4GB (Kawahara et al., ISSCC 2012): tRCD, tWP, tCAS and \
                 tBURST of 10, 4, 6 and 4 cycles of 2.5 ns; rows, banks and channels. PMAL \
                 Table I has no ReRAM",
    },
    NamedMemory {
        name: "nvdimm-n",
        read_ns: 10,
        write_ns: 10,
        banks: 8,
        rows: None,
        channels: ONE,
        durable_ns: 10,
        dram_ns: DRAM_CELLS,
        source: "DRAM with a flash copy: DRAM of PMAL Table I; banks as pcm",
    },
    NamedMemory {
        name: "cxl-near",
        read_ns: 140,
        write_ns: 140,
        banks: 64,
        rows: None,
        channels: ONE,
        durable_ns: 140,
        dram_ns: DRAM_OF_FAST,
        source: "Melody (Liu et al., ASPLOS 2025), abstract: the least of its latencies; 64 lines \
                 at a time give 29 GB/s, an assumption",
    },
    NamedMemory {
        name: "cxl-far",
        read_ns: 410,
        write_ns: 410,
        banks: 64,
        rows: None,
        channels: ONE,
        durable_ns: 410,
        dram_ns: DRAM_OF_FAST,
        source: "Melody, abstract: the greatest of its latencies; 64 lines at a time, an \
                 assumption",
    },
    NamedMemory {
        name: "optane",
        read_ns: 181,
        write_ns: 536,
        banks: 5,
        rows: Some(NamedRows { bytes: 256, buffers: 13, hit_ns: 1 }),
        channels: NamedChannels { count: 6, interleave_bytes: 4096, bus_ns: 3, fixed_ns: 120 },
        durable_ns: 90,
        dram_ns: DRAM_OF_FAST,
        source: "Yang et al., FAST 2020, data of Figures 2, 5 and 9: 305 ns for a random read, \
                 169 ns for the next one, 90 ns for a store past the cache, units of 256 bytes, a \
                 buffer of 16 KiB; Izraelevitz et al., 2019: 39.4 and 13.9 GB/s of six DIMMs. \
                 Times of the cells, banks and the bus follow from these",
    },
];

impl NamedMemory {
    /// Returns the nanoseconds that a read of a line takes that no buffer holds.
    pub fn read_latency_ns(&self) -> u64 {
        let hit_ns = self.rows.map_or(0, |rows| rows.hit_ns);
        self.read_ns + hit_ns + self.channels.bus_ns + self.channels.fixed_ns
    }

    /// Returns the bytes per second that all banks move together, in 10^9: reading, and writing.
    /// Whole rows are moved.
    pub fn gb_per_s(&self) -> (f64, f64) {
        let NamedChannels { count, bus_ns, .. } = self.channels;
        let (lines, hit_ns) = self.rows.map_or((1, 0), |rows| (rows.bytes / LINE, rows.hit_ns));
        let rate = |ns: u64| {
            let row_ns = (ns + lines * (hit_ns + bus_ns)) as f64 / f64::from(self.banks);
            let bus_ns = (lines * bus_ns) as f64;
            f64::from(count) * (lines * LINE) as f64 / row_ns.max(bus_ns)
        };
        (rate(self.read_ns), rate(self.write_ns))
    }

    /// Returns the emulation of this memory by DRAM: what it takes more for each access, and its
    /// rates.
    pub fn emulation(&self) -> Emulation {
        let (read, write) = self.gb_per_s();
        let mb_per_s = |gb_per_s: f64| Some((gb_per_s * 1000.0) as u64);
        Emulation {
            read_access_ns: self.read_latency_ns().saturating_sub(self.dram_ns.0),
            write_access_ns: self.durable_ns.saturating_sub(self.dram_ns.1),
            read_mb_per_s: mb_per_s(read),
            write_mb_per_s: mb_per_s(write),
            ..Emulation::default()
        }
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

    #[test]
    fn names_are_known() {
        assert!(MEMORIES.iter().all(|memory| memory.name.parse() == Ok(*memory)));
        assert!("core".parse::<NamedMemory>().unwrap_err().contains("stt-mram"));
    }

    #[test]
    fn emulations_are_what_a_memory_takes_more_than_dram() {
        let of = |name: &str| name.parse::<NamedMemory>().unwrap().emulation();
        assert_eq!((of("pcm").read_access_ns, of("pcm").write_access_ns), (45, 140));
        assert_eq!((of("optane").read_access_ns, of("optane").write_access_ns), (204, 4));
        assert_eq!((of("nvdimm-n").read_access_ns, of("nvdimm-n").write_access_ns), (0, 0));
        let rates = (of("optane").read_mb_per_s, of("optane").write_mb_per_s);
        assert_eq!(rates, (Some(38_984), Some(13_913)));
        assert_eq!(of("pcm").write_mb_per_s, Some(3413));
    }
}
