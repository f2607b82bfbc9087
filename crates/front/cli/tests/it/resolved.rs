//! Conflicts that a user resolves, in a cache whose pool holds the tree.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::process::Output;
use std::time::Duration;

use crate::tree::{Tree, fill, listed};

fn resolve(tree: &Tree, name: &str, keep: &str) -> Output {
    tree.run(&["attach", "resolve", "--keep", keep, tree.mount(name).to_str().unwrap()])
}

fn until(tree: &Tree, what: &str, is_so: &dyn Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}: {}", tree.status());
}

fn troubles(tree: &Tree) -> Vec<String> {
    let status = tree.status();
    let troubles = status["cache"]["troubles"].as_array().unwrap();
    troubles.iter().map(|trouble| trouble["path"].as_str().unwrap().to_owned()).collect()
}

/// Makes conflicts: of a file, of one that others remove, and of a directory.
fn disagree(tree: &Tree) {
    fill(&tree.below(""));
    for dir in ["file", "gone", "dir"] {
        fs::create_dir(tree.below(dir)).unwrap();
        fs::write(tree.below(dir).join("it"), "first").unwrap();
    }
    tree.attach(&["--max-age", "3600"]);
    tree.serve("cat */it >/dev/null; echo ours >file/it; echo ours >gone/it; echo ours >dir/ours");
    fs::write(tree.below("file/it"), "theirs, longer").unwrap();
    fs::remove_file(tree.below("gone/it")).unwrap();
    fs::write(tree.below("dir/theirs"), "theirs").unwrap();
    until(tree, "conflicts", &|| {
        let found = troubles(tree);
        ["dir", "file/it", "gone/it"].iter().all(|name| found.iter().any(|path| path == name))
    });
}

#[test]
fn a_conflict_is_resolved_by_keeping_one_side() {
    for keep in ["cache", "directory"] {
        let tree = Tree::new("64M");
        disagree(&tree);
        let status = tree.ok(&["attach", "status", tree.mount("").to_str().unwrap()]);
        assert!(status.contains("keepstone attach resolve"), "{status}");
        // Others and strangers do not resolve, and nothing else is in conflict.
        let stranger = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(env!("CARGO_BIN_EXE_keepstone"))
            .args(["attach", "resolve", "--keep", keep, tree.mount("file/it").to_str().unwrap()])
            .output()
            .unwrap();
        let text = String::from_utf8(stranger.stderr).unwrap();
        assert!(!stranger.status.success() && text.contains("only root"), "{text}");
        let fine = resolve(&tree, "small", keep);
        let text = String::from_utf8(fine.stderr).unwrap();
        assert!(!fine.status.success() && text.contains("no conflict"), "{text}");
        // A write-back makes a file again that others have removed.
        for name in ["gone/it", "file/it", "dir"] {
            let done = resolve(&tree, name, keep);
            assert!(done.status.success(), "{name}: {done:?}");
        }
        assert_eq!(troubles(&tree), Vec::<String>::new());
        let (file, gone, names): (_, _, &[&str]) = match keep {
            "cache" => ("ours\n", Some("ours\n"), &["it", "ours"]),
            _ => ("theirs, longer", None, &["it", "ours", "theirs"]),
        };
        let names_in = |dir: std::path::PathBuf| {
            let mut names: Vec<_> = dir
                .read_dir()
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        // The kernel forgets what it has of the mount.
        until(&tree, keep, &|| {
            fs::read_to_string(tree.mount("file/it")).ok().as_deref() == Some(file)
                && fs::read_to_string(tree.mount("gone/it")).ok().as_deref() == gone
                && names_in(tree.mount("dir")) == names
        });
        let (shown, _) = tree.serve("cat file/it; cat gone/it 2>/dev/null || true; echo");
        assert_eq!(shown, format!("{file}{}\n", gone.unwrap_or_default()));
        let expected = listed(&tree.mount(""));
        tree.detach();
        assert_eq!(listed(&tree.below("")), expected);
        assert_eq!(names_in(tree.below("dir")), names);
    }
}

/// A cache that was detached in conflict gives way to the directory.
#[test]
fn a_detached_cache_gives_way() {
    let tree = Tree::new("64M");
    disagree(&tree);
    let umount = tree.run(&["umount", tree.mount("").to_str().unwrap()]);
    let text = String::from_utf8(umount.stderr).unwrap();
    assert!(umount.status.code() == Some(1) && text.contains("attach resolve"), "{text}");
    let (pool, below) = (tree.pool(), tree.below(""));
    let discard =
        |name: &str| tree.run(&["attach", "discard", &pool, below.to_str().unwrap(), name]);
    for name in ["file/it", "dir"] {
        let done = discard(name);
        assert!(done.status.success(), "{name}: {done:?}");
    }
    let again = discard("file/it");
    let text = String::from_utf8(again.stderr).unwrap();
    assert!(!again.status.success() && text.contains("no conflict"), "{text}");
    tree.ok(&["attach", "drain", &pool, below.to_str().unwrap()]);
    assert_eq!(fs::read(tree.below("file/it")).unwrap(), b"theirs, longer");
    // Write-back has made the file that others had removed again.
    assert_eq!(fs::read(tree.below("gone/it")).unwrap(), b"ours\n");
    assert_eq!(fs::read(tree.below("dir/ours")).unwrap(), b"ours\n");
    assert_eq!(fs::read(tree.below("dir/theirs")).unwrap(), b"theirs");
}
