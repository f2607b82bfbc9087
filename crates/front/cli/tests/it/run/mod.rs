//! Programs under `keepstone run` see the same as on tmpfs.
//!
//! Needs root, `/dev/fuse` and gcc.

#![allow(unsafe_code)]

mod filtered;
mod memory;

use crate::common::{
    PermissionsExt as _, Sandbox, as_nobody, library, on_each_engine, tool, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

on_each_engine!(
    every_class_of_calls_is_served_and_answers_as_the_kernel,
    streams_of_libc_are_served_and_answer_as_on_tmpfs,
    processes_share_files_as_on_tmpfs,
    what_others_map_and_what_is_written_beside_the_mount_meet,
    files_are_nothing_else_and_keep_their_names,
    threads_have_identities_of_their_own_as_on_tmpfs,
    what_the_kernel_does_to_mappings_is_done_to_the_file,
    calls_by_number_find_their_descriptors,
    what_one_side_writes_the_other_reads,
    space_of_removed_files_comes_back,
    a_child_of_a_full_table_keeps_its_files,
    a_child_of_a_killed_parent_keeps_its_files,
    threads_fork_and_end_and_exec_at_once,
    requests_of_io_uring_and_linux_aio_are_served,
    children_in_the_memory_of_their_parent_leave_it_its_files,
    the_end_of_a_file_is_where_it_is_now,
    a_program_near_its_limits_fails_by_error_numbers_only,
    a_program_on_a_truncated_pool_gets_errors_and_no_signal,
    the_mount_serves_programs_that_find_no_shared_state,
    a_truncated_shared_state_kills_no_process,
    the_c_interface_shares_the_pool_with_the_mount,
);

/// Compiles a C program of `crates/front/preload/tests/c`, if it has changed since the last time.
/// Returns the path.
pub fn compiled(name: &str, options: &[&str]) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = dir.join(format!("{name}{}", options.concat()));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/c");
    let source = sources.join(name).with_extension("c");
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let of_source = [&source, &sources.join("check.h")].map(|path| modified(path).unwrap());
    if modified(&file).is_ok_and(|compiled| of_source.iter().all(|source| compiled > *source)) {
        return file;
    }
    let partial = dir.join(format!("{name}-{}", std::process::id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-o"]).arg(&partial).arg(source);
    let output = gcc.args(options).arg("-lpthread").output().expect("gcc: install it");
    assert!(output.status.success(), "{output:?}");
    fs::rename(partial, &file).unwrap();
    file
}

/// Runs a program without input; returns its output.
fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs `keepstone run ARGS`.
fn keepstone_run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    output_of(command.arg("run").args(args).env("KEEPSTONE_LIBRARY", library()))
}

/// Runs the calls of `calls.c` in a fresh directory of /dev/shm, without the library.
fn on_tmpfs(calls: &Path) -> String {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let output = output_of(Command::new(calls).arg(dir.path()));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs them below the mount, with `options`, and compares all lines except those that contain one
/// of `different`; returns the object of `--stats --json`.
fn on_pool(sandbox: &Sandbox, calls: &Path, options: &[&str], different: &[&str]) -> Value {
    let dir = sandbox.path(calls.file_name().unwrap().to_str().unwrap());
    fs::create_dir(&dir).unwrap();
    under_run(&dir, calls, options, different)
}

/// Does the same as [`on_pool`], in any directory.
fn under_run(dir: &Path, calls: &Path, options: &[&str], different: &[&str]) -> Value {
    let expected = on_tmpfs(calls);
    assert!(expected.ends_with("\ndone\n"), "{expected}");
    let mut args: Vec<&OsStr> = vec!["--stats".as_ref(), "--json".as_ref()];
    args.extend(options.iter().map(OsStr::new));
    args.extend([OsStr::new("--"), calls.as_os_str(), dir.as_os_str()]);
    let output = keepstone_run(args);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let (calls, report) = text.rsplit_once("\ndone\n").expect("the program ends with `done`");
    let expected = expected.strip_suffix("\ndone\n").unwrap();
    let pairs = calls.lines().zip(expected.lines()).enumerate();
    let wrong: Vec<_> = pairs
        .filter(|(_, (got, wanted))| {
            got != wanted && !different.iter().any(|text| wanted.contains(text))
        })
        .map(|(line, (got, wanted))| format!("{}: {got}\n    not: {wanted}", line + 1))
        .collect();
    assert!(wrong.is_empty(), "lines of the program's output:\n{}", wrong.join("\n"));
    assert_eq!(calls.lines().count(), expected.lines().count());
    serde_json::from_str(report).unwrap()
}

fn every_class_of_calls_is_served_and_answers_as_the_kernel(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let report = on_pool(&sandbox, &compiled("calls", &[]), &[], &[]);
    let served = |class: &str| report["calls"][class]["served"].as_u64().unwrap_or(0);
    for class in [
        "open",
        "close",
        "descriptor",
        "read",
        "write",
        "seek",
        "size",
        "sync",
        "stat",
        "attributes",
        "xattr",
        "names",
        "list",
        "map",
        "lock",
        "copy",
        "other",
    ] {
        assert!(served(class) > 0, "{class}: {report}");
    }
    let by_kernel = report["calls"]["open"]["by_kernel"].as_u64().unwrap();
    assert!(served("open") > 100 * by_kernel, "{report}");
    sandbox.umount();
}

fn requests_of_io_uring_and_linux_aio_are_served(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let requests = compiled("requests", &["-luring", "-laio"]);
    let report = on_pool(&sandbox, &requests, &[], &[]);
    let served = |class: &str| report["calls"][class]["served"].as_u64().unwrap();
    assert!(served("read") >= 9 && served("write") >= 9 && served("sync") >= 3, "{report}");
    // The kernel makes requests that are chained, registered, spliced, appended by Linux AIO, on
    // files that a ring has opened, or that fail.
    let by_mount = sandbox.requests("read") + sandbox.requests("write");
    assert!((1..50).contains(&by_mount), "{}", sandbox.stats());
    sandbox.umount();
}

fn children_in_the_memory_of_their_parent_leave_it_its_files(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    on_pool(&sandbox, &compiled("helpers", &[]), &[], &[]);
    sandbox.umount();
}

fn the_end_of_a_file_is_where_it_is_now(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    on_pool(&sandbox, &compiled("ends", &[]), &[], &[]);
    sandbox.umount();
}

fn streams_of_libc_are_served_and_answer_as_on_tmpfs(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let report = on_pool(&sandbox, &compiled("streams", &[]), &[], &[]);
    let count = |class: &str, kind: &str| report["calls"][class][kind].as_u64().unwrap_or(0);
    for class in ["open", "close", "read", "write", "seek", "stat"] {
        assert!(count(class, "served") > 20, "{class}: {report}");
    }
    // Exceptions: files that libc opens itself (the modes `c` and `ccs`), files that the kernel
    // also has, and the first calls of a child.
    let by_kernel = |class: &&str| count(class, "by_kernel") > 8;
    let classes = ["read", "write", "seek", "close", "stat"];
    assert_eq!(classes.iter().find(|class| by_kernel(class)), None, "{report}");
    sandbox.umount();
}

/// Inherited descriptors are served like files that programs open: redirected, appended to, shared
/// with others.
#[test]
fn redirections_are_served() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let script = "
        set -e
        seq 1 50000 >numbers
        sort -rn <numbers >sorted
        dd if=numbers of=copy bs=512 2>/dev/null
        dd bs=512 <numbers >copied 2>/dev/null
        : >log
        (seq 1 20000; echo between; seq 1 20000) >>log
        (seq 1 9000 & seq 1 9000; wait) >>both 2>&1
        (head -n 1 >/dev/null; cat) <numbers >rest
        exec 7>seventh; seq 1 20000 >&7; echo end >&7; exec 7>&-
        tee one two <numbers >three
        { read -r first; read -r second; cat >/dev/null; echo $first $second; } <numbers >read
        python3 -c 'import sys; sys.stdout.write(sys.stdin.read())' <numbers >through
    ";
    let run = |dir: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(["run", "--stats", "--json", "--", "bash", "-c", script]).current_dir(dir);
        output_of(command.env("KEEPSTONE_LIBRARY", library()))
    };
    let plain = tempfile::tempdir_in("/dev/shm").unwrap();
    assert!(
        output_of(Command::new("bash").args(["-c", script]).current_dir(&plain)).status.success()
    );
    let dir = sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let output = run(&dir);
    assert!(output.status.success(), "{output:?}");
    for entry in fs::read_dir(&plain).unwrap() {
        let name = entry.unwrap().file_name();
        let (expected, got) = (plain.path().join(&name), dir.join(&name));
        let (expected, got) = (fs::read(expected).unwrap(), fs::read(got).unwrap());
        // Two processes write to it at once.
        let is_same = if name == "both" { expected.len() == got.len() } else { expected == got };
        assert!(is_same, "{name:?}: {} bytes, not {}", got.len(), expected.len());
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mount = report["mounts"].as_object().unwrap().values().next().unwrap();
    let requests = |kind: &str| mount[kind].as_u64().unwrap_or(0);
    let served = |kind: &str| report["calls"][kind]["served"].as_u64().unwrap_or(0);
    // The kernel makes the first calls of each program.
    for kind in ["read", "write"] {
        assert!(requests(kind) < 16 * 16, "{kind}: {report}");
        assert!(served(kind) > 10 * requests(kind), "{kind}: {report}");
    }
    sandbox.umount();
}

fn processes_share_files_as_on_tmpfs(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let report = on_pool(&sandbox, &compiled("shared", &[]), &[], &[]);
    // Files that the kernel has, too, are served as before.
    let writes = &report["calls"]["write"];
    assert!(writes["served"].as_u64() > writes["by_kernel"].as_u64(), "{report}");
    sandbox.umount();
}

#[test]
fn changed_files_lose_their_capabilities_as_on_tmpfs() {
    let program = compiled("capable", &[]);
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    on_pool(&sandbox, &program, &[], &[]);
    sandbox.umount();
    // Through the mount, with the kernel's cache.
    let expected = on_tmpfs(&program);
    for options in [&[][..], &["-o", "direct"]] {
        let sandbox = Sandbox::mounted(options);
        let dir = sandbox.path("capable");
        fs::create_dir(&dir).unwrap();
        let output = output_of(Command::new(&program).arg(&dir));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{options:?}");
        sandbox.umount();
    }
}

#[test]
fn older_functions_that_set_handlers_answer_as_on_tmpfs() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    on_pool(&sandbox, &compiled("handlers", &[]), &[], &[]);
    sandbox.umount();
}

