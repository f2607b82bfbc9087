//! `keepstone attach s3://…`: a tree in an object store, here a server of the S3 protocol (moto,
//! from PyPI).
//!
//! Needs root and `/dev/fuse`; installs the Python packages that it needs.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::common::{kill_server_of, wait_until};

/// A server with an empty bucket, which ends when this is dropped.
struct Moto {
    server: Child,
    port: u16,
}

impl Moto {
    fn start() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap();
        let dir = root.join(".work/moto");
        let installed = Command::new(root.join("scripts/lib/moto.sh")).arg(&dir).status().unwrap();
        assert!(installed.success());
        let mut server = Command::new(dir.join("bin/moto_server"))
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(server.stderr.take().unwrap()).lines();
        let port = told.find_map(|line| {
            let line = line.unwrap();
            line.split_once("Running on http://127.0.0.1:")?.1.trim().parse().ok()
        });
        // Reads the log of requests, so that the pipe never fills up.
        std::thread::spawn(move || told.for_each(drop));
        let moto = Self { server, port: port.expect("it tells its port") };
        assert!(moto.ask("PUT", "/bucket").starts_with("HTTP/1.1 200"));
        moto
    }

    /// Sends a request without content, and returns the answer.
    fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Returns the names of all objects.
    fn names(&self) -> Vec<String> {
        let listed = self.ask("GET", "/bucket?list-type=2");
        listed
            .split("<Key>")
            .skip(1)
            .filter_map(|key| Some(key.split_once('<')?.0.to_owned()))
            .collect()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A connection to a server that can be cut.
struct Way {
    port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            is_cut: Arc::default(),
            open: Arc::default(),
        };
        let (is_cut, open) = (way.is_cut.clone(), way.open.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if is_cut.load(SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let clone = |stream: &TcpStream| stream.try_clone().unwrap();
                open.lock().unwrap().extend([clone(&near), clone(&far)]);
                for (mut from, mut to) in [(clone(&near), clone(&far)), (far, near)] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        way
    }

    fn cut(&self) {
        self.is_cut.store(true, SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, SeqCst);
    }
}

/// A machine: a pool in memory, a mount point, and the port at which it reaches the store.
struct Machine {
    dir: tempfile::TempDir,
    port: u16,
}

const URL: &str = "s3://bucket/some/tree";

impl Machine {
    fn new(port: u16) -> Self {
        let dir = tempfile::TempDir::with_prefix_in("keepstone-objects-", "/dev/shm").unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        let machine = Self { dir, port };
        let pool = machine.pool();
        machine.keepstone(&["mkfs", pool.to_str().unwrap(), "--cache", "--size", "128M"]);
        machine
    }

    fn pool(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_keepstone"))
            .args(args)
            .env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "testing")
            .env("AWS_SECRET_ACCESS_KEY", "testing")
            .output()
            .unwrap()
    }

    fn keepstone(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn try_attach(&self, url: &str, options: &[&str]) -> Output {
        let (pool, mount) = (self.pool(), self.mount());
        let places = [pool.to_str().unwrap(), url, mount.to_str().unwrap()];
        self.run(&[&["attach"], options, &places].concat())
    }

    fn attach(&self, options: &[&str]) {
        let output = self.try_attach(URL, options);
        assert!(output.status.success(), "{options:?}: {output:?}");
    }

    /// Returns the error of an attempt to attach that must fail.
    fn refusal(&self, url: &str, options: &[&str]) -> String {
        let output = self.try_attach(url, options);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn detach(&self) {
        self.keepstone(&["umount", self.mount().to_str().unwrap()]);
    }

    fn status(&self) -> Value {
        let told = self.keepstone(&["--json", "attach", "status", self.mount().to_str().unwrap()]);
        serde_json::from_str(&told).unwrap()
    }

    /// Returns the server's process ID.
    fn server(&self) -> rustix::process::Pid {
        let pid = self.status()["pid"].as_i64().unwrap() as i32;
        rustix::process::Pid::from_raw(pid).unwrap()
    }

    /// Kills the server, and removes its dead mount.
    fn kill(&self) {
        kill_server_of(&self.status());
        rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // If the test has failed.
        let _ = rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Returns bytes that differ from place to place.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32)
        .flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 24).to_le_bytes())
        .take(len)
        .collect()
}

