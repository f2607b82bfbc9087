//! Names, addresses and sizes as new users type them, and the errors that they get.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::Value;

use super::served::{BLOCK, Served, fails, keepstone, ok};

/// Returns the status of the server of `name`.
fn status(name: &str) -> Value {
    serde_json::from_str(&ok(&["--json", "bdev", "stats", name])).unwrap()
}

#[test]
fn a_server_is_called_by_whatever_it_has() {
    let served = Served::start("/dev/shm", &["--listen", "localhost:0"]);
    let all = status(&served.path("socket"));
    let address = |start: &str| {
        let addresses = all["addresses"].as_array().unwrap();
        let found = addresses.iter().filter_map(Value::as_str).find(|a| a.starts_with(start));
        found.unwrap().to_owned()
    };
    let tcp = address("nbd://");
    for name in [
        served.path("socket"),
        served.path("./socket"),
        served.path(&served.name()),
        served.name(),
        all["pid"].to_string(),
        address("nbd+unix"),
        tcp.clone(),
        tcp.strip_prefix("nbd://").unwrap().to_owned(),
    ] {
        assert_eq!(status(&name)["pid"], all["pid"], "{name}");
        let grown = ok(&["--json", "bdev", "grow", &name, "--size", "4M"]);
        let grown: Value = serde_json::from_str(&grown).unwrap();
        assert_eq!(grown["export"], served.name(), "{name}");
        assert_eq!(grown["size_bytes"], 4 << 20, "{name}");
    }
    ok(&["bdev", "stop", &tcp]);
    assert!(fails(&["bdev", "stats", &served.name()]).contains("no such server"));
}

#[test]
fn of_several_exports_one_has_to_be_named() {
    let served = Served::start("/dev/shm", &[]);
    let (a, b) = (served.path("a"), served.path("b"));
    let (both, socket) = (format!("second={b}"), served.path("both"));
    let start = ["--export", &both, "--socket", &socket, "--create", "--size", "1M"];
    ok(&[&["bdev", "serve", &a], &start[..]].concat());
    let said = fails(&["bdev", "grow", &socket, "--size", "2M"]);
    assert!(said.contains("several exports; name one of a, second"), "{said}");
    ok(&["bdev", "grow", &b, "--size", "2M"]);
    let sizes = status(&socket);
    let sizes = [0, 1].map(|n| sizes["exports"][n]["size_bytes"].as_u64().unwrap());
    assert_eq!(sizes, [1 << 20, 2 << 20]);
    ok(&["bdev", "stop", "second"]);
}

