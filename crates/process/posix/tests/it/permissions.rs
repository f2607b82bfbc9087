//! Random modes, owners and ACLs for several users: the process layer permits what the kernel
//! permits on tmpfs. Needs root.

#![allow(unsafe_code)]

use crate::common::{
    TestEngine, TestWorld, become_user, cstring, done, libc_result, on_each_engine, stat,
};
use posix::{Errno, Process};
use rng::Rng;
use std::os::unix::ffi::OsStrExt;
use vfs::acl::{ACL_ACCESS, ACL_DEFAULT, Acl, AclEntry, Tag};

on_each_engine!(
    permissions_are_those_of_the_kernel,
    a_change_of_owner_to_nobody_takes_privileges,
    removed_directories_are_told_before_permission,
    links_of_others_in_sticky_directories_are_not_created_over,
);

const CASES: u64 = 400;
/// User, group, supplementary groups.
const USERS: [(u32, u32, &[u32]); 5] =
    [(0, 0, &[]), (1000, 1000, &[]), (1001, 1001, &[2000]), (1002, 2000, &[1000]), (1003, 9, &[])];

fn perm(rng: &mut Rng) -> u16 {
    (rng.next() % 8) as u16
}

fn acl(rng: &mut Rng) -> Acl {
    let mut tags = vec![Tag::UserObj];
    let named = rng.next() % 4;
    tags.extend([1000, 1001].iter().take((named & 1) as usize * 2).map(|id| Tag::User(*id)));
    tags.push(Tag::GroupObj);
    tags.extend([1000, 2000].iter().take((named >> 1) as usize * 2).map(|id| Tag::Group(*id)));
    if tags.len() > 2 {
        tags.push(Tag::Mask);
    }
    tags.push(Tag::Other);
    Acl::new(tags.into_iter().map(|tag| AclEntry { tag, perm: perm(rng) }))
}

fn permissions_are_those_of_the_kernel(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let p = &world.process;
    let theirs = tempfile::Builder::new().prefix("keepstone-r-").tempdir_in("/dev/shm").unwrap();
    std::fs::set_permissions(theirs.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    // SAFETY: changes a mask.
    unsafe { libc::umask(0o022) };
    p.task().umask(0o022);
    let mut rng = Rng::new(0x2545_f491_4f6c_dd1d);
    for case in 0..CASES {
        let name = format!("c{case}");
        let ours = world.path(&name);
        let their =
            cstring(&[theirs.path().as_os_str().as_bytes(), b"/", name.as_bytes()].concat());
        let directory = case % 2 == 0;
        let mode = (rng.next() % 0o10000) as u32;
        let (uid, gid) = (rng.pick(&[0, 1000, 1001]), rng.pick(&[0, 1000, 2000]));
        let access = (rng.pick(&[true, true, false])).then(|| acl(&mut rng).to_bytes());
        let default = (directory && rng.pick(&[true, false])).then(|| acl(&mut rng).to_bytes());
        become_user(p, USERS[0]);
        let cwd = libc::AT_FDCWD;
        // SAFETY: paths with their NUL, values with their length.
        unsafe {
            if directory {
                done(p.names().mkdir(cwd, &ours, 0o700)).unwrap();
                assert_eq!(libc::mkdir(their.as_ptr(), 0o700), 0);
            } else {
                done(p.names().mknod(cwd, &ours, libc::S_IFREG | 0o600, 0)).unwrap();
                assert_eq!(libc::mknod(their.as_ptr(), libc::S_IFREG | 0o600, 0), 0);
            }
            done(p.names().chown(cwd, &ours, uid, gid, 0)).unwrap();
            assert_eq!(libc::chown(their.as_ptr(), uid, gid), 0);
            done(p.names().chmod(cwd, &ours, mode, 0)).unwrap();
            assert_eq!(libc::chmod(their.as_ptr(), mode), 0);
            for (attribute, value) in [(ACL_ACCESS, &access), (ACL_DEFAULT, &default)] {
                let Some(value) = value else { continue };
                done(p.names().setxattr(&ours, attribute, value, 0, 0)).unwrap();
                let attribute = cstring(attribute);
                let from = value.as_ptr().cast();
                let set = libc::setxattr(their.as_ptr(), attribute.as_ptr(), from, value.len(), 0);
                assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
            }
        }
        for user in USERS {
            become_user(p, user);
            let what = format!("case {case}: {mode:o} {uid}:{gid} {access:?} {default:?} {user:?}");
            compare(p, &ours, &their, directory, &what);
        }
    }
    become_user(p, USERS[0]);
}

fn compare(p: &Process, ours: &[u8], their: &std::ffi::CStr, directory: bool, what: &str) {
    let cwd = libc::AT_FDCWD;
    for mode in 0..8 {
        let got = done(p.names().access(cwd, ours, mode, libc::AT_EACCESS));
        // SAFETY: a path with its NUL.
        let ret = unsafe {
            libc::syscall(libc::SYS_faccessat2, cwd, their.as_ptr(), mode, libc::AT_EACCESS)
        };
        assert_eq!(got, libc_result(ret).map(drop), "access {mode}, {what}");
    }
    for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
        let got = done(p.contents().open(cwd, ours, flags, 0));
        // SAFETY: a path with its NUL.
        let fd = unsafe { libc::open(their.as_ptr(), flags) };
        let expected = libc_result(i64::from(fd));
        assert_eq!(got.map(drop), expected.map(drop), "open {flags}, {what}");
        if let Ok(fd) = got {
            done(p.descriptors().close(fd)).unwrap();
        }
        if fd >= 0 {
            // SAFETY: opened above.
            unsafe { libc::close(fd) };
        }
    }
    if directory {
        creates_alike(p, ours, their, what);
    }
}

