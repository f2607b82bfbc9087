//! Running a sequence on an implementation and on the model, and reporting where they differ.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::apply::{Handles, Outcome, apply};
use crate::model::Model;
use crate::script::{Op, Pos};
use crate::tree::{WalkError, diff, diff_nodes, node, subtree};
use crate::{Errno, FileSystem, Ino, Seek};

/// Calls between two comparisons of everything, in sequences longer than `SHORT`.
const CHECK_EVERY: usize = 16;
/// Sequences up to this length are compared after each call, so that one that was minimised still
/// fails.
const SHORT: usize = 64;

/// An implementation and the model, side by side.
pub(super) struct CompareSession<'a> {
    fs: &'a dyn FileSystem,
    root: Ino,
    handles: Handles,
    model: Model,
    model_handles: Handles,
}

impl<'a> CompareSession<'a> {
    /// Begins a session in `root` of `fs`, which is empty and owned by 0:0 with mode 0755.
    pub(super) fn new(fs: &'a dyn FileSystem, root: Ino) -> Self {
        let model = Model::with_limits(fs.limits());
        let model_handles = Handles::new(model.root());
        Self { fs, root, handles: Handles::new(root), model, model_handles }
    }

    /// Makes one call on both; returns how the results differ.
    pub(super) fn step(&mut self, op: &Op) -> Result<(), String> {
        let got = apply(self.fs, &mut self.handles, op);
        if got == Outcome::Failed(Errno::NOSPC) {
            self.follow_capability(op);
            return self.check().map_err(|what| format!("ENOSPC changed something: {what}"));
        }
        let place = match op {
            Op::SeekData(of, at) => self.place_in_model(of, *at, Seek::Data),
            Op::SeekHole(of, at) => self.place_in_model(of, *at, Seek::Hole),
            _ => None,
        };
        let want = apply(&self.model, &mut self.model_handles, op);
        let agree = match (place, seek_result(&got), seek_result(&want)) {
            (Some((ino, offset, whence)), Some(found), Some(_)) => {
                seek_is_right(&self.model, ino, offset, whence, found)
            }
            _ => got == want,
        };
        if agree { Ok(()) } else { Err(format!("got {got:?}, the model {want:?}")) }
    }

    /// Removes the file's capability in the model, too, if the implementation has removed it before
    /// the change failed for want of space (contract vfs-C5).
    fn follow_capability(&mut self, op: &Op) {
        let (tested, model) =
            (self.handles.driver(self.fs), self.model_handles.driver(&self.model));
        if model.is_capable(op) && !tested.is_capable(op) {
            model.revoke(op).expect("the model has one");
        }
    }

    fn place_in_model(&self, of: &str, at: Pos, whence: Seek) -> Option<(Ino, u64, Seek)> {
        let (ino, offset) = self.model_handles.driver(&self.model).locate(of, at)?;
        Some((ino, offset, whence))
    }

    /// Compares everything, including inodes held open.
    pub(super) fn check(&self) -> Result<(), String> {
        let text = |error: WalkError| error.to_string();
        let got = subtree(self.fs, self.root).map_err(text)?;
        let want = subtree(&self.model, self.model.root()).map_err(text)?;
        if let Some(diff) = diff(&got, &want) {
            return Err(format!("trees differ (left: tested, right: model):\n{diff}"));
        }
        let held = self.handles.held().iter().zip(self.model_handles.held());
        for (handle, (a, b)) in held.enumerate() {
            if let (Some(a), Some(b)) = (a, b) {
                let got = node(self.fs, *a).map_err(text)?;
                let want = node(&self.model, *b).map_err(text)?;
                if let Some(diff) = diff_nodes(&got, &want) {
                    return Err(format!("%{handle} differs (tested != model): {diff}"));
                }
            }
        }
        Ok(())
    }

    /// Gives back all references, and compares once more.
    pub(super) fn finish(mut self) -> Result<(), String> {
        self.check()?;
        self.handles.release(self.fs);
        self.model_handles.release(&self.model);
        self.check()
    }
}

/// Returns the result of a successful call of `seek`; `None` inside if it found nothing.
fn seek_result(outcome: &Outcome) -> Option<Option<u64>> {
    match outcome {
        Outcome::Number(found) => Some(Some(*found)),
        Outcome::Failed(Errno::NXIO) => Some(None),
        _ => None,
    }
}

