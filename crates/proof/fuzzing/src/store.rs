//! Objects and listings from an object store. An object consists of a header with a checksum, and a
//! payload; the targets seal payloads with sound headers, which mutations would seldom hit.

use crate::input::{Input, piece};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use objects::format::{
    self, Contents, Id, Kind, Lease, Manifest, Part, decode, encode, open, seal,
};
use objects::replay::Loaded;
use objects::{Location, ObjectFs, StoreOptions};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::runtime::Runtime;
use vfs::{Caller, FileSystem, NewKind, NewNode, ROOT, SetXattr, Timestamp};

const PREFIX: &str = "tree";
const FILE: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const CHUNK_BYTES: u32 = 8192;

/// Runs requests to stores.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a thread")
});

/// Decodes the bytes as one object of each kind, as they are and as the payload of a sound header.
pub fn objects(bytes: &[u8]) {
    let sealed = |kind| seal(kind, bytes);
    for object in [bytes, &sealed(Kind::Manifest)] {
        if let Ok(manifest) = Manifest::decode(object, "manifest") {
            let again = encode(Kind::Manifest, &manifest);
            assert_eq!(Manifest::decode(&again, "manifest").ok(), Some(manifest));
        }
    }
    for object in [bytes, &sealed(Kind::Lease)] {
        let _ = Lease::decode(object, "lease");
    }
    let _ = decode::<Contents>(Kind::Snapshot, &sealed(Kind::Snapshot), "snapshot");
    if let Ok(name) = std::str::from_utf8(bytes) {
        let _ = (Id::parse(name), objects::is_url(name));
    }
    let log = sealed(Kind::Log);
    let payload = open(Kind::Log, &log, "log").expect("it was sealed");
    if let Ok(mut loaded) = Loaded::from_snapshot(payload) {
        loaded.forget_held();
    }
    if let Ok(mut loaded) = Loaded::from_snapshot(&EMPTY) {
        let _ = loaded.replay(payload, CHUNK_BYTES);
        loaded.forget_held();
    }
}

/// The payload of the snapshot of an empty tree.
static EMPTY: LazyLock<Vec<u8>> = LazyLock::new(|| payload("snapshot/"));

/// Opens a tree in a store whose objects the input chooses. First come the payloads of a snapshot
/// and a log, which a sound manifest names, then names with contents. The tree is refused, or it is
/// read, written and collected.
pub fn tree(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choice = input.byte();
    let (snapshot, log) = (input.piece(), input.piece());
    let store = Arc::new(InMemory::new());
    let put = |name: &str, bytes: Vec<u8>| {
        let Ok(path) = Path::parse(format!("{PREFIX}/{name}")) else { return };
        let _ = RUNTIME.block_on(store.put(&path, bytes.into()));
    };
    let id = |number| Id { epoch: 1, number };
    let snapshot = seal(Kind::Snapshot, if choice & 1 == 0 { &EMPTY } else { snapshot });
    let log = seal(Kind::Log, log);
    let manifest = Manifest {
        tree: [1; 16],
        epoch: 1,
        holder: [2; 16],
        sequence: u64::from(choice),
        chunk_bytes: CHUNK_BYTES,
        snapshot: Part::of(id(1), &snapshot),
        logs: vec![Part::of(id(2), &log)],
    };
    put(&id(1).name("snapshot"), snapshot);
    put(&id(2).name("log"), log);
    if choice & 2 == 0 {
        put("manifest", encode(Kind::Manifest, &manifest));
    }
    while !input.is_empty() {
        let (name, content) = (input.piece(), input.piece());
        // A lease that seems held makes each run wait for it to end.
        if let Ok(name) = std::str::from_utf8(name)
            && name != "lease"
        {
            put(name, content.to_vec());
        }
    }
    let location = Location::new(store.clone(), PREFIX);
    let Ok(fs) = ObjectFs::open(location, options()) else { return };
    let mut names = Vec::new();
    let _ = fs.readdir(ROOT, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        names.len() < 50
    });
    let mut buf = vec![0; 20_000];
    for name in names {
        let Ok(entry) = fs.lookup(ROOT, &name) else { continue };
        let _ = (fs.read(entry.ino, 0, &mut buf), fs.write(entry.ino, 100, b"written"));
        let _ = (fs.readlink(entry.ino), fs.listxattr(entry.ino), fs.fsync(entry.ino));
    }
    let _ = fs.sync();
    let _ = fs.collect();
}

