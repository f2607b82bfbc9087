//! Each target on a fixed number of mutated inputs. `KEEPSTONE_FUZZ_SECONDS` runs each for a time
//! instead (`make fuzz`), `KEEPSTONE_FUZZ_FIRST` is the first seed, and `KEEPSTONE_FUZZ_SEED` runs
//! one input alone.

use fuzzing::TARGETS;
use fuzzing::mutate::{Until, run};
use std::time::Duration;

/// Inputs of each target by default.
const INPUTS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn target(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    let (first, until) = match number("KEEPSTONE_FUZZ_SEED") {
        Some(seed) => (seed, Until::Inputs(1)),
        None => {
            let seconds = number("KEEPSTONE_FUZZ_SECONDS").map(Duration::from_secs);
            let until = seconds.map_or(Until::Inputs(INPUTS), Until::Elapsed);
            (number("KEEPSTONE_FUZZ_FIRST").unwrap_or(0), until)
        }
    };
    let count = run(target, until, first);
    eprintln!("{name}: {count} inputs");
}

macro_rules! tests {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                target(stringify!($name));
            }
        )+

        #[test]
        fn each_target_has_a_test_and_a_program() {
            let tests = [$(stringify!($name)),+];
            assert_eq!(TARGETS.map(|target| target.name), tests);
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/fuzz_targets");
            for name in tests {
                let program = std::fs::read_to_string(format!("{dir}/{name}.rs"));
                assert!(program.is_ok_and(|text| text.contains(name)), "{name} has no program in fuzz/");
            }
        }
    };
}

tests! {
    nbd_session nbd_tls atomic_region pool_bpfs pool_scmfs cache_control cache_needs mount_names
    mount_table store_objects store_tree store_replies stream_received stream_sent trace_text
    trace_log trace_entries
}
