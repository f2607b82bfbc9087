//! All data from the store is checked: it is refused with a reason, or is a valid tree.

use crate::common::{Faulty, create, open, options, try_open};
use objects::Error;
use objects::format::{
    ChunkRef, Id, Kind, Lease, Manifest, Op, Record, Set, TreeNode, decode, encode,
    open as open_object, seal,
};
use objects::replay::Loaded;
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};
use vfs::tree::tree;
use vfs::{FileSystem as _, Ino, NewKind, NewNode, ROOT, Timestamp};

/// Makes a store with a tree: a snapshot, logs, content.
fn filled() -> Arc<Faulty> {
    let store = Faulty::new();
    let fs = open(&store, options());
    for i in 0..5 {
        let ino = create(&fs, ROOT, &format!("file-{i}"));
        fs.write(ino, i * 1000, &[7; 9000]).unwrap();
        fs.setxattr(ino, b"user.x", b"value", vfs::SetXattr::Any).unwrap();
        fs.fsync(ino).unwrap();
    }
    store
}

#[test]
fn damage_is_told_with_the_object_and_nothing_is_changed() {
    let names = ["manifest", "log/", "snapshot/"];
    for wanted in names {
        let store = filled().fork();
        let name = store.names().into_iter().find(|name| name.starts_with(wanted)).unwrap();
        let whole = store.get_bytes(&name);
        for at in (0..whole.len()).step_by(whole.len() / 40 + 1) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            store.put_bytes(&name, bytes);
            let before = store.names();
            let err =
                try_open(&store, options()).err().unwrap_or_else(|| panic!("{name}: byte {at}"));
            assert!(err.to_string().starts_with(&name), "byte {at}: {err}");
            let after: Vec<_> = store.names().into_iter().filter(|name| name != "lease").collect();
            assert_eq!(
                after,
                before.into_iter().filter(|name| name != "lease").collect::<Vec<_>>()
            );
        }
        store.put_bytes(&name, whole[..whole.len() / 2].to_vec());
        assert!(matches!(try_open(&store, options()).err(), Some(Error::Damaged { .. })));
        store.put_bytes(&name, whole);
        open(&store, options());
        store.remove(&name);
        if wanted != "manifest" {
            let err = try_open(&store, options()).err().unwrap().to_string();
            assert!(err.contains("it is not there"), "{err}");
        }
    }
}

#[test]
fn damaged_content_is_an_error_of_its_file() {
    let store = filled().fork();
    let name = store.names().into_iter().find(|name| name.starts_with("data/")).unwrap();
    let mut bytes = store.get_bytes(&name);
    bytes[100] ^= 1;
    store.put_bytes(&name, bytes);
    let fs = open(&store, options());
    let errors = (0..5).filter(|i| {
        let ino = fs.lookup(ROOT, format!("file-{i}").as_bytes()).unwrap().ino;
        fs.read(ino, 0, &mut vec![0; 16_384]).is_err()
    });
    assert_eq!(errors.count(), 1);
    store.remove(&name);
    assert!(tree(&fs).is_err(), "absence of content is no hole");
}

#[test]
fn another_version_is_told() {
    let store = filled().fork();
    let mut bytes = store.get_bytes("manifest");
    bytes[12] = 9;
    store.put_bytes("manifest", bytes);
    let err = try_open(&store, options()).err().unwrap();
    assert!(matches!(err, Error::Version { version: 9, .. }), "{err}");
}