fn options() -> StoreOptions {
    StoreOptions {
        chunk_bytes: CHUNK_BYTES,
        staged_max: 1 << 20,
        lease: Duration::from_secs(60),
        ..StoreOptions::default()
    }
}

/// Returns the objects of a small tree, by name.
fn filled() -> Vec<(String, Vec<u8>)> {
    let store = Arc::new(InMemory::new());
    let fs =
        ObjectFs::open(Location::new(store.clone(), PREFIX), options()).expect("an empty store");
    for i in 0..3 {
        let name = format!("file-{i}");
        let ino = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("room").ino;
        fs.write(ino, i * 1000, &[7; 9000]).expect("room");
        fs.setxattr(ino, b"user.x", b"value", SetXattr::Any).expect("room");
        fs.fsync(ino).expect("memory takes it");
    }
    let link = NewNode { kind: NewKind::Symlink(b"/etc"), mode: 0o777, umask: 0 };
    fs.create(&Caller::ROOT, ROOT, b"link", &link).expect("room");
    fs.sync().expect("memory takes it");
    let listed = RUNTIME.block_on(store.list_with_delimiter(None)).expect("memory answers");
    let folders = listed.common_prefixes.into_iter().flat_map(|prefix| {
        let below = RUNTIME.block_on(store.list_with_delimiter(Some(&prefix))).expect("it answers");
        let folders = below.common_prefixes.into_iter();
        let inner = folders.flat_map(|folder| {
            RUNTIME.block_on(store.list_with_delimiter(Some(&folder))).expect("it answers").objects
        });
        below.objects.into_iter().chain(inner.collect::<Vec<_>>())
    });
    folders
        .map(|meta| {
            let got = RUNTIME.block_on(async { store.get(&meta.location).await?.bytes().await });
            let name = meta.location.to_string();
            (name[PREFIX.len() + 1..].to_owned(), got.expect("it is listed").to_vec())
        })
        .collect()
}

static FILLED: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(filled);

/// Returns the payload of the first object below a folder.
fn payload(folder: &str) -> Vec<u8> {
    let found = FILLED.iter().find(|(name, _)| name.starts_with(folder));
    found.map_or(Vec::new(), |(_, bytes)| bytes[format::HEADER..].to_vec())
}

/// Returns each object of a tree except file contents, whole and as its payload alone; then a lease
/// and an object's name.
pub fn object_seeds() -> Vec<Vec<u8>> {
    let lease = Lease {
        holder: [1; 16],
        host: "host".into(),
        place: "place".into(),
        pid: 1,
        started: 2,
        since: Timestamp(3),
        counter: 4,
        duration_ms: 5,
        is_released: false,
    };
    let objects = FILLED.iter().filter(|(name, _)| !name.starts_with("data/"));
    let both = objects.flat_map(|(_, bytes)| [bytes.clone(), bytes[format::HEADER..].to_vec()]);
    both.chain([encode(Kind::Lease, &lease), b"0000000000000001-0000000000000002".to_vec()])
        .collect()
}

/// Returns trees with a sound snapshot and log: alone, with foreign names, and with all objects of
/// a sound tree.
pub fn tree_seeds() -> Vec<Vec<u8>> {
    let (snapshot, log) = (payload("snapshot/"), payload("log/"));
    let other = |name: &str| [piece(name.as_bytes()), piece(b"content")].concat();
    let head = |choice: u8| [vec![choice], piece(&snapshot), piece(&log)].concat();
    let named = FILLED.iter().filter(|(name, _)| name != "lease");
    let all = named.flat_map(|(name, bytes)| [piece(name.as_bytes()), piece(bytes)].concat());
    vec![
        head(0),
        [head(1), other("data/../../../etc/1"), other("data/0000000000000001-0000000000000009")]
            .concat(),
        [head(2), other("log/x"), other("stranger")].concat(),
        [head(2), all.collect()].concat(),
    ]
}
