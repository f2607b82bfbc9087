//! Sequences of calls that a seed decides.
//!
//! Each call is drawn on its own, without knowing the state: positions are relative to the end of
//! the file where that is interesting, and the universe of names is small. So a shorter sequence of
//! the same calls is a sequence too, which is what shrinking needs.

use proptest::prelude::*;
use rng::Rng;

use super::op::{Attribute, Data, EntryName, Make, Name, Op, Pos, SLOTS, Target, Value, Who};
use crate::{Fallocate, Seek, SetAttr, SetTime, SetXattr, Timestamp};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// So many slots are for what is not a directory, the others for directories.
const FILE_SLOTS: u64 = 4;

/// The `n` calls that `seed` decides; the first few create something to work on.
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

/// How often a call is drawn, and how.
type Weighted = (u64, fn(&mut Rng) -> Op);

/// The next call.
pub fn gen_op(rng: &mut Rng) -> Op {
    let choices: [Weighted; 26] = [
        (4, lookup),
        (2, |r| Op::Forget { slot: slot(r) }),
        (2, |r| Op::Getattr { of: anything(r) }),
        (4, setattr),
        (5, |r| Op::Truncate { of: file(r), size: pos(r) }),
        (18, create),
        (2, tmpfile),
        (1, |r| Op::Readlink { of: file(r) }),
        (5, |r| Op::Unlink { at: file_entry(r) }),
        (3, |r| Op::Rmdir { at: dir_entry(r) }),
        (4, |r| Op::Link { of: file(r), at: file_entry(r) }),
        (8, rename),
        (2, |r| Op::Readdir { of: dir(r), batch: 1 + r.below(8) as u8 }),
        (5, |r| Op::Read { of: file(r), offset: pos(r), len: len(r) }),
        (16, |r| Op::Write { of: file(r), offset: pos(r), data: data(r) }),
        (6, |r| Op::Append { of: file(r), data: data(r) }),
        (1, |r| Op::DropPrivileges { of: anything(r) }),
        (7, fallocate),
        (3, |r| Op::Seek {
            of: file(r),
            offset: pos(r),
            whence: r.pick(&[Seek::Data, Seek::Hole]),
        }),
        (4, copy_range),
        (1, |r| Op::Fsync { of: anything(r) }),
        (1, |r| Op::Getxattr { of: anything(r), name: attribute(r) }),
        (4, setxattr),
        (1, |r| Op::Listxattr { of: anything(r) }),
        (2, |r| Op::Removexattr { of: anything(r), name: attribute(r) }),
        (1, |_| Op::Statfs),
    ];
    rng.weighted(&choices)(rng)
}

fn slot(rng: &mut Rng) -> u8 {
    rng.below(SLOTS.into()) as u8
}

/// A slot that mostly holds something else than a directory.
fn file_slot(rng: &mut Rng) -> u8 {
    if rng.percent(5) { slot(rng) } else { rng.below(FILE_SLOTS) as u8 }
}

/// A slot that mostly holds a directory.
fn dir_slot(rng: &mut Rng) -> u8 {
    (FILE_SLOTS + rng.below(u64::from(SLOTS) - FILE_SLOTS)) as u8
}

/// Where to keep what is found at or made at `at`, if anywhere.
fn keep(rng: &mut Rng, at: &EntryName) -> Option<u8> {
    let slot = if at.name.is_for_dirs() { dir_slot(rng) } else { file_slot(rng) };
    if rng.percent(50) { Some(slot) } else { None }
}

fn lookup(rng: &mut Rng) -> Op {
    let at = if rng.percent(40) { dir_entry(rng) } else { file_entry(rng) };
    let keep = keep(rng, &at);
    Op::Lookup { at, keep }
}

fn dir_name(rng: &mut Rng) -> Name {
    match rng.percent(4) {
        true => Name(rng.below(Name::COUNT.into()) as u8),
        false => Name(rng.weighted(&[(4, 0), (3, 1), (2, 2), (1, 3)])),
    }
}

fn file_name(rng: &mut Rng) -> Name {
    match rng.percent(10) {
        true => dir_name(rng),
        false => Name(Name::DIRS + rng.below((Name::ODD - Name::DIRS).into()) as u8),
    }
}

fn dir_path(rng: &mut Rng) -> Vec<Name> {
    let depth = rng.weighted(&[(62, 0), (28, 1), (10, 2)]);
    (0..depth).map(|_| dir_name(rng)).collect()
}

fn dir(rng: &mut Rng) -> Target {
    if rng.percent(10) { Target::Slot(dir_slot(rng)) } else { Target::Path(dir_path(rng)) }
}

fn file(rng: &mut Rng) -> Target {
    if rng.percent(50) {
        return Target::Slot(file_slot(rng));
    }
    let mut path = dir_path(rng);
    path.push(file_name(rng));
    Target::Path(path)
}

fn anything(rng: &mut Rng) -> Target {
    if rng.percent(40) { dir(rng) } else { file(rng) }
}

fn dir_entry(rng: &mut Rng) -> EntryName {
    EntryName { dir: dir(rng), name: dir_name(rng) }
}

fn file_entry(rng: &mut Rng) -> EntryName {
    EntryName { dir: dir(rng), name: file_name(rng) }
}

fn who(rng: &mut Rng) -> Who {
    rng.pick(&[Who::Root, Who::User])
}

fn mode(rng: &mut Rng) -> u32 {
    let usual = rng.pick(&[0o644, 0o755, 0o600, 0o2775, 0o6755, 0o777]);
    if rng.percent(20) { rng.below(0o10000) as u32 } else { usual }
}

