//! Workloads: their bases and their operations.

use crate::run::Base;
use crate::target::Target;
use vfs::script::{Op, parse};

/// Bytes of the pools: small, because recovery scans them thousands of times a second.
pub const POOL_BYTES: u64 = 128 * 4096;

/// A small tree with one of each interesting kind: hard links, a sparse file, attributes, an empty
/// directory, a symbolic link, a set-user-ID file, a file of two blocks.
const TREE: &str = "mkdir /d; mkdir /e; create /a; write /a 0 5000; create /d/c; write /d/c 0 100; \
    link /d/c /b; chmod /b 6755; symlink /l 20; create /d/z; write /d/z 8192 10; \
    truncate /d/z 20000; setxattr /a user.x 10; create /o; \
    create /d/o; create /h; \
    truncate /h 5000";

/// The tree with its names at other offsets in their lines, free entries between them, an unlinked
/// inode's slot and freed blocks to reuse, and files of other shapes.
const WORN: &str = "create /x; mkdir /y; create /k; write /k 0 9000; create /d; unlink /d; unlink /x; \
    rmdir /y; mkdir /d; create /d/qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq; \
    create /d/r; unlink /d/qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq; mkdir /e; create /e/qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq; \
    create /e/w; unlink /e/qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq; unlink /e/w; \
    create /a; write /a 0 12288; truncate /a 5000; create /d/c; link /d/c /b; chmod /b 6755; unlink /k; \
    symlink /l 4095; create /d/z; truncate /d/z 3000000; write /d/z 8192 10; setxattr /a user.x 5000; create /h; truncate /h 9000";

/// Makes the script of [`TREE`] with a full leaf of the inode file and a full block of `/d`, in
/// BPFS: the next inode or name makes them grow. `TREE` takes 11 of the leaf's 32 inodes, 21 files
/// the rest. It takes 96 of the block's 4096 bytes; 16 entries of 240 bytes and one of 160 the
/// rest.
fn brim() -> String {
    let mut text = TREE.to_owned();
    for i in 11..32 {
        text += &format!("; create /{i}");
    }
    for i in 0..16 {
        text += &format!("; link /a /d/{i:0>220}");
    }
    text + &format!("; link /a /d/{:0>144}", 16)
}

/// Makes the script of the tree with a file whose block tree has height 3, with blocks at all
/// levels, and one of height 2.
fn tall() -> String {
    format!(
        "{TREE}; create /t; write /t 0 5000; write /t 3000000 100; write /t 1100000000 9000; \
         create /u; write /u 0 5000; write /u 2097152 9000"
    )
}

/// Makes the script of a tree in which the inode numbers of `/a` and `/d/c` are 31 and 63 in BPFS,
/// if they are given in order: they use one redo record, the last. The files between are named by
/// their numbers.
fn twins() -> String {
    let mut text =
        "mkdir /d; mkdir /e; create /o; write /o 0 100; create /h; link /h /b".to_owned();
    for i in 6..31 {
        text += &format!("; create /{i}");
    }
    text += "; create /a; write /a 0 5000";
    for i in 32..63 {
        text += &format!("; create /{i}");
    }
    text + "; create /d/c; write /d/c 0 100; symlink /l 20"
}

/// The base whose two files use one redo record.
pub const TWINS: &str = "twins";

/// Returns the bases: name, whether it is for sequences, script.
fn scripts() -> Vec<(&'static str, String)> {
    let full = format!("{TREE}; create /f; fill /f");
    vec![
        ("tree", TREE.to_owned()),
        ("worn", WORN.to_owned()),
        (BRIM, brim()),
        ("full", full),
        ("empty", String::new()),
    ]
}

/// Operations on a base that commit by a word of a directory, an inode, a block of pointers, and by
/// redo records of words and of bytes; and by several pointers.
pub const COMMITS: [(&str, &str); 6] = [
    ("tree", "create /n"),
    ("tree", "append /a 100"),
    ("full", "punch /f 40960 4096"),
    ("tree", "rename /a /d/c"),
    ("tree", "write /a 100 200"),
    ("tree", "write /a 0 5000"),
];

