//! The knowledge of all servers that is kept from one table to the next.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::ask::Answer;
use super::sample::{
    Counters, Gauges, OPERATIONS, READ_BYTES, Rates, RowKind, Sample, WRITTEN_BYTES,
};
use super::source::{Source, Target};
use crate::bdev::control::BdevServer;

/// Whether a server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowState {
    /// The server answers.
    Answers,
    /// The server has not answered in time: it is stopped, or waits for something that does not
    /// answer.
    NoAnswer,
    /// The server has ended without unmounting.
    Died,
    /// The query failed, for this reason.
    Failed(String),
}

/// A row of a table: one service.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The mount point, the device, the export or the process.
    pub name: String,
    /// The pool, if it is known.
    pub pool: String,
    /// The kind of service, as far as it is known.
    pub kind: RowKind,
    /// Whether its server answers.
    pub state: RowState,
    /// The last sample.
    pub sample: Option<Sample>,
    /// The rates since the sample before that.
    pub per_s: Option<Rates>,
}

impl Row {
    /// Returns the last sample, if the server answers.
    pub fn current(&self) -> Option<&Sample> {
        self.sample.as_ref().filter(|_| self.state == RowState::Answers)
    }

    /// Returns the key by which the most active rows are sorted first: requests, then bytes.
    fn activity(&self, totals: bool) -> (bool, f64, f64) {
        let Some(sample) = self.current() else { return (false, 0.0, 0.0) };
        let of = |name| match (&self.per_s, totals) {
            (_, true) => sample.counters[name] as f64,
            (Some(rates), _) => rates[name],
            (None, _) => 0.0,
        };
        (true, of(OPERATIONS), of(READ_BYTES) + of(WRITTEN_BYTES))
    }
}

/// A table, as shown at one moment.
#[derive(Clone, Debug, Default)]
pub struct TopTable {
    /// Whether it shows totals since each server started, rather than rates per second.
    pub totals: bool,
    /// Rows, the most active first; servers that do not answer last.
    pub rows: Vec<Row>,
    /// Servers that this user may not ask.
    pub forbidden: usize,
}

impl TopTable {
    /// Formats the table as one line of JSON.
    pub fn to_json(&self) -> Result<String> {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(serde_json::to_string(&Report {
            time_ms: u64::try_from(time.as_millis())?,
            servers: self.rows.iter().map(Served::of).collect(),
            no_answer: self.silent(),
            forbidden: self.forbidden,
        })?)
    }

    /// Returns the number of rows whose server does not answer.
    pub fn silent(&self) -> usize {
        self.rows.iter().filter(|row| row.state == RowState::NoAnswer).count()
    }
}

#[derive(Serialize)]
struct Report<'a> {
    time_ms: u64,
    servers: Vec<Served<'a>>,
    no_answer: usize,
    forbidden: usize,
}

#[derive(Serialize)]
struct Served<'a> {
    kind: RowKind,
    name: &'a str,
    pool: &'a str,
    pid: Option<u64>,
    state: &'a RowState,
    uptime_s: Option<u64>,
    totals: Option<&'a Counters>,
    per_s: Option<&'a Rates>,
    /// Times of requests since the last table; in the first, since the server started.
    latency_ns: Option<Percentiles>,
    gauges: Option<&'a Gauges>,
}

/// Percentiles of the times of requests, at most an eighth too large.
#[derive(Serialize)]
struct Percentiles {
    p50: u64,
    p99: u64,
    p999: u64,
}

impl Percentiles {
    fn of(sample: &Sample) -> Option<Self> {
        let of = |share| sample.recent.as_ref().unwrap_or(&sample.latencies).percentile(share);
        Some(Self { p50: of(0.5)?, p99: of(0.99)?, p999: of(0.999)? })
    }
}

