//! `keepstone branch commit`

use std::cell::Cell;
use std::process::ExitCode;

use anyhow::Result;
use engines::branching::{CommittedBranch, PathBytes};
use serde::Serialize;

use super::{CommitArgs, with_branches};
use crate::{output, pool, shown};

#[derive(Serialize)]
struct Report {
    pool: String,
    branch: String,
    committed: bool,
    /// Paths that only the pool had changed, which the branch got.
    merged: Vec<String>,
    /// Paths that both had changed. With `--force` the pool has those of the branch.
    conflicts: Vec<String>,
}

pub fn run(args: &CommitArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let name = Cell::new(args.name.as_str());
    let CommittedBranch { is_done, paths } =
        with_branches(&path, (&name, false), |branches| branches.commit(&args.name, args.force))?;
    let shown = |path: &PathBytes| match path.as_slice() {
        b"" => "/".to_owned(),
        path => String::from_utf8_lossy(path).into_owned(),
    };
    let report = Report {
        pool: path.display().to_string(),
        branch: args.name.clone(),
        committed: is_done,
        merged: paths.merged.iter().map(shown).collect(),
        conflicts: paths.conflicts.iter().map(shown).collect(),
    };
    if json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) {
    let Report { pool, branch, committed, merged, conflicts } = report;
    if !committed {
        conflicts.iter().for_each(|path| say!("{}", shown::path(path)));
        output::notice(format_args!(
            "{pool}@{branch}: not committed; the pool and the branch have both changed the listed paths. `--force` takes \
             those of the branch"
        ));
        return;
    }
    say!("{pool}@{branch}: is the tree of the pool");
    if !merged.is_empty() {
        say!("paths merged from the pool: {}", merged.len());
    }
    if !conflicts.is_empty() {
        say!("paths that the pool had changed, too: {}", conflicts.len());
    }
}