fn threads_have_identities_of_their_own_as_on_tmpfs(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let report = on_pool(&sandbox, &compiled("identities", &[]), &[], &[]);
    // Threads with different identities are still served.
    assert!(report["calls"]["attributes"]["served"].as_u64() >= Some(100), "{report}");
    assert!(report["calls"]["names"]["served"].as_u64() >= Some(50), "{report}");
    sandbox.umount();
}

fn what_the_kernel_does_to_mappings_is_done_to_the_file(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let others = ["a", "b", "c"].map(|name| sandbox.path(name));
    others.iter().for_each(|other| fs::write(other, [b'o'; 65_536]).unwrap());
    on_pool(&sandbox, &compiled("remapped", &[]), &[], &[]);
    for other in &others {
        assert!(fs::read(other).unwrap() == [b'o'; 65_536], "another file has changed");
    }
    sandbox.umount();
    sandbox.ok(["check", sandbox.pool_str()]);
}

fn calls_by_number_find_their_descriptors(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    on_pool(&sandbox, &compiled("numbers", &[]), &[], &[]);
    sandbox.umount();
}

#[test]
fn the_environment_asks_nothing_in_a_privileged_program() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let (file, program) = (sandbox.path("file"), sandbox.outside("privileged"));
    fs::write(&file, "content").unwrap();
    fs::copy(library(), sandbox.outside("libkeepstone.so")).unwrap();
    std::os::unix::fs::symlink("libkeepstone.so", sandbox.outside("libkeepstone.so.0")).unwrap();
    let source = sandbox.outside("privileged.c");
    let text = "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\n\
        int main(int count, char **args) { char text[16]; \
        return printf(\"%zd\", read(open(args[1], O_RDONLY), text, 16)) < 0; }\n";
    fs::write(&source, text).unwrap();
    let dir = program.parent().unwrap().display().to_string();
    let mut gcc = Command::new("gcc");
    gcc.arg("-o").arg(&program).arg(&source).args(["-L", &dir, "-Wl,--no-as-needed"]);
    gcc.args(["-lkeepstone", &format!("-Wl,-rpath,{dir}")]);
    let output = gcc.output().expect("gcc: install it");
    assert!(output.status.success(), "{output:?}");
    // The program is linked with the library, and counts in the file that the environment names.
    let counted = |user: &[&'static str]| {
        let args = ["--stats", "--json", "--"].iter().chain(user).map(OsStr::new);
        let output = keepstone_run(args.chain([program.as_os_str(), file.as_os_str()]));
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_json::from_str(text.strip_prefix('7').unwrap()).unwrap();
        report["by_program"].as_array().unwrap().len()
    };
    assert_eq!(counted(&[]), 1);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    assert_eq!(counted(&user), 0, "a set-user-ID program");
    sandbox.umount();
}

