//! Results as a whole: for the terminal, as JSON, and as documents of docs/measurements.

use crate::about::About;
use crate::machine::Origin;
use crate::rounds::{Outcome, Spread};
use crate::text::{self, time};
use crate::{aging, misses, plot, scan, tables, targets, traffic};
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The results of one run of this program.
#[derive(Serialize, Deserialize)]
pub struct Results {
    /// Date, commit, machine and command.
    pub origin: Origin,
    /// The measurements.
    #[serde(flatten)]
    pub section: Section,
}

/// Results by subcommand.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// `engine`.
    Engine(Vec<Outcome>),
    /// `traffic`.
    Traffic(Vec<traffic::Row>),
    /// `mount`.
    Mount(Vec<scan::Row>),
    /// `fuse`.
    Fuse(Vec<Outcome>),
    /// `direct`.
    Direct(Vec<Outcome>),
    /// `chell`.
    Chell(Vec<Outcome>),
    /// `cached`.
    Cached(Vec<Outcome>),
    /// `bdev`.
    Bdev(Vec<Outcome>),
    /// `nbd`.
    Nbd(Vec<Outcome>),
    /// `sensitivity`.
    Sensitivity(Vec<Outcome>),
    /// `aging`.
    Aging(Vec<aging::Row>),
    /// `iozone`.
    Iozone(Vec<Outcome>),
    /// `postmark`.
    Postmark(Vec<Outcome>),
    /// `scaling`.
    Scaling(Vec<Outcome>),
    /// `ratios`.
    Ratios(Vec<Outcome>),
    /// `misses`.
    Misses(misses::Report),
    /// `run`.
    Targets(targets::Report),
    /// `scale`.
    Growth(targets::Growth),
}

impl Section {
    /// Returns the tables of sections that have no form of their own; for others, an empty list.
    fn tables(&self) -> Vec<tables::Table> {
        match self {
            Self::Aging(rows) => tables::aging(rows),
            Self::Iozone(outcomes) => tables::iozone(outcomes),
            Self::Postmark(outcomes) | Self::Ratios(outcomes) => tables::cases(outcomes),
            Self::Scaling(outcomes) => tables::scaling(outcomes),
            Self::Misses(report) => tables::misses(report),
            _ => Vec::new(),
        }
    }
}

impl Results {
    /// Prints them as text.
    pub fn print(&self) {
        match &self.section {
            Section::Engine(outcomes)
            | Section::Fuse(outcomes)
            | Section::Direct(outcomes)
            | Section::Chell(outcomes)
            | Section::Cached(outcomes)
            | Section::Bdev(outcomes)
            | Section::Nbd(outcomes)
            | Section::Sensitivity(outcomes) => text::outcomes(outcomes),
            Section::Traffic(rows) => text::traffic(rows),
            Section::Mount(rows) => text::scans(rows),
            Section::Targets(report) => targets::print(report),
            Section::Growth(growth) => tables::print(&growth.tables()),
            section => tables::print(&section.tables()),
        }
    }

    /// Returns the results of `run`.
    pub fn targets(&self) -> Result<&targets::Report> {
        match &self.section {
            Section::Targets(report) => Ok(report),
            _ => bail!("not the results of `keepstone bench run`"),
        }
    }

    /// Counts the missed targets.
    pub fn missed(&self) -> usize {
        match &self.section {
            Section::Engine(outcomes)
            | Section::Fuse(outcomes)
            | Section::Direct(outcomes)
            | Section::Chell(outcomes)
            | Section::Cached(outcomes)
            | Section::Bdev(outcomes)
            | Section::Nbd(outcomes)
            | Section::Sensitivity(outcomes)
            | Section::Iozone(outcomes)
            | Section::Postmark(outcomes)
            | Section::Ratios(outcomes)
            | Section::Scaling(outcomes) => {
                outcomes.iter().flat_map(|o| &o.verdicts).filter(|v| !v.met).count()
            }
            Section::Aging(rows) => {
                let verdicts = rows.iter().flat_map(|r| &r.outcomes).flat_map(|o| &o.verdicts);
                verdicts.filter(|v| !v.met).count()
            }
            Section::Traffic(_) | Section::Misses(_) | Section::Targets(_) | Section::Growth(_) => {
                0
            }
            Section::Mount(rows) => rows.iter().filter(|r| r.met() == Some(false)).count(),
        }
    }

    /// Returns the name of its document, without `.md`.
    fn name(&self) -> String {
        let name = self.section.about().name;
        if self.origin.dram { format!("{name}-dram") } else { name.to_owned() }
    }

    /// Returns its document, with the plots that were drawn of it.
    fn markdown(&self, plots: &[String]) -> String {
        let About { title, note, formats, .. } = self.section.about();
        let medium = if self.origin.dram { ", pools in DRAM and not flushed" } else { "" };
        let mut out = format!("{}\n\n# {title}{medium}\n\n{note}\n\n", self.origin.head(formats));
        for plot in plots {
            let _ = writeln!(out, "{plot}");
        }
        if !plots.is_empty() {
            out.push('\n');
        }
        let tables = match &self.section {
            Section::Engine(outcomes)
            | Section::Fuse(outcomes)
            | Section::Direct(outcomes)
            | Section::Chell(outcomes)
            | Section::Cached(outcomes)
            | Section::Bdev(outcomes)
            | Section::Nbd(outcomes) => compared(outcomes),
            Section::Sensitivity(outcomes) => slowed(outcomes),
            Section::Traffic(rows) => moved(rows),
            Section::Mount(rows) => scanned(rows),
            section => tables::markdown(&section.tables()),
        };
        let _ = writeln!(
            out,
            "{}\n\n## The machine\n\n{}",
            tables.trim(),
            machine(&self.origin).trim()
        );
        out
    }

