//! Crashes of a BPFS pool with a backing store ([`vfs::Backed`]): in loads, in changes of what is
//! loaded, in marks, and in evictions.
//!
//! The backing store is a table of objects that outlives each crash. After every crash the pool is
//! sound. Its tree, completed from the backing store where it is absent, is that before or after
//! the operation in flight (backed-K1). Whatever is marked clean equals the backing store
//! (backed-K2), and so does each stamp that counts (backed-B5). Between operations, a crash makes
//! nothing dirty that was marked clean. If others changed the backing store just before, all of
//! this holds for the backing store as it was, or for the one that it is (backed-K4).

use crate::{mounted, text};
use crashsim::explore::Budget;
use crashsim::image::CrashImage;
use crashsim::mutate::{Mutant, mutants, mutate};
use crashsim::persist::Semantics;
use crashsim::program::{Bug, Moment, find_bugs};
use crashsim::recorder::Recorder;
use crashsim::score::Fate;
use crashsim::sited::Sited;
use crashsim::stats::{Distinct, Stats};
use crashsim::trace::Trace;
use crashsim::workload::POOL_BYTES;
use namespace::Pool;
use pmem::Medium;
use pool::DurabilityMode::{Journal, Ordered};
use pool::{DurabilityMode, FormatOptions, MountOptions};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use vfs::conformance::count_dirty;
use vfs::{
    ABSENT, Attr, Backed, Caller, Errno, Fallocate, FileKind, FileSystem as _, Ino, LoadedObject,
    NewKind, NewNode, ROOT, RenameFlags, Result, SetAttr, SetTime, Timestamp,
};

const BLOCK: u64 = 4096;
/// The times of what the backing store has at first.
const LOADED: Timestamp = Timestamp(5);

/// A file or directory, as the backing store has it, or as the pool has it together with that.
#[derive(Clone, Debug)]
struct Object {
    kind: FileKind,
    perm: u32,
    content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    mtime: Timestamp,
    /// Another one after each change below.
    stamp: u32,
}

/// Times are not atomic with what they date, and a pool has no other stamps.
impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        let Self { kind, perm, content, xattrs, .. } = self;
        (kind, perm, content, xattrs) == (&other.kind, &other.perm, &other.content, &other.xattrs)
    }
}

/// Objects by path; the start of a path is also the identity of the object.
type Tree = BTreeMap<String, Object>;

/// The part of a path that a pool has.
#[derive(Clone, Debug)]
struct Seen {
    object: Object,
    links: u32,
    identity: String,
    is_clean: bool,
    is_pinned: bool,
    /// The stamp, if it counts.
    stamp: Option<u32>,
    are_names_absent: bool,
    /// For each block of content: whether it is in the pool and, if so, marked clean.
    blocks: Vec<Option<bool>>,
}

/// What happens to the backing store just before an operation.
enum Before {
    Same,
    /// It gets all of the tree.
    HasAll,
    /// Others change it. The operation makes the pool follow.
    Others(fn(&mut Tree)),
}
use Before::{HasAll, Others, Same};

/// One operation.
struct Step(Before, fn(&dyn Backed, &Tree) -> Result<()>);

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i / 8 * 13 + i % 8 + seed) as u8 | 1).collect()
}

fn file(seed: u64, len: u64) -> Object {
    let content = bytes(seed, len);
    Object { kind: FileKind::File, perm: 0o640, content, xattrs: vec![], mtime: LOADED, stamp: 1 }
}

/// Returns what the backing store has at first.
fn below() -> Tree {
    let dir = Object { kind: FileKind::Dir, perm: 0o750, content: vec![], ..file(0, 0) };
    let named = Object { xattrs: vec![(b"user.x".to_vec(), b"value".to_vec())], ..file(5, 300) };
    [
        ("f", file(1, 4 * BLOCK + 100)),
        ("g", file(2, 2 * BLOCK)),
        ("l", file(4, 1000)),
        ("l2", file(4, 1000)),
        ("d", dir.clone()),
        ("d/a", Object { xattrs: named.xattrs.clone(), ..file(3, 5000) }),
        ("d/long name of a file that takes more than the line of its header", named),
        ("d/sub", dir),
    ]
    .map(|(path, object)| (path.to_owned(), object))
    .into()
}

/// Returns the identity of an object. The file `l` has two names, and a third one elsewhere.
fn identity_of(path: &str) -> &[u8] {
    let path = if path == "l2" { "l" } else { path };
    &path.as_bytes()[..path.len().min(vfs::IDENTITY_MAX)]
}

