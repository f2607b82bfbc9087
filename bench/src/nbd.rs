//! Block devices through their servers: over NBD against nbdkit and qemu-nbd, by the same client; and as a
//! loop device against one on a file of tmpfs.
//!
//! Every NBD server runs in the foreground as a child that ends with this process. All serve memory:
//! nbdkit its own, qemu-nbd and Keepstone a file of tmpfs. Everything has been written before.

use crate::nbd_client::{Client, Kind};
use crate::peer;
use crate::ramdisk::run as command;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::workload::{Buffer, Rng};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BYTES: u64 = 256 << 20;
const BLOCK: usize = 4 << 10;
const SUBJECT: &str = "keepstone";
const NBDKIT: &str = "nbdkit memory";
const QEMU: &str = "qemu-nbd";
const TMPFS: &str = "loop on tmpfs";

/// Times the speed of the peers that is asked for.
const OF_NBDKIT: f64 = 1.3;
const OF_QEMU: f64 = 1.5;
/// "Within 10%", and "within twice the latency".
const OF_LOOP: f64 = 0.9;
const OF_FSYNC: f64 = 0.5;

/// Runs the cases. Files are made in `dir`, which should be a tmpfs.
pub fn run(plan: &Plan, keepstone: &Path, dir: &Path) -> Result<Vec<Outcome>> {
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let mut outcomes = Vec::new();
    nbd(plan, keepstone, tmp.path(), &mut outcomes)?;
    looped(plan, keepstone, tmp.path(), &mut outcomes)?;
    Ok(outcomes)
}

/// Over NBD.
fn nbd(plan: &Plan, keepstone: &Path, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let mut servers = vec![Server::start(SUBJECT, dir, |socket, file| {
        vec![
            keepstone.into(),
            "bdev".into(),
            "serve".into(),
            "--foreground".into(),
            "--socket".into(),
            socket.into(),
            file.into(),
        ]
    })?];
    if !plan.solo {
        servers.push(Server::start(NBDKIT, dir, |socket, _| {
            let words = ["nbdkit", "--foreground", "--exit-with-parent", "--unix"];
            let mut words: Vec<PathBuf> = words.map(PathBuf::from).to_vec();
            words.extend([socket.into(), "memory".into(), BYTES.to_string().into()]);
            words
        })?);
        servers.push(Server::start(QEMU, dir, |socket, file| {
            let words = ["qemu-nbd", "--persistent", "--shared=0", "--format=raw", "--socket"];
            let mut words: Vec<PathBuf> = words.map(PathBuf::from).to_vec();
            words.extend([socket.into(), file.into()]);
            words
        })?);
    }
    for (name, kind, len, depth) in [
        ("randread/4K/qd32", Kind::Read, BLOCK, 32),
        ("randwrite/4K/qd32", Kind::Write, BLOCK, 32),
        ("randread/4K/qd1", Kind::Read, BLOCK, 1),
        ("randwrite/4K/qd1", Kind::Write, BLOCK, 1),
        ("randread/256K/qd8", Kind::Read, 256 << 10, 8),
        ("randwrite/256K/qd8", Kind::Write, 256 << 10, 8),
        ("flush", Kind::Flush, 0, 1),
    ] {
        let what = format!("{kind:?} over a Unix socket, {depth} in flight");
        let mut case = Case::new(format!("nbd/{name}"), what).bytes(len as u64);
        if (len, depth) == (BLOCK, 32) {
            case = case.target(NBDKIT, OF_NBDKIT).target(QEMU, OF_QEMU);
        }
        for server in &servers {
            let mut client = Client::connect(&server.socket)?;
            let mut rng = Rng::new(1);
            let blocks = client.size() / len.max(1) as u64;
            case = case.with(Contender::new(server.name, move |ops| {
                let off = || rng.below(blocks) * len as u64;
                client.run(kind, ops, depth, len, off).map_err(|_| vfs::Errno::IO)
            }));
        }
        plan.run(case, outcomes)?;
    }
    Ok(())
}

