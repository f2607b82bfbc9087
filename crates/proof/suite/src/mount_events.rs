//! Tests mount events: announcements of the mount's server reach all processes that use the pool,
//! and survive recoveries.

use crate::{Engine, PoolFile, attach, mounted};
use mounts::{MountEvents as _, Opening, Requester, Ticket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use vfs::{Caller, FileSystem as _, NewKind, NewNode, ROOT};

/// Tests that all processes see the server's announcements, also after a recovery.
pub fn mount_events_are_shared_and_outlast_recoveries<E: Engine>() {
    let pool = PoolFile::new::<E>("events", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    let node = NewNode { kind: NewKind::File, mode: 0o755, umask: 0 };
    let make = || server.create(&Caller::ROOT, ROOT, b"program", &node).unwrap().ino;
    let ino = make();
    server.begin_execution(ino);
    server.announce_mount_change();
    server.rehearse_recovery().unwrap();
    assert!(program.is_executed(ino));
    assert_eq!(program.mount_changes(), 1);
    server.end_execution(ino);
    // An extra call has no effect: the count stays at zero.
    server.end_execution(ino);
    assert!(!program.is_executed(ino));

    // A process that executed the file has died; the next file with its number is not executed.
    server.begin_execution(ino);
    server.unlink(ROOT, b"program").unwrap();
    server.forget(ino, 1);
    assert_eq!(make(), ino, "numbers are used again");
    assert!(!program.is_executed(ino));
}

/// Tests that mappings are counted for each process, and end with it.
pub fn mappings_end_with_those_who_count_them<E: Engine>() {
    let pool = PoolFile::new::<E>("mappings", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let ino = server.create(&Caller::ROOT, ROOT, b"file", &node).unwrap().ino;
    assert!(!program.is_mapped(ino));
    server.begin_mapping(ino).unwrap();
    program.begin_mapping(ino).unwrap();
    program.begin_mapping(ino).unwrap();
    // A recovery keeps the sums, and `end_mapping` takes away only mappings of its own process.
    server.rehearse_recovery().unwrap();
    for _ in 0..3 {
        server.end_mapping(ino);
        assert!(server.is_mapped(ino) && program.is_mapped(ino));
    }
    program.end_mapping(ino);
    assert!(server.is_mapped(ino));
    program.end_mapping(ino);
    assert!(!server.is_mapped(ino) && !program.is_mapped(ino));

    // Mappings that a process leaves are removed, whether it died or its mount ended.
    program.begin_mapping(ino).unwrap();
    program.begin_mapping(ino).unwrap();
    drop(program);
    assert!(server.is_mapped(ino));
    assert_eq!(server.reap_processes().unwrap(), 1);
    assert!(!server.is_mapped(ino));
    let next = attach::<E>(&pool.0);
    next.begin_mapping(ino).unwrap();
    server.begin_mapping(ino).unwrap();
    server.begin_mapping(ino).unwrap();
    server.end_mappings();
    assert!(server.is_mapped(ino));
    next.end_mappings();
    assert!(!server.is_mapped(ino));

    // A recovery does not count the mappings of a dead process either.
    next.begin_mapping(ino).unwrap();
    drop(next);
    server.rehearse_recovery().unwrap();
    assert!(!server.is_mapped(ino));
    assert!(server.begin_mapping(vfs::Ino(1 << 63)).is_err());
}

/// Tests that a process which maps a file waits for all openings of this file that are under way,
/// and the server only for those that it has answered. `namespace::derived::openings`, where the
/// longest wait can be chosen, tests that they wait until the end.
pub fn openings_are_waited_for<E: Engine>() {
    let pool = PoolFile::new::<E>("openings", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    let (ino, other) = (vfs::Ino(2), vfs::Ino(3));
    let answered = || server.wait_for_openings(ino, true);
    let all = || server.wait_for_openings(ino, false);
    assert!(!all());
    let by = Requester { thread: 9, user: 5 };
    let opening = Opening { ino, generation: 1, as_new: true };
    let begin = || program.begin_opening(opening, by).unwrap();
    let first = begin();
    assert!(!answered() && !server.wait_for_openings(other, false));
    // These tickets were announced by no process, or by another one.
    assert_eq!(server.answer_opening(Ticket(first.0 ^ 1), by), None);
    assert_eq!(server.answer_opening(Ticket(u128::MAX), by), None);
    assert_eq!(server.answer_opening(first, Requester { thread: 10, ..by }), None);
    assert!(!answered());

    assert!(all());
    assert!(!program.end_opening(first));
    assert!(!all());
    let second = begin();
    assert_ne!(first, second);
    assert_eq!(server.answer_opening(first, by), None);
    assert_eq!(server.answer_opening(second, by), Some(opening));
    assert_eq!(server.answer_opening(second, by), None, "once");
    assert!(answered());
    assert!(program.end_opening(second));
    let third = begin();
    assert!(!answered());

    // Openings of a dead process delay others until the process is reaped.
    assert!(all());
    drop(program);
    server.reap_processes().unwrap();
    assert!(!all());
    assert_eq!(server.answer_opening(third, by), None);
}

/// Tests that a mount belongs to a pool while the server that announced it lives and serves.
pub fn a_mount_is_one_while_its_server_says_so<E: Engine>() {
    let pool = PoolFile::new::<E>("served", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    assert!(!program.is_served_at(0) && !program.is_served_at(7));
    server.begin_serving(7).unwrap();
    server.rehearse_recovery().unwrap();
    assert!(program.is_served_at(7) && !program.is_served_at(8) && !program.is_served_at(0));
    server.end_serving();
    assert!(!program.is_served_at(7));
    // A second server starts and dies.
    let other = attach::<E>(&pool.0);
    server.begin_serving(7).unwrap();
    other.begin_serving(8).unwrap();
    assert!(program.is_served_at(7) && program.is_served_at(8));
    drop(other);
    assert!(program.is_served_at(7) && !program.is_served_at(8));
}

/// Tests that the server is notified of each inode that it holds when that loses its last name,
/// however many these are, and of no other inode.
pub fn the_server_hears_of_removals<E: Engine>() {
    let pool = PoolFile::new::<E>("removals", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    let other_server = attach::<E>(&pool.0);
    other_server.wait_for_unnamed(Duration::ZERO, &mut |_| {}).unwrap();
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let make = |name: &str| {
        let ino = program.create(&Caller::ROOT, ROOT, name.as_bytes(), &node).unwrap().ino;
        program.forget(ino, 1);
        ino
    };
    let hold = |name: &str| server.lookup(ROOT, name.as_bytes()).unwrap().ino;
    let heard = || {
        let mut inos = Vec::new();
        server.wait_for_unnamed(Duration::ZERO, &mut |ino| inos.push(ino)).unwrap();
        inos.sort_unstable_by_key(|ino| ino.0);
        inos
    };
    assert_eq!(heard(), []);
    let ino = make("held");
    hold("held");
    make("unknown");
    program.link(ino, ROOT, b"link").unwrap();
    program.forget(ino, 1);
    program.unlink(ROOT, b"held").unwrap();
    program.unlink(ROOT, b"unknown").unwrap();
    assert_eq!(heard(), [], "it has a name left, the other is not held");
    server.rehearse_recovery().unwrap();
    program.unlink(ROOT, b"link").unwrap();
    assert_eq!(heard(), [ino]);
    server.forget(ino, 1);
    make("own");
    hold("own");
    server.unlink(ROOT, b"own").unwrap();
    assert_eq!(heard(), [], "what the kernel removes it knows itself");
    other_server.wait_for_unnamed(Duration::ZERO, &mut |_| panic!("it holds nothing")).unwrap();
    drop(other_server);
    server.reap_processes().unwrap();

    // There are more inodes than words for notifications.
    let name = |i: usize| format!("file{i}");
    let mut inos: Vec<_> = (0..3000).map(|i| make(&name(i))).collect();
    assert_eq!((0..3000).map(|i| hold(&name(i))).collect::<Vec<_>>(), inos);
    (0..3000).for_each(|i| program.unlink(ROOT, name(i).as_bytes()).unwrap());
    inos.sort_unstable_by_key(|ino| ino.0);
    let mut told = heard();
    told.dedup();
    assert!(inos.iter().all(|ino| told.binary_search_by_key(&ino.0, |ino| ino.0).is_ok()));
    inos.iter().for_each(|ino| server.forget(*ino, 1));
    // A waiting server is woken.
    make("last");
    let last = hold("last");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut told = Vec::new();
            while told.is_empty() {
                let patience = Duration::from_secs(600);
                server.wait_for_unnamed(patience, &mut |ino| told.push(ino)).unwrap();
            }
            told
        });
        server.wake();
        program.unlink(ROOT, b"last").unwrap();
        assert_eq!(waiting.join().unwrap(), [last]);
    });
    server.end_serving();
}

/// Tests that a server counts as one of four, although two of its threads come first at the same
/// time.
pub fn threads_of_a_server_count_as_one<E: Engine>() {
    let pool = PoolFile::new::<E>("servers", 16 << 20);
    let [server, others @ ..] = [(); 4].map(|()| attach::<E>(&pool.0));
    // Spins, so that both threads go on at the same instant if each has a CPU.
    let arrived = AtomicU32::new(0);
    let meet = |times: u32| {
        arrived.fetch_add(1, SeqCst);
        for spins in 0.. {
            match arrived.load(SeqCst) {
                now if now >= 2 * times => break,
                _ if spins < 10_000 => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
    };
    let meet_and_wake = |round: u32| {
        meet(2 * round + 1);
        server.wake();
        meet(2 * round + 2);
    };
    let rounds = 0..2000;
    let mut refused = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| rounds.clone().for_each(meet_and_wake));
        for round in rounds.clone() {
            meet_and_wake(round);
            for other in &others {
                let begun = other.wait_for_unnamed(Duration::ZERO, &mut |_| {});
                refused += u32::from(begun.is_err());
            }
            others.iter().chain([&server]).for_each(|server| server.end_serving());
        }
    });
    assert_eq!(refused, 0, "servers for which there was no room");
}

/// Tests that a new process must wait while the kernel may cache the answers of the server. Once
/// another process is there, the kernel may cache none.
pub fn who_comes_waits_until_the_kernel_keeps_nothing<E: Engine>() {
    let pool = PoolFile::new::<E>("keeps", 16 << 20);
    let server = attach::<E>(&pool.0);
    server.wait_for_unnamed(Duration::ZERO, &mut |_| {}).unwrap();
    assert!(server.let_kernel_keep(true).unwrap() && !server.has_company());
    let is_in = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| {
            let program = attach::<E>(&pool.0);
            is_in.store(true, SeqCst);
            program
        });
        // A new process wakes the server.
        while !server.has_company() {
            server.wait_for_unnamed(Duration::from_secs(600), &mut |_| {}).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_in.load(SeqCst), "it was not held up");
        assert!(!server.let_kernel_keep(true).unwrap(), "somebody is there");
        let program = coming.join().unwrap();
        program.getattr(ROOT).unwrap();
        assert!(!server.let_kernel_keep(true).unwrap());
        drop(program);
    });
    server.reap_processes().unwrap();
    assert!(server.let_kernel_keep(true).unwrap());
    // The mount of a dead server is dead, too, so a new process need not wait.
    drop(server);
    attach::<E>(&pool.0).getattr(ROOT).unwrap();
}

