//! `run` sets targets up, measures them, reports in every form, and removes what it has made,
//! whatever happens. Times are not checked.
//!
//! Needs root, `/dev/fuse`, and the program `keepstone` with its library in the directory of the
//! program under test.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory for the files of targets and results, which must be empty in the end.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a target of this kind in this directory.
    fn target(&self, kind: &str) -> String {
        format!("{kind}:{}", self.0.path().display())
    }

    /// Fails if anything is left: files, mounts or devices.
    fn is_clean(&self) {
        let left: Vec<_> = fs::read_dir(self.0.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(self.0.path().to_str().unwrap()), "{mounts}");
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone-bench"));
    command.args(["--tiny", "run"]).args(args);
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs targets, which must succeed; returns the results.
fn results(args: &[&str]) -> Value {
    let output = run(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    results["targets"].clone()
}

/// Returns the row of a target in a case.
fn row<'r>(results: &'r Value, case: &str, target: &str) -> &'r Value {
    let of = |list: &'r Value, key: &str, name: &str| {
        list.as_array().unwrap().iter().find(|one| one[key] == name)
    };
    let case = of(&results["cases"], "name", case).unwrap_or_else(|| panic!("{results:#}"));
    of(&case["rows"], "target", target).unwrap_or_else(|| panic!("{case:#}"))
}

#[test]
fn all_cases_run_on_a_directory_a_pool_and_a_cache() {
    let home = Home::new();
    let (dir, pool) = (home.target("plain=dir"), home.target("pool"));
    let (mount, cache) = (home.target("mount=pool") + ",mount", home.target("cached=cache"));
    let pool = format!("pm={pool},layout=scmfs");
    let results = results(&[&dir, &pool, &mount, &cache, "--as-pm"]);
    let cases = results["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 24);
    for case in cases {
        for row in case["rows"].as_array().unwrap() {
            assert!(row["error"].is_null(), "{row}");
            let is_baseline = row["target"] == "plain";
            assert_eq!(row["numbers"]["speed"].is_null(), is_baseline, "{row}");
            assert!(row["numbers"]["ns"]["median"].as_f64().unwrap() > 0.0, "{row}");
            let latency = |key: &str| row["numbers"]["latency"][key].as_u64().unwrap();
            assert!(latency("samples") >= 1 && latency("p50_ns") <= latency("p99_ns"), "{row}");
            assert!(latency("p999_ns") <= latency("max_ns"), "{row}");
        }
    }
    let durability = |case, target| row(&results, case, target)["durability"].clone();
    assert_eq!(durability("write+fsync/4K", "plain"), "dram");
    assert_eq!(durability("write/random/4K", "pm"), "not-synced");
    assert_eq!(durability("write+fsync/4K", "pm"), "durable");
    assert_eq!(durability("write/random/4K", "mount"), "durable");
    assert_eq!(durability("stat", "mount"), "reads");
    let count = |target, of: &str| row(&results, "stat", target)["numbers"][of].as_f64().unwrap();
    assert!(count("pm", "in_process") >= 1.0);
    assert!(count("mount", "in_process") == 0.0);
    let creates = &row(&results, "create+unlink", "mount")["numbers"];
    assert!(creates["requests"].as_f64().unwrap() >= 2.0, "{creates}");
    assert!(results["targets"][1]["is_repeat"].as_bool().unwrap());
    home.is_clean();
}

#[test]
fn a_reader_that_is_gone_leaves_nothing_behind() {
    let home = Home::new();
    let (dir, pool) = (home.target("dir"), home.target("pool") + ",mount");
    // The last target prints an error while the others are set up.
    let targets = [&dir, &pool, "gone=dir:/no/such/directory", "--case", "stat"];
    for json in [&[][..], &["--json"]] {
        let mut command = command(&[&targets, json].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        // As without the pipes: a target has failed.
        assert_eq!(child.wait().unwrap().code(), Some(1));
        home.is_clean();
    }
}

#[test]
fn a_pool_that_exists_keeps_its_files() {
    let home = Home::new();
    let pool = home.path("pool");
    let keepstone = Path::new(env!("CARGO_BIN_EXE_keepstone-bench")).with_file_name("keepstone");
    let made = Command::new(keepstone).arg("mkfs").arg(&pool).args(["--size", "64M"]).output();
    assert!(made.unwrap().status.success());
    let target = format!("tried=pool:{}", pool.display());
    let output = run(&[&home.target("dir"), &target, "--case", "create"]);
    assert!(output.status.success(), "{output:?}");
    fs::remove_file(pool).unwrap();
    home.is_clean();
}

#[test]
fn a_device_is_only_read_unless_it_may_be_overwritten() {
    let home = Home::new();
    let disk = home.path("disk");
    fs::write(&disk, vec![3; 2 << 20]).unwrap();
    let target = format!("disk=device:{}", disk.display());
    let read = results(&[&target]);
    let cases = read["cases"].as_array().unwrap();
    let has_rows = |case: &&Value| !case["rows"].as_array().unwrap().is_empty();
    assert!(
        cases
            .iter()
            .filter(has_rows)
            .all(|case| case["what"].as_str().unwrap().starts_with("pread"))
    );
    assert_eq!(cases.iter().filter(has_rows).count(), 6);
    assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 3));
    let written = results(&[&format!("{target},overwrite"), "--case", "write/random"]);
    assert!(row(&written, "write/random/4K", "disk")["error"].is_null());
    assert!(fs::read(&disk).unwrap().iter().any(|byte| *byte != 3));
}

