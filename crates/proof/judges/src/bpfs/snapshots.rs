//! Pools of BPFS with snapshots. A `sync` makes a snapshot, and an `fsync` of the root directory
//! deletes the oldest one.
//!
//! The name of a snapshot has the digest of the tree that it must show. So each snapshot in any
//! state after a crash can be judged by itself.

use super::commands::{CommandRun, Sequel};
use super::{Bpfs, Ordered, streams};
use crate::{mounted, text};
use crashsim::image::CrashImage;
use crashsim::keeping;
use crashsim::recorder::Recorder;
use crashsim::run::Base;
use crashsim::sited::Sited;
use crashsim::target::{Meeting, Mounted, SharingProcess, Strength, Target, Usage};
use crashsim::workload::POOL_BYTES;
use crashsim::{forward_target, target};
use pmem::Medium;
use pool::{DurabilityMode, MountOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use vfs::script::{Op, parse};
use vfs::tree::tree;
use vfs::{Caller, Errno, FileSystem, Ino, Mappings, NewKind, NewNode, Openings, ROOT, StatFs};

/// BPFS with snapshots, in a mode of durability. All else is as in [`Bpfs`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshotted(pub DurabilityMode);

/// BPFS with snapshots, durable on return.
const DURABLE: Snapshotted = Snapshotted(DurabilityMode::Journal);

/// A pool whose calls of `sync` and `fsync` make and delete snapshots.
struct Snapshots<'m, M: Medium> {
    pool: bpfs::Bpfs<Sited<&'m M>>,
    medium: &'m M,
}

/// Returns the digest of the tree that a file system shows.
pub(super) fn digest(fs: &dyn FileSystem) -> Result<String, String> {
    let mut hasher = DefaultHasher::new();
    tree(fs).map_err(text)?.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// Returns the names of the complete snapshots on a medium, in the order of their creation, without
/// those that belong to branches. (The clock starts again in each mount, so their times do not show
/// the order.)
pub(super) fn names(medium: &impl Medium) -> Result<Vec<String>, String> {
    let all = bpfs::snapshots(medium).map_err(text)?;
    let complete = all.into_iter().filter(|snapshot| !snapshot.is_incomplete);
    let mut names: Vec<_> = complete.map(|snapshot| snapshot.name).collect();
    names.retain(|name| number(name).is_some());
    names.sort_by_key(|name| number(name));
    Ok(names)
}

/// Returns the number with which a name begins.
fn number(name: &str) -> Option<u64> {
    name.split('-').next()?.parse().ok()
}

/// Checks that each snapshot on a medium shows the tree whose digest is in its name.
pub(super) fn judge(medium: &impl Medium) -> Result<(), String> {
    for name in names(medium)? {
        let options = MountOptions {
            read_only: true,
            snapshot: Some(name.clone()),
            threads: Some(1),
            clock: target::clock,
            seed: Some(7),
            ..MountOptions::default()
        };
        let failed = |e: String| format!("snapshot {name}: {e}");
        let fs = bpfs::Bpfs::mount(medium, &options).map_err(|e| failed(text(e)))?;
        let found = digest(&fs).map_err(failed)?;
        if name.split('-').nth(1) != Some(&found) {
            return Err(format!("snapshot {name} shows the tree {found}"));
        }
    }
    Ok(())
}

/// Makes a snapshot, if the pool has room for one.
pub(super) fn create<M: Medium>(pool: &bpfs::Bpfs<Sited<&M>>, medium: &M) -> Result<(), String> {
    let names = names(medium)?;
    let last = names.last().and_then(|name| number(name));
    let name = format!("{}-{}", last.map_or(0, |last| last + 1), digest(pool)?);
    match pool.create_snapshot(&name) {
        Ok(()) | Err(Errno::NOSPC) => Ok(()),
        Err(e) => Err(text(e)),
    }
}

impl<M: Medium> Snapshots<'_, M> {
    /// Deletes the oldest snapshot, if the pool has any.
    fn delete(&self) -> Result<(), String> {
        match names(self.medium)?.first() {
            Some(name) => self.pool.delete_snapshot(name).map_err(text),
            None => Ok(()),
        }
    }

    /// If the pool has nothing except snapshots: writes to all free blocks, then judges and deletes
    /// the snapshots.
    fn end_snapshots(&self) -> Result<(), String> {
        let mut names_in_root = 0;
        let mut count = |_: &vfs::DirEntry<'_>| {
            names_in_root += 1;
            true
        };
        self.pool.readdir(ROOT, 0, &mut count).map_err(text)?;
        if names_in_root > 2 || names(self.medium)?.is_empty() {
            return Ok(());
        }
        let file = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };
        if let Ok(made) = self.pool.create(&Caller::ROOT, ROOT, b"fill", &file) {
            for bytes in [64 << 10, 4 << 10] {
                while self.pool.append(made.ino, &vec![0xee; bytes]).is_ok() {}
            }
            self.pool.unlink(ROOT, b"fill").map_err(text)?;
            self.pool.forget(made.ino, 1);
        }
        judge(self.medium)?;
        while !names(self.medium)?.is_empty() {
            self.delete()?;
        }
        Ok(())
    }
}

