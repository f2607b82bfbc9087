//! `keepstone attach`: programs under `run` and programs on the mount use names and contents from
//! the pool, and the server loads what is absent.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{kill_server_of, library};

/// A directory, and a pool in memory whose mount shows it.
pub struct Tree {
    pub base: tempfile::TempDir,
    memory: tempfile::TempDir,
}

impl Tree {
    pub fn new(size: &str) -> Self {
        let base = tempfile::TempDir::with_prefix("keepstone-tree-").unwrap();
        fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(base.path().join("below")).unwrap();
        fs::create_dir(base.path().join("mount")).unwrap();
        let memory = tempfile::TempDir::with_prefix_in("keepstone-tree-", "/dev/shm").unwrap();
        let tree = Self { base, memory };
        tree.ok(&["mkfs", &tree.pool(), "--cache", "--size", size]);
        tree
    }

    pub fn pool(&self) -> String {
        self.memory.path().join("pool").to_str().unwrap().to_owned()
    }

    pub fn below(&self, name: &str) -> PathBuf {
        self.base.path().join("below").join(name)
    }

    pub fn mount(&self, name: &str) -> PathBuf {
        self.base.path().join("mount").join(name)
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_keepstone")).args(args).output().unwrap()
    }

    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn attach(&self, options: &[&str]) {
        let (pool, below, mount) = (self.pool(), self.below(""), self.mount(""));
        let places = [&pool[..], below.to_str().unwrap(), mount.to_str().unwrap()];
        self.ok(&[&["attach"], options, &places].concat());
    }

    pub fn detach(&self) {
        self.ok(&["umount", self.mount("").to_str().unwrap()]);
    }

    pub fn flush(&self) {
        self.ok(&["attach", "flush", self.mount("").to_str().unwrap()]);
    }

    pub fn status(&self) -> Value {
        let told = self.ok(&["--json", "attach", "status", self.mount("").to_str().unwrap()]);
        serde_json::from_str(&told).unwrap()
    }

    /// Runs a shell script in the mount under `keepstone run`. Returns its output, and the report.
    pub fn serve(&self, script: &str) -> (String, Value) {
        let report = self.base.path().join("report");
        let output = Command::new(env!("CARGO_BIN_EXE_keepstone"))
            .args(["run", "--stats", "--quiet", "--json", "--", "bash", "-ec"])
            .arg(format!(
                "exec 3>&1 >{}; {{ {script}; }} >&3",
                report.with_extension("x").display()
            ))
            .env("KEEPSTONE_LIBRARY", library())
            .current_dir(self.mount(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (shown, told) = match text.rfind("\n{").or(text.starts_with('{').then_some(0)) {
            Some(0) if text.starts_with('{') => ("", &text[..]),
            Some(at) => text.split_at(at + 1),
            None => (&text[..], "null"),
        };
        (shown.to_owned(), serde_json::from_str(told).unwrap())
    }

    pub fn kill_server(&self) {
        kill_server_of(&self.status());
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.run(&["umount", "--lazy", self.mount("").to_str().unwrap()]);
    }
}

/// Returns the share of calls on pools that were served, in percent, from a report.
fn served(report: &Value) -> f64 {
    report["served_percent"][0].as_f64().unwrap_or_else(|| panic!("{report}"))
}

/// Returns names, kinds, modes, links and contents at and below a directory.
pub fn listed(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for entry in at.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            let mut line = format!(
                "{} {:o} {}:{} {}",
                path.strip_prefix(dir).unwrap().display(),
                about.mode(),
                about.uid(),
                about.gid(),
                if about.is_dir() { 0 } else { about.nlink() },
            );
            if about.is_dir() {
                left.push(path.clone());
            } else if about.is_symlink() {
                line += &format!(" -> {}", path.read_link().unwrap().display());
            } else if about.is_file() {
                line += &format!(" {} {}", about.mtime_nsec(), crc(&fs::read(&path).unwrap()));
            }
            found.push(line);
        }
    }
    found.sort();
    found
}

