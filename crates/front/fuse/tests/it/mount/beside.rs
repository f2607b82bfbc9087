//! Programs with direct access next to a mount: notices to and from the kernel, openings by
//! capability.

#![allow(unsafe_code)]

use super::*;

/// The kernel drops a file that loses its last name by direct access, under all names that it
/// knows. It keeps the file for processes that have it open.
#[test]
fn the_kernel_forgets_what_is_removed_beside_it() {
    let mount = Mount::shared();
    let lookup = |name: &[u8]| {
        let ino = mount.probe.model.lookup(vfs::ROOT, name).unwrap().ino;
        mount.probe.model.forget(ino, 1);
        ino
    };
    let is_gone = |ino| mount.probe.getattr(ino) == Err(Errno::STALE);
    let unnamed = |ino| {
        mount.probe.unnamed.lock().unwrap().0.push(ino);
        mount.probe.wake();
    };
    for name in ["file", "open", "moved", "old", "listed"] {
        fs::write(mount.path(name), "content").unwrap();
    }
    fs::create_dir(mount.path("dir")).unwrap();
    fs::hard_link(mount.path("file"), mount.path("dir/link")).unwrap();
    let model = &mount.probe.model;

    // By two names, of which one was moved, and by an alias.
    let file = model.lookup(vfs::ROOT, b"file").unwrap();
    model.forget(file.ino, 1);
    let opening = Opening { ino: file.ino, generation: file.generation, as_new: false };
    let ticket = mount.probe.begin_opening(opening, this_thread(0)).unwrap();
    fs::read(mount.path(&ticket.root_name())).unwrap();
    fs::rename(mount.path("file"), mount.path("other")).unwrap();
    model.unlink(vfs::ROOT, b"other").unwrap();
    model.unlink(lookup(b"dir"), b"link").unwrap();
    unnamed(file.ino);
    until(|| is_gone(file.ino));

    // Open: kept until it is closed.
    let open = lookup(b"open");
    let opened = fs::File::open(mount.path("open")).unwrap();
    model.unlink(vfs::ROOT, b"open").unwrap();
    unnamed(open);
    assert_eq!(std::io::read_to_string(&opened).unwrap(), "content");
    assert!(!is_gone(open));
    drop(opened);
    until(|| is_gone(open));

    // Moved by direct access, then removed, or replaced, through the mount: the kernel still knows
    // the old name.
    for (from, to) in [("moved", "new"), ("old", "replaced")] {
        let ino = lookup(from.as_bytes());
        let (source, target) = ((vfs::ROOT, from.as_bytes()), (vfs::ROOT, to.as_bytes()));
        model.rename(source, target, RenameFlags::empty()).unwrap();
        assert_eq!(fs::metadata(mount.path(to)).unwrap().ino(), ino.0);
        if to == "new" {
            fs::remove_file(mount.path(to)).unwrap();
        } else {
            fs::write(mount.path("another"), "").unwrap();
            fs::rename(mount.path("another"), mount.path(to)).unwrap();
        }
        until(|| is_gone(ino));
    }

    // Seen in a listing only; and a directory with its content.
    let (listed, dir) = (lookup(b"listed"), lookup(b"dir"));
    fs::write(mount.path("dir/inner"), "").unwrap();
    assert!(fs::read_dir(&mount.dir).unwrap().all(|e| e.unwrap().metadata().is_ok()));
    model.unlink(vfs::ROOT, b"listed").unwrap();
    model.unlink(dir, b"inner").unwrap();
    model.rmdir(vfs::ROOT, b"dir").unwrap();
    unnamed(listed);
    unnamed(dir);
    until(|| is_gone(listed) && is_gone(dir));
}

/// A name that was removed and made again by direct access stays with the inode that has it now.
#[test]
fn a_name_that_is_used_again_stays() {
    let mount = Mount::shared();
    let model = &mount.probe.model;
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(mount.path("last"), "").unwrap();
    let ino = |path: &Path| Ino(fs::metadata(path).unwrap().ino());
    let (first, last) = (ino(&dir), ino(&mount.path("last")));
    // The kernel remembers it as long as it is open.
    let opened = fs::File::open(&dir).unwrap();
    model.rmdir(vfs::ROOT, b"dir").unwrap();
    let node = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
    model.create(&Caller::ROOT, vfs::ROOT, b"dir", &node).unwrap();
    assert_ne!(ino(&dir), first);
    let mut child = Command::new("sleep").arg("60").current_dir(&dir).spawn().unwrap();
    let cwd = || fs::read_link(format!("/proc/{}/cwd", child.id())).unwrap();
    assert_eq!(cwd(), dir);
    model.unlink(vfs::ROOT, b"last").unwrap();
    mount.probe.unnamed.lock().unwrap().0.extend([first, last]);
    mount.probe.wake();
    until(|| mount.probe.getattr(last) == Err(Errno::STALE));
    let is_there = cwd() == dir;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_there, "the kernel was told to forget the new directory");
    drop(opened);
    until(|| mount.probe.getattr(first) == Err(Errno::STALE));
}

