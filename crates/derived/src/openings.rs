//! Files that processes have the kernel open by number: [`mounts::MountEvents::begin_opening`].
//!
//! - openings-O1: a process announces what it is having opened, in its own word, before it asks the kernel, and takes it back
//!   when the kernel knows the size. It does one at a time.
//! - openings-O2: the server marks the word before it looks at the size that it answers. So whoever changes the size, or has
//!   begun to map, and then finds no word of the inode, is not overtaken by an older answer.
//! - openings-O3: nobody waits for long: who was killed meanwhile leaves a word that means nothing.

use arena::{Arena, Layout, Span};
use rustix::process::getpid;
use rustix::thread::{Timespec, nanosleep, sched_yield};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use vfs::Ino;

/// The longest that a pool's users wait: far more than the kernel takes to act on an answer that it has.
pub const PATIENCE: Duration = Duration::from_millis(100);
/// How often to let others run before sleeping.
const YIELDS: usize = 20;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Bit 0 of a word: answered; bits 1..33: the inode; bits 33..: the count of the ticket.
const ANSWERED: u64 = 1;
const COUNT_MASK: u64 = (1 << 31) - 1;
/// Tickets: bits 55.. the slot of the process, 32..55 its number, below them a count.
const SLOT_SHIFT: u32 = 55;

/// One word per process, where there may be several.
#[derive(Clone, Copy)]
pub struct Openings(Option<Span<AtomicU64>>);

impl Openings {
    /// Plans them; `processes` is 0 where there is but one.
    pub fn plan(l: &mut Layout, processes: usize) -> Self {
        Self((processes > 0).then(|| l.table(processes)))
    }

    fn words<'a>(&self, arena: &'a Arena) -> &'a [AtomicU64] {
        self.0.map_or(&[], |words| arena.table(words))
    }

    fn word<'a>(&self, arena: &'a Arena, ticket: u64) -> Option<&'a AtomicU64> {
        self.words(arena).get((ticket >> SLOT_SHIFT) as usize)
    }

    /// Announces an opening (openings-O1). The ticket is that of no other.
    pub fn begin(&self, arena: &Arena, process: usize, ino: Ino) -> u64 {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let pid = getpid().as_raw_nonzero().get() as u64 & 0x7f_ffff;
        let count = COUNT.fetch_add(1, Relaxed) & COUNT_MASK;
        let ticket = (process as u64) << SLOT_SHIFT | pid << 32 | count;
        if let Some(word) = self.word(arena, ticket) {
            word.store(asked(ino, ticket), SeqCst);
        }
        ticket
    }

    /// The server is about to answer (openings-O2). What nobody announced is passed over.
    pub fn answer(&self, arena: &Arena, ino: Ino, ticket: u64) {
        if let Some(word) = self.word(arena, ticket) {
            let asked = asked(ino, ticket);
            let _ = word.compare_exchange(asked, asked | ANSWERED, SeqCst, Relaxed);
        }
    }

    /// Takes an opening back.
    pub fn end(&self, arena: &Arena, ticket: u64) {
        if let Some(word) = self.word(arena, ticket) {
            word.store(0, Release);
        }
    }

    /// Takes back what a dead process has left.
    pub fn forget_process(&self, arena: &Arena, process: usize) {
        if let Some(word) = self.words(arena).get(process) {
            word.store(0, Release);
        }
    }

    /// Waits until openings of the inode have ended that are under way, or only those that are answered, for each of them at
    /// most `patience` (openings-O3). Whether there were any.
    pub fn wait(&self, arena: &Arena, ino: Ino, only_answered: bool, patience: Duration) -> bool {
        let is_meant = |found: u64| {
            found != 0 && inode(found) == ino.0 as u32 && (!only_answered || found & ANSWERED != 0)
        };
        let mut were_any = false;
        for word in self.words(arena) {
            let first = word.load(SeqCst);
            if !is_meant(first) {
                continue;
            }
            were_any = true;
            let started = Instant::now();
            let mut turns = 0..YIELDS;
            // The next one, of whatever inode, is not this one any more.
            while word.load(SeqCst) | ANSWERED == first | ANSWERED && started.elapsed() < patience {
                match turns.next() {
                    Some(_) => sched_yield(),
                    None => drop(nanosleep(&NAP)),
                }
            }
        }
        were_any
    }
}

fn asked(ino: Ino, ticket: u64) -> u64 {
    (ticket & COUNT_MASK) << 33 | u64::from(ino.0 as u32) << 1
}

fn inode(word: u64) -> u32 {
    (word >> 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// Longer than any machine keeps a thread from running.
    const FOR_EVER: Duration = Duration::from_secs(600);
    const INO: Ino = Ino(2);

    fn plan() -> (Openings, Arena) {
        let mut layout = Layout::default();
        let openings = Openings::plan(&mut layout, 3);
        (openings, Arena::anonymous(&layout).unwrap())
    }

    /// Waits for an opening that `end` ends meanwhile, and is not back before.
    fn wait_until(only_answered: bool, end: impl Fn(Openings, &Arena, u64) + Sync) {
        let (openings, arena) = &plan();
        let ticket = openings.begin(arena, 1, INO);
        if only_answered {
            openings.answer(arena, INO, ticket);
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Most often the other waits by now; it is right to find nothing else.
                thread::sleep(Duration::from_millis(5));
                is_over.store(true, SeqCst);
                end(*openings, arena, ticket);
            });
            openings.wait(arena, INO, only_answered, FOR_EVER);
            assert!(is_over.load(SeqCst), "opening {ticket:x} is under way");
        });
    }

    #[test]
    fn an_opening_is_waited_for_until_it_ends() {
        wait_until(false, |openings, arena, ticket| openings.end(arena, ticket));
        wait_until(true, |openings, arena, ticket| openings.end(arena, ticket));
        wait_until(true, |openings, arena, _| openings.forget_process(arena, 1));
    }

    #[test]
    fn the_next_opening_of_a_process_is_not_waited_for() {
        for only_answered in [false, true] {
            wait_until(only_answered, |openings, arena, ticket| {
                openings.end(arena, ticket);
                openings.begin(arena, 1, INO);
            });
        }
    }

    #[test]
    fn nobody_waits_for_what_a_dead_process_left_for_long() {
        let (openings, arena) = &plan();
        openings.begin(arena, 1, INO);
        assert!(openings.wait(arena, INO, false, Duration::from_millis(1)));
        assert!(!openings.wait(arena, INO, true, FOR_EVER), "nobody has answered it");
        assert!(!openings.wait(arena, Ino(3), false, FOR_EVER));
    }
}
