//! Traces: what is written is read, and hostile input is an error with its place.

use memsim::summary::Summary;
use memsim::trace::{Action, HEADER, LEN_MAX, MemoryEvent, Reader, StoreWay, TraceError, Writer};
use proptest::prelude::*;

const REGION: u64 = 1 << 40;

/// An event that owns its data.
#[derive(Clone, Debug)]
struct Owned {
    thread: u16,
    gap_ns: u64,
    action: u8,
    addr: u64,
    len: u32,
    has_data: bool,
}

impl Owned {
    fn data(&self) -> Vec<u8> {
        (0..self.len).map(|i| (i as u8) ^ self.addr as u8).collect()
    }

    fn event<'a>(&self, data: &'a [u8]) -> MemoryEvent<'a> {
        let Self { thread, gap_ns, addr, len, .. } = *self;
        let store = |way, addr, len: u32| Action::Store {
            way,
            addr,
            len,
            data: self.has_data.then(|| &data[..len as usize]),
        };
        let action = match self.action {
            0 => Action::Load { addr, len },
            1 => store(StoreWay::Cached, addr, len),
            2 => store(StoreWay::PastCache, addr, len),
            3 => store(StoreWay::Word, addr & !7, 8),
            4 => store(StoreWay::Line, addr & !63, 64),
            5 => Action::Flush { addr, len },
            6 => Action::Fence,
            7 => Action::Barrier,
            8 => Action::Begin { op: addr as u32 },
            _ => Action::Return { op: addr as u32 },
        };
        MemoryEvent { thread, gap_ns, action }
    }
}

fn owned() -> impl Strategy<Value = Owned> {
    let gap = prop_oneof![Just(0u64), 0u64..1000, any::<u64>()];
    (any::<u16>(), gap, 0u8..10, 0..REGION - 300, 64u32..300, any::<bool>()).prop_map(
        |(thread, gap_ns, action, addr, len, has_data)| Owned {
            thread: thread % 5 * 1000,
            gap_ns,
            action,
            addr,
            len,
            has_data,
        },
    )
}

fn trace(events: &[Owned]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), REGION);
    for event in events {
        writer.push(&event.event(&event.data())).unwrap();
    }
    writer.finish(77).unwrap().0
}

/// An input that returns a few bytes at a time.
struct Slow<'a>(&'a [u8], usize);

impl std::io::Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(self.1).min(self.0.len());
        buffer[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        Ok(len)
    }
}

/// Reads to the end or to the error.
fn read_all(bytes: &[u8]) -> Result<u64, TraceError> {
    let mut reader = Reader::new(bytes)?;
    let mut events = 0;
    while let Some(event) = reader.next_event()? {
        events += 1;
        if let Action::Store { len, data: Some(data), .. } = event.action {
            assert_eq!(data.len(), len as usize);
        }
    }
    assert_eq!(reader.finished().unwrap().events, events);
    Ok(events)
}

/// Reads to the error, and returns its offset and cause.
fn refused(bytes: &[u8]) -> (u64, &'static str) {
    match read_all(bytes) {
        Err(TraceError::Malformed { offset, cause }) => (offset, cause),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn events_are_read_as_they_were_written(
        events in prop::collection::vec(owned(), 0..200), step in 1usize..5000,
    ) {
        let bytes = trace(&events);
        let mut reader = Reader::new(Slow(&bytes, step)).unwrap();
        for event in &events {
            let data = event.data();
            prop_assert_eq!(reader.next_event().unwrap(), Some(event.event(&data)));
        }
        prop_assert_eq!(reader.next_event().unwrap(), None);
        prop_assert_eq!(reader.next_event().unwrap(), None, "the end stays the end");
        prop_assert_eq!(reader.finished().unwrap().elapsed_ns, 77);
    }

    /// Changed, cut and arbitrary traces give errors within their bytes, never a panic.
    #[test]
    fn hostile_traces_are_errors(
        events in prop::collection::vec(owned(), 1..40),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let valid = trace(&events);
        let mut changed = valid.clone();
        for (at, byte) in changes {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        let cut = valid[..cut.index(valid.len())].to_vec();
        let followed = [&valid[..], &noise].concat();
        let arbitrary = [&valid[..HEADER], &noise].concat();
        for bytes in [changed, cut, noise, followed, arbitrary] {
            if let Err(TraceError::Malformed { offset, .. }) = read_all(&bytes) {
                prop_assert!(offset <= bytes.len() as u64);
            }
        }
    }

    /// Each trace that was cut gives all events before the cut, and then the offset of the record.
    #[test]
    fn a_cut_trace_gives_its_events(events in prop::collection::vec(owned(), 1..20)) {
        let bytes = trace(&events);
        let end = bytes.len() - 3;
        let (offset, cause) = refused(&bytes[..end]);
        prop_assert_eq!((offset, cause), (end as u64, "the trace ends without an end record"));
    }
}

#[test]
fn long_accesses_are_split() {
    let mut writer = Writer::new(Vec::new(), REGION);
    let len = 3 * LEN_MAX;
    writer
        .push(&MemoryEvent { thread: 0, gap_ns: 5, action: Action::Load { addr: 100, len } })
        .unwrap();
    let (bytes, end) = writer.finish(0).unwrap();
    assert_eq!(end.events, 4);
    let summary = Summary::of(&mut Reader::new(&bytes[..]).unwrap()).unwrap();
    assert_eq!((summary.loads.bytes, summary.compute_ns), (len.into(), 5));
    assert_eq!(summary.loads.lines, u64::from(len) / 64 + 1, "no line counts twice");
}

#[test]
fn errors_name_the_rule_and_the_place() {
    assert!(matches!(read_all(b"a text"), Err(TraceError::NotATrace)));
    let header = &trace(&[])[..HEADER];
    let mut newer = header.to_vec();
    newer[8] = 9;
    assert!(matches!(read_all(&newer), Err(TraceError::Version(9))));
    let with = |record: &[u8]| refused(&[header, record].concat());
    let at = HEADER as u64;
    for (record, cause) in [
        (&[][..], "the trace ends without an end record"),
        (&[0x80], "a tag with a reserved bit"),
        (&[0x41, 0, 1], "data of a record that stores nothing"),
        (&[11], "a record of an unknown kind"),
        (&[1, 1, 1], "an access beyond the region"),
        (&[1, 0, 0], "an access of no bytes, or of more than 1 MiB"),
        (&[1, 0, 0x81, 0x80, 0x80, 1], "an access of no bytes, or of more than 1 MiB"),
        (&[3, 2], "a word or line that is not aligned"),
        (&[0x12, 0x80, 0x80, 0x10], "a thread of more than 16 bits"),
        (&[0x22, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], "a number of more than 64 bits"),
        (&[1, 0x80], "the trace ends within a record"),
        (&[0x42, 0, 9, 1, 2], "the trace ends within the data of a store"),
        (&[0, 1, 0], "the end record does not match the events before it"),
        (&[0, 0, 0, 7], "bytes follow the end record"),
    ] {
        assert_eq!(with(record), (at, cause), "{record:x?}");
    }
    assert_eq!(with(&[7, 7, 11]), (at + 2, "a record of an unknown kind"));
}
