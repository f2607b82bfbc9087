//! Attributes the words that a crash state has lost to lines of source, so that verdicts on one bug
//! can be merged.

use crate::explore::Point;
use crate::trace::{Action, Trace};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A word with a store that did not persist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Its address, in bytes from the start of the region.
    pub addr: u64,
    /// The line of source that stored it last, as `file:line`.
    pub site: String,
}

/// Lists the words that `state` has lost, where the power fails before the event `until` of the
/// trace.
pub fn lost(trace: &Trace, until: usize, point: &Point, state: &[u16]) -> Vec<Lost> {
    let mut words: BTreeMap<u32, Option<u32>> = BTreeMap::new();
    for (unit, content) in point.units().iter().zip(state) {
        let values = unit.words.iter().zip(&*unit.contents[usize::from(*content)]);
        let wanted = &unit.contents[unit.all];
        let missing = values.zip(wanted).filter(|((_, is), all)| is != all);
        words.extend(missing.map(|((word, _), _)| (*word, None)));
    }
    let mut left = words.len();
    for event in trace.events[..until].iter().rev() {
        let Action::Store { addr, len, .. } = event.action else { continue };
        if left == 0 {
            break;
        }
        for (_, site) in words.range_mut(addr / 8..(addr + len).div_ceil(8)) {
            left -= usize::from(site.is_none());
            site.get_or_insert(event.site);
        }
    }
    let name = |site: Option<u32>| site.map_or("-".to_owned(), |s| trace.sites[s as usize].clone());
    words
        .into_iter()
        .map(|(word, site)| Lost { addr: u64::from(word) * 8, site: name(site) })
        .collect()
}

/// Returns the lines of source that stored lost words.
pub fn sites(lost: &[Lost]) -> BTreeSet<&str> {
    lost.iter().map(|lost| lost.site.as_str()).collect()
}

/// Whether two verdicts are on one bug. Each has its lost words and its message. Verdicts match if
/// the same lines stored the lost words, or if both lost nothing and the messages are equal.
pub fn is_same(one: (&[Lost], &str), other: (&[Lost], &str)) -> bool {
    match one.0.is_empty() && other.0.is_empty() {
        true => one.1 == other.1,
        false => sites(one.0) == sites(other.0),
    }
}
