//! Records workloads of block devices and judges the states after crashes.

use super::{ATOMIC_BLOCK, BLOCKS, BlockRequest, BlockWorkload, Kind, Victim};
use crashsim::campaign::{Finding, Report};
use crashsim::deaths;
use crashsim::explore::{Budget, Outcome};
use crashsim::image::CrashImage;
use crashsim::persist::Semantics;
use crashsim::program::{self, Moment};
use crashsim::recorder::Recorder;
use crashsim::schedule::{self, Interleaving, Policy, Schedule};
use crashsim::sited::Sited;
use crashsim::stats::{Distinct, Stats};
use crashsim::trace::{Action, Event, Trace};
use pmbd::atomic::Geometry;
use pmbd::{BlockDevice, Durability, Zeroing};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Explores the crashes of workloads; with `stop_early`, up to the first violation. Calls
/// `progress` with the number of workloads done.
pub fn run(
    family: &str,
    workloads: &[BlockWorkload],
    semantics: Semantics,
    distinct: &Distinct,
    stop_early: bool,
    progress: &dyn Fn(u64),
) -> Report {
    let start = Instant::now();
    let mut report = Report { family: family.to_owned(), ..Report::default() };
    for workload in workloads {
        let mut replay = workload.clone();
        let wrong = match record(workload) {
            Ok(run) => {
                replay.schedule = run.taken();
                let (stats, wrong) = explore(&run, &run.trace, semantics, distinct);
                report.stats.add(&stats);
                wrong
            }
            Err(what) => vec![what],
        };
        report.workloads += 1;
        report.violations += wrong.len() as u64;
        let replay = replay.to_string();
        let finding = |what| Finding::new(replay.clone(), what);
        report.findings.extend(wrong.into_iter().take(1).map(finding));
        progress(report.workloads);
        if stop_early && report.violations > 0 {
            break;
        }
    }
    report.seconds = start.elapsed().as_secs_f64();
    report
}

/// The value that request number `op` stores in the word at `at`.
fn word(op: usize, at: usize) -> u64 {
    ((op as u64 + 1) << 32) | (at as u64 + 1)
}

/// The value that request number `op` stores in the byte at `at`, if it writes bytes. No [`word`]
/// contains such a byte.
fn byte(op: usize, at: u64) -> u8 {
    0x80 | (op as u8).wrapping_mul(31).wrapping_add(at as u8)
}

/// Makes a request as call number `op`, with content that shows that number ([`word`], [`byte`]).
fn serve(
    kind: Kind,
    device: &dyn BlockDevice,
    op: usize,
    request: BlockRequest,
) -> Result<(), String> {
    let block = kind.block();
    let when = |now| if now { Durability::Now } else { Durability::AtBarrier };
    let done = match request {
        BlockRequest::Write { first, n, now } => {
            let words = kind.words(first)..kind.words(first + n);
            let data: Vec<u8> = words.flat_map(|at| word(op, at).to_le_bytes()).collect();
            device.write(first * block, &data, when(now))
        }
        BlockRequest::Zero { first, n, keep, now } => {
            let how = Zeroing { keep_space: keep, only_fast: false };
            device.write_zeroes(first * block, n * block, how, when(now))
        }
        BlockRequest::Discard { first, n } => device.discard(first * block, n * block),
        BlockRequest::Part { at, n, zero: false, now } => {
            let data: Vec<u8> = (at..at + n).map(|at| byte(op, at)).collect();
            device.write(at, &data, when(now))
        }
        BlockRequest::Part { at, n, zero: true, now } => {
            let how = Zeroing { keep_space: false, only_fast: false };
            device.write_zeroes(at, n, how, when(now))
        }
        BlockRequest::Barrier => device.barrier(),
    };
    done.map_err(|e| format!("{request:?}: {e}"))
}

/// The time of a call in a trace.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// The events at which it began and returned.
    events: (usize, usize),
    /// The number of calls that had begun before.
    begun: u32,
    /// The numbers of calls that have returned when this one has returned, and when it is certainly
    /// durable.
    returned: u32,
    sure: u32,
}

