//! Protected regions behave as unprotected ones, and keep stray writes out.

#![allow(unsafe_code)]

use pmem::{Guarded, Medium, Protection, Region, stray};
use proptest::prelude::*;
use rng::Rng;
use std::arch::asm;
use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

const LEN: u64 = 5 << 20;
const WORD: usize = 8;

/// Returns the protections that this machine has.
fn protections() -> impl Iterator<Item = Protection> {
    Protection::ALL.into_iter().filter(|p| p.available())
}

/// The environment variable of a process that dies in the test: the directory in which it makes
/// files, which its parent removes.
const CHILD: &str = "KEEPSTONE_STRAY_CHILD";

struct Bed {
    guarded: Guarded,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

fn bed(protection: Protection) -> Bed {
    handle_wild_stores();
    let place = std::env::var_os(CHILD).unwrap_or("/dev/shm".into());
    let dir = tempfile::tempdir_in(place).unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, LEN).unwrap();
    Bed { guarded: Guarded::new(region, protection).unwrap(), path, _dir: dir }
}

/// Returns the addresses at which the region is mapped: its own mapping, and the one under a key.
fn addresses(bed: &Bed) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = bed.path.to_str().unwrap();
    let start = |line: &str| usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let lines = maps.lines().filter(|l| l.contains(name) && l.contains(" 00000000 "));
    lines.map(start).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    WriteNt(u64, Vec<u8>),
    ZeroNt(u64, u64),
    CopyNt(u64, u64, u64),
    Word(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let off = || prop_oneof![0..LEN - 20_000, (2 << 20) - 9000u64..2 << 20];
    let data = || (any::<u8>(), 0usize..9000).prop_map(|(b, n)| vec![b; n]);
    prop_oneof![
        (off(), data()).prop_map(|(o, d)| Op::Write(o, d)),
        (off(), data()).prop_map(|(o, d)| Op::WriteNt(o, d)),
        (off(), 0u64..9000).prop_map(|(o, n)| Op::ZeroNt(o, n)),
        (0..LEN / 2 - 9000, LEN / 2..LEN - 9000, 0u64..9000)
            .prop_map(|(a, b, n)| Op::CopyNt(a, b, n)),
        (0..LEN / 8, any::<u64>()).prop_map(|(w, v)| Op::Word(w * 8, v)),
    ]
}

fn apply(medium: &impl Medium, op: &Op) {
    match op {
        Op::Write(off, data) => {
            medium.write(*off, data);
            medium.flush(*off, data.len() as u64);
        }
        Op::WriteNt(off, data) => medium.write_nt(*off, data),
        Op::ZeroNt(off, len) => medium.zero_nt(*off, *len),
        Op::CopyNt(dst, src, len) => medium.copy_nt(*dst, *src, *len),
        Op::Word(off, value) => {
            let ready = medium.fence();
            let _ = medium.publish(*off, *value, ready);
        }
    }
    let _ = medium.fence();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_protection_stores_what_a_bare_region_does(ops in prop::collection::vec(op(), 1..40)) {
        let bare = Region::anonymous(LEN).unwrap();
        ops.iter().for_each(|op| apply(&bare, op));
        let mut want = vec![0; LEN as usize];
        bare.read(0, &mut want);
        for protection in protections() {
            let bed = bed(protection);
            ops.iter().for_each(|op| apply(&bed.guarded, op));
            prop_assert!(bed.guarded.equals(0, &want), "{protection}");
            prop_assert!(bed.guarded.health().is_ok());
            let mut got = vec![0; LEN as usize];
            bed.guarded.read(0, &mut got);
            prop_assert!(got == want, "{protection}");
            let traffic = |m: &dyn Fn() -> pmem::CountersSnapshot| {
                let s = m();
                (s.nt_bytes, s.bytes_stored, s.words_stored, s.lines_flushed, s.fences)
            };
            prop_assert_eq!(
                traffic(&|| bed.guarded.counters().snapshot()),
                traffic(&|| bare.counters().snapshot()),
                "{}", protection
            );
        }
    }
}

/// Threads store to words of their own, in the same pages and chunks.
#[test]
fn no_thread_closes_what_another_stores_to() {
    for protection in protections() {
        let bed = bed(protection);
        let rounds = if protection == Protection::ChunkStrict { 60 } else { 300 };
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let medium = &bed.guarded;
                s.spawn(move || {
                    for i in 0..rounds {
                        for page in 0..3 {
                            medium.store_u64(page * (1 << 20) + t * 8, i);
                            medium.write_nt(page * (1 << 20) + 4096 + t * 100, &[i as u8; 100]);
                        }
                    }
                });
            }
        });
        for t in 0..4 {
            for page in 0..3 {
                assert_eq!(bed.guarded.load_u64(page * (1 << 20) + t * 8), rounds - 1);
                let at = page * (1 << 20) + 4096 + t * 100;
                assert!(bed.guarded.equals(at, &[(rounds - 1) as u8; 100]));
            }
        }
    }
}

// ---- Wild stores after which the thread resumes at `land`: the handler of these tests comes after
// that of `stray`.

static LANDING: AtomicUsize = AtomicUsize::new(0);
static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// One test at a time has wild stores.
fn wild() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs `land`, before the first region is protected.
fn handle_wild_stores() {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    // SAFETY: a valid action; it resumes wild stores only.
    INSTALLED.call_once(|| unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = land as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()), 0);
    });
}

