//! The two sides: the process layer, and the kernel.

#![allow(unsafe_code)]

use super::generate::SLOTS;
use super::op::{At, AtPath, CallOutcome, Lens, Offset, ProcessOp, Text, Times, Value};
use crate::common::{TestWorld, cstring, done, libc_result, stat};
use posix::{Errno, Served};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use vfs::script::Octal;

/// A side of the comparison.
pub trait Side {
    /// Makes a call. `None` if it is left to the kernel (and has changed nothing).
    fn apply(&mut self, op: &ProcessOp) -> Option<CallOutcome>;

    /// A line for each object in the tree: path, attributes, content.
    fn tree(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut pending = vec![String::new()];
        while let Some(path) = pending.pop() {
            let here = || AtPath(At::Root, path.clone());
            let open = || ProcessOp::Open(here(), Octal(libc::O_RDONLY as u32), Octal(0));
            let stat =
                self.apply(&ProcessOp::Stat(here(), libc::AT_SYMLINK_NOFOLLOW)).unwrap().unwrap();
            let Value::Stat { mode, .. } = stat else { panic!("{stat:?}") };
            let content = match mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    self.apply(&open()).unwrap().unwrap();
                    let list = self.apply(&ProcessOp::List(self.last())).unwrap().unwrap();
                    let Value::Names(names) = &list else { panic!("{list:?}") };
                    let children =
                        names.iter().filter(|(name, _)| !matches!(&name[..], "." | ".."));
                    pending.extend(children.map(|(name, _)| format!("{path}/{name}")));
                    list
                }
                libc::S_IFREG => {
                    self.apply(&open()).unwrap().unwrap();
                    self.apply(&ProcessOp::Read(self.last(), 1 << 20)).unwrap().unwrap()
                }
                libc::S_IFLNK => self.apply(&ProcessOp::Readlink(here(), 4096)).unwrap().unwrap(),
                _ => Value::Number(0),
            };
            lines.push(format!("{path} {stat:?} {}", summary(&content)));
        }
        lines.sort();
        lines
    }

    /// The slot that the last `Open` filled.
    fn last(&self) -> usize;

    /// Ends the effects of `Become`.
    fn become_root(&mut self) {
        self.apply(&ProcessOp::Become(0));
    }
}

/// Formats content in one line: for bytes, the offsets at which the value changes.
fn summary(content: &Value) -> String {
    let Value::Bytes(bytes) = content else { return format!("{content:?}") };
    let mut hasher = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(bytes, &mut hasher);
    let digest = std::hash::Hasher::finish(&hasher);
    let starts: Vec<_> = bytes.chunks(1024).map(|chunk| chunk[0]).collect();
    format!("{} bytes, digest {digest:x}, each 1024th {starts:?}", bytes.len())
}

/// Descriptors by slot. Slots are filled one after the other.
struct Slots {
    fds: [i32; SLOTS],
    next: usize,
}

impl Slots {
    fn new() -> Self {
        Self { fds: [-1; SLOTS], next: 0 }
    }

    /// Puts a descriptor into the next slot. Returns the one that was there.
    fn put(&mut self, fd: i32) -> i32 {
        let old = std::mem::replace(&mut self.fds[self.next], fd);
        self.next = (self.next + 1) % SLOTS;
        old
    }

    fn last(&self) -> usize {
        (self.next + SLOTS - 1) % SLOTS
    }

    fn at(&self, at: At) -> i32 {
        match at {
            At::Fd(slot) => self.fds[slot],
            At::Root | At::Cwd => libc::AT_FDCWD,
        }
    }
}

/// The bytes that a write writes.
fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add((i / 3) as u8)).collect()
}

fn full_path(root: &[u8], AtPath(at, path): &AtPath) -> Vec<u8> {
    match at {
        At::Root if path.is_empty() => root.to_vec(),
        At::Root => [root, b"/", path.as_bytes()].concat(),
        _ => path.clone().into_bytes(),
    }
}

/// An absolute target starts at the root of the tree.
fn full_target(root: &[u8], target: &str) -> Vec<u8> {
    if target.starts_with('/') { [root, target.as_bytes()].concat() } else { target.into() }
}

