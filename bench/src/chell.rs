//! Chell-Direct: files of tmpfs, read and written by copies under `keepstone run --direct`, against
//! the same calls made by the kernel.
//!
//! As in [`crate::direct`], two processes take part; the inner one has a directory that is served.
//! Its peer is another directory of the same tmpfs, used by libc's own functions, as without the
//! library.

#![allow(unsafe_code)]

use crate::direct::{again, inner_dir};
use crate::engine::size;
use crate::fuse::Programs;
use crate::posix::Libc;
use crate::report::Section;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::{Durable, Kernel, open_dir};
use crate::workload::{APPEND_BYTES, Bed, Buffer, FILE_BYTES};
use crate::xdd::{self, Place};
use anyhow::{Result, ensure};
use rng::Rng;
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::{CStr, OsStr};
use std::path::Path;
use std::sync::OnceLock;

const SUBJECT: &str = "keepstone";
const PEER: &str = "kernel";
const PAGE: usize = 4096;
const CHUNK: usize = 2 << 20;
/// Bytes that the caches of the processor hold; the paper measures in a file of 2 MB.
const NEAR: usize = 1 << 20;
/// Bytes that they do not hold.
const FAR: usize = FILE_BYTES as usize;
/// Bytes in which xdd's mixes read and write (Figure 4).
const MIXED: usize = 16 << 20;

/// Sizes of the figures over request size, in bytes, with the targets for reading and writing.
const SIZES: [(usize, Option<f64>, Option<f64>); 9] = [
    (8, None, None),
    (64, Some(10.0), Some(10.0)),
    (512, None, None),
    (4 << 10, Some(3.0), Some(2.5)),
    (16 << 10, None, None),
    (64 << 10, Some(1.3), Some(1.3)),
    (256 << 10, None, None),
    (1 << 20, None, None),
    (4 << 20, None, None),
];

/// Runs the cases with the arguments of this program, files in `dir`.
pub fn run(plan: &Plan, programs: &Programs, dir: &Path) -> Result<Vec<Outcome>> {
    if let Some(served) = inner_dir() {
        return inside(plan, &served, dir);
    }
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let served = tmp.path().join("served");
    std::fs::create_dir(&served)?;
    let options = [OsStr::new("--direct"), served.as_os_str()];
    match again(programs, tmp.path(), &options, &served)? {
        Section::Chell(outcomes) => Ok(outcomes),
        _ => unreachable!("the same command was run"),
    }
}

