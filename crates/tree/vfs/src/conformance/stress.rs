//! Many threads at once.

use rng::Rng;
use std::thread;

use super::compare::CompareSession;
use super::generate::gen_op;
use crate::tree::{subtree, tree};
use crate::{Caller, Errno, FileSystem, Ino, NewKind, NewNode, RenameFlags};

/// Names in each shared directory.
const SHARED_NAMES: u64 = 6;
/// Bytes of each shared file, all of one value: a mixture is a torn write or read.
const SHARED_LEN: usize = 12_000;

/// Makes calls on `fs`, which is fresh, from `threads` threads with `ops` calls each, which `seed`
/// and chance decide. Three calls in four are in a directory of the thread's own, where each must
/// give the same as a model. The others race with the other threads' calls in a shared tree:
/// creating, writing, reading, linking, renaming and removing the same few names.
///
/// At the end the own directories equal their models. In the shared tree each name resolves, and
/// link counts match names. Returns what did not hold.
pub fn stress(fs: &dyn FileSystem, threads: u64, ops: usize, seed: u64) -> Result<(), String> {
    run(fs, threads, ops, seed).map_err(|what| format!("seed {seed}: {what}"))
}

fn run(fs: &dyn FileSystem, threads: u64, ops: usize, seed: u64) -> Result<(), String> {
    let root = fs.root();
    let text = |errno: Errno| format!("setting up: {errno}");
    let shared = make(fs, root, b"shared", NewKind::Dir).map_err(text)?;
    let own: Vec<Ino> = (0..threads)
        .map(|i| make(fs, root, format!("own-{i}").as_bytes(), NewKind::Dir))
        .collect::<crate::Result<_>>()
        .map_err(text)?;
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .zip(&own)
            .map(|(i, &own)| {
                let rng = Rng::new(seed ^ i << 32);
                scope.spawn(move || work(fs, own, shared, rng, ops).map_err(|e| (i, e)))
            })
            .collect();
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result.map_err(|(i, e)| format!("thread {i}: {e}")),
            Err(_) => Err("a thread panicked".into()),
        });
        joined.collect()
    });
    results.into_iter().collect::<Result<(), String>>()?;
    subtree(fs, shared).map_err(|e| format!("shared tree: {e}"))?;
    tree(fs).map_err(|e| e.to_string())?;
    Ok(())
}

fn make(fs: &dyn FileSystem, dir: Ino, name: &[u8], kind: NewKind<'_>) -> crate::Result<Ino> {
    let node = NewNode { kind, mode: 0o755, umask: 0 };
    Ok(fs.create(&Caller::ROOT, dir, name, &node)?.ino)
}

fn work(
    fs: &dyn FileSystem,
    own: Ino,
    shared: Ino,
    mut rng: Rng,
    ops: usize,
) -> Result<(), String> {
    let mut session = CompareSession::new(fs, own);
    for i in 0..ops {
        if rng.percent(25) {
            race(fs, shared, &mut rng)?;
            continue;
        }
        let op = gen_op(&mut rng);
        session.step(&op).map_err(|e| format!("call {i}, {op}: {e}"))?;
    }
    session.finish()
}

/// Makes one call in the shared tree. It may fail as a call does that loses a race, but not
/// otherwise.
fn race(fs: &dyn FileSystem, shared: Ino, rng: &mut Rng) -> Result<(), String> {
    let mut taken = Vec::new();
    let result = race_call(fs, shared, rng, &mut taken);
    for ino in taken {
        fs.forget(ino, 1);
    }
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(what)) => Err(what),
        Err(
            Errno::NOENT
            | Errno::EXIST
            | Errno::ISDIR
            | Errno::NOTDIR
            | Errno::NOTEMPTY
            | Errno::INVAL
            | Errno::PERM
            | Errno::MLINK
            | Errno::NOSPC,
        ) => Ok(()),
        Err(errno) => Err(format!("in the shared tree: {errno}")),
    }
}

/// Makes a random call. The outer result is the call's; the inner one is that of checking the
/// call's result.
fn race_call(
    fs: &dyn FileSystem,
    shared: Ino,
    rng: &mut Rng,
    taken: &mut Vec<Ino>,
) -> crate::Result<Result<(), String>> {
    let mut dir = |rng: &mut Rng| {
        let mut at = shared;
        for _ in 0..rng.below(3) {
            let Ok(found) = fs.lookup(at, &name(rng)) else { break };
            taken.push(found.ino);
            at = found.ino;
        }
        at
    };
    let (from, to) = (dir(rng), dir(rng));
    let (from_name, to_name) = (name(rng), name(rng));
    // Any inode may be there: the call must neither fail in another way nor leave a reference.
    match fs.peek(to, &to_name) {
        Ok(attr) if attr.nlink == 0 => return Ok(Err(format!("a name leads to {attr:?}"))),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
        Err(e) => return Ok(Err(format!("peek: {e}"))),
    }
    match rng.below(10) {
        0 => {
            let ino = make(fs, from, &from_name, NewKind::File)?;
            taken.push(ino);
            fs.write(ino, 0, &[rng.next() as u8; SHARED_LEN])?;
        }
        1 => taken.push(make(fs, from, &from_name, NewKind::Dir)?),
        2 => fs.unlink(from, &from_name)?,
        3 => fs.rmdir(from, &from_name)?,
        4 | 5 => {
            let flags = rng.pick(&[0, 0, 1, 2]);
            let flags = RenameFlags::from_bits_retain(flags);
            fs.rename((from, &from_name), (to, &to_name), flags)?;
        }
        6 => {
            let ino = fs.lookup(from, &from_name)?.ino;
            taken.push(ino);
            taken.push(fs.link(ino, to, &to_name)?.ino);
        }
        7 => {
            let ino = fs.lookup(from, &from_name)?.ino;
            taken.push(ino);
            fs.write(ino, 0, &[rng.next() as u8; SHARED_LEN])?;
        }
        8 => {
            let ino = fs.lookup(from, &from_name)?.ino;
            taken.push(ino);
            let mut buf = [0; SHARED_LEN];
            let len = fs.read(ino, 0, &mut buf)?;
            let whole = len == 0 || len == SHARED_LEN && buf.iter().all(|&b| b == buf[0]);
            return Ok(if whole { Ok(()) } else { Err(format!("torn read of {len} bytes")) });
        }
        _ => return list_once(fs, from),
    }
    Ok(Ok(()))
}

fn name(rng: &mut Rng) -> Vec<u8> {
    format!("s{}", rng.below(SHARED_NAMES)).into_bytes()
}

/// Lists `dir` in one call, which is atomic: no name can come twice.
fn list_once(fs: &dyn FileSystem, dir: Ino) -> crate::Result<Result<(), String>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })?;
    let listed = names.len();
    names.sort();
    names.dedup();
    Ok(if names.len() == listed { Ok(()) } else { Err(format!("listed twice: {names:?}")) })
}
