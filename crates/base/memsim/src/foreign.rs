//! Traces of other simulators, as text: a line for each access to a line of memory.
//!
//! | format | line |
//! |---|---|
//! | Ramulator 2, `LoadStoreTrace` | `LD ADDRESS` or `ST ADDRESS`; hexadecimal after `0x` |
//! | DRAMsim3 | `0xADDRESS READ CYCLE` or `0xADDRESS WRITE CYCLE` |
//! | NVMain | `CYCLE R 0xADDRESS DATA THREAD` or `W`; version 1 has the old data before the thread |
//!
//! These formats have neither flushes nor fences, and except for NVMain no threads and no data.

use crate::LINE;
use crate::caches::{WriteBack, WriteSink};
use crate::trace::{Action, End, MemoryEvent, Reader, StoreWay, TraceError, Writer, lines};
use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::str::FromStr;

/// The longest line that is read, in bytes.
const LINE_MAX: u64 = 4096;
/// Bytes that imported traces may address.
const REGION: u64 = 1 << 63;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// Ramulator 2, `LoadStoreTrace`.
    Ramulator2,
    /// DRAMsim3.
    DramSim3,
    /// NVMain. Version 0 is written, 0 and 1 are read.
    NvMain,
}

impl TextFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Ramulator2, Self::DramSim3, Self::NvMain];

    /// Returns the name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ramulator2 => "ramulator2",
            Self::DramSim3 => "dramsim3",
            Self::NvMain => "nvmain",
        }
    }
}

impl FromStr for TextFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        let names = Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("`{name}` is no trace format: there are {names}"))
    }
}

impl fmt::Display for TextFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line of another form.
    #[error("line {line}: not an access of a trace of {format}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// The format.
        format: TextFormat,
    },
}

/// An access to a line of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineAccess {
    is_write: bool,
    addr: u64,
    cycle: u64,
    thread: u16,
}

/// Reads a text, and writes its accesses as loads and stores of whole lines through the cache. The
/// cycles between them become computation, of `ns_per_cycle` each.
pub fn import<W: Write>(
    format: TextFormat,
    mut input: impl BufRead,
    ns_per_cycle: f64,
    output: W,
) -> Result<End, ImportError> {
    let mut writer = Writer::new(output, REGION);
    let (mut text, mut number, mut last_ns) = (String::new(), 0, 0);
    let mut nvmain_version = 0;
    loop {
        text.clear();
        let read = (&mut input).take(LINE_MAX).read_line(&mut text)?;
        if read == 0 {
            return Ok(writer.finish(last_ns)?.1);
        }
        number += 1;
        let words = text.trim();
        if words.is_empty() {
            continue;
        }
        if let Some(version) = words.strip_prefix("NVMV").filter(|_| format == TextFormat::NvMain) {
            nvmain_version = version.parse().unwrap_or(u32::MAX);
            if nvmain_version < 2 {
                continue;
            }
        }
        let access = parse(format, nvmain_version, words)
            .filter(|access| access.addr < REGION - LINE && (read as u64) < LINE_MAX)
            .ok_or(ImportError::Line { line: number, format })?;
        // The cast saturates.
        let at_ns = (access.cycle as f64 * ns_per_cycle) as u64;
        let gap_ns = at_ns.saturating_sub(last_ns);
        last_ns = last_ns.max(at_ns);
        let (addr, len) = (access.addr / LINE * LINE, LINE as u32);
        let action = match access.is_write {
            false => Action::Load { addr, len },
            true => Action::Store { way: StoreWay::Cached, addr, len, data: None },
        };
        writer.push(&MemoryEvent { thread: access.thread, gap_ns, action })?;
    }
}

