//! `keepstone top` shows all services, and a server that does not answer hides no other.
//!
//! Servers of other tests run meanwhile, so each test asks only for its own. Needs root,
//! `/dev/fuse` and `script` (util-linux).

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::bdev::served::{BLOCK, Served};
use crate::common::{Sandbox, as_nobody, wait_until};

/// `keepstone --json top`, which runs until this is dropped.
struct Top {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Top {
    fn start(targets: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.args(["--json", "top", "--interval", "0.1"]).args(targets);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Returns the next table.
    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("it goes on").unwrap()).unwrap()
    }

    /// Returns the next table for which `is_true` returns true.
    fn until(&mut self, is_true: impl Fn(&Value) -> bool) -> Value {
        loop {
            let table = self.next();
            if is_true(&table) {
                return table;
            }
        }
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the row of a table with this name, or null.
fn row(table: &Value, name: &str) -> Value {
    let rows = table["servers"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_default()
}

fn answers(row: &Value) -> bool {
    row["state"] == "answers"
}

#[test]
fn activity_shows_up_as_a_rate() {
    let s = Sandbox::mounted(&[]);
    let mut top = Top::start(&[s.dir_str()]);
    let first = row(&top.until(|table| answers(&row(table, s.dir_str()))), s.dir_str());
    assert_eq!((&first["kind"], &first["pool"]), (&"mount".into(), &s.pool_str().into()));
    fs::write(s.path("file"), vec![1; 3 << 20]).unwrap();
    let writes =
        |table: &Value| row(table, s.dir_str())["per_s"]["written_bytes"].as_f64() > Some(0.0);
    let busy = row(&top.until(writes), s.dir_str());
    assert!(busy["per_s"]["operations"].as_f64() > Some(0.0), "{busy}");
    assert!(busy["totals"]["written_bytes"].as_u64() >= Some(3 << 20), "{busy}");
    assert!(busy["gauges"]["used_bytes"].as_u64() >= Some(3 << 20), "{busy}");
    drop(top);
    s.umount();
}

#[test]
fn a_stopped_server_does_not_answer_and_others_do() {
    let (stopped, other) = (Sandbox::mounted(&[]), Sandbox::mounted(&[]));
    stopped.stop_server();
    // Named by its pool and by its directory.
    let names = [stopped.pool_str(), stopped.dir_str(), other.dir_str()];
    let mut top = Top::start(&names);
    let table = top.until(|table| answers(&row(table, other.dir_str())));
    let silent = row(&table, stopped.dir_str());
    assert_eq!(
        (&silent["state"], &table["no_answer"]),
        (&"no_answer".into(), &1.into()),
        "{table}"
    );
    assert_eq!((&silent["pool"], &silent["totals"]), (&stopped.pool_str().into(), &Value::Null));
    let text = stopped.ok([&["top", "--count", "1"], &names[..]].concat());
    let line = text.lines().find(|line| line.contains(stopped.dir_str())).unwrap();
    assert!(line.ends_with("no answer"), "{text}");
    stopped.signal_server(Signal::CONT);
    top.until(|table| answers(&row(table, stopped.dir_str())));
    drop(top);
    stopped.umount();
    other.umount();
}

#[test]
fn servers_come_go_and_die() {
    let (mut a, mut b) = (Sandbox::mounted(&[]), Sandbox::mounted(&[]));
    let mut top = Top::start(&[a.dir_str(), b.dir_str()]);
    let both = |table: &Value| [&a, &b].iter().all(|s| answers(&row(table, s.dir_str())));
    top.until(both);
    // Each query makes `top` a user of the mount for a moment, and `umount` copes with that.
    b.umount();
    top.until(|table| row(table, b.dir_str()).is_null());
    b.mount(&[]);
    top.until(|table| answers(&row(table, b.dir_str())));
    fs::write(a.path("file"), vec![1; 1 << 20]).unwrap();
    a.signal_server(Signal::KILL);
    top.until(|table| row(table, a.dir_str())["state"] == "died");
    a.mount(&[]);
    let anew = row(&top.until(|table| answers(&row(table, a.dir_str()))), a.dir_str());
    // The counters were reset, and earlier writes do not count as a rate.
    let rate = anew["per_s"]["written_bytes"].as_f64();
    assert!(rate.is_none_or(|rate| rate == 0.0), "{anew}");
    drop(top);
    a.umount();
    b.umount();
}

#[test]
fn tables_follow_one_another_and_end() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    wait_until("the server answers twice", || {
        let args = ["--json", "top", "--count", "2", "--interval", "0.1", s.dir_str()];
        let out = s.ok(args);
        let tables: Vec<Value> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(tables.len(), 2, "{out}");
        let [first, second] = [0, 1].map(|n| row(&tables[n], s.dir_str()));
        assert_eq!(first["per_s"], Value::Null);
        if !answers(&first) || !answers(&second) {
            return false;
        }
        assert!(
            first["totals"]["operations"].is_u64() && second["per_s"]["operations"].is_f64(),
            "{out}"
        );
        assert_eq!(second["gauges"]["processes"], 0, "{out}");
        true
    });
    let text = s.ok(["top", "--count", "2", "--interval", "0.1", s.dir_str()]);
    let titles: Vec<_> = text.lines().filter(|line| line.starts_with("KIND")).collect();
    assert_eq!(titles.len(), 2, "{text}");
    assert!(titles[0].contains(" OPS ") && titles[1].contains(" OPS/s "), "{text}");
    assert!(s.fails(["top", "--interval", "0"], 2).contains("0.1 to 86400 seconds"));
    s.umount();
}

#[test]
fn devices_are_shown_like_mounts() {
    let served = Served::start("/dev/shm", &[]);
    let mut client = served.client();
    client.write(0, &[1; BLOCK]).unwrap();
    let pid = served.status()["pid"].to_string();
    let mut top = Top::start(&[&pid]);
    let device = row(&top.until(|table| answers(&row(table, &served.name()))), &served.name());
    assert_eq!((&device["kind"], &device["gauges"]["clients"]), (&"device".into(), &1.into()));
    assert_eq!(device["totals"]["written_bytes"], BLOCK, "{device}");
    client.write(0, &[2; BLOCK]).unwrap();
    top.until(|table| row(table, &served.name())["per_s"]["writes"].as_f64() > Some(0.0));
    // The control socket belongs to root.
    let refused =
        as_nobody(&format!("! {} top --count 1 {pid} 2>&1", env!("CARGO_BIN_EXE_keepstone")));
    assert!(refused.contains("another user's"), "{refused}");
    drop(client);
    drop(served);
    top.until(|table| table["servers"].as_array().unwrap().is_empty());
}

#[test]
fn a_terminal_is_given_back_as_it_was() {
    let s = Sandbox::mounted(&[]);
    let keepstone = env!("CARGO_BIN_EXE_keepstone");
    for (how, typed) in [("q", "q"), ("SIGINT", "\x03"), ("SIGTERM", "")] {
        // The inner shell prints its process ID, which `top` keeps after the exec. The outer shell
        // receives the terminal's SIGINT as well, and ignores it.
        let script = format!(
            "trap : INT; stty rows 5 cols 60; \
             sh -c 'echo pid $$; exec {keepstone} top --interval 0.1 {}'; \
             echo ended $?; stty -a",
            s.dir_str()
        );
        let mut command = Command::new("script");
        command
            .args(["-qec", &script, "/dev/null"])
            .envs([("TERM", "xterm"), ("SHELL", "/bin/sh")]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut keys, mut screen) =
            (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut seen = String::new();
        let mut read = |seen: &mut String| {
            let mut bytes = [0; 4096];
            let len = screen.read(&mut bytes).unwrap_or(0);
            seen.push_str(&String::from_utf8_lossy(&bytes[..len]));
            len > 0
        };
        // Rates appear in the second table at the earliest, so the view was redrawn.
        while !seen.contains("OPS/s") {
            assert!(read(&mut seen), "{seen}");
        }
        if typed.is_empty() {
            let pid = seen.split("pid ").nth(1).unwrap().split_whitespace().next().unwrap();
            assert!(Command::new("kill").arg(pid).status().unwrap().success());
        } else {
            keys.write_all(typed.as_bytes()).unwrap();
        }
        while read(&mut seen) {}
        assert!(process.wait().unwrap().success(), "{how}: {seen}");
        let (view, after) =
            seen.rsplit_once("\x1b[?1049l").expect("it leaves the alternate screen");
        assert!(view.contains("\x1b[?1049h") && view.contains("\x1b[?25l"), "{how}: {seen:?}");
        assert!(view.ends_with("\x1b[?25h"), "{how}: the cursor is seen again: {seen:?}");
        assert!(after.contains("ended 0"), "{how}: {after}");
        for mode in [" icanon", " echo "] {
            assert!(after.contains(mode), "{how}: {after}");
        }
    }
    s.umount();
}
