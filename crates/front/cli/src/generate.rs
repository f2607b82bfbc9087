//! `keepstone generate`: writes man pages and completions of shells, both made from the command
//! line's description. `make build` calls it, so that `make install` only copies files.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::{Cli, GenerateArgs};
use crate::output;

/// Writes `man1/keepstone*.1` and `completions/` below the directory.
pub fn run(args: &GenerateArgs, json: bool) -> Result<ExitCode> {
    let (man, completions) = (args.dir.join("man1"), args.dir.join("completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    clap_mangen::generate_to(Cli::command(), &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "keepstone", &completions)?;
    }
    if json {
        output::json(&serde_json::json!({ "man": man, "completions": completions }))?;
    }
    Ok(ExitCode::SUCCESS)
}
