//! The semantics of files through the mount.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use crate::common::{PermissionsExt, Sandbox, as_nobody, on_each_engine, tool};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno;

on_each_engine!(
    ten_thousand_entries_are_listed_once,
    listings_follow_changes,
    rename_flags,
    access_control_lists,
    an_acl_by_a_stranger_to_the_group_clears_setgid,
    changes_by_others_clear_setuid,
    unlinked_files_live_while_open,
    direct_io,
    files_of_two_to_the_48,
    copies_within_the_mount,
    extended_attributes,
    special_files_links_and_times,
    names_up_to_255_bytes,
    a_full_pool_can_be_emptied,
    fallocate_has_what_statfs_promises,
);

fn open_rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn ten_thousand_entries_are_listed_once(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let dir = s.path("d");
    fs::create_dir(&dir).unwrap();
    let names: BTreeSet<String> = (0..10_000).map(|i| format!("entry-{i:x}")).collect();
    for name in &names {
        File::create(dir.join(name)).unwrap();
    }
    let list = || -> Vec<String> {
        let entries = fs::read_dir(&dir).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    for _ in 0..2 {
        let listed = list();
        assert_eq!(listed.len(), names.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names);
    }
    // Removing while listing: each remaining file is listed once, and all can be removed.
    let mut removed = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, names.len());
    assert_eq!(list(), [""; 0]);
    fs::remove_dir(&dir).unwrap();
}

fn listings_follow_changes(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let list = || fs::read_dir(&s.dir).unwrap().count();
    for i in 0..20 {
        assert_eq!(list(), i);
        File::create(s.path(&i.to_string())).unwrap();
    }
    fs::rename(s.path("3"), s.path("4")).unwrap();
    assert_eq!(list(), 19);
}

fn rename_flags(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    fs::write(s.path("a"), "a").unwrap();
    fs::create_dir(s.path("b")).unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, s.path("a"), CWD, s.path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert!(s.path("a").is_dir());
    assert_eq!(fs::read_to_string(s.path("b")).unwrap(), "a");
    fs::remove_file(s.path("b")).unwrap();
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(rename(both), Err(Errno::INVAL));
    rename(RenameFlags::NOREPLACE).unwrap();
    assert!(s.path("b").is_dir() && !s.path("a").exists());
    fs::create_dir(s.path("b/c")).unwrap();
    let below = fs::rename(s.path("b"), s.path("b/c/d")).unwrap_err();
    assert_eq!(below.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
}

fn access_control_lists(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let file = s.path("file");
    let name = file.to_str().unwrap();
    fs::write(&file, "secret").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let readable = || as_nobody(&format!("cat {name} 2>&1 || true"));
    assert!(readable().contains("Permission denied"));
    tool("setfacl", &["-m", "u:nobody:r", name]);
    assert_eq!(readable(), "secret");
    let acl = tool("getfacl", &["-cE", "--absolute-names", name]);
    assert_eq!(acl, "user::rw-\nuser:nobody:r--\ngroup::---\nmask::r--\nother::---\n\n");
    // The mode shows the mask, and chmod changes it.
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(readable().contains("Permission denied"));
    tool("setfacl", &["-b", name]);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    // A default ACL replaces the umask.
    let dir = s.path("dir");
    fs::create_dir(&dir).unwrap();
    tool("setfacl", &["-d", "-m", "u:daemon:rwx,g::rw,o::-", dir.to_str().unwrap()]);
    tool("sh", &["-c", &format!("umask 077 && echo > {}/new", dir.display())]);
    let acl = tool("getfacl", &["-cE", "--absolute-names", &format!("{}/new", dir.display())]);
    assert_eq!(acl, "user::rw-\nuser:daemon:rwx\ngroup::rw-\nmask::rw-\nother::---\n\n");
}

fn an_acl_by_a_stranger_to_the_group_clears_setgid(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let file = s.path("file");
    for (gid, kept) in [(1, false), (65534, true)] {
        fs::write(&file, "").unwrap();
        std::os::unix::fs::chown(&file, Some(65534), Some(gid)).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o2755)).unwrap();
        as_nobody(&format!("setfacl -m u:daemon:r {}", file.display()));
        let setgid = fs::metadata(&file).unwrap().mode() & 0o2000 != 0;
        assert_eq!(setgid, kept, "group {gid}");
    }
}

