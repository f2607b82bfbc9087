//! What goes to stdout and stderr.

use std::fmt::Display;

use anyhow::Result;
use serde::Serialize;

/// Prints `value` as one JSON object.
pub fn json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints an error with its causes on one line.
pub fn error(err: &anyhow::Error) {
    eprintln!("keepstone: {err:#}");
}

/// Prints something the user should know although all went well.
pub fn notice(text: impl Display) {
    eprintln!("keepstone: {text}");
}

/// Prints name and value pairs in two columns.
pub fn table<N: AsRef<str>, V: Display>(rows: impl IntoIterator<Item = (N, V)>) {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = rows.iter().map(|(name, _)| name.as_ref().len()).max().unwrap_or(0);
    for (name, value) in rows {
        println!("{:width$}  {value}", name.as_ref());
    }
}