fn what_others_map_and_what_is_written_beside_the_mount_meet(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let path = sandbox.path("file");
    fs::write(&path, [b'.'; 8192]).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // This process is not served.
    let kinds = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, unmapped below.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), 8192, kinds, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: mapped above; other processes change it, so accesses are volatile.
    let byte = |index: usize| unsafe { at.cast::<u8>().add(index) };
    // SAFETY: as above.
    assert_eq!(unsafe { byte(10).read_volatile() }, b'.');
    let script = format!("printf B | dd of={} bs=1 seek=10 conv=notrunc,fsync", path.display());
    assert!(keepstone_run(["sh", "-c", &script]).status.success());
    // SAFETY: as above.
    unsafe {
        assert_eq!(byte(10).read_volatile(), b'B');
        byte(0).write_volatile(b'A');
    }
    let seen = keepstone_run(["head", "-c", "1", path.to_str().unwrap()]);
    assert_eq!(seen.stdout, b"A");
    // SAFETY: mapped above, and not used after this.
    unsafe {
        byte(1).write_volatile(b'A');
        libc::munmap(at, 8192);
    }
    let content = fs::read(&path).unwrap();
    assert_eq!((&content[..3], &content[9..12]), (&b"AA."[..], &b".B."[..]));
    drop(file);
    sandbox.umount();
}

