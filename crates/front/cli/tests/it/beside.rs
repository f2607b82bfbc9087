//! Programs that need the kernel's view of a file: alone on a mount, together with a program that
//! uses the pool directly, under `keepstone run`, and on caches. Each sees the same as on tmpfs.
//!
//! Needs root, `/dev/fuse` and gcc.

use std::fs;
use std::io::{BufRead as _, BufReader, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::attach::Cached;
use crate::common::{Sandbox, library, on_each_engine};
use crate::run::compiled;

on_each_engine!(
    requests_at_a_files_position_move_it,
    sparse_copies_have_what_was_mapped,
    names_that_come_and_go_are_opened,
    answers_are_those_of_tmpfs,
    appends_end_where_the_file_ends,
    appends_of_inherited_descriptors_end_where_the_file_ends,
    copies_to_a_file_that_others_have_open_are_whole,
);

/// Only on BPFS: SCMFS stores short holes as zeros.
#[test]
fn answers_about_holes_are_those_of_tmpfs() {
    everywhere("bpfs", &compiled("answers", &[]), &["punched"]);
}

/// A program that uses the pool of a mount directly, until this is dropped.
struct Company(Child);

impl Company {
    fn of(dir: &Path) -> Self {
        let mut run = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        run.args(["run", "--quiet", "--", "bash", "-c", "echo >\"$0\"; echo here; read -r _"]);
        run.arg(dir.join("company")).env("KEEPSTONE_LIBRARY", library());
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        Self(child)
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn under_run(program: &Path) -> Command {
    let mut run = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    run.args(["run", "--quiet", "--"]).arg(program).env("KEEPSTONE_LIBRARY", library());
    run
}

#[track_caller]
fn passes(what: &str, command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{what}: {output:?}");
}

/// Runs a program on a pool in every configuration, and on caches.
fn everywhere(layout: &str, program: &PathBuf, flags: &[&str]) {
    for options in [&[][..], &["-o", "exclusive"], &["-o", "direct"]] {
        let sandbox = Sandbox::mounted_as(layout, options);
        let dir = sandbox.path("dir");
        fs::create_dir(&dir).unwrap();
        passes(&format!("{options:?}"), Command::new(program).arg(&dir).args(flags));
        if options != ["-o", "exclusive"] {
            passes(&format!("run, {options:?}"), under_run(program).arg(&dir).args(flags));
            let company = Company::of(&sandbox.path(""));
            passes(&format!("beside, {options:?}"), Command::new(program).arg(&dir).args(flags));
            drop(company);
        }
        sandbox.umount();
    }
    let cached = Cached::new();
    cached.attach(&[]);
    let dir = cached.data();
    passes("cache", Command::new(program).arg(&dir).args(flags));
    passes("run on a cache", under_run(program).arg(&dir).args(flags));
    cached.detach();
}

fn requests_at_a_files_position_move_it(layout: &str) {
    let program = compiled("position", &[]);
    for flags in [&[][..], &["a"], &["d"]] {
        everywhere(layout, &program, flags);
    }
}

fn sparse_copies_have_what_was_mapped(layout: &str) {
    everywhere(layout, &compiled("sparse", &[]), &[]);
}

fn answers_are_those_of_tmpfs(layout: &str) {
    let program = compiled("answers", &[]);
    for what in ["read", "created", "sent", "stored"] {
        everywhere(layout, &program, &[what]);
    }
}

/// `open(O_CREAT)` succeeds while another process creates and removes the same name.
fn names_that_come_and_go_are_opened(layout: &str) {
    let program = compiled("comes", &[]);
    let sandbox = Sandbox::mounted_as(layout, &[]);
    let mut served =
        under_run(&program).arg(sandbox.path("")).stdout(Stdio::piped()).spawn().unwrap();
    passes("on the mount", Command::new(&program).arg(sandbox.path("")));
    let status = served.wait().unwrap();
    assert!(status.success());
    sandbox.umount();
}

/// A program with direct access appends to a file that this process has open for appends.
fn appends_end_where_the_file_ends(layout: &str) {
    for options in [&[][..], &["-o", "direct"]] {
        let sandbox = Sandbox::mounted_as(layout, options);
        let path = sandbox.path("log");
        let appends = || {
            let script = "echo 0123456789 >>\"$0\"; stat -c %s \"$0\"";
            let mut run = under_run(Path::new("sh"));
            run.args(["-c", script]).arg(&path);
            let output = run.stdin(Stdio::null()).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap()
        };
        let open = || fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut log = open();
        log.write_all(b"12345").unwrap();
        let mut later = open();
        assert_eq!(appends(), 16);
        log.write_all(b"12345").unwrap();
        assert_eq!(log.stream_position().unwrap(), 21, "{options:?}");
        assert_eq!(appends(), 32);
        later.write_all(b"12345").unwrap();
        assert_eq!(later.stream_position().unwrap(), 37, "{options:?}");
        drop((log, later));
        assert_eq!(appends(), 48);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "123450123456789\n123450123456789\n123450123456789\n");
        sandbox.umount();
    }
}

/// The kernel makes the first calls of a program on a descriptor that it inherits.
fn appends_of_inherited_descriptors_end_where_the_file_ends(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let script = "import os, subprocess, sys\n\
        log = open(sys.argv[1], 'ab', buffering=0)\n\
        subprocess.run(['/bin/true'])\n\
        os.truncate(sys.argv[1], 10000)\n\
        command = ['/bin/sh', '-c', 'printf abc; printf def']\n\
        subprocess.run(command, stdout=log, cwd='/', check=True)\n\
        assert os.lseek(log.fileno(), 0, 1) == 10006, os.lseek(log.fileno(), 0, 1)\n\
        assert os.stat(sys.argv[1]).st_size == 10006\n";
    let mut run = under_run(Path::new("python3"));
    passes("inherited", run.args(["-c", script]).arg(sandbox.path("log")));
    sandbox.umount();
}

/// The kernel copies to a file that this process has open. It has the source since a fork, and the
/// source has grown since.
fn copies_to_a_file_that_others_have_open_are_whole(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    let path = sandbox.path("target");
    let target = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let script = "import os, sys\n\
        source = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n\
        if os.fork() == 0: os._exit(0)\n\
        os.wait()\n\
        target = os.open(sys.argv[2], os.O_RDWR)\n\
        os.pwrite(source, b'x' * 9000, 0)\n\
        assert os.copy_file_range(source, target, 100) == 100\n";
    let mut run = under_run(Path::new("python3"));
    passes("copy", run.args(["-c", script]).arg(sandbox.path("source")).arg(&path));
    assert_eq!(fs::read(&path).unwrap(), [b'x'; 100]);
    drop(target.unwrap());
    sandbox.umount();
}
