//! A pool of more than 2 MiB, which has whole units of free space, and a file whose run nearly
//! fills a unit. Its sequences let files grow over the end of a unit, and free a unit.

use super::Scmfs;
use crashsim::run::Base;
use scmfs::layout::BLOCK;
use vfs::script::{Op, parse};

/// The size of the pool in bytes: four units of 2 MiB. Formatting uses part of the first one.
const BYTES: u64 = 4 * 512 * BLOCK;

/// Small files, and a file that begins with a hole of a unit and whose second unit lacks three
/// blocks.
const SCRIPT: &str = "create /a; write /a 0 5000; mkdir /d; create /d/c; write /d/c 0 100; \
    create /u; truncate /u 2097152; append /u 100; allocate /u 2097152 2084864";

/// The sequences. Files grow within the unit and over its end, in one write and in two. A write
/// crosses two units; a unit is freed and allocated again. Ranges shift by whole units and by other
/// lengths, and files move while they grow.
const SEQUENCES: &str = "\
append /u 100; append /u 30000; fsync /u
append /u 30000; fsync /u; truncate /u 4182016; append /u 9000
write /u 2097052 200; fsync /u
punch /u 2097152 2084864; append /a 9000; fsync /a
truncate /u 2097152; create /n; append /n 9000; fsync /n
insert /u 2097152 8192; fsync /u
collapse /u 0 2097152; append /u 9000; fsync /u
unlink /u; create /n; truncate /n 2097152; append /n 9000; append /a 9000; append /n 20000; fsync /n";

/// Makes the pool.
pub fn base() -> Result<Base, String> {
    let script = parse(SCRIPT).map_err(|e| e.to_string())?;
    Base::build(&Scmfs, "units", BYTES, script)
}

/// Parses the sequences.
pub fn sequences() -> Vec<Vec<Op>> {
    SEQUENCES.lines().map(|line| parse(line).expect("the sequences are well-formed")).collect()
}
