//! Messages that commands must print: about options without effect, missing files, and a pool that
//! is too small.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::attach::Cached;
use crate::common::{PermissionsExt as _, Sandbox, as_nobody};

fn text_of(output: &std::process::Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

#[test]
fn options_without_effect_are_named() {
    for (layout, is_named) in [("bpfs", true), ("scmfs", false)] {
        let sandbox = Sandbox::formatted_as(layout);
        let options =
            "prealloc=off,wear=on,null_files=64-1000,data_flush_interval=7,past_cache=512";
        let output = sandbox.run(["mount", "-o", options, sandbox.pool_str(), sandbox.dir_str()]);
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        for option in options.split(',') {
            assert_eq!(text.contains(option), is_named, "{layout}, {option}: {text}");
        }
        sandbox.umount();
    }
}

#[test]
fn a_wrong_option_is_wrong_usage() {
    let sandbox = Sandbox::formatted();
    let told =
        sandbox.fails(["mount", "-o", "colour=blue", sandbox.pool_str(), sandbox.dir_str()], 2);
    assert!(told.contains("colour=blue"), "{told}");
}

#[test]
fn the_version_is_json_where_that_is_asked_for() {
    let sandbox = Sandbox::empty();
    let version: Value = serde_json::from_str(&sandbox.ok(["--version", "--json"])).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_trace_of_rows_is_refused() {
    let sandbox = Sandbox::empty();
    let trace = sandbox.outside("trace");
    fs::write(&trace, "1,4096\n2,4096\n").unwrap();
    let told = sandbox.fails(["simulate", "cache", trace.to_str().unwrap()], 1);
    assert!(told.contains("1,4096"), "{told}");
}

#[test]
fn a_cache_is_known_by_its_pool() {
    let cached = Cached::new();
    let pool = cached.pool();
    let of = || -> Value {
        let told = cached.keepstone(&["--json", "info", pool.to_str().unwrap()]);
        serde_json::from_str::<Value>(&told).unwrap()["cache_of"].take()
    };
    assert_eq!(of(), Value::Null);
    cached.attach(&[]);
    let dir = cached.data().canonicalize().unwrap();
    assert_eq!(of(), dir.to_str().unwrap());
    assert_eq!(cached.status()["domain"]["name"], "volatile");
    cached.detach();
    let text = cached.keepstone(&["info", pool.to_str().unwrap()]);
    assert!(text.contains("a directory; not attached"), "{text}");
}

#[test]
fn commands_for_files_need_a_cache_and_files() {
    let cached = Cached::new();
    fs::create_dir(cached.data().join("empty")).unwrap();
    fs::create_dir(cached.base.path().join("outside")).unwrap();
    for name in 0..100 {
        fs::write(cached.base.path().join(format!("outside/{name}")), "x").unwrap();
    }
    cached.attach(&[]);
    let (outside, empty) = (cached.base.path().join("outside"), cached.data().join("empty"));
    for command in ["warm", "pin", "unpin", "flush", "show"] {
        let output = cached.run(&["attach", command, outside.to_str().unwrap()]);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {text}");
        assert_eq!(text.lines().count(), 1, "{command}: {text}");
    }
    for command in ["warm", "pin"] {
        let output = cached.run(&["attach", command, empty.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{command}: {}", text_of(&output));
    }
    cached.detach();
}

#[test]
fn more_than_the_pool_holds_is_not_warm() {
    let cached = Cached::new();
    for name in 0..12 {
        fs::write(cached.data().join(format!("file{name}")), vec![7; 8 << 20]).unwrap();
    }
    cached.attach(&[]);
    let output = cached.run(&["attach", "warm", cached.data().to_str().unwrap()]);
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("too small"), "{text}");
    cached.detach();
}

#[test]
fn a_tag_names_no_new_file() {
    let s = Sandbox::formatted();
    let none = ["LABEL=", "UUID=", "keepstone:LABEL=\"\""];
    for name in none {
        assert!(s.fails(["info", name], 2).contains("a value is missing"), "{name}");
    }
    for command in
        [&["mkfs", "LABEL=new", "--size", "16M"][..], &["clone-pool", s.pool_str(), "UUID=new"]]
    {
        assert!(s.fails(command, 2).contains("by its path"), "{command:?}");
        assert!(!Path::new("LABEL=new").exists() && !Path::new("UUID=new").exists());
    }
}

#[test]
fn a_label_ends_no_line() {
    let s = Sandbox::formatted();
    let mkfs = ["mkfs", s.pool_str(), "--force", "--label", "x\nuuid  0"];
    assert!(s.fails(mkfs, 2).contains("--label"));
    // A pool that another program has labelled.
    let mut bytes = fs::read(&s.pool).unwrap();
    s.ok(["mkfs", s.pool_str(), "--force", "--label", "xyuuid"]);
    let labelled = fs::read(&s.pool).unwrap();
    assert!(bytes != labelled);
    bytes = labelled;
    let at = bytes.windows(6).position(|text| text == b"xyuuid").unwrap();
    bytes[at + 1] = b'\n';
    fs::write(&s.pool, bytes).unwrap();
    let told = text_of(&s.run(["info", s.pool_str()]));
    assert!(!told.contains("\nuuid\n"), "{told}");
}

#[test]
fn outputs_go_where_their_names_lead() {
    let s = Sandbox::formatted();
    let (file, link) = (s.outside("file"), s.outside("link"));
    fs::write(&file, "older").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let export = |to: &str| s.ok(["export", s.pool_str(), "--output", to]);
    export(link.to_str().unwrap());
    assert!(link.is_symlink() && fs::metadata(&file).unwrap().len() > 512);
    // A device of its own, so that a fault replaces no other.
    let null = s.outside("null");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let device = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &null,
        rustix::fs::FileType::CharacterDevice,
        mode,
        device,
    )
    .unwrap();
    export(null.to_str().unwrap());
    assert!(!fs::metadata(&null).unwrap().is_file());
    let piped = s.run(["export", s.pool_str(), "--output", "/dev/stdout"]);
    assert!(piped.status.success() && piped.stdout.len() > 512, "{piped:?}");
    // A recording that fails leaves the older one.
    let record = ["simulate", "memory", "record", file.to_str().unwrap(), "--bytes", "1G"];
    let before = fs::read(&file).unwrap();
    s.fails(record, 1);
    assert!(fs::read(&file).unwrap() == before);
}

#[test]
fn commands_say_first_what_they_cannot_do() {
    let s = Sandbox::formatted();
    let sent = s.run(["send", &format!("{}@none", s.pool_str())]);
    assert!(!sent.status.success() && sent.stdout.is_empty(), "{sent:?}");
    let cache = s.outside("cache");
    let cache = cache.to_str().unwrap();
    s.ok(["mkfs", cache, "--size", "64M", "--cache"]);
    let exported = s.run(["export", cache]);
    assert!(!exported.status.success() && exported.stdout.is_empty(), "{exported:?}");
    assert!(text_of(&exported).contains("the directory"), "{exported:?}");
    let told = s.fails(["mount", "-o", "ro,direct", s.pool_str(), s.dir_str()], 1);
    assert!(told.contains("read-only"), "{told}");
    // 1 would mean that problems were found.
    s.fails(["bdev", "check", "/nowhere/disk"], 4);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let help = Command::new(env!("CARGO_BIN_EXE_keepstone")).arg("--help").stdout(full).status();
    assert_eq!(help.unwrap().code(), Some(1));
}

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
