//! A cache over a directory (`keepstone attach`): its files under `keepstone run` against the same
//! calls of the kernel's on the directory itself, of which all is in the page cache (Chell §5,
//! Figures 7, 9 and 10).
//!
//! As in [`crate::direct`], two processes take part; the inner one has the mount of the cache. The
//! same calls of the kernel's on the mount are shown as well, on files of their own: a file that
//! the kernel has open to read is the kernel's in all programs. The limit is bare copies to and
//! from memory that the pool could lie in. The paper's bandwidths are ratios of times here.

#![allow(unsafe_code)]

use crate::chell::{Calls, KERNEL, LIBC, libc_open};
use crate::direct::{again, inner_dir};
use crate::engine::size;
use crate::fuse::{Programs, Servers};
use crate::report::Section;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::whole;
use crate::workload::Buffer;
use crate::xdd::{self, Pattern, Place};
use anyhow::Result;
use pmem::{Medium as _, Region};
use rng::Rng;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const PEER: &str = "kernel";
const THROUGH_MOUNT: &str = "mount";
/// Bytes of the files that are read.
const FILE: usize = 64 << 20;
/// Bytes of the files that are written.
const WRITTEN: usize = 16 << 20;
/// The file that was there before.
const NAME: &str = "read";
/// A copy of it in the cached directory, which is read through the mount.
const COPY: &str = "read-through-mount";

/// Runs the cases with the arguments of this program: the pool in `dir`, the directories below on
/// the disk of `below`.
pub fn run(plan: &Plan, programs: &Programs, dir: &Path, below: &Path) -> Result<Vec<Outcome>> {
    let disk = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(below)?;
    std::fs::write(disk.path().join(NAME), vec![7; FILE])?;
    if let Some(mount) = inner_dir() {
        return inside(plan, &mount, disk.path());
    }
    std::fs::copy(disk.path().join(NAME), disk.path().join(COPY))?;
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let servers = Servers::new(programs, tmp.path());
    let server = servers.attached("cache", "1G", disk.path())?;
    match again(programs, tmp.path(), &[], server.dir())? {
        Section::Cached(outcomes) => Ok(outcomes),
        _ => unreachable!("the same command was run"),
    }
}

/// The memory that [`BARE`] copies to and from.
static MEMORY: OnceLock<Region> = OnceLock::new();

fn memory() -> &'static Region {
    MEMORY.get_or_init(|| {
        let region = Region::anonymous(FILE as u64).expect("memory as large as a file");
        (0..FILE as u64).step_by(4096).for_each(|at| region.write_nt(at, &[7; 4096]));
        region
    })
}

/// Bare copies, which ignore the file.
const BARE: Calls = Calls {
    name: "copy",
    read: |_, _| Err(vfs::Errno::NOSYS),
    rewind: |_| {},
    pread: |_, buf, at| {
        let from = memory().read_ptr(at, buf.len() as u64);
        // SAFETY: `read_ptr` has checked that `buf.len()` bytes are mapped. Another thread may
        // write them meanwhile, and no caller looks at the copied bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        std::hint::black_box(buf.as_ptr());
        Ok(buf.len())
    },
    pwrite: |_, buf, at| {
        memory().write_nt(at, buf);
        let _ = memory().fence();
        Ok(buf.len())
    },
};

