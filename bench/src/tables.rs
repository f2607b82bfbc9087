//! Results of `aging`, `iozone`, `scaling` and `misses` as tables, for the terminal and for
//! documents.

use crate::aging::Row as Aged;
use crate::engine::size;
use crate::iozone::{self, Workload};
use crate::misses::Report;
use crate::rounds::{Outcome, Spread, Timing};
use crate::scaling;
use crate::text::time;
use std::fmt::Write as _;

/// A table, each of whose rows begins with a name.
#[derive(Debug, Default, PartialEq)]
pub struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Adds a row.
    pub fn add(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Makes a table without rows.
    pub fn new(title: impl Into<String>, head: &[&str]) -> Self {
        let head = head.iter().map(|&cell| cell.to_owned()).collect();
        Self { title: title.into(), head, rows: Vec::new() }
    }

    /// Formats it for documents. A table without rows is its title.
    pub fn markdown(&self) -> String {
        if self.rows.is_empty() {
            return format!("{}.\n\n", self.title);
        }
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|---|{}\n", "---:|".repeat(self.head.len().saturating_sub(1)));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}:\n\n{}{rule}{rows}\n", self.title, line(&self.head))
    }

    /// Formats it for the terminal. A table without rows is its title.
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return format!("{}\n", self.title);
        }
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let wide = |column: usize| {
            lines().filter_map(|line| Some(line.get(column)?.chars().count())).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(wide).collect();
        let mut out = format!("{}\n", self.title);
        for line in lines() {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(out, "  {cell:<width$}"),
                    _ => write!(out, "  {cell:>width$}"),
                };
            }
            out.push('\n');
        }
        out
    }
}

/// Prints all tables to the terminal.
pub fn print(tables: &[Table]) {
    for table in tables {
        say!("{}", table.text());
    }
}

/// Formats all tables for a document.
pub fn markdown(tables: &[Table]) -> String {
    tables.iter().map(Table::markdown).collect()
}

/// Formats a ratio, with a question mark if the quartiles are far apart.
fn ratio(spread: &Spread) -> String {
    let doubt = if spread.q3 > 1.5 * spread.q1 { "?" } else { "" };
    format!("×{:.2}{doubt}", spread.median)
}

/// Returns GB/s: bytes in a nanosecond are gigabytes in a second.
fn bandwidth(outcome: &Outcome, timing: &Timing) -> f64 {
    outcome.bytes_per_op as f64 / timing.ns_per_op.median
}

/// Makes a table of the targets of these cases: the number that are met, and each that is missed.
fn verdicts(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new("", &["case", "peer", "at least", "got", "bare copies"]);
    let all = || outcomes.iter().flat_map(|o| o.verdicts.iter().map(move |v| (o, v)));
    for (outcome, v) in all().filter(|(_, v)| !v.met) {
        let (least, got) = (format!("×{}", v.at_least), format!("×{:.2}", v.got));
        let limit = v.limit.map_or_else(|| "–".to_owned(), |limit| format!("×{limit:.2}"));
        table.rows.push(vec![outcome.name.clone(), v.peer.clone(), least, got, limit]);
    }
    let met = all().filter(|(_, v)| v.met).count();
    table.title = format!("Targets: {met} met, {} missed", table.rows.len());
    table
}

/// Makes a table for each workload: bandwidth of the first subject, and its speed as a multiple of
/// each other's.
pub fn iozone(outcomes: &[Outcome]) -> Vec<Table> {
    let mut tables = Vec::new();
    for workload in Workload::ALL {
        let of = |outcome: &&Outcome| iozone::cell(outcome).is_some_and(|(w, _)| w == workload);
        let cells: Vec<&Outcome> = outcomes.iter().filter(of).collect();
        let Some(first) = cells.first() else { continue };
        let mut table = Table::new(format!("IOzone, {}", workload.name()), &["record"]);
        table.head.extend(cells.iter().map(|cell| size(cell.bytes_per_op as usize)));
        for (i, timing) in first.timings.iter().enumerate() {
            let cell = |outcome: &&Outcome| {
                outcome.timings.get(i).map_or_else(String::new, |timing| match i {
                    0 => format!("{:.2} GB/s", bandwidth(outcome, timing)),
                    _ => ratio(&timing.subject_speed),
                })
            };
            let name = if i == 0 { timing.name.clone() } else { format!("of {}", timing.name) };
            let mut row = vec![name];
            row.extend(cells.iter().map(cell));
            table.rows.push(row);
        }
        tables.push(table);
    }
    if !tables.is_empty() {
        tables.push(verdicts(outcomes));
    }
    tables
}

