//! Tests of the promises of a kernel directory beyond the contract: identities, owners, durability,
//! descriptors.

use crate::common::{
    Disk, KINDS, descriptors, directory, file, node, open, open_with_long_handles,
    open_without_handles, room,
};
use backing::{Backing as _, DirFs, DirOptions};
use rng::Rng;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use vfs::acl::ACL_DEFAULT;
use vfs::{Caller, Errno, FileKind, FileSystem as _, NewKind, NewNode, ROOT, RenameFlags};
use vfs::{SetAttr, SetTime, SetXattr, Timestamp};

const USER: Caller = Caller { uid: 1000, gid: 100 };
/// `CAP_NET_RAW`, permitted and effective, as the kernel stores it (`vfs_cap_data`).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Runs a test with each way to hold inodes: by handles, by handles that are too long for
/// identities, and by descriptors.
fn each_way(dir: &Path, test: impl Fn(&dyn Fn() -> DirFs)) {
    for open in [open, open_with_long_handles, open_without_handles] {
        test(&|| open(dir));
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap()
            } else {
                fs::remove_file(path).unwrap()
            }
        }
    }
}

#[test]
fn an_identity_stays_whatever_the_names() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        each_way(&path, |open| {
            let fs = open();
            let (a, d) = (file(&fs, ROOT, b"a"), directory(&fs, ROOT, b"d"));
            let identity = fs.identity(a).unwrap();
            assert!(identity.0.len() <= backing::Identity::LEN_MAX);
            assert_ne!(identity, fs.identity(d).unwrap());
            fs.rename((ROOT, b"a"), (d, b"b"), RenameFlags::empty()).unwrap();
            assert_eq!(fs.lookup(d, b"b").unwrap().ino, a);
            fs.link(a, ROOT, b"c").unwrap();
            fs.unlink(d, b"b").unwrap();
            assert_eq!(fs.identity(a).unwrap(), identity);
            assert_eq!(fs.find(&identity).unwrap().ino, a, "while it is known");
            let dir_identity = fs.identity(d).unwrap();
            drop(fs);

            // After a restart.
            fs::write(path.join("other"), b"").unwrap();
            let fs = open();
            let found = fs.find(&identity).unwrap();
            assert_eq!(found.ino, fs.lookup(ROOT, b"c").unwrap().ino, "on {kind}");
            assert_eq!(found.nlink, 1);
            assert_eq!(fs.find(&dir_identity).unwrap().kind, FileKind::Dir);
            let root = fs.identity(ROOT).unwrap();
            assert_eq!(fs.find(&root).unwrap().ino, ROOT);
        });
    }
}

#[test]
fn a_new_life_of_a_number_is_another_identity() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        each_way(&path, |open| {
            let fs = open();
            let (mut numbers, mut identities) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                let ino = file(&fs, ROOT, b"a");
                numbers.push(fs::metadata(path.join("a")).unwrap().ino());
                identities.push(fs.identity(ino).unwrap());
                fs.unlink(ROOT, b"a").unwrap();
                fs.forget(ino, 1);
            }
            numbers.sort_unstable();
            numbers.dedup();
            if kind == "ext4" {
                assert!(numbers.len() < 40, "no number was used again");
            }
            let last = identities[39].clone();
            identities.sort_unstable();
            identities.dedup();
            assert_eq!(identities.len(), 40, "on {kind}");
            assert_eq!(fs.find(&last), Err(Errno::STALE));
            file(&fs, ROOT, b"a");
            assert_eq!(fs.find(&last), Err(Errno::STALE), "on {kind}");
        });
    }
}