/// The span of the initial state: before all calls, and durable.
const START: Span = Span { events: (0, 0), begun: 0, returned: 0, sure: 0 };

/// A content that a call gave to a unit.
#[derive(Clone, Debug)]
struct Given {
    /// The index of the call in [`BlockRun::spans`]; `None` for the initial state.
    call: Option<usize>,
    content: Vec<u64>,
    /// For a part of a unit: the index of the unit's content that the other bytes come from.
    over: Option<usize>,
}

/// A recorded run.
#[derive(Clone, Debug)]
pub struct BlockRun {
    kind: Kind,
    /// The memory before the run.
    pub initial: Vec<u8>,
    /// The stores, flushes and fences of the run.
    pub trace: Trace,
    /// The first call that the workload tests: after a death, the recovery.
    pub from: u32,
    /// The thread that took each step.
    order: Vec<usize>,
    spans: Vec<Span>,
    /// The contents that each unit may hold, the oldest first.
    units: Vec<Vec<Given>>,
}

impl BlockRun {
    /// Returns the schedule that was taken, step by step.
    pub fn taken(&self) -> Schedule {
        Schedule::Order(self.order.clone())
    }
}

/// The number of the request that fills a device before a run.
const FULL: usize = 1 << 20;

/// Makes a device with all blocks written.
fn full(kind: Kind) -> Result<CrashImage, String> {
    let medium = kind.medium();
    if let Some(geometry) = kind.geometry() {
        pmbd::atomic::format(&medium, &geometry);
    }
    let device = kind.open(&medium)?;
    serve(kind, &*device, FULL, BlockRequest::Write { first: 0, n: BLOCKS, now: true })?;
    device.barrier().map_err(|e| e.to_string())?;
    drop(device);
    Ok(medium)
}

/// A call on a device.
#[derive(Clone, Debug)]
enum Call {
    Request(BlockRequest),
    /// The device was opened after a death, and held this content.
    Recovered(Vec<u64>),
}

/// All calls, by number.
type Calls = Mutex<Vec<Call>>;

fn note(calls: &Calls, call: Call) -> usize {
    let mut calls = calls.lock().expect("no program panics here");
    calls.push(call);
    calls.len() - 1
}

/// Runs the requests of one program and records them.
fn ask(
    kind: Kind,
    device: &dyn BlockDevice,
    recorder: &Recorder<CrashImage>,
    calls: &Calls,
    requests: &[BlockRequest],
) -> Result<(), String> {
    for request in requests {
        let op = note(calls, Call::Request(*request));
        recorder.begin(op as u32);
        serve(kind, device, op, *request)?;
        recorder.end(op as u32);
    }
    Ok(())
}

fn is_step(event: &Event) -> bool {
    matches!(event.action, Action::Store { .. } | Action::Flush { .. } | Action::Fence)
}

/// Counts the stores, flushes and fences of these requests.
pub(super) fn steps(kind: Kind, requests: &[BlockRequest]) -> Result<usize, String> {
    let run = record(&BlockWorkload::of(kind, requests.to_vec()))?;
    Ok(run.trace.events.iter().filter(|e| is_step(e)).count())
}

/// Records a victim's requests on a device of its own that holds `initial`. Then repeats its steps
/// up to its death on `recorder`, in another thread, and marks the end of that thread.
fn die(
    recorder: &Recorder<CrashImage>,
    calls: &Calls,
    kind: Kind,
    initial: &[u8],
    victim: &Victim,
) -> Result<(), String> {
    let lived = BlockWorkload::of(kind, victim.requests.clone());
    let (lived, _) = record_under(&lived, initial, Policy::in_turn(1))?;
    let mut left = victim.steps;
    std::thread::scope(|s| {
        s.spawn(|| {
            for event in &lived.trace.events {
                match event.action {
                    _ if left == 0 && !matches!(event.action, Action::End { .. }) => break,
                    Action::Begin { op } => {
                        note(calls, Call::Request(victim.requests[op as usize]));
                        recorder.begin(op);
                    }
                    // The request may have been confirmed before the death.
                    Action::End { op } => recorder.end(op),
                    _ if is_step(event) => {
                        left -= 1;
                        deaths::do_again(recorder, &lived.trace, std::slice::from_ref(event));
                    }
                    _ => {}
                }
            }
            recorder.drain();
        });
    });
    Ok(())
}

