//! Crashes of block devices (`pmbd`). After each crash, data confirmed by a request, a barrier or
//! "forced unit access" must be there. Each atomic block must be old or new, checksums must match,
//! and the device must be usable.
//!
//! Requests are data. Each stores words that no other request stores, so that every word found
//! shows its origin. A [`BlockWorkload`] has requests of one thread or of several threads at once.
//! Before them, a process may be killed in the middle of its own requests. The device is then
//! opened again, and everything that this recovery has seen must survive. [`run`](fn@run) and
//! [`explore`] record workloads and judge the states after crashes.

mod run;

use crate::text;
use crashsim::image::CrashImage;
use crashsim::schedule::Schedule;
use pmbd::atomic::{Atomic, Geometry};
use pmbd::raw::Raw;
use pmbd::{BlockDevice, Buffering, Scheme};
use pmem::Medium;
use rng::Rng;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use run::{
    BlockRun, explore, explore_format, record, record_format, record_killed_format, run,
};

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes at the places that the client names.
    Raw(Scheme),
    /// Blocks that are never torn.
    Atomic(Scheme),
    /// A raw device behind write buffers.
    RawBuffered(Scheme),
    /// An atomic device behind write buffers.
    AtomicBuffered(Scheme),
}

/// The number of blocks of the device under test. One request can replace all of them at once, so
/// that the next request has to use the blocks that were just replaced.
pub const BLOCKS: u64 = 32;

/// The size of a block of [`Kind::Atomic`] in bytes.
const ATOMIC_BLOCK: u32 = 512;

/// The size in bytes of a unit of [`Kind::Raw`] that the requests treat as a block. It is small, as
/// each word doubles the number of states.
const RAW_BLOCK: u64 = 16;

impl Kind {
    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = Self> {
        let kinds: [fn(Scheme) -> Self; 2] = [Self::Raw, Self::Atomic];
        let bare = kinds.into_iter().flat_map(|kind| Scheme::ALL.into_iter().map(kind));
        // The threads of the buffers write in the same way in all schemes.
        bare.chain([Self::RawBuffered(Scheme::Wb), Self::AtomicBuffered(Scheme::Nt)])
    }

    /// Returns whether blocks are never torn.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::Atomic(_) | Self::AtomicBuffered(_))
    }

    fn is_buffered(self) -> bool {
        matches!(self, Self::RawBuffered(_) | Self::AtomicBuffered(_))
    }

    fn block(self) -> u64 {
        if self.is_atomic() { u64::from(ATOMIC_BLOCK) } else { RAW_BLOCK }
    }

    /// The number of words that a crash leaves all old or all new.
    fn unit_words(self) -> usize {
        if self.is_atomic() { (ATOMIC_BLOCK / 8) as usize } else { 1 }
    }

    /// The number of words in `blocks` blocks.
    fn words(self, blocks: u64) -> usize {
        (blocks * self.block() / 8) as usize
    }

    /// Returns whether requests are durable when they return, which is more than the contract
    /// demands.
    fn durable_on_return(self) -> bool {
        self != Self::Raw(Scheme::Wb) && !self.is_buffered()
    }

    fn geometry(self) -> Option<Geometry> {
        self.is_atomic().then(|| Geometry::of(ATOMIC_BLOCK, BLOCKS)).flatten()
    }

    /// Makes an unformatted medium for a device of this kind.
    fn medium(self) -> CrashImage {
        CrashImage::new(self.geometry().map_or(BLOCKS * RAW_BLOCK, |g| g.region_len()))
    }

    /// Opens the device without its buffers, and without trust in what earlier processes did.
    fn open<'m>(self, medium: impl Medium + 'm) -> Result<Arc<dyn BlockDevice + 'm>, String> {
        Ok(match self {
            Self::Raw(scheme) | Self::RawBuffered(scheme) => {
                let raw = Raw::new(medium, scheme, false).map_err(text)?;
                raw.distrust();
                Arc::new(raw)
            }
            Self::Atomic(scheme) | Self::AtomicBuffered(scheme) => {
                Arc::new(Atomic::open(medium, scheme, true, false).map_err(text)?)
            }
        })
    }

    /// Opens the device with its buffers, if it has any.
    fn open_buffered(self, medium: impl Medium + 'static) -> Result<Arc<dyn BlockDevice>, String> {
        let device = self.open(medium)?;
        match self.is_buffered() {
            true => pmbd::buffered(device, BUFFERING).map_err(text),
            false => Ok(device),
        }
    }
}

