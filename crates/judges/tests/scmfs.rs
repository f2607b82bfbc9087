//! SCMFS, explored.

use crashsim::campaign;
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::workload;
use judges::scmfs::Scmfs;

#[test]
fn replay() {
    let line = std::env::var("REPLAY").unwrap();
    let bases = workload::bases(&Scmfs).unwrap();
    let (findings, wrong, text) = campaign::replay(&Scmfs, &bases, &line.parse().unwrap()).unwrap();
    println!("{wrong} {findings:#?}\n{}", text);
    let script = line.splitn(5, ' ').nth(4).unwrap();
    let base: &Base = bases.iter().find(|b| line.split(' ').nth(1) == Some(b.name)).unwrap();
    let ops = workload::script(script).unwrap();
    let trace = base.record(&Scmfs, &ops, 0, Semantics::Adr).unwrap().trace;
    if std::env::var("TRACE").is_ok() {
        println!("{trace}");
    }
}