/// Tests that an inode number which other processes reuse for a new file does not lead to the
/// removed one.
#[test]
fn what_others_replace_is_another_inode() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    let old = file(&fs, ROOT, b"a");
    fs.write(old, 0, b"old").unwrap();
    // Now only a handle holds the file.
    drop(fs);
    let fs = DirFs::open(
        &path,
        DirOptions { inodes_open: 1, contents_open: 1, ..DirOptions::default() },
    )
    .unwrap();
    let old = fs.lookup(ROOT, b"a").unwrap();
    file(&fs, ROOT, b"other");
    let mut is_reused = false;
    for _ in 0..200 {
        fs::remove_file(path.join("a")).unwrap();
        fs::write(path.join("a"), b"new").unwrap();
        if fs::metadata(path.join("a")).unwrap().ino() == old.ino.0 {
            is_reused = true;
            break;
        }
    }
    assert!(is_reused, "the number was not used again");
    let new = fs.lookup(ROOT, b"a").unwrap();
    assert_ne!(new.ino, old.ino);
    assert_eq!(fs.getattr(old.ino), Err(Errno::STALE));
    assert_eq!(fs.getattr(new.ino).unwrap().size, 3);
}

/// Tests that a directory which may not be listed gives an error: the file may be in it.
#[test]
fn an_error_is_not_absence() {
    let disk = Disk::new("tmpfs");
    let path = disk.dir("d");
    let fs = open_without_handles(&path);
    assert_eq!(fs.find(&backing::Identity(vec![7; 200])), Err(Errno::INVAL));
    let gone = file(&fs, ROOT, b"gone");
    let identity = fs.identity(gone).unwrap();
    fs.unlink(ROOT, b"gone").unwrap();
    fs.forget(gone, 1);
    let private = fs.create(&USER, ROOT, b"private", &node(NewKind::Dir, 0o700)).unwrap().ino;
    assert_eq!(fs.find(&identity), Err(Errno::STALE));
    let find = || {
        let mut capabilities = capabilities(None).unwrap();
        capabilities.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, capabilities).unwrap();
        assert_eq!(fs.find(&identity), Err(Errno::ACCESS));
        assert_eq!(fs.readdir(private, 0, &mut |_| true), Err(Errno::ACCESS));
    };
    std::thread::scope(|scope| scope.spawn(find).join().unwrap());
}

#[test]
fn what_is_unlinked_lives_while_it_is_referenced() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let few = DirOptions { inodes_open: 1, contents_open: 1, ..DirOptions::default() };
        let fs = DirFs::open(&disk.dir("d"), few).unwrap();
        let mut held = Vec::new();
        for i in 0..20_u8 {
            let ino = file(&fs, ROOT, &[b'a' + i]);
            fs.write(ino, 0, &[i; 10]).unwrap();
            held.push(ino);
        }
        let over = file(&fs, ROOT, b"over");
        for (i, ino) in held.iter().enumerate() {
            let name = [b'a' + i as u8];
            match i % 3 {
                0 => fs.unlink(ROOT, &name).unwrap(),
                1 => {
                    fs.link(over, ROOT, b"other").unwrap();
                    fs.forget(over, 1);
                    fs.rename((ROOT, b"other"), (ROOT, &name), RenameFlags::empty()).unwrap();
                }
                _ => {
                    fs.link(*ino, ROOT, b"second").unwrap();
                    fs.forget(*ino, 1);
                    fs.unlink(ROOT, &name).unwrap();
                    fs.unlink(ROOT, b"second").unwrap();
                }
            }
            fs.sync().unwrap();
        }
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        for (i, ino) in held.iter().enumerate() {
            let mut buf = [0; 10];
            assert_eq!(fs.getattr(*ino).unwrap().nlink, 0);
            assert_eq!(fs.read(*ino, 0, &mut buf), Ok(10), "on {kind}");
            assert_eq!(buf, [i as u8; 10]);
            let identity = fs.identity(*ino).unwrap();
            assert_eq!(fs.find(&identity).map(|entry| entry.ino), Ok(*ino), "while it lives");
            fs.forget(*ino, 2);
            assert_eq!(fs.getattr(*ino), Err(Errno::STALE));
            assert_eq!(fs.find(&identity), Err(Errno::STALE));
        }
    }
}

