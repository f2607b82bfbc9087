//! Regions through their public interface: bounds, counters, persistence in ordinary files,
//! locking.

#![allow(unsafe_code)]

use pmem::{
    Access, CountersSnapshot, Domain, Error, FlushInstruction, FsType, Lock, Medium, OpenOptions,
    ProbeKind, Region, probe,
};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const LEN: u64 = 64 << 10;

fn panic_message(op: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(op)).expect_err("should have panicked");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast_ref::<&str>().expect("a message").to_string(),
    }
}

#[test]
fn access_beyond_the_end_panics() {
    let region = Region::anonymous(LEN).unwrap();
    for off in [LEN, LEN - 7, u64::MAX - 7, u64::MAX] {
        let ops: [&dyn Fn(); 8] = [
            &|| region.read(off, &mut [0; 8]),
            &|| assert!(region.equals(off, &[0; 8])),
            &|| region.write(off, &[0; 8]),
            &|| region.write_nt(off, &[0; 8]),
            &|| region.zero_nt(off, 8),
            &|| region.copy_nt(off, 0, 8),
            &|| region.copy_nt(0, off, 8),
            &|| region.flush(off, 8),
        ];
        for op in ops {
            let message = panic_message(op);
            assert!(message.contains("in a region of 65536 bytes"), "{message}");
        }
    }
    for off in [LEN, u64::MAX - 7] {
        for op in [&|| region.store_u64(off, 1), &|| assert_eq!(region.load_u64(off), 0)]
            as [&dyn Fn(); 2]
        {
            let message = panic_message(op);
            assert!(message.contains("in a region of 65536 bytes"), "{message}");
        }
    }
    assert!(panic_message(|| region.store_u64(4, 1)).contains("not a multiple of 8"));
    assert!(panic_message(|| assert_eq!(region.load_u64(4), 0)).contains("not a multiple of 8"));
    assert!(panic_message(|| region.copy_nt(0, 63, 64)).contains("overlaps"));
    region.zero_nt(LEN, 0);
    region.write(LEN, &[]);
}

#[test]
fn counters_are_exact() {
    for (domain, lines_flushed) in
        [(Domain::Volatile, 3), (Domain::MapSync, 3), (Domain::PageCache, 3), (Domain::CpuCache, 0)]
    {
        let options = OpenOptions { domain: Some(domain), ..Default::default() };
        let region = options.anonymous(LEN).unwrap();
        assert_eq!(region.domain(), domain);
        let before = region.counters().snapshot();
        region.write(100, &[1; 30]);
        region.flush(100, 30);
        region.flush(128, 64);
        region.write_nt(1000, &[2; 1000]);
        region.copy_nt(4096, 1000, 500);
        region.zero_nt(8192, 4096);
        let _ = region.fence();
        region.store_u64(0, 7);
        assert_eq!(region.load_u64(0), 7);
        assert!(region.equals(4096, &[2; 500]));
        region.read(8192, &mut [0; 100]);
        let want = CountersSnapshot {
            bytes_read: 8 + 500 + 100,
            bytes_stored: 30,
            words_stored: 1,
            nt_bytes: 1000 + 500 + 4096,
            lines_flushed,
            fences: 1,
            emulated_cycles: 0,
        };
        // 100..130 touches two lines, 128..192 one.
        assert_eq!(region.counters().snapshot() - before, want, "{domain}");
    }
}

#[test]
fn lines_are_stored_whole_where_the_cpu_can() {
    let cpu = pmem::cpu::report();
    for domain in Domain::ALL {
        let options = OpenOptions { domain: Some(domain), ..Default::default() };
        let region = options.anonymous(LEN).unwrap();
        // DRAM is not flushed, so no store bypasses the caches.
        let may = !matches!(domain, Domain::PageCache | Domain::Volatile);
        assert_eq!(region.stores_lines(), cpu.movdir64b && may, "{domain}");
        let line: [u8; 64] = std::array::from_fn(|i| i as u8);
        if !region.stores_lines() {
            assert!(panic_message(|| region.store_line(64, &line)).contains("tears lines"));
            continue;
        }
        let before = region.counters().snapshot();
        region.store_line(128, &line);
        let _ = region.fence();
        let want = CountersSnapshot { nt_bytes: 64, fences: 1, ..Default::default() };
        assert_eq!(region.counters().snapshot() - before, want, "{domain}");
        let around = [&[0; 64][..], &line, &[0; 64]].concat();
        assert!(region.equals(64, &around));
        assert!(panic_message(|| region.store_line(32, &line)).contains("not a multiple of 64"));
        assert!(panic_message(|| region.store_line(LEN, &line)).contains("in a region of"));
    }
    let mut options = flushed();
    assert_eq!(options.anonymous(LEN).unwrap().stores_lines(), cpu.movdir64b);
    options.without_line_stores = true;
    assert!(!options.anonymous(LEN).unwrap().stores_lines());
}