/// Buffers that hold the whole device. Their threads have nothing to do, and the thread that
/// requests a barrier or forced unit access empties them, so that traces repeat.
const BUFFERING: Buffering =
    Buffering { buffers: 2, bytes: 64 << 10, high_percent: 100, low_percent: 50, batching: true };

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw(scheme) => write!(f, "raw/{scheme}"),
            Self::Atomic(scheme) => write!(f, "atomic/{scheme}"),
            Self::RawBuffered(scheme) => write!(f, "raw/{scheme}/buffered"),
            Self::AtomicBuffered(scheme) => write!(f, "atomic/{scheme}/buffered"),
        }
    }
}

/// A request. Ranges are in blocks, those of parts in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockRequest {
    /// Writes `n` blocks from `first` on; `now` requests forced unit access.
    Write {
        /// First block.
        first: u64,
        /// Blocks.
        n: u64,
        /// Durable on return.
        now: bool,
    },
    /// Writes zeros.
    Zero {
        /// First block.
        first: u64,
        /// Blocks.
        n: u64,
        /// Whether the device must keep the space.
        keep: bool,
        /// Durable on return.
        now: bool,
    },
    /// Discards.
    Discard {
        /// First block.
        first: u64,
        /// Blocks.
        n: u64,
    },
    /// Writes bytes, or zeros, that may begin and end within words. Only raw devices accept it.
    Part {
        /// First byte.
        at: u64,
        /// Bytes.
        n: u64,
        /// Zeros.
        zero: bool,
        /// Durable on return.
        now: bool,
    },
    /// A barrier.
    Barrier,
}

impl BlockRequest {
    /// Returns requests that differ enough to show what can go wrong between two or three of them
    /// on a device.
    pub fn universe(kind: Kind) -> Vec<Self> {
        let write = |first, n, now| Self::Write { first, n, now };
        let zero = |first, n, now| Self::Zero { first, n, keep: false, now };
        let part = |at, n, zero, now| Self::Part { at, n, zero, now };
        let mut all = vec![
            write(0, 1, false),
            write(0, 3, true),
            write(2, 2, false),
            // Covers more than a line of the map, and takes all spare blocks.
            write(0, BLOCKS, false),
            zero(0, 2, false),
            zero(1, 2, true),
            Self::Zero { first: 0, n: 3, keep: true, now: false },
            Self::Discard { first: 0, n: 3 },
            Self::Barrier,
        ];
        if !kind.is_atomic() {
            all.extend([
                // Inside a word.
                part(2, 3, false, false),
                // Over the end of a line, with parts of words at both ends.
                part(53, 22, false, true),
                part(21, 30, true, false),
            ]);
        }
        all
    }
}

impl fmt::Display for BlockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = |now: bool| if now { " fua" } else { "" };
        let kept = |keep: bool| if keep { " keep" } else { "" };
        match *self {
            Self::Write { first, n, now: is } => write!(f, "write {first}+{n}{}", now(is)),
            Self::Zero { first, n, keep, now: is } => {
                write!(f, "zero {first}+{n}{}{}", kept(keep), now(is))
            }
            Self::Discard { first, n } => write!(f, "discard {first}+{n}"),
            Self::Part { at, n, zero, now: is } => {
                let verb = if zero { "zero-bytes" } else { "write-bytes" };
                write!(f, "{verb} {at}+{n}{}", now(is))
            }
            Self::Barrier => f.write_str("barrier"),
        }
    }
}

impl FromStr for BlockRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("not a request: `{text}`; one is for example `write 0+3 fua`");
        if text == "barrier" {
            return Ok(Self::Barrier);
        }
        let (verb, rest) = text.split_once(' ').ok_or_else(bad)?;
        let (range, now) = match rest.strip_suffix(" fua") {
            Some(range) => (range, true),
            None => (rest, false),
        };
        let (range, keep) = match range.strip_suffix(" keep") {
            Some(range) => (range, true),
            None => (range, false),
        };
        let (first, n) = range.split_once('+').ok_or_else(bad)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        let (first, n) = (number(first)?, number(n)?);
        let is_part = verb.ends_with("-bytes");
        let (len, unit) = if is_part { (BLOCKS * RAW_BLOCK, "bytes") } else { (BLOCKS, "blocks") };
        if first.checked_add(n).is_none_or(|end| end > len) {
            return Err(format!("`{text}`: the device has {len} {unit}"));
        }
        let part = |zero| Self::Part { at: first, n, zero, now };
        match verb {
            "write-bytes" if !keep => Ok(part(false)),
            "zero-bytes" if !keep => Ok(part(true)),
            "write" if !keep => Ok(Self::Write { first, n, now }),
            "zero" => Ok(Self::Zero { first, n, keep, now }),
            "discard" if !keep && !now => Ok(Self::Discard { first, n }),
            _ => Err(bad()),
        }
    }
}

