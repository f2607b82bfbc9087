//! Tests pools that become longer while processes use them (resize-Z3, resize-Z4).

use crate::{Engine, FILE, Fs, PoolFile, attach, content, open_shared};
use pmem::Medium as _;
use pool::{CheckOptions, Engine as _, Error, FormatOptions};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::{Caller, Errno, FileSystem as _, Ino, ROOT};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const CHUNK: u64 = 48 << 10;

/// Creates a pool of 16 MiB that processes can share.
fn pool<E: Engine>(name: &str, is_thin: bool) -> PoolFile {
    let pool = PoolFile::new::<E>(name, 16 * MIB);
    let region = open_shared(&pool.0);
    E::format(&region, &FormatOptions { is_thin, ..FormatOptions::default() }).unwrap();
    pool
}

/// Returns the byte of a file at which its `n`th chunk differs from others.
fn byte(n: u64) -> u8 {
    (n % 251) as u8 + 1
}

/// Appends chunks to a file until the pool is full. Returns their number, those before included.
fn fill<E: Engine>(fs: &Fs<E>, ino: Ino, from: u64) -> u64 {
    let chunk = |n: u64| vec![byte(n); CHUNK as usize];
    let full = (from..).find(|n| fs.append(ino, &chunk(*n)) == Err(Errno::NOSPC));
    full.expect("a pool has an end")
}

fn check_chunks<E: Engine>(fs: &Fs<E>, ino: Ino, chunks: u64) {
    let found = content(fs, ino);
    assert_eq!(found.len() as u64, chunks * CHUNK);
    for (n, chunk) in (0..).zip(found.chunks(CHUNK as usize)) {
        assert!(chunk.iter().all(|b| *b == byte(n)), "chunk {n}");
    }
}

/// A process makes a pool longer that is full. Others use the new part: those that write there,
/// those that only find pointers to it, and those that come later.
pub fn processes_use_the_new_part<E: Engine>() {
    for is_thin in [false, true] {
        let pool = pool::<E>("growth", is_thin);
        let [writer, other, reader] = [(), (), ()].map(|()| attach::<E>(&pool.0));
        let ino = writer.create(&Caller::ROOT, ROOT, b"file", &FILE).unwrap().ino;
        let before = fill::<E>(&writer, ino, 0);
        check_chunks::<E>(&reader, ino, before);
        let blocks = writer.statfs().blocks;
        assert_eq!(other.lengthen(40 * MIB + 5).unwrap(), 40 * MIB);
        assert_eq!(writer.statfs().blocks, 40 * MIB / BLOCK);
        let more = fill::<E>(&writer, ino, before);
        assert!(more > 2 * before, "{before}, then {more} chunks");
        // It has not seen the new length.
        check_chunks::<E>(&reader, ino, more);
        let late = attach::<E>(&pool.0);
        assert_eq!(late.statfs().blocks, 40 * MIB / BLOCK);
        check_chunks::<E>(&late, ino, more);
        // The state is derived again with the new length.
        reader.rehearse_recovery().unwrap();
        check_chunks::<E>(&other, ino, more);
        assert_eq!(writer.append(ino, &[0; CHUNK as usize]), Err(Errno::NOSPC));
        assert_eq!(late.lengthen(40 * MIB).map_err(errno), Err(Some(Errno::INVAL)));
        assert_eq!(late.lengthen(20 * MIB).map_err(errno), Err(Some(Errno::INVAL)));
        assert!(matches!(late.lengthen(65 * MIB), Err(Error::Unformattable(_))));
        assert_eq!(reader.lengthen(64 * MIB).unwrap(), 64 * MIB);
        let most = fill::<E>(&late, ino, more);
        check_chunks::<E>(&reader, ino, most);
        writer.unlink(ROOT, b"file").unwrap();
        drop((writer, other, reader, late));
        let again = attach::<E>(&pool.0);
        let free = again.statfs();
        assert_eq!(free.blocks, 64 * MIB / BLOCK);
        assert!(free.blocks_free > free.blocks - blocks, "{free:?}");
        drop(again);
        let report = E::check(&open_shared(&pool.0), &CheckOptions::default()).unwrap();
        assert!(report.clean(), "{:?}", report.problems);
    }
}

fn errno(err: Error) -> Option<Errno> {
    match err {
        Error::Errno(errno) => Some(errno),
        _ => None,
    }
}

/// A process dies after it has committed the new length, and before any other process knows of it.
pub fn a_death_after_the_commit_loses_nothing<E: Engine>() {
    for is_thin in [false, true] {
        let pool = pool::<E>("growth-death", is_thin);
        let [one, two] = [(), ()].map(|()| attach::<E>(&pool.0));
        let ino = one.create(&Caller::ROOT, ROOT, b"file", &FILE).unwrap().ino;
        let before = fill::<E>(&one, ino, 0);
        match is_thin {
            true => one.medium().grow_sparse(48 * MIB).unwrap(),
            false => one.medium().grow(48 * MIB).unwrap(),
        }
        // As the process that dies: only the word in PM.
        E::resize(one.medium(), 48 * MIB).unwrap();
        assert_eq!(two.append(ino, &[0; CHUNK as usize]), Err(Errno::NOSPC));
        two.rehearse_recovery().unwrap();
        assert_eq!(two.statfs().blocks, 48 * MIB / BLOCK);
        let more = fill::<E>(&two, ino, before);
        assert!(more > 2 * before, "{before}, then {more} chunks");
        check_chunks::<E>(&one, ino, more);
        drop((one, two));
        let report = E::check(&open_shared(&pool.0), &CheckOptions::default()).unwrap();
        assert!(report.clean(), "{:?}", report.problems);
    }
}

/// Threads of several processes write while the pool becomes longer, step by step, and end when it
/// is full at its last length.
pub fn writers_go_on_meanwhile<E: Engine>() {
    let pool = pool::<E>("growth-writers", true);
    let command = attach::<E>(&pool.0);
    let attached = [(), ()].map(|()| attach::<E>(&pool.0));
    let files = ["one", "two"]
        .map(|name| command.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino);
    let has_ended = AtomicBool::new(false);
    let counts = std::thread::scope(|s| {
        let writers: Vec<_> = attached
            .iter()
            .zip(files)
            .map(|(fs, ino)| {
                let has_ended = &has_ended;
                s.spawn(move || {
                    let mut chunks = 0;
                    loop {
                        let is_last = has_ended.load(SeqCst);
                        chunks = fill::<E>(fs, ino, chunks);
                        if is_last {
                            return chunks;
                        }
                    }
                })
            })
            .collect();
        for bytes in (20..=60).step_by(4) {
            command.lengthen(bytes * MIB).unwrap();
        }
        has_ended.store(true, SeqCst);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    for (ino, chunks) in files.into_iter().zip(&counts) {
        check_chunks::<E>(&command, ino, *chunks);
    }
    assert!(counts.iter().sum::<u64>() * CHUNK > 48 * MIB, "{counts:?}");
    drop((command, attached));
    let report = E::check(&open_shared(&pool.0), &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
}
