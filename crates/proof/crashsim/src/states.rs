//! Crash states of any program as whole images, for judges that see nothing else: commands that
//! take a file.
//!
//! Such a judge does not show which words it reads, so states cannot be merged by them. At each
//! crash point the states of a plan are judged: all, if they are few; else those that lose or keep
//! single lines, pairs, and samples.

use crate::explore::{Budget, Explorer, Outcome, Point, State};
use crate::image::CrashImage;
use crate::lost;
use crate::persist::Semantics;
use crate::plan;
use crate::program::{Bug, Moment, at_each_point};
use crate::show;
use crate::stats::{Distinct, Stats};
use crate::trace::Trace;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// One crash of a trace, in one line: the rules, the number of the event before which the power
/// fails, and the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The rules.
    pub semantics: Semantics,
    /// The number of the event.
    pub event: usize,
    /// The state, as `show::name` names it.
    pub state: String,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.semantics.name(), self.event, self.state)
    }
}

impl FromStr for Crash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [semantics, event, state] = words[..] else {
            return Err("expected RULES EVENT STATE, as a violation prints them".to_owned());
        };
        let known = Semantics::ALL.into_iter().find(|known| known.name() == semantics);
        Ok(Self {
            semantics: known.ok_or_else(|| format!("{semantics}: no such rules"))?,
            event: event.parse().map_err(|_| format!("{event}: not the number of an event"))?,
            state: state.to_owned(),
        })
    }
}

/// The most states of a crash point that are judged.
#[derive(Clone, Copy, Debug)]
pub struct StatesMax(pub u64);

/// Judges the crash states of a trace over memory that held `initial`, each distinct image once for
/// each number of operations that have begun and returned. Returns each bug once, with the crash
/// that shows it and has lost least.
pub fn find_bugs(
    trace: &Trace,
    initial: &[u8],
    semantics: Semantics,
    most: StatesMax,
    judge: &dyn Fn(Moment, Vec<u8>) -> Outcome<()>,
) -> (Stats, Vec<(Bug, Crash)>) {
    let (now, distinct) = (Cell::new(Moment::default()), Distinct::default());
    let recover = |image: &CrashImage| judge(now.get(), image.bytes());
    let wrong = |outcome: &Outcome<()>| outcome.clone().err();
    let budget = Budget { states: most.0, ..Budget::default() };
    let mut seen = HashSet::new();
    let mut bugs: Vec<(Bug, Crash)> = Vec::new();
    let mut stats = Stats::default();
    let mut crash = |explorer: &mut Explorer<'_, ()>, point: &Point, at: Moment, event: usize| {
        now.set(at);
        let mut left = most.0;
        stats.points += 1;
        let mut is_cut = point.states_log2() > (most.0 as f64).log2();
        let mut states: Vec<State> = Vec::new();
        plan::enumerate(point, &budget, &[], &mut |state| {
            stats.enumerated += 1;
            if !seen.insert((point.hash(&state), at.begun, at.returned)) {
                return;
            }
            is_cut |= left == 0;
            if left > 0 {
                left -= 1;
                states.push(state);
            }
        });
        if is_cut {
            stats.cut_points += 1;
            let unknown = 1.0 - states.len() as f64 / point.states_log2().exp2();
            stats.unknown_share_max = stats.unknown_share_max.max(unknown);
        }
        for state in states {
            stats.distinct += 1;
            stats.recovered += 1;
            let Err(what) = explorer.run(point, &state).1 else { continue };
            let all = lost::lost(trace, event, point, &state);
            let is_known = |(bug, _): &&mut (Bug, Crash)| {
                !bug.lost.is_empty() && lost::sites(&bug.lost).is_subset(&lost::sites(&all))
            };
            if let Some((bug, _)) = bugs.iter_mut().find(is_known) {
                bug.times += 1;
                continue;
            }
            let (state, what) = explorer.shrink(point, state, what, &wrong);
            let lost = lost::lost(trace, event, point, &state);
            let is_same = |(bug, _): &&mut (Bug, Crash)| {
                lost::is_same((&bug.lost, &bug.what), (&lost, &what))
            };
            match bugs.iter_mut().find(is_same) {
                Some((bug, _)) => bug.times += 1,
                None => {
                    let crash = Crash { semantics, event, state: show::name(point, &state) };
                    bugs.push((Bug { what, at, lost, times: 1 }, crash));
                }
            }
        }
    };
    at_each_point(trace, initial, semantics, budget, &distinct, &recover, &mut crash);
    (stats, bugs)
}