fn op() -> impl Strategy<Value = Op> {
    let ino = || (0..12u64).prop_map(Ino);
    let name = || proptest::collection::vec(any::<u8>(), 0..4);
    let object = (any::<(u64, u64)>(), 0..20_000u32, 0..20_000u32, any::<u64>()).prop_map(
        |((epoch, number), start, len, crc)| ChunkRef {
            id: Id { epoch, number },
            start: start / 4096 * 4096,
            len,
            crc,
        },
    );
    let chunk = (prop_oneof![0..4u64, any::<u64>()], proptest::option::of(object));
    prop_oneof![
        (ino(), ino(), name(), any::<u32>()).prop_map(|(ino, dir, name, mode)| {
            let node = TreeNode::from(&NewNode { kind: NewKind::Symlink(&name), mode, umask: 0 });
            Op::Create { ino, owner: (1, 2), dir, name: name.clone(), node }
        }),
        (ino(), any::<Option<u32>>(), any::<Option<Option<i64>>>()).prop_map(
            |(ino, perm, mtime)| {
                let mtime = mtime.map(|time| time.map(Timestamp));
                Op::Setattr { ino, set: Set { perm, mtime, ..Set::default() } }
            }
        ),
        (ino(), (any::<u32>(), any::<u32>()), ino(), any::<u32>(), any::<u32>()).prop_map(
            |(ino, owner, dir, mode, umask)| Op::Tmpfile { ino, owner, dir, mode, umask }
        ),
        (ino(), name()).prop_map(|(dir, name)| Op::Unlink { dir, name }),
        (ino(), name()).prop_map(|(dir, name)| Op::Rmdir { dir, name }),
        (ino(), ino(), name()).prop_map(|(ino, dir, name)| Op::Link { ino, dir, name }),
        ((ino(), name()), (ino(), name()), any::<u32>()).prop_map(|(from, to, flags)| Op::Rename {
            from,
            to,
            flags
        }),
        ino().prop_map(|ino| Op::DropPrivileges { ino }),
        (ino(), name(), name()).prop_map(|(ino, name, value)| Op::Setxattr { ino, name, value }),
        (ino(), name()).prop_map(|(ino, name)| Op::Removexattr { ino, name }),
        (ino(), any::<u64>(), proptest::collection::vec(chunk, 0..4)).prop_map(
            |(ino, size, chunks)| {
                Op::Content { ino, size, mtime: Timestamp(1), ctime: Timestamp(2), chunks }
            }
        ),
    ]
}

/// The snapshot of a tree with files.
static SNAPSHOT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let store = filled().fork();
    let fs = open(&store, options());
    for i in 0..40 {
        create(&fs, ROOT, &format!("more-{i}"));
        fs.fsync(ROOT).unwrap();
    }
    fs.collect().unwrap();
    let name = store.names().into_iter().find(|name| name.starts_with("snapshot/")).unwrap();
    open_object(Kind::Snapshot, &store.get_bytes(&name), &name).unwrap().to_vec()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Arbitrary bytes, with valid headers and without.
    #[test]
    fn no_bytes_are_trusted(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in any::<usize>()) {
        let _ = open_object(Kind::Log, &bytes, "x");
        let _ = Manifest::decode(&seal(Kind::Manifest, &bytes), "x");
        let _ = Lease::decode(&seal(Kind::Lease, &bytes), "x");
        let _ = Loaded::from_snapshot(&bytes);
        let mut changed = SNAPSHOT.clone();
        for (i, byte) in bytes.iter().take(4).enumerate() {
            let at = (at.wrapping_add(i * 7)) % changed.len();
            changed[at] = *byte;
        }
        if let Ok(mut loaded) = Loaded::from_snapshot(&changed) {
            let _ = loaded.replay(&bytes, 8192);
            loaded.forget_held();
            tree(&loaded.tree).unwrap();
        }
        let record = Record { time: Timestamp(5), op: Op::DropPrivileges { ino: ROOT } };
        prop_assert_eq!(decode::<Record>(Kind::Log, &encode(Kind::Log, &record), "x").unwrap(), record);
    }

    /// Arbitrary records: the tree refuses them, or is valid after them.
    #[test]
    fn no_record_is_trusted(ops in proptest::collection::vec(op(), 0..12)) {
        let mut loaded = Loaded::from_snapshot(&SNAPSHOT).unwrap();
        let _ = loaded.replay(&[1, 2, 3], 8192);
        for op in ops {
            let record = postcard::to_allocvec(&Record { time: Timestamp(5), op }).unwrap();
            let _ = loaded.replay(&record, 8192);
        }
        loaded.forget_held();
        tree(&loaded.tree).unwrap();
    }
}
