//! `keepstone simulate cache`: traces in, hit ratios out. Needs neither root nor a mount.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn simulate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    command.args(["simulate", "cache"]).args(args).output().unwrap()
}

fn ok(args: &[&str]) -> String {
    let output = simulate(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with this status, and returns its standard error.
fn fails(args: &[&str], status: i32) -> String {
    let output = simulate(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[args, &["--json"]].concat())).unwrap()
}

/// Creates a file that is removed at the end of the test.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, String) {
    let dir = tempfile::Builder::new().prefix("keepstone-").tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

/// Returns the hits of each policy in the only trace, at one size of the cache.
fn hits(found: &Value) -> Vec<(String, u64)> {
    let caches = found["traces"][0]["caches"].as_array().unwrap();
    let of = |c: &Value| (c["policy"].as_str().unwrap().to_owned(), c["hits"].as_u64().unwrap());
    caches.iter().map(of).collect()
}

/// A trace for two blocks of cache: 1 is used again and again, the others once.
const ACCESSES: [u64; 9] = [1, 2, 1, 3, 1, 4, 1, 5, 1];

#[test]
fn text_and_records_are_the_same_trace() {
    let text = ACCESSES.map(|key| format!("{key} 4096\n")).concat();
    let (_dir, text) = file("trace.txt", format!("# a comment\n\n{text}").as_bytes());
    let record = |key: u64| {
        let size = 4096u32.to_le_bytes();
        [&[9, 0, 0, 0][..], &key.to_le_bytes(), &size, &(-1i64).to_le_bytes()].concat()
    };
    let (_other, records) = file("trace.bin", &ACCESSES.map(record).concat());
    let found = json(&[&text, "--cache", "8K"]);
    assert_eq!(hits(&found), hits(&json(&[&records, "--cache", "8K"])));
    let trace = &found["traces"][0];
    assert_eq!(
        (&trace["accesses"], &trace["objects"], &trace["bytes"]),
        (&9.into(), &5.into(), &20480.into())
    );
    let expected = [("lru", 4), ("blended", 2), ("sieve", 4)].map(|(p, n)| (p.to_owned(), n));
    assert_eq!(hits(&found)[..3], expected);
    assert_eq!(trace["caches"][0]["hit_ratio"], 4.0 / 9.0);
}

#[test]
fn a_cache_of_everything_misses_what_is_new_only() {
    let args = ["--zipf", "0.8", "--objects", "500", "--accesses", "20000", "--cache", "100%"];
    let found = json(&args);
    let trace = &found["traces"][0];
    let first = trace["accesses"].as_u64().unwrap() - trace["objects"].as_u64().unwrap();
    assert!(hits(&found).iter().all(|(_, hits)| *hits == first), "{found}");
    assert!(trace["caches"].as_array().unwrap().iter().all(|cache| cache["evictions"] == 0));
    assert_eq!(found, json(&args), "the same each time");
}

#[test]
fn policies_and_sizes_are_chosen() {
    let base = ["--zipf", "1.0", "--objects", "1000", "--accesses", "20000", "--sizes", "4K"];
    let chosen = ["--policy", "sieve,s3fifo", "--cache", "1%,64K", "--once", "25", "--scans", "10"];
    let text = ok(&[&base[..], &chosen].concat());
    assert!(text.contains("sieve        s3fifo\n") && !text.contains("lru"), "{text}");
    assert!(text.contains("  1 % (") && text.contains("  64 KiB "), "{text}");
    let found = json(&[&base[..], &chosen].concat());
    assert_eq!(
        hits(&found).iter().map(|(p, _)| &p[..]).collect::<Vec<_>>(),
        ["sieve", "s3fifo"].repeat(2)
    );
}

/// Shows the reason for the default on a small scale: objects that are accessed once displace
/// nothing from S3-FIFO.
#[test]
fn without_a_trace_all_standard_ones_are_compared() {
    let found = json(&["--objects", "2000", "--accesses", "40000", "--cache", "10%"]);
    let traces = found["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 10);
    let once = traces.iter().find(|t| t["trace"] == "zipf 1.0, 50 % once").unwrap();
    let ratio = |policy: &str| {
        let caches = once["caches"].as_array().unwrap();
        caches.iter().find(|c| c["policy"] == policy).unwrap()["hit_ratio"].as_f64().unwrap()
    };
    assert!(ratio("s3fifo") > ratio("blended"), "{once}");
    let text = ok(&["--objects", "100", "--accesses", "1000"]);
    assert!(text.contains("mean of all"), "{text}");
}

#[test]
fn what_is_no_trace_is_refused() {
    let refused = |bytes: &[u8]| {
        let (_dir, path) = file("trace", bytes);
        let said = fails(&[&path], 1);
        assert!(said.contains(&path), "{said}");
        said
    };
    assert!(refused(b"1 4096\n2 large\n").contains("line 2: `2 large`"));
    assert!(refused(b"").contains("no accesses"));
    assert!(refused(&[1, 2, 3]).contains("oracleGeneral"));
    assert!(refused(&[0x28, 0xb5, 0x2f, 0xfd, 0]).contains("zstd -d"));
    assert!(fails(&["/no/such"], 1).contains("/no/such"));
    assert!(Path::new("/").is_dir() && fails(&["/"], 1).contains("regular file"));
    for wrong in [
        &["trace", "--zipf", "1"][..],
        &["--scans", "10"],
        &["--zipf", "-1"],
        &["--zipf", "1", "--once", "101"],
        &["--policy", "arc"],
        &["--cache", "0%"],
        &["--zipf", "1", "--objects", "0"],
    ] {
        fails(wrong, 2);
    }
}
