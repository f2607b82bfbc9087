//! Random calls on a few files, by libc's functions and by number; each writes down what it
//! returned.

#![allow(unsafe_code)]

use rng::Rng;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

const FILES: u64 = 3;
const SLOTS: u64 = 6;
/// Files reach over two borders of chunks.
const SIZE: u64 = 5 << 20;

struct World {
    dir: Vec<u8>,
    slots: [c_int; SLOTS as usize],
    buf: Vec<u8>,
    /// Whether another process changes the files, too. It cuts files and makes holes of which this
    /// process does not know. A read may turn such a hole into data, so no call seeks holes then.
    others: bool,
}

/// FNV, by words.
fn hash(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    });
    words.fold(0xcbf2_9ce4_8422_2325, |h, word| {
        (h ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29)
    })
}

/// A result with its error number.
fn show(result: i64) -> String {
    match result {
        -1 => format!("{:?}", std::io::Error::last_os_error().raw_os_error()),
        result => result.to_string(),
    }
}

/// Makes a call by libc's function, or by its number (`syscall`).
macro_rules! call {
    ($by_number:expr, $number:ident, $name:ident($($arg:expr),+ $(,)?)) => {
        if $by_number { libc::syscall(libc::$number, $($arg),+) } else { libc::$name($($arg),+) as i64 }
    };
}

