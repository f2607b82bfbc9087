//! Attributes, times, privileges.

use super::{
    OLD, USER, age, attr, chmod, dir, fails, file, file_with, make, others, renewed, setattr,
    truncate,
};
use crate::{
    Attr, Caller, Errno, Fallocate, FileSystem, Ino, NewKind, RenameFlags, Result, SetAttr,
    SetTime, SetXattr, Timestamp,
};

super::table!("attrs":
    chmod_sets_all_twelve_bits,
    several_attributes_change_at_once,
    nothing_given_changes_nothing,
    a_new_owner_takes_privileges_away,
    directories_keep_their_bits_with_a_new_owner,
    a_given_mode_wins_over_the_new_owner,
    times_can_be_set,
    times_of_every_age_are_kept,
    now_is_now,
    new_inodes_are_young,
    content_changes_set_times,
    attribute_changes_set_ctime,
    name_changes_set_times,
    renames_set_times,
    removals_set_times,
    failures_set_no_times,
    privileges_are_dropped,
    privileges_of_directories_stay,
    capabilities_are_dropped,
    changes_of_content_drop_capabilities,
    capabilities_stay_where_nothing_changes,
    sizes_of_other_kinds_are_refused,
);

const CAPABILITY: &[u8] = b"security.capability";

fn none() -> SetAttr {
    SetAttr::default()
}

fn chmod_sets_all_twelve_bits(fs: &dyn FileSystem) {
    for ino in [file(fs, b"f"), dir(fs, b"d"), make(fs, fs.root(), b"p", NewKind::Fifo)] {
        for perm in [0, 0o7777, 0o4755, 0o1777, 0o2644, 0o123] {
            let set = SetAttr { perm: Some(perm), ..none() };
            assert_eq!(setattr(fs, ino, set).unwrap().perm, perm);
            assert_eq!(attr(fs, ino).perm, perm);
        }
    }
    chmod(fs, fs.root(), 0o1777);
    assert_eq!(attr(fs, fs.root()).perm, 0o1777);
}

fn several_attributes_change_at_once(fs: &dyn FileSystem) {
    let ino = file_with(fs, b"f", b"abcdef");
    let set = SetAttr {
        perm: Some(0o640),
        uid: Some(5),
        gid: Some(6),
        size: Some(2),
        atime: Some(SetTime::At(Timestamp(1))),
        mtime: Some(SetTime::At(Timestamp(2))),
        ctime: Some(Timestamp(3)),
    };
    let changed = setattr(fs, ino, set).unwrap();
    assert_eq!(changed, attr(fs, ino));
    let Attr { perm, uid, gid, size, atime, mtime, ctime, .. } = changed;
    assert_eq!((perm, uid, gid, size), (0o640, 5, 6, 2));
    assert_eq!((atime, mtime, ctime), (Timestamp(1), Timestamp(2), Timestamp(3)));
}

fn nothing_given_changes_nothing(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    age(fs, ino);
    let before = attr(fs, ino);
    assert_eq!(setattr(fs, ino, none()), Ok(before));
    assert_eq!(attr(fs, ino), before);
}

fn a_new_owner_takes_privileges_away(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    for (before, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o4644, 0o644), (0o1755, 0o1755)] {
        let owners = [(Some(1), None), (None, Some(2)), (Some(3), Some(4)), (Some(3), None)];
        for (uid, gid) in owners {
            chmod(fs, ino, before);
            let changed = setattr(fs, ino, SetAttr { uid, gid, ..none() }).unwrap();
            assert_eq!(changed.perm, after, "from {before:o}");
            assert_eq!(changed.uid, uid.unwrap_or(changed.uid));
            assert_eq!(changed.gid, gid.unwrap_or(changed.gid));
        }
    }
}

fn directories_keep_their_bits_with_a_new_owner(fs: &dyn FileSystem) {
    let ino = dir(fs, b"d");
    chmod(fs, ino, 0o7777);
    let changed = setattr(fs, ino, SetAttr { uid: Some(1), gid: Some(2), ..none() }).unwrap();
    assert_eq!((changed.perm, changed.uid, changed.gid), (0o7777, 1, 2));
}

fn a_given_mode_wins_over_the_new_owner(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let set = SetAttr { uid: Some(1), perm: Some(0o6755), ..none() };
    assert_eq!(setattr(fs, ino, set).unwrap().perm, 0o6755);
}

