//! Bugs planted in the engines' source, to measure the explorer.
//!
//! A catalogue is a text file. Each bug names a source file, a piece of its text that occurs
//! exactly once, and the text that replaces it. [`weave`] puts all bugs into one copy of the
//! source, each behind a switch that the program reads when it starts ([`SWITCH`]). So one build
//! serves all bugs ("mutant schemata", Untch et al., ISSTA 1993). Other builds of the source
//! contain no trace of the switch.
//!
//! [`all`] adds a bug to those of the files for each flush and fence that is a statement of its
//! own: the statement is missing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The environment variable that selects the bug, by its number from 1.
pub const SWITCH: &str = "KEEPSTONE_PLANTED";

/// The engines, with two entries each. The catalogue holds the bugs in the engine's crate and in
/// crates that it uses. The crates are those whose flushes and fences add one bug each: the
/// engine's own, and crates that store on behalf of several engines.
const ENGINES: [(&str, &str, &[&str]); 5] = [
    ("bpfs", include_str!("../catalogue/bpfs.txt"), &["engines/bpfs", "tree/namespace"]),
    ("cache", include_str!("../catalogue/cache.txt"), &[]),
    ("model", include_str!("../catalogue/modelfs.txt"), &["engines/modelfs"]),
    ("pmbd", include_str!("../catalogue/pmbd.txt"), &["block/pmbd"]),
    ("scmfs", include_str!("../catalogue/scmfs.txt"), &["engines/scmfs"]),
];

/// The files that get the switch: the roots of crates on which those with bugs depend. A cache does
/// not depend on `pmem`.
const SWITCH_FILES: [&str; 2] = ["base/pmem/src/lib.rs", "tree/vfs/src/lib.rs"];

/// Returns the crate whose switch the code in a file reads.
fn switch_crate(file: &str) -> &'static str {
    if file.starts_with("cache/") { "vfs" } else { "pmem" }
}

/// Returns the source text of the switch.
fn switch() -> String {
    format!(
        r#"
/// Which bug is there.
pub mod planted {{
    static WHICH: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {{
        std::env::var("{SWITCH}").ok().and_then(|n| n.parse().ok()).unwrap_or(0)
    }});

    /// Whether it is this one.
    #[inline]
    pub fn is(n: u32) -> bool {{
        *WHICH == n
    }}
}}
"#
    )
}

/// A bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planted {
    /// Its name.
    pub name: String,
    /// The engine whose judge is to find it, one of [`ENGINES`](crate::judge::ENGINES).
    pub engine: &'static str,
    /// The file, below `crates/`.
    pub file: String,
    /// The function that contains the text, by the text of its head; `None` if the text occurs once
    /// in the file.
    pub within: Option<String>,
    /// The correct text.
    pub old: String,
    /// The text that replaces it.
    pub new: String,
    /// The reason why the explorer need not find it.
    pub argued: Option<String>,
}

/// Returns all bugs; their numbers are their positions, from 1. `crates` is the folder with the
/// sources.
pub fn all(crates: &Path) -> Result<Vec<Planted>, String> {
    let (mut all, mut all_missing) = (Vec::new(), Vec::new());
    for (engine, text, sources) in ENGINES {
        let (bugs, argued) = parse(engine, text)?;
        all.extend(bugs);
        let mut missing = Vec::new();
        for source in sources {
            missing.extend(missing_orders(crates, engine, source)?);
        }
        for (place, why) in argued {
            let mut of_place =
                missing.iter_mut().filter(|bug| bug.name.contains(&place)).peekable();
            of_place.peek().ok_or_else(|| format!("no flush or fence is `{place}`"))?;
            of_place.for_each(|bug| bug.argued = Some(why.clone()));
        }
        all_missing.extend(missing);
    }
    all.extend(all_missing);
    let mut names: Vec<&str> = all.iter().map(|bug| bug.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two bugs are called `{}`", pair[0])),
        None => Ok(all),
    }
}

/// Bugs, and the places of flushes and fences whose absence the explorer need not find, each with
/// the reason.
type Parsed = (Vec<Planted>, Vec<(String, String)>);