fn links_of(tree: &Tree, path: &str) -> u32 {
    match tree[path].kind {
        FileKind::Dir => {
            let is_dir = |path: &&String| tree[*path].kind == FileKind::Dir;
            let inside = |dir: &&String| dir.rsplit_once('/').is_some_and(|(dir, _)| dir == path);
            2 + tree.keys().filter(inside).filter(is_dir).count() as u32
        }
        _ if identity_of(path) == b"l" => 3,
        _ => 1,
    }
}

fn find(fs: &dyn Backed, path: &str) -> Result<Ino> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(ROOT, |at, name| Ok(fs.peek(at, name.as_bytes())?.ino))
}

/// Returns an object as an engine gets it.
fn loaded<'t>(tree: &'t Tree, path: &'t str) -> Result<LoadedObject<'t>> {
    let object = tree.get(path).ok_or(Errno::NOENT)?;
    let (size, time) = (object.content.len() as u64, object.mtime);
    let times = Attr { atime: time, mtime: time, ctime: time, btime: time, ..Attr::NONE };
    let nlink = links_of(tree, path);
    let attr = Attr { kind: object.kind, perm: object.perm, size, nlink, ..times };
    let (identity, xattrs) = (identity_of(path), &object.xattrs[..]);
    Ok(LoadedObject { attr, identity, stamp: object.stamp, target: b"", xattrs })
}

fn load(fs: &dyn Backed, tree: &Tree, path: &str) -> Result<()> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    match fs.load_name(find(fs, dir)?, name.as_bytes(), &loaded(tree, path)?) {
        Ok(ino) => fs.forget(ino, 1),
        Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    Ok(())
}

fn load_link(fs: &dyn Backed, path: &str, of: &str) -> Result<()> {
    fs.load_link(ROOT, path.as_bytes(), find(fs, of)?)
}

fn load_content(fs: &dyn Backed, tree: &Tree, path: &str) -> Result<()> {
    let object = tree.get(path).ok_or(Errno::NOENT)?;
    fs.load_content(find(fs, path)?, 0, &object.content).map(drop)
}

/// Notes that the objects of all dirty inodes change.
fn begin(fs: &dyn Backed) -> Result<()> {
    let mut inos = Vec::new();
    fs.each_inode(&mut |ino, residence| {
        let is_dirty = !residence.is_clean && !residence.identity.is_empty();
        inos.extend(is_dirty.then_some(ino));
    })?;
    inos.into_iter().try_for_each(|ino| match fs.getattr(ino)?.kind {
        FileKind::Dir => fs.begin_names_back(ino, 77),
        _ => fs.begin_write_back(ino),
    })
}

fn clean(fs: &dyn Backed, below: &Tree, path: &str, is_inode: bool) -> Result<()> {
    let ino = find(fs, path)?;
    let version = fs.version(ino).ok_or(Errno::IO)?;
    let done = match is_inode {
        true => fs.clean_inode(ino, version, below[path].stamp)?,
        false => fs.clean_content(ino, 0..u64::MAX, version)?,
    };
    done.map(drop).ok_or(Errno::AGAIN)
}

fn reload(fs: &dyn Backed, tree: &Tree, path: &str) -> Result<()> {
    let ino = find(fs, path)?;
    let was = fs.residence(ino)?.stamp;
    match fs.reload(ino, &loaded(tree, path)?, was)? {
        true => Ok(()),
        false => Err(Errno::AGAIN),
    }
}

fn unload(fs: &dyn Backed, path: &str) -> Result<()> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let (dir, ino) = (find(fs, dir)?, find(fs, path)?);
    match fs.unload_name(dir, name.as_bytes(), ino)? {
        true => Ok(()),
        false => Err(Errno::AGAIN),
    }
}

fn set_identity(fs: &dyn Backed, path: &str) -> Result<()> {
    fs.set_identity(find(fs, path)?, identity_of(path))
}

fn resize(fs: &dyn Backed, path: &str, size: u64) -> Result<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, find(fs, path)?, &set).map(drop)
}

fn create(fs: &dyn Backed, path: &str) -> Result<()> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let node = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };
    let made = fs.create(&Caller::ROOT, find(fs, dir)?, name.as_bytes(), &node)?;
    fs.forget(made.ino, 1);
    Ok(())
}

