//! Output, refusals and exit status of every command.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::common::{PermissionsExt as _, Sandbox};
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
    // Other data is refused, too.
    std::fs::write(&s.pool, "precious").unwrap();
    assert!(s.fails(["mkfs", s.pool_str(), "--size", "64M"], 1).contains("no pool"));
    assert_eq!(std::fs::read(&s.pool).unwrap(), b"precious");
}

#[test]
fn mkfs_refuses_what_it_cannot_do() {
    let s = Sandbox::empty();
    assert!(s.fails(["mkfs", s.pool_str()], 2).contains("--size 4G"));
    assert!(s.fails(["mkfs", s.pool_str(), "--size", "big"], 2).contains("4G"));
    let other = s.fails(["mkfs", s.pool_str(), "--size", "64M", "--layout", "ext4"], 2);
    assert!(other.contains("possible values: bpfs"), "{other}");
    s.fails(["mkfs", s.pool_str(), "--size", "4K"], 2);
    assert!(!s.pool.exists(), "what failed leaves no file");
}

/// Returns the properties of a file that a failed mkfs could change.
fn seen(path: &Path) -> (u64, u32, u32, u64, u64) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.ino(), meta.uid(), meta.mode(), meta.len(), meta.rdev())
}

#[test]
fn mkfs_names_what_is_no_file_and_leaves_it() {
    use rustix::fs::{CWD, FileType, makedev, mknodat};
    let s = Sandbox::empty();
    let node = |name: &str, kind, device| {
        let path = s.outside(name);
        mknodat(CWD, &path, kind, 0o640.into(), device).unwrap();
        path
    };
    let socket = s.outside("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let dangling = s.outside("dangling");
    std::os::unix::fs::symlink(s.outside("nothing"), &dangling).unwrap();
    for (path, kind) in [
        // There is no such device, but mkfs must fail before it tries to open it.
        (node("block", FileType::BlockDevice, makedev(7, 4000)), "is a block device"),
        (node("null", FileType::CharacterDevice, makedev(1, 3)), "is a character device"),
        (node("fifo", FileType::Fifo, 0), "is a fifo"),
        (socket, "is a socket"),
        (s.dir.clone(), "is a directory"),
        (dangling, "is a symbolic link"),
    ] {
        let before = seen(&path);
        for force in [&[][..], &["--force"]] {
            let args = ["mkfs", path.to_str().unwrap(), "--size", "64M"];
            let refused = s.fails(args.iter().chain(force), 1);
            assert!(refused.contains(kind), "{refused}");
            assert_eq!(seen(&path), before, "{kind}");
        }
    }
    // A link to a file is followed, and stays a link.
    let link = s.outside("link");
    std::os::unix::fs::symlink(&s.pool, &link).unwrap();
    std::fs::write(&s.pool, "").unwrap();
    s.ok(["mkfs", link.to_str().unwrap(), "--size", "1M"]);
    assert!(std::fs::read_link(link).is_ok() && s.pool.metadata().unwrap().is_file());
}

#[test]
fn mkfs_sees_what_lies_anywhere() {
    let s = Sandbox::empty();
    for (at, bytes, named) in [
        (0x10040, &b"_BHRfS_M"[..], "a Btrfs file system"),
        (0x8001, b"CD001", "an ISO 9660 file system"),
        (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (0, b"SQLite format 3\0", "an SQLite database"),
        (3 << 20, b"x", "data that is no pool, from byte 3145728 on"),
        ((64 << 20) - 1, b"x", "data that is no pool"),
        (0, b"KSTNBPFS", "a pool that cannot be opened"),
    ] {
        let file = std::fs::File::create(&s.pool).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(bytes, at).unwrap();
        let before = seen(&s.pool);
        let refused = s.fails(["mkfs", s.pool_str()], 1);
        assert!(refused.contains(named) && refused.contains("--force"), "{refused}");
        assert_eq!(seen(&s.pool), before);
        let mut there = vec![0; bytes.len()];
        std::fs::File::open(&s.pool).unwrap().read_exact_at(&mut there, at).unwrap();
        assert_eq!(there, bytes);
        s.ok(["mkfs", s.pool_str(), "--force"]);
        s.ok(["check", s.pool_str()]);
    }
    // The rest of a truncated pool stays.
    let file = std::fs::OpenOptions::new().write(true).open(&s.pool).unwrap();
    file.set_len(32 << 20).unwrap();
    assert!(s.fails(["mkfs", s.pool_str()], 1).contains("a pool that cannot be opened"));
    let refused = s.fails(["mount", s.pool_str(), s.dir_str()], 1);
    assert!(refused.contains("copy") && !refused.contains("mkfs"), "{refused}");
    // A file of zeros that was set aside is formatted.
    for allocated in [false, true] {
        let file = std::fs::File::create(&s.pool).unwrap();
        file.set_len(64 << 20).unwrap();
        if allocated {
            file.write_all_at(&vec![0; 8 << 20], 1 << 20).unwrap();
        }
        s.ok(["mkfs", s.pool_str()]);
    }
}

#[test]
fn mkfs_formats_in_place_and_a_failure_takes_nothing() {
    let s = Sandbox::empty();
    let content: Vec<u8> = (0..9_000_000u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(&s.pool, &content).unwrap();
    std::fs::set_permissions(&s.pool, std::fs::Permissions::from_mode(0o664)).unwrap();
    std::os::unix::fs::chown(&s.pool, Some(65534), Some(100)).unwrap();
    let before = seen(&s.pool);
    let long = "x".repeat(65);
    let huge = free_on_shm() + (1 << 30);
    for (args, code, why) in [
        (&["--size", "17T"][..], 2, "16 TiB less 4 KiB"),
        (&["--size", "100K"], 2, "256 KiB"),
        (&["--size", &huge.to_string()], 1, "smaller size"),
        (&["--size", "64M", "--label", &long], 2, "64 bytes"),
    ] {
        let refused =
            s.fails(["mkfs", s.pool_str(), "--force", "--thick"].iter().chain(args), code);
        assert!(refused.contains(why), "{refused}");
        assert_eq!(seen(&s.pool), before, "{why}");
        assert!(std::fs::read(&s.pool).unwrap() == content, "{why}");
    }
    // A limit on files that would end the program is an error.
    let limited = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 20000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_keepstone")])
        .args(["mkfs", s.pool_str(), "--force", "--size", "64M"])
        .output()
        .unwrap();
    assert_eq!(limited.status.code(), Some(1), "{limited:?}");
    assert_eq!(seen(&s.pool), before);
    // Longer, shorter or of the same size: the file stays the same, and holds one pool.
    for (size, want) in [("64M", 64 << 20), ("32M", 32 << 20), ("", 32 << 20)] {
        let size = ["--size", size];
        let size = if size[1].is_empty() { &[][..] } else { &size };
        s.ok(["mkfs", s.pool_str(), "--force", "--thick"].iter().chain(size));
        let after = seen(&s.pool);
        assert_eq!(after, (before.0, before.1, before.2, want, before.4));
        assert!(s.pool.metadata().unwrap().blocks() * 512 >= want, "all of it is allocated");
        s.ok(["check", s.pool_str()]);
    }
    // A failed mkfs of a new file leaves no file.
    std::fs::remove_file(&s.pool).unwrap();
    s.fails(["mkfs", s.pool_str(), "--thick", "--size", &huge.to_string()], 1);
    assert!(!s.pool.exists());
}

fn free_on_shm() -> u64 {
    let fs = rustix::fs::statvfs("/dev/shm").unwrap();
    fs.f_bfree * fs.f_frsize
}

#[test]
fn a_pool_in_use_is_left_alone() {
    let s = Sandbox::mounted(&[]);
    let refused = s.fails(["mkfs", s.pool_str(), "--size", "64M", "--force"], 1);
    // The message names the process and a remedy.
    for part in ["in use by keepstone", &format!("pid {}", s.servers[0]), s.dir_str(), "umount"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(s.fails(["check", s.pool_str()], 4).contains("in use"));
    let other = s.outside("other");
    std::fs::create_dir(&other).unwrap();
    let twice = s.fails(["mount", s.pool_str(), other.to_str().unwrap()], 1);
    assert!(twice.contains("in use"), "{twice}");
    let same = s.fails(["mount", s.pool_str(), s.dir_str()], 1);
    assert!(same.contains("is mounted there"), "{same}");
    // Reading its description is allowed.
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
    assert!(no_pool.contains(s.pool_str()) && no_pool.contains("no pool here"), "{no_pool}");
    let not_mounted = s.fails(["umount", s.dir_str()], 1);
    assert!(not_mounted.contains("no pool is mounted there"), "{not_mounted}");
    assert!(s.fails(["stats", s.dir_str()], 1).contains("no pool is mounted there"));
    assert!(s.fails(["mount", s.pool_str(), "/no/such/dir"], 1).contains("mkdir /no/such/dir"));
    let option = s.fails(["mount", "-o", "ro,colour=blue", s.pool_str(), s.dir_str()], 2);
    assert!(option.contains("colour=blue"), "{option}");
    assert!(s.fails(["mount", "--threads", "0", s.pool_str(), s.dir_str()], 2).contains("--help"));
}

#[test]
fn check_finds_and_repairs() {
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
    for block in (2..256).step_by(2) {
        file.write_all_at(&[0xa5; 4096], block * 4096).unwrap();
    }
    drop(file);
    let output = s.run(["check", s.pool_str(), "--json"]);
    let code = output.status.code().unwrap();
    assert!(code == 1 || code == 4, "{output:?}");
    let output = s.run(["check", s.pool_str(), "--repair"]);
    assert!(matches!(output.status.code(), Some(1 | 4)), "{output:?}");
    // A damaged pool can be mounted read-only.
    let mounted = s.run(["mount", "--json", "--read-only", s.pool_str(), s.dir_str()]);
    if mounted.status.success() {
        s.servers
            .push(json(&String::from_utf8_lossy(&mounted.stdout))["pid"].as_i64().unwrap() as i32);
        let _ = std::fs::read_dir(&s.dir).map(Iterator::count);
        assert_eq!(s.stats()["panics"], 0);
        s.umount();
    }
}

/// A repair that reports that all is repaired leaves nothing to repair, whatever block is damaged.
#[test]
fn one_repair_is_enough() {
    for layout in ["bpfs", "scmfs"] {
        let mut s = Sandbox::empty();
        s.ok(["mkfs", s.pool_str(), "--size", "16M", "--layout", layout]);
        s.mount(&[]);
        for dir in ["a", "a/b", "c"] {
            std::fs::create_dir(s.path(dir)).unwrap();
            std::fs::write(s.path(dir).join("file"), vec![7; 5000]).unwrap();
        }
        s.umount();
        let sound = std::fs::read(&s.pool).unwrap();
        let used = |block: &usize| sound[block * 4096..][..4096].iter().any(|byte| *byte != 0);
        let mut repaired = 0;
        for block in (1..sound.len() / 4096).filter(used).take(60) {
            let mut bytes = sound.clone();
            bytes[block * 4096..][..4096].fill(0xa5);
            std::fs::write(&s.pool, &bytes).unwrap();
            let output = s.run(["check", s.pool_str(), "--repair"]);
            if output.status.code() == Some(1) {
                repaired += 1;
                assert!(s.ok(["check", s.pool_str()]).contains("clean"), "{layout}, {block}");
            }
        }
        assert!(repaired > 0, "{layout}");
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
    assert!(stats["free"]["longest_bytes"].as_u64().unwrap() > 1 << 20);
    let info = json(&s.ok(["info", s.pool_str(), "--json"]));
    assert_eq!(info["free"], stats["free"]);
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
        let needs_remedy = finding["level"] == "advice" || finding["level"] == "unsafe";
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
    // Without a terminal, a line reports the progress.
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
    s.fails(["crashtest", "--replay", "garbage"], 2);
}

#[test]
fn crashtest_refuses_rules_that_a_block_device_cannot_have() {
    let s = Sandbox::empty();
    for rules in ["epoch", "epoch-torn"] {
        let told = s.fails(["crashtest", "--engine", "pmbd", "--semantics", rules], 2);
        assert!(told.contains(rules) && told.contains("block devices"), "{told}");
    }
}

/// Runs `keepstone ARGS` with its output to a pipe without a reader, or to the file `stdout`.
fn with_stdout(args: &[&str], stdout: Option<&str>) -> std::process::Output {
    let to: std::process::Stdio = match stdout {
        Some(path) => std::fs::File::options().write(true).open(path).unwrap().into(),
        None => rustix::pipe::pipe().unwrap().1.into(),
    };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_keepstone"));
    command.args(args).stdout(to).stderr(std::process::Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn nobody_need_read_what_is_printed() {
    let mut s = Sandbox::formatted();
    let mounted = with_stdout(&["mount", s.pool_str(), s.dir_str()], None);
    assert!(mounted.status.success(), "{mounted:?}");
    s.servers.push(s.stats()["pid"].as_i64().unwrap() as i32);
    for args in
        [&["info", s.pool_str()][..], &["stats", s.dir_str()], &["stats", "--json", s.dir_str()]]
    {
        let said = with_stdout(args, None);
        assert!(!String::from_utf8_lossy(&said.stderr).contains("panic"), "{said:?}");
        // Lost output is a failure if there still is a reader.
        let full = with_stdout(args, Some("/dev/full"));
        assert_eq!(full.status.code(), Some(1), "{full:?}");
        assert!(String::from_utf8_lossy(&full.stderr).contains("No space left"), "{full:?}");
    }
    s.umount();
    // In the foreground the server continues.
    let (pool, dir) = (s.pool_str().to_owned(), s.dir_str().to_owned());
    let server = std::thread::spawn(move || with_stdout(&["mount", "-f", &pool, &dir], None));
    crate::common::wait_until("it is mounted", || s.run(["stats", s.dir_str()]).status.success());
    std::fs::write(s.path("file"), "content").unwrap();
    s.umount();
    let server = server.join().unwrap();
    assert!(server.status.success(), "{server:?}");
}

#[test]
fn failures_are_one_object_with_json_and_nothing_is_said_twice() {
    let s = Sandbox::empty();
    let (pool, dir) = (s.pool_str(), s.dir_str());
    for (args, code) in [
        (&["mkfs", pool][..], 2),
        (&["mkfs", pool, "--size", "big"], 2),
        (&["mount", pool, dir], 1),
        (&["umount", dir], 1),
        (&["info", pool], 1),
        (&["check", pool], 4),
        (&["stats", dir], 1),
        (&["run", "--direct", "/no/such", "true"], 1),
        (&["run", "no-such-program"], 127),
        (&["doctor", "/no/such/pool"], 1),
        (&["bdev", "stop", "/no/such"], 1),
        (&["bdev", "serve", "/no/such"], 1),
        (&["crashtest", "--replay", "garbage"], 2),
        (&["frobnicate"], 2),
    ] {
        let output = s.run(["--json"].iter().chain(args));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        let printed = json(&String::from_utf8(output.stdout).unwrap());
        let told = String::from_utf8(output.stderr).unwrap();
        if args[0] == "doctor" {
            continue; // Its findings are its report.
        }
        let error = printed["error"].as_str().unwrap();
        assert!(told.contains(error.lines().next().unwrap()), "{args:?}: {error} / {told}");
        let mut parts: Vec<_> = error.split(": ").collect();
        let all = parts.len();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), all, "{args:?}: {error}");
    }
}

#[test]
fn pools_are_named_by_path_mount_point_uuid_or_label() {
    let mut s = Sandbox::empty();
    let label = s.pool.file_name().unwrap().to_str().unwrap().to_owned();
    let made = json(&s.ok(["mkfs", s.pool_str(), "--size", "64M", "--label", &label, "--json"]));
    let (uuid, label) =
        (format!("UUID={}", made["uuid"].as_str().unwrap()), format!("LABEL={label}"));
    let names = [s.pool_str(), &uuid, &label].map(str::to_owned);
    for name in &names {
        assert!(s.ok(["check", name]).contains("clean"));
        assert_eq!(json(&s.ok(["info", name, "--json"]))["uuid"], made["uuid"]);
    }
    for name in names.iter().map(String::as_str).chain([s.dir.clone().to_str().unwrap()]) {
        s.mount(&[]);
        assert!(s.fails(["check", name], 4).contains("in use by keepstone"));
        s.ok(["umount", name]);
        s.server_ends();
    }
    for unknown in ["UUID=0", "LABEL=no such label", "/no/such"] {
        assert!(s.fails(["umount", unknown], 1).contains("no such"), "{unknown}");
        assert!(s.fails(["check", unknown], 4).contains("no such pool"), "{unknown}");
    }
    // Two pools with the same label are refused.
    let copy = format!("{}-copy", s.pool_str());
    std::fs::copy(&s.pool, &copy).unwrap();
    let refused = s.fails(["check", &label], 4);
    std::fs::remove_file(&copy).unwrap();
    assert!(refused.contains(&copy) && refused.contains(s.pool_str()), "{refused}");
}

#[test]
fn documented_replay_lines_replay() {
    let s = Sandbox::empty();
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/CRASHTESTING.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("keepstone crashtest")).collect();
    let replays = lines.iter().filter_map(|line| line.split_once("--replay '"));
    let replays: Vec<_> = replays.collect();
    assert!(replays.len() >= 2, "{lines:?}");
    for (command, line) in replays {
        let options = command.split_once("crashtest").unwrap().1.split_ascii_whitespace();
        let line = line.trim_end_matches('\'');
        s.ok(["crashtest"].into_iter().chain(options).chain(["--replay", line]));
    }
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
