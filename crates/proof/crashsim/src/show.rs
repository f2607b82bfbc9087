//! Shows a state to people: the words that persisted, those that did not, and their meaning.

use crate::explore::{Point, State};
use crate::image::CrashImage;
use crate::lost::Lost;
use crate::target::Target;

/// Lines of detail at most.
const LINES_MAX: usize = 24;

/// Returns the units in which a state differs from the one that lost nothing, and from the one that
/// lost everything.
fn differences(point: &Point, state: &[u16]) -> [Vec<usize>; 2] {
    [true, false].map(|all| {
        let from = point.extreme(all);
        (0..state.len()).filter(|u| state[*u] != from[*u]).collect()
    })
}

/// Returns a state as one word: `all-but` or `only` units, each by its first word and the index of
/// its content.
pub fn name(point: &Point, state: &[u16]) -> String {
    let [lost, kept] = differences(point, state);
    // The lost units explain more, unless there are many.
    const FEW: usize = 4;
    let (word, units) = match lost.len() <= kept.len().max(FEW) {
        true => ("all-but", &lost),
        false => ("only", &kept),
    };
    let unit = |u: &usize| format!("{:x}#{}", point.units()[*u].words[0] * 8, state[*u]);
    let named: Vec<String> = units.iter().map(unit).collect();
    format!("{word}:{}", named.join(","))
}

/// Returns a state as one word ([`name`]), and as lines that name the differences in the format's
/// own terms, with the source lines that stored the lost words.
pub fn state<T: Target>(
    target: &T,
    image: &CrashImage,
    point: &Point,
    state: &[u16],
    lost_words: &[Lost],
) -> (String, Vec<String>) {
    let [lost, kept] = differences(point, state);
    let all = point.extreme(true);
    image.lay(&point.overlay(&all), &[]);
    let bytes = image.bytes();
    image.reset();
    let mut detail = Vec::new();
    for u in lost.iter().chain(kept.iter().filter(|u| !lost.contains(u))) {
        let unit = &point.units()[*u];
        let values = |c: u16| &unit.contents[c as usize];
        for (i, w) in unit.words.iter().enumerate() {
            let (is, old, new) = (values(state[*u])[i], values(0)[i], values(all[*u])[i]);
            if old == new && is == new {
                continue;
            }
            let fate = match is {
                v if v == new => "persisted",
                v if v == old => "lost",
                _ => "between",
            };
            let stored = lost_words.iter().find(|lost| lost.addr == u64::from(*w) * 8);
            let stored = stored.map_or(String::new(), |lost| format!(", stored at {}", lost.site));
            detail.push(format!(
                "line {:#x}, word {:#x} ({}): {fate}: {old:#x} -> {new:#x}, found {is:#x}{stored}",
                w * 8 / 64 * 64,
                w * 8,
                target.describe(&bytes, *w)
            ));
        }
    }
    let more = detail.len().saturating_sub(LINES_MAX);
    detail.truncate(LINES_MAX);
    if more > 0 {
        detail.push(format!("… and {more} more words"));
    }
    (name(point, state), detail)
}

/// Returns the state that [`state`] named.
pub fn parse(point: &Point, text: &str) -> Option<State> {
    let (word, units) = text.split_once(':')?;
    let mut state = match word {
        "all-but" => point.extreme(true),
        "only" => point.extreme(false),
        _ => return None,
    };
    for named in units.split(',').filter(|u| !u.is_empty()) {
        let (at, content) = named.split_once('#')?;
        let at = u32::from_str_radix(at, 16).ok().filter(|at| at.is_multiple_of(8))?;
        let first = at / 8;
        let u = point.units().iter().position(|u| u.words[0] == first)?;
        let content: u16 = content.parse().ok()?;
        state[u] = Some(content).filter(|c| usize::from(*c) < point.units()[u].contents.len())?;
    }
    Some(state)
}
