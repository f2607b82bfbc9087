//! `keepstone doctor`: reports what this machine has, what it lacks and what is unsafe, with
//! remedies.

mod safety;
mod unit;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use pmem::Medium as _;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::program::Program;
use crate::{busy, mount, obstacles, output, pool, run, size, stats};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Ok,
    /// Works, but slower or with less than it could.
    Advice,
    /// Other users can do more than they should.
    Unsafe,
    /// Pools cannot be used like this.
    Missing,
}

#[derive(Debug, Serialize)]
struct Finding {
    subject: &'static str,
    level: Level,
    found: String,
    /// The remedy, or empty.
    remedy: String,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, level: Level, subject: &'static str, found: String, remedy: &str) {
        let remedy = remedy.to_owned();
        self.findings.push(Finding { subject, level, found, remedy });
    }

    fn ok(&mut self, subject: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, subject, found.into(), "");
    }

    fn advice(&mut self, subject: &'static str, found: impl Into<String>, remedy: &str) {
        self.add(Level::Advice, subject, found.into(), remedy);
    }

    fn unsafe_setup(&mut self, subject: &'static str, found: impl Into<String>, remedy: &str) {
        self.add(Level::Unsafe, subject, found.into(), remedy);
    }

    fn missing(&mut self, subject: &'static str, found: impl Into<String>, remedy: &str) {
        self.add(Level::Missing, subject, found.into(), remedy);
    }
}

/// Reports on the machine, and on the pool, mount or program that `args` names. The exit status is
/// 1 if anything is `Level::Missing`.
pub fn run(args: &DoctorArgs, json: bool) -> Result<ExitCode> {
    let mut report = Report::default();
    cpu(&mut report);
    persistent_memory(&mut report);
    huge_pages(&mut report);
    shared_state(&mut report);
    fuse_of_kernel(&mut report);
    idle_processors(&mut report);
    fuse_of_user(&mut report);
    safety::of_machine(&mut report);
    if let Some(target) = &args.target {
        if unit::is_unit(target) {
            let mounts = fuse::mounts()?.into_iter();
            let pools: Vec<_> = mounts.filter(fuse::MountEntry::is_keepstone).collect();
            unit::examine(&mut report, target, &pools);
        } else if target.is_dir() {
            mounted(&mut report, target);
        } else if let Some(program) = Program::find(target) {
            served_program(&mut report, &program);
        } else {
            pool_file(&mut report, target);
        }
    }
    if json {
        output::json(&report)?;
    } else {
        report.findings.iter().for_each(show);
    }
    let missing = report.findings.iter().any(|finding| finding.level == Level::Missing);
    Ok(ExitCode::from(u8::from(missing)))
}

/// Prints a finding, and its remedy, if any.
fn show(finding: &Finding) {
    let mark = match finding.level {
        Level::Ok => "ok     ",
        Level::Advice => "advice ",
        Level::Unsafe => "UNSAFE ",
        Level::Missing => "MISSING",
    };
    say!("{mark}  {}: {}", finding.subject, finding.found);
    if !finding.remedy.is_empty() {
        say!("         -> {}", finding.remedy);
    }
}

fn cpu(report: &mut Report) {
    let cpu = pmem::cpu::report();
    let lines = if cpu.movdir64b { "lines stored whole" } else { "no lines stored whole" };
    let found =
        format!("{:?} to flush, {}-byte non-temporal stores, {lines}", cpu.flush, cpu.nt_bytes);
    if cpu.clwb {
        report.ok("cpu", found.to_lowercase());
    } else {
        report.advice(
            "cpu",
            found.to_lowercase(),
            "clwb (Skylake-SP, Zen 2 and later) keeps flushed lines in the cache; in a virtual \
             machine, let the guest see it (-cpu host)",
        );
    }
    if cpu.tsc_invariant {
        report.ok("time-stamp counter", format!("constant, {} MHz", cpu.tsc_mhz));
    } else {
        report.advice("time-stamp counter", "not constant", "do not trust `--emulate` here");
    }
    for region in &cpu.regions {
        report.ok("nvdimm", format!("{}: protects {:?}", region.name, region.domain));
    }
}

fn persistent_memory(report: &mut Report) {
    let count = |dir: &str, prefix: &str| {
        let names = fs::read_dir(dir).into_iter().flatten().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
    };
    let (pmem, dax) = (count("/dev", "pmem"), count("/dev", "dax"));
    if pmem + dax > 0 {
        report.ok("persistent memory", format!("{pmem} pmem and {dax} devdax devices"));
    } else {
        report.advice(
            "persistent memory",
            "none: pools live in DRAM and are lost with the power, or in ordinary files",
            "with NVDIMMs or CXL memory, make a namespace: `ndctl create-namespace --mode=fsdax`; \
             put pools in memory on /dev/shm, durable ones on an ordinary file system",
        );
    }
}