/// Creates a file of a group-executable, set-group-ID mode in a directory on both sides, and
/// compares the results.
fn creates_alike(p: &Process, ours: &[u8], their: &std::ffi::CStr, what: &str) {
    let cwd = libc::AT_FDCWD;
    let ours = [ours, b"/new"].concat();
    let their = cstring(&[their.to_bytes(), b"/new"].concat());
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
    let got = done(p.contents().open(cwd, &ours, flags, 0o2775));
    // SAFETY: paths with their NUL, room for a stat and for an ACL.
    unsafe {
        let fd = libc::open(their.as_ptr(), flags, 0o2775);
        assert_eq!(got.map(drop), libc_result(i64::from(fd)).map(drop), "create, {what}");
        let Ok(own) = got else { return };
        let st = done(p.names().fstat(own)).unwrap();
        let mut expected: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd, &mut expected), 0);
        let seen = |st: &libc::stat| (format!("{:o}", st.st_mode), st.st_uid, st.st_gid);
        assert_eq!(seen(&st), seen(&expected), "created, {what}");
        let (mut a, mut b) = ([0u8; 256], [0u8; 256]);
        let name = cstring(ACL_ACCESS);
        let got = done(p.names().fgetxattr(own, ACL_ACCESS, &mut a));
        let len = libc::fgetxattr(fd, name.as_ptr(), b.as_mut_ptr().cast(), b.len());
        let expected: Result<usize, Errno> = libc_result(len as i64).map(|len| len as usize);
        assert_eq!((got, a), (expected, b), "inherited ACL, {what}");
        done(p.descriptors().close(own)).unwrap();
        libc::close(fd);
        let removed = done(p.names().unlink(cwd, &ours, 0));
        let ret = libc::unlink(their.as_ptr());
        assert_eq!(removed, libc_result(ret.into()).map(drop), "unlink, {what}");
    }
}

