//! Crashes of block devices (`pmbd`): what a request, a barrier or "forced unit access" has confirmed is there,
//! atomic blocks are old or new, checksums match, and the device is fit for use.
//!
//! Requests are data; each stores words that no other does, so that what is found says where it comes from.

use crate::campaign::{Finding, Report};
use crate::explore::{Budget, Outcome};
use crate::image::CrashImage;
use crate::persist::Semantics;
use crate::program::{self, Moment};
use crate::recorder::Recorder;
use crate::rng::Rng;
use crate::sited::Sited;
use crate::stats::{Distinct, Stats};
use crate::trace::Trace;
use pmbd::atomic::{Atomic, Geometry};
use pmbd::raw::Raw;
use pmbd::{BlockDevice, Durability, Scheme, Zeroing};
use pmem::Medium;
use std::fmt;
use std::str::FromStr;
use std::time::Instant;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes where the client puts them.
    Raw(Scheme),
    /// Blocks that are never torn.
    Atomic(Scheme),
}

/// Blocks of the device under test: as many as one request replaces at a time, so that the next request
/// has to use the blocks that were just replaced.
pub const BLOCKS: u64 = 32;

/// Bytes of a block of [`Kind::Atomic`].
const ATOMIC_BLOCK: u32 = 512;

/// Bytes of what stands for a block of [`Kind::Raw`]: few, as each word doubles the states.
const RAW_BLOCK: u64 = 16;

impl Kind {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let kinds: [fn(Scheme) -> Self; 2] = [Self::Raw, Self::Atomic];
        kinds.into_iter().flat_map(|kind| Scheme::ALL.into_iter().map(kind))
    }

    fn block(self) -> u64 {
        match self {
            Self::Raw(_) => RAW_BLOCK,
            Self::Atomic(_) => u64::from(ATOMIC_BLOCK),
        }
    }

    /// Words that are never mixed.
    fn unit_words(self) -> usize {
        match self {
            Self::Raw(_) => 1,
            Self::Atomic(_) => (ATOMIC_BLOCK / 8) as usize,
        }
    }

    /// Words in so many blocks.
    fn words(self, blocks: u64) -> usize {
        (blocks * self.block() / 8) as usize
    }

    /// Whether requests are durable when they return, which is more than the contract asks.
    fn durable_on_return(self) -> bool {
        self != Self::Raw(Scheme::Wb)
    }

    fn geometry(self) -> Option<Geometry> {
        match self {
            Self::Raw(_) => None,
            Self::Atomic(_) => Geometry::of(ATOMIC_BLOCK, BLOCKS),
        }
    }

    /// An unformatted medium for it.
    fn medium(self) -> CrashImage {
        CrashImage::new(self.geometry().map_or(BLOCKS * RAW_BLOCK, |g| g.region_len()))
    }

    fn open<'m>(self, medium: impl Medium + 'm) -> Result<Box<dyn BlockDevice + 'm>, String> {
        let text = |e: pmbd::Error| e.to_string();
        Ok(match self {
            Self::Raw(scheme) => Box::new(Raw::new(medium, scheme, false).map_err(text)?),
            Self::Atomic(scheme) => {
                Box::new(Atomic::open(medium, scheme, true, false).map_err(text)?)
            }
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw(scheme) => write!(f, "raw/{scheme}"),
            Self::Atomic(scheme) => write!(f, "atomic/{scheme}"),
        }
    }
}

/// A request; ranges are in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Writes `n` blocks from `first`; `now`: forced unit access.
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
    /// A barrier.
    Barrier,
}

impl Request {
    /// Different enough to show what can go wrong between two or three of them.
    pub fn universe() -> Vec<Self> {
        let write = |first, n, now| Self::Write { first, n, now };
        let zero = |first, n, now| Self::Zero { first, n, now };
        vec![
            write(0, 1, false),
            write(0, 3, true),
            write(2, 2, false),
            // More than a line of the map, and all spare blocks.
            write(0, BLOCKS, false),
            zero(0, 2, false),
            zero(1, 2, true),
            Self::Discard { first: 0, n: 3 },
            Self::Barrier,
        ]
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = |now: bool| if now { " fua" } else { "" };
        match *self {
            Self::Write { first, n, now: is } => write!(f, "write {first}+{n}{}", now(is)),
            Self::Zero { first, n, now: is } => write!(f, "zero {first}+{n}{}", now(is)),
            Self::Discard { first, n } => write!(f, "discard {first}+{n}"),
            Self::Barrier => f.write_str("barrier"),
        }
    }
}

