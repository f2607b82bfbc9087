//! Direct access: a program under `keepstone run` against the same program on kernel file systems.
//!
//! Two processes take part. The outer one mounts a pool and starts the inner one, which is this
//! program under `keepstone run`: there every call of libc that concerns the pool is served in user
//! space, and every other call pays for the check.

use crate::engine::size;
use crate::fuse::{Programs, Servers};
use crate::helper::{self, Helper};
use crate::posix::Libc;
use crate::ramdisk;
use crate::raw;
use crate::report::{Results, Section};
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::{Durable, Kernel, Store, open_dir};
use crate::workload::{APPEND_BYTES, Bed, FILE_BYTES, NAMES, numbered};
use anyhow::{Context as _, Result, ensure};
use pmem::{Access, Lock, OpenOptions, Region};
use pool::MountOptions;
use rng::Rng;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

const POOL_BYTES: u64 = 2 << 30;
const SUBJECT: &str = "keepstone";
/// Tells the inner process where the pool is mounted.
const INSIDE: &str = "KEEPSTONE_BENCH_INSIDE";

/// Runs the cases with the arguments of this program, pool and files in `dir`.
pub fn run(plan: &Plan, programs: &Programs, dir: &Path) -> Result<Vec<Outcome>> {
    if helper::serve_if_asked()? {
        std::process::exit(0);
    }
    if let Some(mount) = inner_dir() {
        return inside(plan, &mount, dir);
    }
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let servers = Servers::new(programs, tmp.path());
    let server = servers.keepstone(SUBJECT, "2G", &["-o", "direct"])?;
    match again(programs, tmp.path(), &[], server.dir())? {
        Section::Direct(outcomes) => Ok(outcomes),
        _ => unreachable!("the same command was run"),
    }
}

/// The directory that the inner process is to use; `None` in the outer one.
pub fn inner_dir() -> Option<PathBuf> {
    std::env::var_os(INSIDE).map(PathBuf::from)
}

/// Runs this program again with the same arguments under `keepstone run` with `options`, and passes
/// `inside` to it. Returns its results.
pub fn again(
    programs: &Programs,
    tmp: &Path,
    options: &[&OsStr],
    inside: &Path,
) -> Result<Section> {
    let saved = tmp.join("results.json");
    let status = Command::new(&programs.keepstone)
        .arg("run")
        .args(options)
        .arg("--")
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--save")
        .arg(&saved)
        .env(INSIDE, inside)
        .stdout(std::process::Stdio::null())
        .status()
        .context("cannot run keepstone")?;
    ensure!(status.success(), "the program under `keepstone run` failed ({status})");
    let results: Results = serde_json::from_slice(&std::fs::read(&saved)?)?;
    Ok(results.section)
}