/// A machine finds what another one has changed since.
#[test]
fn machines_take_turns() {
    let moto = Moto::start();
    let machine = Machine::new(moto.port);
    machine.attach(&[]);
    fs::create_dir(machine.path("dir")).unwrap();
    fs::write(machine.path("dir/large"), vec![b'x'; 20 << 20]).unwrap();
    fs::write(machine.path("small"), "text").unwrap();
    fs::hard_link(machine.path("small"), machine.path("dir/link")).unwrap();
    fs::rename(machine.path("dir/large"), machine.path("large")).unwrap();
    assert_eq!(machine.status()["cache"]["counters"]["drained_bytes"], 0);
    machine.detach();
    assert!(!moto.names().is_empty());
    // Another machine, whose pool is empty.
    let other = Machine::new(moto.port);
    other.attach(&[]);
    assert!(fs::read(other.path("large")).unwrap() == vec![b'x'; 20 << 20]);
    assert_eq!(fs::read(other.path("dir/link")).unwrap(), b"text");
    assert_eq!(other.path("small").metadata().unwrap().nlink(), 2);
    fs::write(other.path("small"), "changed").unwrap();
    other.detach();
    // The first one finds the change.
    machine.attach(&[]);
    wait_until("the change is seen", || {
        fs::read(machine.path("dir/link")).is_ok_and(|read| read == b"changed")
    });
    machine.detach();
}

