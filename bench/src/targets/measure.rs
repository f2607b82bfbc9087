//! Interleaved rounds over all targets: each round starts with the next target, so that none has
//! always the same predecessor.

use super::Settings;
use super::cases::Case;
use super::place::Target;
use super::results::{CaseResult, Facts, Numbers, Row};
use super::spec::{Kind, Spec};
use super::worker::{Answer, Calls, Order};
use crate::rounds::{Clock, progress};
use crate::statistics::{Interval, Latency};
use anyhow::Result;

/// Rounds from one round that times single operations to the next: each takes as long as another.
const SAMPLE_EVERY: usize = 4;

/// A target with its name, and with what is known of it.
pub struct Entry {
    /// The facts of reports.
    pub facts: Facts,
    spec: Spec,
    target: Option<Target>,
}

impl Entry {
    /// Sets a target up. One that is broken stays, with its error.
    pub fn new(spec: &Spec, is_repeat: bool, settings: &Settings) -> Self {
        let set_up = Target::new(spec, settings);
        let error = set_up.as_ref().err().map(|err| format!("{err:#}"));
        let target = set_up.ok();
        let durability = target.as_ref().map(|target| target.durability().clone());
        let facts = Facts { name: spec.name.clone(), is_repeat, durability, error };
        Self { facts, spec: spec.clone(), target }
    }

    /// Returns whether the target can do the case.
    fn does(&self, case: Case) -> bool {
        let writes = case.changes() != super::cases::Changes::Nothing;
        match self.spec.kind {
            Kind::Device(_) => case.is_for_devices() && (self.spec.overwrite || !writes),
            _ => true,
        }
    }
}

/// The rounds of a case on one target.
struct Lane<'e> {
    facts: &'e Facts,
    target: &'e mut Target,
    /// The operations of a round.
    ops: u64,
    ns_per_op: Vec<f64>,
    cpu_ns: u64,
    /// The operations that were timed singly, and their times.
    sampled: u64,
    latency: Option<Latency>,
    /// The calls of the worker before and after the rounds.
    calls: (Calls, Calls),
    /// The requests to the server before the rounds; at the end, those of the rounds.
    requests: u64,
    error: Option<String>,
}

impl<'e> Lane<'e> {
    /// Lets the target prepare a case.
    fn begin(facts: &'e Facts, target: &'e mut Target, case: Case, settings: &Settings) -> Self {
        let order = Order::Begin { case: case.name(), slice_us: settings.slice_us() };
        let begun = target.ask(&order, settings).and_then(|answer| match answer {
            Answer::Begun { ops, calls } => Ok((ops, calls)),
            other => Err(other.unexpected()),
        });
        let ((ops, calls), error) = match begun {
            Ok(begun) => (begun, None),
            Err(err) => ((0, Calls::default()), Some(format!("{err:#}"))),
        };
        let requests = if error.is_none() { target.requests() } else { 0 };
        let calls = (calls, calls);
        Self {
            facts,
            target,
            ops,
            ns_per_op: Vec::new(),
            cpu_ns: 0,
            sampled: 0,
            latency: None,
            calls,
            requests,
            error,
        }
    }

    fn round(&mut self, settings: &Settings) {
        if self.error.is_some() {
            return;
        }
        let before = self.target.server_cpu_ns();
        match self.target.ask(&Order::Round, settings) {
            Ok(Answer::Took { ns, cpu_ns }) => {
                let cpu_ns = cpu_ns + self.target.server_cpu_ns().saturating_sub(before);
                let took = if settings.clock == Clock::Cpu { cpu_ns } else { ns };
                self.ns_per_op.push(took.max(1) as f64 / self.ops as f64);
                self.cpu_ns += cpu_ns;
            }
            answer => self.fail(answer),
        }
    }

    /// Times single operations.
    fn sample(&mut self, settings: &Settings) {
        if self.error.is_some() {
            return;
        }
        match self.target.ask(&Order::Sample, settings) {
            Ok(Answer::Sampled(ops)) => self.sampled += ops,
            answer => self.fail(answer),
        }
    }

    /// Gives the case up on this target.
    fn fail(&mut self, answer: Result<Answer>) {
        let err = answer.map_or_else(|err| err, Answer::unexpected);
        self.error = Some(format!("{err:#}"));
    }

    /// Lets the target end the case.
    fn end(&mut self, settings: &Settings) {
        if self.error.is_some() {
            return;
        }
        let requests = self.target.requests();
        match self.target.ask(&Order::End, settings) {
            Ok(Answer::Ended { calls, latency }) => {
                self.calls.1 = calls;
                self.latency = latency;
            }
            answer => self.fail(answer),
        }
        self.requests = requests.saturating_sub(self.requests);
    }

