//! Tests of files that programs read and write in the pool themselves.

use crate::common::{Below, content, file, options};
use backing::Backing;
use bpfs::Bpfs;
use pmcache::{Cache, CacheOptions, DELEGATION, JOIN};
use pmem::{Access, Lock, Medium as _, OpenOptions, Region};
use pool::{FormatOptions, MountOptions};
use rng::Rng;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::time::Duration;
use vfs::conformance::{run_all, run_generated};
use vfs::{
    Announcement, Caller, Credit, Delegation, Delegations, Errno, Fallocate, FileSystem, Ino,
    Mappings, Openings, ROOT, RenameFlags, SetAttr, SetXattr,
};

type Tested = Cache<Bpfs<Region>, Below>;

const BLOCK: u64 = 4096;

/// A pool's file, removed when dropped.
struct Pool(PathBuf);

impl Pool {
    fn new(bytes: u64) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let path = format!("/dev/shm/keepstone-delegate-{}-{number}", std::process::id());
        let pool = Self(path.into());
        bpfs::format(&Region::create(&pool.0, bytes).unwrap(), &FormatOptions::default()).unwrap();
        pool
    }

    /// Opens the pool such that programs can share it.
    fn open(&self) -> Bpfs<Region> {
        let lock = Some(Lock::Shared);
        let options = OpenOptions { lock, ..OpenOptions::default() };
        let region = options.open(&self.0, Access::ReadWrite).unwrap();
        let place = bpfs::place(&region).unwrap();
        let options = MountOptions { threads: Some(1), ..MountOptions::default() };
        Bpfs::attach(region, &place, &options).unwrap()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A cache that delegates files, with a front end that forgets at once.
struct Programs {
    cache: Tested,
    below: Below,
    /// Decides which calls are made by a delegation.
    draw: Mutex<Rng>,
    /// The credit that is left, by delegation.
    credits: Mutex<HashMap<u64, Credit>>,
    pool: Pool,
}

/// Requests a delegation of a file. Returns its number and the shadow.
fn delegation(cache: &dyn FileSystem, ino: Ino) -> vfs::Result<(Delegation, Ino)> {
    let told = String::from_utf8(cache.getxattr(ino, DELEGATION.as_bytes())?).unwrap();
    let mut words = told.split(' ');
    let mut number = || words.next().unwrap().parse().unwrap();
    let found = (Delegation(number()), Ino(number()));
    assert_eq!(words.collect::<Vec<_>>(), ["/pool"]);
    Ok(found)
}

/// Returns the content of the file of this name.
fn named(fs: &dyn FileSystem, name: &[u8]) -> Vec<u8> {
    let ino = fs.lookup(ROOT, name).unwrap().ino;
    let found = content(fs, ino).unwrap();
    fs.forget(ino, 1);
    found
}

fn believing() -> CacheOptions {
    CacheOptions { coherence_ns: 1_000_000_000, ..options() }
}

impl Programs {
    fn new(bytes: u64, options: CacheOptions) -> Self {
        let (pool, below) = (Pool::new(bytes), Below(Arc::default()));
        let cache = Cache::attach(pool.open(), below.clone(), "/below", options).unwrap();
        cache.delegate_to_programs(b"/pool".to_vec(), Box::new(|_| Ok(())));
        Self { cache, below, draw: Mutex::new(Rng::new(1)), credits: Mutex::default(), pool }
    }

    fn delegation(&self, ino: Ino) -> vfs::Result<(Delegation, Ino)> {
        delegation(&self.cache, ino)
    }

    fn announce(&self, ino: Ino, by: Delegation, start: u64, end: u64) -> vfs::Result<Credit> {
        let blocks = start / BLOCK..end.div_ceil(BLOCK);
        self.cache.announce(ino, &Announcement { by, blocks })
    }

    fn write_by_delegation(&self, ino: Ino, offset: u64, data: &[u8]) -> vfs::Result<()> {
        let (by, shadow) = self.delegation(ino)?;
        let end = offset.saturating_add(data.len() as u64);
        if !self.mark(by, offset / BLOCK..end.div_ceil(BLOCK))? {
            let credit = self.announce(ino, by, offset, end)?;
            self.credits.lock().unwrap().insert(by.0, credit);
        }
        self.cache.pool().write_delegated(by, shadow, offset, data)
    }

    /// Marks blocks by the credit, if that is sufficient. Returns whether it was.
    fn mark(&self, by: Delegation, blocks: Range<u64>) -> vfs::Result<bool> {
        let mut credits = self.credits.lock().unwrap();
        let Some(credit) = credits.get_mut(&by.0) else { return Ok(false) };
        let left = credit.blocks.checked_sub(blocks.end - blocks.start);
        let Some(left) = left.filter(|_| blocks.end <= credit.end) else { return Ok(false) };
        credit.blocks = left;
        self.cache.pool().set_bits_delegated(by, credit.bitmap, blocks)?;
        Ok(true)
    }

    /// Appends by a delegation. The first attempts use ranges of a program that knows an older end
    /// of the file, or that announced other blocks.
    fn append_by_delegation(&self, ino: Ino, data: &[u8]) -> vfs::Result<u64> {
        let (by, shadow) = self.delegation(ino)?;
        let pool = self.cache.pool();
        let len = data.len() as u64;
        let size = pool.getattr(shadow)?.size;
        for elsewhere in [0..size, size + 1..u64::MAX, 0..size + len - 1] {
            let refused = pool.append_delegated(by, shadow, elsewhere, data);
            assert_eq!(refused, Err(Errno::RANGE));
        }
        let end = size.saturating_add(len);
        self.announce(ino, by, size, end)?;
        pool.append_delegated(by, shadow, size / BLOCK * BLOCK..end, data)
    }

    fn read_by_delegation(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> vfs::Result<usize> {
        let (by, shadow) = self.delegation(ino)?;
        self.cache.pool().read_delegated(by, shadow, offset, buf)
    }

    /// Returns `true` three times out of four.
    fn draws(&self) -> bool {
        self.draw.lock().unwrap().below(4) > 0
    }
}

impl FileSystem for Programs {
    vfs::forward!(self => self.cache; root, durability, kernel_cache, limits, lookup, forget,
        getattr, setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout,
        readdir, drop_privileges, fallocate, seek, copy_range, fsync, sync, getxattr, setxattr,
        listxattr, removexattr, statfs);

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> vfs::Result<usize> {
        if self.draws()
            && let Ok(len) = self.read_by_delegation(ino, offset, buf)
        {
            return Ok(len);
        }
        self.cache.read(ino, offset, buf)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> vfs::Result<()> {
        if !data.is_empty() && self.draws() && self.write_by_delegation(ino, offset, data).is_ok() {
            return Ok(());
        }
        self.cache.write(ino, offset, data)
    }

    fn append(&self, ino: Ino, data: &[u8]) -> vfs::Result<u64> {
        if !data.is_empty()
            && self.draws()
            && let Ok(at) = self.append_by_delegation(ino, data)
        {
            return Ok(at);
        }
        self.cache.append(ino, data)
    }

    fn close(&self) -> vfs::Result<()> {
        self.cache.close()
    }
}

impl Mappings for Programs {}

impl Openings for Programs {}

impl Delegations for Programs {}

/// Tests that calls by delegations, mixed with others, have the same results as calls through the
/// cache, and that the backing file is the same after writing back.
#[test]
fn it_is_as_if_all_calls_went_through_the_cache() {
    let make = || Box::new(Programs::new(16 << 20, believing())) as Box<dyn FileSystem>;
    run_all(make);
    run_generated(make, 20, 300);
    // Here files are recalled all the time to be written back.
    let tight = || CacheOptions { cap: 256 << 10, high: 128 << 10, low: 32 << 10, ..believing() };
    run_generated(|| Box::new(Programs::new(16 << 20, tight())), 10, 300);
}

#[test]
fn a_delegation_ends_when_somebody_else_uses_the_file() {
    let programs = Programs::new(16 << 20, believing());
    let cache = &programs.cache;
    let ino = file(cache, b"file");
    cache.write(ino, 0, b"through the cache").unwrap();
    assert_eq!(cache.getxattr(ino, JOIN.as_bytes()), Err(Errno::NODATA));
    let (by, shadow) = programs.delegation(ino).unwrap();
    // Other programs join the delegation.
    assert_eq!(programs.delegation(ino), Ok((by, shadow)));
    assert!(cache.getxattr(ino, JOIN.as_bytes()).is_ok() && cache.is_delegated(ino));

    // Blocks that were only announced do not count as content.
    programs.announce(ino, by, 0, 100 * BLOCK).unwrap();
    let write = |offset, data: &[u8]| cache.pool().write_delegated(by, shadow, offset, data);
    write(0, b"by a program").unwrap();
    write(2 * BLOCK, b"further").unwrap();
    assert_eq!(cache.getattr(ino).unwrap().size, 2 * BLOCK + 7);
    assert!(cache.is_delegated(ino));
    assert_eq!(cache.status().dirty_bytes, 100 * BLOCK);

    let uses: [(&str, &dyn Fn()); 9] = [
        ("read", &|| assert!(cache.read(ino, 0, &mut [0; 5]).is_ok())),
        ("write", &|| cache.write(ino, 0, b"a").unwrap()),
        ("append", &|| assert!(cache.append(ino, b"a").is_ok())),
        ("size", &|| {
            let set = SetAttr { size: Some(3 * BLOCK), ..SetAttr::default() };
            cache.setattr(&Caller::ROOT, ino, &set).unwrap();
        }),
        ("mode", &|| {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            cache.setattr(&Caller::ROOT, ino, &set).unwrap();
        }),
        ("attribute", &|| cache.setxattr(ino, b"user.a", b"b", SetXattr::Any).unwrap()),
        ("rename", &|| {
            cache.rename((ROOT, b"file"), (ROOT, b"new"), RenameFlags::empty()).unwrap()
        }),
        ("link", &|| assert!(cache.link(ino, ROOT, b"file").is_ok())),
        ("writing back", &|| cache.drain_all(&|_| {}).unwrap()),
    ];
    for (what, use_it) in uses {
        let (by, shadow) = programs.delegation(ino).unwrap();
        use_it();
        assert!(!cache.is_delegated(ino), "{what}");
        let write = cache.pool().write_delegated(by, shadow, 0, b"late");
        assert_eq!(write, Err(Errno::STALE), "{what}");
        let append = cache.pool().append_delegated(by, shadow, 0..u64::MAX, b"late");
        assert_eq!(append, Err(Errno::STALE), "{what}");
        assert_eq!(cache.pool().read_delegated(by, shadow, 0, &mut [0]), Err(Errno::STALE));
        assert_eq!(programs.announce(ino, by, 0, 1), Err(Errno::STALE), "{what}");
    }
    assert_eq!(cache.status().dirty_bytes, 0);
    assert_eq!(named(&*programs.below, b"new"), named(cache, b"new"));
    assert_eq!(cache.status().counters.delegated, cache.status().counters.recalled);
}

/// Blocks that programs have marked themselves are written back, whichever process marks the blocks
/// next to them, and the status counts them.
#[test]
fn programs_mark_by_their_credit() {
    let programs = Programs::new(16 << 20, believing());
    let (cache, pool) = (&programs.cache, programs.cache.pool());
    let ino = file(cache, b"file");
    cache.write(ino, 0, &vec![1; 100 * BLOCK as usize]).unwrap();
    let (by, shadow) = programs.delegation(ino).unwrap();
    // The backing file has no data yet, but space for it.
    let credit = programs.announce(ino, by, 0, 1).unwrap();
    assert_eq!(credit.end, 100);
    pool.set_bits_delegated(by, credit.bitmap, 30..31).unwrap();
    pool.write_delegated(by, shadow, 30 * BLOCK, &[1; BLOCK as usize]).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    assert!(named(&*programs.below, b"file") == vec![1; 100 * BLOCK as usize]);

    let (by, shadow) = programs.delegation(ino).unwrap();
    let credit = programs.announce(ino, by, 0, 1).unwrap();
    assert!(credit.blocks > 10 && credit.end == 100, "{credit:?}");
    let write = |block: u64, byte: u8| {
        pool.write_delegated(by, shadow, block * BLOCK, &[byte; BLOCK as usize]).unwrap();
    };
    pool.set_bits_delegated(by, credit.bitmap, 5..6).unwrap();
    write(5, 5);
    pool.set_bits_delegated(by, credit.bitmap, 60..70).unwrap();
    (60..70).for_each(|block| write(block, 60));
    assert_eq!(cache.status().dirty_bytes, 12 * BLOCK);
    // These blocks share words of the bitmap with the others.
    assert!(programs.announce(ino, by, 7 * BLOCK, 8 * BLOCK).is_ok());
    write(7, 7);
    assert_eq!(cache.status().dirty_bytes, 13 * BLOCK);
    cache.drain_all(&|_| {}).unwrap();
    assert_eq!(cache.status().dirty_bytes, 0);
    let mut expected = vec![1; 100 * BLOCK as usize];
    for (blocks, byte) in [(5..6, 5), (7..8, 7), (60..70, 60)] {
        expected[blocks.start * BLOCK as usize..blocks.end * BLOCK as usize].fill(byte);
    }
    assert!(named(&*programs.below, b"file") == expected);
    assert_eq!(pool.set_bits_delegated(by, credit.bitmap, 0..1), Err(Errno::STALE));
}

/// Repeated delegations of a file do not use up the limit of unwritten data.
#[test]
fn credit_is_given_back() {
    let programs = Programs::new(16 << 20, believing());
    let cache = &programs.cache;
    let ino = file(cache, b"file");
    cache.write(ino, 0, &[1; 5 * BLOCK as usize]).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    let mut given = 0;
    while given * BLOCK < 2 * options().cap {
        let (by, _) = programs.delegation(ino).unwrap();
        let credit = programs.announce(ino, by, 0, 1).unwrap();
        assert!(credit.blocks > 0);
        given += credit.blocks;
        cache.drain_all(&|_| {}).unwrap();
    }
    assert_eq!(cache.status().counters.throttled, 0);
    // A program that does not give credit back waits for others, and then for its own data.
    let (by, _) = programs.delegation(ino).unwrap();
    let asks = || programs.announce(ino, by, 0, 1);
    let refused = (0..2 * options().cap / BLOCK).find_map(|_| asks().err());
    assert_eq!(refused, Some(Errno::STALE));
    assert!(cache.status().counters.throttled > 0);
}

/// Blocks beyond the end of the backing file have to be announced.
#[test]
fn there_is_no_credit_for_what_has_to_be_prepared() {
    let programs = Programs::new(16 << 20, believing());
    let cache = &programs.cache;
    let ino = file(cache, b"file");
    cache.write(ino, 0, &[1; 5 * BLOCK as usize]).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    let (by, _) = programs.delegation(ino).unwrap();
    assert_eq!(programs.announce(ino, by, 4 * BLOCK, 6 * BLOCK), Ok(Credit::NONE));
    let credit = programs.announce(ino, by, 4 * BLOCK, 5 * BLOCK).unwrap();
    assert_eq!(credit.end, 5);
    cache.write(ino, 4 * BLOCK + 10, b"not to the end of the block").unwrap();
    let set = SetAttr { size: Some(4 * BLOCK + 100), ..SetAttr::default() };
    cache.setattr(&Caller::ROOT, ino, &set).unwrap();
    let (by, _) = programs.delegation(ino).unwrap();
    let credit = programs.announce(ino, by, 4 * BLOCK, 4 * BLOCK + 100).unwrap();
    assert_eq!(credit.end, 5);
}

/// A backing that calls a function before it syncs a file.
#[derive(Clone)]
struct Interrupted(Below, Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl FileSystem for Interrupted {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, fallocate, seek, copy_range, sync, getxattr,
        setxattr, listxattr, removexattr, statfs);

    fn fsync(&self, ino: Ino) -> vfs::Result<()> {
        if let Some(call) = self.1.get() {
            call();
        }
        self.0.fsync(ino)
    }
}

impl Mappings for Interrupted {}

impl Openings for Interrupted {}

impl Delegations for Interrupted {}

impl Backing for Interrupted {
    backing::forward!(self => self.0);
}

/// A program writes to a block while its former content is being written back.
#[test]
fn what_is_marked_while_it_is_written_back_stays_so() {
    let (pool, below) = (Pool::new(16 << 20), Below(Arc::default()));
    let interrupted = Interrupted(below.clone(), Arc::default());
    let cache = Cache::attach(pool.open(), interrupted.clone(), "/below", believing()).unwrap();
    let cache = Arc::new(cache);
    cache.delegate_to_programs(b"/pool".to_vec(), Box::new(|_| Ok(())));
    let ino = file(&*cache, b"file");
    cache.write(ino, 0, &[1; 3 * BLOCK as usize]).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    cache.write(ino, 0, &[2; 2 * BLOCK as usize]).unwrap();

    let (writer, writes) = (Arc::downgrade(&cache), AtomicU64::new(0));
    let write = move || {
        let Some(cache) = Weak::upgrade(&writer).filter(|_| writes.fetch_add(1, Relaxed) == 0)
        else {
            return;
        };
        let (by, shadow) = delegation(&*cache, ino).unwrap();
        let credit = cache.announce(ino, &Announcement { by, blocks: 1..2 }).unwrap();
        // The program uses its credit, if it has any.
        let block = if credit.blocks > 0 { 0 } else { 1 };
        if credit.blocks > 0 {
            cache.pool().set_bits_delegated(by, credit.bitmap, block..block + 1).unwrap();
        }
        cache.pool().write_delegated(by, shadow, block * BLOCK, &[3; BLOCK as usize]).unwrap();
    };
    assert!(interrupted.1.set(Box::new(write)).is_ok());
    cache.drain_all(&|_| {}).unwrap();
    assert!(cache.status().dirty_bytes >= BLOCK);
    cache.drain_all(&|_| {}).unwrap();
    assert_eq!(named(&*below, b"file"), named(&*cache, b"file"));
    assert!(named(&*below, b"file").contains(&3));
}

/// Writing everything back includes the files that another thread has begun to write back.
#[test]
fn a_write_back_that_is_under_way_is_waited_for() {
    let (pool, below) = (Pool::new(16 << 20), Below(Arc::default()));
    let interrupted = Interrupted(below.clone(), Arc::default());
    let cache = Cache::attach(pool.open(), interrupted.clone(), "/below", believing()).unwrap();
    let ino = file(&cache, b"file");
    cache.write(ino, 0, &[1; 3 * BLOCK as usize]).unwrap();
    let (begun, has_begun) = mpsc::channel();
    let wait = move || {
        begun.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(interrupted.1.set(Box::new(wait)).is_ok());
    std::thread::scope(|scope| {
        scope.spawn(|| cache.drain_all(&|_| {}).unwrap());
        has_begun.recv().unwrap();
        cache.drain_all(&|_| {}).unwrap();
        assert_eq!(cache.status().dirty_bytes, 0);
    });
}

/// A backing that notes allocations.
#[derive(Clone)]
struct Allocating(Below, Arc<Mutex<Vec<Range<u64>>>>);

impl FileSystem for Allocating {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, seek, copy_range, fsync, sync, getxattr, setxattr,
        listxattr, removexattr, statfs);

    fn fallocate(&self, ino: Ino, mode: Fallocate, offset: u64, len: u64) -> vfs::Result<()> {
        self.1.lock().unwrap().push(offset..offset + len);
        self.0.fallocate(ino, mode, offset, len)
    }
}

impl Mappings for Allocating {}

impl Openings for Allocating {}

impl Delegations for Allocating {}

impl Backing for Allocating {
    backing::forward!(self => self.0);
}

/// A range that was skipped by a write far behind the end is allocated when it is written to.
#[test]
fn space_is_reserved_for_what_was_skipped() {
    let (pool, allocated) = (Pool::new(16 << 20), Arc::default());
    let below = Allocating(Below(Arc::default()), allocated);
    let cache = Cache::attach(pool.open(), below.clone(), "/below", believing()).unwrap();
    let ino = file(&cache, b"file");
    cache.write(ino, 100 * BLOCK, b"far").unwrap();
    cache.write(ino, 3 * BLOCK, b"skipped").unwrap();
    let allocated = below.1.lock().unwrap();
    for block in [100 * BLOCK, 3 * BLOCK] {
        assert!(allocated.iter().any(|range| range.contains(&block)), "{allocated:?}");
    }
}

#[test]
fn what_cannot_be_delegated_is_not() {
    let programs = Programs::new(16 << 20, believing());
    let cache = &programs.cache;
    let ino = file(cache, b"file");
    let refused = |ino| programs.delegation(ino).unwrap_err();
    assert_eq!(refused(ROOT), Errno::NODATA);
    for (start, end) in [(2, 2), (3, 2), (u64::MAX, 0), (0, u64::MAX), (0, (16 << 10) + 1)] {
        let bad = Announcement { by: Delegation(1), blocks: start..end };
        assert_eq!(cache.announce(ino, &bad), Err(Errno::INVAL), "{bad:?}");
    }
    let (by, _) = programs.delegation(ino).unwrap();
    assert_eq!(programs.announce(ino, by, u64::MAX - 4096, u64::MAX), Err(Errno::FBIG));
    let set = SetAttr { perm: Some(0o4755), ..SetAttr::default() };
    cache.setattr(&Caller::ROOT, ino, &set).unwrap();
    assert_eq!(refused(ino), Errno::NODATA, "set-user-ID");
    let large = file(cache, b"large");
    cache.write(large, 3 << 20, b"far").unwrap();
    assert_eq!(refused(large), Errno::NODATA, "large");
    cache.unlink(ROOT, b"large").unwrap();
    assert_eq!(refused(large), Errno::NODATA, "without a name");

    let through = Programs::new(16 << 20, CacheOptions { write_through: true, ..believing() });
    let ino = file(&through.cache, b"file");
    assert_eq!(through.delegation(ino), Err(Errno::NODATA));
}

/// Tests that a file is not delegated if it is used while the front end forgets it.
#[test]
fn a_use_while_the_front_end_forgets_is_noticed() {
    let (pool, below) = (Pool::new(16 << 20), Below(Arc::default()));
    let cache = Arc::new(Cache::attach(pool.open(), below, "/below", believing()).unwrap());
    let ino = file(&*cache, b"file");
    let reads = Arc::new(AtomicBool::new(true));
    let (asked, reader) = (reads.clone(), Arc::downgrade(&cache));
    let forget = move |ino: Ino| {
        let cache = Weak::upgrade(&reader).unwrap();
        assert!(cache.is_delegated(ino), "its attributes are not to be kept");
        if asked.load(Relaxed) {
            cache.read(ino, 0, &mut [0])?;
        }
        Ok(())
    };
    cache.delegate_to_programs(b"/pool".to_vec(), Box::new(forget));
    assert_eq!(cache.getxattr(ino, DELEGATION.as_bytes()), Err(Errno::AGAIN));
    assert!(!cache.is_delegated(ino));
    reads.store(false, Relaxed);
    assert!(cache.getxattr(ino, DELEGATION.as_bytes()).is_ok());
}

/// Another process has changed the backing file: data written by programs is kept, and they can
/// write no more.
#[test]
fn a_conflict_recalls_a_file() {
    let programs = Programs::new(16 << 20, believing());
    let cache = &programs.cache;
    let ino = file(cache, b"file");
    programs.write_by_delegation(ino, 0, b"kept").unwrap();
    let (by, shadow) = programs.delegation(ino).unwrap();
    let theirs = programs.below.lookup(ROOT, b"file").unwrap().ino;
    programs.below.write(theirs, 0, b"changed behind it").unwrap();
    cache.getattr(ino).unwrap();
    assert_eq!(programs.announce(ino, by, 0, 1), Err(Errno::STALE));
    assert_eq!(cache.pool().write_delegated(by, shadow, 0, b"late"), Err(Errno::STALE));
    assert_eq!(programs.delegation(ino), Err(Errno::STALE));
    assert_eq!(cache.status().troubles[0].dirty_bytes, BLOCK);
}

/// Data of writes that returned is there after a crash. The next server has the pool to itself,
/// although programs go on.
#[test]
fn what_programs_wrote_survives_who_served_it() {
    let Programs { cache, below, pool, .. } = Programs::new(16 << 20, believing());
    let ino = file(&cache, b"file");
    cache.write(ino, 0, &[1; 30_000]).unwrap();
    cache.drain_all(&|_| {}).unwrap();
    let (by, shadow) = delegation(&cache, ino).unwrap();
    cache.announce(ino, &Announcement { by, blocks: 7..20 }).unwrap();
    let credit = cache.announce(ino, &Announcement { by, blocks: 0..1 }).unwrap();
    let program = pool.open();
    program.set_bits_delegated(by, credit.bitmap, 1..7).unwrap();
    program.write_delegated(by, shadow, 5_000, &[2; 20_000]).unwrap();
    // The server is killed, so nothing is closed.
    std::mem::forget(cache);
    program.write_delegated(by, shadow, 60_000, b"after its death").unwrap();

    let next = Cache::attach(pool.open(), below.clone(), "/below", believing()).unwrap();
    assert_eq!(program.write_delegated(by, shadow, 0, b"late"), Err(Errno::STALE));
    let mut expected = vec![0; 60_015];
    expected[..30_000].fill(1);
    expected[5_000..25_000].fill(2);
    expected[60_000..].copy_from_slice(b"after its death");
    assert_eq!(named(&next, b"file"), expected);
    next.drain_all(&|_| {}).unwrap();
    assert_eq!(named(&*below, b"file"), expected);
    assert!(next.pool().medium().len() > 0);
}