/// Operations with their bases, and the number of their last steps that matter. One makes the inode
/// table grow, which commits in the middle of it, by a word of the superblock; one fills the free
/// entries of a table.
pub const MORE_COMMITS: [(&str, &str, usize); 2] =
    [(BRIM, "create /n", usize::MAX), (TALL, "write /t 2101248 5000", 8)];

/// All operations of the bounded-exhaustive workloads, with parameters from a small universe.
const UNIVERSE: &str = "\
create /n; create /d/n; create /e/n; create /d/a-name-of-two-lines-01234567890123456789012345678901
create /e/a-name-of-two-lines-01234567890123456789012345678901-and-of-one-more-012345678901234567890123456789012345678901234567; mkdir /n; mkdir /d/n; symlink /n 10; symlink /e/n 4000
mkfifo /n; mknod /d/n 259
link /a /n; link /a /d/n; link /d/c /e/n; link /l /n
unlink /a; unlink /b; unlink /d/c; unlink /d/z; unlink /l; rmdir /e
rename /a /n; rename /a /b; rename /a /d/n; rename /a /d/c; rename /d/c /d/n; rename /d/c /d/z
rename /a /a-name-of-two-lines-01234567890123456789012345678901; rename /h /a-name-of-two-lines-01234567890123456789012345678901
rename /b /d/c; rename /e /n; rename /d /n; rename /e /d/n; rename /d /e; rename /l /a
rename-noreplace /a /d/n; rename-noreplace /a /n
rename-whiteout /a /n; rename-whiteout /a /d/c; rename-whiteout /h /a-name-of-two-lines-01234567890123456789012345678901; rename-whiteout /e /d/n
exchange /a /b; exchange /a /d/c; exchange /d /a; exchange /d /e; exchange /d/c /d/z; exchange /l /d/z
write /a 0 8; write /a 3 5; write /a 4 8; write /a 130 50; write /a 64 64; write /d/c 70 20; write /a 100 200; write /a 4090 20; write /a 0 4096
write /a 0 5000; write /a 4990 20; write /a 5000 100; write /a 9000 10; write /a 5000 4000
write /a 70000 10; write /d/z 0 10; write /d/z 8190 10; write /d/z 30000 5000; write /n 0 100
write /a 3000000 10; write /d/c 0 8; write /o 0 100; write /o 9000 100
append /a 100; append /a 9000; append /d/c 8; append /d/z 1; append /h 100; write /h 4000 10
truncate /a 0; truncate /a 100; truncate /a 4096; truncate /a 5001; truncate /a 10000
truncate /a 3000000; truncate /d/z 8192; truncate /d/z 9000; truncate /d/c 0; truncate /o 100
allocate /d/z 0 8192; allocate /a 4000 10000; allocate-keep /a 6000 8000; allocate-keep /d/z 0 30000
punch /a 0 4096; punch /a 100 200; punch /a 0 5000; punch /d/z 4096 8192; punch /d/z 0 4096
zero /a 100 5000; zero /a 0 4096; zero /a 4000 9000; zero-keep /a 4000 9000; zero /a 20000 100
collapse /a 0 4096; collapse /d/z 4096 4096; insert /a 0 4096; insert /a 4096 8192; insert /d/z 8192 4096
copy /a 0 /d/c 0 5000; copy /d/z 8000 /a 100 300; copy /a 0 /d/z 18000 5000
copy /a 0 /o 8192 5000; copy /d/z 0 /d/c 4096 10000; copy /a 4096 /a 8192 904
chmod /a 4755; chmod /e 700; chown /a 7 8; chown /b 7 8; setall /a 100 600 9; setall /a 9000 644 9
utimes /a; drop-privileges /b
setxattr /a user.x 10; setxattr /a user.y 5000; setxattr /e user.z 10; removexattr /a user.x
setxattr /b security.capability 20; setacl /a; setacl /b; setacl /e; setdefaultacl /e
tmpfile /d 1; link %1 /n; write %1 0 100; close 1; open /a 0; write %0 10 100; close 0
read /a; list /d; fsync /a; sync; remount";

