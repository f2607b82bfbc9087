//! Rules for the repository: documents name files that exist, and files stay short enough to read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

/// Longest file of source, in lines.
const LINES_MAX: usize = 800;
/// Longest line of a comment or text, in characters; tables have lines of any length, and code has
/// its formatter.
const WIDTH_MAX: usize = 100;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Returns the files of the project with this ending.
pub fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![root()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                // Code of other projects in `vendor` keeps their style.
                if name != "target" && name != "vendor" && !name.starts_with('.') {
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

pub fn name_of(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// Returns the texts between backticks on a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the folders directly in `dir`.
pub fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

/// Returns the shelves of crates: the folders in `crates`.
pub fn shelves() -> Vec<PathBuf> {
    folders(&root().join("crates"))
}

/// Returns the paths that a document may mean by a file name: in the project, in `crates`, on a
/// shelf, or in a crate.
fn resolve(named: &str) -> Vec<PathBuf> {
    let root = root();
    let mut places = vec![root.clone(), root.join("crates"), root.join("scripts")];
    for shelf in shelves() {
        places.extend(
            folders(&shelf).into_iter().flat_map(|c| [c.join("src"), c.join("tests/it"), c]),
        );
        places.push(shelf);
    }
    places.into_iter().map(|place| place.join(named)).filter(|path| path.exists()).collect()
}

/// Returns whether a text is the name of a file of the project, rather than a user's path or a
/// pattern.
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

/// Returns the anchors of a document's headings, as GitHub makes them.
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

#[test]
fn the_book_has_every_document() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let missing: Vec<_> = files(".md")
        .iter()
        .filter_map(|path| path.strip_prefix(&docs).ok().map(|path| path.display().to_string()))
        .filter(|path| path != "SUMMARY.md" && !summary.contains(&format!("({path})")))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
}

/// Returns the text of comments, or of a document, as one line.
fn prose(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let is_source = path.extension().is_some_and(|ending| ending == "rs");
    let comment = |line: &str| match is_source {
        true => line.split_once("//").map(|(_, comment)| comment.to_owned()),
        false => Some(line.to_owned()),
    };
    let lines = text.lines().filter_map(comment);
    lines
        .map(|line| line.trim_start_matches(['/', '!']).trim().to_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the codes of invariants in a text, `module-X1`: module, letter, number. A range such as
/// `module-X1–X3` yields all three.
fn codes(text: &str) -> Vec<(String, char, u32)> {
    let mut codes = Vec::new();
    let parse = |code: &str| {
        let mut rest = code.chars();
        let letter = rest.next().filter(char::is_ascii_uppercase)?;
        Some((letter, rest.as_str().parse::<u32>().ok()?))
    };
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '–';
    for word in text.split(|c: char| !is_of_word(c)).filter(|word| word.contains('-')) {
        let (first, last) = word.split_once('–').unwrap_or((word, ""));
        let Some((module, code)) = first.rsplit_once('-') else { continue };
        let is_module = module.starts_with(|c: char| c.is_ascii_lowercase())
            && module.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let Some((letter, number)) = parse(code).filter(|_| is_module) else { continue };
        let end = parse(last).filter(|(other, _)| *other == letter).map_or(number, |last| last.1);
        codes.extend((number..=end).map(|number| (module.to_owned(), letter, number)));
    }
    codes
}

/// Each invariant is defined once, at the head of a list item, in the module that its code names.
/// It is cited at least once, where code keeps it or relies on it. Each cited code is defined.
#[test]
fn invariants_stand_where_their_codes_say() {
    let mut wrong = Vec::new();
    let mut said = BTreeSet::new();
    let mut mentions = BTreeMap::<_, u32>::new();
    for path in files(".rs") {
        let parts: Vec<_> =
            path.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let item = line
                .trim_start()
                .strip_prefix("//! - ")
                .or(line.trim_start().strip_prefix("/// - "));
            let Some(item) = item else { continue };
            let head =
                item.trim_start_matches("**").split([':', '*', ' ']).next().unwrap_or_default();
            let [code] = &codes(head)[..] else { continue };
            let is_head = item.starts_with("**") || item[head.len()..].starts_with(':');
            if is_head && !(said.insert(code.clone()) && parts.contains(&code.0)) {
                wrong.push(format!("{}: {head} is said twice, or elsewhere", name_of(&path)));
            }
        }
    }
    assert!(said.len() > 100, "{}", said.len());
    for path in files(".md").into_iter().chain(files(".rs")) {
        if path.ends_with("tests/it/tidy.rs") {
            continue;
        }
        for code in codes(&prose(&path)) {
            if !said.contains(&code) {
                let (module, letter, number) = &code;
                wrong.push(format!("{}: {module}-{letter}{number} is nowhere", name_of(&path)));
            }
            *mentions.entry(code).or_default() += 1;
        }
    }
    for (module, letter, number) in said.iter().filter(|code| mentions[code] < 2) {
        wrong.push(format!("{module}-{letter}{number} is cited nowhere"));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_and_lines_are_of_a_size_that_one_reads() {
    let mut wrong = Vec::new();
    for path in files(".rs") {
        let name = name_of(&path);
        let text = fs::read_to_string(&path).unwrap();
        if text.lines().count() > LINES_MAX {
            wrong.push(format!("{name} has {} lines", text.lines().count()));
        }
    }
    for path in files(".rs").into_iter().chain(files(".md")) {
        let text = fs::read_to_string(&path).unwrap();
        let mut in_code = false;
        for (i, line) in text.lines().enumerate() {
            let start = line.trim_start();
            // Commands and output stay on their lines.
            in_code ^= start.trim_start_matches(['/', '!', ' ']).starts_with("```");
            let is_code = name_of(&path).ends_with(".rs") && !start.starts_with("//");
            let text = start.trim_start_matches(['/', '!', ' ']);
            let is_table = text.starts_with('|') || text.starts_with("---");
            let is_link = line.contains("](") || line.contains("http");
            if !in_code && !is_code && !is_table && !is_link && line.chars().count() > WIDTH_MAX {
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

/// Paragraphs of help are one line each, which clap wraps to the width of the terminal. In the
/// source a backslash continues them.
#[test]
fn help_is_not_wrapped_by_hand() {
    let texts = Regex::new(r#"after_help = "((?:[^"\\]|\\(?s:.))*)""#).unwrap();
    let mut wrong = Vec::new();
    for path in files(".rs") {
        let source = fs::read_to_string(&path).unwrap();
        for text in texts.captures_iter(&source) {
            let joined = text[1].replace("\\\n", "");
            let lines: Vec<_> = joined.lines().collect();
            for pair in lines.windows(2) {
                let is_prose = |line: &str| !line.is_empty() && !line.starts_with([' ', '`']);
                let is_ended = pair[0].ends_with(['.', ':']) || pair[0].starts_with("Example:");
                if is_prose(pair[0]) && is_prose(pair[1]) && !is_ended {
                    wrong.push(format!("{}: {}", name_of(&path), pair[0]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the shelves from the top, as in the picture of ARCHITECTURE, each with the crates on its
/// line.
fn picture() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let picture = text.split("```").find(|part| part.trim_start().starts_with("shelf")).unwrap();
    let shelves: BTreeSet<_> = shelves().iter().map(|path| base_name(path)).collect();
    let lines = picture.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let shelf = words.next().filter(|word| shelves.contains(*word))?.to_owned();
        let has_crate =
            |word: &&str| root().join("crates").join(&shelf).join(word).join("Cargo.toml").exists();
        let crates = words.take_while(has_crate).map(str::to_owned).collect();
        Some((shelf, crates))
    });
    lines.collect()
}

fn base_name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Returns the names of the crates that the program of a crate depends on, other projects' among
/// them. Dependencies of its tests do not count.
fn dependencies(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).unwrap();
    let parts = text.split("\n[").filter(|part| {
        let head = part.lines().next().unwrap_or_default();
        head.ends_with("dependencies]") && !head.contains("dev-")
    });
    let names = parts.flat_map(str::lines).filter_map(|line| line.split(['.', ' ', '=']).next());
    names.map(str::to_owned).collect()
}

/// Dependencies point downwards, and the picture shows every crate on its shelf.
#[test]
fn crates_depend_on_their_shelf_and_those_below() {
    let picture = picture();
    let level = |name: &str| picture.iter().position(|(_, crates)| crates.contains(name));
    let mut wrong = Vec::new();
    let mut count = 0;
    for shelf in shelves() {
        let name = base_name(&shelf);
        let crates: BTreeSet<_> = folders(&shelf).iter().map(|path| base_name(path)).collect();
        if !picture.contains(&(name.clone(), crates.clone())) {
            wrong.push(format!("{name}: the picture of ARCHITECTURE does not show {crates:?}"));
            continue;
        }
        for from in &crates {
            for to in dependencies(&shelf.join(from).join("Cargo.toml")) {
                // A crate of another project stands on no shelf.
                let Some(below) = level(&to) else { continue };
                count += 1;
                if Some(below) < level(from) {
                    wrong.push(format!("{from} depends on {to}, which stands above it"));
                }
            }
        }
        if !shelf.join("README.md").exists() {
            wrong.push(format!("{name} has no README.md"));
        }
    }
    assert!(wrong.is_empty() && count > 80, "{count} arrows, {wrong:#?}");
}

/// Returns the files that git tracks.
fn tracked() -> Vec<PathBuf> {
    let listed = Command::new("git")
        // Another user may own the checkout.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<_> = names.split_terminator('\0').map(|name| root().join(name)).collect();
    assert!(!files.is_empty());
    files
}

/// Returns whether git left this line at a conflict of a merge. A line of `=` alone does not count,
/// because text underlines headings so.
fn is_merge_marker(line: &[u8]) -> bool {
    [b'<', b'|', b'>'].iter().any(|mark| {
        let rest = line.strip_prefix(&[*mark; 7]);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b" "))
    })
}

#[test]
fn merges_are_complete() {
    assert!(is_merge_marker(&b"<".repeat(7)), "git writes the mark alone where it has no name");
    let mut marked = Vec::new();
    for path in tracked().iter().filter(|path| path.is_file()) {
        let text = fs::read(path).unwrap();
        let lines = text.split(|byte| *byte == b'\n').enumerate();
        let found = lines.filter(|(_, line)| is_merge_marker(line));
        marked.extend(found.map(|(i, _)| format!("{}:{}", name_of(path), i + 1)));
    }
    assert!(marked.is_empty(), "{marked:#?}");
}

/// Each promise of SECURITY.md names the test that checks it, `PATH::NAME` or `security-tests
/// SUITE`, or a document.
#[test]
fn promises_of_security_name_tests_that_are_there() {
    let text = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let promises = text.split("\n## ").find(|part| part.starts_with("Promises")).unwrap();
    let suites = fs::read_to_string(root().join("scripts/test/security/run.sh")).unwrap();
    let suites = suites.split("\nsuites=(").nth(1).unwrap().split(')').next().unwrap().to_owned();
    let suites: BTreeSet<_> = suites.split_whitespace().collect();
    let has = |path: &str, function: &str| {
        let is_there =
            |path: PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains(function));
        resolve(path).into_iter().any(is_there)
    };
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    for line in promises.lines().filter(|line| line.starts_with('|')) {
        let holder = line.split('|').nth(2).unwrap().trim();
        if holder.starts_with("---") || holder == "held by" || holder.starts_with('[') {
            continue;
        }
        let tests: Vec<_> = quoted(holder).collect();
        if tests.is_empty() {
            wrong.push(format!("{line}: no test"));
        }
        for test in tests {
            let is_there = match (test.strip_prefix("security-tests "), test.split_once("::")) {
                (Some(suite), _) => {
                    named.insert(suite);
                    suites.contains(suite)
                }
                (None, Some((path, name))) => has(path, &format!("fn {name}")),
                (None, None) => false,
            };
            if !is_there {
                wrong.push(format!("{test}: no such test"));
            }
        }
    }
    let unnamed = suites.iter().filter(|suite| !named.contains(**suite));
    wrong.extend(unnamed.map(|suite| format!("security-tests {suite}: holds no promise")));
    assert!(!named.is_empty() && wrong.is_empty(), "{wrong:#?}");
}