/// Runs a workload on a full device and records it.
pub fn record(workload: &BlockWorkload) -> Result<BlockRun, String> {
    let initial = full(workload.kind)?.bytes();
    let threads = workload.programs.len();
    let in_turn = || record_under(workload, &initial, Policy::in_turn(threads));
    if threads < 2 {
        return Ok(in_turn()?.0);
    }
    let policy = workload.schedule.policy(threads, || Ok(in_turn()?.1.steps))?;
    let (run, taken) = record_under(workload, &initial, policy)?;
    Ok(BlockRun { order: taken.order, ..run })
}

/// Runs a workload on a device that holds `initial`, threads by `policy`, and records it. A victim
/// dies first, and the device is opened again. Returns the run without its order, and the schedule
/// that was taken.
///
/// # Errors
/// A request fails, the content read back is wrong, a store bypasses the recorder, or the device is
/// not fit for use afterwards.
fn record_under(
    workload: &BlockWorkload,
    initial: &[u8],
    policy: Policy,
) -> Result<(BlockRun, Interleaving), String> {
    let (kind, threads) = (workload.kind, workload.programs.len());
    let recorder = Arc::new(Recorder::new(CrashImage::of(initial.to_vec())));
    let calls = Calls::default();
    let mut taken = Interleaving::default();
    let mut from = 0;
    let device = match &workload.victim {
        None => kind.open_buffered(Sited(recorder.clone()))?,
        Some(victim) => {
            die(&recorder, &calls, kind, initial, victim)?;
            let op = note(&calls, Call::Recovered(Vec::new()));
            recorder.begin(op as u32);
            let device = kind.open_buffered(Sited(recorder.clone()))?;
            recorder.end(op as u32);
            calls.lock().expect("no program panics here")[op] = Call::Recovered(content(&*device)?);
            from = op as u32;
            device
        }
    };
    if let [requests] = &workload.programs[..] {
        ask(kind, &*device, &recorder, &calls, requests)?;
        read_back(kind, &*device, &calls)?;
    } else {
        let failed = Mutex::new(Ok(()));
        let run = |requests: &Vec<BlockRequest>| {
            schedule::step();
            if let Err(what) = ask(kind, &*device, &recorder, &calls, requests) {
                *failed.lock().expect("no program panics here") = Err(what);
            }
        };
        let run = &run;
        let programs = workload.programs.iter().map(|requests| move || run(requests)).collect();
        taken = schedule::run(programs, policy, &workload.to_string());
        failed.into_inner().map_err(|_| "a program panicked")??;
        use_it_afterwards(kind, &*device, &workload.to_string())?;
    }
    drop(device);
    if let Some(at) = recorder.unrecorded() {
        return Err(format!("a store near byte {at} bypassed the recorder"));
    }
    let calls = calls.into_inner().map_err(|_| "a program panicked")?;
    let mut trace = Arc::into_inner(recorder).ok_or("somebody keeps the device")?.into_trace();
    if threads > 1 {
        // Cuts off what the device did after the last request.
        let last = trace.events.iter().rposition(|e| matches!(e.action, Action::End { .. }));
        trace.events.truncate(last.map_or(0, |last| last + 1));
    }
    let spans = spans(kind, &calls, &trace);
    let mut units = units(kind, &calls, threads > 1);
    if threads > 1 {
        let is_before = |one: usize, other: usize| spans[one].events.1 <= spans[other].events.0;
        units.iter_mut().zip((0..).step_by(8 * kind.unit_words())).for_each(|(unit, first)| {
            add_orders(kind, unit, first, &calls, &is_before);
        });
    }
    let initial = initial.to_vec();
    Ok((BlockRun { kind, initial, trace, from, order: Vec::new(), spans, units }, taken))
}