fn crc(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{} bytes {sum:x}", bytes.len())
}

pub fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("small"), "text").unwrap();
    fs::write(dir.join("sub/large"), vec![b'7'; 3 << 20]).unwrap();
    fs::write(dir.join("sub/deep/empty"), "").unwrap();
    fs::hard_link(dir.join("small"), dir.join("sub/link")).unwrap();
    symlink("../small", dir.join("sub/symlink")).unwrap();
    fs::set_permissions(dir.join("small"), PermissionsExt::from_mode(0o640)).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(b"end", (8 << 20) - 3).unwrap();
}

#[test]
fn mount_and_run_show_the_directory_and_change_it() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(&[]);
    assert_eq!(listed(&tree.mount("")), listed(&tree.below("")));
    // On the mount, beside a program under `run`.
    fs::write(tree.mount("plain"), "plain").unwrap();
    let (shown, report) = tree.serve(
        "cat small plain; echo more >>plain; mkdir new; mv sub/large new/moved; rm sub/link; ln new/moved new/again; \
         chmod 600 sparse; stat -c %s sparse",
    );
    assert_eq!(shown, "textplain8388608\n");
    assert!(served(&report) > 90., "{report}");
    assert_eq!(fs::read(tree.mount("plain")).unwrap(), b"plainmore\n");
    let expected = listed(&tree.mount(""));
    tree.detach();
    assert_eq!(listed(&tree.below("")), expected);
    // Nothing is left; the clean pool shows the same again.
    tree.attach(&[]);
    assert_eq!(tree.status()["cache"]["dirty_files"], 0);
    assert_eq!(listed(&tree.mount("")), expected);
    tree.detach();
}

/// An open file without a name does not count as left.
#[test]
fn open_files_without_names_are_not_left() {
    let tree = Tree::new("64M");
    tree.attach(&[]);
    tree.serve("exec 5>removed; echo text >&5; rm removed; echo named >named; echo more >&5");
    let removed = fs::File::create(tree.mount("open")).unwrap();
    fs::remove_file(tree.mount("open")).unwrap();
    tree.flush();
    let status = tree.status();
    assert_eq!(status["cache"]["dirty_files"], 0, "{status}");
    drop(removed);
    tree.detach();
    assert_eq!(listed(&tree.below("")).len(), 1);
}

/// `tar` takes a file without blocks for a hole, and a directory that grows for one that changes.
#[test]
fn a_load_does_not_show_in_attributes() {
    let tree = Tree::new("64M");
    fs::create_dir(tree.below("dir")).unwrap();
    for i in 0..300 {
        fs::write(tree.below(&format!("dir/file{i}")), vec![i as u8; 5000]).unwrap();
    }
    fs::File::create(tree.below("dir/sparse")).unwrap().write_all_at(b"end", 1 << 20).unwrap();
    for is_served in [true, false] {
        tree.attach(&[]);
        let of = |path: &str| {
            let about = fs::symlink_metadata(tree.mount(path)).unwrap();
            (about.size(), about.blocks(), about.nlink(), about.ctime(), about.ctime_nsec())
        };
        let names = ["", "dir", "dir/file7"];
        let before = names.map(of);
        let archive = "tar -cSf - dir | tar -xOf - dir/file7 | cmp - dir/file7";
        let script = format!("set -o pipefail; {archive}; tar -cf /dev/null dir");
        if !is_served {
            let mut bash = Command::new("bash");
            let status = bash.args(["-ec", &script]).current_dir(tree.mount("")).status();
            assert!(status.unwrap().success());
        } else {
            tree.serve(&script);
        }
        let after = names.map(of);
        assert_eq!(before[..2], after[..2]);
        assert!(before[2].1 >= 10 && after[2].1 >= 10, "{before:?} {after:?}");
        assert!(of("dir/sparse").1 < 64, "it is sparse when all of it is loaded");
        tree.detach();
        // The next one loads all again.
        tree.ok(&["mkfs", &tree.pool(), "--cache", "--force", "--size", "64M"]);
    }
}