/// Removes the place of the tree from a path.
fn relative(root: &[u8], path: &[u8]) -> Value {
    let text = String::from_utf8_lossy(path).into_owned();
    Value::Text(text.replace(std::str::from_utf8(root).unwrap(), "ROOT"))
}

fn stat_value(st: &libc::stat) -> Value {
    let device = matches!(st.st_mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK);
    let dir = st.st_mode & libc::S_IFMT == libc::S_IFDIR;
    Value::Stat {
        mode: st.st_mode,
        nlink: st.st_nlink,
        uid: st.st_uid,
        gid: st.st_gid,
        rdev: if device { st.st_rdev } else { 0 },
        size: if dir { 0 } else { st.st_size },
    }
}

fn names_value(mut names: Vec<(String, u8)>) -> Value {
    names.sort();
    Value::Names(names)
}

fn xattr_names(list: &[u8]) -> Value {
    let names = list.split(|&b| b == 0).filter(|name| !name.is_empty());
    let own = names.filter(|name| !name.starts_with(b"security."));
    names_value(own.map(|name| (String::from_utf8_lossy(name).into_owned(), 0)).collect())
}

fn timespecs(times: &Option<[(i64, i64); 2]>) -> Option<[libc::timespec; 2]> {
    times.map(|t| t.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec }))
}

/// The process layer.
pub struct Ours<'w> {
    world: &'w TestWorld,
    root: Vec<u8>,
    slots: Slots,
}

impl<'w> Ours<'w> {
    pub fn new(world: &'w TestWorld) -> Self {
        let root = world.path("");
        done(world.process.names().chdir(&root)).unwrap();
        done(world.process.names().chmod(libc::AT_FDCWD, &root, 0o777, 0)).unwrap();
        world.process.task().umask(0o022);
        Self { world, root, slots: Slots::new() }
    }

    /// Gives up every descriptor, and the working directory.
    pub fn close_all(&mut self) {
        for fd in self.slots.fds.iter_mut().filter(|fd| **fd >= 0) {
            done(self.world.process.descriptors().close(std::mem::replace(fd, -1))).unwrap();
        }
        self.world.process.working_dir().left_pool();
        self.world.process.path_walk().forget_paths();
    }

    fn is_dir(&self, slot: usize) -> bool {
        let stat = self.world.process.names().fstat(self.slots.fds[slot]);
        matches!(stat, Served::Done(Ok(st)) if st.st_mode & libc::S_IFMT == libc::S_IFDIR)
    }

    fn fill(&mut self, fd: Result<i32, Errno>) -> CallOutcome {
        let old = self.slots.put(fd?);
        if old >= 0 {
            done(self.world.process.descriptors().close(old)).unwrap();
        }
        Ok(Value::Number(0))
    }
}

/// Unpacks an answer, or leaves `apply`.
macro_rules! served {
    ($answer:expr) => {
        match $answer {
            Served::Done(result) => result,
            Served::Kernel => return None,
        }
    };
}

fn unit(result: Result<(), Errno>) -> CallOutcome {
    result.map(|()| Value::Number(0))
}

fn number(result: Result<usize, Errno>) -> CallOutcome {
    result.map(|n| Value::Number(n as i64))
}

fn read(result: Result<usize, Errno>, buf: &[u8]) -> CallOutcome {
    result.map(|n| Value::Bytes(buf[..n].to_vec()))
}