impl<'a> Served<'a> {
    fn of(row: &'a Row) -> Self {
        let current = row.current();
        Self {
            kind: row.kind,
            name: &row.name,
            pool: &row.pool,
            pid: row.sample.as_ref().and_then(|sample| sample.pid),
            state: &row.state,
            uptime_s: current.map(|sample| sample.uptime_s),
            totals: current.map(|sample| &sample.counters),
            per_s: current.and(row.per_s.as_ref()),
            latency_ns: current.and_then(Percentiles::of),
            gauges: current.map(|sample| &sample.gauges),
        }
    }
}

/// The knowledge of a server.
#[derive(Default)]
struct Known {
    /// Whether a query to it is in progress.
    asked: bool,
    last: Option<Last>,
    /// Its requested services, by stable names, with their last samples and rates.
    served: BTreeMap<String, (Sample, Option<Rates>)>,
    /// Indices of the targets that its answers match.
    targets: BTreeSet<usize>,
}

/// The last result of a query.
enum Last {
    State(RowState),
    Forbidden,
    Gone,
}

/// All servers.
#[derive(Default)]
pub struct View {
    targets: Vec<Target>,
    /// Whether to ask only servers that a target means. True if each target matched a server before
    /// any server had answered.
    targets_only: bool,
    known: BTreeMap<Source, Known>,
    tables: u64,
}

impl View {
    /// Creates a view of these targets; of all servers if there are none.
    pub fn new(targets: Vec<Target>) -> Self {
        Self { targets, ..Self::default() }
    }

    /// Updates the set of servers. Returns those to ask now.
    pub fn found(&mut self, sources: BTreeSet<Source>) -> Vec<Source> {
        let is_target = |source: &&Source| self.targets.iter().any(|t| t.is_source(source));
        self.known.retain(|source, _| sources.contains(source));
        if self.tables == 0 && !self.targets.is_empty() {
            let is_found = |target: &Target| sources.iter().any(|source| target.is_source(source));
            self.targets_only = self.targets.iter().all(is_found);
        }
        let mut asked = Vec::new();
        for source in sources.iter().filter(|source| !self.targets_only || is_target(source)) {
            let known = self.known.entry(source.clone()).or_default();
            if !std::mem::replace(&mut known.asked, true) {
                asked.push(source.clone());
            }
        }
        asked
    }

    /// Returns whether an answer is expected soon: not from a server that did not answer the last
    /// time.
    pub fn is_awaited(&self, source: &Source) -> bool {
        let last = self.known.get(source).and_then(|known| known.last.as_ref());
        !matches!(last, Some(Last::State(RowState::NoAnswer)))
    }

    /// Records an answer.
    pub fn heard(&mut self, source: &Source, at: Instant, answer: Answer) {
        // Ignores the answer of a server that is gone meanwhile.
        let Some(known) = self.known.get_mut(source) else { return };
        known.asked = false;
        let state = |state| (Last::State(state), None);
        let (last, samples) = match answer {
            Answer::Mount(stats, processes) => {
                let samples = of_mount(&self.targets, source, at, &stats, processes);
                (Last::State(RowState::Answers), Some(samples))
            }
            Answer::Devices(server) => {
                (Last::State(RowState::Answers), Some(of_devices(&self.targets, at, &server)))
            }
            Answer::Forbidden => (Last::Forbidden, None),
            Answer::Gone => (Last::Gone, None),
            Answer::Died => state(RowState::Died),
            Answer::Silent => state(RowState::NoAnswer),
            Answer::Failed(why) => state(RowState::Failed(why)),
        };
        known.last = Some(last);
        let Some(samples) = samples else { return };
        let mut before = std::mem::take(&mut known.served);
        for Named { key, mut sample, targets } in samples {
            known.targets.extend(&targets);
            if self.targets.is_empty() || !targets.is_empty() {
                let earlier = before.remove(&key).map(|(earlier, _)| earlier);
                let rates = earlier.as_ref().and_then(|earlier| sample.since(earlier));
                earlier.iter().for_each(|earlier| sample.follow(earlier));
                known.served.insert(key, (sample, rates));
            }
        }
    }

