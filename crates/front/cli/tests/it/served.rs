//! Reports to users about service by `keepstone run`: counters, the closing line, notices,
//! `--explain` and `doctor`.
//!
//! Needs root, `/dev/fuse`, gcc and rsync.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::common::{PermissionsExt as _, Sandbox, library};
use serde_json::Value;

/// Runs `keepstone run OPTIONS -- bash -c SCRIPT` in the mount.
fn run(sandbox: &Sandbox, options: &[&str], script: &str) -> Output {
    let output = sandbox.served_script(options, script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn report(sandbox: &Sandbox, options: &[&str], script: &str) -> Value {
    let output = run(sandbox, &[&["--json"], options].concat(), script);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the notices about this sandbox, without those about mounts of other tests.
fn told(sandbox: &Sandbox, options: &[&str], script: &str) -> Vec<String> {
    let output = run(sandbox, options, script);
    let text = String::from_utf8(output.stderr).unwrap();
    let is_other = |line: &str| line.contains("so all calls go through the mount");
    let lines = text.lines().filter(|line| !is_other(line) || line.contains(sandbox.dir_str()));
    lines.map(str::to_owned).collect()
}

/// Compiles a C program with these options.
fn compiled(sandbox: &Sandbox, name: &str, options: &[&str], text: &str) -> String {
    let (source, program) = (sandbox.outside(&format!("{name}.c")), sandbox.outside(name));
    fs::write(&source, text).unwrap();
    let mut gcc = Command::new("gcc");
    let output = gcc.args(options).arg("-o").args([&program, &source]).output();
    assert!(output.expect("gcc: install it").status.success());
    program.to_str().unwrap().to_owned()
}

/// Compiles a static program that copies the file named by its first argument to its output.
fn static_program(sandbox: &Sandbox) -> String {
    let text = "#include <stdio.h>\nint main(int n, char **v) { FILE *f = fopen(v[1], \"r\"); int c; \
                while ((c = getc(f)) >= 0) putchar(c); return 0; }\n";
    compiled(sandbox, "static", &["-static"], text)
}

/// A script that creates the input of the programs on the mount.
const INPUT: &str =
    "seq 1 300000 >numbers; mkdir tree; for i in {1..300}; do head -c 20000 numbers >tree/$i; done";

/// At least 99 % of calls and bytes of real programs are served, by counters of the library, and of
/// the server if it has some.
#[test]
fn nearly_all_of_real_programs_is_served() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    run(&sandbox, &[], INPUT);
    for (program, script) in [
        ("sort", "sort -S 4M -T . -rn numbers -o sorted; sort -S 4M -T . numbers >sorted2"),
        ("rsync", "rsync -a tree/ copy"),
        (
            "gcc",
            "printf 'int main(void) { return 0; }\\n' >a.c; gcc -c a.c; gcc -save-temps -o a a.c",
        ),
        ("dd", "dd if=numbers of=d1 bs=512; dd bs=512 <numbers >d2"),
        ("tee", "tee t1 t2 <numbers >t3"),
        ("cp", "cp --reflink=never numbers c1; cp -a --reflink=never tree c2"),
        (
            "bash",
            "for i in {1..2000}; do echo $i; done >b1; while read -r x; do :; done <b1; cat <numbers >b2",
        ),
        ("sed", "sed -i s/1/2/ c1"),
    ] {
        let report = report(&sandbox, &["--stats", "--explain"], script);
        let percent = |index: usize| report["served_percent"][index].as_f64().unwrap();
        assert!(percent(0) >= 99.0 && percent(1) >= 99.0, "{program}: {report:#}");
        // The kernel itself reads programs that it executes and files that libc opens internally.
        let all = &report["mounts"][sandbox.dir_str()];
        let requests = ["read", "write"].map(|kind| all[kind].as_u64().unwrap_or(0));
        let calls = report["served"]["calls"].as_u64().unwrap();
        assert!(100 * requests.iter().sum::<u64>() <= calls, "{program}: {report:#}");
    }
    sandbox.umount();
}

/// Futex calls by number, as from the locks of C++ and Rust. Their argument could be mistaken for
/// standard output.
#[test]
fn calls_by_number_that_take_no_descriptors_leave_files_alone() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let text = "#include <sys/syscall.h>\n#include <unistd.h>\nint main(void) { int word = 0; \
                for (int i = 0; i < 100; i++) { write(1, \"x\", 1); syscall(SYS_futex, &word, 129, 1, 0, 0, 0); } }\n";
    let program = compiled(&sandbox, "futex", &[], text);
    let report = report(&sandbox, &["--stats"], &format!("{program} >output"));
    assert_eq!(fs::read(sandbox.dir.join("output")).unwrap(), b"x".repeat(100));
    assert!(report["reasons"]["kernel-only"].is_null(), "{report:#}");
}

#[test]
fn bytes_are_counted_by_the_way_they_took() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let script = "head -c 1000000 /dev/zero >a; cat a a >b; cp --reflink=never b c";
    let fast = report(&sandbox, &["--stats"], script);
    let bytes = |report: &Value, class: &str, kind: &str| {
        report["calls"][class][kind].as_u64().unwrap_or(0)
    };
    let read = bytes(&fast, "read", "served_bytes") + bytes(&fast, "copy", "served_bytes");
    let by_mount = fast["by_mount"]["bytes"].as_u64().unwrap();
    // Writes to inherited descriptors may go through the kernel at first.
    assert!((4_000_000..=6_100_000).contains(&(read + by_mount)), "{fast:#}");
    // The kernel opens the files, and the bytes that it moves are counted, too.
    let real = report(&sandbox, &["--stats", "--fds", "real"], script);
    let all = ["read", "write", "copy"].map(|class| bytes(&real, class, "by_kernel_bytes"));
    assert_eq!(all.iter().sum::<u64>(), 6_000_000, "{real:#}");
    assert_eq!(real["served"]["bytes"], 0, "{real:#}");
    assert!(real["reasons"]["kernel-descriptors"]["calls"].as_u64() > Some(10), "{real:#}");
    sandbox.umount();
}