fn times_can_be_set(fs: &dyn FileSystem) {
    let mut inos = others(fs);
    inos.extend([file(fs, b"f"), dir(fs, b"d")]);
    for ino in inos {
        let set = SetAttr { atime: Some(SetTime::At(Timestamp(123_456_789_012))), ..none() };
        let before = attr(fs, ino);
        let changed = setattr(fs, ino, set).unwrap();
        assert_eq!((changed.atime, changed.mtime), (Timestamp(123_456_789_012), before.mtime));
        assert!(changed.ctime >= before.ctime);
        let set = SetAttr { mtime: Some(SetTime::At(Timestamp(5))), ..none() };
        let changed = setattr(fs, ino, set).unwrap();
        assert_eq!((changed.atime, changed.mtime), (Timestamp(123_456_789_012), Timestamp(5)));
        let changed = setattr(fs, ino, SetAttr { ctime: Some(Timestamp(6)), ..none() }).unwrap();
        assert_eq!((changed.ctime, changed.btime), (Timestamp(6), before.btime));
    }
}

fn times_of_every_age_are_kept(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    for nanos in [0, -1, 1, i64::MIN, i64::MAX, -1_000_000_000, 1 << 62] {
        let time = Timestamp(nanos);
        let at = Some(SetTime::At(time));
        let set = SetAttr { atime: at, mtime: at, ctime: Some(time), ..none() };
        let changed = setattr(fs, ino, set).unwrap();
        assert_eq!((changed.atime, changed.mtime, changed.ctime), (time, time, time));
    }
}

fn now_is_now(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    age(fs, ino);
    let set = SetAttr { atime: Some(SetTime::Now), ..none() };
    let changed = setattr(fs, ino, set).unwrap();
    assert!(changed.atime > OLD && changed.mtime == OLD);
    let set = SetAttr { mtime: Some(SetTime::Now), ..none() };
    assert!(setattr(fs, ino, set).unwrap().mtime > OLD);
}

fn new_inodes_are_young(fs: &dyn FileSystem) {
    let early = Timestamp(Timestamp::now().0 - 1_000_000_000);
    let mut inos = others(fs);
    inos.extend([file(fs, b"f"), dir(fs, b"d")]);
    inos.push(fs.tmpfile(&USER, fs.root(), 0o600, 0).unwrap().ino);
    let late = Timestamp(Timestamp::now().0 + 1_000_000_000);
    for ino in inos {
        let Attr { atime, mtime, ctime, btime, .. } = attr(fs, ino);
        for time in [atime, mtime, ctime, btime] {
            assert!(early <= time && time <= late, "{time:?}");
        }
    }
}

/// Ages `inos`, makes the call, and compares which of `mtime` and `ctime` are new.
#[track_caller]
fn check_times<T>(fs: &dyn FileSystem, inos: &[(Ino, (bool, bool))], call: impl FnOnce() -> T) {
    for &(ino, _) in inos {
        age(fs, ino);
    }
    call();
    for (i, &(ino, expected)) in inos.iter().enumerate() {
        assert_eq!(renewed(fs, ino), expected, "(mtime, ctime) of inode no. {i}");
    }
}

const BOTH: (bool, bool) = (true, true);
const CTIME: (bool, bool) = (false, true);
const NEITHER: (bool, bool) = (false, false);

fn content_changes_set_times(fs: &dyn FileSystem) {
    let f = file(fs, b"f");
    let all = [(f, BOTH), (fs.root(), NEITHER)];
    check_times(fs, &all, || fs.write(f, 0, b"abc").unwrap());
    check_times(fs, &all, || fs.write(f, 0, b"abc").unwrap());
    check_times(fs, &all, || fs.append(f, b"def").unwrap());
    check_times(fs, &all, || truncate(fs, f, 3).unwrap());
    check_times(fs, &all, || truncate(fs, f, 3).unwrap());
    check_times(fs, &all, || truncate(fs, f, 100_000).unwrap());
}

fn attribute_changes_set_ctime(fs: &dyn FileSystem) {
    for ino in [file(fs, b"f"), dir(fs, b"d")] {
        let all = [(ino, CTIME), (fs.root(), NEITHER)];
        check_times(fs, &all, || chmod(fs, ino, 0o600));
        check_times(fs, &all, || setattr(fs, ino, SetAttr { uid: Some(7), ..none() }).unwrap());
        check_times(fs, &all, || fs.setxattr(ino, b"user.a", b"v", SetXattr::Any).unwrap());
        check_times(fs, &all, || fs.removexattr(ino, b"user.a").unwrap());
    }
}

fn name_changes_set_times(fs: &dyn FileSystem) {
    let root = fs.root();
    let f = file(fs, b"f");
    check_times(fs, &[(root, BOTH), (f, NEITHER)], || file(fs, b"g"));
    check_times(fs, &[(root, BOTH)], || dir(fs, b"d"));
    check_times(fs, &[(root, BOTH), (f, CTIME)], || fs.link(f, root, b"h").unwrap());
    check_times(fs, &[(root, NEITHER)], || fs.tmpfile(&Caller::ROOT, root, 0o600, 0).unwrap());
    check_times(fs, &[(root, NEITHER), (f, NEITHER)], || {
        fs.lookup(root, b"f").unwrap();
        super::names(fs, root);
    });
}