/// The kernel and the table of ended programs refer to a removed directory for a while.
#[test]
fn directories_that_ended_programs_used_are_not_left() {
    let tree = Tree::new("64M");
    tree.attach(&[]);
    tree.serve("mkdir -p dir/sub; cd dir/sub; echo text >f; ls >listed");
    tree.flush();
    tree.serve("root=$PWD; cd dir/sub; cat f; rm -r \"$root/dir\"");
    tree.flush();
    assert_eq!(listed(&tree.below("")), [""; 0]);
    tree.detach();
}

#[test]
fn what_is_absent_is_loaded_in_programs() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(&[]);
    let (shown, report) = tree.serve("md5sum sub/large; tail -c 3 sparse; readlink sub/symlink");
    assert!(shown.ends_with("end../small\n"), "{shown}");
    assert!(served(&report) > 90., "{report}");
    let show = |name: &str| -> Value {
        let path = tree.mount(name);
        let told = tree.ok(&["--json", "attach", "show", path.to_str().unwrap()]);
        serde_json::from_str(&told).unwrap()
    };
    assert_eq!(show("sub/large")[0]["cached_bytes"], 3 << 20);
    tree.ok(&["attach", "invalidate", tree.mount("sub/large").to_str().unwrap()]);
    assert_eq!(show("sub/large")[0]["cached_bytes"], 0);
    let (again, _) = tree.serve("md5sum sub/large");
    assert!(shown.starts_with(&again));
    // Changes in a block that is absent keep the rest of it.
    tree.serve("printf X | dd of=small bs=1 seek=1 conv=notrunc status=none");
    tree.flush();
    assert_eq!(fs::read(tree.below("small")).unwrap(), b"tXxt");
    tree.detach();
}

/// A file of three quarters of the pool is served in the program.
#[test]
fn a_file_of_three_quarters_of_the_pool_is_served() {
    let tree = Tree::new("64M");
    fs::write(tree.below("large"), vec![3; 48 << 20]).unwrap();
    tree.attach(&[]);
    for script in
        ["cat large | wc -c", "dd if=/dev/zero of=large bs=64K count=100 conv=notrunc status=none"]
    {
        let (_, report) = tree.serve(script);
        let calls = report["served"]["calls"].as_u64().unwrap();
        assert!(calls > 300 || script.starts_with("dd"), "{report}");
        assert!(served(&report) >= 99., "{script}: {report}");
    }
    tree.detach();
    let bytes = fs::read(tree.below("large")).unwrap();
    assert!(bytes[..100 << 16].iter().all(|byte| *byte == 0));
    assert!(bytes[100 << 16..].iter().all(|byte| *byte == 3));
}

#[test]
fn acknowledged_changes_survive_a_killed_server() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    let before = listed(&tree.below(""));
    tree.attach(&["--max-age", "3600"]);
    tree.serve("echo kept >kept; rm small; mv sub/deep deep");
    let expected = listed(&tree.mount(""));
    tree.kill_server();
    assert_eq!(listed(&tree.below("")), before, "nothing was written back");
    tree.attach(&["--max-age", "3600"]);
    assert_eq!(listed(&tree.mount("")), expected);
    tree.kill_server();
    let _ = rustix::mount::unmount(tree.mount(""), rustix::mount::UnmountFlags::DETACH);
    let (pool, below) = (tree.pool(), tree.below(""));
    tree.ok(&["attach", "drain", &pool, below.to_str().unwrap()]);
    assert_eq!(listed(&below), expected);
}

/// A program that has the pool open goes on when it is attached again.
#[test]
fn a_program_goes_on_after_the_server_was_replaced() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(&["--max-age", "3600"]);
    let script = "exec 4<sub/large; echo ready; read -r _; read -r line <small; echo $line; read -r -N 10 ten <&4; echo ${#ten}; echo more >made";
    let mut program = Command::new(env!("CARGO_BIN_EXE_keepstone"))
        .args(["run", "--quiet", "--", "bash", "-c", script])
        .env("KEEPSTONE_LIBRARY", library())
        .current_dir(tree.mount(""))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    tree.kill_server();
    tree.attach(&["--max-age", "3600"]);
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(0), "{rest}");
    assert_eq!(rest, "text\n10\n");
    assert_eq!(fs::read(tree.mount("made")).unwrap(), b"more\n");
    tree.detach();
}

