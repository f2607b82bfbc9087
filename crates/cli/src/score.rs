//! `keepstone crashtest --score`: bugs planted in the engines' source, and which of them the explorer finds.
//!
//! The source is copied and built once, with all bugs behind a switch (`judges::catalogue`); each bug is then
//! judged by a process of its own, because a bug may loop for ever or abort.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use judges::catalogue::{self, Planted, SWITCH};
use judges::judge::{self, Verdict};
use serde::Serialize;

use crate::crashtest::bar;
use crate::output;

/// What does not end takes so many times as long as what has no bug, and as much longer.
const PATIENCE: (f64, Duration) = (4.0, Duration::from_secs(60));
/// How often to look whether a judge is done.
const POLL: Duration = Duration::from_millis(20);
/// Who finds a bug that makes an operation loop for ever.
const HANGS: &str = "it does not end";

/// What became of a bug.
#[derive(Debug, Serialize)]
struct Row {
    bug: String,
    /// Who found it.
    found_by: Option<String>,
    /// Why it may stay unfound.
    argued: Option<String>,
    states: u64,
    seconds: f64,
    what: String,
    replay: String,
}

impl Row {
    /// As in the table.
    fn line(&self) -> String {
        let Self { bug, found_by, argued, states, seconds, .. } = self;
        let by = match (found_by, argued) {
            (Some(by), _) => by,
            (None, Some(_)) => "nobody: argued",
            (None, None) => "NOBODY",
        };
        format!("{bug:78} {by:24} {states:>9} {seconds:>8.1}")
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    bugs: usize,
    found: usize,
    argued: usize,
    unfound: usize,
    rows: Vec<Row>,
}

/// Plants bugs, of one engine or of all, at most `limit` of them, spread evenly, and judges them, `threads` at a time.
pub fn run(
    engine: Option<&'static str>,
    limit: Option<u64>,
    threads: u16,
    json: bool,
) -> Result<ExitCode> {
    let root = source()?;
    let crates = root.join("crates");
    let bugs = catalogue::all(&crates).map_err(|e| anyhow!("the catalogue of bugs: {e}"))?;
    let judge = build(&root, &bugs)?;
    let mut patience = Duration::ZERO;
    let is_asked = |of: &str| engine.is_none_or(|engine| engine == of);
    for engine in judge::ENGINES.into_iter().filter(|of| is_asked(of)) {
        output::notice(format_args!("judging {engine} without a bug: how long that takes"));
        let sound = examine(&judge, 0, engine, Duration::MAX)?;
        if let Some(by) = sound.by {
            bail!(
                "no bug is planted, and {by} finds one in {engine}: {} ({})",
                sound.what,
                sound.replay
            );
        }
        output::notice(format_args!(
            "{engine} is sound: {} states, {:.0} seconds",
            sound.states, sound.seconds
        ));
        patience =
            patience.max(Duration::from_secs_f64(sound.seconds).mul_f64(PATIENCE.0) + PATIENCE.1);
    }
    // Bugs are known by their place in the list.
    let asked: Vec<usize> = (0..bugs.len()).filter(|i| is_asked(bugs[*i].engine)).collect();
    let tried = limit.map_or(asked.len(), |limit| asked.len().min(limit as usize));
    let chosen: Vec<usize> = (0..tried).map(|i| asked[i * asked.len() / tried.max(1)]).collect();
    let bar = bar("planted bugs");
    bar.set_length(tried as u64);
    let next = AtomicUsize::new(0);
    let rows: Mutex<BTreeMap<usize, Result<Row>>> = Mutex::default();
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                while let Some(&i) = chosen.get(next.fetch_add(1, Relaxed)) {
                    let row = row(&judge, i, &bugs[i], patience);
                    // Where no bar is shown, as there is no terminal.
                    if let (true, Ok(row)) = (bar.is_hidden(), &row) {
                        output::notice(format_args!("{}", row.line()));
                    }
                    rows.lock().expect("no worker panics").insert(i, row);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let rows = rows.into_inner().expect("no worker panics");
    conclude(rows.into_values().collect::<Result<_>>()?, json)
}

/// Judges one bug.
fn row(judge: &Path, i: usize, bug: &Planted, patience: Duration) -> Result<Row> {
    let Verdict { by, states, seconds, what, replay } =
        examine(judge, i + 1, bug.engine, patience)?;
    Ok(Row {
        bug: bug.name.clone(),
        found_by: by,
        argued: bug.argued.clone(),
        states,
        seconds,
        what,
        replay,
    })
}

/// The folder of the source, here or above.
fn source() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the current directory")?;
    let is_source = |dir: &&Path| dir.join("crates/judges/catalogue").is_dir();
    let root = here.ancestors().find(is_source);
    let root = root.context(
        "--score plants bugs in the source of Keepstone, which is not here: run it in the folder of the source",
    )?;
    Ok(root.to_owned())
}

/// Copies the source, plants the bugs, and builds what judges them; its path.
fn build(root: &Path, bugs: &[Planted]) -> Result<PathBuf> {
    let woven = catalogue::weave(&root.join("crates"), bugs);
    let woven = woven.map_err(|e| anyhow!("the catalogue of bugs: {e}"))?;
    let work =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let work = work.join("crash-score");
    let crates = work.join("crates");
    copy(&root.join("crates"), &crates, Path::new(""), &woven)?;
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    // Only what is copied.
    let manifest =
        manifest.replace(r#"members = ["crates/*", "bench"]"#, r#"members = ["crates/*"]"#);
    write(&work.join("Cargo.toml"), manifest.as_bytes())?;
    write(
        &work.join("Cargo.lock"),
        &std::fs::read(root.join("Cargo.lock")).context("Cargo.lock")?,
    )?;
    output::notice(format_args!(
        "building the engines with {} bugs in {}",
        bugs.len(),
        work.display()
    ));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package", "judges", "--example", "judge"])
        .current_dir(&work)
        .env("CARGO_TARGET_DIR", work.join("target"))
        // What the bugs leave unused.
        .env("RUSTFLAGS", "--cap-lints allow")
        .stdout(Stdio::null())
        .status()
        .context("cargo, which builds the engines with bugs")?;
    ensure!(built.success(), "the engines cannot be built with the bugs");
    Ok(work.join("target/release/examples/judge"))
}

/// Copies a folder of source, with what is woven into it. What is the same stays, so that it is not built again.
fn copy(from: &Path, to: &Path, at: &Path, woven: &BTreeMap<String, String>) -> Result<()> {
    let context = || from.display().to_string();
    std::fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(from).with_context(context)? {
        let entry = entry.with_context(context)?;
        let (name, below) = (entry.file_name(), at.join(entry.file_name()));
        let (from, to) = (entry.path(), to.join(&name));
        match woven.get(below.to_string_lossy().as_ref()) {
            Some(text) => write(&to, text.as_bytes())?,
            None if from.is_dir() => copy(&from, &to, &below, woven)?,
            None => write(&to, &std::fs::read(&from).with_context(|| from.display().to_string())?)?,
        }
        names.push(name);
    }
    // What the source has no more.
    for entry in std::fs::read_dir(to).with_context(|| to.display().to_string())?.flatten() {
        if !names.contains(&entry.file_name()) {
            let old = entry.path();
            let removed = if old.is_dir() {
                std::fs::remove_dir_all(&old)
            } else {
                std::fs::remove_file(&old)
            };
            removed.with_context(|| old.display().to_string())?;
        }
    }
    Ok(())
}

/// Writes a file unless it has this content.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    std::fs::write(path, content).with_context(|| path.display().to_string())
}

/// Judges one bug, by its number.
fn examine(judge: &Path, number: usize, engine: &str, patience: Duration) -> Result<Verdict> {
    let start = Instant::now();
    let judging = Command::new(judge)
        .arg(engine)
        .env(SWITCH, number.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| judge.display().to_string())?;
    let ended = wait(judging, start, patience)?;
    let found = |by: &str| Verdict {
        by: Some(by.to_owned()),
        states: 0,
        seconds: start.elapsed().as_secs_f64(),
        what: String::new(),
        replay: String::new(),
    };
    match ended {
        None => Ok(found(HANGS)),
        Some(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .trim_end_matches('\n')
            .parse()
            .map_err(|e| anyhow!("{e}")),
        Some(output) => Ok(found(&format!("it ends by {}", output.status))),
    }
}

/// Waits for a judge; `None` where it has taken too long and was killed.
fn wait(
    mut judging: Child,
    start: Instant,
    patience: Duration,
) -> Result<Option<std::process::Output>> {
    while judging.try_wait().context("a judge")?.is_none() {
        if start.elapsed() > patience {
            judging.kill().context("a judge")?;
            judging.wait().context("a judge")?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
    Ok(Some(judging.wait_with_output().context("a judge")?))
}

/// Prints the table. Fails where a bug is neither found nor argued.
fn conclude(rows: Vec<Row>, json: bool) -> Result<ExitCode> {
    let found = rows.iter().filter(|row| row.found_by.is_some()).count();
    let argued = rows.iter().filter(|row| row.found_by.is_none() && row.argued.is_some()).count();
    let unfound = rows.len() - found - argued;
    let outcome = Outcome { bugs: rows.len(), found, argued, unfound, rows };
    if json {
        output::json(&outcome)?;
    } else {
        say!("{:78} {:24} {:>9} {:>8}", "bug", "found by", "states", "seconds");
        outcome.rows.iter().for_each(|row| say!("{}", row.line()));
        for Row { bug, argued, .. } in outcome.rows.iter().filter(|row| row.found_by.is_none()) {
            say!("not found: {bug}: {}", argued.as_deref().unwrap_or("WHY?"));
        }
        say!("{} bugs, {found} found, {argued} argued, {unfound} neither", outcome.bugs);
    }
    Ok(if unfound == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