#[test]
fn what_others_create_is_theirs() {
    for kind in KINDS {
        let disk = Disk::new(kind);
        let path = disk.dir("d");
        let fs = open(&path);
        let masked = |kind| NewNode { kind, mode: 0o777, umask: 0o027 };
        let owner = |path: &str| {
            let meta = fs::symlink_metadata(disk.path().join("d").join(path)).unwrap();
            (meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777)
        };
        fs.create(&USER, ROOT, b"f", &masked(NewKind::File)).unwrap();
        fs.create(&USER, ROOT, b"d", &masked(NewKind::Dir)).unwrap();
        fs.create(&USER, ROOT, b"p", &masked(NewKind::Fifo)).unwrap();
        fs.create(&USER, ROOT, b"c", &masked(NewKind::Char(0x103))).unwrap();
        fs.create(&USER, ROOT, b"l", &masked(NewKind::Symlink(b"t"))).unwrap();
        for name in ["f", "d", "p", "c"] {
            assert_eq!(owner(name), (1000, 100, 0o750), "{name} on {kind}");
        }
        assert_eq!(owner("l"), (1000, 100, 0o777));
        let nameless = fs.tmpfile(&USER, ROOT, 0o666, 0o077).unwrap();
        assert_eq!((nameless.uid, nameless.gid, nameless.perm), (1000, 100, 0o600));
        fs.link(nameless.ino, ROOT, b"named").unwrap();

        // The thread has its own IDs again, also in a directory that only the superuser may change.
        fs.create(&Caller::ROOT, ROOT, b"mine", &node(NewKind::File, 0o666)).unwrap();
        assert_eq!(owner("mine"), (0, 0, 0o666));
        let private = directory(&fs, ROOT, b"private");
        let set = SetAttr { perm: Some(0o2700), gid: Some(7), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, private, &set).unwrap();
        fs.create(&USER, private, b"f", &masked(NewKind::File)).unwrap();
        fs.create(&USER, private, b"d", &masked(NewKind::Dir)).unwrap();
        assert_eq!(owner("private/f"), (1000, 7, 0o750), "the group of the directory");
        assert_eq!(owner("private/d"), (1000, 7, 0o2750));

        // A default ACL replaces the umask.
        let acl: Vec<u8> = [
            [2, 0, 0, 0].as_slice(),
            &[1, 0, 7, 0, 255, 255, 255, 255],
            &[4, 0, 6, 0, 255, 255, 255, 255],
            &[32, 0, 5, 0, 255, 255, 255, 255],
        ]
        .concat();
        fs.setxattr(private, ACL_DEFAULT, &acl, SetXattr::Any).unwrap();
        fs.create(&USER, private, b"g", &masked(NewKind::File)).unwrap();
        assert_eq!(owner("private/g"), (1000, 7, 0o765), "on {kind}");
        assert_eq!(
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022)).bits() & 0o777,
            0o022
        );
    }
}

#[test]
fn two_on_one_directory_are_refused() {
    let disk = Disk::new("tmpfs");
    let path = disk.dir("d");
    let first = open(&path);
    let refused = DirFs::open(&path, DirOptions::default()).err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
    assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
    assert_eq!(first.dir(), path);
    drop(first);
    open(&path);
    let missing = DirFs::open(&path.join("missing"), DirOptions::default()).err().unwrap();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}

/// Tests that a mount over the directory changes nothing: calls reach the directory that was
/// opened.
#[test]
fn what_is_mounted_over_it_hides_nothing() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    let d = directory(&fs, ROOT, b"d");
    let over = disk.mount_over("d");
    let f = file(&fs, d, b"f");
    let identity = fs.identity(f).unwrap();
    fs.forget(f, 1);
    assert_eq!(fs.find(&identity).unwrap().ino, f);
    assert_eq!(fs.lookup(d, b"..").unwrap().ino, ROOT);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    drop(over);
    assert_eq!(fs::read_dir(path.join("d")).unwrap().count(), 1);
}