/// Measures in a program under `keepstone run`: `served` is in the pool, the peer's files are in
/// `dir`.
fn inside(plan: &Plan, served: &Path, dir: &Path) -> Result<Vec<Outcome>> {
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let direct = Libc::new(served, false)?;
    let kernel = Kernel::new(open_dir(tmp.path())?, Durable::Never);
    let ours = Bed::new(SUBJECT, &direct, 100)?;
    let theirs = Bed::new(PEER, &kernel, 100)?;
    let (our_file, their_file) = (served.join("file-000000"), tmp.path().join("file-000000"));
    let mut outcomes = Vec::new();
    for (len, target, _) in SIZES {
        let case = case(format!("pread/{}", size(len)), "at random in 1 MiB", len, target);
        let mut case = case
            .with(at_random(libc_open(&our_file)?, LIBC, len, false))
            .with(at_random(libc_open(&their_file)?, KERNEL, len, false));
        if len == PAGE {
            case = case.with(copies(&their_file, false)?);
        }
        plan.run(case, &mut outcomes)?;
    }
    for (len, _, target) in SIZES {
        let case = case(format!("pwrite/{}", size(len)), "at random in 1 MiB", len, target);
        let mut case = case
            .with(at_random(libc_open(&our_file)?, LIBC, len, true))
            .with(at_random(libc_open(&their_file)?, KERNEL, len, true));
        if len == PAGE {
            case = case.with(copies(&their_file, true)?);
        }
        plan.run(case, &mut outcomes)?;
    }
    for (len, ..) in SIZES.into_iter().filter(|(len, ..)| *len < CHUNK) {
        let case = case_of(format!("lend/{}", size(len)), "a place to read from, at random", len)
            .with(lent(libc_open(&our_file)?, len)?)
            .with(at_random(libc_open(&their_file)?, KERNEL, len, false));
        plan.run(case, &mut outcomes)?;
    }
    for len in [64, PAGE, 64 << 10] {
        let case = case(format!("far/pread/{}", size(len)), "at random in 128 MiB", len, None);
        plan.run(case.with(ours.read(len)).with(theirs.read(len)), &mut outcomes)?;
        let case = case_of(format!("far/pwrite/{}", size(len)), "at random in 128 MiB", len);
        plan.run(case.with(ours.overwrite(len)).with(theirs.overwrite(len)), &mut outcomes)?;
    }
    let case_4k = |name: &str, what: &str, target| case(name.into(), what, PAGE, target);
    for (name, span, target) in [("read/4K", NEAR, Some(4.0)), ("far/read/4K", FAR, None)] {
        let case = case_4k(name, &format!("in order through {}", size(span)), target)
            .with(in_order(libc_open(&our_file)?, LIBC, span))
            .with(in_order(libc_open(&their_file)?, KERNEL, span));
        plan.run(case, &mut outcomes)?;
    }
    let case = Case::new("four-threads/pwrite", "4 KiB at random in 128 MiB, all in one file")
        .bytes(PAGE as u64)
        .with(ours.overwrite_by_four(PAGE))
        .with(theirs.overwrite_by_four(PAGE))
        .target(&format!("{PEER}, 4 threads"), 2.5);
    plan.run(case, &mut outcomes)?;
    let places: [Place; 2] =
        [(SUBJECT, LIBC, our_file.clone()), (PEER, KERNEL, their_file.clone())];
    for case in xdd::mixes(&places.each_ref(), MIXED, PEER, |_, _, _| None)? {
        plan.run(case, &mut outcomes)?;
    }
    let case = case_4k("append/4K", "at the end of a growing file", Some(0.9))
        .ops_max(APPEND_BYTES / PAGE as u64)
        .with(growing(served, LIBC)?)
        .with(growing(tmp.path(), KERNEL)?);
    plan.run(case, &mut outcomes)?;
    let case = Case::new("open+close", "one of 100 files")
        .with(ours.open_close())
        .with(theirs.open_close());
    plan.run(case, &mut outcomes)?;
    for pages in [512, 256, 128, 64, 16] {
        first_touch(plan, &their_file, pages, &mut outcomes)?;
    }
    Ok(outcomes)
}

fn case_of<'a>(name: String, what: &str, len: usize) -> Case<'a> {
    case(name, what, len, None)
}

fn case<'a>(name: String, what: &str, len: usize, target: Option<f64>) -> Case<'a> {
    let case = Case::new(name, what).bytes(len as u64);
    match target {
        Some(at_least) => case.target(PEER, at_least),
        None => case,
    }
}

/// The calls of a contender.
#[derive(Clone, Copy)]
pub struct Calls {
    /// Its name in tables.
    pub name: &'static str,
    /// `read`.
    pub read: fn(&OwnedFd, &mut [u8]) -> vfs::Result<usize>,
    /// `lseek` to the beginning.
    pub rewind: fn(&OwnedFd),
    /// `pread`.
    pub pread: fn(&OwnedFd, &mut [u8], u64) -> vfs::Result<usize>,
    /// `pwrite`.
    pub pwrite: fn(&OwnedFd, &[u8], u64) -> vfs::Result<usize>,
}

fn done(n: isize) -> vfs::Result<usize> {
    usize::try_from(n).map_err(|_| vfs::Errno::IO)
}

/// Calls through libc, as programs make them.
pub const LIBC: Calls = Calls {
    name: SUBJECT,
    read: |file, buf| {
        // SAFETY: `buf` has room for its length.
        done(unsafe { libc::read(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })
    },
    rewind: |file| {
        // SAFETY: no memory is involved.
        unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET) };
    },
    pread: |file, buf, at| {
        let (to, len) = (buf.as_mut_ptr().cast(), buf.len());
        // SAFETY: as above.
        done(unsafe { libc::pread(file.as_raw_fd(), to, len, at as i64) })
    },
    pwrite: |file, data, at| {
        let (from, len) = (data.as_ptr().cast(), data.len());
        // SAFETY: `data` is readable for its length.
        done(unsafe { libc::pwrite(file.as_raw_fd(), from, len, at as i64) })
    },
};

/// libc's own functions, which a program calls that runs without the library.
struct Own {
    read: Read,
    pread: Pread,
    pwrite: Pwrite,
}

type Read = unsafe extern "C" fn(i32, *mut libc::c_void, usize) -> isize;
type Pread = unsafe extern "C" fn(i32, *mut libc::c_void, usize, i64) -> isize;
type Pwrite = unsafe extern "C" fn(i32, *const libc::c_void, usize, i64) -> isize;

