//! Programs that need the kernel's view of a file: alone on a mount, together with a program that
//! uses the pool directly, under `keepstone run`, and on caches. Each sees the same as on tmpfs.
//!
//! Needs root, `/dev/fuse` and gcc.

use std::fs;
use std::io::{BufRead as _, BufReader};
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
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stdout));
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
