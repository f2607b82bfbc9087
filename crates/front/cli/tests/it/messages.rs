//! Messages name the limit, the user, the directory or the command that helps.
//!
//! Needs root and `/dev/fuse`.

use std::fs;

use serde_json::Value;

use crate::common::{PermissionsExt as _, Sandbox, as_nobody};
use crate::usage::text_of;

#[test]
fn sizes_that_no_pool_can_have_are_wrong_usage() {
    let s = Sandbox::formatted();
    for size in ["1", "17T"] {
        let refused = s.fails(["resize", s.pool_str(), size], 2);
        assert!(refused.contains("256 KiB and at most 16 TiB less 4 KiB"), "{refused}");
    }
    assert!(s.ok(["info", s.pool_str()]).contains("resizable   up to"));
    let refused = s.fails(["bdev", "grow", s.pool_str(), "--size", "128M"], 1);
    assert!(refused.contains("`keepstone resize` gives it another size"), "{refused}");
    let other = s.outside("other");
    let mkfs = ["mkfs", other.to_str().unwrap(), "--size", "64M"];
    for (options, why) in [
        (&["--thick", "--max-size", "1G"][..], "only a thin pool"),
        (&["--cache", "--max-size", "1G"], "only a thin pool"),
        (&["--cache", "--layout", "scmfs"], "only of the layout bpfs"),
        (&["--max-size", "17T"], "--max-size: 17 TiB: a pool of the layout bpfs has at least"),
    ] {
        let refused = s.fails(mkfs.iter().chain(options), 2);
        assert!(refused.contains(why), "{refused}");
        assert!(!other.exists(), "{options:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_served_is_named() {
    let s = Sandbox::empty();
    let run = |dir: &str| {
        let output = s.run(["run", "--direct", dir, "--", "true"]);
        assert!(output.status.success(), "{output:?}");
        text_of(&output)
    };
    let notice = run("/proc");
    assert!(notice.contains("--direct /proc: proc without DAX"), "{notice}");
    assert_eq!(run("/dev/shm"), "");
    assert_eq!(text_of(&s.run(["run", "--quiet", "--direct", "/proc", "--", "true"])), "");
}

#[test]
fn a_missing_snapshot_is_not_a_damaged_pool() {
    let s = Sandbox::formatted();
    let name = format!("{}@typo", s.pool_str());
    for args in [
        &["mount", &name, s.dir_str()][..],
        &["export", &name, "-o", s.outside("archive").to_str().unwrap()],
        &["snapshot", "diff", s.pool_str(), "typo"],
    ] {
        let refused = s.fails(args, 1);
        assert!(refused.contains("no snapshot"), "{refused}");
        assert!(refused.contains("`keepstone snapshot list"), "{refused}");
        assert!(!refused.contains("cannot be opened"), "{refused}");
    }
    s.ok(["mkfs", s.pool_str(), "--cache", "--force"]);
    let refused = s.fails(["mount", &name, s.dir_str()], 1);
    assert!(refused.contains("a cache has no snapshots"), "{refused}");
}

#[test]
fn statistics_are_found_by_the_pool() {
    let mut s = Sandbox::formatted();
    let refused = s.fails(["stats", s.pool_str()], 1);
    assert!(refused.contains("no pool is mounted there"), "{refused}");
    s.mount(&[]);
    let stats: Value = serde_json::from_str(&s.ok(["stats", s.pool_str(), "--json"])).unwrap();
    assert_eq!(stats["pool"], s.pool_str());
    let tag = format!("UUID={}", stats["uuid"].as_str().unwrap());
    assert!(s.ok(["stats", &tag]).contains(s.pool_str()));
    s.umount();
}

#[test]
fn messages_name_what_is_missing_and_who_may() {
    let mut s = Sandbox::formatted();
    let file = s.outside("none/pool");
    let missing = s.fails(["mkfs", file.to_str().unwrap(), "--size", "1M"], 1);
    assert!(missing.contains("the directory") && missing.contains("does not exist"), "{missing}");
    let refused = s.fails(["mount", s.pool_str(), "/dev/null"], 1);
    assert!(refused.contains("/dev/null: is not a directory"), "{refused}");
    let none = s.fails(["doctor", "/dev/shm/nothing-here"], 1);
    assert!(none.is_empty(), "{none}");
    let found = text_of(&s.run(["doctor", "/dev/shm/nothing-here"]));
    assert_eq!(found.matches("os error 2").count(), 1, "{found}");

    fs::set_permissions(&s.pool, fs::Permissions::from_mode(0o600)).unwrap();
    s.mount(&["-o", "allow_other"]);
    let program = env!("CARGO_BIN_EXE_keepstone");
    let as_other = |command: &str| as_nobody(&format!("{program} {command} 2>&1 || true"));
    let refused = as_other(&format!("info {}", s.pool_str()));
    assert!(refused.contains("it belongs to user 0 (mode 0600)"), "{refused}");
    let refused = as_other(&format!("umount {}", s.dir_str()));
    assert!(refused.contains("user 0 has mounted it"), "{refused}");
    s.umount();
}