fn huge_pages(report: &mut Report) {
    match pmem::probe("/dev/shm") {
        Ok(shm) if shm.huge_pages => report.ok("huge pages", "pools on /dev/shm have them"),
        Ok(_) => report.advice(
            "huge pages",
            "not for /dev/shm",
            "faster pools in DRAM: `mount -o remount,huge=advise /dev/shm`",
        ),
        Err(err) => report.advice(
            "huge pages",
            format!("/dev/shm cannot be looked at: {err}"),
            "put pools in DRAM on another tmpfs: `mount -t tmpfs -o huge=advise none DIR`",
        ),
    }
}

/// Free bytes below which processes that share a mounted pool with many files may run out of space
/// for the shared state.
const SHM_BYTES_MIN: u64 = 256 << 20;

fn shared_state(report: &mut Report) {
    let Ok(shm) = rustix::fs::statvfs("/dev/shm") else {
        report.advice(
            "/dev/shm",
            "not there",
            "direct access to pools needs it: mount a tmpfs there",
        );
        return;
    };
    let free = shm.f_bavail * shm.f_frsize;
    let found = format!("{} MiB free", free >> 20);
    if free < SHM_BYTES_MIN {
        report.advice(
            "/dev/shm",
            found,
            "the shared state of mounted pools lies there (up to 100 bytes per file); without room, \
             mounts fail and files cannot be created (ENOSPC): `mount -o remount,size=1G /dev/shm`, or \
             `--shm-size 1g` for the container",
        );
    } else {
        report.ok("/dev/shm", found);
    }
}

/// Capabilities of the kernel that the front end uses, and the effect of lacking each.
const CAPABILITIES: &[(&str, &str)] = &[
    ("FUSE_DO_READDIRPLUS", "listing with attributes asks for each file"),
    ("FUSE_PARALLEL_DIROPS", "operations in one directory wait for each other"),
    ("FUSE_POSIX_ACL", "no access control lists"),
    ("FUSE_MAX_PAGES", "requests carry 128 KiB at most"),
    ("FUSE_CACHE_SYMLINKS", "each use of a symbolic link asks the server"),
    ("FUSE_NO_OPENDIR_SUPPORT", "listings are not kept in the kernel"),
    ("FUSE_HANDLE_KILLPRIV_V2", "each write looks for file capabilities"),
    ("FUSE_DIRECT_IO_ALLOW_MMAP", "no shared mapping of files opened with O_DIRECT"),
];

fn fuse_of_kernel(report: &mut Report) {
    if !Path::new("/dev/fuse").exists() {
        report.missing("fuse", "no /dev/fuse", "`modprobe fuse`; in a container, pass the device");
        return;
    }
    let kernel = match fuse::probe_kernel() {
        Ok(kernel) => kernel,
        Err(err) => {
            report.missing(
                "fuse",
                format!("cannot mount: {err}"),
                "run as root; for users, install fuse3 (fusermount3) and make /dev/fuse accessible \
                 (udev does: mode 0666); in a container, allow mounting",
            );
            return;
        }
    };
    report.ok("fuse", format!("kernel protocol {}", kernel.abi));
    for (name, lost) in CAPABILITIES {
        if !kernel.capabilities.iter().any(|offered| offered == name) {
            report.advice(
                "fuse",
                format!("no {name}: {lost}"),
                "use a newer kernel (6.6 or later)",
            );
        }
    }
}

/// Time in ns for which an idle processor of this virtual machine polls for work before it yields
/// to the host.
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// Checks how idle processors wait, because each request through a mount wakes the server, and then
/// the program that waits for it.
fn idle_processors(report: &mut Report) {
    let driver = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver");
    if !driver.is_ok_and(|driver| driver.trim() == "haltpoll") {
        return;
    }
    match fs::read_to_string(HALT_POLL).ok().and_then(|ns| ns.trim().parse::<u64>().ok()) {
        Some(0) => report.advice(
            "idle processors",
            "wait for the host to wake them, twice for each request through a mount",
            &format!(
                "where mounts have to be fast: `echo 200000 > {HALT_POLL}`, as root; they then poll for work for this many ns, \
                 which takes processor time of the host (programs under `keepstone run` do not need it)"
            ),
        ),
        Some(ns) => report.ok("idle processors", format!("look for work for {} us", ns / 1000)),
        None => {}
    }
}

fn fuse_of_user(report: &mut Report) {
    let in_path = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).exists())
    };
    if in_path("fusermount3") {
        report.ok("fusermount3", "installed: users can mount");
    } else {
        report.advice("fusermount3", "not found: only root can mount", "`apt install fuse3`");
    }
    let helper = ["/sbin", "/usr/sbin"].map(|dir| Path::new(dir).join("mount.fuse.keepstone"));
    if helper.iter().any(|path| path.exists()) {
        report.ok("mount helper", "installed: `mount -t fuse.keepstone` and fstab work");
    } else {
        report.advice(
            "mount helper",
            "not installed: `mount -t fuse.keepstone` and fstab do not work",
            "`make install`, or `ln -s $(which keepstone) /sbin/mount.fuse.keepstone`",
        );
    }
}

