//! Random calls, on few names and short files, so that calls meet.

use super::op::{At, AtPath, Lens, Offset, ProcessOp, Text, Times};
use rng::Rng;
use vfs::script::Octal;

/// Slots for descriptors.
pub const SLOTS: usize = 5;
/// The user that is not root.
pub const USER: u32 = 1000;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "dir", "sub"];

fn name(rng: &mut Rng) -> String {
    if rng.one_in(200) { "n".repeat(rng.pick(&[255, 256])) } else { rng.pick(&NAMES).to_owned() }
}

/// Whether `..` can follow a path. If a removed directory may be the start of a path, `..` is gone
/// by POSIX (`rmdir`), but Linux remembers the parent.
fn takes_dotdot(path: &str) -> bool {
    path.bytes().any(|b| !matches!(b, b'.' | b'/'))
}

fn path(rng: &mut Rng) -> String {
    let mut path = String::new();
    let depth = rng.pick(&[1, 1, 1, 2, 2, 3]);
    for i in 0..depth {
        if i > 0 {
            path.push_str(if rng.one_in(30) { "//" } else { "/" });
        }
        match rng.below(40) {
            0 => path.push('.'),
            1 if takes_dotdot(&path) => path.push_str(".."),
            _ => path.push_str(&name(rng)),
        }
    }
    match rng.below(60) {
        0..=2 => path.push('/'),
        3 => path.push_str("/."),
        4 if takes_dotdot(&path) => path.push_str("/.."),
        5 => path.clear(),
        _ => {}
    }
    path
}

fn place(rng: &mut Rng) -> AtPath {
    let at = match rng.below(8) {
        0 => At::Fd(rng.index(SLOTS)),
        1 | 2 => At::Cwd,
        _ => At::Root,
    };
    AtPath(at, path(rng))
}

/// A place for calls that take only a path.
fn plain_place(rng: &mut Rng) -> AtPath {
    AtPath(if rng.one_in(3) { At::Cwd } else { At::Root }, path(rng))
}

fn offset(rng: &mut Rng) -> i64 {
    match rng.below(20) {
        0 => -1,
        1 => i64::MIN,
        2 => rng.pick(&[4096, 8192, 12_288]),
        _ => rng.below(9000) as i64,
    }
}

fn len(rng: &mut Rng) -> usize {
    match rng.below(10) {
        0 => 0,
        1 => 4096,
        2 => rng.index(20_000),
        _ => rng.index(300),
    }
}

fn lens(rng: &mut Rng) -> Lens {
    Lens([len(rng), len(rng), len(rng)])
}

fn open_flags(rng: &mut Rng) -> Octal {
    let mut flags = rng.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
    let extras = [
        (2, libc::O_CREAT),
        (5, libc::O_EXCL),
        (8, libc::O_TRUNC),
        (8, libc::O_APPEND),
        (12, libc::O_DIRECTORY),
        (12, libc::O_NOFOLLOW),
        (20, libc::O_PATH),
        (25, libc::O_TMPFILE),
        (10, libc::O_CLOEXEC),
        (30, libc::O_SYNC),
        (30, libc::O_NONBLOCK),
        (30, libc::O_NOATIME),
        (60, 3),
    ];
    for (n, flag) in extras {
        if rng.one_in(n) {
            flags |= flag;
        }
    }
    Octal(flags as u32)
}

fn mode(rng: &mut Rng) -> Octal {
    let modes =
        [0o644, 0o600, 0o755, 0o777, 0o666, 0o000, 0o444, 0o6755, 0o2775, 0o1777, 0o2644, 0o070];
    Octal(rng.pick(&modes))
}

fn dir_mode(rng: &mut Rng) -> Octal {
    Octal(rng.pick(&[0o755, 0o755, 0o777, 0o1777, 0o700, 0o2777, 0o711, 0o555]))
}

fn owner(rng: &mut Rng) -> u32 {
    rng.pick(&[0, USER, USER, 1001, u32::MAX])
}

