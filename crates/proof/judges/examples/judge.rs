//! Judges an engine by all families of workloads or one, for at most some seconds of processor time, and prints the verdict:
//! what `keepstone crashtest --score` runs, built with bugs.

use crashsim::campaign::Report;
use judges::judge::ENGINES;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    crashsim::campaign::prepare_process();
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let seconds = args.iter().position(|arg| arg == "--seconds").map(|at| args.split_off(at));
    let seconds = seconds.map(|option| option.get(1).and_then(|n| n.parse().ok()));
    let engine = args.first().filter(|engine| ENGINES.contains(&engine.as_str()));
    let (Some(engine), None | Some(Some(_))) = (engine, seconds) else {
        eprintln!("usage: judge {} [FAMILY] [--seconds N]", ENGINES.join("|"));
        return ExitCode::from(2);
    };
    let limit = seconds.flatten().map(Duration::from_secs);
    let only = args.get(1).map(String::as_str);
    // What recoveries of a bug's states panic with is caught and judged.
    std::panic::set_hook(Box::new(|_| {}));
    let verdict = judges::judge::judge(engine, only, limit, &mut |report| {
        let Report { family, workloads, stats, seconds, .. } = report;
        eprintln!("{family}: {workloads} workloads, {} states, {seconds:.1} s", stats.distinct);
    });
    println!("{verdict}");
    ExitCode::SUCCESS
}
