//! The wording of documents and comments, the size of documents, and names: habits that make a
//! reader stumble.

use super::tidy::{files, name_of, root};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Places with doubtful wording in the whole tree that are defensible.
const PLACES_MAX: usize = 30;
/// Documents with a limit, in lines.
const DOCUMENTS_MAX: [(&str, usize); 2] = [("README.md", 150), ("docs/PERFORMANCE.md", 300)];
/// Longest function, in lines, and functions that may be longer, with the reason.
const FUNCTION_MAX: usize = 150;
const LONG_FUNCTIONS: [(&str, &str); 1] =
    [("syscall", "one flat match, an arm for each system call")];
/// Crates in which one name of a type may be defined.
const CRATES_OF_A_NAME_MAX: usize = 2;

/// Patterns of wording, each with what to write instead.
const WORDING: [(&str, &str); 16] = [
    (
        r"(?:^|[.:;(] |[Ff]or |[Bb]y |[Oo]f |[Tt]o |[Ww]ith |[Aa]s |[Ff]rom )[Ww]ho \w+",
        "name the actor: the caller, a process, a user",
    ),
    (r"\b[Ww]hoever\b", "name the actor: any process, each user that"),
    (
        r"(?:^|[.:;] )What [^?]{3,80}$|(?:^|[.:;] )What [^?.]{3,120}\.",
        "begin with the noun, then the verb",
    ),
    (r"\bso (?:many|much|often|manyth)\b", "name the number: N, up to N"),
    (r"\b(?:gone|goes|go|going) past\b|\bpass(?:es|ed)? by\b", "bypass"),
    (r"\b(?:says|say|said)\b", "records, returns, reports, contains"),
    (
        r"\b(?:is|are|was|were) told\b|\btells? (?:nobody|others|it|them|the)\b",
        "receives, is notified, notifies",
    ),
    (r"\b(?:he|his|him)\b", "it, its, the process, the user"),
    (r"\banew\b|\balike\b|\bby turns\b|\bin turns?\b", "again; the same; alternately"),
    (
        r"\bnone of (?:the \w+'s|ours|theirs|its)\b|\bis none\b|\bis one\b",
        "is not a …, or the name of the thing",
    ),
    (r"\bbeside (?:the|a) mount\b|\bbeside it\b", "by direct access; next to it"),
    (r"\bnobody\b|\bsomebody\b|\beverybody\b", "no process, a process, every user"),
    (r"\blooks? whether\b|\blook(?:s|ed)? at again\b", "checks"),
    (r"\bas far as\b.*\bas far as\b|\bbut for\b|\bbut where\b", "except"),
    (r"\bthat is what\b|\bwhich is what\b|\bwhat for\b", "the thing itself, directly"),
    (r"\bread once more\b", "what the change does"),
];

/// Phrases that begin as a habit does and are ordinary English.
const ORDINARY: [&str; 4] = ["What to ", "What happens ", "What follows", "What if "];

fn wording() -> Vec<(Regex, &'static str)> {
    WORDING.iter().map(|(pattern, instead)| (Regex::new(pattern).unwrap(), *instead)).collect()
}