/// A process that is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its requests.
    pub requests: Vec<BlockRequest>,
    /// The number of its stores, flushes and fences before it is killed.
    pub steps: usize,
}

/// Requests and the device that serves them. As text, for example `atomic/nt: write 0+3 fua,
/// barrier`. Programs that run at once: `schedule 5 write 0+1 | write 0+32`. After a death: `killed
/// 4 write 0+3, barrier; write 0+32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockWorkload {
    /// The kind of device.
    pub kind: Kind,
    /// A process that had the device open before and was killed.
    pub victim: Option<Victim>,
    /// The requests of each thread, in order.
    pub programs: Vec<Vec<BlockRequest>>,
    /// The schedule, if there are several programs.
    pub schedule: Schedule,
}

impl BlockWorkload {
    /// A workload of one thread.
    pub fn of(kind: Kind, requests: Vec<BlockRequest>) -> Self {
        Self { kind, victim: None, programs: vec![requests], schedule: Schedule::Seed(0) }
    }
}

/// The text before the requests of a victim.
const KILLED: &str = "killed ";

/// The text before a schedule.
const SCHEDULE: &str = "schedule ";

fn show(requests: &[BlockRequest]) -> String {
    requests.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn parse(requests: &str) -> Result<Vec<BlockRequest>, String> {
    requests.split(", ").map(str::parse).collect()
}

/// Splits a text into a number and the rest behind a space.
fn numbered<N: FromStr>(text: &str) -> Result<(N, &str), String> {
    let split = text.split_once(' ').and_then(|(n, rest)| Some((n.parse().ok()?, rest)));
    split.ok_or_else(|| format!("not a number and requests: `{text}`"))
}

impl fmt::Display for BlockWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind)?;
        if let Some(Victim { requests, steps }) = &self.victim {
            write!(f, "{KILLED}{steps} {}; ", show(requests))?;
        }
        if self.programs.len() > 1 {
            write!(f, "{SCHEDULE}{} ", self.schedule)?;
        }
        let programs: Vec<String> = self.programs.iter().map(|p| show(p)).collect();
        f.write_str(&programs.join(" | "))
    }
}

impl FromStr for BlockWorkload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(": ").ok_or("a workload is `KIND: REQUEST, …`")?;
        let kind = Kind::all().find(|k| k.to_string() == kind);
        let kind = kind.ok_or("a kind is raw/SCHEME or atomic/SCHEME, perhaps with /buffered")?;
        let (victim, rest) = match rest.strip_prefix(KILLED) {
            None => (None, rest),
            Some(rest) => {
                let (victim, rest) =
                    rest.split_once("; ").ok_or("after a death, `; REQUEST, …`")?;
                let (steps, requests) = numbered(victim)?;
                (Some(Victim { requests: parse(requests)?, steps }), rest)
            }
        };
        let (schedule, programs) = match rest.strip_prefix(SCHEDULE) {
            None => (Schedule::Seed(0), vec![parse(rest)?]),
            Some(rest) => {
                let (schedule, rest) = numbered(rest)?;
                (schedule, rest.split(" | ").map(parse).collect::<Result<_, _>>()?)
            }
        };
        Ok(Self { kind, victim, programs, schedule })
    }
}

/// Returns all pairs of requests on all kinds of devices.
pub fn pairs() -> Vec<BlockWorkload> {
    let of = |kind| {
        let all = BlockRequest::universe(kind);
        (0..all.len() * all.len())
            .map(move |i| BlockWorkload::of(kind, vec![all[i / all.len()], all[i % all.len()]]))
    };
    Kind::all().flat_map(of).collect()
}

/// Returns `runs` workloads of six random requests for each kind of device.
pub fn random(runs: usize, seed: u64) -> Vec<BlockWorkload> {
    let mut rng = Rng::new(seed);
    let of = |kind| {
        let all = BlockRequest::universe(kind);
        let mut any = || all[rng.below(all.len() as u64) as usize];
        (0..runs)
            .map(|_| BlockWorkload::of(kind, (0..6).map(|_| any()).collect()))
            .collect::<Vec<_>>()
    };
    Kind::all().flat_map(of).collect()
}

