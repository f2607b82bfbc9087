//! Copies of whole pools, for saved pools and for `keepstone clone-pool`.
//!
//! A copy is written under a temporary name beside its own, made durable, and renamed. So neither
//! name ever leads to half a pool. Holes stay holes.

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use pmem::{Access, Lock, OpenOptions};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::pool;

/// Bytes that are read and written at once.
const PIECE: u64 = 1 << 20;

/// The identity of a copy of a pool: a new UUID, and a label if one is given.
#[derive(Clone, Copy, Debug)]
pub struct OwnIdentity<'a> {
    pub label: Option<&'a str>,
}

/// Copies a pool that no process uses; the new file replaces one of that name. Without an identity
/// of its own, the copy is the same pool.
pub fn copy_pool(from: &Path, to: &Path, identity: Option<OwnIdentity<'_>>) -> Result<()> {
    // The lock excludes all users that write to it.
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let region = pool::open(from, &options, Access::ReadOnly)?;
    engines::info(&region).with_context(|| format!("{}: is no pool", from.display()))?;
    let start = match identity {
        Some(own) => engines::start_of_copy(&region, own.label)?,
        None => Vec::new(),
    };
    let name = to.file_name().with_context(|| format!("{}: is no file", to.display()))?;
    let temporary = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let temporary = to.with_file_name(temporary);
    let copied =
        copy_file(from, &temporary, &start).and_then(|()| Ok(std::fs::rename(&temporary, to)?));
    if copied.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    copied?;
    Ok(sync_name(to)?)
}

/// Returns the directory of a file.
pub fn parent_of(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file under a temporary name, with `purpose` in it, makes it durable, and renames it.
pub fn replace_file<T>(
    file: &Path,
    purpose: &str,
    write: impl FnOnce(&File) -> Result<T>,
) -> Result<T> {
    let failed = || file.display().to_string();
    let temporary = tempfile::Builder::new()
        .prefix(&format!(".keepstone-{purpose}-"))
        .tempfile_in(parent_of(file))
        .with_context(failed)?;
    let written = write(temporary.as_file())?;
    temporary.as_file().sync_all().with_context(failed)?;
    temporary.persist(file).with_context(failed)?;
    sync_name(file).with_context(failed)?;
    Ok(written)
}

/// Makes the new name of a file durable.
pub fn sync_name(file: &Path) -> io::Result<()> {
    File::open(parent_of(file))?.sync_all()
}

/// Copies what is no hole, durably, to a new file with the same owner and mode, as far as allowed.
/// The copy begins with the bytes `start`.
fn copy_file(from: &Path, to: &Path, start: &[u8]) -> Result<()> {
    let old = File::open(from)?;
    let found = old.metadata()?;
    let new = FileOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    new.set_len(found.len())?;
    // The bar hides itself if stderr is not a terminal.
    let bar = ProgressBar::new(found.len()).with_style(
        ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} % {eta:>4}")
            .expect("a valid template"),
    );
    bar.set_message("copying");
    let (mut at, mut piece) = (0, vec![0; PIECE as usize]);
    while at < found.len() {
        match rustix::fs::seek(&old, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => break,
            Err(_) => {} // Holes are not reported.
        }
        let len = PIECE.min(found.len() - at) as usize;
        old.read_exact_at(&mut piece[..len], at)?;
        for (i, part) in piece[..len].chunks(1 << 16).enumerate() {
            if part.iter().any(|byte| *byte != 0) {
                new.write_all_at(part, at + (i << 16) as u64)?;
            }
        }
        at += len as u64;
        bar.set_position(at);
    }
    new.write_all_at(start, 0)?;
    let _ = std::os::unix::fs::fchown(&new, owner(&found).0, owner(&found).1);
    new.set_permissions(found.permissions())?;
    new.sync_all()?;
    bar.finish_and_clear();
    Ok(())
}

/// Returns user and group of a file, for a call that sets them.
fn owner(found: &std::fs::Metadata) -> (Option<u32>, Option<u32>) {
    use std::os::unix::fs::MetadataExt as _;
    (Some(found.uid()), Some(found.gid()))
}
