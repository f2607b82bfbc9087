//! Commands on trees of a BPFS pool: crashes while a branch is made, committed or discarded, while
//! a directory is cloned, and while a pool in use goes back to a snapshot, in each mode of
//! durability.
//!
//! A command consists of many operations, each of which other workloads explore. Here the pool and
//! its branches are judged as a whole: after a crash, the tree of the pool is the old one or the
//! new one, and each finished branch shows the tree that it must show. The rest is removed, as
//! the next command does; then no block may be in use that a pool without branches
//! does not use. Each snapshot beside them shows the tree whose digest is in its name.

use super::Bpfs;
use super::commands::CommandRun;
use super::snapshots::{self, digest};
use crate::{mounted, text};
use bpfs::layout::INODES_PER_BLOCK;
use crashsim::image::CrashImage;
use crashsim::keeping;
use crashsim::recorder::Recorder;
use crashsim::run::Base;
use crashsim::sited::Sited;
use crashsim::target::Target as _;
use crashsim::workload::POOL_BYTES;
use pmem::Medium;
use pool::{DurabilityMode, MountOptions, TreeSource, base_of_branch};
use vfs::script::{Driver, parse};
use vfs::{Errno, FileSystem, Ino, ROOT, RenameFlags, Timestamp, clone_tree, remove_tree};

/// The name of the branch.
const NAME: &str = "b";

/// The medium of a recorded command.
type Recorded = Recorder<CrashImage>;

/// A mounted pool.
type Pool<'m, M> = bpfs::Bpfs<Sited<&'m M>>;

/// The state of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// The digest of its tree.
    pool: String,
    /// That of the branch, if it is finished.
    branch: Option<String>,
    /// The number of snapshots, without those of branches.
    snapshots: usize,
}

/// A part of the tree of the pool.
const POOL: &str = "mkdir /d; create /a; write /a 0 5000; create /d/b; write /d/b 0 100; symlink /l 30; \
    setxattr /a user.x 10; setxattr /d user.y 10; link /a /d/a; create /s; write /s 0 9000; mkdir /d/e; chmod /d 711";

/// Changes of the branch.
const CHANGES: &str = "write /a 0 8; unlink /s; rename /d/b /b; create /n; write /n 0 5000; setxattr / user.r 10; \
    chmod / 700; append /b 5000; mkdir /m; create /m/f";

/// Runs a script.
fn run(fs: &dyn FileSystem, script: &str) -> Result<(), String> {
    let mut driver = Driver::new(fs);
    for (salt, op) in (1..).zip(parse(script).map_err(text)?) {
        driver.run(&op, salt).map_err(|e| format!("{op}: {e}"))?;
    }
    driver.close_all();
    Ok(())
}

/// Makes the branch, as `keepstone branch create` does.
fn create<M: Medium>(pool: &Pool<'_, M>) -> vfs::Result<()> {
    let base = base_of_branch(NAME);
    let dir = pool.branches_dir(true)?.ok_or(Errno::NOENT)?;
    pool.create_snapshot(&base)?;
    pool.copy_tree(&TreeSource::Snapshot(&base), (dir, NAME.as_bytes())).map(drop)
}

/// Removes what is not finished, and the snapshots of branches that are no more.
fn clean<M: Medium>(pool: &Pool<'_, M>, medium: &M) -> Result<(), String> {
    let Some(dir) = pool.branches_dir(false).map_err(text)? else { return Ok(()) };
    for branch in bpfs::branches(medium).map_err(text)? {
        if branch.is_finished {
            continue;
        }
        let base = base_of_branch(&branch.name);
        for removed in [remove_tree(pool, dir, base.as_bytes()), pool.delete_snapshot(&base)] {
            if let Err(e) = removed
                && e != Errno::NOENT
            {
                return Err(text(e));
            }
        }
    }
    Ok(())
}