/// Returns `EIO`, which the explorer never expects, if something was wrong.
fn expected(judged: Result<(), String>) -> vfs::Result<()> {
    judged.map_err(|what| {
        println!("{what}");
        Errno::IO
    })
}

impl<M: Medium> FileSystem for Snapshots<'_, M> {
    vfs::forward!(self => self.pool; root, durability, kernel_cache, limits, forget, lookup,
        getattr, readlink, readdir, read, seek, getxattr, listxattr, create, tmpfile, rmdir, link,
        setxattr, removexattr, setattr, unlink, rename, rename_whiteout, write, append,
        drop_privileges, fallocate, copy_range, clone_range, close);

    fn sync(&self) -> vfs::Result<()> {
        // This makes durable what an operation has left.
        expected(create(&self.pool, self.medium))?;
        self.pool.sync()
    }

    fn fsync(&self, ino: Ino) -> vfs::Result<()> {
        self.pool.fsync(ino)?;
        if ino == ROOT { expected(self.delete()) } else { Ok(()) }
    }

    fn statfs(&self) -> StatFs {
        // A pool whose snapshots are wrong has no space, which the explorer never expects.
        match self.end_snapshots() {
            Ok(()) => self.pool.statfs(),
            Err(what) => {
                println!("{what}");
                StatFs { blocks_free: u64::MAX / 2, ..self.pool.statfs() }
            }
        }
    }
}

impl<M: Medium> SharingProcess for Snapshots<'_, M> {
    fn fs(&self) -> &dyn FileSystem {
        self
    }

    fn recover(&self) -> Result<(), String> {
        self.pool.rehearse_recovery().map_err(text)
    }

    fn reap(&self) -> Result<(), String> {
        self.pool.reap_processes().map(drop).map_err(text)
    }
}

impl<M: Medium> Mappings for Snapshots<'_, M> {
    vfs::forward!(self => self.pool; map_range, unmap_range, sync_range);
}

impl<M: Medium> Openings for Snapshots<'_, M> {}

impl Target for Snapshotted {
    forward_target!(Bpfs; format, is_pool, has_steps_at_words, blocks_of_fresh, repair,
        describe, harmless);

    fn strength(&self) -> Strength {
        match self.0 {
            DurabilityMode::Journal => Bpfs.strength(),
            DurabilityMode::Ordered => Ordered.strength(),
        }
    }

