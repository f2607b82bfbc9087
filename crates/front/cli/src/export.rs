//! `keepstone export`: a pool that is not in use, or a snapshot or an unused branch of any pool, as
//! a tar archive.
//!
//! The archive has the POSIX format (pax), with times in ns, extended attributes and ACLs as GNU
//! tar stores them (`SCHILY.xattr.`), hard links, and holes as in version 1.0 of its sparse format.
//! Sockets have no place in an archive.
//!
//! The pool of a cache need not have all contents. The command writes all that is there, so that
//! changes can be saved when the cached directory is lost. It names the rest, and fails.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufWriter, IsTerminal as _, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ::pool::{Engine, MountOptions, branch_part};
use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use pmem::{Access, Lock, OpenOptions};
use serde::Serialize;
use tar::{Builder, EntryType, Header};
use vfs::{ABSENT, Attr, Errno, FileKind, FileSystem, Ino, Seek, access};

use crate::args::ExportArgs;
use crate::copies::replace_file;
use crate::{output, pool, size};

/// Bytes of a block of an archive.
const BLOCK: u64 = 512;
/// Most bytes that a name or the target of a link has in the header itself.
const NAME_MAX: usize = 100;

#[derive(Debug, Default, Serialize)]
struct Exported {
    pool: PathBuf,
    files: u64,
    directories: u64,
    /// Symbolic links, pipes, devices, and further names of files.
    others: u64,
    /// Bytes of all files, holes included.
    bytes: u64,
    /// Paths of sockets, which are left out.
    left_out: Vec<String>,
    /// Paths of what the pool of a cache has not loaded: files, and directories with all below.
    absent: Vec<String>,
}

/// Most absent paths that are shown.
const ABSENT_SHOWN: usize = 10;

pub fn run(args: &ExportArgs, json: bool) -> Result<ExitCode> {
    if args.output.is_none() {
        if json {
            return Err(output::wrong_usage(
                "--json: the archive goes to stdout; name --output FILE",
            ));
        }
        if io::stdout().is_terminal() {
            let what = "stdout is a terminal; name --output FILE, or a program after `|`";
            return Err(output::wrong_usage(what));
        }
    }
    let (path, snapshot) = pool::absolute_with_snapshot(&args.pool)?;
    let fs = open(&path, snapshot.as_deref())?;
    let shown = snapshot.map_or(path.clone(), |name| pool::of_snapshot(&path, &name));
    let exported = match &args.output {
        None => export(&*fs, &shown, io::stdout().lock())?,
        Some(file) => replace_file(file, |to| export(&*fs, &shown, to))?,
    };
    fs.close()?;
    for path in &exported.left_out {
        tell!("keepstone: {path}: a socket, left out");
    }
    exported.absent.iter().take(ABSENT_SHOWN).for_each(|path| {
        output::notice(format_args!("{path}: not in the pool"));
    });
    let absent = exported.absent.len();
    if absent > 0 {
        output::notice(format_args!(
            "{}: the pool of a cache, without {absent} files and directories of the cached \
             directory, which are not in the archive",
            shown.display()
        ));
    }
    if json {
        output::json(&exported)?;
    } else if args.output.is_some() {
        say!(
            "{}: {} files, {} directories, {} others, {}",
            shown.display(),
            exported.files,
            exported.directories,
            exported.others,
            size::show(exported.bytes)
        );
    }
    Ok(if absent == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Opens a pool that no process uses, or a snapshot or an unused branch of a pool that others may
/// use.
fn open(path: &Path, part: Option<&str>) -> Result<Arc<dyn Engine>> {
    if let Some(name) = part {
        let shown = pool::of_snapshot(path, name);
        let region = pool::open_to_look(path)?;
        if engines::branches(&region)?.iter().any(|branch| branch.name == name) {
            return open_branch(&shown, name);
        }
        return engines::mount_snapshot(region, name, &MountOptions::default())
            .with_context(|| shown.display().to_string());
    }
    // The lock excludes all users that write to it.
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let region = pool::open(path, &options, Access::ReadOnly).context(
        "a pool in use is exported by a snapshot: `keepstone snapshot create`, then `keepstone \
         export POOL@NAME`",
    )?;
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    engines::mount(region, &options).with_context(|| path.display().to_string())
}

/// Opens a branch by POOL@NAME, and excludes other uses of it.
fn open_branch(source: &Path, name: &str) -> Result<Arc<dyn Engine>> {
    let fs = pool::attach(source)?;
    match fs.region().lock_part(branch_part(name), Lock::Exclusive)? {
        true => Ok(fs),
        false => bail!("{}: is in use; unmount it first", source.display()),
    }
}

fn export(fs: &dyn Engine, pool: &Path, out: impl Write) -> Result<Exported> {
    // The bar hides itself if stderr is not a terminal.
    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec} {wide_msg}")
            .expect("a valid template"),
    );
    let mut archive = Archive {
        fs,
        is_cache: engines::info(fs.region()).is_ok_and(|info| info.has_backing_store),
        out: Builder::new(BufWriter::with_capacity(1 << 20, out)),
        named: HashMap::new(),
        exported: Exported { pool: pool.to_owned(), ..Exported::default() },
        bar,
    };
    // A branch can be changed, also by reads.
    access::unrecorded(|| archive.all())?;
    archive.out.into_inner()?.into_inner().map_err(io::IntoInnerError::into_error)?.flush()?;
    archive.bar.finish_and_clear();
    Ok(archive.exported)
}

