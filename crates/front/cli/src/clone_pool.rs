//! `keepstone clone-pool`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::args::ClonePoolArgs;
use crate::copies::{OwnIdentity, copy_pool};
use crate::mkfs::check_label;
use crate::tags::Tag;
use crate::{output, pool, shown};

#[derive(Serialize)]
struct Copied {
    pool: PathBuf,
    copy: PathBuf,
    uuid: String,
    label: String,
    size_bytes: u64,
}

pub fn run(args: &ClonePoolArgs, json: bool) -> Result<ExitCode> {
    Tag::refuse(&args.copy)?;
    args.label.as_deref().map_or(Ok(()), check_label)?;
    let from = pool::absolute(&args.pool)?;
    if !from.is_file() {
        bail!("{}: only a pool in a file can be copied", from.display());
    }
    if args.copy.symlink_metadata().is_ok() {
        bail!("{}: exists; choose another name, or remove it", args.copy.display());
    }
    if pool::info(&from)?.0.has_backing_store {
        bail!(
            "{}: is the pool of a cache, and two caches may not hold changes of one directory; make \
             a new pool with `keepstone mkfs --cache`",
            from.display()
        );
    }
    copy_pool(&from, &args.copy, Some(OwnIdentity { label: args.label.as_deref() }))?;
    let (info, _) = pool::info(&args.copy)?;
    let copied = Copied {
        pool: from,
        copy: args.copy.clone(),
        uuid: info.uuid.to_string(),
        label: info.label,
        size_bytes: info.size_bytes,
    };
    if json {
        output::json(&copied)?;
    } else {
        say!("{}: a copy of {}", copied.copy.display(), copied.pool.display());
        say!("  UUID   {}", copied.uuid);
        if !copied.label.is_empty() {
            say!("  label  {}", shown::name(&copied.label));
        }
    }
    Ok(ExitCode::SUCCESS)
}
