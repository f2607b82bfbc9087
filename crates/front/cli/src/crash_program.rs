//! `keepstone crashtest --from-trace FILE --oracle CMD`: crashes of programs that are not part of
//! this project, judged by a command.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use crashsim::campaign::{Finding, Report};
use crashsim::explore::Outcome;
use crashsim::lint::lint;
use crashsim::persist::Semantics;
use crashsim::pmemcheck;
use crashsim::program::{Bug, Moment};
use crashsim::states::{self, Crash, StatesMax};
use crashsim::trace::Trace;
use crashsim::vinter;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::output::{self, wrong_usage};

/// Longest wait between two checks whether the oracle has ended.
const TICK: Duration = Duration::from_millis(2);

/// The options for programs that are not part of this project.
#[derive(Debug, Args)]
#[command(next_help_heading = "Traces of other programs")]
pub struct ProgramArgs {
    /// Judge crash states by this command of the shell. It receives the path of an image as its
    /// last argument, may change the image, and has exit status 0 if the state is legal. The
    /// environment has CRASH_BEGUN and CRASH_RETURNED, the operations that had begun and returned.
    #[arg(long, value_name = "CMD", requires = "from_trace")]
    pub oracle: Option<String>,
    /// The content of the memory before the trace. Default: FILE.initial if it exists, else zeros.
    #[arg(long, value_name = "FILE", requires = "from_trace")]
    pub initial: Option<PathBuf>,
    /// Seconds after which an oracle that has not ended counts as a violation.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..), requires = "from_trace")]
    pub oracle_seconds: u64,
    /// Most states of a crash point that the oracle judges.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..), requires = "from_trace")]
    pub states: u64,
    /// Of a log of pmemcheck: the file whose name ends with NAME. Default: the first.
    #[arg(long, value_name = "NAME", requires = "from_trace")]
    pub file: Option<String>,
    /// Of a trace of Vinter: the kernel's file with debug information (vmlinux), which names the
    /// lines of source.
    #[arg(long, value_name = "FILE", requires = "from_trace")]
    pub symbols: Option<String>,
    /// Write the memory after one crash, the line of a violation, to the file of --image.
    #[arg(long, value_name = "LINE", requires_all = ["from_trace", "image"], conflicts_with = "oracle")]
    pub crash: Option<String>,
    /// The file for the memory after --crash.
    #[arg(long, value_name = "FILE", requires = "crash")]
    pub image: Option<PathBuf>,
}

/// Reads a trace, a log of pmemcheck, or a trace of Vinter; names its lines of source.
pub fn parse(file: &[u8], args: &ProgramArgs) -> Result<Trace> {
    let mut trace = if vinter::is_trace(file) {
        // The content before has the length of the region.
        let len = args.initial.as_ref().map(|initial| {
            let meta = std::fs::metadata(initial);
            meta.map(|meta| meta.len()).with_context(|| initial.display().to_string())
        });
        let mut trace = vinter::parse(file, len.transpose()?).map_err(|why| anyhow!(why))?;
        if let Some(kernel) = &args.symbols {
            for site in &mut trace.sites {
                if let Some(offset) = site.strip_prefix("kernel+") {
                    *site = format!("{kernel}+{offset}");
                }
            }
        }
        trace
    } else {
        let text = std::str::from_utf8(file).context("neither a text nor a trace of Vinter")?;
        match text.starts_with("keepstone-trace") {
            true => text.parse()?,
            false => pmemcheck::parse(text, args.file.as_deref()).map_err(|why| anyhow!(why))?,
        }
    };
    name_sites(&mut trace.sites);
    Ok(trace)
}

