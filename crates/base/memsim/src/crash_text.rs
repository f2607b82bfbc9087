//! The text that the crash explorer reads (`docs/format/trace.md`), from a trace with content.
//!
//! Loads are left out: the explorer notes only those that meet data which is not durable, and
//! readers may ignore them. The lines of source are not in a memory trace, so each is `-`.

use crate::trace::{Action, MemoryEvent, Reader, StoreWay, TraceError};
use std::io::{self, Read, Write};

/// A trace that has no such text.
#[derive(Debug, thiserror::Error)]
pub enum CrashTextError {
    /// The trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The output failed.
    #[error(transparent)]
    Output(#[from] io::Error),
    /// The trace has something that the text cannot have.
    #[error("event {event}: {cause}")]
    Event {
        /// Its number, from 0.
        event: u64,
        /// The reason.
        cause: &'static str,
    },
}

/// Writes the text of a trace. Returns the number of lines after the first.
pub fn export<R: Read>(
    reader: &mut Reader<R>,
    mut output: impl Write,
) -> Result<u64, CrashTextError> {
    let fails = |event, cause| CrashTextError::Event { event, cause };
    if reader.region_len() > u64::from(u32::MAX) {
        return Err(fails(0, "the region has 4 GiB or more"));
    }
    writeln!(output, "keepstone-trace 1 {:#x}", reader.region_len())?;
    let mut hex = String::new();
    let (mut event, mut written) = (0, 0);
    while let Some(MemoryEvent { thread, action, .. }) = reader.next_event()? {
        if thread > u16::from(u8::MAX) {
            return Err(fails(event, "more than 256 threads"));
        }
        match action {
            Action::Load { .. } => {
                event += 1;
                continue;
            }
            Action::Store { data: None, .. } => {
                return Err(fails(event, "a store without its bytes; record them, too"));
            }
            Action::Store { way, addr, data: Some(data), .. } => {
                let verb = match way {
                    StoreWay::Cached => "store",
                    StoreWay::Word => "word",
                    StoreWay::PastCache => "nt",
                    StoreWay::Line => "line",
                };
                hex.clear();
                for byte in data {
                    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
                    hex.extend([digit(byte >> 4), digit(byte & 15)]);
                }
                writeln!(output, "{thread} {verb} {addr:#x} {hex} -")?;
            }
            Action::Flush { addr, len } => writeln!(output, "{thread} flush {addr:#x} {len} -")?,
            Action::Fence => writeln!(output, "{thread} fence -")?,
            Action::Barrier => return Err(fails(event, "a barrier, which the explorer lacks")),
            Action::Begin { op } => writeln!(output, "{thread} begin {op}")?,
            Action::Return { op } => writeln!(output, "{thread} end {op}")?,
        }
        event += 1;
        written += 1;
    }
    output.flush()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Writer;

    fn text(actions: &[Action<'_>]) -> Result<String, String> {
        let mut writer = Writer::new(Vec::new(), 4096);
        for action in actions {
            writer.push(&MemoryEvent { thread: 0, gap_ns: 0, action: *action }).unwrap();
        }
        let (trace, _) = writer.finish(0).unwrap();
        let mut output = Vec::new();
        let lines = export(&mut Reader::new(&trace[..]).unwrap(), &mut output)
            .map_err(|err| err.to_string())?;
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text.lines().count() as u64, lines + 1);
        Ok(text)
    }

    fn store(way: StoreWay, addr: u64, data: Option<&[u8]>) -> Action<'_> {
        Action::Store { way, addr, len: data.map_or(8, <[u8]>::len) as u32, data }
    }

    #[test]
    fn steps_are_lines() {
        let actions = [
            Action::Begin { op: 3 },
            Action::Load { addr: 0, len: 8 },
            store(StoreWay::Cached, 16, Some(&[0xab, 1])),
            store(StoreWay::Word, 8, Some(&[0; 8])),
            store(StoreWay::PastCache, 64, Some(&[0xff])),
            Action::Flush { addr: 8, len: 16 },
            Action::Fence,
            Action::Return { op: 3 },
        ];
        let expected = "\
keepstone-trace 1 0x1000
0 begin 3
0 store 0x10 ab01 -
0 word 0x8 0000000000000000 -
0 nt 0x40 ff -
0 flush 0x8 16 -
0 fence -
0 end 3
";
        assert_eq!(text(&actions), Ok(expected.to_owned()));
    }

    #[test]
    fn what_the_text_cannot_have_is_refused() {
        let fails = |action| text(&[Action::Fence, action]).unwrap_err();
        assert!(fails(store(StoreWay::Word, 0, None)).contains("event 1: a store without"));
        assert!(fails(Action::Barrier).contains("barrier"));
    }
}
