//! Files that a process has the kernel open by inode number:
//! [`mounts::MountEvents::begin_opening`].
//!
//! - openings-O1: before a process asks the kernel to open a file, it announces the file in its own
//!   token. It takes the announcement back when the kernel knows the size. It does one opening at a
//!   time.
//! - openings-O2: the server takes the token before it reads the size for its answer. Suppose a
//!   process changes the size, or begins to map, and then finds no token of the inode: no answer
//!   with an older size can follow.
//! - openings-O3: no process waits for long: a killed process leaves a token without a meaning.
//! - openings-O4: the announcement is the permission. The server answers a ticket once, only to the
//!   thread that has announced it, and only for [`VALID`]. A ticket has 64 random bits, and its
//!   count, which no later ticket of the process has. The next process in the slot counts from the
//!   beginning. By then no process takes back tickets of the former one, and for answers the random
//!   bits decide. A process that waits may take an opening of the next process for one of the
//!   former. Then it waits for that, too, within its patience.

use arena::{Arena, Layout, Span, TOKEN_WORDS, Token};
use mounts::{Opening, Requester, Ticket};
use rustix::thread::{Timespec, nanosleep, sched_yield};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use vfs::{Errno, Ino, Result};

/// The longest time that users of the pool wait: far more than the kernel needs to act on an
/// answer.
pub const PATIENCE: Duration = Duration::from_millis(100);
/// The lifetime of an announcement (openings-O4): a slower server is asked again.
pub const VALID: Duration = Duration::from_secs(1);
/// The number of yields to other threads before sleeping.
const YIELDS: usize = 20;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// The state of a token: bits 1..33: the inode, if processes wait for it; bits 33..: the count of
/// the ticket.
const COUNT_SHIFT: u32 = 33;
const COUNT_MASK: u64 = (1 << 31) - 1;
/// Tickets: bits 96.. the slot of the process, 64..96 its count, below them random.
const SLOT_SHIFT: u32 = 96;

/// One token per process.
#[derive(Clone, Copy)]
pub struct Openings(Span<Token>);

impl Openings {
    /// Plans them.
    pub fn plan(l: &mut Layout, processes: usize) -> Self {
        Self(l.table(processes))
    }

    fn token<'a>(&self, arena: &'a Arena, ticket: Ticket) -> Option<&'a Token> {
        arena.table(self.0).get((ticket.0 >> SLOT_SHIFT) as usize)
    }

    /// Announces an opening (openings-O1).
    pub fn begin(
        &self,
        arena: &Arena,
        process: usize,
        opening: Opening,
        by: Requester,
        now: Duration,
    ) -> Result<Ticket> {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        // A count of 0 would mean no announcement.
        let count = COUNT.fetch_add(1, Relaxed) % COUNT_MASK + 1;
        let random = getrandom::u64().map_err(|_| Errno::IO)?;
        let place = (process as u128) << SLOT_SHIFT | u128::from(count) << 64;
        let inode = opening.ino.0 << 32 | u64::from(opening.generation);
        let words = [random, requester(by), inode, now.as_nanos() as u64];
        // No process waits for an opening whose size the kernel does not believe.
        let awaited = if opening.as_new { opening.ino } else { Ino(0) };
        arena.table(self.0)[process].announce(state(awaited, count), &words);
        Ok(Ticket(place | u128::from(random)))
    }

    /// Takes an announcement for the server's answer (openings-O2, openings-O4); returns the file.
    pub fn answer(
        &self,
        arena: &Arena,
        ticket: Ticket,
        by: Requester,
        now: Duration,
    ) -> Option<Opening> {
        let mut opened = 0;
        let is_it = |state: u64, words: &[u64; TOKEN_WORDS]| {
            opened = words[2];
            let age = (now.as_nanos() as u64).saturating_sub(words[3]);
            state >> COUNT_SHIFT == count(ticket)
                && words[0] == ticket.0 as u64
                && words[1] == requester(by)
                && u128::from(age) < VALID.as_nanos()
        };
        let state = self.token(arena, ticket)?.take(is_it)?;
        let as_new = inode(state) != 0;
        Some(Opening { ino: Ino(opened >> 32), generation: opened as u32, as_new })
    }

    /// Takes an opening back. Returns whether it was answered.
    pub fn end(&self, arena: &Arena, ticket: Ticket) -> bool {
        let is_its = |state: &u64| state >> COUNT_SHIFT == count(ticket);
        let announced = self.token(arena, ticket).and_then(|token| Some((token, token.state()?.0)));
        announced.filter(|(_, state)| is_its(state)).is_some_and(|(token, state)| token.end(state))
    }

    /// Takes back the opening of a dead process.
    pub fn forget_process(&self, arena: &Arena, process: usize) {
        arena.table(self.0)[process].clear();
    }

    /// Waits until all current openings of the inode have ended, or only those that are answered.
    /// Waits at most `patience` for each (openings-O3). Returns whether there were any.
    pub fn wait(&self, arena: &Arena, ino: Ino, only_answered: bool, patience: Duration) -> bool {
        let is_meant = |(state, is_answered): &(u64, bool)| {
            inode(*state) == ino.0 as u32 && (!only_answered || *is_answered)
        };
        let mut were_any = false;
        for token in arena.table(self.0) {
            let Some((first, _)) = token.state().filter(is_meant) else { continue };
            were_any = true;
            let started = Instant::now();
            let mut turns = 0..YIELDS;
            // A later opening, of any inode, has another state.
            while token.state().is_some_and(|(state, _)| state == first)
                && started.elapsed() < patience
            {
                match turns.next() {
                    Some(_) => sched_yield(),
                    None => drop(nanosleep(&NAP)),
                }
            }
        }
        were_any
    }
}

