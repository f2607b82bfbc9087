//! The number of writes to each block, with `wear=on` and without: files come and go, and the
//! writes to their contents are counted.
//!
//! `cargo run --release -p scmfs --example wear`. Inodes and directories are not counted: they stay
//! at their places.

use pmem::{Medium as _, OpenOptions, Region};
use pool::Engine as _;
use scmfs::layout::BLOCK;
use scmfs::{FormatOptions, MountOptions, Prealloc, Scmfs};
use vfs::{Caller, FileSystem as _, NewKind, NewNode, ROOT};

const POOL: u64 = 64 << 20;
const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
/// The number of files that live at a time, and of all files created.
const LIVE: usize = 200;
const MADE: usize = 40_000;

/// Returns the number of writes to each block of the pool while files of up to `most` blocks come
/// and go.
fn writes(prealloc: Prealloc, most: u64) -> Vec<u64> {
    let region = OpenOptions::default().anonymous(POOL).unwrap();
    scmfs::format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions { prealloc, ..MountOptions::default() };
    let fs = Scmfs::<Region>::mount(region, &options).unwrap();
    let base = fs.region().lend(0, 1).unwrap().as_ptr() as u64;
    let mut counts = vec![0; (POOL / BLOCK) as usize];
    let mut live: Vec<String> = Vec::new();
    let mut random = 88_172_645_463_325_252u64;
    for made in 0..MADE {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if live.len() == LIVE {
            let gone = live.swap_remove(random as usize % LIVE);
            fs.unlink(ROOT, gone.as_bytes()).unwrap();
        }
        let name = format!("f{made}");
        let ino = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino;
        let len = (1 + random % most) * BLOCK;
        fs.write(ino, 0, &vec![7; len as usize]).unwrap();
        let mut at = 0;
        while at < len {
            let piece = fs.get_read_buf(ino, at, len - at).unwrap();
            let first = (piece.as_ptr() as u64 - base) / BLOCK;
            let blocks = (piece.len() as u64).div_ceil(BLOCK);
            (first..first + blocks).for_each(|block| counts[block as usize] += 1);
            at += piece.len() as u64;
        }
        fs.forget(ino, 1);
        live.push(name);
    }
    counts
}

fn main() {
    println!(
        "| files of | null files | wear | writes of a block: mean | most | most / mean | never written |"
    );
    println!("|---|---:|---|---:|---:|---:|---:|");
    for most in [1, 16, 64] {
        for (null_max, wear) in [(512, false), (512, true), (0, false), (0, true)] {
            let prealloc = Prealloc { wear, null_max, ..Prealloc::default() };
            let counts = writes(prealloc, most);
            let (sum, max) = (counts.iter().sum::<u64>(), counts.iter().max().unwrap());
            let mean = sum as f64 / counts.len() as f64;
            let never = counts.iter().filter(|count| **count == 0).count() * 100 / counts.len();
            let (kib, wear) = ((most * BLOCK) >> 10, if wear { "on" } else { "off" });
            let ratio = *max as f64 / mean;
            println!(
                "| up to {kib} KiB | up to {null_max} | {wear} | {mean:.1} | {max} | {ratio:.1} | {never} % |"
            );
        }
    }
}