fn renames_set_times(fs: &dyn FileSystem) {
    let root = fs.root();
    let (x, y) = (dir(fs, b"x"), dir(fs, b"y"));
    let f = make(fs, x, b"f", NewKind::File);
    let old = make(fs, y, b"g", NewKind::File);
    let all = [(root, NEITHER), (x, BOTH), (y, BOTH), (f, CTIME), (old, CTIME)];
    check_times(fs, &all, || fs.rename((x, b"f"), (y, b"g"), RenameFlags::empty()).unwrap());
    let other = make(fs, x, b"h", NewKind::File);
    let all = [(root, NEITHER), (x, BOTH), (y, BOTH), (f, CTIME), (other, CTIME)];
    check_times(fs, &all, || fs.rename((x, b"h"), (y, b"g"), RenameFlags::EXCHANGE).unwrap());
    let all = [(root, BOTH), (x, CTIME), (y, NEITHER), (f, NEITHER)];
    check_times(fs, &all, || fs.rename((root, b"x"), (root, b"z"), RenameFlags::empty()).unwrap());
}

fn removals_set_times(fs: &dyn FileSystem) {
    let root = fs.root();
    let f = file(fs, b"f");
    fs.link(f, root, b"g").unwrap();
    check_times(fs, &[(root, BOTH), (f, CTIME)], || fs.unlink(root, b"f").unwrap());
    check_times(fs, &[(root, BOTH), (f, CTIME)], || fs.unlink(root, b"g").unwrap());
    dir(fs, b"d");
    check_times(fs, &[(root, BOTH)], || fs.rmdir(root, b"d").unwrap());
}

fn failures_set_no_times(fs: &dyn FileSystem) {
    let root = fs.root();
    let f = file(fs, b"f");
    let d = dir(fs, b"d");
    let all = [(root, NEITHER), (f, NEITHER), (d, NEITHER)];
    check_times(fs, &all, || {
        fails(fs.unlink(root, b"d"), Errno::ISDIR);
        fails(fs.rmdir(root, b"f"), Errno::NOTDIR);
        fails(fs.link(f, root, b"d"), Errno::EXIST);
        fails(fs.rename((root, b"f"), (root, b"d"), RenameFlags::empty()), Errno::ISDIR);
        fails(fs.write(f, u64::MAX, b"x"), Errno::FBIG);
        fails(fs.removexattr(f, b"user.none"), Errno::NODATA);
        fails(fs.setxattr(f, b"user.none", b"", SetXattr::Replace), Errno::NODATA);
    });
}

fn privileges_are_dropped(fs: &dyn FileSystem) {
    for ino in [file(fs, b"f"), make(fs, fs.root(), b"p", NewKind::Fifo)] {
        for (before, after) in
            [(0o6755, 0o755), (0o6745, 0o2745), (0o4600, 0o600), (0o1777, 0o1777)]
        {
            chmod(fs, ino, before);
            fs.drop_privileges(ino).unwrap();
            assert_eq!(attr(fs, ino).perm, after, "from {before:o}");
        }
        age(fs, ino);
        fs.drop_privileges(ino).unwrap();
        assert_eq!(renewed(fs, ino), NEITHER);
    }
}

fn privileges_of_directories_stay(fs: &dyn FileSystem) {
    let ino = dir(fs, b"d");
    chmod(fs, ino, 0o7777);
    fs.drop_privileges(ino).unwrap();
    assert_eq!(attr(fs, ino).perm, 0o7777);
}

fn capabilities_are_dropped(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    let set = || fs.setxattr(ino, CAPABILITY, b"caps", SetXattr::Any).unwrap();
    set();
    fs.setxattr(ino, b"security.selinux", b"stays", SetXattr::Any).unwrap();
    fs.drop_privileges(ino).unwrap();
    fails(fs.getxattr(ino, CAPABILITY), Errno::NODATA);
    set();
    setattr(fs, ino, SetAttr { gid: Some(9), ..none() }).unwrap();
    fails(fs.getxattr(ino, CAPABILITY), Errno::NODATA);
    set();
    chmod(fs, ino, 0o755);
    let later = SetTime::At(Timestamp(5));
    setattr(fs, ino, SetAttr { atime: Some(later), mtime: Some(later), ..none() }).unwrap();
    assert_eq!(fs.getxattr(ino, CAPABILITY).unwrap(), b"caps");
    assert_eq!(fs.getxattr(ino, b"security.selinux").unwrap(), b"stays");
}

