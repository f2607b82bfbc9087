//! Thin pools ([`FormatOptions::is_thin`]), on a medium that has a limited amount of space and
//! refuses stores to places without any.

use crate::{Engine, FILE, PoolFile, content, file, mount, resize, try_attach};
use namespace::Trim;
use pmem::{Counters, Domain, Fenced, Line, Medium, Region};
use pool::{CheckOptions, FormatOptions};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::{Caller, Errno, FileSystem, ROOT};

const BLOCK: u64 = 4096;
/// Blocks that stay provisioned at most, although no file needs them.
const AHEAD: u64 = 2048 + 512 + 128;

/// The file system below a pool.
struct SpaceBelow {
    /// The blocks of the pool that have space.
    taken: Mutex<BTreeSet<u64>>,
    /// The most blocks that can have some.
    most: AtomicU64,
    /// Whether loads need space, too: only loads by threads that overlook a change do not.
    are_loads_checked: AtomicBool,
}

impl SpaceBelow {
    fn taken(&self) -> u64 {
        self.taken.lock().unwrap().len() as u64
    }

    fn check(&self, off: u64, len: u64) {
        let taken = self.taken.lock().unwrap();
        let missing = blocks(off, len).find(|block| !taken.contains(block));
        assert!(missing.is_none(), "access of {len} bytes at {off}: there is no space");
    }
}

fn blocks(off: u64, len: u64) -> Range<u64> {
    off / BLOCK..(off + len).div_ceil(BLOCK)
}

/// A medium over [`SpaceBelow`].
struct ThinMedium {
    memory: Region,
    below: Arc<SpaceBelow>,
}

impl ThinMedium {
    /// Returns a formatted thin pool of this many blocks, on this much space.
    fn formatted<E: Engine>(blocks: u64, most: u64) -> (Self, Arc<SpaceBelow>) {
        let (medium, below) = Self::sized::<E>(blocks, None);
        below.most.store(most, Relaxed);
        (medium, below)
    }

    /// Returns a formatted thin pool of this many blocks, resizable if it has a size.
    fn sized<E: Engine>(blocks: u64, size: Option<u64>) -> (Self, Arc<SpaceBelow>) {
        let below = Arc::new(SpaceBelow {
            taken: Mutex::default(),
            most: AtomicU64::new(blocks),
            are_loads_checked: AtomicBool::new(false),
        });
        let memory = Region::anonymous(blocks * BLOCK).unwrap();
        let medium = Self { memory, below: below.clone() };
        let info = E::format(&medium, &FormatOptions { size, ..thin() }).unwrap();
        assert!(info.is_thin);
        below.are_loads_checked.store(true, Relaxed);
        (medium, below)
    }

    fn loaded(&self, off: u64, len: u64) {
        if self.below.are_loads_checked.load(Relaxed) {
            self.below.check(off, len);
        }
    }
}

fn thin() -> FormatOptions {
    FormatOptions { is_thin: true, ..FormatOptions::default() }
}

