//! Tests of notifications to the servers of mounts (unnamed-U1 in `derived`): a server learns of
//! each inode that loses its last name while the server holds it. Schedules switch threads at words
//! of the derived state.
//!
//! No crash is explored, as notifications are not in the pool. Two servers that start at the same
//! time must get separate slots for notifications. A server that looks at its words while a
//! notification arrives must find it then, or at its next look.

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

/// Number of steps after which the first thread may be interrupted: larger than the step of the
/// last word that matters.
const INTERRUPTED: u64 = 24;

/// Runs all schedules; the error names the notification that a server missed.
pub fn explore() -> Result<(), String> {
    (0..INTERRUPTED).try_for_each(|steps| {
        let all = [told_meanwhile, begun_together];
        all.iter().try_for_each(|run| run(steps).map_err(|e| format!("preempt:{steps}: {e}")))
    })
}

/// A process that shares a pool.
type Process<'m> = Pool<bpfs::Files<Sited<&'m CrashImage>>>;

/// A pool and the place where the processes that share it meet.
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

/// Creates a file to which only `server` has a reference.
fn held_by(server: &Process<'_>, name: &str) -> Result<Ino, String> {
    let node = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };
    Ok(server.create(&Caller::ROOT, ROOT, name.as_bytes(), &node).map_err(text)?.ino)
}

/// Returns the inodes of which the server is notified now. It forgets each at once, in place of the
/// kernel.
fn told(server: &Process<'_>) -> Result<Vec<Ino>, String> {
    let mut all = Vec::new();
    let tell = &mut |ino| {
        server.forget(ino, 1);
        all.push(ino);
    };
    server.mount_events().wait_for_unnamed(Duration::ZERO, tell).map_err(text)?;
    Ok(all)
}

/// Runs two programs; the second interrupts the first one once, after `steps` steps.
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

/// Tests that a server learns of a file that loses its name while the server looks.
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

/// Tests that two servers which start at the same time both learn of files that lose their names
/// later.
fn begun_together(steps: u64) -> Result<(), String> {
    let world = World::new()?;
    let (one, other, program) = (world.process()?, world.process()?, world.process()?);
    let held = [held_by(&one, "f")?, held_by(&other, "g")?];
    interrupted(steps, [&|| told(&one), &|| told(&other)])?;
    [b"f", b"g"].iter().try_for_each(|name| program.unlink(ROOT, *name)).map_err(text)?;
    expect(&told(&one)?, held[0], "what is removed after two have begun")?;
    expect(&told(&other)?, held[1], "what is removed after two have begun")
}