/// Returns options that flush DRAM as if it were persistent memory.
fn flushed() -> OpenOptions {
    OpenOptions { flush: Some(FlushInstruction::detect()), ..Default::default() }
}

/// A reader gets the old line or the new one, never parts of both.
#[test]
fn nobody_sees_half_a_line() {
    let region = flushed().anonymous(LEN).unwrap();
    if !region.stores_lines() || !is_x86_feature_detected!("avx512f") {
        return;
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..200_000u32 {
                region.store_line(0, &[i as u8; 64]);
            }
            let _ = region.fence();
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let mut seen = [0u8; 64];
            // SAFETY: 64 aligned bytes of the region, into 64 bytes; the CPU has the instructions.
            unsafe {
                std::arch::asm!("vmovdqa64 zmm16, [{from}]", "vmovdqu64 [{to}], zmm16",
                    from = in(reg) region.read_ptr(0, 64), to = in(reg) seen.as_mut_ptr(),
                    out("zmm16") _, options(nostack, preserves_flags));
            }
            assert!(seen.iter().all(|b| *b == seen[0]), "{seen:?}");
        }
    });
}

#[test]
fn publish_is_one_word_one_line_one_fence() {
    let region = Region::anonymous(LEN).unwrap();
    let ready = region.fence();
    let before = region.counters().snapshot();
    let _ = region.publish(8, 42, ready);
    let want =
        CountersSnapshot { words_stored: 1, lines_flushed: 1, fences: 1, ..Default::default() };
    assert_eq!(region.counters().snapshot() - before, want);
    assert_eq!(region.load_u64(8), 42);
}

#[test]
fn ordinary_file_is_page_cache_and_keeps_what_was_fenced() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("pool");
    let region = Region::create(&path, LEN + 100).unwrap();
    if region.domain() != Domain::PageCache {
        return; // the build directory is on tmpfs or fsdax
    }
    region.write(10, b"flushed");
    region.flush(10, 7);
    region.write_nt(LEN + 90, b"non-tempor");
    region.store_u64(4096, u64::from_le_bytes(*b"the word"));
    region.flush(4096, 8);
    let _ = region.fence();
    assert!(region.sync_error().is_none());
    let on_file = std::fs::read(&path).unwrap();
    assert_eq!(on_file.len() as u64, LEN + 100);
    assert_eq!(&on_file[10..17], b"flushed");
    assert_eq!(&on_file[4096..4104], b"the word");
    assert_eq!(&on_file[LEN as usize + 90..], b"non-tempor");
    drop(region);
    let again = Region::open(&path, Access::ReadOnly).unwrap();
    assert!(again.equals(LEN + 90, b"non-tempor") && again.equals(10, b"flushed"));
    assert_eq!(again.len(), LEN + 100);
}

#[test]
fn tmpfs_is_volatile() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let region = Region::create(dir.path().join("pool"), 4 << 20).unwrap();
    assert_eq!(region.domain(), Domain::Volatile);
    region.write_nt(1 << 20, &[9; 4096]);
    let _ = region.fence();
    drop(region);
    let again = Region::open(dir.path().join("pool"), Access::ReadWrite).unwrap();
    assert!(again.equals(1 << 20, &[9; 4096]));
}

fn pool() -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(Region::create(&path, LEN).unwrap());
    (dir, path)
}

#[test]
fn a_writer_excludes_others() {
    let (_dir, path) = pool();
    let shared = OpenOptions { lock: Some(Lock::Shared), ..Default::default() };
    let first = Region::open(&path, Access::ReadWrite).unwrap();
    for refused in [Region::open(&path, Access::ReadWrite), shared.open(&path, Access::ReadWrite)] {
        let error = refused.expect_err("in use");
        assert!(matches!(error, Error::InUse(_)));
        assert_eq!(error.errno(), libc::EBUSY);
    }
    Region::open(&path, Access::ReadOnly).expect("readers are not refused");
    drop(first);
    let _one = shared.open(&path, Access::ReadWrite).unwrap();
    let _two = shared.open(&path, Access::ReadWrite).expect("shared locks go together");
    assert!(matches!(Region::open(&path, Access::ReadWrite), Err(Error::InUse(_))));
}

