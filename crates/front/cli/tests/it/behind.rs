//! `keepstone attach --watch`: changes by others behind a cache that writes back once an hour.
//!
//! Needs root and `/dev/fuse`. The server is another process than the test, so the test itself
//! counts as another program.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::Value;

use crate::attach::{Cached, content};
use crate::common::{served_child_test, tool};

/// Longest wait. An event that has not come by then never comes.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory, and its cache at another place.
struct Beside(Cached);

impl Beside {
    fn new(options: &[&str]) -> Self {
        let cached = Cached::new();
        let (pool, data, mount) = (cached.pool(), cached.data(), cached.base.path().join("mount"));
        fs::create_dir(&mount).unwrap();
        fs::write(data.join("file"), "first").unwrap();
        let believing = ["attach", "--max-age=3600"];
        let paths = [&pool, &data, &mount].map(|path| path.to_str().unwrap());
        cached.keepstone(&[&believing, options, &paths].concat());
        Self(cached)
    }

    fn mount(&self) -> PathBuf {
        self.0.base.path().join("mount")
    }

    fn status(&self) -> Value {
        let mount = self.mount();
        let told = self.0.keepstone(&["--json", "attach", "status", mount.to_str().unwrap()]);
        serde_json::from_str(&told).unwrap()
    }

    /// Returns the status of the cache as text.
    fn told(&self, options: &[&str]) -> String {
        let mount = self.mount();
        self.0.keepstone(&[&["attach", "status"], options, &[mount.to_str().unwrap()]].concat())
    }

    fn detach(&self) {
        self.0.keepstone(&["umount", self.mount().to_str().unwrap()]);
    }

    /// Kills the server, and waits until it has ended.
    fn kill(&self, server: Pid) {
        let ended = rustix::process::pidfd_open(server, PidfdFlags::empty()).unwrap();
        rustix::process::kill_process(server, Signal::KILL).unwrap();
        rustix::event::poll(&mut [PollFd::new(&ended, PollFlags::IN)], None).unwrap();
    }

    fn server(&self) -> Pid {
        let pid = self.status()["pid"].as_i64().unwrap();
        Pid::from_raw(pid as i32).unwrap()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Of a test that has failed.
        let _ = rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH);
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn cat(path: &Path) -> Child {
    let mut cat = Command::new("cat");
    cat.arg(path).stdout(Stdio::piped()).stderr(Stdio::piped());
    cat.spawn().unwrap()
}

/// Waits until a process is blocked inside `openat(2)`.
fn until_it_opens(child: &Child) {
    let call = format!("/proc/{}/syscall", child.id());
    let openat = format!("{} ", libc::SYS_openat);
    until("it opens nothing", || {
        // Checks repeatedly, because one sample could catch a short call.
        (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(1));
            fs::read_to_string(&call).is_ok_and(|call| call.starts_with(&openat))
        })
    });
}

