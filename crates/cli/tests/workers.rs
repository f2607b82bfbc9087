//! `keepstone bdev serve --workers`: workers that are killed under load lose nothing that was confirmed, and hold
//! nobody up.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nbd::wire::{CompactRequest, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, SimpleReply, command};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zerocopy::IntoBytes as _;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;
const WORKERS: usize = 3;
const CLIENTS: u64 = 4;
const KILLS: u64 = 4;

/// A server, which ends when this is dropped. Its pool is called as its directory is.
struct Served {
    dir: tempfile::TempDir,
}

impl Served {
    /// With a pool in `dir`.
    fn start(dir: &str, options: &[&str]) -> Self {
        let served = Self { dir: tempfile::tempdir_in(dir).unwrap() };
        let (pool, socket) = (served.path(&served.name()), served.path("socket"));
        let workers = WORKERS.to_string();
        let mut args =
            vec!["bdev", "serve", &pool, "--socket", &socket, "--create", "--size", "2M"];
        args.extend(["--workers", &workers]);
        args.extend(options);
        ok(&args);
        served
    }

    fn name(&self) -> String {
        self.dir.path().file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&ok(&["--json", "bdev", "stats", &self.path("socket")])).unwrap()
    }

    /// Kills the `n`-th worker.
    fn kill(&self, n: usize) {
        let pid = self.status()["workers"]["processes"][n]["pid"].as_i64().unwrap();
        let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
    }

    fn client(&self) -> Client {
        Client::connect(Path::new(&self.path("socket"))).expect("the supervisor takes clients")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = keepstone(&["bdev", "stop", &self.path("socket")]);
    }
}

fn keepstone(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keepstone")).args(args).output().unwrap()
}

fn ok(args: &[&str]) -> String {
    let output = keepstone(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One request after the other.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        // Whatever hangs is found out.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        nbd::client::begin(&mut stream)?;
        Ok(Self(stream))
    }

    fn ask(&mut self, kind: u16, block: u64, data: &[u8], answer: &mut [u8]) -> io::Result<()> {
        let request = CompactRequest {
            magic: REQUEST_MAGIC.into(),
            flags: 0.into(),
            kind: kind.into(),
            cookie: 0.into(),
            off: (block * BLOCK as u64).into(),
            len: (data.len().max(answer.len()) as u32).into(),
        };
        self.0.write_all(&[request.as_bytes(), data].concat())?;
        let mut reply = [0; size_of::<SimpleReply>()];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        assert_eq!(reply[4..8], [0; 4], "the server failed a request");
        self.0.read_exact(answer)
    }

    fn write(&mut self, block: u64, round: u64) -> io::Result<()> {
        self.ask(command::WRITE, block, &content(block, round), &mut [])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ask(command::FLUSH, 0, &[], &mut [])
    }

    fn read(&mut self, block: u64) -> io::Result<Vec<u8>> {
        let mut found = vec![0; BLOCK];
        self.ask(command::READ, block, &[], &mut found)?;
        Ok(found)
    }
}

/// What a block is filled with in a round.
fn word(block: u64, round: u64) -> [u8; 8] {
    (block << 32 | round).to_le_bytes()
}

fn content(block: u64, round: u64) -> Vec<u8> {
    word(block, round).repeat(BLOCK / 8)
}

/// Writes the blocks of client `me` round by round, until told to stop, and begins each round again that a death
/// interrupts; the last round of which all was confirmed, and how often connections broke.
fn load(served: &Served, me: u64, stop: &AtomicBool) -> (u64, u64) {
    let (mut confirmed, mut broken) = (0, 0);
    let mut client = served.client();
    while !stop.load(Relaxed) {
        let round = confirmed + 1;
        let mine = (me..BLOCKS).step_by(CLIENTS as usize);
        let written = mine.into_iter().try_for_each(|block| client.write(block, round));
        match written.and_then(|()| client.flush()) {
            Ok(()) => confirmed = round,
            Err(err) => {
                assert_ne!(err.kind(), io::ErrorKind::WouldBlock, "client {me} was kept waiting");
                broken += 1;
                client = served.client();
            }
        }
    }
    (confirmed, broken)
}

