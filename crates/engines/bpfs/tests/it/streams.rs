//! Streams of snapshots: sent, received into pools of other sizes, resumed, refused.

use crate::snapshots::{CHANGES, FILE, SOME, free, problems, run};
use bpfs::layout::BLOCK;
use bpfs::{Bpfs, FormatOptions, MountOptions};
use pmem::{Medium, Region};
use pool::stream::{
    ReceiveError, SendError, SendRequest, StreamError, StreamReader, StreamRecord, StreamToken,
    StreamWriter,
};
use rng::Rng;
use suite::flushed;
use vfs::conformance::gen_ops;
use vfs::script::Driver;
use vfs::tree::{Tree, tree};
use vfs::{Caller, Errno, FileSystem, NewKind, NewNode, ROOT, SetXattr};

fn pool(bytes: u64) -> Bpfs<Region> {
    let region = flushed(false).anonymous(bytes).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    Bpfs::mount(region, &MountOptions::default()).unwrap()
}

fn request(base: Option<&str>, snapshot: &str) -> SendRequest {
    SendRequest { snapshot: snapshot.to_owned(), base: base.map(str::to_owned), resume: None }
}

/// Returns a stream, and its records.
fn sent(fs: &Bpfs<Region>, request: &SendRequest) -> (Vec<u8>, Vec<StreamRecord>) {
    let mut writer = StreamWriter::new(Vec::new()).unwrap();
    let mut records = Vec::new();
    bpfs::send(fs.medium(), request, &mut |record| {
        writer.write(&record)?;
        records.push(record);
        Ok(())
    })
    .unwrap();
    (writer.finish().unwrap(), records)
}

fn receive(fs: &Bpfs<Region>, stream: &[u8]) -> Result<(), ReceiveError> {
    let reader = StreamReader::new(stream)?;
    let name = reader.head().snapshot.name.clone();
    bpfs::receive(fs, &name, reader, &mut |_| {})
}

/// Reads a snapshot beside other users of the pool, and without the numbers of its inodes.
fn look(fs: &Bpfs<Region>, name: &str) -> Tree {
    let snapshot = Some(name.to_owned());
    let options = MountOptions { read_only: true, snapshot, ..MountOptions::default() };
    let fs = Bpfs::mount(fs.medium(), &options).unwrap();
    assert_eq!(fs.mount_report().problems, 0);
    tree(&fs).unwrap()
}

/// Makes snapshots `a`, `b` and `c`.
fn three() -> Bpfs<Region> {
    let fs = pool(64 << 20);
    run(&fs, SOME);
    let node = NewNode { kind: NewKind::Char(259), mode: 0o4711, umask: 0 };
    fs.create(&Caller::ROOT, ROOT, b"device", &node).unwrap();
    let many = fs.lookup(ROOT, b"d").unwrap().ino;
    for i in 0..300 {
        fs.create(&Caller::ROOT, many, format!("name of file {i}").as_bytes(), &FILE).unwrap();
    }
    fs.create_snapshot("a").unwrap();
    run(&fs, CHANGES);
    for i in 0..200 {
        fs.unlink(many, format!("name of file {i}").as_bytes()).unwrap();
    }
    fs.setxattr(many, b"user.long", &[7; 60_000], SetXattr::Any).unwrap();
    fs.create_snapshot("b").unwrap();
    run(
        &fs,
        "rename /a /z; truncate /z 20000; write /h 2000000 3000000; punch /t 0 4096; \
        symlink /l2 4000; rename /d /dd; truncate /n 100; truncate /n 5000",
    );
    fs.create_snapshot("c").unwrap();
    fs
}

