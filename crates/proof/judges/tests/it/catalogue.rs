//! Tests that each bug of the catalogue has its place in the source exactly once, and that all bugs
//! can be woven into it.

use judges::catalogue;
use std::path::Path;

#[test]
fn every_planted_bug_has_its_place() {
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let bugs = catalogue::all(crates).unwrap();
    assert!(bugs.len() > 100, "{} bugs", bugs.len());
    let woven = catalogue::weave(crates, &bugs).unwrap();
    for (file, text) in &woven {
        if let Err(e) = syn::parse_file(text) {
            panic!("{file} with all bugs: {e}");
        }
    }
    for number in 1..=bugs.len() {
        let switch = format!("planted::is({number})");
        let times: usize = woven.values().map(|text| text.matches(&switch).count()).sum();
        assert_eq!(times, 1, "{}", bugs[number - 1].name);
    }
}

/// Text with half of a block, or with a name that later code uses, would not compile when woven.
#[test]
fn every_planted_bug_is_a_whole_piece_of_source() {
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    for bug in catalogue::all(crates).unwrap() {
        let is_name = |line: &str| line.starts_with("let ") && !line.starts_with("let _ ");
        assert!(bug.old.contains('\n') || !is_name(&bug.old), "{}: {}", bug.name, bug.old);
        for text in [&bug.old, &bug.new] {
            for (open, close) in [('(', ')'), ('[', ']'), ('{', '}')] {
                let count = |bracket: char| text.matches(bracket).count();
                assert_eq!(count(open), count(close), "{}: {text}", bug.name);
            }
        }
    }
}
