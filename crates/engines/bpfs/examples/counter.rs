//! Counts its runs in a file of a pool that other processes may be using, and keeps a log of them.
//!
//! ```text
//! keepstone mkfs /dev/shm/pool --size 64M
//! cargo run --example counter -- /dev/shm/pool
//! ```

use bpfs::{Bpfs, Engine as _, MountOptions};
use pmem::{Access, Lock, OpenOptions, Region};
use std::error::Error;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Caller, Errno, FileSystem as _, Ino, NewKind, NewNode, ROOT};

/// Joins the processes that use the pool: a mount, programs under `keepstone run`, others like this
/// one. The first process derives the volatile state.
fn attach(pool: &Path) -> Result<Bpfs<Region>, Box<dyn Error>> {
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    let region = options.open(pool, Access::ReadWrite)?;
    let place = bpfs::place(&region)?;
    Ok(Bpfs::attach(region, &place, &MountOptions::default())?)
}

/// Returns the file of this name, creating it if necessary; the caller holds a reference.
fn file(fs: &Bpfs<Region>, name: &str) -> Result<Ino, Errno> {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    match fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &node) {
        Err(Errno::EXIST) => Ok(fs.lookup(ROOT, name.as_bytes())?.ino),
        made => Ok(made?.ino),
    }
}

/// Does one run; returns the content of the log after it.
pub fn run(pool: &Path) -> Result<String, Box<dyn Error>> {
    let fs = attach(pool)?;
    let (counter, log) = (file(&fs, "count")?, file(&fs, "log")?);
    let mut runs = [0; 8];
    fs.read(counter, 0, &mut runs)?;
    let runs = u64::from_le_bytes(runs) + 1;
    // Atomic; also durable on return if the pool's memory is, so nothing has to be synced.
    fs.write(counter, 0, &runs.to_le_bytes())?;
    fs.append(log, format!("run {runs}\n").as_bytes())?;
    // The log in place, without a copy. It stays while the buffer does.
    let text = fs.get_read_buf(log, 0, 4096)?;
    let bytes: Vec<u8> = text.iter().map(|byte| byte.load(Relaxed)).collect();
    drop(text);
    fs.forget(counter, 1);
    fs.forget(log, 1);
    Ok(String::from_utf8(bytes)?)
}

#[allow(dead_code, reason = "the test calls `run`")]
fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args_os().nth(1).ok_or("usage: counter POOL")?;
    print!("{}", run(Path::new(&pool))?);
    Ok(())
}
