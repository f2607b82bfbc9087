//! Judges an engine by one family of workloads or all, within a limit of processor time in seconds,
//! and prints the verdict. `keepstone crashtest --score` builds this program with planted bugs and
//! runs it.

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
    // Panics in recoveries, which bugs cause, are caught and judged.
    std::panic::set_hook(Box::new(|_| {}));
    let verdict = judges::judge::judge(engine, only, limit, &mut |report| {
        let Report { family, workloads, stats, seconds, .. } = report;
        eprintln!("{family}: {workloads} workloads, {} states, {seconds:.1} s", stats.distinct);
    });
    println!("{verdict}");
    ExitCode::SUCCESS
}
