//! Every command: what it prints, what it refuses, and its exit status.

mod common;

use common::Sandbox;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn mkfs_then_info() {
    let s = Sandbox::empty();
    let made = s.ok(["mkfs", s.pool_str(), "--size", "64M", "--label", "test pool", "--json"]);
    let made = json(&made);
    assert_eq!(made["size_bytes"], 64 << 20);
    assert_eq!(made["label"], "test pool");
    assert_eq!(made["domain"]["name"], "volatile");
    assert_eq!(made["domain"]["durable"], false);
    let info = json(&s.ok(["info", s.pool_str(), "--json"]));
    assert_eq!(info["uuid"], made["uuid"]);
    assert_eq!(info["mounted_on"], json("[]"));
    let text = s.ok(["info", s.pool_str()]);
    assert!(text.contains("test pool") && text.contains("64 MiB"), "{text}");
    assert!(text.contains("DRAM, not persistent memory"), "{text}");
}

#[test]
fn mkfs_keeps_what_is_there() {
    let s = Sandbox::formatted();
    let before = json(&s.ok(["info", s.pool_str(), "--json"]));
    let refused = s.fails(["mkfs", s.pool_str(), "--size", "64M"], 1);
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(json(&s.ok(["info", s.pool_str(), "--json"])), before);
    s.ok(["mkfs", s.pool_str(), "--size", "64M", "--force"]);
    let after = json(&s.ok(["info", s.pool_str(), "--json"]));
    assert_ne!(after["uuid"], before["uuid"]);
    // The size of the old pool is the default.
    s.ok(["mkfs", s.pool_str(), "--force"]);
    assert_eq!(json(&s.ok(["info", s.pool_str(), "--json"]))["size_bytes"], 64 << 20);
    // Other people's data too.
    std::fs::write(&s.pool, "precious").unwrap();
    assert!(s.fails(["mkfs", s.pool_str(), "--size", "64M"], 1).contains("no pool"));
    assert_eq!(std::fs::read(&s.pool).unwrap(), b"precious");
}

#[test]
fn mkfs_refuses_what_it_cannot_do() {
    let s = Sandbox::empty();
    assert!(s.fails(["mkfs", s.pool_str()], 1).contains("--size 4G"));
    assert!(s.fails(["mkfs", s.pool_str(), "--size", "big"], 2).contains("4G"));
    let scmfs = s.fails(["mkfs", s.pool_str(), "--size", "64M", "--layout", "scmfs"], 1);
    assert!(scmfs.contains("not yet in this version"), "{scmfs}");
    s.fails(["mkfs", s.pool_str(), "--size", "4K"], 1);
    assert!(!s.pool.exists(), "what failed leaves no file");
}

#[test]
fn a_pool_in_use_is_left_alone() {
    let s = Sandbox::mounted(&[]);
    let refused = s.fails(["mkfs", s.pool_str(), "--size", "64M", "--force"], 1);
    assert!(refused.contains("in use"), "{refused}");
    assert!(s.fails(["check", s.pool_str()], 4).contains("in use"));
    let other = s.outside("other");
    std::fs::create_dir(&other).unwrap();
    let twice = s.fails(["mount", s.pool_str(), other.to_str().unwrap()], 1);
    assert!(twice.contains("in use"), "{twice}");
    let same = s.fails(["mount", s.pool_str(), s.dir_str()], 1);
    assert!(same.contains("is mounted there"), "{same}");
    // Looking is allowed.
    let info = json(&s.ok(["info", s.pool_str(), "--json"]));
    assert_eq!(info["mounted_on"][0], s.dir_str());
}

#[test]
fn errors_name_object_cause_and_remedy() {
    let s = Sandbox::empty();
    let missing = s.fails(["mount", s.pool_str(), s.dir_str()], 1);
    assert!(missing.contains(s.pool_str()) && missing.contains("mkfs"), "{missing}");
    std::fs::write(&s.pool, vec![1; 1 << 20]).unwrap();
    let no_pool = s.fails(["mount", s.pool_str(), s.dir_str()], 1);
    assert!(no_pool.contains(s.pool_str()) && no_pool.contains("no BPFS pool"), "{no_pool}");
    let not_mounted = s.fails(["umount", s.dir_str()], 1);
    assert!(not_mounted.contains("no pool is mounted there"), "{not_mounted}");
    assert!(s.fails(["stats", s.dir_str()], 1).contains("no pool is mounted there"));
    assert!(s.fails(["mount", s.pool_str(), "/no/such/dir"], 1).contains("mkdir /no/such/dir"));
    let option = s.fails(["mount", "-o", "ro,colour=blue", s.pool_str(), s.dir_str()], 1);
    assert!(option.contains("colour=blue"), "{option}");
    assert!(s.fails(["mount", "--threads", "0", s.pool_str(), s.dir_str()], 2).contains("--help"));
}