fn umask(rng: &mut Rng) -> u32 {
    rng.pick(&[0, 0o022, 0o077])
}

fn create(rng: &mut Rng) -> Op {
    let rdev = rng.below(1 << 32) as u32;
    let target_len = rng.pick(&[1, 10, 59, 60, 61, 300, 4095, 0, 4096]);
    let at = if rng.percent(35) { dir_entry(rng) } else { file_entry(rng) };
    let odd = rng.percent(18);
    let make = match at.name.is_for_dirs() {
        true if !odd => Make::Dir,
        false if !odd => Make::File,
        _ => rng.weighted(&[
            (2, Make::File),
            (2, Make::Dir),
            (4, Make::Symlink(target_len)),
            (1, Make::Fifo),
            (1, Make::Socket),
            (1, Make::Char(rdev)),
            (1, Make::Block(rdev)),
        ]),
    };
    let keep = keep(rng, &at);
    Op::Create { who: who(rng), at, make, mode: mode(rng), umask: umask(rng), keep }
}

fn tmpfile(rng: &mut Rng) -> Op {
    let (who, dir) = (who(rng), dir(rng));
    Op::Tmpfile { who, dir, mode: mode(rng), umask: umask(rng), keep: file_slot(rng) }
}

fn rename(rng: &mut Rng) -> Op {
    let dirs = rng.percent(45);
    let place = |rng: &mut Rng| match dirs != rng.percent(8) {
        true => dir_entry(rng),
        false => file_entry(rng),
    };
    let (from, to) = (place(rng), place(rng));
    Op::Rename { from, to, flags: rng.weighted(&[(60, 0), (15, 1), (23, 2), (1, 3), (1, 4)]) }
}

fn setattr(rng: &mut Rng) -> Op {
    let mut set = SetAttr::default();
    let time = |rng: &mut Rng| match rng.percent(30) {
        true => SetTime::Now,
        false => SetTime::At(Timestamp(rng.next() as i64)),
    };
    match rng.below(5) {
        0 | 1 => set.perm = Some(mode(rng)),
        2 => set.uid = Some(rng.below(3) as u32),
        3 => set.gid = Some(rng.below(3) as u32),
        _ => set.atime = Some(time(rng)),
    }
    if rng.percent(20) {
        set.mtime = Some(time(rng));
    }
    if rng.percent(10) {
        set.perm = Some(mode(rng));
    }
    if rng.percent(5) {
        set.size = Some(rng.below(3 * BLOCK));
    }
    Op::Setattr { of: anything(rng), set }
}

/// A length in bytes: mostly below 20 KiB, now and then beyond 2 MiB.
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

/// A small distance from something of interest.
fn nudge(rng: &mut Rng) -> i64 {
    match rng.below(3) {
        0 => 0,
        1 => rng.pick(&[-1, 1, -8, 8, -7, 9, -64, 64]),
        _ => rng.below(200) as i64 - 100,
    }
}

/// A place in a file: mostly near the boundaries of the first blocks, the end, or 2 MiB.
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
    Data { len: len(rng), fill: if zeros { 0 } else { 1 + rng.below(1000) as u32 } }
}

/// The length of a range, in bytes; huge only for modes that take nothing.
fn range_len(rng: &mut Rng) -> u64 {
    if rng.percent(40) { BLOCK * rng.below(6) } else { len(rng).into() }
}

fn fallocate(rng: &mut Rng) -> Op {
    let keep_size = rng.percent(40);
    let mode = rng.weighted(&[
        (3, Fallocate::Allocate { keep_size }),
        (4, Fallocate::PunchHole),
        (3, Fallocate::ZeroRange { keep_size }),
        (3, Fallocate::Collapse),
        (3, Fallocate::Insert),
    ]);
    let shifts = matches!(mode, Fallocate::Collapse | Fallocate::Insert);
    let (offset, len) = match mode {
        _ if shifts && rng.percent(80) => {
            (Pos::At(BLOCK * rng.below(8)), BLOCK * (1 + rng.below(4)))
        }
        Fallocate::PunchHole | Fallocate::Insert if rng.percent(5) => {
            (Pos::At(BLOCK * rng.below(8)), BLOCK << rng.below(36))
        }
        _ => (pos(rng), range_len(rng)),
    };
    Op::Fallocate { of: file(rng), mode, offset, len }
}

fn copy_range(rng: &mut Rng) -> Op {
    let (from, to) = (file(rng), file(rng));
    let to = if rng.percent(20) { from.clone() } else { to };
    Op::CopyRange { from, from_offset: pos(rng), to, to_offset: pos(rng), len: range_len(rng) }
}

fn attribute(rng: &mut Rng) -> Attribute {
    rng.weighted(&[
        (3, Attribute::User(0)),
        (3, Attribute::User(1)),
        (1, Attribute::Trusted),
        (1, Attribute::Capability),
        (3, Attribute::Access),
        (3, Attribute::Default),
        (1, Attribute::Unknown),
    ])
}

fn setxattr(rng: &mut Rng) -> Op {
    let name = attribute(rng);
    let is_acl = matches!(name, Attribute::Access | Attribute::Default);
    let value = match is_acl != rng.percent(4) {
        true => Value::Acl { perms: rng.below(1 << 15) as u16, plain: rng.percent(30) },
        false => {
            let len = rng.weighted(&[(5, 20), (3, 300), (2, 5000), (1, 65_537)]);
            Value::Data(Data { len: rng.below(len) as u32, fill: rng.below(100) as u32 })
        }
    };
    let mode = rng.weighted(&[(8, SetXattr::Any), (1, SetXattr::Create), (1, SetXattr::Replace)]);
    Op::Setxattr { of: anything(rng), name, value, mode }
}
