//! Mounting and unmounting, in every way in which a mount can begin and end.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{PermissionsExt, Sandbox, as_nobody, on_each_engine, pid, tool, wait_until};
use rustix::process::Signal;

on_each_engine!(
    ready_on_return_and_gone_after_umount,
    a_truncated_pool_fails_and_its_server_goes_on,
    a_killed_server_is_replaced_and_nothing_completed_is_lost,
    killed_in_the_middle_of_work,
    a_read_only_mount_changes_nothing,
    inodes_in_use_are_those_that_exist,
);

fn mount_line(dir: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = format!(" {} ", dir.display());
    table.lines().find(|line| line.contains(&dir)).map(str::to_owned)
}

fn ready_on_return_and_gone_after_umount(layout: &str) {
    let mut s = Sandbox::formatted_as(layout);
    for round in 0..5 {
        s.mount(&[]);
        let line = mount_line(&s.dir).expect("mounted on return");
        assert!(line.starts_with(&format!("{} ", s.pool_str())), "{line}");
        assert!(line.contains(" fuse.keepstone rw,"), "{line}");
        assert_eq!(fs::read_dir(&s.dir).unwrap().count(), round);
        fs::create_dir(s.path(&format!("{round}"))).unwrap();
        s.umount();
        assert_eq!(mount_line(&s.dir), None);
        // The pool is closed: it can be checked at once.
        s.ok(["check", s.pool_str()]);
    }
}

#[test]
fn signals_end_the_server() {
    let mut s = Sandbox::formatted();
    for signal in [Signal::TERM, Signal::INT] {
        s.mount(&[]);
        fs::write(s.path("file"), "content").unwrap();
        s.signal_server(signal);
        s.server_ends();
        assert_eq!(mount_line(&s.dir), None);
        s.ok(["check", s.pool_str()]);
    }
}

#[test]
fn umount8_ends_the_server() {
    let s = Sandbox::mounted(&[]);
    tool("umount", &[s.dir_str()]);
    s.server_ends();
    s.ok(["check", s.pool_str()]);
}

#[test]
fn in_the_foreground() {
    let s = Sandbox::formatted();
    let mut server = Command::new(env!("CARGO_BIN_EXE_keepstone"))
        .args(["mount", "-f", s.pool_str(), s.dir_str()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is mounted", || mount_line(&s.dir).is_some());
    fs::write(s.path("file"), "content").unwrap();
    s.umount();
    assert!(server.wait().unwrap().success());
}

fn a_truncated_pool_fails_and_its_server_goes_on(layout: &str) {
    let mut s = Sandbox::formatted_as(layout);
    for options in [&[][..], &["-o", "direct"]] {
        s.ok(["mkfs", "--force", s.pool_str(), "--size", "256M", "--layout", layout]);
        s.mount(options);
        fs::write(s.path("far"), vec![2; 100 << 20]).unwrap();
        s.umount();
        // The kernel's cache is empty.
        let ready = s.mount(options);
        fs::File::options().write(true).open(&s.pool).unwrap().set_len(20 << 20).unwrap();
        let eio = Some(rustix::io::Errno::IO.raw_os_error());
        assert_eq!(fs::read(s.path("far")).unwrap_err().raw_os_error(), eio);
        assert_eq!(fs::write(s.path("new"), "new").unwrap_err().raw_os_error(), eio);
        let log = format!("/run/keepstone/{}.log", ready["uuid"].as_str().unwrap());
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("truncated") && !log.contains("panicked"), "{log}");
        s.umount();
    }
}

fn a_killed_server_is_replaced_and_nothing_completed_is_lost(layout: &str) {
    let mut s = Sandbox::mounted_as(layout, &[]);
    fs::create_dir(s.path("d")).unwrap();
    for i in 0..500 {
        fs::write(s.path(&format!("d/{i}")), format!("content {i}")).unwrap();
    }
    fs::rename(s.path("d/0"), s.path("renamed")).unwrap();
    s.signal_server(Signal::KILL);
    s.server_ends();
    // Requests that the kernel had sent before the connection broke fail with another error.
    let is_dead = || fs::read_dir(&s.dir).unwrap_err().kind() == ErrorKind::NotConnected;
    wait_until("nobody is connected", is_dead);
    assert!(s.fails(["stats", s.dir_str()], 1).contains("has died"));
    let ready = s.mount(&[]);
    assert!(ready["notices"][0].as_str().unwrap().contains("replaced"), "{ready}");
    for i in 1..500 {
        let content = fs::read_to_string(s.path(&format!("d/{i}"))).unwrap();
        assert_eq!(content, format!("content {i}"));
    }
    assert_eq!(fs::read_to_string(s.path("renamed")).unwrap(), "content 0");
    s.umount();
    assert!(s.ok(["check", s.pool_str()]).contains("clean"));
}

/// The pool is not free before the kernel has released the memory of the killed server. In this
/// test, another process that holds the lock stands for that.
#[test]
fn a_killed_server_that_is_still_ending_is_waited_for() {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let mut s = Sandbox::formatted();
    for options in [&[][..], &["-o", "exclusive"]] {
        s.mount(options);
        fs::write(s.path("file"), [7; 100_000]).unwrap();
        let server = *s.servers.last().unwrap();
        let process = pidfd_open(pid(server), PidfdFlags::empty()).unwrap();
        let fds = fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten();
        let of_pool = fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == s.pool));
        let numbers = of_pool.map(|fd| fd.file_name().to_str().unwrap().parse().unwrap());
        let held: Vec<_> = numbers
            .map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).unwrap())
            .collect();
        s.signal_server(Signal::KILL);
        s.server_ends();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        s.mount(&["-o", "exclusive"]);
        ending.join().unwrap();
        s.umount();
    }
    assert!(s.ok(["check", s.pool_str()]).contains("clean"));
}