/// Changes that others make in the directory are seen, reported or not; both sides of a conflict
/// stay as they are.
#[test]
fn changes_behind_are_seen_and_conflicts_are_told() {
    for watch in ["notify", "off"] {
        let tree = Tree::new("64M");
        fill(&tree.below(""));
        tree.attach(&["--watch", watch, "--max-age", "3600"]);
        assert_eq!(fs::read(tree.mount("small")).unwrap(), b"text");
        tree.serve("cat sub/large >/dev/null; echo mine >both; ls sub/deep");
        fs::write(tree.below("small"), "by another program").unwrap();
        fs::write(tree.below("sub/deep/new"), "new").unwrap();
        fs::remove_file(tree.below("sub/symlink")).unwrap();
        let until = |what: &str, is_so: &dyn Fn() -> bool| {
            for _ in 0..1000 {
                if is_so() {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            panic!("--watch {watch}: {what}: {}", tree.status());
        };
        let reads = |name: &str, text: &str| {
            let read = fs::read_to_string(tree.mount(name));
            let (shown, _) = tree.serve(&format!("cat {name} 2>/dev/null || true; echo"));
            read.is_ok_and(|read| read == text) && shown.strip_suffix('\n') == Some(text)
        };
        until("content", &|| reads("small", "by another program"));
        until("a new name", &|| reads("sub/deep/new", "new"));
        until("a name that is gone", &|| !tree.mount("sub/symlink").is_symlink());
        tree.flush();
        assert_eq!(fs::read(tree.below("both")).unwrap(), b"mine\n");
        tree.serve("echo more >>both");
        fs::write(tree.below("both"), "theirs, longer").unwrap();
        let flush = tree.run(&["attach", "flush", tree.mount("").to_str().unwrap()]);
        assert!(!flush.status.success(), "{flush:?}");
        let status = tree.status();
        assert_eq!(status["cache"]["troubles"][0]["path"], "both", "{status}");
        assert_eq!(fs::read(tree.below("both")).unwrap(), b"theirs, longer");
        assert_eq!(fs::read(tree.mount("both")).unwrap(), b"mine\nmore\n");
        let umount = tree.run(&["umount", tree.mount("").to_str().unwrap()]);
        let text = String::from_utf8(umount.stderr).unwrap();
        assert!(umount.status.code() == Some(1) && text.contains("both"), "{text}");
        assert_eq!(fs::read(tree.below("both")).unwrap(), b"theirs, longer");
    }
}

/// A tree that is larger than the pool goes through it.
#[test]
fn a_pool_smaller_than_the_tree_works() {
    let tree = Tree::new("16M");
    for i in 0..40 {
        let dir = tree.below(&format!("dir-{i}"));
        fs::create_dir(&dir).unwrap();
        for j in 0..10 {
            fs::write(dir.join(format!("file-{j}")), vec![b'a' + i; 100_000]).unwrap();
        }
    }
    fs::write(tree.below("large"), vec![b'x'; 40 << 20]).unwrap();
    let before = listed(&tree.below(""));
    tree.attach(&[]);
    assert_eq!(listed(&tree.mount("")), before);
    let (_, report) = tree.serve(
        "cat dir-*/* large | wc -c; for ((i = 0; i < 30; i++)); do cp large copy-$i; rm -f copy-$((i - 1)); done; \
         dd if=/dev/zero of=zeros bs=1M count=50 status=none",
    );
    assert!(served(&report) > 99., "{report}");
    let expected = listed(&tree.mount(""));
    tree.detach();
    assert_eq!(listed(&tree.below("")), expected);
}

/// Programs write while the server is killed again and again, also in the middle of write-backs.
#[test]
fn nothing_acknowledged_is_lost_by_kills() {
    const WRITERS: usize = 4;
    const KILLS: usize = 6;
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(&["--max-age", "0"]);
    let stop = tree.base.path().join("stop");
    let script = format!(
        "exec 4>>$0; for ((i = 0; ; i++)); do echo $i >&4 || exit 1; echo $i; \
         ((i % 50)) || [[ ! -e {} ]] || exit 0; done",
        stop.display()
    );
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| {
            let acknowledged = tree.base.path().join(format!("acknowledged-{n}"));
            let program = Command::new(env!("CARGO_BIN_EXE_keepstone"))
                .args(["run", "--quiet", "--", "bash", "-c", &script, &format!("written-{n}")])
                .env("KEEPSTONE_LIBRARY", library())
                .current_dir(tree.mount(""))
                .stdout(fs::File::create(&acknowledged).unwrap())
                .spawn()
                .unwrap();
            (program, acknowledged)
        })
        .collect();
    for kill in 0..KILLS {
        fs::create_dir(tree.mount(&format!("dir-{kill}"))).unwrap();
        fs::rename(tree.mount("sub/large"), tree.mount(&format!("dir-{kill}/large"))).unwrap();
        fs::rename(tree.mount(&format!("dir-{kill}/large")), tree.mount("sub/large")).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(700));
        tree.kill_server();
        tree.attach(&["--max-age", "0"]);
    }
    fs::write(stop, "").unwrap();
    let mut lines = Vec::new();
    for (mut program, acknowledged) in writers {
        assert_eq!(program.wait().unwrap().code(), Some(0));
        lines.push(fs::read_to_string(acknowledged).unwrap());
    }
    for (n, acknowledged) in lines.iter().enumerate() {
        let written = fs::read_to_string(tree.mount(&format!("written-{n}"))).unwrap();
        assert!(acknowledged.len() > 100 && written.starts_with(acknowledged), "writer {n}");
    }
    let expected = listed(&tree.mount(""));
    tree.detach();
    assert_eq!(listed(&tree.below("")), expected);
}