/// Removes the branch, as `keepstone branch discard` does.
fn discard<M: Medium>(pool: &Pool<'_, M>, medium: &M) -> Result<(), String> {
    let dir = pool.branches_dir(false).map_err(text)?.ok_or("no branches")?;
    let base = base_of_branch(NAME);
    pool.rename((dir, NAME.as_bytes()), (dir, base.as_bytes()), RenameFlags::NOREPLACE)
        .map_err(text)?;
    clean(pool, medium)
}

fn mount<M: Medium>(medium: &M, mode: DurabilityMode) -> Result<Pool<'_, M>, String> {
    let pool = bpfs::Bpfs::mount(Sited(medium), &mounted::mount_options()).map_err(text)?;
    pool.set_durability(mode).map_err(text)?;
    // The digest of a tree reads all of it.
    pool.record_access(false, false, false);
    Ok(pool)
}

/// Returns the digest of the branch, if it is finished.
fn digest_of_branch<M: Medium>(medium: &M) -> Result<Option<String>, String> {
    let pool = mount(medium, DurabilityMode::default())?;
    match bpfs::Branch::<Sited<&M>>::open(pool, NAME) {
        Ok(branch) => digest(&branch).map(Some),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(text(e)),
    }
}

/// Recovers a pool, and removes its branches.
fn state(image: &CrashImage) -> Result<Digests, String> {
    Bpfs.check(image)?;
    snapshots::judge(image)?;
    let pool = mount(image, DurabilityMode::default())?;
    let found = digest(&pool)?;
    drop(pool);
    let branch = digest_of_branch(image)?;
    let pool = mount(image, DurabilityMode::default())?;
    clean(&pool, image)?;
    if branch.is_some() {
        discard(&pool, image)?;
    }
    if digest(&pool)? != found {
        return Err("a branch that was removed was a part of the pool".to_owned());
    }
    let used = pool.statfs().blocks - pool.statfs().blocks_free;
    drop(pool);
    let usage = Bpfs.check(image)?;
    // The pool has what its tree needs; the rest is inodes, and the directory of branches.
    let pool = mount(image, DurabilityMode::default())?;
    if pool.statfs().blocks - pool.statfs().blocks_free != used {
        return Err(format!("{used} blocks are in use, and others after a scan ({usage:?})"));
    }
    if !bpfs::branches(image).map_err(text)?.is_empty() {
        return Err("a branch stays".to_owned());
    }
    // No snapshot has the blocks that are free here.
    fill(&pool)?;
    drop(pool);
    snapshots::judge(image)?;
    Ok(Digests { pool: found, branch, snapshots: snapshots::names(image)?.len() })
}

/// Writes to all free blocks of a pool.
fn fill<M: Medium>(pool: &Pool<'_, M>) -> Result<(), String> {
    run(pool, "create /fill")?;
    let file = pool.peek(ROOT, b"fill").map_err(text)?.ino;
    for bytes in [64 << 10, 4 << 10] {
        while pool.append(file, &vec![0xee; bytes]).is_ok() {}
    }
    run(pool, "unlink /fill")
}

/// The state of a pool before a command, besides its tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// The branch, which has changed.
    Branch,
    /// A snapshot, since which the pool has changed.
    Snapshot,
    /// The branch, which has changed, and a snapshot of the pool's tree.
    BranchBesideSnapshot,
    /// The tree of the branch, and a snapshot of the one before.
    Committed,
}