#[test]
fn snapshots_go_to_pools_of_other_sizes() {
    let from = three();
    for bytes in [16 << 20, 256 << 20] {
        let to = pool(bytes);
        for (base, name) in [(None, "a"), (Some("a"), "b"), (Some("b"), "c")] {
            receive(&to, &sent(&from, &request(base, name)).0).unwrap();
            assert_eq!(look(&to, name), look(&from, name), "{name}");
            assert_eq!(to.snapshots(false).unwrap().list.last().unwrap().created_ns, {
                let all = from.snapshots(false).unwrap().list;
                all.iter().find(|s| s.name == name).unwrap().created_ns
            });
        }
        let alone = pool(bytes);
        receive(&alone, &sent(&from, &request(None, "c")).0).unwrap();
        assert_eq!(look(&alone, "c"), look(&from, "c"));
        // A received snapshot can be sent, too.
        let (first, second) =
            (sent(&from, &request(Some("a"), "c")), sent(&to, &request(Some("a"), "c")));
        assert_eq!(first.1[1..], second.1[1..]);
        let region = to.into_medium();
        assert_eq!(problems(&region), [""; 0]);
        for name in ["a", "c", "b"] {
            bpfs::roll_back(&region, name).unwrap();
            assert_eq!(problems(&region), [""; 0]);
            let fs = Bpfs::mount(&region, &MountOptions::default()).unwrap();
            assert_eq!(tree(&fs).unwrap(), look(&from, name));
            run(&fs, "create /later; write /later 0 9000; unlink /later");
        }
    }
}

/// A stream breaks off anywhere, and goes on from there. Nothing is seen before it is complete.
#[test]
fn a_stream_is_resumed() {
    let from = three();
    let mut rng = Rng::new(3);
    let base = sent(&from, &request(None, "a")).0;
    let want = look(&from, "b");
    for _ in 0..60 {
        let to = pool(32 << 20);
        receive(&to, &base).unwrap();
        let mut resume: Option<StreamToken> = None;
        loop {
            let mut request = request(Some("a"), "b");
            // A receiver may start over, too.
            request.resume = resume.filter(|_| rng.below(4) > 0);
            let stream = sent(&from, &request).0;
            let cut = rng.below(stream.len() as u64 * 5 / 4) as usize;
            let part = &stream[..cut.min(stream.len())];
            match receive(&to, part) {
                Ok(()) => break,
                Err(ReceiveError::Stream(StreamError::Ended(at))) => assert_eq!(at, cut as u64),
                Err(e) => panic!("{e}"),
            }
            let Ok(token) = bpfs::token(to.medium(), "b") else { continue };
            resume = token;
            assert!(to.snapshots(false).unwrap().list[1].is_incomplete);
            let options = MountOptions {
                read_only: true,
                snapshot: Some("b".to_owned()),
                ..MountOptions::default()
            };
            assert!(Bpfs::mount(to.medium(), &options).is_err());
            if rng.below(3) == 0 {
                assert_eq!(problems(to.medium()), [""; 0]);
            }
        }
        assert_eq!(look(&to, "b"), want);
        assert_eq!(problems(&to.into_medium()), [""; 0]);
    }
}

#[test]
fn an_abort_gives_all_space_back() {
    let from = three();
    let to = pool(32 << 20);
    receive(&to, &sent(&from, &request(None, "a")).0).unwrap();
    let before = free(&to);
    let stream = sent(&from, &request(Some("a"), "b")).0;
    for part in [300, stream.len() / 2, stream.len() - 1] {
        receive(&to, &stream[..part]).unwrap_err();
        assert!(free(&to) < before);
        to.delete_snapshot("b").unwrap();
        assert_eq!(free(&to), before);
    }
    receive(&to, &stream).unwrap();
    to.delete_snapshot("a").unwrap();
    assert_eq!(look(&to, "b"), look(&from, "b"));
    to.delete_snapshot("b").unwrap();
    let used = to.statfs().blocks - free(&to);
    let again = Bpfs::mount(to.into_medium(), &MountOptions::default()).unwrap();
    assert_eq!(again.statfs().blocks - free(&again), used);
}