/// Uses a device after concurrent requests. A scheduler runs this, too, and reports if a call waits
/// for ever.
fn use_it_afterwards(kind: Kind, device: &dyn BlockDevice, name: &str) -> Result<(), String> {
    let mut fit = Ok(());
    let program = || fit = fit_for_use(kind, device);
    schedule::run(
        vec![program],
        Policy::in_turn(1),
        &format!("{name}, and the device used afterwards"),
    );
    fit
}

/// Checks without a crash that each unit holds the content of the last request.
fn read_back(kind: Kind, device: &dyn BlockDevice, calls: &Calls) -> Result<(), String> {
    let found = content(device)?;
    let units = units(kind, &calls.lock().expect("no program panics here"), false);
    let found = found.chunks_exact(kind.unit_words());
    // Units that no call changed are not compared.
    let last = |unit: &[Given]| unit.last().cloned().filter(|given| given.call.is_some());
    match units
        .iter()
        .zip(found)
        .position(|(unit, found)| last(unit).is_some_and(|given| given.content != found))
    {
        Some(n) => Err(format!("{kind}: unit {n} is not what was asked last")),
        None => Ok(()),
    }
}

/// Computes when each call happened, and when it is durable.
fn spans(kind: Kind, calls: &[Call], trace: &Trace) -> Vec<Span> {
    let never = Span {
        events: (usize::MAX, usize::MAX),
        begun: u32::MAX,
        returned: u32::MAX,
        sure: u32::MAX,
    };
    let mut spans = vec![never; calls.len()];
    let (mut begun, mut returned) = (0, 0);
    for (at, event) in trace.events.iter().enumerate() {
        match event.action {
            Action::Begin { op } => {
                let span = &mut spans[op as usize];
                (span.events.0, span.begun) = (at, begun);
                begun += 1;
                if let Call::Recovered(_) = calls[op as usize] {
                    // The requests of the dead process have no effect any more.
                    spans[..op as usize].iter_mut().for_each(|s| s.events.1 = s.events.1.min(at));
                }
            }
            Action::End { op } => {
                returned += 1;
                let span = &mut spans[op as usize];
                (span.events.1, span.returned) = (at, returned);
            }
            _ => {}
        }
    }
    for op in 0..calls.len() {
        let at_once = match calls[op] {
            Call::Request(
                BlockRequest::Write { now, .. }
                | BlockRequest::Zero { now, .. }
                | BlockRequest::Part { now, .. },
            ) => now || kind.durable_on_return(),
            Call::Request(BlockRequest::Discard { .. } | BlockRequest::Barrier) => {
                kind.durable_on_return()
            }
            Call::Recovered(_) => kind.geometry().is_some(),
        };
        let covered = |b: &usize| {
            matches!(calls[*b], Call::Request(BlockRequest::Barrier))
                && spans[*b].events.0 >= spans[op].events.1
        };
        let barrier = (0..calls.len()).filter(covered).map(|b| spans[b].returned).min();
        // No promise covers unconfirmed stores that a killed process left in a cache.
        let by_barrier = barrier
            .filter(|_| !matches!(calls[op], Call::Recovered(_)) || !kind.durable_on_return());
        spans[op].sure = if at_once { spans[op].returned } else { by_barrier.unwrap_or(u32::MAX) };
    }
    spans
}

