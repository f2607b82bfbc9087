//! One device, opened before a fork, that several processes use at once: all see the same content,
//! and a barrier of one covers the requests of all.

#![allow(unsafe_code)]

use pmbd::{BlockDevice, Durability, Options, Protection, Scheme};
use std::io::{Read as _, Write as _};
use std::sync::{Mutex, PoisonError};

const BLOCK: u64 = 512;
const WORKERS: u64 = 3;
const OWN: u64 = 20;
const SHARED: u64 = 4;
const ROUNDS: u64 = 200;

/// Held by each test: a forked child keeps the locks of all open regions.
static TURN: Mutex<()> = Mutex::new(());

/// Writes blocks of its own and blocks that all processes write, with some barriers.
fn work(device: &dyn BlockDevice, me: u64) -> Result<(), pmbd::Error> {
    for round in 0..ROUNDS {
        let content = [(round * WORKERS + me) as u8; BLOCK as usize];
        for n in 0..OWN {
            let block = SHARED + me * OWN + n;
            device.write(block * BLOCK, &content, Durability::AtBarrier)?;
        }
        for block in 0..SHARED {
            device.write(block * BLOCK, &content, Durability::Now)?;
        }
        if round % 20 == 0 {
            device.barrier()?;
        }
    }
    Ok(())
}

/// Runs `child` in a new process. Returns its PID.
fn fork(child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses what its parent has set up, and ends without running destructors or
    // handlers.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!child())),
            pid => pid,
        }
    }
}

/// Waits for the end of a process. Returns whether it succeeded.
fn ended_well(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

#[test]
fn processes_share_a_device() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let kinds = [None, Some(BLOCK as u32)].into_iter().flat_map(|atomic| {
        let with = move |protection, scheme| Options {
            protection,
            scheme,
            atomic,
            checksums: atomic.is_some(),
            ..Options::default()
        };
        [
            with(Protection::None, Scheme::Nt),
            with(Protection::None, Scheme::Wb),
            with(Protection::best(), Scheme::Nt),
            with(Protection::Chunk, Scheme::Nt),
            with(Protection::Pages, Scheme::Clwb),
        ]
    });
    for options in kinds {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("disk");
        let blocks = SHARED + WORKERS * OWN;
        pmbd::create(&path, blocks * BLOCK, options.atomic).unwrap();
        let device = pmbd::open(&path, &options).unwrap();
        let start = |me| fork(|| work(&*device, me).is_ok());
        let children: Vec<_> = (0..WORKERS).map(start).collect();
        for child in children {
            assert!(ended_well(child), "{options:?}");
        }
        device.barrier().unwrap();
        let mut got = vec![0; (blocks * BLOCK) as usize];
        device.read(0, &mut got).unwrap();
        let last = |me: u64| ((ROUNDS - 1) * WORKERS + me) as u8;
        for (n, block) in (0..).zip(got.chunks_exact(BLOCK as usize)) {
            if n < SHARED {
                let whole = (0..WORKERS).any(|me| block.iter().all(|b| *b == last(me)));
                assert!(whole || options.atomic.is_none(), "{options:?}: block {n} is torn");
            } else {
                let me = (n - SHARED) / OWN;
                assert!(block.iter().all(|b| *b == last(me)), "{options:?}: block {n} is lost");
            }
        }
        // No space was lost, whichever process took it.
        for _ in 0..3 {
            device.write(0, &got, Durability::Now).unwrap();
        }
        drop(device);
        pmbd::open(&path, &options).unwrap();
    }
}

#[test]
fn a_barrier_covers_what_other_processes_wrote() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    const LEN: usize = 64 << 10;
    // Use an ordinary file, for which a fence is an `msync` of the dirty range; and the write-back
    // scheme.
    for (dir, scheme) in [("/var/tmp", Scheme::Nt), ("/dev/shm", Scheme::Wb)] {
        let dir = tempfile::tempdir_in(dir).unwrap();
        let path = dir.path().join("disk");
        pmbd::create(&path, 1 << 20, None).unwrap();
        let open = || {
            let protection = Protection::None;
            pmbd::open(&path, &Options { protection, scheme, ..Options::default() })
        };
        let device = open().unwrap();
        let write = || device.write(4096, &[7; LEN], Durability::AtBarrier).is_ok();
        assert!(ended_well(fork(write)));
        let flushed = |device: &dyn BlockDevice| device.stats().medium.lines_flushed;
        assert_eq!(flushed(&*device), 0);
        device.barrier().unwrap();
        let all = (1 << 20) / 64;
        assert_eq!(flushed(&*device), all, "{scheme}: whoever had it open may have been killed");
        assert!(ended_well(fork(write)));
        device.barrier().unwrap();
        assert_eq!(flushed(&*device), all + LEN as u64 / 64, "{scheme}");
        device.barrier().unwrap();
        assert_eq!(flushed(&*device), all + LEN as u64 / 64, "{scheme}: once is enough");

        // If all processes with the marks have ended, the barrier covers the whole device.
        assert!(ended_well(fork(write)));
        drop(device);
        let device = open().unwrap();
        device.barrier().unwrap();
        assert_eq!(flushed(&*device), all, "{scheme}");
    }
}

#[test]
fn a_device_grows_for_all_processes() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    const OLD: u64 = 1 << 20;
    const NEW: u64 = 4 << 20;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("disk");
    pmbd::create(&path, OLD, None).unwrap();
    for (protection, scheme) in [(Protection::Chunk, Scheme::Nt), (Protection::None, Scheme::Wb)] {
        let device =
            pmbd::open(&path, &Options { protection, scheme, ..Options::default() }).unwrap();
        let old = device.size();
        let (mut hear, mut say) = std::io::pipe().unwrap();
        let child = fork(|| {
            let mut word = [0];
            hear.read_exact(&mut word).is_ok()
                && device.size() == old + NEW
                && device.write(old + NEW - 5, b"there", Durability::Now).is_ok()
        });
        device.grow(old + NEW / 2).unwrap();
        device.grow(old + NEW).unwrap();
        say.write_all(&[1]).unwrap();
        assert!(ended_well(child), "{protection} {scheme}");
        let mut found = [0; 5];
        device.read(old + NEW - 5, &mut found).unwrap();
        assert_eq!(&found, b"there");
        assert_eq!(path.metadata().unwrap().len(), old + NEW);
    }
}