impl Side for Ours<'_> {
    fn last(&self) -> usize {
        self.slots.last()
    }

    fn apply(&mut self, op: &ProcessOp) -> Option<CallOutcome> {
        let p = &self.world.process;
        let fd = |slot: usize| self.slots.fds[slot];
        let at = |place: &AtPath| self.slots.at(place.0);
        let path = |place: &AtPath| full_path(&self.root, place);
        Some(match op {
            ProcessOp::Open(place, Octal(flags), Octal(mode)) => {
                let fd = served!(p.contents().open(at(place), &path(place), *flags as i32, *mode));
                self.fill(fd)
            }
            ProcessOp::Close(slot) => {
                let closed = served!(p.descriptors().close(fd(*slot)));
                self.slots.fds[*slot] = -1;
                unit(closed)
            }
            ProcessOp::Dup(slot) => {
                let fd = served!(p.descriptors().dup(fd(*slot)));
                self.fill(fd)
            }
            ProcessOp::Dup2(a, b) if fd(*b) >= 0 => {
                served!(p.descriptors().dup2(fd(*a), fd(*b))).map(|_| Value::Number(0))
            }
            ProcessOp::Dup2(..) => return None,
            ProcessOp::Read(slot, len) => {
                let mut buf = vec![0; *len];
                read(served!(p.contents().read(fd(*slot), &mut buf)), &buf)
            }
            ProcessOp::Write(slot, len, seed) => {
                number(served!(p.contents().write(fd(*slot), &bytes(*len, *seed))))
            }
            ProcessOp::Pread(slot, len, offset) => {
                let mut buf = vec![0; *len];
                read(served!(p.contents().pread(fd(*slot), &mut buf, *offset)), &buf)
            }
            ProcessOp::Pwrite(slot, len, seed, offset) => {
                number(served!(p.contents().pwrite(fd(*slot), &bytes(*len, *seed), *offset)))
            }
            ProcessOp::Readv(slot, Lens(lens)) => {
                let mut bufs = lens.map(|len| vec![0; len]);
                let [a, b, c] = &mut bufs;
                let mut parts = [IoSliceMut::new(a), IoSliceMut::new(b), IoSliceMut::new(c)];
                let len = served!(p.contents().readv(fd(*slot), &mut parts));
                read(len, &bufs.concat())
            }
            ProcessOp::Writev(slot, Lens(lens), seed) => {
                let data = lens.map(|len| bytes(len, *seed));
                let parts = data.each_ref().map(|part| IoSlice::new(part));
                number(served!(p.contents().writev(fd(*slot), &parts)))
            }
            ProcessOp::Pwritev2(slot, len, seed, offset, flags) => {
                let data = bytes(*len, *seed);
                number(served!(p.contents().pwritev2(
                    fd(*slot),
                    &[IoSlice::new(&data)],
                    *offset,
                    *flags
                )))
            }
            ProcessOp::Lseek(slot, ..) if self.is_dir(*slot) => return None,
            ProcessOp::Lseek(slot, offset, whence) => {
                served!(p.contents().lseek(fd(*slot), *offset, *whence)).map(Value::Number)
            }
            ProcessOp::SeekData(slot, _) | ProcessOp::SeekHole(slot, _) if self.is_dir(*slot) => {
                return None;
            }
            ProcessOp::SeekData(slot, offset) | ProcessOp::SeekHole(slot, offset) => {
                let finds_data = matches!(op, ProcessOp::SeekData(..));
                let whence = if finds_data { libc::SEEK_DATA } else { libc::SEEK_HOLE };
                let found = served!(p.contents().lseek(fd(*slot), *offset, whence));
                let _ = p.contents().lseek(fd(*slot), 0, libc::SEEK_SET);
                seek_value(found)
            }
            ProcessOp::Ftruncate(slot, len) => {
                unit(served!(p.contents().ftruncate(fd(*slot), *len)))
            }
            ProcessOp::Truncate(place, len) => {
                unit(served!(p.contents().truncate(&path(place), *len)))
            }
            ProcessOp::Fallocate(slot, mode, offset, len) => {
                unit(served!(p.contents().fallocate(fd(*slot), *mode, *offset, *len)))
            }
            ProcessOp::Fsync(slot) => unit(served!(p.contents().fsync(fd(*slot)))),
            ProcessOp::Getfl(slot) => {
                let flags = served!(p.descriptors().fcntl(fd(*slot), libc::F_GETFL, 0));
                flags.map(|flags| Value::Number(i64::from(flags)))
            }
            ProcessOp::Setfl(slot, Octal(flags)) => {
                let set =
                    served!(p.descriptors().fcntl(fd(*slot), libc::F_SETFL, i64::from(*flags)));
                set.map(|_| Value::Number(0))
            }
            _ => return self.apply_to_inode(op),
        })
    }
}