    fn mount<'m, M: Medium>(&self, medium: &'m M) -> Result<Mounted<'m>, String> {
        let options = mounted::mount_options();
        let pool = bpfs::Bpfs::mount(Sited(medium), &options).map_err(text)?;
        pool.set_durability(self.0).map_err(text)?;
        // The digest of a tree reads all of it.
        pool.record_access(false, false, false);
        let blocks_used = pool.mount_report().blocks_used;
        Ok(Mounted { fs: Box::new(Snapshots { pool, medium }), blocks_used })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn share<'m, M: Medium>(
        &self,
        medium: &'m M,
        at: &Meeting,
    ) -> Result<Box<dyn SharingProcess + 'm>, String> {
        let options = mounted::mount_options();
        let pool = mounted::attach::<M, bpfs::Files<Sited<&M>>>(medium, at, &options)?;
        pool.set_durability(self.0).map_err(text)?;
        pool.record_access(false, false, false);
        Ok(Box::new(Snapshots { pool, medium }))
    }

    fn check<M: Medium>(&self, medium: &M) -> Result<Usage, String> {
        judge(medium)?;
        Bpfs.check(medium)
    }
}

/// Inodes of all kinds, with a snapshot of them.
const FEW: &str = "mkdir /d; create /a; write /a 0 5000; create /d/b; write /d/b 0 100; \
    symlink /l 30; setxattr /a user.x 10; setxattr /d user.y 10; link /a /d/a; create /o; \
    create /s; write /s 0 9000; sync";

/// Changes of what a snapshot shows, in each way that BPFS stores: in place by words, lines and
/// records, behind the end, by pointers; and of names and attributes.
const CHANGES: &str = "\
write /a 0 8; write /a 3 5; write /a 64 64; write /a 100 200; write /a 4090 20; write /a 0 4096; write /a 0 5000
append /a 100; append /a 9000; append /d/b 10; write /d/b 90 20; truncate /a 0; truncate /a 100; truncate /a 4096
truncate /a 10000; truncate /d/b 50; punch /a 0 4096; punch /a 100 200; zero /a 100 5000; collapse /s 0 4096
insert /s 0 4096; allocate /a 4000 10000; clone /s 0 /a 0 0; clone /a 0 /o 0 0; clone /s 4096 /a 0 4096
unlink /a; unlink /s; unlink /l; rename /s /a; rename /d/b /b; exchange /s /d; mkdir /e; create /d/n
chmod /a 600; chmod /d 700; setall /s 100 600 9; setxattr /a user.x 10; setxattr /a user.x 3000
setxattr /d user.z 10; removexattr /a user.x; write /o 0 8; sync; fsync /; remount";

/// Sequences: a later operation stores where an earlier one has left a block to the pool or to a
/// snapshot, or uses again what became free.
const SEQUENCES: [&str; 27] = [
    "fsync /; write /a 0 8; write /a 100 200; append /s 10",
    "write /a 0 8; fsync /; write /a 8 8; unlink /a; sync",
    "sync; write /a 0 8; fsync /; write /a 100 200; sync; fsync /; fsync /",
    "write /a 0 8; sync; write /a 0 8; fsync /; write /a 0 8; fsync /",
    "unlink /a; unlink /d/a; create /n; write /n 0 30000; write /n 0 8",
    "unlink /s; sync; create /s; write /s 0 9000; fsync /; write /s 0 9000",
    "unlink /s; fsync /; create /n; write /n 0 30000; sync",
    "truncate /s 100; append /s 5000; sync; truncate /s 0; fsync /; append /s 100",
    "open /s 0; unlink /s; sync; write %0 0 8; close 0; fsync /; fsync /",
    "tmpfile /d 1; write %1 0 5000; sync; close 1; fsync /",
    "clone /s 0 /o 0 0; sync; write /o 0 8; unlink /s; fsync /; write /o 8 8; fsync /; write /o 16 8",
    "rename /d/b /b; chmod /b 600; sync; rename /b /d/b; fsync /; unlink /d/b",
    "setxattr /a user.z 20; sync; removexattr /a user.z; fsync /; setxattr /a user.z 10",
    "fsync /; sync; append /a 100; remount; append /a 100; fsync /; remount; sync",
    "mkdir /e; create /e/f; sync; unlink /e/f; rmdir /e; fsync /; mkdir /e; fsync /",
    "sync; sync; sync; fsync /; fsync /; write /a 0 8; fsync /; fsync /; write /a 0 8",
    "append /s 4096; sync; append /s 4096; write /s 12288 8; fsync /; append /s 10",
    "unlink /l; symlink /l 40; sync; unlink /l; fsync /; fsync /; create /n; append /n 9000",
    "punch /s 0 4096; sync; write /s 0 10; fsync /; write /s 10 10; collapse /s 0 4096",
    "write /o 0 200000; sync; unlink /o; sync; fsync /; create /n; write /n 0 200000",
    "unlink /s; unlink /l; sync; fsync /; fsync /; create /n; write /n 0 9000; sync; fsync /",
    "open /s 0; unlink /s; sync; chmod /a 600; sync; close 0; create /n; fsync /; fsync /",
    "sync; unlink /s; create /n; write /n 0 9000; sync; unlink /n; fsync /; fsync /",
    "sync; chmod /a 600; fsync /; fsync /; unlink /a; unlink /d/a; sync; create /n; append /n 9000",
    "unlink /o; write /a 0 8; remount; sync; fsync /; append /a 10; remount",
    "mkdir /e; create /e/f; unlink /e/f; rmdir /e; setxattr /a user.z 3000; sync; fsync /",
    "sync; rename /d/b /b; setxattr /d user.z 20; sync; create /d/n; fsync /; unlink /d/n; fsync /",
];

