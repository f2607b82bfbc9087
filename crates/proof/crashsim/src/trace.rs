//! A program's accesses to persistent memory, in order: the recorder's output, the explorer's
//! input.
//!
//! A trace can be written to and read from a text file; `docs/format/trace.md` is its
//! specification.

use std::fmt::{self, Write as _};
use std::panic::Location;
use std::str::FromStr;

/// A line of source that stores, flushes or fences, as an index into [`Trace::sites`].
pub type SiteId = u32;

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// Through the cache; torn at 8 bytes in any order.
    Plain,
    /// One aligned word through the cache.
    Word,
    /// Bypassing the cache: aligned words in any order until the fence.
    Nt,
    /// One aligned line of 64 bytes that bypasses the cache, never torn.
    Line,
}

impl StoreKind {
    /// Whether a fence alone makes it durable.
    pub fn is_past_cache(self) -> bool {
        matches!(self, Self::Nt | Self::Line)
    }
}

/// One step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The thread, counted from 0 in order of appearance.
    pub thread: u8,
    /// The line of source.
    pub site: SiteId,
    /// The action.
    pub action: Action,
}

/// The action of a step. Addresses and lengths are in bytes from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stores `len` bytes of [`Trace::bytes`] from `data` on.
    Store {
        /// The kind.
        kind: StoreKind,
        /// The address.
        addr: u32,
        /// The number of bytes.
        len: u32,
        /// The offset of the bytes in [`Trace::bytes`].
        data: u32,
    },
    /// Loads bytes, some of which another operation has stored and not made durable.
    Load {
        /// First byte.
        addr: u32,
        /// Bytes.
        len: u32,
    },
    /// Starts writing back the lines of a range.
    Flush {
        /// First byte.
        addr: u32,
        /// Bytes.
        len: u32,
    },
    /// Waits for this thread's flushes and non-temporal stores.
    Fence,
    /// The thread has died: no store of it is left in write-combining buffers.
    Drain,
    /// An operation starts.
    Begin {
        /// Its number in the workload.
        op: u32,
    },
    /// The operation has returned.
    End {
        /// Its number in the workload.
        op: u32,
    },
}

/// A recorded run over a region that was all zeros at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Length of the region in bytes.
    pub len: u64,
    /// The steps, in one order that all threads agree on.
    pub events: Vec<Event>,
    /// The lines of source, as `file:line`.
    pub sites: Vec<String>,
    /// The bytes stored.
    pub bytes: Vec<u8>,
}

impl Trace {
    /// Makes an empty trace of a region of `len` bytes.
    pub fn new(len: u64) -> Self {
        Self { len, ..Self::default() }
    }

    /// Returns the number of a line of source.
    pub(crate) fn site(&mut self, at: &Location<'_>) -> SiteId {
        let file = at.file().rsplit_once("crates/").map_or(at.file(), |(_, f)| f);
        let name = format!("{file}:{}", at.line());
        self.site_named(&name)
    }

    pub(crate) fn site_named(&mut self, name: &str) -> SiteId {
        match self.sites.iter().position(|s| s == name) {
            Some(i) => i as SiteId,
            None => {
                self.sites.push(name.to_owned());
                self.sites.len() as SiteId - 1
            }
        }
    }

    /// Returns the bytes of a store.
    pub fn data(&self, data: u32, len: u32) -> &[u8] {
        &self.bytes[data as usize..(data + len) as usize]
    }

    /// Adds bytes to [`bytes`](Self::bytes); returns their offset.
    pub(crate) fn keep(&mut self, data: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(data);
        at
    }
}