impl Medium for ThinMedium {
    fn len(&self) -> u64 {
        self.memory.len()
    }
    fn domain(&self) -> Domain {
        self.memory.domain()
    }
    fn counters(&self) -> &Counters {
        self.memory.counters()
    }
    fn provision(&self, off: u64, len: u64) -> io::Result<()> {
        let mut taken = self.below.taken.lock().unwrap();
        let missing = blocks(off, len).filter(|block| !taken.contains(block)).count() as u64;
        if taken.len() as u64 + missing > self.below.most.load(Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        taken.extend(blocks(off, len));
        Ok(())
    }
    fn release(&self, off: u64, len: u64) -> io::Result<Range<u64>> {
        self.memory.zero_nt(off, len);
        let mut taken = self.below.taken.lock().unwrap();
        taken.retain(|block| !blocks(off, len).contains(block));
        Ok(off..off + len)
    }
    fn data_within(&self, off: u64, len: u64) -> Range<u64> {
        let taken = self.below.taken.lock().unwrap();
        let within = blocks(off, len);
        let Some(first) = taken.range(within.clone()).next() else {
            return off + len..off + len;
        };
        let count = (*first..within.end).take_while(|block| taken.contains(block)).count() as u64;
        (first * BLOCK).max(off)..((first + count) * BLOCK).min(off + len)
    }
    fn read(&self, off: u64, buf: &mut [u8]) {
        self.loaded(off, buf.len() as u64);
        self.memory.read(off, buf);
    }
    fn load_u64(&self, off: u64) -> u64 {
        self.loaded(off, 8);
        self.memory.load_u64(off)
    }
    fn equals(&self, off: u64, bytes: &[u8]) -> bool {
        self.loaded(off, bytes.len() as u64);
        self.memory.equals(off, bytes)
    }
    fn write(&self, off: u64, data: &[u8]) {
        self.below.check(off, data.len() as u64);
        self.memory.write(off, data);
    }
    fn write_nt(&self, off: u64, data: &[u8]) {
        self.below.check(off, data.len() as u64);
        self.memory.write_nt(off, data);
    }
    fn copy_nt(&self, dst: u64, src: u64, len: u64) {
        self.loaded(src, len);
        self.below.check(dst, len);
        self.memory.copy_nt(dst, src, len);
    }
    fn zero_nt(&self, off: u64, len: u64) {
        self.below.check(off, len);
        self.memory.zero_nt(off, len);
    }
    fn store_u64(&self, off: u64, value: u64) {
        self.below.check(off, 8);
        self.memory.store_u64(off, value);
    }
    fn store_line(&self, off: u64, line: &Line) {
        self.below.check(off, 64);
        self.memory.store_line(off, line);
    }
    fn flush(&self, off: u64, len: u64) {
        self.memory.flush(off, len);
    }
    fn fence(&self) -> Fenced {
        self.memory.fence()
    }
}

/// Writes many small files.
fn fill(fs: &dyn FileSystem, files: u64, bytes: usize) {
    let data: Vec<u8> = (0..bytes).map(|i| (i / 7) as u8).collect();
    for i in 0..files {
        file(fs, &format!("file-{i}"), &data);
    }
}

/// Removes the files of [`fill`], in another order.
fn empty(fs: &dyn FileSystem, files: u64) {
    for i in 0..files {
        fs.unlink(ROOT, format!("file-{}", i * 7 % files).as_bytes()).unwrap();
    }
}

/// A pool takes what its files hold, and little more, and gives back what they held.
pub fn space_is_taken_and_given_back<E: Engine>() {
    let (medium, below) = ThinMedium::formatted::<E>(1 << 16, 1 << 16);
    assert!(below.taken() < 64);
    let fs = mount::<E, _>(medium);
    assert!(below.taken() <= AHEAD, "{}", below.taken());
    let before = fs.statfs();
    assert!(before.blocks_free > (1 << 16) - 100);
    let kept = file(&fs, "kept", &vec![7; 3 << 20]);
    fill(&fs, 1999, 16 << 10);
    let held = before.blocks_free - fs.statfs().blocks_free;
    assert!((8000..11_500).contains(&held), "{held}");
    assert!((held..=held * 102 / 100 + AHEAD).contains(&below.taken()), "{}", below.taken());
    empty(&fs, 1999);
    fs.trim(Trim::All).unwrap();
    let held = before.blocks - fs.statfs().blocks_free;
    assert!(held < 1100, "{held}");
    assert!(below.taken() <= held * 102 / 100 + 128, "{} for {held}", below.taken());
    assert_eq!(content(&fs, kept), vec![7; 3 << 20]);

    let free = fs.statfs().blocks_free;
    let medium = fs.into_medium();
    let report = E::check(&medium, &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let fs = mount::<E, _>(medium);
    assert_eq!(fs.statfs().blocks_free, free);
    assert_eq!(content(&fs, kept), vec![7; 3 << 20]);
    // Space that was given back is taken again.
    fill(&fs, 1000, 16 << 10);
    empty(&fs, 1000);
    let whole = file(&fs, "whole", &vec![8; 64 << 20]);
    assert_eq!(content(&fs, whole), vec![8; 64 << 20]);
}

/// A few files that stay keep the pieces that they lie in, and not whole huge pages.
pub fn a_few_files_keep_little_space<E: Engine>() {
    const FILES: u64 = 4000;
    const STAYS: u64 = 100;
    let (medium, below) = ThinMedium::formatted::<E>(1 << 16, 1 << 16);
    let fs = mount::<E, _>(medium);
    fill(&fs, FILES, 16 << 10);
    let full = below.taken();
    for i in (0..FILES).filter(|i| i % STAYS > 0) {
        fs.unlink(ROOT, format!("file-{i}").as_bytes()).unwrap();
    }
    fs.trim(Trim::Surplus(0)).unwrap();
    let whole = below.taken();
    fs.trim(Trim::Pieces(0)).unwrap();
    let pieces = below.taken();
    // 4096 blocks stay free; each file has at most two pieces.
    let most = 4096 + FILES / STAYS * 2 * 16 + AHEAD;
    assert!(pieces <= whole && pieces < most, "{full}, {whole}, {pieces}");
    for i in (0..FILES).step_by(STAYS as usize) {
        let ino = fs.lookup(ROOT, format!("file-{i}").as_bytes()).unwrap().ino;
        assert_eq!(content(&fs, ino).len(), 16 << 10);
    }
    // Space in huge pages that were divided is taken again.
    for i in 0..FILES {
        file(&fs, &format!("again-{i}"), &[3; 16 << 10]);
    }
    let medium = fs.into_medium();
    assert!(E::check(&medium, &CheckOptions::default()).unwrap().clean());
}

/// If the file system below is full, operations fail with `ENOSPC`, and nothing else happens.
pub fn a_full_file_system_below_refuses_and_keeps<E: Engine>() {
    let (medium, below) = ThinMedium::formatted::<E>(1 << 15, 3000);
    let fs = mount::<E, _>(medium);
    let data = vec![9; 64 << 10];
    let mut files = 0;
    let failed = loop {
        match try_file(&fs, files, &data) {
            Ok(()) => files += 1,
            Err(err) => break err,
        }
        assert!(files < 1000);
    };
    assert_eq!(failed, Errno::NOSPC);
    assert!(files * 16 > 3000 * 3 / 4 - AHEAD / 2, "{files} of 64 KiB");
    assert!(below.taken() <= 3000);
    let whole = fs.lookup(ROOT, b"0").unwrap().ino;
    assert_eq!(content(&fs, whole), data);
    // Removals work, and what they free is used.
    for i in 0..files / 2 {
        fs.unlink(ROOT, i.to_string().as_bytes()).unwrap();
    }
    file(&fs, "again", &data);
    // There is space again.
    below.most.store(1 << 15, Relaxed);
    let long = file(&fs, "long", &vec![1; 48 << 20]);
    resize(&fs, long, 0);
    fs.trim(Trim::All).unwrap();
    let medium = fs.into_medium();
    assert!(E::check(&medium, &CheckOptions::default()).unwrap().clean());
}

/// Creates a file with a number as its name.
fn try_file(fs: &dyn FileSystem, name: u64, content: &[u8]) -> vfs::Result<()> {
    let made = fs.create(&Caller::ROOT, ROOT, name.to_string().as_bytes(), &FILE)?;
    fs.forget(made.ino, 1);
    fs.write(made.ino, 0, content)
}

/// Threads that make, change and remove files while space is given back.
pub fn trims_beside_threads<E: Engine>() {
    for seed in 0..3 {
        let (medium, below) = ThinMedium::formatted::<E>(1 << 14, 1 << 14);
        below.are_loads_checked.store(false, Relaxed);
        let fs = mount::<E, _>(medium);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let trimmer = s.spawn(|| {
                // Each form at least once, however late this thread gets its processor.
                let forms = [Trim::All, Trim::Surplus(0), Trim::Pieces(0)];
                let mut trims = 0;
                while trims < forms.len() || !is_done.load(Relaxed) {
                    fs.trim(forms[trims % forms.len()]).unwrap();
                    trims += 1;
                }
            });
            vfs::conformance::stress(&fs, 4, 1500, seed).unwrap();
            is_done.store(true, Relaxed);
            trimmer.join().unwrap();
        });
        let medium = fs.into_medium();
        assert!(E::check(&medium, &CheckOptions::default()).unwrap().clean());
    }
}