#[test]
fn a_broken_target_fails_alone() {
    let home = Home::new();
    let broken = home.path("missing");
    let output = run(&[
        &home.target("plain=dir"),
        &format!("broken=dir:{}", broken.display()),
        "--case",
        "stat",
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("broken: failed: ") && text.contains("plain again"), "{text}");
    let wrong = [&["disk:/srv"][..], &["tmpfs", "tmpfs"], &["tmpfs", "--case", "nothing"]];
    for args in wrong {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
    }
    home.is_clean();
}

#[test]
fn an_earlier_run_decides_the_exit_status() {
    let home = Home::new();
    let (plain, pool) = (home.target("plain=dir"), home.target("pm=pool"));
    let saved = home.path("results.json");
    let name = saved.to_str().unwrap();
    let args = [plain.as_str(), &pool, "--case", "stat"];
    let first = run(&[&args[..], &["--save", name]].concat());
    assert!(first.status.success(), "{first:?}");
    let again = run(&[&args[..], &["--baseline", name, "--tolerance", "99.9"]].concat());
    assert!(again.status.success(), "{again:?}");
    // As if the pool had been a million times as fast.
    let mut results: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    let rows = results["targets"]["cases"][0]["rows"].as_array_mut().unwrap();
    let speed = &mut rows[2]["numbers"]["speed"];
    ["low", "median", "high"].iter().for_each(|end| speed[*end] = 1e6.into());
    fs::write(&saved, results.to_string()).unwrap();
    let worse = run(&[&args[..], &["--baseline", name]].concat());
    assert_eq!(worse.status.code(), Some(3), "{worse:?}");
    assert!(String::from_utf8(worse.stderr).unwrap().contains("1 worse"));
    let page = home.path("page.html");
    let command = Command::new(env!("CARGO_BIN_EXE_keepstone-bench"))
        .args(["page", name, "--html", page.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(command.status.success(), "{command:?}");
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!doctype html>"));
    let broken = run(&[&args[..], &["--baseline", page.to_str().unwrap()]].concat());
    assert_eq!(broken.status.code(), Some(1), "{broken:?}");
    for file in [saved, page] {
        fs::remove_file(file).unwrap();
    }
    home.is_clean();
}

#[test]
fn growth_has_a_point_for_each_step() {
    let home = Home::new();
    let (dir, pool) = (home.target("plain=dir"), home.target("pm=pool"));
    let page = home.path("page.html");
    let output = Command::new(env!("CARGO_BIN_EXE_keepstone-bench"))
        .args(["--tiny", "--json", "scale", &dir, &pool, "--html", page.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let points = results["growth"]["points"].as_array().unwrap();
    let of = |part: &str, what: &str, target: &str| {
        let is = |point: &&Value| {
            point["part"] == part && point["what"] == what && point["target"] == target
        };
        points.iter().filter(is).map(|point| point["y"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    for target in ["plain", "pm"] {
        assert_eq!(of("files", "create", target).len(), 1, "{points:#?}");
        assert_eq!(of("files", "unlink", target).len(), 1);
        assert_eq!(of("sizes", "read, 4 KiB", target).len(), 1);
        assert_eq!(of("sizes", "write, 4 KiB of a hole", target).len(), 2);
        assert_eq!(of("threads", "create+unlink", target).len(), 2);
        assert_eq!(of("processes", "overwrite, 4 KiB", target).len(), 2);
    }
    // The shared state of an empty pool has some pages already.
    assert!(of("pools", "DRAM while it is empty", "pm")[0] > 3e5);
    assert_eq!(of("files", "DRAM for each file", "pm").len(), 1);
    assert_eq!(of("pools", "mount", "pm").len(), 1);
    assert!(of("pools", "mount", "plain").is_empty());
    assert!(points.iter().all(|point| point["y"].as_f64().unwrap() >= 0.0));
    assert!(fs::read_to_string(&page).unwrap().contains("files: DRAM for each file"));
    fs::remove_file(page).unwrap();
    home.is_clean();
}

/// Starts a run, and waits for the server of its pool and for its three workers.
fn started(args: &[&str]) -> (Child, Pid) {
    let args = [args, &["--case", "write+fsync"]].concat();
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let server = server_of(child.id());
    (child, server)
}

/// Waits for the server and the three workers of a run.
fn server_of(run: u32) -> Pid {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "no worker has begun");
        let children = format!("/proc/{run}/task/{run}/children");
        let pids = fs::read_to_string(children).unwrap_or_default();
        let words = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let runs = |pid: &&str, word: &str| {
            words(pid).split(|byte| *byte == 0).any(|one| one == word.as_bytes())
        };
        let server = pids.split_whitespace().find(|pid| runs(pid, "mount"));
        let workers = pids.split_whitespace().filter(|pid| runs(pid, "worker")).count();
        if let (Some(server), 3) = (server, workers) {
            return Pid::from_raw(server.parse().unwrap()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_first_signal_removes_everything() {
    let home = Home::new();
    let (plain, pool) = (home.target("plain=dir"), home.target("pm=pool") + ",mount");
    let (child, _) = started(&[&plain, &pool, "--rounds", "60000"]);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    home.is_clean();
}

#[test]
fn a_server_that_stops_or_dies_fails_its_target() {
    for (signal, why) in [(Signal::KILL, "failed: "), (Signal::STOP, "no answer within 2 s")] {
        let home = Home::new();
        let (plain, pool) = (home.target("plain=dir"), home.target("pm=pool") + ",mount");
        let (child, server) = started(&[&plain, &pool, "--patience", "2", "--rounds", "2000"]);
        kill_process(server, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(why), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
        home.is_clean();
    }
}