/// A command.
struct BranchCommand {
    name: &'static str,
    before: Before,
    run: fn(&Pool<'_, Recorded>, &Recorded) -> Result<(), String>,
    /// Returns what the pool is afterwards, from what it was and its bytes.
    done: fn(Digests, &[u8]) -> Result<Digests, String>,
}

const COMMANDS: [BranchCommand; 7] = [
    BranchCommand {
        name: "create a branch",
        before: Before::Nothing,
        run: |pool, _| create(pool).map_err(text),
        done: |before, _| Ok(Digests { branch: Some(before.pool.clone()), ..before }),
    },
    BranchCommand {
        name: "commit a branch",
        before: Before::Branch,
        run: |pool, _| commit(pool),
        done: |before, _| Ok(committed(before)),
    },
    BranchCommand {
        name: "commit a branch beside a snapshot",
        before: Before::BranchBesideSnapshot,
        run: |pool, _| commit(pool),
        done: |before, _| Ok(committed(before)),
    },
    BranchCommand {
        name: "create a snapshot after a commit",
        before: Before::Committed,
        run: snapshots::create,
        done: |before, _| Ok(Digests { snapshots: 2, ..before }),
    },
    BranchCommand {
        name: "discard a branch",
        before: Before::Branch,
        run: discard,
        done: |before, _| Ok(Digests { branch: None, ..before }),
    },
    BranchCommand {
        name: "clone a directory",
        before: Before::Nothing,
        run: |pool, _| {
            let to = (ROOT, &b"copy"[..]);
            pool.copy_tree(&TreeSource::Dir(wide(pool)?), to).map(drop).map_err(text)
        },
        done: |before, bytes| {
            // By ordinary calls.
            let image = CrashImage::of(bytes.to_vec());
            let pool = mount(&image, DurabilityMode::default())?;
            let from = wide(&pool)?;
            clone_tree(&pool, from, (ROOT, b"copy"), 1, &mut |_| true).map_err(text)?;
            Ok(Digests { pool: digest(&pool)?, ..before })
        },
    },
    BranchCommand {
        name: "roll back",
        before: Before::Snapshot,
        run: |pool, medium| roll_back(pool, &snapshot_name(medium)?).map_err(text),
        done: |before, bytes| {
            let image = CrashImage::of(bytes.to_vec());
            let options = MountOptions {
                read_only: true,
                snapshot: Some(snapshot_name(&image)?),
                ..mounted::mount_options()
            };
            let snapshot = bpfs::Bpfs::mount(Sited(&image), &options).map_err(text)?;
            Ok(Digests { pool: digest(&snapshot)?, ..before })
        },
    },
];

/// Commits the branch, as `keepstone branch commit` does.
fn commit<M: Medium>(pool: &Pool<'_, M>) -> Result<(), String> {
    pool.commit_branch(NAME, Some(&base_of_branch(NAME))).map_err(text)
}

/// Returns what a pool is after the commit of its branch.
fn committed(before: Digests) -> Digests {
    Digests { pool: before.branch.unwrap_or_default(), branch: None, ..before }
}

/// Returns the name of the only snapshot.
fn snapshot_name(medium: &impl Medium) -> Result<String, String> {
    snapshots::names(medium)?.pop().ok_or_else(|| "no snapshot".to_owned())
}

/// Goes back to a snapshot, as `keepstone snapshot rollback` does in a pool that is used.
fn roll_back<M: Medium>(pool: &Pool<'_, M>, snapshot: &str) -> vfs::Result<()> {
    let dir = pool.branches_dir(true)?.ok_or(Errno::NOENT)?;
    let unfinished = base_of_branch(NAME);
    pool.copy_tree(&TreeSource::Snapshot(snapshot), (dir, unfinished.as_bytes()))?;
    pool.commit_branch(&unfinished, None)
}

/// Returns the directory that is cloned.
fn wide(fs: &dyn FileSystem) -> Result<Ino, String> {
    Ok(fs.peek(ROOT, b"w").map_err(text)?.ino)
}

/// Returns the operations that make the pool. The directory `w` has more inodes than there are
/// slots left, and two blocks of entries; beside a snapshot it has a leaf of the inode file for
/// itself, which a branch leaves shared.
fn ops_of_pool(before: Before) -> String {
    let files = match before {
        Before::Nothing | Before::Branch | Before::Snapshot => 33,
        Before::BranchBesideSnapshot | Before::Committed => 2 * INODES_PER_BLOCK,
    };
    let files: String = (0..files).map(|i| format!("create /w/{i:0100}; ")).collect();
    format!(
        "{POOL}; mkdir /w; link /a /w/a; link /s /w/s; link /s /w/again; symlink /w/l 20; {files} mkdir /w/d"
    )
}

/// Returns the pool before a command.
fn pool_before(before: Before) -> Result<Vec<u8>, String> {
    let ops = parse(&ops_of_pool(before)).map_err(text)?;
    let base = Base::build(&Bpfs, "branches", POOL_BYTES, ops)?;
    let image = CrashImage::of(base.bytes);
    let pool = mount(&image, DurabilityMode::default())?;
    if !matches!(before, Before::Nothing | Before::Branch) {
        snapshots::create(&pool, &image)?;
    }
    match before {
        Before::Nothing => drop(pool),
        Before::Snapshot => run(&pool, CHANGES)?,
        Before::Branch | Before::BranchBesideSnapshot | Before::Committed => {
            create(&pool).map_err(text)?;
            let branch = bpfs::Branch::<Sited<&CrashImage>>::open(pool, NAME).map_err(text)?;
            run(&branch, CHANGES)?;
        }
    }
    if before == Before::Committed {
        commit(&mount(&image, DurabilityMode::default())?)?;
        // A pool of one process is opened again after a commit.
        clean(&mount(&image, DurabilityMode::default())?, &image)?;
    }
    let mut bytes = vec![0; POOL_BYTES as usize];
    image.read(0, &mut bytes);
    Ok(bytes)
}

/// Single changes of the pool, which a commit must find.
const SINGLE: &str = "write /a 0 8; write /a 4096 8; append /s 10; punch /s 0 4096; truncate /s 100; chmod /d 700; \
    rename /d/b /d/c; rename /d/b /b; unlink /l; create /n; rmdir /d/e; setxattr /a user.x 30; setxattr /d user.z 10; \
    removexattr /a user.x; exchange /a /s; chown /a 1 1; chmod / 700";

/// Checks what needs no crash: a commit is refused if the pool has changed in the tick of the clock
/// in which the branch was made, and a branch that goes takes nothing with it.
fn check_without_crashes() -> Result<(), String> {
    let empty = Base::build(&Bpfs, "empty", POOL_BYTES, Vec::new())?.bytes;
    for change in SINGLE.split("; ") {
        let image = CrashImage::of(empty.clone());
        let options = MountOptions { clock: || Timestamp(7), ..mounted::mount_options() };
        let pool = bpfs::Bpfs::mount(Sited(&image), &options).map_err(text)?;
        run(&pool, POOL)?;
        create(&pool).map_err(text)?;
        run(&pool, change)?;
        match pool.commit_branch(NAME, Some(&base_of_branch(NAME))) {
            Err(Errno::AGAIN) => {}
            other => return Err(format!("a commit after `{change}` ends with {other:?}")),
        }
    }
    let image = CrashImage::of(pool_before(Before::Nothing)?);
    let pool = mount(&image, DurabilityMode::default())?;
    let before = digest(&pool)?;
    create(&pool).map_err(text)?;
    discard(&pool, &image)?;
    fill(&pool)?;
    if digest(&pool)? != before {
        return Err("a branch that was discarded has taken a part of the pool".to_owned());
    }
    drop(pool);
    Bpfs.check(&image).map(drop)
}

/// Records the commands, in each mode of durability.
///
/// # Errors
/// Those of the commands; what is wrong without a crash.
pub fn command_runs() -> Result<Vec<CommandRun<Digests>>, String> {
    check_without_crashes()?;
    let mut runs = Vec::new();
    for mode in [DurabilityMode::Journal, DurabilityMode::Ordered] {
        for BranchCommand { name, before, run, done } in COMMANDS {
            let bytes = pool_before(before)?;
            let before = state(&CrashImage::of(bytes.clone()))?;
            let trace = keeping::record(&bytes, |medium| {
                let pool = mount(medium, mode)?;
                run(&pool, medium)?;
                // In `ordered`, this makes the last operation durable.
                pool.sync().map_err(text)
            })?;
            let done = done(before.clone(), &bytes)?;
            runs.push(CommandRun {
                name: format!("{name}, {mode}"),
                bytes,
                trace,
                before,
                done,
                state,
                then: None,
            });
        }
    }
    Ok(runs)
}