#[test]
fn executions_are_posted_while_they_last() {
    let mount = Mount::shared();
    let program = mount.path("sleep");
    fs::copy("/bin/sleep", &program).unwrap();
    let ino = mount.probe.model.lookup(vfs::ROOT, b"sleep").unwrap().ino;
    fs::read(&program).unwrap();
    assert!(!mount.probe.is_executed(ino));
    let mut children = [(); 2].map(|()| Command::new(&program).arg("60").spawn().unwrap());
    let failed = fs::write(&program, "").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::ExecutableFileBusy);
    for child in &mut children {
        assert!(mount.probe.is_executed(ino));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    until(|| !mount.probe.is_executed(ino));
    let dir = mount.dir.clone();
    drop(mount);
    assert!(!is_mounted(&dir));
}

#[test]
fn what_programs_may_map_is_posted_while_they_have_it_open() {
    let mut mount = Mount::shared();
    let written = fs::File::create(mount.path("file")).unwrap();
    let ino = mount.probe.model.lookup(vfs::ROOT, b"file").unwrap().ino;
    assert!(!mount.probe.is_mapped(ino), "what cannot be read cannot be mapped");
    let options = || fs::File::options().read(true).write(true).clone();
    let created = options().create_new(true).open(mount.path("new")).unwrap();
    let new = mount.probe.model.lookup(vfs::ROOT, b"new").unwrap().ino;
    assert!(mount.probe.is_mapped(new));
    let opened = [(); 2].map(|()| options().open(mount.path("file")).unwrap());
    for file in opened {
        assert!(mount.probe.is_mapped(ino));
        drop(file);
    }
    until(|| !mount.probe.is_mapped(ino));
    drop((written, created));
    until(|| !mount.probe.is_mapped(new));
    // When the connection is cut, the kernel does not close open files.
    let open = fs::File::open(mount.path("file")).unwrap();
    assert!(mount.probe.is_mapped(ino));
    mount.end(Duration::ZERO);
    assert!(!mount.probe.is_mapped(ino));
    drop(open);
}