/// An archive that is being written.
struct Archive<'a, W: Write> {
    fs: &'a dyn Engine,
    /// Whether the pool is that of a cache, which may lack contents.
    is_cache: bool,
    out: Builder<W>,
    /// The first path of each inode with more than one.
    named: HashMap<Ino, Vec<u8>>,
    exported: Exported,
    bar: ProgressBar,
}

impl<W: Write> Archive<'_, W> {
    /// Writes all of the file system, directories before what is in them.
    fn all(&mut self) -> Result<()> {
        let mut open = vec![(self.fs.root(), b"./".to_vec())];
        while let Some((dir, path)) = open.pop() {
            let failed = || shown(&path);
            // Names follow their directory: tar sets its time when the next directory begins.
            self.one(dir, &path).with_context(failed)?;
            let mut names = match vfs::names_in(self.fs, dir) {
                Err(ABSENT) => {
                    self.exported.absent.push(shown(&path));
                    Vec::new()
                }
                names => names.with_context(failed)?,
            };
            names.sort_unstable();
            let mut below = Vec::new();
            for name in names {
                let mut path = [&path[..], &name].concat();
                let found = match self.fs.lookup(dir, &name) {
                    Err(ABSENT) => {
                        self.exported.absent.push(shown(&path));
                        continue;
                    }
                    found => found.with_context(|| shown(&path))?,
                };
                if found.kind == FileKind::Dir {
                    path.push(b'/');
                    below.push((found.ino, path));
                } else {
                    self.one(found.ino, &path).with_context(|| shown(&path))?;
                    self.fs.forget(found.ino, 1);
                }
            }
            open.extend(below.into_iter().rev());
            if dir != self.fs.root() {
                self.fs.forget(dir, 1);
            }
        }
        Ok(())
    }

    /// Writes one object, unless it is absent.
    fn one(&mut self, ino: Ino, path: &[u8]) -> Result<()> {
        match self.present(ino, path) {
            Err(err) if err.downcast_ref() == Some(&ABSENT) => {
                self.named.remove(&ino);
                self.exported.absent.push(shown(path));
                Ok(())
            }
            done => done,
        }
    }

    /// Writes one object; [`ABSENT`], and nothing written, if the pool lacks a part of it.
    fn present(&mut self, ino: Ino, path: &[u8]) -> Result<()> {
        let attr = self.fs.getattr(ino)?;
        self.bar.set_message(shown(path));
        if attr.kind == FileKind::Socket {
            self.exported.left_out.push(shown(path));
            return Ok(());
        }
        let mut entry = ArchiveEntry::new(&attr, path);
        if attr.kind != FileKind::Dir && attr.nlink > 1 {
            if let Some(first) = self.named.get(&ino) {
                self.exported.others += 1;
                entry.header.set_entry_type(EntryType::Link);
                entry.links_to(&first.clone());
                return entry.write(&mut self.out, 0, io::empty());
            }
            self.named.insert(ino, path.to_vec());
        }
        for name in self.fs.listxattr(ino)? {
            let value = self.fs.getxattr(ino, &name)?;
            entry.pax(&format!("SCHILY.xattr.{}", String::from_utf8_lossy(&name)), value);
        }
        match attr.kind {
            FileKind::File => {
                self.check_present(ino, attr.size)?;
                self.exported.files += 1;
                self.exported.bytes += attr.size;
                return self.file(entry, ino, attr.size);
            }
            FileKind::Dir => self.exported.directories += 1,
            FileKind::Symlink => {
                self.exported.others += 1;
                entry.links_to(&self.fs.readlink(ino)?);
            }
            _ => self.exported.others += 1,
        }
        entry.write(&mut self.out, 0, io::empty())
    }

    /// Checks that the pool has all content of a file.
    fn check_present(&self, ino: Ino, size: u64) -> Result<(), Errno> {
        if !self.is_cache {
            return Ok(());
        }
        let mut data = vec![0; 1 << 20];
        for (start, len) in ranges(self.fs, ino, size)? {
            for at in (start..start + len).step_by(data.len()) {
                self.fs.read(ino, at, &mut data)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, mut entry: ArchiveEntry<'_>, ino: Ino, size: u64) -> Result<()> {
        let ranges = ranges(self.fs, ino, size)?;
        let stored: u64 = ranges.iter().map(|(_, len)| len).sum();
        let content = RangeReader { fs: self.fs, ino, ranges, at: 0, bar: &self.bar };
        if stored == size {
            return entry.write(&mut self.out, size, content);
        }
        // Version 1.0 of the sparse format of GNU tar: the content begins with the ranges.
        let mut map = format!("{}\n", content.ranges.len() + 1);
        for (at, len) in content.ranges.iter().chain([&(size, 0)]) {
            map += &format!("{at}\n{len}\n");
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
        entry.pax("GNU.sparse.major", b"1".to_vec());
        entry.pax("GNU.sparse.minor", b"0".to_vec());
        entry.pax("GNU.sparse.name", entry.path.to_vec());
        entry.pax("GNU.sparse.realsize", size.to_string().into_bytes());
        entry.write(&mut self.out, map.len() as u64 + stored, map.as_slice().chain(content))
    }
}

/// Returns the ranges of a file with data, as offset and length.
fn ranges(fs: &dyn FileSystem, ino: Ino, size: u64) -> Result<VecDeque<(u64, u64)>, Errno> {
    let (mut all, mut at) = (VecDeque::new(), 0);
    while at < size {
        let start = match fs.seek(ino, at, Seek::Data) {
            Err(Errno::NXIO) => break,
            start => start?,
        };
        at = fs.seek(ino, start, Seek::Hole)?.min(size);
        all.push_back((start, at - start));
    }
    Ok(all)
}

/// The data of a file, range by range.
struct RangeReader<'a> {
    fs: &'a dyn FileSystem,
    ino: Ino,
    /// The ranges that are left, in order, from `at` bytes behind the start of the first range on.
    ranges: VecDeque<(u64, u64)>,
    at: u64,
    bar: &'a ProgressBar,
}

impl Read for RangeReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.ranges.front().is_some_and(|(_, len)| self.at == *len) {
            self.ranges.pop_front();
            self.at = 0;
        }
        let Some((start, len)) = self.ranges.front() else { return Ok(0) };
        let most = buf.len().min((len - self.at).try_into().unwrap_or(usize::MAX));
        let done = self.fs.read(self.ino, start + self.at, &mut buf[..most]);
        let done = done.map_err(|e| io::Error::from_raw_os_error(e.raw_os_error()))?;
        if done == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += done as u64;
        self.bar.inc(done as u64);
        Ok(done)
    }
}