#[test]
fn nobody_gets_out() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    let (d, e) = (directory(&fs, ROOT, b"d"), directory(&fs, ROOT, b"e"));
    fs.create(&Caller::ROOT, ROOT, b"link", &node(NewKind::Symlink(b".."), 0o777)).unwrap();
    let link = fs.lookup(ROOT, b"link").unwrap();
    assert_eq!(link.kind, FileKind::Symlink);
    assert_eq!(fs.lookup(link.ino, b"d"), Err(Errno::NOTDIR));
    assert_eq!(fs.lookup(ROOT, b"..").unwrap().ino, ROOT);
    assert_eq!(fs.lookup(ROOT, b"d/../.."), Err(Errno::INVAL));
    let identity = fs.identity(d).unwrap();
    fs::rename(path.join("d"), disk.path().join("outside")).unwrap();
    assert_eq!(fs.lookup(d, b".."), Err(Errno::STALE));
    assert_eq!(fs.find(&identity), Err(Errno::STALE));
    assert_eq!(fs.lookup(e, b"..").unwrap().ino, ROOT);
}

/// dirfs-B7: blocks that ext4 reserves for the superuser stay free when a user fills the rest.
#[test]
fn blocks_of_the_superuser_are_not_for_users() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    let before = capabilities(None).unwrap().effective;
    let space = || rustix::fs::statvfs(&path).unwrap();
    let reserved = space().f_bfree - space().f_bavail;
    assert!(reserved > 1000, "the file system keeps some");
    let made = fs.create(&USER, ROOT, b"f", &node(NewKind::File, 0o600)).unwrap().ino;
    let mut at = 0;
    while fs.write(made, at, &vec![1; 1 << 20]).is_ok() {
        at += 1 << 20;
    }
    let keep = vfs::Fallocate::Allocate { keep_size: true };
    assert_eq!(fs.fallocate(made, keep, at, 1 << 20), Err(Errno::NOSPC));
    while fs.append(made, &[1; 4096]).is_ok() {}
    let left = space();
    assert_eq!((left.f_bfree >= reserved, left.f_bavail), (true, 0), "{}", left.f_bfree);
    // The superuser gets them: by direct access, and for files that are created for it.
    fs::write(path.join("root"), [1; 4096]).unwrap();
    assert!(fs.create(&Caller::ROOT, ROOT, b"e", &node(NewKind::Dir, 0o755)).is_ok());
    assert_eq!(capabilities(None).unwrap().effective, before);
}

/// Tests that immutable and append-only files are so for the superuser, too.
#[test]
fn frozen_files_are_kept_to() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let fs = open(&path);
    let f = file(&fs, ROOT, b"f");
    fs.write(f, 0, b"old").unwrap();
    let chattr = |how: &str| {
        let done = std::process::Command::new("chattr").arg(how).arg(path.join("f")).status();
        assert!(done.unwrap().success());
    };
    chattr("+i");
    drop(fs);
    let fs = open(&path);
    let f = fs.lookup(ROOT, b"f").unwrap().ino;
    assert_eq!(fs.write(f, 0, b"new"), Err(Errno::PERM));
    chattr("-i");
    chattr("+a");
    assert_eq!(fs.write(f, 0, b"new"), Err(Errno::PERM));
    fs.write(f, 3, b"er").unwrap();
    fs.append(f, b"!").unwrap();
    chattr("-a");
    assert_eq!(fs::read(path.join("f")).unwrap(), b"older!");
}

