use crashsim::explore::Budget;
use crashsim::mutate::{mutants, mutate};
use crashsim::persist::Semantics;
use crashsim::run::{Settings, explore};
use crashsim::stats::Distinct;
use crashsim::target::Bpfs;
use crashsim::workload;
use std::collections::BTreeMap;

#[test]
fn score() {
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let bases = workload::bases(&Bpfs).unwrap();
    let mut records = vec![];
    for base in &bases {
        for op in workload::universe() {
            if let Some(only) = std::env::var("ONLY").ok() {
                if base.name != only {
                    continue;
                }
            }
            let ops = vec![op.clone()];
            records.push((base, ops.clone(), base.record(&Bpfs, &ops, 0).unwrap()));
        }
    }
    let mut all: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (i, (_, _, r)) in records.iter().enumerate() {
        for m in mutants(&r.trace, 0) {
            all.entry(m).or_default().push(i);
        }
    }
    let start = std::time::Instant::now();
    let mut score: BTreeMap<_, (u32, u32)> = BTreeMap::new();
    for (m, ws) in &all {
        let mut killed = None;
        for &w in ws {
            let (base, ops, r) = &records[w];
            let Some(t) = mutate(&r.trace, &base.bytes, m) else { continue };
            let distinct = Distinct::default();
            let settings = Settings {
                semantics: Semantics::Adr,
                budget: Budget { states: 64, samples: 8, ..Budget::default() },
                distinct: &distinct,
                stop_early: true,
                only: None,
            };
            let r = crashsim::run::Recorded {
                trace: t,
                trees: r.trees.clone(),
                promises: r.promises.clone(),
            };
            let x = explore(&Bpfs, base, 0, &r, &settings);
            if x.violations_total > 0 {
                killed = Some((w, x.violations[0].what.clone()));
                let _ = ops;
                break;
            }
        }
        let s = score.entry(m.bug).or_default();
        s.0 += 1;
        match killed {
            Some((_w, _what)) => s.1 += 1,
            None => println!(
                "SURVIVES {:?} {} ({} workloads, e.g. {:?})",
                m.bug,
                m.site,
                ws.len(),
                records[ws[0]].1.iter().map(|o| o.to_string()).collect::<Vec<_>>()
            ),
        }
    }
    println!("{score:?} {:?}", start.elapsed());
}
