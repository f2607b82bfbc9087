use super::*;
use layout::RecordHeader;
use zerocopy::IntoBytes as _;

fn inode(number: u64, mode: u32, size: u64, flags: u32) -> StreamInode {
    StreamInode {
        number: number.into(),
        size: size.into(),
        mtime: 1.into(),
        ctime: 2.into(),
        atime: 3.into(),
        btime: 4.into(),
        uid: 5.into(),
        gid: 6.into(),
        mode: mode.into(),
        generation: 7.into(),
        rdev: 0.into(),
        flags: flags.into(),
    }
}

fn head(has_base: bool) -> StreamHead {
    let of = |name: &str, created_ns| StreamSnapshot { name: name.to_owned(), created_ns };
    StreamHead {
        pool: uuid::Uuid::from_u128(1),
        snapshot: of("tuesday", 20),
        base: has_base.then(|| of("monday", 10)),
        inodes: 64,
        start: StreamPosition::default(),
        bytes: 9,
    }
}

fn entry(name: &[u8]) -> StreamEntry {
    StreamEntry { ino: 9, generation: 1, kind: 8, name: name.to_vec() }
}

fn some() -> Vec<StreamRecord> {
    vec![
        StreamRecord::Head(head(true)),
        StreamRecord::Inode(inode(1, 0o040755, 8192, 0)),
        StreamRecord::Attributes(
            1,
            vec![(b"user.a".to_vec(), b"x".to_vec()), (b"user.b".to_vec(), vec![])],
        ),
        StreamRecord::Names(1, 4096, vec![entry(b"file"), entry(&[b'x'; 255])]),
        StreamRecord::Gone(2, 7),
        StreamRecord::Inode(inode(9, 0o100644, 20_000, INODE_NEW)),
        StreamRecord::Data(9, 0, vec![1; 8192]),
        StreamRecord::Hole(9, 8192, 4096),
        StreamRecord::Data(9, 16_384, vec![2; 3616]),
        StreamRecord::Gone(63, 1),
        StreamRecord::End { inodes: 2, digest: 3 },
    ]
}

fn written(records: &[StreamRecord]) -> Vec<u8> {
    let mut out = StreamWriter::new(Vec::new()).unwrap();
    records.iter().for_each(|record| out.write(record).unwrap());
    let bytes = out.bytes();
    let stream = out.finish().unwrap();
    assert_eq!(stream.len() as u64, bytes);
    stream
}

fn read(stream: &[u8]) -> Result<Vec<StreamRecord>, StreamError> {
    let mut reader = StreamReader::new(stream)?;
    let mut records = vec![StreamRecord::Head(reader.head().clone())];
    while let Some(record) = reader.next()? {
        records.push(record);
    }
    Ok(records)
}

#[test]
fn records_are_read_as_they_were_written() {
    let mut stream = written(&some());
    stream.extend(b"behind the end");
    assert_eq!(read(&stream).unwrap(), some());
}

#[test]
fn a_stream_that_ends_early_is_no_stream() {
    let stream = written(&some());
    for len in 0..stream.len() {
        let error = read(&stream[..len]).unwrap_err();
        assert!(matches!(error, StreamError::Ended(at) if at == len as u64), "{len}: {error}");
    }
}

#[test]
fn each_changed_byte_is_found() {
    let stream = written(&some());
    for at in 0..stream.len() {
        let mut other = stream.clone();
        other[at] ^= 0x10;
        assert!(read(&other).is_err(), "byte {at}");
    }
}

#[test]
fn records_keep_their_order() {
    let stream = written(&some());
    let mut places = vec![size_of::<layout::Prefix>()];
    while let Some(header) = stream.get(*places.last().unwrap()..).filter(|rest| !rest.is_empty()) {
        let len = u32::from_le_bytes(header[4..8].try_into().unwrap());
        places.push(places.last().unwrap() + size_of::<RecordHeader>() + len as usize);
    }
    let part = |i: usize| &stream[places[i]..places[i + 1]];
    let count = places.len() - 1;
    for left_out in 0..count {
        let parts = (0..count).filter(|i| *i != left_out).map(part);
        let stream: Vec<u8> =
            stream[..16].iter().copied().chain(parts.flatten().copied()).collect();
        assert!(read(&stream).is_err(), "without record {left_out}");
    }
    let twice = (0..count).flat_map(|i| std::iter::repeat_n(part(i), 1 + usize::from(i == 6)));
    let stream: Vec<u8> = stream[..16].iter().copied().chain(twice.flatten().copied()).collect();
    assert!(read(&stream).is_err());
}

