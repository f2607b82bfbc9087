//! Caching by the kernel for a pool that programs may use by direct access. The kernel keeps
//! everything while no program uses the pool, and nothing otherwise.
//!
//! - **keeping-K1** An answer is right when it is made. A program that changes the facts waits
//!   until earlier answers have gone out.
//! - **keeping-K2** To end caching, the server lets names expire that the kernel knows, so that it
//!   asks again, and makes it drop attributes, listings and pages. Only then are programs that wait
//!   to use the pool let in (admission-A2 in `derived`). Names are not dropped: a directory in
//!   which a program works would lose its path, and mounts on one would be detached.
//! - **keeping-K3** An answer that has gone out may not have been processed, as the thread that
//!   receives it has to run first. For inodes that the kernel has, the kernel handles that itself;
//!   for all else the server repeats the notification a moment later.
//! - **keeping-K4** When caching begins again, the kernel may have pages from an earlier phase. The
//!   first opening of a file in a phase does not keep them.
//!
//! The server notifies the kernel to drop attributes only when caching ends. The kernel then
//! ignores the attributes in an answer under way and uses those that it has, which are right at
//! that moment. It has none of the root before its first answer. So if that answer has just gone
//! out, the server notifies the kernel of the root a moment later.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use mounts::MountEvents;

use crate::expire::Expirer;
use crate::names::{EntryName, Names, lock};
use crate::options::Caching;

/// Time without other users before the kernel keeps anything. Programs often run one after the
/// other, and ending the caching delays the first of them.
const LINGER: Duration = Duration::from_secs(3);
/// Period at which to check for other users.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time to sleep if nothing happens.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which notifications are repeated (keeping-K3).
const ONCE_MORE_AFTER: Duration = Duration::from_millis(100);
/// Time within which an answer is usually processed.
const TAKEN_IN_AFTER: Duration = Duration::from_millis(10);
/// Attempts to notify the kernel of an inode that it is about to have, a millisecond each.
const TRIES: u32 = 5;
/// Absent names that the kernel may keep.
const ABSENT_MAX: usize = 64 << 10;

/// Number of answers that are under way, in a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Answers(AtomicU32);

/// The phases of caching: whether the kernel keeps anything, and the answers under way in each
/// phase.
#[derive(Default)]
pub(crate) struct Keeping {
    /// Odd: the kernel keeps answers.
    phase: AtomicU32,
    answers: [Answers; 2],
    absent: Mutex<HashSet<EntryName>>,
    expirer: OnceLock<Expirer>,
    /// When the first answer with the root's attributes was made.
    root: OnceLock<Instant>,
}

/// The extent to which the kernel may keep an answer, held until the answer has gone out.
pub(crate) struct Now<'k> {
    caching: &'k Caching,
    answers: Option<&'k AtomicU32>,
    /// Number of the phase in which the answer is made: keeping and not keeping alternate.
    pub phase: u32,
}

impl Deref for Now<'_> {
    type Target = Caching;
    fn deref(&self) -> &Caching {
        self.caching
    }
}

impl Drop for Now<'_> {
    fn drop(&mut self) {
        if let Some(answers) = self.answers {
            answers.fetch_sub(1, SeqCst);
        }
    }
}

impl<'k> Now<'k> {
    /// Returns the extent for a mount whose pool only this mount uses.
    pub fn always(caching: &'k Caching) -> Self {
        Self { caching, answers: None, phase: 0 }
    }
}

impl Keeping {
    /// Allows caching: names can expire from now on, so the kernel may keep them.
    pub fn begin(&self, expirer: Expirer) {
        let _ = self.expirer.set(expirer);
    }

    /// Returns the extent to which the kernel may keep the next answer: `caching`, or nothing
    /// (keeping-K1).
    pub fn now<'k>(&'k self, caching: &'k Caching) -> Now<'k> {
        loop {
            let phase = self.phase.load(SeqCst);
            let answers = &self.answers[phase as usize % 2].0;
            answers.fetch_add(1, SeqCst);
            let caching = [&Caching::NONE, caching][phase as usize % 2];
            let now = Now { caching, answers: Some(answers), phase };
            if self.phase.load(SeqCst) == phase {
                return now;
            }
        }
    }

    /// Notes that an answer is about to carry the root's attributes.
    pub fn note_root(&self) {
        self.root.get_or_init(Instant::now);
    }

    /// Notes that the answer will be that there is no such name. `false`: the kernel may not keep
    /// that.
    pub fn note_absent(&self, parent: INodeNo, name: &OsStr) -> bool {
        let mut absent = lock(&self.absent);
        if absent.len() >= ABSENT_MAX {
            return false;
        }
        absent.insert((parent, name.to_owned()));
        true
    }

    fn keeps(&self) -> bool {
        self.phase.load(SeqCst) % 2 == 1
    }

