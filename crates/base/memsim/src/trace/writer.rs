//! Writes a trace.

use super::{
    Action, End, HAS_DATA, HAS_GAP, HAS_THREAD, HEADER, LEN_MAX, MAGIC, MemoryEvent, StoreWay,
    VERSION, kind, zigzag,
};
use std::io::{self, Write};

/// Bytes that are collected before they go to the output.
const BUFFER: usize = 64 << 10;

/// Writes events as a trace. [`Writer::finish`] completes it; without that, a reader reports the
/// place where the trace was cut off, after all its events.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    buffer: Vec<u8>,
    region_len: u64,
    thread: u16,
    /// The end of the last access.
    addr: u64,
    events: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a trace of accesses to a region of `region_len` bytes.
    pub fn new(output: W, region_len: u64) -> Self {
        let mut buffer = Vec::with_capacity(BUFFER + 64);
        buffer.extend_from_slice(&MAGIC);
        buffer.extend_from_slice(&VERSION.to_le_bytes());
        buffer.extend_from_slice(&0u32.to_le_bytes());
        buffer.extend_from_slice(&region_len.to_le_bytes());
        buffer.extend_from_slice(&0u64.to_le_bytes());
        debug_assert_eq!(buffer.len(), HEADER);
        Self { output, buffer, region_len, thread: 0, addr: 0, events: 0 }
    }

    /// Adds an event. An access of more than [`LEN_MAX`] bytes becomes several, which meet at
    /// multiples of that. One of no bytes is left out, with its time.
    ///
    /// # Panics
    /// If the access ends beyond the region, or its data has another length: bugs of the caller.
    pub fn push(&mut self, event: &MemoryEvent<'_>) -> io::Result<()> {
        let MemoryEvent { thread, gap_ns, action } = *event;
        match action {
            Action::Load { addr, len } => self.range(thread, gap_ns, kind::LOAD, addr, len, None),
            Action::Flush { addr, len } => self.range(thread, gap_ns, kind::FLUSH, addr, len, None),
            Action::Store { way, addr, len, data } => {
                let is_fixed = match way {
                    StoreWay::Cached | StoreWay::PastCache => true,
                    StoreWay::Word => len == 8 && addr.is_multiple_of(8),
                    StoreWay::Line => len == 64 && addr.is_multiple_of(64),
                };
                assert!(is_fixed, "{way:?} of {len} bytes at {addr}");
                let kind = match way {
                    StoreWay::Cached => kind::STORE,
                    StoreWay::Word => kind::WORD,
                    StoreWay::PastCache => kind::NT,
                    StoreWay::Line => kind::LINE,
                };
                self.range(thread, gap_ns, kind, addr, len, data)
            }
            Action::Fence => self.plain(thread, gap_ns, kind::FENCE, None),
            Action::Barrier => self.plain(thread, gap_ns, kind::BARRIER, None),
            Action::Begin { op } => self.plain(thread, gap_ns, kind::BEGIN, Some(op)),
            Action::Return { op } => self.plain(thread, gap_ns, kind::RETURN, Some(op)),
        }
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Passes on all events so far.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.write_all(&self.buffer)?;
        self.buffer.clear();
        self.output.flush()
    }

    /// Ends the trace of a run that took `elapsed_ns` (0: unknown).
    pub fn finish(mut self, elapsed_ns: u64) -> io::Result<(W, End)> {
        let end = End { events: self.events, elapsed_ns };
        self.buffer.push(kind::END);
        self.varint(end.events);
        self.varint(end.elapsed_ns);
        self.flush()?;
        Ok((self.output, end))
    }

    fn range(
        &mut self,
        thread: u16,
        gap_ns: u64,
        kind: u8,
        addr: u64,
        len: u32,
        data: Option<&[u8]>,
    ) -> io::Result<()> {
        let end = addr.checked_add(len.into()).filter(|end| *end <= self.region_len);
        assert!(end.is_some(), "{len} bytes at {addr} are not in {} bytes", self.region_len);
        assert!(data.is_none_or(|data| data.len() == len as usize));
        let (mut addr, mut left, mut data, mut gap_ns) = (addr, len, data, gap_ns);
        while left > 0 {
            let part = match left {
                ..=LEN_MAX => left,
                _ => LEN_MAX - (addr % u64::from(LEN_MAX)) as u32,
            };
            let (now, rest) = match data {
                Some(bytes) => {
                    let (now, rest) = bytes.split_at(part as usize);
                    (Some(now), Some(rest))
                }
                None => (None, None),
            };
            self.head(thread, gap_ns, kind | if now.is_some() { HAS_DATA } else { 0 });
            self.varint(zigzag(addr.wrapping_sub(self.addr) as i64));
            if !matches!(kind, kind::WORD | kind::LINE) {
                self.varint(part.into());
            }
            if let Some(now) = now {
                self.buffer.extend_from_slice(now);
            }
            (addr, left, data, gap_ns) = (addr + u64::from(part), left - part, rest, 0);
            self.addr = addr;
            self.count()?;
        }
        Ok(())
    }

    fn plain(&mut self, thread: u16, gap_ns: u64, kind: u8, op: Option<u32>) -> io::Result<()> {
        self.head(thread, gap_ns, kind);
        if let Some(op) = op {
            self.varint(op.into());
        }
        self.count()
    }

    fn head(&mut self, thread: u16, gap_ns: u64, kind: u8) {
        let has_thread = if thread == self.thread { 0 } else { HAS_THREAD };
        let has_gap = if gap_ns == 0 { 0 } else { HAS_GAP };
        self.buffer.push(kind | has_thread | has_gap);
        if has_thread != 0 {
            self.varint(thread.into());
            self.thread = thread;
        }
        if has_gap != 0 {
            self.varint(gap_ns);
        }
    }

    /// Counts an event, and empties the buffer if it is full.
    fn count(&mut self) -> io::Result<()> {
        self.events += 1;
        if self.buffer.len() >= BUFFER {
            self.output.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.buffer.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.buffer.push(number as u8);
    }
}
