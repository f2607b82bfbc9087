//! Threads that answer requests, and the replacement of those that wait.
//!
//! A request may wait for long: for a store on the network, for the directory below a cache, for a
//! lock that a stopped process holds. It keeps its thread. So there are more threads than serve at
//! a time; the others are parked. A monitor checks all of them every [`TICK`], and unparks one for
//! each that is still at the same request.
//!
//! - **workers-W1** A request that does not wait is answered by the thread that took it from the
//!   kernel, without a lock.
//! - **workers-W2** No user can keep all threads waiting: a request is only begun while its user
//!   has fewer under way than there are threads left. Further ones are put off until a waiting one
//!   has ended; requests of other users continue meanwhile.
//! - **workers-W3** A thread is parked only while enough threads are left that have served before.
//!   When such a thread ends, the connection has ended, and all parked ones are released.
//! - **workers-W4** While a thread serves a request, engines know for which thread of which process
//!   ([`os::caller`]). If that was killed, a request that waits for a lock ends: the kernel keeps a
//!   killed process until its request has an answer. Requests of caches do not end so.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::Request;
use os::caller::{self, Serving};

use crate::server::Server;

/// Threads of a mount that may wait, in addition to those that serve.
pub(crate) const WAITING_MAX: usize = 64;
/// Period of the monitor: a thread counts as waiting after one to two ticks in one request.
const TICK: Duration = Duration::from_millis(10);
/// Ticks without a request before the monitor sleeps.
const QUIET_TICKS: u32 = 20;
/// Time that the monitor sleeps, unless a request wakes it.
const SLEEP: Duration = Duration::from_secs(60);
/// Threads that are unparked at once beyond those that serve, while more and more wait.
const GROWTH_MAX: usize = 16;
/// Requests of a user that can be put off, and the bytes in them.
const PUT_OFF_MAX: usize = 4096;
const PUT_OFF_BYTES_MAX: usize = 64 << 20;

/// A request that was put off.
type Job = Box<dyn FnOnce(&Server) + Send>;

/// The threads of a mount.
pub(crate) struct Workers {
    /// Number of threads that serve at a time.
    serving: usize,
    slots: Box<[WorkerSlot]>,
    state: Mutex<WorkersState>,
    unparked: Condvar,
    /// Wakes the monitor.
    awake: Condvar,
    is_asleep: AtomicBool,
    /// Whether more threads serve than should.
    is_surplus: AtomicBool,
    /// Whether a thread waits, or a request was put off.
    is_slow: AtomicBool,
}

/// The state of one thread.
#[derive(Default)]
#[repr(align(64))]
struct WorkerSlot {
    /// Odd while it has a request.
    count: AtomicU64,
    uid: AtomicU32,
    /// Set by the monitor: the request waits.
    waits: AtomicBool,
}

#[derive(Default)]
struct WorkersState {
    /// Slots that have a thread.
    threads: usize,
    parked: usize,
    waiting: usize,
    /// Number of parked threads that may continue.
    to_unpark: usize,
    put_off: HashMap<u32, PutOff>,
    has_ended: bool,
}

/// Requests of a user that were put off.
#[derive(Default)]
struct PutOff {
    jobs: VecDeque<(usize, Job)>,
    bytes: usize,
}

/// A thread's place in a mount.
struct Home {
    workers: Arc<Workers>,
    slot: usize,
    /// Whether it serves a request that was put off.
    is_again: Cell<bool>,
}

thread_local! {
    static HOME: RefCell<Option<Home>> = const { RefCell::new(None) };
}

/// Decision about a request.
pub(crate) enum Begin<'s> {
    /// Serve it while this is held.
    Now(Turn<'s>),
    /// [Put it off](Workers::put_off).
    Later,
    /// Refuse it: its user has too many already.
    Never,
}

/// A request that is served by this thread.
pub(crate) struct Turn<'s> {
    server: &'s Server,
    slot: usize,
    is_again: bool,
    _caller: Serving,
}

impl Workers {
    /// Lets the allocator map buffers of threads, and unmap them: `fuser` has 16 MiB for each, of
    /// which most is never touched. Once glibc has freed one, it would otherwise take them from its
    /// heaps, and clear them.
    pub fn prepare_allocator() {
        #[cfg(target_env = "gnu")]
        // SAFETY: takes two integers, and may be called at any time.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        }
    }

    /// Makes the state for `serving` threads that serve at a time.
    pub fn new(serving: usize) -> Arc<Self> {
        let slots = (0..serving + WAITING_MAX).map(|_| WorkerSlot::default()).collect();
        Arc::new(Self {
            serving,
            slots,
            state: Mutex::default(),
            unparked: Condvar::new(),
            awake: Condvar::new(),
            is_asleep: AtomicBool::new(false),
            is_surplus: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
        })
    }

    /// Returns the number of threads to start.
    pub fn threads(&self) -> usize {
        self.slots.len()
    }

