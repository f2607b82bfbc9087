//! The house: documents name what is there, and files stay of a size that one reads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest file of source, in lines.
const LINES_MAX: usize = 800;
/// Files that may be longer, and why.
const LONGER: [(&str, &str); 2] = [
    ("arena/src/session.rs", "one protocol, and its tests"),
    ("bpfs/src/volatile.rs", "all tables of the derived state, each of a few lines"),
];
/// Longest line of a comment or text, in characters; tables have lines of any length, and code has its formatter.
const WIDTH_MAX: usize = 132;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files that belong to the project, with this ending.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![root()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    dirs.push(path);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

fn name_of(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// What stands between backticks on a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Where a file may be that a document calls so: in the project, in `crates`, or in a crate.
fn resolve(named: &str) -> Vec<PathBuf> {
    let root = root();
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut places = vec![root.clone(), root.join("crates"), root.join("scripts")];
    places.extend(crates.flat_map(|dir| [dir.join("src"), dir.join("tests"), dir]));
    places.into_iter().map(|place| place.join(named)).filter(|path| path.exists()).collect()
}

/// Whether it is the name of one of our files: no place of a user's, no pattern.
fn is_file_name(text: &str) -> bool {
    let endings = [".rs", ".sh", ".md", ".toml"];
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
    is_plain && endings.iter().any(|ending| text.ends_with(ending)) && !text.starts_with(['.', '/'])
}

#[test]
fn documents_name_files_that_are_there() {
    let mut missing = Vec::new();
    for path in files(".md") {
        let text = fs::read_to_string(&path).unwrap();
        for named in text.lines().flat_map(quoted).filter(|named| is_file_name(named)) {
            if resolve(named).is_empty() {
                missing.push(format!("{}: {named}", name_of(&path)));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for path in files(".md") {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there = match fs::read_to_string(&target) {
                Ok(text) => anchor.is_empty() || anchors(&text).contains(anchor),
                Err(_) => target.exists() && anchor.is_empty(),
            };
            if !is_there {
                broken.push(format!("{}: {link}", name_of(&path)));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// `X1`, `X1–X4` or `X1, Y2` at the end of a text: the codes.
fn codes_at_end(text: &str) -> Vec<String> {
    let mut codes = Vec::new();
    for word in text.split_whitespace().rev() {
        let word = word.trim_end_matches(',').trim_start_matches('(');
        let ends = word.split('–');
        let is_code = |code: &str| {
            code.len() <= 3
                && code.starts_with(|c: char| c.is_ascii_uppercase())
                && code[1..].parse::<u32>().is_ok()
        };
        if !ends.clone().all(is_code) {
            break;
        }
        codes.extend(ends.map(str::to_owned));
    }
    codes
}

/// "X1 in `file`", in documents and in source, is where it is said to be.
#[test]
fn invariants_stand_where_they_are_cited() {
    let mut wrong = Vec::new();
    for path in files(".md").into_iter().chain(files(".rs")) {
        let text = fs::read_to_string(&path).unwrap();
        // A citation may go on behind the mark of a comment on the next line.
        let lines =
            text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!']).trim());
        let text = lines.collect::<Vec<_>>().join(" ");
        for (at, _) in text.match_indices(" in `") {
            let Some(named) = text[at + 5..].split('`').next() else { continue };
            let codes = codes_at_end(&text[..at]);
            if codes.is_empty() || named.contains("::") {
                continue;
            }
            let named =
                if named.ends_with(".rs") { named.to_owned() } else { format!("{named}.rs") };
            let beside = path.parent().unwrap().join(&named);
            let places = if beside.exists() { vec![beside] } else { resolve(&named) };
            for code in codes {
                let stands = |place: &PathBuf| {
                    let text = fs::read_to_string(place).unwrap_or_default();
                    [format!("- {code}:"), format!("**{code}"), format!("- {code} ")]
                        .iter()
                        .any(|mark| text.contains(mark))
                };
                if !places.iter().any(stands) {
                    wrong.push(format!("{}: {code} in {named}", name_of(&path)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_and_lines_are_of_a_size_that_one_reads() {
    let mut wrong = Vec::new();
    for path in files(".rs") {
        let name = name_of(&path);
        let text = fs::read_to_string(&path).unwrap();
        let is_excused = LONGER.iter().any(|(file, _)| name.ends_with(file));
        if name.contains("/src/") && text.lines().count() > LINES_MAX && !is_excused {
            wrong.push(format!("{name} has {} lines", text.lines().count()));
        }
    }
    for path in files(".rs").into_iter().chain(files(".md")) {
        let text = fs::read_to_string(&path).unwrap();
        for (i, line) in text.lines().enumerate() {
            let start = line.trim_start();
            let is_code = name_of(&path).ends_with(".rs") && !start.starts_with("//");
            let is_table = start.trim_start_matches(['/', '!', ' ']).starts_with('|');
            let is_link = line.contains("](") || line.contains("http");
            if !is_code && !is_table && !is_link && line.chars().count() > WIDTH_MAX {
                wrong.push(format!(
                    "{}:{}: {} characters",
                    name_of(&path),
                    i + 1,
                    line.chars().count()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
