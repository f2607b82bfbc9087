//! The explorer is itself tested: bugs planted at every flush, fence and store of the engine must be
//! found, but for those that `EXPLAINED` argues to be none.

use crashsim::campaign::prepare_process;
use crashsim::mutate::{Bug, Mutant};
use crashsim::score::{Fate, label, score, table};
use crashsim::target::Bpfs;
use crashsim::workload;
use std::path::Path;

/// Mutants that are not bugs: `(bug, start of the site's label)`; docs/CRASHTESTING.md says why.
const EXPLAINED: &[(Bug, &str)] = &[];

#[test]
fn planted_bugs_are_found() {
    prepare_process();
    let bases = workload::bases(&Bpfs).unwrap();
    let of = |base| workload::universe().into_iter().map(move |op| (base, vec![op]));
    let single: Vec<_> = bases.iter().flat_map(of).collect();
    let mut fates = score(&Bpfs, &single, 0, &|_| true).unwrap();
    let of = |base| workload::sequences().into_iter().map(move |ops| (base, ops));
    let sequences: Vec<_> = bases.iter().flat_map(of).collect();
    let open = |m: &Mutant| fates.get(m).is_none_or(|f| !matches!(f, Fate::Killed { .. }));
    let more = score(&Bpfs, &sequences, 0, &open).unwrap();
    fates.extend(more);

    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut unexplained = 0;
    for (m, fate) in &fates {
        let site = label(crates, &m.site);
        match fate {
            Fate::Killed { by, what } => {
                let what = what.lines().next().unwrap_or_default();
                println!("{:?} at {site}\n    {by}\n    {what}", m.bug);
            }
            Fate::Survived => {
                let known = EXPLAINED.iter().any(|(b, s)| *b == m.bug && site.starts_with(s));
                println!(
                    "{:?} at {site}\n    survives{}",
                    m.bug,
                    if known { ", explained" } else { "" }
                );
                unexplained += u32::from(!known);
            }
            Fate::Moot => {}
        }
    }
    for (bug, (killed, tried)) in table(&fates) {
        println!("| {bug:?} | {killed} | {tried} |");
    }
    assert_eq!(unexplained, 0, "mutants survive and are not explained");
}