/// Measures in a program under `keepstone run`: in the pool by direct access and through its
/// `mount`, and on the peers in `dir`.
fn inside(plan: &Plan, mount: &Path, dir: &Path) -> Result<Vec<Outcome>> {
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    std::fs::create_dir(mount.join("direct"))?;
    std::fs::create_dir(mount.join("mount"))?;
    let direct = Libc::new(&mount.join("direct"), false)?;
    let direct_synced = Libc::new(&mount.join("direct"), true)?;
    let mounted = Kernel::new(open_dir(mount.join("mount"))?, Durable::Never);
    let tmpfs = Libc::new(tmp.path(), false)?;
    let tmpfs_synced = Libc::new(tmp.path(), true)?;
    let disk = if rustix::process::geteuid().is_root() {
        Some(ramdisk::ext4(dir, POOL_BYTES)?)
    } else {
        tell!("not root: without ext4 on a RAM disk");
        None
    };
    let ext4 =
        disk.as_ref().map(|d| Ok::<_, rustix::io::Errno>(Libc::of(rustix::io::dup(d)?, false)));
    let ext4 = ext4.transpose()?;

    // Memory like the pool's.
    let floor = Region::create(tmp.path().join("floor"), FILE_BYTES)?;
    let beds = Beds {
        direct: Bed::new(SUBJECT, &direct, NAMES)?,
        tmpfs: Bed::new("tmpfs", &tmpfs, NAMES)?,
        ext4: ext4.as_ref().map(|e| Bed::new("ext4", e, NAMES)).transpose()?,
        mounted: Bed::new("through the mount", &mounted, NAMES)?,
    };
    let mut outcomes = Vec::new();
    for (len, target) in [(64, None), (4 << 10, Some(2.5)), (1 << 20, Some(2.0))] {
        let case = beds.case(format!("pread/{}", size(len)), "at random in 128 MiB", len, target);
        let case = beds.each(case, |b| b.read(len), |b| b.read(len));
        let memcpy = raw::memcpy_in_turn(&floor, len);
        let case = match len {
            0..=4096 => case.floor(memcpy),
            _ => case.with(memcpy).floor(raw::copy_in_turn(&floor, len)),
        };
        plan.run(case, &mut outcomes)?;
    }
    without_copy(plan, mount, &beds, &mut outcomes)?;
    let targets = [(64, Some(1.2)), (512, Some(1.0)), (4 << 10, Some(2.5)), (1 << 20, Some(2.0))];
    for (len, target) in targets {
        let case = beds.case(format!("pwrite/{}", size(len)), "at random in 128 MiB", len, target);
        let case = beds.each(case, |b| b.overwrite(len), |b| b.overwrite(len));
        let floor = match len {
            64 | 512 => raw::nt_copy_to(&floor, 0, len),
            _ => raw::shadow_to(&floor, 0, len),
        };
        plan.run(case.floor(floor), &mut outcomes)?;
    }
    let len = 4 << 10;
    let case = beds
        .case("append/4K".into(), "at the end of a growing file", len, Some(3.0))
        .ops_max(APPEND_BYTES / len as u64)
        .with(beds.direct.append(len)?)
        .with(beds.tmpfs.append(len)?)
        .with(beds.ext4.as_ref().map(|b| b.append(len)).transpose()?)
        .with(beds.mounted.append(len)?)
        .floor(raw::shadow_to(&floor, 0, len));
    plan.run(case, &mut outcomes)?;
    let case = beds.case("create+close+unlink".into(), "a file", 0, Some(5.0));
    let case = beds
        .each(case, |b| b.create_unlink(), |b| b.create_unlink())
        .with(raw::epochs(&floor, 2))
        .floor(raw::epochs_of_names(&floor, 2, beds.direct.look_twice()));
    plan.run(case, &mut outcomes)?;
    let case = beds.case("open+close".into(), "one of 10 000 files", 0, Some(3.0));
    plan.run(beds.each(case, |b| b.open_close(), |b| b.open_close()), &mut outcomes)?;
    let case = beds.case("stat".into(), "one of 10 000 files", 0, Some(5.0));
    plan.run(beds.each(case, |b| b.stat(), |b| b.stat()), &mut outcomes)?;
    let case = beds
        .case("rename".into(), "there and back in turn", 0, Some(5.0))
        .with(beds.direct.rename(false)?)
        .with(beds.tmpfs.rename(false)?)
        .with(beds.ext4.as_ref().map(|b| b.rename(false)).transpose()?)
        .with(beds.mounted.rename(false)?)
        .with(raw::epochs(&floor, 1))
        .floor(raw::epochs_of_names(&floor, 1, beds.direct.look_twice()));
    plan.run(case, &mut outcomes)?;
    let case = beds.case("readdir".into(), "a directory of 10 000 names", 0, Some(2.0));
    plan.run(beds.each(case, |b| b.list(), |b| b.list()), &mut outcomes)?;
    let case = beds
        .case("postmark".into(), "transactions on small files in one directory", 0, Some(3.0))
        .with(beds.direct.postmark()?)
        .with(beds.tmpfs.postmark()?)
        .with(beds.ext4.as_ref().map(Bed::postmark).transpose()?);
    plan.run(case, &mut outcomes)?;
    for (name, at) in [("two-threads/pread", 0), ("two-threads/pwrite", 1)] {
        let case = Case::new(name, "4 KiB, each thread in its own file").bytes(len as u64);
        let case = match at {
            0 => case
                .with(beds.direct.read_by_two(len))
                .with(beds.direct.read(len))
                .with(beds.tmpfs.read_by_two(len))
                .with(raw::memcpy_by_two(&floor, len))
                .with(raw::memcpy_from(&floor, len)),
            _ => case
                .with(beds.direct.overwrite_by_two(len))
                .with(beds.direct.overwrite(len))
                .with(beds.tmpfs.overwrite_by_two(len))
                .with(raw::shadow_by_two(&floor, 0, len))
                .with(raw::shadow_to(&floor, 0, len)),
        };
        plan.run(case.target(SUBJECT, 1.8), &mut outcomes)?;
    }
    by_processes(plan, (mount, tmp.path()), &beds, &floor, &mut outcomes)?;
    drop(beds);
    let ext4 = ext4.map(|e| e.synced());
    synced(plan, &direct_synced, &tmpfs_synced, ext4, &floor, &mut outcomes)?;
    Ok(outcomes)
}

