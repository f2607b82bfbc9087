//! Engines whose content is durable on `fsync`, and engines that break this promise.

use crate::common::{Wrapped, WrappedBpfs};
use crashsim::campaign::{self, CampaignOptions, Family};
use crashsim::run::Base;
use crashsim::stats::Distinct;
use pmem::Medium;
use vfs::Durability::{MetadataOnReturn, OnSync};
use vfs::script::parse;

/// Returns the first violation of a workload, if any. The pool has synced files, one of them of two
/// blocks.
fn violation(target: &WrappedBpfs, workload: &str) -> Option<String> {
    let file = parse("create /a; write /a 0 8192; create /b; write /b 0 4096").unwrap();
    let bases = [Base::build(target, "file", 128 * 4096, file).unwrap()];
    let family = Family::Script(parse(workload).unwrap());
    let (options, distinct) = (CampaignOptions::default(), Distinct::default());
    let report = campaign::run(target, &bases, &family, &options, &distinct, &|_, _, _| {});
    assert_eq!(report.violations > 0, !report.findings.is_empty());
    report.findings.first().map(|finding| finding.what.clone())
}

/// Returns whether the explorer made these bytes as content of a file: such bytes are odd.
fn is_content(data: &[u8]) -> bool {
    data.iter().all(|byte| byte % 2 == 1)
}

/// Writes of whole lines.
const WRITES: [&str; 6] = [
    "write /a 0 4096",
    "create /n; write /n 0 4096",
    "append /a 4096; write /a 4096 4096",
    "write /a 4096 8192; rename /a /c",
    "unlink /a; create /a; write /a 0 4096",
    "write /a 0 4096; truncate /a 100; write /a 4096 4096",
];

/// Does all that the engine requests.
#[derive(Default)]
struct Faithful;

impl Wrapped for Faithful {}

#[test]
fn who_keeps_more_than_is_promised_breaks_nothing() {
    let modest = WrappedBpfs::promising::<Faithful>(MetadataOnReturn);
    for workload in WRITES {
        assert_eq!(violation(&modest, workload), None, "{workload}");
    }
    assert_eq!(violation(&modest, "write /a 0 4096; fsync /a; chmod /b 0600; fsync /b"), None);
}

/// Leaves content in the caches, over zeros in memory.
#[derive(Default)]
struct Lazy;

impl Wrapped for Lazy {
    fn write_nt(&self, medium: &dyn Medium, off: u64, data: &[u8]) {
        if is_content(data) {
            medium.zero_nt(off, data.len() as u64);
            let _ = medium.fence();
            medium.write(off, data);
        } else {
            medium.write_nt(off, data);
        }
    }
}

#[test]
fn unsynced_content_may_be_lost_and_no_other() {
    let (lazy, promises_all) =
        (WrappedBpfs::promising::<Lazy>(MetadataOnReturn), WrappedBpfs::of::<Lazy>());
    let new = "create /n; write /n 0 4096";
    assert_eq!(violation(&lazy, new), None);
    assert_eq!(violation(&lazy, "append /a 4096; rename /a /c"), None);
    assert!(violation(&promises_all, new).is_some(), "it is not durable on return");
    let synced = violation(&lazy, "create /n; write /n 0 4096; fsync /n").unwrap();
    assert!(synced.contains("/n: the byte at") && synced.contains("0x00"), "{synced}");
    let other = violation(&lazy, "create /n; write /n 0 4096; fsync /b");
    assert_eq!(other, None, "the content of another file");
    // Zeros replace content that was durable.
    let overwritten = violation(&lazy, "write /a 0 4096").unwrap();
    assert!(
        overwritten.contains("/a: the byte at") && overwritten.contains("0x00"),
        "{overwritten}"
    );
}

/// Leaves content in the caches, over the former content of the blocks in memory.
#[derive(Default)]
struct Stale;

impl Wrapped for Stale {
    fn write_nt(&self, medium: &dyn Medium, off: u64, data: &[u8]) {
        if is_content(data) { medium.write(off, data) } else { medium.write_nt(off, data) }
    }
}

#[test]
fn bytes_of_former_owners_are_found() {
    for workload in ["create /n; write /n 0 4096", "unlink /b; create /n; write /n 0 4096"] {
        let stale = WrappedBpfs::promising::<Stale>(MetadataOnReturn);
        let foreign = violation(&stale, workload).unwrap();
        assert!(foreign.contains("/n: the byte at"), "{foreign}");
    }
}

/// Forgets to flush words, which commit names.
#[derive(Default)]
struct Forgetful;

impl Wrapped for Forgetful {
    fn flush(&self, medium: &dyn Medium, off: u64, len: u64) {
        if len > 8 {
            medium.flush(off, len);
        }
    }
}

#[test]
fn names_are_durable_when_they_are_promised() {
    let promising = WrappedBpfs::promising::<Forgetful>;
    let (on_return, on_sync) = (promising(MetadataOnReturn), promising(OnSync));
    for workload in ["unlink /b", "chmod /b 0600; unlink /b"] {
        let lost = violation(&on_return, workload).unwrap();
        assert!(lost.starts_with("the tree is none that is allowed"), "{lost}");
        assert_eq!(violation(&on_sync, workload), None, "until somebody syncs");
    }
    assert!(violation(&on_sync, "unlink /b; fsync /a").is_some());
    // Without an argument for unflushed stores, the explorer reports undecided words when the
    // operation returns.
    let held = WrappedBpfs { argued: None, ..on_return };
    let left = violation(&held, "chmod /b 0600; unlink /b").unwrap();
    assert!(left.starts_with("the operation has returned"), "{left}");
}
