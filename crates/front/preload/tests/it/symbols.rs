//! The library exports every function that it must, and no function that `symbols.txt` does not
//! list.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the library's path, next to the test program: cargo builds it for the tests of this
/// package.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libkeepstone.so")
}

fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("/libc.so.6")).expect("glibc is loaded");
    PathBuf::from(&line[line.find('/').unwrap()..])
}

/// Returns the functions that an object exports, without their versions.
fn exports(object: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(object).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().rev();
        let name = fields.next()?.split('@').next()?;
        matches!(fields.next()?, "T" | "W" | "i").then(|| name.to_owned())
    });
    names.collect()
}

/// Returns the functions that the header of the C interface declares.
fn declared() -> BTreeSet<String> {
    let header = include_str!("../../../../../include/keepstone.h");
    let code = header.split("*/").filter_map(|part| part.split("/*").next());
    let words =
        code.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '('));
    let names = words.filter_map(|word| word.split_once('(').map(|(name, _)| name.to_owned()));
    names.filter(|name| name.starts_with("ks_")).collect()
}

/// A program that is linked with this library must find the same functions in a later one.
#[test]
fn functions_of_the_c_interface_have_versions() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().next_back());
    let mut found = BTreeSet::new();
    for name in names.filter(|name| name.starts_with("ks_")) {
        let (name, version) = name.split_once("@@").unwrap_or_else(|| panic!("{name}"));
        assert!(version.starts_with("KEEPSTONE_"), "{name}@@{version}");
        found.insert(name.to_owned());
    }
    assert_eq!(found, declared());
    assert!(found.len() > 40);
}

/// Each further object would be loaded into every program that is started.
#[test]
fn the_library_needs_libc_only() {
    let output = Command::new("readelf").arg("--dynamic").arg(library()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let needed: Vec<_> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
        .filter(|name| !name.starts_with("ld-linux-"))
        .collect();
    assert_eq!(needed, ["libc.so.6"]);
}

#[test]
fn every_function_is_exported_or_excused() {
    let (ours, libc) = (exports(&library()), exports(&libc()));
    let mut listed = BTreeSet::new();
    for line in include_str!("../../symbols.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, reason) = line.split_once('\t').map_or((line, None), |(n, r)| (n, Some(r)));
        assert!(listed.insert(name.to_owned()), "{name} is listed twice");
        match reason {
            None => assert!(ours.contains(name), "{name} is not exported"),
            Some(reason) => {
                assert!(!reason.trim().is_empty(), "{name}: no reason given");
                assert!(!ours.contains(name), "{name} is exported, and left to libc: {reason}");
            }
        }
    }
    let own = |name: &&String| !name.starts_with("ks_") && !listed.contains(*name);
    let undecided: Vec<_> = ours.iter().filter(own).collect();
    assert!(undecided.is_empty(), "exported and not listed: {undecided:?}");

    // Calls of other names and checked forms of an exported function would bypass the library.
    let forms = |name: &str| {
        [
            format!("{name}64"),
            format!("__{name}"),
            format!("__{name}_chk"),
            format!("__{name}64_chk"),
        ]
    };
    let exported = listed.iter().filter(|name| ours.contains(*name));
    let missed: Vec<_> = exported
        .flat_map(|name| forms(name))
        .filter(|form| libc.contains(form) && !listed.contains(form))
        .collect();
    assert!(missed.is_empty(), "libc has forms that are not listed: {missed:?}");
}