fn changes_by_others_clear_setuid(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let file = s.path("file");
    let mode = || fs::metadata(&file).unwrap().mode() & 0o7777;
    for change in [
        "echo x >> F",
        "truncate -s 3 F",
        ": > F",
        "fallocate -l 8192 F",
        "fallocate -p -o 0 -l 4096 F",
    ] {
        fs::write(&file, "content").unwrap();
        std::os::unix::fs::chown(&file, Some(0), Some(0)).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o6777)).unwrap();
        assert_eq!(mode(), 0o6777);
        as_nobody(&change.replace('F', file.to_str().unwrap()));
        assert_eq!(mode(), 0o777, "after `{change}`");
    }
    // Changes by root do not clear the bits, but a change of owner does.
    fs::set_permissions(&file, PermissionsExt::from_mode(0o6777)).unwrap();
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b"x").unwrap();
    assert_eq!(mode(), 0o6777);
    for to in [Some(1), None] {
        fs::set_permissions(&file, PermissionsExt::from_mode(0o6777)).unwrap();
        std::os::unix::fs::chown(&file, to, None).unwrap();
        assert_eq!(mode(), 0o777, "after a change of owner to {to:?}");
    }
    let fifo = s.path("fifo");
    tool("mkfifo", &[fifo.to_str().unwrap()]);
    fs::set_permissions(&fifo, PermissionsExt::from_mode(0o6777)).unwrap();
    std::os::unix::fs::chown(&fifo, None, None).unwrap();
    assert_eq!(fs::metadata(&fifo).unwrap().mode() & 0o7777, 0o777);
}

/// The kernel executes a program by the mode that it has cached, without asking the server.
#[test]
fn a_program_that_others_changed_is_not_executed_as_its_owner() {
    for options in [&[][..], &["-o", "ask_open"], &["-o", "no_cache"]] {
        let s = Sandbox::mounted(options);
        let program = s.path("id");
        let run = |change: &str| {
            let script = format!("{change}; F -u").replace('F', program.to_str().unwrap());
            as_nobody(&script)
        };
        for (acl, mode) in [(false, 0o4777), (true, 0o4755)] {
            for change in [
                "echo x >> F",
                "printf '\\177' | dd of=F conv=notrunc status=none",
                "dd if=F of=F bs=4096 count=1 iflag=direct oflag=direct conv=notrunc status=none",
                "fallocate -l 1M F",
            ] {
                let _ = fs::remove_file(&program);
                fs::copy("/usr/bin/id", &program).unwrap();
                fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
                if acl {
                    tool("setfacl", &["-m", "u:65534:rwx", program.to_str().unwrap()]);
                }
                assert_eq!(run("true").trim(), "0", "it is set-user-ID");
                assert_eq!(run(change).trim(), "65534", "{options:?}, after `{change}`");
            }
        }
        // A user without write permission cannot clear it either.
        fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        tool("setfacl", &["-b", program.to_str().unwrap()]);
        let chown = "python3 -c 'import os; os.chown(\"F\", -1, -1)' || true";
        assert_eq!(run(chown).trim(), "0", "{options:?}");
    }
}

#[test]
fn the_kernel_checks_permission() {
    let s = Sandbox::mounted(&[]);
    fs::set_permissions(&s.dir, PermissionsExt::from_mode(0o777)).unwrap();
    as_nobody(&format!("cd {} && umask 027 && mkdir d && echo secret > d/f", s.dir_str()));
    let meta = fs::metadata(s.path("d/f")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (65534, 65534, 0o640));
    let script = format!("cat {}/d/f", s.dir_str());
    let other = std::process::Command::new("setpriv")
        .args(["--reuid=1", "--regid=1", "--clear-groups", "sh", "-c", &script])
        .output()
        .unwrap();
    assert!(!other.status.success());
}

fn unlinked_files_live_while_open(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let mut file = open_rw(&s.path("file"));
    file.write_all(b"before").unwrap();
    fs::remove_file(s.path("file")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b" after").unwrap();
    file.rewind().unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "before after");
    let free = || s.stats()["space"]["blocks_free"].as_u64().unwrap();
    file.write_all(&vec![1; 1 << 20]).unwrap();
    let before = free();
    drop(file);
    crate::common::wait_until("its space is free", || free() >= before + 256);
}

