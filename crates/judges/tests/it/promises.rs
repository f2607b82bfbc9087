//! Engines whose content is durable on `fsync`, and such that break what that promises.

use crate::common::{Wrapped, WrappedBpfs};
use crashsim::campaign::{self, Family, Options};
use crashsim::run::Base;
use crashsim::stats::Distinct;
use pmem::Medium;
use vfs::Durability;
use vfs::script::parse;

/// What the first violation of a workload says, if there is one; on a pool with a synced file of two blocks.
fn violation<W: Wrapped>(workload: &str) -> Option<String> {
    let target = WrappedBpfs::<W>::default();
    let file = parse("create /a; write /a 0 8192; create /b; write /b 0 4096").unwrap();
    let bases = [Base::build(&target, "file", 128 * 4096, file).unwrap()];
    let family = Family::Script(parse(workload).unwrap());
    let (options, distinct) = (Options::default(), Distinct::default());
    let report = campaign::run(&target, &bases, &family, &options, &distinct, &|_, _, _| {});
    assert_eq!(report.violations > 0, !report.findings.is_empty());
    report.findings.first().map(|finding| finding.what.clone())
}

/// Whether the explorer has made these bytes, as content of a file: none is even.
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

/// Promises less than it keeps.
#[derive(Default)]
struct Modest;

impl Wrapped for Modest {
    const DURABILITY: Durability = Durability::MetadataOnReturn;
}

#[test]
fn who_keeps_more_than_is_promised_breaks_nothing() {
    for workload in WRITES {
        assert_eq!(violation::<Modest>(workload), None, "{workload}");
    }
    assert_eq!(violation::<Modest>("write /a 0 4096; fsync /a; chmod /b 0600; fsync /b"), None);
}

/// Leaves content in the caches, where there are zeros in memory.
#[derive(Default)]
struct Lazy<const PROMISES_ALL: bool>;

impl<const PROMISES_ALL: bool> Wrapped for Lazy<PROMISES_ALL> {
    const DURABILITY: Durability =
        if PROMISES_ALL { Durability::OnReturn } else { Durability::MetadataOnReturn };

    fn write_nt<M: Medium>(&self, medium: &M, off: u64, data: &[u8]) {
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
    let new = "create /n; write /n 0 4096";
    assert_eq!(violation::<Lazy<false>>(new), None);
    assert_eq!(violation::<Lazy<false>>("append /a 4096; rename /a /c"), None);
    assert!(violation::<Lazy<true>>(new).is_some(), "it is not durable on return");
    let synced = violation::<Lazy<false>>("create /n; write /n 0 4096; fsync /n").unwrap();
    assert!(synced.contains("/n: the byte at") && synced.contains("0x00"), "{synced}");
    let other = violation::<Lazy<false>>("create /n; write /n 0 4096; fsync /b");
    assert_eq!(other, None, "the content of another file");
    // Zeros take the place of what was durable.
    let overwritten = violation::<Lazy<false>>("write /a 0 4096").unwrap();
    assert!(
        overwritten.contains("/a: the byte at") && overwritten.contains("0x00"),
        "{overwritten}"
    );
}

/// As above, but over what the blocks held before.
#[derive(Default)]
struct Stale;

impl Wrapped for Stale {
    const DURABILITY: Durability = Durability::MetadataOnReturn;

    fn write_nt<M: Medium>(&self, medium: &M, off: u64, data: &[u8]) {
        if is_content(data) { medium.write(off, data) } else { medium.write_nt(off, data) }
    }
}

#[test]
fn bytes_of_former_owners_are_found() {
    for workload in ["create /n; write /n 0 4096", "unlink /b; create /n; write /n 0 4096"] {
        let foreign = violation::<Stale>(workload).unwrap();
        assert!(foreign.contains("/n: the byte at"), "{foreign}");
    }
}

/// Forgets to flush words, with which names are committed.
#[derive(Default)]
struct Forgetful<const ON_SYNC: bool>;

impl<const ON_SYNC: bool> Wrapped for Forgetful<ON_SYNC> {
    const DURABILITY: Durability =
        if ON_SYNC { Durability::OnSync } else { Durability::MetadataOnReturn };

    fn flush<M: Medium>(&self, medium: &M, off: u64, len: u64) {
        if len > 8 {
            medium.flush(off, len);
        }
    }
}

#[test]
fn names_are_durable_when_they_are_promised() {
    for workload in ["unlink /b", "chmod /b 0600; unlink /b"] {
        let lost = violation::<Forgetful<false>>(workload).unwrap();
        assert!(lost.starts_with("the tree is none that is allowed"), "{lost}");
        assert_eq!(violation::<Forgetful<true>>(workload), None, "until somebody syncs");
    }
    assert!(violation::<Forgetful<true>>("unlink /b; fsync /a").is_some());
}