/// Content: loads, changes in place and by copies, marks, evictions, and space that is used again.
const CONTENT: &[Step] = &[
    Step(Same, |fs, tree| load(fs, tree, "f")),
    Step(Same, |fs, tree| load(fs, tree, "g")),
    Step(Same, |fs, _| fs.finish_names(ROOT)),
    Step(Same, |fs, tree| load_content(fs, tree, "f")),
    Step(Same, |fs, tree| load_content(fs, tree, "g")),
    Step(Same, |fs, _| create(fs, "h")),
    Step(Same, |fs, _| fs.evict_content(find(fs, "g")?, 0..u64::MAX).map(drop)),
    Step(Same, |fs, _| fs.write(find(fs, "h")?, 0, &bytes(9, 3 * BLOCK))),
    Step(Same, |fs, _| fs.write(find(fs, "f")?, 8, &[0xee; 8])),
    Step(Same, |fs, _| fs.write(find(fs, "f")?, BLOCK + 9, &[0xed; 70])),
    Step(Same, |fs, _| fs.write(find(fs, "f")?, 2 * BLOCK, &bytes(8, BLOCK))),
    Step(Same, |fs, _| fs.append(find(fs, "f")?, &[0xec; 50]).map(drop)),
    Step(Same, |fs, _| begin(fs)),
    Step(HasAll, |fs, below| clean(fs, below, "f", false)),
    Step(Same, |fs, below| clean(fs, below, "f", true)),
    Step(Same, |fs, _| fs.write(find(fs, "f")?, 3 * BLOCK + 1, &[0xeb; 3])),
    Step(Same, |fs, _| begin(fs)),
    Step(HasAll, |fs, below| clean(fs, below, "f", false)),
    Step(Same, |fs, below| clean(fs, below, "f", true)),
    Step(Same, |fs, _| fs.evict_content(find(fs, "f")?, BLOCK..3 * BLOCK).map(drop)),
    Step(Same, |fs, _| fs.append(find(fs, "h")?, &bytes(7, 2 * BLOCK)).map(drop)),
    Step(Same, |fs, _| resize(fs, "f", 3 * BLOCK + 50)),
    Step(Same, |fs, _| resize(fs, "f", 6 * BLOCK)),
    Step(Same, |fs, tree| load_content(fs, tree, "f")),
    Step(Same, |fs, _| fs.fallocate(find(fs, "f")?, Fallocate::PunchHole, BLOCK, BLOCK)),
    Step(Same, |fs, _| begin(fs)),
    Step(HasAll, |fs, below| clean(fs, below, "f", false)),
    Step(Same, |fs, below| clean(fs, below, "f", true)),
    Step(Same, |fs, _| fs.evict_content(find(fs, "f")?, 0..u64::MAX).map(drop)),
    Step(Same, |fs, _| fs.load_hole(find(fs, "f")?, 4 * BLOCK..6 * BLOCK)),
    Step(Same, |fs, _| create(fs, "i")),
    Step(Same, |fs, _| fs.write(find(fs, "i")?, 0, &bytes(6, 6 * BLOCK))),
    Step(Same, |fs, _| resize(fs, "f", 0)),
];

