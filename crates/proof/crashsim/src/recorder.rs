//! A medium that records all accesses.
//!
//! It wraps the memory that the program uses, so that only the medium changes and engines run
//! unmodified. Every store is also made in a shadow. At each fence the memory must equal the shadow
//! ([`Recorder::unrecorded`]); otherwise a store has bypassed the medium, and the trace is
//! worthless.
//!
//! A load is noted only if it meets a word that another operation has stored and not made durable.
//! For hardware with epochs, also every load of a line that another thread has stored to last.
//! Threads under a [`crate::schedule`]r give way to each other here.

use crate::pending::Pending;
use crate::persist::Semantics;
use crate::schedule;
use crate::trace::{Action, Event, StoreKind, Trace};
use pmem::{Counters, Domain, Fenced, Line, Medium};
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

thread_local! {
    /// This thread's number in the recorder it used last: `(recorder, number)`.
    static THREAD: Cell<(u64, u8)> = const { Cell::new((0, 0)) };
}

static RECORDERS: AtomicU64 = AtomicU64::new(1);

/// A recorder of accesses to the medium `M`. The trace does not contain the medium's content at the
/// start: an explorer needs that as well.
#[derive(Debug)]
pub struct Recorder<M> {
    inner: M,
    id: u64,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    trace: Trace,
    shadow: Vec<u8>,
    unrecorded: Option<u64>,
    pending: Pending,
    /// The thread that last stored to each line, if loads of others' lines are wanted.
    owners: Option<HashMap<u32, u8>>,
    /// The current operation of each thread.
    ops: Vec<u32>,
}

impl<M: Medium> Recorder<M> {
    /// Records accesses to `inner` from now on.
    pub fn new(inner: M) -> Self {
        let mut shadow = vec![0; inner.len() as usize];
        inner.read(0, &mut shadow);
        Self::over(inner, shadow)
    }

    fn over(inner: M, shadow: Vec<u8>) -> Self {
        let trace = Trace::new(inner.len());
        Self {
            inner,
            id: RECORDERS.fetch_add(1, Relaxed),
            log: Mutex::new(Log {
                trace,
                shadow,
                unrecorded: None,
                pending: Pending::default(),
                owners: None,
                ops: Vec::new(),
            }),
        }
    }

    /// Notes loads of lines that other threads have stored to as well, if these rules need them.
    pub fn under(self, semantics: Semantics) -> Self {
        self.log().owners = semantics.has_epochs().then(HashMap::new);
        self
    }

    /// Marks the start of an operation of this thread.
    pub fn begin(&self, op: u32) {
        self.mark(Action::Begin { op });
    }

    /// Marks the end of an operation of this thread.
    pub fn end(&self, op: u32) {
        self.mark(Action::End { op });
    }

    /// Marks the end of this thread ([`Action::Drain`]).
    #[track_caller]
    pub fn drain(&self) {
        self.note(&mut self.log(), Location::caller(), Action::Drain);
    }

    /// Ends the recording.
    pub fn into_trace(self) -> Trace {
        self.log.into_inner().expect("no recording thread panics").trace
    }

    /// Returns the wrapped medium. Accesses to it directly are not recorded.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// Returns the start of the first 4 KiB, if any, in which a fence found bytes that no recorded
    /// store explains.
    pub fn unrecorded(&self) -> Option<u64> {
        self.log().unrecorded
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no recording thread panics")
    }

    /// Returns this thread's number, from 0 in order of appearance.
    fn thread(&self, log: &mut Log) -> u8 {
        let (recorder, number) = THREAD.get();
        if recorder == self.id {
            return number;
        }
        let number = log.ops.len() as u8;
        log.ops.push(0);
        THREAD.set((self.id, number));
        number
    }

    /// Adds the start or end of an operation to the trace, after a step of the scheduler.
    fn mark(&self, action: Action) {
        schedule::step();
        let mut log = self.log();
        let thread = self.thread(&mut log);
        if let Action::Begin { op } = action {
            log.ops[usize::from(thread)] = op;
        }
        log.trace.events.push(Event { thread, site: 0, action });
    }

    /// Adds an access of this thread to the trace.
    fn note(&self, log: &mut Log, at: &Location<'_>, action: Action) {
        let thread = self.thread(log);
        let site = log.trace.site(at);
        let event = Event { thread, site, action };
        let op = log.ops[usize::from(thread)];
        log.pending.apply(&event, op);
        if let (Action::Store { addr, len, .. }, Some(owners)) = (action, &mut log.owners) {
            owners.extend((addr / 64..(addr + len).div_ceil(64)).map(|line| (line, thread)));
        }
        log.trace.events.push(event);
    }

