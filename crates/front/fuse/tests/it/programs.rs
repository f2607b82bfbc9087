//! Programs of `preload/tests/c` on mounts, whatever the kernel may keep. Needs gcc, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mount::Mount;

fn compiled(scratch: &Path, name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/c");
    let (source, program) = (sources.join(name).with_extension("c"), scratch.join(name));
    let mut gcc = Command::new("gcc");
    let status = gcc.args(["-O1", "-w", "-o"]).args([&program, &source]).status();
    assert!(status.expect("gcc: install it").success());
    program
}

/// Runs a program, with each of `flags`, on several mounts: the only user of its pool; one that
/// asks to open files; one with other users of the pool; and one that those have left.
fn passes(name: &str, flags: &[&str]) {
    let scratch = tempfile::tempdir().unwrap();
    let program = compiled(scratch.path(), name);
    for (mount, what) in [
        (Mount::new(true), "exclusive"),
        (Mount::asked_to_create(), "exclusive, asked"),
        (Mount::shared(), "beside others"),
        (Mount::alone(), "without others"),
    ] {
        for flags in flags {
            if what == "exclusive, asked" && *flags == "d" {
                // Linux does not move the position there.
                continue;
            }
            let output = Command::new(&program).arg(&mount.dir).arg(flags).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{what}, {flags:?}: {text}");
        }
    }
}

#[test]
fn requests_at_a_files_position_move_it() {
    passes("position", &["", "a", "d"]);
}

#[test]
fn sparse_copies_have_what_was_mapped() {
    passes("sparse", &[""]);
}
