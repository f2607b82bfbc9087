//! Streams of snapshots: received from a sender that the input plays, and sent from a pool some of
//! whose words the input replaces.

use crate::input::{Input, piece};
use bpfs::Bpfs;
use pmem::{Medium as _, Region};
use pool::stream::{SendRequest, StreamReader, StreamRecord, StreamWriter};
use pool::{CheckOptions, FormatOptions, MountOptions};
use std::sync::LazyLock;
use vfs::{Caller, FileSystem, Ino, NewKind, NewNode, ROOT, SetXattr};

const BYTES: u64 = 2 << 20;
/// The region in which most metadata of a new pool lies, in bytes.
const HEAD: u64 = 1 << 19;
/// Bytes before the first record of a stream, and before each payload.
const PREFIX: usize = 16;
const HEADER: usize = 16;
/// The most bytes of a stream that one input makes a sound pool send.
const SENT_MAX: usize = 8 << 20;

const FILE: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'_> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

/// A pool with the snapshots `a` and `b`.
static POOL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let pool = empty();
    let make = |dir: Ino, name: &str, node: &NewNode<'_>| {
        pool.create(&Caller::ROOT, dir, name.as_bytes(), node).expect("there is room").ino
    };
    let dir = make(ROOT, "dir", &DIR);
    let file = make(dir, "file", &FILE);
    pool.write(file, 0, &[7; 9000]).expect("there is room");
    pool.write(file, 1 << 20, b"far away").expect("there is room");
    pool.link(file, ROOT, b"link").expect("there is room");
    pool.setxattr(file, b"user.x", b"value", SetXattr::Any).expect("there is room");
    let link = NewNode { kind: NewKind::Symlink(b"target"), ..FILE };
    make(ROOT, "symlink", &link);
    make(dir, "sub", &DIR);
    pool.create_snapshot("a").expect("there is room");
    pool.write(file, 4096, b"changed").expect("there is room");
    pool.setxattr(dir, b"user.y", &[1; 300], SetXattr::Any).expect("there is room");
    pool.unlink(ROOT, b"symlink").expect("it is there");
    make(dir, "new", &FILE);
    pool.create_snapshot("b").expect("there is room");
    image(pool.medium())
});

fn image(region: &Region) -> Vec<u8> {
    let mut image = vec![0; BYTES as usize];
    region.read(0, &mut image);
    image
}

fn mount(region: Region) -> Result<Bpfs<Region>, pool::Error> {
    let options = MountOptions { seed: Some(1), threads: Some(1), ..MountOptions::default() };
    Bpfs::mount(region, &options)
}

fn empty() -> Bpfs<Region> {
    let region = Region::anonymous(BYTES).expect("there is memory");
    bpfs::format(&region, &FormatOptions::default()).expect("it is large enough");
    mount(region).expect("it is sound")
}

fn region_of(image: &[u8]) -> Region {
    let region = Region::anonymous(BYTES).expect("there is memory");
    region.write(0, image);
    region
}

/// Returns a stream of the pool.
fn stream(region: &Region, base: Option<&str>, snapshot: &str) -> Option<Vec<u8>> {
    let base = base.map(str::to_owned);
    let request = SendRequest { snapshot: snapshot.to_owned(), base, resume: None };
    let mut writer = StreamWriter::new(Vec::new()).expect("there is memory");
    bpfs::send(region, &request, &mut |record: StreamRecord| {
        if writer.bytes() > SENT_MAX as u64 {
            return Err(std::io::Error::other("it is long").into());
        }
        Ok(writer.write(&record)?)
    })
    .ok()?;
    Some(writer.finish().expect("there is memory"))
}

fn problems(region: &Region) -> usize {
    let options = CheckOptions { threads: Some(1), ..CheckOptions::default() };
    bpfs::check(region, &options, &|_, _| {}).expect("it is a pool").problems.len()
}