#[test]
fn descriptors_of_the_mount_answer_alike() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    // The mount cannot do this (docs/SEMANTICS.md); and buffers are touched if the library does not
    // ask the mount for the size.
    let different = ["O_TMPFILE", "pages_touched(fd)"];
    let calls = compiled("calls", &[]);
    let report = on_pool(&sandbox, &calls, &["--fds", "real"], &different);
    assert_eq!(report["calls"]["open"]["served"], 0, "{report}");
    for counter in ["served", "served_ns"] {
        assert!(report["calls"]["names"][counter].as_u64().unwrap() > 0, "{report}");
    }
    sandbox.umount();
}

#[test]
fn pointers_good_and_bad_give_what_the_kernel_gives() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let pointers = compiled("pointers", &[]);
    // libc itself dies of these.
    let different = ["signal"];
    on_pool(&sandbox, &pointers, &[], &different);
    // The same on files outside the pool.
    let [plain, direct] = [(), ()].map(|()| tempfile::tempdir_in("/dev/shm").unwrap());
    under_run(plain.path(), &pointers, &[], &different);
    let served = ["--direct", direct.path().to_str().unwrap()];
    under_run(direct.path(), &pointers, &served, &different);
    sandbox.umount();
}

fn files_are_nothing_else_and_keep_their_names(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    on_pool(&sandbox, &compiled("kinds", &[]), &[], &[]);
    sandbox.umount();
}

#[test]
fn programs_that_restrict_themselves_are_restricted() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    on_pool(&sandbox, &compiled("restricted", &[]), &[], &[]);
    sandbox.umount();
}

#[test]
fn threads_are_cancelled_where_they_may_be() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let cancel = compiled("cancel", &[]);
    on_pool(&sandbox, &cancel, &[], &[]);
    let direct = tempfile::tempdir_in("/dev/shm").unwrap();
    under_run(direct.path(), &cancel, &["--direct", direct.path().to_str().unwrap()], &[]);
    sandbox.umount();
}

