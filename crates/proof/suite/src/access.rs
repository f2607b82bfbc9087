//! Tests access times with relatime, strictatime and noatime: their costs, and that all processes
//! that share a pool follow the same mode.

use crate::{DIR, Engine, FILE, Fs, PoolFile, create, formatted, open_shared, place};
use pmem::Medium;
use pool::MountOptions;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use vfs::{FileSystem as _, Ino, ROOT, Timestamp};

/// Returns the words stored, lines flushed and fences of a call.
fn cost<E: Engine>(fs: &Fs<E>, call: impl FnOnce()) -> [u64; 3] {
    let before = fs.medium().counters().snapshot();
    call();
    let d = fs.medium().counters().snapshot() - before;
    [d.words_stored, d.lines_flushed, d.fences]
}

/// The cost of recording an access: one word and one line, without a fence.
const RECORDED: [u64; 3] = [1, 1, 0];
const NOTHING: [u64; 3] = [0; 3];

/// Tests which accesses to files and directories each mode records.
pub fn modes<E: Engine>() {
    static NOW: AtomicI64 = AtomicI64::new(1 << 40);
    let clock = || Timestamp(NOW.load(Relaxed));
    let options = MountOptions { clock, ..MountOptions::default() };
    let fs = Fs::<E>::mount(formatted::<E>(8 << 20), &options).unwrap();
    let (file, dir) = (create::<E>(&fs, ROOT, "file", &FILE), create::<E>(&fs, ROOT, "dir", &DIR));
    fs.write(file, 0, b"content").unwrap();
    let read = || assert_eq!(fs.read(file, 0, &mut [0; 7]), Ok(7));
    let list = || fs.readdir(dir, 0, &mut |_| true).unwrap();
    let tick = || {
        NOW.fetch_add(4_000_000, Relaxed);
    };
    let atime = |ino: Ino| fs.getattr(ino).unwrap().atime.0;

    fs.record_access(false, false, false);
    tick();
    assert_eq!([cost::<E>(&fs, read), cost::<E>(&fs, list)], [NOTHING; 2], "noatime");

    // The default is relatime.
    fs.record_access(true, true, false);
    for recorded in [RECORDED, NOTHING] {
        tick();
        assert_eq!([cost::<E>(&fs, read), cost::<E>(&fs, list)], [recorded; 2], "relatime");
    }
    fs.write(file, 0, b"changed").unwrap();
    tick();
    assert_eq!(cost::<E>(&fs, read), RECORDED, "the content is younger");
    NOW.fetch_add(86_400_000_000_000, Relaxed);
    assert_eq!(cost::<E>(&fs, read), RECORDED, "a day later");

    fs.record_access(true, true, true);
    for _ in 0..2 {
        tick();
        assert_eq!([cost::<E>(&fs, read), cost::<E>(&fs, list)], [RECORDED; 2], "strictatime");
        assert_eq!([atime(file), atime(dir)], [clock().0; 2]);
        assert_eq!(cost::<E>(&fs, read), NOTHING, "once a tick of the clock");
    }

    fs.record_access(true, false, true);
    tick();
    assert_eq!([cost::<E>(&fs, read), cost::<E>(&fs, list)], [RECORDED, NOTHING], "nodiratime");
    fs.rehearse_recovery().unwrap();
    tick();
    assert_eq!([cost::<E>(&fs, read), cost::<E>(&fs, list)], [RECORDED, NOTHING], "it stays");
}

/// Tests that all processes follow the mode that one process, the server of a mount, sets.
pub fn all_processes_keep_to_it<E: Engine>() {
    let pool = PoolFile::new::<E>("access", 16 << 20);
    static NOW: AtomicI64 = AtomicI64::new(1 << 40);
    let attach = || {
        let region = open_shared(&pool.0);
        let place = place::<E>(&region).unwrap();
        let clock = || Timestamp(NOW.fetch_add(4_000_000, Relaxed));
        Fs::<E>::attach(region, &place, &MountOptions { clock, ..MountOptions::default() }).unwrap()
    };
    let (server, program) = (attach(), attach());
    let file = create::<E>(&server, ROOT, "file", &FILE);
    server.write(file, 0, b"content").unwrap();
    let read = || assert_eq!(program.read(file, 0, &mut [0; 7]), Ok(7));
    server.record_access(false, false, false);
    assert_eq!(cost::<E>(&program, read), NOTHING);
    server.record_access(true, true, true);
    assert_eq!(cost::<E>(&program, read), RECORDED);
}
