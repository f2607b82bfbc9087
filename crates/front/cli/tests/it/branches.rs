//! Branches: `keepstone branch`, and mounts of POOL@NAME that programs change.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::parts::{MountedPart, used};
use crate::common::{Sandbox, as_nobody, on_each_engine, tool, wait_until};

on_each_engine! {
    layouts_have_branches_or_say_why_not,
}

/// Bytes of a file whose blocks dominate what `df` shows.
const BYTES: usize = 8 << 20;

impl MountedPart<'_> {
    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs a script under `keepstone run` in the branch. All of it must be served in the program.
    fn served(&self, script: &str) -> String {
        let mut command = self.s.served_script(&["--explain"], script);
        let output = command.current_dir(&self.dir).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        let explained = String::from_utf8_lossy(&output.stderr);
        assert!(explained.contains("served in user space: 100.0 %"), "{script}: {explained}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn listed(s: &Sandbox) -> Value {
    let listed: Value =
        serde_json::from_str(&s.ok(["branch", "list", s.pool_str(), "--json"])).unwrap();
    let branches = listed["branches"].as_array().unwrap();
    branches.iter().map(|branch| branch["name"].clone()).collect()
}

/// Commits a branch; returns the exit status and the report.
fn commit(s: &Sandbox, name: &str, more: &[&str]) -> (i32, Value) {
    let args = [&["branch", "commit", s.dir_str(), name, "--json"], more].concat();
    let output = s.run(args);
    let report = serde_json::from_slice(&output.stdout);
    (output.status.code().unwrap(), report.unwrap_or_else(|_| panic!("{output:?}")))
}

fn read(s: &Sandbox, name: &str) -> String {
    fs::read_to_string(s.path(name)).unwrap()
}

fn layouts_have_branches_or_say_why_not(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let (pool, dir) = (s.pool_str(), s.dir_str());
    fs::write(s.path("file"), "old").unwrap();
    if layout != "bpfs" {
        for args in [
            &["create", dir, "a"][..],
            &["discard", dir, "a"],
            &["list", dir],
            &["commit", dir, "a"],
        ] {
            let refused = s.fails([&["branch"], args].concat(), 1);
            assert!(refused.contains("only pools of bpfs"), "{refused}");
        }
        return;
    }
    assert_eq!(listed(&s), json!([]));
    s.ok(["branch", "create", dir, "a", "b"]);
    let long = "x".repeat(63);
    for name in ["a/b", "a@b", "@a", "", "..", "a\nb", &long] {
        s.fails(["branch", "create", dir, name], 2);
    }
    s.fails(["branch", "create", dir], 2);
    let refused = s.fails(["branch", "create", pool, "a"], 1);
    assert!(refused.contains("has a branch a already"), "{refused}");
    for verb in ["discard", "commit"] {
        let refused = s.fails(["branch", verb, pool, "none"], 1);
        assert!(refused.contains("has no branch none"), "{refused}");
    }
    let refused = s.fails(["snapshot", "create", pool, "a"], 1);
    assert!(refused.contains(" a already"), "{refused}");
    s.ok(["snapshot", "create", pool, "s"]);
    let refused = s.fails(["branch", "create", pool, "s"], 1);
    assert!(refused.contains("has a snapshot s"), "{refused}");
    assert_eq!(s.ok(["snapshot", "list", pool]).lines().count(), 1, "bases are not listed");
    let a = MountedPart::new(&s, "a");
    for verb in ["discard", "commit"] {
        let refused = s.fails(["branch", verb, pool, "a"], 1);
        assert!(refused.contains("is mounted; unmount it first"), "{refused}");
    }
    let refused = s.fails(["branch", "create", a.dir.to_str().unwrap(), "c"], 1);
    assert!(refused.contains("works on the tree of a pool"), "{refused}");
    drop(a);
    s.umount();
    // The same without a mount.
    s.ok(["branch", "create", pool, &"x".repeat(62)]);
    s.ok(["branch", "discard", pool, &"x".repeat(62), "b"]);
    assert_eq!(listed(&s), json!(["a"]));
    let info: Value = serde_json::from_str(&s.ok(["info", pool, "--json"])).unwrap();
    assert_eq!((&info["branches"], &info["snapshots"]), (&json!(["a"]), &json!(["s"])));
    s.ok(["check", pool]);
    s.ok(["branch", "commit", pool, "a"]);
    assert_eq!(listed(&s), json!([]));
    s.ok(["branch", "create", pool, "rollback-0"]);
    s.ok(["snapshot", "rollback", pool, "s"]);
    assert_eq!(listed(&s), json!(["rollback-0"]), "branches stay");
    s.ok(["branch", "discard", pool, "rollback-0"]);
    s.ok(["check", pool]);
}

/// Two branches and the pool are written at the same time, through mounts and by direct access.
#[test]
fn branches_are_written_side_by_side() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    fs::create_dir(s.path("dir")).unwrap();
    fs::write(s.path("dir/file"), "of all\n").unwrap();
    fs::hard_link(s.path("dir/file"), s.path("same")).unwrap();
    symlink("file", s.path("dir/link")).unwrap();
    tool("setfattr", &["-n", "user.x", "-v", "1", s.path("dir").to_str().unwrap()]);
    fs::set_permissions(s.path("dir"), fs::Permissions::from_mode(0o751)).unwrap();
    tool("mkfifo", &[s.path("pipe").to_str().unwrap()]);
    s.ok(["branch", "create", s.dir_str(), "a", "b"]);
    let (a, b) = (MountedPart::new(&s, "a"), MountedPart::new(&s, "b"));
    for branch in [&a, &b] {
        assert_eq!(branch.read("dir/link"), "of all\n");
        let [one, other] = ["dir/file", "same"].map(|name| branch.path(name).metadata().unwrap());
        assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
        let dir = branch.path("dir").metadata().unwrap();
        assert_eq!(dir.mode() & 0o7777, 0o751);
        assert_eq!(dir.mtime(), s.path("dir").metadata().unwrap().mtime());
        let value = tool(
            "getfattr",
            &["--only-values", "-n", "user.x", branch.path("dir").to_str().unwrap()],
        );
        assert_eq!(value, "1");
        assert_eq!(branch.dir.metadata().unwrap().ino(), 1);
    }
    let write = |dir: &Path, name: &str| {
        let script = format!(
            "for i in $(seq 300); do echo {name} $i >>same; echo $i >new-$i; mv new-$i moved-$i; rm moved-$i; done"
        );
        Command::new("bash").args(["-euc", &script]).current_dir(dir).spawn().unwrap()
    };
    let mut through = [write(&s.dir, "pool"), write(&a.dir, "a"), write(&b.dir, "b")];
    a.served("for i in $(seq 300); do echo $i >>direct; done; cat ../*/direct >/dev/null; cd /; cd - >/dev/null; pwd");
    b.served("for i in $(seq 300); do echo $i >>direct; done");
    for child in &mut through {
        assert!(child.wait().unwrap().success());
    }
    for (dir, name) in [(&s.dir, "pool"), (&a.dir, "a"), (&b.dir, "b")] {
        let lines: Vec<String> = (1..=300).map(|i| format!("{name} {i}\n")).collect();
        let same = fs::read_to_string(dir.join("same")).unwrap();
        assert_eq!(same, format!("of all\n{}", lines.concat()));
        assert_eq!(fs::read_to_string(dir.join("dir/file")).unwrap(), same);
    }
    let count = |text: String| text.lines().count();
    assert_eq!((count(a.read("direct")), count(b.read("direct"))), (300, 300));
    assert!(!s.path("direct").exists());
    // No walk leads out.
    assert_eq!(a.served("ls -a /proc/self/cwd/.. | head -1 && ls -id . | cut -d' ' -f1"), ".\n1\n");
    drop((a, b));
    s.ok(["branch", "discard", s.dir_str(), "a", "b"]);
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// Space: branches take little, `df` counts what they change, and discard gives all back.
#[test]
fn discard_gives_all_back() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    fs::write(s.path("large"), vec![1; BYTES]).unwrap();
    // The first makes room for inodes, which stays.
    s.ok(["branch", "create", s.dir_str(), "a"]);
    s.ok(["branch", "discard", s.dir_str(), "a"]);
    let before = used(&s);
    s.ok(["branch", "create", s.dir_str(), "a"]);
    assert!(used(&s) - before < 64 << 10, "it takes next to nothing");
    let a = MountedPart::new(&s, "a");
    fs::write(a.path("large"), vec![2; BYTES]).unwrap();
    fs::create_dir_all(a.path("d/e/f")).unwrap();
    assert!(used(&s) - before >= BYTES as u64);
    drop(a);
    s.ok(["branch", "discard", s.dir_str(), "a"]);
    wait_until("all is free again", || used(&s) == before);
    assert_eq!(fs::read(s.path("large")).unwrap(), vec![1; BYTES]);
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// A commit while programs use the pool: through the mount, by direct access, and with open files.
#[test]
fn a_commit_replaces_a_pool_in_use() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    fs::create_dir(s.path("dir")).unwrap();
    for name in ["kept", "gone", "dir/file"] {
        fs::write(s.path(name), "old\n").unwrap();
    }
    s.ok(["branch", "create", s.dir_str(), "a"]);
    let a = MountedPart::new(&s, "a");
    fs::write(a.path("kept"), "new\n").unwrap();
    fs::remove_file(a.path("gone")).unwrap();
    fs::write(a.path("added"), "new\n").unwrap();
    a.served("echo new >dir/file; mkdir more; echo new >more/file");
    drop(a);
    let before = used(&s);
    let open = fs::File::open(s.path("gone")).unwrap();
    // It waits between two looks at the same paths.
    let script = "exec 3<gone; cat kept gone; cd dir; touch ../../ready; until [ -e ../../done ]; do sleep 0.01; done; \
        cat <&3; cat ../kept file || true; cd \"$OLDPWD\"; cat kept added dir/file more/file; ls";
    let script = script.replace("../../", &format!("{}/", s.outside("").display()));
    let program =
        s.served_script(&[], &script).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let program = program.unwrap();
    wait_until("it runs", || s.outside("ready").exists());
    assert_eq!(commit(&s, "a", &[]).1["merged"], json!([]));
    fs::write(s.outside("done"), "").unwrap();
    let output = program.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("old\nold\nold\n"), "{text}");
    assert!(text.ends_with("new\nnew\nnew\nnew\nadded\ndir\nkept\nmore\n"), "{text}");
    for (name, content) in
        [("kept", "new\n"), ("added", "new\n"), ("dir/file", "new\n"), ("more/file", "new\n")]
    {
        assert_eq!(read(&s, name), content);
    }
    assert!(!s.path("gone").exists());
    assert_eq!(std::io::read_to_string(&open).unwrap(), "old\n", "an open file lives on");
    drop(open);
    assert_eq!(listed(&s), json!([]));
    wait_until("the old tree is gone", || used(&s) < before);
    fs::write(s.path("later"), "x").unwrap();
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// Changes of both sides: they are merged by path, or the command names the paths.
#[test]
fn both_sides_are_merged() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    for dir in ["ours", "theirs", "both", "removed"] {
        fs::create_dir(s.path(dir)).unwrap();
        for file in ["1", "2", "3"] {
            fs::write(s.path(&format!("{dir}/{file}")), "old").unwrap();
        }
    }
    fs::hard_link(s.path("ours/3"), s.path("ours/same")).unwrap();
    s.ok(["branch", "create", s.dir_str(), "a"]);
    let a = MountedPart::new(&s, "a");
    // The branch.
    fs::write(a.path("theirs/1"), "branch").unwrap();
    fs::remove_file(a.path("theirs/2")).unwrap();
    fs::write(a.path("both/new-of-branch"), "branch").unwrap();
    fs::write(a.path("both/1"), "branch").unwrap();
    fs::remove_file(a.path("both/3")).unwrap();
    // The pool.
    fs::write(s.path("ours/1"), "pool").unwrap();
    fs::remove_file(s.path("ours/2")).unwrap();
    fs::write(s.path("ours/3"), "pool").unwrap();
    fs::write(s.path("both/new-of-pool"), "pool").unwrap();
    fs::remove_file(s.path("both/3")).unwrap();
    fs::remove_dir_all(s.path("removed")).unwrap();
    fs::create_dir_all(s.path("more/and")).unwrap();
    fs::write(s.path("more/and/more"), "pool").unwrap();
    fs::set_permissions(s.path("more/and"), fs::Permissions::from_mode(0o701)).unwrap();
    symlink("1", s.path("theirs/link")).unwrap();
    drop(a);
    let (code, report) = commit(&s, "a", &[]);
    assert_eq!((code, &report["conflicts"]), (0, &json!([])), "{report}");
    let merged: Vec<&str> =
        report["merged"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    assert_eq!(
        merged,
        [
            "/both/3",
            "/both/new-of-pool",
            "/more",
            "/more/and",
            "/more/and/more",
            "/ours/1",
            "/ours/2",
            "/ours/3",
            "/ours/same",
            "/removed",
            "/removed/1",
            "/removed/2",
            "/removed/3",
            "/theirs/link"
        ]
    );
    for (name, content) in [
        ("theirs/1", "branch"),
        ("both/new-of-branch", "branch"),
        ("both/1", "branch"),
        ("both/2", "old"),
        ("both/new-of-pool", "pool"),
        ("ours/1", "pool"),
        ("ours/same", "pool"),
        ("more/and/more", "pool"),
        ("theirs/link", "branch"),
    ] {
        assert_eq!(read(&s, name), content, "{name}");
    }
    for name in ["theirs/2", "both/3", "ours/2", "removed"] {
        assert!(!s.path(name).exists(), "{name}");
    }
    assert_eq!(
        s.path("ours/3").metadata().unwrap().ino(),
        s.path("ours/same").metadata().unwrap().ino()
    );
    assert_eq!(s.path("more/and").metadata().unwrap().mode() & 0o777, 0o701);
    s.umount();
    s.ok(["check", s.pool_str()]);
}

