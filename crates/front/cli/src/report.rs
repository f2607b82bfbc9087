//! The report that `keepstone run --stats` and `--explain` print when the program has ended.

use std::collections::BTreeMap;

use counters::{Class, Counted, Counters, Latencies, ProgramSums, Reason};
use serde::Serialize;

use crate::program::Program;
use crate::{shown, size};

/// Calls of one class.
#[derive(Debug, Serialize)]
struct Calls {
    /// Calls answered in user space.
    served: u64,
    /// Bytes that these calls moved.
    served_bytes: u64,
    /// Calls on descriptors and paths of pools that the kernel made.
    by_kernel: u64,
    /// Bytes that those calls moved.
    by_kernel_bytes: u64,
    /// Time of the calls in user space, in nanoseconds; 0 without `--stats`.
    served_ns: u64,
    /// Percentiles of that time, at most an eighth too large.
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
}

/// Calls and bytes.
#[derive(Debug, Serialize)]
struct ReportTally {
    calls: u64,
    bytes: u64,
}

impl From<counters::Tally> for ReportTally {
    fn from(tally: counters::Tally) -> Self {
        Self { calls: tally.calls, bytes: tally.bytes }
    }
}

/// The counters of the processes of one program.
#[derive(Debug, Serialize)]
struct OfProgram {
    /// The name under which it was executed.
    program: String,
    /// Number of its processes that have used a pool.
    processes: u64,
    served: ReportTally,
    by_mount: ReportTally,
    served_percent: ServedPercent,
    /// Reasons why the rest was not served.
    reasons: BTreeMap<&'static str, ReportTally>,
}

impl From<ProgramSums> for OfProgram {
    fn from(ProgramSums { name, processes, counted }: ProgramSums) -> Self {
        let reasons = counted_reasons(&counted);
        Self {
            program: name,
            processes,
            served: counted.served().into(),
            by_mount: counted.by_kernel().into(),
            served_percent: served_percent(&counted),
            reasons: reasons.map(|(reason, tally)| (reason.name(), tally.into())).collect(),
        }
    }
}

/// A reason why calls went through the mount.
#[derive(Debug, Serialize)]
struct Why {
    calls: u64,
    bytes: u64,
    text: &'static str,
    remedy: &'static str,
}

/// A file that went through the mount.
#[derive(Debug, Serialize)]
struct ReportFile {
    path: String,
    reason: &'static str,
    text: &'static str,
    calls: u64,
    bytes: u64,
}

/// A program that loads no library.
#[derive(Debug, Serialize)]
struct Unserved {
    program: String,
    why: String,
}

/// The printed report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Exit status of CMD, as a shell counts it.
    status: u8,
    /// Counts by class, without classes that have no calls.
    calls: BTreeMap<&'static str, Calls>,
    /// Counts by program, those with most unserved calls first; without programs that have not used
    /// a pool.
    by_program: Vec<OfProgram>,
    /// Total served in user space.
    served: ReportTally,
    /// Total through the mounts, as far as programs with the library have counted it.
    by_mount: ReportTally,
    served_percent: ServedPercent,
    /// Reasons why the rest was not served.
    reasons: BTreeMap<&'static str, Why>,
    /// Programs that could not load the library.
    unserved_programs: u64,
    /// The names of those programs (`--explain`).
    programs: Vec<Unserved>,
    /// The files that went through the mounts (`--explain`).
    files: Vec<ReportFile>,
    /// Requests that reached the server of each mount meanwhile, by mount point and kind. They
    /// include requests of other programs.
    mounts: BTreeMap<String, BTreeMap<String, u64>>,
    /// Mounts among them that have their pool exclusively, so that only the server serves it.
    not_direct: Vec<String>,
    /// Mounts whose servers were not asked or did not answer, with the reason; requests to them are
    /// unknown.
    not_asked: BTreeMap<String, String>,
}

/// Statistics from the servers of mounts: [`Report::mounts`], [`Report::not_direct`],
/// [`Report::not_asked`].
type OfServers = (BTreeMap<String, BTreeMap<String, u64>>, Vec<String>, BTreeMap<String, String>);

/// Percentages of calls and of bytes that were served in user space; `None` without calls, or
/// without bytes.
type ServedPercent = Option<(f64, Option<f64>)>;

fn served_percent(counted: &Counted) -> ServedPercent {
    let (served, by_mount) = (counted.served(), counted.by_kernel());
    let percent = |part: u64, rest: u64| {
        (part + rest > 0).then(|| 100.0 * part as f64 / (part + rest) as f64)
    };
    let calls = percent(served.calls, by_mount.calls)?;
    Some((calls, percent(served.bytes, by_mount.bytes)))
}

impl Report {
    /// Creates a report from counters and from the statistics of servers.
    pub fn new(
        status: u8,
        counters: &Counters,
        (mounts, not_direct, not_asked): OfServers,
    ) -> Self {
        let sums = counters.sums();
        let (executed, files) =
            counters.files().into_iter().partition::<Vec<_>, _>(|f| f.reason == Reason::Executed);
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let program = |program: String| {
            let why = Program::find(program.as_ref())?.not_served()?;
            Some(Unserved { program, why })
        };
        let file = |file: counters::FileCalls| ReportFile {
            path: text(&file.path),
            reason: file.reason.name(),
            text: file.reason.text(),
            calls: file.calls,
            bytes: file.bytes,
        };
        Self {
            status,
            calls: calls(&sums.all, &counters.latencies()),
            by_program: sums.programs.into_iter().map(OfProgram::from).collect(),
            served: sums.all.served().into(),
            by_mount: sums.all.by_kernel().into(),
            served_percent: served_percent(&sums.all),
            reasons: reasons(&sums.all),
            unserved_programs: sums.unserved,
            programs: executed.iter().filter_map(|file| program(text(&file.path))).collect(),
            files: files.into_iter().map(file).collect(),
            mounts,
            not_direct,
            not_asked,
        }
    }

