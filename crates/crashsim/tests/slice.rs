use crashsim::campaign::*;
use crashsim::persist::Semantics;
use crashsim::stats::Distinct;
use crashsim::target::Bpfs;
use crashsim::workload;

fn go(family: Family, semantics: Semantics, limit: Option<u64>) {
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let bases = workload::bases(&Bpfs).unwrap();
    let options = Options { limit, semantics, ..Options::default() };
    let r = run(&Bpfs, &bases, &family, &options, &Distinct::default(), &|_, _, _| {});
    for f in &r.findings {
        println!("{}\n   {}\n   {}", f.replay, f.what, f.detail.join("\n   "));
    }
    println!(
        "{semantics:?} {} {} {:?} {} violations {:.1}s",
        r.family, r.workloads, r.stats, r.violations, r.seconds
    );
}
#[test]
fn one() {
    for s in Semantics::ALL {
        go(Family::Exhaustive { length: 1, bases: 9 }, s, None)
    }
}
#[test]
fn two() {
    go(Family::Exhaustive { length: 2, bases: 2 }, Semantics::Adr, None)
}
#[test]
fn random() {
    go(Family::Random { runs: 100, ops: 60 }, Semantics::Adr, None)
}
#[test]
fn fuzz() {
    go(Family::Fuzz { tries: 10000 }, Semantics::Adr, None)
}
#[test]
fn threads() {
    use crashsim::threads;
    let bases = workload::bases(&Bpfs).unwrap();
    let distinct = Distinct::default();
    let mut stats = crashsim::stats::Stats::default();
    let t = std::time::Instant::now();
    let mut overlaps = 0;
    for seed in 0..200 {
        let mut rng = crashsim::rng::Rng::new(seed);
        let p = threads::programs(&mut rng, 2, 3);
        let x =
            threads::explore(&Bpfs, &bases[0], &p, seed, Default::default(), &distinct).unwrap();
        stats.add(&x.stats);
        let mut open = 0;
        for e in &x.trace.events {
            match e.action {
                crashsim::trace::Action::Begin { .. } => {
                    open += 1;
                    if open > 1 {
                        overlaps += 1
                    }
                }
                crashsim::trace::Action::End { .. } => open -= 1,
                _ => {}
            }
        }
        for v in &x.violations {
            println!("{seed} {p:?} {v}");
        }
    }
    println!("{stats:?} overlaps {overlaps} {:?}", t.elapsed());
}
