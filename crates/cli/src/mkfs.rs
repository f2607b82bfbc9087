//! `keepstone mkfs`

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use bpfs::Bpfs;
use pmem::{Access, Medium as _, Region};
use serde::Serialize;
use vfs::{Caller, FileSystem as _, SetAttr};

use crate::args::{Layout, MkfsArgs};
use crate::pool::{self, DomainReport};
use crate::{output, size};

#[derive(Serialize)]
struct Made {
    pool: String,
    layout: &'static str,
    #[serde(flatten)]
    info: bpfs::PoolInfo,
    domain: DomainReport,
}

pub fn run(args: &MkfsArgs, json: bool) -> Result<ExitCode> {
    if args.layout == Layout::Scmfs {
        bail!("layout scmfs: not yet in this version; use --layout bpfs");
    }
    let (region, created) = open(args)?;
    let options = bpfs::FormatOptions { label: args.label.clone() };
    let info = bpfs::format(&region, &options).inspect_err(|_| {
        if created {
            let _ = std::fs::remove_file(&args.pool);
        }
    });
    let info = info.with_context(|| args.pool.display().to_string())?;
    let region = give_to_maker(region)?;
    let made = Made {
        pool: pool::absolute(&args.pool)?.display().to_string(),
        layout: "bpfs",
        info,
        domain: region.domain().into(),
    };
    if json {
        output::json(&made)?;
    } else {
        println!("{}: bpfs, {}, {}", made.pool, size::show(made.info.size_bytes), made.info.uuid);
        println!("domain {}", made.domain);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the root directory belong to who formats the pool, if that is not the superuser.
fn give_to_maker(region: Region) -> Result<Region> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        return Ok(region);
    }
    let (uid, gid) = (user.as_raw(), group.as_raw());
    let fs = Bpfs::mount(region, &bpfs::MountOptions::default())?;
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    fs.setattr(&Caller { uid, gid }, vfs::ROOT, &owner)?;
    Ok(fs.into_medium())
}

/// The region to format, and whether it is a file made here.
fn open(args: &MkfsArgs) -> Result<(Region, bool)> {
    let pool = &args.pool;
    let found = match std::fs::metadata(pool) {
        Ok(found) => found,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return Ok((create(pool, args.size)?, true));
        }
        Err(err) => return Err(err).with_context(|| pool.display().to_string()),
    };
    let device = found.file_type().is_char_device();
    if device || found.len() > 0 {
        // The lock that comes with it shows that nobody uses the pool.
        let region = Region::open(pool, Access::ReadWrite)?;
        if !args.force {
            refuse(pool, &region)?;
        }
        if device && args.size.is_none() {
            return Ok((region, false));
        }
    }
    if device {
        return Ok((create(pool, args.size)?, false));
    }
    std::fs::remove_file(pool).with_context(|| format!("{}: cannot replace", pool.display()))?;
    let same_size = Some(found.len()).filter(|&len| len > 0);
    Ok((create(pool, args.size.or(same_size))?, true))
}

/// Refuses to overwrite what may be of value to somebody.
fn refuse(pool: &Path, region: &Region) -> Result<()> {
    let holds = match bpfs::info(region) {
        Ok(info) if info.label.is_empty() => format!("holds the pool {}", info.uuid),
        Ok(info) => format!("holds the pool {} ({})", info.uuid, info.label),
        Err(_) if starts_with_zeros(region) => return Ok(()),
        Err(_) => "holds data that is no pool".to_owned(),
    };
    bail!("{}: {holds}; choose another name, or replace it with --force", pool.display());
}

/// A file set aside for a pool, or a device never used.
fn starts_with_zeros(region: &Region) -> bool {
    const LEN: usize = 4096;
    region.len() >= LEN as u64 && region.equals(0, &[0; LEN])
}

fn create(pool: &Path, size: Option<u64>) -> Result<Region> {
    let Some(size) = size else {
        bail!("{}: how large? Give for example --size 4G", pool.display());
    };
    Ok(Region::create(pool, size)?)
}