/// Measures reads without a copy (Chell §6), which return the address of the bytes and do not touch
/// them. Runs before files are overwritten at random and lie in pieces.
fn without_copy(
    plan: &Plan,
    mount: &Path,
    beds: &Beds<'_>,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    // Next to the mount point: see `Servers::keepstone`.
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let region = options.open(mount.with_file_name("pool"), Access::ReadWrite)?;
    let fs = engines::attach(region, &MountOptions::default())?;
    let dir = fs.lookup(fs.root(), b"direct")?;
    let file = fs.lookup(dir.ino, numbered(0).to_bytes())?.ino;
    for (len, target) in [(4 << 10, 4.2), (1 << 20, 700.0)] {
        let mut rng = Rng::new(2);
        let given = Contender::new("get_read_buf", |ops| {
            for _ in 0..ops {
                let end = (rng.below_fast(FILE_BYTES / len as u64) + 1) * len as u64;
                let mut at = end - len as u64;
                while at < end {
                    let piece = std::hint::black_box(fs.get_read_buf(file, at, end - at)?);
                    at += piece.len() as u64;
                }
            }
            Ok(())
        });
        let case = Case::new(format!("get_read_buf/{}", size(len)), "at random in 128 MiB")
            .bytes(len as u64)
            .with(given)
            .with(beds.direct.read(len))
            .with(beds.tmpfs.read(len))
            .target(SUBJECT, target);
        plan.run(case, outcomes)?;
    }
    Ok(())
}

/// Compares two processes with one.
fn by_processes(
    plan: &Plan,
    (mount, tmp): (&Path, &Path),
    beds: &Beds<'_>,
    floor: &Region,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let len = 4 << 10;
    let direct = &mount.join("direct");
    let case = |name: &str| {
        Case::new(name, "4 KiB, each process in its own file")
            .bytes(len as u64)
            .target(SUBJECT, 1.8)
    };
    let start = |name: &str, dir: &Path| plan.wants(name).then(|| Helper::start(dir)).transpose();
    let name = "two-processes/pread";
    let reading = case(name)
        .with(beds.direct.read_by_processes(len, start(name, direct)?))
        .with(beds.direct.read(len))
        .with(beds.tmpfs.read_by_processes(len, start(name, tmp)?))
        .with(raw::memcpy_by_two(floor, len))
        .with(raw::memcpy_from(floor, len));
    plan.run(reading, outcomes)?;
    let name = "two-processes/pwrite";
    let writing = case(name)
        .with(beds.direct.overwrite_by_processes(len, start(name, direct)?))
        .with(beds.direct.overwrite(len))
        .with(beds.tmpfs.overwrite_by_processes(len, start(name, tmp)?));
    plan.run(writing, outcomes)
}

/// Measures writes with `fsync`, as an application makes them to keep its data safe.
fn synced(
    plan: &Plan,
    direct: &Libc,
    tmpfs: &Libc,
    ext4: Option<Libc>,
    floor: &Region,
    outcomes: &mut Vec<Outcome>,
) -> Result<()> {
    let within = |store: &Libc| -> Result<Libc> {
        let dir = store.mkdir(&store.root()?, c"synced")?;
        Ok(Libc::of(dir, true))
    };
    let (direct, tmpfs) = (within(direct)?, within(tmpfs)?);
    let ext4 = ext4.as_ref().map(within).transpose()?;
    let direct = Bed::new(SUBJECT, &direct, 1)?;
    let tmpfs = Bed::new("tmpfs", &tmpfs, 1)?;
    let ext4 = ext4.as_ref().map(|e| Bed::new("ext4", e, 1)).transpose()?;
    let len = 4 << 10;
    let case = Case::new("pwrite+fsync/4K", "at random in 128 MiB, then fsync")
        .bytes(len as u64)
        .with(direct.overwrite(len))
        .with(tmpfs.overwrite(len))
        .with(ext4.as_ref().map(|b| b.overwrite(len)))
        .floor(raw::shadow_to(floor, 0, len))
        .target("tmpfs", 2.5);
    let case = if ext4.is_some() { case.target("ext4", 50.0) } else { case };
    plan.run(case, outcomes)
}

struct Beds<'s> {
    direct: Bed<'s, Libc>,
    tmpfs: Bed<'s, Libc>,
    ext4: Option<Bed<'s, Libc>>,
    mounted: Bed<'s, Kernel>,
}

impl<'s> Beds<'s> {
    fn case<'a>(&self, name: String, what: &str, len: usize, target: Option<f64>) -> Case<'a> {
        let case = Case::new(name, what).bytes(len as u64);
        let case = match target {
            Some(at_least) => case.target("tmpfs", at_least),
            None => case,
        };
        if self.ext4.is_some() { case.target("ext4", 2.0) } else { case }
    }

    /// Returns a case in which all systems take part.
    fn each<'a>(
        &'a self,
        case: Case<'a>,
        libc: impl Fn(&'a Bed<'s, Libc>) -> Contender<'a>,
        kernel: impl Fn(&'a Bed<'s, Kernel>) -> Contender<'a>,
    ) -> Case<'a> {
        case.with(libc(&self.direct))
            .with(libc(&self.tmpfs))
            .with(self.ext4.as_ref().map(&libc))
            .with(kernel(&self.mounted))
    }
}
