//! What the kernel keeps of a pool that programs may use beside the mount: everything while none of them does, nothing else.
//!
//! - **keeping-K1** An answer says what holds when it is made, and who changes that waits until answers made before have gone out.
//! - **keeping-K2** To end it, names that the kernel knows expire, so that it asks again; attributes, listings and pages it drops.
//!   Only then those who wait to use the pool are let in (admission-A2 in `derived`). Names are not dropped: a directory that a
//!   program works in would lose its path, and what is mounted on one would go with it.
//! - **keeping-K3** An answer that has gone out may not have been taken in, as the thread that gets it has to run first. For
//!   inodes that the kernel has, it sees to that itself; all else is told once more a moment later.
//! - **keeping-K4** When it begins again, pages may be left from before. Whoever opens a file first since then does not keep them.
//!
//! The kernel is told to drop attributes only when it ends: of an answer that is under way then it takes none, and goes by those
//! that it has. At that moment these are right; but for the root, of which it has none before its first answer. So that is left
//! to be told a moment later, too, where the first answer has just gone out.

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

/// How long nobody else has to be there before the kernel keeps anything: programs come one after the other, and to end it
/// takes the first of them some time.
const LINGER: Duration = Duration::from_secs(3);
/// How often to look whether anybody is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to sleep where nothing happens.
const PATIENCE: Duration = Duration::from_secs(60);
/// When the kernel is told once more (keeping-K3).
const ONCE_MORE_AFTER: Duration = Duration::from_millis(100);
/// How long an answer may take to be taken in, mostly.
const TAKEN_IN_AFTER: Duration = Duration::from_millis(10);
/// How often to tell of an inode that the kernel is about to have, a millisecond each.
const TRIES: u32 = 5;
/// Absent names that the kernel may keep.
const ABSENT_MAX: usize = 64 << 10;

/// Answers that are on their way, in a line of their own.
#[derive(Default)]
#[repr(align(64))]
struct Answers(AtomicU32);

/// Whether the kernel keeps anything.
#[derive(Default)]
pub(crate) struct Keeping {
    /// Odd: it does.
    phase: AtomicU32,
    answers: [Answers; 2],
    absent: Mutex<HashSet<EntryName>>,
    expirer: OnceLock<Expirer>,
    /// When the kernel was told the root's attributes first.
    root: OnceLock<Instant>,
}

/// What the kernel may keep of an answer, until that has gone out.
pub(crate) struct Now<'k> {
    caching: &'k Caching,
    answers: Option<&'k AtomicU32>,
    /// Which time it is that the kernel keeps something, or that it does not.
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
    /// Of a mount whose pool nobody else uses.
    pub fn always(caching: &'k Caching) -> Self {
        Self { caching, answers: None, phase: 0 }
    }
}

impl Keeping {
    /// Names can expire from now on, so the kernel may keep them.
    pub fn begin(&self, expirer: Expirer) {
        let _ = self.expirer.set(expirer);
    }

    /// What it may keep of the answer that is about to be made: as much as `caching`, or nothing (keeping-K1).
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

    /// Notes that the kernel is about to be told the root's attributes.
    pub fn note_root(&self) {
        self.root.get_or_init(Instant::now);
    }

    /// Notes that the kernel is about to be told that there is no such name. `false`: it may not keep that.
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

    /// Goes over to the next phase, and waits until the answers of this one have gone out.
    fn go_over(&self) {
        let phase = self.phase.fetch_add(1, SeqCst);
        while self.answers[phase as usize % 2].0.load(SeqCst) != 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Who begins and ends it: the thread that tells the kernel what to forget.
pub(crate) struct Keeper<'k> {
    keeping: &'k Keeping,
    names: &'k Names,
    events: &'k dyn MountEvents,
    notifier: &'k Notifier,
    /// When somebody else was there last.
    company: Option<Instant>,
    once_more: Option<OnceMore>,
}

/// What the kernel is told once more (keeping-K3).
struct OnceMore {
    due: Instant,
    absent: Vec<EntryName>,
    /// Inodes that it did not have.
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

    /// Begins it or ends it, where it is time for that. How long to sleep, unless somebody comes.
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

    /// Makes it drop all else. Which inodes it did not have.
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

    /// Whether the kernel has the inode, whose attributes and pages it drops then.
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
