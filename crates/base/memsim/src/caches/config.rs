//! Sizes, times and modes of caches and memory.

use crate::LINE;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The most cores.
pub const CORES_MAX: u32 = 64;
/// The largest cache in bytes, so that memory stays bounded.
const CACHE_MAX: u64 = 1 << 30;

/// The longest time of an access, so that sums do not overflow.
const NS_MAX: u64 = 1_000_000_000;

/// How stores are kept in order, and made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderingMode {
    /// As the program does it: flushes write lines back, fences wait for them and for stores past
    /// the cache.
    Clwb,
    /// Each store goes to memory at once; fences wait for them. Flushes do nothing. The paper
    /// compares its caches with this (§5.3.1).
    WriteThrough,
    /// A fence writes back all dirty lines of all caches, and invalidates the caches (§4.4, the
    /// second possibility). Flushes do nothing.
    FlushAll,
    /// Caches are in the persistence domain (eADR, or CXL's global persistent flush): flushes do
    /// nothing, fences wait for nothing. Power failures cost the energy to write the dirty lines.
    Eadr,
    /// The epoch hardware of §4.4: a fence becomes an epoch barrier, flushes do nothing, and stores
    /// past the cache become stores.
    Epoch,
}

impl OrderingMode {
    /// All modes.
    pub const ALL: [Self; 5] =
        [Self::Clwb, Self::WriteThrough, Self::FlushAll, Self::Eadr, Self::Epoch];

    /// Returns the name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::WriteThrough => "write-through",
            Self::FlushAll => "flush-all",
            Self::Eadr => "eadr",
            Self::Epoch => "epoch",
        }
    }
}

impl fmt::Display for OrderingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OrderingMode {
    type Err = BadConfig;

    fn from_str(name: &str) -> Result<Self, BadConfig> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            BadConfig(format!("`{name}` is no ordering mode: there are {names}"))
        })
    }
}

/// A configuration that no hardware has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadConfig(pub String);

/// The size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheSize {
    /// Bytes.
    pub bytes: u64,
    /// Lines of a set.
    pub ways: u32,
}

impl CacheSize {
    /// Returns the number of lines.
    pub fn lines(self) -> u64 {
        self.bytes / LINE
    }

    /// Returns the number of sets.
    pub fn sets(self) -> u64 {
        self.lines() / u64::from(self.ways)
    }

    fn check(self, name: &str) -> Result<(), BadConfig> {
        let Self { bytes, ways } = self;
        let set = u64::from(ways) * LINE;
        if ways == 0 || ways > 64 || bytes > CACHE_MAX {
            let text = format!("{name}: from 1 to 64 ways, and at most {CACHE_MAX} bytes");
            return Err(BadConfig(text));
        }
        if bytes < set || !bytes.is_multiple_of(set) || !self.sets().is_power_of_two() {
            let text = format!(
                "{name} of {bytes} bytes with {ways} ways: the number of sets is no power of two"
            );
            return Err(BadConfig(text));
        }
        Ok(())
    }
}

/// Times in nanoseconds, and the parallelism of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// An access that hits the L1 cache.
    pub l1_ns: u64,
    /// An access that hits the L2 cache.
    pub l2_ns: u64,
    /// A read of a line from memory.
    pub read_ns: u64,
    /// A write of a line to memory.
    pub write_ns: u64,
    /// Banks of each channel, which work at the same time. Lines or rows are interleaved.
    pub banks: u32,
    /// Writes that the memory controller's queue for each channel holds.
    pub queue: u32,
    /// The row buffers of each bank. With them, `read_ns` fetches a row from the cells, and
    /// `write_ns` writes one back.
    pub rows: Option<RowBuffers>,
    /// The channels.
    pub channels: Channels,
    /// Ranks of volatile memory behind the same channels (§5.3.2). Without them, all addresses are
    /// in the memory above.
    pub volatile: Option<VolatileRanks>,
}

impl Timing {
    /// Returns the number of banks of a channel, with those of volatile memory.
    pub fn all_banks(&self) -> u32 {
        self.banks + self.volatile.map_or(0, |ranks| ranks.banks)
    }
}

/// Ranks of volatile memory. They share the channels, buses and queues with the persistent ones,
/// and have banks of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VolatileRanks {
    /// The first address.
    pub from: u64,
    /// A read of a line.
    pub read_ns: u64,
    /// A write of a line.
    pub write_ns: u64,
    /// Banks of each channel.
    pub banks: u32,
}

/// Buffers of a bank that hold rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RowBuffers {
    /// Bytes of a row.
    pub bytes: u64,
    /// Rows that a bank holds.
    pub buffers: u32,
    /// Nanoseconds for an access to a row in a buffer.
    pub hit_ns: u64,
}