    /// Begins the next phase, and waits until the answers of this one have gone out.
    fn go_over(&self) {
        let phase = self.phase.fetch_add(1, SeqCst);
        while self.answers[phase as usize % 2].0.load(SeqCst) != 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// The keeper of the phases: begins and ends caching, in the thread that notifies the kernel.
pub(crate) struct Keeper<'k> {
    keeping: &'k Keeping,
    names: &'k Names,
    events: &'k dyn MountEvents,
    notifier: &'k Notifier,
    /// When another user was there last.
    company: Option<Instant>,
    once_more: Option<OnceMore>,
}

/// Notifications to be repeated (keeping-K3).
struct OnceMore {
    due: Instant,
    absent: Vec<EntryName>,
    /// Inodes that the kernel did not have.
    missing: Vec<INodeNo>,
}

impl<'k> Keeper<'k> {
    pub fn new(
        (keeping, names): (&'k Keeping, &'k Names),
        events: &'k dyn MountEvents,
        notifier: &'k Notifier,
    ) -> Self {
        Self { keeping, names, events, notifier, company: None, once_more: None }
    }

    /// Begins or ends caching if it is time to. Returns the time to sleep, unless another user
    /// comes.
    pub fn look(&mut self) -> Duration {
        if self.keeping.expirer.get().is_none() {
            return PATIENCE;
        }
        let now = Instant::now();
        if let Some(again) = self.once_more.take_if(|again| again.due <= now) {
            self.expire_all(&again.absent);
            again.missing.iter().for_each(|ino| _ = self.drop_inode(*ino));
        }
        let has_company = self.events.has_company();
        if has_company {
            self.company = Some(now);
        }
        match self.keeping.keeps() {
            true if has_company => self.end(),
            false if self.company.is_none_or(|last| now - last >= LINGER) => self.start(),
            _ => {}
        }
        let patience = if self.keeping.keeps() { PATIENCE } else { LOOK_EVERY };
        let due = self.once_more.as_ref().map(|again| again.due.saturating_duration_since(now));
        due.map_or(patience, |due| due.min(patience))
    }

    /// Begins caching, if the pool's shared state allows it.
    fn start(&mut self) {
        match self.events.let_kernel_keep(true) {
            Ok(true) => {
                self.keeping.go_over();
                tracing::debug!("nobody else uses the pool: the kernel may keep what it is told");
            }
            Ok(false) => {}
            Err(err) => tracing::warn!("the kernel keeps nothing: {err}"),
        }
    }

    /// Ends caching: makes the kernel forget, then lets waiting programs use the pool (keeping-K2).
    /// Schedules the repetition (keeping-K3).
    fn end(&mut self) {
        self.keeping.go_over();
        let absent: Vec<_> = std::mem::take(&mut *lock(&self.keeping.absent)).into_iter().collect();
        self.expire_all(&absent);
        let missing = self.drop_all();
        if let Err(err) = self.events.let_kernel_keep(false) {
            tracing::error!("programs wait for the kernel to forget: {err}");
        }
        self.once_more = Some(OnceMore { due: Instant::now() + ONCE_MORE_AFTER, absent, missing });
        tracing::debug!("somebody else uses the pool: the kernel keeps nothing");
    }

    /// Makes the kernel ask again for all names (keeping-K2).
    fn expire_all(&self, absent: &[EntryName]) {
        let Some(expirer) = self.keeping.expirer.get() else { return };
        let expire = |(parent, name): &EntryName| expirer.expire(*parent, name);
        absent.iter().for_each(expire);
        self.names.for_each(&mut |_, names| names.iter().for_each(expire));
    }

    /// Makes the kernel drop all else. Returns the inodes that it did not have.
    fn drop_all(&self) -> Vec<INodeNo> {
        let mut missing = vec![];
        self.names.for_each(&mut |ino, _| {
            if !self.drop_inode(ino) {
                missing.push(ino);
            }
        });
        for _ in 0..TRIES {
            if missing.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            missing.retain(|ino| self.names.has(*ino) && !self.drop_inode(*ino));
        }
        if self.keeping.root.get().is_some_and(|told| told.elapsed() > TAKEN_IN_AFTER) {
            self.drop_inode(INodeNo::ROOT);
        } else {
            missing.push(INodeNo::ROOT);
        }
        missing
    }

    /// Makes the kernel drop an inode's attributes and pages; returns whether it has the inode.
    fn drop_inode(&self, ino: INodeNo) -> bool {
        match self.notifier.inval_inode(ino, 0, 0) {
            Err(err) if err.raw_os_error() == Some(libc::ENOENT) => false,
            Err(err) => {
                tracing::error!("the kernel may keep what it knows of inode {ino}: {err}");
                true
            }
            Ok(()) => true,
        }
    }
}
