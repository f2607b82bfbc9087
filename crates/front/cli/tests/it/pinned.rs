//! Pins of files in a cache whose pool holds the tree.
//!
//! Needs root and `/dev/fuse`.

use std::fs;

use serde_json::Value;

use crate::tree::{Tree, fill, listed};

/// Returns what `attach show` tells of files.
fn shown(tree: &Tree, name: &str) -> Vec<Value> {
    let told = tree.ok(&["--json", "attach", "show", tree.mount(name).to_str().unwrap()]);
    serde_json::from_str(&told).unwrap()
}

fn on(tree: &Tree, command: &str, name: &str) -> std::process::Output {
    tree.run(&["attach", command, tree.mount(name).to_str().unwrap()])
}

#[test]
fn pinned_files_stay_in_the_pool() {
    let tree = Tree::new("16M");
    fill(&tree.below(""));
    fs::write(tree.below("far"), vec![b'x'; 40 << 20]).unwrap();
    tree.attach(&[]);
    assert!(on(&tree, "pin", "sub").status.success());
    let pinned = |name: &str| {
        let told = shown(&tree, name);
        assert!(told.iter().all(|file| file["cached_bytes"] == file["size_bytes"]), "{told:?}");
        told.iter().filter(|file| file["is_pinned"] == true).count()
    };
    assert_eq!(pinned("sub"), 3, "the empty file, the large one, and the link");
    let text = String::from_utf8(on(&tree, "show", "sub").stdout).unwrap();
    assert_eq!(text.matches(", pinned").count(), 3, "{text}");
    let is_told = |tree: &Tree| {
        assert_eq!(tree.status()["cache"]["pinned_bytes"], (3 << 20) + 2 * 4096);
        let text = tree.ok(&["attach", "status", tree.mount("").to_str().unwrap()]);
        assert!(text.contains("3.0 MiB of 6.4 MiB"), "{text}");
    };
    is_told(&tree);
    // Three times the pool goes through it.
    let goes_through = |tree: &Tree| {
        tree.serve("cat far far far >/dev/null");
        assert_eq!(pinned("sub"), 3);
    };
    goes_through(&tree);
    tree.kill_server();
    tree.attach(&[]);
    is_told(&tree);
    goes_through(&tree);
    // A program under `run` sees nothing of it.
    let (names, _) = tree.serve("getfattr -d -m - sub/large 2>/dev/null || true");
    assert_eq!(names, "");
    let too_large = on(&tree, "pin", "far");
    let text = String::from_utf8(too_large.stderr).unwrap();
    assert!(!too_large.status.success() && text.contains("keepstone attach unpin"), "{text}");
    assert!(on(&tree, "unpin", "sub").status.success());
    assert_eq!(tree.status()["cache"]["pinned_bytes"], 0);
    tree.serve("cat far far far >/dev/null");
    assert!(shown(&tree, "sub/large")[0]["cached_bytes"].as_u64().unwrap() < 3 << 20);
    tree.detach();
}

/// Nothing of a pin gets into the directory.
#[test]
fn pins_leave_the_directory_as_it_is() {
    let tree = Tree::new("64M");
    fill(&tree.below(""));
    let before = listed(&tree.below(""));
    tree.attach(&[]);
    assert!(on(&tree, "pin", "").status.success());
    tree.flush();
    assert_eq!(tree.status()["cache"]["dirty_files"], 0);
    tree.detach();
    assert_eq!(listed(&tree.below("")), before);
    tree.attach(&[]);
    assert!(shown(&tree, "").iter().all(|file| file["is_pinned"] == true));
    tree.detach();
}
