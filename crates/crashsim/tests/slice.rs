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
    for base in &bases {
        let mut stats = crashsim::stats::Stats::default();
        let mut bad = 0;
        for op in workload::universe() {
            match base.record(&Bpfs, &[op.clone()], 0) {
                Err(e) => {
                    println!("{}: {op}: {e}", base.name);
                    bad += 1
                }
                Ok(r) => {
                    let x = explore(&Bpfs, base, 0, &r, &settings);
                    stats.add(&x.stats);
                    bad += x.violations_total;
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
                }
            }
        }
        println!("{} {stats:?} {bad} violations", base.name);
    }
}
#[test]
fn length_two() {
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
    let mut n = 0;
    for base in &bases[..1] {
        for op1 in workload::universe() {
            for op in workload::universe() {
                let ops = vec![op1.clone(), op.clone()];
                n += 1;
                match base.record(&Bpfs, &ops, 1) {
                    Err(e) => {
                        println!("{}: {op1}; {op}: {e}", base.name);
                        bad += 1
                    }
                    Ok(r) => {
                        let x = explore(&Bpfs, base, 1, &r, &settings);
                        stats.add(&x.stats);
                        for v in &x.violations {
                            println!(
                                "{}: {op1}; {op} @{}.{} {}\n   {}\n   {}",
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
    }
    println!(
        "{n} {stats:?} {bad} violations, {:?}, {:.0} recoveries/s",
        start.elapsed(),
        stats.recovered as f64 / start.elapsed().as_secs_f64()
    );
}