impl Ours<'_> {
    /// Makes the other calls: on names and attributes, between files, and on the process.
    fn apply_to_inode(&mut self, op: &ProcessOp) -> Option<CallOutcome> {
        let p = &self.world.process;
        let fd = |slot: usize| self.slots.fds[slot];
        let at = |place: &AtPath| self.slots.at(place.0);
        let path = |place: &AtPath| full_path(&self.root, place);
        Some(match op {
            ProcessOp::Fstat(slot) => served!(p.names().fstat(fd(*slot))).map(|st| stat_value(&st)),
            ProcessOp::Stat(place, flags) => {
                served!(stat(p, at(place), &path(place), *flags)).map(|st| stat_value(&st))
            }
            ProcessOp::Access(place, mode, flags) => {
                unit(served!(p.names().access(at(place), &path(place), *mode, *flags)))
            }
            ProcessOp::Chmod(place, Octal(mode), flags) => {
                unit(served!(p.names().chmod(at(place), &path(place), *mode, *flags)))
            }
            ProcessOp::Fchmod(slot, Octal(mode)) => {
                unit(served!(p.names().fchmod(fd(*slot), *mode)))
            }
            ProcessOp::Chown(place, uid, gid, flags) => {
                unit(served!(p.names().chown(at(place), &path(place), *uid, *gid, *flags)))
            }
            ProcessOp::Fchown(slot, uid, gid) => {
                unit(served!(p.names().fchown(fd(*slot), *uid, *gid)))
            }
            ProcessOp::Utimens(place, Times(times), flags) => {
                unit(served!(p.names().utimens(at(place), &path(place), timespecs(times), *flags)))
            }
            ProcessOp::Futimens(slot, Times(times)) => {
                unit(served!(p.names().futimens(fd(*slot), timespecs(times))))
            }
            ProcessOp::Mkdir(place, Octal(mode)) => {
                unit(served!(p.names().mkdir(at(place), &path(place), *mode)))
            }
            ProcessOp::Mknod(place, Octal(mode), dev) => {
                unit(served!(p.names().mknod(at(place), &path(place), *mode, *dev)))
            }
            ProcessOp::Symlink(Text(target), place) => {
                let target = full_target(&self.root, target);
                unit(served!(p.names().symlink(&target, at(place), &path(place))))
            }
            ProcessOp::Readlink(place, len) => {
                let mut buf = vec![0; *len];
                let len = served!(p.names().readlink(at(place), &path(place), &mut buf));
                len.map(|len| relative(&self.root, &buf[..len]))
            }
            ProcessOp::Link(from, to, flags) => {
                unit(served!(p.names().link(at(from), &path(from), at(to), &path(to), *flags)))
            }
            ProcessOp::Unlink(place, flags) => {
                unit(served!(p.names().unlink(at(place), &path(place), *flags)))
            }
            ProcessOp::Rename(from, to, flags) => {
                unit(served!(p.names().rename(at(from), &path(from), at(to), &path(to), *flags)))
            }
            ProcessOp::List(slot) => {
                if let Err(errno) = served!(p.contents().lseek(fd(*slot), 0, libc::SEEK_SET)) {
                    return Some(Err(errno));
                }
                let mut names = Vec::new();
                let listed = served!(p.names().getdents(fd(*slot), &mut |item| {
                    names.push((String::from_utf8_lossy(item.name).into_owned(), item.kind));
                    true
                }));
                listed.map(|_| names_value(names))
            }
            ProcessOp::Chdir(place) => unit(served!(p.names().chdir(&path(place)))),
            ProcessOp::Fchdir(slot) => unit(served!(p.names().fchdir(fd(*slot)))),
            ProcessOp::Getcwd => {
                let mut buf = [0; 4096];
                let len = served!(p.names().getcwd(&mut buf));
                len.map(|len| relative(&self.root, &buf[..len]))
            }
            ProcessOp::Getxattr(place, Text(name), len) => {
                let mut buf = vec![0; *len];
                let len = served!(p.names().getxattr(&path(place), name.as_bytes(), &mut buf, 0));
                len.map(|len| Value::Bytes(buf[..len.min(buf.len())].to_vec()))
            }
            ProcessOp::Setxattr(place, Text(name), len, seed, how) => {
                let value = bytes(*len, *seed);
                unit(served!(p.names().setxattr(&path(place), name.as_bytes(), &value, *how, 0)))
            }
            ProcessOp::Fsetxattr(slot, Text(name), len, seed, how) => {
                let value = bytes(*len, *seed);
                unit(served!(p.names().fsetxattr(fd(*slot), name.as_bytes(), &value, *how)))
            }
            ProcessOp::Listxattr(place) => {
                let mut buf = [0; 4096];
                let len = served!(p.names().listxattr(&path(place), &mut buf, 0));
                len.map(|len| xattr_names(&buf[..len]))
            }
            ProcessOp::Removexattr(place, Text(name)) => {
                unit(served!(p.names().removexattr(&path(place), name.as_bytes(), 0)))
            }
            ProcessOp::CopyRange(from, Offset(from_at), to, Offset(to_at), len) => {
                if fd(*from) < 0 || fd(*to) < 0 {
                    return None;
                }
                let (mut a, mut b) = (*from_at, *to_at);
                let (from, to) = (fd(*from), fd(*to));
                number(served!(p.contents().copy_file_range(
                    from,
                    a.as_mut(),
                    to,
                    b.as_mut(),
                    *len,
                    0
                )))
            }
            ProcessOp::Sendfile(out, from, Offset(offset), len) => {
                let ino = |slot| match p.names().fstat(fd(slot)) {
                    Served::Done(Ok(st)) => Some(st.st_ino),
                    _ => None,
                };
                // Within one file, the kernel reads from pages while it writes to them.
                if ino(*from).is_none() || ino(*out).is_none() || ino(*from) == ino(*out) {
                    return None;
                }
                let mut offset = *offset;
                number(served!(p.contents().sendfile(fd(*out), fd(*from), offset.as_mut(), *len)))
            }
            ProcessOp::Umask(Octal(mask)) => {
                p.task().umask(*mask);
                Ok(Value::Number(0))
            }
            ProcessOp::Become(user) => {
                become_user(*user);
                p.credentials_changed();
                Ok(Value::Number(0))
            }
            _ => unreachable!("`apply` makes it"),
        })
    }
}