fn nofollow(rng: &mut Rng) -> i32 {
    let mut flags = 0;
    if rng.one_in(3) {
        flags |= libc::AT_SYMLINK_NOFOLLOW;
    }
    if rng.one_in(10) {
        flags |= libc::AT_EMPTY_PATH;
    }
    flags
}

fn times(rng: &mut Rng) -> Times {
    let nanos = [0, 1, 999_999_999, libc::UTIME_NOW, libc::UTIME_OMIT, libc::UTIME_OMIT, -1];
    let mut time = || (rng.below(1 << 31) as i64, rng.pick(&nanos));
    let both = [time(), time()];
    Times(if rng.one_in(3) { None } else { Some(both) })
}

fn xattr(rng: &mut Rng) -> Text {
    let names = ["user.a", "user.b", "user.c", "trusted.t", "user.", "nothing.x", ""];
    Text(rng.pick(&names).to_owned())
}

/// The start of every sequence: a tree in which paths lead somewhere.
const START: &str = "\
mkdir /dir 777; chmod /dir 777 0; mkdir /dir/sub 755; chown /dir/sub 1000 1000 0; mkdir /sub 755
open /a 102 666; write 0 5000 1; symlink dir /b; open /dir 0 0";

/// Makes the sequence of `len` calls for a seed.
pub fn sequence(seed: u64, len: usize) -> Vec<ProcessOp> {
    let mut rng = Rng::new(rng::hash(seed));
    let mut ops: Vec<ProcessOp> = vfs::script::parse(START).expect("these are calls");
    ops.resize_with(len, || op(&mut rng));
    ops
}