/// Checks vfs-C5 for every call that changes content, with other attributes and without.
fn changes_of_content_drop_capabilities(fs: &dyn FileSystem) {
    let source = file(fs, b"source");
    fs.write(source, 0, &[1; 5000]).unwrap();
    let resize = |ino, size| setattr(fs, ino, SetAttr { size: Some(size), ..none() }).map(drop);
    let shift = |ino, mode| fs.fallocate(ino, mode, 4096, 4096);
    type Change<'a> = (&'a str, &'a dyn Fn(Ino) -> Result<()>);
    let changes: [Change<'_>; 16] = [
        ("write of a word", &|ino| fs.write(ino, 0, b"x")),
        ("write within a line", &|ino| fs.write(ino, 60, &[2; 4])),
        ("write within a block", &|ino| fs.write(ino, 10, &[2; 200])),
        ("write across the end", &|ino| fs.write(ino, 19_990, &[2; 200])),
        ("write beyond the end", &|ino| fs.write(ino, 90_000, b"x")),
        ("append", &|ino| fs.append(ino, b"x").map(drop)),
        ("truncation", &|ino| resize(ino, 100)),
        ("growth", &|ino| resize(ino, 50_000)),
        ("truncation to the same size", &|ino| resize(ino, 20_000)),
        ("allocation", &|ino| {
            fs.fallocate(ino, Fallocate::Allocate { keep_size: false }, 0, 30_000)
        }),
        ("allocation of what is there", &|ino| {
            fs.fallocate(ino, Fallocate::Allocate { keep_size: true }, 0, 100)
        }),
        ("hole", &|ino| fs.fallocate(ino, Fallocate::PunchHole, 0, 4096)),
        ("zeros", &|ino| fs.fallocate(ino, Fallocate::ZeroRange { keep_size: true }, 5, 9000)),
        ("collapse", &|ino| shift(ino, Fallocate::Collapse)),
        ("insertion", &|ino| shift(ino, Fallocate::Insert)),
        ("copy", &|ino| fs.copy_range((source, 0), (ino, 100), 5000).map(drop)),
    ];
    for (i, (what, change)) in changes.iter().enumerate() {
        for other in [false, true] {
            let ino = file(fs, format!("{i} {other}").as_bytes());
            fs.write(ino, 0, &[3; 20_000]).unwrap();
            if other {
                fs.setxattr(ino, b"user.other", b"stays", SetXattr::Any).unwrap();
            }
            for _ in 0..2 {
                fs.setxattr(ino, CAPABILITY, b"caps", SetXattr::Any).unwrap();
                change(ino).unwrap_or_else(|e| panic!("{what}: {e}"));
                fails(fs.getxattr(ino, CAPABILITY), Errno::NODATA);
            }
            assert_eq!(fs.listxattr(ino).unwrap().len(), usize::from(other), "{what}");
        }
    }
    assert_eq!(attr(fs, source).size, 5000);
}

/// Calls that fail, and calls that change nothing, leave capabilities.
fn capabilities_stay_where_nothing_changes(fs: &dyn FileSystem) {
    let ino = file(fs, b"f");
    fs.write(ino, 0, &[1; 9000]).unwrap();
    fs.setxattr(ino, CAPABILITY, b"caps", SetXattr::Any).unwrap();
    fs.write(ino, 0, b"").unwrap();
    fs.append(ino, b"").unwrap();
    assert_eq!(fs.copy_range((ino, 9000), (ino, 0), 10).unwrap(), 0);
    fails(fs.write(ino, u64::MAX, b"x"), Errno::FBIG);
    fails(setattr(fs, ino, SetAttr { size: Some(u64::MAX), ..none() }), Errno::FBIG);
    fails(fs.fallocate(ino, Fallocate::PunchHole, 0, 0), Errno::INVAL);
    fails(fs.fallocate(ino, Fallocate::Collapse, 1, 4096), Errno::INVAL);
    fails(fs.fallocate(ino, Fallocate::Insert, 12_288, 4096), Errno::INVAL);
    fails(fs.copy_range((ino, 0), (ino, 10), 100), Errno::INVAL);
    assert_eq!(fs.getxattr(ino, CAPABILITY).unwrap(), b"caps");
}

fn sizes_of_other_kinds_are_refused(fs: &dyn FileSystem) {
    let d = dir(fs, b"d");
    let set = SetAttr { size: Some(0), perm: Some(0o700), ..none() };
    fails(setattr(fs, d, set), Errno::ISDIR);
    assert_eq!(attr(fs, d).perm, 0o755);
    for ino in others(fs) {
        fails(truncate(fs, ino, 0), Errno::INVAL);
    }
}
