//! Results of `run` as text for the terminal and as Markdown.

use super::compare::Change;
use super::durability::Class;
use super::results::{CaseResult, Numbers, Report, Row};
use crate::machine::Origin;
use crate::statistics::Interval;
use crate::tables::Table;
use crate::text::time;

/// Explains the columns of tables.
pub const NOTE: &str = "Ratios are speeds as multiples of the first target's, above 1 faster: \
    medians over the rounds, with 95 % bootstrap intervals. The second row is the first target \
    again, so its ratio is the noise. `=` marks ratios that do not differ from it. Times are medians \
    over the rounds; p50, p99 and p99.9 are percentiles of operations that were timed singly, \
    between the rounds, and have some 40 ns for reading the clock.";

/// Prints the tables.
pub fn print(report: &Report) {
    say_part!("{}", text(report));
}

/// Formats the tables for the terminal.
fn text(report: &Report) -> String {
    let mut out = "Targets\n".to_owned();
    for (name, medium) in targets(report) {
        out += &format!("  {name}: {medium}\n");
    }
    for case in &report.cases {
        out += "\n";
        out += &self::case(case).text();
    }
    format!("{out}\n{NOTE}\n{}\n", Class::LEGEND)
}

/// Formats results as a Markdown document.
pub fn markdown(origin: &Origin, report: &Report) -> String {
    let mut out = format!("# Measurements by `keepstone bench`\n\n{}\n\n", head(origin, report));
    let mut table = Table::new("Targets", &["target", "medium and durability"]);
    targets(report).into_iter().for_each(|(name, medium)| table.add(vec![name, medium]));
    out += &table.markdown();
    report.cases.iter().for_each(|case| out += &self::case(case).markdown());
    format!("{out}{NOTE}\n\n{}\n", Class::LEGEND)
}

/// Describes the run in a paragraph.
pub fn head(origin: &Origin, report: &Report) -> String {
    let scale = &report.settings;
    let fact = |name: &str| {
        let found = origin.machine.iter().find(|(known, _)| known == name);
        found.map_or("unknown", |(_, value)| value)
    };
    let medium = match scale.dram_as_pm {
        true => " DRAM was flushed as if it were persistent memory (emulated).",
        false => "",
    };
    let clock = if scale.cpu_time { " Times are those of the processor." } else { "" };
    format!(
        "{} UTC, {}, {}, Linux {}, load {}. {} rounds of {} ms; a file of {} MiB, {} names.{medium}{clock} \
         Command: `{}`.",
        origin.date,
        fact("CPU"),
        fact("memory"),
        fact("kernel"),
        fact("load at the start"),
        scale.rounds,
        scale.slice_ms,
        scale.file_bytes >> 20,
        scale.names,
        origin.command
    )
}

/// Returns the names of targets, with their media or why they failed.
fn targets(report: &Report) -> Vec<(String, String)> {
    let targets = report.targets.iter().filter(|target| !target.is_repeat);
    let described = targets.map(|target| {
        let medium = target.durability.as_ref().map(|durability| durability.medium.clone());
        let failed = target.error.as_ref().map(|why| format!("failed: {why}"));
        (target.name.clone(), failed.or(medium).unwrap_or_default())
    });
    described.collect()
}

/// Makes the table of a case.
fn case(case: &CaseResult) -> Table {
    let title = format!("{}: {}{}", case.name, case.what, steal(case));
    let head = [
        "target",
        "time",
        "95 %",
        "p50",
        "p99",
        "p99.9",
        "CPU",
        "ratio",
        "95 %",
        "",
        "durability",
        "calls",
    ];
    let mut table = Table::new(title, &head);
    for row in &case.rows {
        let Some(numbers) = &row.numbers else {
            let why = row.error.clone().unwrap_or_default();
            let mut cells = vec![row.target.clone(), format!("failed: {why}")];
            cells.resize(head.len(), String::new());
            table.add(cells);
            continue;
        };
        table.add(cells(row, numbers));
    }
    table
}

/// Returns the share of stolen time if it is worth a word.
pub fn steal(case: &CaseResult) -> String {
    match case.steal {
        share if share >= 0.005 => {
            format!(" ({:.0} % of the time stolen by the host)", share * 100.0)
        }
        _ => String::new(),
    }
}