/// Makes the pool with a snapshot, and one without.
pub fn bases() -> Result<[Base; 2], String> {
    let build = |name, script: &str| {
        let ops = parse(script).map_err(text)?;
        Base::build(&DURABLE, name, POOL_BYTES, ops).map_err(|e| format!("base {name}: {e}"))
    };
    Ok([build("snapshot", FEW)?, build("no-snapshot", FEW.trim_end_matches("; sync"))?])
}

/// Returns the workloads for both [`bases`]: single changes, and sequences.
pub fn workloads() -> Vec<Vec<Op>> {
    let changes = CHANGES.lines().flat_map(|line| parse(line).expect("operations"));
    let sequences = SEQUENCES.iter().map(|text| parse(text).expect("operations"));
    changes.map(|op| vec![op]).chain(sequences).collect()
}

/// The number of snapshots of a pool, and whether it has the file `/late`.
pub type Found = (usize, bool);

/// The snapshot that the pool of a command has before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Earlier {
    Nothing,
    /// In it, `/late` is missing.
    OfFew,
    /// It is that of the pool's present state.
    OfAll,
}

/// A command on a whole pool, and its effect.
struct PoolCommand {
    name: &'static str,
    earlier: Earlier,
    run: fn(&Recorder<CrashImage>) -> Result<(), pool::Error>,
    done: Found,
    /// A command that works after a crash anywhere, and its effect.
    then: Option<Sequel<Found>>,
}

const COMMANDS: [PoolCommand; 8] = [
    PoolCommand {
        name: "create the first",
        earlier: Earlier::Nothing,
        run: mount_and_create,
        done: (1, true),
        then: None,
    },
    PoolCommand {
        name: "create",
        earlier: Earlier::OfFew,
        run: mount_and_create,
        done: (2, true),
        then: None,
    },
    PoolCommand { name: "grow", earlier: Earlier::OfAll, run: grow, done: (1, true), then: None },
    PoolCommand {
        name: "delete",
        earlier: Earlier::OfFew,
        run: |medium| {
            let pool = bpfs::Bpfs::mount(Sited(medium), &mounted::mount_options())?;
            Ok(pool.delete_snapshot(&first_name(medium)?)?)
        },
        done: (0, true),
        then: None,
    },
    PoolCommand {
        name: "roll back",
        earlier: Earlier::OfFew,
        run: |medium| bpfs::roll_back(medium, &first_name(medium)?),
        done: (1, false),
        then: None,
    },
    PoolCommand {
        name: "receive",
        earlier: Earlier::Nothing,
        run: |medium| streams::receive_in_parts(medium, &streams::FULL),
        done: (1, true),
        then: Some(Sequel { run: |image| streams::go_on(image, &streams::FULL), done: (1, true) }),
    },
    PoolCommand {
        name: "receive a difference",
        earlier: Earlier::OfFew,
        run: |medium| streams::receive_in_parts(medium, &streams::DIFFERENCE),
        done: (2, true),
        then: Some(Sequel {
            run: |image| streams::go_on(image, &streams::DIFFERENCE),
            done: (2, true),
        }),
    },
    PoolCommand {
        name: "receive and abort",
        earlier: Earlier::OfFew,
        run: |medium| {
            streams::receive_half(medium, &streams::DIFFERENCE)?;
            streams::abort(medium, &streams::DIFFERENCE)
        },
        done: (1, true),
        then: Some(Sequel { run: streams::abort_all, done: (1, true) }),
    },
];