/// A random call.
fn op(rng: &mut Rng) -> ProcessOp {
    let fd = rng.index(SLOTS);
    match rng.below(104) {
        0..=17 => ProcessOp::Open(place(rng), open_flags(rng), mode(rng)),
        18 | 19 => ProcessOp::Close(fd),
        20 => ProcessOp::Dup(fd),
        21 => ProcessOp::Dup2(fd, rng.index(SLOTS)),
        22..=25 => ProcessOp::Read(fd, len(rng)),
        26..=30 => ProcessOp::Write(fd, len(rng), rng.next() as u8),
        31..=33 => ProcessOp::Pread(fd, len(rng), offset(rng)),
        34..=36 => ProcessOp::Pwrite(fd, len(rng), rng.next() as u8, offset(rng)),
        37 => ProcessOp::Readv(fd, lens(rng)),
        38 => ProcessOp::Writev(fd, lens(rng), rng.next() as u8),
        39 => {
            let flags = [0, libc::RWF_APPEND, libc::RWF_DSYNC, libc::RWF_SYNC, 0x4000];
            ProcessOp::Pwritev2(fd, len(rng), rng.next() as u8, offset(rng), rng.pick(&flags))
        }
        40..=43 => {
            let whence = rng.pick(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 99]);
            let offset = if rng.one_in(4) { -(rng.below(300) as i64) } else { offset(rng) };
            ProcessOp::Lseek(fd, offset, whence)
        }
        44 => {
            let at = offset(rng);
            if rng.one_in(2) { ProcessOp::SeekData(fd, at) } else { ProcessOp::SeekHole(fd, at) }
        }
        45 | 46 => ProcessOp::Ftruncate(fd, offset(rng)),
        47 => ProcessOp::Truncate(plain_place(rng), offset(rng)),
        48 | 49 => {
            let keep = libc::FALLOC_FL_KEEP_SIZE;
            let modes = [0, keep, keep | libc::FALLOC_FL_PUNCH_HOLE];
            ProcessOp::Fallocate(fd, rng.pick(&modes), offset(rng), offset(rng))
        }
        50 => ProcessOp::Fsync(fd),
        51 => ProcessOp::Getfl(fd),
        52 => {
            let flags = [0, libc::O_APPEND, libc::O_NONBLOCK, libc::O_NOATIME, libc::O_TRUNC];
            ProcessOp::Setfl(fd, Octal(rng.pick(&flags) as u32))
        }
        53 | 54 => ProcessOp::Fstat(fd),
        55..=58 => ProcessOp::Stat(place(rng), nofollow(rng)),
        59..=61 => {
            let flags = [0, 0, libc::AT_EACCESS, libc::AT_SYMLINK_NOFOLLOW, 0x8000];
            ProcessOp::Access(place(rng), rng.pick(&[0, 1, 2, 4, 6, 7, 8]), rng.pick(&flags))
        }
        62 | 63 => ProcessOp::Chmod(place(rng), mode(rng), 0),
        64 => ProcessOp::Fchmod(fd, mode(rng)),
        65 | 66 => ProcessOp::Chown(place(rng), owner(rng), owner(rng), nofollow(rng)),
        67 => ProcessOp::Fchown(fd, owner(rng), owner(rng)),
        68 | 69 => ProcessOp::Utimens(place(rng), times(rng), nofollow(rng)),
        70 => ProcessOp::Futimens(fd, times(rng)),
        71..=74 => ProcessOp::Mkdir(place(rng), dir_mode(rng)),
        75 => {
            let kinds =
                [libc::S_IFREG, 0, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFDIR];
            let (place, kind) = (place(rng), rng.pick(&kinds));
            ProcessOp::Mknod(place, Octal(kind | mode(rng).0), rng.pick(&[0, 0x103, 0x501]))
        }
        76..=78 => {
            let target = if rng.one_in(4) { format!("/{}", path(rng)) } else { path(rng) };
            ProcessOp::Symlink(Text(target), place(rng))
        }
        79 => ProcessOp::Readlink(place(rng), rng.pick(&[0, 1, 3, 4096])),
        80..=82 => {
            let from = place(rng);
            // With a path, the kernel checks which user has opened the directory. That differs
            // between the sides.
            let empty = if from.1.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
            let flags = rng.pick(&[0, 0, libc::AT_SYMLINK_FOLLOW, empty]);
            ProcessOp::Link(from, place(rng), flags)
        }
        83 | 84 => ProcessOp::Unlink(place(rng), 0),
        85 => ProcessOp::Unlink(place(rng), libc::AT_REMOVEDIR),
        86..=89 => {
            let flags = [
                0,
                0,
                0,
                libc::RENAME_NOREPLACE,
                libc::RENAME_EXCHANGE,
                libc::RENAME_WHITEOUT,
                3,
                6,
            ];
            ProcessOp::Rename(place(rng), place(rng), rng.pick(&flags))
        }
        90 => ProcessOp::List(fd),
        91 => ProcessOp::Chdir(plain_place(rng)),
        92 => {
            if rng.one_in(2) {
                ProcessOp::Fchdir(fd)
            } else {
                ProcessOp::Getcwd
            }
        }
        93 => ProcessOp::Getxattr(plain_place(rng), xattr(rng), rng.pick(&[0, 3, 100])),
        94 | 95 => {
            let len = rng.pick(&[0, 1, 5, 64]);
            ProcessOp::Setxattr(plain_place(rng), xattr(rng), len, 7, rng.pick(&[0, 0, 1, 2, 4]))
        }
        96 => ProcessOp::Fsetxattr(fd, xattr(rng), 3, 8, 0),
        97 => ProcessOp::Listxattr(plain_place(rng)),
        98 => ProcessOp::Removexattr(plain_place(rng), xattr(rng)),
        99 => {
            let at = |rng: &mut Rng| Offset(if rng.one_in(2) { None } else { Some(offset(rng)) });
            let (from, to) = (at(rng), at(rng));
            ProcessOp::CopyRange(fd, from, rng.index(SLOTS), to, len(rng))
        }
        100 => {
            let at = if rng.one_in(2) { None } else { Some(rng.below(500) as i64) };
            ProcessOp::Sendfile(rng.index(SLOTS), fd, Offset(at), len(rng))
        }
        101 => ProcessOp::Umask(Octal(rng.pick(&[0o022, 0, 0o077, 0o027]))),
        _ => ProcessOp::Become(rng.pick(&[0, 0, USER])),
    }
}
