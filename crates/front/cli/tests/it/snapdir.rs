//! Snapshots below `.snapshots` of a mount.
//!
//! Needs root and `/dev/fuse`.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{Mode, OFlags, XattrFlags, openat, setxattr};
use rustix::io::Errno;

use crate::common::parts::MountedPart;
use crate::common::{PermissionsExt as _, Sandbox, as_nobody, on_each_engine, tool};

on_each_engine! {
    only_pools_with_snapshots_have_the_directory,
}

/// Returns a path below the directory of snapshots.
fn below(s: &Sandbox, name: &str) -> PathBuf {
    s.path(".snapshots").join(name)
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

fn only_pools_with_snapshots_have_the_directory(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let dir = s.path(".snapshots");
    if layout != "bpfs" {
        assert_eq!(errno(fs::read_dir(&dir)), Errno::NOENT);
        fs::create_dir(&dir).unwrap();
        return;
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&s.dir).unwrap().count(), 0, "it is not listed");
    assert_eq!(errno(fs::create_dir(&dir)), Errno::EXIST);
    assert_eq!(errno(fs::remove_dir(&dir)), Errno::BUSY);
    assert_eq!(errno(fs::create_dir(dir.join("new"))), Errno::ROFS);
    assert_eq!(errno(fs::metadata(dir.join("none"))), Errno::NOENT);
    let script = "set +e; mkdir .snapshots 2>&1; ls -A . .snapshots; cd .snapshots; pwd -P; ls ..";
    let plain = Command::new("bash").args(["-c", script]).current_dir(&s.dir).output().unwrap();
    let served = s.served_script(&[], script).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&served.stdout), text(&plain.stdout));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// The tree that a snapshot has: links, attributes, holes, a file without permissions.