/// Returns what to write instead of the wording of this line, if it has one of the habits.
fn stumbles(rules: &[(Regex, &'static str)], prose: &str) -> Option<&'static str> {
    let found = rules.iter().find(|(pattern, _)| {
        pattern.find_iter(prose).any(|m| !ORDINARY.iter().any(|start| m.as_str().contains(start)))
    });
    found.map(|(_, instead)| *instead)
}

/// Returns the comment of a source line, if it has one.
fn comment(line: &str) -> Option<&str> {
    let start = line.trim_start();
    if let Some(comment) = start.strip_prefix("//") {
        return Some(comment.trim_start_matches(['/', '!']).trim());
    }
    let (code, comment) = line.split_once("// ")?;
    code.trim_end().ends_with([';', '{', '}', ')', ',']).then_some(comment.trim())
}

/// Returns the lines of prose in a file, numbered: comments of sources and scripts, text of
/// documents.
fn prose(path: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let is_document = path.extension().is_some_and(|ending| ending == "md");
    let is_source = path.extension().is_some_and(|ending| ending == "rs");
    let mut in_code = false;
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let kept = if is_document {
            in_code ^= line.starts_with("```");
            let is_table = line.trim_start().starts_with('|') || line.starts_with("    ");
            (!in_code && !is_table).then_some(line)
        } else if is_source {
            comment(line)
        } else {
            line.trim_start().strip_prefix("# ")
        };
        found.extend(kept.map(|text| (i + 1, text.to_owned())));
    }
    found
}

#[test]
fn wording_is_plain() {
    let rules = wording();
    assert!(stumbles(&rules, "it takes the lock of whoever holds it").is_some());
    assert!(stumbles(&rules, "The server says which block it is.").is_some());
    assert!(stumbles(&rules, "The server returns the number of the block.").is_none());
    let mut places = Vec::new();
    let paths = [".md", ".rs", ".sh", ".py"].into_iter().flat_map(files);
    for path in paths.filter(|path| !path.ends_with("tests/it/language.rs")) {
        for (line, text) in prose(&path) {
            if let Some(instead) = stumbles(&rules, &text) {
                places.push(format!("{}:{line}: {text} -> {instead}", name_of(&path)));
            }
        }
    }
    let count = places.len();
    assert!(count <= PLACES_MAX, "{count} places, {PLACES_MAX} may stay: {places:#?}");
}

/// Checks that the first lines of a generated document state the formats on which it was measured,
/// and that all have these versions.
fn is_current(head: &str, versions: &BTreeMap<String, u32>) -> Result<(), String> {
    let (_, formats) = head.split_once("formats: ").ok_or("no `formats:` in its first lines")?;
    for format in formats.trim_end_matches('.').split(", ").map(str::trim) {
        if format == "none" {
            continue;
        }
        let (name, version) = format.split_once(' ').ok_or(format!("`{format}` has no version"))?;
        let measured: u32 = version.parse().map_err(|_| format!("`{format}` has no version"))?;
        match versions.get(name) {
            Some(current) if *current == measured => {}
            Some(current) => return Err(format!("measured on {name} {measured}, now {current}")),
            None => return Err(format!("no format is called `{name}`")),
        }
    }
    Ok(())
}

/// Formats on the media and their versions, from the titles of `docs/format`.
fn formats() -> BTreeMap<String, u32> {
    let mut versions = BTreeMap::new();
    for path in files(".md").iter().filter(|path| name_of(path).starts_with("docs/format/")) {
        let text = fs::read_to_string(path).unwrap();
        let title = text.lines().next().unwrap_or_default();
        let version = title.rsplit_once("version ").and_then(|(_, number)| number.parse().ok());
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        versions.extend(version.map(|version| (name, version)));
    }
    assert!(versions.len() >= 5, "{versions:?}");
    versions
}

/// A table is no older than the format that it measures, and its commit is known.
#[test]
fn measurements_are_of_the_present_formats() {
    let versions = formats();
    let bpfs = versions["bpfs"];
    assert!(is_current(&format!("formats: bpfs {bpfs}"), &versions).is_ok());
    assert!(is_current(&format!("formats: bpfs {}", bpfs - 1), &versions).is_err());
    let mut wrong = Vec::new();
    let dirs = ["docs/measurements/", "docs/papers/"];
    let measured =
        files(".md").into_iter().filter(|p| dirs.iter().any(|dir| name_of(p).starts_with(dir)));
    for path in measured.filter(|path| !path.ends_with("README.md")) {
        let text = fs::read_to_string(&path).unwrap();
        let heads = text.split("\n\n").filter(|part| part.starts_with("Measured: "));
        let heads: Vec<_> = heads.map(|head| head.replace('\n', " ")).collect();
        if heads.is_empty() {
            wrong.push(format!("{}: no paragraph begins with `Measured: `", name_of(&path)));
        }
        for head in &heads {
            for what in ["commit ", "machine: ", "command: "] {
                if !head.contains(what) {
                    wrong.push(format!("{}: no `{what}` in `{head}`", name_of(&path)));
                }
            }
            if head.contains("-dirty") {
                wrong.push(format!("{}: not of a commit: `{head}`", name_of(&path)));
            }
            if let Err(why) = is_current(head, &versions) {
                wrong.push(format!("{}: {why}", name_of(&path)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn documents_are_short() {
    for (name, most) in DOCUMENTS_MAX {
        let lines = fs::read_to_string(root().join(name)).unwrap().lines().count();
        assert!(lines <= most, "{name} has {lines} lines, and may have {most}");
    }
}

/// Codes of invariants without their module, such as a lone `C1` in brackets.
#[test]
fn codes_of_invariants_name_their_module() {
    let bare = Regex::new(r"(?:^|[ (])[A-Z][0-9]{1,2}(?:[):,.]|$)").unwrap();
    assert!(bare.is_match("as C1: it lives") && !bare.is_match("as vfs-C1: it lives"));
    let mut found = Vec::new();
    for path in files(".rs") {
        for (line, text) in prose(&path) {
            // Standards and their versions: C11, an S3 bucket.
            let text = text.replace("C11", "").replace("S3", "");
            if bare.is_match(&text) && !path.ends_with("tests/it/language.rs") {
                found.push(format!("{}:{line}: {text}", name_of(&path)));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Returns the functions of a source, by name, with their lines.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<_> = text.lines().collect();
    let head = Regex::new(
        r#"^(\s*)(?:pub(?:\([a-z: ]+\))? )?(?:const )?(?:unsafe )?(?:extern "C" )?fn (\w+)"#,
    );
    let head = head.unwrap();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let Some(of) = head.captures(line) else { continue };
        let close = format!("{}}}", &of[1]);
        let is_last = |line: &&str| line.starts_with(&close) || line.ends_with(';');
        let body = lines[i..].iter().position(|line| line.ends_with('{'));
        let first = lines[i..].iter().position(is_last).unwrap_or(0);
        let Some(body) = body.filter(|body| *body <= first) else { continue };
        let len = lines[i + body..].iter().position(|line| line.starts_with(&close));
        found.extend(len.map(|len| (of[2].to_owned(), body + len + 1)));
    }
    found
}

#[test]
fn functions_are_of_a_size_that_one_reads() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for path in files(".rs") {
        for (name, lines) in functions(&fs::read_to_string(&path).unwrap()) {
            count += 1;
            if lines > FUNCTION_MAX && !LONG_FUNCTIONS.iter().any(|(long, _)| *long == name) {
                wrong.push(format!("{}: {name} has {lines} lines", name_of(&path)));
            }
        }
    }
    assert!(wrong.is_empty() && count > 5000, "{count} functions, {wrong:#?}");
}

/// A reader who meets a type's name knows which one it is.
#[test]
fn a_type_name_stands_in_two_crates_at_most() {
    let head = r"(?m)^\s*(?:pub(?:\([a-z: ]+\))? )?(?:struct|enum|trait|union) (\w+)";
    let head = Regex::new(head).unwrap();
    let associated: BTreeSet<_> = ["Target", "Err", "Error", "Output", "Item"].into();
    let mut names = BTreeMap::<String, BTreeSet<String>>::new();
    for path in files(".rs") {
        let name = name_of(&path);
        let Some((one, _)) = name.split_once("/src/").filter(|_| name.starts_with("crates/"))
        else {
            continue;
        };
        let text = fs::read_to_string(&path).unwrap();
        for found in head.captures_iter(&text).filter(|found| !associated.contains(&found[1])) {
            names.entry(found[1].to_owned()).or_default().insert(one.to_owned());
        }
    }
    assert!(names.len() > 500, "{}", names.len());
    names.retain(|_, crates| crates.len() > CRATES_OF_A_NAME_MAX);
    assert!(names.is_empty(), "{names:#?}");
}
