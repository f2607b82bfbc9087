//! `keepstone top --prometheus`: the counters of all servers, once.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;

use super::PATIENCE;
use super::ask::{Answer, Questions};
use super::source::{self, Source, Target};
use crate::bdev::control::BdevServer;
use crate::prometheus::Metrics;

/// Queries all servers, or those that the targets mean, and prints their counters. A server that
/// does not answer within [`PATIENCE`] counts as down.
pub fn run(targets: Vec<Target>) -> Result<ExitCode> {
    let mut metrics = Metrics::default();
    let questions = Questions::new()?;
    // Before a server of block devices answers, its exports are not known.
    let is_asked = |source: &Source| match source {
        Source::Mount { .. } => is_meant(&targets, |target| target.is_source(source)),
        Source::Socket(_) => true,
    };
    let mut awaited = source::find()?;
    awaited.retain(is_asked);
    awaited.iter().try_for_each(|source| questions.ask(source))?;
    let deadline = Instant::now() + PATIENCE;
    while !awaited.is_empty() {
        while let Some((source, _, answer)) = questions.heard() {
            awaited.remove(&source);
            add(&mut metrics, &targets, &source, answer);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if awaited.is_empty() || left.is_zero() {
            break;
        }
        let mut bell = [PollFd::new(&questions, PollFlags::IN)];
        match poll(&mut bell, Some(&Timespec::try_from(left)?)) {
            Err(Errno::INTR) => {}
            result => drop(result?),
        }
    }
    for source in awaited {
        add(&mut metrics, &targets, &source, Answer::Silent);
    }
    say!("{metrics}");
    Ok(ExitCode::SUCCESS)
}

/// Returns whether no target is named, or one of them `is` meant.
fn is_meant(targets: &[Target], is: impl FnMut(&Target) -> bool) -> bool {
    targets.is_empty() || targets.iter().any(is)
}

fn add(metrics: &mut Metrics, targets: &[Target], source: &Source, answer: Answer) {
    match (answer, source) {
        (Answer::Mount(stats, _), Source::Mount { dir, .. }) => {
            metrics.add_up("mount", &dir.to_string_lossy(), true);
            metrics.add_mount(&stats);
        }
        (Answer::Devices(server), _) => add_devices(metrics, targets, &server),
        // It belongs to another user, or has ended.
        (Answer::Forbidden | Answer::Gone, _) => {}
        (_, Source::Mount { dir, .. }) => metrics.add_up("mount", &dir.to_string_lossy(), false),
        (_, Source::Socket(path)) if is_meant(targets, |target| target.is_source(source)) => {
            metrics.add_up("bdev", &path.to_string_lossy(), false);
        }
        _ => {}
    }
}

fn add_devices(metrics: &mut Metrics, targets: &[Target], server: &BdevServer) {
    let is_export_meant =
        |export: &Value| is_meant(targets, |target| target.is_export(server, export));
    if !server.exports().any(is_export_meant) {
        return;
    }
    for export in server.exports().filter(|export| is_export_meant(export)) {
        metrics.add_up("bdev", export["path"].as_str().unwrap_or_default(), true);
    }
    metrics.add_devices(&server.status, is_export_meant);
}
