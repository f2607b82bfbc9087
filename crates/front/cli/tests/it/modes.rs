//! Modes of durability of pools and caches: `mount -o durability=`, `attach --data`, `--fsync` and
//! `--write-through`, on the mount and under `keepstone run`.
//!
//! Needs root and `/dev/fuse`.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use pmem::{Access, Lock, Medium as _, OpenOptions};
use pool::{DurabilityMode, Engine, MountOptions};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::Value;

use crate::common::{Sandbox, library};

/// Opens a pool as another program with direct access does.
fn join(pool: &str) -> Arc<dyn Engine> {
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let region = options.open(pool, Access::ReadWrite).unwrap();
    engines::attach(region, &MountOptions::default()).unwrap()
}

/// Syncs; returns the number of fences that this took.
fn sync(engine: &dyn Engine) -> u64 {
    let before = engine.region().counters().snapshot();
    engine.sync().unwrap();
    (engine.region().counters().snapshot() - before).fences
}

#[test]
fn all_processes_have_the_mode_of_the_mount() {
    let mut s = Sandbox::formatted();
    let ready = s.mount(&["-o", "direct,durability=ordered"]);
    assert_eq!(ready["durability"], "ordered");
    assert_eq!(s.stats()["durability"], "ordered");
    let info: Value = serde_json::from_str(&s.ok(["info", s.pool_str(), "--json"])).unwrap();
    assert_eq!(info["durability"], "ordered");
    let program = join(s.pool_str());
    assert_eq!(program.durability_mode(), DurabilityMode::Ordered);

    let served = |s: &Sandbox, script: &str| {
        let output = s.served_script(&[], script).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    };
    let append = "head -c 8192 /dev/zero >> file";
    served(&s, append);
    assert_eq!(sync(&*program), 1, "a program under `run` has left its last fence");
    assert_eq!(sync(&*program), 0);
    for sync_it in ["sync file", "sync -d file", "sync -f file"] {
        served(&s, &format!("{append}; {sync_it}"));
        assert_eq!(sync(&*program), 0, "{sync_it}");
    }
    served(&s, "dd if=/dev/zero of=synced bs=8192 count=1 oflag=sync status=none");
    assert_eq!(sync(&*program), 0, "O_SYNC");
    // By the mount.
    fs::write(s.path("other"), vec![1; 8192]).unwrap();
    assert_eq!(sync(&*program), 1);
    let file = fs::OpenOptions::new().append(true).open(s.path("other")).unwrap();
    std::io::Write::write_all(&mut &file, &[2; 8192]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(sync(&*program), 0);

    drop(program);
    s.umount();
    s.server_ends();
    let ready = s.mount(&["-o", "direct"]);
    assert_eq!(ready["durability"], "journal");
    let program = join(s.pool_str());
    served(&s, append);
    assert_eq!(sync(&*program), 0, "durable on return");
    drop(program);
}

#[test]
fn other_modes_are_refused_with_the_reason() {
    let mut s = Sandbox::formatted();
    let refused = |s: &Sandbox, options: &str, why: &str| {
        let output = s.run(["mount", "-o", options, s.pool_str(), s.dir_str()]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(why), "{text}");
    };
    refused(&s, "durability=writeback", "`ordered` costs no more");
    refused(&s, "durability=data", "journal, ordered");
    let help = s.ok(["mount", "--help"]);
    assert!(help.contains("durability=journal|ordered"), "{help}");
    // Helpers of `mount(8)` get the options of fstab.
    s.mount(&["-o", "durability=ordered"]);
    s.umount();
    s.ok(["mkfs", s.pool_str(), "--force", "--layout", "scmfs"]);
    refused(&s, "durability=ordered", "only pools of bpfs have it");
    s.mount(&["-o", "durability=journal"]);
}

/// A directory on a tmpfs, and a pool whose mount shows it.
struct Cache {
    base: tempfile::TempDir,
}

impl Cache {
    fn new(below: &CStr) -> Self {
        let base = tempfile::TempDir::with_prefix_in("keepstone-modes-", "/dev/shm").unwrap();
        fs::create_dir(base.path().join("mount")).unwrap();
        let cache = Self { base };
        fs::create_dir(cache.below("")).unwrap();
        let none = MountFlags::empty();
        rustix::mount::mount("none", cache.below(""), "tmpfs", none, below).unwrap();
        cache.ok(&["mkfs", &cache.pool(), "--cache", "--size", "64M"]);
        cache
    }

    fn pool(&self) -> String {
        self.base.path().join("pool").to_str().unwrap().to_owned()
    }

    fn below(&self, name: &str) -> PathBuf {
        self.base.path().join("below").join(name)
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.base.path().join("mount").join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_keepstone")).args(args).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn attach(&self, options: &[&str]) -> String {
        let (pool, below, mount) = (self.pool(), self.below(""), self.mount(""));
        let places = [&pool[..], below.to_str().unwrap(), mount.to_str().unwrap()];
        self.ok(&[&["attach"], options, &places].concat())
    }

    fn mode(&self) -> Value {
        let told = self.ok(&["--json", "attach", "status", self.mount("").to_str().unwrap()]);
        serde_json::from_str::<Value>(&told).unwrap()["cache"]["mode"].clone()
    }

    fn detach(&self) {
        self.ok(&["umount", self.mount("").to_str().unwrap()]);
    }

    /// Runs a script in the mount, as the kernel sees it or under `keepstone run`.
    fn script(&self, served: bool, script: &str) -> Output {
        let words: &[&str] = match served {
            true => &[env!("CARGO_BIN_EXE_keepstone"), "run", "--", "bash", "-ec"],
            false => &["bash", "-ec"],
        };
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(script).current_dir(self.mount(""));
        command.env("KEEPSTONE_LIBRARY", library()).output().unwrap()
    }

    fn does(&self, served: bool, script: &str) {
        let output = self.script(served, script);
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Runs a script that must fail with this error.
    fn fails(&self, served: bool, script: &str, error: &str) {
        let output = self.script(served, script);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(error), "{served}, {script}: {output:?}");
    }

    fn has_below(&self, name: &str, content: &[u8]) -> bool {
        fs::read(self.below(name)).is_ok_and(|found| found == content)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = self.run(&["umount", "--lazy", self.mount("").to_str().unwrap()]);
        let _ = rustix::mount::unmount(self.below(""), UnmountFlags::DETACH);
    }
}

#[test]
fn a_cache_can_be_ordered() {
    let cache = Cache::new(c"");
    fs::write(cache.below("old"), vec![7; 9000]).unwrap();
    let told = cache.attach(&["--data", "ordered"]);
    assert!(told.contains("data=ordered"), "{told}");
    assert_eq!(cache.mode(), "ordered");
    let program = join(&cache.pool());
    assert_eq!(program.durability_mode(), DurabilityMode::Ordered);
    cache.does(true, "cat old > /dev/null; head -c 8192 /dev/zero >> old");
    assert_eq!(sync(&*program), 1);
    cache.does(true, "head -c 8192 /dev/zero >> old; sync old");
    assert_eq!(sync(&*program), 0);
    drop(program);
    cache.detach();
    assert_eq!(fs::read(cache.below("old")).unwrap(), [vec![7; 9000], vec![0; 16384]].concat());
    let (pool, below) = (cache.pool(), cache.below(""));
    let refused = cache.run(&["attach", "--data", "writeback", &pool, below.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`ordered` costs no more"));
}

#[test]
fn without_an_option_the_pool_is_enough() {
    let cache = Cache::new(c"");
    cache.attach(&[]);
    assert_eq!(cache.mode(), "journal");
    for served in [false, true] {
        cache.does(served, &format!("echo text > new-{served}; sync new-{served}"));
        assert!(!cache.below(&format!("new-{served}")).exists());
    }
}

#[test]
fn a_sync_waits_for_the_directory() {
    let cache = Cache::new(c"");
    fs::write(cache.below("old"), b"old").unwrap();
    fs::create_dir(cache.below("dir")).unwrap();
    cache.attach(&["--fsync", "through"]);
    assert_eq!(cache.mode(), "journal, fsync through");
    for served in [false, true] {
        let name = |name: &str| format!("{name}-{served}");
        let new = name("new");
        cache.does(
            served,
            &format!("mkdir -p {new}/a; echo text > {new}/a/f; mv {new}/a/f {new}/f"),
        );
        assert!(!cache.below(&new).exists(), "nothing waits without a sync");
        cache.does(served, &format!("sync {new}/f"));
        assert!(cache.has_below(&format!("{new}/f"), b"text\n"), "{served}");
        for (how, sync) in [("fdatasync", "sync -d"), ("syncfs", "sync -f")] {
            // The kernel sends no syncfs to a server.
            if how == "syncfs" && !served {
                continue;
            }
            let file = name(how);
            cache.does(served, &format!("echo {how} > {file}; {sync} {file}"));
            assert!(cache.has_below(&file, format!("{how}\n").as_bytes()), "{served}, {how}");
        }
        let file = name("o_sync");
        let dd = format!("echo text | dd of={file} oflag=sync status=none");
        cache.does(served, &dd);
        assert!(cache.has_below(&file, b"text\n"), "{served}, O_SYNC");
        // A directory.
        cache.does(served, &format!("echo {served} > dir/{file}; sync dir"));
        assert!(cache.has_below(&format!("dir/{file}"), format!("{served}\n").as_bytes()));
        cache
            .does(served, &format!("mv old {new}/old; sync {new}/old; mv {new}/old old; sync old"));
        assert!(cache.has_below("old", b"old"));
    }
}

#[test]
fn a_sync_tells_that_the_directory_failed() {
    let cache = Cache::new(c"size=16M");
    fs::write(cache.below("taken"), b"").unwrap();
    cache.attach(&["--fsync", "through", "--watch", "off"]);
    let files = "conflict-false conflict-true";
    cache.does(false, &format!("for f in {files}; do echo one > $f; sync $f; done"));
    for served in [false, true] {
        let big = format!("big-{served}");
        cache.does(served, &format!("head -c 3000000 /dev/zero > {big}"));
        // Others take the space.
        fs::write(cache.below("taken"), vec![1; 15 << 20]).unwrap();
        cache.fails(served, &format!("sync {big}"), "No space left on device");
        fs::write(cache.below("taken"), b"").unwrap();
        cache.does(served, &format!("sync {big}"));
        assert_eq!(fs::read(cache.below(&big)).unwrap(), [0; 3_000_000]);
        cache.does(served, &format!("rm {big}; sync conflict-true"));
        assert!(!cache.below(&big).exists());
    }
    for served in [false, true] {
        // Both sides change it.
        let file = format!("conflict-{served}");
        cache.does(served, &format!("echo two >> {file}"));
        let below = fs::OpenOptions::new().write(true).open(cache.below(&file)).unwrap();
        below.write_at(b"other", 10).unwrap();
        cache.fails(served, &format!("sync {file}"), "Input/output error");
        // Others are not concerned.
        cache.does(served, &format!("echo small > small-{served}; sync small-{served}"));
        assert!(cache.has_below(&format!("small-{served}"), b"small\n"), "{served}");
    }
}

#[test]
fn writes_return_when_the_directory_has_them() {
    let cache = Cache::new(c"size=8M");
    cache.attach(&["--write-through"]);
    assert_eq!(cache.mode(), "journal, write-through");
    for served in [false, true] {
        let file = format!("file-{served}");
        let mut want = Vec::new();
        for i in 0..3 {
            cache.does(served, &format!("echo {i} >> {file}"));
            want.extend(format!("{i}\n").into_bytes());
            assert!(cache.has_below(&file, &want), "{served}");
        }
        cache.does(served, &format!("truncate -s 3 {file}"));
        assert!(cache.has_below(&file, &want[..3]), "{served}");
        cache.does(served, &format!("fallocate -l 8192 {file}"));
        assert_eq!(fs::metadata(cache.below(&file)).unwrap().len(), 8192);
        cache.does(served, &format!("cp {file} copy-{served}"));
        assert_eq!(fs::metadata(cache.below(&format!("copy-{served}"))).unwrap().len(), 8192);
        let big = format!("dd if=/dev/zero of=big-{served} bs=20000000 count=1 status=none");
        cache.fails(served, &big, "No space left on device");
        cache.does(served, &format!("rm big-{served}"));
    }
    cache.detach();
    assert!(Path::new(&cache.below("file-true")).exists());
}

/// A file with `user.keepstone.data` has a stronger mode than its cache.
#[test]
fn a_file_has_a_mode_of_its_own() {
    let cache = Cache::new(c"");
    fs::write(cache.below("old"), b"").unwrap();
    cache.attach(&["--data", "ordered", "--max-age", "3600"]);
    let program = join(&cache.pool());
    for served in [false, true] {
        let [journal, through] = ["journal", "through"].map(|mode| format!("{mode}-{served}"));
        cache.does(
            served,
            &format!(
                "touch {journal} {through}; setfattr -n user.keepstone.data -v journal {journal}
                 setfattr -n user.keepstone.data -v through {through}"
            ),
        );
        assert!(!cache.below(&through).exists());
        cache.does(served, &format!("head -c 8192 /dev/zero >> {journal}"));
        assert_eq!(sync(&*program), 0, "{served}: durable on return");
        assert!(!cache.below(&journal).exists());
        for text in ["one\n", "one\ntwo\n"] {
            cache.does(served, &format!("echo {} >> {through}", text.lines().last().unwrap()));
            assert!(cache.has_below(&through, text.as_bytes()), "{served}");
        }
        cache.does(served, &format!("truncate -s 3 {through}"));
        assert!(cache.has_below(&through, b"one"), "{served}");
        cache.fails(served, "setfattr -n user.keepstone.data -v ordered old", "Invalid argument");
        cache.fails(served, "setfattr -n user.keepstone.data -v journal .", "Invalid argument");
        let path = cache.mount(&through);
        let told = cache.ok(&["attach", "show", path.to_str().unwrap()]);
        assert!(told.contains("ordered, own mode through"), "{told}");
    }
    drop(program);
    cache.detach();
    // The directory below keeps the modes; another pool loads them.
    cache.ok(&["mkfs", &cache.pool(), "--force", "--cache", "--size", "64M"]);
    cache.attach(&["--max-age", "3600"]);
    for served in [false, true] {
        cache.does(served, "echo three >> through-true");
        cache.does(served, "echo three >> journal-true");
    }
    assert!(cache.has_below("through-true", b"onethree\nthree\n"));
    let sizes = [cache.below("journal-true"), cache.mount("journal-true")]
        .map(|path| fs::metadata(path).unwrap().len());
    assert!(sizes[0] < sizes[1], "{sizes:?}: `journal` is the mode of the pool");
    // The attribute goes.
    cache.does(false, "setfattr -x user.keepstone.data through-true; echo four >> through-true");
    assert!(cache.has_below("through-true", b"onethree\nthree\n"));
}