/// Replaces sites of the form MODULE+OFFSET by lines of source, if addr2line(1) knows them.
fn name_sites(sites: &mut [String]) {
    let split = |site: &str| {
        let (prefix, place) = match site.strip_prefix("before:") {
            Some(place) => ("before:", place),
            None => ("", site),
        };
        let (module, offset) = place.rsplit_once("+0x")?;
        u64::from_str_radix(offset, 16).ok()?;
        Some((prefix, module.to_owned(), format!("0x{offset}")))
    };
    let mut by_module: BTreeMap<String, Vec<(usize, &str, String)>> = BTreeMap::new();
    for (number, site) in sites.iter().enumerate() {
        if let Some((prefix, module, offset)) = split(site) {
            by_module.entry(module).or_default().push((number, prefix, offset));
        }
    }
    for (module, places) in by_module {
        let offsets = places.iter().map(|(.., offset)| offset);
        let named = Command::new("addr2line").args(["-s", "-e", &module]).args(offsets).output();
        let Ok(named) = named else { return };
        let lines = String::from_utf8_lossy(&named.stdout).into_owned();
        for ((number, prefix, _), line) in places.iter().zip(lines.lines()) {
            // A discriminator may follow the line.
            let line = line.split(' ').next().unwrap_or_default();
            if !line.starts_with('?') && !line.ends_with('?') && !line.is_empty() {
                sites[*number] = format!("{prefix}{line}");
            }
        }
    }
}

/// The memory of a program: its content before the trace, and its length. The explorer needs whole
/// lines.
struct ProgramMemory {
    initial: Vec<u8>,
    len: usize,
}

impl ProgramMemory {
    /// Finds the content, and extends the trace to whole lines.
    fn of(trace: &mut Trace, args: &ProgramArgs, trace_file: &Path) -> Result<Self> {
        let len = usize::try_from(trace.len)?;
        let mut beside = trace_file.as_os_str().to_owned();
        beside.push(".initial");
        let beside = Some(PathBuf::from(beside)).filter(|file| file.exists());
        let file = args.initial.clone().or(beside);
        let mut initial = match &file {
            Some(file) => std::fs::read(file).with_context(|| file.display().to_string())?,
            None => Vec::new(),
        };
        trace.len = trace.len.next_multiple_of(pmem::LINE);
        initial.truncate(len);
        initial.resize(usize::try_from(trace.len)?, 0);
        Ok(Self { initial, len })
    }
}

/// Judges the crash states of a trace by the oracle.
pub fn judge(
    mut trace: Trace,
    args: &ProgramArgs,
    trace_file: &Path,
    semantics: Semantics,
) -> Result<Report> {
    let memory = ProgramMemory::of(&mut trace, args, trace_file)?;
    let command = args.oracle.as_deref().context("an oracle is given")?;
    let oracle = Oracle::new(command, Duration::from_secs(args.oracle_seconds))?;
    let start = Instant::now();
    let judge = |now: Moment, image: Vec<u8>| oracle.judge(now, &image[..memory.len]);
    let (stats, bugs) =
        states::find_bugs(&trace, &memory.initial, semantics, StatesMax(args.states), &judge);
    Ok(Report {
        family: "trace".to_owned(),
        workloads: 1,
        violations: bugs.len() as u64,
        findings: bugs.iter().map(|(bug, crash)| finding(bug, crash)).collect(),
        stats,
        seconds: start.elapsed().as_secs_f64(),
        lint: lint(&trace),
        ..Report::default()
    })
}

fn finding(bug: &Bug, crash: &Crash) -> Finding {
    let moment = match bug.at.over {
        true => "after the last step".to_owned(),
        false => format!(
            "before step {} of the trace; {} operations had begun, {} had returned",
            crash.event, bug.at.begun, bug.at.returned
        ),
    };
    Finding {
        what: bug.what.clone(),
        detail: vec![moment],
        lost: bug.lost.clone(),
        times: bug.times,
        replay: format!("--crash '{crash}' --image FILE"),
    }
}

