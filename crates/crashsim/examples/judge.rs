//! Judges the engine that it is built with, `bpfs` or `pmbd`, by all families or one, and prints the verdict: what
//! `keepstone crashtest --score`
//! runs, with a bug planted.

use crashsim::campaign::Report;
use std::process::ExitCode;

fn main() -> ExitCode {
    crashsim::campaign::prepare_process();
    let engine = std::env::args().nth(1);
    let block_devices = match engine.as_deref() {
        Some("bpfs") => false,
        Some("pmbd") => true,
        _ => {
            eprintln!("usage: judge bpfs|pmbd [FAMILY]");
            return ExitCode::from(2);
        }
    };
    let only = std::env::args().nth(2);
    // What recoveries of a bug's states panic with is caught and judged.
    std::panic::set_hook(Box::new(|_| {}));
    let verdict = crashsim::judge::judge(block_devices, only.as_deref(), &mut |report| {
        let Report { family, workloads, stats, seconds, .. } = report;
        eprintln!("{family}: {workloads} workloads, {} states, {seconds:.1} s", stats.distinct);
    });
    println!("{verdict}");
    ExitCode::SUCCESS
}