/// Tests that only inodes with a name in the directory are found and used, although a record may
/// name any inode of the file system.
#[test]
fn identities_lead_to_nothing_outside() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let outside = disk.path().join("outside");
    each_way(&path, |open| {
        for name in ["secret", "mine"] {
            fs::write(disk.path().join(name), "root's own").unwrap();
        }
        // The author of a record can know any identity: they are not secret.
        let identity_of = |name: &str| {
            fs::rename(disk.path().join(name), path.join(name)).unwrap();
            let fs = open();
            let found = fs.lookup(ROOT, name.as_bytes()).unwrap();
            (fs.identity(found.ino).unwrap(), found.ino)
        };
        let (secret, _) = identity_of("secret");
        let (mine, _) = identity_of("mine");
        fs::rename(path.join("secret"), disk.path().join("secret")).unwrap();
        let fs = open();
        std::os::unix::fs::symlink("..", path.join("link")).unwrap();
        assert_eq!(fs.find(&secret), Err(Errno::STALE));
        fs::remove_file(path.join("link")).unwrap();
        drop(fs);

        let fs = open();
        let found = fs.find(&mine).unwrap().ino;
        fs.write(found, 0, b"1").unwrap();
        // Other processes move it: within the directory, out of it, and back.
        fs::create_dir(path.join("e")).unwrap();
        fs::rename(path.join("mine"), path.join("e/f")).unwrap();
        fs.write(found, 0, b"2").unwrap();
        fs::rename(path.join("e"), &outside).unwrap();
        assert_eq!(fs.write(found, 0, b"3"), Err(Errno::STALE));
        assert_eq!(fs.getattr(found), Err(Errno::STALE));
        assert_eq!(fs.setattr(&Caller::ROOT, found, &SetAttr::default()), Err(Errno::STALE));
        fs::rename(&outside, path.join("e")).unwrap();
        fs.write(found, 0, b"4").unwrap();
        // A hard link within the directory suffices.
        fs::hard_link(path.join("e/f"), &outside).unwrap();
        fs::rename(path.join("e/f"), path.join("g")).unwrap();
        fs.write(found, 0, b"5").unwrap();
        fs::remove_file(path.join("g")).unwrap();
        assert_eq!(fs.write(found, 0, b"6"), Err(Errno::STALE));
        assert_eq!(fs::read(&outside).unwrap(), b"5oot's own");
        // A file that lost its last name while it is referenced can still be used.
        fs::hard_link(&outside, path.join("g")).unwrap();
        fs::remove_file(&outside).unwrap();
        assert_eq!(fs.lookup(ROOT, b"g").unwrap().ino, found);
        fs.unlink(ROOT, b"g").unwrap();
        fs.write(found, 0, b"7").unwrap();
        assert_eq!(fs::read_to_string(disk.path().join("secret")).unwrap(), "root's own");
    });
}

#[test]
fn capabilities_and_privileges_go() {
    const NAME: &[u8] = b"security.capability";
    for kind in KINDS {
        let disk = Disk::new(kind);
        let fs = open(&disk.dir("d"));
        let (a, b) = (file(&fs, ROOT, b"a"), file(&fs, ROOT, b"b"));
        fs.write(a, 0, &[1; 8192]).unwrap();
        fs.write(b, 0, &[1; 8192]).unwrap();
        let loses = |what: &str, change: &dyn Fn()| {
            fs.setxattr(a, NAME, &CAPABILITY, SetXattr::Any).unwrap();
            change();
            assert_eq!(fs.getxattr(a, NAME), Err(Errno::NODATA), "{what} on {kind}");
        };
        let set = |set: SetAttr| fs.setattr(&Caller::ROOT, a, &set).map(drop).unwrap();
        loses("write", &|| fs.write(a, 0, b"x").unwrap());
        loses("append", &|| fs.append(a, b"x").map(drop).unwrap());
        loses("truncate", &|| set(SetAttr { size: Some(8192), ..SetAttr::default() }));
        loses("chown", &|| set(SetAttr { uid: Some(0), ..SetAttr::default() }));
        let keep_size = vfs::Fallocate::Allocate { keep_size: true };
        loses("fallocate", &|| fs.fallocate(a, keep_size, 0, 4096).unwrap());
        loses("copy", &|| assert_eq!(fs.copy_range((b, 0), (a, 0), 10), Ok(10)));
        loses("drop", &|| fs.drop_privileges(a).unwrap());
        set(SetAttr { perm: Some(0o6755), ..SetAttr::default() });
        fs.drop_privileges(a).unwrap();
        assert_eq!(fs.getattr(a).unwrap().perm, 0o755);
        let then = SetTime::At(Timestamp(1_000_000_000_000_000_000));
        let times = SetAttr { atime: Some(then), mtime: Some(then), ..SetAttr::default() };
        set(times);
        fs.read(a, 0, &mut [0; 10]).unwrap();
        assert_eq!(
            fs.getattr(a).unwrap().atime.0,
            1_000_000_000_000_000_000,
            "reading leaves no trace"
        );
        assert_eq!(fs.getattr(a).unwrap().mtime.0, 1_000_000_000_000_000_000);
    }
}

