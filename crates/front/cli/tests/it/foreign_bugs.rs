//! Bugs of public lists are found in programs that have their patterns, and the table of the
//! document has all of them. `make foreign-bugs` runs the rest.
//!
//! Needs a C compiler.

use std::fs;
use std::process::Command;

use super::tidy::root;

#[test]
fn bugs_of_a_hash_table_and_of_replicas_are_found() {
    let output = Command::new(root().join("scripts/test/foreign-bugs/run.sh"))
        .args(["level", "replica"])
        .env("KEEPSTONE", env!("CARGO_BIN_EXE_keepstone"))
        .env_remove("KEEPSTONE_TRACE")
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}{errors}");
    let has = |result| table.lines().filter(|row| row.contains(result)).count();
    assert_eq!((has("| sound |"), has("| found")), (2, 10), "{table}");
}

#[test]
fn the_document_has_each_bug() {
    let bugs = fs::read_to_string(root().join("scripts/test/foreign-bugs/bugs.txt")).unwrap();
    let document = fs::read_to_string(root().join("docs/FOREIGNBUGS.md")).unwrap();
    for bug in bugs.lines().filter(|line| !line.starts_with('#')) {
        let (name, pattern) = bug.split_once(": ").unwrap();
        let [program, variant, entries] = name.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("{bug}: not a bug");
        };
        let row = format!("| `{program} {variant}` | {entries} | {pattern} | found");
        assert!(document.contains(&row), "docs/FOREIGNBUGS.md has no {row:?}");
    }
}