/// Makes a table for each kind and size of request: bandwidth by threads, and the share of that of
/// bare copies.
pub fn scaling(outcomes: &[Outcome]) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for outcome in outcomes {
        let Some((kind, threads)) = outcome.name.rsplit_once('/') else { continue };
        let title = format!("Threads, {}", kind.trim_start_matches("scaling/"));
        let known = tables.iter().position(|table| table.title == title);
        let index = known.unwrap_or_else(|| {
            let mut table = Table::new(&title, &["system"]);
            table.rows = outcome.timings.iter().map(|t| vec![t.name.clone()]).collect();
            tables.push(table);
            tables.len() - 1
        });
        let table = &mut tables[index];
        table.head.push(format!("{threads} thr., GB/s"));
        table.head.push("of copies".to_owned());
        for (row, timing) in table.rows.iter_mut().zip(&outcome.timings) {
            row.push(format!("{:.2}", bandwidth(outcome, timing)));
            let share = scaling::share(outcome, timing);
            row.push(share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)));
        }
    }
    tables
}

/// Makes tables of the layout and speed of pools, by level.
pub fn aging(rows: &[Aged]) -> Vec<Table> {
    let mut space = Table::new(
        "How space lies, aged (fresh)",
        &[
            "pool",
            "churned",
            "files",
            "free in 2 MiB units",
            "free runs",
            "longest free run",
            "runs a file",
            "most runs",
            "mappings",
            "bytes a mapping",
        ],
    );
    let mut speed = Table::new(
        "Speed of the aged pool relative to the fresh one; at least ×0.9 is the target",
        &["pool", "read", "read 4K", "overwrite", "create"],
    );
    for row in rows {
        let (aged, fresh) = (&row.aged, &row.fresh);
        let name = format!("{}, {} %", row.subject, row.level);
        let both = |aged: String, fresh: String| format!("{aged} ({fresh})");
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let kib = |bytes: f64| format!("{:.0} KiB", bytes / 1024.0);
        space.rows.push(vec![
            name.clone(),
            format!("{:.0}×", row.churned),
            aged.files.to_string(),
            both(percent(aged.free_huge_share), percent(fresh.free_huge_share)),
            both(aged.free_runs.to_string(), fresh.free_runs.to_string()),
            both(kib(aged.free_longest_bytes as f64), kib(fresh.free_longest_bytes as f64)),
            both(format!("{:.2}", aged.runs_per_file()), format!("{:.2}", fresh.runs_per_file())),
            both(aged.runs_max.to_string(), fresh.runs_max.to_string()),
            both(aged.runs.to_string(), fresh.runs.to_string()),
            both(kib(aged.bytes_per_mapping()), kib(fresh.bytes_per_mapping())),
        ]);
        let mut cells = vec![name];
        for kind in ["read", "read 4K", "write", "create"] {
            let suffix = format!("/{kind}");
            let outcome = row.outcomes.iter().find(|outcome| outcome.name.ends_with(&suffix));
            let fresh = outcome.and_then(|o| o.timings.iter().find(|t| t.name == "fresh"));
            cells.push(fresh.map_or_else(String::new, |timing| {
                let s = &timing.subject_speed;
                format!("×{:.2} ({:.2}–{:.2})", s.median, s.q1, s.q3)
            }));
        }
        speed.rows.push(cells);
    }
    let outcomes: Vec<Outcome> = rows.iter().flat_map(|row| row.outcomes.clone()).collect();
    vec![space, speed, verdicts(&outcomes)]
}

