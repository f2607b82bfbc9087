//! A cache over a directory (`keepstone attach`): its files under `keepstone run` against the same calls of the kernel's on the
//! directory itself, of which all is in the page cache (Chell §5, Figures 7 and 9).
//!
//! As in [`crate::direct`], two processes take part; the inner one has the mount of the cache. The same calls of the kernel's on
//! the mount are shown beside.

#![allow(unsafe_code)]

use crate::chell::{Calls, KERNEL, LIBC, libc_open};
use crate::direct::{again, inner_dir};
use crate::engine::size;
use crate::fuse::{Programs, Servers};
use crate::report::Section;
use crate::rounds::{Case, Contender, Outcome, Plan};
use crate::store::whole;
use crate::workload::{Buffer, by_four};
use anyhow::Result;
use rng::Rng;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

const PEER: &str = "kernel";
const THROUGH_MOUNT: &str = "mount";
/// Bytes of the files that are read.
const FILE: usize = 64 << 20;
/// Bytes of the files that are written.
const WRITTEN: usize = 16 << 20;
/// Of the mount, a file that was there before.
const NAME: &str = "read";

/// Runs the cases with the arguments of this program: the pool in `dir`, the directories below on the disk of `below`.
pub fn run(plan: &Plan, programs: &Programs, dir: &Path, below: &Path) -> Result<Vec<Outcome>> {
    let disk = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(below)?;
    std::fs::write(disk.path().join(NAME), vec![7; FILE])?;
    if let Some(mount) = inner_dir() {
        return inside(plan, &mount, disk.path());
    }
    let tmp = tempfile::Builder::new().prefix("keepstone-bench-").tempdir_in(dir)?;
    let servers = Servers::new(programs, tmp.path());
    let server = servers.attached("cache", "1G", disk.path())?;
    match again(programs, tmp.path(), &[], server.dir())? {
        Section::Cached(outcomes) => Ok(outcomes),
        _ => unreachable!("the same command was run"),
    }
}

/// How reads follow each other: the names are those of IOzone.
#[derive(Clone, Copy)]
enum Pattern {
    Random,
    Sequential,
    Backward,
    /// Every seventeenth.
    Strided,
}

impl Pattern {
    /// Which of so many places comes `i`th.
    fn place(self, i: u64, places: u64, rng: &mut Rng) -> u64 {
        match self {
            Self::Random => rng.below_fast(places),
            Self::Sequential => i % places,
            Self::Backward => places - 1 - i % places,
            Self::Strided => i * 17 % places,
        }
    }
}

fn inside(plan: &Plan, mount: &Path, plain: &Path) -> Result<Vec<Outcome>> {
    let (ours, theirs) = (mount.join(NAME), plain.join(NAME));
    let places: [(&'static str, Calls, &PathBuf); 3] =
        [("keepstone", LIBC, &ours), (PEER, KERNEL, &theirs), (THROUGH_MOUNT, KERNEL, &ours)];
    let mut outcomes = Vec::new();
    let sizes =
        [(512, None), (4 << 10, Some(1.52)), (16 << 10, None), (64 << 10, None), (1 << 20, None)];
    for (len, target) in sizes {
        let mut case = Case::new(format!("hit/pread/{}", size(len)), "at random").bytes(len as u64);
        case = target.into_iter().fold(case, |case, target| case.target(PEER, target));
        for (name, calls, path) in places {
            case = case.with(reads(name, calls, path, len, Pattern::Random)?);
        }
        plan.run(case, &mut outcomes)?;
    }
    // Figure 9, with the gains of the paper.
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
    // Figure 7.
    let mut case = Case::new("four-threads/hit/pread/4K", "at random, all in one file")
        .bytes(4096)
        .target(PEER, 1.19);
    for (name, calls, path) in places {
        case = case.with(reads_by_four(name, calls, path)?);
    }
    plan.run(case, &mut outcomes)?;
    writes(plan, mount, plain, &mut outcomes)?;
    Ok(outcomes)
}

/// Overwrites of what is in the cache, each contender's in a file of its own; `sync`ed ones wait for the disk, or the pool.
fn writes(plan: &Plan, mount: &Path, plain: &Path, outcomes: &mut Vec<Outcome>) -> Result<()> {
    let places: [(&'static str, Calls, PathBuf); 3] = [
        ("keepstone", LIBC, mount.join("written")),
        (PEER, KERNEL, plain.join("plain")),
        (THROUGH_MOUNT, KERNEL, mount.join("requested")),
    ];
    for (_, _, path) in &places {
        std::fs::write(path, vec![7; WRITTEN])?;
    }
    let cases = [
        (512, false, None),
        (4 << 10, false, Some(2.0)),
        (64 << 10, false, None),
        (4 << 10, true, Some(15.0)),
    ];
    for (len, syncs, target) in cases {
        let name = if syncs { "pwrite+fdatasync" } else { "pwrite" };
        let mut case =
            Case::new(format!("hit/{name}/{}", size(len)), "at random").bytes(len as u64);
        case = target.into_iter().fold(case, |case, target| case.target(PEER, target));
        for (name, calls, path) in &places {
            case = case.with(overwrites(name, *calls, path, len, syncs, 0)?);
        }
        plan.run(case, outcomes)?;
    }
    // Figure 7.
    let mut case =
        Case::new("hit/half-reads/4K", "at random, every second call a read").bytes(4096);
    for (name, calls, path) in &places {
        case = case.with(overwrites(name, *calls, path, 4096, false, 2)?);
    }
    plan.run(case, outcomes)
}

/// Overwrites a file, of which every so manyth call is a read; 0: none.
fn overwrites(
    name: &'static str,
    calls: Calls,
    path: &Path,
    len: usize,
    syncs: bool,
    reads_every: u64,
) -> Result<Contender<'static>> {
    let file = libc_open(path)?;
    let (mut buf, mut rng) = (Buffer::new(len), Rng::new(9));
    let mut calls_made = 0;
    Ok(Contender::new(name, move |ops| {
        for _ in 0..ops {
            let at = rng.below_fast((WRITTEN / len) as u64) * len as u64;
            calls_made += 1;
            if reads_every > 0 && calls_made % reads_every == 0 {
                whole((calls.pread)(&file, buf.get_mut(), at)?, len)?;
            } else {
                whole((calls.pwrite)(&file, buf.get_mut(), at)?, len)?;
            }
            if syncs {
                // Where it is not served, the kernel's.
                // SAFETY: no memory is involved.
                if unsafe { libc::fdatasync(file.as_raw_fd()) } != 0 {
                    return Err(vfs::Errno::IO);
                }
            }
        }
        Ok(())
    }))
}

/// Reads a file that is read through before.
fn reads(
    name: &'static str,
    calls: Calls,
    path: &Path,
    len: usize,
    pattern: Pattern,
) -> Result<Contender<'static>> {
    let file = libc_open(path)?;
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

fn reads_by_four(name: &'static str, calls: Calls, path: &Path) -> Result<Contender<'static>> {
    const LEN: usize = 4096;
    let file = libc_open(path)?;
    Ok(Contender::new(name, move |ops| {
        by_four(|thread| {
            let (mut buf, mut rng) = (Buffer::new(LEN), Rng::new(thread));
            for _ in 0..ops / 4 {
                let at = rng.below_fast((FILE / LEN) as u64) * LEN as u64;
                whole((calls.pread)(&file, buf.get_mut(), at)?, LEN)?;
            }
            Ok(())
        })
    }))
}
