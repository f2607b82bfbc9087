//! Snapshots: `keepstone snapshot`, and mounts of POOL@NAME, beside programs that go on.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::parts::{MountedPart, part_of, used};
use crate::common::{Sandbox, as_nobody, on_each_engine, wait_until};

on_each_engine! {
    layouts_have_snapshots_or_say_why_not,
}

/// Bytes of a file whose blocks dominate what `df` shows.
const BYTES: usize = 8 << 20;

impl MountedPart<'_> {
    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }
}

fn listed(s: &Sandbox, args: &[&str]) -> Value {
    let args = [&["snapshot", "list", s.pool_str(), "--json"], args].concat();
    serde_json::from_str(&s.ok(args)).unwrap()
}

fn layouts_have_snapshots_or_say_why_not(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let (pool, dir) = (s.pool_str(), s.dir_str());
    fs::write(s.path("file"), "old").unwrap();
    if layout != "bpfs" {
        for args in [&["create", dir, "a"][..], &["delete", dir, "a"], &["list", dir]] {
            let refused = s.fails([&["snapshot"], args].concat(), 1);
            assert!(refused.contains("only pools of bpfs"), "{refused}");
        }
        let refused = s.fails(["mount", &part_of(&s, "a"), s.outside("").to_str().unwrap()], 1);
        assert!(refused.contains("only pools of bpfs"), "{refused}");
        return;
    }
    s.ok(["snapshot", "create", dir, "a"]);
    fs::write(s.path("file"), "new").unwrap();
    for name in ["a/b", "a@b", "", ".."] {
        s.fails(["snapshot", "create", dir, name], 2);
    }
    s.fails(["snapshot", "create", dir], 2);
    s.fails(["snapshot", "delete", dir], 2);
    let refused = s.fails(["snapshot", "create", pool, "a"], 1);
    assert!(refused.contains("has a snapshot a already"), "{refused}");
    let refused = s.fails(["snapshot", "delete", pool, "b"], 1);
    assert!(refused.contains("has no snapshot b"), "{refused}");
    let refused = s.fails(["mount", &part_of(&s, "b"), s.outside("").to_str().unwrap()], 1);
    assert!(refused.contains("no snapshot `b`"), "{refused}");
    s.umount();
    // The same without a mount.
    s.ok(["snapshot", "create", pool, "b"]);
    assert_eq!(s.ok(["snapshot", "list", pool]).lines().count(), 2);
    s.fails(["snapshot", "rollback", pool, "c"], 1);
    s.ok(["snapshot", "rollback", pool, "a"]);
    let info: Value = serde_json::from_str(&s.ok(["info", pool, "--json"])).unwrap();
    assert_eq!(info["snapshots"], serde_json::json!(["a", "b"]));
    let b = MountedPart::by_source(&s, "b");
    assert_eq!(b.bytes("file"), b"new");
    let refused = s.fails(["mkfs", pool, "--force"], 1);
    assert!(refused.contains("a snapshot of it is mounted"), "{refused}");
    drop(b);
    s.ok(["check", pool]);
    s.ok(["mount", pool, dir]);
    assert_eq!(fs::read(s.path("file")).unwrap(), b"old");
    s.ok(["umount", dir]);
}