    /// Begins a request; `bytes` is the memory it needs if it is put off.
    pub fn begin<'s>(
        self: &Arc<Self>,
        server: &'s Server,
        req: &Request,
        bytes: usize,
    ) -> Begin<'s> {
        let uid = req.uid();
        // workers-W4.
        let thread = req.pid();
        let turn = |slot, is_again| {
            Begin::Now(Turn { server, slot, is_again, _caller: caller::serve(thread) })
        };
        let Some((slot, is_again)) = self.home() else {
            // More threads than planned: this one has no slot.
            return turn(usize::MAX, true);
        };
        // workers-W1.
        if self.is_slow.load(Relaxed) && !is_again {
            let state = self.lock();
            if !self.admits(uid) {
                let has_room = state.put_off.get(&uid).is_none_or(|put_off| {
                    put_off.jobs.len() < PUT_OFF_MAX && put_off.bytes + bytes <= PUT_OFF_BYTES_MAX
                });
                return if has_room { Begin::Later } else { Begin::Never };
            }
        }
        let own = &self.slots[slot];
        own.uid.store(uid, Relaxed);
        own.count.fetch_add(1, SeqCst);
        if self.is_asleep.load(SeqCst) {
            let _state = self.lock();
            self.is_asleep.store(false, SeqCst);
            self.awake.notify_one();
        }
        turn(slot, is_again)
    }

    /// Keeps a request until another request of its user has ended.
    pub fn put_off(self: &Arc<Self>, server: &Server, uid: u32, bytes: usize, job: Job) {
        let mut state = self.lock();
        let put_off = state.put_off.entry(uid).or_default();
        put_off.bytes += bytes;
        put_off.jobs.push_back((bytes, job));
        self.note(&state);
        drop(state);
        // The last request of its user may have ended before it could see this one.
        if let Some((slot, _)) = self.home() {
            self.end(slot, server);
        }
    }

    /// Returns this thread's slot, and whether it serves a request that was put off.
    fn home(self: &Arc<Self>) -> Option<(usize, bool)> {
        HOME.with_borrow_mut(|home| {
            if home.as_ref().is_none_or(|home| !Arc::ptr_eq(&home.workers, self)) {
                let mut state = self.lock();
                let slot = state.threads;
                if slot >= self.slots.len() {
                    return None;
                }
                state.threads += 1;
                self.note(&state);
                drop(state);
                *home = Some(Home { workers: self.clone(), slot, is_again: Cell::new(false) });
            }
            home.as_ref().map(|home| (home.slot, home.is_again.take()))
        })
    }

    /// Whether another request of a user may begin (workers-W2).
    fn admits(&self, uid: u32) -> bool {
        let (mut own, mut all) = (0, 0);
        for slot in self.slots.iter().filter(|slot| slot.count.load(Relaxed) % 2 == 1) {
            all += 1;
            own += usize::from(slot.uid.load(Relaxed) == uid);
        }
        own < self.slots.len() - all
    }

    /// Ends the request of this thread's slot. Then serves requests that were put off and may begin
    /// now, in this thread. Parks the thread if more threads serve than should.
    fn end(&self, slot: usize, server: &Server) {
        let own = &self.slots[slot];
        while own.waits.load(SeqCst) || self.is_slow.load(SeqCst) {
            let mut state = self.lock();
            if own.waits.swap(false, SeqCst) {
                state.waiting -= 1;
            }
            let job = self.next_job(&mut state);
            self.note(&state);
            drop(state);
            let Some(job) = job else { break };
            HOME.with_borrow(|home| home.as_ref().map(|home| home.is_again.set(true)));
            job(server);
        }
        if self.is_surplus.load(Relaxed) {
            self.park();
        }
    }

    /// Takes a request that was put off and may begin now.
    fn next_job(&self, state: &mut WorkersState) -> Option<Job> {
        let uid = *state.put_off.keys().find(|uid| self.admits(**uid))?;
        let put_off = state.put_off.get_mut(&uid)?;
        let (bytes, job) = put_off.jobs.pop_front()?;
        put_off.bytes -= bytes;
        if put_off.jobs.is_empty() {
            state.put_off.remove(&uid);
        }
        Some(job)
    }

    /// Parks this thread until it is needed, if it is not needed now (workers-W3).
    fn park(&self) {
        let mut state = self.lock();
        if state.has_ended || state.active() <= self.serving {
            return;
        }
        state.parked += 1;
        self.note(&state);
        while state.to_unpark == 0 && !state.has_ended {
            state = self.unparked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.to_unpark = state.to_unpark.saturating_sub(1);
        state.parked -= 1;
        self.note(&state);
    }

    /// Updates the flags that threads read without the lock.
    fn note(&self, state: &WorkersState) {
        self.is_surplus.store(state.active() > self.serving && !state.has_ended, SeqCst);
        self.is_slow.store(state.waiting > 0 || !state.put_off.is_empty(), SeqCst);
    }

    /// Replaces threads that wait, until the connection has ended.
    pub fn monitor(&self) {
        let mut seen = vec![0; self.slots.len()];
        let (mut quiet, mut growth) = (0, 0);
        let mut state = self.lock();
        while !state.has_ended {
            // A request that begins meanwhile finds the flag, or the next look finds the request.
            self.is_asleep.store(quiet >= QUIET_TICKS, SeqCst);
            let (has_changed, new) = self.look(&mut state, &mut seen);
            quiet = if has_changed { 0 } else { quiet + 1 };
            if has_changed {
                self.is_asleep.store(false, SeqCst);
            }
            growth = if new == 0 { 0 } else { (2 * growth).clamp(1, GROWTH_MAX) };
            let missing = (self.serving + growth).saturating_sub(state.active());
            let missing = missing.min(state.parked - state.to_unpark);
            if missing > 0 && (new > 0 || state.active() < self.serving) {
                state.to_unpark += missing;
                self.unparked.notify_all();
            }
            self.note(&state);
            let time = if quiet > QUIET_TICKS { SLEEP } else { TICK };
            let waited = self.awake.wait_timeout(state, time);
            state = waited.map_or_else(|broken| broken.into_inner().0, |(state, _)| state);
        }
    }

    /// Finds requests that have not ended since the last look. Returns whether anything has
    /// changed, and the number of new ones.
    fn look(&self, state: &mut WorkersState, seen: &mut [u64]) -> (bool, usize) {
        let (mut has_changed, mut new) = (false, 0);
        for (slot, seen) in self.slots.iter().zip(seen) {
            let count = slot.count.load(SeqCst);
            if count != *seen {
                (*seen, has_changed) = (count, true);
            } else if count % 2 == 1 && !slot.waits.load(SeqCst) {
                slot.waits.store(true, SeqCst);
                // It may have ended before it could see that.
                if slot.count.load(SeqCst) == count || !slot.waits.swap(false, SeqCst) {
                    (has_changed, new) = (true, new + 1);
                    state.waiting += 1;
                }
            }
        }
        (has_changed, new)
    }

    /// Releases all threads, as the connection has ended.
    pub fn end_all(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        self.note(&state);
        self.unparked.notify_all();
        self.awake.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, WorkersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkersState {
    /// Returns the number of known threads that serve, including those that are about to be
    /// unparked.
    fn active(&self) -> usize {
        (self.threads + self.to_unpark).saturating_sub(self.parked + self.waiting)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let workers = &self.server.workers;
        if let Some(slot) = workers.slots.get(self.slot) {
            slot.count.fetch_add(1, SeqCst);
            // A thread that is serving a request that was put off continues in its own loop.
            if !self.is_again {
                workers.end(self.slot, self.server);
            }
        }
    }
}

impl Drop for Home {
    /// Releases the others when the thread ends (workers-W3).
    fn drop(&mut self) {
        self.workers.end_all();
    }
}

/// Parts of a request that are kept when it is put off.
pub(crate) trait Keep {
    type Kept;
    fn keep(&self) -> Self::Kept;
    fn bytes(&self) -> usize;
}

impl Keep for OsStr {
    type Kept = OsString;
    fn keep(&self) -> OsString {
        self.to_owned()
    }
    fn bytes(&self) -> usize {
        self.len()
    }
}

impl Keep for Path {
    type Kept = PathBuf;
    fn keep(&self) -> PathBuf {
        self.to_owned()
    }
    fn bytes(&self) -> usize {
        self.as_os_str().as_bytes().len()
    }
}

impl Keep for [u8] {
    type Kept = Vec<u8>;
    fn keep(&self) -> Vec<u8> {
        self.to_owned()
    }
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// The head of a request, which `fuser` only lends.
pub(crate) struct RequestHead(Request);

const _: () = assert!(!std::mem::needs_drop::<Request>());

impl Keep for Request {
    type Kept = RequestHead;
    fn keep(&self) -> RequestHead {
        // SAFETY: `Request` is `repr(transparent)` around `fuse_in_header`, which is integers. It
        // has nothing to drop (asserted above), so two of them own nothing twice.
        RequestHead(unsafe { std::ptr::read(self) })
    }
    fn bytes(&self) -> usize {
        0
    }
}

impl Deref for RequestHead {
    type Target = Request;
    fn deref(&self) -> &Request {
        &self.0
    }
}

/// Begins to serve a request, until the end of the method. If the request has to be put off, keeps
/// the values in brackets and calls the method again later.
macro_rules! begin {
    ($server:ident, $reply:ident, [$req:ident $(, $kept:ident)*], $method:ident ($($arg:expr),*)) => {
        let bytes = 0 $(+ crate::workers::Keep::bytes($kept))*;
        let _turn = match $server.workers.begin($server, $req, bytes) {
            crate::workers::Begin::Now(turn) => turn,
            crate::workers::Begin::Later => {
                let uid = $req.uid();
                let $req = crate::workers::Keep::keep($req);
                $(let $kept = crate::workers::Keep::keep($kept);)*
                let again = move |server: &Server| fuser::Filesystem::$method(server, $($arg),*);
                return $server.workers.put_off($server, uid, bytes, Box::new(again));
            }
            crate::workers::Begin::Never => return $reply.error(fuser::Errno::EAGAIN),
        };
    };
}
pub(crate) use begin;
