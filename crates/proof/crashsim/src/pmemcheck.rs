//! Logs of valgrind's pmemcheck as traces (`--log-stores=yes`, as pmreorder reads them).
//!
//! A log has steps between `|`: `STORE;ADDRESS;VALUE;SIZE`, perhaps with a call stack
//! after further `;`, `FLUSH;ADDRESS;SIZE`, `FENCE`, `REGISTER_FILE;NAME;ADDRESS;SIZE;OFFSET`, and
//! marks that the program has emitted, of which `crashtest.BEGIN` and `crashtest.END` surround an
//! operation. Other marks, and what precedes `START`, are ignored. Threads are not recorded, so all
//! steps are one thread's.

use crate::trace::{Action, Event, StoreKind, Trace};

/// The most bytes of a region, as in traces.
const LEN_MAX: u64 = u32::MAX as u64;

/// A part of the file, where the program has mapped it.
struct Mapping {
    addr: u64,
    len: u64,
    offset: u64,
}

/// Reads a log as the trace of one file: of the one whose name ends with `file`, or of the first.
///
/// # Errors
/// If the text is not a log, or has no such file.
pub fn parse(text: &str, file: Option<&str>) -> Result<Trace, String> {
    let steps =
        || text.split('|').map(str::trim).skip_while(|step| !step.ends_with("START")).skip(1);
    if steps().next().is_none() {
        return Err("no START: not a log of pmemcheck with --log-stores=yes".to_owned());
    }
    let mut name = file;
    let mut mappings = Vec::new();
    for step in steps() {
        let words: Vec<&str> = step.split(';').collect();
        let ["REGISTER_FILE", path, numbers @ ..] = &words[..] else { continue };
        let numbers: Vec<u64> = numbers.iter().filter_map(|word| hex(word)).collect();
        let [addr, len, offset] = numbers[..] else {
            return Err(format!("{step}: not a mapping of a file"));
        };
        if path.ends_with(*name.get_or_insert(path)) {
            mappings.push(Mapping { addr, len, offset });
        }
    }
    let end = mappings.iter().map(|mapping| mapping.offset.saturating_add(mapping.len)).max();
    let len = end.ok_or_else(|| match file {
        Some(file) => format!("no file {file} is registered"),
        None => "no file is registered".to_owned(),
    })?;
    if len > LEN_MAX {
        return Err(format!("a region of {len} bytes; at most {LEN_MAX} can be crashed"));
    }
    let mut log = Log { trace: Trace::new(len), mappings, op: 0 };
    for step in steps().take_while(|step| !step.starts_with("STOP")) {
        log.add(step).ok_or_else(|| format!("{step}: not a step"))?;
    }
    Ok(log.trace)
}

/// A trace that grows.
struct Log {
    trace: Trace,
    mappings: Vec<Mapping>,
    /// The number of the next operation.
    op: u32,
}

impl Log {
    /// Adds a step; `None` if it is malformed.
    fn add(&mut self, step: &str) -> Option<()> {
        let words: Vec<&str> = step.split(';').collect();
        match words[..] {
            ["STORE", addr, value, size, ref stack @ ..] => {
                let (value, size) = (hex(value)?, hex(size)?);
                let bytes = value.to_le_bytes();
                let bytes = bytes.get(..usize::try_from(size).ok()?).filter(|b| !b.is_empty())?;
                let frame = stack.first().filter(|frame| !frame.is_empty()).unwrap_or(&"-");
                let site = frame.replace(char::is_whitespace, "?");
                let Some(addr) = self.place(hex(addr)?, size) else { return Some(()) };
                let data = self.trace.keep(bytes);
                let kind = StoreKind::Plain;
                self.push(Action::Store { kind, addr, len: size as u32, data }, &site);
            }
            ["FLUSH", addr, size, ..] => {
                let size = hex(size)?;
                if let Some(addr) = self.place(hex(addr)?, size) {
                    self.push(Action::Flush { addr, len: size as u32 }, "-");
                }
            }
            ["FENCE", ..] => self.push(Action::Fence, "-"),
            ["crashtest.BEGIN", ..] => self.push(Action::Begin { op: self.op }, "-"),
            ["crashtest.END", ..] => {
                self.push(Action::End { op: self.op }, "-");
                self.op += 1;
            }
            _ => {}
        }
        Some(())
    }

    fn push(&mut self, action: Action, site: &str) {
        let site = self.trace.site_named(site);
        self.trace.events.push(Event { thread: 0, site, action });
    }

    /// Returns the place in the file of a range of memory; `None` if it is another file's.
    fn place(&self, addr: u64, size: u64) -> Option<u32> {
        let end = addr.checked_add(size)?;
        let holds = |m: &&Mapping| addr >= m.addr && end - m.addr <= m.len;
        let mapping = self.mappings.iter().find(holds)?;
        u32::try_from(mapping.offset + (addr - mapping.addr)).ok()
    }
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.trim().strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "==7== pmemcheck-1.0, a simple persistent store checker
==7== START|REGISTER_FILE;/tmp/other;0x100000;0x1000;0x0|REGISTER_FILE;/tmp/list;0x4000;0x1000;0x0\
|crashtest.BEGIN|STORE;0x4040;0x7;0x8;append (list.c:5);main (list.c:20)|STORE;0x100000;0x1;0x8\
|libpmem.BEGIN|FLUSH;0x4040;0x40|FENCE|crashtest.END|STORE;0x4000;0x201;0x2|STOP
==7== Number of stores not made persistent: 1
";

    #[test]
    fn a_log_is_the_trace_of_one_file() {
        let trace = parse(LOG, Some("list")).unwrap();
        let expected = "keepstone-trace 1 0x1000
0 begin 0
0 store 0x40 0700000000000000 append?(list.c:5)
0 flush 0x40 64 -
0 fence -
0 end 0
0 store 0x0 0102 -
";
        assert_eq!(trace.to_string(), expected);
        assert_eq!(parse(LOG, None).unwrap().events.len(), 4);
    }

    #[test]
    fn wrong_logs_are_refused() {
        for (from, to) in [
            ("START", "BEGIN"),
            ("0x7;0x8", "0x7;0x9"),
            ("0x7;0x8", "0x7;0x0"),
            ("FLUSH;0x4040", "FLUSH;4040"),
            ("0x4000;0x1000;0x0", "0x4000;0x1000"),
            ("0x4000;0x1000;0x0", "0x4000;0xffffffffffffffff;0x1"),
        ] {
            assert!(parse(&LOG.replace(from, to), Some("list")).is_err(), "{to}");
        }
        assert!(parse(LOG, Some("missing")).unwrap_err().contains("missing"));
    }
}