/// Parses a catalogue. A bug has the lines `bug NAME` and `file FILE`, and optionally `in FUNCTION`
/// and `argued REASON`. Then follow the old text, each line after `-`, and the new text, each line
/// after `+`. A line `order PLACE | REASON` gives the reason for a flush or fence. `#` starts a
/// comment.
fn parse(engine: &'static str, text: &str) -> Result<Parsed, String> {
    let mut bugs: Vec<Planted> = Vec::new();
    let mut orders = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let bad = |what: &str| format!("line {} of a catalogue: {what}: `{line}`", n + 1);
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (verb, bugs.last_mut()) {
            ("" | "#", _) => {}
            ("order", _) => {
                let (place, why) = rest.split_once(" | ").ok_or_else(|| bad("no reason"))?;
                orders.push((place.to_owned(), why.to_owned()));
            }
            ("bug", _) => bugs.push(Planted {
                name: rest.to_owned(),
                engine,
                file: String::new(),
                within: None,
                old: String::new(),
                new: String::new(),
                argued: None,
            }),
            ("file", Some(bug)) => bug.file = rest.to_owned(),
            ("in", Some(bug)) => bug.within = Some(rest.to_owned()),
            ("argued", Some(bug)) => bug.argued = Some(rest.to_owned()),
            ("-", Some(bug)) => append(&mut bug.old, rest),
            ("+", Some(bug)) => append(&mut bug.new, rest),
            _ => return Err(bad("not understood")),
        }
    }
    Ok((bugs, orders))
}

fn append(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line.trim());
}