/// Writes the memory after a crash.
pub fn write_image(
    mut trace: Trace,
    args: &ProgramArgs,
    trace_file: &Path,
    json: bool,
) -> Result<ExitCode> {
    let memory = ProgramMemory::of(&mut trace, args, trace_file)?;
    let (Some(line), Some(file)) = (&args.crash, &args.image) else {
        bail!("--crash and --image belong together");
    };
    let crash: Crash = line.parse().map_err(|why| wrong_usage(format!("--crash: {why}")))?;
    let image = states::image(&trace, &memory.initial, &crash);
    let image = image.map_err(|why| anyhow!("--crash: {why}"))?;
    std::fs::write(file, &image[..memory.len]).with_context(|| file.display().to_string())?;
    if json {
        output::json(&serde_json::json!({ "image": file, "bytes": memory.len }))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The command that judges images.
struct Oracle<'c> {
    command: &'c str,
    within: Duration,
    dir: tempfile::TempDir,
}

impl<'c> Oracle<'c> {
    fn new(command: &'c str, within: Duration) -> Result<Self> {
        Ok(Self { command, within, dir: tempfile::tempdir().context("no place for images")? })
    }

    /// Judges an image.
    fn judge(&self, now: Moment, image: &[u8]) -> Outcome<()> {
        let path = self.dir.path().join("image");
        let run = || -> Result<(Option<ExitStatus>, String)> {
            File::create(&path)?.write_all(image)?;
            let mut errors = tempfile::tempfile()?;
            let child = Command::new("sh")
                .args(["-c", &format!("{} \"$1\"", self.command), "oracle"])
                .arg(&path)
                .env("CRASH_BEGUN", now.begun.to_string())
                .env("CRASH_RETURNED", now.returned.to_string())
                // The judge may be the program itself, with its recorder.
                .env_remove("KEEPSTONE_TRACE")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(errors.try_clone()?)
                .process_group(0)
                .spawn()?;
            let status = self.wait(child)?;
            let mut text = String::new();
            errors.rewind()?;
            // An oracle may print much.
            errors.take(1 << 16).read_to_string(&mut text).unwrap_or_default();
            Ok((status, text.lines().last().unwrap_or_default().to_owned()))
        };
        match run() {
            Ok((Some(status), _)) if status.success() => Ok(()),
            Ok((Some(status), said)) if said.is_empty() => Err(format!("the oracle: {status}")),
            Ok((Some(_), said)) => Err(said),
            Ok((None, _)) => Err(format!("the oracle did not end within {:?}", self.within)),
            Err(err) => Err(format!("the oracle cannot run: {err:#}")),
        }
    }

    /// Waits for the end of the oracle; kills it, and all that it has started, if it is late.
    fn wait(&self, mut child: Child) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + self.within;
        let mut pause = Duration::from_micros(100);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                if let Some(group) = Pid::from_raw(child.id() as i32) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(command: &str) -> Outcome<()> {
        let oracle = Oracle::new(command, Duration::from_secs(1)).unwrap();
        oracle.judge(Moment { begun: 2, returned: 1, over: false }, b"image")
    }

    #[test]
    fn an_oracle_judges_by_its_exit_status() {
        assert_eq!(verdict("grep -q image"), Ok(()));
        assert_eq!(verdict("test \"$CRASH_BEGUN$CRASH_RETURNED\" = 21 #"), Ok(()));
        assert!(verdict("false #").unwrap_err().contains("exit status: 1"));
        assert_eq!(verdict("echo why >&2; false #"), Err("why".to_owned()));
        assert!(verdict("kill -9 $$ #").unwrap_err().contains("signal: 9"));
        assert!(verdict("sleep 600 & wait #").unwrap_err().contains("did not end"));
    }

    #[test]
    fn sites_without_a_module_stay() {
        let mut sites = ["list.c:5", "-", "before:/no/such+0x10", "a+0xzz"].map(str::to_owned);
        let expected = sites.clone();
        name_sites(&mut sites);
        assert_eq!(sites, expected);
    }
}