/// Names: loads, marks, evictions, and inodes that are used again.
const NAMES: &[Step] = &[
    Step(Same, |fs, tree| load(fs, tree, "d")),
    Step(Same, |fs, tree| load(fs, tree, "f")),
    Step(Same, |fs, tree| load(fs, tree, "g")),
    Step(Same, |fs, tree| load(fs, tree, "l")),
    Step(Same, |fs, _| load_link(fs, "l2", "l")),
    Step(Same, |fs, _| fs.finish_names(ROOT)),
    Step(Same, |fs, _| fs.finish_links(find(fs, "l")?)),
    Step(Same, |fs, _| fs.unlink(ROOT, b"l")),
    Step(Same, |fs, tree| load(fs, tree, "d/a")),
    Step(Same, |fs, tree| {
        load(fs, tree, "d/long name of a file that takes more than the line of its header")
    }),
    Step(Same, |fs, tree| load(fs, tree, "d/sub")),
    Step(Same, |fs, _| fs.finish_names(find(fs, "d")?)),
    Step(Same, |fs, tree| load_content(fs, tree, "d/a")),
    Step(Same, |fs, _| fs.evict_names(find(fs, "d")?).map(drop)),
    Step(Same, |fs, _| create(fs, "n")),
    Step(Same, |fs, _| fs.write(find(fs, "n")?, 0, &bytes(9, 3 * BLOCK))),
    Step(Same, |fs, tree| {
        let names = tree.keys().filter(|path| path.starts_with("d/"));
        names.into_iter().try_for_each(|path| load(fs, tree, path))
    }),
    Step(Same, |fs, _| fs.finish_names(find(fs, "d")?)),
    Step(Same, |fs, _| fs.finish_names(find(fs, "d/sub")?)),
    Step(Same, |fs, _| create(fs, "d/new")),
    Step(Same, |fs, _| fs.write(find(fs, "d/new")?, 0, &bytes(3, BLOCK + 9))),
    Step(Same, |fs, _| {
        let set = SetAttr { perm: Some(0o604), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, find(fs, "d/a")?, &set).map(drop)
    }),
    Step(Same, |fs, _| {
        let d = find(fs, "d")?;
        fs.rename((d, b"new"), (find(fs, "d/sub")?, b"moved"), RenameFlags::empty())
    }),
    Step(Same, |fs, _| begin(fs)),
    Step(HasAll, |fs, _| set_identity(fs, "d/sub/moved")),
    Step(Same, |fs, below| clean(fs, below, "d/sub/moved", false)),
    Step(Same, |fs, below| clean(fs, below, "d/sub/moved", true)),
    Step(Same, |fs, below| clean(fs, below, "d/a", true)),
    // The object of a file is replaced.
    Step(Same, |fs, _| {
        let sub = find(fs, "d/sub")?;
        fs.rename((sub, b"moved"), (sub, b"other"), RenameFlags::empty())
    }),
    Step(Same, |fs, _| fs.write(find(fs, "d/sub/other")?, 0, &bytes(4, BLOCK + 9))),
    Step(Same, |fs, _| begin(fs)),
    Step(HasAll, |fs, _| set_identity(fs, "d/sub/other")),
    Step(Same, |fs, below| clean(fs, below, "d/sub/other", false)),
    Step(Same, |fs, below| clean(fs, below, "d/sub/other", true)),
    Step(Same, |fs, _| {
        let mtime = Some(SetTime::At(Timestamp(1 << 40)));
        let set = SetAttr { mtime, ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, find(fs, "d/a")?, &set).map(drop)
    }),
    Step(Same, |fs, _| begin(fs)),
    Step(HasAll, |fs, below| clean(fs, below, "d/a", true)),
    Step(Same, |fs, below| clean(fs, below, "d/sub", true)),
    Step(Same, |fs, below| clean(fs, below, "d", true)),
    Step(Same, |fs, _| create(fs, "o")),
    Step(Same, |fs, _| fs.evict_names(find(fs, "d/sub")?).map(drop)),
    Step(Same, |fs, _| fs.write(find(fs, "o")?, 0, &bytes(5, BLOCK))),
    Step(Same, |fs, _| fs.evict_names(find(fs, "d")?).map(drop)),
    // The block of the directory, without a fence in between.
    Step(Same, |fs, _| fs.append(find(fs, "o")?, &bytes(6, BLOCK)).map(drop)),
    Step(Same, |fs, _| fs.append(find(fs, "o")?, &bytes(7, 4 * BLOCK)).map(drop)),
];

/// Returns a file as others have written it.
fn theirs(stamp: u32) -> Object {
    Object { stamp, mtime: Timestamp(i64::from(stamp)), ..file(stamp.into(), 3 * BLOCK + 5) }
}