fn direct_io(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let path = s.path("file");
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(&path)
        .unwrap();
    let cached = open_rw(&path);
    let page = |byte: u8| vec![byte; 8192];
    let mut seen = page(0);
    for byte in 1..20 {
        // Each descriptor sees writes through the other.
        direct.write_all_at(&page(byte), 4096).unwrap();
        cached.read_exact_at(&mut seen, 4096).unwrap();
        assert_eq!(seen, page(byte));
        cached.write_all_at(&page(byte + 100), 4096).unwrap();
        direct.read_exact_at(&mut seen, 4096).unwrap();
        assert_eq!(seen, page(byte + 100));
    }
    // Several writers of one file at once.
    std::thread::scope(|scope| {
        for writer in 0..8u8 {
            let direct = &direct;
            scope.spawn(move || {
                for i in 0..50 {
                    let at = (i * 8 + u64::from(writer)) * 8192;
                    direct.write_all_at(&vec![writer; 8192], at).unwrap();
                }
            });
        }
    });
    for block in 0..400u64 {
        cached.read_exact_at(&mut seen, block * 8192).unwrap();
        assert_eq!(seen, page((block % 8) as u8));
    }
}

/// Only on BPFS: SCMFS stores short holes as zeros.
#[test]
fn holes_and_preallocation() {
    const BLOCK: u64 = 4096;
    let s = Sandbox::mounted(&[]);
    let mut file = open_rw(&s.path("file"));
    file.write_all_at(&[1; 4096], 10 * BLOCK).unwrap();
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(10 * BLOCK));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(10 * BLOCK)), Ok(11 * BLOCK));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(11 * BLOCK)), Err(Errno::NXIO));
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 11 * BLOCK);

    let keep = FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, keep, 0, 100 * BLOCK).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!(meta.len(), 11 * BLOCK);
    // BPFS keeps no blocks beyond the end of a file (docs/SEMANTICS.md).
    assert!(meta.blocks() >= 11 * 8, "{}", meta.blocks());
    rustix::fs::fallocate(&file, keep | FallocateFlags::PUNCH_HOLE, 10 * BLOCK, BLOCK).unwrap();
    let mut seen = [9; 4096];
    file.read_exact_at(&mut seen, 10 * BLOCK).unwrap();
    assert_eq!(seen, [0; 4096]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 200 * BLOCK).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 200 * BLOCK);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 150 * BLOCK, 100 * BLOCK).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 250 * BLOCK);
    // FUSE in the kernel refuses these two.
    for shift in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(rustix::fs::fallocate(&file, shift, 0, BLOCK), Err(Errno::OPNOTSUPP));
    }
}

fn files_of_two_to_the_48(layout: &str) {
    const LAST: u64 = (1 << 48) - 1;
    let s = Sandbox::mounted_as(layout, &[]);
    let file = open_rw(&s.path("file"));
    file.write_all_at(b"x", LAST).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 48);
    assert!(file.metadata().unwrap().blocks() < 100);
    let mut seen = [0; 2];
    assert_eq!(file.read_at(&mut seen, LAST).unwrap(), 1);
    let too_far = file.write_at(b"x", LAST + 1).unwrap_err();
    assert_eq!(too_far.kind(), ErrorKind::FileTooLarge);
}

fn copies_within_the_mount(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let from = open_rw(&s.path("from"));
    let content: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    from.write_all_at(&content, 0).unwrap();
    let to = open_rw(&s.path("to"));
    let before = s.requests("copy_file_range");
    let (mut off_in, mut off_out) = (5, 100);
    while off_in < 300_000 {
        let left = 300_000 - off_in as usize;
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut off_in), &to, Some(&mut off_out), left);
        assert!(copied.unwrap() > 0);
    }
    assert!(s.requests("copy_file_range") > before, "the server copies");
    let mut seen = vec![0; 300_000 - 5];
    to.read_exact_at(&mut seen, 100).unwrap();
    assert_eq!(seen, content[5..]);
}

