//! The cost of a mapping table for a read: the same bytes in files that are one run, extents of 2
//! MiB, and single blocks, measured alternately.
//!
//! `cargo run --release -p scmfs --example maps`.

use pmem::{OpenOptions, Region};
use scmfs::layout::{BLOCK, EXTENT};
use scmfs::{FormatOptions, MountOptions, Prealloc, Scmfs};
use std::time::Instant;
use vfs::{Caller, FileSystem as _, Ino, NewKind, NewNode, ROOT};

const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
/// Bytes of each file: few enough for caches, so that the cost of maps shows and not that of
/// memory.
const SIZE: u64 = 8 << 20;
const ROUNDS: usize = 41;

type Fs = Scmfs<Region>;

/// Makes a file by writing from its end on, `each` bytes at a time.
fn backwards(fs: &Fs, name: &str, each: u64) -> Ino {
    let ino = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino;
    let data = vec![7; each as usize];
    (0..SIZE / each).rev().for_each(|i| fs.write(ino, i * each, &data).unwrap());
    ino
}

/// Returns the nanoseconds for reading `len` bytes at a random place of a file.
fn read(fs: &Fs, ino: Ino, len: u64) -> f64 {
    let count = (16 << 20) / len.max(4 * BLOCK);
    let mut buf = vec![0; len as usize];
    let mut random = 88_172_645_463_325_252u64;
    let start = Instant::now();
    for _ in 0..count {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        fs.read(ino, random % (SIZE / len) * len, &mut buf).unwrap();
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

fn main() {
    let region = OpenOptions::default().anonymous(256 << 20).unwrap();
    scmfs::format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions { prealloc: Prealloc::off(), ..MountOptions::default() };
    let fs = Fs::mount(region, &options).unwrap();
    let files = [
        backwards(&fs, "run", SIZE),
        backwards(&fs, "extents", EXTENT),
        backwards(&fs, "blocks", BLOCK),
    ];
    println!("| read | one run | extents of 2 MiB | single blocks |");
    println!("|---|---:|---:|---:|");
    for len in [64, BLOCK, 64 << 10, 1 << 20] {
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            for (ino, times) in files.iter().zip(&mut times) {
                times.push(read(&fs, *ino, len));
            }
        }
        let [run, extents, blocks] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        let ratio = |time: f64| format!("{time:.0} ns (×{:.2})", time / run);
        println!("| {len} bytes | {run:.0} ns | {} | {} |", ratio(extents), ratio(blocks));
    }
}