fn plant(s: &Sandbox) {
    fs::create_dir_all(s.path("dir/deep")).unwrap();
    fs::write(s.path("dir/deep/large"), vec![7; 300_000]).unwrap();
    fs::hard_link(s.path("dir/deep/large"), s.path("dir/same")).unwrap();
    symlink("deep/large", s.path("dir/link")).unwrap();
    fs::write(s.path("with-xattr"), "old").unwrap();
    setxattr(s.path("with-xattr"), "user.colour", b"blue", XattrFlags::empty()).unwrap();
    let sparse = File::create(s.path("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    fs::write(s.path("secret"), "secret").unwrap();
    fs::set_permissions(s.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(s.path("closed")).unwrap();
    fs::write(s.path("closed/file"), "open").unwrap();
    fs::set_permissions(s.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// Programs read a snapshot as a plain copy of the tree, through the mount and under `run`.
#[test]
fn programs_read_snapshots_below_the_mount() {
    let s = Sandbox::mounted(&[]);
    plant(&s);
    let (copy, dir) = (s.outside("copy"), s.dir.display());
    tool("cp", &["-a", s.dir_str(), copy.to_str().unwrap()]);
    s.ok(["snapshot", "create", s.dir_str(), "a"]);
    fs::write(s.path("with-xattr"), "new").unwrap();
    fs::remove_dir_all(s.path("dir")).unwrap();
    let script = format!(
        "set -e; copy={}; to={}; snap={dir}/.snapshots/a; rm -rf $to; mkdir $to; cd $snap; \
         diff -r . $copy; diff -r $snap $copy; cp -a $snap $to/cp; diff -r $to/cp $copy; \
         tar -cf - . | tar -xf - -C $to; diff -r $to/dir $copy/dir; \
         rsync -aHX --delete $snap/ $to/rsync; diff -r $to/rsync $copy; \
         find . -printf '%p %y %s %m %n\\n' | sort; find $copy -type f | wc -l; \
         getfattr -n user.colour --only-values with-xattr 2>&1; echo; stat -c %h dir/same; \
         stat -c '%s %b' sparse; readlink dir/link; cat dir/link | md5sum; \
         ls -A {dir} | grep -c snapshots || true; cd dir/deep; pwd -P; cat ../../with-xattr; \
         cat ../../../../with-xattr; cp large {dir}/restored; cmp large {dir}/restored; \
         ls -la {dir}/.snapshots | wc -l",
        copy.display(),
        s.outside("to").display()
    );
    let plain = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(plain.status.success(), "{plain:?}");
    let served = s.served_script(&[], &script).output().unwrap();
    assert!(served.status.success(), "{served:?}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&served.stdout), text(&plain.stdout));
    assert!(text(&plain.stdout).contains("blue"), "{plain:?}");

    // Numbers of inodes are the snapshot's own, and stay.
    let ino = |path: &str| fs::metadata(s.path(path)).unwrap().ino();
    assert_ne!(ino(".snapshots/a/with-xattr"), ino("with-xattr"));
    assert_eq!(ino(".snapshots/a/dir/same"), ino(".snapshots/a/dir/deep/large"));
    assert_ne!(ino(".snapshots/a"), ino(".snapshots"));
    assert_ne!(ino(".snapshots/a"), ino("."));
    s.umount();
    s.ok(["check", s.pool_str()]);
}

/// Nothing in a snapshot changes, whatever a program tries, also under `run`.
#[test]
fn snapshots_do_not_change() {
    let s = Sandbox::mounted(&[]);
    plant(&s);
    s.ok(["snapshot", "create", s.dir_str(), "a"]);
    let file = below(&s, "a/with-xattr");
    let write = |options: &mut fs::OpenOptions| errno(options.open(&file));
    assert_eq!(write(File::options().write(true)), Errno::ROFS);
    assert_eq!(write(File::options().append(true)), Errno::ROFS);
    assert_eq!(write(File::options().read(true).write(true)), Errno::ROFS);
    assert_eq!(write(File::options().write(true).truncate(true)), Errno::ROFS);
    assert_eq!(errno(fs::write(below(&s, "a/new"), "")), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(below(&s, "a/new"))), Errno::ROFS);
    assert_eq!(errno(fs::remove_file(&file)), Errno::ROFS);
    assert_eq!(errno(fs::remove_dir(below(&s, "a"))), Errno::ROFS);
    assert_eq!(errno(fs::rename(&file, s.path("moved"))), Errno::ROFS);
    assert_eq!(errno(fs::rename(s.path("secret"), below(&s, "a/moved"))), Errno::ROFS);
    assert_eq!(errno(fs::hard_link(&file, s.path("linked"))), Errno::XDEV);
    assert_eq!(errno(fs::hard_link(s.path("secret"), below(&s, "a/linked"))), Errno::ROFS);
    assert_eq!(errno(symlink("x", below(&s, "a/link"))), Errno::ROFS);
    assert_eq!(errno(fs::set_permissions(&file, fs::Permissions::from_mode(0o777))), Errno::ROFS);
    let set = setxattr(&file, "user.colour", b"red", XattrFlags::empty());
    assert_eq!(set, Err(Errno::ROFS));
    let script = "set +e; f=.snapshots/a/with-xattr; (echo x > $f) 2>&1; rm -f $f 2>&1; chmod 0 $f 2>&1; mv $f x 2>&1; \
                  mv secret .snapshots/a 2>&1; ln $f x 2>&1; mkdir .snapshots/a/x 2>&1; touch $f 2>&1; cat $f; ls";
    let plain = Command::new("bash").args(["-c", script]).current_dir(&s.dir).output().unwrap();
    let served = s.served_script(&[], script).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&served.stdout), text(&plain.stdout));
    assert_eq!(fs::read(&file).unwrap(), b"old");
}

/// Another user reads in a snapshot what the permissions there allow.
#[test]
fn permissions_hold_in_snapshots() {
    let s = Sandbox::mounted(&[]);
    plant(&s);
    s.ok(["snapshot", "create", s.dir_str(), "a"]);
    // A later change of the pool opens nothing in the snapshot.
    fs::set_permissions(s.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let snap = below(&s, "a");
    let script = format!(
        "set +e; cd {}; cat with-xattr; cat secret 2>&1; ls closed 2>&1; cat closed/file 2>&1; cat {}/secret",
        snap.display(),
        s.dir.display()
    );
    let said = as_nobody(&script);
    assert!(said.starts_with("old"), "{said}");
    assert_eq!(said.matches("Permission denied").count(), 3, "{said}");
    assert!(said.ends_with("secret"), "{said}");
    // A root that others may not enter.
    fs::set_permissions(&s.dir, fs::Permissions::from_mode(0o700)).unwrap();
    s.ok(["snapshot", "create", s.dir_str(), "b"]);
    fs::set_permissions(&s.dir, fs::Permissions::from_mode(0o755)).unwrap();
    let said = as_nobody(&format!("ls {} 2>&1 || ls {}", below(&s, "b").display(), snap.display()));
    assert_eq!(said.matches("Permission denied").count(), 1, "{said}");
    assert!(said.contains("with-xattr"), "{said}");
}

/// A snapshot is deleted although programs have entered it, unless they have files of it open.
#[test]
fn snapshots_in_use_are_deleted_or_not() {
    let s = Sandbox::mounted(&[]);
    plant(&s);
    let (pool, dir) = (s.pool_str(), s.dir_str());
    s.ok(["snapshot", "create", dir, "a"]);
    let mut file = File::open(below(&s, "a/secret")).unwrap();
    let refused = s.fails(["snapshot", "delete", pool, "a"], 1);
    assert!(refused.contains("files of it are open below .snapshots"), "{refused}");
    assert!(refused.contains(&format!("(pid {})", std::process::id())), "{refused}");
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "secret");
    drop(file);
    let open_dir = fs::read_dir(below(&s, "a")).unwrap();
    s.fails(["snapshot", "delete", pool, "a"], 1);
    drop(open_dir);

    // A directory that is only remembered does not keep it.
    let place = File::open(&s.dir).unwrap();
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let remembered = openat(&place, ".snapshots/a/dir", flags, Mode::empty()).unwrap();
    s.ok(["snapshot", "delete", pool, "a"]);
    assert_eq!(errno(fs::metadata(below(&s, "a"))), Errno::NOENT);
    assert_eq!(fs::read_dir(s.path(".snapshots")).unwrap().count(), 0);
    let gone = openat(&remembered, "deep", OFlags::RDONLY, Mode::empty()).unwrap_err();
    assert!([Errno::STALE, Errno::NOENT].contains(&gone), "{gone}");

    // Another snapshot of the same name is another one.
    fs::write(s.path("secret"), "later").unwrap();
    s.ok(["snapshot", "create", dir, "a"]);
    assert_eq!(fs::read(below(&s, "a/secret")).unwrap(), b"later");
    let gone = openat(&remembered, "deep", OFlags::RDONLY, Mode::empty()).unwrap_err();
    assert!([Errno::STALE, Errno::NOENT].contains(&gone), "{gone}");
    s.ok(["snapshot", "create", dir, "b", "--keep", "1"]);
    assert_eq!(s.ok(["snapshot", "list", dir]).lines().count(), 1);
    let b = MountedPart::new(&s, "b");
    let refused = s.fails(["snapshot", "delete", dir, "b"], 1);
    assert!(refused.contains("is mounted; unmount it first"), "{refused}");
    drop(b);
    drop((remembered, place));
    s.umount();
    s.ok(["check", pool]);
}

/// More snapshots than stay loaded are read one after the other, also while programs write.
#[test]
fn many_snapshots_are_read() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    for number in 0..9 {
        fs::write(s.path("number"), number.to_string()).unwrap();
        s.ok(["snapshot", "create", s.dir_str(), &format!("s{number}")]);
    }
    let mut open: Vec<_> =
        (0..9).map(|n| File::open(below(&s, &format!("s{n}/number"))).unwrap()).collect();
    for _ in 0..2 {
        for number in 0..9 {
            let text = fs::read_to_string(below(&s, &format!("s{number}/number"))).unwrap();
            assert_eq!(text, number.to_string());
        }
    }
    for (number, file) in open.iter_mut().enumerate() {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, number.to_string());
    }
    let script =
        "find .snapshots -type f | wc -l; grep -h . .snapshots/*/number | sort | tr -d '\\n'";
    let served = s.served_script(&[], script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&served.stdout), "9\n012345678", "{served:?}");
}

