//! A pool in memory, a directory to mount it on, and the program under test.
//!
//! Needs root and `/dev/fuse`. Whatever a test does, its mount, server and pool are gone when the
//! [`Sandbox`] is dropped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Makes of each function, which takes the layout of a pool, a test for each engine.
macro_rules! on_each_engine {
    ($($test:ident),+ $(,)?) => {
        mod bpfs {
            $(#[test] fn $test() { super::$test("bpfs"); })+
        }
        mod scmfs {
            $(#[test] fn $test() { super::$test("scmfs"); })+
        }
    };
}
pub(crate) use on_each_engine;

pub struct Sandbox {
    pub pool: PathBuf,
    pub dir: PathBuf,
    /// Servers started, in order.
    pub servers: Vec<i32>,
    /// Logs that killed servers leave.
    logs: Vec<PathBuf>,
    scratch: TempDir,
}

/// The library: cargo builds it with these tests.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libkeepstone.so")
}

impl Sandbox {
    /// A formatted pool of 256 MiB, not mounted.
    pub fn formatted() -> Self {
        Self::formatted_as("bpfs")
    }

    /// A formatted pool of 256 MiB of any layout, not mounted.
    pub fn formatted_as(layout: &str) -> Self {
        let sandbox = Self::empty();
        sandbox.ok(["mkfs", sandbox.pool_str(), "--size", "256M", "--layout", layout]);
        sandbox
    }

    /// A mounted one.
    pub fn mounted(options: &[&str]) -> Self {
        Self::mounted_as("bpfs", options)
    }

    /// A mounted one of any layout.
    pub fn mounted_as(layout: &str, options: &[&str]) -> Self {
        let mut sandbox = Self::formatted_as(layout);
        sandbox.mount(options);
        sandbox
    }

    /// No pool yet.
    pub fn empty() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount: run them as root");
        let scratch = tempfile::Builder::new().prefix("keepstone-").tempdir().unwrap();
        let dir = scratch.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        // tempdir makes it private; other users must get through.
        std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let name = scratch.path().file_name().unwrap().to_str().unwrap();
        let pool = Path::new("/dev/shm").join(name);
        Self { pool, dir, servers: Vec::new(), logs: Vec::new(), scratch }
    }

    pub fn pool_str(&self) -> &str {
        self.pool.to_str().unwrap()
    }

    pub fn dir_str(&self) -> &str {
        self.dir.to_str().unwrap()
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A path beside the mount.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Mounts the pool; returns what the program says.
    pub fn mount(&mut self, options: &[&str]) -> Value {
        let mut args = vec!["mount", "--json"];
        args.extend(options);
        args.extend([self.pool_str(), self.dir_str()]);
        let ready: Value = serde_json::from_str(&self.ok(args)).unwrap();
        self.servers.push(ready["pid"].as_i64().unwrap() as i32);
        let log = format!("/run/keepstone/{}.log", ready["uuid"].as_str().unwrap());
        self.logs.push(log.into());
        ready
    }

    /// Unmounts. A program that another test starts meanwhile has this process's files open until it is
    /// executed.
    pub fn umount(&self) {
        wait_until("nobody uses the mount", || {
            let output = self.run(["umount", self.dir_str()]);
            let is_used = String::from_utf8_lossy(&output.stderr).contains(": in use;");
            assert!(output.status.success() || is_used, "{output:?}");
            !is_used
        });
    }

    /// Runs `keepstone ARGS`.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(args).env("KEEPSTONE_LIBRARY", library()).output().unwrap()
    }

    /// `keepstone run OPTIONS -- bash -c SCRIPT`, in the mount.
    pub fn served_script(&self, options: &[&str], script: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.arg("run").args(options).args(["--", "bash", "-euc", script]);
        command.current_dir(&self.dir).env("KEEPSTONE_LIBRARY", library()).stdin(Stdio::null());
        command
    }

    /// Runs `keepstone ARGS`, which must succeed; returns its standard output.
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `keepstone ARGS`, which must end with `code`; returns its standard error.
    pub fn fails<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, code: i32) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// What `keepstone stats --json` says.
    pub fn stats(&self) -> Value {
        serde_json::from_str(&self.ok(["stats", self.dir_str(), "--json"])).unwrap()
    }

    /// How many requests of a kind the server has answered.
    pub fn requests(&self, kind: &str) -> u64 {
        self.stats()["requests"][kind].as_u64().unwrap_or(0)
    }

    /// Sends a signal to the last server.
    pub fn signal_server(&self, signal: Signal) {
        kill_process(pid(*self.servers.last().unwrap()), signal).unwrap();
    }

    /// Stops the last server: all its threads, so that none of them takes a request any more.
    pub fn stop_server(&self) {
        self.signal_server(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.servers.last().unwrap());
        wait_until("the server is stopped", || {
            std::fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.contains(") T ")
            })
        });
    }

    /// Waits until the last server is gone.
    pub fn server_ends(&self) {
        let server = *self.servers.last().unwrap();
        wait_until("the server ends", || !is_server(server));
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.run(["umount", "--lazy", self.dir_str()]);
        for &server in self.servers.iter().filter(|&&server| is_server(server)) {
            let _ = kill_process(pid(server), Signal::KILL);
        }
        for file in self.logs.iter().chain([&self.pool]) {
            let _ = std::fs::remove_file(file);
        }
    }
}

pub use std::os::unix::fs::PermissionsExt;

pub fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// Whether the process is alive and ours. What is dead as a whole has no thread that lives: the last one gives back what they
/// had open, and it need not be the first.
fn is_server(pid: i32) -> bool {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let process = PathBuf::from(format!("/proc/{pid}"));
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let mut lives = threads.map(|thread| read(&thread.path().join("stat")));
    read(&process.join("stat")).contains("(keepstone)")
        && lives.any(|stat| !stat.is_empty() && !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Polls until `done`, for at most 20 s.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs another program, which must succeed; returns its standard output.
pub fn tool(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|err| panic!("{program}: {err}; install it"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a shell script as the user `nobody`, which must succeed.
pub fn as_nobody(script: &str) -> String {
    let args = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-euc", script];
    tool("setpriv", &args)
}

/// Runs the ignored test `name` of this binary in a process of its own, with `ARG` set.
pub fn child_test(name: &str, arg: &OsStr) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", name]).env("ARG", arg);
    command
}

/// The same under `keepstone run`, which `run` is to start, with counters as JSON. How soon it pays to look at a file of a cache is
/// not the question.
pub fn served_child_test(mut run: Command, name: &str, arg: &OsStr) -> Command {
    let child = child_test(name, arg);
    run.env("KEEPSTONE_LIBRARY", library()).env("ARG", arg).env("KEEPSTONE_DIRECT_AFTER", "0");
    run.args(["run", "--stats", "--json", "--"]).arg(child.get_program()).args(child.get_args());
    run
}