/// Computes the contents that calls give to each unit. If programs run at once, [`add_orders`]
/// handles parts.
fn units(kind: Kind, calls: &[Call], at_once: bool) -> Vec<Vec<Given>> {
    let size = kind.unit_words();
    let firsts = (0..kind.words(BLOCKS)).step_by(size);
    firsts
        .map(|first| {
            let words = first..first + size;
            let of = |op: usize| words.clone().map(|at| word(op, at)).collect();
            let block = (first / kind.words(1)) as u64;
            let mut unit = vec![Given { call: None, content: of(FULL), over: None }];
            for (op, call) in calls.iter().enumerate() {
                let (range, content) = match *call {
                    Call::Recovered(ref found) => (0..BLOCKS, found[words.clone()].to_vec()),
                    Call::Request(BlockRequest::Part { .. }) if at_once => continue,
                    Call::Request(BlockRequest::Part { at, n, zero, .. }) => {
                        let bytes = 8 * first as u64..8 * (first + size) as u64;
                        if at.max(bytes.start) < (at + n).min(bytes.end) {
                            // Before a barrier, caches and buffers keep no order, so this part may
                            // come first.
                            let oldest = if kind.durable_on_return() { unit.len() - 1 } else { 0 };
                            for over in oldest..unit.len() {
                                let content = unit[over].content.clone();
                                let content = with_part(content, bytes.start, at..at + n, |at| {
                                    if zero { 0 } else { byte(op, at) }
                                });
                                unit.push(Given { call: Some(op), content, over: Some(over) });
                            }
                        }
                        continue;
                    }
                    Call::Request(BlockRequest::Write { first, n, .. }) => {
                        (first..first + n, of(op))
                    }
                    Call::Request(BlockRequest::Zero { first, n, .. }) => {
                        (first..first + n, vec![0; size])
                    }
                    // The raw device ignores discards, as the contract permits.
                    Call::Request(BlockRequest::Discard { first, n })
                        if kind.geometry().is_some() =>
                    {
                        (first..first + n, vec![0; size])
                    }
                    Call::Request(BlockRequest::Discard { .. } | BlockRequest::Barrier) => continue,
                };
                if range.contains(&block) {
                    unit.push(Given { call: Some(op), content, over: None });
                }
            }
            unit
        })
        .collect()
}

/// Adds the contents that concurrent writes of parts can give to a unit that begins at byte
/// `first`. These are all orders of the parts, except those in which a part follows a call that
/// began after the part had returned.
fn add_orders(
    kind: Kind,
    unit: &mut Vec<Given>,
    first: u64,
    calls: &[Call],
    is_before: &dyn Fn(usize, usize) -> bool,
) {
    let end = first + 8 * kind.unit_words() as u64;
    let mut over = 0;
    while over < unit.len() {
        let below = std::iter::successors(Some(&unit[over]), |g| g.over.map(|over| &unit[over]));
        let below: Vec<usize> = below.filter_map(|given| given.call).collect();
        for (op, call) in calls.iter().enumerate() {
            let Call::Request(BlockRequest::Part { at, n, zero, .. }) = *call else { continue };
            let is_in_it = at.max(first) < (at + n).min(end);
            if !is_in_it || below.iter().any(|other| *other == op || is_before(op, *other)) {
                continue;
            }
            let content = with_part(unit[over].content.clone(), first, at..at + n, |at| {
                if zero { 0 } else { byte(op, at) }
            });
            unit.push(Given { call: Some(op), content, over: Some(over) });
        }
        over += 1;
    }
}

/// Returns a unit that begins at byte `first`, with the bytes of a part replaced.
fn with_part(
    unit: Vec<u64>,
    first: u64,
    part: std::ops::Range<u64>,
    byte: impl Fn(u64) -> u8,
) -> Vec<u64> {
    let words = unit.into_iter().zip((first..).step_by(8));
    let with = |(word, at): (u64, u64)| {
        let mut bytes = word.to_le_bytes();
        for (old, at) in bytes.iter_mut().zip(at..).filter(|(_, at)| part.contains(at)) {
            *old = byte(at);
        }
        u64::from_le_bytes(bytes)
    };
    words.map(with).collect()
}

/// Formats a device with `blocks` atomic blocks over a full one of [`BLOCKS`] blocks, and records
/// that.
pub fn record_format(kind: Kind, blocks: u64) -> Result<BlockRun, String> {
    let geometry = Geometry::of(ATOMIC_BLOCK, blocks).ok_or("no device has so many blocks")?;
    let medium = full(kind)?;
    let initial = medium.bytes();
    let recorder = Recorder::new(medium);
    pmbd::atomic::format(&recorder, &geometry);
    let trace = recorder.into_trace();
    Ok(BlockRun {
        kind,
        initial,
        trace,
        from: 0,
        order: Vec::new(),
        spans: Vec::new(),
        units: Vec::new(),
    })
}

