//! `keepstone crashtest --score`: plants bugs in the engines' source, and reports which of them the
//! explorer finds.
//!
//! The source is copied and built once, with all bugs behind a switch (`judges::catalogue`); each
//! bug is then judged by a process of its own, because a bug may loop for ever or abort. Times are
//! processor times, so that they do not depend on the load of the machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
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
use crate::output::{self, wrong_usage};

/// Limit of processor time after which a judge counts as hanging: this multiple of the time without
/// a bug, plus this constant.
const PATIENCE: (f64, Duration) = (4.0, Duration::from_secs(60));
/// A judge that uses no processor time for this long also counts as hanging.
const ASLEEP: Duration = Duration::from_secs(60);
/// Interval between two checks that a judge is done.
const POLL: Duration = Duration::from_millis(20);
/// The finder, in the table, of a bug that makes an operation loop for ever.
const HANGS: &str = "it does not end";

/// The verdict on a bug.
#[derive(Debug, Serialize)]
struct Row {
    bug: String,
    /// The test that found it.
    found_by: Option<String>,
    /// The argument why it may stay unfound.
    argued: Option<String>,
    states: u64,
    seconds: f64,
    what: String,
    replay: String,
}

impl Row {
    fn new(bug: &Planted, verdict: Verdict) -> Self {
        let Verdict { by, states, seconds, what, replay } = verdict;
        let (name, argued) = (bug.name.clone(), bug.argued.clone());
        Self { bug: name, found_by: by, argued, states, seconds, what, replay }
    }

    /// Formats a line of the table.
    fn line(&self) -> String {
        let Self { bug, found_by, argued, states, seconds, .. } = self;
        let by = match (found_by, argued) {
            (Some(by), _) => by,
            (None, Some(_)) => "none: argued",
            (None, None) => "NONE",
        };
        format!("{bug:78} {by:24} {states:>9} {seconds:>8.1}")
    }
}

/// The report that `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    bugs: usize,
    found: usize,
    argued: usize,
    unfound: usize,
    rows: Vec<Row>,
}

/// The choice of bugs to plant, and parameters of judging.
#[derive(Debug)]
pub struct Scored {
    /// Only bugs of this engine; `None`: of all.
    pub engine: Option<String>,
    /// Most bugs to judge, spread evenly.
    pub limit: Option<u64>,
    /// Processor time for each bug.
    pub time: Option<Duration>,
    /// Bugs judged at a time.
    pub threads: u16,
    /// Only bugs whose names contain this text.
    pub named: Option<String>,
    /// File to which verdicts are appended. Bugs with a verdict there are not judged again.
    pub results: Option<PathBuf>,
}