    /// Draws its plots into a directory; returns references to them.
    fn plot(&self, dir: &Path) -> Result<Vec<String>> {
        match &self.section {
            Section::Bdev(outcomes) => plot::bandwidths(outcomes, dir),
            Section::Chell(outcomes) => plot::latencies(outcomes, dir),
            Section::Sensitivity(outcomes) => plot::sensitivities(outcomes, dir),
            Section::Iozone(outcomes) => plot::iozone(outcomes, dir),
            _ => Ok(Vec::new()),
        }
    }
}

/// Writes a document for each of the saved results into a directory, with its plots. Documents
/// without results stay.
pub fn write(into: &Path, files: &[PathBuf]) -> Result<()> {
    // Reads all results first: if one cannot be read, nothing is written.
    let mut all = Vec::new();
    for file in files {
        let json = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let results: Results = serde_json::from_str(&json)
            .with_context(|| format!("{}: not saved by this program", file.display()))?;
        if results.origin.commit.is_empty() {
            bail!("{}: measured outside of a checkout, without a commit", file.display());
        }
        all.push(results);
    }
    std::fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    for results in &all {
        let document = into.join(format!("{}.md", results.name()));
        let plots = results.plot(into)?;
        std::fs::write(&document, results.markdown(&plots))
            .with_context(|| format!("cannot write {}", document.display()))?;
    }
    Ok(())
}

/// Makes the table of facts about the machine.
fn machine(origin: &Origin) -> String {
    let mut out = "| fact | value |\n|---|---|\n".to_owned();
    for (name, value) in &origin.machine {
        let _ = writeln!(out, "| {name} | {value} |");
    }
    out
}

/// Makes the table of outcomes, and that of traffic if it was counted.
fn compared(outcomes: &[Outcome]) -> String {
    let mut out = "| case | system | time per operation | Keepstone is | target |\n\
                   |---|---|---|---|---|\n"
        .to_owned();
    for outcome in outcomes {
        for (i, timing) in outcome.timings.iter().enumerate() {
            let case = if i == 0 { &outcome.name } else { "" };
            let speed = if i == 0 { String::new() } else { ratio(&timing.subject_speed) };
            let verdict = outcome.verdicts.iter().find(|v| v.peer == timing.name);
            let target = verdict.map_or(String::new(), |v| {
                let word = if v.met { "met" } else { "**missed**" };
                let limit = v.limit.filter(|_| !v.met).map(|limit| format!("; limit ×{limit:.2}"));
                format!("×{}: {word}{}", v.at_least, limit.unwrap_or_default())
            });
            let _ = writeln!(
                out,
                "| {case} | {} | {} | {speed} | {target} |",
                timing.name,
                time(timing.ns_per_op.median)
            );
        }
    }
    let counted: Vec<_> = outcomes.iter().filter_map(|o| Some((o, o.traffic?))).collect();
    if !counted.is_empty() {
        out += "\nTraffic of Keepstone per operation:\n\n\
                | case | lines flushed | bytes past the cache | fences |\n|---|---|---|---|\n";
    }
    for (outcome, t) in counted {
        let _ = writeln!(
            out,
            "| {} | {:.2} | {:.0} | {:.2} |",
            outcome.name, t.lines, t.nt_bytes, t.fences
        );
    }
    out
}

/// Makes a row for each load, with a column for each factor by which memory is slower.
fn slowed(outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    let mut columns = 0;
    for outcome in outcomes {
        let (subject, slower) = outcome.timings.split_first().expect("a case has a subject");
        if slower.len() != columns {
            columns = slower.len();
            let names: Vec<_> = slower.iter().map(|timing| format!(" {} |", timing.name)).collect();
            let rule = "---|".repeat(columns);
            let _ = write!(out, "\n| slowed/load | 1× |{}\n|---|---|{rule}\n", names.concat());
        }
        let cells: Vec<_> =
            slower.iter().map(|timing| format!(" {} |", ratio(&timing.subject_speed))).collect();
        let time = time(subject.ns_per_op.median);
        let _ = writeln!(out, "| {} | {time} |{}", outcome.name, cells.concat());
    }
    out
}

fn ratio(s: &Spread) -> String {
    format!("×{:.2} ({:.2}–{:.2})", s.median, s.q1, s.q3)
}

/// Makes the table of traffic.
fn moved(rows: &[traffic::Row]) -> String {
    let mut out =
        "| microbenchmark | operations | lines flushed | bytes past the cache | fences | \
                   bytes to the medium | amplification |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        let t = &row.traffic;
        let amplification = row.amplification().map_or("–".to_owned(), |a| format!("{a:.2}"));
        let _ = writeln!(
            out,
            "| {} | {} | {:.2} | {:.1} | {:.2} | {:.1} | {amplification} |",
            row.name,
            row.ops,
            t.lines,
            t.nt_bytes,
            t.fences,
            t.bytes()
        );
    }
    out
}

/// Makes the table of mount times.
fn scanned(rows: &[scan::Row]) -> String {
    let mut out = "| files | bytes each | directories | one thread | two threads | target |\n\
                   |---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let [one, two] = row.ms.map(|ms| time(ms.median * 1e6));
        let target = row.target_ms.map_or(String::new(), |ms| {
            let word = match row.met() {
                Some(true) => "met",
                _ => "**missed**",
            };
            format!("≤ {}: {word}", time(ms * 1e6))
        });
        let _ = writeln!(
            out,
            "| {} | {} | {} | {one} | {two} | {target} |",
            row.files, row.file_bytes, row.dirs
        );
    }
    out
}
