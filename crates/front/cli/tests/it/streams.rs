//! Streams of snapshots: `keepstone send` and `keepstone receive`, between pools in use.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Sandbox, wait_until};

/// Returns POOL@NAME.
fn of(pool: &str, name: &str) -> String {
    format!("{pool}@{name}")
}

fn json(s: &Sandbox, args: &[&str]) -> Value {
    serde_json::from_str(&s.ok([&["--json"], args].concat())).unwrap()
}

/// Makes another pool, which is not mounted.
fn second(s: &Sandbox, size: &str) -> String {
    let pool = s.outside("second").to_str().unwrap().to_owned();
    s.ok(["mkfs", &pool, "--size", size]);
    pool
}

/// Reads a file of a snapshot of a pool.
fn read(s: &Sandbox, pool: &str, name: &str, file: &str) -> Vec<u8> {
    let dir = s.outside("looked-at");
    fs::create_dir_all(&dir).unwrap();
    s.ok(["mount", &of(pool, name), dir.to_str().unwrap()]);
    let content = fs::read(dir.join(file)).unwrap();
    s.ok(["umount", &of(pool, name)]);
    content
}

/// Runs `send | receive` of the shell; returns whether both succeeded.
fn pipe(send: &str, receive: &str) -> bool {
    let program = env!("CARGO_BIN_EXE_keepstone");
    let script = format!("set -o pipefail; {program} send {send} | {program} receive {receive}");
    Command::new("bash").args(["-c", &script]).status().unwrap().success()
}

#[test]
fn a_pool_in_use_is_sent_to_another_one() {
    let s = Sandbox::mounted(&[]);
    let to = second(&s, "48M");
    fs::create_dir(s.path("dir")).unwrap();
    fs::write(s.path("dir/file"), vec![1; 3 << 20]).unwrap();
    fs::hard_link(s.path("dir/file"), s.path("same")).unwrap();
    fs::write(s.path("program"), "#!/bin/sh").unwrap();
    fs::set_permissions(s.path("program"), fs::Permissions::from_mode(0o4755)).unwrap();
    s.ok(["snapshot", "create", s.dir_str(), "monday"]);
    assert!(pipe(&of(s.dir_str(), "monday"), &to));
    let mut content = vec![1; 3 << 20];
    content[1 << 20..][..5000].fill(2);
    fs::write(s.path("dir/file"), &content).unwrap();
    fs::rename(s.path("program"), s.path("dir/moved")).unwrap();
    fs::remove_file(s.path("same")).unwrap();
    s.ok(["snapshot", "create", s.dir_str(), "tuesday"]);

    let file = s.outside("stream").to_str().unwrap().to_owned();
    let tuesday = of(s.dir_str(), "tuesday");
    let sent = json(&s, &["send", &tuesday, "--from", "monday", "-o", &file]);
    assert_eq!(sent["bytes"].as_u64().unwrap(), fs::metadata(&file).unwrap().len());
    // The other pool is in use, too.
    let dir = s.outside("other").to_str().unwrap().to_owned();
    fs::create_dir(&dir).unwrap();
    s.ok(["mount", &to, &dir]);
    let received = json(&s, &["receive", &dir, &file]);
    assert_eq!((&received["snapshot"], &received["from"]), (&"tuesday".into(), &"monday".into()));
    assert_eq!(read(&s, &to, "tuesday", "dir/file"), content);
    assert_eq!(read(&s, &to, "monday", "same"), vec![1; 3 << 20]);
    let refused = s.fails(["receive", &to, &file], 1);
    assert!(refused.contains("has a snapshot tuesday already"), "{refused}");
    s.ok(["receive", &of(&to, "again"), &file]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the tree of the pool stays");
    let refused = s.fails(["receive", &of(&to, "more"), &file, "--rollback"], 1);
    assert!(refused.contains("needs a pool that no process uses"), "{refused}");
    s.ok(["umount", &dir]);
    s.ok(["receive", &of(&to, "more"), &file, "--rollback"]);
    s.ok(["check", &to]);
    s.ok(["mount", &to, &dir]);
    let moved = Path::new(&dir).join("dir/moved");
    assert_eq!(fs::metadata(moved).unwrap().permissions().mode() & 0o7777, 0o4755);
    s.ok(["umount", &dir]);
    let listed = json(&s, &["snapshot", "list", &to]);
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 4);
}