/// Returns all source files in a folder and its subfolders, in order.
pub fn sources(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut entries = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    let mut all = Vec::new();
    for path in entries {
        if path.is_dir() {
            all.extend(sources(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push(path);
        }
    }
    Ok(all)
}

/// Returns one bug for each flush and fence in a crate of an engine that is a statement of one
/// line: the statement is missing.
fn missing_orders(
    crates: &Path,
    engine: &'static str,
    source: &str,
) -> Result<Vec<Planted>, String> {
    let folder = crates.join(source).join("src");
    let text = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut all = Vec::new();
    for path in sources(&folder).map_err(text)? {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let file = path.strip_prefix(crates).ok().and_then(Path::to_str).unwrap_or_default();
        let source = std::fs::read_to_string(&path).map_err(text)?;
        let mut head = "";
        let mut met: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for line in source.lines().take_while(|line| !line.starts_with("#[cfg(test)]")) {
            let code = line.trim();
            head = head_of(code).unwrap_or(head);
            let orders = |order: &str| {
                ["medium.", "medium()."].iter().any(|of| code.contains(&format!("{of}{order}")))
            };
            let is_flush = orders("flush(") && !code.contains("let ");
            let is_fence = code.starts_with("let _ = ") && orders("fence();");
            if !(is_flush || is_fence) || !code.ends_with(';') {
                continue;
            }
            let nth = met.entry((head, code)).or_default();
            *nth += 1;
            let function = head.rsplit(' ').next().unwrap_or(head);
            let number = if *nth > 1 { format!(" ({nth})") } else { String::new() };
            all.push(Planted {
                name: format!("{name} {function}: without {}{number}", code.trim_end_matches(';')),
                engine,
                file: file.to_owned(),
                within: Some(format!("{head}#{nth}")),
                old: code.to_owned(),
                new: String::new(),
                argued: None,
            });
        }
    }
    Ok(all)
}

/// Returns `fn NAME` if a line is the head of a function.
fn head_of(code: &str) -> Option<&str> {
    let at = code.find("fn ").filter(|at| *at == 0 || code.starts_with("pub"))?;
    code[at..].split(['(', '<']).next()
}

/// Finds a bug's text in its file.
fn place(source: &str, bug: &Planted) -> Result<Range<usize>, String> {
    let (head, nth) = match bug.within.as_deref().and_then(|w| w.split_once('#')) {
        Some((head, nth)) => {
            (Some(head), nth.parse().map_err(|_| format!("{}: no number", bug.name))?)
        }
        None => (bug.within.as_deref(), 1),
    };
    let scope = match head {
        None => 0..source.len(),
        Some(head) => function(source, head).map_err(|what| format!("{}: {what}", bug.name))?,
    };
    let found = occurrences(source, scope, &bug.old);
    let is_numbered = bug.within.as_deref().is_some_and(|w| w.contains('#'));
    match found.get(nth - 1) {
        Some(range) if is_numbered || found.len() == 1 => Ok(range.clone()),
        _ => Err(format!("{}: its text is in {} {} times", bug.name, bug.file, found.len())),
    }
}

/// Finds the text of the only function whose head contains `head`.
fn function(source: &str, head: &str) -> Result<Range<usize>, String> {
    let is_of = |at: &usize| {
        let behind = source[at + head.len()..].chars().next();
        let line = source[..*at].rfind('\n').map_or(0, |n| n + 1);
        let before = source[line..*at].trim();
        (before.is_empty() || before.starts_with("pub"))
            && behind.is_none_or(|c| !(c.is_alphanumeric() || c == '_'))
    };
    let found: Vec<usize> = source.match_indices(head).map(|(at, _)| at).filter(is_of).collect();
    let [at] = found[..] else {
        return Err(format!("`{head}` is there {} times", found.len()));
    };
    let line = source[..at].rfind('\n').map_or(0, |n| n + 1);
    let indent: String = source[line..].chars().take_while(|c| *c == ' ').collect();
    let end = source[at..].find(&format!("\n{indent}}}\n")).ok_or("the function has no end")?;
    Ok(at..at + end)
}

/// Finds all places of a text in a part of the source; indentation does not count.
fn occurrences(source: &str, scope: Range<usize>, text: &str) -> Vec<Range<usize>> {
    let first = text.lines().next().unwrap_or_default();
    let starts = source[scope.clone()].match_indices(first).map(|(at, _)| scope.start + at);
    let matched = starts.filter_map(|start| {
        let mut at = start;
        for (i, line) in text.lines().enumerate() {
            if i > 0 {
                at += source[at..]
                    .strip_prefix('\n')
                    .map(|rest| 1 + rest.len() - rest.trim_start_matches(' ').len())?;
            }
            at += source[at..].starts_with(line).then_some(line.len())?;
        }
        Some(start..at)
    });
    matched.filter(|range| range.end <= scope.end).collect()
}

/// The place of a bug in a file, and its number from 1.
type Placed = (Range<usize>, u32);

/// Returns the text of all files that the bugs change, with the bugs in them, by their names below
/// `crates/`. Fails if a bug's text does not occur exactly once, or overlaps another's without
/// being inside it.
pub fn weave(crates: &Path, bugs: &[Planted]) -> Result<BTreeMap<String, String>, String> {
    let mut files: BTreeMap<&str, (String, Vec<Placed>)> = BTreeMap::new();
    let read = |file: &str| {
        let path = crates.join(file);
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    let mut lost = Vec::new();
    for (i, bug) in bugs.iter().enumerate() {
        let (source, places) = match files.entry(&bug.file) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(file) => file.insert((read(&bug.file)?, Vec::new())),
        };
        match place(source, bug) {
            Ok(range) => places.push((range, i as u32 + 1)),
            Err(what) => lost.push(what),
        }
    }
    if !lost.is_empty() {
        return Err(lost.join("\n"));
    }
    let mut woven = BTreeMap::new();
    for (file, (source, mut places)) in files {
        places.sort_by_key(|(range, number)| (range.start, std::cmp::Reverse(range.end), *number));
        woven.insert(file.to_owned(), render(&source, 0..source.len(), &places, bugs)?);
    }
    for file in SWITCH_FILES {
        woven.insert(file.to_owned(), read(file)? + &switch());
    }
    Ok(woven)
}

/// Renders a part of a file with its bugs, which may lie inside each other.
fn render(
    source: &str,
    part: Range<usize>,
    mut places: &[Placed],
    bugs: &[Planted],
) -> Result<String, String> {
    let mut out = String::new();
    let mut done = part.start;
    while let Some((range, first)) = places.first() {
        let same = places.partition_point(|(other, _)| other == range);
        let inside = places.partition_point(|(other, _)| other.start < range.end);
        if let Some((_, other)) = places[..inside].iter().find(|(other, _)| other.end > range.end) {
            let [one, other] = [first, other].map(|n| &bugs[*n as usize - 1].name);
            return Err(format!("the texts of `{one}` and `{other}` overlap"));
        }
        out.push_str(&source[done..range.start]);
        let right = render(source, range.clone(), &places[same..inside], bugs)?;
        let is_statement = source[range.clone()].ends_with([';', '}']);
        let numbers = places[..same].iter().map(|(_, number)| *number);
        out.push_str(&switched(&right, is_statement, numbers, bugs));
        done = range.end;
        places = &places[inside..];
    }
    out.push_str(&source[done..part.end]);
    Ok(out)
}

/// Returns code that chooses between the correct text and the wrong ones. It is a statement if
/// `is_statement`, else an expression.
fn switched(
    right: &str,
    is_statement: bool,
    numbers: impl Iterator<Item = u32>,
    bugs: &[Planted],
) -> String {
    let mut out = if is_statement { String::new() } else { "(".to_owned() };
    for number in numbers {
        let Planted { new, file, .. } = &bugs[number as usize - 1];
        let _ = write!(out, "if ::{}::planted::is({number}) ", switch_crate(file));
        let _ = write!(out, "{{ {new} }} else ");
    }
    let _ = write!(out, "{{ {right} }}");
    if !is_statement {
        out.push(')');
    }
    out
}
