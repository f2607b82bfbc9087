//! Random sequences of calls, made by the process layer over each engine, and by the kernel in a
//! directory of tmpfs. Every result, error number and byte must be the same (Chell §2.2).
//!
//! `KEEPSTONE_OPS` sets the number of calls (20 000 on BPFS, 10 000 on SCMFS), `KEEPSTONE_SEED` the
//! first sequence. A failure prints its seed and the sequence as a script. `KEEPSTONE_REPLAY=FILE`
//! runs such a script instead, whole or shortened. Needs root, to make calls as other users.

mod generate;
mod op;
mod sides;

use self::op::ProcessOp;
use self::sides::{Ours, Side, Theirs};
use crate::common::{TestEngine, TestWorld, on_each_engine};

/// Calls in one sequence, which starts with an empty tree.
const SEQUENCE: usize = 250;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

on_each_engine!(calls_are_answered_as_by_the_kernel);

fn calls_are_answered_as_by_the_kernel(engine: TestEngine) {
    compare(engine, if engine == TestEngine::Bpfs { 20_000 } else { 10_000 });
}

/// Makes `ops` calls, unless the environment sets another number. Each sequence has a world of its
/// own.
fn compare(engine: TestEngine, ops: u64) {
    if let Some(file) = std::env::var_os("KEEPSTONE_REPLAY") {
        let script = std::fs::read_to_string(file).unwrap();
        run(&TestWorld::new(engine), &vfs::script::parse(&script).unwrap(), "as before");
        return;
    }
    let ops = env("KEEPSTONE_OPS", ops);
    let first = env("KEEPSTONE_SEED", 1);
    let (mut served, mut left) = (0, 0);
    for seed in first..first + ops.div_ceil(SEQUENCE as u64) {
        let again = format!("KEEPSTONE_SEED={seed} KEEPSTONE_OPS=1");
        let (s, l) = run(&TestWorld::new(engine), &generate::sequence(seed, SEQUENCE), &again);
        served += s;
        left += l;
    }
    println!("{served} calls compared, {left} left to the kernel");
    // In a single sequence, the kernel may make nearly all calls.
    let is_rerun = ops <= SEQUENCE as u64;
    assert!(is_rerun || left * 4 < served, "{left} of {} calls were left", served + left);
}

/// Runs one sequence; `again` is the command that repeats it. Returns the number of calls that were
/// compared, and of those that were left to the kernel.
fn run(world: &TestWorld, ops: &[ProcessOp], again: &str) -> (u64, u64) {
    let theirs = tempfile::Builder::new().prefix("keepstone-r-").tempdir_in("/dev/shm").unwrap();
    let (mut ours, mut theirs) = (Ours::new(world), Theirs::new(theirs));
    let mut log = Vec::new();
    let (mut served, mut left) = (0, 0);
    for op in ops {
        let Some(got) = ours.apply(op) else {
            left += 1;
            continue;
        };
        let expected = theirs.apply(op).expect("the kernel answers everything");
        log.push(format!("{op} # {}", show(&got)));
        served += 1;
        if got != expected {
            fail(again, &log, &format!("the kernel says {}", show(&expected)));
        }
    }
    ours.become_root();
    theirs.become_root();
    let (a, b) = (ours.tree(), theirs.tree());
    if a != b {
        let differs =
            a.iter().filter(|x| !b.contains(x)).chain(b.iter().filter(|x| !a.contains(x)));
        fail(again, &log, &format!("trees differ: {:#?}", differs.collect::<Vec<_>>()));
    }
    ours.close_all();
    world.remove_all();
    let kept = world.live_inodes();
    assert!(kept.is_empty(), "references were kept\nagain: {again}");
    (served, left)
}

/// Formats a result in short.
fn show(outcome: &op::CallOutcome) -> String {
    match outcome {
        Ok(op::Value::Bytes(bytes)) if bytes.len() > 16 => {
            format!("{} bytes, {:?}…", bytes.len(), &bytes[..16])
        }
        Ok(value) => format!("{value:?}"),
        Err(errno) => format!("{}", std::io::Error::from(*errno)),
    }
}

fn fail(again: &str, log: &[String], why: &str) -> ! {
    eprintln!("{}", log.join("\n"));
    panic!("{why}\nagain: {again}, or KEEPSTONE_REPLAY=FILE with the lines above");
}

#[test]
fn sequences_are_scripts() {
    for seed in 1..20 {
        let ops = generate::sequence(seed, SEQUENCE);
        let lines: Vec<_> = ops.iter().map(|op| format!("{op} # as it was")).collect();
        assert_eq!(vfs::script::parse::<ProcessOp>(&lines.join("\n")).unwrap(), ops);
    }
}