/// A file takes as much space as its pool needs, in all processes. A recovery changes nothing.
pub fn a_sparse_file_takes_what_is_needed<E: Engine>() {
    let pool = PoolFile::new::<E>("thin", 1 << 20);
    std::fs::remove_file(&pool.0).unwrap();
    let sparse = pmem::OpenOptions { sparse: true, ..Default::default() };
    let region = sparse.create(&pool.0, 256 << 20).unwrap();
    E::format(&region, &thin()).unwrap();
    drop(region);
    let taken = || std::fs::metadata(&pool.0).unwrap().blocks() * 512;
    assert!(taken() < 1 << 20, "{}", taken());
    let (one, two) = (try_attach::<E>(&pool.0).unwrap(), try_attach::<E>(&pool.0).unwrap());
    let free = one.statfs().blocks_free;
    let first = file(&one, "one", &vec![1; 30 << 20]);
    let second = file(&two, "two", &vec![2; 30 << 20]);
    assert!((60 << 20..100 << 20).contains(&taken()), "{}", taken());
    two.rehearse_recovery().unwrap();
    assert!(one.statfs().blocks_free <= free - (60 << 20) / BLOCK);
    two.unlink(ROOT, b"one").unwrap();
    assert_eq!(one.lookup(ROOT, b"one").map(drop), Err(Errno::NOENT));
    one.trim(Trim::All).unwrap();
    assert!(taken() < 34 << 20, "{}", taken());
    assert_eq!(content(&two, second), vec![2; 30 << 20]);
    let third = file(&two, "three", &vec![3; 100 << 20]);
    one.rehearse_recovery().unwrap();
    assert_eq!(content(&one, third), vec![3; 100 << 20]);
    assert!(first != third || one.statfs().blocks_free < free);
}

