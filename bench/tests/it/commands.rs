//! Every subcommand of the measurements of SCMFS runs in its smallest form and prints the promised
//! results. Times are not checked.

use serde_json::Value;
use std::process::Command;

/// Runs the program with `--tiny`; returns what it prints.
fn run(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone-bench"));
    let output = command.arg("--tiny").args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The section of its results.
fn section(name: &str, args: &[&str]) -> Value {
    let args: Vec<&str> = ["--json", name].into_iter().chain(args.iter().copied()).collect();
    let results: Value = serde_json::from_str(&run(&args)).unwrap();
    assert!(results["origin"]["command"].as_str().unwrap().contains(name));
    results[name].clone()
}

/// The names of the contenders of a case.
fn contenders(outcome: &Value) -> Vec<&str> {
    let timings = outcome["timings"].as_array().unwrap();
    timings.iter().map(|timing| timing["name"].as_str().unwrap()).collect()
}

#[test]
fn aging_reports_space_and_speed() {
    let rows = section("aging", &["scmfs/75"]);
    let row = &rows[0];
    assert_eq!((row["subject"].as_str(), row["level"].as_u64()), (Some("scmfs"), Some(75)));
    assert!(row["churned"].as_f64().unwrap() >= 1.0);
    let files = row["aged"]["files"].as_u64().unwrap();
    assert!(files > 0);
    assert_eq!(row["fresh"]["files"].as_u64(), Some(files));
    assert!(row["aged"]["runs"].as_u64().unwrap() >= files);
    let share = row["aged"]["free_huge_share"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&share));
    assert_eq!(row["outcomes"].as_array().unwrap().len(), 4);
    assert_eq!(contenders(&row["outcomes"][0]), ["aged", "fresh"]);
    let text = run(&["aging", "bpfs"]);
    assert!(text.contains("free in 2 MiB units") && text.contains("bpfs, 75 %"), "{text}");
    assert!(!text.contains("scmfs"), "{text}");
}

#[test]
fn iozone_compares_engines_peers_and_copies() {
    let outcomes = section("iozone", &["write/4K"]);
    let names: Vec<&str> =
        outcomes.as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    let expected = ["iozone/write/4K", "iozone/re-write/4K", "iozone/random write/4K"];
    assert_eq!(names, expected);
    let contenders = contenders(&outcomes[0]);
    assert_eq!(contenders[0], "scmfs");
    for name in ["bpfs", "scmfs, 4 KiB pages", "tmpfs", "raw memcpy", "raw NT copy + fence"] {
        assert!(contenders.contains(&name), "{contenders:?}");
    }
    let other = section("iozone", &["strided", "--layout", "bpfs", "--solo"]);
    assert_eq!(self::contenders(&other[0]), ["bpfs"]);
}

#[test]
fn postmark_has_three_phases() {
    let outcomes = section("postmark", &["write-intensive"]);
    let names: Vec<&str> =
        outcomes.as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    let phases = ["create", "transactions", "remove"];
    assert_eq!(names, phases.map(|phase| format!("postmark/write-intensive/{phase}")));
}

#[test]
fn scaling_goes_by_threads_and_mappings() {
    let outcomes = section("scaling", &["read/4K"]);
    let names: Vec<&str> =
        outcomes.as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["scaling/read/4K/1", "scaling/read/4K/2"]);
    let contenders = contenders(&outcomes[1]);
    for name in ["scmfs", "scmfs, lent", "scmfs, mapped", "tmpfs", "tmpfs, mapped", "raw memcpy"] {
        assert!(contenders.contains(&name), "{contenders:?}");
    }
    assert!(run(&["scaling", "write"]).contains("of copies"));
}

#[test]
fn ratios_have_targets_and_raw_rows() {
    let outcomes = section("ratios", &[]);
    for outcome in outcomes.as_array().unwrap() {
        assert!(!outcome["verdicts"].as_array().unwrap().is_empty(), "{outcome}");
        let contenders = contenders(outcome);
        assert_eq!(contenders[0], "scmfs");
        assert!(contenders.iter().any(|name| name.starts_with("raw ")), "{contenders:?}");
    }
    for case in ["overwrite/4K/of-64M", "mapped/first-store", "append/64", "create/64B"] {
        let name = format!("ratios/{case}");
        assert!(outcomes.as_array().unwrap().iter().any(|o| o["name"] == name.as_str()), "{name}");
    }
}

#[test]
fn misses_are_modelled_for_each_engine() {
    let report = section("misses", &["tlb"]);
    let rows = report["tlb"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["subject"] == "bpfs"));
    let of = |row: &Value, pages: &str| row[pages].as_f64().unwrap();
    assert!(rows.iter().all(|row| of(row, "huge") < of(row, "small")));
    assert_eq!(report["caches"].as_array().unwrap().len(), 0);
}

#[test]
fn the_loop_under_valgrind_does_each_call() {
    for call in ["sequential-read", "random-write", "create-unlink", "postmark"] {
        run(&["miss-loop", "scmfs", call, "20", "--dir", "/dev/shm"]);
    }
}

#[test]
fn help_has_an_example_for_each() {
    for name in ["aging", "iozone", "postmark", "ratios", "scaling", "misses"] {
        let text = run(&[name, "--help"]);
        assert!(text.contains("Example: keepstone bench"), "{text}");
    }
}

#[test]
fn an_unknown_layout_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone-bench"));
    let output = command.args(["--tiny", "iozone", "--layout", "nothing"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("there are scmfs, bpfs"), "{stderr}");
}
