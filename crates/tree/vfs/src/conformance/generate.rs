//! Sequences of calls, generated from a seed.
//!
//! Each call is drawn independently of the state: some positions are relative to the end of the
//! file, and the universe of names is small. So leaving calls out of a sequence gives another valid
//! sequence, as shrinking needs.

use proptest::prelude::*;

use crate::script::{
    AclOf, Attrs, Batch, By, Data, HANDLES, How, Keep, New, Octal, Only, Op, Part, Pos, When,
};
use rng::Rng;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// The number of handles for inodes other than directories; the rest are for directories.
const FILE_HANDLES: u64 = 4;

/// A universe of few names, so that calls meet: those that are mostly directories.
const DIRS: [&str; 4] = ["d", "sub", r"n\max", r"\xff\xfe"];
/// Those that are mostly something else.
const FILES: [&str; 4] =
    ["f", "file", r"a\x20longer\x20name\x20that\x20takes\x20more\x20room", "g"];
/// Those that calls refuse or treat specially.
const ODD: [&str; 6] = [".", "..", r"\e", r"d\x2ff", r"nul\x00", r"x\over"];

/// Returns the `n` calls that `seed` decides; the first few create something to work on.
pub fn gen_ops(seed: u64, n: usize) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let furnished = (n / 4).min(12);
    (0..n).map(|i| if i < furnished { create(&mut rng) } else { gen_op(&mut rng) }).collect()
}

/// Sequences of up to `max` calls for proptest; they shrink by leaving calls out.
pub fn ops(max: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = any::<u64>().prop_map(|seed| gen_op(&mut Rng::new(seed))).no_shrink();
    prop::collection::vec(op, 1..=max)
}

/// The weight of a call, and the function that draws it.
type Weighted = (u64, fn(&mut Rng) -> Op);

/// Returns the next call.
pub fn gen_op(rng: &mut Rng) -> Op {
    let choices: [Weighted; 28] = [
        (4, lookup),
        (2, |r| Op::Close(handle(r))),
        (2, |r| Op::Getattr(anything(r))),
        (4, setattr),
        (5, |r| Op::Truncate(file(r), pos(r))),
        (18, create),
        (2, |r| Op::Tmpfile(dir(r), file_handle(r), new(r))),
        (1, |r| Op::Readlink(file(r))),
        (5, |r| Op::Unlink(file_entry(r))),
        (3, |r| Op::Rmdir(dir_entry(r))),
        (4, |r| Op::Link(file(r), file_entry(r))),
        (8, rename),
        (2, |r| Op::List(dir(r), Batch { batch: Some(1 + r.below(8) as u32) })),
        (5, |r| Op::Read(file(r), Part { at: Some(pos(r)), len: Some(len(r)) })),
        (16, |r| Op::Write(file(r), pos(r), len(r).into(), data(r))),
        (6, |r| Op::Append(file(r), len(r).into(), data(r))),
        (1, |r| Op::DropPrivileges(anything(r))),
        (7, fallocate),
        (2, |r| Op::SeekData(file(r), pos(r))),
        (1, |r| Op::SeekHole(file(r), pos(r))),
        (4, copy_range),
        (4, clone_range),
        (1, |r| Op::Fsync(anything(r))),
        (1, |r| Op::Getxattr(anything(r), attribute(r))),
        (4, setxattr),
        (1, |r| Op::Listxattr(anything(r))),
        (2, |r| Op::RemoveXattr(anything(r), attribute(r))),
        (1, |_| Op::Statfs),
    ];
    rng.weighted(&choices)(rng)
}

fn handle(rng: &mut Rng) -> usize {
    rng.below(HANDLES as u64) as usize
}

/// Returns a handle that mostly holds something else than a directory.
fn file_handle(rng: &mut Rng) -> usize {
    if rng.percent(5) { handle(rng) } else { rng.below(FILE_HANDLES) as usize }
}

/// Returns a handle that mostly holds a directory.
fn dir_handle(rng: &mut Rng) -> usize {
    (FILE_HANDLES + rng.below(HANDLES as u64 - FILE_HANDLES)) as usize
}

/// Returns whether paths like this mostly lead to a directory.
fn is_for_dirs(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| DIRS.contains(&name))
}

/// Chooses the handle that keeps the inode at `path`, if any.
fn keep(rng: &mut Rng, path: &str) -> Keep {
    let handle = if is_for_dirs(path) { dir_handle(rng) } else { file_handle(rng) };
    Keep { keep: rng.percent(50).then_some(handle) }
}

fn lookup(rng: &mut Rng) -> Op {
    let path = if rng.percent(40) { dir_entry(rng) } else { file_entry(rng) };
    let keep = keep(rng, &path);
    Op::Lookup(path, keep)
}

fn dir_name(rng: &mut Rng) -> &'static str {
    match rng.percent(4) {
        true => rng.pick(&[&DIRS[..], &FILES, &ODD].concat()),
        false => rng.weighted(&[(4, DIRS[0]), (3, DIRS[1]), (2, DIRS[2]), (1, DIRS[3])]),
    }
}

