//! Reads a trace (mod-B1, mod-B2).

use super::{
    Action, End, HAS_DATA, HAS_GAP, HAS_THREAD, HEADER, KIND, LEN_MAX, MAGIC, MemoryEvent,
    RECORD_HEAD_MAX, StoreWay, VERSION, kind, unzigzag,
};
use std::io::{self, Read};

/// Bytes of the buffer, without room for data.
const BUFFER: usize = 256 << 10;

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The input failed.
    #[error("cannot read the trace: {0}")]
    Io(#[from] io::Error),
    /// Another kind of file.
    #[error("not a memory trace: it does not begin with `KSTRACE`")]
    NotATrace,
    /// A version that this program does not know.
    #[error("a memory trace of version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// A record that does not follow the format.
    #[error("byte {offset}: {cause}")]
    Malformed {
        /// The offset of the record in the trace.
        offset: u64,
        /// The rule that it breaks.
        cause: &'static str,
    },
}

/// Reads a trace event by event.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    buffer: Vec<u8>,
    /// The bytes `at..end` of the buffer were read and not used.
    at: usize,
    end: usize,
    /// The offset in the trace at which the buffer begins.
    offset: u64,
    is_input_empty: bool,
    region_len: u64,
    thread: u16,
    addr: u64,
    events: u64,
    finished: Option<End>,
}

/// The bytes of a record, from its tag on. `None` stands for bytes that are missing.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, &'static str> {
        const CUT: &str = "the trace ends within a record";
        let first = self.byte().ok_or(CUT)?;
        if first < 0x80 {
            return Ok(first.into());
        }
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte().ok_or(CUT)?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number of more than 64 bits")
    }

    #[inline]
    fn number<T: TryFrom<u64>>(&mut self, cause: &'static str) -> Result<T, &'static str> {
        T::try_from(self.varint()?).map_err(|_| cause)
    }
}

/// A record without its data.
struct Head {
    event: MemoryEvent<'static>,
    /// Bytes of the record before the data.
    len: usize,
    /// Bytes of data.
    data: usize,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn new(input: R) -> Result<Self, TraceError> {
        let mut reader = Self {
            input,
            buffer: vec![0; BUFFER],
            at: 0,
            end: 0,
            offset: 0,
            is_input_empty: false,
            region_len: 0,
            thread: 0,
            addr: 0,
            events: 0,
            finished: None,
        };
        reader.fill(HEADER)?;
        let header = &reader.buffer[..reader.end.min(HEADER)];
        if !header.starts_with(&MAGIC) {
            return Err(TraceError::NotATrace);
        }
        if header.len() < HEADER {
            return Err(reader.malformed("the trace ends within its header"));
        }
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let version = word(8) as u32;
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        if word(8) >> 32 != 0 || word(24) != 0 {
            return Err(reader.malformed("reserved bytes of the header are not 0"));
        }
        reader.region_len = word(16);
        reader.at = HEADER;
        Ok(reader)
    }

    /// Returns the length of the region: no address is beyond it.
    pub fn region_len(&self) -> u64 {
        self.region_len
    }

