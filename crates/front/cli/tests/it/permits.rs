//! `--watch permission` in a cache whose pool holds the tree: a program that opens a file of the
//! directory waits until the cache has written it back.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};

use crate::common::{kill_server_of, pid};
use crate::tree::{Tree, fill, listed};

const OPTIONS: &[&str] = &["--watch", "permission", "--max-age", "3600"];

fn counter(tree: &Tree, name: &str) -> u64 {
    tree.status()["cache"]["counters"][name].as_u64().unwrap()
}

#[test]
fn what_is_opened_below_is_written_back_first() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(OPTIONS);
    assert_eq!(tree.status()["cache"]["watch"], "permission");
    // The server opens files in guarded directories, too.
    assert_eq!(listed(&tree.mount("")), listed(&tree.below("")));
    assert_eq!(counter(&tree, "openers_waited"), 0, "nothing is dirty");
    tree.serve("echo more >>small; printf X | dd of=sub/large conv=notrunc status=none");
    assert_eq!(fs::read(tree.below("small")).unwrap(), b"textmore\n");
    assert_eq!(fs::read(tree.below("sub/large")).unwrap()[0], b'X');
    assert!(counter(&tree, "openers_waited") > 0);
    // Also what write-back has made.
    tree.serve("mkdir new; echo first >new/file");
    tree.flush();
    tree.serve("echo second >>new/file");
    fs::write(tree.mount("new/other"), "on the mount").unwrap();
    assert_eq!(fs::read(tree.below("new/file")).unwrap(), b"first\nsecond\n");
    // Others may write there, and no opening waits for a conflict.
    tree.serve("echo third >>new/file");
    let shell = format!("cd {}; echo theirs >>new/file; cat new/file", tree.below("").display());
    let theirs = Command::new("sh").args(["-c", &shell]).output().unwrap();
    assert_eq!(String::from_utf8(theirs.stdout).unwrap(), "first\nsecond\nthird\ntheirs\n");
    assert_eq!(counter(&tree, "openers_late"), 0);
    tree.detach();
    assert_eq!(fs::read(tree.below("new/other")).unwrap(), b"on the mount");
}

/// permits-W1: a server that is stopped, and then killed, lets all in.
#[test]
fn openings_go_on_when_the_server_is_gone() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(OPTIONS);
    tree.serve("cat small; echo more >>small");
    let status = tree.status();
    kill_process(pid(status["pid"].as_i64().unwrap() as i32), Signal::STOP).unwrap();
    let openers: Vec<_> = ["small", "sub/large", "small"]
        .iter()
        .map(|name| {
            let path = tree.below(name);
            Command::new("cat").arg(path).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    kill_server_of(&status);
    for opener in openers {
        let output = opener.wait_with_output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty());
    }
    // The next server writes back all acknowledged changes, for a program that waits, too.
    tree.attach(OPTIONS);
    assert_eq!(fs::read(tree.below("small")).unwrap(), b"textmore\n");
    // Many at once, while programs use the same files.
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let script =
                "for i in 1 2 3 4 5 6 7 8 9 10; do cat small sub/large sub/deep/empty; done";
            Command::new("sh")
                .args(["-c", script])
                .current_dir(tree.below(""))
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    tree.serve("for ((i = 0; i < 50; i++)); do echo $i >>small; echo $i >>sub/deep/empty; done");
    for mut reader in readers {
        assert!(reader.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(tree.below("sub/deep/empty")).unwrap().lines().count(), 50);
    assert_eq!(counter(&tree, "openers_late"), 0);
    tree.detach();
}