/// Returns whether `found` is among the answers that the contract leaves to an engine.
fn seek_is_right(model: &Model, ino: Ino, offset: u64, whence: Seek, found: Option<u64>) -> bool {
    let size = model.getattr(ino).map_or(0, |attr| attr.size);
    let zeros = |from, to| first_nonzero(model, ino, from).is_none_or(|at| at >= to);
    match (found, whence) {
        (None, _) if offset >= size => true,
        (None, Seek::Data) => zeros(offset, size),
        (None, Seek::Hole) => false,
        (Some(data), Seek::Data) => (offset..size).contains(&data) && zeros(offset, data),
        (Some(hole), Seek::Hole) => {
            let end = (hole + 1).next_multiple_of(4096).min(size);
            offset < size && (offset..=size).contains(&hole) && (hole == size || zeros(hole, end))
        }
    }
}

/// Returns the offset of the first nonzero byte at or after `from`.
fn first_nonzero(model: &Model, ino: Ino, from: u64) -> Option<u64> {
    let mut at = from;
    let mut buf = [0; 4096];
    loop {
        at = model.seek(ino, at, Seek::Data).ok()?;
        let len = model.read(ino, at, &mut buf).ok()?;
        if let Some(i) = buf[..len].iter().position(|&b| b != 0) {
            return Some(at + i as u64);
        }
        at += len as u64;
    }
}

/// A sequence on which an implementation and the model differ.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the sequence, if [`gen_ops`](super::gen_ops) made it.
    pub seed: Option<u64>,
    /// The index of the call at which the difference showed.
    pub index: usize,
    /// The difference.
    pub message: String,
    /// The sequence.
    pub ops: Vec<Op>,
}

impl Failure {
    /// Returns the sequence up to the failure, as a script ([`crate::script::parse`]).
    pub fn script(&self) -> String {
        self.ops.iter().take(self.index + 1).map(|op| format!("{op}\n")).collect()
    }

    /// Leaves out calls as long as the rest still fails on file systems from `make` (delta
    /// debugging, Zeller 2002, by complements).
    pub fn minimise(mut self, make: impl Fn() -> Box<dyn FileSystem>) -> Self {
        self.ops.truncate(self.index + 1);
        let mut chunk = self.ops.len().div_ceil(2);
        while chunk > 0 {
            let mut start = 0;
            let before = self.ops.len();
            while start < self.ops.len() {
                let mut fewer = self.ops.clone();
                fewer.drain(start..(start + chunk).min(fewer.len()));
                match compare_checking(make().as_ref(), &fewer, 1) {
                    Err(failure) => {
                        let seed = self.seed;
                        self = Self { seed, ..failure };
                        self.ops.truncate(self.index + 1);
                    }
                    Ok(()) => start += chunk,
                }
            }
            if chunk > 1 || self.ops.len() == before {
                chunk /= 2;
            }
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.ops.get(self.index).map(Op::to_string);
        writeln!(f, "call {}: {}", self.index, call.unwrap_or_default())?;
        writeln!(f, "{}", self.message)?;
        if let Some(seed) = self.seed {
            writeln!(
                f,
                "rerun with KEEPSTONE_SEED={seed}, or KEEPSTONE_REPLAY=FILE with these lines:"
            )?;
        }
        f.write_str(&self.script())
    }
}

impl std::error::Error for Failure {}

/// Runs `ops` on `fs`, which is fresh, and on a fresh model. Each call must give the same result.
/// Everything must be equal every few calls (after every call if there are few) and at the end. A
/// call that panics fails. If `fs` has no space (`ENOSPC`), the call must have changed nothing, and
/// the model leaves it out.
pub fn compare(fs: &dyn FileSystem, ops: &[Op]) -> Result<(), Failure> {
    compare_checking(fs, ops, if ops.len() > SHORT { CHECK_EVERY } else { 1 })
}

/// Does the same as [`compare`], and compares everything after each `every` calls.
fn compare_checking(fs: &dyn FileSystem, ops: &[Op], every: usize) -> Result<(), Failure> {
    let mut session = CompareSession::new(fs, fs.root());
    let fail = |index, message| Failure { seed: None, index, message, ops: ops.to_vec() };
    for (index, op) in ops.iter().enumerate() {
        let step = catch(|| {
            session.step(op)?;
            if (index + 1) % every == 0 { session.check() } else { Ok(()) }
        });
        step.map_err(|message| fail(index, message))?;
    }
    catch(|| session.finish()).map_err(|message| fail(ops.len().saturating_sub(1), message))
}

/// Turns a panic into an error.
fn catch(call: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let text = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("panicked: {}", text.unwrap_or_default())
    };
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(text(panic)))
}
