//! Every command, as the man pages list them, which are made from the description of the command
//! line: wrong usage has exit status 2, and `--json` gives one value.
//!
//! Needs root, `/dev/fuse` and loop devices.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::common::Sandbox;

/// Commands that are not run here, with the reason.
const LEFT_OUT: [(&str, &str); 12] = [
    ("attach discard", "needs a conflict: resolved.rs"),
    ("attach resolve", "needs a conflict: resolved.rs"),
    ("bdev", "only a group"),
    ("bench", "another program, with tests of its own"),
    ("bdev attach", "as bdev loop"),
    ("crashtest", "takes minutes: semantics.rs"),
    ("mount", "Sandbox::mount"),
    ("simulate", "only a group"),
    ("simulate memory", "only a group"),
    ("snapshot", "only a group"),
    ("branch", "only a group"),
    ("volumes", "a server: volumes.rs"),
];

/// Returns all commands, each as its words.
fn commands(s: &Sandbox) -> BTreeSet<String> {
    let dir = s.outside("generated");
    s.ok(["generate", dir.to_str().unwrap()]);
    let pages = fs::read_dir(dir.join("man1")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let words = |page: String| {
        let name = page.strip_prefix("keepstone-")?.strip_suffix(".1")?;
        // The only command whose name has a hyphen.
        Some(if name == "clone-pool" { name.to_owned() } else { name.replace('-', " ") })
    };
    // The commands of `bench` are those of another program, which is there or not.
    pages.filter_map(words).filter(|command| !command.starts_with("bench ")).collect()
}

#[test]
fn wrong_usage_has_status_2() {
    let s = Sandbox::empty();
    let all = commands(&s);
    assert!(all.len() > 25, "{all:?}");
    // The arguments of `bench` are those of another program.
    for command in all.into_iter().filter(|command| command != "bench") {
        let args = command.split(' ').chain(["--json", "--no-such-option"]);
        let output = s.run(args);
        assert_eq!(output.status.code(), Some(2), "{command}: {output:?}");
        let error: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(error["error"].is_string(), "{command}: {error}");
    }
    for args in [&["attach"][..], &["mkfs", s.pool_str()], &["attach", "-o", "frob", "a", "b"]] {
        s.fails(args, 2);
    }
}

/// Runs a command with `--json`, which must succeed and print one value, and notes it.
fn runs(s: &Sandbox, seen: &mut BTreeSet<String>, command: &str, args: &[&str]) -> Value {
    seen.insert(command.to_owned());
    let text = s.ok(command.split(' ').chain(["--json"]).chain(args.iter().copied()));
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{command}: {err}: {text}"))
}

#[test]
fn json_is_one_value() {
    let mut s = Sandbox::empty();
    let mut seen = BTreeSet::new();
    let all = commands(&s);
    let (pool, dir) = (s.pool_str().to_owned(), s.dir_str().to_owned());
    runs(&s, &mut seen, "mkfs", &[&pool, "--size", "64M"]);
    s.mount(&[]);
    fs::write(s.path("file"), "content").unwrap();
    for command in ["info", "stats", "trim", "doctor"] {
        runs(&s, &mut seen, command, &[&dir]);
    }
    let (file, copy) = (s.path("file"), s.path("copy"));
    runs(&s, &mut seen, "clone", &[file.to_str().unwrap(), copy.to_str().unwrap()]);
    runs(&s, &mut seen, "snapshot create", &[&dir, "now"]);
    runs(&s, &mut seen, "branch create", &[&dir, "one", "two"]);
    runs(&s, &mut seen, "branch list", &[&dir]);
    runs(&s, &mut seen, "branch commit", &[&dir, "one"]);
    runs(&s, &mut seen, "branch discard", &[&dir, "two"]);
    runs(&s, &mut seen, "snapshot list", &[&dir, "--space"]);
    runs(&s, &mut seen, "snapshot diff", &[&dir, "now"]);
    runs(&s, &mut seen, "snapshot prune", &[&dir, "--keep", "9"]);
    let stream = s.outside("stream").to_str().unwrap().to_owned();
    runs(&s, &mut seen, "send", &[&format!("{dir}@now"), "-o", &stream]);
    runs(&s, &mut seen, "receive", &[&format!("{dir}@again"), &stream]);
    runs(&s, &mut seen, "top", &["--count", "1", &dir]);
    runs(&s, &mut seen, "run", &["--stats", "--", "true"]);
    runs(&s, &mut seen, "umount", &[&dir]);
    runs(&s, &mut seen, "snapshot rollback", &[&pool, "now"]);
    runs(&s, &mut seen, "snapshot delete", &[&pool, "now", "again"]);
    runs(&s, &mut seen, "check", &[&pool]);
    runs(&s, &mut seen, "resize", &[&pool, "32M"]);
    runs(&s, &mut seen, "clone-pool", &[&pool, s.outside("copy").to_str().unwrap()]);
    runs(&s, &mut seen, "export", &[&pool, "-o", s.outside("archive").to_str().unwrap()]);
    let trace = s.outside("trace");
    fs::write(&trace, "a 1\nb 1\na 1\n").unwrap();
    runs(&s, &mut seen, "simulate cache", &[trace.to_str().unwrap(), "--cache", "50%"]);
    models(&s, &mut seen);
    caches(&s, &mut seen);
    devices(&s, &mut seen);
    let left_out = LEFT_OUT.map(|(command, _)| command.to_owned());
    let missing: Vec<_> =
        all.iter().filter(|c| !seen.contains(*c) && !left_out.contains(c)).collect();
    assert!(missing.is_empty(), "not tried: {missing:?}");
}

/// The commands of caches.
fn caches(s: &Sandbox, seen: &mut BTreeSet<String>) {
    let (pool, dir) = (s.pool_str(), s.outside("data"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    let (file, dir) = (dir.join("file"), dir.to_str().unwrap().to_owned());
    let file = file.to_str().unwrap();
    s.ok(["mkfs", pool, "--size", "64M", "--force", "--cache"]);
    runs(s, seen, "attach", &[pool, &dir]);
    for command in ["status", "warm", "pin", "show", "flush", "unpin", "invalidate"] {
        let target = if command == "status" { &dir } else { file };
        runs(s, seen, &format!("attach {command}"), &[target]);
    }
    s.ok(["umount", &dir]);
    runs(s, seen, "attach drain", &[pool, &dir]);
}

/// The models of memory hardware.
fn models(s: &Sandbox, seen: &mut BTreeSet<String>) {
    let trace = s.outside("accesses");
    let file = fs::File::create(&trace).unwrap();
    let mut writer = memsim::trace::Writer::new(file, 4096);
    let action = memsim::trace::Action::Load { addr: 0, len: 64 };
    writer.push(&memsim::trace::MemoryEvent { thread: 0, gap_ns: 0, action }).unwrap();
    writer.finish(1000).unwrap();
    let (trace, text) = (trace.to_str().unwrap(), s.outside("text"));
    let text = text.to_str().unwrap();
    for command in ["describe", "throughput", "caches", "interference", "wear"] {
        runs(s, seen, &format!("simulate memory {command}"), &[trace]);
    }
    runs(s, seen, "simulate memory costs", &[]);
    runs(s, seen, "simulate memory export", &[trace, text, "--to", "nvmain"]);
    runs(s, seen, "simulate memory import", &[text, trace, "--from", "nvmain"]);
    runs(s, seen, "simulate memory record", &[trace, "--operations", "1"]);
}

/// The commands of block devices.
fn devices(s: &Sandbox, seen: &mut BTreeSet<String>) {
    let (disk, socket) = (s.outside("disk"), s.outside("socket"));
    let (disk, socket) = (disk.to_str().unwrap(), socket.to_str().unwrap());
    let new = ["--create", "--size", "1M"];
    runs(
        s,
        seen,
        "bdev serve",
        &[&[disk, "--socket", socket, "--atomic", "4096"][..], &new].concat(),
    );
    runs(s, seen, "bdev list", &[]);
    runs(s, seen, "bdev stats", &[socket]);
    runs(s, seen, "bdev stop", &[socket]);
    runs(s, seen, "bdev check", &[disk]);
    fs::remove_file(disk).unwrap();
    let made = runs(s, seen, "bdev loop", &[&[disk][..], &new].concat());
    runs(s, seen, "bdev detach", &[made["device"].as_str().unwrap()]);
    runs(s, seen, "bdev grow", &[disk, "--size", "2M"]);
}

#[test]
fn counters_are_metrics() {
    let mut s = Sandbox::formatted();
    s.mount(&[]);
    let of_stats = s.ok(["stats", "--prometheus", s.dir_str()]);
    let of_top = s.ok(["top", "--prometheus", s.dir_str()]);
    for metrics in [&of_stats, &of_top] {
        let count = format!("keepstone_mount_uptime_seconds{{mount=\"{}\"}} ", s.dir_str());
        assert!(metrics.contains(&count), "{metrics}");
        let types = metrics.lines().filter(|line| line.starts_with("# TYPE"));
        let types: Vec<_> = types.collect();
        assert_eq!(types.len(), types.iter().collect::<BTreeSet<_>>().len(), "{metrics}");
    }
    let up = format!("keepstone_up{{kind=\"mount\",name=\"{}\"}} ", s.dir_str());
    assert!(of_top.contains(&(up.clone() + "1")), "{of_top}");
    s.stop_server();
    let stopped = s.ok(["top", "--prometheus", s.dir_str()]);
    s.signal_server(rustix::process::Signal::CONT);
    assert!(stopped.contains(&(up + "0")), "{stopped}");
    s.umount();
}
