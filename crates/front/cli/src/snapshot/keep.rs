//! Which snapshots to keep: a rule like `24h,7d`.
//!
//! A rule is a list of items, separated by commas. A snapshot stays if any item keeps it:
//!
//! | item | keeps |
//! |---|---|
//! | `N` | the N newest snapshots |
//! | `Nh` | of each of N hours, the newest snapshot |
//! | `Nd`, `Nw` | the same for days and for weeks, which begin on Mondays |
//!
//! Hours, days and weeks are those of UTC. Only those count that have a snapshot, the newest first.
//! So snapshots do not go because time passes, only because newer ones are there.

use std::collections::BTreeSet;
use std::str::FromStr;

const SECOND_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const DAY_NS: u64 = 24 * HOUR_NS;
/// 1970 began on a Thursday.
const MONDAY_NS: u64 = 3 * DAY_NS;

/// The unit of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A snapshot.
    Each,
    Hour,
    Day,
    Week,
}

impl Unit {
    /// Returns the number of the hour, day or week of a time; `None` if each snapshot counts.
    fn of(self, created_ns: u64) -> Option<u64> {
        match self {
            Self::Each => None,
            Self::Hour => Some(created_ns / HOUR_NS),
            Self::Day => Some(created_ns / DAY_NS),
            Self::Week => Some(created_ns.saturating_add(MONDAY_NS) / (7 * DAY_NS)),
        }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepRule(Vec<(usize, Unit)>);

impl FromStr for KeepRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let item = |item: &str| {
            let (number, unit) = match item.char_indices().last() {
                Some((at, 'h')) => (&item[..at], Unit::Hour),
                Some((at, 'd')) => (&item[..at], Unit::Day),
                Some((at, 'w')) => (&item[..at], Unit::Week),
                _ => (item, Unit::Each),
            };
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            match number.parse() {
                Ok(number) if is_number && number > 0 => Ok((number, unit)),
                _ => Err(format!(
                    "`{item}` is no item like 5 (the newest), 24h, 7d or 4w (one of each hour, day or week)"
                )),
            }
        };
        Ok(Self(text.split(',').map(item).collect::<Result<_, String>>()?))
    }
}

impl KeepRule {
    /// Returns which snapshots stay, given the times of creation of all.
    pub fn kept(&self, created_ns: &[u64]) -> Vec<bool> {
        let mut newest_first: Vec<usize> = (0..created_ns.len()).collect();
        newest_first.sort_by_key(|i| std::cmp::Reverse((created_ns[*i], *i)));
        let mut kept = vec![false; created_ns.len()];
        for (number, unit) in &self.0 {
            let mut seen = BTreeSet::new();
            let is_first = |i: &usize| unit.of(created_ns[*i]).is_none_or(|part| seen.insert(part));
            newest_first
                .iter()
                .copied()
                .filter(is_first)
                .take(*number)
                .for_each(|i| kept[i] = true);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(rule: &str, hours: &[u64]) -> Vec<u64> {
        let times: Vec<u64> = hours.iter().map(|hour| hour * HOUR_NS + 1).collect();
        let kept = rule.parse::<KeepRule>().unwrap().kept(&times);
        hours.iter().zip(kept).filter_map(|(hour, kept)| kept.then_some(*hour)).collect()
    }

    #[test]
    fn items_keep_by_number_and_age() {
        let all = [0, 1, 2, 25, 26, 49, 50, 51, 200];
        assert_eq!(kept("1", &all), [200]);
        assert_eq!(kept("3", &all), [50, 51, 200]);
        assert_eq!(kept("100", &all), all);
        assert_eq!(kept("2d", &all), [51, 200]);
        assert_eq!(kept("4d", &all), [2, 26, 51, 200]);
        assert_eq!(kept("4h,3d", &all), [26, 49, 50, 51, 200]);
        assert_eq!(kept("9d", &[]), [0; 0]);
        // Several in one hour: the newest stays, of those made at one moment the last in the list.
        assert_eq!("2h".parse::<KeepRule>().unwrap().kept(&[5, 5, 4]), [false, true, false]);
        // Sunday, 4 January 1970, and the Monday after it.
        assert_eq!(kept("9w", &[0, 95, 96, 200]), [95, 200]);
        assert_eq!(Unit::Week.of(u64::MAX), Unit::Week.of(u64::MAX - 1));
    }

    #[test]
    fn wrong_rules_are_refused() {
        let bad = ["", ",", "h", "0", "0h", "1,", "-1", "+1", "1.5d", "1 h", "1m", "d1", "1hh"];
        for rule in bad.into_iter().chain(["99999999999999999999", "\u{b2}d"]) {
            assert!(rule.parse::<KeepRule>().is_err(), "{rule}");
        }
    }
}