fn killed_under_load(dir: &str, options: &[&str]) {
    let served = &Served::start(dir, options);
    let stop = &AtomicBool::new(false);
    let rounds: Vec<_> = std::thread::scope(|s| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|me| s.spawn(move || load(served, me, stop))).collect();
        for kill in 0..KILLS {
            std::thread::sleep(Duration::from_millis(300));
            served.kill(kill as usize % WORKERS);
        }
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(served.status()["workers"]["restarts"], KILLS, "{options:?}");
    let mut client = served.client();
    for block in 0..BLOCKS {
        let (confirmed, broken) = rounds[(block % CLIENTS) as usize];
        assert!(confirmed > 0 && broken > 0, "{options:?}: {rounds:?}");
        let found = client.read(block).unwrap();
        // The next round may have begun, and been interrupted in the middle of the block.
        let right = [confirmed, confirmed + 1].map(|round| word(block, round));
        let lost = found.chunks_exact(8).find(|word| !right.iter().any(|right| right == word));
        assert_eq!(lost, None, "{options:?}: block {block} of round {confirmed} is lost");
    }
}

#[test]
fn workers_killed_in_memory() {
    killed_under_load("/dev/shm", &[]);
}

#[test]
fn workers_killed_with_write_back() {
    killed_under_load("/dev/shm", &["--scheme", "wb", "--protect", "none"]);
}

#[test]
fn workers_killed_with_atomic_blocks() {
    killed_under_load("/dev/shm", &["--atomic", "512", "--checksums"]);
}

#[test]
fn workers_killed_on_an_ordinary_file() {
    killed_under_load("/var/tmp", &["--protect", "chunk"]);
}

#[test]
fn clients_are_spread_counted_and_let_go() {
    let served = Served::start("/dev/shm", &["--clients", "6"]);
    let mut clients: Vec<_> = (0..6).map(|_| served.client()).collect();
    for (n, client) in (0..).zip(&mut clients) {
        client.write(n, 1).unwrap();
    }
    let status = served.status();
    let each = status["workers"]["processes"].as_array().unwrap();
    assert!(each.iter().all(|worker| worker["clients"] == 2), "{status}");
    assert_eq!(each.len(), WORKERS);
    assert_eq!(status["clients"], 6);
    assert_eq!(status["exports"][0]["requests"]["writes"], 6);
    assert_eq!(status["exports"][0]["device"]["writes"], 6);
    let one_more = Client::connect(Path::new(&served.path("socket")));
    assert!(one_more.is_err(), "more clients than --clients says");
    let metrics = ok(&["bdev", "stats", &served.path("socket"), "--prometheus"]);
    assert!(metrics.contains("\nkeepstone_bdev_restarts_total 0\n"), "{metrics}");

    // A stop answers what was asked and leaves nothing behind.
    ok(&["bdev", "stop", &served.path("socket")]);
    assert!(clients[0].flush().is_err());
    assert!(!Path::new(&served.path("socket")).exists());
    for worker in each {
        let pid = worker["pid"].as_i64().unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "worker {pid} is still there");
    }
}

#[test]
fn a_device_grows_under_workers() {
    let served = Served::start("/dev/shm", &[]);
    let mut old: Vec<_> = (0..WORKERS).map(|_| served.client()).collect();
    ok(&["bdev", "grow", &served.name(), "--size", "4M"]);
    // Those who came before it know the size by what is not refused.
    for (client, block) in old.iter_mut().zip(1023 - WORKERS as u64..) {
        client.write(block, 1).unwrap();
        client.flush().unwrap();
    }
    let status = served.status();
    assert_eq!(status["exports"][0]["size_bytes"], 4 << 20);
    assert_eq!(served.client().read(1022).unwrap(), content(1022, 1));
}

#[test]
fn workers_die_with_their_supervisor() {
    let served = Served::start("/dev/shm", &[]);
    let status = served.status();
    let mut client = served.client();
    client.write(0, 1).unwrap();
    let pid = status["pid"].as_i64().unwrap() as i32;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // It may answer until the signal has reached it; one that went on would do so for ever.
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while client.read(0).is_ok() {
        assert!(std::time::Instant::now() < until, "a worker goes on without its supervisor");
    }
}
