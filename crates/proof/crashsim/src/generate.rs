//! Generates random operation sequences, and mutates them for the fuzzer.

use rng::Rng;
use vfs::script::{AclOf, Batch, Data, How, Keep, New, Octal, Op, Part};

const DIRS: [&str; 4] = ["", "/d", "/e", "/d/s"];
/// Number of handles in use.
const HANDLES: u64 = 4;
const NAMES: [&str; 4] = ["a", "b", "c", "n"];
/// Offsets and lengths at and around words, lines, blocks, and the span of a tree of height 1.
const NUMBERS: [u64; 16] =
    [1, 3, 7, 8, 9, 64, 100, 511, 4088, 4095, 4096, 4097, 8192, 12000, 2_097_152, 2_097_160];

fn dir(rng: &mut Rng) -> String {
    rng.pick(&DIRS).to_owned()
}

fn path(rng: &mut Rng) -> String {
    if rng.below(12) == 0 {
        // Directories are names, too.
        return rng.pick(&DIRS[1..]).to_owned();
    }
    format!("{}/{}", dir(rng), rng.pick(&NAMES))
}

/// Returns a file by path, or by handle.
fn place(rng: &mut Rng) -> String {
    match rng.below(8) {
        0 => format!("%{}", rng.below(HANDLES)),
        _ => path(rng),
    }
}

fn offset(rng: &mut Rng) -> u64 {
    match rng.below(3) {
        0 => 0,
        1 => rng.pick(&NUMBERS),
        _ => rng.below(16_384),
    }
}

fn len(rng: &mut Rng) -> u64 {
    rng.pick(&NUMBERS).min(12_000)
}

fn perm(rng: &mut Rng) -> Octal {
    Octal(rng.below(0o10000) as u32)
}

fn block(rng: &mut Rng) -> u64 {
    4096 * rng.below(4)
}

/// Returns one operation.
pub fn op(rng: &mut Rng) -> Op {
    let name = |rng: &mut Rng| match rng.below(4) {
        0 => "security.capability".to_owned(),
        _ => format!("user.{}", rng.pick(&NAMES)),
    };
    match rng.below(64) {
        0..5 => Op::create(path(rng)),
        5..8 => Op::mkdir(match rng.below(2) {
            0 => rng.pick(&DIRS[1..]).to_owned(),
            _ => path(rng),
        }),
        8 => Op::Symlink(path(rng), 1 + rng.below(4095) as u32, New::default(), Keep::default()),
        9 => Op::Mknod(path(rng), 259, New::default(), Keep::default()),
        10 => Op::Mkfifo(path(rng), New::default(), Keep::default()),
        11..14 => Op::Link(place(rng), path(rng)),
        14..18 => Op::Unlink(path(rng)),
        18..20 => Op::Rmdir(path(rng)),
        20..25 => Op::Rename(path(rng), path(rng)),
        25 => Op::RenameNoReplace(path(rng), path(rng)),
        26..28 => Op::Exchange(path(rng), path(rng)),
        28..34 => Op::write(place(rng), offset(rng), len(rng)),
        34..37 => Op::append(place(rng), len(rng)),
        37..41 => Op::truncate(place(rng), offset(rng)),
        41 => Op::Allocate(place(rng), offset(rng).into(), len(rng)),
        42 => Op::AllocateKeep(place(rng), offset(rng).into(), len(rng)),
        43..45 => Op::Punch(place(rng), offset(rng).into(), len(rng)),
        45 => Op::Zero(place(rng), offset(rng).into(), len(rng)),
        46 => Op::ZeroKeep(place(rng), offset(rng).into(), len(rng)),
        47 => Op::Collapse(place(rng), block(rng).into(), 4096),
        48 => Op::Insert(place(rng), block(rng).into(), 4096),
        49 => Op::Copy(place(rng), offset(rng).into(), place(rng), offset(rng).into(), len(rng)),
        50 => Op::Chmod(place(rng), perm(rng)),
        51 => Op::Chown(place(rng), rng.below(9) as u32, rng.below(9) as u32),
        52 => Op::SetAll(place(rng), offset(rng), perm(rng), 5),
        53 => Op::Utimes(place(rng)),
        54 => Op::DropPrivileges(place(rng)),
        55..57 => {
            let (of, name, len) = (place(rng), name(rng), rng.below(6000) as u32);
            Op::SetXattr(of, name, len, Data::default(), How::default())
        }
        57 => Op::RemoveXattr(place(rng), name(rng)),
        58 => Op::SetAcl(place(rng), AclOf::default(), How::default()),
        59 => Op::SetDefaultAcl(path(rng), AclOf::default(), How::default()),
        60 => Op::Open(path(rng), rng.below(HANDLES) as usize),
        61 => Op::Tmpfile(dir(rng), rng.below(HANDLES) as usize, New::default()),
        62 => Op::Close(rng.below(HANDLES) as usize),
        _ => match rng.below(5) {
            0 => Op::Remount,
            4 => Op::Sync,
            1 => Op::Read(place(rng), Part::default()),
            2 => Op::List(dir(rng), Batch::default()),
            _ => Op::Fsync(place(rng)),
        },
    }
}

/// Returns a sequence of `n` operations.
pub fn ops(rng: &mut Rng, n: usize) -> Vec<Op> {
    (0..n).map(|_| op(rng)).collect()
}

/// Returns a sequence that differs a little from `of`, perhaps by parts of `other`.
pub fn mutate(rng: &mut Rng, of: &[Op], other: &[Op]) -> Vec<Op> {
    const LONGEST: usize = 24;
    let mut ops = of.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(ops.len() as u64 + 1) as usize;
        match rng.below(5) {
            0 | 1 => ops.insert(at, op(rng)),
            2 if at < ops.len() => drop(ops.remove(at)),
            3 if at < ops.len() => ops[at] = op(rng),
            _ => {
                let tail = rng.below(other.len() as u64 + 1) as usize;
                ops.truncate(at);
                ops.extend_from_slice(&other[tail..]);
            }
        }
    }
    ops.truncate(LONGEST);
    ops
}
