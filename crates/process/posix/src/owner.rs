//! The owner of a segment of a family (family-F3, family-F4).
//!
//! It is generic over atomics, so that the model checker runs it, too. The model checker knows
//! fences, but no order of single accesses, hence the explicit fences.

use os::threads::atomic::Atomic;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Value of [`Owner::who`] while a process sweeps the segment.
const SWEPT: u64 = u64::MAX;

/// The owner of a segment. Processes and moments are numbers other than 0.
#[repr(C)]
#[derive(Default)]
pub struct Owner<W = AtomicU64> {
    /// The process, or 0 for a free segment.
    who: W,
    /// The moment until which a child may inherit the segment (family-F4), or 0.
    forking: W,
}

impl<W: Atomic<Value = u64>> Owner<W> {
    /// Takes a free segment for the process `own`.
    pub fn claim(&self, own: u64) -> bool {
        self.who.load(Relaxed) == 0 && self.who.compare_exchange(0, own, AcqRel, Relaxed).is_ok()
    }

    /// Whether the segment belongs to the process `own`.
    pub fn is(&self, own: u64) -> bool {
        self.who.load(Acquire) == own
    }

    /// Whether the segment is free, or its process `is_dead`. Returns `false` while it is swept.
    pub fn is_left(&self, is_dead: impl Fn(u64) -> bool) -> bool {
        let who = self.who.load(Acquire);
        who == 0 || who != SWEPT && is_dead(who)
    }

    /// Keeps the segment until then, even if its process dies, because the process is about to
    /// fork.
    pub fn begin_fork(&self, until: u64) {
        self.forking.store(until, SeqCst);
    }

    /// Notes that the child has inherited, or does not exist.
    pub fn end_fork(&self) {
        self.forking.store(0, SeqCst);
    }

    /// Returns whether the segment of `parent` can still be inherited, and keeps it until then. For
    /// the child.
    pub fn is_there(&self, parent: u64, until: u64, fence: impl Fn(), give_way: impl Fn()) -> bool {
        self.begin_fork(until);
        // Pairs with the fence of `begin_sweep`.
        fence();
        loop {
            match self.who.load(SeqCst) {
                // A sweep is under way. It ends, or gives the segment back if it has seen this
                // child.
                SWEPT => give_way(),
                who => return who == parent,
            }
        }
    }

    /// Whether a child may come at the moment `now`.
    fn is_forking(&self, now: u64) -> bool {
        self.forking.load(SeqCst) > now
    }

    /// Takes the segment of a dead process that no child needs, for the caller to empty and
    /// [free](Self::free).
    pub fn begin_sweep(
        &self,
        now: impl Fn() -> u64,
        is_dead: impl Fn(u64) -> bool,
        fence: impl Fn(),
    ) -> bool {
        let who = self.who.load(Acquire);
        if who == 0 || who == SWEPT || self.is_forking(now()) || !is_dead(who) {
            return false;
        }
        // The process that makes this change sweeps.
        if self.who.compare_exchange(who, SWEPT, SeqCst, Relaxed).is_err() {
            return false;
        }
        fence();
        if self.is_forking(now()) {
            // The child has just come.
            self.who.store(who, SeqCst);
            return false;
        }
        true
    }

    /// Frees a segment that the caller has emptied.
    pub fn free(&self) {
        self.forking.store(0, Relaxed);
        self.who.store(0, Release);
    }
}

#[cfg(test)]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};
    use loom::thread;

    /// A process that has died in a fork.
    const PARENT: u64 = 7;
    const STRANGER: u64 = 8;
    const NOW: u64 = 5;
    const LATER: u64 = 10;

    /// A segment. Loom reports if a process inherits it while it is emptied or filled.
    #[derive(Default)]
    struct Segment {
        owner: Owner<AtomicU64>,
        content: UnsafeCell<()>,
        /// The process whose content it is.
        whose: std::sync::atomic::AtomicU64,
    }

    impl Segment {
        fn fill(&self, with: u64) {
            self.content.with_mut(|_| self.whose.store(with, Relaxed));
        }

        fn inherit(&self) {
            if self.owner.is_there(PARENT, LATER, || fence(SeqCst), thread::yield_now) {
                self.content.with(|_| assert_eq!(self.whose.load(Relaxed), PARENT));
                self.owner.end_fork();
            }
        }

        fn sweep(&self) {
            if self.owner.begin_sweep(|| NOW, |who| who == PARENT, || fence(SeqCst)) {
                self.fill(0);
                self.owner.free();
            }
        }

        fn claim(&self) {
            if self.owner.claim(STRANGER) {
                self.fill(STRANGER);
            }
        }
    }

    /// Explores a fork in which the parent has died. If `is_late`, it has lasted longer than the
    /// wait.
    fn explore(is_late: bool, others: &'static [fn(&Segment)]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(3);
        builder.check(move || {
            let segment = Arc::new(Segment::default());
            assert!(segment.owner.claim(PARENT));
            segment.fill(PARENT);
            segment.owner.begin_fork(if is_late { NOW } else { LATER });
            let others: Vec<_> = others
                .iter()
                .map(|act| {
                    let segment = segment.clone();
                    thread::spawn(move || act(&segment))
                })
                .collect();
            segment.sweep();
            segment.claim();
            others.into_iter().for_each(|other| other.join().unwrap());
            // In the end the segment is free, or belongs to a living process.
            segment.owner.end_fork();
            segment.sweep();
            assert!(segment.owner.claim(STRANGER) || segment.owner.is(STRANGER));
        });
    }

    #[test]
    fn a_child_inherits_what_nobody_sweeps() {
        explore(false, &[Segment::inherit]);
    }

    #[test]
    fn a_late_child_inherits_all_or_nothing() {
        explore(true, &[Segment::inherit]);
    }

    #[test]
    fn two_who_sweep() {
        explore(true, &[Segment::inherit, Segment::sweep]);
    }
}
