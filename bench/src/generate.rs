//! Man pages of this program, and the description of its commands from which `keepstone generate`
//! makes completions of shells: there it is the command `bench`.

use anyhow::{Context as _, Result};
use clap::{Arg, Command, ValueHint};
use serde_json::{Value, json};
use std::path::Path;

/// The name of man pages.
const NAME: &str = "keepstone-bench";

/// Writes man pages below a directory; returns the description.
pub fn run(command: Command, man: &Path) -> Result<Value> {
    std::fs::create_dir_all(man).with_context(|| man.display().to_string())?;
    let command = command.name(NAME).display_name(NAME).bin_name("keepstone bench");
    let mut command = command.disable_help_subcommand(true);
    command.build();
    clap_mangen::generate_to(command.clone(), man)?;
    Ok(describe(&command))
}

fn describe(command: &Command) -> Value {
    let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
    json!({
        "name": command.get_name(),
        "about": command.get_about().map(|about| about.to_string()),
        "commands": commands.map(describe).collect::<Vec<_>>(),
        "options": options.map(describe_option).collect::<Vec<_>>(),
    })
}

fn describe_option(option: &Arg) -> Value {
    let takes_value = option.get_num_args().is_some_and(|args| args.takes_values());
    let is_path = option.get_value_hint() == ValueHint::AnyPath;
    let values = option.get_possible_values();
    json!({
        "id": option.get_id().as_str(),
        "long": option.get_long(),
        "short": option.get_short(),
        "help": option.get_help().map(|help| help.to_string()),
        "takes_value": takes_value,
        "is_path": is_path,
        "values": values.iter().map(|value| value.get_name()).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn each_command_has_a_page_and_a_description() {
        let dir = tempfile::tempdir().unwrap();
        let described = run(crate::Cli::command(), dir.path()).unwrap();
        let page = std::fs::read_to_string(dir.path().join("keepstone-bench-run.1")).unwrap();
        assert!(page.contains("keepstone bench run") && page.contains("baseline"), "{page}");
        assert!(dir.path().join("keepstone-bench.1").exists());
        for hidden in ["worker", "help"] {
            assert!(!dir.path().join(format!("keepstone-bench-{hidden}.1")).exists(), "{hidden}");
        }
        let commands = described["commands"].as_array().unwrap();
        let named = |name: &str| commands.iter().find(|command| command["name"] == name);
        let options = named("run").unwrap()["options"].as_array().unwrap();
        let option = |long: &str| options.iter().find(|option| option["long"] == long).unwrap();
        assert_eq!(option("clock")["values"], json!(["wall", "cpu"]));
        assert_eq!(option("html")["is_path"], json!(true));
        assert_eq!(option("as-pm")["takes_value"], json!(false));
        assert!(named("worker").is_none() && named("engine").is_some());
    }
}