/// Programs that use the mount point meanwhile see the dead mount or the new one, never the
/// directory below.
#[test]
fn a_dead_mount_is_replaced_in_one_step() {
    let mut s = Sandbox::formatted();
    let (below, created) = (s.path("below"), s.path("created"));
    fs::write(&below, "").unwrap();
    s.mount(&[]);
    for _ in 0..5 {
        s.signal_server(Signal::KILL);
        s.server_ends();
        let is_mounted = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut has_created = false;
                while !is_mounted.load(Relaxed) {
                    assert!(!below.exists(), "the directory below shows");
                    has_created |= fs::create_dir(&created).is_ok();
                }
                has_created
            });
            s.mount(&["-o", "nosuid,noatime,nosymfollow"]);
            is_mounted.store(true, Relaxed);
            // If the program's `mkdir` succeeded, the directory is on the new mount.
            assert_eq!(watching.join().unwrap(), fs::remove_dir(&created).is_ok());
        });
        let line = mount_line(&s.dir).unwrap();
        assert!(line.starts_with(&format!("{} ", s.pool_str())), "{line}");
        assert!(
            line.contains(" fuse.keepstone rw,nosuid,noatime,nosymfollow,user_id=0,"),
            "{line}"
        );
    }
    s.umount();
    assert_eq!(mount_line(&s.dir), None, "nothing is left of the dead");
    assert!(below.exists());
}

fn killed_in_the_middle_of_work(layout: &str) {
    let mut s = Sandbox::formatted_as(layout);
    for _ in 0..5 {
        s.mount(&[]);
        let script = format!(
            "cd {} && i=0 && while mkdir -p w && echo $i > w/$i && mv w/$i w/last; do i=$((i+1)); done",
            s.dir_str()
        );
        let mut worker =
            Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).spawn().unwrap();
        wait_until("the work is under way", || s.path("w/last").exists());
        std::thread::sleep(Duration::from_millis(100));
        s.signal_server(Signal::KILL);
        worker.wait().unwrap();
        s.server_ends();
        let check = s.ok(["check", s.pool_str()]);
        assert!(check.contains("clean"), "{check}");
    }
    s.mount(&[]);
    // `last` is old or new, never empty or absent once made: mv is atomic, and so is the write.
    let last = fs::read_to_string(s.path("w/last")).unwrap();
    assert!(last.trim().parse::<u64>().is_ok(), "{last:?}");
}