    /// Returns its row. `base` are the times of the baseline.
    fn row(&self, case: Case, base: Option<&[f64]>) -> Row {
        let durability = self.target.durability().class(case);
        let row = |numbers| Row {
            target: self.facts.name.clone(),
            durability,
            error: self.error.clone(),
            numbers,
        };
        let Some(ns) = Interval::of(&self.ns_per_op).filter(|_| self.error.is_none()) else {
            return row(None);
        };
        let ratios = |base: &[f64]| -> Vec<f64> {
            base.iter().zip(&self.ns_per_op).map(|(base, own)| base / own).collect()
        };
        let timed = (self.ops * self.ns_per_op.len() as u64).max(1);
        let (before, after) = self.calls;
        let of = |count: u64| count as f64 / (timed + self.sampled) as f64;
        row(Some(Numbers {
            ns,
            cpu_ns: self.cpu_ns as f64 / timed as f64,
            latency: self.latency,
            speed: base.and_then(|base| Interval::of(&ratios(base))),
            differs: false,
            in_process: of(after.in_process - before.in_process),
            by_kernel: of(after.by_kernel - before.by_kernel),
            requests: of(self.requests),
        }))
    }
}

/// Measures a case on all targets that can do it.
pub fn case(case: Case, entries: &mut [Entry], settings: &Settings) -> CaseResult {
    let steal = Steal::now();
    let mut lanes = Vec::new();
    for (number, entry) in entries.iter_mut().enumerate() {
        let does = entry.does(case);
        if let (Some(target), true) = (&mut entry.target, does) {
            lanes.push((number, Lane::begin(&entry.facts, target, case, settings)));
        }
    }
    let bar = progress(&case.name(), settings.rounds as u64);
    for round in 0..settings.rounds {
        for i in 0..lanes.len() {
            let turn = (round + i) % lanes.len();
            lanes[turn].1.round(settings);
        }
        if round % SAMPLE_EVERY == 0 {
            lanes.iter_mut().for_each(|(_, lane)| lane.sample(settings));
        }
        bar.inc(1);
        if settings.stop.is_set() {
            break;
        }
    }
    bar.finish_and_clear();
    lanes.iter_mut().for_each(|(_, lane)| lane.end(settings));
    let base = lanes.iter().find(|(number, lane)| *number == 0 && lane.error.is_none());
    let base = base.map(|(_, lane)| lane.ns_per_op.as_slice());
    let mut rows: Vec<Row> =
        lanes.iter().map(|(number, lane)| lane.row(case, base.filter(|_| *number > 0))).collect();
    mark_differences(&mut rows, entries);
    CaseResult {
        name: case.name(),
        what: case.what().to_owned(),
        bytes: case.bytes(),
        steal: steal.share_since(),
        rows,
    }
}

/// Marks the rows whose speed is another than that of the baseline, measured against itself.
fn mark_differences(rows: &mut [Row], entries: &[Entry]) {
    let again = entries.iter().find(|entry| entry.facts.is_repeat);
    let speed = |row: &Row| row.numbers.and_then(|numbers| numbers.speed);
    let noise = again
        .and_then(|again| rows.iter().find(|row| row.target == again.facts.name))
        .and_then(speed);
    for row in rows {
        let Some(numbers) = &mut row.numbers else { continue };
        numbers.differs = numbers.speed.is_some_and(|speed| {
            !speed.holds(1.0) && noise.is_none_or(|noise| speed.is_apart_from(&noise))
        });
    }
}

/// Ticks of the processors: those that the host gave to other machines, and all.
struct Steal {
    stolen: u64,
    all: u64,
}

impl Steal {
    fn now() -> Self {
        Self::of(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Reads the first line of `/proc/stat`. Time of guests is part of user time.
    fn of(stat: &str) -> Self {
        let words = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        Self { stolen: ticks.get(7).copied().unwrap_or(0), all: ticks.iter().sum() }
    }

    fn share_since(&self) -> f64 {
        let now = Self::now();
        let all = now.all.saturating_sub(self.all).max(1);
        now.stolen.saturating_sub(self.stolen) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let steal = Steal::of("cpu  10 20 30 40 50 60 70 80 5 5\ncpu0 1 2 3\n");
        assert_eq!((steal.stolen, steal.all), (80, 360));
        assert_eq!(Steal::of("").all, 0);
    }
}
