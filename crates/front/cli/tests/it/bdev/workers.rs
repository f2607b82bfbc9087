//! `keepstone bdev serve --workers`: workers that are killed under load lose no confirmed writes
//! and block no client.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::served::{BLOCK, Client, Served, ok};

const BLOCKS: u64 = 512;
const WORKERS: usize = 3;
const CLIENTS: usize = 4;
const KILLS: u64 = 4;

/// Starts a server with workers, and a pool in `dir`.
fn start(dir: &str, options: &[&str]) -> Served {
    let workers = WORKERS.to_string();
    Served::start(dir, &[&["--workers", &workers], options].concat())
}

/// Kills the `n`-th worker.
fn kill(served: &Served, n: usize) {
    let pid = served.status()["workers"]["processes"][n]["pid"].as_i64().unwrap();
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

/// Returns the word that fills a block in a round.
fn word(block: u64, round: u64) -> [u8; 8] {
    (block << 32 | round).to_le_bytes()
}

fn content(block: u64, round: u64) -> Vec<u8> {
    word(block, round).repeat(BLOCK / 8)
}

/// The observations of a client.
#[derive(Default)]
struct Seen {
    /// The last round whose writes are all confirmed.
    confirmed: AtomicU64,
    /// Number of times that its connection broke.
    broken: AtomicU64,
}

/// Writes the blocks of client `me` round by round until `stop` is set, and repeats each round that
/// a death interrupts.
fn load(served: &Served, me: u64, seen: &Seen, stop: &AtomicBool) {
    let mut client = None;
    while !stop.load(Relaxed) {
        let round = seen.confirmed.load(Relaxed) + 1;
        let mut write = || {
            let client = match &mut client {
                Some(client) => client,
                none => none.insert(Client::connect(Path::new(&served.path("socket")))?),
            };
            for block in (me..BLOCKS).step_by(CLIENTS) {
                client.write(block, &content(block, round))?;
            }
            client.flush()
        };
        match write() {
            Ok(()) => seen.confirmed.store(round, Relaxed),
            Err(err) => {
                assert_ne!(err.kind(), io::ErrorKind::WouldBlock, "client {me} was kept waiting");
                seen.broken.fetch_add(1, Relaxed);
                client = None;
            }
        }
    }
}

fn killed_under_load(dir: &str, options: &[&str]) {
    let served = &start(dir, options);
    let stop = &AtomicBool::new(false);
    let clients: [Seen; CLIENTS] = std::array::from_fn(|_| Seen::default());
    let rounds = || clients.each_ref().map(|seen| seen.confirmed.load(Relaxed));
    // Waits until each client has finished a round that it began after this call.
    let get_on = || {
        let (before, until) = (rounds(), Instant::now() + Duration::from_secs(60));
        while rounds().iter().zip(before).any(|(now, before)| *now < before + 2) {
            assert!(Instant::now() < until, "{options:?}: held up after {before:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|s| {
        for (me, seen) in (0..).zip(&clients) {
            s.spawn(move || load(served, me, seen, stop));
        }
        let killed = catch_unwind(AssertUnwindSafe(|| {
            for n in 0..KILLS {
                get_on();
                kill(served, n as usize % WORKERS);
            }
            get_on();
        }));
        stop.store(true, Relaxed);
        killed.unwrap_or_else(|panic| resume_unwind(panic));
    });
    assert_eq!(served.status()["workers"]["restarts"], KILLS, "{options:?}");
    let mut client = served.client();
    for block in 0..BLOCKS {
        let seen = &clients[block as usize % CLIENTS];
        let confirmed = seen.confirmed.load(Relaxed);
        assert!(seen.broken.load(Relaxed) > 0, "{options:?}: a client met no death");
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
    let served = start("/dev/shm", &["--clients", "6"]);
    let mut clients: Vec<_> = (0..6).map(|_| served.client()).collect();
    for (n, client) in (0..).zip(&mut clients) {
        client.write(n, &content(n, 1)).unwrap();
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
    // The times that the workers have measured are added up.
    for client in &mut clients[..3] {
        client.flush().unwrap();
        client.read(0).unwrap();
    }
    let latency = served.status()["exports"][0]["latency"].clone();
    for (kind, requests) in [("write", 6), ("flush", 3), ("read", 3)] {
        let of_kind = &latency[kind];
        let buckets = of_kind["buckets"].as_array().unwrap();
        let counted: u64 = buckets.iter().map(|bucket| bucket[1].as_u64().unwrap()).sum();
        assert_eq!(counted, requests, "{kind}: {latency}");
        let ns = |name: &str| of_kind[name].as_u64().unwrap();
        let ordered = [ns("p50_ns"), ns("p99_ns"), ns("p999_ns")];
        assert!(ordered[0] > 0 && ordered.is_sorted() && ns("total_ns") > 0, "{latency}");
    }
    let shown = ok(&["bdev", "stats", &served.path("socket")]);
    assert!(shown.contains("\nlatency in us: p50, p99, p99.9\n  flush "), "{shown}");
    let metrics = ok(&["bdev", "stats", &served.path("socket"), "--prometheus"]);
    assert!(metrics.contains("\nkeepstone_bdev_restarts_total{server="), "{metrics}");
    let mut counts = metrics.lines().filter(|line| line.contains("bdev_request_seconds_count{"));
    assert!(counts.any(|line| line.ends_with("request=\"write\"} 6")), "{metrics}");

    // A stop answers pending requests and leaves nothing behind.
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
    let served = start("/dev/shm", &[]);
    let mut old: Vec<_> = (0..WORKERS).map(|_| served.client()).collect();
    ok(&["bdev", "grow", &served.name(), "--size", "4M"]);
    // Clients that connected before can use the new blocks as well.
    for (client, block) in old.iter_mut().zip(1023 - WORKERS as u64..) {
        client.write(block, &content(block, 1)).unwrap();
        client.flush().unwrap();
    }
    let status = served.status();
    assert_eq!(status["exports"][0]["size_bytes"], 4 << 20);
    assert_eq!(served.client().read(1022).unwrap(), content(1022, 1));
}

#[test]
fn workers_die_with_their_supervisor() {
    let served = start("/dev/shm", &[]);
    let status = served.status();
    let mut client = served.client();
    client.write(0, &content(0, 1)).unwrap();
    let pid = status["pid"].as_i64().unwrap() as i32;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // A worker may answer until the signal reaches it. One that continued would answer for ever.
    let until = Instant::now() + Duration::from_secs(10);
    while client.read(0).is_ok() {
        assert!(Instant::now() < until, "a worker goes on without its supervisor");
    }
}
