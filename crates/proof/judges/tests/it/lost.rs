//! The file of a pool is truncated while it is mounted. Calls work as before until one needs the
//! missing part; from then on, every call fails with `EIO`. Nothing panics.

use crashsim::workload;
use judges::bpfs::Bpfs as Target;
use pmem::{Access, Region};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use vfs::script::{Driver, Op};
use vfs::tree::tree;
use vfs::{Errno, FileSystem as _};

/// The path of a pool; the file is removed when this is dropped.
struct Pool(PathBuf);

impl Pool {
    /// Writes these bytes to the file and mounts it.
    fn mount(&self, bytes: &[u8]) -> bpfs::Bpfs<Region> {
        let file = File::create(&self.0).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        let region = Region::open(&self.0, Access::ReadWrite).unwrap();
        let options = bpfs::MountOptions { threads: Some(1), ..bpfs::MountOptions::default() };
        bpfs::Bpfs::mount(region, &options).unwrap()
    }

    fn cut(&self, len: u64) {
        File::options().write(true).open(&self.0).unwrap().set_len(len).unwrap();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn nobody_sees_a_missing_part_before_it_is_met() {
    pool::handle_faults(pool::Otherwise::PassOn).unwrap();
    let pool = Pool(format!("/dev/shm/crashsim-free-{}", std::process::id()).into());
    let bytes = 16 << 20;
    let region = Region::create(&pool.0, bytes).unwrap();
    bpfs::format(&region, &bpfs::FormatOptions::default()).unwrap();
    drop(region);
    let small =
        vfs::script::parse("mkdir /d; create /d/a; write /d/a 0 100000; create /b; write /b 0 10")
            .unwrap();
    let big = vfs::script::parse("create /c; write /c 0 16200000").unwrap();
    let content = std::fs::read(&pool.0).unwrap();
    let fs = pool.mount(&content);
    for op in &small {
        Driver::new(&fs).run(op, 1).unwrap();
    }
    let expected = tree(&fs).unwrap();
    // The cut is behind the last block in use, as the other blocks are free.
    let stored = std::fs::read(&pool.0).unwrap();
    let is_used = |block: &[u8]| block.iter().any(|byte| *byte != 0);
    let used = 1 + stored.chunks(4096).rposition(is_used).unwrap() as u64;
    assert!(used * 4096 < bytes);
    pool.cut(used * 4096);
    assert_eq!(tree(&fs).unwrap(), expected, "nobody has met it");
    // An operation needs the missing part.
    let met = big.iter().map(|op| Driver::new(&fs).run(op, 1)).find(Result::is_err);
    assert_eq!(met, Some(Err(Errno::IO)));
    let met = vfs::script::parse("create /d/e").unwrap();
    assert_eq!(Driver::new(&fs).run(&met[0], 1), Err(Errno::IO), "nothing is changed any more");
    assert_eq!(fs.lookup(vfs::ROOT, b"d").err(), Some(Errno::IO), "nor read");
    assert_eq!(fs.sync(), Err(Errno::IO), "nor durable");
}

#[test]
fn whatever_meets_the_missing_part_fails() {
    pool::handle_faults(pool::Otherwise::PassOn).unwrap();
    let pool = Pool(format!("/dev/shm/crashsim-lost-{}", std::process::id()).into());
    let (mut met, mut missed) = (0, 0);
    for base in workload::bases(&Target).unwrap() {
        for (i, op) in (0..).zip(workload::universe()) {
            if op == Op::Remount {
                continue;
            }
            let expected = Driver::new(&pool.mount(&base.bytes)).run(&op, 1);
            // Cuts lie at page boundaries, as the kernel reports no fault within a page.
            for n in 0..2 {
                let cut = (i * 7 + n * 29) % 128 * 4096;
                let fs = pool.mount(&base.bytes);
                pool.cut(cut);
                let got = Driver::new(&fs).run(&op, 1);
                let walked = tree(&fs);
                let what = format!("{op} on {}, cut at {cut}: {got:?}, {walked:?}", base.name);
                assert!(got == expected || got == Err(Errno::IO), "{expected:?}, but {what}");
                // An operation that failed half-way may leave any state.
                let is_sound = match &walked {
                    Ok(_) => true,
                    Err(e) => got == Err(Errno::IO) || e.what.ends_with(&Errno::IO.to_string()),
                };
                assert!(is_sound, "{what}");
                match (got, walked) {
                    (Ok(()), Ok(_)) => missed += 1,
                    _ => met += 1,
                }
            }
        }
    }
    assert!(met > 100 && missed > 0, "{met} met it, {missed} did not");
}