    /// Returns the current table. A server with a query in progress counts as not answering.
    pub fn table(&mut self) -> TopTable {
        let mut table = TopTable { totals: self.tables == 0, ..TopTable::default() };
        self.tables += 1;
        for (source, known) in &self.known {
            let is_meant = self.targets.is_empty()
                || !known.targets.is_empty()
                || self.targets.iter().any(|target| target.is_source(source));
            let state = match &known.last {
                _ if !is_meant => continue,
                _ if known.asked => RowState::NoAnswer,
                Some(Last::Forbidden) => {
                    table.forbidden += 1;
                    continue;
                }
                Some(Last::State(state)) => state.clone(),
                Some(Last::Gone) | None => continue,
            };
            if known.served.is_empty() && state != RowState::Answers {
                table.rows.push(Row::unknown(source, state.clone()));
            }
            let row = |(sample, per_s): &(Sample, Option<Rates>)| Row {
                name: sample.name.clone(),
                pool: sample.pool.clone(),
                kind: sample.kind,
                state: state.clone(),
                sample: Some(sample.clone()),
                per_s: per_s.clone(),
            };
            table.rows.extend(known.served.values().map(row));
        }
        let totals = table.totals;
        table.rows.sort_by(|a, b| {
            let more = b.activity(totals).partial_cmp(&a.activity(totals));
            more.unwrap_or(Ordering::Equal).then_with(|| (a.kind, &a.name).cmp(&(b.kind, &b.name)))
        });
        table
    }

    /// Fails if a target matches no service.
    pub fn require_targets(&self) -> Result<()> {
        for (index, target) in self.targets.iter().enumerate() {
            let name = &target.name;
            let mut called = self.known.iter().filter(|(source, known)| {
                known.targets.contains(&index) || target.is_source(source)
            });
            match called.next() {
                Some((_, Known { asked: false, last: Some(Last::Forbidden), .. })) => {
                    bail!("{name}: another user's; its server only answers that user and root")
                }
                Some(_) => {}
                None => bail!(
                    "{name}: nothing is served under this name{}; `keepstone top --count 1` shows everything",
                    match self.known.values().filter(|known| known.asked).count() {
                        0 => String::new(),
                        1 => ", but one server does not answer".to_owned(),
                        silent => format!(", but {silent} servers do not answer"),
                    }
                ),
            }
        }
        Ok(())
    }
}

impl Row {
    /// Makes a row for a server that has never answered.
    fn unknown(source: &Source, state: RowState) -> Self {
        let (kind, name, pool) = match source {
            Source::Mount { dir, pool } => {
                (RowKind::Mount, dir.display().to_string(), pool.display().to_string())
            }
            Source::Socket(path) => {
                let pid = source.pid().map(|pid| format!("pid {pid}"));
                (RowKind::Device, pid.unwrap_or_else(|| path.display().to_string()), String::new())
            }
        };
        Self { name, pool, kind, state, sample: None, per_s: None }
    }
}

/// A sample with its key in its server, and the targets that it matches.
struct Named {
    key: String,
    sample: Sample,
    targets: BTreeSet<usize>,
}

/// Returns the indices of the matching targets.
fn meant(targets: &[Target], is_meant: impl Fn(&Target) -> bool) -> BTreeSet<usize> {
    let all = targets.iter().enumerate();
    all.filter(|(_, target)| is_meant(target)).map(|(index, _)| index).collect()
}

fn of_mount(
    targets: &[Target],
    source: &Source,
    at: Instant,
    stats: &Value,
    processes: Option<usize>,
) -> Vec<Named> {
    let sample = Sample::of_mount(at, stats, processes);
    // For a cache, the cached directory.
    let below = stats["dir"].as_str().map(Path::new);
    let targets = meant(targets, |target| {
        target.is_source(source)
            || target.is_pid(sample.pid)
            || below.is_some_and(|dir| target.is_path(dir))
    });
    vec![Named { key: String::new(), sample, targets }]
}

