//! `keepstone check`

use std::path::Path;
use std::process::ExitCode;

use ::pool::{CheckOptions, CheckReport, Problem};
use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use pmem::{Access, Lock, OpenOptions};

use crate::args::CheckArgs;
use crate::{output, pool};

/// Exit status if problems were found and, with `--repair`, all were repaired.
pub const EXIT_PROBLEMS: u8 = 1;
/// Exit status if problems remain after `--repair`, or the pool could not be checked.
pub const EXIT_FAILED: u8 = 4;

/// Checks of one repair, at most. A repair stores one word for each problem; if a problem needs a
/// second word, the next check finds that.
const ROUNDS_MAX: usize = 4;

pub fn run(args: &CheckArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let (access, lock) = if args.repair {
        (Access::ReadWrite, Lock::Exclusive)
    } else {
        (Access::ReadOnly, Lock::Shared)
    };
    let options = OpenOptions { lock: Some(lock), ..OpenOptions::default() };
    let region = pool::open(&path, &options, access)?;
    let options = CheckOptions { repair: args.repair, threads: Some(pool::threads(args.threads)) };
    // The bar hides itself if stderr is not a terminal.
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta:>4}")
            .expect("a valid template"),
    );
    bar.set_message("checking");
    let check = || {
        let report = engines::check(&region, &options, &|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        report.with_context(|| path.display().to_string())
    };
    let mut report = check()?;
    let mut repairs = args.repair && has_repaired(&report);
    for _ in 1..ROUNDS_MAX {
        if !repairs {
            break;
        }
        let next = check()?;
        repairs = has_repaired(&next);
        report = followed_by(report, next);
    }
    bar.finish_and_clear();
    if json {
        output::json(&report)?;
    } else {
        for problem in &report.problems {
            let repaired = if problem.repaired { " (repaired)" } else { "" };
            say!("{}: {}{repaired}", problem.object, problem.what);
        }
        say!("{}: {}", path.display(), summary(&path, &report, args.repair));
    }
    let remaining = report.problems.iter().filter(|problem| !problem.repaired).count();
    Ok(match (report.clean(), remaining) {
        (true, _) => ExitCode::SUCCESS,
        (false, 1..) if args.repair => ExitCode::from(EXIT_FAILED),
        (false, _) => ExitCode::from(EXIT_PROBLEMS),
    })
}

fn has_repaired(report: &CheckReport) -> bool {
    report.problems.iter().any(|problem| problem.repaired)
}

/// Adds the problems that a check has repaired to the findings of the next check, unless that finds
/// them again.
fn followed_by(report: CheckReport, mut next: CheckReport) -> CheckReport {
    let found = |problem: &Problem| {
        let same =
            |other: &Problem| (&other.object, &other.what) == (&problem.object, &problem.what);
        next.problems.iter().any(same)
    };
    let repaired = report.problems.into_iter().filter(|problem| problem.repaired);
    let gone: Vec<_> = repaired.filter(|problem| !found(problem)).collect();
    next.problems.splice(0..0, gone);
    next
}

fn summary(pool: &Path, report: &CheckReport, repair: bool) -> String {
    let found = report.problems.len();
    let repaired = report.problems.iter().filter(|problem| problem.repaired).count();
    let problems = if found == 1 { "1 problem".to_owned() } else { format!("{found} problems") };
    match (found, repair) {
        (0, _) => "clean".to_owned(),
        (_, false) => {
            format!("{problems}; `keepstone check --repair {}` repairs what it can", pool.display())
        }
        (_, true) if repaired == found => format!("{problems}, all repaired"),
        (_, true) => format!(
            "{problems}, {} of them not repairable; copy what is readable (`keepstone mount -o ro`) to a new pool",
            found - repaired
        ),
    }
}
