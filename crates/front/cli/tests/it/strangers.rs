//! Attacks by other users of the machine, on the pool, the directory and the mount of a cache, and
//! on the pool of a mount.
//!
//! Needs root and `/dev/fuse`. Other users are numbers: no account is made.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::attach::{Cached, content};
use crate::common::{Sandbox, as_nobody, tool, wait_until};

const NOBODY: u32 = 65_534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn error(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the options of the mount at `dir`, without those of its file system.
fn flags(dir: &Path) -> Vec<String> {
    let mount = fuse::mount_at(dir).unwrap().unwrap();
    mount.options.split(',').map(str::to_owned).collect()
}

fn has(dir: &Path, flag: &str) -> bool {
    flags(dir).iter().any(|found| found == flag)
}

/// The records of a cache name the files to write, so no stranger may change them.
#[test]
fn a_pool_that_others_may_write_is_no_cache() {
    let cached = Cached::new();
    let (pool, data) = (cached.pool(), cached.data());
    let above = pool.parent().unwrap().to_owned();
    let refused = |why: &str| {
        for command in [&["attach"][..], &["attach", "drain"]] {
            let said = error(&cached.run(&[command, &[text(&pool), text(&data)]].concat()));
            assert!(said.contains(why) && said.contains("chmod go-w"), "{command:?}: {said}");
        }
    };
    mode(&pool, 0o660);
    refused("its mode is 660");
    mode(&pool, 0o602);
    refused("its mode is 602");
    mode(&pool, 0o600);
    tool("setfacl", &["-m", "u:12345:rw", text(&pool)]);
    refused("its mode is 660");
    tool("setfacl", &["-b", text(&pool)]);
    chown(&pool, Some(12345), None).unwrap();
    refused("it belongs to user 12345");
    chown(&pool, Some(0), None).unwrap();
    mode(&above, 0o777);
    refused("the mode of the directory");
    mode(&above, 0o1777);
    cached.attach(&[]);
    cached.detach();
}

/// A user who may write a pool could make set-user-ID programs and devices in it.
#[test]
fn a_pool_that_others_may_write_has_neither_set_user_id_nor_devices() {
    let mut s = Sandbox::formatted();
    mode(&s.pool, 0o660);
    let ready = s.mount(&[]);
    assert!(has(&s.dir, "nosuid") && has(&s.dir, "nodev"), "{:?}", flags(&s.dir));
    assert!(ready["notices"][0].as_str().unwrap().contains("its mode is 660"), "{ready}");
    // `mount -o remount`, too.
    let helper = s.outside("mount.fuse.keepstone");
    symlink(env!("CARGO_BIN_EXE_keepstone"), &helper).unwrap();
    let remount = |options: &str| {
        let done = Command::new(&helper).args([s.pool_str(), s.dir_str(), "-o", options]).output();
        assert!(done.unwrap().status.success());
    };
    remount("remount,noatime");
    assert!(has(&s.dir, "nosuid") && has(&s.dir, "noatime"), "{:?}", flags(&s.dir));
    remount("remount,suid");
    assert!(!has(&s.dir, "nosuid") && has(&s.dir, "nodev"), "{:?}", flags(&s.dir));
    s.umount();
    s.mount(&["-o", "suid,dev"]);
    assert!(!has(&s.dir, "nosuid") && !has(&s.dir, "nodev"), "{:?}", flags(&s.dir));
    s.umount();
    mode(&s.pool, 0o600);
    s.mount(&["-o", "noatime"]);
    assert!(!has(&s.dir, "nosuid") && !has(&s.dir, "nodev"), "{:?}", flags(&s.dir));
    // The group gets write permission while the pool is mounted.
    mode(&s.pool, 0o660);
    wait_until("the mount is guarded", || has(&s.dir, "nosuid") && has(&s.dir, "nodev"));
    assert!(has(&s.dir, "noatime"), "{:?}", flags(&s.dir));
    s.umount();
}

/// On a user's mount, flags that `fusermount3` does not pass on are refused, never dropped.
#[test]
fn flags_of_users_are_kept_or_refused() {
    let s = Sandbox::formatted();
    let program = env!("CARGO_BIN_EXE_keepstone");
    for path in [&s.pool, &s.dir] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (fuse, home) = (s.outside("fuse"), s.outside("home"));
    fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let as_user = |options: &str| {
        let script = format!(
            "mknod {fuse} c 10 229 2>/dev/null; chmod 666 {fuse}; mount --bind {fuse} /dev/fuse; \
             exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \
             'export XDG_RUNTIME_DIR={home}; {program} mount {options} {pool} {dir} && \
              grep fuse.keepstone /proc/mounts; {program} umount {dir}'",
            fuse = text(&fuse),
            home = text(&home),
            pool = s.pool_str(),
            dir = s.dir_str(),
        );
        let args = ["-m", "--propagation", "private", "sh", "-c", &script];
        let output = Command::new("unshare").args(args).stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let said = as_user("-o noexec");
    assert!(said.contains("nosuid,nodev,noexec"), "{said}");
    let said = as_user("-o suid");
    assert!(said.contains("only root"), "{said}");
    let said = as_user("-o nosymfollow");
    let is_kept = said.contains("nosymfollow,");
    assert!(is_kept || !said.contains("fuse.keepstone rw"), "{said}");
}

/// Unmounts a file system that the server of a cache may still have open, because it ends after its
/// mount.
fn umount_when_free(dir: &Path) {
    wait_until("no server has it", || {
        rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty()).is_ok()
    });
}

/// The mount of a cache has the restrictions of the mount of its directory.
#[test]
fn a_cache_takes_over_flags() {
    let cached = Cached::new();
    let data = cached.data();
    let mount = cached.base.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let bind = |options: &str| {
        tool("mount", &["--bind", text(&data), text(&data)]);
        tool("mount", &["-o", &format!("remount,bind,{options}"), text(&data)]);
    };
    let attach = |options: &[&str]| {
        let paths = [text(&cached.pool()), text(&data), text(&mount)].map(str::to_owned);
        let paths = [paths[0].as_str(), &paths[1], &paths[2]];
        cached.run(&[&["attach"], options, &paths].concat())
    };
    assert!(attach(&[]).status.success());
    assert!(!has(&mount, "nosuid") && !has(&mount, "noexec"), "{:?}", flags(&mount));
    tool("umount", &[text(&mount)]);
    bind("nosuid,nodev,noexec,nosymfollow");
    wait_until("it is attached", || attach(&[]).status.success());
    for flag in ["nosuid", "nodev", "noexec", "nosymfollow"] {
        assert!(has(&mount, flag), "{flag}: {:?}", flags(&mount));
    }
    tool("umount", &[text(&mount)]);
    wait_until("it is attached", || attach(&["-o", "suid,exec", "-o", "ro"]).status.success());
    assert!(!has(&mount, "nosuid") && !has(&mount, "noexec"), "{:?}", flags(&mount));
    assert!(has(&mount, "nodev") && has(&mount, "ro"), "{:?}", flags(&mount));
    tool("umount", &[text(&mount)]);
    umount_when_free(&data);
    bind("ro");
    wait_until("it is attached", || attach(&[]).status.success());
    assert!(has(&mount, "ro"), "{:?}", flags(&mount));
    // A mount within the directory is not entered.
    tool("umount", &[text(&mount)]);
    umount_when_free(&data);
    fs::create_dir(data.join("within")).unwrap();
    tool("mount", &["-t", "tmpfs", "tmpfs", text(&data.join("within"))]);
    fs::write(data.join("within/file"), "of another file system").unwrap();
    wait_until("it is attached", || attach(&[]).status.success());
    let entered = fs::read_dir(mount.join("within"));
    assert_eq!(entered.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    tool("umount", &[text(&mount)]);
    umount_when_free(&data.join("within"));
    let said = error(&attach(&["-o", "threads=1"]));
    assert!(said.contains("mount options of a cache"), "{said}");
}

/// A user that may read the directory can lock it, but it can be attached nevertheless. A second
/// cache is still refused.
#[test]
fn a_lock_of_a_stranger_keeps_nobody_out() {
    let cached = Cached::new();
    mode(cached.base.path(), 0o755);
    mode(&cached.data(), 0o755);
    let data = cached.data();
    let mut holder = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "flock", "-s"])
        .args([text(&data), "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it is locked", || {
        let file = fs::File::open(&data).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
    });
    cached.attach(&[]);
    let (pool, other) = (cached.base.path().join("pool"), cached.base.path().join("other"));
    fs::create_dir(&other).unwrap();
    cached.keepstone(&["mkfs", text(&pool), "--cache", "--size", "64M"]);
    tool("mount", &["--bind", text(cached.base.path()), text(&other)]);
    let said = error(&cached.run(&["attach", "drain", text(&pool), text(&other.join("data"))]));
    tool("umount", &[text(&other)]);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert!(said.contains("in use"), "{said}");
    cached.detach();
}

/// Only users with search permission see names of a private directory.
#[test]
fn statistics_show_other_users_no_names() {
    let cached = Cached::new();
    mode(cached.base.path(), 0o755);
    let data = cached.data();
    fs::create_dir(data.join("private")).unwrap();
    mode(&data.join("private"), 0o700);
    let mount = cached.base.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let (pool, private) = (cached.pool(), data.join("private/divorce"));
    cached.keepstone(&["attach", text(&pool), text(&data), text(&mount)]);
    fs::write(mount.join("private/divorce"), "a").unwrap();
    cached.keepstone(&["attach", "flush", text(&mount)]);
    fs::write(mount.join("private/divorce"), "bb").unwrap();
    fs::write(&private, "by others").unwrap();
    let program = env!("CARGO_BIN_EXE_keepstone");
    let status = format!("{program} --json attach status {}", text(&mount));
    wait_until("a conflict", || tool("sh", &["-c", &status]).contains("divorce"));
    let own = tool("sh", &["-c", &status]);
    assert!(own.contains("divorce"), "{own}");
    let theirs = as_nobody(&status);
    assert!(!theirs.contains("divorce"), "{theirs}");
    let theirs: serde_json::Value = serde_json::from_str(&theirs).unwrap();
    assert_eq!(theirs["cache"]["troubled_files"], 1);
    let shown = as_nobody(&format!("{program} attach status {}", text(&mount)));
    assert!(shown.contains("1 files need attention"), "{shown}");
    umount_when_free(&mount);
}

/// A file that was made immutable is not written back; the status and the unmount name it.
#[test]
fn frozen_files_are_named() {
    let cached = Cached::new();
    let data = cached.data();
    let mount = cached.base.path().join("mount");
    fs::create_dir(&mount).unwrap();
    fs::write(data.join("file"), "old").unwrap();
    let pool = cached.pool();
    cached.keepstone(&["attach", "--max-age=3600", text(&pool), text(&data), text(&mount)]);
    fs::write(mount.join("file"), "newer").unwrap();
    tool("chattr", &["+i", text(&data.join("file"))]);
    assert!(!cached.run(&["attach", "flush", text(&mount)]).status.success());
    let told = cached.keepstone(&["--json", "attach", "status", text(&mount)]);
    let status: serde_json::Value = serde_json::from_str(&told).unwrap();
    let trouble = &status["cache"]["troubles"][0];
    assert_eq!(trouble["path"], "file", "{status:#}");
    assert_eq!(content(mount.join("file")), "newer");
    assert_eq!(content(data.join("file")), "old");
    let left = error(&cached.run(&["umount", text(&mount)]));
    assert!(left.contains("1 files are not in") && left.contains("file: "), "{left}");
    tool("chattr", &["-i", text(&data.join("file"))]);
}
