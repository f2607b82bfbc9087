//! Whose a segment of a family is (family-F3, family-F4). Generic over atomics, so that the model checker runs it, too: it knows
//! fences, but no order of single accesses, hence the explicit ones.

use os::threads::atomic::Atomic;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The process of a segment that somebody is sweeping.
const SWEPT: u64 = u64::MAX;

/// Whose a segment is. Processes are numbers other than 0, moments too.
#[repr(C)]
#[derive(Default)]
pub struct Owner<W = AtomicU64> {
    /// The process; 0: free.
    who: W,
    /// Until when a child may inherit the segment (family-F4); 0: there is none.
    forking: W,
}

impl<W: Atomic<Value = u64>> Owner<W> {
    /// Takes a free segment for the process `own`.
    pub fn claim(&self, own: u64) -> bool {
        self.who.load(Relaxed) == 0 && self.who.compare_exchange(0, own, AcqRel, Relaxed).is_ok()
    }

    /// Whether it is that of the process `own`.
    pub fn is(&self, own: u64) -> bool {
        self.who.load(Acquire) == own
    }

    /// Whether it is free, or its process `is_dead`. While somebody sweeps it, that is not known.
    pub fn is_left(&self, is_dead: impl Fn(u64) -> bool) -> bool {
        let who = self.who.load(Acquire);
        who == 0 || who != SWEPT && is_dead(who)
    }

    /// Until then the segment stays if its process dies: that is about to fork.
    pub fn begin_fork(&self, until: u64) {
        self.forking.store(until, SeqCst);
    }

    /// The child has inherited, or there is none.
    pub fn end_fork(&self) {
        self.forking.store(0, SeqCst);
    }

    /// For a child of `parent`: whether the segment is still there to inherit, and stays so until then.
    pub fn is_there(&self, parent: u64, until: u64, fence: impl Fn(), give_way: impl Fn()) -> bool {
        self.begin_fork(until);
        // Pairs with that of who sweeps.
        fence();
        loop {
            match self.who.load(SeqCst) {
                // Who sweeps sees that we are here, or has not.
                SWEPT => give_way(),
                who => return who == parent,
            }
        }
    }

    /// Whether a child may come at the moment `now`.
    fn is_forking(&self, now: u64) -> bool {
        self.forking.load(SeqCst) > now
    }

    /// Takes the segment of a dead process that no child needs, for the caller to empty and [free](Self::free).
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
        // Whoever changes it sweeps.
        if self.who.compare_exchange(who, SWEPT, SeqCst, Relaxed).is_err() {
            return false;
        }
        fence();
        if self.is_forking(now()) {
            // The child has come just now.
            self.who.store(who, SeqCst);
            return false;
        }
        true
    }

    /// It is empty.
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

    /// A process that has died in a fork, and one that comes later.
    const PARENT: u64 = 7;
    const STRANGER: u64 = 8;
    const NOW: u64 = 5;
    const LATER: u64 = 10;

    /// A segment. Loom reports who inherits it while it is emptied or filled.
    #[derive(Default)]
    struct Segment {
        owner: Owner<AtomicU64>,
        content: UnsafeCell<()>,
        /// Whose that is.
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

    /// The parent has died in a fork that has lasted longer than anybody waits, or has not.
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
            // Whoever had it, it is free in the end, or a living process's.
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
