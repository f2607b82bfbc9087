//! Pools of BPFS whose files share blocks: a root, a block of pointers, a block of data; whole
//! files and parts of them.

use super::Bpfs;
use crashsim::run::Base;
use crashsim::workload::POOL_BYTES;
use vfs::script::{Op, parse};

/// Files that share: `/a` and `/s` a block of pointers, which is the root of both; `/p` and `/q` a
/// block of data, which is the root; `/r`, `/v` and `/d/w` blocks of data below different roots.
const SHARED: &str = "mkdir /d; create /a; write /a 0 5000; create /s; clone /a 0 /s 0 0; \
    create /p; write /p 0 100; create /q; clone /p 0 /q 0 0; \
    create /r; write /r 0 20000; create /v; write /v 0 9000; clone /r 4096 /v 0 8192; \
    create /d/w; clone /r 8192 /d/w 4096 11808; clone /r 0 /r 20480 4096; \
    setxattr /a user.x 10; create /o";

/// Files with trees of height 2: `/t` and `/u` share the root; `/w` has a block of pointers of
/// both, and another one twice; `/x` shares blocks of data at another offset.
const TALL: &str = "mkdir /d; create /t; write /t 0 5000; write /t 2097152 9000; \
    create /u; clone /t 0 /u 0 0; create /w; clone /t 0 /w 4194304 2097152; \
    write /w 8192 100; clone /w 0 /w 2097152 2097152; create /x; clone /t 2097152 /x 4096 9000; \
    create /o";

/// Single changes of either side, and clones, for the pool of [`SHARED`].
const CHANGES: &str = "\
write /s 0 8; write /a 0 8; write /a 3 5; write /s 64 64; write /a 130 50; write /s 100 200; write /a 4090 20
write /s 0 4096; write /a 0 5000; write /s 4096 904; write /a 4990 20; write /s 5000 100; write /a 9000 10
append /s 100; append /a 9000; truncate /s 0; truncate /a 100; truncate /s 4096; truncate /a 5001
truncate /s 10000; truncate /a 3000000; punch /s 0 4096; punch /a 100 200; punch /s 0 5000
zero /a 100 5000; zero /s 4000 9000; collapse /a 0 4096; insert /s 0 4096; allocate /a 4000 10000
unlink /s; unlink /a; rename /s /a; exchange /s /o; setall /s 100 600 9; setall /a 9000 644 9
write /p 0 8; write /q 10 60; append /p 10; append /q 9000; truncate /q 50; truncate /p 9000; unlink /p
punch /q 0 100; write /q 0 4096; collapse /r 4096 4096; insert /r 4096 8192; truncate /r 6000
write /r 4100 8; write /v 0 4096; write /d/w 4100 300; write /r 0 20000; truncate /v 100; append /v 100
punch /r 4096 8192; write /r 20480 8; truncate /r 20480; unlink /r; unlink /v; unlink /d/w
clone /a 0 /o 0 0; clone /s 0 /a 0 0; clone /s 0 /p 0 0; clone /p 0 /a 8192 0; clone /r 0 /a 0 4096
clone /r 4096 /o 12288 8192; clone /v 0 /r 0 8192; clone /a 0 /a 8192 4096; clone /a 4096 /s 12288 0
clone /q 0 /d/w 0 0; clone /r 16384 /v 4096 0; clone /o 0 /a 0 0; copy /a 0 /s 100 3000
setxattr /s security.capability 20; fsync /s; remount";

/// Changes for the pool of [`TALL`].
const TALL_CHANGES: &str = "\
write /t 0 8; write /u 2097152 100; write /u 2097100 200; write /w 4194304 4096; write /w 2105344 8
append /t 100; append /u 9000; append /w 100; truncate /t 100; truncate /u 2097152; truncate /w 4194304
truncate /u 2100000; truncate /t 6000000; truncate /w 4198400; truncate /t 0; punch /u 0 2097152
punch /t 100 2100000; punch /w 0 8388608; zero /t 2097152 4096; collapse /u 0 4096; insert /w 2097152 4096
unlink /t; unlink /u; unlink /w; unlink /x; write /x 4096 100; append /x 10; truncate /x 5000
clone /t 0 /o 0 0; clone /t 2097152 /u 0 0; clone /u 0 /w 0 2097152; clone /t 0 /u 4194304 0
clone /w 4194304 /x 2097152 2097152; clone /t 0 /t 4194304 2097152; clone /o 0 /t 0 0";

