//! `keepstone umount`, also as a helper of `umount(8)`.
//!
//! The helper is this program under the name `umount.fuse.keepstone` in `/sbin`, called as
//! `umount.fuse.keepstone DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`. So a plain `umount` returns when
//! the server has ended, and a cache is written back before.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use fuse::MountEntry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use serde_json::Value;

use crate::args::UmountArgs;
use crate::attach::ending::{self, Remainder};
use crate::busy::LoopDevice;
use crate::tags::Tag;
use crate::unfinished::{self, Unfinished};
use crate::{busy, mount, output, pool, stats, utab};

/// Longest time for a server to report its process ID. A stopped server never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Longest name of a process that the kernel shows, in bytes.
const COMM_BYTES_MAX: usize = 15;

/// Longest time for the server to close the pool. A copy of the pool may take longer.
const SERVER_END_WITHIN: Duration = Duration::from_secs(60);

/// Interval between two lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Longest time to retry while the mount is busy but no user is found. A program that has ended
/// keeps its mappings for as long as other processes read them in `/proc`.
const NOBODY_WITHIN: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Unmounted {
    pool: String,
    dir: String,
    /// Whether the server is known to have ended.
    server_ended: bool,
    /// Data that a cache could not write back.
    not_written_back: Option<Remainder>,
    /// The file that has a copy of the pool now.
    saved: Option<String>,
    /// The reason why there is no new copy.
    not_saved: Option<String>,
}

/// The exit status of `umount(8)` for a failure.
const EXIT_OF_UMOUNT: u8 = 32;

/// Acts as the helper if called by that name.
pub fn run_as_helper(argv: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(argv.first()?).file_name()?.to_str()?;
    if !name.starts_with("umount.") {
        return None;
    }
    let result = HelperRequest::parse(&argv[1..]).and_then(|request| request.run());
    Some(match result {
        Ok(code) if code == ExitCode::SUCCESS => code,
        Ok(_) => ExitCode::from(EXIT_OF_UMOUNT),
        Err(err) => {
            output::error(&err, false);
            ExitCode::from(EXIT_OF_UMOUNT)
        }
    })
}

/// A call of the helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct HelperRequest {
    dir: PathBuf,
    lazy: bool,
    /// `umount --force`: aborts the requests of programs, and asks no server.
    force: bool,
}

impl HelperRequest {
    fn parse(args: &[OsString]) -> Result<Self> {
        let mut request = Self::default();
        let mut dirs = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("-N" | "-t" | "-o") => drop(args.next()),
                Some(flags) if flags.starts_with('-') => {
                    request.lazy |= flags.contains('l');
                    request.force |= flags.contains('f');
                }
                _ => dirs.push(PathBuf::from(arg)),
            }
        }
        let [dir] = <[PathBuf; 1]>::try_from(dirs)
            .map_err(|_| anyhow!("usage: umount.fuse.keepstone DIR [-fl]"))?;
        Ok(Self { dir, ..request })
    }

    fn run(self) -> Result<ExitCode> {
        if self.force {
            rustix::mount::unmount(&self.dir, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW)
                .with_context(|| format!("{}: cannot unmount", self.dir.display()))?;
            return Ok(ExitCode::SUCCESS);
        }
        run(&UmountArgs { dir: self.dir, lazy: self.lazy }, false)
    }
}