#[test]
fn libraries_that_a_program_preloads_see_its_calls() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let interposer = compiled("interposer", &["-shared", "-fPIC"]);
    for list in ["$LD_PRELOAD:$LIB", "$LIB:$LD_PRELOAD", "$LIB"] {
        let script = format!("mkdir $DIR/dir && LD_PRELOAD={list} rmdir $DIR/dir && ls $DIR");
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(["run", "--stats", "--json", "--", "sh", "-c", &script]);
        command.env("KEEPSTONE_LIBRARY", library()).env("DIR", &sandbox.dir);
        let output = output_of(command.env("LIB", &interposer));
        let text = String::from_utf8_lossy(&output.stdout);
        let report = text.strip_prefix("seen\n").unwrap_or_else(|| panic!("{list}: {output:?}"));
        let report: Value = serde_json::from_str(report).unwrap();
        assert_eq!(report["calls"]["names"]["by_kernel"], 0, "{report}");
        assert_eq!(report["calls"]["names"]["served"], 2, "{report}");
    }
    sandbox.umount();
}

#[test]
fn a_program_with_a_small_stack_runs() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let script = "ulimit -s 96 && cd $0 && mkdir dir && cp /etc/passwd dir && cmp /etc/passwd dir/passwd && rm -r dir";
    let dir = sandbox.dir.as_os_str();
    let output = keepstone_run(["sh".as_ref(), "-c".as_ref(), script.as_ref(), dir]);
    assert!(output.status.success(), "{output:?}");
    sandbox.umount();
}

#[test]
fn an_exclusive_mount_serves_itself() {
    let sandbox = Sandbox::mounted(&["-o", "exclusive"]);
    let file = sandbox.path("file");
    let script = format!("echo content > {0} && cat {0}", file.display());
    let output = keepstone_run(["--stats", "--json", "--", "sh", "-c", &script]);
    let text = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_str(text.strip_prefix("content\n").unwrap()).unwrap();
    assert_eq!(report["calls"]["write"]["served"], 0, "{report}");
    assert_eq!(report["reasons"]["exclusive"]["bytes"], 16, "{report}");
    assert_eq!(fs::read_to_string(file).unwrap(), "content\n");
}

fn what_one_side_writes_the_other_reads(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let file = sandbox.path("file");
    fs::write(&file, "by the mount").unwrap();
    let output = keepstone_run(["cat", file.to_str().unwrap()]);
    assert_eq!(output.stdout, b"by the mount");
    let script = format!("cp /etc/passwd {0}; mv {0} {0}.new", file.display());
    assert!(keepstone_run(["sh", "-c", &script]).status.success());
    let moved = sandbox.path("file.new");
    assert_eq!(fs::read(moved).unwrap(), fs::read("/etc/passwd").unwrap());
    assert!(!file.exists());
    sandbox.umount();
}

/// Space of removed files is free again, even if the kernel knows the files: by the shell's
/// descriptors, by `ls` outside, under other names.
fn space_of_removed_files_comes_back(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let free = || rustix::fs::statvfs(&sandbox.dir).unwrap().f_bfree;
    let sh = |script: &str| {
        let output = keepstone_run(["--", "sh", "-ec", script, "sh", sandbox.dir_str()]);
        assert!(output.status.success(), "{script}: {output:?}");
    };
    sh("cd $1; echo > f; mkdir d; rm -r f d");
    let before = free();
    let half = before / 2 * 4096;
    for script in [
        format!("cd $1; for i in 1 2 3 4 5; do head -c {half} /dev/zero > f; rm f; done"),
        format!(
            "cd $1; for i in 1 2 3; do head -c {half} /dev/zero > f; mv f g; echo > h; mv h g; done; rm g"
        ),
    ] {
        sh(&script);
        wait_until("all is free again", || free() == before);
    }
    for removal in ["rm f", "mv f g; rm g", "mkdir d; mv f d/g; rm -r d"] {
        sh(&format!("head -c {half} /dev/zero > $1/f"));
        tool("ls", &["-l", sandbox.dir_str()]);
        sh(&format!("cd $1; {removal}"));
        wait_until("all is free again", || free() == before);
    }
    sandbox.umount();
}