/// Tests that space can be reserved without a change of size, and that a call that finds no space
/// leaves the size as it was.
#[test]
fn space_is_reserved() {
    for kind in ["ext4", "xfs", "tmpfs"] {
        let disk = Disk::new(kind);
        let fs = open(&disk.dir("d"));
        let (a, b) = (file(&fs, ROOT, b"a"), file(&fs, ROOT, b"b"));
        fs.write(b, 0, b"begin").unwrap();
        let keep_size = vfs::Fallocate::Allocate { keep_size: true };
        let before = room(&fs);
        fs.fallocate(a, keep_size, 0, 64 << 20).unwrap();
        let reserved = before - room(&fs);
        assert!((64 << 20..80 << 20).contains(&reserved), "{reserved} bytes on {kind}");
        assert_eq!(fs.getattr(a).unwrap().size, 0);
        let mut at = 64 << 20;
        while fs.fallocate(a, keep_size, at, 1 << 20).is_ok() {
            at += 1 << 20;
        }
        let data = vec![7; 32 << 20];
        assert_eq!(fs.append(b, &data), Err(Errno::NOSPC), "on {kind}");
        assert_eq!(fs.write(b, 1 << 20, &data), Err(Errno::NOSPC), "on {kind}");
        assert_eq!(fs.getattr(b).unwrap().size, 5);
        // The reserved space can be written.
        fs.write(a, 0, &data).unwrap();
        fs.fsync(a).unwrap();
        assert_eq!(fs.copy_range((a, 0), (b, 5), 32 << 20), Err(Errno::NOSPC), "on {kind}");
        assert_eq!(fs.getattr(b).unwrap().size, 5);
    }
}

/// Tests a crash after a sync: a copy of the disk is the state after the crash.
#[test]
fn what_was_synced_survives() {
    for kind in ["ext4", "xfs", "btrfs"] {
        let disk = Disk::new(kind);
        let fs = open(&disk.dir("d"));
        disk.sync();
        let d = directory(&fs, ROOT, b"d");
        let e = directory(&fs, d, b"e");
        let f = file(&fs, e, b"f");
        fs.write(f, 0, b"content").unwrap();
        fs.rename((e, b"f"), (ROOT, b"g"), RenameFlags::empty()).unwrap();
        fs.link(f, e, b"h").unwrap();
        fs.forget(e, 1);
        fs.fsync(f).unwrap();
        let link = fs.create(&USER, ROOT, b"l", &node(NewKind::Symlink(b"t"), 0o777)).unwrap().ino;
        fs.sync_metadata(link).unwrap();
        let k = file(&fs, d, b"k");
        fs.setattr(&Caller::ROOT, k, &SetAttr { perm: Some(0o640), ..SetAttr::default() }).unwrap();
        fs.setxattr(k, b"user.x", b"1", SetXattr::Any).unwrap();
        fs.sync_metadata(k).unwrap();
        fs.sync_metadata(k).unwrap();
        let after = disk.after_crash(fs);
        let path = after.path().join("d");
        assert_eq!(fs::read(path.join("g")).unwrap(), b"content", "on {kind}");
        assert_eq!(fs::read(path.join("d/e/h")).unwrap(), b"content", "on {kind}");
        assert!(!path.join("d/e/f").exists());
        assert_eq!(fs::read_link(path.join("l")).unwrap(), Path::new("t"), "on {kind}");
        assert_eq!(fs::symlink_metadata(path.join("l")).unwrap().uid(), 1000);
        assert_eq!(fs::metadata(path.join("d/k")).unwrap().permissions().mode() & 0o777, 0o640);
        let fs = open(&path);
        let d = fs.lookup(ROOT, b"d").unwrap().ino;
        let k = fs.lookup(d, b"k").unwrap().ino;
        assert_eq!(fs.getxattr(k, b"user.x").unwrap(), b"1", "on {kind}");
    }
}

