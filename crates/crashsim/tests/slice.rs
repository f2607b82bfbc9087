use crashsim::campaign::*;
use crashsim::target::Bpfs;
use crashsim::stats::Distinct;
use crashsim::workload;
use crashsim::persist::Semantics;

fn go(family: Family, semantics: Semantics, limit: Option<u64>) {
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let bases = workload::bases(&Bpfs).unwrap();
    let options = Options { limit, semantics, ..Options::default() };
    let r = run(&Bpfs, &bases, &family, &options, &Distinct::default(), &|_, _, _| {});
    for f in &r.findings { println!("{}\n   {}\n   {}", f.replay, f.what, f.detail.join("\n   ")); }
    println!("{semantics:?} {} {} {:?} {} violations {:.1}s", r.family, r.workloads, r.stats, r.violations, r.seconds);
}
#[test] fn one() { for s in Semantics::ALL { go(Family::Exhaustive { length: 1, bases: 9 }, s, None) } }
#[test] fn two() { go(Family::Exhaustive { length: 2, bases: 2 }, Semantics::Adr, None) }
#[test] fn random() { go(Family::Random { runs: 100, ops: 60 }, Semantics::Adr, None) }
#[test] fn fuzz() { go(Family::Fuzz { tries: 10000 }, Semantics::Adr, None) }
