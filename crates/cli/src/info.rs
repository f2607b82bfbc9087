//! `keepstone info`

use std::process::ExitCode;

use ::pool::PoolInfo;
use anyhow::Result;
use serde::Serialize;

use crate::args::PoolArgs;
use crate::pool::{self, DomainReport};
use crate::{output, size};

#[derive(Serialize)]
struct Info {
    pool: String,
    #[serde(flatten)]
    info: PoolInfo,
    domain: DomainReport,
    mounted_on: Vec<String>,
}

pub fn run(args: &PoolArgs, json: bool) -> Result<ExitCode> {
    let path = pool::absolute(&args.pool)?;
    let (info, domain) = pool::info(&path)?;
    let mounts = fuse::mounts()?.into_iter().filter(|m| m.is_keepstone() && m.source == path);
    let report = Info {
        pool: path.display().to_string(),
        info,
        domain: domain.into(),
        mounted_on: mounts.map(|m| m.dir.display().to_string()).collect(),
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
