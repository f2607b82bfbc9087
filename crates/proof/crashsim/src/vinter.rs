//! Traces of Vinter (USENIX ATC 2022), which runs a kernel in an emulated machine and records its
//! accesses to persistent memory (`trace.bin`).
//!
//! A trace is a stream of Snappy frames. Its content is entries as bincode 2 writes them: integers
//! of more than a byte have one byte if they are below 251, else a mark and 2, 4 or 8 bytes; an
//! enum begins with the number of its variant. bincode is no longer maintained, so this file reads
//! the five kinds of entries itself.
//!
//! | entry | here |
//! |---|---|
//! | write | a store, of its place in the program (`kernel+0xPC`, or `user+0xPC`) |
//! | fence | a fence |
//! | flush | a flush of a line; by `clflush`, which is ordered, also a fence; by `wbinvd`, of everything |
//! | read | nothing |
//! | hypercall `checkpoint` | the end of an operation, and the start of the next |
//! | hypercall `success` | the end of an operation |
//!
//! All processors of the machine are one thread, as in Vinter.

use crate::trace::{Action, Event, SiteId, StoreKind, Trace};
use std::collections::HashMap;
use std::io::{self, BufReader, ErrorKind, Read};

/// The first bytes of a stream of Snappy frames.
const MAGIC: &[u8] = b"\xff\x06\x00\x00sNaPpY";
/// The most bytes of a region, and of all stores, as in traces.
const LEN_MAX: u64 = u32::MAX as u64;
/// The most bytes of a store, of a word of text, and calls on a stack that an entry can have.
const STORE_MAX: u64 = 1 << 16;
const TEXT_MAX: u64 = 1 << 12;
const STACK_MAX: u64 = 1 << 10;

/// Whether a file may be a trace of Vinter.
pub fn is_trace(file: &[u8]) -> bool {
    file.starts_with(MAGIC)
}

/// Reads a trace of a region of `len` bytes; of one that ends with the last page stored to, if the
/// length is unknown.
///
/// # Errors
/// If the file is not such a trace, or does not fit the region.
pub fn parse(file: &[u8], len: Option<u64>) -> Result<Trace, String> {
    if let Some(len) = len.filter(|len| *len > LEN_MAX) {
        return Err(format!("a region of {len} bytes; at most {LEN_MAX} can be crashed"));
    }
    let mut entries = Entries(BufReader::new(snap::read::FrameDecoder::new(file)));
    let mut import = Import {
        trace: Trace::new(len.unwrap_or(LEN_MAX)),
        sites: HashMap::new(),
        end: 0,
        op: 0,
        is_in_op: false,
    };
    import.site_at(None);
    let mut number = 0;
    loop {
        number += 1;
        let entry = entries.next().map_err(|err| match err.kind() {
            ErrorKind::UnexpectedEof => format!("the trace ends within entry {number}"),
            _ => format!("entry {number}: {err}"),
        })?;
        let Some(entry) = entry else { break };
        import.add(entry).map_err(|why| format!("entry {number}: {why}"))?;
    }
    if import.is_in_op {
        import.end_op();
    }
    if len.is_none() {
        import.trace.len = import.end.next_multiple_of(4096).min(LEN_MAX);
    }
    // Without a length, `wbinvd` has flushed more than there is.
    let len = import.trace.len as u32;
    for event in &mut import.trace.events {
        if let Action::Flush { addr, len: flushed } = &mut event.action {
            *addr = (*addr).min(len);
            *flushed = (*flushed).min(len - *addr);
        }
    }
    Ok(import.trace)
}

/// The place of an access in the program: the address of the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct AccessSite {
    pc: u64,
    in_kernel: bool,
}

enum TraceEntry {
    Write {
        addr: u64,
        bytes: Vec<u8>,
        past_cache: bool,
        at: AccessSite,
    },
    Fence {
        at: AccessSite,
    },
    Flush {
        instruction: String,
        addr: u64,
        at: AccessSite,
    },
    /// A load, or a store of no bytes.
    Nothing,
    Hypercall {
        action: String,
    },
}

/// The entries of a decompressed trace.
struct Entries<R>(R);

