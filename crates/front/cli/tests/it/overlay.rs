//! Upper directories of the kernel's overlay file system, which store the changes of containers.
//!
//! The overlay needs extended attributes, types of entries in listings, and renames that leave a
//! whiteout.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::attach::Cached;
use crate::common::{Sandbox, on_each_engine, tool};

on_each_engine!(an_overlay_stores_in_a_pool, whiteouts_of_a_pool);

/// An overlay, mounted until this is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(scratch: &Path, store: &Path) -> Self {
        Self::mount_at(&scratch.join("overlay"), scratch, store, "")
    }

    /// Mounts it at `dir`, with more options.
    fn mount_at(dir: &Path, scratch: &Path, store: &Path, options: &str) -> Self {
        let lower = scratch.join("lower");
        fs::create_dir_all(dir).unwrap();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}{options}",
            lower.display(),
            store.join("upper").display(),
            store.join("work").display()
        );
        tool("mount", &["-t", "overlay", "overlay", "-o", &options, dir.to_str().unwrap()]);
        Self(dir.to_owned())
    }

    /// Returns names and contents.
    fn files(&self) -> BTreeMap<String, String> {
        let script = "find . -type f | while read f; do echo \"$f=$(cat \"$f\")\"; done";
        let listed = Command::new("sh").args(["-c", script]).current_dir(&self.0).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let pairs = listed.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(name, content)| (name.to_owned(), content.to_owned())).collect()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn check_whiteout(path: &Path) {
    let meta = fs::symlink_metadata(path).unwrap();
    assert!(meta.file_type().is_char_device() && meta.rdev() == 0, "{path:?}: {meta:?}");
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (0, 0, 0), "{path:?}");
}

/// Changes files as a container does, and checks that the store keeps the changes.
fn check(scratch: &Path, store: &Path) {
    let lower = scratch.join("lower");
    for dir in ["lower/dir", "lower/kept"] {
        fs::create_dir_all(scratch.join(dir)).unwrap();
    }
    for dir in ["upper", "work"] {
        fs::create_dir(store.join(dir)).unwrap();
    }
    for name in ["removed", "renamed", "changed", "dir/one", "dir/two", "kept/file"] {
        fs::write(lower.join(name), name).unwrap();
    }
    let overlay = Overlay::mount(scratch, store);
    let at = |name: &str| overlay.0.join(name);
    fs::remove_file(at("removed")).unwrap();
    fs::rename(at("renamed"), at("kept/moved")).unwrap();
    fs::write(at("changed"), "new").unwrap();
    fs::remove_dir_all(at("dir")).unwrap();
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/three"), "three").unwrap();
    fs::rename(at("dir/three"), at("dir/four")).unwrap();
    let expected = [
        ("./changed", "new"),
        ("./dir/four", "three"),
        ("./kept/file", "kept/file"),
        ("./kept/moved", "renamed"),
    ];
    let expected = expected.map(|(name, content)| (name.to_owned(), content.to_owned()));
    assert_eq!(overlay.files(), BTreeMap::from(expected.clone()));
    drop(overlay);
    for name in ["removed", "renamed"] {
        check_whiteout(&store.join("upper").join(name));
    }
    let dir = store.join("upper/dir");
    let opaque = tool(
        "getfattr",
        &[
            "-n",
            "trusted.overlay.opaque",
            "--only-values",
            "--absolute-names",
            dir.to_str().unwrap(),
        ],
    );
    assert_eq!(opaque, "y");
    let again = Overlay::mount(scratch, store);
    assert_eq!(again.files(), BTreeMap::from(expected));
}

fn an_overlay_stores_in_a_pool(layout: &str) {
    let mut s = Sandbox::mounted_as(layout, &[]);
    check(&s.outside("o"), &s.dir);
    s.umount();
    s.server_ends();
    s.ok(["check", s.pool_str()]);
    s.mount(&[]);
    check_whiteout(&s.path("upper/removed"));
}

#[test]
fn an_overlay_stores_in_a_cache() {
    let cached = Cached::new();
    cached.attach(&[]);
    check(&cached.base.path().join("o"), &cached.data());
    cached.detach();
    check_whiteout(&cached.data().join("upper/removed"));
}

fn rename_whiteout(from: &Path, to: &Path) {
    renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT).unwrap();
    check_whiteout(from);
    assert_eq!(fs::read_to_string(to).unwrap(), "content");
}

fn whiteouts_of_a_pool(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    fs::write(s.path("a"), "content").unwrap();
    fs::write(s.path("b"), "replaced").unwrap();
    fs::create_dir(s.path("d")).unwrap();
    rename_whiteout(&s.path("a"), &s.path("b"));
    rename_whiteout(&s.path("b"), &s.path("d/c"));
    // The same by programs with direct access.
    let script = "import ctypes, os, stat\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        assert libc.renameat2(-100, b'd/c', -100, b'e', 4) == 0, ctypes.get_errno()\n\
        left = os.lstat('d/c')\n\
        assert stat.S_ISCHR(left.st_mode) and left.st_rdev == 0, left\n\
        assert open('e').read() == 'content'\n\
        assert libc.renameat2(-100, b'e', -100, b'd', 6) == -1\n";
    let output = s.served_script(&[], &format!("python3 - <<'END'\n{script}END")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    check_whiteout(&s.path("d/c"));
}

/// A file keeps its identity when the first change copies it up from the lower layer: written back
/// twice, moved, and after another attach.
#[test]
fn a_cache_over_an_overlay() {
    for options in [",redirect_dir=on", ",index=on,nfs_export=on"] {
        let cached = Cached::new();
        let (scratch, data) = (cached.base.path(), cached.data());
        for dir in ["lower/dir/sub", "upper", "work"] {
            fs::create_dir_all(scratch.join(dir)).unwrap();
        }
        for name in ["changed", "removed", "dir/moved", "dir/sub/deep"] {
            fs::write(scratch.join("lower").join(name), name).unwrap();
        }
        let overlay = Overlay::mount_at(&data, scratch, scratch, options);
        let append = |name: &str| {
            let file = fs::File::options().append(true).open(data.join(name));
            file.unwrap().write_all(b"+").unwrap();
        };
        for _ in 0..2 {
            cached.attach(&[]);
            for _ in 0..2 {
                append("changed");
                append("dir/sub/deep");
                cached.keepstone(&["attach", "flush", data.to_str().unwrap()]);
            }
            cached.detach();
        }
        cached.attach(&[]);
        fs::remove_file(data.join("removed")).unwrap();
        fs::rename(data.join("dir/moved"), data.join("moved")).unwrap();
        fs::rename(data.join("dir"), data.join("other")).unwrap();
        append("other/sub/deep");
        if !options.contains("redirect") {
            // The overlay moves no directory of the lower layer.
            let umount = cached.run(&["umount", data.to_str().unwrap()]);
            let told = String::from_utf8_lossy(&umount.stderr);
            assert!(!umount.status.success() && told.contains("move it back"), "{umount:?}");
            cached.attach(&[]);
            fs::rename(data.join("other"), data.join("dir")).unwrap();
        }
        let dir = if options.contains("redirect") { "other" } else { "dir" };
        fs::write(data.join(dir).join("new"), "new").unwrap();
        cached.detach();
        let expected = BTreeMap::from([
            ("./changed".to_owned(), "changed++++".to_owned()),
            ("./moved".to_owned(), "dir/moved".to_owned()),
            (format!("./{dir}/new"), "new".to_owned()),
            (format!("./{dir}/sub/deep"), "dir/sub/deep+++++".to_owned()),
        ]);
        assert_eq!(overlay.files(), expected, "{options}");
    }
}