pub fn run(args: &UmountArgs, json: bool) -> Result<ExitCode> {
    let entry = find(&args.dir)?;
    let is_of_another = entry.is_of_another();
    let dir = entry.dir.clone();
    // Without waiting for the server's end, its process ID is not needed.
    let ask = || stats::ask(vec![dir.clone()], ANSWER_WITHIN, stats::read).remove(&dir);
    let is_asked = !args.lazy && !is_of_another;
    let asked =
        if is_asked { Some(ask().ok_or_else(|| silent(&dir, &entry.source))?) } else { None };
    let stale = asked.as_ref().is_some_and(is_stale);
    let stats = asked.and_then(Result::ok);
    let server = stats.as_ref().and_then(server_of);
    let below = stats.as_ref().map(|stats| output::text(&stats["dir"]));
    let is_cache = stats.as_ref().is_some_and(|stats| stats["cache"].is_object());
    if is_cache && server.is_some() {
        ending::flush_before_unmount(&dir, json)?;
    }
    utab::forget(&dir);
    unmount(&dir, &entry.source, args.lazy).inspect_err(|_| utab::register(&entry.source, &dir))?;
    let save = stats.as_ref().and_then(|stats| stats["save"].as_str());
    let server_ended = match &server {
        _ if stale => true,
        Some(server) if !args.lazy => wait_for(server, save, json)?,
        _ => false,
    };
    let is_over = server_ended && !stale;
    let unfinished = match is_over && (is_cache || save.is_some()) {
        true => unfinished::take(&entry.source)?,
        false => None,
    };
    let (not_written_back, not_saved) = match unfinished {
        Some(Unfinished::NotWrittenBack(left)) => (Some(left), None),
        Some(Unfinished::NotSaved(why)) => (None, Some(why)),
        None => (None, None),
    };
    let done = Unmounted {
        pool: entry.source.display().to_string(),
        dir: dir.display().to_string(),
        server_ended,
        not_written_back,
        saved: save.filter(|_| is_over && not_saved.is_none()).map(str::to_owned),
        not_saved,
    };
    let still_runs = server.is_some() && !server_ended && !args.lazy;
    if json {
        output::json(&done)?;
    } else {
        if is_of_another {
            let what = "unmounted; its server, of another user, was not asked";
            output::notice(format!("{}: {what}", done.dir));
        } else if still_runs {
            let stopped = waits_for(&entry.source);
            let copy = save.map_or(String::new(), |file| format!("; {file} is not its copy yet"));
            output::notice(format!(
                "{}: unmounted, but its server still runs{copy}{stopped}",
                done.dir
            ));
        } else if !server_ended && !args.lazy {
            let what = "unmounted; its server did not say which process it is, so its end was not waited for";
            output::notice(format!("{}: {what}", done.dir));
        }
        if let Some(left) = &done.not_written_back {
            output::notice(left.message(&done.pool, &below.unwrap_or_default()));
        }
        if let Some(why) = &done.not_saved {
            output::notice(format!("{why}; the pool is as it was: copy it, or mount it again"));
        }
    }
    let is_done = done.not_written_back.is_none() && done.not_saved.is_none() && !still_runs;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Unmounts, unless the mount is in use.
fn unmount(dir: &Path, pool: &Path, lazy: bool) -> Result<()> {
    let deadline = Instant::now() + NOBODY_WITHIN;
    loop {
        match fuse::unmount(dir, lazy) {
            Err(err) if err.kind() == io::ErrorKind::ResourceBusy => {}
            result => return result.with_context(|| format!("{}: cannot unmount", dir.display())),
        }
        let within = fuse::mounts_within(dir)?;
        let mut users = busy::users(dir);
        users.extend(within.map(|inner| format!("what is mounted on {}", inner.dir.display())));
        let loops = busy::loop_devices(dir);
        if !users.is_empty() || !loops.is_empty() || Instant::now() >= deadline {
            return Err(in_use(dir, (&users, &loops), &waits_for(pool)));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the error for a server that does not answer: unmounting would fail, because a process
/// that waits for an answer keeps the mount in use.
fn silent(dir: &Path, pool: &Path) -> anyhow::Error {
    anyhow!(
        "{}: its server does not answer{}; if it is stopped, continue it (`kill -CONT`), or use --lazy",
        dir.display(),
        waits_for(pool)
    )
}

/// Names stopped programs with direct access to the pool, for which requests may wait for ever.
fn waits_for(pool: &Path) -> String {
    let stopped = busy::stopped(pool);
    if stopped.is_empty() {
        return String::new();
    }
    let stopped = stopped.join(", ");
    format!(
        "; requests may wait for {stopped}, which is stopped: continue it (`kill -CONT`) or end it"
    )
}

/// Finds the mount with this name: its directory, or the mounted pool or snapshot.
pub fn find(name: &Path) -> Result<MountEntry> {
    let dir = mount::absolute_dir(name);
    if let Ok(dir) = &dir
        && let Some(entry) = fuse::mount_at(dir)?.filter(MountEntry::claims_keepstone)
    {
        return Ok(entry);
    }
    let pool = match dir {
        Ok(dir) if dir.is_dir() => None,
        Err(_) if Tag::parse(name).is_none() => match pool::absolute_with_snapshot(name) {
            Ok((pool, Some(snapshot))) => Some(pool::of_snapshot(&pool, &snapshot)),
            _ => bail!("{}: no such directory, and no pool", name.display()),
        },
        _ => Some(pool::absolute(name)?),
    };
    let mounts: Vec<_> = fuse::mounts()?.into_iter().filter(MountEntry::is_keepstone).collect();
    let of_pool = |entry: &&MountEntry| pool.as_ref() == Some(&entry.source);
    match mounts.iter().filter(of_pool).collect::<Vec<_>>()[..] {
        [] => bail!("{}: no pool is mounted there; see `mount -t fuse.keepstone`", name.display()),
        [entry] => Ok(entry.clone()),
        ref several => {
            let dirs: Vec<_> =
                several.iter().map(|entry| entry.dir.display().to_string()).collect();
            bail!("{}: is mounted on {}; name one of them", name.display(), dirs.join(" and "))
        }
    }
}

/// Returns whether a server does not answer because it has died.
fn is_stale(answer: &Result<Value>) -> bool {
    let errno = answer.as_ref().err().and_then(|err| err.downcast_ref::<Errno>());
    errno.is_some_and(|errno| fuse::is_of_dead_server(*errno))
}

/// A server's process.
struct AnsweringServer {
    pid: Pid,
    handle: OwnedFd,
}

/// Returns the process that answered, if it is visible from here.
fn server_of(stats: &Value) -> Option<AnsweringServer> {
    let pid: i32 = stats["pid"].as_u64()?.try_into().ok()?;
    let pid = Pid::from_raw(pid)?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // In another PID namespace the ID may belong to another process.
    let name = std::fs::read(format!("/proc/{}/comm", pid.as_raw_pid())).ok()?;
    // The helper has another name than its file, by which servers are started.
    let file = std::env::current_exe().ok()?;
    let own = file.file_name()?.as_encoded_bytes();
    let shown = &own[..own.len().min(COMM_BYTES_MAX)];
    (name.trim_ascii_end() == shown).then_some(AnsweringServer { pid, handle })
}

/// Waits for the end of a server; returns whether it has ended. A server that saves its pool may
/// take as long as it needs, unless it is stopped.
fn wait_for(server: &AnsweringServer, save: Option<&str>, json: bool) -> Result<bool> {
    let begun = Instant::now();
    let interval = Timespec { tv_sec: LINE_EVERY.as_secs() as i64, tv_nsec: 0 };
    loop {
        let mut ended = [PollFd::new(&server.handle, PollFlags::IN)];
        if poll(&mut ended, Some(&interval))? > 0 {
            return Ok(true);
        }
        let is_late = begun.elapsed() >= SERVER_END_WITHIN;
        match save {
            None if is_late => return Ok(false),
            Some(_) if is_late && busy::is_stopped(server.pid.as_raw_pid() as u32) => {
                return Ok(false);
            }
            Some(file) if !json => tell!("keepstone: saving the pool to {file}"),
            _ => {}
        }
    }
}

/// Returns the error that names the programs, and the loop devices with their backing files.
fn in_use(dir: &Path, (users, loops): (&[String], &[LoopDevice]), waits: &str) -> anyhow::Error {
    let named: Vec<String> =
        users.iter().cloned().chain(loops.iter().map(LoopDevice::to_string)).collect();
    let who = if named.is_empty() { String::new() } else { format!(" by {}", named.join(", ")) };
    let detach = loops.iter().map(|device| format!("`losetup -d {}`", device.name));
    let end = (loops.is_empty() || !users.is_empty()).then(|| "end these programs".to_owned());
    let advice: Vec<String> = end.into_iter().chain(detach).collect();
    anyhow!("{}: in use{who}; {}, or use --lazy{waits}", dir.display(), advice.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_umount_calls_it() {
        let parsed = |args: &[&str]| {
            HelperRequest::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
        };
        let plain = HelperRequest { dir: "/mnt".into(), ..Default::default() };
        assert_eq!(parsed(&["/mnt", "-n", "-t", "fuse.keepstone"]).unwrap(), plain);
        let lazy = HelperRequest { lazy: true, ..plain };
        assert_eq!(parsed(&["/mnt", "-nlv"]).unwrap(), lazy);
        assert!(parsed(&["/mnt", "-f"]).unwrap().force);
        assert!(parsed(&["-l"]).is_err());
    }
}
