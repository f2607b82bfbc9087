//! Content of a cache's pool that a member could write, and the control attributes of files.

use crate::input::{Input, piece};
use backing::model::ModelBacking;
use backing::{Backing as _, Identity};
use bpfs::Bpfs;
use pmcache::record::{
    self, BIRTH, Birth, DIRTY, Fingerprint, Flags, MARK, Mark, NODES, RECORD, Record,
};
use pmcache::{COMMANDS, Cache, CacheOptions, DATA, DELEGATION, JOIN};
use pmem::Region;
use pool::{FormatOptions, MountOptions};
use std::ops::Range;
use vfs::{
    Announcement, Caller, Credit, Delegation, Delegations, FileSystem, Ino, NewKind, NewNode, ROOT,
    SetXattr,
};

const POOL: u64 = 2 << 20;
const FILE: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'_> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
/// Files below a cache.
const FILES: [&str; 3] = ["a", "b", "c"];

/// Parses the bytes as a record, as a birth and as a shadow's name, and writes them again.
pub fn records(bytes: &[u8]) {
    if let Ok(record) = Record::from_bytes(bytes) {
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record));
    }
    if let Ok(birth) = Birth::from_bytes(bytes) {
        assert_eq!(Birth::from_bytes(&birth.to_bytes()), Ok(birth));
    }
    if let Some(identity) = record::identity_of(bytes) {
        assert_eq!(record::name_of(&identity), bytes);
    }
}

fn engine() -> Bpfs<Region> {
    let region = Region::anonymous(POOL).expect("there is memory");
    bpfs::format(&region, &FormatOptions::default()).expect("it is large enough");
    let options = MountOptions { seed: Some(1), threads: Some(1), ..MountOptions::default() };
    Bpfs::mount(region, &options).expect("it was just formatted")
}

/// Makes a backing store with a few files; returns their identities.
fn below() -> (ModelBacking, Vec<Identity>) {
    let below = ModelBacking::new();
    let identities = FILES.map(|name| {
        let ino = below.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("room").ino;
        below.write(ino, 0, &[7; 9000]).expect("room");
        below.identity(ino).expect("each file has one")
    });
    (below, identities.to_vec())
}

fn options() -> CacheOptions {
    CacheOptions { coherence_ns: 0, max_age_ns: i64::MAX, ..CacheOptions::for_pool(POOL) }
}

fn mark(below: &ModelBacking) -> Vec<u8> {
    let root = below.identity(ROOT).expect("the root has one");
    let mark =
        Mark { version: record::VERSION, directory: "/below".into(), root: record::hex(&root.0) };
    serde_json::to_vec(&mark).expect("plain data")
}

/// Attaches a cache to a pool that a member of its group prepared: a mark, then shadows with
/// records, births and bitmaps. The pool is refused, or the cache serves and writes back.
pub fn pool(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choice = input.byte();
    let (below, identities) = below();
    let fs = engine();
    let mark = if choice & 1 == 0 { mark(&below) } else { input.piece().to_vec() };
    let make = |dir: Ino, name: &[u8], node: &NewNode<'_>| {
        fs.create(&Caller::ROOT, dir, name, node).map(|entry| entry.ino)
    };
    let file = make(ROOT, MARK, &FILE).expect("room");
    fs.write(file, 0, &mark).expect("room");
    let (nodes, dirty) =
        (make(ROOT, NODES, &DIR).expect("room"), make(ROOT, DIRTY, &DIR).expect("room"));
    while !input.is_empty() {
        let kind = input.byte();
        let name = match kind & 3 {
            3 => input.piece().to_vec(),
            n => record::name_of(&identities[usize::from(n)].0),
        };
        let (record, birth) = (input.piece(), input.piece());
        let (content, bitmap) = (input.piece(), input.piece());
        let Ok(shadow) = make(nodes, &name, &FILE) else { continue };
        let _ = fs.write(shadow, 0, content);
        let _ = fs.setxattr(shadow, RECORD, record, SetXattr::Any);
        if kind & 4 != 0 {
            let _ = fs.setxattr(shadow, BIRTH, birth, SetXattr::Any);
        }
        if kind & 8 == 0
            && let Ok(bits) = make(dirty, &name, &FILE)
        {
            let _ = fs.write(bits, 0, bitmap);
        }
    }
    let _ = pmcache::directory_of(&fs);
    let Ok(cache) = Cache::attach(fs, below, "/below", options()) else { return };
    let mut buf = vec![0; 20_000];
    for name in FILES {
        let Ok(entry) = cache.lookup(ROOT, name.as_bytes()) else { continue };
        let _ = cache.read(entry.ino, 0, &mut buf);
        let _ = cache.write(entry.ino, 4000, b"written through the cache");
        let _ = cache.fsync(entry.ino);
    }
    let _ = cache.sync();
    let _ = cache.discard(b"a");
}

/// Calls a cache with extended attributes whose names and values a user chooses, among writes.
pub fn control(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (below, _) = below();
    let Ok(cache) = Cache::attach(engine(), below, "/below", options()) else {
        unreachable!("a fresh pool becomes a cache")
    };
    let mut calls = 0;
    while !input.is_empty() && calls < 64 {
        calls += 1;
        let choice = input.byte();
        let (name, value) = (input.piece(), input.piece());
        let file = FILES[usize::from(choice) % FILES.len()];
        let Ok(entry) = cache.lookup(ROOT, file.as_bytes()) else { continue };
        let ino = if choice & 0x80 == 0 { entry.ino } else { ROOT };
        match choice >> 2 & 7 {
            0 | 1 => drop(cache.getxattr(ino, name)),
            2 | 3 => drop(cache.setxattr(ino, name, value, SetXattr::Any)),
            4 => drop(cache.removexattr(ino, name)),
            5 => drop(cache.write(ino, u64::from(choice) * 500, value)),
            6 => drop(cache.listxattr(ino)),
            _ => drop(cache.fsync(ino)),
        }
    }
}