impl FromStr for Request {
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
        let (first, n) = range.split_once('+').ok_or_else(bad)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        let (first, n) = (number(first)?, number(n)?);
        if first.checked_add(n).is_none_or(|end| end > BLOCKS) {
            return Err(format!("`{text}`: the device has {BLOCKS} blocks"));
        }
        match verb {
            "write" => Ok(Self::Write { first, n, now }),
            "zero" => Ok(Self::Zero { first, n, now }),
            "discard" if !now => Ok(Self::Discard { first, n }),
            _ => Err(bad()),
        }
    }
}

/// Requests and what serves them; as text for example `atomic/nt: write 0+3 fua, barrier`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The kind of device.
    pub kind: Kind,
    /// The requests, in order.
    pub requests: Vec<Request>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests: Vec<String> = self.requests.iter().map(ToString::to_string).collect();
        write!(f, "{}: {}", self.kind, requests.join(", "))
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, requests) = text.split_once(": ").ok_or("a workload is `KIND: REQUEST, …`")?;
        let kind = Kind::all().find(|k| k.to_string() == kind);
        let kind = kind.ok_or("a kind is raw/SCHEME or atomic/SCHEME")?;
        let requests = requests.split(", ").map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { kind, requests })
    }
}

/// All pairs of requests on all kinds of devices.
pub fn pairs() -> Vec<Workload> {
    let all = Request::universe();
    let of = |kind| {
        let pair = |i: usize| vec![all[i / all.len()], all[i % all.len()]];
        (0..all.len() * all.len()).map(move |i| Workload { kind, requests: pair(i) })
    };
    Kind::all().flat_map(of).collect()
}

/// `runs` times six requests at random on each kind of device.
pub fn random(runs: usize, seed: u64) -> Vec<Workload> {
    let mut rng = Rng::new(seed);
    let all = Request::universe();
    let mut any = || all[rng.below(all.len() as u64) as usize];
    let kinds = Kind::all().flat_map(|kind| std::iter::repeat_n(kind, runs));
    kinds.map(|kind| Workload { kind, requests: (0..6).map(|_| any()).collect() }).collect()
}

/// Explores the crashes of workloads; `progress` is told how many are done.
pub fn run(
    family: &str,
    workloads: &[Workload],
    semantics: Semantics,
    distinct: &Distinct,
    progress: &dyn Fn(u64),
) -> Report {
    let start = Instant::now();
    let mut report = Report { family: family.to_owned(), ..Report::default() };
    for workload in workloads {
        let wrong = match record(workload.kind, &workload.requests) {
            Ok(run) => {
                let (stats, wrong) = explore(&run, &run.trace, semantics, distinct);
                report.stats.add(&stats);
                wrong
            }
            Err(what) => vec![what],
        };
        report.workloads += 1;
        report.violations += wrong.len() as u64;
        let replay = workload.to_string();
        let finding = |what| Finding { replay: replay.clone(), what, detail: Vec::new() };
        report.findings.extend(wrong.into_iter().take(1).map(finding));
        progress(report.workloads);
    }
    report.seconds = start.elapsed().as_secs_f64();
    report
}

/// What request number `op` stores in a word.
fn word(op: usize, at: usize) -> u64 {
    ((op as u64 + 1) << 32) | (at as u64 + 1)
}