#[test]
fn a_program_keeps_to_what_it_has_mounted_itself() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let output = keepstone_run([compiled("remounts", &[]).as_os_str(), sandbox.dir.as_os_str()]);
    assert!(output.status.success(), "{output:?}");
    sandbox.umount();
}

/// Runs a scenario of `life.c`.
fn lives(layout: &str, scenario: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let program = compiled("life", &[]);
    let output = keepstone_run([program.as_os_str(), scenario.as_ref(), sandbox.dir.as_os_str()]);
    assert!(output.status.success() && output.stdout == b"done\n", "{output:?}");
    sandbox.umount();
}

fn a_child_of_a_full_table_keeps_its_files(layout: &str) {
    lives(layout, "full-table");
}

fn a_child_of_a_killed_parent_keeps_its_files(layout: &str) {
    lives(layout, "killed-parents");
}

fn threads_fork_and_end_and_exec_at_once(layout: &str) {
    lives(layout, "threads");
}

/// Runs a program that must succeed on tmpfs and on a pool. Nothing is counted, as the file of the
/// counts is a part of the memory that a program may lock.
fn is_done(layout: &str, name: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let program = compiled(name, &[]);
    assert_eq!(on_tmpfs(&program), "done\n");
    let words = ["--quiet".as_ref(), "--".as_ref(), program.as_os_str(), sandbox.dir.as_os_str()];
    let output = keepstone_run(words);
    assert!(output.status.success() && output.stdout == b"done\n", "{output:?}");
    sandbox.umount();
}

fn a_program_near_its_limits_fails_by_error_numbers_only(layout: &str) {
    is_done(layout, "limits");
}