/// Returns whether all threads of a process are stopped.
fn is_stopped(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map(|thread| thread.unwrap().path().join("stat")).all(|stat| {
        let stat = fs::read_to_string(stat).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
    })
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_others_change_is_seen_although_it_is_believed() {
    let beside = Beside::new(&[]);
    let (data, mount) = (beside.0.data(), beside.mount());
    let status = beside.status();
    assert_eq!(status["cache"]["watch"], "notify", "{status:#}");
    assert_eq!(status["cache"]["watch_reach"], "whole", "{status:#}");
    assert!(beside.told(&[]).contains("reported by the kernel"));
    assert!(beside.told(&["--metrics"]).contains("keepstone_cache_told_of_changes{"));
    let open = fs::File::open(mount.join("file")).unwrap();
    let names = || {
        let names = fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(content(mount.join("file")), "first");
    // New content with the same length and time.
    let time = fs::metadata(data.join("file")).unwrap().modified().unwrap();
    fs::write(data.join("file"), "other").unwrap();
    fs::File::options().write(true).open(data.join("file")).unwrap().set_modified(time).unwrap();
    until("a change of content", || content(mount.join("file")) == "other");
    let mut found = [0; 5];
    open.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"other");
    drop(open);
    fs::write(data.join("file"), vec![b'x'; 100_000]).unwrap();
    until("growth", || content(mount.join("file")) == "x".repeat(100_000));
    fs::File::options().write(true).open(data.join("file")).unwrap().set_len(10).unwrap();
    until("a cut", || content(mount.join("file")) == "x".repeat(10));

    // A replacement by rename, as editors do it.
    fs::write(data.join("temporary"), "replaced").unwrap();
    fs::rename(data.join("temporary"), data.join("file")).unwrap();
    until("another file of the name", || content(mount.join("file")) == "replaced");

    assert!(!mount.join("new").exists());
    assert_eq!(names(), ["file"]);
    fs::write(data.join("new"), "came").unwrap();
    until("a new name", || fs::read(mount.join("new")).is_ok_and(|found| found == b"came"));
    until("a listing", || names() == ["file", "new"]);
    fs::create_dir(data.join("dir")).unwrap();
    until("a directory", || mount.join("dir").is_dir());
    fs::rename(data.join("new"), data.join("dir/moved")).unwrap();
    until("a move", || !mount.join("new").exists() && mount.join("dir/moved").exists());
    fs::remove_file(data.join("dir/moved")).unwrap();
    until("a removal", || !mount.join("dir/moved").exists());
    fs::set_permissions(data.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    until("a mode", || {
        fs::metadata(mount.join("file")).unwrap().permissions().mode() & 0o777 == 0o600
    });
    // The cache's own changes are no changes of others.
    for byte in [7, 8] {
        fs::write(mount.join("file"), vec![byte; 1 << 20]).unwrap();
        beside.0.keepstone(&["attach", "flush", mount.to_str().unwrap()]);
        assert_eq!(fs::read(data.join("file")).unwrap(), vec![byte; 1 << 20]);
        assert_eq!(fs::read(mount.join("file")).unwrap(), vec![byte; 1 << 20]);
    }
    let status = beside.status();
    assert_eq!(status["cache"]["troubled_files"], 0, "{status:#}");
    beside.detach();
}

/// A program under `keepstone run` reads from the pool, which gets the new state.
#[test]
fn programs_that_read_by_copies_see_it() {
    const LEN: usize = 1 << 20;
    let beside = Beside::new(&[]);
    let below = beside.0.data().join("file");
    fs::write(&below, vec![b'a'; LEN]).unwrap();
    let file = beside.mount().join("file");
    until("growth", || fs::metadata(&file).unwrap().len() == LEN as u64);
    let run = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    let mut run = served_child_test(run, "behind::reader", file.as_os_str());
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut wait_for = |what: &str| assert!(told.any(|line| line.ends_with(what)), "{what}");
    let below = fs::File::options().write(true).open(&below).unwrap();
    wait_for("# it is read");
    below.write_all_at(b"b", 8192).unwrap();
    wait_for("# a change below");
    below.set_len(LEN as u64 / 2).unwrap();
    wait_for("# the end");
    let report = told.skip_while(|line| line != "{").collect::<String>();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert!(run.wait().unwrap().success());
    let (served, by_kernel) = (&report["served"]["calls"], &report["by_mount"]["calls"]);
    assert!(served.as_u64() > by_kernel.as_u64().map(|calls| 10 * calls), "{report:#}");
    beside.detach();
}

#[test]
#[ignore = "run by programs_that_read_by_copies_see_it"]
fn reader() {
    let file = fs::File::open(std::env::var_os("ARG").unwrap()).unwrap();
    let mut block = [0; 4096];
    for i in 0..2000 {
        file.read_exact_at(&mut block, i * 37 % 256 * 4096).unwrap();
        assert_eq!(block, [b'a'; 4096]);
    }
    println!("# it is read");
    while file.read_at(&mut block, 8192).unwrap() == 4096 && block[0] != b'b' {
        assert_eq!(block, [b'a'; 4096]);
    }
    println!("# a change below");
    loop {
        match file.read_at(&mut block, 1 << 19).unwrap() {
            0 => break,
            len => assert!(block[..len].iter().all(|byte| *byte == b'a'), "zeros were never there"),
        }
    }
    println!("# the end");
}

#[test]
fn a_conflict_is_told_before_anybody_uses_the_file() {
    let beside = Beside::new(&[]);
    let (data, mount) = (beside.0.data(), beside.mount());
    fs::write(mount.join("file"), "mine").unwrap();
    fs::write(data.join("file"), "theirs").unwrap();
    let troubles = || beside.status()["cache"]["troubles"].clone();
    until("a conflict", || troubles()[0]["path"] == "file");
    assert_eq!(content(mount.join("file")), "mine");
    assert_eq!(content(data.join("file")), "theirs");
}

#[test]
fn without_it_the_cache_compares() {
    let beside = Beside::new(&["--watch=off"]);
    let (data, mount) = (beside.0.data(), beside.mount());
    assert!(!mount.join("new").exists());
    fs::write(data.join("new"), "others").unwrap();
    until("a new name", || fs::read(mount.join("new")).is_ok_and(|found| found == b"others"));
    let status = beside.status();
    assert_eq!(status["cache"]["watch"], "off", "{status:#}");
    assert!(beside.told(&[]).contains("found by comparing only"));
    beside.detach();
}

/// Attached over the directory itself, so that no program reaches the files below by their ordinary
/// paths.
#[test]
fn who_is_below_the_mount_sees_what_was_written() {
    let cached = Cached::new();
    let data = cached.data();
    fs::write(data.join("file"), "first").unwrap();
    let below = fs::File::open(&data).unwrap();
    cached.attach(&["--watch=permission", "--max-age=3600"]);
    let flags = rustix::fs::OFlags::RDWR;
    let open = || rustix::fs::openat(&below, "file", flags, rustix::fs::Mode::empty());
    fs::write(data.join("file"), "through").unwrap();
    let file = fs::File::from(open().unwrap());
    assert_eq!(std::io::read_to_string(&file).unwrap(), "through");
    file.write_all_at(b"T", 0).unwrap();
    until("a change below", || content(data.join("file")) == "Through");
    cached.detach();
}

#[test]
fn a_killed_server_keeps_nobody_waiting() {
    let beside = Beside::new(&["--watch=permission"]);
    let data = beside.0.data();
    let file = fs::File::options().write(true).open(beside.mount().join("file")).unwrap();
    file.write_all_at(b"writt", 0).unwrap();
    drop(file);
    let server = beside.server();
    rustix::process::kill_process(server, Signal::STOP).unwrap();
    until("it does not stop", || is_stopped(server));
    let waiting: Vec<Child> = (0..4).map(|_| cat(&data.join("file"))).collect();
    waiting.iter().for_each(until_it_opens);
    beside.kill(server);
    for waiting in waiting {
        let output = waiting.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        // The content is in the pool.
        assert_eq!(text(&output), "first");
    }
    let (pool, dir) = (beside.0.pool(), data.to_str().unwrap().to_owned());
    rustix::mount::unmount(beside.mount(), rustix::mount::UnmountFlags::DETACH).unwrap();
    beside.0.keepstone(&["attach", "drain", pool.to_str().unwrap(), &dir]);
    assert_eq!(content(data.join("file")), "writt");
}

/// The kernel reports changes in directories in use to users other than root. Requests of such
/// users for more fail.
#[test]
fn another_user_is_told_of_directories() {
    let cached = Cached::new();
    let base = cached.base.path();
    let program = base.join("keepstone");
    fs::copy(env!("CARGO_BIN_EXE_keepstone"), &program).unwrap();
    for dir in ["mount", "run"] {
        fs::create_dir(base.join(dir)).unwrap();
    }
    fs::write(cached.data().join("file"), "first").unwrap();
    let memory = cached.pool().parent().unwrap().to_owned();
    let theirs = [base.join("mount"), base.join("run"), cached.data(), cached.pool(), memory];
    for path in theirs.iter().chain([&base.to_owned(), &cached.data().join("file")]) {
        chown(path, Some(65534), Some(65534)).unwrap();
    }
    let [mount, run, data, pool, _] = theirs.map(|path| path.to_str().unwrap().to_owned());
    let program = program.display();
    let as_user = format!(
        "attach=\"{program} attach\"
         $attach --watch=permission {pool} {data} {mount} 2>&1 && exit 1
         $attach {pool} {data} {mount}
         cat {mount}/file; {program} attach status {mount}
         echo second >{data}/file
         i=0; until grep second {mount}/file; do i=$((i+1)); [ $i -lt 6000 ]; sleep 0.01; done
         {program} umount {mount}"
    );
    let script = format!(
        "mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && \
         mount --bind /mnt/fuse /dev/fuse && export XDG_RUNTIME_DIR={run} && \
         setpriv --reuid=65534 --regid=65534 --clear-groups sh -euc '{as_user}'",
    );
    let said = tool("unshare", &["--mount", "sh", "-euc", &script]);
    assert!(said.contains("--watch permission") && said.contains("CAP_SYS_ADMIN"), "{said}");
    assert!(said.contains("reported by the kernel, in directories that are in use"), "{said}");
    assert!(said.contains("first") && said.contains("second"), "{said}");
}

/// If the kernel cannot report changes, the cache compares, and its status shows that.
#[test]
fn where_it_cannot_be_told_the_cache_compares() {
    let cached = Cached::new();
    let outer = cached.base.path().join("outer");
    fs::create_dir(&outer).unwrap();
    let below = Cached::new();
    let pool = below.pool();
    below.keepstone(&["mkfs", "--force", pool.to_str().unwrap()]);
    below.keepstone(&["mount", pool.to_str().unwrap(), below.data().to_str().unwrap()]);
    // A directory on FUSE has no persistent file handles.
    fs::create_dir(below.data().join("dir")).unwrap();
    let dir = below.data().join("dir");
    let paths = [cached.pool(), dir, outer];
    let [pool, dir, mount] = paths.each_ref().map(|path| path.to_str().unwrap());
    let output = cached.run(&["attach", "--watch=notify", pool, dir, mount]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("does not report"), "{said}");
    cached.keepstone(&["attach", pool, dir, mount]);
    let said = cached.keepstone(&["attach", "status", mount]);
    assert!(said.contains("found by comparing only (the kernel does not report"), "{said}");
    cached.keepstone(&["umount", mount]);
    below.detach();
}