fn serve(kind: Kind, device: &dyn BlockDevice, op: usize, request: Request) -> Result<(), String> {
    let block = kind.block();
    let when = |now| if now { Durability::Now } else { Durability::AtBarrier };
    let done = match request {
        Request::Write { first, n, now } => {
            let words = kind.words(first)..kind.words(first + n);
            let data: Vec<u8> = words.flat_map(|at| word(op, at).to_le_bytes()).collect();
            device.write(first * block, &data, when(now))
        }
        Request::Zero { first, n, now } => {
            let how = Zeroing { keep_space: false, only_fast: false };
            device.write_zeroes(first * block, n * block, how, when(now))
        }
        Request::Discard { first, n } => device.discard(first * block, n * block),
        Request::Barrier => device.barrier(),
    };
    done.map_err(|e| format!("{request:?}: {e}"))
}

/// What a unit may hold: the contents it was given, the oldest first.
#[derive(Clone, Debug)]
struct Unit {
    /// With the number of the request, and when it is sure to be durable: when so many have returned.
    given: Vec<(usize, usize, Vec<u64>)>,
}

/// A recorded run.
#[derive(Clone, Debug)]
pub struct Run {
    kind: Kind,
    /// Memory at the start.
    pub initial: Vec<u8>,
    /// What was done to it.
    pub trace: Trace,
    units: Vec<Unit>,
}

/// The request that fills a device before a run.
const FULL: usize = 1 << 20;

/// A device that is full.
fn full(kind: Kind) -> Result<CrashImage, String> {
    let medium = kind.medium();
    if let Some(geometry) = kind.geometry() {
        pmbd::atomic::format(&medium, &geometry);
    }
    let device = kind.open(&medium)?;
    serve(kind, &*device, FULL, Request::Write { first: 0, n: BLOCKS, now: true })?;
    drop(device);
    Ok(medium)
}

/// Runs requests on a device that is full, and records them.
pub fn record(kind: Kind, requests: &[Request]) -> Result<Run, String> {
    let medium = full(kind)?;
    let initial = medium.bytes();
    let recorder = Recorder::new(medium);
    let device = kind.open(Sited(&recorder))?;
    for (op, request) in requests.iter().enumerate() {
        recorder.begin(op as u32);
        serve(kind, &*device, op, *request)?;
        recorder.end(op as u32);
    }
    drop(device);
    if let Some(at) = recorder.unrecorded() {
        return Err(format!("byte {at} was stored past the medium"));
    }
    let units = (0..kind.words(BLOCKS)).step_by(kind.unit_words()).map(|first| {
        let of = |op: usize| (first..first + kind.unit_words()).map(|at| word(op, at)).collect();
        let mut given = vec![(0, 0, of(FULL))];
        for (op, request) in requests.iter().enumerate() {
            let zeros = vec![0; kind.unit_words()];
            let (range, now, content) = match *request {
                Request::Write { first, n, now } => ((first, n), now, of(op)),
                Request::Zero { first, n, now } => ((first, n), now, zeros),
                // The raw device ignores it, which is its right.
                Request::Discard { first, n } if kind.geometry().is_some() => {
                    ((first, n), false, zeros)
                }
                Request::Discard { .. } | Request::Barrier => continue,
            };
            let block = (first / kind.words(1)) as u64;
            if !(range.0..range.0 + range.1).contains(&block) {
                continue;
            }
            let is_barrier = |r: &Request| *r == Request::Barrier;
            let sure = match requests[op..].iter().position(is_barrier) {
                _ if now || kind.durable_on_return() => op + 1,
                Some(later) => op + later + 1,
                None => usize::MAX,
            };
            given.push((op, sure, content));
        }
        Unit { given }
    });
    Ok(Run { kind, initial, units: units.collect(), trace: recorder.into_trace() })
}

/// Formats a device with so many atomic blocks over one that is full and has [`BLOCKS`], and records it.
pub fn record_format(kind: Kind, blocks: u64) -> Result<Run, String> {
    let geometry = Geometry::of(ATOMIC_BLOCK, blocks).ok_or("no device has so many blocks")?;
    let medium = full(kind)?;
    let initial = medium.bytes();
    let recorder = Recorder::new(medium);
    pmbd::atomic::format(&recorder, &geometry);
    Ok(Run { kind, initial, units: Vec::new(), trace: recorder.into_trace() })
}