    /// Prints on stderr, because stdout belongs to CMD.
    pub fn print(&self, stats: bool, explain: bool) {
        if stats {
            self.print_calls();
            self.print_programs();
        }
        match self.served_percent {
            Some((calls, bytes)) => {
                let bytes = bytes.map(|percent| {
                    let all = size::show(self.served.bytes + self.by_mount.bytes);
                    format!(", {percent:.1} % of {all}")
                });
                tell!(
                    "served in user space: {calls:.1} % of {} calls{}",
                    self.served.calls + self.by_mount.calls,
                    bytes.unwrap_or_default()
                );
            }
            None => tell!("served in user space: no call was counted"),
        }
        for why in self.reasons.values() {
            let remedy =
                if why.remedy.is_empty() { String::new() } else { format!(": {}", why.remedy) };
            let bytes = size::show(why.bytes);
            tell!("through the mount: {} calls, {bytes}: {}{remedy}", why.calls, why.text);
        }
        if self.unserved_programs > 0 {
            tell!("programs that could not be served: {}", self.unserved_programs);
        }
        if explain {
            self.explain();
        }
        if stats {
            self.print_mounts();
        }
    }

    fn explain(&self) {
        for Unserved { program, why } in &self.programs {
            tell!("not served: {program}: {why}");
        }
        if !self.files.is_empty() {
            tell!("{:>10} {:>10}  through the mount", "calls", "bytes");
        }
        for ReportFile { path, text, calls, bytes, .. } in &self.files {
            let path = shown::name(path);
            tell!("{calls:10} {:>10}  {path}: {text}", size::show(*bytes));
        }
    }

    fn print_calls(&self) {
        tell!(
            "{:12} {:>14} {:>14} {:>14} {:>9} {:>9} {:>9} {:>9} {:>14} {:>14}",
            "calls",
            "in user space",
            "bytes",
            "ms",
            "us each",
            "p50",
            "p99",
            "p99.9",
            "by the kernel",
            "bytes"
        );
        for (class, calls) in &self.calls {
            let Calls { served, served_bytes, by_kernel, by_kernel_bytes, served_ns, .. } = *calls;
            let (ms, us) = (served_ns as f64 / 1e6, served_ns as f64 / 1e3 / served.max(1) as f64);
            let [p50, p99, p999] = [calls.p50_ns, calls.p99_ns, calls.p999_ns].map(|ns| {
                ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.3}", ns as f64 / 1e3))
            });
            tell!(
                "{class:12} {served:14} {served_bytes:14} {ms:14.3} {us:9.3} {p50:>9} {p99:>9} {p999:>9} {by_kernel:14} {by_kernel_bytes:14}"
            );
        }
    }

    fn print_programs(&self) {
        if self.by_program.is_empty() {
            return;
        }
        tell!(
            "{:20} {:>9} {:>14} {:>14} {:>14} {:>14} {:>7} {:>7}",
            "program",
            "processes",
            "in user space",
            "bytes",
            "by the kernel",
            "bytes",
            "% calls",
            "% bytes"
        );
        for OfProgram { program, processes, served, by_mount, served_percent, .. } in
            &self.by_program
        {
            let ((calls, bytes), served_bytes) = (served_percent.unwrap_or_default(), served.bytes);
            let bytes = bytes.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}"));
            let (served, by_mount, by_mount_bytes) = (served.calls, by_mount.calls, by_mount.bytes);
            let program = shown::name(program);
            tell!(
                "{program:20} {processes:9} {served:14} {served_bytes:14} {by_mount:14} {by_mount_bytes:14} {calls:7.1} {bytes:>7}"
            );
        }
    }

    fn print_mounts(&self) {
        for (dir, requests) in &self.mounts {
            let total: u64 = requests.values().sum();
            let why = if self.not_direct.contains(dir) { " (has the pool for itself)" } else { "" };
            tell!("requests to the server of {dir}{why}: {total}");
            for (kind, n) in requests {
                tell!("{kind:12} {n:14}");
            }
        }
        for (dir, why) in &self.not_asked {
            tell!("requests to the server of {dir} are not known: {why}");
        }
    }
}

fn calls(
    counted: &Counted,
    latencies: &[Latencies; Class::COUNT],
) -> BTreeMap<&'static str, Calls> {
    let named = Class::NAMES.into_iter().zip(&counted.classes).zip(latencies);
    let used = named.filter(|((_, calls), _)| **calls != counters::Calls::default());
    used.map(|((name, calls), latency)| {
        let calls = Calls {
            served: calls.served.calls,
            served_bytes: calls.served.bytes,
            by_kernel: calls.by_kernel.calls,
            by_kernel_bytes: calls.by_kernel.bytes,
            served_ns: calls.served_ns,
            p50_ns: latency.percentile(0.5),
            p99_ns: latency.percentile(0.99),
            p999_ns: latency.percentile(0.999),
        };
        (name, calls)
    })
    .collect()
}

/// Returns the reasons why calls went through the mounts, without reasons that do not occur.
fn counted_reasons(counted: &Counted) -> impl Iterator<Item = (Reason, counters::Tally)> {
    let named = Reason::ALL.into_iter().zip(counted.reasons);
    named.filter(|(_, tally)| tally.calls + tally.bytes > 0)
}

fn reasons(counted: &Counted) -> BTreeMap<&'static str, Why> {
    counted_reasons(counted)
        .map(|(reason, tally)| {
            let (text, remedy) = (reason.text(), reason.remedy());
            (reason.name(), Why { calls: tally.calls, bytes: tally.bytes, text, remedy })
        })
        .collect()
}
