//! Tests files that other processes read and write by a delegation
//! ([`vfs::Delegations::delegate`]).

use crate::{Engine, PoolFile, attach};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use vfs::{
    Caller, Delegation, Delegations as _, Durability, Errno, FileSystem as _, NewKind, NewNode,
    ROOT,
};

const ROUNDS: usize = 100;
const LEN: u64 = 40_000;

/// Tests that every process can read and write by a delegation until it is recalled. After the
/// recall has returned, no process can, even if it was in the middle of a write.
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

/// Tests concurrent appends, each within a range that its thread moves on after a refusal. Each
/// append that returned must be there once, whole, and at the offset that it returned. No thread
/// may append after a recall.
pub fn appends_are_whole_and_where_they_may_be<E: Engine>() {
    const RECORD: usize = 700;
    const RECORDS_MAX: usize = 5_000;
    const AHEAD: u64 = 10_000;
    let pool = PoolFile::new::<E>("appends", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    if server.durability() != Durability::OnReturn {
        let append = program.append_delegated(Delegation(1), ROOT, 0..u64::MAX, b"a");
        assert_eq!(append, Err(Errno::STALE));
        return;
    }
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let ino = server.create(&Caller::ROOT, ROOT, b"file", &node).unwrap().ino;
    let by = server.delegate().unwrap();
    assert_eq!(program.append_delegated(by, ROOT, 0..u64::MAX, b"a"), Err(Errno::ISDIR));

    let appended: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=3_u8)
            .map(|thread| {
                let program = if thread == 1 { &server } else { &program };
                scope.spawn(move || {
                    let (mut within, mut at) = (0..0, Vec::new());
                    loop {
                        // The thread that recalls may not get to run before the pool would be full.
                        if at.len() == RECORDS_MAX {
                            match program.read_delegated(by, ino, 0, &mut [0]) {
                                Err(Errno::STALE) => return at,
                                _ => std::thread::yield_now(),
                            }
                            continue;
                        }
                        let data = [thread; RECORD];
                        match program.append_delegated(by, ino, within.clone(), &data) {
                            Ok(offset) => {
                                let end = offset + RECORD as u64;
                                assert!(within.start <= offset && end <= within.end);
                                at.push(offset);
                            }
                            Err(Errno::RANGE) => {
                                let size = program.getattr(ino).unwrap().size;
                                within = size..size + AHEAD;
                            }
                            Err(err) => {
                                assert_eq!(err, Errno::STALE);
                                return at;
                            }
                        }
                    }
                })
            })
            .collect();
        while server.getattr(ino).unwrap().size < 1 << 20 {
            std::thread::yield_now();
        }
        server.recall(Some(by)).unwrap();
        let size = server.getattr(ino).unwrap().size;
        (0..20).for_each(|_| std::thread::yield_now());
        assert_eq!(server.getattr(ino).unwrap().size, size, "appended to after the recall");
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut content = vec![0; server.getattr(ino).unwrap().size as usize];
    assert_eq!(server.read(ino, 0, &mut content), Ok(content.len()));
    let mut expected = vec![0; content.len()];
    for (thread, offsets) in (1_u8..).zip(&appended) {
        assert!(offsets.is_sorted());
        for at in offsets {
            expected[*at as usize..][..RECORD].fill(thread);
        }
    }
    assert!(content == expected);
    let records: usize = appended.iter().map(Vec::len).sum();
    assert_eq!(content.len(), records * RECORD);
}

/// Tests that several threads set bits of the same words at the same time. All requested bits must
/// be set, whichever thread wrote the words first, and no others. No thread may set bits after a
/// recall.
pub fn bits_are_set_beside_others<E: Engine>() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 500;
    let pool = PoolFile::new::<E>("bits", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    if server.durability() != Durability::OnReturn {
        assert_eq!(program.set_bits_delegated(Delegation(1), ROOT, 0..1), Err(Errno::STALE));
        return;
    }
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let ino = server.create(&Caller::ROOT, ROOT, b"file", &node).unwrap().ino;
    let by = server.delegate().unwrap();
    assert_eq!(program.set_bits_delegated(by, ROOT, 0..1), Err(Errno::ISDIR));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let program = if thread == 0 { &server } else { &program };
            scope.spawn(move || {
                for i in 0..ROUNDS {
                    // Sets every fourth bit, and at the end a range of bits in several lines.
                    let bit = i * (THREADS + 1) + thread;
                    program.set_bits_delegated(by, ino, bit..bit + 1).unwrap();
                }
                let far = 100_000 + thread * 2_000;
                program.set_bits_delegated(by, ino, far..far + 1_500).unwrap();
            });
        }
    });
    let mut words = vec![0; server.getattr(ino).unwrap().size as usize];
    assert_eq!(server.read(ino, 0, &mut words), Ok(words.len()));
    for bit in 0..words.len() as u64 * 8 {
        let is_set = words[bit as usize / 8] & 1 << (bit % 8) != 0;
        let near = bit < ROUNDS * (THREADS + 1) && bit % (THREADS + 1) < THREADS;
        let far = (100_000..100_000 + THREADS * 2_000).contains(&bit) && bit % 2_000 < 1_500;
        assert_eq!(is_set, near || far, "bit {bit}");
    }
    server.recall(Some(by)).unwrap();
    assert_eq!(program.set_bits_delegated(by, ino, 0..1), Err(Errno::STALE));
}

/// Tests that delegations are distinct, are limited in number, survive a recovery, and cannot be
/// guessed.
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
    // The error for any directory.
    assert_eq!(read(again), Err(Errno::ISDIR));
    server.recall(None).unwrap();
    assert_eq!((read(again), read(all[0])), (Err(Errno::STALE), Err(Errno::STALE)));
}
