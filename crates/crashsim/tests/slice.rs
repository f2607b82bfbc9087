use crashsim::explore::Budget;
use crashsim::persist::Semantics;
use crashsim::run::{Settings, explore};
use crashsim::stats::Distinct;
use crashsim::target::Bpfs;
use crashsim::workload;

#[test]
fn length_one() {
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let bases = workload::bases(&Bpfs).unwrap();
    let distinct = Distinct::default();
    let settings = Settings {
        semantics: Semantics::Adr,
        budget: Budget::default(),
        distinct: &distinct,
        stop_early: false,
        only: None,
    };
    let mut stats = crashsim::stats::Stats::default();
    let start = std::time::Instant::now();
    let mut bad = 0;
    for base in &bases {
        for op in workload::universe() {
            let ops = vec![op.clone()];
            match base.record(&Bpfs, &ops, 0) {
                Err(e) => {
                    println!("{}: {op}: {e}", base.name);
                    bad += 1
                }
                Ok(r) => {
                    let x = explore(&Bpfs, base, 0, &r, &settings);
                    stats.add(&x.stats);
                    for v in &x.violations {
                        println!(
                            "{}: {op} @{}.{} {}\n   {}\n   {}",
                            base.name,
                            v.at.op,
                            v.at.nth,
                            v.state,
                            v.what,
                            v.detail.join("\n   ")
                        );
                    }
                    bad += x.violations_total;
                }
            }
        }
    }
    println!(
        "{stats:?} {bad} violations, {:?}, {:.0} recoveries/s",
        start.elapsed(),
        stats.recovered as f64 / start.elapsed().as_secs_f64()
    );
}
