//! An engine with a bug: what is reported, and that the replay line shows the same again.

use crashsim::campaign::{self, Family, Options};
use crashsim::run::Base;
use crashsim::stats::Distinct;
use crashsim::target::{Bpfs, Mounted, Strength, Target, Usage};
use crashsim::workload::script;
use pmem::{Counters, Domain, Fenced, Medium};

/// Forgets to flush words: whoever commits in place has committed nothing.
struct Careless<'m, M>(&'m M);

impl<M: Medium> Medium for Careless<'_, M> {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn domain(&self) -> Domain {
        self.0.domain()
    }
    fn counters(&self) -> &Counters {
        self.0.counters()
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.0.read(off, buf);
    }
    fn load_u64(&self, off: u64) -> u64 {
        self.0.load_u64(off)
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.0.equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        self.0.write(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.0.write_nt(off, data);
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        self.0.copy_nt(dst, src, len);
    }
    fn zero_nt(&self, off: u64, len: u64) {
        self.0.zero_nt(off, len);
    }
    fn store_u64(&self, off: u64, value: u64) {
        self.0.store_u64(off, value);
    }
    fn flush(&self, off: u64, len: u64) {
        if len > 8 {
            self.0.flush(off, len);
        }
    }
    fn fence(&self) -> Fenced {
        self.0.fence()
    }
}

/// BPFS over it.
struct CarelessBpfs;

impl Target for CarelessBpfs {
    fn strength(&self) -> Strength {
        Bpfs.strength()
    }
    fn format<M: Medium>(&self, medium: &M) -> Result<(), String> {
        Bpfs.format(medium)
    }
    fn is_pool<M: Medium>(&self, medium: &M) -> bool {
        Bpfs.is_pool(medium)
    }
    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        Bpfs::mount_owned(Careless(medium))
    }
    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String> {
        Bpfs.check(medium)
    }
    fn repair<M: Medium>(&self, medium: &M) -> Result<(), String> {
        Bpfs.repair(medium)
    }
    fn describe(&self, image: &[u8], word: u32) -> String {
        Bpfs.describe(image, word)
    }
}

#[test]
fn a_violation_names_what_was_lost_and_can_be_seen_again() {
    let target = CarelessBpfs;
    let tree = script("mkdir /d; create /d/c; write /d/c 0 100").unwrap();
    let bases = [Base::build(&target, "tree", 128 * 4096, tree).unwrap()];
    let family = Family::Script(script("create /n; unlink /d/c").unwrap());
    let (options, distinct) = (Options::default(), Distinct::default());
    let report = campaign::run(&target, &bases, &family, &options, &distinct, &|_, _, _| {});
    assert!(report.violations > 0);

    let lost = "the tree is none that is allowed";
    let finding = report.findings.iter().find(|f| f.what.starts_with(lost)).unwrap();
    println!("{finding:#?}");
    let entry = "directory inode 2, entry at 0 \"c\": inode number";
    assert!(finding.detail.iter().any(|d| d.contains(entry) && d.contains("lost")));

    let line = finding.replay.parse().unwrap();
    let (again, wrong) = campaign::replay(&target, &bases, &line).unwrap();
    assert!(wrong);
    assert!(again.iter().any(|a| a.what == finding.what && a.detail == finding.detail));
}