/// As a device of the kernel (as root).
fn looped(plan: &Plan, keepstone: &Path, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "loop devices are for root; run as root");
    let mut devices = Vec::new();
    for (name, through) in [(SUBJECT, "kernel"), ("keepstone, by its server", "server")] {
        devices.push((name, Loop::keepstone(keepstone, dir, through)?));
    }
    devices.push((TMPFS, Loop::bare(dir)?));
    for (name, write) in [("randwrite", true), ("randread", false)] {
        let what = "O_DIRECT on the device, one at a time";
        let mut case =
            Case::new(format!("loop/{name}/4K"), what).bytes(BLOCK as u64).target(TMPFS, OF_LOOP);
        for (name, device) in &devices {
            let file = device.open()?;
            let mut rng = Rng::new(2);
            let mut buffer = Buffer::new(BLOCK);
            case = case.with(Contender::new(*name, move |ops| {
                (0..ops).try_for_each(|_| {
                    let off = rng.below(BYTES / BLOCK as u64) * BLOCK as u64;
                    let done = match write {
                        true => file.write_all_at(buffer.get(), off),
                        false => file.read_exact_at(buffer.get_mut(), off),
                    };
                    done.map_err(|_| vfs::Errno::IO)
                })
            }));
        }
        plan.run(case, outcomes)?;
    }
    let mut case =
        Case::new("loop/ext4/write+fdatasync/4K", "pwrite on ext4 on it, then fdatasync")
            .bytes(BLOCK as u64)
            .target(TMPFS, OF_FSYNC);
    for (name, device) in &devices {
        let file = File::from(device.ext4()?);
        let data = Buffer::new(BLOCK);
        let mut rng = Rng::new(3);
        case = case.with(Contender::new(*name, move |ops| {
            (0..ops).try_for_each(|_| {
                let off = rng.below(1024) * BLOCK as u64;
                file.write_all_at(data.get(), off).map_err(|_| vfs::Errno::IO)?;
                file.sync_data().map_err(|_| vfs::Errno::IO)
            })
        }));
    }
    plan.run(case, outcomes)
}

/// An NBD server in the foreground.
struct Server {
    name: &'static str,
    child: Child,
    socket: PathBuf,
    /// Holds the socket and what is served.
    _home: TempDir,
}

impl Server {
    /// Starts the program that `words` names for a socket and a file, waits until it serves, and writes
    /// everything once.
    fn start(
        name: &'static str,
        dir: &Path,
        words: impl FnOnce(&Path, &Path) -> Vec<PathBuf>,
    ) -> Result<Self> {
        let home = tempfile::tempdir_in(dir)?;
        let (socket, file) = (home.path().join("socket"), home.path().join("disk"));
        File::create(&file)?.set_len(BYTES)?;
        let words = words(&socket, &file);
        let child = peer::start(&words)?;
        let mut server = Self { name, child, socket, _home: home };
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut client = loop {
            match Client::connect(&server.socket) {
                Ok(client) => break client,
                Err(err) if Instant::now() > deadline => return Err(err).context(name),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} ended before it served ({status}); is it installed?");
            }
        };
        let mut next = 0;
        let forward = || (next, next += 1 << 20).0;
        client.run(Kind::Write, BYTES >> 20, 1, 1 << 20, forward).context(name)?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// A loop device, let go at the end.
struct Loop {
    device: PathBuf,
    detach: Command,
}

impl Loop {
    fn keepstone(keepstone: &Path, dir: &Path, through: &str) -> Result<Self> {
        let file = written(dir)?;
        let mut attach = Command::new(keepstone);
        attach.args(["bdev", "loop", "--through", through]).arg(&file);
        let ready = command(&mut attach)?;
        let device = PathBuf::from(ready.lines().last().context("it names no device")?);
        let mut detach = Command::new(keepstone);
        detach.args(["bdev", "detach"]).arg(&device);
        Ok(Self { device, detach })
    }

    fn bare(dir: &Path) -> Result<Self> {
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show", "--direct-io=on"]).arg(written(dir)?);
        let device = PathBuf::from(command(&mut attach)?.trim());
        let mut detach = Command::new("losetup");
        detach.arg("--detach").arg(&device);
        Ok(Self { device, detach })
    }

    fn open(&self) -> Result<File> {
        let direct = OFlags::DIRECT.bits() as i32;
        Ok(File::options().read(true).write(true).custom_flags(direct).open(&self.device)?)
    }

    /// A file of 4 MiB on an ext4 on it, whose mount has lost its name and goes with the file.
    fn ext4(&self) -> Result<OwnedFd> {
        command(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&self.device))?;
        let point = tempfile::tempdir()?;
        rustix::mount::mount(&self.device, point.path(), "ext4", MountFlags::NOATIME, None)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(point.path().join("file"), flags, Mode::from_raw_mode(0o600));
        rustix::mount::unmount(point.path(), UnmountFlags::DETACH)?;
        let file = file?;
        for off in (0..4 << 20).step_by(BLOCK) {
            rustix::io::pwrite(file.as_fd(), &[1; BLOCK], off)?;
        }
        rustix::fs::fsync(&file)?;
        Ok(file)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(err) = command(&mut self.detach) {
            eprintln!("{}: {err:#}", self.device.display());
        }
    }
}

/// A file of which every byte was written.
fn written(dir: &Path) -> Result<PathBuf> {
    let path =
        tempfile::Builder::new().prefix("disk-").tempfile_in(dir)?.into_temp_path().keep()?;
    let file = File::options().write(true).open(&path)?;
    for off in (0..BYTES).step_by(1 << 20) {
        file.write_all_at(&[0x5a; 1 << 20], off)?;
    }
    Ok(path)
}
