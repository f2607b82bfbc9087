//! Block devices through their servers: over NBD against nbdkit and qemu-nbd, by the same client;
//! by workers against threads; and as a loop device against one on a file of tmpfs.
//!
//! Every NBD server runs in the foreground as a child that ends with this process. All serve
//! memory: nbdkit its own, qemu-nbd and Keepstone a file of tmpfs. Everything has been written
//! before.

use crate::looped::{BLOCK, Loop};
use crate::nbd_client::{Client, Kind};
use crate::peer;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::workload::{Buffer, by_two};
use anyhow::{Context as _, Result, bail, ensure};
use pmem::Protection;
use rng::Rng;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BYTES: u64 = 256 << 20;
const SUBJECT: &str = "keepstone";
const NBDKIT: &str = "nbdkit memory";
const QEMU: &str = "qemu-nbd";
const TMPFS: &str = "loop on tmpfs";

/// Targets, as multiples of the speed of the peers.
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
    workers(plan, keepstone, tmp.path(), &mut outcomes)?;
    looped(plan, keepstone, tmp.path(), &mut outcomes)?;
    Ok(outcomes)
}

/// Measures requests over NBD.
fn nbd(plan: &Plan, keepstone: &Path, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let mut servers = vec![Server::keepstone(SUBJECT, keepstone, dir, &[])?];
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
                let off = || rng.below_fast(blocks) * len as u64;
                client.run(kind, ops, depth, len, off).map_err(|_| vfs::Errno::IO)
            }));
        }
        plan.run(case, outcomes)?;
    }
    Ok(())
}

/// Measures two clients at once, served by two processes or by two threads of one. The threads
/// share an address space and the lock that changes of its mappings take.
fn workers(plan: &Plan, keepstone: &Path, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    const DEPTH: u64 = 8;
    // Long enough that the start of the second client's thread does not count.
    const BATCH: u64 = 256;
    let name = |protection: Protection| format!("nbd/workers/{protection}/randwrite/4K/qd{DEPTH}");
    let protections = [
        Protection::Pkey,
        Protection::Chunk,
        Protection::ChunkStrict,
        Protection::Pages,
        Protection::Window,
    ];
    for protection in protections.into_iter().filter(|p| p.available() && plan.wants(&name(*p))) {
        let protect = ["--protect", protection.name()];
        let start = |name, options: &[&str]| {
            Server::keepstone(name, keepstone, dir, &[&protect, options].concat())
        };
        let servers = [start("2 workers", &["--workers", "2"])?, start("2 threads", &[])?];
        let what =
            format!("{BATCH} writes of 4K at random, by two clients, {DEPTH} in flight each");
        let mut case = Case::new(name(protection), what).bytes(BATCH * BLOCK as u64);
        for server in &servers {
            let client = |n| {
                let mut client = Client::connect(&server.socket)?;
                fill(&mut client)?;
                Ok::<_, anyhow::Error>((client, Rng::new(n)))
            };
            let clients = [client(1)?, client(2)?].map(Mutex::new);
            case = case.with(Contender::new(server.name, move |ops| {
                by_two(|n| {
                    let mut client = clients[n].lock().unwrap_or_else(PoisonError::into_inner);
                    let (client, rng) = &mut *client;
                    let blocks = client.size() / BLOCK as u64;
                    let off = || rng.below_fast(blocks) * BLOCK as u64;
                    let done = client.run(Kind::Write, ops * BATCH / 2, DEPTH, BLOCK, off);
                    done.map_err(|_| vfs::Errno::IO)
                })
            }));
        }
        plan.run(case, outcomes)?;
    }
    Ok(())
}

/// Measures loop devices (as root).
fn looped(plan: &Plan, keepstone: &Path, dir: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "loop devices are for root; run as root");
    let mut devices = Vec::new();
    for (name, through) in [(SUBJECT, "kernel"), ("keepstone, by its server", "server")] {
        let options = ["--through", through];
        devices.push((name, Loop::keepstone(keepstone, dir, BYTES, &options)?));
    }
    devices.push((TMPFS, Loop::bare(dir, BYTES)?));
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
                    let off = rng.below_fast(BYTES / BLOCK as u64) * BLOCK as u64;
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
        let file = File::from(device.ext4_file()?);
        let data = Buffer::new(BLOCK);
        let mut rng = Rng::new(3);
        case = case.with(Contender::new(*name, move |ops| {
            (0..ops).try_for_each(|_| {
                let off = rng.below_fast(1024) * BLOCK as u64;
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
    /// Holds the socket and the served file.
    _home: TempDir,
}

impl Server {
    /// Starts `bdev serve` with `options`.
    fn keepstone(
        name: &'static str,
        keepstone: &Path,
        dir: &Path,
        options: &[&str],
    ) -> Result<Self> {
        Self::start(name, dir, |socket, file| {
            let words =
                ["bdev", "serve", "--foreground"].into_iter().chain(options.iter().copied());
            let mut words: Vec<PathBuf> = words.map(PathBuf::from).collect();
            words.insert(0, keepstone.into());
            words.extend(["--socket".into(), socket.into(), file.into()]);
            words
        })
    }

    /// Starts the program that `words` names for a socket and a file, waits until it serves, and
    /// writes everything once.
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
        fill(&mut client).context(name)?;
        Ok(server)
    }
}

/// Writes everything once, so that the server has it mapped.
fn fill(client: &mut Client) -> std::io::Result<()> {
    let mut next = 0;
    let forward = || (next, next += 1 << 20).0;
    client.run(Kind::Write, BYTES >> 20, 1, 1 << 20, forward)
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}
