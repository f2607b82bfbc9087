//! What was counted in all, and what is said of it.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use crate::{Class, Counts, Reason};

/// Below this share, the closing line says so, in percent.
const ENOUGH_PERCENT: u64 = 90;

/// Calls, and the bytes that they have moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub calls: u64,
    /// How much.
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, counts: &Counts) {
        self.calls += counts.calls.load(Relaxed);
        self.bytes += counts.bytes.load(Relaxed);
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            calls: sum.calls + one.calls,
            bytes: sum.bytes + one.bytes,
        })
    }
}

/// Calls of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Answered in user space.
    pub served: Tally,
    /// Made by the kernel, on what is in a pool.
    pub by_kernel: Tally,
    /// What the former took, in nanoseconds, where that was measured.
    pub served_ns: u64,
}

/// What all programs of a run have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// By [`Class`].
    pub classes: [Calls; Class::COUNT],
    /// What the kernel has made, by [`Reason`].
    pub reasons: [Tally; Reason::COUNT],
    /// Programs that did not load the library.
    pub unserved: u64,
}

impl Sums {
    /// What was served in user space.
    pub fn served(&self) -> Tally {
        self.classes.iter().map(|calls| calls.served).sum()
    }

    /// What went through the mount.
    pub fn by_kernel(&self) -> Tally {
        self.classes.iter().map(|calls| calls.by_kernel).sum()
    }

    /// One line that says how much was served in user space, why not all was, and what helps; `None` where it was enough.
    /// Calls that are left to the kernel because that is faster do not make it too little.
    pub fn closing_line(&self) -> Option<String> {
        let (served, all) = (self.served(), self.by_kernel());
        let meant = [Reason::FirstCalls, Reason::Direct];
        let few: Tally = meant.iter().map(|reason| self.reasons[*reason as usize]).sum();
        let is_enough =
            |served: u64, by_kernel: u64| 100 * served >= ENOUGH_PERCENT * (served + by_kernel);
        let is_served = is_enough(served.calls, all.calls - few.calls.min(all.calls))
            && is_enough(served.bytes, all.bytes - few.bytes.min(all.bytes));
        if is_served && self.unserved == 0 {
            return None;
        }
        let mut line = String::new();
        if all.calls > 0 {
            let calls = served.calls + all.calls;
            let _ = write!(
                line,
                "{} of {calls} calls and {} of {} bytes on pools were served in user space",
                served.calls,
                served.bytes,
                served.bytes + all.bytes
            );
        }
        if self.unserved > 0 {
            let programs = if self.unserved == 1 { "program" } else { "programs" };
            let and = if line.is_empty() { "" } else { "; " };
            let _ = write!(
                line,
                "{and}{} {programs} could not be served (statically linked, another libc, or set-user-ID)",
                self.unserved
            );
        }
        for (reason, tally) in Reason::ALL.into_iter().zip(&self.reasons) {
            if tally.calls > 0 && !meant.contains(&reason) {
                let _ = write!(line, "; {} calls: {}", tally.calls, reason.text());
                if !reason.remedy().is_empty() {
                    let _ = write!(line, " ({})", reason.remedy());
                }
            }
        }
        line.push_str("; `keepstone run --explain` lists them");
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_why_and_only_where_too_little_was_served() {
        let mut sums = Sums::default();
        assert_eq!(sums.closing_line(), None);
        let tally = |calls, bytes| Tally { calls, bytes };
        sums.classes[Class::Read as usize].served = tally(90, 900);
        sums.classes[Class::Read as usize].by_kernel = tally(10, 100);
        sums.reasons[Reason::NotDirect as usize] = tally(10, 100);
        assert_eq!(sums.closing_line(), None);
        sums.classes[Class::Read as usize].by_kernel = tally(10, 101);
        sums.reasons[Reason::NotDirect as usize] = tally(10, 101);
        let line = sums.closing_line().unwrap();
        assert_eq!(
            line,
            "90 of 100 calls and 900 of 1001 bytes on pools were served in user space; 10 calls: not mounted with -o \
             direct (unmount, and mount with `-o direct`); `keepstone run --explain` lists them"
        );
        // To leave these to the kernel is faster.
        sums.reasons = Default::default();
        sums.reasons[Reason::FirstCalls as usize] = tally(10, 101);
        assert_eq!(sums.closing_line(), None);
        sums.unserved = 2;
        assert!(sums.closing_line().unwrap().contains("2 programs could not be served"));
    }
}