#[test]
fn conflicts_are_named() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    for dir in ["d", "e", "f"] {
        fs::create_dir(s.path(dir)).unwrap();
    }
    for file in ["changed", "same", "d/file", "removed", "mode"] {
        fs::write(s.path(file), "old").unwrap();
    }
    s.ok(["branch", "create", s.dir_str(), "a", "b"]);
    let change = |dir: &Path, who: &str| {
        fs::write(dir.join("changed"), who).unwrap();
        fs::write(dir.join("new"), who).unwrap();
        fs::remove_file(dir.join("removed")).unwrap();
    };
    let a = MountedPart::new(&s, "a");
    change(&a.dir, "branch");
    fs::remove_dir_all(a.path("d")).unwrap();
    fs::write(a.path("e/below"), "branch").unwrap();
    fs::set_permissions(a.path("mode"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(a.path("f/g")).unwrap();
    drop(a);
    change(&s.dir, "pool");
    fs::write(s.path("d/more"), "pool").unwrap();
    fs::remove_dir(s.path("e")).unwrap();
    fs::set_permissions(s.path("mode"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(s.path("f/g")).unwrap();
    fs::write(s.path("only"), "pool").unwrap();
    let expected = json!(["/changed", "/d/more", "/e/below", "/mode", "/new"]);
    let (code, report) = commit(&s, "a", &[]);
    assert_eq!((code, &report["conflicts"], &report["committed"]), (1, &expected, &json!(false)));
    let output = s.run(["branch", "commit", s.dir_str(), "a"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &*shown),
        (Some(1), "/changed\n/d/more\n/e/below\n/mode\n/new\n")
    );
    assert!(String::from_utf8(output.stderr).unwrap().contains("--force"));
    assert_eq!((read(&s, "changed"), listed(&s)), ("pool".to_owned(), json!(["a", "b"])));
    let (code, report) = commit(&s, "a", &["--force"]);
    assert_eq!((code, &report["conflicts"], &report["committed"]), (0, &expected, &json!(true)));
    for (name, content) in
        [("changed", "branch"), ("new", "branch"), ("e/below", "branch"), ("only", "pool")]
    {
        assert_eq!(read(&s, name), content, "{name}");
    }
    assert!(!s.path("d").exists() && !s.path("removed").exists() && s.path("f/g").is_dir());
    assert_eq!(s.path("mode").metadata().unwrap().mode() & 0o777, 0o600);
    // The other branch has the same base: what the commit brought is the pool's now.
    let (code, report) = commit(&s, "b", &[]);
    assert_eq!((code, &report["conflicts"]), (0, &json!([])), "{report}");
    assert_eq!((read(&s, "changed"), read(&s, "only")), ("branch".to_owned(), "pool".to_owned()));
    assert_eq!(listed(&s), json!([]));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// A user who may not write to the pool's file has no branches; another owner of files keeps them.
#[test]
fn others_have_none() {
    let s = Sandbox::mounted(&["-o", "allow_other"]);
    fs::write(s.path("theirs"), "x").unwrap();
    std::os::unix::fs::chown(s.path("theirs"), Some(65534), Some(65534)).unwrap();
    fs::set_permissions(s.path("theirs"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(s.path("ours"), "x").unwrap();
    fs::set_permissions(s.path("ours"), fs::Permissions::from_mode(0o600)).unwrap();
    s.ok(["branch", "create", s.dir_str(), "a"]);
    let keepstone = env!("CARGO_BIN_EXE_keepstone");
    let pool = s.pool_str();
    let script = format!(
        "for what in 'create {pool} b' 'discard {pool} a' 'commit {pool} a'; do \
         {keepstone} branch $what 2>&1 && exit 1; done; true"
    );
    let refused = as_nobody(&script);
    assert_eq!(refused.matches("ermission denied").count(), 3, "{refused}");
    let a = MountedPart::new(&s, "a");
    fs::set_permissions(s.outside(""), fs::Permissions::from_mode(0o755)).unwrap();
    let script =
        format!("cd {}; cat theirs; echo y >>theirs; cat ours 2>&1 || true", a.dir.display());
    let seen = as_nobody(&script);
    assert!(seen.starts_with('x') && seen.contains("ermission denied"), "{seen}");
    assert_eq!((a.read("theirs"), read(&s, "theirs")), ("xy\n".to_owned(), "x".to_owned()));
    drop(a);
    assert_eq!(listed(&s), json!(["a"]));
}

/// Commands are killed at any point: the pool and other branches go on, and nothing stays held.
#[test]
fn commands_are_killed() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    for i in 0..200 {
        fs::write(s.path(&format!("file-{i}")), vec![i as u8; 3 * 4096]).unwrap();
    }
    s.ok(["branch", "create", s.dir_str(), "x", "y"]);
    s.ok(["branch", "discard", s.dir_str(), "x", "y"]);
    let before = used(&s);
    for round in 0..60_u64 {
        let verb = ["create", "create", "commit", "discard"][round as usize % 4];
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(["branch", verb, s.dir_str(), "x"]).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(1000 + 700 * (round % 37)));
        let _ = kill_process(Pid::from_child(&child), Signal::KILL);
        child.wait().unwrap();
        // The pool works, and finds out about the death.
        fs::write(s.path("file-7"), vec![round as u8; 100]).unwrap();
        assert_eq!(fs::read(s.path("file-9")).unwrap(), vec![9; 3 * 4096]);
        if listed(&s) == json!(["x"])
            && round % 8 == 1
            && s.run(["branch", "create", s.dir_str(), "y"]).status.success()
        {
            let y = MountedPart::new(&s, "y");
            assert_eq!(fs::read(y.path("file-9")).unwrap(), vec![9; 3 * 4096]);
            drop(y);
            s.ok(["branch", "discard", s.dir_str(), "y"]);
        }
    }
    let _ = s.run(["branch", "discard", s.dir_str(), "x"]);
    s.ok(["branch", "create", s.dir_str(), "y"]);
    s.ok(["branch", "discard", s.dir_str(), "y"]);
    assert_eq!(listed(&s), json!([]));
    wait_until("nothing is held", || used(&s) <= before + (64 << 10));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// A database for each test, as the tutorial has it.
#[test]
fn a_database_for_each_test() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    let sql = |dir: &Path, text: &str| tool("sqlite3", &[dir.join("db").to_str().unwrap(), text]);
    sql(&s.dir, "create table t(x); insert into t values (1), (2), (3);");
    s.ok(["branch", "create", s.dir_str(), "one", "two"]);
    for name in ["one", "two"] {
        let branch = MountedPart::new(&s, name);
        let delete = format!("delete from t where x < {}; select count(*) from t;", name.len());
        assert_eq!(sql(&branch.dir, &delete), "1\n");
        assert_eq!(
            branch.served("sqlite3 db 'insert into t values (9); select count(*) from t;'"),
            "2\n"
        );
    }
    assert_eq!(sql(&s.dir, "select count(*) from t;"), "3\n");
    s.ok(["branch", "discard", s.dir_str(), "one"]);
    s.ok(["branch", "commit", s.dir_str(), "two"]);
    assert_eq!(sql(&s.dir, "select count(*) from t;"), "2\n");
}