/// Finds libc's own functions, which the library in front of libc hides.
fn own() -> &'static Own {
    static OWN: OnceLock<Own> = OnceLock::new();
    OWN.get_or_init(|| {
        let find = |name: &CStr| {
            // SAFETY: strings; libc is loaded already.
            let found = unsafe {
                let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                libc::dlsym(libc, name.as_ptr())
            };
            assert!(!found.is_null(), "libc has {name:?}");
            found
        };
        // SAFETY: the functions have these types.
        unsafe {
            Own {
                read: std::mem::transmute::<*mut libc::c_void, Read>(find(c"read")),
                pread: std::mem::transmute::<*mut libc::c_void, Pread>(find(c"pread64")),
                pwrite: std::mem::transmute::<*mut libc::c_void, Pwrite>(find(c"pwrite64")),
            }
        }
    })
}

/// Calls of libc's own functions.
pub const KERNEL: Calls = Calls {
    name: PEER,
    read: |file, buf| {
        // SAFETY: `buf` has room for its length.
        done(unsafe { (own().read)(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })
    },
    rewind: |file| {
        let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0));
    },
    pread: |file, buf, at| {
        let (to, len) = (buf.as_mut_ptr().cast(), buf.len());
        // SAFETY: as above.
        done(unsafe { (own().pread)(file.as_raw_fd(), to, len, at as i64) })
    },
    pwrite: |file, data, at| {
        let (from, len) = (data.as_ptr().cast(), data.len());
        // SAFETY: `data` is readable for its length.
        done(unsafe { (own().pwrite)(file.as_raw_fd(), from, len, at as i64) })
    },
};

/// Appends to a file that starts each round empty.
fn growing(dir: &Path, calls: Calls) -> Result<Contender<'static>> {
    let path = dir.join("growing");
    std::fs::File::create(&path)?;
    let file = libc_open(&path)?;
    let again = rustix::io::dup(&file)?;
    let data = Buffer::new(PAGE);
    let run = move |ops| {
        for i in 0..ops {
            (calls.pwrite)(&file, data.get(), i * PAGE as u64)?;
        }
        Ok(())
    };
    Ok(Contender::new(calls.name, run).prepared(move |_| rustix::fs::ftruncate(&again, 0)))
}

/// Opens a file for reading and writing through the standard library.
pub fn libc_open(path: &Path) -> Result<OwnedFd> {
    Ok(std::fs::File::options().read(true).write(true).open(path)?.into())
}

/// Reads or writes at random multiples of the length, in the first bytes of a file that the
/// processor's caches hold.
fn at_random(file: OwnedFd, calls: Calls, len: usize, writes: bool) -> Contender<'static> {
    let mut buf = Buffer::new(len);
    let mut rng = Rng::new(6);
    let places = NEAR.max(len) / len;
    Contender::new(calls.name, move |ops| {
        for _ in 0..ops {
            let at = rng.below_fast(places as u64) * len as u64;
            let n = if writes {
                (calls.pwrite)(&file, buf.get(), at)?
            } else {
                (calls.pread)(&file, buf.get_mut(), at)?
            };
            crate::store::whole(n, len)?;
        }
        Ok(())
    })
}

/// Copies pages from or to a mapping of the file, with no call at all: the part of a call that is
/// the copy (Figure 13).
fn copies(path: &Path, writes: bool) -> Result<Contender<'static>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let file = libc_open(path)?;
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
    // SAFETY: a new mapping of a file that keeps its length. It is never unmapped.
    let base = unsafe { mmap(std::ptr::null_mut(), NEAR, prot, flags, &file, 0)? };
    let (mut buf, mut rng) = (Buffer::new(PAGE), Rng::new(6));
    Ok(Contender::new("copy", move |ops| {
        for _ in 0..ops {
            let at = rng.below_fast((NEAR / PAGE) as u64) as usize * PAGE;
            // SAFETY: the page lies in the mapping, and the buffer has a page.
            unsafe {
                let page = base.cast::<u8>().add(at);
                if writes {
                    std::ptr::copy_nonoverlapping(buf.get().as_ptr(), page, PAGE);
                } else {
                    std::ptr::copy_nonoverlapping(page, buf.get_mut().as_mut_ptr(), PAGE);
                }
            }
            std::hint::black_box(buf.get().as_ptr());
        }
        Ok(())
    }))
}