fn of_devices(targets: &[Target], at: Instant, server: &BdevServer) -> Vec<Named> {
    let named = |export: &Value| {
        let targets = meant(targets, |target| target.is_export(server, export));
        Named {
            key: export["name"].as_str().unwrap_or_default().to_owned(),
            sample: Sample::of_device(at, &server.status, export),
            targets,
        }
    };
    server.exports().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn source(dir: &str) -> Source {
        Source::Mount { dir: dir.into(), pool: format!("/pool{dir}").into() }
    }

    fn stats(dir: &str, reads: u64) -> Answer {
        let stats = json!({ "pool": format!("/pool{dir}"), "dir": dir, "pid": 1, "requests": { "read": reads } });
        Answer::Mount(stats, None)
    }

    fn names(table: &TopTable) -> Vec<&str> {
        table.rows.iter().map(|row| &*row.name).collect()
    }

    #[test]
    fn who_is_silent_is_not_asked_again_and_others_go_on() {
        let mut view = View::default();
        let start = Instant::now();
        let both = BTreeSet::from([source("/a"), source("/b")]);
        assert_eq!(view.found(both.clone()).len(), 2);
        view.heard(&source("/b"), start, stats("/b", 5));
        let first = view.table();
        assert!(first.totals);
        assert_eq!((names(&first), first.silent()), (vec!["/b", "/a"], 1));
        assert_eq!(first.rows[0].per_s, None);
        for second in 1..3 {
            assert_eq!(view.found(both.clone()), [source("/b")]);
            view.heard(
                &source("/b"),
                start + Duration::from_secs(second),
                stats("/b", 5 + 11 * second),
            );
            let table = view.table();
            assert_eq!((table.totals, table.silent()), (false, 1));
            assert_eq!(table.rows[0].per_s.as_ref().unwrap()[OPERATIONS], 10.0);
        }
        // It did not answer, so the table does not wait for the next query; then it answers after
        // all.
        view.heard(&source("/a"), start, Answer::Silent);
        assert!(!view.is_awaited(&source("/a")) && view.is_awaited(&source("/b")));
        view.heard(&source("/a"), start, stats("/a", 1));
        assert_eq!(view.table().silent(), 0);
        assert_eq!(view.found(both).len(), 2);
    }

    #[test]
    fn servers_come_and_go() {
        let mut view = View::default();
        let now = Instant::now();
        view.found(BTreeSet::from([source("/a")]));
        view.heard(&source("/a"), now, stats("/a", 1));
        assert_eq!(names(&view.table()), ["/a"]);
        view.found(BTreeSet::from([source("/b"), source("/c"), source("/d")]));
        view.heard(&source("/a"), now, stats("/a", 1));
        view.heard(&source("/b"), now, Answer::Gone);
        view.heard(&source("/c"), now, Answer::Died);
        view.heard(&source("/d"), now, Answer::Forbidden);
        let table = view.table();
        assert_eq!((names(&table), table.forbidden), (vec!["/c"], 1));
        assert_eq!(table.rows[0].state, RowState::Died);
        let json: Value = serde_json::from_str(&table.to_json().unwrap()).unwrap();
        assert_eq!((&json["servers"][0]["state"], &json["forbidden"]), (&json!("died"), &json!(1)));
        view.found(BTreeSet::new());
        assert!(names(&view.table()).is_empty());
    }

    #[test]
    fn only_targets_are_shown_and_each_has_to_be_there() {
        let target = |name: &str| Target::new(name).unwrap();
        let now = Instant::now();
        let mut view = View::new(vec![target("/a"), target("/pool/b")]);
        assert_eq!(view.found(["/a", "/b", "/c"].map(source).into()).len(), 2);
        for dir in ["/a", "/c"] {
            view.heard(&source(dir), now, stats(dir, 1));
        }
        assert_eq!(names(&view.table()), ["/a", "/b"]);
        view.require_targets().unwrap();
        view.heard(&source("/b"), now, Answer::Forbidden);
        assert!(view.require_targets().unwrap_err().to_string().contains("another user"));
        let mut view = View::new(vec![target("nothing")]);
        view.found(BTreeSet::from([source("/a")]));
        view.heard(&source("/a"), now, stats("/a", 1));
        assert!(
            view.require_targets().unwrap_err().to_string().contains("nothing: nothing is served")
        );
    }
}