/// The file system chooses where data and holes are. Only errors of use count.
fn seek_value(found: Result<i64, Errno>) -> CallOutcome {
    match found {
        Ok(_) | Err(Errno::NXIO) => Ok(Value::Number(0)),
        Err(errno) => Err(errno),
    }
}

/// Gives the file system calls of this thread the credentials of a user. User 0 has all
/// capabilities.
fn become_user(user: u32) {
    let groups = [if user == 0 { 0 } else { 1001u32 }];
    // SAFETY: plain numbers and an array of one ID; only this thread changes.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 1, groups.as_ptr()), 0, "this needs root");
        libc::syscall(libc::SYS_setfsgid, user);
        libc::syscall(libc::SYS_setfsuid, user);
    }
}

/// The kernel, in a directory.
pub struct Theirs {
    root: Vec<u8>,
    slots: Slots,
    _dir: tempfile::TempDir,
}

impl Theirs {
    pub fn new(dir: tempfile::TempDir) -> Self {
        let root = dir.path().as_os_str().as_bytes().to_vec();
        std::env::set_current_dir(dir.path()).unwrap();
        let path = cstring(&root);
        // SAFETY: a path with its NUL.
        unsafe {
            assert_eq!(libc::chmod(path.as_ptr(), 0o777), 0);
            libc::umask(0o022);
        }
        Self { root, slots: Slots::new(), _dir: dir }
    }

    fn fill(&mut self, fd: i64) -> CallOutcome {
        let fd = libc_result(fd)? as i32;
        let old = self.slots.put(fd);
        if old >= 0 {
            // SAFETY: a descriptor of this side.
            assert_eq!(unsafe { libc::close(old) }, 0);
        }
        Ok(Value::Number(0))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        std::env::set_current_dir("/").unwrap();
        for fd in self.slots.fds.into_iter().filter(|fd| *fd >= 0) {
            // SAFETY: a descriptor of this side.
            unsafe { libc::close(fd) };
        }
    }
}

fn unit_of(ret: impl Into<i64>) -> CallOutcome {
    libc_result(ret.into()).map(|_| Value::Number(0))
}

fn number_of(ret: impl Into<i64>) -> CallOutcome {
    libc_result(ret.into()).map(Value::Number)
}

fn bytes_of(ret: isize, buf: &[u8]) -> CallOutcome {
    libc_result(ret as i64).map(|n| Value::Bytes(buf[..(n as usize).min(buf.len())].to_vec()))
}