#[test]
fn check_finds_and_repairs() {
    use std::os::unix::fs::FileExt as _;
    let mut s = Sandbox::mounted(&[]);
    for i in 0..50 {
        std::fs::write(s.path(&format!("f{i}")), vec![7; 5000]).unwrap();
    }
    s.umount();
    assert!(s.ok(["check", s.pool_str()]).contains("clean"));
    let report = json(&s.ok(["check", s.pool_str(), "--json"]));
    assert_eq!(report["problems"], json("[]"));
    assert_eq!(report["inodes"], 51);

    // Damage: garbage over every other block beyond the first ones.
    let file = std::fs::OpenOptions::new().write(true).open(&s.pool).unwrap();
    for block in (2..64).step_by(2) {
        file.write_all_at(&[0xa5; 4096], block * 4096).unwrap();
    }
    drop(file);
    let output = s.run(["check", s.pool_str(), "--json"]);
    let code = output.status.code().unwrap();
    assert!(code == 1 || code == 4, "{output:?}");
    let output = s.run(["check", s.pool_str(), "--repair"]);
    assert!(matches!(output.status.code(), Some(1 | 4)), "{output:?}");
    // A damaged pool can be looked at.
    let mounted = s.run(["mount", "--json", "--read-only", s.pool_str(), s.dir_str()]);
    if mounted.status.success() {
        s.servers
            .push(json(&String::from_utf8_lossy(&mounted.stdout))["pid"].as_i64().unwrap() as i32);
        let _ = std::fs::read_dir(&s.dir).map(Iterator::count);
        assert_eq!(s.stats()["panics"], 0);
        s.umount();
    }
}

#[test]
fn stats_count_requests() {
    let s = Sandbox::mounted(&["--threads", "3"]);
    std::fs::write(s.path("a"), "hello").unwrap();
    let stats = s.stats();
    assert_eq!(stats["requests"]["create"], 1);
    assert_eq!(stats["requests"]["write"], 1);
    assert_eq!(stats["written_bytes"], 5);
    assert_eq!(stats["threads"], 3);
    assert_eq!(stats["panics"], 0);
    assert!(stats["medium"]["fences"].as_u64().unwrap() > 0);
    assert!(stats["space"]["blocks_free"].as_u64().unwrap() > 0);
    let text = s.ok(["stats", s.dir_str()]);
    assert!(text.contains("requests") && text.contains("create"), "{text}");
}

#[test]
fn doctor_reports() {
    let s = Sandbox::mounted(&[]);
    let report = json(&s.ok(["doctor", s.dir_str(), "--json"]));
    let subjects: Vec<_> = report["findings"].as_array().unwrap().iter().collect();
    for subject in ["cpu", "fuse", "persistent memory", "mount", "persistence domain"] {
        assert!(subjects.iter().any(|f| f["subject"] == subject), "{subject}: {report}");
    }
    for finding in subjects {
        let needs_remedy = finding["level"] == "advice";
        assert_eq!(needs_remedy, finding["remedy"] != "", "{finding}");
    }
    assert!(s.ok(["doctor", s.pool_str()]).contains("bpfs"));
    s.fails(["doctor", "/no/such/pool"], 1);
}

#[test]
fn crashtest_explores_a_script_and_shows_a_crash_again() {
    let s = Sandbox::empty();
    let script = s.outside("script");
    std::fs::write(&script, "create /n; write /n 0 100").unwrap();
    let trace = s.outside("trace");
    let explore = ["crashtest", "--workload", script.to_str().unwrap()];
    let explored = s.run(explore.iter().chain(&["--json", "--trace", trace.to_str().unwrap()]));
    assert!(explored.status.success());
    let outcome = json(&String::from_utf8(explored.stdout).unwrap());
    assert!(outcome["states_explored"].as_u64().unwrap() > 10, "{outcome}");
    assert_eq!(outcome["violations"], 0);
    // Without a terminal a line tells how far it is.
    let told = String::from_utf8(explored.stderr).unwrap();
    assert!(told.contains("0 violations"), "{told}");
    assert!(std::fs::read_to_string(&trace).unwrap().starts_with("keepstone-trace"));
    assert!(s.ok(explore).contains("distinct crash states explored, 0 violations"));
    let crash = "adr tree 0.1 only: write /a 4090 20";
    assert_eq!(
        json(&s.ok(["crashtest", "--replay", crash, "--json"])).as_array().unwrap().len(),
        1
    );
    std::fs::write(&script, "frobnicate /n").unwrap();
    assert!(s.fails(explore, 1).contains("frobnicate"));
    s.fails(["crashtest", "--replay", "garbage"], 1);
}

#[test]
fn version_and_help() {
    let s = Sandbox::empty();
    assert!(s.ok(["--version"]).starts_with("keepstone "));
    for command in ["mkfs", "mount", "umount", "info", "check", "stats", "doctor"] {
        let help = s.ok([command, "--help"]);
        assert!(help.contains("Example:"), "{command}");
    }
}
