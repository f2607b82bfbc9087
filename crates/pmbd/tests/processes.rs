//! One device, opened before a fork, used by several processes at once.

#![allow(unsafe_code)]

use pmbd::{BlockDevice, Durability, Options, Protection, Scheme};

const BLOCK: u64 = 512;
const WORKERS: u64 = 3;
const OWN: u64 = 20;
const SHARED: u64 = 4;
const ROUNDS: u64 = 200;

/// Writes blocks of its own and blocks that all write, with barriers now and then.
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

/// Runs `child` in a new process; its PID.
fn fork(child: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child uses what its parent has set up, and ends without running destructors or handlers.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!child())),
            pid => pid,
        }
    }
}

#[test]
fn processes_share_a_device() {
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
            let mut status = 0;
            // SAFETY: `status` is valid for the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "{options:?}");
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
        // No space was lost, whoever took it.
        for _ in 0..3 {
            device.write(0, &got, Durability::Now).unwrap();
        }
        drop(device);
        pmbd::open(&path, &options).unwrap();
    }
}
