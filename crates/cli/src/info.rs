//! `keepstone info`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ::pool::PoolInfo;
use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use crate::args::PoolArgs;
use crate::pool::{self, DomainReport};
use crate::{output, size, stats};

#[derive(Serialize)]
struct Info {
    pool: String,
    #[serde(flatten)]
    info: PoolInfo,
    domain: DomainReport,
    mounted_on: Vec<String>,
    /// How free space lies, as the server of a mount says; null where the pool is not mounted, as it takes a scan then.
    free: Value,
}

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the first of the mounts' servers to answer says of free space.
fn free_space(dirs: Vec<PathBuf>) -> Value {
    let answers = stats::ask(dirs, PATIENCE).into_values();
    answers.flatten().map(|mut stats| stats["free"].take()).next().unwrap_or_default()
}

pub fn run(args: &PoolArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let (info, domain) = pool::info(&path)?;
    let mounts = fuse::mounts()?.into_iter().filter(|m| m.is_keepstone() && m.source == path);
    let dirs: Vec<PathBuf> = mounts.map(|m| m.dir).collect();
    let report = Info {
        pool: path.display().to_string(),
        info,
        domain: domain.into(),
        mounted_on: dirs.iter().map(|dir| dir.display().to_string()).collect(),
        free: free_space(dirs),
    };
    if json {
        output::json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mounted = match report.mounted_on.as_slice() {
        [] => "no".to_owned(),
        dirs => dirs.join(", "),
    };
    output::table([
        ("pool", report.pool.clone()),
        ("layout", format!("{}, format version {}", report.info.layout, report.info.version)),
        ("label", report.info.label.clone()),
        ("uuid", report.info.uuid.to_string()),
        ("size", size::show(report.info.size_bytes)),
        ("domain", report.domain.to_string()),
        ("mounted", mounted),
    ]);
    Ok(ExitCode::SUCCESS)
}