/// This holds for programs that end, are killed, fork, have threads, change their user, or are
/// scripts.
#[test]
fn calls_are_counted_by_program() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    // Where others can load it, wherever the build directory is.
    let lib = sandbox.outside("libkeepstone.so");
    fs::copy(library(), &lib).unwrap();
    let script = r#"
        head -c 100000 /dev/zero >a; seq 1 10 >lines
        cp --reflink=never a copy
        for i in 1 2 3; do KEEPSTONE_FDS=real cat a >/dev/null; done
        perl -e 'open F, "a"; sysread F, $x, 40000; if (!fork) { sysread F, $x, 60000; kill 9, $$ } wait; kill 9, $$' || true
        python3 -c 'from threading import Thread
open("a").close() # who opens while a pool is attached gets it from the kernel
all = [Thread(target=lambda: open("a", "rb").read()) for i in range(8)]
[thread.start() for thread in all]
[thread.join() for thread in all]'
        setpriv --reuid=65534 --regid=65534 --clear-groups dd if=a of=/dev/null bs=1000
        printf '#!/bin/sh
read -r first
echo "$first" >line' >script; chmod +x script; ./script <lines
    "#;
    let keepstone_run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(["run", "--stats"]).args(options).args(["--", "bash", "-euc", script]);
        command.current_dir(&sandbox.dir).env("KEEPSTONE_LIBRARY", &lib).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let report: Value = serde_json::from_slice(&keepstone_run(&["--json"]).stdout).unwrap();
    let programs = report["by_program"].as_array().unwrap();
    let of = |name: &str| {
        let found = programs.iter().find(|program| program["program"] == name);
        found.unwrap_or_else(|| panic!("{name}: {report:#}"))
    };
    let number = |of: &Value, way: &str, unit: &str| of[way][unit].as_u64().unwrap();
    let bytes = |name: &str| ["served", "by_mount"].map(|way| number(of(name), way, "bytes"));
    assert_eq!((bytes("cat"), &of("cat")["processes"]), ([0, 300_000], &3.into()), "{report:#}");
    assert_eq!(of("cat")["served_percent"][1], 0.0, "{report:#}");
    assert!(of("cat")["reasons"]["kernel-descriptors"]["calls"].as_u64() > Some(3), "{report:#}");
    assert_eq!(bytes("cp")[1], 0, "{report:#}");
    assert!(bytes("cp")[0] >= 100_000, "{report:#}");
    // Counts before a kill are not lost, nor are those of the child.
    assert_eq!(bytes("perl").iter().sum::<u64>(), 100_000, "{report:#}");
    assert_eq!(of("perl")["processes"], 2, "{report:#}");
    assert_eq!((bytes("python3"), &of("python3")["processes"]), ([800_000, 0], &1.into()));
    // This user may not open the pool.
    assert_eq!(bytes("dd"), [0, 100_000], "{report:#}");
    assert!(of("dd")["reasons"]["permission"]["calls"].as_u64() >= Some(100), "{report:#}");
    assert!(bytes("script").iter().sum::<u64>() > 2, "{report:#}");
    // This program made the most calls through the mount. Each call is counted for exactly one
    // program.
    assert_eq!(programs[0]["program"], "dd", "{report:#}");
    for (way, unit) in
        ["served", "by_mount"].into_iter().flat_map(|way| [(way, "calls"), (way, "bytes")])
    {
        let sum: u64 = programs.iter().map(|program| number(program, way, unit)).sum();
        assert_eq!(sum, number(&report, way, unit), "{way} {unit}: {report:#}");
    }
    // The text output is a table.
    let text = String::from_utf8(keepstone_run(&[]).stderr).unwrap();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("program "));
    let head = lines.next().unwrap_or_else(|| panic!("{text}"));
    for column in ["processes", "in user space", "by the kernel", "bytes", "% calls", "% bytes"] {
        assert!(head.contains(column), "{text}");
    }
    let cat = lines.find(|line| line.starts_with("cat ")).unwrap_or_else(|| panic!("{text}"));
    let columns: Vec<_> = cat.split_whitespace().collect();
    assert_eq!((columns[1], columns[5], columns[7]), ("3", "300000", "0.0"), "{text}");
    sandbox.umount();
}