/// Records that have the right checksum, and that the format does not allow.
#[test]
fn hostile_records_are_refused() {
    use StreamRecord::*;
    let file = Inode(inode(9, 0o100644, 9, INODE_NEW));
    let dir = Inode(inode(9, 0o040755, 4096, INODE_NEW));
    let bad_names: [&[u8]; 6] = [b"", b".", b"..", b"a/b", b"a\0b", b"/"];
    let mut all: Vec<Vec<StreamRecord>> =
        bad_names.iter().map(|name| vec![dir.clone(), Names(9, 0, vec![entry(name)])]).collect();
    let (mut no_inode, mut no_kind) = (entry(b"a"), entry(b"a"));
    no_inode.ino = 0;
    no_kind.kind = 5;
    let attribute = |name: &[u8]| (name.to_vec(), vec![1]);
    all.extend([
        vec![Data(9, 0, vec![1])],
        vec![file.clone(), Data(8, 0, vec![1])],
        vec![file.clone(), file.clone()],
        vec![file.clone(), Inode(inode(8, 0o100644, 9, INODE_NEW))],
        vec![file.clone(), Data(9, 4096, vec![1]), Data(9, 0, vec![1])],
        vec![file.clone(), Data(9, 0, vec![1; 4097]), Data(9, 4096, vec![1])],
        vec![file.clone(), Data(9, 1, vec![1])],
        vec![file.clone(), Data(9, 0, vec![])],
        vec![file.clone(), Data(9, 1 << 48, vec![1])],
        vec![file.clone(), Data(9, u64::MAX - 4095, vec![1])],
        vec![file.clone(), Hole(9, 0, 0)],
        vec![file.clone(), Hole(9, 0, 4097)],
        vec![file.clone(), Hole(9, 4096, u64::MAX - 4095)],
        vec![file.clone(), Data(9, 0, vec![1]), Attributes(9, vec![])],
        vec![file.clone(), Attributes(9, vec![]), Attributes(9, vec![])],
        vec![file.clone(), Attributes(9, vec![attribute(b"user.a"), attribute(b"user.a")])],
        vec![file.clone(), Attributes(9, vec![attribute(b"\0ser.a")])],
        vec![file.clone(), Attributes(9, vec![attribute(&[b'x'; 256])])],
        vec![file.clone(), Attributes(9, vec![(b"user.a".to_vec(), vec![1; 65_537])])],
        vec![
            file.clone(),
            Attributes(9, (0..20_000).map(|i| (format!("{i:05}").into_bytes(), vec![])).collect()),
        ],
        vec![dir.clone(), Names(9, 100, vec![])],
        vec![dir.clone(), Names(9, 0, vec![no_inode])],
        vec![dir.clone(), Names(9, 0, vec![no_kind])],
        vec![dir, Names(9, 0, vec![entry(&[b'x'; 200]); 19])],
        vec![Inode(inode(0, 0o100644, 9, INODE_NEW))],
        vec![Inode(inode(64, 0o100644, 9, INODE_NEW))],
        vec![Inode(inode(9, 0o644, 9, INODE_NEW))],
        vec![Inode(inode(9, 0o1_100_644, 9, INODE_NEW))],
        vec![Inode(inode(9, 0o100644, (1 << 48) + 1, INODE_NEW))],
        vec![Inode(inode(9, 0o040755, 9, INODE_NEW))],
        vec![Inode(inode(9, 0o120777, 4096, INODE_NEW))],
        vec![Inode(inode(9, 0o120777, 0, INODE_NEW))],
        vec![Inode(inode(9, 0o010644, 9, INODE_NEW))],
        vec![Inode(inode(9, 0o100644, 9, 2))],
        vec![Inode(StreamInode { rdev: 1.into(), ..inode(9, 0o100644, 9, INODE_NEW) })],
        vec![Gone(0, 1)],
        vec![Gone(63, 2)],
        vec![Gone(1, 0)],
        vec![Gone(u64::MAX, 64)],
        vec![Gone(5, 3), file.clone(), Gone(9, 1)],
        vec![Gone(9, 2), file.clone()],
        vec![Head(head(true))],
    ]);
    for records in all {
        let stream = written(&[vec![Head(head(true))], records.clone()].concat());
        let error = read(&stream).unwrap_err();
        assert!(matches!(error, StreamError::Wrong { offset: 240.., .. }), "{records:?}: {error}");
    }
    for records in [vec![Inode(inode(9, 0o100644, 9, 0))], vec![Gone(9, 1)]] {
        let stream = written(&[vec![Head(head(false))], records.clone()].concat());
        assert!(matches!(read(&stream), Err(StreamError::Wrong { .. })), "{records:?}");
    }
    assert!(matches!(read(&written(&[file])), Err(StreamError::Wrong { offset: 16, .. })));
}