/// Announces writes to delegated files. A choice byte and the argument of the `ioctl` (32 bytes)
/// come from the input. By the choice, the delegation in the argument is replaced by the file's
/// current one. After an announcement, the server may write the file or sync it.
pub fn announcements(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (below, _) = below();
    let Ok(cache) = Cache::attach(engine(), below, "/below", options()) else {
        unreachable!("a fresh pool becomes a cache")
    };
    cache.delegate_to_programs(b"/pool".to_vec(), Box::new(|_| Ok(())));
    let mut calls = 0;
    while !input.is_empty() && calls < 32 {
        calls += 1;
        let choice = input.byte();
        let argument = input.bytes(Announcement::LEN);
        let file = FILES[usize::from(choice) % FILES.len()];
        let Ok(entry) = cache.lookup(ROOT, file.as_bytes()) else { continue };
        let Some(mut announced) = Announcement::from_bytes(argument) else { continue };
        if choice & 0x80 == 0
            && let Ok(delegation) = cache.getxattr(entry.ino, DELEGATION.as_bytes())
            && let Some(by) = delegation.first_chunk()
        {
            announced.by = Delegation(u64::from_ne_bytes(*by));
        }
        if let Ok(credit) = cache.announce(entry.ino, &announced) {
            assert_eq!(Credit::from_bytes(&credit.to_bytes()), credit);
            let allowed = announced.blocks.end.saturating_sub(announced.blocks.start);
            assert!(credit.blocks <= allowed.max(credit.end), "{announced:?}: {credit:?}");
        }
        match choice >> 4 & 3 {
            0 => drop(cache.write(entry.ino, u64::from(choice) * 100, b"by the server")),
            1 => drop(cache.fsync(entry.ino)),
            _ => {}
        }
    }
    let _ = cache.close();
}

/// Returns announcements of some blocks, of none, of too many, and by an old delegation.
pub fn announcement_seeds() -> Vec<Vec<u8>> {
    let announcement = |choice: u8, by: u64, blocks: Range<u64>| {
        [&[choice][..], &Announcement { by: Delegation(by), blocks }.to_bytes()].concat()
    };
    vec![
        [announcement(0x20, 0, 0..1), announcement(0x20, 0, 1..40), announcement(0x10, 0, 2..3)]
            .concat(),
        [announcement(0x20, 0, 5..5), announcement(0xa0, 1, 0..1), announcement(0, 0, 7..9)]
            .concat(),
        [announcement(0x21, 0, 0..u64::MAX), announcement(0x21, 0, 1 << 40..1 << 41)].concat(),
    ]
}

/// Returns a sound record of the first file.
fn record() -> Record {
    let (_, identities) = below();
    Record {
        state: Flags::BUSY,
        left: Fingerprint { size: 9000, ..Fingerprint::default() },
        intent: Some(record::Punch { offset: 4096, len: 4096 }),
        identity: identities[0].0.clone(),
        hint: b"a".to_vec(),
    }
}

/// Returns a sound birth.
fn birth() -> Birth {
    let (below, identities) = below();
    let parent = below.identity(ROOT).expect("the root has one").0;
    let again = identities[1].0.clone();
    Birth { perm: 0o640, uid: 1, gid: 2, parent, name: b"born".to_vec(), again }
}

/// Returns a record, a birth and a shadow's name.
pub fn record_seeds() -> Vec<Vec<u8>> {
    vec![record().to_bytes(), birth().to_bytes(), record::name_of(&record().identity)]
}

/// Returns pools with one shadow, with three, with a file in conflict, and with another cache's
/// mark.
pub fn pool_seeds() -> Vec<Vec<u8>> {
    let (_, identities) = below();
    let shadow = |kind: u8, state: Flags| {
        let identity = identities[usize::from(kind & 3) % identities.len()].0.clone();
        let record = Record { state, identity, ..record() };
        let pieces = [&record.to_bytes()[..], &birth().to_bytes(), &[0x5a; 5000], &[3; 8]];
        let pieces = pieces.iter().flat_map(|part| piece(part));
        std::iter::once(kind).chain(pieces).collect::<Vec<_>>()
    };
    vec![
        [vec![0], shadow(0, Flags::empty())].concat(),
        [vec![0], shadow(0, Flags::BUSY), shadow(5, Flags::ORPHAN), shadow(10, Flags::PINNED)]
            .concat(),
        [vec![0], shadow(4, Flags::CONFLICT)].concat(),
        [vec![1], piece(b"{\"version\":1,\"directory\":\"/\",\"root\":\"00\"}")].concat(),
    ]
}

/// Returns calls with each command's attribute, and with the other control attributes.
pub fn control_seeds() -> Vec<Vec<u8>> {
    let commands = ["status", "warm", "pin", "unpin", "flush", "invalidate"];
    let names = commands.map(|command| format!("{COMMANDS}{command}")).into_iter();
    let names = names.chain([DATA, DELEGATION, JOIN, "user.keepstone.stats"].map(String::from));
    names
        .map(|name| {
            let call = |choice: u8, value: &[u8]| {
                [vec![choice], piece(name.as_bytes()), piece(value)].concat()
            };
            [call(0, b""), call(8, b"ordered"), call(20, b"content"), call(9, b"1"), call(16, b"")]
                .concat()
        })
        .collect()
}