fn extended_attributes(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let file = s.path("file");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&file, name, value, flags);
    let get = |name: &str| {
        let mut buf = vec![0; 65536];
        rustix::fs::getxattr(&file, name, buf.as_mut_slice()).map(|len| buf[..len].to_vec())
    };
    set("user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.b", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("trusted.t", b"3", XattrFlags::empty()).unwrap();
    let big = vec![7; 65536];
    set("user.big", &big, XattrFlags::empty()).unwrap();
    assert_eq!(get("user.a").unwrap(), b"1");
    assert_eq!(get("user.big").unwrap(), big);
    assert_eq!(get("user.none"), Err(Errno::NODATA));
    let mut small = [0; 4];
    assert_eq!(rustix::fs::getxattr(&file, "user.big", &mut small[..]), Err(Errno::RANGE));
    let list = |path: &Path| {
        let mut buf = vec![0; 65536];
        let len = rustix::fs::listxattr(path, buf.as_mut_slice()).unwrap();
        String::from_utf8(buf[..len].to_vec()).unwrap()
    };
    let names = list(&file);
    assert!(names.contains("user.a\0") && names.contains("trusted.t\0"), "{names:?}");
    let theirs = as_nobody(&format!("getfattr -m - {} 2>/dev/null", file.display()));
    assert!(theirs.contains("user.a") && !theirs.contains("trusted"), "{theirs}");
    rustix::fs::removexattr(&file, "user.a").unwrap();
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    // The statistics are computed: neither listed nor writable.
    assert!(!list(&s.dir).contains("keepstone"));
    let stats = "user.keepstone.stats";
    let written = rustix::fs::setxattr(&s.dir, stats, b"", XattrFlags::empty());
    assert_eq!(written, Err(Errno::PERM));
    assert_eq!(get(stats), Err(Errno::NODATA));
}

fn special_files_links_and_times(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("loop", FileType::BlockDevice, rustix::fs::makedev(259, 1_000_000)),
    ] {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, s.path(name), kind, mode, device).unwrap();
        let stat = rustix::fs::lstat(s.path(name)).unwrap();
        assert_eq!(FileType::from_raw_mode(stat.st_mode), kind);
        assert_eq!(stat.st_rdev, device, "{name}");
    }
    // Device files work, because root has made the mount.
    OpenOptions::new().write(true).open(s.path("null")).unwrap().write_all(b"x").unwrap();

    let target = "t".repeat(4095);
    symlink(&target, s.path("link")).unwrap();
    assert_eq!(fs::read_link(s.path("link")).unwrap(), Path::new(&target));
    fs::hard_link(s.path("link"), s.path("again")).unwrap();
    assert_eq!(fs::symlink_metadata(s.path("again")).unwrap().nlink(), 2);

    fs::write(s.path("file"), "").unwrap();
    for nanos in [0, 1, -1, -1_500_000_000, 1_234_567_890_123_456_789, 4_102_444_800_000_000_001i64]
    {
        let tv_sec = nanos.div_euclid(1_000_000_000);
        let tv_nsec = nanos.rem_euclid(1_000_000_000);
        let times = Timestamps {
            last_access: Timespec { tv_sec, tv_nsec },
            last_modification: Timespec { tv_sec, tv_nsec },
        };
        rustix::fs::utimensat(CWD, s.path("file"), &times, AtFlags::empty()).unwrap();
        let meta = fs::metadata(s.path("file")).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((meta.atime(), meta.atime_nsec()), (tv_sec, tv_nsec));
    }
}

fn names_up_to_255_bytes(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let longest = s.path(&"n".repeat(255));
    fs::write(&longest, "").unwrap();
    assert!(longest.exists());
    let too_long = fs::write(s.path(&"n".repeat(256)), "").unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
}

fn fallocate_has_what_statfs_promises(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let free = || {
        let stat = rustix::fs::statvfs(&s.dir).unwrap();
        (stat.f_bavail * stat.f_frsize, stat.f_bfree * stat.f_frsize)
    };
    for _ in 0..2 {
        let (available, all) = free();
        assert!(available < all && available > all / 2, "{available} of {all}");
        let file = open_rw(&s.path("file"));
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, available).unwrap();
        assert!(free().0 < 1 << 20);
        fs::remove_file(s.path("file")).unwrap();
        drop(file);
        crate::common::wait_until("its space is free", || free().0 > available / 2);
        // The same in a pool with fragmented free space.
        for i in 0..400 {
            fs::write(s.path(&format!("small-{i}")), vec![1; 9000]).unwrap();
        }
        for i in (0..400).step_by(2) {
            fs::remove_file(s.path(&format!("small-{i}"))).unwrap();
        }
    }
}

fn a_full_pool_can_be_emptied(layout: &str) {
    let s = Sandbox::mounted_as(layout, &[]);
    let mut files = 0;
    let full = loop {
        match fs::write(s.path(&files.to_string()), vec![1; 1 << 20]) {
            Ok(()) => files += 1,
            Err(err) => break err,
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(files > 200, "{files}");
    for file in 0..=files {
        let _ = fs::remove_file(s.path(&file.to_string()));
    }
    assert_eq!(fs::read_dir(&s.dir).unwrap().count(), 0);
    fs::write(s.path("again"), vec![1; 1 << 20]).unwrap();
}