/// Sequences: a later operation stores where an earlier one has left a block to one file.
const SEQUENCES: [&str; 27] = [
    "write /s 0 8; write /a 0 8; write /s 100 200; write /a 64 64",
    "unlink /s; write /a 0 8; append /a 100; write /a 100 300",
    "unlink /a; write /s 0 8; append /s 100; truncate /s 100; append /s 10",
    "truncate /s 100; write /a 0 8; truncate /s 5000; write /a 200 8",
    "write /s 4096 904; unlink /a; create /n; write /n 0 9000",
    "write /s 0 5000; write /a 0 5000; create /n; write /n 0 20000",
    "append /s 100; append /a 100; truncate /s 3000000; write /s 2999990 10",
    "rename /s /a; write /a 0 8; create /n; write /n 0 9000",
    "open /s 0; unlink /s; write %0 0 8; write /a 0 8; close 0; write /a 8 8",
    "clone /a 0 /o 0 0; unlink /a; unlink /s; write /o 0 8; unlink /o",
    "clone /a 0 /o 0 0; write /a 0 8; write /s 0 8; write /o 0 8",
    "create /n; write /n 0 40000; clone /n 0 /o 0 0; truncate /n 20000; write /o 30000 100",
    "create /n; write /n 0 40000; clone /n 0 /o 0 0; collapse /n 0 16384; unlink /o; write /n 0 100",
    "punch /s 0 4096; write /a 0 8; clone /a 0 /s 0 0; write /s 0 8",
    "write /p 0 8; write /q 0 8; append /p 10; append /q 20; unlink /q",
    "truncate /q 0; append /p 100; clone /p 0 /q 0 0; append /q 9000",
    "write /r 4100 8; write /v 10 8; write /d/w 10 8; unlink /v; write /r 4108 8",
    "unlink /r; write /v 10 100; write /d/w 4100 100; unlink /v; append /d/w 100",
    "clone /r 0 /o 0 0; truncate /o 0; write /r 0 8; sync; remount; write /r 8 8",
    "write /s 0 8; remount; write /a 0 8; unlink /s; remount; write /a 8 8",
    // An unmount records that nothing is shared any more.
    "unlink /s; unlink /q; unlink /v; unlink /d/w; unlink /r; remount; remount; clone /a 0 /o 0 0; write /a 0 8",
    "copy /r 0 /o 0 20000; write /r 0 8; write /o 8 8",
    "clone /r 4096 /o 0 8192; write /r 4100 8; write /o 10 8",
    "create /n; write /n 0 4096; clone /n 0 /r 8192 0; clone /r 8192 /o 0 4096; write /n 0 8; write /r 8192 8; unlink /o",
    "clone /r 0 /o 0 8192; append /o 100; truncate /o 16384; write /o 8200 8",
    "truncate /s 4500; zero /s 4200 9000; truncate /a 4500; truncate /a 9000",
    "tmpfile /d 1; clone /a 0 %1 0 0; write %1 0 8; write /a 0 8; close 1; write /a 8 8",
];

/// Sequences for the pool of [`TALL`].
const TALL_SEQUENCES: [&str; 9] = [
    "write /t 0 8; write /u 0 8; write /w 4194304 8",
    "unlink /t; write /u 0 8; unlink /u; write /w 4194304 8",
    "truncate /t 100; truncate /u 2097152; append /u 100; truncate /t 2200000",
    "unlink /w; unlink /x; write /u 2097100 200; write /t 0 8; write /u 0 8",
    "unlink /w; write /t 0 8; append /u 10; unlink /t",
    "write /w 8192 8; write /w 2105344 8; unlink /w",
    "truncate /w 2097152; write /w 8200 8; append /w 100",
    "punch /t 0 2097152; write /u 0 8; clone /u 0 /t 0 2097152; unlink /u",
    "unlink /x; write /t 2097152 8; write /u 2097152 8; write /u 2097160 8",
];

/// Makes the pools whose files share blocks.
pub fn bases() -> Result<[Base; 2], String> {
    let build = |name, text: &str| {
        let ops = parse(text).map_err(|e| e.to_string())?;
        Base::build(&Bpfs, name, POOL_BYTES, ops).map_err(|e| format!("base {name}: {e}"))
    };
    Ok([build("shared", SHARED)?, build("shared-tall", TALL)?])
}

/// Programs of two threads for pools without shared blocks. Both make the first clone: the second
/// one may commit while the first one has not recorded yet that the pool shares blocks.
pub const FIRST_CLONES: [&str; 3] = [
    "clone %0 0 /o 0 0 | clone %1 0 /d/o 0 0",
    "clone %1 0 /d/o 0 0 | clone %0 0 /o 0 0; write /o 0 100",
    "clone %0 0 %1 0 0; unlink /a | write %0 100 2000; clone %0 0 /o 0 0",
];

/// Programs of two threads for the first of the [`bases`]: they clone, change and remove the same
/// blocks.
pub const INTERRUPTED: [&str; 5] = [
    "clone /a 0 /o 0 0 | unlink /a; create /n; append /n 9000",
    "write /s 0 4096 | unlink /a; create /n; append /n 9000",
    "truncate /s 0 | truncate /a 0; append /r 9000",
    "clone /r 0 /o 0 0; unlink /o | write /r 0 8; append /v 5000",
    "punch /r 0 8192 | write /v 10 8; clone /v 0 /o 0 0",
];

/// Returns the workloads for each of the [`bases`]: single changes, and sequences.
pub fn workloads() -> [Vec<Vec<Op>>; 2] {
    let all = |changes: &str, sequences: &[&str]| {
        let changes = changes.lines().flat_map(|line| parse(line).expect("operations"));
        let sequences = sequences.iter().map(|text| parse(text).expect("operations"));
        changes.map(|op| vec![op]).chain(sequences).collect()
    };
    [all(CHANGES, &SEQUENCES), all(TALL_CHANGES, &TALL_SEQUENCES)]
}
