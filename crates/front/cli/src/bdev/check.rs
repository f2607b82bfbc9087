//! `keepstone bdev check`

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::args::CheckArgs;
use super::devices;
use crate::{check, output};

pub fn run(args: &CheckArgs, json: bool) -> Result<ExitCode> {
    let named = || format!("{}: no such disk", args.pool.display());
    let path = args.pool.canonicalize().with_context(named)?;
    let shown = path.display();
    devices::refuse_pool(&path, "this checks disks; `keepstone check` checks it")?;
    let Some(report) = devices::told(&path, pmbd::check(&path, args.repair), "cannot be checked")?
    else {
        if json {
            output::json(&json!({ "path": path, "atomic": 0, "problems": [] }))?;
        } else {
            say!(
                "{shown}: has no atomic blocks, so its bytes are the disk's: there is nothing to check"
            );
        }
        return Ok(ExitCode::SUCCESS);
    };
    if json {
        output::json(&report)?;
    } else {
        for problem in &report.problems {
            let repair = problem.repair.as_ref().map_or(String::new(), |how| format!(" ({how})"));
            say!("block {}, at byte {}: {}{repair}", problem.block, problem.off, problem.what);
        }
        if report.lost > 0 {
            say!(
                "{} blocks were given up by a repair: reading them fails until they are written",
                report.lost
            );
        }
        say!("{shown}: {}", summary(&report, args.repair));
    }
    let remaining = report.problems.iter().filter(|problem| problem.repair.is_none()).count();
    Ok(match (report.problems.len(), remaining) {
        (0, _) => ExitCode::SUCCESS,
        (_, 1..) if args.repair => ExitCode::from(check::EXIT_FAILED),
        _ => ExitCode::from(check::EXIT_PROBLEMS),
    })
}

fn summary(report: &pmbd::atomic::CheckReport, repair: bool) -> String {
    let found = report.problems.len();
    let repaired = report.problems.iter().filter(|problem| problem.repair.is_some()).count();
    match (found, repair) {
        (0, _) => format!("clean: {} of {} blocks in use", report.used, report.blocks),
        (_, false) => format!(
            "{found} problems; the other blocks can be read with --read-only; `keepstone bdev check --repair` keeps \
             blocks whose content exists and gives up the others"
        ),
        (_, true) if repaired == found => format!("{found} problems, all handled"),
        (_, true) => format!(
            "{found} problems, {} of them blocks whose content does not match its checksum, which was left alone",
            found - repaired
        ),
    }
}