/// Objects that others change below: reloads, entries that go and come, and space that is used
/// again.
const CHANGES: &[Step] = &[
    Step(Same, |fs, tree| load(fs, tree, "f")),
    Step(Same, |fs, tree| load(fs, tree, "g")),
    Step(Same, |fs, tree| load(fs, tree, "d")),
    Step(Same, |fs, _| fs.finish_names(ROOT)),
    Step(Same, |fs, tree| load_content(fs, tree, "f")),
    Step(Same, |fs, tree| load_content(fs, tree, "g")),
    // Shorter, and with attributes.
    Step(
        Others(|below| {
            let xattrs = vec![(b"user.y".to_vec(), b"theirs".to_vec())];
            let mtime = Timestamp(50);
            let theirs =
                Object { perm: 0o604, stamp: 100, xattrs, mtime, ..file(9, 2 * BLOCK + 7) };
            below.insert("f".into(), theirs);
        }),
        |fs, tree| reload(fs, tree, "f"),
    ),
    Step(Same, |fs, _| create(fs, "h")),
    Step(Same, |fs, _| fs.write(find(fs, "h")?, 0, &bytes(8, 4 * BLOCK))),
    Step(Same, |fs, tree| load_content(fs, tree, "f")),
    // Longer, and without them.
    Step(
        Others(|below| {
            let theirs = Object { stamp: 101, mtime: Timestamp(51), ..file(7, 5 * BLOCK) };
            below.insert("f".into(), theirs);
        }),
        |fs, tree| reload(fs, tree, "f"),
    ),
    Step(Same, |fs, _| fs.append(find(fs, "h")?, &bytes(5, 2 * BLOCK)).map(drop)),
    Step(Same, |fs, tree| load_content(fs, tree, "f")),
    Step(Same, |fs, _| fs.write(find(fs, "f")?, BLOCK + 9, &[0xed; 70])),
    // A conflict: the pool's side, and then that of the backing store.
    Step(Same, |fs, _| fs.set_pinned(find(fs, "f")?, true)),
    Step(Same, |fs, _| fs.make_dirty(find(fs, "f")?)),
    Step(Others(|below| drop(below.insert("f".into(), theirs(104)))), |fs, _| {
        fs.note_stamp(find(fs, "f")?, 101, 104).map(drop)
    }),
    Step(Others(|below| drop(below.insert("f".into(), theirs(105)))), |fs, tree| {
        let ino = find(fs, "f")?;
        let is_done = fs.replace(ino, &loaded(tree, "f")?, 104)?;
        if is_done { Ok(()) } else { Err(Errno::AGAIN) }
    }),
    Step(Same, |fs, _| fs.append(find(fs, "h")?, &bytes(4, BLOCK)).map(drop)),
    Step(Same, |fs, tree| load_content(fs, tree, "f")),
    Step(Same, |fs, _| fs.set_pinned(find(fs, "f")?, false)),
    Step(Same, |fs, tree| load(fs, tree, "d/a")),
    Step(Same, |fs, tree| {
        load(fs, tree, "d/long name of a file that takes more than the line of its header")
    }),
    Step(Same, |fs, tree| load(fs, tree, "d/sub")),
    Step(Same, |fs, _| fs.finish_names(find(fs, "d")?)),
    Step(Same, |fs, tree| load_content(fs, tree, "d/a")),
    // A name goes, and one comes.
    Step(Others(|below| drop(below.remove("d/a"))), |fs, _| {
        fs.begin_names(find(fs, "d")?)?;
        unload(fs, "d/a")
    }),
    Step(Same, |fs, _| create(fs, "n")),
    Step(Same, |fs, _| fs.write(find(fs, "n")?, 0, &bytes(3, 3 * BLOCK))),
    Step(Others(|below| drop(below.insert("d/b".into(), file(6, 9000)))), |fs, tree| {
        load(fs, tree, "d/b")
    }),
    Step(
        Others(|below| {
            let dir = below.get_mut("d").expect("it is there");
            (dir.perm, dir.mtime, dir.stamp) = (0o711, Timestamp(60), 102);
        }),
        |fs, tree| reload(fs, tree, "d"),
    ),
    Step(Same, |fs, _| fs.finish_names(find(fs, "d")?)),
    Step(Same, |fs, tree| load_content(fs, tree, "d/b")),
    // A directory that changes on both sides.
    Step(Same, |fs, _| create(fs, "d/new")),
    Step(Others(|below| below.get_mut("d").expect("it is there").stamp = 103), |fs, _| {
        fs.note_stamp(find(fs, "d")?, 102, 103).map(drop)
    }),
    Step(Same, |fs, _| create(fs, "d/newer")),
    Step(Same, |fs, _| fs.write(find(fs, "d/newer")?, 0, &bytes(2, BLOCK))),
    // One of them goes, though it is dirty.
    Step(Same, |fs, _| {
        let d = find(fs, "d")?;
        fs.begin_names(d)?;
        let is_gone = fs.drop_name(d, b"newer", find(fs, "d/newer")?)?;
        if is_gone { Ok(()) } else { Err(Errno::AGAIN) }
    }),
    Step(Same, |fs, _| fs.append(find(fs, "h")?, &bytes(1, BLOCK)).map(drop)),
    Step(Same, |fs, _| fs.finish_names(find(fs, "d")?)),
];

