//! Copies of whole pools: `keepstone clone-pool`, and the refusal of two pools with one UUID.

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::common::Sandbox;
use crate::common::parts::MountedPart;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn info(s: &Sandbox, pool: &str) -> Value {
    serde_json::from_str(&s.ok(["info", pool, "--json"])).unwrap()
}

/// A pool of each layout, with files that share blocks and another size than at first where the
/// layout has that, is copied with a UUID of its own.
#[test]
fn a_copy_is_another_pool() {
    for layout in ["bpfs", "scmfs"] {
        let mut s = Sandbox::empty();
        s.ok(["mkfs", s.pool_str(), "--size", "64M", "--layout", layout, "--label", "first"]);
        s.ok(["resize", s.pool_str(), "48M"]);
        s.mount(&[]);
        fs::write(s.path("file"), vec![7; 100_000]).unwrap();
        let places = ["file", "clone"].map(|name| s.path(name).to_str().unwrap().to_owned());
        s.ok(["clone", &places[0], &places[1]]);
        let copy = s.outside("copy").to_str().unwrap().to_owned();
        let refused = s.run(["clone-pool", s.pool_str(), &copy]);
        assert!(!refused.status.success() && text(&refused).contains("in use"), "{refused:?}");
        s.umount();
        s.server_ends();
        let refused = s.run(["clone-pool", s.pool_str(), &copy, "--label", &"x".repeat(65)]);
        assert!(text(&refused).contains("at most 64 bytes"), "{refused:?}");
        assert!(!fs::exists(&copy).unwrap());
        let told = s.ok(["--json", "clone-pool", s.pool_str(), &copy, "--label", "second"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let (old, new) = (info(&s, s.pool_str()), info(&s, &copy));
        assert_eq!(told["uuid"], new["uuid"]);
        assert_ne!(old["uuid"], new["uuid"]);
        assert_eq!((&old["label"], &new["label"]), (&"first".into(), &"second".into()));
        assert_eq!(old["size_bytes"], new["size_bytes"]);
        let refused = s.run(["clone-pool", s.pool_str(), &copy]);
        assert!(text(&refused).contains("exists"), "{refused:?}");
        s.ok(["check", &copy]);
        // Both are in use at the same time.
        s.mount(&[]);
        let dir = s.outside("dir");
        fs::create_dir(&dir).unwrap();
        s.ok(["mount", &copy, dir.to_str().unwrap()]);
        fs::write(s.path("file"), "changed").unwrap();
        for name in ["file", "clone"] {
            assert_eq!(fs::read(dir.join(name)).unwrap(), vec![7; 100_000], "{layout}");
        }
        s.ok(["umount", dir.to_str().unwrap()]);
    }
}

/// tags-T5 in `src/tags.rs`.
#[test]
fn two_pools_of_one_uuid_are_refused() {
    let mut s = Sandbox::formatted();
    let (copy, dir) = (s.outside("copy"), s.outside("dir"));
    fs::copy(&s.pool, &copy).unwrap();
    fs::create_dir(&dir).unwrap();
    s.mount(&[]);
    let (copy, dir) = (copy.to_str().unwrap(), dir.to_str().unwrap());
    let refused = s.run(["mount", copy, dir]);
    assert!(!refused.status.success(), "{refused:?}");
    let said = text(&refused);
    assert!(said.contains("has the UUID of") && said.contains("clone-pool"), "{said}");
    // A backup can be looked at.
    s.ok(["mount", "-o", "ro", copy, dir]);
    s.ok(["umount", dir]);
    let other = s.outside("other");
    s.ok(["clone-pool", copy, other.to_str().unwrap()]);
    s.ok(["mount", other.to_str().unwrap(), dir]);
    s.ok(["umount", dir]);
    s.umount();
    s.mount(&[]);
}

#[test]
fn the_pool_of_a_cache_is_not_copied() {
    let s = Sandbox::empty();
    s.ok(["mkfs", s.pool_str(), "--size", "64M", "--cache"]);
    let refused = s.run(["clone-pool", s.pool_str(), s.outside("copy").to_str().unwrap()]);
    assert!(text(&refused).contains("two caches"), "{refused:?}");
}

/// A tree with one of each kind of object, and what a header of an archive has no place for.
const TREE: &str = r#"
    mkdir -p dir/sub; echo text >dir/file; ln dir/file dir/sub/other; ln -s file dir/link
    mkfifo -m 640 dir/fifo; mknod dir/null c 1 3; chmod 4751 dir/file; chown 1000:3000000000 dir/sub
    truncate -s 3000000 dir/sparse; printf X | dd of=dir/sparse bs=1 seek=1500000 conv=notrunc status=none
    : >dir/empty; truncate -s 9000 dir/hole
    long=$(printf 'n%.0s' $(seq 200)); mkdir -p $long/$long; head -c 100000 /dev/urandom >$long/$long/$long
    ln -s $long/$long/$long dir/long-link; setfattr -n user.name -v 'a value' dir/file
    setfattr -n trusted.t -v 1 $long; setfacl -m u:1234:rwx dir/file; setfacl -d -m g:77:r dir/sub
    touch -d '1969-12-31 23:59:58.25' dir/empty; touch -d '2001-02-03 04:05:06.123456789' dir/sub
    printf x >"$(printf 'b\377\nd')"
"#;

/// Prints all that an archive keeps, except the time of the root directory.
const LIST: &str = r#"
    find . -mindepth 1 ! -type s -printf '%y %m %U:%G %n %s %T@ %P -> %l\n' | sed 's/^d \(.*\) [0-9]* \([0-9.-]* \)/d \1 \2/' |
        LC_ALL=C sort
    find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    find . -print0 | LC_ALL=C sort -z | xargs -0 getfattr -hd -m - 2>/dev/null; stat -c '%t:%T' dir/null
"#;

fn sh(dir: &std::path::Path, script: &str) -> String {
    let shell = std::process::Command::new("bash").args(["-ec", script]).current_dir(dir).output();
    let output = shell.unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// GNU tar extracts what the pool had: of a pool that is not in use, and of a snapshot of one that
/// is.
#[test]
fn archives_have_all_of_a_pool() {
    let mut s = Sandbox::empty();
    s.ok(["mkfs", s.pool_str(), "--size", "64M"]);
    s.mount(&["-o", "dev,suid"]);
    sh(&s.dir, TREE);
    let socket = std::os::unix::net::UnixListener::bind(s.path("dir/socket")).unwrap();
    drop(socket);
    s.ok(["snapshot", "create", s.pool_str(), "now"]);
    let listed = sh(&s.dir, LIST);
    sh(&s.dir, "rm -r dir/sub; echo changed >dir/file");
    let (archive, extracted) = (s.outside("archive.tar"), s.outside("extracted"));
    let of_snapshot = format!("{}@now", s.pool_str());
    let output = ["--json", "export", &of_snapshot, "--output", archive.to_str().unwrap()];
    let told: Value = serde_json::from_str(&s.ok(output)).unwrap();
    assert_eq!(told["left_out"], serde_json::json!(["./dir/socket"]));
    let extract = |archive: &str| {
        let tar = format!(
            "rm -rf {0}; mkdir {0}; cd {0}; tar --xattrs --xattrs-include='*' -xpf {archive}",
            extracted.display()
        );
        sh(s.outside("").as_path(), &tar);
        sh(&extracted, LIST)
    };
    assert_eq!(extract(archive.to_str().unwrap()), listed);
    let blocks = sh(&extracted, "stat -c %b dir/sparse");
    assert!(blocks.trim().parse::<u64>().unwrap() < 200, "{blocks}: holes stay holes");

    let refused = s.run(["export", s.pool_str()]);
    assert!(text(&refused).contains("keepstone snapshot create"), "{refused:?}");
    let listed = sh(&s.dir, LIST);

    // A branch has the same, also when the pool changes.
    s.ok(["branch", "create", s.pool_str(), "test"]);
    sh(&s.dir, "echo later >dir/later");
    let of_branch = format!("{}@test", s.pool_str());
    let output = ["export", &of_branch, "--output", archive.to_str().unwrap()];
    s.ok(output);
    assert_eq!(extract(archive.to_str().unwrap()), listed);
    let branch = MountedPart::new(&s, "test");
    assert!(text(&s.run(output)).contains("unmount it first"));
    drop(branch);
    s.ok(["branch", "discard", s.pool_str(), "test"]);
    sh(&s.dir, "rm dir/later");
    let listed = sh(&s.dir, LIST);
    s.umount();
    s.server_ends();
    let script = format!(
        "{} export {} >{}",
        env!("CARGO_BIN_EXE_keepstone"),
        s.pool_str(),
        archive.display()
    );
    sh(s.outside("").as_path(), &script);
    assert_eq!(extract(archive.to_str().unwrap()), listed);
    let refused = s.run(["--json", "export", s.pool_str()]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