#[test]
fn such_a_pool_is_used_by_attach_alone() {
    let tree = Tree::new("64M");
    let (pool, mount) = (tree.pool(), tree.mount(""));
    let refused = tree.run(&["mount", &pool, mount.to_str().unwrap()]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && text.contains("keepstone attach"), "{text}");
    let other = tree.memory.path().join("other");
    let made = tree.run(&[
        "mkfs",
        other.to_str().unwrap(),
        "--cache",
        "--layout",
        "scmfs",
        "--size",
        "64M",
    ]);
    let text = String::from_utf8(made.stderr).unwrap();
    assert!(!made.status.success() && text.contains("scmfs"), "{text}");
    assert!(!other.exists());
    // Another directory is refused.
    tree.attach(&[]);
    tree.detach();
    let other = tree.base.path().join("other");
    fs::create_dir(&other).unwrap();
    let output = tree.run(&["attach", &pool, other.to_str().unwrap(), mount.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("another directory"), "{text}");
    // So is a pool that others may write.
    fs::set_permissions(&pool, PermissionsExt::from_mode(0o666)).unwrap();
    let output =
        tree.run(&["attach", &pool, tree.below("").to_str().unwrap(), mount.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("other users may write"), "{text}");
}

/// A stranger cannot make the server load anything, but uses the mount as the modes permit.
#[test]
fn strangers_use_the_mount_alone() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(&[]);
    let as_stranger = |program: &str, args: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", program])
            .args(args)
            .output()
            .unwrap()
    };
    let mount = tree.mount("");
    let large = tree.mount("sub/large");
    let read = as_stranger("md5sum", &[large.to_str().unwrap()]);
    assert!(read.status.success(), "{read:?}");
    let small = tree.mount("small");
    assert!(!as_stranger("cat", &[small.to_str().unwrap()]).status.success());
    let ask = "import fcntl, os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)\n\
        need = (1).to_bytes(8, 'little') + (1).to_bytes(8, 'little') + bytes(287 - 16)\n\
        try:\n print(fcntl.ioctl(fd, 1 << 30 | 287 << 16 | ord('K') << 8 | 2, bytearray(need)))\n\
        except OSError as e:\n print(e.errno)";
    let asked = as_stranger("/usr/bin/python3", &["-c", ask, mount.to_str().unwrap()]);
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(String::from_utf8(asked.stdout).unwrap(), format!("{}\n", libc_eperm()));
    let own = Command::new("/usr/bin/python3")
        .args(["-c", ask, mount.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(own.stdout).unwrap().trim().parse::<u8>().ok(),
        Some(0),
        "loaded before"
    );
    tree.detach();
}

/// A program that opens the pool as root and becomes another user goes on.
#[test]
fn a_program_that_became_another_user_goes_on() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    fs::write(tree.below("sub/open"), "for all").unwrap();
    tree.attach(&[]);
    let script = "import os\nos.stat('small')\nos.setresgid(65534, 65534, 65534)\nos.setresuid(65534, 65534, 65534)\n\
        print(open('sub/open').read())\n\
        try:\n open('small')\nexcept PermissionError:\n print('refused')";
    let (shown, report) = tree.serve(&format!("/usr/bin/python3 -c \"{script}\""));
    assert_eq!(shown, "for all\nrefused\n");
    assert!(served(&report) > 90., "{report}");
    tree.detach();
}

