//! Judges an engine by all families of workloads or one, and prints the verdict: what `keepstone crashtest --score` runs,
//! built with bugs.

use crashsim::campaign::Report;
use judges::judge::ENGINES;
use std::process::ExitCode;

fn main() -> ExitCode {
    crashsim::campaign::prepare_process();
    let engine = std::env::args().nth(1).filter(|engine| ENGINES.contains(&&**engine));
    let Some(engine) = engine else {
        eprintln!("usage: judge {} [FAMILY]", ENGINES.join("|"));
        return ExitCode::from(2);
    };
    let only = std::env::args().nth(2);
    // What recoveries of a bug's states panic with is caught and judged.
    std::panic::set_hook(Box::new(|_| {}));
    let verdict = judges::judge::judge(&engine, only.as_deref(), &mut |report| {
        let Report { family, workloads, stats, seconds, .. } = report;
        eprintln!("{family}: {workloads} workloads, {} states, {seconds:.1} s", stats.distinct);
    });
    println!("{verdict}");
    ExitCode::SUCCESS
}
