//! Needs that programs send to the server of a cache, over pools whose words the input replaces.

use crate::input::Input;
use backing::model::ModelBacking;
use bpfs::Bpfs;
use pmcache::Loading;
use pmem::{Medium as _, Region};
use pool::{CheckOptions, FormatOptions, MountOptions};
use std::sync::LazyLock;
use vfs::{Caller, FileSystem, Ino, Loader as _, Need, NewKind, NewNode, ROOT};

const BYTES: u64 = 2 << 20;
/// The region in which most metadata of a new pool lies, in bytes.
const HEAD: u64 = 1 << 19;
/// Most needs of an input.
const NEEDS_MAX: usize = 64;

const FILE: NewNode<'_> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const DIR: NewNode<'_> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

/// A pool, some of whose tree is loaded, and some dirty.
static POOL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let region = Region::anonymous(BYTES).expect("there is memory");
    let options = FormatOptions { is_backed: true, ..FormatOptions::default() };
    bpfs::format(&region, &options).expect("it is large enough");
    let cache = Loading::attach(mount(region).expect("it is sound"), below()).expect("it is new");
    let dir = cache.lookup(ROOT, b"dir").expect("it lies below").ino;
    let file = cache.lookup(dir, b"file").expect("it lies below").ino;
    cache.write(file, 5000, b"dirty").expect("there is room");
    cache.create(&Caller::ROOT, dir, b"new", &FILE).expect("there is room");
    cache.unlink(ROOT, b"link").expect("it lies below");
    let region = cache.into_pool().into_medium();
    let mut image = vec![0; BYTES as usize];
    region.read(0, &mut image);
    image
});

pub(crate) fn mount(region: Region) -> Result<Bpfs<Region>, pool::Error> {
    let options = MountOptions { seed: Some(1), threads: Some(1), ..MountOptions::default() };
    Bpfs::mount(region, &options)
}

/// Returns a backing store, the same each time.
pub(crate) fn below() -> ModelBacking {
    let below = ModelBacking::new();
    let make = |dir: Ino, name: &str, node: &NewNode<'_>| {
        below.create(&Caller::ROOT, dir, name.as_bytes(), node).expect("there is room").ino
    };
    let dir = make(ROOT, "dir", &DIR);
    let file = make(dir, "file", &FILE);
    below.write(file, 0, &[7; 9000]).expect("there is room");
    below.write(file, 1 << 20, b"far away").expect("there is room");
    below.link(file, ROOT, b"link").expect("there is room");
    make(dir, "sub", &DIR);
    make(ROOT, "empty", &FILE);
    below.sync().expect("the model takes it");
    below
}

/// Serves needs. The input has a number of replaced words (offset and word), and needs as they are
/// sent. In between come calls and write-backs, by a byte before each need.
pub fn needs(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut image = POOL.clone();
    for _ in 0..input.byte() % 8 {
        let at = (u64::from(input.u32()) * 8 % HEAD) as usize;
        image[at..at + 8].copy_from_slice(&input.u64().to_le_bytes());
    }
    let region = Region::anonymous(BYTES).expect("there is memory");
    region.write(0, &image);
    let checked = CheckOptions { threads: Some(1), ..CheckOptions::default() };
    let is_sound = bpfs::check(&region, &checked, &|_, _| {}).is_ok_and(|report| report.clean());
    let Ok(pool) = mount(region) else {
        assert!(!is_sound || bytes.first().is_some_and(|count| count % 8 > 0));
        return;
    };
    let Ok(cache) = Loading::attach(pool, below()) else { return };
    let mut count = 0;
    while !input.is_empty() && count < NEEDS_MAX {
        count += 1;
        let choice = input.byte();
        if let Some(need) = Need::from_bytes(input.bytes(Need::LEN)) {
            assert_eq!(
                need.to_bytes().as_ref().and_then(|bytes| Need::from_bytes(bytes)),
                Some(need)
            );
            let _ = cache.load(&need);
        }
        let mut buffer = [0; 5000];
        let ino = Ino(u64::from(choice & 7));
        match choice >> 4 {
            0 => drop(cache.write_back()),
            1 => drop(cache.read(ino, u64::from(choice) << 12, &mut buffer)),
            2 => drop(cache.write(ino, u64::from(choice) << 8, b"by a program")),
            3 => drop(cache.evict_names(ino)),
            4 => drop(cache.unlink(ROOT, b"empty")),
            5 => drop(cache.readdir(ino, 0, &mut |_| true)),
            _ => {}
        }
    }
    let _ = cache.status();
    let _ = cache.close();
}

/// Returns needs of each kind, also of inodes and ranges that do not exist.
pub fn seeds() -> Vec<Vec<u8>> {
    let all = |needs: &[(u8, Need<'_>)]| {
        let bytes = needs.iter().map(|(choice, need)| {
            [&[*choice][..], &need.to_bytes().expect("the names are short")].concat()
        });
        [vec![0], bytes.collect::<Vec<_>>().concat()].concat()
    };
    let ino = Ino(3);
    vec![
        all(&[
            (0x50, Need::Names(ROOT)),
            (0x13, Need::Content(ino, 0, 9000)),
            (0, Need::Names(Ino(9))),
        ]),
        all(&[(0x30, Need::Removal(ROOT, b"dir")), (0x23, Need::Extension(ino, 8000, u64::MAX))]),
        all(&[
            (0x43, Need::Holes(ino, u64::MAX)),
            (0, Need::Holes(ino, 0)),
            (0x60, Need::Room(1 << 40)),
        ]),
        all(&[(0x60, Need::Content(ino, u64::MAX, 0)), (0x33, Need::Room(u64::MAX))]),
    ]
}
