//! The benefit of pre-allocation: the same operations on a pool with it and on one without,
//! measured alternately in one process.
//!
//! `cargo run --release -p scmfs --example prealloc [DIR]`: pools are files in DIR (default
//! `/dev/shm`).

use pmem::Region;
use scmfs::{FormatOptions, MountOptions, Prealloc, Scmfs};
use std::time::{Duration, Instant};
use vfs::{Caller, FileSystem, Ino, NewKind, NewNode, ROOT};

const POOL: u64 = 512 << 20;
const ROUNDS: usize = 41;
const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };

type Fs = Scmfs<Region>;

fn create(fs: &Fs, name: &str) -> Ino {
    fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino
}

fn remove(fs: &Fs, name: &str, ino: Ino) {
    fs.unlink(ROOT, name.as_bytes()).unwrap();
    fs.forget(ino, 1);
}

/// Appends to `files` files round robin, `len` bytes each time, up to 4 MiB in all.
fn append(fs: &Fs, files: usize, len: usize) -> (Duration, u32) {
    let data = vec![7; len];
    let names: Vec<String> = (0..files).map(|i| format!("a{i}")).collect();
    let inos: Vec<Ino> = names.iter().map(|name| create(fs, name)).collect();
    let count = (4 << 20) / len / files;
    let start = Instant::now();
    for _ in 0..count {
        for ino in &inos {
            fs.append(*ino, &data).unwrap();
        }
    }
    let time = start.elapsed();
    names.iter().zip(inos).for_each(|(name, ino)| remove(fs, name, ino));
    (time, (count * files) as u32)
}

/// Creates files of `len` bytes each, and removes them: `at_once` live at a time.
fn small_files(fs: &Fs, at_once: usize, len: usize, timed: Timed) -> (Duration, u32) {
    let data = vec![7; len];
    let mut time = Duration::ZERO;
    let names: Vec<String> = (0..at_once).map(|i| format!("s{i}")).collect();
    let turns = 2000 / at_once;
    for _ in 0..turns {
        let start = Instant::now();
        let inos: Vec<Ino> = names
            .iter()
            .map(|name| {
                let ino = create(fs, name);
                fs.write(ino, 0, &data).unwrap();
                ino
            })
            .collect();
        let made = start.elapsed();
        names.iter().zip(inos).for_each(|(name, ino)| remove(fs, name, ino));
        time += if timed == Timed::Making { made } else { start.elapsed() };
    }
    (time, (turns * at_once) as u32)
}

#[derive(Clone, Copy, PartialEq)]
enum Timed {
    Making,
    All,
}

fn mount(dir: &str, name: &str, prealloc: Prealloc) -> (Fs, String) {
    let path = format!("{dir}/keepstone-prealloc-{name}-{}", std::process::id());
    let region = Region::create(&path, POOL).unwrap();
    scmfs::format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions { prealloc, ..MountOptions::default() };
    (Fs::mount(region, &options).unwrap(), path)
}

fn main() {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".to_owned());
    let (on, on_path) = mount(&dir, "on", Prealloc::default());
    let (off, off_path) = mount(&dir, "off", Prealloc::off());
    type Work = fn(&Fs) -> (Duration, u32);
    let cases: [(&str, Work); 9] = [
        ("append 4 KiB to one file", |fs| append(fs, 1, 4096)),
        ("append 512 B to one file", |fs| append(fs, 1, 512)),
        ("append 4 KiB to 4 files in turns", |fs| append(fs, 4, 4096)),
        ("append 512 B to 4 files in turns", |fs| append(fs, 4, 512)),
        ("append 4 KiB to 64 files in turns", |fs| append(fs, 64, 4096)),
        ("create, write 64 B, one at a time", |fs| small_files(fs, 1, 64, Timed::Making)),
        ("create, write 64 B, 100 at a time", |fs| small_files(fs, 100, 64, Timed::Making)),
        ("create, write 16 KiB, 100 at a time", |fs| small_files(fs, 100, 16384, Timed::Making)),
        ("create, write 64 B, unlink", |fs| small_files(fs, 1, 64, Timed::All)),
    ];
    println!(
        "{:38} {:>9} {:>9}  ratio (medians of {ROUNDS} rounds in turns)",
        "", "off, ns", "on, ns"
    );
    for (name, work) in cases {
        let mut times: [Vec<f64>; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (fs, times) in [&off, &on].into_iter().zip(&mut times) {
                let (time, count) = work(fs);
                times.push(time.as_nanos() as f64 / f64::from(count));
            }
        }
        let [off, on] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!("{name:38} {off:9.0} {on:9.0}  {:.2}", off / on);
    }
    drop((on, off));
    for path in [on_path, off_path] {
        let _ = std::fs::remove_file(path);
    }
}