#[test]
fn whoever_lets_everybody_in_is_told() {
    for (address, warned) in [("0", false), ("localhost:0", false), (":0", true)] {
        let served = Served::start("/dev/shm", &[]);
        let (pool, name) = (served.path("other"), "--create");
        let args = ["--json", "bdev", "serve", &pool, name, "--size", "1M", "--listen", address];
        let output = keepstone(&args);
        let ready: Value = serde_json::from_slice(&output.stdout).unwrap();
        ok(&["bdev", "stop", &pool]);
        let said = String::from_utf8(output.stderr).unwrap();
        let warnings = ready["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), usize::from(warned), "{address}: {warnings:?}");
        assert_eq!(said.contains("--tls-required --tls-verify-peer"), warned, "{address}: {said}");
    }
}

#[test]
fn a_disk_says_itself_what_it_is_and_how_large() {
    let served = Served::start("/dev/shm", &["--atomic", "512"]);
    let pool = served.path(&served.name());
    served.client().write(1, &[5; BLOCK]).unwrap();
    ok(&["bdev", "stop", &served.name()]);
    let args = ["bdev", "serve", &pool, "--checksums", "--socket", &served.path("socket")];
    let output = keepstone(&[&args[..], &["--create", "--size", "1G"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("keeps that size, not 1 GiB"), "{said}");
    let status = served.status();
    assert_eq!(status["exports"][0]["atomic"], 512);
    assert_eq!(status["exports"][0]["size_bytes"], 2 << 20);
    assert_eq!(served.client().read(1).unwrap(), [5; BLOCK]);
    // A pool with atomic blocks keeps its size, served or not, and the error explains why.
    assert!(fails(&["bdev", "grow", &pool, "--size", "4M"]).contains("create a larger one"));
    assert!(fails(&["bdev", "check", &pool]).contains("`keepstone bdev stop"));
    ok(&["bdev", "stop", &served.name()]);
    assert!(fails(&["bdev", "grow", &pool, "--size", "4M"]).contains("create a larger one"));
    // The pool has the requested size, so there is no warning.
    let output = keepstone(&[&args[..], &["--create", "--size", "2097000"]].concat());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn a_pool_that_nobody_serves_grows() {
    let served = Served::start("/dev/shm", &[]);
    let pool = served.path(&served.name());
    served.client().write(1, &[5; BLOCK]).unwrap();
    ok(&["bdev", "stop", &served.name()]);
    ok(&["bdev", "grow", &pool, "--size", "4M"]);
    assert!(fails(&["bdev", "grow", &pool, "--size", "1M"]).contains("only grows"));
    assert!(
        fails(&["bdev", "grow", &served.path("none"), "--size", "1M"]).contains("no such pool")
    );
    assert_eq!(Path::new(&pool).metadata().unwrap().len(), 4 << 20);
    ok(&["bdev", "serve", &pool, "--socket", &served.path("socket")]);
    assert_eq!(served.client().read(1).unwrap(), [5; BLOCK]);
    assert_eq!(served.client().read(1023).unwrap(), [0; BLOCK]);
}

/// A command that fails removes the files that it has created, and keeps files that existed before.
#[test]
fn nothing_is_left_of_what_failed() {
    let served = Served::start("/dev/shm", &[]);
    let (new, bad) = (served.path("new"), served.path("none/socket"));
    let create = ["--create", "--size", "1M"];
    let options: [&[&str]; 4] = [
        &["--socket", &bad],
        &["--listen", "192.0.2.1:1"],
        &["--thin", "--socket", &bad],
        &["--atomic", "512", "--workers", "2", "--socket", &bad],
    ];
    for options in options {
        fails(&[&["bdev", "serve", &new], &create[..], options].concat());
        assert!(!Path::new(&new).exists(), "{options:?}");
    }
    let pool = served.path(&served.name());
    fails(&[&["bdev", "serve", &new, &pool], &create[..]].concat());
    assert!(!Path::new(&new).exists() && Path::new(&pool).exists());
    if !Path::new("/dev/nbd0").exists() {
        let said = fails(&[&["bdev", "attach", &new, "--by", "nbd"], &create[..]].concat());
        assert!(said.contains("modprobe nbd"), "{said}");
        assert!(!Path::new(&new).exists());
    }
}

/// A pool with a file system is not served as a disk, not even for reading while another process
/// may change it.
#[test]
fn a_file_system_is_not_served_as_a_disk() {
    let served = Served::start("/dev/shm", &[]);
    let pool = served.path("pool");
    ok(&["mkfs", &pool, "--size", "16M"]);
    for command in ["serve", "loop", "attach"] {
        let said = fails(&["bdev", command, &pool]);
        assert!(said.contains("holds a file system") && said.contains("--read-only"), "{said}");
    }
    for args in [&["check", &pool][..], &["grow", &pool, "--size", "1G"]] {
        assert!(fails(&[&["bdev"], args].concat()).contains("holds a file system"));
    }
    let args = ["bdev", "serve", &pool, "--read-only", "--socket", &served.path("ro")];
    ok(&args);
    ok(&["bdev", "stop", &served.path("ro")]);
    // Opened as programs do that share a pool mounted with -o direct.
    let options = pmem::OpenOptions { lock: Some(pmem::Lock::Shared), ..Default::default() };
    let user = options.open(&pool, pmem::Access::ReadWrite).unwrap();
    let said = fails(&args);
    assert!(said.contains(&format!("(pid {})", std::process::id())), "{said}");
    drop(user);
    ok(&args);
    ok(&["bdev", "stop", &served.path("ro")]);
}

#[test]
fn a_damaged_disk_is_checked_served_and_repaired() {
    let served = Served::start("/dev/shm", &["--atomic", "512"]);
    let pool = served.path(&served.name());
    for block in 0..8 {
        served.client().write(block, &[block as u8; BLOCK]).unwrap();
    }
    ok(&["bdev", "stop", &served.name()]);
    assert!(ok(&["bdev", "check", &pool]).contains("clean: 64 of 4096 blocks"));
    let file = std::fs::OpenOptions::new().write(true).open(&pool).unwrap();
    file.write_all_at(&[0xff; 8], 4096 + (3 * 8 + 1) * 8).unwrap();

    let serve = ["bdev", "serve", &pool, "--socket", &served.path("socket")];
    let said = fails(&serve);
    assert!(said.contains("word of block 25,") && said.contains("bdev check"), "{said}");
    ok(&[&serve[..], &["--read-only"]].concat());
    assert_eq!(served.client().read(2).unwrap(), [2; BLOCK]);
    assert!(served.client().fails_to_read(3));
    ok(&["bdev", "stop", &served.name()]);

    let code = |args: &[&str]| keepstone(args).status.code();
    assert_eq!(code(&["bdev", "check", &pool]), Some(1));
    fails(&serve);
    assert_eq!(code(&["bdev", "check", &pool, "--repair"]), Some(1));
    assert_eq!(code(&["bdev", "check", &pool]), Some(0));
    ok(&serve);
    assert!(served.client().fails_to_read(3));
    served.client().write(3, &[33; BLOCK]).unwrap();
    for (block, byte) in [(2, 2), (3, 33), (4, 4)] {
        assert_eq!(served.client().read(block).unwrap(), [byte; BLOCK]);
    }
}

/// A loop device whose server was killed is listed, and can be released by any of its names.
#[test]
fn a_loop_device_without_a_server_can_be_let_go() {
    let served = Served::start("/dev/shm", &[]);
    let pool = served.path("pool");
    for through in ["server", "kernel"] {
        for called_by_device in [true, false] {
            let args = ["--json", "bdev", "loop", &pool, "--create", "--size", "4M"];
            let ready = ok(&[&args[..], &["--through", through]].concat());
            let ready: Value = serde_json::from_str(&ready).unwrap();
            let device = ready["device"].as_str().unwrap();
            assert_eq!(status(device.trim_start_matches("/dev/"))["pid"], ready["pid"]);
            let pid = rustix::process::Pid::from_raw(ready["pid"].as_i64().unwrap() as i32);
            rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
            let is_listed =
                || ok(&["bdev", "list"]).contains(&format!("loop {device}, whose server was"));
            let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while !is_listed() {
                assert!(std::time::Instant::now() < until, "{device} is not listed");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            ok(&["bdev", "detach", if called_by_device { device } else { &pool }]);
            assert!(!is_listed());
        }
    }
}

/// Regression test for two bugs. A server with nothing to wait for ended before it had answered. A
/// command that asked all servers took a starting server for dead and removed its socket.
#[test]
fn who_stops_a_server_is_answered() {
    let served = Served::start("/dev/shm", &[]);
    let done = &std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                ok(&["bdev", "list"]);
            }
        });
        let again =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stop_and_start(&served)));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        again.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn stop_and_start(served: &Served) {
    for _ in 0..50 {
        ok(&["bdev", "stop", &served.name()]);
        let pool = served.path(&served.name());
        ok(&["bdev", "serve", &pool, "--socket", &served.path("socket")]);
    }
}

#[test]
fn a_server_is_recorded() {
    let other = Served::start("/dev/shm", &[]);
    let trace = other.path("trace");
    let served = Served::start("/dev/shm", &["--record", &trace]);
    served.client().write(0, &[7; BLOCK]).unwrap();
    ok(&["bdev", "stop", &served.path("socket")]);
    let found = ok(&["simulate", "memory", "describe", &trace, "--json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert!(found["fences"].as_u64().unwrap() > 0, "{found}");
    let pools = [&*other.path("one"), &*other.path("two")];
    let both =
        ["bdev", "serve", pools[0], pools[1], "--create", "--size", "1M", "--record", &trace];
    assert!(fails(&both).contains("one pool"));
}