/// The text of `docs/format/trace.md`.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "keepstone-trace 1 {:#x}", self.len)?;
        for e in &self.events {
            let site = self.sites.get(e.site as usize).map_or("-", String::as_str);
            write!(f, "{} ", e.thread)?;
            match e.action {
                Action::Store { kind, addr, len, data } => {
                    let kind = match kind {
                        StoreKind::Plain => "store",
                        StoreKind::Word => "word",
                        StoreKind::Nt => "nt",
                        StoreKind::Line => "line",
                    };
                    let mut hex = String::with_capacity(len as usize * 2);
                    for b in self.data(data, len) {
                        write!(hex, "{b:02x}")?;
                    }
                    writeln!(f, "{kind} {addr:#x} {hex} {site}")?;
                }
                Action::Load { addr, len } => writeln!(f, "load {addr:#x} {len} {site}")?,
                Action::Flush { addr, len } => writeln!(f, "flush {addr:#x} {len} {site}")?,
                Action::Fence => writeln!(f, "fence {site}")?,
                Action::Drain => writeln!(f, "drain {site}")?,
                Action::Begin { op } => writeln!(f, "begin {op}")?,
                Action::End { op } => writeln!(f, "end {op}")?,
            }
        }
        Ok(())
    }
}

/// A text that is not a trace: the line's number and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTrace {
    line: usize,
    what: &'static str,
}

impl fmt::Display for BadTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for BadTrace {}

/// Parses a number, decimal or hexadecimal after `0x`. Returns `None` if the text is not a number
/// of this type.
fn number<T: TryFrom<u64>>(text: Option<&str>) -> Option<T> {
    let text = text?;
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => text.parse().ok()?,
    };
    number.try_into().ok()
}

impl FromStr for Trace {
    type Err = BadTrace;

    fn from_str(text: &str) -> Result<Self, BadTrace> {
        let bad = |line, what| BadTrace { line, what };
        let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l));
        let len = lines
            .next()
            .and_then(|(_, l)| number(Some(l.strip_prefix("keepstone-trace 1 ")?)))
            .filter(|len| *len <= u64::from(u32::MAX))
            .ok_or(bad(1, "expected `keepstone-trace 1 LENGTH`"))?;
        let mut trace = Self::new(len);
        for (at, line) in lines.filter(|(_, l)| !l.is_empty() && !l.starts_with('#')) {
            let event = trace.parse_event(line).ok_or(bad(at, "not an event"))?;
            let end = match event.action {
                Action::Store { addr, len, .. }
                | Action::Load { addr, len }
                | Action::Flush { addr, len } => u64::from(addr) + u64::from(len),
                _ => 0,
            };
            if end > len {
                return Err(bad(at, "beyond the end of the region"));
            }
            trace.events.push(event);
        }
        Ok(trace)
    }
}

impl Trace {
    /// Parses a line, and keeps its bytes and its line of source. Returns `None` if it is not an
    /// event. The caller checks the range.
    fn parse_event(&mut self, line: &str) -> Option<Event> {
        let mut w = line.split_ascii_whitespace();
        let thread = w.next()?.parse().ok()?;
        let verb = w.next()?;
        let action = match verb {
            "store" | "word" | "nt" | "line" => {
                let kind = match verb {
                    "store" => StoreKind::Plain,
                    "word" => StoreKind::Word,
                    "nt" => StoreKind::Nt,
                    _ => StoreKind::Line,
                };
                let addr: u32 = number(w.next())?;
                let hex = w.next()?;
                let bytes: Option<Vec<u8>> = (0..hex.len())
                    .step_by(2)
                    .map(|i| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok())
                    .collect();
                let bytes = bytes?;
                if kind == StoreKind::Line && (!addr.is_multiple_of(64) || bytes.len() != 64) {
                    return None;
                }
                Action::Store { kind, addr, len: bytes.len() as u32, data: self.keep(&bytes) }
            }
            "load" => Action::Load { addr: number(w.next())?, len: number(w.next())? },
            "flush" => Action::Flush { addr: number(w.next())?, len: number(w.next())? },
            "fence" => Action::Fence,
            "drain" => Action::Drain,
            "begin" => Action::Begin { op: number(w.next())? },
            "end" => Action::End { op: number(w.next())? },
            _ => return None,
        };
        let site = self.site_named(w.next().unwrap_or("-"));
        Some(Event { thread, site, action })
    }
}
