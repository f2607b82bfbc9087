//! Output to stdout and stderr.
//!
//! The reader may be gone: a mount persists although `keepstone mount … | true` has closed the
//! pipe, and a server continues although its terminal is gone. So functions here do not panic as
//! `println!` does. A command that has done its work fails only if its output was lost in another
//! way, for example because a disk is full ([`is_lost`]).

use std::collections::BTreeSet;
use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::shown;

/// Prints a line on stdout, as `println!` does.
macro_rules! say {
    () => { $crate::output::line(format_args!("")) };
    ($($arg:tt)*) => { $crate::output::line(format_args!($($arg)*)) };
}

/// Prints a line on stderr, as `eprintln!` does.
macro_rules! tell {
    ($($arg:tt)*) => { $crate::output::line_of_stderr(format_args!($($arg)*)) };
}

/// An error in the use of a command that the parser of command lines cannot find. The exit status
/// is 2.
#[derive(Debug)]
pub struct WrongUsage(pub String);

impl Display for WrongUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}

/// Returns an error that names wrong usage.
pub fn wrong_usage(text: impl Display) -> anyhow::Error {
    WrongUsage(text.to_string()).into()
}

/// Longest error message, in bytes. It may quote text of others.
const ERROR_BYTES_MAX: usize = 8192;

/// Longest value in a table, in bytes. It may be a list of names.
const VALUE_BYTES_MAX: usize = 1 << 16;

/// Whether output could not be written although its reader still exists.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints a line on stdout. Escapes characters that would control a terminal. Call it by [`say!`].
pub fn line(text: Arguments<'_>) {
    line_as_it_is(&shown::lines(&text.to_string()));
}

fn line_as_it_is(text: &str) {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(err) if err.kind() != ErrorKind::BrokenPipe && !LOST.swap(true, Relaxed) => {
            notice(format_args!("cannot write to standard output: {err}"));
        }
        _ => {}
    }
}

/// Prints a line on stderr. Call it by [`tell!`].
pub fn line_of_stderr(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{}", shown::lines(&text.to_string()));
}

/// Returns whether output was lost.
pub fn is_lost() -> bool {
    LOST.load(Relaxed)
}

/// Prints `value` as one JSON object.
pub fn json(value: &impl Serialize) -> Result<()> {
    line_as_it_is(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints an error with its causes on one line of stderr; with `--json`, also as an object on
/// stdout.
pub fn error(err: &anyhow::Error, json: bool) {
    let text = in_a_line(err);
    if json {
        line_as_it_is(&format!("{:#}", json!({ "error": text })));
    }
    notice(shown::line(&text, ERROR_BYTES_MAX));
}

/// Joins an error and its causes, without causes that the text before them already contains.
pub fn in_a_line(err: &anyhow::Error) -> String {
    let mut said = BTreeSet::new();
    let mut text = String::new();
    for cause in err.chain().map(ToString::to_string) {
        if text.contains(&cause) || !said.insert(cause.clone()) {
            continue;
        }
        // Drops a prefix that repeats the text so far.
        let more = cause.strip_prefix(&format!("{text}: ")).unwrap_or(&cause);
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(more);
    }
    text
}

/// Prints a notice for the user of a command that succeeds.
pub fn notice(text: impl Display) {
    tell!("keepstone: {text}");
}

/// Formats a value for people: text without quotes.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Prints name and value pairs in two columns. A value does not end its line.
pub fn table<N: AsRef<str>, V: Display>(rows: impl IntoIterator<Item = (N, V)>) {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|(name, _)| name.as_ref().len()).max().unwrap_or(0);
    for (name, value) in rows {
        let value = shown::line(&value.to_string(), VALUE_BYTES_MAX);
        say!("{:width$}  {value}", name.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn nothing_is_said_twice() {
        let io = || std::io::Error::other("no space left");
        for (err, text) in [
            (
                anyhow!("/pool: cannot open: no space left").context("/pool"),
                "/pool: cannot open: no space left",
            ),
            (anyhow!(io()).context("cannot open: no space left"), "cannot open: no space left"),
            (
                anyhow!(io()).context("cannot open").context("/pool"),
                "/pool: cannot open: no space left",
            ),
            (anyhow!(io()).context("/pool"), "/pool: no space left"),
        ] {
            assert_eq!(in_a_line(&err), text);
        }
    }
}