/// Channels to the memory: each has banks, a bus and a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// Their number.
    pub count: u32,
    /// Bytes after which the next channel follows.
    pub interleave_bytes: u64,
    /// Nanoseconds for which a line occupies the bus.
    pub bus_ns: u64,
    /// Nanoseconds that a read takes on its way, in addition, and that occupy nothing.
    pub fixed_ns: u64,
}

impl Channels {
    /// One channel, whose bus takes no time.
    pub const ONE: Self = Self { count: 1, interleave_bytes: 4096, bus_ns: 0, fixed_ns: 0 };
}

/// The hardware that a trace is replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HardwareConfig {
    /// The mode.
    pub mode: OrderingMode,
    /// Cores; thread `t` runs on core `t` modulo this number. A core has one hardware context.
    pub cores: u32,
    /// The L1 cache of each core.
    pub l1: CacheSize,
    /// The shared L2 cache.
    pub l2: CacheSize,
    /// Epochs in flight.
    pub epochs: u32,
    /// Whether data is durable in the queue of the memory controller (ADR), not only in memory.
    pub is_queue_durable: bool,
    /// Times.
    pub timing: Timing,
    /// Addresses from here on are volatile memory, which no epoch orders.
    pub volatile_from: u64,
}

/// The machine that BPFS simulates (§5.1, §4.4.1): two cores with caches of 32 KiB, a shared cache
/// of 4 MiB, eight epochs in flight. Associativity and times of the caches are assumptions. Those
/// of the memory are of phase-change memory: 150 ns for a write (§4.3), 55 ns for a read (Lee et
/// al., ISCA 2009).
impl Default for HardwareConfig {
    fn default() -> Self {
        Self {
            mode: OrderingMode::Clwb,
            cores: 2,
            l1: CacheSize { bytes: 32 << 10, ways: 8 },
            l2: CacheSize { bytes: 4 << 20, ways: 16 },
            epochs: 8,
            is_queue_durable: false,
            timing: Timing {
                l1_ns: 1,
                l2_ns: 7,
                read_ns: 55,
                write_ns: 150,
                banks: 8,
                queue: 32,
                rows: None,
                channels: Channels::ONE,
                volatile: None,
            },
            volatile_from: u64::MAX,
        }
    }
}

impl HardwareConfig {
    /// Checks all values.
    pub fn check(&self) -> Result<(), BadConfig> {
        self.l1.check("the L1 cache")?;
        self.l2.check("the L2 cache")?;
        let cores = u64::from(self.cores);
        let limit = |name: &str, value: u32, max: u32| match value {
            0 => Err(BadConfig(format!("{name}: at least 1"))),
            value if value > max => Err(BadConfig(format!("{name}: at most {max}"))),
            _ => Ok(()),
        };
        limit("cores", self.cores, CORES_MAX)?;
        limit("epochs in flight", self.epochs, 64)?;
        limit("banks", self.timing.banks, 1 << 16)?;
        limit("entries of the queue", self.timing.queue, 1 << 16)?;
        let Timing { l1_ns, l2_ns, read_ns, write_ns, rows, channels, .. } = self.timing;
        limit("channels", channels.count, 64)?;
        limit("row buffers of a bank", rows.map_or(1, |rows| rows.buffers), 1 << 10)?;
        let is_lines = |bytes: u64| bytes > 0 && bytes.is_multiple_of(LINE);
        if !is_lines(channels.interleave_bytes) || !rows.is_none_or(|rows| is_lines(rows.bytes)) {
            return Err(BadConfig("rows and pieces of channels: whole lines".to_owned()));
        }
        let mut times = vec![l1_ns, l2_ns, read_ns, write_ns, channels.bus_ns, channels.fixed_ns];
        times.extend(rows.map(|rows| rows.hit_ns));
        if let Some(VolatileRanks { from, read_ns, write_ns, banks }) = self.timing.volatile {
            limit("banks of volatile memory", banks, 1 << 16)?;
            times.extend([read_ns, write_ns]);
            if !from.is_multiple_of(LINE) || from != self.volatile_from {
                let text = "volatile memory: begins with a line, at the address of `volatile_from`";
                return Err(BadConfig(text.to_owned()));
            }
        }
        if times.iter().any(|ns| *ns > NS_MAX) {
            return Err(BadConfig(format!("a time of an access: at most {NS_MAX} ns")));
        }
        if self.l1.bytes * cores > self.l2.bytes {
            let text = "the L2 cache holds all lines of the L1 caches, and so cannot be smaller";
            return Err(BadConfig(text.to_owned()));
        }
        Ok(())
    }
}