/// Reads all that a pool has.
fn see(fs: &dyn Backed) -> Result<BTreeMap<String, Seen>> {
    let mut all = BTreeMap::new();
    let mut pending = vec![(String::new(), ROOT)];
    while let Some((path, ino)) = pending.pop() {
        let (attr, residence) = (fs.getattr(ino)?, fs.residence(ino)?);
        let mut names = Vec::new();
        if residence.are_names_absent {
            fs.each_name(ino, &mut |name, ino, _| names.push((name.to_vec(), ino)))?;
        } else if attr.kind == FileKind::Dir {
            fs.readdir(ino, 0, &mut |e| {
                if !matches!(e.name, b"." | b"..") {
                    names.push((e.name.to_vec(), e.ino));
                }
                true
            })?;
        }
        let is_file = attr.kind == FileKind::File;
        let (mut content, mut blocks) =
            (vec![0; if is_file { attr.size } else { 0 } as usize], vec![]);
        if is_file {
            for (i, block) in (0..).zip(content.chunks_mut(BLOCK as usize)) {
                let at = i * BLOCK;
                let is_dirty = fs.dirty_range(ino, at)?.is_some_and(|range| range.start == at);
                blocks.push(match fs.read(ino, at, block) {
                    Ok(_) => Some(!is_dirty),
                    Err(ABSENT) => None,
                    Err(e) => return Err(e),
                });
            }
        }
        let name_of = |name: Vec<u8>| fs.getxattr(ino, &name).map(|value| (name, value));
        let xattrs = fs.listxattr(ino)?.into_iter().map(name_of).collect::<Result<Vec<_>>>()?;
        let Attr { kind, perm, mtime, nlink, .. } = attr;
        let seen = Seen {
            object: Object { kind, perm, content, xattrs, mtime, stamp: 0 },
            links: nlink,
            identity: String::from_utf8_lossy(&residence.identity).into_owned(),
            is_clean: residence.is_clean,
            is_pinned: residence.is_pinned,
            stamp: (!residence.is_busy && residence.stamp != 0).then_some(residence.stamp),
            are_names_absent: residence.are_names_absent,
            blocks,
        };
        for (name, ino) in names {
            let slash = if path.is_empty() { "" } else { "/" };
            pending.push((format!("{path}{slash}{}", String::from_utf8_lossy(&name)), ino));
        }
        all.insert(path, seen);
    }
    // dirty-N1, dirty-N2.
    assert_eq!(fs.dirty_count(), count_dirty(fs)?);
    Ok(all)
}

/// Completes what a pool has from the backing store, and compares what is marked clean.
fn complete(seen: &BTreeMap<String, Seen>, below: &Tree) -> std::result::Result<Tree, String> {
    let mut tree = Tree::new();
    for (path, seen) in seen {
        let mut object = seen.object.clone();
        let is_same = |path: &&String| identity_of(path) == seen.identity.as_bytes();
        let same = below.keys().find(is_same).map(|path| &below[path]);
        if !seen.identity.is_empty() && same.is_none() {
            return Err(format!("{path} has the identity of no object, {:?}", seen.identity));
        }
        if let (Some(stamp), Some(same)) = (seen.stamp, same)
            && stamp != same.stamp
        {
            return Err(format!("{path} has stamp {stamp}, and its object {}", same.stamp));
        }
        for (i, block) in (0..).zip(&seen.blocks) {
            let range = i * BLOCK as usize..object.content.len().min((i + 1) * BLOCK as usize);
            let wanted = same.and_then(|same| same.content.get(range.clone()));
            match (block, wanted) {
                (Some(false), _) => {}
                // A hole counts as clean, whatever the backing store has there.
                (Some(true), _) if object.content[range.clone()].iter().all(|b| *b == 0) => {}
                (Some(true), Some(wanted)) if *wanted == object.content[range.clone()] => {}
                (None, Some(wanted)) => object.content[range].copy_from_slice(wanted),
                _ => return Err(format!("{path}: block {i} is clean or absent, but not below")),
            }
        }
        let is_same = same.is_some_and(|same| {
            let size = |object: &Object| object.content.len();
            let what =
                |object: &Object| (object.kind, object.perm, object.xattrs.clone(), object.mtime);
            what(same) == what(&object) && size(same) == size(&object)
        });
        if seen.is_clean && !is_same {
            return Err(format!("{path} is marked clean, and differs from {:?}", seen.identity));
        }
        tree.insert(path.clone(), object);
    }
    // Directories whose names are absent have those of the backing store, and so on.
    for (path, absent) in seen.iter().filter(|(_, seen)| seen.are_names_absent) {
        let from = if path.is_empty() { "" } else { absent.identity.as_str() };
        for (found, object) in below {
            let inside = if from.is_empty() {
                Some(found.as_str())
            } else {
                found.strip_prefix(from).and_then(|rest| rest.strip_prefix('/'))
            };
            let Some(inside) = inside.filter(|inside| !inside.is_empty()) else { continue };
            let to = if path.is_empty() { inside.to_owned() } else { format!("{path}/{inside}") };
            // A directory in it that is in the pool is completed on its own.
            let parts = to.match_indices('/').map(|(at, _)| &to[..at]);
            let is_whole = |dir: &str| dir.len() > path.len() && seen.contains_key(dir);
            if !parts.into_iter().any(is_whole) {
                tree.entry(to).or_insert_with(|| object.clone());
            }
        }
    }
    for (path, seen) in seen.iter().filter(|(path, _)| !path.is_empty()) {
        let links = links_of(&tree, path);
        if seen.object.kind == FileKind::Dir && seen.links != links {
            return Err(format!("{path} has {} links, and should have {links}", seen.links));
        }
    }
    Ok(tree)
}