fn cells(row: &Row, numbers: &Numbers) -> Vec<String> {
    let speed = numbers.speed;
    let [p50, p99, p999] = percentiles(numbers);
    vec![
        row.target.clone(),
        time(numbers.ns.median),
        format!("{} – {}", time(numbers.ns.low), time(numbers.ns.high)),
        p50,
        p99,
        p999,
        time(numbers.cpu_ns),
        speed.map_or_else(String::new, |speed| format!("×{:.2}", speed.median)),
        speed.map_or_else(String::new, |speed| between(&speed)),
        mark(numbers).to_owned(),
        row.durability.word().to_owned(),
        calls(numbers),
    ]
}

/// Formats the percentiles of single operations: 50, 99 and 99.9.
pub fn percentiles(numbers: &Numbers) -> [String; 3] {
    match numbers.latency {
        Some(latency) => {
            [latency.p50_ns, latency.p99_ns, latency.p999_ns].map(|ns| time(ns as f64))
        }
        None => Default::default(),
    }
}

/// Formats the ends of the interval of a ratio.
pub fn between(speed: &Interval) -> String {
    format!("{:.2} – {:.2}", speed.low, speed.high)
}

/// Returns the mark of a ratio that does not differ from the noise.
pub fn mark(numbers: &Numbers) -> &'static str {
    if numbers.speed.is_some() && !numbers.differs { "=" } else { "" }
}

/// Formats the calls and requests of an operation.
pub fn calls(numbers: &Numbers) -> String {
    let counts = [
        (numbers.in_process, "in the program"),
        (numbers.by_kernel, "by the kernel"),
        (numbers.requests, "requests"),
    ];
    let counted = counts.iter().filter(|(count, _)| *count >= 0.005);
    counted.map(|(count, what)| format!("{count:.2} {what}")).collect::<Vec<_>>().join(", ")
}

/// Formats the comparison with an earlier run.
pub fn changes(changes: &[Change]) -> String {
    let worse = changes.iter().filter(|change| change.worse).count();
    let title = format!("Against the earlier run: {} ratios, {worse} worse", changes.len());
    let mut table = Table::new(title, &["case", "target", "then", "now", "95 %"]);
    for change in changes.iter().filter(|change| change.worse) {
        let now = change.now.map_or("failed".to_owned(), |now| format!("×{:.2}", now.median));
        let interval = change.now.map_or_else(String::new, |now| between(&now));
        let (case, target) = (change.case.clone(), change.target.clone());
        table.add(vec![case, target, format!("×{:.2}", change.then), now, interval]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::tests::report;

    #[test]
    fn each_number_has_its_durability_and_interval() {
        let text = text(&report(&[("disk", 1.0, 0.02), ("pool", 4.0, 0.1)]));
        assert!(text.contains("ext4 & <disk>") && text.contains("1 % of the time"), "{text}");
        let pool = text.lines().rfind(|line| line.starts_with("  pool")).unwrap();
        assert!(pool.contains("2.50 µs") && pool.contains("×4.00"), "{pool}");
        assert!(pool.contains("3.90 – 4.10") && pool.contains("durable"), "{pool}");
        assert!(pool.contains("7.00 µs") && pool.contains("90.00 µs"), "{pool}");
        assert!(pool.contains("2.00 in the program, 1.00 requests"), "{pool}");
        let again = text.lines().find(|line| line.contains("disk again")).unwrap();
        assert!(again.contains('='), "{again}");
    }

    #[test]
    fn failures_are_rows() {
        let mut report = report(&[("disk", 1.0, 0.02), ("pool", 4.0, 0.1)]);
        report.targets[2].error = Some("no such directory".to_owned());
        let row = &mut report.cases[0].rows[2];
        (row.numbers, row.error) = (None, Some("EIO".to_owned()));
        let text = text(&report);
        assert!(
            text.contains("failed: no such directory") && text.contains("failed: EIO"),
            "{text}"
        );
        assert_eq!(report.failed(), 2);
        let markdown = markdown(&Origin::here(true), &report);
        assert!(markdown.contains("| pool | failed: EIO |"), "{markdown}");
    }
}