#[test]
fn who_only_reads_and_who_attaches_exclude_each_other() {
    let (_dir, path) = pool();
    let shared = OpenOptions { lock: Some(Lock::Shared), ..Default::default() };
    let refused = |access| matches!(shared.open(&path, access), Err(Error::InUse(_)));
    let mut attached: Vec<_> =
        (0..40).map(|_| shared.open(&path, Access::ReadWrite).unwrap()).collect();
    while !attached.is_empty() {
        assert!(refused(Access::ReadOnly), "{} are attached", attached.len());
        attached.remove(attached.len() / 2);
    }
    let readers = [(); 3].map(|()| shared.open(&path, Access::ReadOnly).unwrap());
    assert!(refused(Access::ReadWrite));
    assert!(matches!(Region::open(&path, Access::ReadWrite), Err(Error::InUse(_))));
    drop(readers);
    shared.open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn what_is_no_region_is_named_and_not_opened() {
    let (dir, _) = pool();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (path, kind) in [(fifo, "fifo"), (socket, "socket")] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = Region::open(&path, access).unwrap_err().to_string();
            assert!(error.contains(&format!("is a {kind}")), "{error}");
        }
        assert!(matches!(Region::create(&path, LEN), Err(Error::Exists(_))));
    }
}

#[test]
fn a_file_grows_and_is_allocated_where_it_lies() {
    let (_dir, path) = pool();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
    std::fs::File::create(&path).unwrap();
    let grown = OpenOptions { reserve: 2 * LEN, may_be_empty: true, ..Default::default() };
    let mut region = grown.open(&path, Access::ReadWrite).unwrap();
    assert_eq!(region.len(), 0);
    region.grow(2 * LEN).unwrap();
    region.write(2 * LEN - 4, b"last");
    region.shorten(LEN);
    assert_eq!(region.len(), LEN);
    drop(region);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * LEN);
    // Holes are filled, and other content stays.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(LEN).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(2 * LEN).unwrap();
    let region = Region::open(&path, Access::ReadWrite).unwrap();
    region.write(0, b"kept");
    region.allocate().unwrap();
    assert!(blocks() * 512 >= 2 * LEN, "{}", blocks());
    assert!(region.equals(0, b"kept"));
    // A region for which there is no room is refused at once.
    let refused = OpenOptions { reserve: 1 << 45, ..Default::default() };
    drop(region);
    let region = refused.open(&path, Access::ReadWrite).unwrap();
    assert!(matches!(region.grow(1 << 45), Err(Error::NoSpace { .. })));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * LEN);
}

#[test]
fn stores_to_a_read_only_region_panic() {
    let (_dir, path) = pool();
    let region = Region::open(&path, Access::ReadOnly).unwrap();
    assert_eq!(region.access(), Access::ReadOnly);
    let ops: [&dyn Fn(); 5] = [
        &|| region.write(0, &[1]),
        &|| region.write_nt(0, &[1]),
        &|| region.zero_nt(0, 8),
        &|| region.copy_nt(8, 0, 8),
        &|| region.store_u64(0, 1),
    ];
    for op in ops {
        let message = panic_message(op);
        assert!(message.contains("opened read-only"), "{message}");
    }
}

#[test]
fn errors_name_object_and_remedy() {
    let (dir, path) = pool();
    let text = |r: Result<Region, Error>| r.expect_err("should fail").to_string();
    assert!(text(Region::create(&path, LEN)).contains("exists already"));
    let missing = text(Region::open(dir.path().join("nothing"), Access::ReadOnly));
    assert!(missing.contains("nothing: cannot open") && missing.contains("create it first"));
    let nowhere = text(Region::create(dir.path().join("none/pool"), LEN));
    assert!(nowhere.contains("/none does not exist"), "{nowhere}");
    assert!(text(Region::open(dir.path(), Access::ReadOnly)).contains("is a directory"));
    assert!(text(Region::open("/dev/null", Access::ReadOnly)).contains("other than devdax"));
    assert!(text(Region::create(dir.path().join("empty"), 0)).contains("at least one byte"));
    assert!(text(Region::create(dir.path().join("huge"), u64::MAX)).contains("addresses"));
    let wants_more = OpenOptions { min_len: LEN + 1, ..Default::default() };
    assert!(text(wants_more.open(&path, Access::ReadWrite)).contains("truncated"));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert!(text(Region::open(&path, Access::ReadWrite)).contains("at least 1 are needed"));
    let too_large = Region::create(dir.path().join("full"), 1 << 50);
    assert!(too_large.is_err() && !dir.path().join("full").exists());
}