/// Plants bugs and judges them.
pub fn run(scored: &Scored, json: bool) -> Result<ExitCode> {
    let Scored { engine, limit, time, threads, named, results } = scored;
    let results = Results::open(results.as_deref())?;
    let root = source()?;
    let crates = root.join("crates");
    let bugs = catalogue::all(&crates).map_err(|e| anyhow!("the catalogue of bugs: {e}"))?;
    let mut patience = Duration::ZERO;
    let is_asked = |of: &str| engine.as_ref().is_none_or(|engine| engine == of);
    // A bug is identified by its index in the list of all bugs.
    let is_named = |bug: &Planted| named.as_ref().is_none_or(|text| bug.name.contains(text));
    let asked = |bug: &Planted| is_asked(bug.engine) && is_named(bug);
    let asked: Vec<usize> = (0..bugs.len()).filter(|i| asked(&bugs[*i])).collect();
    if asked.is_empty() {
        return Err(wrong_usage("no bug of the catalogue is named so"));
    }
    let judge = Judge { path: build(&root, &bugs)?, time: *time };
    for engine in judge::ENGINES.into_iter().filter(|of| is_asked(of)) {
        let sound = results.or_judge(&format!("no bug in {engine}"), || {
            output::notice(format_args!("judging {engine} without a bug: how long that takes"));
            judge.examine(0, engine, Duration::MAX)
        })?;
        if let Some(by) = sound.by {
            bail!(
                "no bug is planted, and {by} finds one in {engine}: {} ({})",
                sound.what,
                sound.replay
            );
        }
        output::notice(format_args!(
            "{engine} is sound: {} states, {:.0} seconds of processor time",
            sound.states, sound.seconds
        ));
        patience =
            patience.max(Duration::from_secs_f64(sound.seconds).mul_f64(PATIENCE.0) + PATIENCE.1);
    }
    let tried = limit.map_or(asked.len(), |limit| asked.len().min(limit as usize));
    let chosen: Vec<usize> = (0..tried).map(|i| asked[i * asked.len() / tried.max(1)]).collect();
    let bar = bar("planted bugs");
    bar.set_length(tried as u64);
    let next = AtomicUsize::new(0);
    let rows: Mutex<BTreeMap<usize, Result<Row>>> = Mutex::default();
    std::thread::scope(|s| {
        for _ in 0..*threads {
            s.spawn(|| {
                while let Some(&i) = chosen.get(next.fetch_add(1, Relaxed)) {
                    let bug = &bugs[i];
                    let verdict =
                        results.or_judge(&bug.name, || judge.examine(i + 1, bug.engine, patience));
                    let row = verdict.map(|verdict| Row::new(bug, verdict));
                    // Without a terminal there is no bar.
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

/// Finds the directory of the source, here or above.
fn source() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the current directory")?;
    let is_source = |dir: &&Path| dir.join("crates/proof/judges/catalogue").is_dir();
    let root = here.ancestors().find(is_source);
    let root = root.context(
        "--score plants bugs in the source of Keepstone, which is not here: run it in the folder of the source",
    )?;
    Ok(root.to_owned())
}

/// Copies the source, plants the bugs, and builds the judge. Returns the path of the judge.
fn build(root: &Path, bugs: &[Planted]) -> Result<PathBuf> {
    let work =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let work = work.join("crash-score");
    copy_source(root, &work, bugs)?;
    output::notice(format_args!(
        "building the engines with {} bugs in {}",
        bugs.len(),
        work.display()
    ));
    let built = cargo()
        .args(["build", "--quiet", "--release", "--package", "judges", "--example", "judge"])
        .current_dir(&work)
        .env("CARGO_TARGET_DIR", work.join("target"))
        // Bugs leave code unused. `atomic_steps` lets schedules switch threads at words of the
        // shared state.
        .env("RUSTFLAGS", "--cap-lints allow --cfg atomic_steps")
        .stdout(Stdio::null())
        .status()
        .context("cargo, which builds the engines with bugs")?;
    ensure!(built.success(), "the engines cannot be built with the bugs");
    Ok(work.join("target/release/examples/judge"))
}

/// Returns the cargo that runs this program, or the one in the path.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Copies what the build of the judge reads, with the planted bugs.
fn copy_source(root: &Path, work: &Path, bugs: &[Planted]) -> Result<()> {
    let woven = catalogue::weave(&root.join("crates"), bugs);
    let woven = woven.map_err(|e| anyhow!("the catalogue of bugs: {e}"))?;
    copy(&root.join("crates"), &work.join("crates"), Path::new(""), &woven)?;
    // Sources of others, by the paths of the manifest.
    copy(&root.join("vendor"), &work.join("vendor"), Path::new("vendor"), &BTreeMap::new())?;
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    // Only the copied crates are members.
    let manifest =
        manifest.replace(r#"members = ["crates/*/*", "bench"]"#, r#"members = ["crates/*/*"]"#);
    write(&work.join("Cargo.toml"), manifest.as_bytes())?;
    write(
        &work.join("Cargo.lock"),
        &std::fs::read(root.join("Cargo.lock")).context("Cargo.lock")?,
    )?;
    Ok(())
}

/// Copies a directory of source, with the planted bugs. Leaves unchanged files alone, so that cargo
/// does not build them again.
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
    // Removes files that the source no longer has.
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

/// A file of verdicts, each after the name of its bug, so that an interrupted run can continue.
struct Results {
    known: BTreeMap<String, Verdict>,
    file: Option<Mutex<File>>,
}

impl Results {
    fn open(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self { known: BTreeMap::new(), file: None }) };
        let context = || path.display().to_string();
        let file = File::options().create(true).append(true).open(path).with_context(context)?;
        let mut known = BTreeMap::new();
        for line in std::fs::read_to_string(path).with_context(context)?.lines() {
            let (bug, verdict) = line.split_once('\t').with_context(context)?;
            let verdict = verdict.parse().map_err(|e| anyhow!("{}: {e}", path.display()))?;
            known.insert(bug.to_owned(), verdict);
        }
        Ok(Self { known, file: Some(Mutex::new(file)) })
    }

    /// Returns the known verdict on a bug, or else calls `judge` and records its verdict.
    fn or_judge(&self, bug: &str, judge: impl FnOnce() -> Result<Verdict>) -> Result<Verdict> {
        if let Some(verdict) = self.known.get(bug) {
            return Ok(verdict.clone());
        }
        let verdict = judge()?;
        if let Some(file) = &self.file {
            let mut file = file.lock().expect("no worker panics");
            file.write_all(format!("{bug}\t{verdict}\n").as_bytes()).context("the results")?;
        }
        Ok(verdict)
    }
}

/// The program that judges.
struct Judge {
    path: PathBuf,
    /// Processor time for each bug.
    time: Option<Duration>,
}

impl Judge {
    /// Judges one bug, by its number.
    fn examine(&self, number: usize, engine: &str, patience: Duration) -> Result<Verdict> {
        let seconds = self.time.map(|time| ["--seconds".to_owned(), time.as_secs().to_string()]);
        let judging = Command::new(&self.path)
            .arg(engine)
            .args(seconds.into_iter().flatten())
            .env(SWITCH, number.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| self.path.display().to_string())?;
        let (used, ended) = wait(judging, patience)?;
        let found = |by: &str| Verdict {
            by: Some(by.to_owned()),
            states: 0,
            seconds: used.as_secs_f64(),
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
}

/// Waits for a judge. Returns the processor time that it has used, and its output; `None` if it
/// took too long and was killed.
fn wait(
    mut judging: Child,
    patience: Duration,
) -> Result<(Duration, Option<std::process::Output>)> {
    let (mut used, mut since) = (Duration::ZERO, Instant::now());
    while judging.try_wait().context("a judge")?.is_none() {
        let (now, is_stopped) = processor_time(judging.id()).unwrap_or((used, false));
        // Time during which a signal has stopped the judge does not count.
        if now != used || is_stopped {
            (used, since) = (now, Instant::now());
        }
        if used > patience || since.elapsed() > ASLEEP {
            judging.kill().context("a judge")?;
            judging.wait().context("a judge")?;
            return Ok((used, None));
        }
        std::thread::sleep(POLL);
    }
    Ok((used, Some(judging.wait_with_output().context("a judge")?)))
}

/// Returns the processor time of a process, and whether it is stopped.
fn processor_time(pid: u32) -> Option<(Duration, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything. The state is field 3; utime and stime are 14
    // and 15.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    let millis = ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second();
    Some((Duration::from_millis(millis), fields.starts_with('T')))
}

/// Prints the table. Fails if a bug is neither found nor argued.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The copy with all bugs has everything that its manifests name.
    #[test]
    fn the_copied_source_is_complete() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let bugs = catalogue::all(&root.join("crates")).unwrap();
        let work = tempfile::tempdir().unwrap();
        copy_source(&root, work.path(), &bugs).unwrap();
        let resolved = cargo()
            .args(["metadata", "--offline", "--format-version", "1", "--filter-platform"])
            .arg("x86_64-unknown-linux-gnu")
            .current_dir(work.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&resolved.stderr);
        assert!(resolved.status.success(), "{said}");
    }
}
