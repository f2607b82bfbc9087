//! A pool in memory, a directory to mount it on, and the program under test.
//!
//! Needs root and `/dev/fuse`. Dropping the [`Sandbox`] removes its mount, server and pool,
//! whatever a test does.

pub mod killed;
pub mod parts;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Makes a test for each engine from each function. The functions take the layout of a pool.
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
    /// Process IDs of servers, in the order of their start.
    pub servers: Vec<i32>,
    /// Logs that killed servers leave.
    logs: Vec<PathBuf>,
    scratch: TempDir,
}

/// Returns the path of the library, which cargo builds with these tests.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libkeepstone.so")
}

impl Sandbox {
    /// Creates a formatted pool of 256 MiB, not mounted.
    pub fn formatted() -> Self {
        Self::formatted_as("bpfs")
    }

    /// Creates a formatted pool of 256 MiB of any layout, not mounted.
    pub fn formatted_as(layout: &str) -> Self {
        let sandbox = Self::empty();
        sandbox.ok(["mkfs", sandbox.pool_str(), "--size", "256M", "--layout", layout]);
        sandbox
    }

    /// Creates a mounted pool.
    pub fn mounted(options: &[&str]) -> Self {
        Self::mounted_as("bpfs", options)
    }

    /// Creates a mounted pool of any layout.
    pub fn mounted_as(layout: &str, options: &[&str]) -> Self {
        let mut sandbox = Self::formatted_as(layout);
        sandbox.mount(options);
        sandbox
    }

    /// Creates a sandbox without a pool.
    pub fn empty() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount: run them as root");
        let scratch = tempfile::Builder::new().prefix("keepstone-").tempdir().unwrap();
        let dir = scratch.path().join("mnt");
        std::fs::create_dir(&dir).unwrap();
        // `tempdir` makes the directory private, but other users must be able to pass through it.
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

    /// Returns a path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns a path next to the mount point.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Mounts the pool; returns the report of the program.
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

    /// Unmounts, with retries: a child that another test has just forked has this process's files
    /// open until its exec.
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

    /// Returns `keepstone run OPTIONS -- bash -c SCRIPT`, to run in the mount.
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

    /// Returns the output of `keepstone stats --json`.
    pub fn stats(&self) -> Value {
        serde_json::from_str(&self.ok(["stats", self.dir_str(), "--json"])).unwrap()
    }

    /// Returns the number of requests of a kind that the server has answered.
    pub fn requests(&self, kind: &str) -> u64 {
        self.stats()["requests"][kind].as_u64().unwrap_or(0)
    }

    /// Sends a signal to the last server.
    pub fn signal_server(&self, signal: Signal) {
        kill_process(pid(*self.servers.last().unwrap()), signal).unwrap();
    }

    /// Stops the last server, and waits until all its threads are stopped and none takes a request
    /// any more.
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

/// Returns whether the process is alive and runs this program. A dead process has no living thread:
/// the last thread to end, which need not be the first one, closes the files.
fn is_server(pid: i32) -> bool {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let process = PathBuf::from(format!("/proc/{pid}"));
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let mut lives = threads.map(|thread| read(&thread.path().join("stat")));
    read(&process.join("stat")).contains("(keepstone)")
        && lives.any(|stat| !stat.is_empty() && !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Kills the server with this status, and waits for its end. The mount stays, dead.
pub fn kill_server_of(status: &Value) {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{PidfdFlags, pidfd_open};
    let pid = Pid::from_raw(status["pid"].as_i64().unwrap() as i32).unwrap();
    let ended = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    poll(&mut [PollFd::new(&ended, PollFlags::IN)], None).unwrap();
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

/// Runs a shell script without privileges, as user 65534. It must succeed.
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

/// Runs the same test under `keepstone run`, which `run` starts, with counters as JSON. Files of a
/// cache are served from their first use.
pub fn served_child_test(mut run: Command, name: &str, arg: &OsStr) -> Command {
    let child = child_test(name, arg);
    run.env("KEEPSTONE_LIBRARY", library()).env("ARG", arg).env("KEEPSTONE_DIRECT_AFTER", "0");
    run.args(["run", "--stats", "--json", "--"]).arg(child.get_program()).args(child.get_args());
    run
}