/// Makes the backing store equal to a tree.
fn write_back(below: &mut Tree, tree: &Tree, stamp: u32) {
    for (path, object) in tree {
        let is_same = |old: &Object| old == object && old.mtime == object.mtime;
        if !below.get(path).is_some_and(is_same) {
            below.insert(path.clone(), Object { stamp, ..object.clone() });
        }
    }
}

/// Returns an error if something is dirty that is marked clean in `before`.
fn check_marks(
    before: &BTreeMap<String, Seen>,
    seen: &BTreeMap<String, Seen>,
) -> std::result::Result<(), String> {
    for (path, before) in before {
        let Some(seen) = seen.get(path) else { continue };
        let is_dirty = |(before, seen)| before == &Some(true) && seen == &Some(false);
        let is_any_dirty = before.blocks.iter().zip(&seen.blocks).any(is_dirty);
        if is_any_dirty || before.is_clean && !seen.is_clean {
            return Err(format!("{path} was marked clean, and is dirty"));
        }
    }
    Ok(())
}

/// Returns an error unless each pin is that of one of these moments.
fn check_pins(
    moments: &[BTreeMap<String, Seen>],
    seen: &BTreeMap<String, Seen>,
) -> std::result::Result<(), String> {
    for (path, seen) in seen {
        let mut before = moments.iter().filter_map(|moment| moment.get(path)).peekable();
        if before.peek().is_some() && !before.any(|before| before.is_pinned == seen.is_pinned) {
            return Err(format!("{path} is pinned: {}", seen.is_pinned));
        }
    }
    Ok(())
}

type Engine<'m, M> = Pool<bpfs::Files<Sited<&'m M>>>;

/// Mounts the pool on a medium, in a mode of durability.
pub(crate) fn mount<M: Medium>(
    medium: &M,
    mode: DurabilityMode,
) -> std::result::Result<Engine<'_, M>, String> {
    mount_with(medium, mode, &mounted::mount_options())
}

/// As [`mount`], with these options.
pub(crate) fn mount_with<'m, M: Medium>(
    medium: &'m M,
    mode: DurabilityMode,
    options: &MountOptions,
) -> std::result::Result<Engine<'m, M>, String> {
    let pool = Engine::mount(Sited(medium), options).map_err(text)?;
    pool.record_access(false, false, false);
    pool.set_durability(mode).map_err(text)?;
    Ok(pool)
}

/// Explores all crashes; the error is the first that violates a promise.
pub fn explore(distinct: &Distinct) -> std::result::Result<Stats, String> {
    let budget = Budget { states: 1 << 8, samples: 16, ..Budget::default() };
    let mut stats = Stats::default();
    for (steps, semantics, mode) in [
        (CONTENT, Semantics::Adr, Journal),
        (NAMES, Semantics::Adr, Journal),
        (CHANGES, Semantics::Adr, Journal),
        (CONTENT, Semantics::AdrWords, Journal),
        (CHANGES, Semantics::AdrWords, Journal),
        (CONTENT, Semantics::Adr, Ordered),
        (NAMES, Semantics::Adr, Ordered),
        (CHANGES, Semantics::AdrWords, Ordered),
    ] {
        let run = RecordedSteps::record(steps, semantics, mode)?;
        let (explored, bugs) = run.find_bugs(&run.trace, budget, distinct);
        if let Some(bug) = bugs.first() {
            return Err(format!("{} of {}: {bug}", semantics.name(), bugs.len()));
        }
        stats.add(&explored);
    }
    Ok(stats)
}