#[test]
fn streams_that_do_not_fit_are_refused() {
    let from = three();
    let to = pool(32 << 20);
    let step = sent(&from, &request(Some("a"), "b")).0;
    assert!(matches!(receive(&to, &step), Err(ReceiveError::NoBase(name)) if name == "a"));
    receive(&to, &sent(&from, &request(None, "a")).0).unwrap();
    let full = sent(&from, &request(None, "b")).0;
    receive(&to, &full[..full.len() - 1]).unwrap_err();
    assert!(matches!(receive(&to, &step), Err(ReceiveError::Other(name)) if name == "b"));
    receive(&to, &full).unwrap();
    assert!(matches!(receive(&to, &step), Err(ReceiveError::Exists(name)) if name == "b"));
    bpfs::receive(&to, "again", StreamReader::new(&step[..]).unwrap(), &mut |_| {}).unwrap();
    assert_eq!(look(&to, "again"), look(&to, "b"));

    let token = {
        let (stream, to) = (sent(&from, &request(Some("b"), "c")).0, pool(32 << 20));
        receive(&to, &full).unwrap();
        receive(&to, &stream[..stream.len() - 1]).unwrap_err();
        bpfs::token(to.medium(), "c").unwrap().unwrap()
    };
    let resumed = SendRequest { resume: Some(token), ..request(Some("b"), "c") };
    assert!(matches!(receive(&to, &sent(&from, &resumed).0), Err(ReceiveError::Gap(..))));
    let other = SendRequest { resume: Some(token), ..request(Some("a"), "c") };
    let mut ignore = |_| Ok(());
    assert!(matches!(bpfs::send(from.medium(), &other, &mut ignore), Err(SendError::OtherStream)));
    let none = request(None, "none");
    assert!(matches!(bpfs::send(from.medium(), &none, &mut ignore), Err(SendError::NoSnapshot(_))));
    assert_eq!(problems(&to.into_medium()), [""; 0]);
}

/// Streams with right checksums that describe no sound tree.
#[test]
fn contradictions_are_refused() {
    use StreamRecord::*;
    let from = three();
    let records = sent(&from, &request(None, "a")).1;
    let find = |is: &dyn Fn(&StreamRecord) -> bool| records.iter().position(is).unwrap();
    let names = find(&|r| matches!(r, Names(1, 0, _)));
    let data = find(&|r| matches!(r, Data(..)));
    let inode = find(&|r| matches!(r, Inode(i) if i.mode.get() >> 12 == 8 && i.size.get() > 0));
    let link = find(&|r| matches!(r, Inode(i) if i.mode.get() >> 12 == 10));
    let attributes = find(&|r| matches!(r, Attributes(..)));
    let change = |at: usize, to: &dyn Fn(&mut StreamRecord)| {
        let mut changed = records.clone();
        to(&mut changed[at]);
        changed
    };
    let without = |at: usize| {
        let mut changed = records.clone();
        changed.remove(at);
        changed
    };
    let in_names = |to: &dyn Fn(&mut Vec<pool::stream::StreamEntry>)| {
        change(names, &|r| {
            let Names(_, _, entries) = r else { panic!() };
            to(entries);
        })
    };
    let cases = [
        // Names of a missing inode, of another generation or kind; twice; none; a directory twice.
        in_names(&|entries| entries[0].ino = 60_000),
        in_names(&|entries| entries[0].generation ^= 1),
        in_names(&|entries| entries[0].kind ^= 12),
        in_names(&|entries| entries[1].name = entries[0].name.clone()),
        in_names(&|entries| drop(entries.pop())),
        in_names(&|entries| {
            let dir = entries.iter().find(|entry| entry.kind == 4).unwrap().clone();
            entries.push(pool::stream::StreamEntry { name: b"loop".to_vec(), ..dir });
        }),
        without(names),
        without(inode),
        without(link + 1),
        change(inode, &|r| {
            let Inode(inode) = r else { panic!() };
            inode.size.set(1);
        }),
        change(inode, &|r| {
            let Inode(inode) = r else { panic!() };
            inode.uid.set(77);
        }),
        change(data, &|r| {
            let Data(_, _, bytes) = r else { panic!() };
            bytes.truncate(1);
        }),
        change(attributes, &|r| {
            let Attributes(_, list) = r else { panic!() };
            list[0].0 = b"unknown.x".to_vec();
        }),
    ];
    for (i, records) in cases.iter().enumerate() {
        let to = pool(32 << 20);
        let before = free(&to);
        let mut writer = StreamWriter::new(Vec::new()).unwrap();
        records.iter().for_each(|record| writer.write(record).unwrap());
        let error = receive(&to, &writer.finish().unwrap()).unwrap_err();
        let is_expected = matches!(
            error,
            ReceiveError::Misfit(_)
                | ReceiveError::Unsound(_)
                | ReceiveError::OtherInodes
                | ReceiveError::Stream(StreamError::Wrong { .. })
        );
        assert!(is_expected, "case {i}: {error}");
        assert!(to.snapshots(false).unwrap().list[0].is_incomplete);
        to.delete_snapshot("a").unwrap();
        // The table of snapshots begins.
        assert_eq!(free(&to), before);
        assert_eq!(problems(&to.into_medium()), [""; 0]);
    }
}

