//! Crashes of pools with a backing store.

use crashsim::campaign;
use crashsim::stats::Distinct;
use judges::backed;

#[test]
fn no_crash_loses_or_invents_anything() {
    campaign::prepare_process();
    let stats = backed::explore(&Distinct::default()).unwrap_or_else(|bug| panic!("{bug}"));
    println!("{stats:?}");
}