/// Tests notifications when the kernel forgets inodes and their numbers are reused. The server must
/// not be notified of the next inode with the same number, neither before it looks nor while it
/// handles a notification.
pub fn the_server_is_not_told_of_who_has_the_number_next<E: Engine>() {
    let pool = PoolFile::new::<E>("numbers", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    let node = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
    let make = |name: &[u8]| {
        let ino = program.create(&Caller::ROOT, ROOT, name, &node).unwrap().ino;
        program.forget(ino, 1);
        assert_eq!(server.lookup(ROOT, name).unwrap().ino, ino);
        ino
    };
    server.wait_for_unnamed(Duration::ZERO, &mut |_| {}).unwrap();
    let ino = make(b"first");
    program.rmdir(ROOT, b"first").unwrap();
    server.forget(ino, 1);
    assert_eq!(make(b"second"), ino);
    server.wait_for_unnamed(Duration::ZERO, &mut |_| panic!("it has a name")).unwrap();

    program.rmdir(ROOT, b"second").unwrap();
    let mut told = Vec::new();
    let mut tell = |unnamed| {
        server.forget(unnamed, 1);
        told.push((unnamed, make(b"third")));
    };
    server.wait_for_unnamed(Duration::ZERO, &mut tell).unwrap();
    assert_eq!(told.iter().map(|(unnamed, _)| *unnamed).collect::<Vec<_>>(), [ino]);
    assert_ne!(told[0].1, ino, "told of while its number was used again");
    assert_eq!(make(b"fourth"), ino, "kept after it was told of");
}

/// Returns the number of times that the kernel has put this thread to sleep.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Tests that a writer waits for space of a removed file which only the kernel's cache keeps. It
/// may give up only after it has slept many times.
pub fn a_full_pool_waits_for_the_server<E: Engine>() {
    let pool = PoolFile::new::<E>("full", 16 << 20);
    let (server, program) = (attach::<E>(&pool.0), attach::<E>(&pool.0));
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let make = |name: &[u8]| program.create(&Caller::ROOT, ROOT, name, &node).unwrap().ino;
    let fill = |ino| program.write(ino, 0, &vec![7; 10 << 20]);
    server.wait_for_unnamed(Duration::ZERO, &mut |_| {}).unwrap();
    let ino = make(b"first");
    fill(ino).unwrap();
    server.lookup(ROOT, b"first").unwrap();
    program.forget(ino, 1);
    program.unlink(ROOT, b"first").unwrap();
    let second = make(b"second");
    let before = sleeps();
    assert_eq!(fill(second), Err(vfs::Errno::NOSPC), "the server does not come to it");
    assert!(sleeps() - before > 50, "the writer has not waited for the server");
    let is_told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // By now the writer usually waits.
            std::thread::sleep(Duration::from_millis(20));
            server.wait_for_unnamed(Duration::ZERO, &mut |ino| server.forget(ino, 1)).unwrap();
            is_told.store(true, SeqCst);
        });
        // On a busy machine, the writer may give up before the server gets to run; then it tries
        // again.
        loop {
            let was_told = is_told.load(SeqCst);
            match fill(second) {
                Ok(()) => break,
                Err(errno) => assert!(!was_told, "the space has come back: {errno}"),
            }
        }
    });
    assert_eq!(fill(make(b"third")), Err(vfs::Errno::NOSPC));
}

/// Tests that mappings are counted also in a pool that is not shared.
pub fn a_pool_of_one_process_counts_mappings_too<E: Engine>() {
    let fs = mounted::<E>(16 << 20);
    fs.begin_mapping(ROOT).unwrap();
    assert!(fs.is_mapped(ROOT));
    fs.end_mapping(ROOT);
    fs.end_mapping(ROOT);
    assert!(!fs.is_mapped(ROOT));
}
