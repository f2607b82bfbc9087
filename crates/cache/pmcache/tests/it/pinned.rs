//! Pins in a pool that holds the tree.

use crate::common::Below;
use crate::loading::{BLOCK, Tested, again, empty, find, make, mount, region};
use crate::writeback::{file, write_back};
use pmcache::Loading;
use vfs::{
    Backed as _, Caller, Errno, FileSystem as _, Ino, NewKind, ROOT, Result, SetAttr, SetXattr,
};

const MIB: u64 = 1 << 20;

fn over(below: &Below, bytes: u64) -> Tested {
    Loading::attach(mount(region(bytes)), below.clone()).unwrap()
}

fn command(fs: &Tested, name: &str, path: &str) -> Result<()> {
    fs.setxattr(find(fs, path), format!("keepstone.cache.{name}").as_bytes(), b"", SetXattr::Any)
}

fn is_pinned(fs: &Tested, path: &str) -> bool {
    let told = fs.getxattr(find(fs, path), b"keepstone.cache.status").unwrap();
    serde_json::from_slice::<pmcache::FileStatus>(&told).unwrap().is_pinned
}

/// The first absent range of a file.
fn absent(fs: &Tested, path: &str) -> Option<std::ops::Range<u64>> {
    fs.pool().absent_range(find(fs, path), 0).unwrap()
}

fn make_all_room(fs: &Tested) {
    while fs.make_room(1 << 30).unwrap() {}
}

fn with_owner(below: &Below, name: &str, uid: u32, len: u64) -> Ino {
    let ino = file(below, ROOT, name, &vec![uid as u8 | 1; len as usize]);
    let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
    below.setattr(&Caller::ROOT, ino, &set).unwrap();
    ino
}

/// evict-E9, backed-B7.
#[test]
fn a_pinned_file_is_loaded_and_stays() {
    let below = empty();
    let (dir, other) =
        (make(&below, ROOT, "dir", NewKind::Dir), make(&below, ROOT, "o", NewKind::Dir));
    file(&below, dir, "pinned", &vec![1; (MIB + MIB / 2) as usize]);
    file(&below, dir, "beside", &vec![2; MIB as usize]);
    file(&below, other, "far", &vec![3; MIB as usize]);
    let fs = over(&below, 8 * MIB);
    command(&fs, "pin", "dir/pinned").unwrap();
    assert!(is_pinned(&fs, "dir/pinned") && !is_pinned(&fs, "dir/beside"));
    assert_eq!(absent(&fs, "dir/pinned"), None, "all of it is loaded");
    let check = |fs: &Tested| {
        command(fs, "warm", "dir/beside").unwrap();
        command(fs, "warm", "o/far").unwrap();
        make_all_room(fs);
        let dir = fs.pool().peek(ROOT, b"dir").unwrap().ino;
        let kept = fs.pool().peek(dir, b"pinned").unwrap().ino;
        assert_eq!(fs.pool().absent_range(kept, 0).unwrap(), None);
        let beside = fs.pool().peek(dir, b"beside").unwrap().ino;
        assert_eq!(fs.pool().absent_range(beside, 0).unwrap(), Some(0..MIB));
        let other = fs.pool().peek(ROOT, b"o").unwrap().ino;
        assert!(fs.pool().residence(other).unwrap().are_names_absent);
        assert_eq!(fs.status().pinned_bytes, MIB + MIB / 2);
    };
    check(&fs);
    let fs = again(fs);
    check(&fs);
    // Changes of it are written back, and stay, too.
    fs.write(find(&fs, "dir/pinned"), 5, b"changed").unwrap();
    write_back(&fs, "a pinned file");
    check(&fs);
    command(&fs, "unpin", "dir/pinned").unwrap();
    assert_eq!(fs.status().pinned_bytes, 0);
    make_all_room(&fs);
    let dir = fs.pool().peek(ROOT, b"dir").unwrap().ino;
    assert!(fs.pool().residence(dir).unwrap().are_names_absent);
    assert!(!is_pinned(&again(fs), "dir/pinned"));
}