fn a_program_on_a_truncated_pool_gets_errors_and_no_signal(layout: &str) {
    let s = Sandbox::mounted_as(layout, &["-o", "direct"]);
    fs::write(s.path("near"), vec![1; 100_000]).unwrap();
    fs::write(s.path("far"), vec![2; 100 << 20]).unwrap();
    let program = compiled("truncated", &[]);
    let script = format!("cd {} && {} {}", s.dir_str(), program.display(), s.pool_str());
    let output = keepstone_run(["--", "sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "far: EIO\nnear: EIO\nsize: EIO\nwrite: EIO\ncreate: EIO\n");
    s.umount();
}

/// The shared state is removed, as by `rm -r /dev/shm/keepstone-*`, or by systemd-logind when a
/// user logs out.
fn the_mount_serves_programs_that_find_no_shared_state(layout: &str) {
    let mut sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let uuid = sandbox.stats()["uuid"].as_str().unwrap().replace('-', "");
    let states = || {
        let own = fs::read_dir("/dev/shm/keepstone-0").into_iter().flatten();
        let all = own.map(|entry| entry.unwrap().path());
        all.filter(|path| path.to_string_lossy().contains(&uuid)).collect::<Vec<_>>()
    };
    assert_eq!(states().len(), 1);
    fs::remove_file(&states()[0]).unwrap();
    let file = sandbox.path("file");
    let script = format!("echo content > {0} && cat {0}", file.display());
    let output = keepstone_run(["sh", "-c", &script]);
    assert_eq!(output.stdout, b"content\n", "{output:?}");
    assert_eq!(fs::read(&file).unwrap(), b"content\n");
    assert_eq!(states().len(), 0, "there is one state of a pool, or none");
    sandbox.umount();
    sandbox.mount(&["-o", "direct"]);
    assert_eq!(fs::read(&file).unwrap(), b"content\n");
    sandbox.umount();
}

/// A user with write permission on the shared state truncates it while a server and a program use
/// it. Calls fail, neither process ends by a signal, and the pool can be mounted again.
fn a_truncated_shared_state_kills_no_process(layout: &str) {
    let mut sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let uuid = sandbox.stats()["uuid"].as_str().unwrap().replace('-', "");
    let file = sandbox.path("file");
    fs::write(&file, b"content").unwrap();
    let script = format!(
        "cat {0} && for state in /dev/shm/keepstone-0/{uuid}*; do : > $state; done
         for i in $(seq 50); do echo more > {0}.$i; done 2>/dev/null; echo alive",
        file.display()
    );
    let output = keepstone_run(["bash", "-c", &script]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said == "contentalive\n", "{output:?}");
    let failed = fs::write(sandbox.path("new"), b"").err().and_then(|err| err.raw_os_error());
    assert_eq!(failed, Some(libc::EIO));
    sandbox.umount();
    sandbox.mount(&["-o", "direct"]);
    assert_eq!(fs::read(&file).unwrap(), b"content");
    sandbox.umount();
}

#[test]
fn the_exit_status_is_the_programs() {
    let status = |args: &[&str]| keepstone_run(args).status.code();
    assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(status(&["--stats", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(status(&["--stats", "sh", "-c", "kill -TERM $$"]), Some(128 + 15));
    assert_eq!(status(&["no-such-program"]), Some(127));
    assert_eq!(status(&["/etc"]), Some(126));
    assert_eq!(status(&[]), Some(2));
}

/// Returns the finding of `keepstone doctor TARGET` about a subject.
fn doctor_found(sandbox: &Sandbox, target: &str, subject: &str) -> Value {
    let report: Value = serde_json::from_str(&sandbox.ok(["doctor", "--json", target])).unwrap();
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["subject"] == subject).unwrap().clone()
}

#[test]
fn doctor_tells_how_a_program_will_be_served() {
    let sandbox = Sandbox::empty();
    let found = |program: &str| doctor_found(&sandbox, program, "program");
    assert_eq!(found("cat")["level"], "ok");
    let calls = compiled("calls", &["-static"]);
    let found = found(calls.to_str().unwrap());
    assert_eq!(found["level"], "advice");
    assert!(found["found"].as_str().unwrap().ends_with("statically linked"), "{found}");
}

#[test]
fn mounts_that_are_not_served_are_named() {
    for (options, is_direct) in [(&[][..], true), (&["-o", "exclusive"], false)] {
        let sandbox = Sandbox::mounted(options);
        let dir = sandbox.path("").display().to_string();
        let dir = dir.trim_end_matches('/');
        let output = keepstone_run(["--stats", "--json", "--", "true"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let named = report["not_direct"].as_array().unwrap().iter().any(|named| named == dir);
        assert_eq!(named, !is_direct, "{report}");
        let found = doctor_found(&sandbox, dir, "direct access");
        assert_eq!(found["level"], if is_direct { "ok" } else { "advice" });
        sandbox.umount();
    }
}

/// Stops the server of a sandbox until this is dropped.
struct Stopped<'s>(&'s Sandbox);

impl<'s> Stopped<'s> {
    fn new(sandbox: &'s Sandbox) -> Self {
        sandbox.stop_server();
        Self(sandbox)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal_server(Signal::CONT);
    }
}

#[test]
fn a_stopped_server_holds_up_nobody_who_does_not_use_it() {
    for options in [&["-o", "direct"][..], &[]] {
        let sandbox = Sandbox::mounted(options);
        let stopped = Stopped::new(&sandbox);
        for args in [&["--"][..], &["--stats", "--json", "--"]] {
            let output =
                keepstone_run(args.iter().chain(&["sh", "-c", "ls /etc; cat /etc/passwd"]));
            assert!(output.status.success(), "{output:?}");
        }
        drop(stopped);
        sandbox.umount();
    }
}

#[test]
fn what_is_counted_has_no_name_and_no_way_to_shorten_it() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let file = sandbox.path("file");
    // The program tries the attacks of another user; `cat` has not inherited the descriptor.
    let script = format!(
        "echo a > {file}; : 2>/dev/null > $KEEPSTONE_STATS; truncate -s 0 $KEEPSTONE_STATS 2>/dev/null; \
         ls -l /proc/self/fd > /dev/null; eval \"exec ${{KEEPSTONE_STATS##*/}}>&-\"; \
         ls /dev/shm | grep keepstone-run && exit 9; cat {file}",
        file = file.display()
    );
    let output = keepstone_run(["--stats", "--json", "--", "bash", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let report: Value = serde_json::from_str(text.strip_prefix("a\n").unwrap()).unwrap();
    assert!(report["calls"]["read"]["served"].as_u64() >= Some(1), "{report}");
    sandbox.umount();
}

#[test]
fn who_may_not_open_the_pool_is_told_the_remedy_which_works_at_once() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let file = sandbox.path("file");
    fs::write(&file, "content\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    // Copies that all users can run, wherever the build directory is.
    let (program, lib) = (sandbox.outside("keepstone"), sandbox.outside("libkeepstone.so"));
    fs::copy(env!("CARGO_BIN_EXE_keepstone"), &program).unwrap();
    fs::copy(library(), &lib).unwrap();
    let run = |file: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command.args(["run", "--stats", "--json", "--", "cat"]).arg(file);
        let output = output_of(command.env("KEEPSTONE_LIBRARY", &lib));
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let report: Value = serde_json::from_str(text.strip_prefix("content\n").unwrap()).unwrap();
        let served = report["calls"]["read"]["served"].as_u64().unwrap_or(0);
        (served, String::from_utf8(output.stderr).unwrap())
    };
    let as_nobody = || run(&file);
    // There is no notice about a pool that the program does not use.
    let other = sandbox.outside("other");
    fs::copy(&file, &other).unwrap();
    assert!(!run(&other).1.contains(sandbox.pool_str()));
    // Pools of other tests could be open to all users.
    let (served, told) = as_nobody();
    assert_eq!(served, 0);
    if told.contains(sandbox.pool_str()) {
        let remedy = format!("chgrp 65534 {0} && chmod 660 {0}", sandbox.pool_str());
        assert!(told.contains("user 65534 may not open") && told.contains(&remedy), "{told}");
    }
    std::os::unix::fs::chown(&sandbox.pool, None, Some(65534)).unwrap();
    fs::set_permissions(&sandbox.pool, fs::Permissions::from_mode(0o660)).unwrap();
    wait_until("the user is served", || as_nobody().0 > 0);
    let told = as_nobody().1;
    assert!(!told.lines().any(|line| line.contains(sandbox.pool_str())), "{told}");
    sandbox.umount();
}

fn the_c_interface_shares_the_pool_with_the_mount(layout: &str) {
    let mut sandbox = Sandbox::formatted_as(layout);
    let (library, root) = (library(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."));
    let dir = library.parent().unwrap();
    let program = sandbox.outside("counter");
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    gcc.arg(root.join("examples/c/counter.c")).arg("-I").arg(root.join("include"));
    gcc.arg("-L").arg(dir).arg("-lkeepstone");
    let output = gcc.output().expect("gcc: install it");
    assert!(output.status.success(), "{output:?}");
    let pool = sandbox.pool.clone();
    let counter = || output_of(Command::new(&program).arg(&pool).env("LD_LIBRARY_PATH", dir));
    let count = |expected: &str| {
        let output = counter();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    };
    count("run 1\n6 bytes of log\n");
    count("run 2\n12 bytes of log\n");
    sandbox.mount(&["-o", "direct"]);
    count("run 3\n18 bytes of log\n");
    assert_eq!(fs::read_to_string(sandbox.path("runs/log")).unwrap(), "run 1\nrun 2\nrun 3\n");
    // An exclusive mount excludes other processes.
    sandbox.umount();
    sandbox.mount(&["-o", "exclusive"]);
    let output = counter();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn files_of_tmpfs_need_no_pool() {
    let again = compiled("again", &[]);
    let [plain, direct] = [(), ()].map(|()| tempfile::tempdir_in("/dev/shm").unwrap());
    let [expected, file] = [&plain, &direct].map(|dir| dir.path().join("file"));
    for file in [&expected, &file] {
        fs::write(file, vec![7; 1 << 20]).unwrap();
    }
    let sum = output_of(Command::new(&again).arg(&expected)).stdout;
    let dir = direct.path().to_str().unwrap();
    let options = ["--direct", dir, "--stats", "--json", "--"].map(OsStr::new);
    let output = keepstone_run(options.into_iter().chain([again.as_os_str(), file.as_os_str()]));
    let report = output.stdout.strip_prefix(&sum[..]).expect("what the program prints comes first");
    let report: Value = serde_json::from_slice(report).unwrap();
    for class in ["read", "write"] {
        assert!(report["calls"][class]["served"].as_u64().unwrap() > 1000, "{report}");
    }
    assert!(fs::read(&file).unwrap() == fs::read(&expected).unwrap());
}
