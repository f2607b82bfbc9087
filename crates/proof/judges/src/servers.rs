//! Servers of mounts, which are told what has lost its last name while they hold it (unnamed-U1 in `derived`), under schedules
//! that switch threads at words of the derived state.
//!
//! No crash is explored: what is told lies in no pool. Two servers that begin at once have a place each to be told at; what is
//! told while a server looks at its words is found, then or at the next look.

use crate::mounted;
use crate::{bpfs::Bpfs, text};
use crashsim::image::CrashImage;
use crashsim::schedule::{self, Policy};
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Target};
use crashsim::workload::POOL_BYTES;
use mounts::{HasMountEvents as _, MountEvents as _};
use namespace::Pool;
use std::time::Duration;
use vfs::{Caller, FileSystem as _, Ino, NewKind, NewNode, ROOT};

/// Steps after which the first thread is interrupted: more than lead to the last word that matters.
const INTERRUPTED: u64 = 24;

/// Runs all schedules; an error says what a server was not told.
pub fn explore() -> Result<(), String> {
    (0..INTERRUPTED).try_for_each(|steps| {
        let all = [told_meanwhile, begun_together];
        all.iter().try_for_each(|run| run(steps).map_err(|e| format!("preempt:{steps}: {e}")))
    })
}

/// A process that shares a pool.
type Process<'m> = Pool<bpfs::Files<Sited<&'m CrashImage>>>;

/// Processes that meet on a pool.
struct World {
    image: CrashImage,
    at: Meeting,
}

impl World {
    fn new() -> Result<Self, String> {
        let image = CrashImage::new(POOL_BYTES);
        Bpfs.format(&image)?;
        Ok(Self { image, at: Meeting::default() })
    }

    fn process(&self) -> Result<Process<'_>, String> {
        mounted::attach(&self.image, &self.at, &mounted::mount_options())
    }
}

/// Makes a file that only `server` holds.
fn held_by(server: &Process<'_>, name: &str) -> Result<Ino, String> {
    let node = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };
    Ok(server.create(&Caller::ROOT, ROOT, name.as_bytes(), &node).map_err(text)?.ino)
}

/// What a server is told when it looks; the kernel, which is nobody here, lets it go.
fn told(server: &Process<'_>) -> Result<Vec<Ino>, String> {
    let mut all = Vec::new();
    let tell = &mut |ino| {
        server.forget(ino, 1);
        all.push(ino);
    };
    server.mount_events().wait_for_unnamed(Duration::ZERO, tell).map_err(text)?;
    Ok(all)
}

/// Runs two programs, the first of which is interrupted once.
fn interrupted(
    steps: u64,
    programs: [&(dyn Fn() -> Result<Vec<Ino>, String> + Sync); 2],
) -> Result<Vec<Ino>, String> {
    let results = [const { std::sync::Mutex::new(Ok(Vec::new())) }; 2];
    let run = |i: usize| {
        let (program, result) = (programs[i], &results[i]);
        move || *result.lock().expect("no program panics") = program()
    };
    schedule::run(vec![run(0), run(1)], Policy::preempt(steps).at_words(), "servers");
    let mut all = Vec::new();
    for result in results {
        all.extend(result.into_inner().map_err(|_| "a server panicked".to_owned())??);
    }
    Ok(all)
}

fn expect(found: &[Ino], ino: Ino, what: &str) -> Result<(), String> {
    if found.contains(&ino) { Ok(()) } else { Err(format!("{what} is not told to its server")) }
}

/// A file loses its name while the server looks.
fn told_meanwhile(steps: u64) -> Result<(), String> {
    let world = World::new()?;
    let (server, program) = (world.process()?, world.process()?);
    told(&server)?;
    let ino = held_by(&server, "f")?;
    let unlink = || program.unlink(ROOT, b"f").map(|()| Vec::new()).map_err(text);
    let mut found = interrupted(steps, [&|| told(&server), &unlink])?;
    found.extend(told(&server)?);
    expect(&found, ino, "what is removed while it looks")
}

/// Two servers begin, and then a file of each loses its name.
fn begun_together(steps: u64) -> Result<(), String> {
    let world = World::new()?;
    let (one, other, program) = (world.process()?, world.process()?, world.process()?);
    let held = [held_by(&one, "f")?, held_by(&other, "g")?];
    interrupted(steps, [&|| told(&one), &|| told(&other)])?;
    [b"f", b"g"].iter().try_for_each(|name| program.unlink(ROOT, *name)).map_err(text)?;
    expect(&told(&one)?, held[0], "what is removed after two have begun")?;
    expect(&told(&other)?, held[1], "what is removed after two have begun")
}