/// Makes a file or FIFO with owner, group and mode.
fn make(p: &Process, path: &[u8], kind: u32, (uid, gid): (u32, u32), mode: u32) {
    let cwd = libc::AT_FDCWD;
    become_user(p, USERS[0]);
    let _ = done(p.names().unlink(cwd, path, 0));
    done(p.names().mknod(cwd, path, kind | 0o600, 0)).unwrap();
    done(p.names().chown(cwd, path, uid, gid, 0)).unwrap();
    done(p.names().chmod(cwd, path, mode, 0)).unwrap();
}

fn a_change_of_owner_to_nobody_takes_privileges(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let (p, cwd) = (&world.process, libc::AT_FDCWD);
    let path = world.path("x");
    let [root, owner, stranger, ..] = USERS;
    for kind in [libc::S_IFREG, libc::S_IFIFO] {
        for (by, group, before, after) in [
            (root, 1000, 0o6755, Ok(0o755)),
            (root, 1000, 0o2646, Ok(0o2646)),
            (owner, 1000, 0o6755, Ok(0o755)),
            (owner, 1000, 0o6646, Ok(0o2646)),
            // A user outside the group keeps no set-group-ID.
            (owner, 2000, 0o2646, Ok(0o646)),
            (stranger, 1000, 0o6755, Err(Errno::PERM)),
            (stranger, 1000, 0o755, Ok(0o755)),
        ] {
            make(p, &path, kind, (1000, group), before);
            become_user(p, by);
            let changed = done(p.names().chown(cwd, &path, u32::MAX, u32::MAX, 0));
            let mode = || done(stat(p, cwd, &path, 0)).unwrap().st_mode & 0o7777;
            assert_eq!(changed.map(|()| mode()), after, "{by:?} {before:o}");
        }
    }
    become_user(p, USERS[0]);
}

fn removed_directories_are_told_before_permission(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let (p, cwd) = (&world.process, libc::AT_FDCWD);
    make(p, &world.path("x"), libc::S_IFREG, (0, 0), 0o600);
    done(p.names().mkdir(cwd, &world.path("d"), 0o777)).unwrap();
    done(p.names().chmod(cwd, &world.path("d"), 0o777, 0)).unwrap();
    let d = world.open("d", libc::O_RDONLY);
    done(p.names().unlink(cwd, &world.path("d"), libc::AT_REMOVEDIR)).unwrap();
    become_user(p, USERS[1]);
    for len in [1, 256] {
        let name = vec![b'n'; len];
        assert_eq!(done(p.names().link(cwd, &world.path("x"), d, &name, 0)), Err(Errno::NOENT));
        assert_eq!(
            done(p.names().mknod(d, &name, libc::S_IFCHR | 0o600, 0x103)),
            Err(Errno::NOENT)
        );
        assert_eq!(
            done(p.contents().open(d, &name, libc::O_CREAT | libc::O_RDWR, 0o600)),
            Err(Errno::NOENT)
        );
    }
    become_user(p, USERS[0]);
    done(p.descriptors().close(d)).unwrap();
}

fn links_of_others_in_sticky_directories_are_not_created_over(engine: TestEngine) {
    let world = TestWorld::new(engine);
    let (p, cwd) = (&world.process, libc::AT_FDCWD);
    done(p.names().mkdir(cwd, &world.path("d"), 0o777)).unwrap();
    done(p.names().symlink(b"nowhere", cwd, &world.path("d/link"))).unwrap();
    done(p.names().chown(cwd, &world.path("d/link"), 1001, 1001, libc::AT_SYMLINK_NOFOLLOW))
        .unwrap();
    let open = |flags| {
        done(p.contents().open(cwd, &world.path("d/link"), flags | libc::O_NOFOLLOW, 0o600))
    };
    for (mode, errno) in [(0o1777, Errno::ACCESS), (0o1775, Errno::LOOP), (0o777, Errno::LOOP)] {
        done(p.names().chmod(cwd, &world.path("d"), mode, 0)).unwrap();
        assert_eq!(open(libc::O_CREAT | libc::O_WRONLY), Err(errno), "{mode:o}");
        assert_eq!(open(libc::O_WRONLY), Err(Errno::LOOP), "{mode:o}");
    }
}
