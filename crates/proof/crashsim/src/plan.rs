//! Chooses the states of a crash point that are enumerated one by one: all states if they are few.
//! Otherwise none, all, each line alone, all but one, pairs, the powerset of the lines that
//! recovery reads, and seeded samples.

use crate::explore::{Budget, Point, State};
use rng::Rng;
use std::collections::BTreeMap;

/// Lines that recovery reads, of which the powerset is taken; further ones are left to pairs and
/// samples.
const POWERSET_LINES: usize = 10;

/// Returns the lines of a crash point, each with its units.
pub fn lines(point: &Point) -> Vec<Vec<usize>> {
    let mut lines: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (u, unit) in point.units().iter().enumerate() {
        lines.entry(unit.line).or_default().push(u);
    }
    lines.into_values().collect()
}

/// Calls `each` with the planned states, one by one. `read` are the units that recovery reads.
pub fn enumerate(point: &Point, budget: &Budget, read: &[usize], each: &mut dyn FnMut(State)) {
    if point.states_log2() <= (budget.states as f64).log2() {
        return enumerate_all(point, each);
    }
    let (none, all) = (point.extreme(false), point.extreme(true));
    let lines = lines(point);
    let with = |mut state: State, line: &[usize], from: &State| {
        line.iter().for_each(|u| state[*u] = from[*u]);
        state
    };
    each(none.clone());
    each(all.clone());
    for line in &lines {
        each(with(none.clone(), line, &all));
        each(with(all.clone(), line, &none));
    }
    let pairs = (0..lines.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    for (a, b) in pairs.take(budget.states as usize) {
        each(with(with(none.clone(), &lines[a], &all), &lines[b], &all));
    }
    let touched = |line: &&Vec<usize>| line.iter().any(|u| read.contains(u));
    let read: Vec<_> = lines.iter().filter(touched).take(POWERSET_LINES).collect();
    for set in 0..1u32 << read.len() {
        let members = read.iter().enumerate().filter(|(i, _)| set & 1 << i != 0);
        each(members.fold(none.clone(), |state, (_, line)| with(state, line, &all)));
    }
    let mut rng = Rng::new(budget.seed);
    for _ in 0..budget.samples {
        let contents = point.units().iter().map(|u| u.contents.len() as u64);
        each(contents.map(|n| rng.below(n) as u16).collect());
    }
}

/// Calls `each` with all states.
fn enumerate_all(point: &Point, each: &mut dyn FnMut(State)) {
    let mut state = point.extreme(false);
    loop {
        each(state.clone());
        let digits = state.iter_mut().zip(point.units());
        let mut carry = true;
        for (digit, unit) in digits {
            *digit += 1;
            carry = usize::from(*digit) == unit.contents.len();
            if !carry {
                break;
            }
            *digit = 0;
        }
        if carry {
            return;
        }
    }
}