fn file_name(rng: &mut Rng) -> &'static str {
    if rng.percent(10) { dir_name(rng) } else { rng.pick(&FILES) }
}

/// Returns the prefix of a path: empty for the root, or a directory below it.
fn dir_path(rng: &mut Rng) -> String {
    let depth = rng.weighted(&[(62, 0), (28, 1), (10, 2)]);
    (0..depth).map(|_| format!("/{}", dir_name(rng))).collect()
}

/// As [`dir_path`], or a handle.
fn dir_prefix(rng: &mut Rng) -> String {
    if rng.percent(10) { format!("%{}", dir_handle(rng)) } else { dir_path(rng) }
}

fn dir(rng: &mut Rng) -> String {
    let prefix = dir_prefix(rng);
    if prefix.is_empty() { "/".into() } else { prefix }
}

fn file(rng: &mut Rng) -> String {
    if rng.percent(50) {
        return format!("%{}", file_handle(rng));
    }
    format!("{}/{}", dir_path(rng), file_name(rng))
}

fn anything(rng: &mut Rng) -> String {
    if rng.percent(40) { dir(rng) } else { file(rng) }
}

fn dir_entry(rng: &mut Rng) -> String {
    format!("{}/{}", dir_prefix(rng), dir_name(rng))
}

fn file_entry(rng: &mut Rng) -> String {
    format!("{}/{}", dir_prefix(rng), file_name(rng))
}

fn mode(rng: &mut Rng) -> Octal {
    let usual = rng.pick(&[0o644, 0o755, 0o600, 0o2775, 0o6755, 0o777]);
    Octal(if rng.percent(20) { rng.below(0o10000) as u32 } else { usual })
}

fn new(rng: &mut Rng) -> New {
    let by = rng.pick(&[By { uid: 0, gid: 0 }, By { uid: 1000, gid: 100 }]);
    let mode = mode(rng);
    New { by: Some(by), mode: Some(mode), umask: Some(Octal(rng.pick(&[0, 0o022, 0o077]))) }
}

fn create(rng: &mut Rng) -> Op {
    let path = if rng.percent(35) { dir_entry(rng) } else { file_entry(rng) };
    let (new, keep) = (new(rng), keep(rng, &path));
    if !rng.percent(18) {
        return match is_for_dirs(&path) {
            true => Op::Mkdir(path, new, keep),
            false => Op::Create(path, new, keep),
        };
    }
    let device = rng.below(1 << 32) as u32;
    match rng.below(12) {
        0 | 1 => Op::Create(path, new, keep),
        2 | 3 => Op::Mkdir(path, new, keep),
        4..8 => {
            let len = rng.pick(&[1, 10, 59, 60, 61, 300, 4095, 0, 4096]);
            Op::Symlink(path, len, new, keep)
        }
        8 => Op::Mkfifo(path, new, keep),
        9 => Op::Mksocket(path, new, keep),
        10 => Op::Mknod(path, device, new, keep),
        _ => Op::MknodBlock(path, device, new, keep),
    }
}

fn rename(rng: &mut Rng) -> Op {
    let dirs = rng.percent(45);
    let path = |rng: &mut Rng| match dirs != rng.percent(8) {
        true => dir_entry(rng),
        false => file_entry(rng),
    };
    let (from, to) = (path(rng), path(rng));
    match rng.below(100) {
        0..60 => Op::Rename(from, to),
        60..75 => Op::RenameNoReplace(from, to),
        75..90 => Op::Exchange(from, to),
        90..98 => Op::RenameWhiteout(from, to, New::default()),
        // These flags have no meaning.
        98 => Op::RenameFlags(from, to, 3),
        _ => Op::RenameFlags(from, to, 4),
    }
}

fn setattr(rng: &mut Rng) -> Op {
    let mut set = Attrs::default();
    let time = |rng: &mut Rng| When((!rng.percent(30)).then(|| rng.next() as i64));
    match rng.below(5) {
        0 | 1 => set.mode = Some(mode(rng)),
        2 => set.uid = Some(rng.below(3) as u32),
        3 => set.gid = Some(rng.below(3) as u32),
        _ => set.atime = Some(time(rng)),
    }
    if rng.percent(20) {
        set.mtime = Some(time(rng));
    }
    if rng.percent(10) {
        set.mode = Some(mode(rng));
    }
    if rng.percent(5) {
        set.size = Some(rng.below(3 * BLOCK));
    }
    Op::Setattr(anything(rng), set)
}

/// Returns a length in bytes: mostly below 20 KiB, now and then beyond 2 MiB.
fn len(rng: &mut Rng) -> u32 {
    let len = match rng.below(100) {
        0..3 => 0,
        3..28 => 1 + rng.below(16),
        28..55 => (BLOCK * (1 + rng.below(2))).saturating_add_signed(nudge(rng)),
        55..95 => rng.below(20 * 1024),
        95..99 => rng.below(300 * 1024),
        _ => 2 * MIB + rng.below(64 * 1024),
    };
    len as u32
}

