//! Files that others read and write by themselves ([`vfs::FileSystem::delegate`]).

use crate::{Engine, PoolFile, attach};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use vfs::{Caller, Delegation, Durability, Errno, FileSystem as _, NewKind, NewNode, ROOT};

const ROUNDS: usize = 100;
const LEN: u64 = 40_000;

/// By a delegation everybody reads and writes until it is recalled, and nobody when that has returned, be it in the middle of
/// a write.
pub fn nobody_writes_after_a_recall<E: Engine>() {
    let pool = PoolFile::new::<E>("delegations", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    if server.durability() != Durability::OnReturn {
        assert_eq!(server.delegate(), Err(Errno::OPNOTSUPP));
        return;
    }
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let ino = server.create(&Caller::ROOT, ROOT, b"file", &node).unwrap().ino;
    server.write(ino, 0, &vec![0; LEN as usize]).unwrap();

    let (current, is_over, written) =
        (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 1..=2_u8 {
            let (program, current, is_over, written) = (&program, &current, &is_over, &written);
            scope.spawn(move || {
                let data = [thread; 9_000];
                let mut at = 0;
                while !is_over.load(Relaxed) {
                    let by = Delegation(current.load(Acquire));
                    at = (at + 4_567) % (LEN - 9_000);
                    match program.write_delegated(by, ino, at, &data) {
                        Ok(()) => drop(written.fetch_add(1, Relaxed)),
                        Err(err) => assert_eq!(err, Errno::STALE),
                    }
                }
            });
        }
        let content = || {
            let mut bytes = vec![0; LEN as usize];
            assert_eq!(server.read(ino, 0, &mut bytes), Ok(LEN as usize));
            bytes
        };
        for round in 0..ROUNDS {
            let by = server.delegate().unwrap();
            let before = written.load(Relaxed);
            current.store(by.0, Release);
            while written.load(Relaxed) < before + 3 {
                std::thread::yield_now();
            }
            server.recall(if round % 2 == 0 { Some(by) } else { None }).unwrap();
            let then = content();
            (0..20).for_each(|_| std::thread::yield_now());
            assert!(content() == then, "written to after the recall");
            assert_eq!(program.read_delegated(by, ino, 0, &mut [0; 10]), Err(Errno::STALE));
        }
        is_over.store(true, Relaxed);
    });
}

/// They are different, as many as there is room for, last over a recovery, and mean nothing to who makes them up.
pub fn delegations_are_numbers_of_their_own<E: Engine>() {
    let pool = PoolFile::new::<E>("numbers", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    let read = |by| program.read_delegated(by, ROOT, 0, &mut [0]);
    for made_up in [0, 1, 1024, u64::MAX] {
        assert_eq!(read(Delegation(made_up)), Err(Errno::STALE));
    }
    if server.durability() != Durability::OnReturn {
        return;
    }
    let mut all = Vec::new();
    while let Ok(by) = server.delegate() {
        all.push(by);
    }
    assert_eq!(server.delegate(), Err(Errno::NOSPC));
    server.recall(all.pop()).unwrap();
    let again = server.delegate().unwrap();
    assert!(all.len() > 100 && !all.contains(&again));
    server.rehearse_recovery().unwrap();
    // As of any directory.
    assert_eq!(read(again), Err(Errno::ISDIR));
    server.recall(None).unwrap();
    assert_eq!((read(again), read(all[0])), (Err(Errno::STALE), Err(Errno::STALE)));
}