/// Measures in a program under `keepstone run`: `mount` is the cache, `plain` a directory of the
/// peer.
fn inside(plan: &Plan, mount: &Path, plain: &Path) -> Result<Vec<Outcome>> {
    let (ours, through_mount, theirs) = (mount.join(NAME), mount.join(COPY), plain.join(NAME));
    let places: [(&'static str, Calls, &PathBuf); 4] = [
        ("keepstone", LIBC, &ours),
        (PEER, KERNEL, &theirs),
        (THROUGH_MOUNT, KERNEL, &through_mount),
        (BARE.name, BARE, &theirs),
    ];
    let mut outcomes = Vec::new();
    let sizes =
        [(512, None), (4 << 10, Some(1.52)), (16 << 10, None), (64 << 10, None), (1 << 20, None)];
    for (len, target) in sizes {
        let mut case = Case::new(format!("hit/pread/{}", size(len)), "at random")
            .bytes(len as u64)
            .target(PEER, target);
        for (name, calls, path) in places {
            case = case.with(reads(name, calls, path, len, Pattern::Random)?);
        }
        plan.run(case, &mut outcomes)?;
    }
    // Figure 9, with the paper's gains: the least for random reads, the most for random writes.
    let patterns = [
        ("read", Pattern::Sequential, 1.29),
        ("backward", Pattern::Backward, 1.29),
        ("strided", Pattern::Strided, 1.29),
    ];
    for (name, pattern, target) in patterns {
        let mut case = Case::new(format!("hit/{name}/4K"), "of what was read before")
            .bytes(4096)
            .target(PEER, target);
        for (name, calls, path) in places {
            case = case.with(reads(name, calls, path, 4096, pattern)?);
        }
        plan.run(case, &mut outcomes)?;
    }
    let written: [Place; 4] = [
        ("keepstone", LIBC, mount.join("written")),
        (PEER, KERNEL, plain.join("plain")),
        (THROUGH_MOUNT, KERNEL, mount.join("requested")),
        (BARE.name, BARE, plain.join("plain")),
    ];
    for (_, _, path) in &written[..3] {
        in_small_pieces(path)?;
    }
    writes(plan, &written, &mut outcomes)?;
    let [subject, kernel, _, bare] = written.each_ref();
    for case in xdd::mixes(&[subject, kernel, bare], WRITTEN, PEER, gain)? {
        plan.run(case, &mut outcomes)?;
    }
    appends(plan, &written[..3], &mut outcomes)?;
    Ok(outcomes)
}

/// Opens a file for reading and writing: by the kernel for the calls on the mount, by libc for all
/// other contenders.
fn open(contender: &str, path: &Path) -> Result<OwnedFd> {
    if contender != THROUGH_MOUNT {
        return libc_open(path);
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Makes a file to write to, one page a call. After large calls, ext4 would keep it in large folios
/// and search all blocks of a folio when one of its pages is overwritten.
fn in_small_pieces(path: &Path) -> Result<()> {
    let mut file = std::fs::File::create(path)?;
    (0..WRITTEN / 4096).try_for_each(|_| file.write_all(&[7; 4096]))?;
    Ok(())
}

/// Measures overwrites of cached contents, each contender's in a file of its own. `sync`ed
/// overwrites wait for the disk or the pool.
fn writes(plan: &Plan, places: &[Place], outcomes: &mut Vec<Outcome>) -> Result<()> {
    let cases = [
        ("pwrite", 512, Pattern::Random, None),
        ("pwrite", 4 << 10, Pattern::Random, Some(2.03)),
        ("pwrite", 64 << 10, Pattern::Random, None),
        ("pwrite+fdatasync", 4 << 10, Pattern::Random, Some(15.0)),
        ("rewrite", 4 << 10, Pattern::Sequential, Some(1.29)),
        ("record-rewrite", 4 << 10, Pattern::Same, Some(1.29)),
    ];
    for (name, len, pattern, target) in cases {
        let mut case = Case::new(format!("hit/{name}/{}", size(len)), "of what is there")
            .bytes(len as u64)
            .target(PEER, target);
        let syncs = name.ends_with("fdatasync");
        for (contender, calls, path) in places.iter().filter(|(of, ..)| !syncs || *of != BARE.name)
        {
            case = case.with(overwrites(contender, *calls, path, len, (pattern, syncs))?);
        }
        plan.run(case, outcomes)?;
    }
    Ok(())
}

/// Returns the paper's gain in one of xdd's mixes (Figure 7), if its text has one.
fn gain(order: Pattern, reads: u64, threads: u64) -> Option<f64> {
    match (order, reads, threads) {
        (Pattern::Random, 100, 4) => Some(1.19),
        (Pattern::Sequential, 1, 1) => Some(4.1),
        (Pattern::Sequential, 1, 4) => Some(9.0),
        (Pattern::Sequential, 1, 16) => Some(5.6),
        _ => None,
    }
}

/// Measures IOzone's *write*, and Figure 10: a file that was emptied grows. The paper's cache
/// allocates space for it in the backing store, so the same writes to the backing store alone,
/// with that allocation, are shown as well.
fn appends(plan: &Plan, places: &[Place], outcomes: &mut Vec<Outcome>) -> Result<()> {
    for len in [4 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20] {
        let target = if len == 4 << 10 { Some(1.29) } else { None };
        let mut case = Case::new(format!("append/{}", size(len)), "at the end of a file")
            .bytes(len as u64)
            .ops_max((WRITTEN / len) as u64)
            .target(PEER, target);
        for (name, calls, path) in places {
            case = case.with(grows(name, *calls, path, len, false)?);
        }
        let (_, calls, path) = &places[1];
        case = case.with(grows("kernel, allocated first", *calls, path, len, true)?);
        plan.run(case, outcomes)?;
    }
    Ok(())
}

/// Appends `len` bytes to a file that starts each round empty; `allocates` the space first.
fn grows(
    name: &'static str,
    calls: Calls,
    path: &Path,
    len: usize,
    allocates: bool,
) -> Result<Contender<'static>> {
    let file = std::rc::Rc::new(open(name, path)?);
    let mut buf = Buffer::new(len);
    let emptied = file.clone();
    let contender = Contender::new(name, move |ops| {
        for i in 0..ops {
            let at = i * len as u64;
            if allocates {
                rustix::fs::fallocate(&*file, FallocateFlags::KEEP_SIZE, at, len as u64)?;
            }
            whole((calls.pwrite)(&file, buf.get_mut(), at)?, len)?;
        }
        Ok(())
    });
    // The kernel's call if the library does not serve it. SAFETY: no memory is involved.
    Ok(contender.prepared(move |_| match unsafe { libc::ftruncate(emptied.as_raw_fd(), 0) } {
        0 => Ok(()),
        _ => Err(vfs::Errno::IO),
    }))
}

/// Overwrites a file, and makes each write durable if it `syncs`.
fn overwrites(
    name: &'static str,
    calls: Calls,
    path: &Path,
    len: usize,
    (pattern, syncs): (Pattern, bool),
) -> Result<Contender<'static>> {
    let file = open(name, path)?;
    let (mut buf, mut rng, mut done) = (Buffer::new(len), Rng::new(9), 0);
    Ok(Contender::new(name, move |ops| {
        for _ in 0..ops {
            let at = pattern.place(done, (WRITTEN / len) as u64, &mut rng) * len as u64;
            done += 1;
            whole((calls.pwrite)(&file, buf.get_mut(), at)?, len)?;
            if syncs {
                // The kernel's call if the library does not serve it. SAFETY: no memory is
                // involved.
                if unsafe { libc::fdatasync(file.as_raw_fd()) } != 0 {
                    return Err(vfs::Errno::IO);
                }
            }
        }
        Ok(())
    }))
}

/// Returns a contender that reads a file after reading it once to the end.
fn reads(
    name: &'static str,
    calls: Calls,
    path: &Path,
    len: usize,
    pattern: Pattern,
) -> Result<Contender<'static>> {
    let file = open(name, path)?;
    let mut buf = Buffer::new(len);
    let (places, mut rng, mut at) = ((FILE / len) as u64, Rng::new(9), 0);
    for place in 0..places {
        whole((calls.pread)(&file, buf.get_mut(), place * len as u64)?, len)?;
    }
    Ok(Contender::new(name, move |ops| {
        for _ in 0..ops {
            let place = pattern.place(at, places, &mut rng);
            at += 1;
            whole((calls.pread)(&file, buf.get_mut(), place * len as u64)?, len)?;
        }
        Ok(())
    }))
}
