//! Messages that commands must print: about options without effect, missing files, and a pool that
//! is too small.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::attach::Cached;
use crate::common::Sandbox;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn text_of(output: &std::process::Output) -> String {
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
    let told = s.fails(["mount", "-o", "ro,direct", s.pool_str(), s.dir_str()], 1);
    assert!(told.contains("read-only"), "{told}");
    // 1 would mean that problems were found.
    s.fails(["bdev", "check", "/nowhere/disk"], 4);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let help = Command::new(env!("CARGO_BIN_EXE_keepstone")).arg("--help").stdout(full).status();
    assert_eq!(help.unwrap().code(), Some(1));
}

#[test]
fn a_name_ends_no_line_of_a_list() {
    let s = Sandbox::mounted(&[]);
    s.ok(["snapshot", "create", s.dir_str(), "before"]);
    fs::create_dir(s.path("a\n- ")).unwrap();
    fs::write(s.path("a\n- /shadow"), "").unwrap();
    let told = s.ok(["snapshot", "diff", s.dir_str(), "before"]);
    assert_eq!(told, "+ /a\\n- \n+ /a\\n- /shadow\n");
    s.umount();
}

/// Changes in the pool of a cache can be saved although the cached directory is lost.
#[test]
fn what_a_cache_has_can_be_exported() {
    let cached = Cached::new();
    let (pool, data) = (cached.pool(), cached.data());
    fs::create_dir_all(data.join("unread/below")).unwrap();
    fs::write(data.join("unread/below/file"), "below").unwrap();
    fs::create_dir(data.join("read")).unwrap();
    fs::write(data.join("read/old"), "below").unwrap();
    cached.attach(&["--max-age", "3600"]);
    fs::write(data.join("read/new"), "changed").unwrap();
    crate::common::kill_server_of(&cached.status());
    let archive = cached.base.path().join("archive");
    let exported = cached.run(&["export", text(&pool), "--output", text(&archive)]);
    assert_eq!(exported.status.code(), Some(1), "{exported:?}");
    let told = text_of(&exported);
    for part in ["read/old: not in the pool", "unread/: not in the pool", "are not in the archive"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    let listed = crate::common::tool("tar", &["-tf", text(&archive)]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), ["./", "./read/", "./read/new", "./unread/"]);
    cached.detach();
}
