//! Chell-Direct against the kernel: the same random calls on a tree that the library serves and on
//! one that only the kernel serves. Every result, error number, byte and offset must be the same
//! (Chell §2.2).
//!
//! The test program runs itself twice for that, once under the library, and compares the outputs.
//! `KEEPSTONE_OPS` is the number of calls (20 000), `KEEPSTONE_SEED` the first sequence,
//! `KEEPSTONE_DIRECT_ON` the directory (`/dev/shm`). A failure prints the seed.

mod buffers;
mod calls;
mod races;

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use counters::Counters;

/// Calls in one sequence, which starts with an empty directory.
const SEQUENCE: u64 = 400;
/// Variable by which the program runs sequences: directory, first seed, number of sequences.
const INSIDE: &str = "KEEPSTONE_DIRECT_INSIDE";

/// Returns the library's path, next to the test program: cargo builds it for the tests of this
/// package.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libkeepstone.so")
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

/// Returns the directory in which files are made.
fn base() -> PathBuf {
    std::env::var_os("KEEPSTONE_DIRECT_ON").map_or("/dev/shm".into(), PathBuf::from)
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("keepstone-direct-").tempdir_in(base()).unwrap()
}

/// Makes a command of this program with one test only, for a directory, served or not.
fn again(test: &str, inside: &str, served: Option<(&Path, u32, u32)>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, inside);
    if let Some((dir, after, chunks)) = served {
        command.env("LD_PRELOAD", library()).env("KEEPSTONE_DIRECT", dir);
        command.env("KEEPSTONE_DIRECT_AFTER", after.to_string());
        command.env("KEEPSTONE_DIRECT_CHUNKS", chunks.to_string());
    }
    command
}

/// Returns the output of a program of [`again`]: lines that begin with `#`.
fn said(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines().filter(|line| line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn calls_are_answered_as_by_the_kernel() {
    if let Ok(inside) = std::env::var(INSIDE) {
        let (dir, seed) = inside.split_once(' ').unwrap();
        return calls::run(Path::new(dir), seed.parse().unwrap());
    }
    let sequences = env("KEEPSTONE_OPS", 20_000).div_ceil(SEQUENCE);
    let first = env("KEEPSTONE_SEED", 1);
    let (mut copied, mut all) = (0, 0);
    for seed in first..first + sequences {
        // Mappings from the first call on, with the most chunks or few; or after 1 or 4 calls.
        let (after, chunks) = [(0, 64), (0, 2), (1, 64), (4, 64)][seed as usize % 4];
        let (ours, theirs) = (directory(), directory());
        let run = |dir: &Path, served| {
            said(&mut again(
                "direct::calls_are_answered_as_by_the_kernel",
                &format!("{} {seed}", dir.display()),
                served,
            ))
        };
        let stats = Counters::create(0, 0).unwrap();
        let expected = run(theirs.path(), None);
        let mut command = again(
            "direct::calls_are_answered_as_by_the_kernel",
            &format!("{} {seed}", ours.path().display()),
            Some((ours.path(), after, chunks)),
        );
        let leads_to = format!("/proc/{}/fd/{}", std::process::id(), stats.as_raw_fd());
        let got = said(command.env("KEEPSTONE_STATS", leads_to));
        if let Some(at) =
            (0..expected.len().max(got.len())).find(|&i| got.get(i) != expected.get(i))
        {
            for line in &expected[at.saturating_sub(40)..at.min(expected.len())] {
                eprintln!("{line}");
            }
            panic!(
                "got      {:?}\nexpected {:?}\nagain: KEEPSTONE_SEED={seed} KEEPSTONE_OPS=1",
                got.get(at),
                expected.get(at)
            );
        }
        let sums = Counters::map(stats.as_fd()).unwrap().sums();
        let [program] = &sums.programs[..] else { panic!("one program: {:?}", sums.programs) };
        let executed = std::env::current_exe().unwrap();
        let executed = executed.file_name().unwrap().to_str().unwrap();
        assert!(executed.starts_with(&program.name), "{}", program.name);
        let sums = sums.all;
        copied += sums.served().calls;
        all += sums.served().calls + sums.by_kernel().calls;
    }
    println!(
        "{} calls compared; of {all} reads, writes and seeks, {copied} by copy",
        sequences * SEQUENCE
    );
    assert!(copied * 6 > all, "only {copied} of {all} were served");
}

#[test]
fn another_process_may_change_sizes_meanwhile() {
    const NAME: &str = "direct::another_process_may_change_sizes_meanwhile";
    if let Ok(dir) = std::env::var(INSIDE) {
        return races::run(Path::new(&dir));
    }
    let dir = directory();
    let lines =
        said(&mut again(NAME, &dir.path().display().to_string(), Some((dir.path(), 0, 64))));
    assert_eq!(lines, ["# done"]);
}

#[test]
fn bytes_are_lent_where_they_lie() {
    const NAME: &str = "direct::bytes_are_lent_where_they_lie";
    if let Ok(dir) = std::env::var(INSIDE) {
        return buffers::run(Path::new(&dir));
    }
    let dir = directory();
    let lines =
        said(&mut again(NAME, &dir.path().display().to_string(), Some((dir.path(), 0, 64))));
    assert_eq!(lines, ["# done"]);
}