/// `EPERM`
fn libc_eperm() -> i32 {
    rustix::io::Errno::PERM.raw_os_error()
}

/// `run` asks the server for its statistics before and after the program.
#[test]
fn neither_a_run_nor_a_status_looks_at_all_inodes() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    tree.attach(&[]);
    let walks = || tree.status()["cache"]["counters"]["inode_walks"].as_u64().unwrap();
    let before = walks();
    tree.serve("cat small; echo text >new");
    assert_eq!(walks(), before);
    tree.detach();
}

/// The kernel remembers all names that a program has met, and the pool cannot hold them.
#[test]
fn a_pool_smaller_than_the_names_shows_all_of_them() {
    let tree = Tree::new("4M");
    let names = || (0..150).map(|name| format!("{name:040}"));
    for dir in 0..150 {
        let dir = tree.below(&format!("{dir}"));
        fs::create_dir(&dir).unwrap();
        names().for_each(|name| fs::write(dir.join(name), "").unwrap());
    }
    tree.attach(&[]);
    for _ in 0..2 {
        let mut found = 0;
        for dir in fs::read_dir(tree.mount("")).unwrap() {
            for file in fs::read_dir(dir.unwrap().path()).unwrap() {
                found += u32::from(file.unwrap().metadata().unwrap().is_file());
            }
        }
        assert_eq!(found, 150 * 150);
        fs::create_dir(tree.mount("new")).unwrap();
        fs::remove_dir(tree.mount("new")).unwrap();
    }
    tree.detach();
}

#[test]
fn a_flush_names_the_place_that_is_full() {
    let tree = Tree::new("32M");
    let below = tree.below("");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &below, "tmpfs", flags, Some(c"size=4M")).unwrap();
    fs::create_dir(tree.below("others")).unwrap();
    tree.attach(&["--max-age", "3600"]);
    fs::write(tree.mount("file"), vec![7; 1 << 20]).unwrap();
    fs::write(tree.below("others/theirs"), vec![7; 7 << 19]).unwrap();
    let flushed = tree.run(&["attach", "flush", tree.mount("").to_str().unwrap()]);
    let told = String::from_utf8(flushed.stderr).unwrap();
    assert!(
        !flushed.status.success() && told.contains("no space in the cached directory"),
        "{told}"
    );
    fs::remove_file(tree.below("others/theirs")).unwrap();
    tree.flush();
    assert_eq!(fs::metadata(tree.below("file")).unwrap().len(), 1 << 20);
    tree.detach();
    rustix::mount::unmount(&below, rustix::mount::UnmountFlags::empty()).unwrap();
}