#[test]
fn too_little_served_is_said_in_one_line_at_the_end() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let (enough, little) = ("head -c 100000 /dev/zero | tee a >b", &["--fds", "real"]);
    assert_eq!(told(&sandbox, &[], enough), [""; 0]);
    let line = told(&sandbox, little, enough);
    assert_eq!(line.len(), 1, "{line:?}");
    let worst = "; served worst: tee (0 of ";
    for part in ["keepstone: ", "were served in user space", worst, "--fds fast", "--explain"] {
        assert!(line[0].contains(part), "{line:?}");
    }
    assert_eq!(told(&sandbox, &["--quiet", "--fds", "real"], enough), [""; 0]);
    let json = told(&sandbox, &["--json", "--fds", "real"], enough);
    let json: Value = serde_json::from_str(&json[0]).unwrap();
    assert!(json["notice"].as_str().unwrap().contains("were served in user space"));
    // A program that closes its stderr, and one that leaves a child behind, which delays nothing.
    let closes = told(&sandbox, little, "exec sort -o sorted /proc/cpuinfo");
    assert_eq!(closes.len(), 1, "{closes:?}");
    let leaves = told(
        &sandbox,
        little,
        "cat /proc/cpuinfo >x; (exec 0<&- 1>&- 2>&-; sleep 600) & echo $! >pid",
    );
    assert_eq!(leaves.len(), 1, "{leaves:?}");
    let pid = fs::read_to_string(sandbox.path("pid")).unwrap();
    assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success());
    // The line reports programs that were not served at all.
    fs::write(sandbox.path("file"), "content").unwrap();
    let program = static_program(&sandbox);
    let unserved = told(&sandbox, &[], &format!("{program} file; true"));
    assert_eq!(unserved.len(), 1, "{unserved:?}");
    assert!(
        unserved[0].contains("1 program could not be served (statically linked"),
        "{unserved:?}"
    );
    sandbox.umount();
}

