//! `keepstone info`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ::pool::PoolInfo;
use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::args::InfoArgs;
use crate::pool::{self, DomainReport};
use crate::{output, size, stats};

#[derive(Serialize)]
struct Info {
    pool: String,
    #[serde(flatten)]
    info: PoolInfo,
    domain: DomainReport,
    mounted_on: Vec<String>,
    /// The directory or object store that the pool caches. Null for other pools, and while a
    /// command without a server has the pool open.
    cache_of: Option<String>,
    /// The names of the pool's snapshots, the oldest first.
    snapshots: Vec<String>,
    /// The names of the pool's branches.
    branches: Vec<String>,
    /// The time at which operations are durable: `journal` or `ordered`. Null if the pool is not
    /// mounted.
    durability: Value,
    /// Fragmentation of free space, as the server of a mount reports it. Null if the pool is not
    /// mounted, because that would take a scan.
    free: Value,
}

/// Longest time for a server to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the statistics of the first server among the mounts that answers.
fn first_answer(dirs: Vec<PathBuf>) -> Value {
    stats::ask(dirs, PATIENCE, stats::read).into_values().flatten().next().unwrap_or_default()
}

/// Writes a label as udev writes the names of links: other characters than these, and a dot at the
/// beginning, as `\xNN`.
fn encoded(label: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte);
    let byte = |(at, byte): (usize, u8)| match is_plain(byte) && (at > 0 || byte != b'.') {
        true => char::from(byte).to_string(),
        false => format!("\\x{byte:02x}"),
    };
    label.bytes().enumerate().map(byte).collect()
}

/// Returns the names of a pool's complete snapshots.
fn snapshots(path: &Path) -> Result<Vec<String>> {
    let all = engines::snapshots(&pool::open_to_look(path)?)?;
    let complete = all.into_iter().filter(|snapshot| !snapshot.is_incomplete);
    Ok(complete.map(|snapshot| snapshot.name).collect())
}

/// Returns the names of a pool's branches.
fn branches(path: &Path) -> Result<Vec<String>> {
    let all = engines::branches(&pool::open_to_look(path)?)?;
    Ok(all.into_iter().map(|branch| branch.name).collect())
}

pub fn run(args: &InfoArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let (info, domain) = pool::info(&path)?;
    if args.udev {
        say!("KEEPSTONE_UUID={}\nKEEPSTONE_LABEL={}", info.uuid, encoded(&info.label));
        return Ok(ExitCode::SUCCESS);
    }
    let mounts = fuse::mounts()?.into_iter().filter(|m| m.is_keepstone() && m.source == path);
    let dirs: Vec<PathBuf> = mounts.map(|m| m.dir).collect();
    let mut stats = first_answer(dirs.clone());
    let report = Info {
        pool: path.display().to_string(),
        info,
        domain: domain.into(),
        mounted_on: dirs.iter().map(|dir| dir.display().to_string()).collect(),
        cache_of: stats["cache"]
            .is_object()
            .then(|| stats["dir"].as_str().map(str::to_owned))
            .flatten(),
        snapshots: snapshots(&path)?,
        branches: branches(&path)?,
        durability: match &mut stats {
            stats if stats["cache"].is_object() => stats["cache"]["mode"].clone(),
            stats => stats["durability"].take(),
        },
        free: stats["free"].take(),
    };
    if json {
        output::json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cache_of = match &report.cache_of {
        Some(dir) => dir.clone(),
        None if report.info.has_backing_store => "a directory; not attached".to_owned(),
        None => "nothing".to_owned(),
    };
    let mounted = match report.mounted_on.as_slice() {
        [] => "no".to_owned(),
        dirs => dirs.join(", "),
    };
    let durability = match &report.durability {
        Value::String(mode) => mode.clone(),
        _ => "as the next mount says".to_owned(),
    };
    let listed = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let resizable = match report.info.max_size_bytes {
        Some(max) => format!("up to {}, also while it is used", size::show(max)),
        None => "only while no process uses it".to_owned(),
    };
    output::table([
        ("pool", report.pool.clone()),
        ("layout", format!("{}, format version {}", report.info.layout, report.info.version)),
        ("label", report.info.label.clone()),
        ("uuid", report.info.uuid.to_string()),
        ("size", size::show(report.info.size_bytes)),
        ("resizable", resizable),
        ("domain", report.domain.to_string()),
        ("mounted", mounted),
        ("durability", durability),
        ("cache of", cache_of),
        ("snapshots", listed(&report.snapshots)),
        ("branches", listed(&report.branches)),
    ]);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_written_as_udev_writes_them() {
        assert_eq!(encoded("scratch-1.0"), "scratch-1.0");
        assert_eq!(encoded(".."), "\\x2e.");
        assert_eq!(encoded("a b/\n\u{e9}"), "a\\x20b\\x2f\\x0a\\xc3\\xa9");
    }
}