/// A snapshot shows the state of its creation while its pool changes, and its space is counted.
#[test]
fn a_snapshot_is_mounted_beside_its_pool() {
    let s = Sandbox::mounted(&[]);
    let empty = used(&s);
    fs::create_dir(s.path("dir")).unwrap();
    fs::write(s.path("dir/large"), vec![1; BYTES]).unwrap();
    fs::hard_link(s.path("dir/large"), s.path("same")).unwrap();
    std::os::unix::fs::symlink("large", s.path("dir/link")).unwrap();
    let before = used(&s);
    s.ok(["snapshot", "create", s.dir_str(), "monday"]);
    assert!(used(&s) - before < 64 << 10, "it takes next to nothing");
    let monday = MountedPart::by_source(&s, "monday");
    fs::write(s.path("same"), vec![2; BYTES]).unwrap();
    fs::rename(s.path("dir/link"), s.path("dir/moved")).unwrap();
    fs::remove_file(s.path("same")).unwrap();
    fs::remove_file(s.path("dir/large")).unwrap();
    assert_eq!(monday.bytes("dir/link"), vec![1; BYTES]);
    assert_eq!(monday.bytes("same"), vec![1; BYTES]);
    let refused = fs::write(monday.dir.join("new"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let refused = s.fails(["snapshot", "delete", s.dir_str(), "monday"], 1);
    assert!(refused.contains("is mounted; unmount it"), "{refused}");
    let listed = listed(&s, &["--space"]);
    let held = listed["snapshots"][0]["held_bytes"].as_u64().unwrap();
    assert!(held >= BYTES as u64 && listed["held_bytes"] == held, "{listed}");
    // Programs under `run` read it through its mount.
    let script = format!("cmp same {0}/same || cat {0}/dir/link | wc -c", monday.dir.display());
    let output = s.served_script(&[], &script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), BYTES.to_string(), "{output:?}");
    drop(monday);
    s.ok(["snapshot", "delete", s.dir_str(), "monday"]);
    wait_until("all is free again", || used(&s) < empty + (64 << 10));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// The differences of two states, and of a state and the present one.
#[test]
fn states_are_compared() {
    let s = Sandbox::mounted(&[]);
    let diff = |args: &[&str]| s.ok([&["snapshot", "diff", s.dir_str()], args].concat());
    for dir in ["same", "gone", "dir"] {
        fs::create_dir(s.path(dir)).unwrap();
        fs::write(s.path(&format!("{dir}/file")), "old").unwrap();
    }
    fs::write(s.path("other"), "old").unwrap();
    s.ok(["snapshot", "create", s.dir_str(), "old"]);
    assert_eq!(diff(&["old"]), "");
    fs::write(s.path("dir/file"), "new").unwrap();
    fs::remove_dir_all(s.path("gone")).unwrap();
    fs::rename(s.path("other"), s.path("dir/moved")).unwrap();
    s.ok(["snapshot", "create", s.dir_str(), "new"]);
    let expected = "M /dir\nM /dir/file\n+ /dir/moved\n- /gone\n- /gone/file\n- /other\n";
    assert_eq!(diff(&["old", "new"]), expected);
    fs::create_dir(s.path("later")).unwrap();
    assert_eq!(diff(&["new"]), "+ /later\n");
    let json: Value = serde_json::from_str(&diff(&["new", "old", "--json"])).unwrap();
    assert_eq!(json["added"], serde_json::json!(["/gone", "/gone/file", "/other"]));
    assert_eq!(json["removed"], serde_json::json!(["/dir/moved"]));
    let refused = s.fails(["snapshot", "diff", s.dir_str(), "none"], 1);
    assert!(refused.contains("no snapshot `none`"), "{refused}");
}

/// Users that may not write to the pool's file make no snapshots.
#[test]
fn others_make_none() {
    let s = Sandbox::mounted(&[]);
    let keepstone = env!("CARGO_BIN_EXE_keepstone");
    let script = format!(
        "{keepstone} snapshot create {0} a 2>&1 && exit 1; {keepstone} snapshot delete {0} a 2>&1 && exit 1; true",
        s.pool_str()
    );
    let refused = as_nobody(&script);
    assert!(refused.contains("ermission denied"), "{refused}");
    assert_eq!(listed(&s, &[])["snapshots"], serde_json::json!([]));
}

/// A program that writes numbers to two files, one after the other.
fn writer(s: &Sandbox, command: Command, name: &str) -> Child {
    let mut command = command;
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("it writes", || s.path(&format!("{name}-second")).exists());
    child
}

/// Writes as fast as it can: the number to the first file, then to the second, whole by a rename.
fn script(name: &str) -> String {
    format!(
        "i=0; while :; do i=$((i + 1)); echo $i >> {name}-first; echo $i >> {name}-second; \
         echo $i > {name}-tmp; mv {name}-tmp {name}-whole; done"
    )
}

/// Returns the last number of a file of lines, all of which must be there.
fn count(text: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(text);
    for (line, number) in text.lines().zip(1_u64..) {
        assert_eq!(line.parse(), Ok(number));
    }
    assert!(text.is_empty() || text.ends_with('\n'), "nothing half");
    text.lines().count() as u64
}

fn check_numbers(root: &Path, name: &str) -> u64 {
    let read = |end: &str| fs::read(root.join(format!("{name}-{end}"))).unwrap();
    let (first, second) = (count(&read("first")), count(&read("second")));
    assert!((second..=second + 1).contains(&first), "{first}, {second}: the order of the calls");
    let whole = fs::read(root.join(format!("{name}-whole"))).unwrap_or_else(|_| b"0\n".into());
    let whole: u64 = String::from_utf8_lossy(&whole).trim().parse().unwrap();
    assert!((whole..=whole + 1).contains(&second), "{second}, {whole}");
    second
}

/// Two programs write all the time, one through the mount and one by direct access. Each snapshot
/// has what their calls had done, in order.
#[test]
fn programs_write_meanwhile() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    let mut through = Command::new("bash");
    through.args(["-euc", &script("through")]).current_dir(&s.dir);
    let mut children = [
        writer(&s, through, "through"),
        writer(&s, s.served_script(&[], &script("direct")), "direct"),
    ];
    let names: Vec<String> = (0..12).map(|i| format!("number-{i}")).collect();
    let mut least = [0, 0];
    for name in &names {
        let now = ["through", "direct"].map(|of| {
            let text = fs::read_to_string(s.path(&format!("{of}-second"))).unwrap();
            text.lines().count() as u64
        });
        s.ok(["snapshot", "create", s.dir_str(), name]);
        let snapshot = MountedPart::by_source(&s, name);
        for ((of, least), now) in ["through", "direct"].into_iter().zip(&mut least).zip(now) {
            let found = check_numbers(&snapshot.dir, of);
            assert!(found >= now && found >= *least, "{of}: {found} after {now}");
            *least = found;
        }
        drop(snapshot);
        std::thread::sleep(Duration::from_millis(20));
    }
    s.ok(["snapshot", "delete", s.dir_str(), &names[0], &names[11]]);
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for name in &names[1..11] {
        let snapshot = MountedPart::by_source(&s, name);
        check_numbers(&snapshot.dir, "through");
        check_numbers(&snapshot.dir, "direct");
    }
    let [first, rest @ ..] = &names[1..11] else { unreachable!() };
    s.ok(["snapshot", "delete", s.dir_str(), first].into_iter().chain(rest.iter().map(|n| &**n)));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// `create` and `delete` are killed at any point: the others go on, and nothing is lost or kept.
#[test]
fn commands_are_killed() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    for i in 0..400 {
        fs::write(s.path(&format!("file-{i}")), vec![i as u8; 3 * 4096]).unwrap();
    }
    let before = used(&s);
    for round in 0..60_u64 {
        let verb = if round % 3 == 2 { "delete" } else { "create" };
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(["snapshot", verb, s.dir_str(), "x"]).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(500 + 150 * (round % 40)));
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        child.wait().unwrap();
        // The pool works, and finds out about the death.
        fs::write(s.path("file-7"), vec![round as u8; 100]).unwrap();
        if round % 3 == 1 && listed(&s, &[])["snapshots"] != serde_json::json!([]) {
            let x = MountedPart::by_source(&s, "x");
            assert_eq!(x.bytes("file-9"), vec![9; 3 * 4096]);
        }
    }
    let _ = s.run(["snapshot", "delete", s.dir_str(), "x"]);
    wait_until("nothing is held", || used(&s) < before + (64 << 10));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// Old snapshots go by a rule, except those in use and those of other names.
#[test]
fn old_snapshots_are_deleted_by_a_rule() {
    let s = Sandbox::mounted(&[]);
    let pool = s.pool_str();
    let names = || -> Vec<String> {
        let listed = listed(&s, &[]);
        let name = |snapshot: &Value| snapshot["name"].as_str().unwrap().to_owned();
        listed["snapshots"].as_array().unwrap().iter().map(name).collect()
    };
    s.ok(["snapshot", "create", pool, "mine"]);
    for i in 0..4 {
        s.ok(["snapshot", "create", pool, &format!("auto-{i}")]);
    }
    let prune = ["snapshot", "prune", pool, "--keep", "2", "--prefix", "auto-"];
    let shown = s.ok([&prune[..], &["--dry-run"]].concat());
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(shown.contains("auto-0: would be deleted"), "{shown}");
    assert_eq!(names().len(), 5);
    let in_use = MountedPart::by_source(&s, "auto-0");
    let pruned: Value = serde_json::from_str(&s.ok([&["--json"], &prune[..]].concat())).unwrap();
    assert_eq!(pruned["deleted"], serde_json::json!(["auto-1"]));
    assert_eq!(pruned["in_use"], serde_json::json!(["auto-0"]));
    assert_eq!(pruned["kept"], serde_json::json!(["auto-2", "auto-3"]));
    drop(in_use);
    s.ok(["snapshot", "create", pool, "auto-4", "--keep", "1,1d", "--prefix", "auto-"]);
    assert_eq!(names(), ["mine", "auto-4"]);
    s.ok(["snapshot", "create", pool, "last", "--keep", "1"]);
    assert_eq!(names(), ["last"]);
    for wrong in ["0", "1m", "", "x"] {
        s.fails(["snapshot", "prune", pool, "--keep", wrong], 2);
    }
    s.fails(["snapshot", "prune", pool], 2);
}

/// A pool goes back to a snapshot beside a plain program and a served one, which go on: also if a
/// branch exists, and if the command was killed before.
#[test]
fn a_pool_in_use_goes_back() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    let dir = s.dir_str();
    fs::create_dir(s.path("dir")).unwrap();
    fs::write(s.path("dir/file"), "of monday").unwrap();
    fs::write(s.path("removed"), "of monday").unwrap();
    fs::set_permissions(s.path("dir"), PermissionsExt::from_mode(0o750)).unwrap();
    s.ok(["snapshot", "create", dir, "monday"]);
    s.ok(["branch", "create", dir, "b"]);
    // Tells when it has the file open, and then reads again and again what the name leads to. A
    // call that had found the directory when the tree was replaced may answer ENOENT; `command`
    // lets the shell go on.
    let (begun, stop) = (s.outside("begun"), s.outside("stop"));
    let script = format!(
        "exec 3< dir/file; touch {}; until [ -e {} ]; do cat dir/file > /dev/null; command : >> dir/log
        done; [ \"$(cat <&3)\" = 'of tuesday' ]; cat dir/file",
        begun.display(),
        stop.display()
    );
    for round in 0..2 {
        fs::write(s.path("dir/file"), "of tuesday").unwrap();
        fs::write(s.path("dir/new"), "of tuesday").unwrap();
        let _ = fs::remove_file(s.path("removed"));
        let open = fs::File::open(s.path("dir/file")).unwrap();
        let served = s.served_script(&[], &script).stdout(Stdio::piped()).spawn().unwrap();
        wait_until("the program has its file open", || begun.exists());
        s.ok(["snapshot", "rollback", dir, "monday"]);
        assert_eq!(fs::read(s.path("dir/file")).unwrap(), b"of monday");
        assert_eq!(fs::read(s.path("removed")).unwrap(), b"of monday");
        assert!(!s.path("dir/new").exists());
        assert_eq!(s.path("dir").metadata().unwrap().mode() & 0o7777, 0o750);
        assert_eq!(std::io::read_to_string(&open).unwrap(), "of tuesday");
        assert_eq!(open.metadata().unwrap().nlink(), 0);
        fs::write(&stop, "").unwrap();
        let ended = served.wait_with_output().unwrap();
        assert!(ended.status.success() && ended.stdout == b"of monday", "{round}: {ended:?}");
        for file in [&begun, &stop] {
            fs::remove_file(file).unwrap();
        }
    }
    assert!(s.fails(["snapshot", "rollback", dir, "none"], 1).contains("has no snapshot none"));
    let listed: Value = serde_json::from_str(&s.ok(["branch", "list", dir, "--json"])).unwrap();
    assert_eq!(listed["branches"][0]["name"], "b");
    assert!(MountedPart::by_source(&s, "b").bytes("dir/file") == b"of monday");
    s.ok(["branch", "discard", dir, "b"]);
    s.umount();
    s.ok(["check", s.pool_str()]);
}
