//! `keepstone attach`: a pool caches a directory of a kernel file system.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::kill_process;
use serde_json::Value;

use crate::common::{kill_server_of, pid, wait_until};

/// A directory, a pool in memory, and while it is mounted, the cache of the directory in the pool.
pub struct Cached {
    pub base: tempfile::TempDir,
    memory: tempfile::TempDir,
}

impl Cached {
    pub fn new() -> Self {
        let base = tempfile::TempDir::with_prefix("keepstone-attach-").unwrap();
        fs::create_dir(base.path().join("data")).unwrap();
        let memory = tempfile::TempDir::with_prefix_in("keepstone-attach-", "/dev/shm").unwrap();
        let cached = Self { base, memory };
        let pool = cached.pool();
        cached.keepstone(&["mkfs", pool.to_str().unwrap(), "--cache", "--size", "64M"]);
        cached
    }

    pub fn pool(&self) -> PathBuf {
        self.memory.path().join("pool")
    }

    pub fn data(&self) -> PathBuf {
        self.base.path().join("data")
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_keepstone")).args(args).output().unwrap()
    }

    pub fn keepstone(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Attaches the pool over the directory itself.
    pub fn attach(&self, options: &[&str]) {
        let (pool, data) = (self.pool(), self.data());
        let paths = [pool.to_str().unwrap(), data.to_str().unwrap()];
        self.keepstone(&[&["attach"], options, &paths].concat());
    }

    pub fn status(&self) -> Value {
        let data = self.data();
        let told = self.keepstone(&["--json", "attach", "status", data.to_str().unwrap()]);
        serde_json::from_str(&told).unwrap()
    }

    pub fn detach(&self) {
        self.keepstone(&["umount", self.data().to_str().unwrap()]);
    }

    /// Kills the server, and removes its dead mount.
    fn kill(&self) {
        self.kill_server();
        rustix::mount::unmount(self.data(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }

    /// Kills the server. The mount stays, dead.
    pub fn kill_server(&self) {
        kill_server_of(&self.status());
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        // If the test has failed. There may be a mount below that of the cache.
        while rustix::mount::unmount(self.data(), rustix::mount::UnmountFlags::DETACH).is_ok() {}
        std::thread::sleep(Duration::from_millis(if std::thread::panicking() { 500 } else { 0 }));
    }
}

pub fn content(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// A server removes its claim of a directory when it ends.
#[test]
fn a_pool_is_made_as_it_is_attached() {
    let cached = Cached::new();
    fs::remove_file(cached.pool()).unwrap();
    let (pool, data) = (cached.pool(), cached.data());
    let refused = cached.run(&["attach", "--create", pool.to_str().unwrap(), "/srv"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(!pool.exists());

    let create = ["--create", "--size", "64M"];
    cached.attach(&create);
    fs::write(data.join("file"), b"content").unwrap();
    cached.keepstone(&["umount", data.to_str().unwrap()]);
    assert_eq!(fs::read(data.join("file")).unwrap(), b"content");

    // It is there now, and is attached as it is.
    let made = fs::metadata(&pool).unwrap();
    cached.attach(&create);
    let again = fs::metadata(&pool).unwrap();
    assert_eq!((again.ino(), again.len()), (made.ino(), made.len()));
    cached.keepstone(&["umount", data.to_str().unwrap()]);

    // A line of /etc/fstab.
    fs::remove_file(&pool).unwrap();
    let options = format!("attach={},create,size=64M,thick", data.display());
    let helper = Command::new(env!("CARGO_BIN_EXE_keepstone"))
        .arg0("mount.fuse.keepstone")
        .args([&pool, &data])
        .args(["-o", &options])
        .output()
        .unwrap();
    assert!(helper.status.success(), "{helper:?}");
    assert_eq!(fs::read(data.join("file")).unwrap(), b"content");
    cached.keepstone(&["umount", data.to_str().unwrap()]);
}

#[test]
fn nothing_is_left_of_the_claim_of_a_directory() {
    let cached = Cached::new();
    cached.attach(&[]);
    let files = fs::read_dir(format!("/proc/{}/fd", cached.status()["pid"])).unwrap();
    let mut files = files.map(|entry| fs::read_link(entry.unwrap().path()).unwrap_or_default());
    let claim = files.find(|file| file.extension().is_some_and(|end| end == "dir")).unwrap();
    assert!(claim.exists());
    cached.detach();
    assert!(!claim.exists(), "{claim:?}");
}

#[test]
fn what_was_there_is_seen_and_what_is_written_comes_down() {
    let cached = Cached::new();
    let data = cached.data();
    fs::write(data.join("old"), "before").unwrap();
    cached.attach(&["--max-age=3600"]);
    assert_eq!(content(data.join("old")), "before");
    let told = String::from_utf8(cached.run(&["doctor", data.to_str().unwrap()]).stdout).unwrap();
    assert!(told.contains("the cache of"), "{told}");
    fs::write(data.join("new"), vec![7; 3 << 20]).unwrap();
    fs::write(data.join("old"), "after").unwrap();
    fs::hard_link(data.join("old"), data.join("linked")).unwrap();
    fs::rename(data.join("old"), data.join("renamed")).unwrap();
    assert_eq!(content(data.join("linked")), "after");
    let status = cached.status();
    let dirty = status["cache"]["dirty_bytes"].as_u64().unwrap();
    assert!(dirty >= 3 << 20, "{status:#}");
    let metrics = cached.keepstone(&["attach", "status", "--metrics", data.to_str().unwrap()]);
    assert!(metrics.contains("# TYPE keepstone_cache_dirty_bytes gauge"), "{metrics}");
    cached.detach();
    assert_eq!(
        (content(data.join("renamed")), content(data.join("linked"))),
        ("after".into(), "after".into())
    );
    assert_eq!(fs::read(data.join("new")).unwrap(), vec![7; 3 << 20]);
    assert!(!data.join("old").exists());
}

#[test]
fn a_killed_server_loses_nothing() {
    let cached = Cached::new();
    let data = cached.data();
    cached.attach(&["--max-age=3600"]);
    let file = fs::File::create(data.join("log")).unwrap();
    for i in 0..100u64 {
        file.write_all_at(&[i as u8; 5000], i * 5000).unwrap();
    }
    drop(file);
    cached.kill();
    assert!(!data.join("log").exists(), "it was not written back");
    cached.attach(&["--max-age=3600"]);
    let expected: Vec<u8> = (0..100u8).flat_map(|i| [i; 5000]).collect();
    assert!(fs::read(data.join("log")).unwrap() == expected);
    cached.kill();
    // Writes back without a mount.
    let (pool, dir) = (cached.pool(), data.to_str().unwrap().to_owned());
    cached.keepstone(&["attach", "drain", pool.to_str().unwrap(), &dir]);
    assert!(fs::read(data.join("log")).unwrap() == expected);
}

/// A killed server has its pool and its directory until the kernel has released its memory. In this
/// test, another process that holds the locks stands for that.
#[test]
fn a_killed_server_that_is_still_ending_is_waited_for() {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
    let cached = Cached::new();
    let data = cached.data();
    cached.attach(&["--max-age=3600"]);
    fs::write(data.join("file"), "content").unwrap();
    let server = pid(cached.status()["pid"].as_i64().unwrap() as i32);
    let process = pidfd_open(server, PidfdFlags::empty()).unwrap();
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let holder = format!(" {} ", server.as_raw_nonzero());
    let locked = locks.lines().filter(|line| line.contains("FLOCK") && line.contains(&holder));
    let inodes: Vec<_> = locked.map(|line| line.split_ascii_whitespace().nth(5).unwrap()).collect();
    // The pool, the claim of the directory, and the directory.
    assert!(inodes.len() >= 3, "{locks}");
    let numbers = fs::read_dir(format!("/proc/{}/fd", server.as_raw_nonzero())).unwrap().flatten();
    let numbers = numbers.map(|fd| fd.file_name().to_str().unwrap().parse().unwrap());
    let all = numbers.map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).unwrap());
    let is_locked = |fd: &rustix::fd::OwnedFd| {
        let ino = rustix::fs::fstat(fd).unwrap().st_ino;
        inodes.iter().any(|inode| inode.ends_with(&format!(":{ino}")))
    };
    let held: Vec<_> = all.filter(is_locked).collect();
    kill_process(server, Signal::KILL).unwrap();
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(held);
    });
    cached.attach(&["--max-age=3600"]);
    ending.join().unwrap();
    // The next ones are killed, too, and not waited for.
    for round in 0..8 {
        assert_eq!(content(data.join("file")), "content");
        fs::write(data.join(format!("file-{round}")), vec![round; 2 << 20]).unwrap();
        let server = pid(cached.status()["pid"].as_i64().unwrap() as i32);
        kill_process(server, Signal::KILL).unwrap();
        cached.attach(&["--max-age=3600"]);
    }
    cached.detach();
    assert_eq!(fs::read(data.join("file-7")).unwrap(), vec![7; 2 << 20]);
}

/// The server has the directory below open, and the test a file in it. They have the same paths as
/// files on the mount, but do not count as its users.
#[test]
fn who_uses_a_cache_is_named() {
    let cached = Cached::new();
    let data = cached.data();
    fs::write(data.join("file"), "content").unwrap();
    let below = fs::File::open(data.join("file")).unwrap();
    cached.attach(&[]);
    let refused = || {
        let output = cached.run(&["umount", data.to_str().unwrap()]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let file = fs::File::open(data.join("file")).unwrap();
    let told = refused();
    assert!(told.contains(&format!("(pid {})", std::process::id())), "{told}");
    assert!(!told.contains("keepstone (pid"), "{told}");
    drop(file);
    let inner = data.join("inner");
    fs::create_dir(&inner).unwrap();
    rustix::mount::mount("none", &inner, "tmpfs", rustix::mount::MountFlags::empty(), None)
        .unwrap();
    let told = refused();
    assert!(told.contains(&format!("in use by what is mounted on {};", inner.display())), "{told}");
    rustix::mount::unmount(&inner, rustix::mount::UnmountFlags::empty()).unwrap();
    cached.detach();
    drop(below);
}

/// A dead mount hides the directory from all programs until the next mount replaces it.
#[test]
fn a_dead_mount_is_replaced() {
    let cached = Cached::new();
    let (pool, data) = (cached.pool(), cached.data());
    let (pool, dir) = (pool.to_str().unwrap(), data.to_str().unwrap());
    let dead = |path: PathBuf| fs::read(path).unwrap_err().raw_os_error();
    cached.attach(&["--max-age=3600"]);
    fs::write(data.join("one"), "first").unwrap();
    cached.kill_server();
    assert_eq!(dead(data.join("one")), Some(libc::ENOTCONN));
    cached.keepstone(&["attach", "drain", pool, dir]);
    assert_eq!(dead(data.join("one")), Some(libc::ENOTCONN));
    let paths = [pool, dir];
    let told = cached.keepstone(&[&["--json", "attach", "--max-age=3600"], &paths[..]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(told["notices"][0].as_str().unwrap().contains("had died"), "{told:#}");
    assert_eq!(content(data.join("one")), "first");
    fs::write(data.join("two"), "second").unwrap();
    cached.kill_server();
    cached.attach(&[]);
    assert_eq!(content(data.join("two")), "second");
    cached.detach();
    // There was only one mount.
    assert_eq!(
        (content(data.join("one")), content(data.join("two"))),
        ("first".into(), "second".into())
    );
    let output = cached.run(&["umount", dir]);
    assert!(!output.status.success(), "{output:?}");
}

/// A new mount would hide a file system that is mounted within the directory.
#[test]
fn a_dead_mount_with_another_within_is_left() {
    let cached = Cached::new();
    let (pool, data) = (cached.pool(), cached.data());
    let inner = data.join("inner");
    fs::create_dir(&inner).unwrap();
    let mount = |inner: &Path| {
        let none = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", inner, "tmpfs", none, None).unwrap();
    };
    mount(&inner);
    cached.attach(&[]);
    cached.kill_server();
    let output = cached.run(&["attach", pool.to_str().unwrap(), data.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("keepstone umount"), "{told}");
    cached.keepstone(&["umount", data.to_str().unwrap()]);
    cached.attach(&[]);
    cached.detach();
    rustix::mount::unmount(&inner, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// Space that the cache allocates ahead does not fill the file system: small files take little more
/// than their content, and writing back releases the excess.
#[test]
fn a_small_file_system_is_filled_with_small_files() {
    let cached = Cached::new();
    let data = cached.data();
    let size = Some(c"size=16M");
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &data, "tmpfs", none, size).unwrap();
    cached.attach(&[]);
    // 14 of 16 MiB.
    for i in 0..700 {
        fs::write(data.join(format!("small{i}")), vec![i as u8; 20 << 10]).unwrap();
    }
    let written = (0..700).map(|i| fs::write(data.join(format!("more{i}")), vec![1; 20 << 10]));
    let refused = written.filter_map(Result::err).next().expect("there is not so much space");
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    for i in 0..700 {
        assert!(fs::read(data.join(format!("small{i}"))).unwrap() == vec![i as u8; 20 << 10]);
    }
    cached.detach();
    assert_eq!(fs::metadata(data.join("small699")).unwrap().len(), 20 << 10);
    rustix::mount::unmount(&data, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn what_is_not_its_business_is_refused() {
    let cached = Cached::new();
    let (pool, data) = (cached.pool(), cached.data());
    let (pool, dir) = (pool.to_str().unwrap(), data.to_str().unwrap());
    let refused = |args: &[&str], why: &str| {
        let output = cached.run(args);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && told.contains(why), "{args:?}: {told}");
    };
    refused(&["attach", pool, "/nowhere"], "no such directory");
    cached.attach(&[]);
    let other = Cached::new();
    refused(&["attach", other.pool().to_str().unwrap(), dir], "is mounted there");
    cached.detach();
    refused(&["mount", pool, dir], "is for the cache of a directory");
    refused(&["attach", pool, other.data().to_str().unwrap()], "another directory or store");
    refused(&["attach", "status", dir], "no pool is mounted there");
    // A pool with files is not a cache.
    let plain = other.base.path().join("plain");
    let plain = plain.to_str().unwrap();
    other.keepstone(&["mkfs", plain, "--size", "64M"]);
    refused(&["attach", plain, other.data().to_str().unwrap()], "mkfs --cache");
    // A pool that an older version used as a cache is not, either.
    other.keepstone(&["mount", plain, other.data().to_str().unwrap()]);
    for name in ["nodes", "dirty"] {
        fs::create_dir(other.data().join(name)).unwrap();
    }
    fs::write(other.data().join("cache"), r#"{"version":1,"directory":"/srv"}"#).unwrap();
    other.detach();
    refused(&["attach", plain, other.data().to_str().unwrap()], "the cache of /srv");
    refused(&["mount", plain, other.data().to_str().unwrap()], "the cache of /srv");
}

/// Changes that others make below are visible through the mount, even if the kernel and the cache
/// have cached old content.
#[test]
fn changes_behind_the_cache_are_seen() {
    let cached = Cached::new();
    let (pool, data) = (cached.pool(), cached.data());
    let mount = cached.base.path().join("mount");
    fs::create_dir(&mount).unwrap();
    fs::write(data.join("file"), "one").unwrap();
    let paths = [pool.to_str().unwrap(), data.to_str().unwrap(), mount.to_str().unwrap()];
    cached.keepstone(&[&["attach"], &paths[..]].concat());
    for (i, text) in ["two", "three", "four", "five"].into_iter().enumerate() {
        assert!(!content(mount.join("file")).is_empty());
        fs::write(data.join("file"), text).unwrap();
        // Within one tick of the clock below, time and size may stay the same, so the test moves
        // the time.
        while content(mount.join("file")) != text {
            fs::File::open(data.join("file"))
                .unwrap()
                .set_modified(std::time::UNIX_EPOCH + Duration::from_secs(i as u64 + 1))
                .unwrap();
        }
    }
    cached.keepstone(&["umount", mount.to_str().unwrap()]);
    assert_eq!(content(data.join("file")), "five");
}

/// Files of another user belong to that user below, too.
#[test]
fn a_second_user() {
    let cached = Cached::new();
    let data = cached.data();
    fs::set_permissions(cached.base.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    fs::write(data.join("secret"), "root's").unwrap();
    fs::set_permissions(data.join("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    cached.attach(&[]);
    let script = "umask 027; echo theirs >theirs; ! cat secret 2>/dev/null; ! rm secret 2>/dev/null; stat -c '%u %a' theirs";
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-euc", script])
        .current_dir(&data)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "65534 640\n");
    cached.detach();
    let below = fs::metadata(data.join("theirs")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&below), 65534);
    assert_eq!(content(data.join("theirs")), "theirs\n");
}

#[test]
fn files_are_warmed_pinned_flushed_and_forgotten() {
    let cached = Cached::new();
    let data = cached.data();
    fs::create_dir(data.join("d")).unwrap();
    for i in 0..3 {
        fs::write(data.join(format!("d/{i}")), vec![b'0' + i; 1 << 20]).unwrap();
    }
    std::os::unix::fs::symlink("/etc", data.join("d/link")).unwrap();
    cached.attach(&["--max-age=3600"]);
    let path = |name: &str| data.join(name).to_str().unwrap().to_owned();
    let ask = |command: &str, name: &str| -> Value {
        let told = cached.keepstone(&["--json", "attach", command, &path(name)]);
        serde_json::from_str(&told).unwrap()
    };
    let warm = ask("warm", "d");
    let files = warm.as_array().unwrap();
    assert_eq!(files.len(), 3, "{warm}");
    assert!(files.iter().all(|file| file["cached_bytes"] == 1 << 20), "{warm}");
    fs::write(data.join("d/1"), [b'x'; 5000]).unwrap();
    assert_eq!(ask("show", "d/1")[0]["dirty_bytes"], 5000);
    assert_eq!(ask("flush", "d")[0]["dirty_bytes"], 0);
    fs::write(data.join("d/2"), [b'y'; 5000]).unwrap();
    cached.keepstone(&["attach", "flush", data.to_str().unwrap()]);
    assert_eq!(cached.status()["cache"]["dirty_bytes"], 0);
    assert_eq!(ask("invalidate", "d/2")[0]["cached_bytes"], 0);
    assert_eq!(fs::read(data.join("d/2")).unwrap(), [b'y'; 5000]);
    // Another user may warm files that it may read, and do no more.
    let as_nobody = |command: &str| {
        let args =
            ["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_keepstone")];
        let output =
            Command::new("setpriv").args(args).args(["attach", command, &path("d/1")]).output();
        output.unwrap().status.success()
    };
    let base = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(cached.base.path(), base).unwrap();
    assert!(as_nobody("warm") && as_nobody("show"));
    assert!(!as_nobody("invalidate") && !as_nobody("pin"));
    // A user who may write to the file, but does not own it, may only have it written back.
    let writable = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(path("d/1"), writable).unwrap();
    assert!(["invalidate", "pin", "unpin"].iter().all(|command| !as_nobody(command)));
    assert!(as_nobody("flush"));
    cached.detach();
    // Without a cache, the command fails with a message and leaves nothing behind.
    let output = cached.run(&["attach", "warm", &path("d/0")]);
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("not below the mount point of a cache")
    );
    let mut names = [0; 1024];
    let len = rustix::fs::listxattr(data.join("d/0"), &mut names[..]).unwrap();
    assert!(!String::from_utf8_lossy(&names[..len]).contains("keepstone.cache"));
}

/// A program under `keepstone run` sends commands for files to the server, by path and by
/// descriptor, and gets its answers.
#[test]
fn commands_of_a_served_program_reach_the_server() {
    let cached = Cached::new();
    let data = cached.data();
    fs::write(data.join("old"), vec![b'o'; 1 << 20]).unwrap();
    cached.attach(&["--max-age=3600"]);
    let script = r#"
import errno, json, os
def status(of):
    return json.loads(os.getxattr(of, "keepstone.cache.status"))
assert status("old")["cached_bytes"] == 0
assert json.loads(os.getxattr("old", "keepstone.cache.warm"))["cached_bytes"] == 1 << 20
with open("new", "wb", buffering=0) as new:
    new.write(b"n" * 5000)
    assert status(new.fileno())["dirty_bytes"] == 5000
    os.setxattr(new.fileno(), "keepstone.cache.flush", b"")
    assert status(new.fileno())["dirty_bytes"] == 0
    os.setxattr(new.fileno(), "keepstone.cache.pin", b"")
assert status("new")["is_pinned"]
os.setxattr("old", "keepstone.cache.invalidate", b"")
assert status("old")["cached_bytes"] == 0
for refused in "keepstone.cache.nothing", "keepstone.other":
    try:
        os.setxattr("new", refused, b"")
    except OSError as e:
        assert e.errno == errno.EOPNOTSUPP, e
    else:
        assert False, refused
with open("new", "ab", buffering=0) as new:
    new.write(b"n")
"#;
    let served = |args: &[&str]| {
        let mut run = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        let output = run.arg("run").arg("--").args(args).current_dir(&data).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    served(&["python3", "-c", script]);
    served(&[env!("CARGO_BIN_EXE_keepstone"), "attach", "flush", "new"]);
    assert_eq!(cached.status()["cache"]["dirty_bytes"], 0);
    cached.detach();
    assert_eq!(fs::read(data.join("new")).unwrap(), vec![b'n'; 5001]);
}

/// The pool of a cache gives back space that is free for some time, after evictions too.
#[test]
fn a_thin_pool_of_a_cache_gives_space_back() {
    let cached = Cached::new();
    let data = cached.data();
    let pool = cached.pool();
    let taken = || fs::metadata(&pool).unwrap().blocks() * 512;
    let big = data.join("big");
    fs::write(&big, vec![b'b'; 48 << 20]).unwrap();
    cached.attach(&["--max-age=3600"]);
    cached.keepstone(&["attach", "warm", big.to_str().unwrap()]);
    assert!(taken() >= 48 << 20, "{}", taken());
    cached.keepstone(&["attach", "invalidate", big.to_str().unwrap()]);
    wait_until("the server has given space back", || taken() < 24 << 20);
    cached.keepstone(&["trim", data.to_str().unwrap()]);
    // The server may have taken some in advance again.
    assert!(taken() < 12 << 20, "{}", taken());
    assert!(fs::read(&big).unwrap() == vec![b'b'; 48 << 20]);
    // Removed files give back their space, too.
    fs::remove_file(&big).unwrap();
    cached.keepstone(&["attach", "flush", data.to_str().unwrap()]);
    cached.keepstone(&["trim", data.to_str().unwrap()]);
    assert!(taken() < 12 << 20, "{}", taken());
    cached.detach();
}

/// A hole that a program punches is a hole below, of any length.
#[test]
fn holes_are_holes_below() {
    use rustix::fs::{FallocateFlags, fallocate};
    let cached = Cached::new();
    cached.attach(&[]);
    let path = cached.data().join("file");
    for len in [8192, 200_000, 300_000] {
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        cached.keepstone(&["attach", "flush", path.to_str().unwrap()]);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, 4096, len).unwrap();
        drop(file);
        cached.detach();
        let blocks = fs::metadata(&path).unwrap().blocks();
        // Metadata blocks of the file count, too.
        assert!(blocks <= 2048 + 64 - len / 4096 * 8, "{len}: {blocks}");
        let content = fs::read(&path).unwrap();
        assert_eq!(content.iter().filter(|byte| **byte == 0).count() as u64, len);
        cached.attach(&[]);
    }
}

/// Backup programs use the ctime to decide whether to read a file again.
#[test]
fn writing_back_does_not_move_ctime() {
    let cached = Cached::new();
    cached.attach(&[]);
    let path = cached.data().join("file");
    let change = || {
        let meta = fs::metadata(&path).unwrap();
        (meta.ctime(), meta.ctime_nsec(), meta.mtime(), meta.mtime_nsec(), meta.len())
    };
    for content in ["first", "second, and longer"] {
        fs::write(&path, content).unwrap();
        let written = change();
        std::thread::sleep(Duration::from_millis(20));
        cached.keepstone(&["attach", "flush", path.to_str().unwrap()]);
        assert_eq!(change(), written);
        cached.detach();
        assert!((change().0, change().1) > (written.0, written.1), "the disk has its own");
        cached.attach(&[]);
        assert_eq!(self::content(&path), content);
        assert_eq!(change(), written);
    }
    let before = change();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_ne!(change(), before);
}

#[test]
fn an_unmount_names_the_loop_device_that_uses_it() {
    let s = crate::common::Sandbox::mounted(&[]);
    let image = s.path("image");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&image).output().unwrap();
    assert!(attached.status.success(), "{attached:?}");
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let refused = s.fails(["umount", s.dir_str()], 1);
    crate::common::tool("losetup", &["-d", &device]);
    let named = format!("the loop device {device} (backing file {})", image.display());
    assert!(refused.contains(&named) && !refused.contains("programs"), "{refused}");
    s.umount();
}

/// An unmount fails and names the files that cannot be written back. The pool still has them when
/// it is attached again.
#[test]
fn an_unmount_names_what_is_not_written_back() {
    let cached = Cached::new();
    let (data, small) = (cached.data(), cached.base.path().join("small"));
    fs::create_dir(&small).unwrap();
    rustix::mount::mount("none", &small, "tmpfs", rustix::mount::MountFlags::empty(), c"size=1M")
        .unwrap();
    let unmounted = Unmounted(&small);
    let pool = cached.pool();
    let paths = [pool.to_str().unwrap(), small.to_str().unwrap(), data.to_str().unwrap()];
    cached.keepstone(&["attach", paths[0], paths[1], paths[2]]);
    let behind = |name: &str| small.join(name);
    fs::write(data.join("file"), "first").unwrap();
    cached.keepstone(&["attach", "flush", paths[2]]);
    fs::write(data.join("file"), "mine").unwrap();
    fs::write(behind("file"), "of another program").unwrap();
    let output = cached.run(&["umount", paths[2]]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(message.contains("1 files are not in") && message.contains("file: "), "{message}");
    assert_eq!(fs::read_to_string(behind("file")).unwrap(), "of another program");
    cached.keepstone(&["attach", paths[0], paths[1], paths[2]]);
    let status = cached.status();
    assert_eq!(status["cache"]["troubles"][0]["path"], "file", "{status}");
    let output = cached.run(&["--json", "umount", paths[2]]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["not_written_back"]["dirty_files"], 1);
    drop(unmounted);
}

/// A mount that is removed when the test ends.
struct Unmounted<'d>(&'d Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