/// Programs write and the server is killed. The writes survive, reach the store in parts, and are
/// visible to the next machine.
#[test]
fn a_tree_in_a_store_outlives_servers_and_machines() {
    let moto = Moto::start();
    let first = Machine::new(moto.port);
    first.attach(&["--chunk-size=16M", "--max-age=3600"]);
    let large = bytes(12 << 20);
    fs::create_dir(first.path("dir")).unwrap();
    fs::write(first.path("dir/large"), &large).unwrap();
    fs::write(first.path("small"), "before").unwrap();
    std::os::unix::fs::symlink("dir/large", first.path("link")).unwrap();
    fs::hard_link(first.path("small"), first.path("dir/second")).unwrap();
    for dir in [first.path("dir"), first.mount()] {
        fs::File::open(dir).unwrap().sync_all().unwrap();
    }
    fs::write(first.path("small"), "after").unwrap();
    let file = fs::File::options().write(true).open(first.path("dir/large")).unwrap();
    file.write_all_at(b"overwritten", 5_000_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    first.kill();
    first.attach(&["--max-age=3600"]);
    let mut expected = large;
    expected[5_000_000..][..11].copy_from_slice(b"overwritten");
    assert_eq!(fs::read_to_string(first.path("small")).unwrap(), "after");
    assert!(fs::read(first.path("dir/large")).unwrap() == expected);
    first.detach();
    let names = moto.names();
    assert!(names.iter().all(|name| name.starts_with("some/tree/")), "{names:?}");
    assert_eq!(names.iter().filter(|name| name.contains("/data/")).count(), 2, "{names:?}");

    let second = Machine::new(moto.port);
    second.attach(&["--lease=1"]);
    assert!(fs::read(second.path("dir/large")).unwrap() == expected);
    assert_eq!(fs::read_to_string(second.path("dir/second")).unwrap(), "after");
    assert_eq!(fs::metadata(second.path("small")).unwrap().nlink(), 2);
    assert_eq!(fs::read_link(second.path("link")).unwrap(), Path::new("dir/large"));
    fs::rename(second.path("dir/large"), second.path("moved")).unwrap();
    fs::remove_dir_all(second.path("dir")).unwrap();

    // The first machine has to wait.
    let refused = first.refusal(URL, &[]);
    let pid = second.status()["pid"].to_string();
    assert!(refused.contains("the tree is in use: process") && refused.contains(&pid), "{refused}");
    second.detach();
    first.attach(&[]);
    assert!(fs::read(first.path("moved")).unwrap() == expected);
    assert!(!first.path("dir").exists());
    assert_eq!(fs::metadata(first.path("small")).unwrap().nlink(), 1);
    first.detach();
}

/// While the store is unreachable, programs continue. Nothing is lost, and the data is written back
/// when the store returns.
#[test]
fn a_store_that_is_away_is_waited_for() {
    let moto = Moto::start();
    let way = Way::to(moto.port);
    let machine = Machine::new(way.port);
    machine.attach(&["--max-age=0"]);
    fs::write(machine.path("file"), "one").unwrap();
    machine.keepstone(&["attach", "flush", machine.mount().to_str().unwrap()]);
    way.cut();
    let file = fs::File::options().write(true).open(machine.path("file")).unwrap();
    file.write_all_at(b"two, which is longer", 0).unwrap();
    drop(file);
    fs::write(machine.path("new"), bytes(300_000)).unwrap();
    assert_eq!(fs::read_to_string(machine.path("file")).unwrap(), "two, which is longer");
    let failures = || machine.status()["cache"]["counters"]["failures"].as_u64().unwrap();
    wait_until("writing back has failed", || failures() > 0);
    way.mend();
    wait_until("all is written back", || machine.status()["cache"]["dirty_bytes"] == 0);
    // Written-back data is in the store although the server could not contact it at its end.
    way.cut();
    machine.kill();
    way.mend();
    let other = Machine::new(moto.port);
    other.attach(&["--lease=1"]);
    assert_eq!(fs::read_to_string(other.path("file")).unwrap(), "two, which is longer");
    assert!(fs::read(other.path("new")).unwrap() == bytes(300_000));
    other.detach();
}

/// Names and content are in the pool: an unmount while the store is away fails, and names what is
/// left. The next server goes on with it.
#[test]
fn an_unmount_without_the_store_keeps_everything() {
    let moto = Moto::start();
    let way = Way::to(moto.port);
    let machine = Machine::new(way.port);
    machine.attach(&["--lease=1", "--max-age=3600"]);
    fs::write(machine.path("file"), "content").unwrap();
    machine.keepstone(&["attach", "flush", machine.mount().to_str().unwrap()]);
    way.cut();
    fs::rename(machine.path("file"), machine.path("renamed")).unwrap();
    fs::create_dir(machine.path("dir")).unwrap();
    fs::write(machine.path("dir/new"), "new").unwrap();
    let left = machine.run(&["umount", machine.mount().to_str().unwrap()]);
    let message = String::from_utf8_lossy(&left.stderr);
    assert!(!left.status.success() && message.contains("are not in s3://"), "{left:?}");
    assert!(!machine.path("dir").exists());
    way.mend();
    machine.attach(&["--lease=1"]);
    assert_eq!(fs::read_to_string(machine.path("renamed")).unwrap(), "content");
    machine.detach();
    let other = Machine::new(moto.port);
    other.attach(&["--lease=1"]);
    assert_eq!(fs::read_to_string(other.path("renamed")).unwrap(), "content");
    assert_eq!(fs::read_to_string(other.path("dir/new")).unwrap(), "new");
    assert!(!other.path("file").exists());
    other.detach();
}

/// A server sleeps longer than its lease, and another machine takes the tree. The first server
/// changes nothing when it wakes up, and its dirty data is still there when it is attached again.
#[test]
fn a_machine_that_slept_is_kept_out_and_loses_nothing() {
    let moto = Moto::start();
    let (first, second) = (Machine::new(moto.port), Machine::new(moto.port));
    first.attach(&["--lease=1", "--max-age=3600"]);
    fs::write(first.path("both"), "first").unwrap();
    first.keepstone(&["attach", "flush", first.mount().to_str().unwrap()]);
    fs::write(first.path("mine"), "not written back").unwrap();
    let server = first.server();
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    second.attach(&["--lease=60"]);
    assert!(!second.path("mine").exists());
    fs::write(second.path("both"), "second").unwrap();
    second.keepstone(&["attach", "flush", second.mount().to_str().unwrap()]);
    rustix::process::kill_process(server, rustix::process::Signal::CONT).unwrap();
    let mount = first.mount();
    let flushed = || first.run(&["attach", "flush", mount.to_str().unwrap()]).status.success();
    wait_until("the lease is known to be lost", || !flushed());
    let dirty = first.status()["cache"]["dirty_bytes"].as_u64().unwrap();
    assert!(dirty > 0, "it is kept");
    let refused = first.run(&["umount", mount.to_str().unwrap()]);
    assert!(!refused.status.success() && !first.path("both").exists(), "{refused:?}");
    assert_eq!(fs::read_to_string(second.path("both")).unwrap(), "second");
    second.detach();
    first.attach(&[]);
    wait_until("the change is seen", || {
        fs::read_to_string(first.path("both")).is_ok_and(|read| read == "second")
    });
    assert_eq!(fs::read_to_string(first.path("mine")).unwrap(), "not written back");
    first.detach();
}

/// `drain` writes back a killed server's changes without a mount, and a refused `attach` explains
/// why.
#[test]
fn drained_without_a_mount_and_refused_with_a_reason() {
    let moto = Moto::start();
    let machine = Machine::new(moto.port);
    machine.attach(&["--max-age=3600"]);
    fs::write(machine.path("file"), "content").unwrap();
    machine.kill();
    let drained = machine.keepstone(&["attach", "drain", machine.pool().to_str().unwrap(), URL]);
    assert!(drained.contains(", 0 B left"), "{drained}");
    let other = Machine::new(moto.port);
    other.attach(&[]);
    assert_eq!(fs::read_to_string(other.path("file")).unwrap(), "content");
    other.detach();

    let refused = other.refusal("s3://bucket/another", &[]);
    assert!(refused.contains("another directory or store"), "{refused}");
    let fresh = Machine::new(moto.port);
    let refused = fresh.refusal("s3://missing/tree", &[]);
    assert!(refused.contains("NoSuchBucket"), "{refused}");
    let refused = fresh.refusal("s3://bucket/some", &[]);
    assert!(refused.contains("a tree needs a prefix of its own"), "{refused}");
    let refused = fresh.refusal("file:///srv/data", &[]);
    assert!(refused.contains("attach it by its path"), "{refused}");
    let refused = fresh.refusal(URL, &["--store-option=aws_regoin=x"]);
    assert!(refused.contains("there is no option aws_regoin"), "{refused}");
    let refused = fresh.refusal(URL, &["--chunk-size=5000"]);
    assert!(refused.contains("a power of two bytes"), "{refused}");
    let pool = fresh.pool();
    let output = fresh.run(&["attach", pool.to_str().unwrap(), URL]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("name a mount point after it"));
}