    /// Returns the next event, or `None` at the end. Returns the same after an error or the end.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<MemoryEvent<'_>>, TraceError> {
        if self.end - self.at < RECORD_HEAD_MAX {
            self.fill(RECORD_HEAD_MAX)?;
        }
        if self.finished.is_some() {
            return Ok(None);
        }
        let Some(Head { mut event, len, data }) = self.head().map_err(|c| self.malformed(c))?
        else {
            return Ok(None);
        };
        if self.end - self.at < len + data {
            self.fill(len + data)?;
            if self.end - self.at < len + data {
                return Err(self.malformed("the trace ends within the data of a store"));
            }
        }
        self.thread = event.thread;
        if let Action::Load { addr, len }
        | Action::Store { addr, len, .. }
        | Action::Flush { addr, len } = event.action
        {
            self.addr = addr + u64::from(len);
        }
        self.events += 1;
        let start = self.at + len;
        self.at = start + data;
        if data > 0
            && let Action::Store { data: bytes, .. } = &mut event.action
        {
            *bytes = Some(&self.buffer[start..start + data]);
        }
        Ok(Some(event))
    }

    /// Returns the end record, once [`next_event`](Self::next_event) has returned `None`.
    pub fn finished(&self) -> Option<End> {
        self.finished
    }

    /// Decodes the next record up to its data. Consumes the end record only.
    #[inline]
    fn head(&mut self) -> Result<Option<Head>, &'static str> {
        let mut cursor = Cursor { bytes: &self.buffer[self.at..self.end], at: 0 };
        let tag = cursor.byte().ok_or("the trace ends without an end record")?;
        if tag & 0x80 != 0 {
            return Err("a tag with a reserved bit");
        }
        let is_store = matches!(tag & KIND, kind::STORE..=kind::LINE);
        if tag & HAS_DATA != 0 && !is_store {
            return Err("data of a record that stores nothing");
        }
        let thread = match tag & HAS_THREAD {
            0 => self.thread,
            _ => cursor.number("a thread of more than 16 bits")?,
        };
        let gap_ns = if tag & HAS_GAP == 0 { 0 } else { cursor.varint()? };
        let action = match tag & KIND {
            kind::END => {
                let end = End { events: cursor.varint()?, elapsed_ns: cursor.varint()? };
                if tag != kind::END || end.events != self.events {
                    return Err("the end record does not match the events before it");
                }
                let len = cursor.at;
                if self.at + len < self.end {
                    return Err("bytes follow the end record");
                }
                self.at += len;
                self.finished = Some(end);
                return Ok(None);
            }
            kind::FENCE => Action::Fence,
            kind::BARRIER => Action::Barrier,
            kind::BEGIN => Action::Begin { op: cursor.number("an operation beyond 2^32")? },
            kind::RETURN => Action::Return { op: cursor.number("an operation beyond 2^32")? },
            kind @ (kind::LOAD..=kind::FLUSH) => {
                let addr = self.addr.wrapping_add_signed(unzigzag(cursor.varint()?));
                let len = match kind {
                    kind::WORD => 8,
                    kind::LINE => 64,
                    _ => cursor.number("an access of more than 1 MiB")?,
                };
                if len == 0 || len > LEN_MAX {
                    return Err("an access of no bytes, or of more than 1 MiB");
                }
                if addr.checked_add(len.into()).is_none_or(|end| end > self.region_len) {
                    return Err("an access beyond the region");
                }
                let store = |way| Action::Store { way, addr, len, data: None };
                match kind {
                    kind::LOAD => Action::Load { addr, len },
                    kind::FLUSH => Action::Flush { addr, len },
                    kind::STORE => store(StoreWay::Cached),
                    kind::NT => store(StoreWay::PastCache),
                    kind::WORD if addr.is_multiple_of(8) => store(StoreWay::Word),
                    kind::LINE if addr.is_multiple_of(64) => store(StoreWay::Line),
                    _ => return Err("a word or line that is not aligned"),
                }
            }
            _ => return Err("a record of an unknown kind"),
        };
        let data = match action {
            Action::Store { len, .. } if tag & HAS_DATA != 0 => len as usize,
            _ => 0,
        };
        Ok(Some(Head { event: MemoryEvent { thread, gap_ns, action }, len: cursor.at, data }))
    }

    /// Reads until `need` bytes are in the buffer, or the input has no more.
    #[cold]
    fn fill(&mut self, need: usize) -> io::Result<()> {
        if self.is_input_empty {
            return Ok(());
        }
        self.buffer.copy_within(self.at..self.end, 0);
        self.offset += self.at as u64;
        self.end -= self.at;
        self.at = 0;
        if self.buffer.len() < need {
            self.buffer.resize(need, 0);
        }
        while self.end < need {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.is_input_empty = true;
                    break;
                }
                Ok(read) => self.end += read,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }

    #[cold]
    fn malformed(&self, cause: &'static str) -> TraceError {
        TraceError::Malformed { offset: self.offset + self.at as u64, cause }
    }
}
