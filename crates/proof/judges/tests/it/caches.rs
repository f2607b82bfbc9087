//! Deaths of servers of caches.

use crashsim::campaign;
use crashsim::stats::Distinct;
use judges::caches::{self, Careless};
use pool::DurabilityMode::{Journal, Ordered};

#[test]
fn no_death_of_a_server_loses_anything() {
    campaign::prepare_process();
    let stats = caches::explore(&Distinct::default()).unwrap_or_else(|bug| panic!("{bug}"));
    println!("{stats:?}");
    assert!(stats.distinct > 1000, "{stats:?}");
}

/// The judge finds directories whose syncs make content or names not durable.
#[test]
fn syncs_that_do_nothing_are_found() {
    campaign::prepare_process();
    for careless in [Careless::Content, Careless::Names] {
        for mode in [Journal, Ordered] {
            let found = caches::explore_over(careless, mode, &Distinct::default());
            println!("{careless:?}: {}", found.expect_err("it loses something"));
        }
    }
}
