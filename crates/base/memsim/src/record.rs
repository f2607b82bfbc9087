//! Records the accesses of a region as a trace.
//!
//! A recorder is an observer of the region ([`pmem::Observer`]), so engines run unmodified. The
//! order of its records is the order in which accesses begin. The time between the end of an access
//! and the beginning of the thread's next one counts as computation; the time of the recorder
//! itself counts neither.

use crate::trace::{Action, End, MemoryEvent, Writer};
use pmem::{Observed, Observer, StoreWay};
use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

thread_local! {
    /// This thread in the recorder that it used last.
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Here {
    recorder: u64,
    thread: u16,
    /// The end of the thread's last access.
    since: Instant,
}

static RECORDERS: AtomicU64 = AtomicU64::new(1);

/// Zeros, for stores of zeros.
const ZEROS: [u8; 4096] = [0; 4096];

type Output = Box<dyn Write + Send>;

/// A recorder of one region.
pub struct Recorder {
    id: u64,
    has_data: bool,
    is_abandoned: AtomicBool,
    state: Mutex<RecorderState>,
}

/// The output, until it fails or the recording ends.
struct RecorderState {
    output: Option<Output>,
    writer: Option<Writer<Output>>,
    threads: u16,
    error: Option<io::Error>,
    started: Instant,
    is_paused: bool,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Records to `output`: with the stored bytes, if `has_data`. The region is the first one that
    /// is opened with this observer.
    pub fn new(output: impl Write + Send + 'static, has_data: bool) -> Arc<Self> {
        let recorder = Self::paused(output, has_data);
        recorder.resume();
        recorder
    }

    /// As [`new`](Self::new), but records nothing before [`resume`](Self::resume).
    pub fn paused(output: impl Write + Send + 'static, has_data: bool) -> Arc<Self> {
        Arc::new(Self {
            id: RECORDERS.fetch_add(1, Relaxed),
            has_data,
            is_abandoned: AtomicBool::new(false),
            state: Mutex::new(RecorderState {
                output: Some(Box::new(output)),
                writer: None,
                threads: 0,
                error: None,
                started: Instant::now(),
                is_paused: true,
            }),
        })
    }

    /// Records from now on. The time of the run begins here.
    pub fn resume(&self) {
        let mut state = self.state();
        (state.is_paused, state.started) = (false, Instant::now());
    }

    /// Notes that this thread starts an operation.
    pub fn operation(&self, op: u32) {
        self.note(Action::Begin { op });
    }

    /// Notes that this thread's operation returns.
    pub fn returned(&self, op: u32) {
        self.note(Action::Return { op });
    }

    /// Ends the recording, and completes the trace. Later accesses are not recorded.
    ///
    /// # Errors
    /// The first error of the output, after which nothing was recorded; or that no region was
    /// opened.
    pub fn finish(&self) -> io::Result<End> {
        if self.is_abandoned.load(Relaxed) {
            return Err(io::Error::other("the recording is another process's"));
        }
        let mut state = self.state();
        let elapsed = state.started.elapsed().as_nanos() as u64;
        if let Some(err) = state.error.take() {
            return Err(err);
        }
        let writer = state.writer.take().ok_or_else(|| io::Error::other("nothing was recorded"))?;
        let (mut output, end) = writer.finish(elapsed)?;
        output.flush()?;
        Ok(end)
    }

    /// Records nothing more and leaves the output as it is: this process is a child that shares it
    /// with its parent. Takes no lock, which a thread of the parent may have held.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns this thread, and whether it is new.
    fn here(&self, state: &mut RecorderState) -> Here {
        match HERE.get() {
            Some(here) if here.recorder == self.id => here,
            _ => {
                let thread = state.threads;
                // More threads than a trace can tell apart share the last number.
                state.threads = thread.saturating_add(1);
                Here { recorder: self.id, thread, since: Instant::now() }
            }
        }
    }

    fn note(&self, action: Action<'_>) {
        if self.is_abandoned.load(Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut state = self.state();
        if state.is_paused {
            return;
        }
        let here = self.here(&mut state);
        let gap_ns = now.saturating_duration_since(here.since).as_nanos() as u64;
        state.push(&MemoryEvent { thread: here.thread, gap_ns, action });
        drop(state);
        HERE.set(Some(Here { since: Instant::now(), ..here }));
    }

    /// Notes an access that may be longer than a record can be.
    fn note_range(&self, off: u64, len: u64, data: Option<&[u8]>, action: &PartAction<'_>) {
        const STEP: u64 = 1 << 20;
        let mut at = 0;
        while at < len {
            let step = STEP.min(len - at);
            let data = data.map(|data| &data[at as usize..(at + step) as usize]);
            self.note(action(off + at, step as u32, data));
            at += step;
        }
    }

    /// Notes a store of zeros with its bytes.
    fn note_zeros(&self, off: u64, len: u64) {
        let mut at = 0;
        while at < len {
            let step = (len - at).min(ZEROS.len() as u64);
            let data = Some(&ZEROS[..step as usize]);
            let way = StoreWay::PastCache;
            self.note(Action::Store { way, addr: off + at, len: step as u32, data });
            at += step;
        }
    }

    fn note_store(&self, way: StoreWay, off: u64, len: u64, data: Option<&[u8]>) {
        let data = data.filter(|_| self.has_data);
        let part: &PartAction<'_> = &move |addr, len, data| Action::Store { way, addr, len, data };
        self.note_range(off, len, data, part);
    }
}

/// Makes the action of a part of an access, from its place, length and bytes.
type PartAction<'a> = dyn for<'d> Fn(u64, u32, Option<&'d [u8]>) -> Action<'d> + 'a;

impl RecorderState {
    /// Writes a record. After an error nothing more is written.
    fn push(&mut self, event: &MemoryEvent<'_>) {
        if let Some(writer) = &mut self.writer
            && let Err(err) = writer.push(event)
        {
            self.writer = None;
            self.error = Some(err);
        }
    }
}

impl Observer for Recorder {
    fn open(&self, len: u64) {
        let mut state = self.state();
        if let Some(output) = state.output.take() {
            state.writer = Some(Writer::new(output, len));
        }
    }

    fn begin(&self, access: &Observed<'_>) {
        let load = |off, len| {
            self.note_range(off, len, None, &|addr, len, _| Action::Load { addr, len });
        };
        match *access {
            Observed::Load { off, len } => load(off, len),
            Observed::Zero { off, len } if self.has_data => self.note_zeros(off, len),
            Observed::Zero { off, len } => self.note_store(StoreWay::PastCache, off, len, None),
            Observed::Store { way, off, len, data } => self.note_store(way, off, len, data),
            Observed::Copy { dst, src, len, data } => {
                load(src, len);
                self.note_store(StoreWay::PastCache, dst, len, data);
            }
            Observed::Flush { off, len } => {
                self.note_range(off, len, None, &|addr, len, _| Action::Flush { addr, len });
            }
            Observed::Fence => self.note(Action::Fence),
        }
    }

    fn end(&self) {
        if let Some(here) = HERE.get() {
            HERE.set(Some(Here { since: Instant::now(), ..here }));
        }
    }

    fn wants_data(&self) -> bool {
        self.has_data
    }
}
