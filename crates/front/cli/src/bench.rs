//! `keepstone bench`: becomes the program `keepstone-bench`, which is a program of its own because
//! most users of this one never measure.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use serde_json::Value;

use crate::output;

/// File name of the program.
const PROGRAM: &str = "keepstone-bench";
/// Directories of the program, relative to that of this one: of a build, and of an installation.
const DIRS: [&str; 2] = [".", "../libexec/keepstone"];

/// `keepstone bench`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A command of `keepstone bench` and its arguments; `--help` lists the commands.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

pub fn run(args: &BenchArgs, json: bool) -> Result<ExitCode> {
    let this = std::env::current_exe().context("cannot find out where this program lies")?;
    let program = program(this.parent().unwrap_or(Path::new("/")))?;
    let mut command = Command::new(&program);
    // Its help shows the name by which it was called.
    command.arg0("keepstone bench").args(json.then_some("--json")).args(&args.arguments);
    let err = command.env("KEEPSTONE_PROGRAM", &this).exec();
    Err(anyhow!(err).context(program.display().to_string()))
}

/// Lets the program write its man pages; returns its description of its commands. `None` if it is
/// not there, or of an earlier version.
pub fn describe(man: &Path) -> Result<Option<Value>> {
    let this = std::env::current_exe().context("cannot find out where this program lies")?;
    let Ok(program) = program(this.parent().unwrap_or(Path::new("/"))) else { return Ok(None) };
    let ended = Command::new(&program).arg("generate").arg(man).output();
    let ended = ended.with_context(|| program.display().to_string())?;
    if !ended.status.success() {
        let why = String::from_utf8_lossy(&ended.stderr);
        let first = why.lines().next().unwrap_or_default();
        output::notice(format_args!("without commands of {}: {first}", program.display()));
        return Ok(None);
    }
    let described = serde_json::from_slice(&ended.stdout);
    Ok(Some(described.with_context(|| format!("{}: no description", program.display()))?))
}

/// Finds the program from the directory of this one.
fn program(dir: &Path) -> Result<PathBuf> {
    let places = DIRS.map(|place| dir.join(place).join(PROGRAM));
    places.iter().find(|place| place.is_file()).cloned().with_context(|| {
        format!(
            "{PROGRAM} is neither in {} nor in {} from there; packages have it, and `cargo build \
             --release -p bench` builds it",
            dir.display(),
            DIRS[1]
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_a_build_and_in_an_installation() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("bin");
        std::fs::create_dir_all(root.path().join("libexec/keepstone")).unwrap();
        std::fs::create_dir(&bin).unwrap();
        let why = program(&bin).unwrap_err().to_string();
        assert!(why.contains("packages have it"), "{why}");
        std::fs::write(root.path().join("libexec/keepstone").join(PROGRAM), "").unwrap();
        assert!(program(&bin).unwrap().ends_with("libexec/keepstone/keepstone-bench"));
        std::fs::write(bin.join(PROGRAM), "").unwrap();
        assert!(program(&bin).unwrap().starts_with(&bin));
    }
}
