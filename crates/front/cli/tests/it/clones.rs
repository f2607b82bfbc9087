//! Files that share blocks: `keepstone clone`, `FICLONE` under `keepstone run`, `copy_file_range`
//! through the mount, and the C interface.
//!
//! Needs root, `/dev/fuse` and gcc.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{Sandbox, library, on_each_engine, wait_until};

on_each_engine! {
    trees_are_cloned,
    programs_clone_files,
    the_c_interface_clones,
}

/// Bytes of the files of a test: their blocks dominate what `df` shows.
const BYTES: usize = 4 << 20;

/// Returns the bytes in use in a mounted pool.
fn used(s: &Sandbox) -> u64 {
    let stat = rustix::fs::statvfs(&s.dir).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

/// Makes a tree with a large file, names of one inode, and a link. Returns the bytes in use.
fn furnish(s: &Sandbox) -> u64 {
    fs::create_dir_all(s.path("tree/below")).unwrap();
    fs::write(s.path("tree/large"), vec![7; BYTES]).unwrap();
    fs::hard_link(s.path("tree/large"), s.path("tree/below/same")).unwrap();
    std::os::unix::fs::symlink("large", s.path("tree/link")).unwrap();
    used(s)
}

fn trees_are_cloned(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let before = furnish(&s);
    let (tree, clone) = (s.path("tree"), s.path("clone"));
    let [tree, clone] = [&tree, &clone].map(|path| path.to_str().unwrap());
    let report: Value = serde_json::from_str(&s.ok(["clone", tree, clone, "--json"])).unwrap();
    let shares = layout == "bpfs";
    assert_eq!(report["files"], 1);
    assert_eq!(report["directories"], 2);
    assert_eq!(report["others"], 1);
    assert_eq!(report["bytes"], BYTES as u64);
    assert_eq!(report["shared"], shares);
    assert_eq!(used(&s) < before + BYTES as u64 / 4, shares, "a clone takes next to nothing");
    let inode = |name: &str| s.path(name).metadata().unwrap().ino();
    assert_eq!(inode("clone/large"), inode("clone/below/same"));
    assert_ne!(inode("clone/large"), inode("tree/large"));
    assert_eq!(fs::read_link(s.path("clone/link")).unwrap(), Path::new("large"));
    fs::write(s.path("clone/large"), b"changed").unwrap();
    assert_eq!(fs::read(s.path("tree/large")).unwrap(), vec![7; BYTES]);

    let refused = s.fails(["clone", tree, clone], 1);
    assert!(refused.contains("exists"), "{refused}");
    let below = format!("{tree}/below/clone");
    let refused = s.fails(["clone", tree, &below], 1);
    assert!(refused.contains("lies below"), "{refused}");
    let outside = s.outside("clone");
    let refused = s.fails(["clone", tree, outside.to_str().unwrap()], 1);
    assert!(refused.contains("not in"), "{refused}");
    let names = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!((names(&s.dir), names(&s.path("tree/below"))), (2, 1), "nothing else is left");
    s.umount();
    s.ok(["check", s.pool_str()]);
}

fn programs_clone_files(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let before = furnish(&s);
    let shares = layout == "bpfs";
    let cp = "cp --reflink=always tree/large copy && printf x >> copy";
    let output = s.served_script(&[], cp).output().unwrap();
    assert_eq!(output.status.success(), shares, "{output:?}");
    if !shares {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("not supported"), "{error}");
        return;
    }
    assert!(used(&s) < before + BYTES as u64 / 4);
    assert_eq!(fs::read(s.path("copy")).unwrap().len(), BYTES + 1);
    assert_eq!(fs::read(s.path("tree/large")).unwrap(), vec![7; BYTES]);
    // Through the mount, `cp` tries a clone, and then copies by copy_file_range.
    let copy = s.path("through");
    let [from, to] = [&s.path("tree/large"), &copy].map(|path| path.to_str().unwrap().to_owned());
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
    assert!(used(&s) < before + BYTES as u64 / 4, "the copy shares");
    assert_eq!(fs::read(copy).unwrap(), vec![7; BYTES]);
    let elsewhere = format!("cp --reflink=always tree/large {}", s.outside("no").display());
    let output = s.served_script(&[], &elsewhere).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("cross-device"), "{output:?}");
    let space = "rm -r tree copy through";
    assert!(s.served_script(&[], space).status().unwrap().success());
    // The kernel gives up files that it knew when the server has told it.
    wait_until("all is free again", || used(&s) < before - BYTES as u64 / 2);
    s.umount();
    s.ok(["check", s.pool_str()]);
}

fn the_c_interface_clones(layout: &str) {
    let mut s = Sandbox::formatted_as(layout);
    s.mount(&["-o", "direct"]);
    furnish(&s);
    let (library, root) = (library(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."));
    let (dir, program) = (library.parent().unwrap(), s.outside("clone-c"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    gcc.arg(root.join("examples/c/clone.c")).arg("-I").arg(root.join("include"));
    let output = gcc.arg("-L").arg(dir).arg("-lkeepstone").output().expect("gcc: install it");
    assert!(output.status.success(), "{output:?}");
    let clone = |to: &str| {
        let mut clone = Command::new(&program);
        clone.arg(&s.pool).args(["/tree", to]).env("LD_LIBRARY_PATH", dir).output().unwrap()
    };
    let output = clone("/clone");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(s.path("clone/below/same")).unwrap(), vec![7; BYTES]);
    let output = clone("/clone");
    assert!(String::from_utf8_lossy(&output.stderr).contains("exists"), "{output:?}");
}