/// The header of an object, and the records for values that do not fit into the header.
struct ArchiveEntry<'a> {
    header: Header,
    path: &'a [u8],
    records: Vec<(String, Vec<u8>)>,
}

impl<'a> ArchiveEntry<'a> {
    fn new(attr: &Attr, path: &'a [u8]) -> Self {
        let mut entry = Self { header: Header::new_ustar(), path, records: Vec::new() };
        let header = &mut entry.header;
        header.set_mode(attr.perm);
        header.set_entry_type(match attr.kind {
            FileKind::File | FileKind::Socket => EntryType::Regular,
            FileKind::Dir => EntryType::Directory,
            FileKind::Symlink => EntryType::Symlink,
            FileKind::Fifo => EntryType::Fifo,
            FileKind::Char => EntryType::Char,
            FileKind::Block => EntryType::Block,
        });
        let device = u64::from(attr.rdev);
        let [major, minor] = [libc::major(device), libc::minor(device)];
        // In a header of this format, these fields exist.
        let _ = header.set_device_major(major).and(header.set_device_minor(minor));
        let (seconds, ns) =
            (attr.mtime.0.div_euclid(1_000_000_000), attr.mtime.0.rem_euclid(1_000_000_000));
        header.set_mtime(seconds.try_into().unwrap_or(0));
        if ns != 0 || seconds < 0 {
            entry.pax("mtime", decimal(attr.mtime.0));
        }
        entry.number("uid", attr.uid.into(), Header::set_uid);
        entry.number("gid", attr.gid.into(), Header::set_gid);
        entry
    }