/// Prefix of the names of bases with tall trees: they are not for all families.
pub const TALL: &str = "tall";

/// Builds all bases; those that are for all families come first.
pub fn bases<T: Target>(target: &T) -> Result<Vec<Base>, String> {
    let build = |(name, text): (&'static str, String)| {
        let ops = parse(&text).map_err(|e| e.to_string())?;
        Base::build(target, name, POOL_BYTES, ops).map_err(|e| format!("base {name}: {e}"))
    };
    let mut bases = scripts().into_iter().map(build).collect::<Result<Vec<Base>, String>>()?;
    let tall = build((TALL, tall()))?;
    let twins = build((TWINS, twins()))?;
    if !target.strength().leaves_stale {
        bases.extend([tall, twins]);
        return Ok(bases);
    }
    // Crashed between the commit of a truncation and the clearing of the blocks it cut off.
    let cut = parse("truncate /d/z 4096; truncate /a 100").map_err(|e| e.to_string())?;
    bases.push(bases[0].crashed(target, "stale", cut)?);
    // The same in trees of height 2 and 3.
    let cut = parse("truncate /u 4096; truncate /t 100").map_err(|e| e.to_string())?;
    let stale = tall.crashed(target, "tall-stale", cut)?;
    bases.extend([tall, stale, twins]);
    Ok(bases)
}

/// Sequences for bugs that one operation cannot show: a later operation finds what an earlier one
/// left.
const SEQUENCES: &str = "\
write /a 100 200; write /a 104 8
truncate /a 0; truncate /a 10000
truncate /a 0; truncate /a 100
truncate /a 100; truncate /a 10000
truncate /d/z 100; truncate /d/z 20000
truncate /a 100; append /a 9000
write /a 100 4000; fsync /a
create /n; truncate /n 70000; write /n 60000 10000; fsync /n
truncate /d/z 300000; write /d/z 100000 100; fsync /d/z
tmpfile /d 1; link %1 /n
unlink /a; create /n; write /n 0 9000
create /n; write /n 0 40000; truncate /n 5000; unlink /n; create /m; write /m 0 9000; truncate /m 300000
rename /a /d/c; create /n; append /n 9000
write /a 0 5000; write /d/c 0 5000
write /a 0 40000; write /a 28672 8192; write /a 28000 4096; fsync /a
punch /a 0 5000; append /d/c 9000
write /a 2097100 10; collapse /a 0 4096
create /d/n; unlink /d/n; create /d/m
rename /h /a-name-of-two-lines-01234567890123456789012345678901; rename /a-name-of-two-lines-01234567890123456789012345678901 /n; create /m
create /a-name-of-two-lines-01234567890123456789012345678901; rename /a-name-of-two-lines-01234567890123456789012345678901 /a; create /n
mkdir /n; rename /d/c /n/c; rename /n /e/n
truncate /d/z 3000000; write /d/z 2999990 10
setxattr /a user.y 40000; removexattr /a user.y
read /a; write /a 0 10; list /d; create /d/n
setxattr /a security.capability 20; write /a 0 8; setxattr /a security.capability 20; write /a 100 200
setxattr /d/c security.capability 20; append /d/c 9000; setxattr /d/c security.capability 20; write /d/c 9000 9000
setxattr /a security.capability 20; truncate /a 100; setxattr /a security.capability 5000; truncate /a 9000
setxattr /a user.y 300; setxattr /a security.capability 20; write /a 0 8; setxattr /a security.capability 20; truncate /a 100
setxattr /a security.capability 20; setall /a 100 600 9; setxattr /a security.capability 20; chown /a 3 4
setxattr /d/z security.capability 20; punch /d/z 8192 4096; setxattr /d/z security.capability 20; allocate /d/z 0 30000
setxattr /d/z security.capability 20; zero /d/z 4000 30000; setxattr /d/z security.capability 20; insert /d/z 0 4096
setxattr /b security.capability 20; copy /a 0 /b 50 4000; setxattr /b security.capability 20; remount; write /d/c 0 100
write /a 0 5000; write /d/c 10 100; sync; write /a 4000 200; append /d/c 9000; sync; write /a 0 10; remount
tmpfile /d 1; write %1 0 5000; write %1 100 200; fsync %1; link %1 /n; append /n 9; tmpfile /e 2; write %2 0 9000; write %2 100 300; sync; link %2 /d/n
tmpfile /d 1; setxattr %1 security.capability 20; write %1 0 100; setxattr %1 security.capability 20; link %1 /n; append /n 9";