#[test]
fn hostile_heads_are_refused() {
    let at = |ino, offset| StreamPosition { ino, offset };
    let named = |name: &str| StreamSnapshot { name: name.to_owned(), created_ns: 1 };
    let good = head(true);
    let bad = [
        StreamHead { inodes: 0, ..good.clone() },
        StreamHead { inodes: 33, ..good.clone() },
        StreamHead { inodes: (1 << 31) + 32, ..good.clone() },
        StreamHead { start: at(65, 0), ..good.clone() },
        StreamHead { start: at(64, 4096), ..good.clone() },
        StreamHead { start: at(0, 4096), ..good.clone() },
        StreamHead { start: at(9, 100), ..good.clone() },
        StreamHead { start: at(9, 1 << 49), ..good.clone() },
        StreamHead { snapshot: named("a/b"), ..good.clone() },
        StreamHead { snapshot: named(".."), ..good.clone() },
        StreamHead { snapshot: named(""), ..good.clone() },
        StreamHead { base: Some(named("a@b")), ..good.clone() },
        StreamHead { snapshot: StreamSnapshot { created_ns: 0, ..named("a") }, ..good.clone() },
        StreamHead { base: Some(StreamSnapshot { created_ns: 0, ..named("a") }), ..good },
    ];
    for head in bad {
        let stream = written(&[StreamRecord::Head(head.clone())]);
        assert!(matches!(read(&stream), Err(StreamError::Wrong { offset: 16, .. })), "{head:?}");
    }
}

#[test]
fn a_resumed_stream_begins_within_an_inode() {
    let start = StreamPosition { ino: 9, offset: 8192 };
    let head = StreamHead { start, ..head(true) };
    let end = StreamRecord::End { inodes: 2, digest: 3 };
    let of = |records: &[StreamRecord]| {
        read(&written(
            &[&[StreamRecord::Head(head.clone())], records, std::slice::from_ref(&end)].concat(),
        ))
    };
    of(&[StreamRecord::Data(9, 8192, vec![1])]).unwrap();
    of(&[]).unwrap();
    assert!(of(&[StreamRecord::Data(9, 4096, vec![1])]).is_err());
    assert!(of(&[StreamRecord::Inode(inode(9, 0o100644, 9, 0))]).is_err());
}

#[test]
fn a_long_record_is_refused_before_it_is_read() {
    let mut stream = written(&[StreamRecord::Head(head(true))]);
    let len = (PAYLOAD_MAX as u32 + 1).into();
    stream.extend(RecordHeader { kind: 5.into(), len, crc: 0.into() }.as_bytes());
    let error = read(&stream).unwrap_err();
    assert!(error.to_string().starts_with("byte 240 of the stream: the record has"), "{error}");
}

#[test]
fn tokens_are_checked() {
    let token = head(true).token(StreamPosition { ino: 9, offset: 4096 });
    let text = token.to_string();
    assert_eq!((text.len(), text.parse()), (80, Ok(token)));
    for at in 0..80 {
        let mut other = text.clone().into_bytes();
        other[at] = if other[at] == b'0' { b'1' } else { b'0' };
        assert!(String::from_utf8(other).unwrap().parse::<StreamToken>().is_err(), "digit {at}");
    }
    assert!(
        "".parse::<StreamToken>().is_err() && "\u{e4}".repeat(40).parse::<StreamToken>().is_err()
    );
}