/// Borrows bytes where they lie, looks at the first, and gives them back (`ks_fd_get_read_buf`).
fn lent(file: OwnedFd, len: usize) -> Result<Contender<'static>> {
    type Get = unsafe extern "C" fn(i32, usize, i64, *mut *const u8) -> isize;
    type Put = unsafe extern "C" fn(*const u8) -> i32;
    let symbol = |name: &CStr| {
        // SAFETY: a string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        ensure!(!found.is_null(), "not under libkeepstone.so");
        Ok(found)
    };
    let (get, put) = (symbol(c"ks_fd_get_read_buf")?, symbol(c"ks_fd_put_read_buf")?);
    // SAFETY: their types in include/keepstone.h.
    let get = unsafe { std::mem::transmute::<*mut libc::c_void, Get>(get) };
    // SAFETY: as above.
    let put = unsafe { std::mem::transmute::<*mut libc::c_void, Put>(put) };
    let mut rng = Rng::new(8);
    let places = (NEAR.max(len) / len) as u64;
    Ok(Contender::new(SUBJECT, move |ops| {
        for _ in 0..ops {
            let mut bytes = std::ptr::null();
            let at = (rng.below_fast(places) * len as u64) as i64;
            // SAFETY: room for an address; what is lent can be looked at until it is given back.
            unsafe {
                let n = get(file.as_raw_fd(), len, at, &mut bytes);
                crate::store::whole(done(n)?, len)?;
                std::hint::black_box(bytes.read_volatile());
                put(bytes);
            }
        }
        Ok(())
    }))
}

/// Reads the first bytes of a file in order, again and again.
fn in_order(file: OwnedFd, calls: Calls, span: usize) -> Contender<'static> {
    let mut buf = Buffer::new(PAGE);
    let mut at = 0;
    Contender::new(calls.name, move |ops| {
        for _ in 0..ops {
            at += (calls.read)(&file, buf.get_mut())?;
            if at >= span {
                (calls.rewind)(&file);
                at = 0;
            }
        }
        Ok(())
    })
}

/// Measures the first access to pages of a chunk (Figure 3): by the kernel, and by a new mapping,
/// populated or not. An operation reads a page.
fn first_touch(plan: &Plan, path: &Path, pages: usize, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let file = rustix::fs::open(path, OFlags::RDWR, Mode::empty())?;
    let file = &file;
    let by_mapping = |name: &str, populate: bool| {
        let mut buf = Buffer::new(PAGE);
        let mut rng = Rng::new(7);
        let name = name.to_owned();
        Contender::new(name, move |ops| {
            for _ in 0..ops.div_ceil(pages as u64) {
                touch_mapped(file, pages, populate, buf.get_mut(), &mut rng)?;
            }
            Ok(())
        })
    };
    let by_kernel = {
        let mut buf = Buffer::new(PAGE);
        let mut rng = Rng::new(7);
        Contender::new(PEER, move |ops| {
            for _ in 0..ops.div_ceil(pages as u64) {
                for page in chosen(pages, &mut rng) {
                    rustix::io::pread(file, &mut *buf.get_mut(), (page * PAGE) as u64)?;
                }
            }
            Ok(())
        })
    };
    let case = Case::new(format!("first-touch/{pages}"), "pages of 512, by a new mapping")
        .bytes(PAGE as u64)
        .with(by_mapping("on demand", false))
        .with(by_mapping("populated", true))
        .with(by_kernel);
    plan.run(case, outcomes)
}

/// Chooses pages of a chunk: all in order, or `pages` at random.
fn chosen(pages: usize, rng: &mut Rng) -> Vec<usize> {
    if pages == CHUNK / PAGE {
        return (0..pages).collect();
    }
    (0..pages).map(|_| rng.below_fast((CHUNK / PAGE) as u64) as usize).collect()
}

/// Maps a random chunk of the file, copies `pages` of its pages into `buf`, and unmaps it.
fn touch_mapped(
    file: &OwnedFd,
    pages: usize,
    populate: bool,
    buf: &mut [u8],
    rng: &mut Rng,
) -> vfs::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let flags = if populate { MapFlags::POPULATE } else { MapFlags::empty() };
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, flags | MapFlags::SHARED);
    let offset = rng.below_fast(FILE_BYTES / CHUNK as u64) * CHUNK as u64;
    // SAFETY: a new mapping of a file that stays as it is; copies lie within it; no code uses it
    // afterwards.
    unsafe {
        let base = mmap(std::ptr::null_mut(), CHUNK, prot, flags, file, offset)?;
        for page in chosen(pages, rng) {
            let from = base.cast::<u8>().add(page * PAGE);
            std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), PAGE);
        }
        munmap(base, CHUNK)
    }
}