    /// Notes a load of words that another operation has stored and that are not durable.
    fn load(&self, at: &Location<'_>, off: u64, len: usize) {
        let (addr, len) = (off as u32, len as u32);
        let mut log = self.log();
        if log.pending.within(addr, len).next().is_none() && log.owners.is_none() {
            return;
        }
        let thread = self.thread(&mut log);
        let me = (thread, log.ops[usize::from(thread)]);
        let is_others = log.owners.as_ref().is_some_and(|owners| {
            let owner = |line| owners.get(&line).is_some_and(|owner| *owner != thread);
            len > 0 && (addr / 64..(addr + len).div_ceil(64)).any(owner)
        });
        if is_others || log.pending.within(addr, len).any(|(_, w)| (w.thread, w.op) != me) {
            self.note(&mut log, at, Action::Load { addr, len });
        }
    }

    /// Stores under the log's lock, so that the trace has the same order as memory.
    fn store(
        &self,
        at: &Location<'_>,
        kind: StoreKind,
        addr: u64,
        data: &[u8],
        store: impl FnOnce(),
    ) {
        schedule::step();
        let mut log = self.log();
        store();
        log.shadow[addr as usize..addr as usize + data.len()].copy_from_slice(data);
        let action = Action::Store {
            kind,
            addr: addr as u32,
            len: data.len() as u32,
            data: log.trace.keep(data),
        };
        self.note(&mut log, at, action);
    }

    /// Compares memory with the shadow; notes the first page that differs.
    fn audit(&self, log: &mut Log) {
        const STEP: usize = 4096;
        for at in (0..log.shadow.len()).step_by(STEP) {
            let end = (at + STEP).min(log.shadow.len());
            if log.unrecorded.is_none() && !self.inner.equals(at as u64, &log.shadow[at..end]) {
                log.unrecorded = Some(at as u64);
            }
        }
    }
}

impl<M: Medium> Medium for Recorder<M> {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn domain(&self) -> Domain {
        self.inner.domain()
    }
    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
    #[track_caller]
    fn read(&self, off: u64, buf: &mut [u8]) {
        schedule::step();
        self.load(Location::caller(), off, buf.len());
        self.inner.read(off, buf);
    }
    #[track_caller]
    fn load_u64(&self, off: u64) -> u64 {
        self.load(Location::caller(), off, 8);
        self.inner.load_u64(off)
    }
    #[track_caller]
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.load(Location::caller(), off, bytes.len());
        self.inner.equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        let at = Location::caller();
        self.store(at, StoreKind::Plain, off, data, || self.inner.write(off, data));
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        let at = Location::caller();
        self.store(at, StoreKind::Nt, off, data, || self.inner.write_nt(off, data));
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        let at = Location::caller();
        let mut data = vec![0; len as usize];
        self.load(at, src, data.len());
        self.inner.read(src, &mut data);
        self.store(at, StoreKind::Nt, dst, &data, || self.inner.copy_nt(dst, src, len));
    }
    fn zero_nt(&self, off: u64, len: u64) {
        let at = Location::caller();
        let data = vec![0; len as usize];
        self.store(at, StoreKind::Nt, off, &data, || self.inner.zero_nt(off, len));
    }
    fn store_u64(&self, off: u64, value: u64) {
        let at = Location::caller();
        let data = value.to_le_bytes();
        self.store(at, StoreKind::Word, off, &data, || self.inner.store_u64(off, value));
    }
    fn stores_lines(&self) -> bool {
        self.inner.stores_lines()
    }
    fn store_line(&self, off: u64, line: &Line) {
        let at = Location::caller();
        self.store(at, StoreKind::Line, off, line, || self.inner.store_line(off, line));
    }
    fn flush(&self, off: u64, len: u64) {
        let at = Location::caller();
        schedule::step();
        self.inner.flush(off, len);
        let action = Action::Flush { addr: off as u32, len: len as u32 };
        self.note(&mut self.log(), at, action);
    }
    fn fence(&self) -> Fenced {
        let at = Location::caller();
        schedule::step();
        let fenced = self.inner.fence();
        let mut log = self.log();
        self.audit(&mut log);
        self.note(&mut log, at, Action::Fence);
        fenced
    }
}
