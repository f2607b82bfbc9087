//! Caching of the kernel on a mount with direct access: it caches everything while no other process
//! uses the pool, and nothing once a program bypasses the mount.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Sandbox, as_nobody, on_each_engine, tool, wait_until};

/// Returns a script under `keepstone run --quiet`.
fn run(sandbox: &Sandbox, script: &str) -> Command {
    sandbox.served_script(&["--quiet"], script)
}

fn runs(sandbox: &Sandbox, script: &str) {
    assert!(run(sandbox, script).status().unwrap().success(), "{script}");
}

/// Waits until the kernel answers from its cache.
fn is_kept(sandbox: &Sandbox) {
    let file = sandbox.path("asked");
    wait_until("the kernel keeps what it is told", || {
        let asked = || sandbox.requests("lookup");
        let _ = fs::metadata(&file);
        let before = asked();
        let _ = fs::metadata(&file);
        asked() == before
    });
}

on_each_engine!(
    what_programs_change_is_seen_at_once,
    a_killed_server_holds_up_nobody,
    a_stopped_server_is_left_to_the_kernel,
    a_child_that_wakes_late_is_held_up_too,
    what_a_program_says_it_did_is_seen_whenever_it_came,
);

/// Changes by programs are visible at once, whatever the kernel has cached, by open descriptors,
/// too. The kernel caches again when the program has ended.
fn what_programs_change_is_seen_at_once(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    fs::create_dir(sandbox.path("dir")).unwrap();
    for round in 0..2 {
        for name in ["file", "open", "dir/moved"] {
            fs::write(sandbox.path(name), format!("old {round}")).unwrap();
        }
        let _ = fs::remove_file(sandbox.path("absent"));
        is_kept(&sandbox);
        let list = || tool("ls", &["-R", sandbox.dir_str()]);
        let open = fs::File::open(sandbox.path("open")).unwrap();
        let reads = || {
            let mut buf = [0; 64];
            let len = open.read_at(&mut buf, 0).unwrap();
            String::from_utf8_lossy(&buf[..len]).into_owned()
        };
        let read = |name: &str| fs::read_to_string(sandbox.path(name));
        // Everything is in the kernel's cache.
        list();
        assert_eq!(
            (reads(), read("file").unwrap()),
            (format!("old {round}"), format!("old {round}"))
        );
        assert!(read("absent").is_err() && read("dir/moved").is_ok());

        runs(
            &sandbox,
            "echo new and longer >file; echo new >open; mv dir/moved absent; chmod 600 file; sleep .1",
        );
        assert_eq!((reads(), read("file").unwrap()), ("new\n".into(), "new and longer\n".into()));
        assert_eq!(read("absent").unwrap(), format!("old {round}"));
        assert!(read("dir/moved").is_err());
        assert!(!list().contains("moved"));
        assert_eq!(
            as_nobody(&format!("cat {} 2>&1 || true", sandbox.path("file").display()))
                .matches("denied")
                .count(),
            1
        );
    }
    sandbox.umount();
}

/// The records of a dead server about its mount have no effect.
fn a_killed_server_holds_up_nobody(layout: &str) {
    let mut sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    fs::write(sandbox.path("file"), "content").unwrap();
    is_kept(&sandbox);
    sandbox.signal_server(Signal::KILL);
    sandbox.server_ends();
    sandbox.mount(&["-o", "direct"]);
    runs(&sandbox, "test $(<file) = content; echo more >>file");
    assert_eq!(fs::read_to_string(sandbox.path("file")).unwrap(), "contentmore\n");
    sandbox.umount();
}

/// A program does not wait for ever, and neither sees nor leaves wrong data.
fn a_stopped_server_is_left_to_the_kernel(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    fs::write(sandbox.path("file"), "old").unwrap();
    is_kept(&sandbox);
    sandbox.signal_server(Signal::STOP);
    let mut program = run(&sandbox, "echo new >file; cat file >copy").spawn().unwrap();
    std::thread::sleep(Duration::from_secs(7));
    assert!(program.try_wait().unwrap().is_none(), "somebody answered");
    sandbox.signal_server(Signal::CONT);
    assert!(program.wait().unwrap().success());
    for name in ["file", "copy"] {
        assert_eq!(fs::read_to_string(sandbox.path(name)).unwrap(), "new\n");
    }
    is_kept(&sandbox);
    sandbox.umount();
}

/// A child wakes up late: its parent has ended, and no process used the pool meanwhile.
fn a_child_that_wakes_late_is_held_up_too(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &["-o", "direct"]);
    fs::write(sandbox.path("file"), "old").unwrap();
    fs::write(sandbox.path("gone"), "").unwrap();
    let go = sandbox.outside("go");
    tool("mkfifo", &[go.to_str().unwrap()]);
    let script = format!(
        "test -e file; (read -r x; echo new >file; rm gone; echo >made) <{} &",
        go.display()
    );
    let mut program: Child = run(&sandbox, &script).spawn().unwrap();
    assert!(program.wait().unwrap().success());
    std::thread::sleep(Duration::from_secs(5));
    let seen = || {
        (
            fs::read_to_string(sandbox.path("file")).unwrap(),
            sandbox.path("gone").exists(),
            sandbox.path("made").exists(),
        )
    };
    assert_eq!(seen(), ("old".into(), true, false));
    fs::write(&go, "\n").unwrap();
    wait_until("the child has written", || seen() == ("new\n".into(), false, true));
    sandbox.umount();
}

/// Programs come and go. Each prints every change, and the test, which has looked up the same names
/// before, checks that it sees the change at once.
fn what_a_program_says_it_did_is_seen_whenever_it_came(layout: &str) {
    let sandbox = Sandbox::mounted_as(layout, &[]);
    let made = |i: u32| sandbox.path(&format!("made{i}"));
    let value =
        || fs::read_to_string(sandbox.path("value")).unwrap().trim().parse::<u32>().unwrap();
    fs::write(sandbox.path("value"), "0").unwrap();
    let mut last = 0;
    for _ in 0..3 {
        is_kept(&sandbox);
        (0..20).for_each(|ahead| assert!(!made(last + ahead).exists()));
        assert_eq!(value(), last);
        let script = format!(
            "for ((i = {last} + 1; i <= {last} + 200; i++)); do
                 echo $i >new; mv new value; echo >made$i; rm -f made$((i - 1)); echo $i
             done"
        );
        let mut program = run(&sandbox, &script).stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(program.stdout.take().unwrap()).lines() {
            last = line.unwrap().parse().unwrap();
            assert!(value() >= last, "an older value was seen than {last}");
            // The program may have continued.
            assert!(made(last).exists() || value() > last, "made{last} was not seen");
            assert!(!made(last - 1).exists(), "made{} was seen", last - 1);
            let _ = made(last + 1).exists();
        }
        assert!(program.wait().unwrap().success());
        fs::remove_file(made(last)).unwrap();
    }
    sandbox.umount();
}