#[test]
fn a_full_pool_keeps_its_state() {
    let from = three();
    let to = pool(16 << 20);
    let file = to.create(&Caller::ROOT, ROOT, b"fill", &FILE).unwrap().ino;
    while free(&to) > 40 {
        to.append(file, &[1; 4096]).unwrap();
    }
    let stream = sent(&from, &request(None, "b")).0;
    let error = receive(&to, &stream).unwrap_err();
    assert!(matches!(error, ReceiveError::Pool(bpfs::Error::Errno(Errno::NOSPC))), "{error}");
    to.unlink(ROOT, b"fill").unwrap();
    to.forget(file, 1);
    receive(&to, &stream).unwrap();
    assert_eq!(look(&to, "b"), look(&from, "b"));
}

/// One block in a hundred has changed: less than 2 % of the content is read and sent.
#[test]
fn what_has_not_changed_is_not_read() {
    const MIB: u64 = 1 << 20;
    let fs = pool(400 * MIB);
    let mut files = Vec::new();
    for i in 0..200 {
        let made = fs.create(&Caller::ROOT, ROOT, format!("{i}").as_bytes(), &FILE).unwrap().ino;
        fs.write(made, 0, &vec![i as u8; MIB as usize]).unwrap();
        files.push(made);
    }
    let large = fs.create(&Caller::ROOT, ROOT, b"large", &FILE).unwrap().ino;
    for i in 0..56 {
        fs.write(large, i * MIB, &vec![i as u8; MIB as usize]).unwrap();
    }
    fs.create_snapshot("a").unwrap();
    let mut rng = Rng::new(5);
    let content = 256 * MIB;
    let changed = content / BLOCK / 100;
    for i in 0..changed {
        let ino = if i % 4 == 0 { large } else { files[rng.below(200) as usize] };
        let blocks = if i % 4 == 0 { 56 * 256 } else { 256 };
        fs.write(ino, rng.below(blocks) * BLOCK, &[0xcc; BLOCK as usize]).unwrap();
    }
    fs.create_snapshot("b").unwrap();
    let before = fs.medium().counters().snapshot();
    let (stream, _) = sent(&fs, &request(Some("a"), "b"));
    let read = (fs.medium().counters().snapshot() - before).bytes_read;
    assert!(stream.len() as u64 <= changed * (BLOCK + 100), "{} bytes sent", stream.len());
    assert!(read <= content / 50, "{read} bytes read, {} sent", stream.len());
    let to = pool(400 * MIB);
    receive(&to, &sent(&fs, &request(None, "a")).0).unwrap();
    receive(&to, &stream).unwrap();
    assert_eq!(look(&to, "b"), look(&fs, "b"));
}

/// Random trees and changes: an incremental stream gives the same as a full one.
#[test]
fn random_changes_are_sent() {
    for seed in 0..24 {
        let fs = pool(64 << 20);
        run(&fs, SOME);
        let to = pool(64 << 20);
        let mut base: Option<String> = None;
        for step in 0..4 {
            let name = format!("{step}");
            let mut driver = Driver::new(&fs);
            for (salt, op) in (1..).zip(gen_ops(seed * 4 + step, 60)) {
                // Calls are drawn independently of the state: some fail.
                let _ = driver.run(&op, salt);
            }
            driver.close_all();
            fs.create_snapshot(&name).unwrap();
            receive(&to, &sent(&fs, &request(base.as_deref(), &name)).0).unwrap();
            assert_eq!(look(&to, &name), look(&fs, &name), "seed {seed}");
            base = Some(name);
        }
        assert_eq!(problems(&to.into_medium()), [""; 0], "seed {seed}");
    }
}
