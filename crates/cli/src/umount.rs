//! `keepstone umount`

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;

use crate::args::UmountArgs;
use crate::{busy, mount, output, stats};

/// How long the server may take to close the pool.
const SERVER_END_SECONDS_MAX: i64 = 60;

#[derive(Serialize)]
struct Unmounted {
    pool: String,
    dir: String,
    /// Whether the server is known to have ended.
    server_ended: bool,
}

pub fn run(args: &UmountArgs, json: bool) -> Result<ExitCode> {
    let dir = mount::absolute_dir(&args.dir)?;
    let Some(entry) = fuse::mount_at(&dir)?.filter(fuse::MountEntry::is_keepstone) else {
        bail!("{}: no pool is mounted there; see `mount -t fuse.keepstone`", dir.display());
    };
    let stale = fuse::is_stale(&dir)?;
    let server = if stale { None } else { server_of(&dir) };
    match fuse::unmount(&dir, args.lazy) {
        Err(err) if err.kind() == io::ErrorKind::ResourceBusy => return Err(in_use(&dir)),
        result => result.with_context(|| format!("{}: cannot unmount", dir.display()))?,
    }
    let server_ended = match server {
        _ if stale => true,
        Some(server) if !args.lazy => wait_for(&server)?,
        _ => false,
    };
    let done = Unmounted {
        pool: entry.source.display().to_string(),
        dir: dir.display().to_string(),
        server_ended,
    };
    if json {
        output::json(&done)?;
    } else if !server_ended && !args.lazy {
        output::notice(format!("{}: unmounted, but its server still runs", done.dir));
    }
    Ok(ExitCode::SUCCESS)
}

/// The process that serves `dir`, if it can be seen from here.
fn server_of(dir: &Path) -> Option<OwnedFd> {
    let pid: i32 = stats::read(dir).ok()?["pid"].as_u64()?.try_into().ok()?;
    let server = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // In another PID namespace the number means somebody else.
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let own = std::fs::read_to_string("/proc/self/comm").ok()?;
    (name == own).then_some(server)
}

fn wait_for(server: &OwnedFd) -> Result<bool> {
    let timeout = Timespec { tv_sec: SERVER_END_SECONDS_MAX, tv_nsec: 0 };
    let mut ended = [PollFd::new(server, PollFlags::IN)];
    Ok(poll(&mut ended, Some(&timeout))? > 0)
}

fn in_use(dir: &Path) -> anyhow::Error {
    let users = busy::users(dir);
    let who = if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) };
    anyhow!("{}: in use{who}; end these programs, or use --lazy", dir.display())
}
