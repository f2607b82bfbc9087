//! The cost of many clients that are not served.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::served::{Client, Served};
use crate::common::wait_until;

/// A server in the foreground, which ends when this is dropped.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// The number of lines about clients is limited.
#[test]
fn clients_that_are_turned_away_do_not_fill_the_log() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (pool, socket, log) = (path("pool"), path("socket"), path("log"));
    let server = Command::new(env!("CARGO_BIN_EXE_keepstone"))
        .args(["bdev", "serve", "-f", &pool, "--socket", &socket, "--create", "--size", "2M"])
        .args(["--clients", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let _server = Foreground(server);
    wait_until("the server listens", || Path::new(&socket).exists());
    let mut only = Client::connect(Path::new(&socket)).expect("it takes a client");
    for _ in 0..3000 {
        let mut client = UnixStream::connect(&socket).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "it is turned away");
    }
    assert!(!only.fails_to_read(0));
    let log = fs::read_to_string(log).unwrap();
    let lines = log.lines().filter(|line| line.contains("turned away")).count();
    assert!((1..300).contains(&lines), "{lines} lines");
}

/// Silent clients take no place from a client that negotiates, whichever process serves them.
#[test]
fn silent_clients_lock_nobody_out() {
    for workers in ["0", "2"] {
        let workers = if workers == "0" { vec![] } else { vec!["--workers", workers] };
        let served = Served::start("/dev/shm", &[&["--clients", "32"], &workers[..]].concat());
        let socket = served.path("socket");
        let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        assert!(!served.client().fails_to_read(0));
        assert!(served.status()["clients"].as_u64().is_none_or(|clients| clients <= 34));
        drop(silent);
    }
}
