//! Copies that the kernel makes of files which programs extend in the pool of a cache.
//!
//! Needs root, `/dev/fuse` and python3.

use std::fs;
use std::process::Command;

use crate::attach::Cached;
use crate::common::library;

/// The kernel does not know the end that a program has given to a delegated file, unless the
/// library makes it ask.
#[test]
fn a_copy_reaches_the_end_of_a_delegated_file() {
    let cached = Cached::new();
    let path = cached.data().join("file");
    fs::write(&path, "").unwrap();
    cached.attach(&[]);
    let script = "import os, sys
name = sys.argv[1]
file = os.open(name, os.O_RDWR)
copy = os.open(name + '.copy', os.O_RDWR | os.O_CREAT)
calls = [
    lambda: os.copy_file_range(file, copy, 1 << 20, 0, 0),
    lambda: os.sendfile(copy, file, 0, 1 << 20),
]
for i, call in enumerate(calls):
    for _ in range(500): os.pwrite(file, b'a' * 100, 0)
    os.pwrite(file, b'b', 10000 * (i + 1) - 1)
    print(call())";
    let mut run = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    run.args(["run", "--quiet", "--", "python3", "-c", script]).arg(&path);
    run.env("KEEPSTONE_LIBRARY", library()).env("KEEPSTONE_DIRECT_AFTER", "0");
    let output = run.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "10000\n20000\n", "{output:?}");
    assert!(cached.status()["cache"]["counters"]["delegated"].as_u64() > Some(0));
    cached.detach();
}