/// pinned-F1.
#[test]
fn pins_have_limits() {
    let below = empty();
    with_owner(&below, "a", 1, MIB);
    with_owner(&below, "b", 1, MIB);
    with_owner(&below, "root", 0, 6 * MIB);
    with_owner(&below, "large", 0, 8 * MIB);
    // 40 % for all, and a fifth of that for a user.
    let fs = over(&below, 20 * MIB);
    command(&fs, "pin", "a").unwrap();
    assert_eq!(command(&fs, "pin", "b"), Err(Errno::DQUOT));
    assert_eq!(command(&fs, "pin", "large"), Err(Errno::NOSPC));
    assert!(!is_pinned(&fs, "b") && !is_pinned(&fs, "large"));
    command(&fs, "pin", "root").unwrap();
    command(&fs, "pin", "a").unwrap();
    let status = fs.status();
    assert_eq!((status.pinned_bytes, status.pinned_bytes_max), (7 * MIB, 20 * MIB / 5 * 2));
    // A file that is gone does not count any more.
    fs.unlink(ROOT, b"a").unwrap();
    assert_eq!(command(&fs, "pin", "b"), Ok(()));
    assert_eq!(fs.setxattr(ROOT, b"keepstone.cache.pin", b"", SetXattr::Any), Err(Errno::INVAL));
    let fs = again(fs);
    assert_eq!(fs.status().pinned_bytes, 7 * MIB);
}

/// pinned-F2.
#[test]
fn growth_is_evicted_as_of_other_files() {
    let below = empty();
    file(&below, ROOT, "f", &vec![1; MIB as usize]);
    let fs = over(&below, 8 * MIB);
    command(&fs, "pin", "f").unwrap();
    let f = find(&fs, "f");
    fs.append(f, &vec![7; 2 * MIB as usize]).unwrap();
    make_all_room(&fs);
    assert_eq!(absent(&fs, "f"), Some(MIB..3 * MIB));
    command(&fs, "pin", "f").unwrap();
    make_all_room(&fs);
    assert_eq!((absent(&fs, "f"), fs.status().pinned_bytes), (None, 3 * MIB));
    // It may be larger than what all pins may have when the pool is attached.
    fs.append(f, &vec![7; MIB as usize]).unwrap();
    let fs = again(fs);
    assert_eq!(fs.status().pinned_bytes, fs.status().pinned_bytes_max / BLOCK * BLOCK);
    make_all_room(&fs);
    assert_eq!(absent(&fs, "f"), Some(8 * MIB / 5 * 2 / BLOCK * BLOCK..4 * MIB));
}

/// pinned-F3.
#[test]
fn what_others_change_or_a_command_drops_is_loaded_again() {
    let below = empty();
    let object = file(&below, ROOT, "f", &vec![1; 5 * BLOCK as usize]);
    let fs = over(&below, 8 * MIB);
    command(&fs, "pin", "f").unwrap();
    let f = find(&fs, "f");
    below.write(object, 0, &vec![2; 4 * BLOCK as usize]).unwrap();
    assert_eq!(fs.look_behind(f).unwrap(), pmcache::Comparison::Renewed);
    assert!(absent(&fs, "f").is_some() && is_pinned(&fs, "f"));
    fs.load_pinned();
    assert_eq!(absent(&fs, "f"), None);
    command(&fs, "invalidate", "f").unwrap();
    assert!(absent(&fs, "f").is_some() && is_pinned(&fs, "f"));
    fs.load_pinned();
    assert_eq!(absent(&fs, "f"), None);
    // An attach loads what an interrupted load has left.
    assert!(fs.pool().evict_content(f, 0..2 * BLOCK).unwrap() > 0);
    let fs = again(fs);
    assert_eq!(absent(&fs, "f"), Some(0..2 * BLOCK));
    fs.load_pinned();
    assert_eq!(absent(&fs, "f"), None);
}