/// Tries these mutants of the steps.
pub fn score(only: &dyn Fn(&Mutant) -> bool) -> std::result::Result<Fates, String> {
    let budget = Budget { states: 16, runs: 64, samples: 0, ..Budget::default() };
    let mut fates = Fates::new();
    for steps in [CONTENT, NAMES, CHANGES] {
        let run = RecordedSteps::record(steps, Semantics::Adr, Journal)?;
        for mutant in mutants(&run.trace, 0).into_iter().filter(|mutant| only(mutant)) {
            let mutated = mutate(&run.trace, &run.initial, &mutant);
            let fate = fates.entry(mutant).or_insert(Fate::Moot);
            let (Some(trace), false) = (mutated, matches!(fate, Fate::Killed { .. })) else {
                continue;
            };
            let (_, bugs) = run.find_bugs(&trace, budget, &Distinct::default());
            *fate = match bugs.into_iter().next() {
                Some(bug) => Fate::Killed { by: "a backed pool".into(), what: bug.what },
                None => Fate::Survived,
            };
        }
    }
    Ok(fates)
}

/// The fates of mutants.
pub type Fates = BTreeMap<Mutant, Fate>;

/// Steps that have run.
struct RecordedSteps {
    semantics: Semantics,
    mode: DurabilityMode,
    initial: Vec<u8>,
    trace: Trace,
    /// The backing store when a number of steps have begun.
    belows: Vec<Tree>,
    /// Whether others change the backing store before a step.
    by_others: Vec<bool>,
    /// The tree after a number of steps, and the part that the pool has.
    trees: Vec<Tree>,
    parts: Vec<BTreeMap<String, Seen>>,
}

impl RecordedSteps {
    fn record(
        steps: &[Step],
        semantics: Semantics,
        mode: DurabilityMode,
    ) -> std::result::Result<Self, String> {
        let image = CrashImage::new(POOL_BYTES);
        let options = FormatOptions { is_backed: true, ..FormatOptions::default() };
        bpfs::format(&Sited(&image), &options).map_err(text)?;
        let initial = image.bytes();
        let recorder = Recorder::new(CrashImage::under(semantics, initial.clone()));
        let (mut belows, mut trees, mut parts) = (vec![below()], Vec::new(), Vec::new());
        {
            let fs = mount(&recorder, mode)?;
            parts.push(see(&fs).map_err(text)?);
            trees.push(complete(&parts[0], &belows[0])?);
            for (i, Step(before, run)) in steps.iter().enumerate() {
                let mut below = belows[i].clone();
                match before {
                    Same => {}
                    HasAll => {
                        // Write-back makes content durable in the pool before (writeback-W7).
                        fs.sync().map_err(text)?;
                        write_back(&mut below, &trees[i], i as u32 + 2);
                    }
                    Others(change) => change(&mut below),
                }
                recorder.begin(i as u32);
                run(&fs, &below).map_err(|e| format!("step {i}: {e}"))?;
                recorder.end(i as u32);
                parts.push(see(&fs).map_err(text)?);
                trees.push(complete(&parts[i + 1], &below)?);
                belows.push(below);
            }
        }
        let by_others = steps.iter().map(|Step(before, _)| matches!(before, Others(_))).collect();
        let trace = recorder.into_trace();
        Ok(Self { semantics, mode, initial, trace, belows, by_others, trees, parts })
    }

    /// Explores the crashes of this trace, or of one with a planted bug.
    fn find_bugs(&self, trace: &Trace, budget: Budget, distinct: &Distinct) -> (Stats, Vec<Bug>) {
        let recover = |image: &CrashImage| {
            let report = bpfs::check(&Sited(image), &mounted::options(false), &|_, _| {});
            match report.map_err(text)?.problems.first() {
                Some(problem) => Err(problem.to_string()),
                None => see(&mount(image, self.mode)?).map_err(text),
            }
        };
        // Whether a crash left one of these moments, if the pool belongs to this backing store.
        let is_of = |moments: RangeInclusive<usize>, below: usize, seen: &_| {
            let found = complete(seen, &self.belows[below])?;
            match self.trees[moments].contains(&found) {
                true => Ok(()),
                false => Err(format!("the tree is that of no moment: {:?}", found.keys())),
            }
        };
        let judge = |now: Moment, seen: &BTreeMap<String, Seen>| {
            let (returned, begun) = (now.returned as usize, now.begun as usize);
            // In `ordered`, the last operation that has returned may be lost (order-O1).
            let first = returned.saturating_sub(usize::from(self.mode == Ordered));
            check_pins(&self.parts[first..=begun], seen)?;
            if returned == begun {
                check_marks(&self.parts[begun], seen)?;
            } else if self.by_others[returned] {
                // All of the pool belongs to the backing store as it was, or as it is.
                return is_of(first..=returned, returned, seen)
                    .or_else(|_| is_of(begun..=begun, begun, seen));
            }
            is_of(first..=begun, begun, seen)
        };
        find_bugs(trace, &self.initial, self.semantics, budget, distinct, &recover, &judge)
    }
}