impl<R: Read> Entries<R> {
    /// Returns the next entry; `None` at the end.
    fn next(&mut self) -> io::Result<Option<TraceEntry>> {
        let mut first = [0];
        if self.0.read(&mut first)? == 0 {
            return Ok(None);
        }
        let _id = self.integer()?;
        Ok(Some(match first[0] {
            0 => {
                let addr = self.integer()?;
                let _size = self.integer()?;
                let bytes = self.bytes(STORE_MAX)?;
                let past_cache = self.flag()?;
                let at = self.place()?;
                match bytes.is_empty() {
                    true => TraceEntry::Nothing,
                    false => TraceEntry::Write { addr, bytes, past_cache, at },
                }
            }
            1 => {
                self.text()?;
                TraceEntry::Fence { at: self.place()? }
            }
            2 => {
                let instruction = self.text()?;
                let addr = self.integer()?;
                TraceEntry::Flush { instruction, addr, at: self.place()? }
            }
            3 => {
                let (_addr, _size) = (self.integer()?, self.integer()?);
                self.bytes(STORE_MAX)?;
                TraceEntry::Nothing
            }
            4 => {
                let action = self.text()?;
                self.text()?;
                TraceEntry::Hypercall { action }
            }
            kind => return Err(invalid(format!("{kind} is no kind of entry"))),
        }))
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn integer(&mut self) -> io::Result<u64> {
        Ok(match self.byte()? {
            small @ 0..=250 => u64::from(small),
            251 => u64::from(u16::from_le_bytes(self.array()?)),
            252 => u64::from(u32::from_le_bytes(self.array()?)),
            253 => u64::from_le_bytes(self.array()?),
            mark => return Err(invalid(format!("{mark} begins no integer of 64 bits"))),
        })
    }

    fn flag(&mut self) -> io::Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(invalid(format!("{byte} is neither true nor false"))),
        }
    }

    fn bytes(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let len = self.integer()?;
        if len > most {
            return Err(invalid(format!("{len} bytes, where at most {most} can be")));
        }
        let mut bytes = vec![0; len as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn text(&mut self) -> io::Result<String> {
        let bytes = self.bytes(TEXT_MAX)?;
        String::from_utf8(bytes).map_err(|_| invalid("a word is not UTF-8".to_owned()))
    }

    fn place(&mut self) -> io::Result<AccessSite> {
        let (pc, in_kernel) = (self.integer()?, self.flag()?);
        let calls = self.integer()?;
        if calls > STACK_MAX {
            return Err(invalid(format!("a stack of {calls} calls")));
        }
        for _ in 0..calls {
            self.integer()?;
        }
        Ok(AccessSite { pc, in_kernel })
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// A trace that grows.
struct Import {
    trace: Trace,
    sites: HashMap<Option<AccessSite>, SiteId>,
    /// The end of the highest store.
    end: u64,
    /// The number of the operation, or of the next one.
    op: u32,
    is_in_op: bool,
}

impl Import {
    fn add(&mut self, entry: TraceEntry) -> Result<(), String> {
        match entry {
            TraceEntry::Write { addr, bytes, past_cache, at } => {
                let end = addr.checked_add(bytes.len() as u64).filter(|end| *end <= self.trace.len);
                let end =
                    end.ok_or_else(|| format!("a store to {addr:#x} is beyond the region"))?;
                if self.trace.bytes.len() as u64 + bytes.len() as u64 > LEN_MAX {
                    return Err(format!("more than {LEN_MAX} bytes are stored"));
                }
                self.end = self.end.max(end);
                let kind = if past_cache { StoreKind::Nt } else { StoreKind::Plain };
                let data = self.trace.keep(&bytes);
                let (addr, len) = (addr as u32, bytes.len() as u32);
                self.push(Action::Store { kind, addr, len, data }, Some(at));
            }
            TraceEntry::Fence { at } => self.push(Action::Fence, Some(at)),
            TraceEntry::Flush { instruction, addr, at } => {
                let line = pmem::LINE;
                let (addr, len) = match &*instruction {
                    "wbinvd" => (0, LEN_MAX),
                    "clwb" | "clflush" | "clflushopt" => (addr / line * line, line),
                    _ => return Err(format!("{instruction} flushes nothing that is known")),
                };
                if addr >= self.trace.len {
                    return Err(format!("a flush of {addr:#x} is beyond the region"));
                }
                let len = len.min(self.trace.len - addr) as u32;
                self.push(Action::Flush { addr: addr as u32, len }, Some(at));
                if matches!(&*instruction, "clflush" | "wbinvd") {
                    self.push(Action::Fence, Some(at));
                }
            }
            TraceEntry::Nothing => {}
            TraceEntry::Hypercall { action } => {
                let is_checkpoint = action == "checkpoint";
                if self.is_in_op && (is_checkpoint || action == "success") {
                    self.end_op();
                }
                if is_checkpoint {
                    self.push(Action::Begin { op: self.op }, None);
                    self.is_in_op = true;
                }
            }
        }
        Ok(())
    }

    fn end_op(&mut self) {
        self.push(Action::End { op: self.op }, None);
        self.op += 1;
        self.is_in_op = false;
    }

    fn push(&mut self, action: Action, at: Option<AccessSite>) {
        let site = self.site_at(at);
        self.trace.events.push(Event { thread: 0, site, action });
    }

    fn site_at(&mut self, at: Option<AccessSite>) -> SiteId {
        let sites = &mut self.trace.sites;
        *self.sites.entry(at).or_insert_with(|| {
            sites.push(match at {
                Some(AccessSite { pc, in_kernel: true }) => format!("kernel+{pc:#x}"),
                Some(AccessSite { pc, in_kernel: false }) => format!("user+{pc:#x}"),
                None => "-".to_owned(),
            });
            sites.len() as SiteId - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// The place of all entries of the tests: 0xffffffff81000010 in the kernel, with two callers.
    const PLACE: &[u8] = b"\xfd\x10\x00\x00\x81\xff\xff\xff\xff\x01\x02\x07\xfb\x00\x01";
    const SITE: &str = "kernel+0xffffffff81000010";

    fn write(addr: &[u8], bytes: &[u8], past_cache: u8) -> Vec<u8> {
        let len = bytes.len() as u8;
        [&[0, 9], addr, &[len, len], bytes, &[past_cache], PLACE].concat()
    }

    fn named(head: &[u8], word: &str, rest: &[u8]) -> Vec<u8> {
        [head, &[word.len() as u8], word.as_bytes(), rest].concat()
    }

    fn flush(instruction: &str, addr: u8) -> Vec<u8> {
        named(&[2, 9], instruction, &[&[addr], PLACE].concat())
    }

    fn fence() -> Vec<u8> {
        named(&[1, 9], "sfence", PLACE)
    }

    fn call(action: &str) -> Vec<u8> {
        named(&[4, 0xfb, 9, 1], action, b"\x01\x31")
    }

    fn compressed(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut file = snap::write::FrameEncoder::new(Vec::new());
        file.write_all(&entries.concat()).unwrap();
        file.into_inner().unwrap()
    }

    fn all() -> Vec<Vec<u8>> {
        vec![
            write(&[0x40], b"\x07\x00", 0),
            call("checkpoint"),
            write(b"\xfc\x00\x10\x00\x00", b"\x01\x02\x03\x04", 1),
            vec![3, 9, 0x40, 1, 1, 5],
            flush("clwb", 0x47),
            fence(),
            call("checkpoint"),
            flush("clflush", 0),
            call("success"),
            call("other"),
            flush("wbinvd", 0),
        ]
    }

    #[test]
    fn a_trace_has_the_entries_of_the_file() {
        let file = compressed(&all());
        assert!(is_trace(&file));
        let expected = format!(
            "keepstone-trace 1 0x2000
0 store 0x40 0700 {SITE}
0 begin 0
0 nt 0x1000 01020304 {SITE}
0 flush 0x40 64 {SITE}
0 fence {SITE}
0 end 0
0 begin 1
0 flush 0x0 64 {SITE}
0 fence {SITE}
0 end 1
0 flush 0x0 8192 {SITE}
0 fence {SITE}
"
        );
        let trace = parse(&file, None).unwrap();
        assert_eq!(trace.to_string(), expected);
        assert_eq!(expected.parse::<Trace>().unwrap().to_string(), expected);
        assert_eq!(parse(&file, Some(0x3000)).unwrap().len, 0x3000);
    }

    #[test]
    fn wrong_files_are_refused() {
        let refused = |entry: Vec<u8>| parse(&compressed(&[entry]), Some(0x2000)).unwrap_err();
        assert!(refused(write(&[0xfb, 0xfd, 0x1f], b"\x01\x02\x03\x04", 0)).contains("beyond"));
        assert!(
            refused(write(&[0xfd, 255, 255, 255, 255, 255, 255, 255, 255], b"1", 0))
                .contains("beyond")
        );
        assert!(refused(write(&[0x40], b"1", 2)).contains("neither"));
        assert!(refused(flush("nop", 0)).contains("nop"));
        assert!(refused(vec![5, 0]).contains("kind"));
        assert!(refused(vec![0, 0xfe]).contains("integer"));
        assert!(refused(vec![0, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0, 1, 0, 0]).contains("at most"));
        assert!(refused(vec![0, 0, 0]).contains("ends within entry 1"));
        assert!(parse(&compressed(&all()), Some(1 << 40)).unwrap_err().contains("region"));
        let file = compressed(&all());
        assert!(parse(&file[..file.len() - 1], None).is_err());
        let mut torn = file;
        let last = torn.len() - 1;
        torn[last] ^= 1;
        assert!(parse(&torn, None).is_err());
        assert!(!is_trace(b"keepstone-trace 1 0x80"));
    }

    #[test]
    fn any_bytes_are_a_trace_or_refused() {
        let mut rng = rng::Rng::new(1);
        let whole = all().concat();
        for _ in 0..5000 {
            let mut entries = whole.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.index(entries.len());
                entries[at] = rng.below(256) as u8;
            }
            entries.truncate(1 + rng.index(entries.len()));
            let len = rng.pick(&[None, Some(0x1800)]);
            if let Ok(trace) = parse(&compressed(&[entries]), len) {
                let text = trace.to_string();
                assert_eq!(text.parse::<Trace>().expect("it is in the region").to_string(), text);
            }
        }
    }
}