impl Side for Theirs {
    fn last(&self) -> usize {
        self.slots.last()
    }

    /// SAFETY of the calls below: paths and names have their NUL and live to the end of the call;
    /// buffers have the length that is passed; descriptors are this side's.
    fn apply(&mut self, op: &ProcessOp) -> Option<CallOutcome> {
        use libc::iovec;
        let fd = |slot: usize| self.slots.fds[slot];
        let at = |place: &AtPath| self.slots.at(place.0);
        let path = |place: &AtPath| cstring(&full_path(&self.root, place));
        // SAFETY: see above.
        Some(unsafe {
            match op {
                ProcessOp::Open(place, Octal(flags), Octal(mode)) => {
                    let fd = libc::openat(at(place), path(place).as_ptr(), *flags as i32, *mode);
                    self.fill(fd.into())
                }
                ProcessOp::Close(slot) => {
                    let closed = unit_of(libc::close(fd(*slot)));
                    self.slots.fds[*slot] = -1;
                    closed
                }
                ProcessOp::Dup(slot) => {
                    let fd = libc::dup(fd(*slot));
                    self.fill(fd.into())
                }
                ProcessOp::Dup2(a, b) => unit_of(libc::dup2(fd(*a), fd(*b))),
                ProcessOp::Read(slot, len) => {
                    let mut buf = vec![0u8; *len];
                    bytes_of(libc::read(fd(*slot), buf.as_mut_ptr().cast(), *len), &buf)
                }
                ProcessOp::Write(slot, len, seed) => {
                    let data = bytes(*len, *seed);
                    number_of(libc::write(fd(*slot), data.as_ptr().cast(), *len) as i64)
                }
                ProcessOp::Pread(slot, len, offset) => {
                    let mut buf = vec![0u8; *len];
                    bytes_of(libc::pread(fd(*slot), buf.as_mut_ptr().cast(), *len, *offset), &buf)
                }
                ProcessOp::Pwrite(slot, len, seed, offset) => {
                    let data = bytes(*len, *seed);
                    number_of(libc::pwrite(fd(*slot), data.as_ptr().cast(), *len, *offset) as i64)
                }
                ProcessOp::Readv(slot, Lens(lens)) => {
                    let mut bufs = lens.map(|len| vec![0u8; len]);
                    let parts = bufs
                        .each_mut()
                        .map(|buf| iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() });
                    let len = libc::readv(fd(*slot), parts.as_ptr(), 3);
                    bytes_of(len, &bufs.concat())
                }
                ProcessOp::Writev(slot, Lens(lens), seed) => {
                    let data = lens.map(|len| bytes(len, *seed));
                    let parts = data.each_ref().map(|part| iovec {
                        iov_base: part.as_ptr().cast_mut().cast(),
                        iov_len: part.len(),
                    });
                    number_of(libc::writev(fd(*slot), parts.as_ptr(), 3) as i64)
                }
                ProcessOp::Pwritev2(slot, len, seed, offset, flags) => {
                    let data = bytes(*len, *seed);
                    let part = iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: *len };
                    number_of(libc::pwritev2(fd(*slot), &part, 1, *offset, *flags) as i64)
                }
                ProcessOp::Lseek(slot, offset, whence) => {
                    number_of(libc::lseek(fd(*slot), *offset, *whence))
                }
                ProcessOp::SeekData(slot, offset) | ProcessOp::SeekHole(slot, offset) => {
                    let finds_data = matches!(op, ProcessOp::SeekData(..));
                    let whence = if finds_data { libc::SEEK_DATA } else { libc::SEEK_HOLE };
                    let found = libc_result(libc::lseek(fd(*slot), *offset, whence));
                    libc::lseek(fd(*slot), 0, libc::SEEK_SET);
                    seek_value(found)
                }
                ProcessOp::Ftruncate(slot, len) => unit_of(libc::ftruncate(fd(*slot), *len)),
                ProcessOp::Truncate(place, len) => {
                    unit_of(libc::truncate(path(place).as_ptr(), *len))
                }
                ProcessOp::Fallocate(slot, mode, offset, len) => {
                    unit_of(libc::fallocate(fd(*slot), *mode, *offset, *len))
                }
                ProcessOp::Fsync(slot) => unit_of(libc::fsync(fd(*slot))),
                ProcessOp::Getfl(slot) => number_of(libc::fcntl(fd(*slot), libc::F_GETFL)),
                ProcessOp::Setfl(slot, Octal(flags)) => {
                    unit_of(libc::fcntl(fd(*slot), libc::F_SETFL, *flags))
                }
                _ => return self.apply_to_inode(op),
            }
        })
    }
}

