//! Crashes while a pool is made longer or shorter.

use crashsim::image::CrashImage;
use crashsim::keeping;
use crashsim::mutate::{Bug, mutants, mutate};
use crashsim::persist::Semantics;
use crashsim::recorder::Recorder;
use crashsim::target::Target;
use judges::bpfs::Bpfs;
use judges::scmfs::Scmfs;
use namespace::{Files, Storage};
use pmem::{Medium as _, Region};
use pool::{FormatOptions, MountOptions};
use vfs::{Caller, FileSystem, NewKind, NewNode, ROOT};

const BLOCK: u64 = 4096;
const SMALL: u64 = 64 * BLOCK;
const LARGE: u64 = 128 * BLOCK;

/// Creates a file with this content.
fn file(fs: &dyn FileSystem, name: &str, content: &[u8]) {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    let made = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &node).unwrap();
    fs.write(made.ino, 0, content).unwrap();
    fs.fsync(made.ino).unwrap();
    fs.forget(made.ino, 1);
}

/// Returns the options for a pool of the larger size that can get another one while it is used.
fn resizable() -> FormatOptions {
    FormatOptions { is_thin: true, size: Some(LARGE), ..FormatOptions::default() }
}

/// Returns a pool of the larger size, with blocks in use in the part that a smaller pool has not.
fn pool(target: &impl Target, format: impl FnOnce(&Region)) -> Vec<u8> {
    let memory = Region::anonymous(LARGE).unwrap();
    format(&memory);
    let mounted = target.mount(&memory).unwrap();
    file(&*mounted.fs, "first", &[1; 45 * BLOCK as usize]);
    file(&*mounted.fs, "last", &[2; 20 * BLOCK as usize]);
    mounted.fs.unlink(ROOT, b"first").unwrap();
    mounted.fs.close().unwrap();
    drop(mounted);
    let mut bytes = vec![0; LARGE as usize];
    memory.read(0, &mut bytes);
    bytes
}

/// Explores the crashes of a resize to the smaller size, then of one to the larger size.
fn explore<T: Target>(
    target: &T,
    format: impl FnOnce(&Region),
    resize: impl Fn(&Recorder<CrashImage>, u64) -> Result<u64, pool::Error>,
    size: impl Fn(&CrashImage) -> u64,
) {
    let mut bytes = pool(target, format);
    for to in [SMALL, LARGE] {
        let done = |medium: &Recorder<CrashImage>| match resize(medium, to) {
            Ok(_) => Ok(()),
            Err(err) => Err(err.to_string()),
        };
        let trace = keeping::record(&bytes, done).unwrap();
        for semantics in Semantics::ATOMIC {
            let is_done = |image: &CrashImage| size(image) == to;
            let (stats, wrong) =
                keeping::explore(target, &bytes, &trace, semantics, is_done).unwrap();
            println!("to {to}: {stats:?}");
            assert!(wrong.is_empty(), "{semantics:?}, to {to}: {}", wrong[0]);
        }
        let image = Recorder::new(CrashImage::of(bytes.clone()));
        resize(&image, to).unwrap();
        bytes = image.inner().bytes();
    }
}

/// Bugs that change nothing: the word depends on nothing before it, and nothing depends on it.
const HARMLESS: [Bug; 3] = [Bug::DropFence, Bug::EarlyStore, Bug::DelayStore];

/// Plants bugs in the store of another size.
fn plant<T: Target>(
    target: &T,
    format: impl FnOnce(&Region),
    resize: impl Fn(&Recorder<CrashImage>, u64) -> Result<u64, pool::Error>,
    size: impl Fn(&CrashImage) -> u64,
) {
    let bytes = pool(target, format);
    let run = |medium: &Recorder<CrashImage>| match resize(medium, SMALL) {
        Ok(_) => Ok(()),
        Err(err) => Err(err.to_string()),
    };
    let trace = keeping::record(&bytes, run).unwrap();
    let mut killed = 0;
    for m in mutants(&trace, 0).iter().filter(|m| m.site.contains("namespace/src/resize.rs:")) {
        let Some(mutated) = mutate(&trace, &bytes, m) else { continue };
        let is_done = |image: &CrashImage| size(image) == SMALL;
        let explored = keeping::explore(target, &bytes, &mutated, Semantics::Adr, is_done);
        match explored.unwrap().1.first() {
            Some(what) => {
                println!("{:?} at {}: {what}", m.bug, m.site);
                killed += 1;
            }
            None => assert!(HARMLESS.contains(&m.bug), "{m:?}"),
        }
    }
    assert!(killed > 1, "{killed}");
}

/// Gives a mounted pool another size. Its other users go on, so it is not closed.
fn resize_in_use<'m, F>(medium: &'m Recorder<CrashImage>, bytes: u64) -> Result<u64, pool::Error>
where
    F: Files<Storage: Storage<Medium = &'m Recorder<CrashImage>>>,
{
    let pool = namespace::Pool::<F>::mount(medium, &MountOptions::default())?;
    let resized = pool.resize(bytes)?;
    let _ = pool.into_medium();
    Ok(resized)
}

#[test]
fn bpfs_pools_survive() {
    let size = |image: &CrashImage| bpfs::info(image).unwrap().size_bytes;
    let format = |memory: &Region| Bpfs.format(memory).unwrap();
    explore(&Bpfs, format, bpfs::resize, size);
    let format = |memory: &Region| drop(bpfs::format(memory, &resizable()).unwrap());
    explore(&Bpfs, format, bpfs::resize, size);
}

#[test]
fn bpfs_pools_in_use_survive() {
    let size = |image: &CrashImage| bpfs::info(image).unwrap().size_bytes;
    let format = |memory: &Region| drop(bpfs::format(memory, &resizable()).unwrap());
    let resize =
        |medium: &Recorder<CrashImage>, bytes| resize_in_use::<bpfs::Files<_>>(medium, bytes);
    explore(&Bpfs, format, resize, size);
    plant(&Bpfs, format, resize, size);
}

#[test]
fn scmfs_pools_survive() {
    let size = |image: &CrashImage| scmfs::info(image).unwrap().size_bytes;
    let format = |memory: &Region| Scmfs.format(memory).unwrap();
    explore(&Scmfs, format, scmfs::resize, size);
    let format = |memory: &Region| drop(scmfs::format(memory, &resizable()).unwrap());
    explore(&Scmfs, format, scmfs::resize, size);
}

#[test]
fn scmfs_pools_in_use_survive() {
    let size = |image: &CrashImage| scmfs::info(image).unwrap().size_bytes;
    let format = |memory: &Region| drop(scmfs::format(memory, &resizable()).unwrap());
    let resize =
        |medium: &Recorder<CrashImage>, bytes| resize_in_use::<scmfs::ScmfsFiles<_>>(medium, bytes);
    explore(&Scmfs, format, resize, size);
    plant(&Scmfs, format, resize, size);
}