/// Explores the crashes of a recorded formatting with so many blocks, of whose trace `trace` is a variant:
/// there must be the old device, or none, or the new one, all zeros; and that when formatting has returned.
/// Returns what is wrong.
pub fn explore_format(run: &Run, trace: &Trace, blocks: u64, semantics: Semantics) -> Vec<String> {
    let mut wrong = Vec::new();
    let recover = |image: &CrashImage| -> Outcome<Option<Vec<u64>>> {
        match run.kind.open(image) {
            Ok(device) => content(&*device).map(Some),
            Err(_) => Ok(None),
        }
    };
    let mut verdict = |now: Moment, outcome: &Outcome<Option<Vec<u64>>>| match outcome {
        Err(what) => wrong.push(what.clone()),
        Ok(None) if now.over => wrong.push("no device after formatting".into()),
        Ok(None) => {}
        Ok(Some(found)) => {
            let old = 0..run.kind.words(BLOCKS);
            let is_old = found.iter().copied().eq(old.map(|at| word(FULL, at)));
            let is_new = found.len() == run.kind.words(blocks) && found.iter().all(|w| *w == 0);
            if !is_new && (now.over || !is_old) {
                wrong.push("neither the old device nor an empty one".into());
            }
        }
    };
    let (budget, distinct) = (Budget { states: 1 << 8, ..Budget::default() }, Distinct::default());
    program::explore(trace, &run.initial, semantics, budget, &distinct, &recover, &mut verdict);
    wrong
}

/// What a device holds, in words.
fn content(device: &dyn BlockDevice) -> Result<Vec<u64>, String> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(0, &mut bytes).map_err(|e| e.to_string())?;
    let word = |w: &[u8]| u64::from_le_bytes(w.try_into().expect("8 bytes"));
    Ok(bytes.chunks_exact(8).map(word).collect())
}

/// Explores the crashes of a run, of whose trace `trace` is a variant; returns what is wrong.
pub fn explore(
    run: &Run,
    trace: &Trace,
    semantics: Semantics,
    distinct: &Distinct,
) -> (Stats, Vec<String>) {
    let kind = run.kind;
    let recover = |image: &CrashImage| -> Outcome<Vec<u64>> {
        let device = kind.open(image)?;
        let found = content(&*device)?;
        fit_for_use(kind, &*device)?;
        Ok(found)
    };
    let mut wrong = Vec::new();
    let mut verdict = |now: Moment, outcome: &Outcome<Vec<u64>>| match outcome {
        Err(what) => wrong.push(what.clone()),
        Ok(found) => wrong.extend(judge(run, now, found)),
    };
    let budget = Budget { states: 1 << 8, runs: 1 << 8, samples: 16, ..Budget::default() };
    let stats =
        program::explore(trace, &run.initial, semantics, budget, distinct, &recover, &mut verdict);
    (stats, wrong)
}

/// Whether all blocks can be written twice and read again: no space was lost or is shared.
fn fit_for_use(kind: Kind, device: &dyn BlockDevice) -> Result<(), String> {
    for op in [1 << 21, 1 << 22] {
        serve(kind, device, op, Request::Write { first: 0, n: BLOCKS, now: true })?;
    }
    let found = content(device)?;
    match found.iter().enumerate().all(|(at, w)| *w == word(1 << 22, at)) {
        true => Ok(()),
        false => Err("after recovery a write is not what is read".into()),
    }
}

/// The first thing found that may not be there.
fn judge(run: &Run, now: Moment, found: &[u64]) -> Option<String> {
    let (begun, returned) = (now.begun as usize, now.returned as usize);
    let found = found.chunks_exact(run.kind.unit_words());
    run.units.iter().zip(found).enumerate().find_map(|(n, (unit, found))| {
        let sure = unit.given.iter().rposition(|(_, sure, _)| *sure <= returned).unwrap_or(0);
        let may = unit.given.iter().enumerate().any(|(i, (op, _, content))| {
            i >= sure && (i == 0 || *op < begun) && content == found
        });
        (!may).then(|| {
            format!(
                "{}: unit {n} holds {:#x}…, with {returned} requests returned of {begun}; sure is request {}",
                run.kind, found[0], unit.given[sure].0
            )
        })
    })
}