/// A name in the virtual directory opens its file for every process that knows it, whatever the
/// file's mode, and wherever its own names are. No other name does, and none is ever created.
#[test]
fn a_capability_opens_what_its_permissions_forbid() {
    let mount = Mount::shared();
    fs::write(mount.path("file"), "content").unwrap();
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(mount.path("file"), mode).unwrap();
    };
    set_mode(0o444);
    fs::create_dir(mount.path("dir")).unwrap();
    let file = mount.probe.lookup(vfs::ROOT, b"file").unwrap();
    let dir = mount.probe.lookup(vfs::ROOT, b"dir").unwrap();
    let path = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let virtual_dir = mount.path(Ticket::DIR);
    let aliases = rustix::fs::open(&virtual_dir, path, rustix::fs::Mode::empty()).unwrap();
    let read_write = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE;
    let open = |name: &str, flags| {
        rustix::fs::openat(&aliases, name, flags, rustix::fs::Mode::empty()).map(fs::File::from)
    };
    let announce_as = |entry: &Entry, as_new, by| {
        let opening = Opening { ino: entry.ino, generation: entry.generation, as_new };
        mount.probe.begin_opening(opening, by).unwrap().to_string()
    };
    let announce = |entry: &Entry, user| announce_as(entry, true, this_thread(user));

    as_nobody(|| {
        let by_name = fs::File::options().write(true).open(mount.path("file")).unwrap_err();
        assert_eq!(by_name.kind(), ErrorKind::PermissionDenied);
        let truncate = read_write | rustix::fs::OFlags::TRUNC;
        let name = announce(&file, 65534);
        let mut opened = open(&name, truncate).unwrap();
        opened.write_all(b"CON").unwrap();
        // No lookup finds a used ticket, not even in a cache of names.
        assert_eq!(open(&name, read_write).unwrap_err(), rustix::io::Errno::NOENT);
        let shown = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
        assert!(fs::read(shown).is_err());
        let mut content = String::new();
        open(&announce(&file, 65534), read_write).unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "CONtent", "nothing is truncated");
        // Only root lists or watches the directory.
        let listed = fs::read_dir(&virtual_dir).unwrap_err();
        assert_eq!(listed.kind(), ErrorKind::PermissionDenied);
        let watch = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).unwrap();
        let events = rustix::fs::inotify::WatchFlags::ALL_EVENTS;
        let watched = rustix::fs::inotify::add_watch(&watch, &virtual_dir, events);
        assert_eq!(watched.unwrap_err(), rustix::io::Errno::ACCESS);
    });
    assert_eq!(mount.probe.getattr(file.ino).unwrap().perm, 0o444);
    set_mode(0);
    let opened = open(&announce(&file, 0), read_write).unwrap();
    rustix::fs::fchmod(&opened, 0o640.into()).unwrap();
    assert_eq!(mount.probe.getattr(file.ino).unwrap().perm, 0o640);
    assert!(!mount.probe.is_mapped(file.ino), "whoever comes so counts himself");
    // The server announces an answer before it reads the size, and a process that changes the size
    // waits for that.
    let answered = mount.probe.answered.lock().unwrap().clone();
    assert_eq!(answered, [file.ino; 3]);
    let waits = || std::mem::take(&mut *mount.probe.waited.lock().unwrap()).contains(&file.ino);
    waits();
    rustix::io::pwrite(&opened, b"t", 6).unwrap();
    assert!(waits(), "write");
    rustix::fs::ftruncate(&opened, 7).unwrap();
    assert!(waits(), "truncate");
    rustix::fs::fallocate(&opened, rustix::fs::FallocateFlags::empty(), 0, 7).unwrap();
    assert!(waits(), "fallocate");
    rustix::fs::copy_file_range(&opened, Some(&mut 0), &opened, Some(&mut 3), 3).unwrap();
    assert!(waits(), "copy");
    rustix::io::pwrite(&opened, b"CONtent", 0).unwrap();
    drop(fs::File::open(mount.path("file")).map(|_| assert!(waits(), "open")));

    fs::remove_file(mount.path("file")).unwrap();
    let mut content = String::new();
    open(&announce(&file, 0), read_write).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "CONtent");
    assert_eq!(opened.metadata().unwrap().nlink(), 0);

    let me = this_thread(0);
    let wrong = [
        announce(&Entry { generation: file.generation + 1, ..file }, 0),
        announce(&Entry { ino: Ino(1 << 31), ..file }, 0),
        announce(&dir, 0),
        announce_as(&file, false, me),
        announce_as(&file, true, Requester { thread: me.thread + 1, ..me }),
        announce_as(&file, true, Requester { user: 65534, ..me }),
        Ticket(u128::MAX).to_string(),
        "other".into(),
    ];
    for name in wrong {
        assert_eq!(open(&name, read_write).unwrap_err(), rustix::io::Errno::NOENT, "{name}");
    }
    let without_create = open(&announce(&file, 0), rustix::fs::OFlags::RDONLY);
    assert_eq!(without_create.unwrap_err(), rustix::io::Errno::NOENT);
    // It is always empty, and no file can be made there.
    assert_eq!(fs::read_dir(&virtual_dir).unwrap().count(), 0);
    assert!(fs::create_dir(virtual_dir.join("dir")).is_err());
    assert!(fs::hard_link(mount.path("dir"), virtual_dir.join("link")).is_err());
    assert!(fs::rename(&virtual_dir, mount.path("other")).is_err());
    assert!(fs::remove_dir(&virtual_dir).is_err());
    let listed: Vec<_> =
        fs::read_dir(&mount.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(listed, ["dir"]);

    // References balance: an unlinked file dies with its last description.
    mount.probe.forget(file.ino, 1);
    mount.probe.forget(dir.ino, 1);
    drop(opened);
    until(|| mount.probe.getattr(file.ino) == Err(Errno::STALE));
}

/// Runs a part of a test with the permissions of a user that owns nothing: changes the credentials
/// of this thread only.
fn as_nobody(part: impl FnOnce()) {
    let set = |uid: u32| {
        // SAFETY: changes nothing but the calling thread's credentials.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
        assert_eq!(result, 0, "this test runs as root");
    };
    set(65534);
    part();
    set(0);
}

#[test]
fn changes_of_the_mount_are_told_once_and_to_the_end() {
    let mut mount = Mount::shared();
    fs::create_dir(mount.path("d")).unwrap();
    let watch = MountWatch::begin(&mount.mount_point).unwrap();
    let changes = |count: u32, is_there: bool| {
        let mut told = 0;
        assert_eq!(watch.look(|| told += 1).unwrap(), is_there);
        assert_eq!(told, count);
    };
    changes(0, true);
    fuse::remount(&mount.dir, MountFlags::RDONLY | MountFlags::NOSUID).unwrap();
    watch.wait().unwrap();
    changes(1, true);
    changes(0, true);
    rustix::mount::mount_bind(&*mount.dir, mount.path("d")).unwrap();
    watch.wait().unwrap();
    changes(1, true);
    fuse::unmount(&mount.path("d"), false).unwrap();
    changes(1, true);
    mount.end(Duration::ZERO);
    changes(1, false);
    changes(0, false);
}

#[test]
fn the_kernel_is_asked_what_it_can_do() {
    let kernel = fuse::probe_kernel().unwrap();
    assert!(kernel.abi.starts_with("7."), "{kernel:?}");
    assert!(kernel.capabilities.iter().any(|name| name == "FUSE_POSIX_ACL"), "{kernel:?}");
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains("keepstone-probe-"));
}