/// An entry of the pool hides the directory, and options of the mount decide about it.
#[test]
fn the_directory_is_hidden_or_off() {
    let mut s = Sandbox::formatted();
    let pool = s.pool_str().to_owned();
    s.mount(&["-o", "snapdir=off"]);
    s.ok(["snapshot", "create", s.dir_str(), "a"]);
    assert_eq!(errno(fs::metadata(s.path(".snapshots"))), Errno::NOENT);
    fs::write(s.path(".snapshots"), "mine").unwrap();
    s.umount();
    s.mount(&[]);
    assert_eq!(fs::read(s.path(".snapshots")).unwrap(), b"mine");
    fs::remove_file(s.path(".snapshots")).unwrap();
    assert_eq!(fs::read_dir(s.path(".snapshots")).unwrap().count(), 1);
    s.umount();
    s.mount(&["-o", "exclusive"]);
    assert_eq!(errno(fs::metadata(s.path(".snapshots"))), Errno::NOENT);
    s.umount();
    for options in ["exclusive,ask_open", "ro", "no_cache"] {
        s.mount(&["-o", options]);
        assert_eq!(fs::read_dir(below(&s, "a")).unwrap().count(), 0, "{options}");
        s.umount();
    }
    let refused = s.fails(["mount", &pool, s.dir_str(), "-o", "snapdir=shown"], 2);
    assert!(refused.contains("must be hidden or off"), "{refused}");
}