/// Tests that nodes are kept only while they have changes that are not durable. Too many changes
/// are replaced by a sync of everything.
#[test]
fn changes_are_remembered_until_they_are_durable() {
    let disk = Disk::new("tmpfs");
    let fs = open(&disk.dir("d"));
    for i in 0..20 {
        let ino = file(&fs, ROOT, format!("f{i}").as_bytes());
        fs.forget(ino, 1);
    }
    assert_eq!(fs.nodes_held(), 21);
    let first = fs.lookup(ROOT, b"f0").unwrap().ino;
    fs.fsync(first).unwrap();
    fs.forget(first, 1);
    assert_eq!(fs.nodes_held(), 20);
    fs.sync().unwrap();
    assert_eq!(fs.nodes_held(), 1);
    for i in 0..40_000 {
        let ino = file(&fs, ROOT, format!("g{i}").as_bytes());
        fs.forget(ino, 1);
    }
    assert!(fs.nodes_held() < 20_000, "{} nodes", fs.nodes_held());
    let last = fs.lookup(ROOT, b"g39999").unwrap().ino;
    fs.sync_metadata(last).unwrap();
    fs.forget(last, 1);
    assert_eq!(fs.nodes_held(), 1);
}

#[test]
fn few_descriptors_hold_many_files() {
    let disk = Disk::new("ext4");
    let path = disk.dir("d");
    let none = descriptors();
    {
        let fs = open(&path);
        assert!(fs.opens_handles());
        let mut inos = Vec::new();
        for d in 0..100 {
            let d = directory(&fs, ROOT, format!("d{d}").as_bytes());
            inos.push(d);
            inos.extend((0..1000).map(|i| file(&fs, d, format!("f{i}").as_bytes())));
        }
        assert!(descriptors() < none + 1000, "{} descriptors", descriptors());
        for ino in &inos {
            assert_eq!(fs.getattr(*ino).unwrap().ino, *ino);
            fs.identity(*ino).unwrap();
        }
        for ino in inos.drain(..).skip(1) {
            fs.forget(ino, 1);
        }
        fs.sync().unwrap();
        assert_eq!(fs.nodes_held(), 2, "the root, and the directory that was kept");
        assert!(descriptors() <= none + 4, "{} descriptors", descriptors());
    }
    assert_eq!(descriptors(), none);
    {
        let fs = open_without_handles(&path);
        let d = fs.lookup(ROOT, b"d7").unwrap().ino;
        let inos: Vec<_> =
            (0..1000).map(|i| fs.lookup(d, format!("f{i}").as_bytes()).unwrap().ino).collect();
        assert!(descriptors() > none + 1000, "each has one");
        for ino in inos {
            fs.read(ino, 0, &mut [0; 1]).unwrap();
            fs.forget(ino, 1);
        }
        fs.forget(d, 1);
        assert!(descriptors() <= none + 4, "{} descriptors", descriptors());
        for i in 0..100 {
            let name = format!("d7/f{i}");
            let d = fs.lookup(ROOT, b"d7").unwrap().ino;
            assert_eq!(
                fs.create(&USER, d, &name.as_bytes()[3..], &node(NewKind::File, 0)),
                Err(Errno::EXIST)
            );
            assert_eq!(fs.lookup(d, b"missing"), Err(Errno::NOENT));
            fs.unlink(d, &name.as_bytes()[3..]).unwrap();
            fs.forget(d, 1);
        }
        fs.sync().unwrap();
        assert!(descriptors() <= none + 4, "{} descriptors", descriptors());
    }
    assert_eq!(descriptors(), none);
}

