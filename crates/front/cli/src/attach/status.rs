//! `keepstone attach status`

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::prometheus::Metrics;
use crate::{mount, output, shown, size, stats};

pub fn run(dir: &Path, prometheus: bool, json: bool) -> Result<ExitCode> {
    let dir = mount::absolute_dir(dir)?;
    stats::require_alive(&dir)?;
    let stats = stats::ask_one(&dir)?;
    let status = &stats["cache"];
    if !status.is_object() {
        bail!(
            "{0}: a pool is mounted there, no cache; `keepstone stats {0}` shows its counters",
            dir.display()
        );
    }
    if prometheus {
        let mut metrics = Metrics::default();
        metrics.add_mount(&stats);
        say!("{metrics}");
    } else if json {
        output::json(&stats)?;
    } else {
        show(&stats);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the status that the server of a cache reports.
pub fn show(stats: &Value) {
    let status = &stats["cache"];
    let text = |value: &Value| shown::name(value.as_str().unwrap_or_default());
    let bytes = |name: &str| size::show(status[name].as_u64().unwrap_or(0));
    output::table([
        ("pool", text(&stats["pool"])),
        ("directory", text(&stats["dir"])),
        ("mounted on", text(&stats["mount"])),
        ("domain", text(&stats["domain"]["name"])),
        ("data", text(&status["mode"])),
        ("changes by others", watch(status)),
        ("size", bytes("size_bytes")),
        ("in use", bytes("used_bytes")),
        ("pinned", format!("{} of {}", bytes("pinned_bytes"), bytes("pinned_bytes_max"))),
        ("not written back", bytes("dirty_bytes")),
        ("files not written back", status["dirty_files"].to_string()),
        ("waiting for", format!("{} ms", status["oldest_dirty_ms"])),
    ]);
    say!("\ncounters");
    let rows = status["counters"].as_object().into_iter().flatten();
    output::table(rows.map(|(name, value)| (format!("  {name}"), value.to_string())));
    let troubles: Vec<pmcache::Trouble> =
        serde_json::from_value(status["troubles"].clone()).unwrap_or_default();
    show_troubles(&troubles);
    let count = status["troubled_files"].as_u64().unwrap_or(0);
    if troubles.is_empty() && count > 0 {
        say!("\n{count} files need attention; root, and the user whose cache it is, see which");
    }
}

/// Describes how a cache notices changes by others, in addition to comparing.
fn watch(status: &Value) -> String {
    let how = match status["watch"].as_str() {
        Some("notify") if status["watch_reach"] == "directories" => {
            "reported by the kernel, in directories that are in use"
        }
        Some("notify") => "reported by the kernel",
        Some("permission") => {
            "reported by the kernel; a program that opens a file waits until it is written back"
        }
        _ => "found by comparing only",
    };
    let problem = status["watch_problem"].as_str().map(|why| format!(" ({why})"));
    how.to_owned() + &problem.unwrap_or_default()
}

/// Names the files that need attention.
pub fn show_troubles(troubles: &[pmcache::Trouble]) {
    for trouble in troubles {
        let path = shown::name(&trouble.path);
        say!("\n{path}: {} ({})", trouble.what, size::show(trouble.dirty_bytes));
    }
}