/// Returns a small distance from something of interest.
fn nudge(rng: &mut Rng) -> i64 {
    match rng.below(3) {
        0 => 0,
        1 => rng.pick(&[-1, 1, -8, 8, -7, 9, -64, 64]),
        _ => rng.below(200) as i64 - 100,
    }
}

/// Returns a place in a file: mostly near the boundaries of the first blocks, the end, or 2 MiB.
fn pos(rng: &mut Rng) -> Pos {
    Pos::At(match rng.below(100) {
        0..45 => (BLOCK * rng.below(8)).saturating_add_signed(nudge(rng)),
        45..70 => return Pos::End(nudge(rng)),
        70..80 => (2 * MIB).saturating_add_signed(nudge(rng)),
        80..96 => rng.below(32 * 1024),
        96..98 => (1 << (30 + rng.below(18))) - rng.below(3),
        98..99 => return Pos::Limit(-(rng.below(3 * BLOCK) as i64)),
        _ => return Pos::Limit(rng.below(2) as i64),
    })
}

fn data(rng: &mut Rng) -> Data {
    let zeros = rng.percent(8);
    Data { fill: Some(if zeros { 0 } else { 1 + rng.below(1000) as u32 }) }
}

/// Returns the length of a range, in bytes; huge only for modes that take nothing.
fn range_len(rng: &mut Rng) -> u64 {
    if rng.percent(40) { BLOCK * rng.below(6) } else { len(rng).into() }
}

fn fallocate(rng: &mut Rng) -> Op {
    let make: fn(String, Pos, u64) -> Op = rng.weighted(&[
        (9, Op::Allocate as fn(_, _, _) -> _),
        (6, Op::AllocateKeep),
        (20, Op::Punch),
        (9, Op::Zero),
        (6, Op::ZeroKeep),
    ]);
    let shift: fn(String, Pos, u64) -> Op =
        rng.pick(&[Op::Collapse as fn(_, _, _) -> _, Op::Insert]);
    let make = if rng.below(16) < 6 { shift } else { make };
    let op = make(file(rng), pos(rng), range_len(rng));
    let at = Pos::At(BLOCK * rng.below(8));
    match op {
        Op::Collapse(of, ..) if rng.percent(80) => Op::Collapse(of, at, BLOCK * (1 + rng.below(4))),
        Op::Insert(of, ..) if rng.percent(80) => Op::Insert(of, at, BLOCK * (1 + rng.below(4))),
        Op::Insert(of, ..) if rng.percent(5) => Op::Insert(of, at, BLOCK << rng.below(36)),
        Op::Punch(of, ..) if rng.percent(5) => Op::Punch(of, at, BLOCK << rng.below(36)),
        op => op,
    }
}

fn copy_range(rng: &mut Rng) -> Op {
    let (from, to) = (file(rng), file(rng));
    let to = if rng.percent(20) { from.clone() } else { to };
    Op::Copy(from, pos(rng), to, pos(rng), range_len(rng))
}

/// Mostly a range that may be shared: of whole blocks, or of a whole file.
fn clone_range(rng: &mut Rng) -> Op {
    let (from, to) = (file(rng), file(rng));
    let to = if rng.percent(20) { from.clone() } else { to };
    let block = |rng: &mut Rng| match rng.percent(10) {
        true => pos(rng),
        false => Pos::At(BLOCK * rng.pick(&[0, 0, 0, 0, 1, 2, 5, 512])),
    };
    let (from_at, to_at) = (block(rng), block(rng));
    let len = match rng.below(10) {
        0..6 => 0,
        6..9 => BLOCK * rng.below(6),
        _ => range_len(rng),
    };
    Op::Clone(from, from_at, to, to_at, len)
}

/// The attributes that [`Op::SetAcl`] and [`Op::SetDefaultAcl`] set.
const ACLS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// Returns the name of an extended attribute, from a universe of few; the last is in no known
/// namespace.
fn attribute(rng: &mut Rng) -> String {
    let names = [
        (3, "user.0"),
        (3, "user.1"),
        (1, "trusted.a"),
        (1, "security.capability"),
        (3, ACLS[0]),
        (3, ACLS[1]),
        (1, "nobody.knows"),
    ];
    rng.weighted(&names).into()
}

fn setxattr(rng: &mut Rng) -> Op {
    let (of, name) = (anything(rng), attribute(rng));
    let how = [(8, None), (1, Some(Only::Create)), (1, Some(Only::Replace))];
    let how = How { how: rng.weighted(&how) };
    let perms = Some(Octal(rng.below(1 << 15) as u32));
    let acl = AclOf { perms, plain: rng.percent(30).then_some(true) };
    // A few values are invalid ACLs.
    match ACLS.iter().position(|acl| *acl == name).filter(|_| !rng.percent(4)) {
        Some(0) => Op::SetAcl(of, acl, how),
        Some(_) => Op::SetDefaultAcl(of, acl, how),
        None => {
            let len = rng.weighted(&[(5, 20), (3, 300), (2, 5000), (1, 65_537)]);
            let data = Data { fill: Some(rng.below(100) as u32) };
            Op::SetXattr(of, name, rng.below(len) as u32, data, how)
        }
    }
}