/// A pool gets longer and shorter, and keeps its files; one whose files do not fit stays as it is.
pub fn pools_get_other_sizes<E: Engine>() {
    const MIB: u64 = 1 << 20;
    for is_thin in [false, true] {
        let region = Region::anonymous(64 * MIB).unwrap();
        E::format(&region, &FormatOptions { is_thin, ..thin() }).unwrap();
        let size = |region: &Region| E::info(region).unwrap().size_bytes;
        let fs = mount::<E, _>(&region);
        fill(&fs, 1200, 16 << 10);
        let kept: Vec<u8> = (0..8 * MIB).map(|i| (i / 3) as u8).collect();
        file(&fs, "kept", &kept);
        fs.setxattr(ROOT, b"user.long", &[7; 3000], vfs::SetXattr::Any).unwrap();
        empty(&fs, 1199);
        drop(fs);
        for bytes in [32 * MIB, 12 * MIB + 5, 64 * MIB, 13 * MIB] {
            let new = E::resize(&region, bytes).unwrap();
            assert_eq!((new, size(&region)), (bytes - bytes % (64 << 10), new));
            let report = E::check(&region, &CheckOptions::default()).unwrap();
            assert!(report.clean(), "{bytes}: {:?}", report.problems);
            let fs = mount::<E, _>(&region);
            assert_eq!(fs.statfs().blocks, new / BLOCK);
            let ino = fs.lookup(ROOT, b"kept").unwrap().ino;
            assert_eq!(content(&fs, ino), kept);
            assert_eq!(fs.getxattr(ROOT, b"user.long").unwrap(), [7; 3000]);
            file(&fs, &format!("at-{bytes}"), &[8; 100_000]);
        }
        for bytes in [7 * MIB, 65 * MIB, 100 << 10] {
            assert!(matches!(E::resize(&region, bytes), Err(pool::Error::Unformattable(_))));
            assert_eq!(size(&region), 13 * MIB);
            assert!(E::check(&region, &CheckOptions::default()).unwrap().clean());
        }
    }
}