/// More of them, for bugs of space, of stale handles and of tall trees.
const MORE_SEQUENCES: &str = "\
create /n; unlink /n; create /m; unlink /m; create /n
mkdir /n; rmdir /n; create /m
mkdir /n; mkdir /m; rename /n /m/n; rename /m /m/n/m; rename /m/n /n; rename /m /n/m
tmpfile /d 1; close 1; create /n
write /a 4096 4096; collapse /a 0 8192
write /a 0 40000; collapse /a 4096 16384; write /a 0 5000
write /a 0 40000; insert /a 4096 8192; truncate /a 100
open /a 0; unlink /a; write %0 0 9000; close 0; create /n
open /o 0; unlink /o; write %0 0 9000; create /n; write /n 0 9000; close 0
create /n; write /n 0 36864; unlink /n; create /m; write /m 0 9000; truncate /m 60000
truncate /t 2500000; truncate /t 1200000000
truncate /t 100; truncate /t 1200000000
truncate /u 100; truncate /u 2200000
truncate /u 2097152; append /u 9000
write /t 2999990 40; punch /t 0 4096; unlink /t
write /u 2097100 200; zero /u 4096 2097152; collapse /u 0 4096
link /a /n; unlink /a; write /n 0 100; unlink /n; unlink /d/c; unlink /b
setxattr /a user.y 5000; setxattr /a user.y 10; setacl /a; unlink /a
utimes /a; read /a; read /d/c; list /e; remount; list /e; create /e/n
create /n; write /n 0 100; fsync /n; unlink /n; append /a 9000; fsync /a
create /n; truncate /n 70000; write /n 60000 9000; write /n 20000 5000; write /n 40000 5000; allocate /n 0 70000; fsync /n";

/// Sequences for the base [`TWINS`]: commits of bytes and of several words in the last redo record.
const TWIN_SEQUENCES: &str = "\
write /a 100 200; write /d/c 10 80; rename /a /n; rename /d/c /d/n
exchange /a /d/c; setall /a 100 600 9; write /d/c 0 5000; chown /d/c 7 8";

/// Sequences for the base whose directory is full: operations that find one block and need two.
const BRIM_SEQUENCES: &str = "\
unlink /20; allocate /11 0 262144; allocate /12 0 131072; allocate /13 0 65536; allocate /14 0 32768; allocate /15 0 16384; allocate /16 0 8192; allocate /17 0 4096; allocate /18 0 4096; allocate /19 0 4096; truncate /17 0; symlink /d/n 4000; unlink /11";

/// The base of [`brim_sequences`].
pub const BRIM: &str = "brim";

/// Returns the operations of the universe.
pub fn universe() -> Vec<Op> {
    parse(UNIVERSE).expect("the universe is well-formed")
}

/// Returns the hand-picked sequences that reveal bugs of single stores.
pub fn sequences() -> Vec<Vec<Op>> {
    parsed(SEQUENCES)
}

/// Returns all hand-picked sequences.
pub fn all_sequences() -> Vec<Vec<Op>> {
    [parsed(SEQUENCES), parsed(MORE_SEQUENCES)].concat()
}

/// Returns the sequences for the base [`TWINS`].
pub fn twin_sequences() -> Vec<Vec<Op>> {
    parsed(TWIN_SEQUENCES)
}

/// Returns the sequences for the base [`BRIM`].
pub fn brim_sequences() -> Vec<Vec<Op>> {
    parsed(BRIM_SEQUENCES)
}

fn parsed(text: &str) -> Vec<Vec<Op>> {
    text.lines().map(|l| parse(l).expect("the sequences are well-formed")).collect()
}