/// Parses a line. `None` if it has another form.
fn parse(format: TextFormat, nvmain_version: u32, text: &str) -> Option<LineAccess> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let hex = |word: &str| {
        let digits = word.strip_prefix("0x").or(word.strip_prefix("0X")).unwrap_or(word);
        u64::from_str_radix(digits, 16).ok()
    };
    let access = |is_write, addr, cycle, thread| Some(LineAccess { is_write, addr, cycle, thread });
    match (format, &words[..]) {
        (TextFormat::Ramulator2, [verb @ ("LD" | "ST"), addr]) => {
            let is_hex = addr.starts_with("0x") || addr.starts_with("0X");
            let addr = if is_hex { hex(addr)? } else { addr.parse().ok()? };
            access(*verb == "ST", addr, 0, 0)
        }
        (TextFormat::DramSim3, [addr, verb, cycle]) => {
            let is_write = match *verb {
                "WRITE" | "write" | "P_MEM_WR" | "BOFF" => true,
                "READ" | "read" | "P_MEM_RD" | "P_FETCH" => false,
                _ => return None,
            };
            access(is_write, hex(addr)?, cycle.parse().ok()?, 0)
        }
        (TextFormat::NvMain, [cycle, verb @ ("R" | "W"), addr, rest @ ..]) => {
            let thread = match (nvmain_version, rest) {
                (0, [_, thread]) | (1, [_, _, thread]) => thread.parse().ok()?,
                _ => return None,
            };
            access(*verb == "W", hex(addr)?, cycle.parse().ok()?, thread)
        }
        _ => None,
    }
}

/// Writes accesses as text. As a [`WriteSink`] it gets the traffic behind the caches.
#[derive(Debug)]
pub struct TextWriter<W> {
    format: TextFormat,
    output: W,
    cycles_per_ns: f64,
    /// The time of the last access: cycles ascend.
    last_ns: u64,
    /// Accesses so far.
    pub accesses: u64,
    error: Option<io::Error>,
}

impl<W: Write> TextWriter<W> {
    /// Makes a writer for a clock with `ns_per_cycle`.
    pub fn new(format: TextFormat, output: W, ns_per_cycle: f64) -> Self {
        let cycles_per_ns = 1.0 / ns_per_cycle;
        Self { format, output, cycles_per_ns, last_ns: 0, accesses: 0, error: None }
    }

    /// Writes all accesses of a trace, line by line. Returns the number of flushes, fences and
    /// barriers, which have no text.
    ///
    /// # Errors
    /// Those of the trace. Errors of the output come from [`finish`](Self::finish).
    pub fn export<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<u64, TraceError> {
        let (mut left_out, mut now) = (0, 0_u64);
        while let Some(MemoryEvent { thread, gap_ns, action }) = reader.next_event()? {
            now = now.saturating_add(gap_ns);
            match action {
                Action::Load { addr, len } => {
                    lines(addr, len).for_each(|line| self.access(false, line, now, thread));
                }
                Action::Store { addr, len, .. } => {
                    lines(addr, len).for_each(|line| self.access(true, line, now, thread));
                }
                Action::Flush { .. } | Action::Fence | Action::Barrier => left_out += 1,
                Action::Begin { .. } | Action::Return { .. } => {}
            }
        }
        Ok(left_out)
    }

    /// Passes on all text. Returns the first error of the output.
    pub fn finish(mut self) -> io::Result<u64> {
        match self.error.take() {
            Some(err) => Err(err),
            None => self.output.flush().map(|()| self.accesses),
        }
    }

    fn access(&mut self, is_write: bool, line: u64, at_ns: u64, thread: u16) {
        if self.error.is_some() {
            return;
        }
        self.accesses += 1;
        self.last_ns = self.last_ns.max(at_ns);
        let cycle = (self.last_ns as f64 * self.cycles_per_ns) as u64;
        let addr = line.wrapping_mul(LINE);
        let written = match self.format {
            TextFormat::Ramulator2 => {
                writeln!(self.output, "{} {addr:#x}", if is_write { "ST" } else { "LD" })
            }
            TextFormat::DramSim3 => {
                let verb = if is_write { "WRITE" } else { "READ" };
                writeln!(self.output, "{addr:#x} {verb} {cycle}")
            }
            TextFormat::NvMain => {
                let verb = if is_write { 'W' } else { 'R' };
                writeln!(self.output, "{cycle} {verb} {addr:#x} {:0128} {thread}", 0)
            }
        };
        self.error = written.err();
    }
}

impl<W: Write> WriteSink for TextWriter<W> {
    fn write(&mut self, write: WriteBack) {
        let thread = write.epoch.map_or(0, |epoch| epoch.context as u16);
        self.access(true, write.line, write.accepted.at, thread);
    }

    fn read(&mut self, line: u64, at_ns: u64) {
        self.access(false, line, at_ns, 0);
    }
}