/// A system call that no library sees, as by another process.
///
/// SAFETY of its uses: the arguments are numbers, and strings and buffers that live.
unsafe fn unseen(number: i64, args: [i64; 4]) -> i64 {
    let result;
    // SAFETY: see above.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The arguments of a call, as drawn.
struct Drawn {
    fd: c_int,
    len: usize,
    offset: i64,
    seed: u64,
    /// Whether the call is made by number.
    by_number: bool,
}

impl World {
    fn path(&self, file: u64) -> CString {
        CString::new([&self.dir[..], format!("/{file}").as_bytes()].concat()).unwrap()
    }

    fn offset(rng: &mut Rng) -> i64 {
        let near = rng.pick(&[0, 4096, 2 << 20, (2 << 20) - 4096, 4 << 20, SIZE]) as i64;
        match rng.below(8) {
            0 => rng.below(SIZE + 9000) as i64,
            1 => -(rng.below(3) as i64) - 1,
            2 | 3 => near + rng.below(20) as i64 - 10,
            _ => rng.below(60_000) as i64,
        }
    }

    /// A new size of a file: seldom a small one, which would leave nothing to copy.
    fn size(rng: &mut Rng) -> i64 {
        if rng.below(4) == 0 { Self::offset(rng) } else { (SIZE - rng.below(3 << 20)) as i64 }
    }

    fn len(rng: &mut Rng) -> usize {
        match rng.below(12) {
            0 => 0,
            1 => 4096,
            2 => 65_536,
            3 => rng.below(5 << 20) as usize,
            4 | 5 => rng.below(20_000) as usize,
            _ => rng.below(300) as usize,
        }
    }

    /// Fills the buffer for a write.
    fn fill(&mut self, len: usize, seed: u64) {
        for (i, byte) in self.buf[..len].iter_mut().enumerate() {
            *byte = (seed as usize + i * 7 + i / 251) as u8;
        }
    }

    fn bytes(&self, result: i64) -> String {
        if result < 0 {
            return show(-1);
        }
        format!("{result} {:016x}", hash(&self.buf[..result as usize]))
    }

    /// Puts a new descriptor into a slot.
    fn keep(&mut self, slot: usize, fd: c_int) -> String {
        if fd < 0 {
            return show(-1);
        }
        let old = std::mem::replace(&mut self.slots[slot], fd);
        if old >= 0 {
            // SAFETY: ours.
            unsafe { libc::close(old) };
        }
        fd.to_string()
    }

    /// Makes a call, and describes the result.
    ///
    /// SAFETY of the calls: descriptors are ours or -1; buffers have the number of bytes that is
    /// passed.
    fn call(&mut self, rng: &mut Rng) -> String {
        let slot = rng.below(SLOTS) as usize;
        let fd = self.slots[slot];
        let file = rng.below(FILES);
        let path = self.path(file);
        let (len, offset, seed) = (Self::len(rng), Self::offset(rng), rng.next());
        let what = rng.below(112);
        let by_number = seed >> 40 & 3 == 0;
        let drawn = Drawn { fd, len, offset, seed, by_number };
        // SAFETY: see above.
        let result = unsafe {
            match what {
                0..=7 => {
                    let how =
                        rng.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
                    let extra = rng.pick(&[
                        0,
                        0,
                        0,
                        0,
                        0,
                        libc::O_APPEND,
                        libc::O_SYNC,
                        libc::O_CLOEXEC,
                        libc::O_NOATIME,
                    ]);
                    let extra = if rng.below(20) == 0 { libc::O_TRUNC } else { extra };
                    let fd = call!(
                        by_number,
                        SYS_open,
                        open(path.as_ptr(), libc::O_CREAT | how | extra, 0o644)
                    );
                    self.keep(slot, fd as c_int)
                }
                8 | 9 => {
                    self.slots[slot] = -1;
                    show(call!(by_number, SYS_close, close(fd)))
                }
                10 => {
                    let new = call!(by_number, SYS_dup, dup(fd));
                    self.keep(rng.below(SLOTS) as usize, new as c_int)
                }
                11 => {
                    let new = self.slots[rng.below(SLOTS) as usize];
                    show(if new < 0 { -2 } else { call!(by_number, SYS_dup2, dup2(fd, new)) })
                }
                12..=27 => {
                    let n = call!(
                        by_number,
                        SYS_read,
                        read(fd, self.buf.as_mut_ptr().cast::<c_void>(), len)
                    );
                    self.bytes(n)
                }
                28..=41 => {
                    self.fill(len, seed);
                    show(call!(
                        by_number,
                        SYS_write,
                        write(fd, self.buf.as_ptr().cast::<c_void>(), len)
                    ))
                }
                42..=53 => {
                    let n = call!(
                        by_number,
                        SYS_pread64,
                        pread(fd, self.buf.as_mut_ptr().cast::<c_void>(), len, offset)
                    );
                    self.bytes(n)
                }
                54..=64 => {
                    self.fill(len, seed);
                    show(call!(
                        by_number,
                        SYS_pwrite64,
                        pwrite(fd, self.buf.as_ptr().cast::<c_void>(), len, offset)
                    ))
                }
                65..=68 => self.vectors(by_number, fd, len, offset, seed),
                69..=75 => {
                    let whence =
                        rng.pick(&[libc::SEEK_SET, libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END]);
                    let offset = if rng.below(4) == 0 { -offset } else { offset };
                    show(call!(by_number, SYS_lseek, lseek(fd, offset, whence)))
                }
                76 => {
                    let whence = rng.pick(&[libc::SEEK_DATA, libc::SEEK_HOLE, 17]);
                    let whence = if self.others { 17 } else { whence };
                    show(call!(by_number, SYS_lseek, lseek(fd, offset, whence)))
                }
                77 | 78 => show(call!(by_number, SYS_ftruncate, ftruncate(fd, Self::size(rng)))),
                79 => {
                    show(call!(by_number, SYS_truncate, truncate(path.as_ptr(), Self::size(rng))))
                }
                80 | 81 => {
                    let keep = libc::FALLOC_FL_KEEP_SIZE;
                    let mode = rng.pick(&[0, keep, keep | libc::FALLOC_FL_PUNCH_HOLE]);
                    show(call!(by_number, SYS_fallocate, fallocate(fd, mode, offset, len as i64)))
                }
                82 => show(call!(by_number, SYS_fsync, fsync(fd))),
                83 => {
                    let flags = rng.pick(&[0, libc::O_APPEND]);
                    show(call!(by_number, SYS_fcntl, fcntl(fd, libc::F_SETFL, flags)))
                }
                _ => self.rare_call(rng, what, &path, &drawn),
            }
        };
        format!("{what} slot {slot} fd {fd} file {file} len {len} offset {offset}: {result}")
    }

    /// Makes one of the calls that are drawn less often, on names, locks and attributes, and
    /// describes the result.
    ///
    /// SAFETY of the calls: as in `call`.
    fn rare_call(&mut self, rng: &mut Rng, what: u64, path: &CStr, drawn: &Drawn) -> String {
        let &Drawn { fd, len, offset, seed, by_number } = drawn;
        // SAFETY: see above.
        unsafe {
            match what {
                84 => show(call!(by_number, SYS_unlink, unlink(path.as_ptr()))),
                85 => show(call!(
                    by_number,
                    SYS_rename,
                    rename(path.as_ptr(), self.path(rng.below(FILES)).as_ptr())
                )),
                // Another process changes the size, or makes a hole.
                86..=88 if self.others => {
                    let size = Self::size(rng).max(0);
                    show(unseen(libc::SYS_truncate, [path.as_ptr() as i64, size, 0, 0]).max(-2))
                }
                89 if self.others => {
                    let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
                    let args = [fd.into(), mode.into(), offset.max(0) & !4095, 40_960];
                    show(unseen(libc::SYS_fallocate, args).max(-2))
                }
                90 if seed % 4 == 0 => self.child(fd, len, seed),
                90 | 91 => {
                    // As good as new.
                    self.fill(SIZE as usize, seed);
                    show(call!(
                        by_number,
                        SYS_pwrite64,
                        pwrite(fd, self.buf.as_ptr().cast::<c_void>(), SIZE as usize, 0)
                    ))
                }
                92 => {
                    let (mut a, mut b) = (offset, Self::offset(rng));
                    let to = self.slots[rng.below(SLOTS) as usize];
                    let pointer =
                        |use_it: bool, at: &mut i64| if use_it { at } else { std::ptr::null_mut() };
                    let (a, b) = (pointer(seed & 1 == 0, &mut a), pointer(seed & 2 == 0, &mut b));
                    show(call!(
                        by_number,
                        SYS_copy_file_range,
                        copy_file_range(fd, a, to, b, len, 0)
                    ))
                }
                93 => {
                    let to = self.slots[rng.below(SLOTS) as usize];
                    show(if to == fd {
                        -2
                    } else {
                        call!(
                            by_number,
                            SYS_sendfile,
                            sendfile(to, fd, std::ptr::null_mut::<i64>(), len)
                        )
                    })
                }
                94 => {
                    // The first page of this buffer is accessible. The second page stays mapped
                    // without access, so that the library maps nothing of its own there.
                    let page = libc::mmap(
                        std::ptr::null_mut(),
                        8192,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                        -1,
                        0,
                    );
                    libc::mprotect(page.byte_add(4096), 4096, libc::PROT_NONE);
                    let at = page.byte_add(4000);
                    let result = if seed & 1 == 0 {
                        call!(by_number, SYS_pread64, pread(fd, at, 200, offset))
                    } else {
                        call!(by_number, SYS_pwrite64, pwrite(fd, at, 200, offset))
                    };
                    let shown = show(result as i64);
                    libc::munmap(page, 8192);
                    shown
                }
                95 if seed & 1 == 0 => Self::record_lock(fd),
                95 => show(call!(
                    by_number,
                    SYS_flock,
                    flock(fd, rng.pick(&[libc::LOCK_SH, libc::LOCK_UN]) | libc::LOCK_NB)
                )),
                96 => {
                    let mut left: c_int = -3;
                    let result = call!(by_number, SYS_ioctl, ioctl(fd, libc::FIONREAD, &mut left));
                    format!("{} {left}", show(result))
                }
                97 | 98 => {
                    let mut stat: libc::stat = std::mem::zeroed();
                    let result = call!(by_number, SYS_fstat, fstat(fd, &mut stat));
                    format!(
                        "{} {} {:o} {}",
                        show(result),
                        stat.st_size,
                        stat.st_mode,
                        stat.st_nlink
                    )
                }
                // Small ones, in the middle.
                _ => {
                    let (len, offset) = (len % 10_000, offset.rem_euclid(3 << 20));
                    if seed & 1 == 0 {
                        self.fill(len, seed);
                        show(call!(
                            by_number,
                            SYS_pwrite64,
                            pwrite(fd, self.buf.as_ptr().cast::<c_void>(), len, offset)
                        ))
                    } else {
                        let n = call!(
                            by_number,
                            SYS_pread64,
                            pread(fd, self.buf.as_mut_ptr().cast::<c_void>(), len, offset)
                        );
                        self.bytes(n)
                    }
                }
            }
        }
    }

    /// A lock of records from the offset on, as another description sees it.
    ///
    /// # Safety
    /// `fd` is ours or -1.
    unsafe fn record_lock(fd: c_int) -> String {
        let record = |kind: c_int, whence: c_int, len: i64| libc::flock {
            l_type: kind as i16,
            l_whence: whence as i16,
            l_start: 0,
            l_len: len,
            l_pid: 0,
        };
        let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
        // SAFETY: locks that live, and a path.
        unsafe {
            let mut lock = record(libc::F_RDLCK, libc::SEEK_CUR, 10);
            let result = show(libc::fcntl(fd, libc::F_OFD_SETLK, &mut lock).into());
            let other = libc::open(path.as_ptr(), libc::O_RDONLY);
            let mut seen = record(libc::F_WRLCK, libc::SEEK_SET, 0);
            libc::fcntl(other, libc::F_OFD_GETLK, &mut seen);
            libc::close(other);
            let mut all = record(libc::F_UNLCK, libc::SEEK_SET, 0);
            libc::fcntl(fd, libc::F_OFD_SETLK, &mut all);
            format!("{result} {} at {}", seen.l_type, seen.l_start)
        }
    }

    /// The vector forms.
    ///
    /// # Safety
    /// `fd` is ours or -1.
    unsafe fn vectors(
        &mut self,
        by_number: bool,
        fd: c_int,
        len: usize,
        offset: i64,
        seed: u64,
    ) -> String {
        let cut = len / 3;
        self.fill(len, seed);
        let base = self.buf.as_mut_ptr();
        let part = |from: usize, to: usize| libc::iovec {
            iov_base: base.wrapping_add(from).cast(),
            iov_len: to - from,
        };
        let list = [part(0, cut), part(cut, cut), part(cut, len)];
        let flags = if seed & 8 == 0 { 0 } else { libc::RWF_DSYNC };
        // SAFETY: parts of the buffer.
        unsafe {
            match seed % 5 {
                0 => show(call!(by_number, SYS_writev, writev(fd, list.as_ptr(), 3))),
                // The kernel's calls have the offset in two halves.
                1 if by_number => {
                    show(libc::syscall(libc::SYS_pwritev, fd, list.as_ptr(), 3, offset, 0))
                }
                1 => show(libc::pwritev(fd, list.as_ptr(), 3, offset) as i64),
                2 if by_number => {
                    show(libc::syscall(libc::SYS_pwritev2, fd, list.as_ptr(), 3, offset, 0, flags))
                }
                2 => show(libc::pwritev2(fd, list.as_ptr(), 3, offset, flags) as i64),
                3 => {
                    let n = call!(by_number, SYS_readv, readv(fd, list.as_ptr(), 3));
                    self.bytes(n)
                }
                _ => {
                    let n = if by_number {
                        libc::syscall(libc::SYS_preadv2, fd, list.as_ptr(), 3, offset, 0, 0)
                    } else {
                        libc::preadv2(fd, list.as_ptr(), 3, offset, 0) as i64
                    };
                    self.bytes(n)
                }
            }
        }
    }

    /// A forked child moves the offset, reads and writes, and ends.
    ///
    /// # Safety
    /// `fd` is ours or -1.
    unsafe fn child(&mut self, fd: c_int, len: usize, seed: u64) -> String {
        self.fill(len, seed);
        let mut status = 0;
        // SAFETY: the child makes system calls and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::lseek(fd, seed as i64 % 1000, libc::SEEK_CUR);
                libc::write(fd, self.buf.as_ptr().cast::<c_void>(), len);
                let n = libc::read(fd, self.buf.as_mut_ptr().cast::<c_void>(), 100);
                libc::_exit((n & 0x7f) as c_int);
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        format!("child {status}")
    }
}

/// Runs one sequence in a directory, and says what each call returned and what remains.
pub fn run(dir: &Path, seed: u64) {
    let mut rng = Rng::new(rng::hash(seed));
    let mut world = World {
        dir: dir.as_os_str().as_bytes().to_vec(),
        slots: [-1; SLOTS as usize],
        buf: vec![0; 6 << 20],
        others: rng.below(2) == 0,
    };
    for file in 0..FILES {
        let path = world.path(file);
        world.fill(SIZE as usize, file);
        // SAFETY: a path, and bytes of the buffer.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o644);
            libc::write(fd, world.buf.as_ptr().cast(), SIZE as usize);
            world.slots[file as usize] = fd;
        }
    }
    println!();
    for index in 0..super::SEQUENCE {
        println!("# {index} {}", world.call(&mut rng));
    }
    for slot in 0..SLOTS as usize {
        // SAFETY: a descriptor of ours or -1.
        let at = unsafe { libc::lseek(world.slots[slot], 0, libc::SEEK_CUR) };
        // SAFETY: as above; the kernel's offset, once it counts.
        unsafe { libc::close(world.slots[slot]) };
        println!("# slot {slot} at {at}");
    }
    for file in 0..FILES {
        let content = std::fs::read(dir.join(file.to_string()));
        println!("# file {file}: {:?}", content.ok().map(|bytes| (bytes.len(), hash(&bytes))));
    }
}