/// Returns workloads that keep one half of the device and overwrite the other until all free space
/// has been used. The recovery must have found all blocks in use. Where the blocks of a device lie
/// differs from run to run.
pub fn rounds() -> Vec<BlockWorkload> {
    let half = BLOCKS / 2;
    let write = |i, n| BlockRequest::Write { first: i % 2 * half, n, now: false };
    // Writes one block more, so that the next device begins elsewhere.
    let rounds = |i| [vec![write(i, half); 8], vec![write(i, 1)]].concat();
    (0..4 * BLOCKS).map(|i| BlockWorkload::of(Kind::Atomic(Scheme::Nt), rounds(i))).collect()
}

/// A request that takes all free data blocks, including those that were just freed.
const TAKE_ALL: BlockRequest = BlockRequest::Write { first: 0, n: BLOCKS, now: false };

/// Returns programs that run at once on all kinds of devices, one schedule for each seed. Even and
/// odd seeds run different programs.
pub fn schedules(seeds: std::ops::Range<u64>) -> Vec<BlockWorkload> {
    let write = |first, n| BlockRequest::Write { first, n, now: false };
    let zero = BlockRequest::Zero { first: 0, n: 2, keep: false, now: false };
    let blocks = [
        vec![vec![write(0, 1)], vec![TAKE_ALL]],
        vec![vec![zero], vec![TAKE_ALL]],
        vec![vec![write(0, 2), write(1, 2)], vec![write(1, 2), BlockRequest::Barrier], vec![zero]],
    ];
    // From the middle of a line of the map to the next.
    let lines = [
        vec![vec![write(0, 1)], vec![TAKE_ALL]],
        vec![vec![write(7, 2), TAKE_ALL, TAKE_ALL], vec![write(8, 1)]],
        vec![vec![write(6, 5), write(2, 3)], vec![write(7, 10), BlockRequest::Barrier]],
    ];
    let part = |at, n, zero| BlockRequest::Part { at, n, zero, now: false };
    let parts = [
        // Within one word, and from the middle of a line to the next, with parts of words at both
        // ends.
        vec![vec![part(2, 3, false)], vec![part(5, 2, false)]],
        vec![vec![part(53, 22, false), part(60, 2, true)], vec![part(61, 70, false)]],
    ];
    let of = |kind: Kind| {
        let parts = parts.iter().filter(|_| !kind.is_atomic());
        // Even seeds run the first half, odd seeds the second.
        let halves = [blocks.to_vec(), lines.iter().chain(parts).cloned().collect()];
        let with = move |programs: &Vec<Vec<BlockRequest>>, seed| BlockWorkload {
            kind,
            victim: None,
            programs: programs.clone(),
            schedule: Schedule::Seed(seed),
        };
        seeds.clone().flat_map(move |seed| {
            let half = &halves[(seed % 2) as usize];
            half.iter().map(|programs| with(programs, seed)).collect::<Vec<_>>()
        })
    };
    Kind::all().flat_map(of).collect()
}

/// Returns workloads in which a process is killed at every step of its requests, on all kinds of
/// devices. The device is then opened again and used.
pub fn deaths() -> Result<Vec<BlockWorkload>, String> {
    let write = |first, n| BlockRequest::Write { first, n, now: false };
    let victims = [
        vec![write(0, 3)],
        // Requests that change two lines of the map.
        vec![write(7, 2), BlockRequest::Zero { first: 15, n: 2, keep: false, now: false }],
        vec![write(0, 1), BlockRequest::Barrier, BlockRequest::Discard { first: 0, n: 3 }],
    ];
    // The second one begins with a barrier, which alone makes the confirmed requests of a victim
    // durable.
    let scenarios = [
        vec![TAKE_ALL],
        vec![BlockRequest::Barrier, write(4, 1), BlockRequest::Barrier, write(1, 1)],
    ];
    let mut all = Vec::new();
    for kind in Kind::all() {
        for requests in &victims {
            for steps in 0..=run::steps(kind, requests)? {
                let victim = Some(Victim { requests: requests.clone(), steps });
                all.extend(scenarios.iter().map(|scenario| BlockWorkload {
                    kind,
                    victim: victim.clone(),
                    programs: vec![scenario.clone()],
                    schedule: Schedule::Seed(0),
                }));
            }
        }
    }
    Ok(all)
}