/// Receives a stream. The input is a byte, then the stream as it is, or records: the kind and the
/// payload of each, which get the right checksum. By the byte, the pool has a base, too.
pub fn received(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choice = input.byte();
    let stream = if choice & 1 == 0 {
        input.0.to_vec()
    } else {
        let mut writer = StreamWriter::new(Vec::new()).expect("there is memory");
        while !input.is_empty() {
            let kind = u32::from(input.byte());
            writer.write_payload(kind, input.piece()).expect("there is memory");
        }
        writer.finish().expect("there is memory")
    };
    let pool = match choice & 2 {
        0 => empty(),
        _ => mount(region_of(&POOL)).expect("it is sound"),
    };
    let free = pool.statfs().blocks_free;
    let Ok(reader) = StreamReader::new(&stream[..]) else { return };
    let is_received = bpfs::receive(&pool, "received", reader, &mut |_| {}).is_ok();
    assert_eq!(problems(pool.medium()), 0, "after the stream");
    if is_received {
        let options = MountOptions {
            read_only: true,
            snapshot: Some("received".to_owned()),
            threads: Some(1),
            ..MountOptions::default()
        };
        let found = Bpfs::mount(pool.medium(), &options).expect("it was checked");
        vfs::tree::tree(&found).expect("it was checked");
        assert!(self::stream(pool.medium(), None, "received").is_some(), "it is sent on");
    }
    match pool.delete_snapshot("received") {
        Ok(()) => assert_eq!(pool.statfs().blocks_free, free, "after the snapshot is gone"),
        Err(e) => assert_eq!(e, vfs::Errno::NOENT),
    }
}

/// Splits a stream into records as [`received`] takes them.
fn records(stream: &[u8]) -> Vec<u8> {
    let (mut at, mut all) = (PREFIX, Vec::new());
    while at < stream.len() {
        let word = |at: usize| u32::from_le_bytes(stream[at..at + 4].try_into().expect("four"));
        let (kind, len) = (word(at), word(at + 4) as usize);
        all.push(kind as u8);
        all.extend(piece(&stream[at + HEADER..at + HEADER + len]));
        at += HEADER + len;
    }
    all
}

/// Returns a full stream and a difference, each as it is and as records.
pub fn received_seeds() -> Vec<Vec<u8>> {
    let region = region_of(&POOL);
    let full = stream(&region, None, "a").expect("the pool is sound");
    let difference = stream(&region, Some("a"), "b").expect("the pool is sound");
    let input = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    vec![
        input(0, &full),
        input(1, &records(&full)),
        input(2, &difference),
        input(3, &records(&difference)),
    ]
}

/// Sends from a damaged pool. The input has replaced words: offset and word.
pub fn sent(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut image = POOL.clone();
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let at = (u64::from(input.u32()) * 8 % HEAD) as usize;
        image[at..at + 8].copy_from_slice(&input.u64().to_le_bytes());
    }
    let region = region_of(&image);
    for (base, snapshot) in [(None, "a"), (Some("a"), "b"), (Some("b"), "a")] {
        let Some(stream) = stream(&region, base, snapshot) else { continue };
        // A reader may refuse the stream of a damaged pool.
        let Ok(reader) = StreamReader::new(&stream[..]) else { continue };
        let to = match base {
            None => empty(),
            Some(_) => mount(region_of(&POOL)).expect("it is sound"),
        };
        let _ = bpfs::receive(&to, "received", reader, &mut |_| {});
        assert_eq!(problems(to.medium()), 0, "after the stream");
    }
}

/// Returns no damage, and words of the table of snapshots and of the first blocks behind it.
pub fn sent_seeds() -> Vec<Vec<u8>> {
    let word = |at: u32, value: u64| [&at.to_le_bytes()[..], &value.to_le_bytes()].concat();
    vec![
        Vec::new(),
        word(256 / 8, 12 << 12),
        word((9 << 12) / 8, 13 << 12),
        [word((11 << 12) / 8, 11 << 12 | 4), word((12 << 12) / 8, 1)].concat(),
    ]
}