/// Makes tables of misses by call, and of TLBs.
pub fn misses(report: &Report) -> Vec<Table> {
    let mut caches = Table::new(
        "Caches, per call (simulated)",
        &[
            "call",
            "instructions",
            "loads and stores",
            "L1I misses",
            "LLI misses",
            "L1D misses",
            "LLD misses",
            "L1I misses by instruction",
        ],
    );
    for row in &report.caches {
        let c = &row.per_call;
        let mut cells = vec![format!("{}: {}", row.subject, row.operation)];
        cells.extend([c.instructions, c.data].map(|count| format!("{count:.0}")));
        let misses =
            [c.l1_instruction_misses, c.ll_instruction_misses, c.l1_data_misses, c.ll_data_misses];
        cells.extend(misses.map(|count| format!("{count:.2}")));
        cells.push(format!("{:.6}", c.instruction_miss_rate()));
        caches.rows.push(cells);
    }
    let mut tlb = Table::new(
        "Data-TLB misses for each MiB that is read (modelled): pages of 2 MiB, 4 KiB, scattered",
        &["requests"],
    );
    for row in &report.tlb {
        let name = format!("{}: {}", row.subject, row.requests);
        for kind in ["2 MiB", "4 KiB", "scattered"] {
            let head = format!("{kind}, {}", row.cpu);
            if !tlb.head.contains(&head) {
                tlb.head.push(head);
            }
        }
        let known = tlb.rows.iter().position(|cells| cells[0] == name);
        let index = known.unwrap_or_else(|| {
            tlb.rows.push(vec![name]);
            tlb.rows.len() - 1
        });
        let cells = [row.huge, row.small, row.scattered].map(|count| format!("{count:.2}"));
        tlb.rows[index].extend(cells);
    }
    [caches, tlb].into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Makes a table of cases against their peers, each with its own line.
pub fn cases(outcomes: &[Outcome]) -> Vec<Table> {
    let mut table =
        Table::new("Times, and how many times as fast the first is", &["case", "time", "first is"]);
    for outcome in outcomes {
        for (i, timing) in outcome.timings.iter().enumerate() {
            let speed = if i == 0 { String::new() } else { ratio(&timing.subject_speed) };
            let name = format!("{}: {}", outcome.name, timing.name);
            table.rows.push(vec![name, time(timing.ns_per_op.median), speed]);
        }
    }
    vec![table, verdicts(outcomes)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::Verdict;

    fn outcome(name: &str, times: &[(&str, f64)]) -> Outcome {
        let spread = |value| Spread { q1: value, median: value, q3: value };
        let timing = |(name, ns): &(&str, f64)| Timing {
            name: (*name).to_owned(),
            ns_per_op: spread(*ns),
            subject_speed: spread(ns / times[0].1),
        };
        Outcome {
            name: name.to_owned(),
            what: String::new(),
            bytes_per_op: 4096,
            rounds: 1,
            timings: times.iter().map(timing).collect(),
            traffic: None,
            verdicts: vec![Verdict {
                peer: "ext2".to_owned(),
                at_least: 2.0,
                got: 1.5,
                met: false,
                limit: None,
            }],
        }
    }

    #[test]
    fn iozone_is_a_table_for_each_workload() {
        let cell = outcome("iozone/random read/4K", &[("scmfs", 400.0), ("tmpfs", 1000.0)]);
        let tables = iozone(&[cell]);
        let text = tables[0].text();
        assert!(text.contains("random read") && text.contains("10.24 GB/s"), "{text}");
        assert!(text.contains("of tmpfs") && text.contains("×2.50"), "{text}");
        assert!(tables[1].text().contains("0 met, 1 missed"));
        assert!(tables[0].markdown().contains("| of tmpfs | ×2.50 |"));
    }

    #[test]
    fn targets_that_are_met_need_no_table() {
        let mut met = outcome("iozone/random read/4K", &[("scmfs", 400.0)]);
        met.verdicts[0].met = true;
        let tables = iozone(&[met]);
        assert_eq!(tables[1].markdown(), "Targets: 1 met, 0 missed.\n\n");
        assert_eq!(tables[1].text(), "Targets: 1 met, 0 missed\n");
    }

    #[test]
    fn scaling_is_shares_of_copies() {
        let one = outcome("scaling/read/4K/1", &[("scmfs", 400.0), ("raw memcpy", 200.0)]);
        let two = outcome("scaling/read/4K/2", &[("scmfs", 200.0), ("raw memcpy", 160.0)]);
        let tables = scaling(&[one, two]);
        assert_eq!(tables.len(), 1);
        let text = tables[0].text();
        assert!(text.contains("50 %") && text.contains("80 %") && text.contains("100 %"), "{text}");
    }
}
