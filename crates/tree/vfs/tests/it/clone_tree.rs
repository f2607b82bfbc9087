//! Clones of trees ([`vfs::clone_tree`]).

use vfs::model::Model;
use vfs::script::{Driver, parse};
use vfs::tree::{diff, subtree};
use vfs::{
    Caller, Cloned, Errno, FileSystem, Ino, Limits, Mappings, NewKind, NewNode, Openings,
    clone_tree, path,
};

const TREE: &str = "mkdir /src mode=750; create /src/a mode=6755; write /src/a 0 5000; \
    link /src/a /src/b; mkdir /src/d; setdefaultacl /src/d; create /src/d/c; write /src/d/c 100000 10; \
    link /src/a /src/d/too; symlink /src/d/l 20; mkfifo /src/p; mknod /src/n 259; \
    setxattr /src user.x 10; setxattr /src/a user.y 300; setxattr /src/a security.capability 20; \
    setacl /src/d/c; chown /src/d 7 8; utimes /src/a; utimes /src/d; utimes /src; \
    mkdir /to mode=2777; setdefaultacl /to; chown /to 9 9";

const WITHOUT: Limits = Limits { clones: false, ..Limits::MAX };

fn made(model: Model) -> Model {
    let mut driver = Driver::new(&model);
    for (i, op) in parse(TREE).unwrap().iter().enumerate() {
        driver.call(op, i as u64).unwrap_or_else(|stop| panic!("{op}: {stop:?}"));
    }
    model
}

fn clone(fs: &dyn FileSystem, from: &str, to: &str) -> vfs::Result<Cloned> {
    let from = path::at(fs, from.as_bytes(), |dir, name| fs.peek(dir, name))?.ino;
    path::at(fs, to.as_bytes(), |dir, name| clone_tree(fs, from, (dir, name), 1, &mut |_| true))
}

fn ino(fs: &dyn FileSystem, of: &str) -> Ino {
    path::at(fs, of.as_bytes(), |dir, name| fs.peek(dir, name)).unwrap().ino
}

#[test]
fn a_clone_equals_its_source() {
    for model in [Model::new(), Model::with_limits(&WITHOUT)] {
        let fs = made(model);
        let cloned = clone(&fs, "/src", "/to/clone").unwrap();
        assert_eq!(cloned, Cloned { files: 2, dirs: 2, others: 3, bytes: 105_010 });
        let tree = |of| subtree(&fs, ino(&fs, of)).unwrap();
        assert_eq!(diff(&tree("/src"), &tree("/to/clone")), None);
        assert_eq!(ino(&fs, "/to/clone/a"), ino(&fs, "/to/clone/d/too"));
        assert_ne!(ino(&fs, "/to/clone/a"), ino(&fs, "/src/a"));
        for of in ["", "/a", "/d", "/d/c", "/d/l"] {
            let attr = |of: String| fs.getattr(ino(&fs, &of)).unwrap();
            let (ours, theirs) = (attr(format!("/to/clone{of}")), attr(format!("/src{of}")));
            assert_eq!((ours.mtime, ours.uid, ours.gid), (theirs.mtime, theirs.uid, theirs.gid));
        }
        // One file.
        clone(&fs, "/src/a", "/to/a").unwrap();
        let alone = fs.getattr(ino(&fs, "/to/a")).unwrap();
        assert_eq!((alone.nlink, alone.perm, alone.size), (1, 0o6755, 5000));
        assert_eq!(fs.listxattr(alone.ino).unwrap().len(), 2);
    }
}

#[test]
fn a_clone_that_fails_leaves_nothing() {
    let fs = made(Model::new());
    let before = subtree(&fs, fs.root()).unwrap();
    assert_eq!(clone(&fs, "/src", "/src/a"), Err(Errno::EXIST));
    assert_eq!(clone(&fs, "/src", "/src/d/inside"), Err(Errno::INVAL));
    assert_eq!(clone(&fs, "/src", "/src/inside"), Err(Errno::INVAL));
    assert_eq!(clone(&fs, "/none", "/clone"), Err(Errno::NOENT));
    for steps in 0..7 {
        let mut left = steps;
        let mut progress = |_: &Cloned| {
            left -= 1;
            left >= 0
        };
        let result = clone_tree(&fs, ino(&fs, "/src"), (ino(&fs, "/to"), b"n"), 5, &mut progress);
        assert_eq!(result, Err(Errno::INTR), "{steps}");
    }
    assert_eq!(diff(&before, &subtree(&fs, fs.root()).unwrap()), None);
    let names = fs.names();
    fs.sync().unwrap();
    assert_eq!(fs.after_kill().names(), names, "no inode without a name is kept");
}

/// A model of which one call copies 1000 bytes at most.
struct CopiesParts(Model);

impl FileSystem for CopiesParts {
    vfs::forward!(self => self.0; root, durability, kernel_cache, limits, lookup, forget, getattr,
        setattr, create, tmpfile, readlink, unlink, rmdir, link, rename, rename_whiteout, readdir,
        read, write, append, drop_privileges, fallocate, seek, clone_range, fsync, sync, getxattr,
        setxattr, listxattr, removexattr, statfs);

    fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> vfs::Result<u64> {
        self.0.copy_range(from, to, len.min(1000))
    }
}

impl Mappings for CopiesParts {}

impl Openings for CopiesParts {}

#[test]
fn copies_in_parts_are_whole() {
    let fs = CopiesParts(made(Model::with_limits(&WITHOUT)));
    clone(&fs, "/src", "/to/clone").unwrap();
    let tree = |of| subtree(&fs, ino(&fs, of)).unwrap();
    assert_eq!(diff(&tree("/src"), &tree("/to/clone")), None);
}

/// A clone of a deep tree that fails is removed in a thread with little stack.
#[test]
fn a_deep_clone_that_fails_leaves_nothing() {
    const DEPTH: u64 = 3000;
    let fails = || {
        let fs = Model::new();
        let node = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
        let make = |dir, name: &[u8]| fs.create(&Caller::ROOT, dir, name, &node).unwrap().ino;
        let (source, to) = (make(fs.root(), b"src"), make(fs.root(), b"to"));
        let (mut dir, mut count) = (source, 0);
        while count < DEPTH {
            dir = make(dir, b"below");
            let file = NewNode { kind: NewKind::File, ..node };
            fs.create(&Caller::ROOT, dir, b"file", &file).unwrap();
            count += 1;
        }
        let mut until_all_is_there = |done: &Cloned| done.files < DEPTH;
        let cloned = clone_tree(&fs, source, (to, b"clone"), 1, &mut until_all_is_there);
        assert_eq!(cloned, Err(Errno::INTR));
        assert_eq!(vfs::names_in(&fs, to).unwrap().len(), 0);
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10);
    thread.spawn(fails).unwrap().join().unwrap();
}