#[test]
fn a_stopped_server_can_be_unmounted() {
    let s = Sandbox::mounted(&[]);
    s.stop_server();
    let refused = s.fails(["umount", s.dir_str()], 1);
    assert!(refused.contains("--lazy"), "{refused}");
    s.ok(["umount", "--lazy", s.dir_str()]);
    assert_eq!(mount_line(&s.dir), None);
    s.signal_server(Signal::CONT);
    s.server_ends();
}

#[test]
fn a_server_that_loses_its_memory_says_so_in_its_log() {
    let mut s = Sandbox::formatted();
    let ready = s.mount(&[]);
    let log = ready["log"].as_str().unwrap().to_owned();
    fs::write(s.path("file"), vec![1; 1 << 20]).unwrap();
    s.signal_server(Signal::BUS);
    s.server_ends();
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.contains("SIGBUS") && said.contains("keepstone doctor"), "{said}");
    wait_until("nobody is connected", || fs::read_dir(&s.dir).is_err());
    assert!(s.fails(["stats", s.dir_str()], 1).contains(&log));
    let ready = s.mount(&[]);
    assert!(ready["notices"][0].as_str().unwrap().contains(&log), "{ready}");
    s.umount();
}

/// Runs in a mount namespace of its own, to have its own `/tmp`.
#[test]
fn no_log_is_written_where_somebody_else_could_lead_it() {
    let s = Sandbox::empty();
    let program = s.outside("keepstone");
    fs::copy(env!("CARGO_BIN_EXE_keepstone"), &program).unwrap();
    for (set_up, why) in [
        // A directory of another user; a link to a directory of the user; a directory in which all
        // users may write.
        ("mkdir -m 777 /tmp/keepstone-65534", "belongs to user 0"),
        (
            "mkdir -m 700 /tmp/x && chown 65534 /tmp/x && ln -s /tmp/x /tmp/keepstone-65534",
            "is no directory",
        ),
        ("mkdir -m 777 /tmp/keepstone-65534 && chown 65534 /tmp/keepstone-65534", "chmod go-w"),
    ] {
        let script = format!(
            "mkdir {scratch}/tmp && mount -t tmpfs -o mode=1777 none {scratch}/tmp && export TMPDIR={scratch}/tmp && \
             {set_up} && unset XDG_RUNTIME_DIR && cd / && \
             setpriv --reuid=65534 --regid=65534 --clear-groups {program} mkfs {scratch}/tmp/pool --size 1M && \
             ! setpriv --reuid=65534 --regid=65534 --clear-groups \
                 {program} mount {scratch}/tmp/pool {dir} 2>&1; rmdir {scratch}/tmp 2>/dev/null || \
             {{ umount {scratch}/tmp; rmdir {scratch}/tmp; }}",
            scratch = s.outside("").display().to_string().trim_end_matches('/'),
            set_up = set_up.replace("/tmp", "$TMPDIR"),
            program = program.display(),
            dir = s.dir_str(),
        );
        let said = tool("unshare", &["--mount", "sh", "-uc", &script]);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_dead_mount_can_be_unmounted() {
    let s = Sandbox::mounted(&[]);
    s.signal_server(Signal::KILL);
    s.server_ends();
    s.umount();
    assert_eq!(mount_line(&s.dir), None);
}

#[test]
fn a_busy_mount_names_its_users() {
    let s = Sandbox::mounted(&[]);
    let mut user = Command::new("sleep").arg("60").current_dir(&s.dir).spawn().unwrap();
    let refused = s.fails(["umount", s.dir_str()], 1);
    assert!(refused.contains(&format!("sleep (pid {})", user.id())), "{refused}");
    s.ok(["umount", "--lazy", s.dir_str()]);
    assert_eq!(mount_line(&s.dir), None);
    user.kill().unwrap();
    user.wait().unwrap();
    s.server_ends();
}

fn a_read_only_mount_changes_nothing(layout: &str) {
    let mut s = Sandbox::mounted_as(layout, &[]);
    fs::write(s.path("file"), "content").unwrap();
    s.umount();
    let before = fs::read(&s.pool).unwrap();
    for how in [&["--read-only"][..], &["-o", "ro"]] {
        s.mount(how);
        assert!(mount_line(&s.dir).unwrap().contains(" ro,"));
        assert_eq!(fs::read_to_string(s.path("file")).unwrap(), "content");
        let refused = fs::write(s.path("other"), "").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        // Other commands may read the pool, too.
        s.ok(["check", s.pool_str()]);
        s.umount();
    }
    assert!(before == fs::read(&s.pool).unwrap(), "the pool has changed");
}

#[test]
fn who_only_reads_is_refused_beside_programs_that_write() {
    let mut s = Sandbox::mounted(&["-o", "direct"]);
    let other = s.outside("other");
    fs::create_dir(&other).unwrap();
    let other = other.to_str().unwrap();
    for how in [&["--read-only"][..], &["-o", "ro"]] {
        let refused = s.fails(["mount"].iter().chain(how).chain(&[s.pool_str(), other]), 1);
        for part in ["in use by keepstone", &format!("pid {}", s.servers[0]), s.dir_str()] {
            assert!(refused.contains(part), "{refused}");
        }
    }
    assert!(s.fails(["check", s.pool_str()], 4).contains(s.dir_str()));
    s.umount();
    // The other way round.
    s.mount(&["--read-only"]);
    for how in [&["-o", "direct"][..], &[]] {
        let refused = s.fails(["mount"].iter().chain(how).chain(&[s.pool_str(), other]), 1);
        assert!(refused.contains(s.dir_str()), "{refused}");
    }
    s.ok(["check", s.pool_str()]);
    s.umount();
}

#[test]
fn a_pool_in_use_in_another_mount_namespace_is_said_to_be() {
    let mut s = Sandbox::formatted();
    let script = format!(
        "{} mount --json {} {}",
        env!("CARGO_BIN_EXE_keepstone"),
        s.pool_str(),
        s.dir_str()
    );
    let ready = tool("unshare", &["--mount", "sh", "-euc", &script]);
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    s.servers.push(ready["pid"].as_i64().unwrap() as i32);
    let refused = s.fails(["check", s.pool_str()], 4);
    for part in [&format!("pid {}", s.servers[0]), "another mount namespace", s.dir_str()] {
        assert!(refused.contains(part), "{refused}");
    }
    s.signal_server(Signal::TERM);
    s.server_ends();
    s.ok(["check", s.pool_str()]);
}

/// `/sbin/mount.fuse.keepstone`, which exists until this is dropped.
struct Helper(bool);

impl Helper {
    const PATH: &str = "/sbin/mount.fuse.keepstone";

    fn install() -> Self {
        Self(symlink(env!("CARGO_BIN_EXE_keepstone"), Self::PATH).is_ok())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.0 {
            let _ = fs::remove_file(Self::PATH);
        }
    }
}

/// A single test, because all tests would share the helper.
#[test]
fn mount8_knows_the_type() {
    let _helper = Helper::install();
    let mut s = Sandbox::formatted();
    let options = "nodev,noatime,threads=2,x-test,nofail";
    tool("mount", &["-t", "fuse.keepstone", "-o", options, s.pool_str(), s.dir_str()]);
    s.servers.push(s.stats()["pid"].as_i64().unwrap() as i32);
    let line = mount_line(&s.dir).unwrap();
    assert!(line.contains("fuse.keepstone rw,nodev,noatime"), "{line}");
    assert_eq!(s.stats()["threads"], 2);
    fs::write(s.path("file"), "content").unwrap();

    tool("mount", &["-o", "remount,ro", s.dir_str()]);
    assert_eq!(fs::write(s.path("x"), "").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read_to_string(s.path("file")).unwrap(), "content");
    tool("mount", &["-o", "remount,rw", s.dir_str()]);
    fs::write(s.path("x"), "").unwrap();

    tool("umount", &[s.dir_str()]);
    s.server_ends();
    let refused = Command::new("mount")
        .args(["-t", "fuse.keepstone", "-o", "colour=blue", s.pool_str(), s.dir_str()])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("colour=blue"), "{refused:?}");

    // A line of fstab.
    let fstab = s.outside("fstab");
    let line = format!("{} {} fuse.keepstone defaults,ro 0 0\n", s.pool_str(), s.dir_str());
    fs::write(&fstab, line).unwrap();
    tool("mount", &["--fstab", fstab.to_str().unwrap(), s.dir_str()]);
    s.servers.push(s.stats()["pid"].as_i64().unwrap() as i32);
    assert_eq!(fs::read_to_string(s.path("file")).unwrap(), "content");
    tool("umount", &[s.dir_str()]);
    s.server_ends();
}

/// The helper honours each flag that `mount(8)` passes, or refuses it.
#[test]
fn flags_are_kept_to() {
    let mut s = Sandbox::formatted();
    // Called as `mount(8)` calls it.
    let helper = s.outside("mount.fuse.keepstone");
    symlink(env!("CARGO_BIN_EXE_keepstone"), &helper).unwrap();
    let (pool, dir) = (s.pool_str().to_owned(), s.dir_str().to_owned());
    let mount =
        |options: &str| Command::new(&helper).args([&pool, &dir, "-o", options]).output().unwrap();
    let flags = "strictatime,lazytime,nosymfollow,noatime";
    assert!(mount(flags).status.success());
    s.servers.push(s.stats()["pid"].as_i64().unwrap() as i32);
    let line = mount_line(&s.dir).unwrap();
    assert!(line.contains("noatime") && line.contains("nosymfollow"), "{line}");
    // A file that was never read since it was written: without the flag its access time would
    // change.
    let file = s.path("file");
    fs::write(&file, "content").unwrap();
    let atime = || fs::metadata(&file).unwrap().accessed().unwrap();
    let read = || {
        std::thread::sleep(Duration::from_millis(20));
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        fs::read(&file).unwrap();
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        atime()
    };
    let before = atime();
    assert_eq!(read(), before);
    assert!(mount("remount,atime,relatime").status.success());
    let recorded = read();
    assert!(recorded > before);
    assert_eq!(read(), recorded, "once, as it is younger than the content then");
    assert!(mount("remount,strictatime").status.success());
    let [first, second] = [read(), read()];
    assert!(recorded < first && first < second, "each access");
    tool("umount", &[s.dir_str()]);
    s.server_ends();

    assert!(mount("ro").status.success());
    s.servers.push(s.stats()["pid"].as_i64().unwrap() as i32);
    let refused = mount("remount,rw");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is open read-only"), "{refused:?}");
    assert!(mount_line(&s.dir).unwrap().contains("fuse.keepstone ro,"));
    tool("umount", &[s.dir_str()]);
    s.server_ends();
}

fn inodes_in_use_are_those_that_exist(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let used = || {
        let now = rustix::fs::statvfs(&s.dir).unwrap();
        now.f_files - now.f_ffree
    };
    let before = used();
    fs::write(s.path("file"), vec![1; 64 << 20]).unwrap();
    fs::create_dir(s.path("dir")).unwrap();
    assert_eq!(used(), before + 2);
    s.umount();
}

#[test]
fn the_server_of_a_mount_is_recorded() {
    let mut s = Sandbox::formatted();
    let trace = s.outside("trace");
    let trace = trace.to_str().unwrap();
    s.mount(&["--record", trace]);
    fs::write(s.path("file"), "content").unwrap();
    s.umount();
    let found = s.ok(["simulate", "memory", "describe", trace, "--json"]);
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert!(found["fences"].as_u64().unwrap() > 0, "{found}");
    let direct = ["mount", s.pool_str(), s.dir_str(), "--record", trace, "-o", "direct"];
    assert!(s.fails(direct, 1).contains("record"));
}

#[test]
fn programs_beside_the_mount_are_recorded() {
    let mut s = Sandbox::formatted();
    s.mount(&[]);
    let trace = s.outside("trace");
    let script = "echo content > file; /bin/cat file";
    let child = s.served_script(&["--record", trace.to_str().unwrap()], script).output().unwrap();
    assert!(child.status.success(), "{child:?}");
    let traces: Vec<_> = fs::read_dir(trace.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains("trace."))
        .collect();
    let described = |path: &std::path::PathBuf| -> serde_json::Value {
        let found = s.ok(["simulate", "memory", "describe", path.to_str().unwrap(), "--json"]);
        serde_json::from_str(&found).unwrap()
    };
    let fences = traces.iter().map(|path| described(path)["fences"].as_u64().unwrap());
    assert!(fences.max().unwrap() > 0, "{traces:?}");
    s.umount();
}

#[test]
fn emulated_speed_is_said() {
    let mut s = Sandbox::formatted();
    let ready = s.mount(&["--emulate", "line=100ns"]);
    assert!(ready["emulation"].as_str().unwrap().contains("100ns"), "{ready}");
    fs::write(s.path("file"), vec![1; 1 << 20]).unwrap();
    assert!(s.stats()["medium"]["emulated_cycles"].as_u64().unwrap() > 0);
    s.umount();
}

#[test]
fn uncached_mounts_ask_the_server() {
    let s = Sandbox::mounted(&["--no-cache"]);
    fs::write(s.path("file"), "content").unwrap();
    let before = (s.requests("read"), s.requests("lookup"));
    for _ in 0..10 {
        assert_eq!(fs::read_to_string(s.path("file")).unwrap(), "content");
    }
    let after = (s.requests("read"), s.requests("lookup"));
    assert!(after.0 >= before.0 + 10 && after.1 >= before.1 + 10, "{before:?} {after:?}");
}

#[test]
fn cached_mounts_do_not() {
    let s = Sandbox::mounted(&[]);
    fs::write(s.path("file"), "content").unwrap();
    assert_eq!(fs::read_to_string(s.path("file")).unwrap(), "content");
    assert!(!s.path("absent").exists());
    let asked = || (s.requests("read"), s.requests("lookup"));
    // The kernel may drop its cache at any time, because other tests request that.
    let asks_nothing = (0..5).any(|_| {
        let before = asked();
        for _ in 0..10 {
            assert_eq!(fs::read_to_string(s.path("file")).unwrap(), "content");
            assert!(!s.path("absent").exists());
        }
        asked() == before
    });
    assert!(asks_nothing, "{:?}", asked());
}

#[test]
fn opens_are_left_to_the_kernel() {
    let s = Sandbox::mounted(&["-o", "exclusive"]);
    for i in 0..20 {
        fs::write(s.path(&format!("file{i}")), "content").unwrap();
        fs::write(s.path("again"), format!("content {i}")).unwrap();
        assert_eq!(fs::read_to_string(s.path("again")).unwrap(), format!("content {i}"));
    }
    // The server received one request of each kind, and answered that the kernel need not ask
    // again.
    assert_eq!((s.requests("create"), s.requests("open"), s.requests("release")), (1, 1, 0));
    // The program that creates a file can write to it even if the mode forbids writing.
    fs::set_permissions(&s.dir, PermissionsExt::from_mode(0o777)).unwrap();
    as_nobody(&format!(
        "umask 777 && echo x > {0}/theirs && test $(stat -c %s {0}/theirs) = 2",
        s.dir_str()
    ));
}

/// Runs in a mount namespace of its own, where all users may open `/dev/fuse`, as with udev.
#[test]
fn users_can_mount() {
    let s = Sandbox::empty();
    // A copy that all users can run, wherever the build directory is.
    let program = s.outside("keepstone");
    fs::copy(env!("CARGO_BIN_EXE_keepstone"), &program).unwrap();
    let runtime = s.outside("run");
    fs::create_dir(&runtime).unwrap();
    for dir in [&s.dir, &runtime] {
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    }
    let as_user = format!(
        "{program} mkfs {pool} --size 64M && {program} mount {pool} {dir} && cd {dir} && \
         echo content > file && cat file && grep -o 'fuse.keepstone rw,nosuid,nodev' /proc/mounts && \
         cd / && {program} umount {dir} && ls -a {dir} && {program} check {pool}",
        program = program.display(),
        pool = s.pool_str(),
        dir = s.dir_str(),
    );
    let script = format!(
        "mount -t tmpfs none /mnt && mknod -m 666 /mnt/fuse c 10 229 && \
         mount --bind /mnt/fuse /dev/fuse && export XDG_RUNTIME_DIR={runtime} && \
         setpriv --reuid=65534 --regid=65534 --clear-groups sh -euc '{as_user}'",
        runtime = runtime.display(),
        as_user = as_user.replace('\'', "'\\''"),
    );
    let said = tool("unshare", &["--mount", "sh", "-euc", &script]);
    assert!(said.contains("\ncontent\nfuse.keepstone rw,nosuid,nodev\n"), "{said}");
    assert!(said.ends_with("clean\n"), "{said}");
}

/// Programs use contiguous files through the mount and by direct access, also after a kill of the
/// server.
#[test]
fn another_engine_is_mounted_and_shared() {
    let mut s = Sandbox::empty();
    let made = s.ok(["mkfs", s.pool_str(), "--size", "64M", "--layout", "scmfs"]);
    assert!(made.contains(": scmfs, 64 MiB"), "{made}");
    s.mount(&["-o", "direct"]);
    let script = "cd $1
        mkdir d
        dd if=/dev/urandom of=d/large bs=64k count=100 status=none
        cp d/large d/copy
        truncate -s 1T d/sparse
        echo end | dd of=d/sparse bs=1 seek=1099511627776 conv=notrunc status=none
        mv d/copy renamed
        cmp d/large renamed";
    s.ok(["run", "--", "sh", "-euc", script, "sh", s.dir_str()]);
    let content = fs::read(s.path("renamed")).unwrap();
    assert_eq!(fs::metadata(s.path("d/sparse")).unwrap().len(), (1 << 40) + 4);
    s.signal_server(Signal::KILL);
    s.server_ends();
    s.mount(&["-o", "direct"]);
    assert!(fs::read(s.path("d/large")).unwrap() == content, "a killed server loses nothing");
    let end = s.ok(["run", "--", "tail", "-c", "4", s.path("d/sparse").to_str().unwrap()]);
    assert_eq!(end, "end\n");
    s.umount();
    s.server_ends();
    assert!(s.ok(["check", s.pool_str()]).contains("clean"));
    assert!(s.ok(["info", s.pool_str()]).contains("scmfs"));
}

/// The layout for tests: programs use it through the mount, which passes on their syncs. Data that
/// they have not synced is lost with the server.
#[test]
fn an_engine_that_promises_less_loses_what_was_not_synced() {
    let mut s = Sandbox::empty();
    let made = s.ok(["mkfs", s.pool_str(), "--size", "16M", "--layout", "model"]);
    assert!(made.contains(": model, 16 MiB"), "{made}");
    let refused = s.fails(["mount", "-o", "direct", s.pool_str(), s.dir_str()], 1);
    assert!(refused.contains("serves one process at a time"), "{refused}");
    let ready = s.mount(&[]);
    let notice = ready["notices"][0].as_str().unwrap();
    assert!(notice.contains("one process at a time"), "{notice}");
    let script = "cd $1
        mkdir d
        echo first >d/synced
        mv d/synced d/renamed
        sync -f d
        echo second | dd of=written oflag=sync status=none
        echo third | dd of=fsynced conv=fsync status=none
        echo lost >lost; rm d/renamed";
    s.ok(["run", "--", "sh", "-euc", script, "sh", s.dir_str()]);
    assert_eq!(fs::read_to_string(s.path("lost")).unwrap(), "lost\n");
    s.signal_server(Signal::KILL);
    s.server_ends();
    s.mount(&[]);
    let content = |name: &str| fs::read_to_string(s.path(name)).unwrap();
    assert_eq!(
        [content("d/renamed"), content("written"), content("fsynced")],
        ["first\n", "second\n", "third\n"]
    );
    assert!(!s.path("lost").exists());
    // Unmounting syncs.
    fs::write(s.path("kept"), "kept").unwrap();
    s.umount();
    s.server_ends();
    assert!(s.ok(["check", s.pool_str()]).contains("clean"));
    assert!(s.ok(["info", s.pool_str()]).contains("model"));
    s.mount(&[]);
    assert_eq!(fs::read_to_string(s.path("kept")).unwrap(), "kept");

    // A full pool reports ENOSPC, and has room again after a removal.
    let full = fs::write(s.path("large"), vec![1; 20 << 20]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    fs::remove_file(s.path("large")).unwrap();
    fs::write(s.path("small"), vec![1; 4 << 20]).unwrap();
}

/// Returns the number of lines that the server has flushed.
fn lines_flushed(s: &Sandbox) -> u64 {
    s.stats()["medium"]["lines_flushed"].as_u64().unwrap()
}

#[test]
fn what_nobody_syncs_is_written_back() {
    let mut s = Sandbox::empty();
    s.ok(["mkfs", s.pool_str(), "--size", "64M", "--layout", "scmfs"]);
    s.mount(&["--data-flush-interval", "1"]);
    let content = vec![1; 40_960];
    fs::write(s.path("file"), &content).unwrap();
    let before = lines_flushed(&s);
    // In place, through the CPU cache.
    std::os::unix::fs::FileExt::write_all_at(
        &fs::File::options().write(true).open(s.path("file")).unwrap(),
        &content,
        0,
    )
    .unwrap();
    wait_until("ten blocks are written back", || lines_flushed(&s) >= before + 640);
    s.umount();
}

#[test]
fn what_scmfs_lets_choose() {
    let mut s = Sandbox::empty();
    s.ok(["mkfs", s.pool_str(), "--size", "64M", "--layout", "scmfs"]);
    let fails = |s: &Sandbox, options: &[&str], why: &str| {
        let output = s.run([&["mount"], options, &[s.pool_str(), s.dir_str()]].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(why), "{text}");
    };
    // Reads the field of the pool that records its use (docs/format/scmfs.md).
    let usage = |s: &Sandbox| String::from_utf8(fs::read(&s.pool).unwrap()[80..88].into()).unwrap();
    s.mount(&["-o", "write_policy=through"]);
    fs::write(s.path("file"), [1; 4096]).unwrap();
    assert_eq!(usage(&s), "\0\0\0\0\0\0\0\0", "in use");
    let set = |value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(s.path("file"), "user.keepstone.cache", value, flags)
    };
    assert_eq!(set(b"back"), Err(rustix::io::Errno::INVAL));
    set(b"cached").unwrap();
    s.umount();
    s.server_ends();
    assert_eq!(usage(&s), "closed\0\0");
    s.mount(&[]);
    s.signal_server(Signal::KILL);
    s.server_ends();
    assert_eq!(usage(&s), "\0\0\0\0\0\0\0\0", "killed");

    // The pool of a killed server records how it was used.
    s.mount(&["-o", "consistency=none"]);
    fs::write(s.path("file"), [2; 4096]).unwrap();
    s.signal_server(Signal::KILL);
    s.server_ends();
    fails(&s, &[], "consistency=none");
    let repaired = s.run(["check", "--repair", s.pool_str()]);
    assert!(String::from_utf8_lossy(&repaired.stdout).contains("all repaired"), "{repaired:?}");
    s.mount(&["-o", "consistency=none"]);
    assert_eq!(fs::read(s.path("file")).unwrap(), [2; 4096]);
    assert_eq!(usage(&s), "any-ordr");
    s.umount();
    s.mount(&[]);
    s.umount();

    s.ok(["mkfs", s.pool_str(), "--force", "--layout", "bpfs"]);
    fails(&s, &["-o", "write_policy=through"], "options of the layout `scmfs`");
}