impl Theirs {
    /// Makes the other calls: on names and attributes, between files, and on the process.
    ///
    /// SAFETY of the calls below: as in `apply`.
    fn apply_to_inode(&mut self, op: &ProcessOp) -> Option<CallOutcome> {
        use libc::c_char;
        let fd = |slot: usize| self.slots.fds[slot];
        let at = |place: &AtPath| self.slots.at(place.0);
        let path = |place: &AtPath| cstring(&full_path(&self.root, place));
        let ptr = |o: &mut Option<i64>| o.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: see above.
        Some(unsafe {
            match op {
                ProcessOp::Fstat(slot) => {
                    let mut st = std::mem::zeroed();
                    unit_of(libc::fstat(fd(*slot), &mut st)).map(|_| stat_value(&st))
                }
                ProcessOp::Stat(place, flags) => {
                    let mut st = std::mem::zeroed();
                    let ret = libc::fstatat(at(place), path(place).as_ptr(), &mut st, *flags);
                    unit_of(ret).map(|_| stat_value(&st))
                }
                ProcessOp::Access(place, mode, flags) => {
                    let (dirfd, path) = (at(place), path(place));
                    let ret =
                        libc::syscall(libc::SYS_faccessat2, dirfd, path.as_ptr(), *mode, *flags);
                    unit_of(ret)
                }
                ProcessOp::Chmod(place, Octal(mode), flags) => {
                    unit_of(libc::fchmodat(at(place), path(place).as_ptr(), *mode, *flags))
                }
                ProcessOp::Fchmod(slot, Octal(mode)) => unit_of(libc::fchmod(fd(*slot), *mode)),
                ProcessOp::Chown(place, uid, gid, flags) => {
                    unit_of(libc::fchownat(at(place), path(place).as_ptr(), *uid, *gid, *flags))
                }
                ProcessOp::Fchown(slot, uid, gid) => unit_of(libc::fchown(fd(*slot), *uid, *gid)),
                ProcessOp::Utimens(place, Times(times), flags) => {
                    let times = timespecs(times);
                    let times = times.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
                    unit_of(libc::utimensat(at(place), path(place).as_ptr(), times, *flags))
                }
                ProcessOp::Futimens(slot, Times(times)) => {
                    let times = timespecs(times);
                    let times = times.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
                    unit_of(libc::futimens(fd(*slot), times))
                }
                ProcessOp::Mkdir(place, Octal(mode)) => {
                    unit_of(libc::mkdirat(at(place), path(place).as_ptr(), *mode))
                }
                ProcessOp::Mknod(place, Octal(mode), dev) => {
                    unit_of(libc::mknodat(at(place), path(place).as_ptr(), *mode, *dev))
                }
                ProcessOp::Symlink(Text(target), place) => {
                    let target = cstring(&full_target(&self.root, target));
                    unit_of(libc::symlinkat(target.as_ptr(), at(place), path(place).as_ptr()))
                }
                ProcessOp::Readlink(place, len) => {
                    let mut buf = vec![0u8; *len];
                    let (dirfd, path) = (at(place), path(place));
                    let to = buf.as_mut_ptr().cast::<c_char>();
                    let len = libc::readlinkat(dirfd, path.as_ptr(), to, *len) as i64;
                    libc_result(len).map(|len| relative(&self.root, &buf[..len as usize]))
                }
                ProcessOp::Link(from, to, flags) => {
                    let (a, b) = (path(from), path(to));
                    unit_of(libc::linkat(at(from), a.as_ptr(), at(to), b.as_ptr(), *flags))
                }
                ProcessOp::Unlink(place, flags) => {
                    unit_of(libc::unlinkat(at(place), path(place).as_ptr(), *flags))
                }
                ProcessOp::Rename(from, to, flags) => {
                    let (a, b) = (path(from), path(to));
                    unit_of(libc::renameat2(at(from), a.as_ptr(), at(to), b.as_ptr(), *flags))
                }
                ProcessOp::List(slot) => {
                    if libc::lseek(fd(*slot), 0, libc::SEEK_SET) < 0 {
                        return Some(unit_of(-1));
                    }
                    list(fd(*slot))
                }
                ProcessOp::Chdir(place) => unit_of(libc::chdir(path(place).as_ptr())),
                ProcessOp::Fchdir(slot) => unit_of(libc::fchdir(fd(*slot))),
                ProcessOp::Getcwd => {
                    let mut buf = [0u8; 4096];
                    let len = libc::syscall(libc::SYS_getcwd, buf.as_mut_ptr(), buf.len());
                    libc_result(len).map(|len| relative(&self.root, &buf[..len as usize - 1]))
                }
                ProcessOp::Getxattr(place, Text(name), len) => {
                    let mut buf = vec![0u8; *len];
                    let (path, name) = (path(place), cstring(name.as_bytes()));
                    let to = buf.as_mut_ptr().cast();
                    bytes_of(libc::getxattr(path.as_ptr(), name.as_ptr(), to, *len), &buf)
                }
                ProcessOp::Setxattr(place, Text(name), len, seed, how) => {
                    let (path, name) = (path(place), cstring(name.as_bytes()));
                    let value = bytes(*len, *seed);
                    let from = value.as_ptr().cast();
                    unit_of(libc::setxattr(path.as_ptr(), name.as_ptr(), from, value.len(), *how))
                }
                ProcessOp::Fsetxattr(slot, Text(name), len, seed, how) => {
                    let name = cstring(name.as_bytes());
                    let value = bytes(*len, *seed);
                    let from = value.as_ptr().cast();
                    unit_of(libc::fsetxattr(fd(*slot), name.as_ptr(), from, value.len(), *how))
                }
                ProcessOp::Listxattr(place) => {
                    let mut buf = [0u8; 4096];
                    let to = buf.as_mut_ptr().cast();
                    let len = libc::listxattr(path(place).as_ptr(), to, buf.len());
                    libc_result(len as i64).map(|len| xattr_names(&buf[..len as usize]))
                }
                ProcessOp::Removexattr(place, Text(name)) => {
                    let (path, name) = (path(place), cstring(name.as_bytes()));
                    unit_of(libc::removexattr(path.as_ptr(), name.as_ptr()))
                }
                ProcessOp::CopyRange(from, Offset(from_at), to, Offset(to_at), len) => {
                    let (mut a, mut b) = (*from_at, *to_at);
                    let (a, b) = (ptr(&mut a), ptr(&mut b));
                    number_of(libc::copy_file_range(fd(*from), a, fd(*to), b, *len, 0) as i64)
                }
                ProcessOp::Sendfile(out, from, Offset(offset), len) => {
                    let mut offset = *offset;
                    let offset = ptr(&mut offset);
                    number_of(libc::sendfile(fd(*out), fd(*from), offset, *len) as i64)
                }
                ProcessOp::Umask(Octal(mask)) => {
                    libc::umask(*mask);
                    Ok(Value::Number(0))
                }
                ProcessOp::Become(user) => {
                    become_user(*user);
                    Ok(Value::Number(0))
                }
                _ => unreachable!("`apply` makes it"),
            }
        })
    }
}

/// All entries from a directory's offset on.
fn list(fd: i32) -> CallOutcome {
    let mut names = Vec::new();
    let mut buf = [0u8; 8192];
    loop {
        // SAFETY: room for the number of bytes that is passed.
        let len = unsafe { libc::syscall(libc::SYS_getdents64, fd, buf.as_mut_ptr(), buf.len()) };
        let mut rest = &buf[..libc_result(len)? as usize];
        if rest.is_empty() {
            return Ok(names_value(names));
        }
        while !rest.is_empty() {
            let len = u16::from_le_bytes([rest[16], rest[17]]) as usize;
            let name = rest[19..len].split(|&b| b == 0).next().unwrap();
            names.push((String::from_utf8_lossy(name).into_owned(), rest[18]));
            rest = &rest[len..];
        }
    }
}