/// Records a formatting as [`record_format`] does, by a process that is killed after all stores and
/// before the last flush. Then another process opens the device.
pub fn record_killed_format(kind: Kind, blocks: u64) -> Result<BlockRun, String> {
    let run = record_format(kind, blocks)?;
    let is_flush = |event: &Event| matches!(event.action, Action::Flush { .. });
    let lived = run.trace.events.iter().rposition(is_flush).ok_or("nothing is flushed")?;
    let recorder = Arc::new(Recorder::new(CrashImage::of(run.initial.clone())));
    std::thread::scope(|s| {
        s.spawn(|| {
            deaths::do_again(&*recorder, &run.trace, &run.trace.events[..lived]);
            recorder.drain();
        });
    });
    drop(kind.open(Sited(recorder.clone()))?);
    let trace = Arc::into_inner(recorder).ok_or("somebody keeps the device")?.into_trace();
    Ok(BlockRun { trace, ..run })
}

/// Explores the crashes of a recorded formatting with `blocks` blocks; `trace` is a variant of the
/// trace of `run`. The old device must be there, or no device, or the new one with all zeros. After
/// formatting has returned, it must be the new one. Returns the violations.
pub fn explore_format(
    run: &BlockRun,
    trace: &Trace,
    blocks: u64,
    semantics: Semantics,
) -> Vec<String> {
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

/// Reads the content of a device as words.
fn content(device: &dyn BlockDevice) -> Result<Vec<u64>, String> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(0, &mut bytes).map_err(|e| e.to_string())?;
    let word = |w: &[u8]| u64::from_le_bytes(w.try_into().expect("8 bytes"));
    Ok(bytes.chunks_exact(8).map(word).collect())
}

/// Explores the crashes of a run; `trace` is a variant of its trace. Returns the violations.
pub fn explore(
    run: &BlockRun,
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

/// Checks that all blocks can be written twice and read again: no space is lost or shared.
fn fit_for_use(kind: Kind, device: &dyn BlockDevice) -> Result<(), String> {
    for op in [1 << 21, 1 << 22] {
        serve(kind, device, op, BlockRequest::Write { first: 0, n: BLOCKS, now: true })?;
    }
    let found = content(device)?;
    match found.iter().enumerate().all(|(at, w)| *w == word(1 << 22, at)) {
        true => Ok(()),
        false => Err("afterwards a write is not what is read".into()),
    }
}

/// Returns the first unit whose content it may not have: content that no call gave to it, or that a
/// durable call has replaced.
fn judge(run: &BlockRun, now: Moment, found: &[u64]) -> Option<String> {
    let span = |given: &Given| given.call.map_or(START, |call| run.spans[call]);
    let found = found.chunks_exact(run.kind.unit_words());
    run.units.iter().zip(found).enumerate().find_map(|(n, (unit, found))| {
        let sure = |given: &&Given| span(given).sure <= now.returned;
        let is_over = |given: &Given, by: &Given| {
            given.call.is_none() || span(given).events.1 <= span(by).events.0
        };
        let may = unit.iter().filter(|given| given.content == found).any(|given| {
            let begun = given.call.is_none() || span(given).begun < now.begun;
            // If the unit contains rests of other contents, no durable call outside of these may
            // have replaced any of them.
            let parts = || std::iter::successors(Some(given), |g| g.over.map(|over| &unit[over]));
            let mut others = unit.iter().filter(sure).filter(|by| by.call.is_some());
            begun
                && !others
                    .any(|by| parts().all(|g| g.call != by.call) && parts().any(|g| is_over(g, by)))
        });
        (!may).then(|| {
            format!(
                "{}: unit {n} holds {:#x}…, with {} requests returned of {} begun",
                run.kind, found[0], now.returned, now.begun
            )
        })
    })
}