    fn pax(&mut self, name: &str, value: Vec<u8>) {
        self.records.push((name.to_owned(), value));
    }

    /// Sets a number that may have more than the seven octal digits of its field.
    fn number(&mut self, name: &str, value: u64, set: fn(&mut Header, u64)) {
        if value < 1 << 21 {
            return set(&mut self.header, value);
        }
        set(&mut self.header, 0);
        self.pax(name, value.to_string().into_bytes());
    }

    fn links_to(&mut self, target: &[u8]) {
        let short = target.len().min(NAME_MAX);
        self.header.as_old_mut().linkname[..short].copy_from_slice(&target[..short]);
        if short < target.len() {
            self.pax("linkpath", target.to_vec());
        }
    }

    fn write(mut self, out: &mut Builder<impl Write>, size: u64, content: impl Read) -> Result<()> {
        let short = self.path.len().min(NAME_MAX);
        self.header.as_old_mut().name[..short].copy_from_slice(&self.path[..short]);
        if short < self.path.len() {
            self.pax("path", self.path.to_vec());
        }
        // Eleven octal digits.
        if size >= 1 << 33 {
            self.pax("size", size.to_string().into_bytes());
        }
        self.header.set_size(size);
        self.header.set_cksum();
        out.append_pax_extensions(
            self.records.iter().map(|(name, value)| (&name[..], &value[..])),
        )?;
        Ok(out.append(&self.header, content)?)
    }
}

/// Returns a time in seconds, with nine digits behind the point.
fn decimal(ns: i64) -> Vec<u8> {
    let (sign, whole) = (if ns < 0 { "-" } else { "" }, ns.unsigned_abs());
    format!("{sign}{}.{:09}", whole / 1_000_000_000, whole % 1_000_000_000).into_bytes()
}

fn shown(path: &[u8]) -> String {
    crate::shown::lines(&String::from_utf8_lossy(path)).into_owned()
}
