use crashsim::score::{Fate, label, score, table};
use crashsim::target::Bpfs;
use crashsim::workload;
use std::path::Path;

#[test]
fn every_planted_bug_is_found() {
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let bases = workload::bases(&Bpfs).unwrap();
    let of = |base| workload::universe().into_iter().map(move |op| (base, vec![op]));
    let workloads: Vec<_> = bases.iter().flat_map(of).collect();
    let fates = score(&Bpfs, &workloads, 0, &|_| true).unwrap();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (m, f) in &fates {
        match f { Fate::Survived => println!("SURVIVES {:?} {} {}", m.bug, m.site, label(crates, &m.site)), Fate::Killed { by, what } => println!("killed {:?} {} by {by}: {}", m.bug, label(crates, &m.site), what.lines().next().unwrap()), Fate::Moot => println!("moot {:?} {}", m.bug, m.site) }
    }
    println!("{:?}", table(&fates));
}