/// Tests threads that create, link, move and remove the same few files; in the end all nodes are
/// dropped.
#[test]
fn many_threads_at_once() {
    for options in [
        DirOptions { inodes_open: 1, contents_open: 1, ..DirOptions::default() },
        DirOptions { opens_handles: false, ..DirOptions::default() },
    ] {
        let disk = Disk::new("ext4");
        let fs = DirFs::open(&disk.dir("d"), options).unwrap();
        let dirs = [ROOT, directory(&fs, ROOT, b"x"), directory(&fs, ROOT, b"y")];
        std::thread::scope(|scope| {
            for seed in 1..5_u64 {
                let fs = &fs;
                scope.spawn(move || shuffle(fs, dirs, seed));
            }
        });
        fs.forget(dirs[1], 1);
        fs.forget(dirs[2], 1);
        vfs::tree::tree(&fs).unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.nodes_held(), 1);
    }
}

/// Makes 2,000 calls. An inode that a thread references stays usable, whatever the others do to its
/// names.
fn shuffle(fs: &DirFs, dirs: [vfs::Ino; 3], seed: u64) {
    let mut rng = Rng::new(seed);
    let mut below = |n| rng.below(n);
    let caller = Caller { uid: seed as u32, gid: seed as u32 };
    for _ in 0..2000 {
        let dir = dirs[below(3) as usize];
        let name = [b'a' + below(4) as u8];
        let other = (dirs[below(3) as usize], [b'a' + below(4) as u8]);
        let expected = |errno: Errno| {
            assert!(matches!(errno, Errno::EXIST | Errno::NOENT), "{errno}");
        };
        match below(5) {
            0 => match fs.create(&caller, dir, &name, &node(NewKind::File, 0o600)) {
                Ok(entry) => {
                    assert_eq!((entry.uid, entry.gid), (caller.uid, caller.gid));
                    let mine = seed.to_le_bytes();
                    fs.write(entry.ino, 0, &mine).unwrap();
                    let mut got = [0; 8];
                    assert_eq!(fs.read(entry.ino, 0, &mut got), Ok(8));
                    fs.getattr(entry.ino).unwrap();
                    fs.forget(entry.ino, 1);
                }
                Err(errno) => expected(errno),
            },
            1 => fs.unlink(dir, &name).unwrap_or_else(expected),
            2 => {
                fs.rename((dir, &name), (other.0, &other.1), RenameFlags::empty())
                    .unwrap_or_else(expected);
            }
            3 => match fs.lookup(dir, &name) {
                Ok(entry) => {
                    match fs.link(entry.ino, other.0, &other.1) {
                        Ok(linked) => {
                            assert_eq!(linked.ino, entry.ino);
                            fs.forget(linked.ino, 1);
                        }
                        Err(errno) => expected(errno),
                    }
                    assert_eq!(fs.getattr(entry.ino).unwrap().ino, entry.ino);
                    fs.forget(entry.ino, 1);
                }
                Err(errno) => expected(errno),
            },
            _ => fs.readdir(dir, 0, &mut |_| true).unwrap(),
        }
    }
}
