//! Tests a pool without free blocks whose data cannot be written back: changes of names and
//! attributes need no blocks.

use crate::common::{Below, Tested, attach, content, copy, file, options, region};
use backing::model::ModelCall;
use pmcache::{CacheOptions, Mode};
use vfs::{Caller, Errno, FileSystem, Ino, ROOT, RenameFlags, SetAttr, SetXattr};

const POOL: u64 = 2 << 20;
/// The files: one only in the directory, one pinned in the pool, one changed, one new, and the one
/// that fills the pool.
const FILES: [&str; 5] = ["cold", "pinned", "changed", "new", "full"];

/// Makes a cache whose pool is full, and which cannot write anything back.
fn full(mode: Mode) -> (Tested, Below) {
    let below = Below(std::sync::Arc::default());
    for name in ["cold", "pinned", "changed"] {
        let ino = file(&*below, name.as_bytes());
        below.write(ino, 0, &[1; 9000]).unwrap();
        file(&*below, format!("replaced-{name}").as_bytes());
    }
    below.sync().unwrap();
    let cache = attach(region(POOL), &below, CacheOptions { mode, ..options() }).unwrap();
    let found = |name: &[u8]| cache.lookup(ROOT, name).unwrap().ino;
    cache.setxattr(found(b"pinned"), b"keepstone.cache.pin", b"", SetXattr::Any).unwrap();
    cache.write(found(b"changed"), 0, &[2; 9000]).unwrap();
    let new = file(&cache, b"new");
    cache.write(new, 0, &[3; 9000]).unwrap();
    cache.fsync(new).unwrap();
    let large = file(&cache, b"full");
    below.fail(&[ModelCall::Write], Errno::NOSPC);
    for len in [64 << 10, 4096] {
        while cache.append(large, &vec![4; len]).is_ok() {}
    }
    assert_eq!(cache.append(large, &[4; 4096]), Err(Errno::NOSPC));
    (cache, below)
}

/// Changes names and attributes of a file, and finally restores its name. A change must be made if
/// and only if it succeeds.
fn change(cache: &Tested, below: &Below, name: &str) {
    let [old, new, second] = [name.to_owned(), format!("{name}-moved"), format!("{name}-second")]
        .map(String::into_bytes);
    let ino = cache.lookup(ROOT, &old).unwrap().ino;
    let has = |name: &[u8]| below.peek(ROOT, name).is_ok_and(|attr| attr.ino == ino);
    let is = |what: &str, result: vfs::Result<()>, is_done: bool| {
        assert_eq!((result, is_done), (Ok(()), true), "{what} {name}");
    };
    let rename =
        |from: &[u8], to: &[u8]| cache.rename((ROOT, from), (ROOT, to), RenameFlags::empty());
    is("rename", rename(&old, &new), has(&new) && !has(&old));
    is("link", cache.link(ino, ROOT, &second).map(drop), has(&second));
    is("unlink", cache.unlink(ROOT, &second), !has(&second));
    let replaced = format!("replaced-{name}").into_bytes();
    is("replace", rename(&new, &replaced), has(&replaced));
    let (perm, uid) = (Some(0o640), Some(7));
    let set = |set: SetAttr| cache.setattr(&Caller::ROOT, ino, &set).map(drop);
    let changed = set(SetAttr { perm, uid, ..SetAttr::default() });
    let attr = below.getattr(ino).unwrap();
    is("chmod", changed, (attr.perm, attr.uid) == (0o640, 7));
    let changed = cache.setxattr(ino, b"user.x", b"value", SetXattr::Any);
    is("setxattr", changed, below.getxattr(ino, b"user.x").is_ok());
    is("rename back", rename(&replaced, &old), has(&old));
    cache.forget(ino, 1);
}

fn contents(cache: &Tested) -> Vec<Vec<u8>> {
    let read = |name: &str| {
        let ino: Ino = cache.lookup(ROOT, name.as_bytes()).unwrap().ino;
        let bytes = content(cache, ino).unwrap();
        cache.forget(ino, 1);
        bytes
    };
    FILES.map(read).to_vec()
}

#[test]
fn a_full_pool_refuses_no_change_of_names_and_attributes() {
    for mode in [Mode::Writeback, Mode::Journal] {
        let (cache, below) = full(mode);
        let before = contents(&cache);
        for name in FILES {
            change(&cache, &below, name);
        }
        assert!(contents(&cache) == before, "{mode}");
        // After a kill the contents are as before.
        let again = attach(copy(&cache), &below, CacheOptions { mode, ..options() }).unwrap();
        assert!(contents(&again) == before, "{mode}");
        drop(again);
        for name in FILES {
            let removed = cache.unlink(ROOT, name.as_bytes());
            let is_there = below.peek(ROOT, name.as_bytes()).is_ok();
            assert_eq!((removed, is_there), (Ok(()), false), "{mode}, {name}");
        }
    }
}