extern "C" fn land(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let landing = LANDING.swap(0, SeqCst);
    if landing == 0 {
        // SAFETY: the fault is not a wild store of the tests: let the next execution of the
        // instruction end the process.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    CAUGHT.fetch_add(1, SeqCst);
    // SAFETY: the context of the interrupted thread, which is at a wild store.
    unsafe {
        (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] =
            landing as i64;
    }
}

/// Stores a byte. If the store is caught, goes on after it.
fn wild_store(at: usize) {
    // SAFETY: the test checks whether the store is allowed; if not, `land` goes on at label 2.
    unsafe {
        asm!(
            "lea {landing}, [rip + 2f]",
            "mov [{slot}], {landing}",
            "mov byte ptr [{at}], 0xEE",
            "2:",
            landing = out(reg) _, slot = in(reg) LANDING.as_ptr(), at = in(reg) at,
        );
    }
    LANDING.store(0, SeqCst);
}

#[test]
fn a_wild_store_faults_and_changes_nothing() {
    let turn = wild();
    for protection in protections().filter(|p| *p != Protection::None) {
        let bed = bed(protection);
        bed.guarded.write_nt(0, &[7; 64 << 10]);
        bed.guarded.store_u64(4096, 9);
        if protection == Protection::Chunk {
            wait_until_closed(&bed);
        }
        let mut before = vec![0; LEN as usize];
        bed.guarded.read(0, &mut before);
        let addresses = addresses(&bed);
        assert!(!addresses.is_empty());
        for address in addresses {
            for off in [0, 4096, 10_000, LEN as usize - 1] {
                let (caught, counted) = (CAUGHT.load(SeqCst), stray::count());
                wild_store(address + off);
                assert_eq!(
                    CAUGHT.load(SeqCst),
                    caught + 1,
                    "{protection}: a store at {off} went through"
                );
                assert!(stray::count() > counted);
            }
        }
        assert!(bed.guarded.equals(0, &before), "{protection}");
    }
    drop(turn);
}

/// Waits until the kernel reports that no part of the region is mapped writable.
fn wait_until_closed(bed: &Bed) {
    let name = bed.path.to_str().unwrap();
    let open = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|l| l.contains(name) && l.contains("rw-s"))
    };
    while open() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_kept_window_closes_and_scattered_stores_open_none() {
    let bed = bed(Protection::Chunk);
    // The number of windows that these stores open depends on the closer and on the measured cost
    // of a window. But the first store opens no window, and in the end one is worth its cost.
    let mut stores = 0;
    while stores < 2000 || bed.guarded.tally().times() == 0 {
        bed.guarded.write_nt(stores % 100 * 4096, &[1; 4096]);
        stores += 1;
    }
    wait_until_closed(&bed);
    let opened = bed.guarded.tally().times();
    assert!(opened < stores, "{opened} windows for {stores} stores to one chunk");
    bed.guarded.write_nt(4 << 20, &[1; 64]);
    bed.guarded.write_nt(2 << 20, &[1; 64]);
    assert_eq!(bed.guarded.tally().times(), opened, "one store to a chunk is not worth a window");
}

/// A thread does wild stores under load. In modes that expose nothing to other threads, only
/// written data changes. In the others, nothing changes outside the range that is being stored to.
#[test]
fn wild_stores_under_load_leave_the_data_as_written() {
    let turn = wild();
    // All load goes to the first 2 MiB, which some modes expose to all threads meanwhile.
    const LOADED: usize = 2 << 20;
    for protection in protections().filter(|p| *p != Protection::None) {
        let bed = bed(protection);
        bed.guarded.write_nt(0, &vec![0x11; LEN as usize]);
        let bases = addresses(&bed);
        let exposed =
            matches!(protection, Protection::Pages | Protection::Chunk | Protection::ChunkStrict);
        let stop = AtomicBool::new(false);
        if protection == Protection::Chunk {
            wait_until_closed(&bed);
        }
        std::thread::scope(|s| {
            let (medium, stop) = (&bed.guarded, &stop);
            s.spawn(move || {
                let mut i = 0u64;
                while !stop.load(Relaxed) {
                    i += 1;
                    medium.write_nt(i % 500 * 4096, &[0x22; 4096]);
                }
            });
            let mut rng = Rng::new(1);
            for _ in 0..2000 {
                let x = rng.next();
                let base = bases[x as usize % bases.len()];
                let first = if exposed { LOADED } else { 0 };
                wild_store(base + first + (x >> 8) as usize % (LEN as usize - first));
            }
            stop.store(true, Relaxed);
        });
        let mut got = vec![0; LEN as usize];
        bed.guarded.read(0, &mut got);
        let wild = got.iter().position(|b| *b == 0xEE);
        assert_eq!(wild, None, "{protection}: a wild store reached PM");
    }
    drop(turn);
}

/// Checks the report and the death by SIGSEGV, in a process of its own.
#[test]
fn a_stray_write_is_reported_and_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        let bed = bed(Protection::best());
        bed.guarded.write_nt(0, b"unharmed");
        let at = addresses(&bed)[0] + 3 * 4096;
        let _ = std::io::stdout().flush();
        // SAFETY: none, on purpose: this is the stray write.
        unsafe { (at as *mut u64).write_volatile(WORD as u64) };
        unreachable!("the stray write went through");
    }
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "guard::a_stray_write_is_reported_and_ends_the_process", "--nocapture"])
        .env(CHILD, place.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{said}");
    assert!(said.contains("stray write at 0x") && said.contains("4 KiB block 3"), "{said}");
    assert!(said.contains("a_stray_write_is_reported"), "no backtrace: {said}");
}