/// A pool gets another size while threads and other processes use it, up to its length, and takes
/// no more space than that.
pub fn pools_in_use_get_other_sizes<E: Engine>() {
    const MIB: u64 = 1 << 20;
    let pool = PoolFile::new::<E>("resizable", 1 << 20);
    std::fs::remove_file(&pool.0).unwrap();
    let sparse = pmem::OpenOptions { sparse: true, ..Default::default() };
    let region = sparse.create(&pool.0, 256 * MIB).unwrap();
    let format = FormatOptions { size: Some(32 * MIB), ..thin() };
    let info = E::format(&region, &format).unwrap();
    assert_eq!((info.size_bytes, info.max_size_bytes), (32 * MIB, Some(256 * MIB)));
    drop(region);
    let taken = || std::fs::metadata(&pool.0).unwrap().blocks() * 512;
    let (one, two) = (try_attach::<E>(&pool.0).unwrap(), try_attach::<E>(&pool.0).unwrap());
    let blocks = |fs: &dyn FileSystem| fs.statfs().blocks * BLOCK;
    // No more than the size, in any process, and all of it.
    let mut count = 0;
    let data = vec![5; 1 << 20];
    let fill = |fs: &dyn FileSystem, count: &mut u64| {
        while try_file(fs, *count, &data).is_ok() {
            *count += 1;
        }
        fs.unlink(ROOT, count.to_string().as_bytes()).unwrap();
    };
    fill(&one, &mut count);
    assert!((29..32).contains(&count), "{count}");
    assert!(taken() <= 32 * MIB, "{}", taken());
    assert_eq!(two.resize(64 * MIB), Ok(64 * MIB));
    assert_eq!((blocks(&one), blocks(&two)), (64 * MIB, 64 * MIB));
    fill(&one, &mut count);
    assert!((60..64).contains(&count), "{count}");
    one.rehearse_recovery().unwrap();
    fill(&two, &mut count);
    assert!((60..64).contains(&count), "{count}");
    assert!(taken() <= 64 * MIB, "{}", taken());
    // A refused resize keeps the size and the files.
    assert_eq!(one.resize(48 * MIB), Err(Errno::NOSPC));
    assert_eq!((blocks(&one), one.statfs().blocks_free * BLOCK / MIB), (64 * MIB, 0));
    for bytes in [257 * MIB, 100 << 10] {
        assert_eq!(one.resize(bytes), Err(Errno::INVAL));
    }
    let kept = two.lookup(ROOT, b"1").unwrap().ino;
    for name in 2..count {
        two.unlink(ROOT, name.to_string().as_bytes()).unwrap();
    }
    assert_eq!(one.resize(16 * MIB + 5), Ok(16 * MIB));
    assert!(taken() <= 16 * MIB, "{}", taken());
    fill(&two, &mut count);
    assert!(taken() <= 16 * MIB, "{}", taken());
    assert_eq!(content(&one, kept), data);
    assert_eq!(two.resize(256 * MIB), Ok(256 * MIB));
    file(&one, "large", &vec![6; 200 << 20]);
    drop((one, two));
    let open = pmem::OpenOptions::default();
    let region = open.open(&pool.0, pmem::Access::ReadWrite).unwrap();
    assert_eq!(E::info(&region).unwrap().size_bytes, 256 * MIB);
    let report = E::check(&region, &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let word = region.load_u64(namespace::POOL_SIZE.get());
    for wrong in [0, word ^ 16, word ^ 1 << 40, word | u64::from(u32::MAX)] {
        region.store_u64(namespace::POOL_SIZE.get(), wrong);
        assert!(matches!(E::info(&region), Err(pool::Error::Unusable(_))), "{wrong:#x}");
    }
}

/// A pool in which space lies scattered becomes smaller only while no process uses it. A copy that
/// has space everywhere gives it back.
pub fn a_resizable_pool_is_moved_together<E: Engine>() {
    const MIB: u64 = 1 << 20;
    let (memory, below) = ThinMedium::sized::<E>(1 << 14, Some(48 * MIB));
    let fs = mount::<E, _>(memory);
    let before = fs.statfs();
    assert_eq!(before.blocks * BLOCK, 48 * MIB);
    // One block of each unit stays.
    fill(&fs, 9000, 4096);
    assert!(below.taken() * BLOCK <= 48 * MIB);
    for i in (0..9000).filter(|i| i % 16 > 0) {
        fs.unlink(ROOT, format!("file-{i}").as_bytes()).unwrap();
    }
    assert_eq!(fs.resize(12 * MIB), Err(Errno::NOSPC));
    assert_eq!(fs.statfs().blocks, before.blocks);
    let medium = fs.into_medium();
    assert_eq!(E::resize(&medium, 12 * MIB).unwrap(), 12 * MIB);
    let report = E::check(&medium, &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    assert_eq!(report.blocks * BLOCK, 12 * MIB);
    assert!(report.blocks_used < report.blocks);
    medium.provision(0, medium.len()).unwrap();
    let fs = mount::<E, _>(medium);
    assert!(below.taken() * BLOCK <= 12 * MIB, "{}", below.taken());
    assert_eq!(fs.statfs().blocks * BLOCK, 12 * MIB);
    let kept = fs.lookup(ROOT, b"file-16").unwrap().ino;
    assert_eq!(content(&fs, kept).len(), 4096);
    // Longer than its region.
    let medium = fs.into_medium();
    assert!(matches!(E::resize(&medium, 100 * MIB), Err(pool::Error::Unformattable(_))));
    assert_eq!(E::resize(&medium, 64 * MIB).unwrap(), 64 * MIB);
    let fs = mount::<E, _>(medium);
    file(&fs, "large", &vec![1; 50 << 20]);
}