/// A receiver is killed. Its part of the stream stays, is not seen, and is resumed or given back.
#[test]
fn a_killed_receiver_resumes() {
    let s = Sandbox::mounted(&[]);
    let to = second(&s, "64M");
    fs::write(s.path("first"), vec![1; 20 << 20]).unwrap();
    fs::write(s.path("second"), vec![2; 1 << 20]).unwrap();
    s.ok(["snapshot", "create", s.dir_str(), "a"]);
    let file = s.outside("stream");
    let name = of(s.dir_str(), "a");
    s.ok(["send", &name, "-o", file.to_str().unwrap()]);
    let stream = fs::read(&file).unwrap();
    let list = || json(&s, &["snapshot", "list", &to])["snapshots"].clone();
    let partly = || {
        let mut child = Command::new(env!("CARGO_BIN_EXE_keepstone"))
            .args(["receive", &to])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(&stream[..stream.len() * 3 / 4]).unwrap();
        child
    };
    let mut child = partly();
    // Two groups have come, and the receiver waits for more.
    let has_come = || {
        list()[0]["token"].as_str().is_some_and(|token| !token[48..64].trim_matches('0').is_empty())
    };
    wait_until("groups have come", has_come);
    let refused = s.fails(["receive", &to, file.to_str().unwrap()], 1);
    assert!(refused.contains("another process receives it"), "{refused}");
    let refused = s.fails(["receive", "--abort", &of(&to, "a")], 1);
    assert!(refused.contains("a process receives it"), "{refused}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(list()[0]["is_incomplete"], true);
    let dir = s.outside("none").to_str().unwrap().to_owned();
    fs::create_dir(&dir).unwrap();
    let refused = s.fails(["mount", &of(&to, "a"), &dir], 1);
    assert!(refused.contains("no snapshot `a`"), "{refused}");
    let refused = s.fails(["snapshot", "rollback", &to, "a"], 1);
    assert!(refused.contains("has no snapshot a"), "{refused}");
    let refused = s.fails(["send", &of(&to, "a"), "-o", &dir], 1);
    assert!(refused.contains("is incomplete"), "{refused}");
    s.ok(["check", &to]);
    let token = list()[0]["token"].as_str().unwrap().to_owned();
    assert!(s.ok(["snapshot", "list", &to]).contains(&token));
    let rest = s.outside("rest").to_str().unwrap().to_owned();
    s.ok(["send", &name, "--resume", &token, "-o", &rest]);
    assert!(fs::metadata(&rest).unwrap().len() < stream.len() as u64 * 3 / 4);
    s.fails(["send", &name, "--resume", "0123", "-o", &rest], 2);
    s.ok(["receive", &to, &rest]);
    assert_eq!(list()[0]["is_incomplete"], false);
    assert_eq!(read(&s, &to, "a", "first"), vec![1; 20 << 20]);
    assert_eq!(read(&s, &to, "a", "second"), vec![2; 1 << 20]);
    s.fails(["receive", "--abort", &of(&to, "a")], 1);
    s.ok(["snapshot", "delete", &to, "a"]);

    let mut child = partly();
    wait_until("groups have come", has_come);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    s.ok(["receive", "--abort", &of(&to, "a")]);
    assert_eq!(list().as_array().unwrap().len(), 0);
    s.ok(["check", &to]);
}

#[test]
fn wrong_streams_are_refused() {
    let s = Sandbox::mounted(&[]);
    let to = second(&s, "32M");
    fs::write(s.path("file"), "content").unwrap();
    s.ok(["snapshot", "create", s.dir_str(), "a"]);
    let file = s.outside("stream");
    let file_str = file.to_str().unwrap();
    s.ok(["send", &of(s.dir_str(), "a"), "-o", file_str]);
    let mut stream = fs::read(&file).unwrap();
    let last = stream.len() - 30;
    stream[last] ^= 1;
    fs::write(&file, &stream).unwrap();
    let refused = s.fails(["receive", &to, file_str], 1);
    assert!(
        refused.contains("of the stream: the checksum of the record does not match"),
        "{refused}"
    );
    assert!(refused.contains("--resume"), "{refused}");
    fs::write(&file, "something else").unwrap();
    let refused = s.fails(["receive", &to, file_str], 1);
    assert!(refused.contains("before its last record"), "{refused}");
    fs::write(&file, "something else, which is longer").unwrap();
    let refused = s.fails(["receive", &to, file_str], 1);
    assert!(refused.contains("no stream of `keepstone send`"), "{refused}");
    s.fails(["send", s.dir_str(), "-o", file_str], 2);
    s.fails(["--json", "send", &of(s.dir_str(), "a")], 2);
    s.fails(["receive", "--abort", &to], 2);
    let refused = s.fails(["send", &of(s.dir_str(), "b"), "-o", file_str], 1);
    assert!(refused.contains("has no snapshot b"), "{refused}");
    assert!(!refused.contains("panicked"));
    let refused = s.fails(["send", &of(s.dir_str(), "a"), "--from", "b", "-o", file_str], 1);
    assert!(refused.contains("has no snapshot b"), "{refused}");
}