#[test]
fn emulation_slows_through_the_region() {
    let emulation = "read=2x,write=4x,line=1000ns,bandwidth=800MB/s".parse().unwrap();
    let options = OpenOptions { emulation: Some(emulation), ..Default::default() };
    let region = options.anonymous(LEN).unwrap();
    let polled = |op: &dyn Fn()| {
        let before = region.counters().snapshot();
        op();
        let cycles = (region.counters().snapshot() - before).emulated_cycles;
        cycles as f64 / pmem::cpu::cycles_per_ns()
    };
    assert!(polled(&|| region.write_nt(0, &[1; 640])) >= 10_000.0);
    assert!(polled(&|| region.read(0, &mut [0; 640])) >= 10_000.0);
    assert!(polled(&|| region.copy_nt(4096, 0, 640)) >= 20_000.0);
    assert!(polled(&|| region.flush(0, 65)) >= 2_000.0);
    assert!(region.equals(4096, &[1; 640]));
    let off = OpenOptions { emulation: Some("off".parse().unwrap()), ..Default::default() };
    let region = off.anonymous(LEN).unwrap();
    region.write_nt(0, &[1; 4096]);
    assert_eq!(region.counters().snapshot().emulated_cycles, 0);
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    WriteNt(u64, Vec<u8>),
    CopyNt(u64, u64, u64),
    ZeroNt(u64, u64),
    Store(u64, u64),
    Flush(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let data = || proptest::collection::vec(any::<u8>(), 0..1500);
    let half = LEN / 2;
    prop_oneof![
        (0..LEN - 1500, data()).prop_map(|(o, d)| Op::Write(o, d)),
        (0..LEN - 1500, data()).prop_map(|(o, d)| Op::WriteNt(o, d)),
        (0..half - 3000, 0..half - 3000, 0u64..3000).prop_map(move |(a, b, n)| Op::CopyNt(
            a,
            half + b,
            n
        )),
        (0..LEN - 3000, 0u64..3000).prop_map(|(o, n)| Op::ZeroNt(o, n)),
        (0..LEN / 8, any::<u64>()).prop_map(|(w, v)| Op::Store(w * 8, v)),
        (0..LEN - 3000, 0u64..3000).prop_map(|(o, n)| Op::Flush(o, n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn behaves_like_a_vector(ops in proptest::collection::vec(op(), 1..40)) {
        for domain in Domain::ALL {
            let options = OpenOptions { domain: Some(domain), ..Default::default() };
            let region = options.anonymous(LEN).unwrap();
            let mut model = vec![0u8; LEN as usize];
            for op in &ops {
                match op {
                    Op::Write(o, d) | Op::WriteNt(o, d) => {
                        match op {
                            Op::Write(..) => region.write(*o, d),
                            _ => region.write_nt(*o, d),
                        }
                        model[*o as usize..][..d.len()].copy_from_slice(d);
                    }
                    Op::CopyNt(dst, src, n) => {
                        region.copy_nt(*dst, *src, *n);
                        model.copy_within(*src as usize..(src + n) as usize, *dst as usize);
                    }
                    Op::ZeroNt(o, n) => {
                        region.zero_nt(*o, *n);
                        model[*o as usize..][..*n as usize].fill(0);
                    }
                    Op::Store(o, v) => {
                        region.store_u64(*o, *v);
                        model[*o as usize..][..8].copy_from_slice(&v.to_le_bytes());
                        prop_assert_eq!(region.load_u64(*o), *v);
                    }
                    Op::Flush(o, n) => region.flush(*o, *n),
                }
            }
            let _ = region.fence();
            prop_assert!(region.equals(0, &model));
            let mut got = vec![0; LEN as usize];
            region.read(0, &mut got);
            prop_assert!(got == model);
            if let Some(first) = model.first_mut() {
                *first ^= 1;
            }
            prop_assert!(!region.equals(0, &model));
        }
    }
}

#[test]
fn probe_tells_what_a_path_is_or_would_be() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = shm.path().join("pool");
    drop(Region::create(&file, LEN).unwrap());
    let report = probe(&file).unwrap();
    assert_eq!((report.kind, report.len), (ProbeKind::File, Some(LEN)));
    assert_eq!((report.fs, report.domain), (Some(FsType::Tmpfs), Domain::Volatile));
    assert!(!report.durable && report.platform.is_none());
    assert_eq!(probe(shm.path()).unwrap().kind, ProbeKind::Directory);
    let missing = probe(shm.path().join("other")).unwrap();
    assert_eq!((missing.kind, missing.len), (ProbeKind::Missing, None));
    assert!(probe("/dev/null").is_err());
    assert!(probe(shm.path().join("no/such")).is_err());

    // The probe reports the domain that creating yields, and leaves no file behind.
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = disk.path().join("pool");
    let before = probe(&path).unwrap();
    assert_eq!(disk.path().read_dir().unwrap().count(), 0);
    let region = Region::create(&path, LEN).unwrap();
    assert_eq!(before.domain, region.domain());
    assert_eq!(probe(&path).unwrap().domain, region.domain(), "also while in use");
}
