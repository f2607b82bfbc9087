//! `keepstone generate`: writes man pages and completions of shells, both made from the command
//! line's description. `make build` calls it, so that `make install` only copies files. The program
//! of `keepstone bench` adds its own pages and describes its commands, if it is there.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, Command, CommandFactory as _, ValueHint};
use clap_complete::Shell;
use serde_json::Value;

use crate::args::{Cli, GenerateArgs};
use crate::{bench, output};

/// Writes `man1/keepstone*.1` and `completions/` below the directory.
pub fn run(args: &GenerateArgs, json: bool) -> Result<ExitCode> {
    let (man, completions) = (args.dir.join("man1"), args.dir.join("completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    clap_mangen::generate_to(Cli::command(), &man)?;
    let described = bench::describe(&man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut command = Cli::command();
        if let Some(described) = &described {
            command = command.mut_subcommand("bench", |bench| described_as(described, bench));
        }
        clap_complete::generate_to(shell, &mut command, "keepstone", &completions)?;
    }
    if json {
        output::json(&serde_json::json!({ "man": man, "completions": completions }))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the command that is described, by the name of one that it takes the place of.
fn described_as(described: &Value, named: Command) -> Command {
    let command = Command::new(named.get_name().to_owned().leak() as &str);
    with_parts(command, described)
}

/// Adds what is described to a command. The words live as long as the program, as clap wants.
fn with_parts(command: Command, described: &Value) -> Command {
    let list = |key: &str| described[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let subcommands =
        list("commands").iter().map(|sub| with_parts(Command::new(word(&sub["name"])), sub));
    command
        .about(word(&described["about"]))
        .disable_help_subcommand(true)
        // The description has those that clap adds, too.
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(list("options").iter().map(option))
        .subcommands(subcommands.filter(|sub| sub.get_name() != "help"))
}

fn option(described: &Value) -> Arg {
    let mut option = Arg::new(word(&described["id"])).help(word(&described["help"]));
    if described["long"].is_string() {
        option = option.long(word(&described["long"]));
    }
    if let Some(short) = described["short"].as_str().and_then(|short| short.chars().next()) {
        option = option.short(short);
    }
    if described["takes_value"] != true {
        return option.action(ArgAction::SetTrue);
    }
    if described["is_path"] == true {
        option = option.value_hint(ValueHint::AnyPath);
    }
    let values: Vec<&'static str> =
        described["values"].as_array().into_iter().flatten().map(word).collect();
    if !values.is_empty() {
        option = option.value_parser(values);
    }
    match option.is_positional() {
        true => option.num_args(1..),
        false => option.action(ArgAction::Append),
    }
}

fn word(text: &Value) -> &'static str {
    text.as_str().unwrap_or_default().to_owned().leak()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_have_what_is_described() {
        let described = serde_json::json!({
            "name": "keepstone-bench",
            "about": "Measures",
            "options": [{ "id": "json", "long": "json", "help": "JSON", "takes_value": false }],
            "commands": [{
                "name": "run",
                "about": "Runs",
                "options": [
                    { "id": "targets", "help": "Targets", "takes_value": true, "values": [] },
                    { "id": "clock", "long": "clock", "short": "c", "help": "A clock",
                      "takes_value": true, "values": ["wall", "cpu"] },
                    { "id": "html", "long": "html", "help": "A page", "takes_value": true,
                      "is_path": true, "values": [] },
                ],
                "commands": [],
            }],
        });
        let mut command =
            Cli::command().mut_subcommand("bench", |bench| described_as(&described, bench));
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "keepstone", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("html") && script.contains("wall cpu") || shell != Shell::Bash);
            assert!(script.contains("clock") && script.contains("cpu"), "{shell}");
        }
    }
}
