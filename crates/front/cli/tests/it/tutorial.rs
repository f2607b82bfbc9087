//! The tutorial on crash testing does what it shows: each of its commands runs, in order, and
//! prints the lines below it, among others.
//!
//! Needs a C compiler.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::tidy::root;

/// A command of the tutorial, the lines that it must print, and its exit status.
struct Step {
    command: String,
    lines: Vec<String>,
    status: i32,
}

/// Returns the commands of the blocks for the console.
fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    for line in document.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if is_console && let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), lines: Vec::new(), status: 0 });
        } else if is_console && let Some(step) = steps.last_mut() {
            match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                Some(status) => step.status = status.parse().unwrap(),
                None => step.lines.push(line.to_owned()),
            }
        }
    }
    steps
}

#[test]
fn the_commands_of_the_tutorial_do_what_it_shows() {
    let home = tempfile::tempdir().unwrap();
    for file in fs::read_dir(root().join("examples/crashtest")).unwrap().flatten() {
        fs::copy(file.path(), home.path().join(file.file_name())).unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_keepstone")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let document = fs::read_to_string(root().join("docs/CRASHTUTORIAL.md")).unwrap();
    let steps = steps(&document);
    assert!(steps.len() > 15, "{}", steps.len());
    // Variables that one command sets are for the next.
    let mut variables = String::new();
    for step in steps {
        let script = format!("{variables}{}", step.command);
        let output = Command::new("bash")
            .args(["-c", &script])
            .current_dir(home.path())
            .env("PATH", &path)
            .env_remove("KEEPSTONE_TRACE")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(step.status), "{}: {text}", step.command);
        for line in &step.lines {
            assert!(text.contains(line.as_str()), "{}: no {line:?} in {text}", step.command);
        }
        if step.command.starts_with("crash=") {
            variables += &format!("{}\n", step.command);
        }
    }
}