fn mount_and_create(medium: &Recorder<CrashImage>) -> Result<(), pool::Error> {
    let pool = bpfs::Bpfs::mount(Sited(medium), &mounted::mount_options())?;
    Ok(pool.create_snapshot(&format!("1-{}", digest(&pool).unwrap_or_default()))?)
}

/// Makes files until the inode file, of which a snapshot has all blocks, gets another leaf.
fn grow(medium: &Recorder<CrashImage>) -> Result<(), pool::Error> {
    let pool = bpfs::Bpfs::mount(Sited(medium), &mounted::mount_options())?;
    let room = medium.load_u64(bpfs::layout::INODE_SIZE.get());
    let file = NewNode { kind: NewKind::File, mode: 0o600, umask: 0 };
    for number in 0.. {
        if medium.load_u64(bpfs::layout::INODE_SIZE.get()) > room {
            break;
        }
        let name = format!("grown{number}");
        let made = pool.create(&Caller::ROOT, ROOT, name.as_bytes(), &file)?;
        pool.forget(made.ino, 1);
    }
    Ok(())
}

fn first_name(medium: &impl Medium) -> Result<String, pool::Error> {
    let first = names(medium).ok().and_then(|names| names.into_iter().next());
    first.ok_or(pool::Error::Errno(Errno::NOENT))
}

/// Records commands that create, delete and roll back.
///
/// # Errors
/// Those of the commands.
pub fn command_runs() -> Result<Vec<CommandRun<Found>>, String> {
    let record = |PoolCommand { name, earlier, run, done, then }| {
        let bytes = pool_of_commands(earlier)?;
        let trace = keeping::record(&bytes, |medium| run(medium).map_err(text))?;
        let (name, before) = (name.to_owned(), (usize::from(earlier != Earlier::Nothing), true));
        Ok(CommandRun { name, bytes, trace, before, done, state, then })
    };
    COMMANDS.into_iter().map(record).collect()
}

/// Recovers a pool; returns what it is.
fn state(image: &CrashImage) -> Result<Found, String> {
    let mounted = DURABLE.mount(image)?;
    let late = mounted.fs.lookup(ROOT, b"late").is_ok();
    drop(mounted);
    DURABLE.check(image)?;
    Ok((names(image)?.len(), late))
}

/// Operations that make the rest of the pool for the commands, with the file `/late`.
const MORE: &str = "write /a 0 8; unlink /s; rename /d/b /b; create /late; write /late 0 5000; \
    mkdir /m; create /m/1; create /m/2; create /m/3; create /m/4; create /m/5; create /m/6; \
    create /m/7; create /m/8; create /m/9; create /m/10; create /m/11; create /m/12; \
    create /m/13; create /m/14; create /m/15; create /m/16; create /m/17; create /m/18; \
    create /m/19; create /m/20; create /m/21; create /m/22; create /m/23; create /m/24; \
    create /m/25; create /m/26; create /m/27; create /m/28";

/// Returns the pool for the commands.
pub(super) fn pool_of_commands(earlier: Earlier) -> Result<Vec<u8>, String> {
    let without = FEW.trim_end_matches("; sync");
    let ops = match earlier {
        Earlier::Nothing => format!("{without}; {MORE}"),
        Earlier::OfFew => format!("{FEW}; {MORE}"),
        Earlier::OfAll => format!("{without}; {MORE}; sync"),
    };
    let ops = parse(&ops).map_err(text)?;
    let base = Base::build(&DURABLE, "commands", POOL_BYTES, ops)?;
    Ok(base.bytes)
}
