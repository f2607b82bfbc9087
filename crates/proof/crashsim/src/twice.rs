//! The power fails twice: in an operation that does not take effect, and in the one that follows.
//!
//! An operation that never took effect may leave stores where the next one stores: a line of an
//! inode whose number is reused, an entry, a redo record. Words of both must not combine to
//! something that neither stored. So all states are taken in which the first crash leaves each line
//! whole or not at all, and from which the earlier tree is recovered. From there the second
//! operation is recorded and crashed everywhere ([`crate::run`]).

use crate::explore::{Point, State};
use crate::image::CrashImage;
use crate::persist::{Persistency, Semantics};
use crate::plan;
use crate::run::{Base, CrashAt};
use crate::show;
use crate::target::Target;
use crate::trace::{Action, Trace};
use crate::workload::BRIM;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use vfs::script::Op;
use vfs::tree::{WalkError, tree};

/// Bases, the operation that does not take effect, and the one that follows: creations that get the
/// same inode number, entries in the same place, and commits by the same redo record.
pub const TWICE: [(&str, &str, &str); 6] = [
    ("tree", "mknod /n 259", "mknod /m 300"),
    ("worn", "mkdir /n", "create /m"),
    ("worn", "symlink /n 10", "mknod /n 259"),
    (BRIM, "create /n", "create /d/n"),
    ("tree", "rename /a /d/c", "rename /d/c /n"),
    ("tree", "write /a 100 200", "write /a 130 50"),
];

/// Lines of a crash point beyond this number persist together.
const LINES_MAX: usize = 6;

/// Two operations, and the state that a crash in the first has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twice {
    /// The first crash point.
    pub at: CrashAt,
    /// The state that it has left.
    pub state: String,
    /// The operation that has not taken effect.
    pub first: Op,
    /// The operation that follows.
    pub second: Op,
}

/// The form in replay lines: `POINT STATE OPERATION | OPERATION`; the crash point belongs to the
/// first operation.
impl fmt::Display for Twice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} | {}", self.at.nth, self.state, self.first, self.second)
    }
}

/// Parses the form in replay lines.
impl FromStr for Twice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || "two crashes have a point, a state and two operations with `|` between".to_owned();
        let (nth, rest) = text.split_once(' ').ok_or_else(bad)?;
        let (state, ops) = rest.split_once(' ').ok_or_else(bad)?;
        let (first, second) = ops.split_once(" | ").ok_or_else(bad)?;
        let op = |text: &str| text.parse::<Op>().map_err(|e| e.to_string());
        let at = CrashAt { op: 0, nth: nth.parse().map_err(|_| bad())? };
        Ok(Self { at, state: state.to_owned(), first: op(first)?, second: op(second)? })
    }
}

/// The result of a first crash, as a base of the second operation.
#[derive(Debug)]
pub struct Left {
    /// The crash and its state.
    pub twice: Twice,
    /// The pool.
    pub base: Base,
}

/// Returns all results of crashes in the first operation from which the earlier tree is recovered.
pub fn lefts<T: Target>(
    target: &T,
    base: &Base,
    (first, second): (&Op, &Op),
    semantics: Semantics,
) -> Result<Vec<Left>, String> {
    let recorded = base.record(target, std::slice::from_ref(first), 0, semantics)?;
    let walk = |e: WalkError| format!("walk: {e}");
    // With content, as an engine may leave half of that.
    let before = tree(&base.model()).map_err(walk)?;
    let is_undone = |left: &Base| {
        let image = CrashImage::of(left.bytes.clone());
        Ok::<_, String>(tree(&*target.mount(&image)?.fs).map_err(walk)? == before)
    };
    let (mut lefts, mut met) = (Vec::new(), HashSet::new());
    at_each_point(base, &recorded.trace, semantics, &mut |at, point, image| {
        for state in by_lines(point) {
            if !met.insert(point.hash(&state)) {
                continue;
            }
            let left = base.left(laid(image, point, &state));
            if is_undone(&left)? {
                let (state, first, second) =
                    (show::name(point, &state), first.clone(), second.clone());
                lefts.push(Left { twice: Twice { at, state, first, second }, base: left });
            }
        }
        Ok(())
    })?;
    Ok(lefts)
}

/// Returns the result of the first crash that `twice` names.
pub fn left<T: Target>(
    target: &T,
    base: &Base,
    twice: &Twice,
    semantics: Semantics,
) -> Result<Base, String> {
    let recorded = base.record(target, std::slice::from_ref(&twice.first), 0, semantics)?;
    let mut named = None;
    at_each_point(base, &recorded.trace, semantics, &mut |at, point, image| {
        if at == twice.at {
            let state = show::parse(point, &twice.state);
            let state = state.ok_or_else(|| format!("no state is `{}`", twice.state))?;
            named = Some(base.left(laid(image, point, &state)));
        }
        Ok(())
    })?;
    named.ok_or_else(|| format!("{} has no crash point {}", twice.first, twice.at.nth))
}

/// Returns the bytes of a state.
fn laid(image: &CrashImage, point: &Point, state: &[u16]) -> Vec<u8> {
    image.lay(&point.overlay(state), &[]);
    let bytes = image.bytes();
    image.reset();
    bytes
}

/// Returns the states in which each line persists whole or not at all.
fn by_lines(point: &Point) -> Vec<State> {
    let (none, all) = (point.extreme(false), point.extreme(true));
    let lines = plan::lines(point);
    let with = |set: u32| {
        let mut state = none.clone();
        for (i, line) in lines.iter().enumerate() {
            if set >> i.min(LINES_MAX - 1) & 1 != 0 {
                line.iter().for_each(|u| state[*u] = all[*u]);
            }
        }
        state
    };
    (0..1 << lines.len().min(LINES_MAX)).map(with).collect()
}

/// A function called at a crash point, whose durable bytes are in the image.
type AtPoint<'a> = dyn FnMut(CrashAt, &Point, &CrashImage) -> Result<(), String> + 'a;

/// Calls a function before each fence of the only operation of a trace.
fn at_each_point(
    base: &Base,
    trace: &Trace,
    semantics: Semantics,
    each: &mut AtPoint<'_>,
) -> Result<(), String> {
    let image = CrashImage::of(base.bytes.clone());
    let mut p = Persistency::over(semantics, base.initial.clone());
    let (mut begun, mut nth) = (false, 0);
    for event in &trace.events {
        match event.action {
            Action::Begin { .. } => begun = true,
            Action::End { .. } => return Ok(()),
            Action::Fence if begun => {
                each(CrashAt { op: 0, nth }, &Point::new(&p, p.units()), &image)?;
                nth += 1;
            }
            _ => {}
        }
        p.apply(trace, event);
        image.make_durable(&p.take_durable_words());
    }
    Ok(())
}