/// Returns the clock by which announcements expire: common to all processes of the pool, which are
/// in one time namespace.
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn requester(by: Requester) -> u64 {
    u64::from(by.thread) << 32 | u64::from(by.user)
}

fn state(ino: Ino, count: u64) -> u64 {
    count << COUNT_SHIFT | u64::from(ino.0 as u32) << 1
}

fn count(ticket: Ticket) -> u64 {
    (ticket.0 >> 64) as u64 & u64::from(u32::MAX)
}

fn inode(state: u64) -> u32 {
    (state >> 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// Longer than any machine keeps a thread from running.
    const FOR_EVER: Duration = Duration::from_secs(600);
    const INO: Ino = Ino(2);
    const OPENING: Opening = Opening { ino: INO, generation: 7, as_new: true };
    const BY: Requester = Requester { thread: 100, user: 5 };
    const NOW: Duration = Duration::from_secs(1000);

    fn begin(openings: Openings, arena: &Arena) -> Ticket {
        openings.begin(arena, 1, OPENING, BY, NOW).unwrap()
    }

    fn plan() -> (Openings, Arena) {
        let mut layout = Layout::default();
        let openings = Openings::plan(&mut layout, 3);
        (openings, Arena::anonymous(&layout).unwrap())
    }

    /// Waits for an opening that `end` ends meanwhile, and checks that the wait does not return
    /// earlier.
    fn wait_until(only_answered: bool, end: impl Fn(Openings, &Arena, Ticket) + Sync) {
        let (openings, arena) = &plan();
        let ticket = begin(*openings, arena);
        if only_answered {
            openings.answer(arena, ticket, BY, NOW).unwrap();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Most often the other thread waits by now; if not, it rightly finds nothing to
                // wait for.
                thread::sleep(Duration::from_millis(5));
                is_over.store(true, SeqCst);
                end(*openings, arena, ticket);
            });
            openings.wait(arena, INO, only_answered, FOR_EVER);
            assert!(is_over.load(SeqCst), "opening {ticket} is under way");
        });
    }

    #[test]
    fn an_opening_is_waited_for_until_it_ends() {
        wait_until(false, |openings, arena, ticket| assert!(!openings.end(arena, ticket)));
        wait_until(true, |openings, arena, ticket| assert!(openings.end(arena, ticket)));
        wait_until(true, |openings, arena, _| openings.forget_process(arena, 1));
    }

    #[test]
    fn the_next_opening_of_a_process_is_not_waited_for() {
        for only_answered in [false, true] {
            wait_until(only_answered, |openings, arena, ticket| {
                openings.end(arena, ticket);
                begin(openings, arena);
            });
        }
    }

    #[test]
    fn nobody_waits_for_what_a_dead_process_left_for_long() {
        let (openings, arena) = &plan();
        begin(*openings, arena);
        assert!(openings.wait(arena, INO, false, Duration::from_millis(1)));
        assert!(!openings.wait(arena, INO, true, FOR_EVER), "nobody has answered it");
        assert!(!openings.wait(arena, Ino(3), false, FOR_EVER));
        let looked_at = Opening { ino: Ino(4), as_new: false, ..OPENING };
        openings.begin(arena, 2, looked_at, BY, NOW).unwrap();
        assert!(!openings.wait(arena, Ino(4), false, FOR_EVER), "no size is believed");
    }

    /// openings-O4: an announcement is answered once, to its thread and user, in time.
    #[test]
    fn an_announcement_is_answered_once_and_to_nobody_else() {
        let (openings, arena) = &plan();
        let ticket = begin(*openings, arena);
        let answer = |ticket, by, now| openings.answer(arena, ticket, by, now);
        for other in [Requester { thread: 101, ..BY }, Requester { user: 0, ..BY }] {
            assert_eq!(answer(ticket, other, NOW), None, "{other:?}");
        }
        // Forged tickets with another secret, another count, and other slots: one without an
        // announcement, and one that does not exist.
        for bit in [0, 63, 64, 95, 96, 97, 127] {
            let forged = Ticket(ticket.0 ^ 1 << bit);
            assert_eq!(answer(forged, BY, NOW), None, "{forged}");
        }
        assert_eq!(answer(ticket, BY, NOW + VALID), None, "late");
        assert_eq!(answer(ticket, BY, NOW + VALID - Duration::from_nanos(1)), Some(OPENING));
        assert_eq!(answer(ticket, BY, NOW), None, "again");
        assert!(openings.end(arena, ticket));
        assert_eq!(answer(ticket, BY, NOW), None, "afterwards");
    }

    /// The count of a ticket does not tell two processes apart that have had the same slot.
    #[test]
    fn a_ticket_of_a_dead_process_is_not_one_of_the_next_in_its_slot() {
        let (openings, arena) = &plan();
        let first = begin(*openings, arena);
        openings.forget_process(arena, 1);
        let random = first.0 as u64 ^ 1;
        let inode = INO.0 << 32 | u64::from(OPENING.generation);
        let words = [random, requester(BY), inode, NOW.as_nanos() as u64];
        arena.table(openings.0)[1].announce(state(INO, count(first)), &words);
        assert_eq!(openings.answer(arena, first, BY, NOW), None);
        let second = Ticket(first.0 ^ 1);
        assert_eq!(openings.answer(arena, second, BY, NOW), Some(OPENING));
    }

    /// Announcements that were withdrawn, replaced or left by a dead process are not answered. A
    /// second withdrawal does not affect the next announcement.
    #[test]
    fn what_has_ended_is_not_answered() {
        let (openings, arena) = &plan();
        let answer = |ticket| openings.answer(arena, ticket, BY, NOW);
        let first = begin(*openings, arena);
        assert!(!openings.end(arena, first));
        let second = begin(*openings, arena);
        assert_ne!(first, second);
        assert_eq!(answer(first), None);
        assert!(!openings.end(arena, first));
        let third = begin(*openings, arena);
        assert_eq!(answer(second), None);
        assert_eq!(answer(third), Some(OPENING));
        let looked_at = Opening { as_new: false, ..OPENING };
        let other = openings.begin(arena, 2, looked_at, BY, NOW).unwrap();
        assert_eq!(answer(other), Some(looked_at));
        let fourth = begin(*openings, arena);
        openings.forget_process(arena, 1);
        assert_eq!(answer(fourth), None);
    }
}