#[test]
fn files_and_programs_that_are_not_served_are_explained() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let program = static_program(&sandbox);
    let script = format!(
        "head -c 100000 /dev/zero >plain; cat plain >copy; {program} plain >/dev/null; true"
    );
    let explained = report(&sandbox, &["--explain", "--fds", "real"], &script);
    let files = explained["files"].as_array().unwrap();
    for name in ["plain", "copy"] {
        let path = sandbox.path(name).display().to_string();
        let file = files.iter().find(|file| file["path"] == *path);
        let file = file.unwrap_or_else(|| panic!("{name}: {explained:#}"));
        assert_eq!(file["reason"], "kernel-descriptors");
        // A copy counts for the file that was read.
        let bytes = if name == "plain" { 100_000 } else { 0 };
        assert!(file["bytes"].as_u64() >= Some(bytes), "{file}");
    }
    assert_eq!(explained["unserved_programs"], 1);
    assert_eq!(explained["programs"][0]["program"], program);
    assert_eq!(explained["programs"][0]["why"], "statically linked");
    let text = told(&sandbox, &["--explain", "--fds", "real"], &script).join("\n");
    for part in [
        &format!("not served: {program}: statically linked"),
        "through the mount: ",
        "served in user space: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    sandbox.umount();
}

#[test]
fn each_mount_that_cannot_be_used_is_named_at_the_start() {
    let direct = Sandbox::mounted(&["-o", "direct"]);
    let exclusive = Sandbox::mounted(&["-o", "exclusive"]);
    let read_only = {
        let mut sandbox = Sandbox::formatted();
        sandbox.mount(&["-o", "ro"]);
        sandbox
    };
    let said = |command: &mut Command| {
        let output =
            command.env("KEEPSTONE_LIBRARY", library()).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let line = |text: &str, sandbox: &Sandbox| {
        let lines: Vec<_> = text.lines().filter(|line| line.contains(sandbox.dir_str())).collect();
        assert!(lines.len() < 2, "{text}");
        lines.first().map_or(String::new(), |line| (*line).to_owned())
    };
    let keepstone = env!("CARGO_BIN_EXE_keepstone");
    let all = [&direct, &exclusive, &read_only];
    // There are no notices about mounts that the program does not name.
    let text = said(Command::new(keepstone).args(["run", "--", "true"]));
    assert!(all.iter().all(|sandbox| line(&text, sandbox).is_empty()), "{text}");
    let dirs = all.map(|sandbox| sandbox.dir_str());
    let text = said(Command::new(keepstone).args(["run", "--", "true"]).args(dirs));
    assert_eq!(line(&text, &direct), "");
    assert!(line(&text, &exclusive).contains("has the pool for itself"), "{text}");
    assert!(line(&text, &read_only).contains("mounted read-only"), "{text}");
    assert_eq!(said(Command::new(keepstone).args(["run", "--quiet", "--", "true"]).args(dirs)), "");
    let in_namespace = ["--pid", "--fork", "--mount-proc", keepstone, "run", "--", "true", dirs[0]];
    let text = said(Command::new("unshare").args(in_namespace));
    assert!(line(&text, &direct).contains("another PID or time namespace"), "{text}");
    for (sandbox, level) in [(&direct, "ok"), (&exclusive, "advice"), (&read_only, "advice")] {
        assert_eq!(found(sandbox, sandbox.dir_str(), "direct access")["level"], level);
    }
    fs::set_permissions(&direct.pool, fs::Permissions::from_mode(0o660)).unwrap();
    let who = found(&direct, direct.dir_str(), "who may open the pool");
    assert!(who["found"].as_str().unwrap().contains("root, user 0, group 0 (mode 660)"), "{who}");
    for sandbox in [&direct, &exclusive, &read_only] {
        sandbox.umount();
    }
}

/// Returns the finding of `keepstone doctor TARGET` about a subject.
fn found(sandbox: &Sandbox, target: &str, subject: &str) -> Value {
    let output = sandbox.run(["doctor", "--json", target]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["subject"] == subject).unwrap().clone()
}

#[test]
fn doctor_knows_programs_that_call_the_kernel_themselves() {
    let sandbox = Sandbox::empty();
    // The mark of Go's linker.
    let text = "__attribute__((section(\".note.go.buildid\"), used)) static const char id[] = \"id\";\n\
                int main(void) { return 0; }\n";
    let program = compiled(&sandbox, "go", &[], text);
    let go = found(&sandbox, &program, "program");
    assert_eq!(go["level"], "advice");
    assert!(go["found"].as_str().unwrap().contains("written in Go"), "{go}");
    assert_eq!(found(&sandbox, "cat", "program")["level"], "ok");
}