/// Reports how `keepstone run` would serve a program.
fn served_program(report: &mut Report, program: &Program) {
    let mut found = program.path.display().to_string();
    if let Some(interpreter) = &program.interpreter {
        found += &format!(", interpreted by {}", interpreter.display());
    }
    match program.not_served() {
        Some(why) => report.advice(
            "program",
            format!("{found}: {why}"),
            "it uses the mount; a dynamically linked build of a program that calls libc, without special rights, is \
             served in its own process",
        ),
        None => report.ok("program", format!("{found}: served in its own process")),
    }
    match run::library() {
        Ok(path) => report.ok("library", path.display().to_string()),
        Err(err) => report.advice("library", format!("{err:#}"), "programs use the mount"),
    }
}

fn pool_file(report: &mut Report, path: &Path) {
    let region = match pool::open_to_look(path) {
        Ok(region) => region,
        Err(err) => return report.missing("pool", output::in_a_line(&err), ""),
    };
    match engines::info(&region) {
        Ok(info) => report.ok(
            "pool",
            format!(
                "{}: {}, {}, {}",
                path.display(),
                info.layout,
                size::show(info.size_bytes),
                info.uuid
            ),
        ),
        Err(err) => report.missing(
            "pool",
            format!("{}: {err}", path.display()),
            "`keepstone check` says more; `keepstone mkfs` makes a pool under another name",
        ),
    }
    safety::of_pool(report, path);
    let domain = region.domain();
    let found = format!("{domain}: {}", domain.explain());
    if domain.durable() {
        report.ok("persistence domain", found);
    } else {
        report.advice(
            "persistence domain",
            found,
            "for data that must survive, make the pool on fsdax, devdax or a disk's file system",
        );
    }
}

/// Reports whether this user's programs can bypass the mount of a pool.
fn direct_access(report: &mut Report, dir: &Path, is_direct: bool) {
    let obstacle = obstacles::of_dir(dir);
    match obstacle {
        Some(obstacle) if is_direct => report.advice(
            "direct access",
            format!("none here: {}; programs under `keepstone run` use the mount", obstacle.why),
            &obstacle.remedy,
        ),
        None if is_direct => {
            report.ok("direct access", "programs under `keepstone run` use the pool themselves");
        }
        _ => report.advice(
            "direct access",
            "none: the mount has the pool for itself, and programs under `keepstone run` use the mount",
            "for faster access, unmount, and mount with `-o direct`, which reports why if that is not possible",
        ),
    }
}

/// Reports which users may open a pool, so that their programs can bypass its mount.
fn users_of_pool(report: &mut Report, path: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(meta) = fs::metadata(path) else { return };
    let (uid, gid, mode) = (meta.uid(), meta.gid(), meta.mode());
    let group = if mode & 0o060 == 0o060 { format!(", group {gid}") } else { String::new() };
    let all = if mode & 0o006 == 0o006 { ", all users" } else { "" };
    report.ok(
        "who may open the pool",
        format!(
            "root, user {uid}{group}{all} (mode {:03o}): their programs are served in their own processes under \
             `keepstone run`, others' by the mount",
            mode & 0o777
        ),
    );
}

fn mounted(report: &mut Report, dir: &Path) {
    let alive = mount::absolute_dir(dir).and_then(|dir| {
        stats::require_alive(&dir)?;
        stats::ask_one(&dir)
    });
    match alive {
        Err(err) => report.missing("mount", output::in_a_line(&err), ""),
        Ok(stats) => {
            let text = |field: &str| stats[field].as_str().unwrap_or_default().to_owned();
            let panics = stats["panics"].as_u64().unwrap_or(0);
            let is_cache = stats["cache"].is_object();
            let place = match is_cache {
                true => {
                    format!("{}, the cache of {}, on {}", text("pool"), text("dir"), text("mount"))
                }
                false => format!("{} on {}", text("pool"), text("dir")),
            };
            let found = format!("{place}, pid {}", stats["pid"]);
            for program in busy::stopped(Path::new(&text("pool"))) {
                let found = format!("{program} uses the pool and is stopped");
                let remedy = "requests may wait for it: continue it (`kill -CONT`) or end it";
                report.advice("mount", found, remedy);
            }
            if panics == 0 {
                report.ok("mount", found);
            } else {
                report.advice(
                    "mount",
                    format!("{found}: {panics} requests ended in a panic"),
                    "see the server's log; unmount and run `keepstone check`",
                );
            }
            pool_file(report, Path::new(&text("pool")));
            let dir = text(if is_cache { "mount" } else { "dir" });
            let is_direct = is_cache || stats["direct"] == true;
            direct_access(report, Path::new(&dir), is_direct);
            users_of_pool(report, Path::new(&text("pool")));
        }
    }
}
