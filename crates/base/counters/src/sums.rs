//! The sums of counts, and the closing line about them.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use crate::{Class, ProcessCounts, Reason, ThreadCounts};

/// The share of served calls and bytes, in percent, below which there is a closing line.
const ENOUGH_PERCENT: u64 = 90;
/// The reasons for which calls are left to the kernel because that is faster.
const MEANT: [Reason; 2] = [Reason::FirstCalls, Reason::Direct];

/// Calls, and the bytes that they have moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of calls.
    pub calls: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl From<&ProcessCounts> for Tally {
    fn from(counts: &ProcessCounts) -> Self {
        Self { calls: counts.calls.load(Relaxed), bytes: counts.bytes.load(Relaxed) }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.bytes += other.bytes;
    }
}

impl std::iter::Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.for_each(|one| sum += one);
        sum
    }
}

/// Calls of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Answered in user space.
    pub served: Tally,
    /// Made by the kernel, on files in a pool.
    pub by_kernel: Tally,
    /// The time of served calls in nanoseconds, if it was measured.
    pub served_ns: u64,
}

/// Counts of all programs or of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// By [`Class`].
    pub classes: [Calls; Class::COUNT],
    /// Calls made by the kernel, by [`Reason`].
    pub reasons: [Tally; Reason::COUNT],
}

/// The counts of a program, in all its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramSums {
    /// The name as which it was executed, without directories; `others` for all programs without an
    /// entry.
    pub name: String,
    /// The number of its processes that have counted.
    pub processes: u64,
    /// Their counts.
    pub counted: Counted,
}

/// The counts of all programs of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// In all.
    pub all: Counted,
    /// By program: first those with the most calls through the mount; without those that have not
    /// used a pool.
    pub programs: Vec<ProgramSums>,
    /// The number of programs that did not load the library.
    pub unserved: u64,
}

impl Counted {
    /// Returns the calls served in user space.
    pub fn served(&self) -> Tally {
        self.classes.iter().map(|calls| calls.served).sum()
    }

    /// Returns the calls that went through the mount.
    pub fn by_kernel(&self) -> Tally {
        self.classes.iter().map(|calls| calls.by_kernel).sum()
    }

    /// Returns the calls that went through the mount, without those that go there because it is
    /// faster.
    fn missed(&self) -> Tally {
        let all = self.by_kernel();
        let meant: Tally = MEANT.iter().map(|reason| self.reasons[*reason as usize]).sum();
        Tally {
            calls: all.calls.saturating_sub(meant.calls),
            bytes: all.bytes.saturating_sub(meant.bytes),
        }
    }

    /// Returns the shares served in user space as text, such as `9 of 10 calls` and
    /// `90 of 91 bytes`.
    fn shares(&self) -> [String; 2] {
        let (served, by_kernel) = (self.served(), self.by_kernel());
        [
            format!("{} of {} calls", served.calls, served.calls + by_kernel.calls),
            format!("{} of {} bytes", served.bytes, served.bytes + by_kernel.bytes),
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, calls) in self.classes.iter_mut().zip(&other.classes) {
            sum.served += calls.served;
            sum.by_kernel += calls.by_kernel;
            sum.served_ns += calls.served_ns;
        }
        for (sum, tally) in self.reasons.iter_mut().zip(&other.reasons) {
            *sum += *tally;
        }
    }
}

impl From<&ThreadCounts> for Counted {
    fn from(counts: &ThreadCounts) -> Self {
        Self {
            classes: counts.classes.each_ref().map(|class| Calls {
                served: (&class.served).into(),
                by_kernel: (&class.by_kernel).into(),
                served_ns: class.served_ns.load(Relaxed),
            }),
            reasons: counts.reasons.each_ref().map(Tally::from),
        }
    }
}

impl Sums {
    /// Adds the counts of a program. A program may come twice, if two processes made an entry for
    /// it at once.
    pub(crate) fn add(&mut self, name: String, processes: u64, counted: Counted) {
        self.all.add(&counted);
        match self.programs.iter_mut().find(|program| program.name == name) {
            Some(same) => {
                same.processes += processes;
                same.counted.add(&counted);
            }
            None => self.programs.push(ProgramSums { name, processes, counted }),
        }
    }

    /// Removes empty programs and sorts the others. To be called when all are added.
    pub(crate) fn finish(&mut self) {
        self.programs.retain(|program| program.counted != Counted::default());
        self.programs.sort_by_key(|ProgramSums { counted, .. }| {
            Reverse((counted.missed().calls, counted.by_kernel().calls, counted.served().calls))
        });
    }

