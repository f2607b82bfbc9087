//! Copies of whole pools, for saved pools and for `keepstone clone-pool`.
//!
//! A copy gets its name when it is complete and durable ([`NewFile`]). So no name ever leads to
//! half a pool, and a process that is killed leaves nothing. Holes stay holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use os::nameless::{give_name, make_beside, parent_of};
use pmem::{Access, Lock, OpenOptions};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tempfile::{Builder, NamedTempFile};

use crate::pool;

/// Bytes that are read and written at once.
const PIECE: u64 = 1 << 20;

/// Attempts to name a file while other processes give the same name to others.
const NAMING_ATTEMPTS: usize = 100;

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
    let new = NewFile::beside(to).with_context(|| to.display().to_string())?;
    copy_file(from, new.file(), &start)?;
    Ok(new.put(to)?)
}

/// A file that gets its name when it is complete. Until then a process that is killed leaves
/// nothing, except on file systems without nameless files: there it has a temporary name.
pub enum NewFile {
    Nameless(File),
    Temporary(NamedTempFile),
}

impl NewFile {
    /// Makes a file in the directory of `to`.
    pub fn beside(to: &Path) -> io::Result<Self> {
        if to.file_name().is_none() {
            return Err(Errno::INVAL.into());
        }
        match make_beside(to) {
            Ok(file) => Ok(Self::Nameless(file.into())),
            // Whatever the reason, this works, or explains why not.
            Err(_) => {
                let temporary = Builder::new().prefix(".keepstone-").tempfile_in(parent_of(to));
                temporary.map(Self::Temporary)
            }
        }
    }

    pub fn file(&self) -> &File {
        match self {
            Self::Nameless(file) => file,
            Self::Temporary(file) => file.as_file(),
        }
    }

    /// Makes the file durable, and gives it its name; it replaces one of that name.
    pub fn put(self, to: &Path) -> io::Result<()> {
        self.file().sync_all()?;
        match self {
            Self::Nameless(file) => put_nameless(&file, to)?,
            Self::Temporary(file) => drop(file.persist(to)?),
        }
        File::open(parent_of(to))?.sync_all()
    }
}

/// Names a file. No system call names a file in place of another one. So if another file has the
/// name, this one has a temporary name in between. That is always the same: if a process is killed
/// there, the next process takes the name.
fn put_nameless(file: &File, to: &Path) -> io::Result<()> {
    let mut named = give_name(file, to);
    if named == Err(Errno::EXIST) {
        let temporary = temporary_of(to);
        for _ in 0..NAMING_ATTEMPTS {
            named = give_name(file, &temporary).and_then(|()| rustix::fs::rename(&temporary, to));
            match named {
                Err(Errno::EXIST) => drop(rustix::fs::unlink(&temporary)),
                // Another process has taken the temporary name.
                Err(Errno::NOENT) => {}
                Ok(()) => break,
                Err(_) => {
                    let _ = rustix::fs::unlink(&temporary);
                    break;
                }
            }
        }
    }
    Ok(named?)
}

/// Returns the temporary name of a file, beside its own.
fn temporary_of(to: &Path) -> PathBuf {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    to.with_file_name(format!(".{name}.keepstone"))
}

/// Writes a new file, which replaces one of that name, or to which a link of that name leads, when
/// it is complete and durable. Writes to devices, pipes and the descriptors of `/dev/fd` directly.
pub fn replace_file<T>(file: &Path, write: impl FnOnce(&File) -> Result<T>) -> Result<T> {
    let failed = || file.display().to_string();
    let is_other = file.metadata().is_ok_and(|found| !found.is_file());
    if is_other || is_descriptor(file) {
        return write(&File::options().write(true).open(file).with_context(failed)?);
    }
    let to = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let new = NewFile::beside(&to).with_context(failed)?;
    let written = write(new.file())?;
    new.put(&to).with_context(failed)?;
    Ok(written)
}

/// Returns whether a path names a descriptor of this process, as `/dev/stdout` and `/dev/fd/3` do.
fn is_descriptor(file: &Path) -> bool {
    let of_processes = |path: PathBuf| path.starts_with("/proc");
    let is_link = file.read_link().is_ok_and(of_processes);
    is_link || parent_of(file).canonicalize().is_ok_and(of_processes)
}

/// Copies what is no hole to a new file, which gets the same owner and mode, as far as allowed. The
/// copy begins with the bytes `start`.
fn copy_file(from: &Path, new: &File, start: &[u8]) -> Result<()> {
    let old = File::open(from)?;
    let found = old.metadata()?;
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
    let _ = std::os::unix::fs::fchown(new, owner(&found).0, owner(&found).1);
    new.set_permissions(found.permissions())?;
    bar.finish_and_clear();
    Ok(())
}

/// Returns user and group of a file, for a call that sets them.
fn owner(found: &std::fs::Metadata) -> (Option<u32>, Option<u32>) {
    use std::os::unix::fs::MetadataExt as _;
    (Some(found.uid()), Some(found.gid()))
}