/// Returns the memory that a crash leaves.
///
/// # Errors
/// If the trace has no such crash.
pub fn image(trace: &Trace, initial: &[u8], crash: &Crash) -> Result<Vec<u8>, String> {
    let distinct = Distinct::default();
    let nothing = |_: &CrashImage| Ok(());
    let mut found = Err(format!("no crash point is before event {}", crash.event));
    let mut look = |explorer: &mut Explorer<'_, ()>, point: &Point, _: Moment, event: usize| {
        if event == crash.event {
            let state = show::parse(point, &crash.state);
            found = state
                .map(|state| explorer.image_of(point, &state))
                .ok_or_else(|| format!("{}: no such state before event {event}", crash.state));
        }
    };
    at_each_point(
        trace,
        initial,
        crash.semantics,
        Budget::default(),
        &distinct,
        &nothing,
        &mut look,
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two lines that are flushed together; the second names the first.
    const TRACE: &str = "keepstone-trace 1 0x80
0 begin 0
0 store 0x40 0700000000000000 list.c:5
0 store 0x0 0100000000000000 list.c:6
0 flush 0x0 128 list.c:7
0 fence list.c:7
0 end 0
";

    fn judge(now: Moment, image: Vec<u8>) -> Outcome<()> {
        let (is_named, is_there) = (image[0] == 1, image[0x40] == 7);
        match is_named && !is_there || now.returned == 1 && !is_named {
            true => Err("named, but not there".to_owned()),
            false => Ok(()),
        }
    }

    #[test]
    fn a_bug_is_one_crash_which_can_be_seen_again() {
        let trace: Trace = TRACE.parse().unwrap();
        let (stats, bugs) = find_bugs(&trace, &[0; 128], Semantics::ALL[0], StatesMax(64), &judge);
        let [(bug, crash)] = &bugs[..] else { panic!("{bugs:?}") };
        assert_eq!(bug.lost.len(), 1);
        assert_eq!(bug.lost[0].site, "list.c:5");
        assert!(stats.distinct >= 4 && stats.cut_points == 0, "{stats:?}");
        let again: Crash = crash.to_string().parse().unwrap();
        assert_eq!(&again, crash);
        let left = image(&trace, &[0; 128], &again).unwrap();
        assert_eq!((left[0], left[0x40]), (1, 0));
        let missing = Crash { event: 99, ..again.clone() };
        assert!(image(&trace, &[0; 128], &missing).is_err());
        let unknown = Crash { state: "only:7#1".to_owned(), ..again };
        assert!(image(&trace, &[0; 128], &unknown).is_err());
        assert!("adr 4".parse::<Crash>().is_err() && "x 4 only:".parse::<Crash>().is_err());
    }

    #[test]
    fn in_order_nothing_is_wrong() {
        let ordered = TRACE
            .replace("0 store 0x0 ", "0 flush 0x40 8 list.c:5\n0 fence list.c:5\n0 store 0x0 ");
        let trace: Trace = ordered.parse().unwrap();
        let (_, bugs) = find_bugs(&trace, &[0; 128], Semantics::ALL[0], StatesMax(64), &judge);
        assert!(bugs.is_empty(), "{bugs:?}");
    }

    #[test]
    fn a_small_number_of_states_is_a_cut() {
        let trace: Trace = TRACE.parse().unwrap();
        let sound = |_: Moment, _: Vec<u8>| Ok(());
        let (stats, _) = find_bugs(&trace, &[0; 128], Semantics::ALL[0], StatesMax(1), &sound);
        assert!(stats.cut_points > 0, "{stats:?}");
    }
}