    /// Returns one line with the amount that was served in user space, the program with the worst
    /// share, the reason, and a remedy. `None` if enough was served; for that, calls that are left
    /// to the kernel because it is faster do not count.
    pub fn closing_line(&self) -> Option<String> {
        let (served, all, missed) = (self.all.served(), self.all.by_kernel(), self.all.missed());
        let is_enough =
            |served: u64, missed: u64| 100 * served >= ENOUGH_PERCENT * (served + missed);
        let calls_are_enough = is_enough(served.calls, missed.calls);
        let is_served = calls_are_enough && is_enough(served.bytes, missed.bytes);
        if is_served && self.unserved == 0 {
            return None;
        }
        let mut line = String::new();
        if all.calls > 0 {
            let [calls, bytes] = self.all.shares();
            let _ = write!(line, "{calls} and {bytes} on pools were served in user space");
            let worst = self.programs.iter().max_by_key(|program| {
                let missed = program.counted.missed();
                if calls_are_enough { missed.bytes } else { missed.calls }
            });
            if let Some(ProgramSums { name, counted, .. }) = worst.filter(|_| !is_served) {
                let _ = write!(line, "; served worst: {name} ({})", counted.shares().join(", "));
            }
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
        for (reason, tally) in Reason::ALL.into_iter().zip(&self.all.reasons) {
            if tally.calls > 0 && !MEANT.contains(&reason) {
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

    const fn tally(calls: u64, bytes: u64) -> Tally {
        Tally { calls, bytes }
    }

    /// Returns counts of reads: those served, and those made by the kernel for one reason.
    fn reads(served: Tally, by_kernel: Tally, reason: Reason) -> Counted {
        let mut counted = Counted::default();
        let read = &mut counted.classes[Class::Read as usize];
        (read.served, read.by_kernel) = (served, by_kernel);
        counted.reasons[reason as usize] = by_kernel;
        counted
    }

    fn sums(programs: &[(&str, Counted)]) -> Sums {
        let mut sums = Sums::default();
        for (name, counted) in programs {
            sums.add((*name).to_owned(), 1, counted.clone());
        }
        sums.finish();
        sums
    }

    #[test]
    fn the_line_says_why_and_only_where_too_little_was_served() {
        assert_eq!(Sums::default().closing_line(), None);
        let of = |by_kernel, reason| sums(&[("cat", reads(tally(90, 900), by_kernel, reason))]);
        assert_eq!(of(tally(10, 100), Reason::Exclusive).closing_line(), None);
        assert_eq!(
            of(tally(10, 101), Reason::Exclusive).closing_line().unwrap(),
            "90 of 100 calls and 900 of 1001 bytes on pools were served in user space; served worst: cat (90 of 100 calls, \
             900 of 1001 bytes); 10 calls: the mount has the pool for itself (unmount, and mount with `-o direct`); `keepstone run \
             --explain` lists them"
        );
        // These calls are faster by the kernel.
        let mut meant = of(tally(10, 101), Reason::FirstCalls);
        assert_eq!(meant.closing_line(), None);
        meant.unserved = 2;
        let line = meant.closing_line().unwrap();
        assert!(line.contains("2 programs could not be served") && !line.contains("worst"));
    }

    #[test]
    fn the_line_names_the_program_that_was_served_worst() {
        let none = tally(0, 0);
        let sums = sums(&[
            ("true", Counted::default()),
            ("dd", reads(tally(5, 5), tally(40, 1), Reason::Direct)),
            ("cat", reads(tally(50, 10), tally(20, 10), Reason::Libc)),
            ("sh", reads(none, tally(15, 4000), Reason::Libc)),
            // The second entry that two processes made for it at once.
            ("cat", reads(none, tally(1, 1), Reason::Libc)),
        ]);
        let names: Vec<_> = sums.programs.iter().map(|program| &*program.name).collect();
        assert_eq!(names, ["cat", "sh", "dd"]);
        assert_eq!((sums.programs[0].processes, sums.unserved), (2, 0));
        let line = sums.closing_line().unwrap();
        assert!(line.contains("; served worst: cat (50 of 71 calls, 10 of 21 bytes);"), "{line}");
        // Enough calls were served, but not enough bytes.
        let mut busy = sums;
        busy.add("ls".to_owned(), 1, reads(tally(1000, 0), none, Reason::Libc));
        let line = busy.closing_line().unwrap();
        assert!(line.contains("; served worst: sh (0 of 15 calls, 0 of 4000 bytes);"), "{line}");
    }
}
