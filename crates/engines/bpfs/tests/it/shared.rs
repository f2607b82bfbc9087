//! Files that share blocks: what it costs, what it takes of the space, and damage.

use bpfs::layout::{BLOCK, FIRST_INODES, INODE};
use bpfs::{Bpfs, CheckOptions, FormatOptions, MountOptions};
use pmem::{Medium, Region};
use rng::Rng;
use suite::flushed;
use vfs::{
    Caller, Errno, Fallocate, FileSystem, Ino, NewKind, NewNode, ROOT, RenameFlags, SetAttr,
    SetXattr, Timestamp,
};

const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
const BYTES: u64 = 64 << 20;

fn mounted() -> Bpfs<Region> {
    let region = flushed(false).anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    let fs = mount(region);
    // The block of entries of the root stays.
    let first = create(&fs, "first");
    fs.unlink(ROOT, b"first").unwrap();
    fs.forget(first, 1);
    fs
}

fn mount(region: Region) -> Bpfs<Region> {
    let clock = || Timestamp(1);
    Bpfs::mount(region, &MountOptions { clock, ..MountOptions::default() }).unwrap()
}

fn create(fs: &Bpfs<Region>, name: &str) -> Ino {
    fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino
}

fn free(fs: &Bpfs<Region>) -> u64 {
    fs.statfs().blocks_free
}

fn truncate(fs: &Bpfs<Region>, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, ino, &set).unwrap();
}

/// Bytes by non-temporal stores, lines flushed, fences, whole words stored.
fn cost(fs: &Bpfs<Region>, op: impl FnOnce()) -> [u64; 4] {
    let before = fs.medium().counters().snapshot();
    op();
    let d = fs.medium().counters().snapshot() - before;
    [d.nt_bytes, d.lines_flushed, d.fences, d.words_stored]
}

#[test]
fn costs() {
    let fs = mounted();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.write(a, 0, &vec![1; 8 << 20]).unwrap();
    // The first clone of a pool records that there are shared blocks.
    fs.clone_range((a, 0), (create(&fs, "first clone"), 0), 0).unwrap();
    let clone = cost(&fs, || fs.clone_range((a, 0), (b, 0), 0).unwrap());
    assert_eq!(clone, [64 + 64, 1, 4, 2], "a clone of any size is a record of two words");

    // One block of pointers at each of the two levels.
    let first = cost(&fs, || fs.write(b, 4096, &[2; 4096]).unwrap());
    assert_eq!(first, [4096 + 2 * 4096, 1, 3, 1], "the first overwrite copies the path");
    let second = cost(&fs, || fs.write(b, 8192, &[2; 4096]).unwrap());
    assert_eq!(second, [4096, 1, 2, 1], "the others of the same 2 MiB are like any overwrite");
    let word = cost(&fs, || fs.write(b, 12_288, &[2; 8]).unwrap());
    assert_eq!(word, [4096, 1, 2, 1], "a word of a shared block is copied with its block");
    let again = cost(&fs, || fs.write(b, 12_296, &[2; 8]).unwrap());
    assert_eq!(again, [0, 1, 1, 1], "then it changes in place");

    let small = create(&fs, "small");
    fs.write(small, 0, &[1; 4096]).unwrap();
    let copy = create(&fs, "copy");
    fs.clone_range((small, 0), (copy, 0), 0).unwrap();
    let first = cost(&fs, || fs.write(copy, 0, &[2; 4096]).unwrap());
    assert_eq!(first, [4096, 1, 2, 1], "a file of one block has no pointers to copy");
}

/// `statfs` and `st_blocks` are exact, in whatever order files drop a block.
#[test]
fn space() {
    let fs = mounted();
    let all = free(&fs);
    let a = create(&fs, "a");
    fs.write(a, 0, &vec![1; 3 << 20]).unwrap();
    let (used, blocks) = (all - free(&fs), fs.getattr(a).unwrap().blocks);
    let b = create(&fs, "b");
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    assert_eq!(all - free(&fs), used, "a clone takes nothing");
    assert_eq!(fs.getattr(b).unwrap().blocks, blocks);
    fs.write(b, 0, &[2; 4096]).unwrap();
    assert_eq!(all - free(&fs), used + 3, "a block, and the pointers to it");
    assert_eq!(fs.getattr(b).unwrap().blocks, blocks);
    fs.unlink(ROOT, b"a").unwrap();
    fs.forget(a, 1);
    assert_eq!(all - free(&fs), used, "only the replaced block, and the pointers to it");
    fs.write(b, 0, &[3; 4096]).unwrap();
    assert_eq!(all - free(&fs), used);
    fs.unlink(ROOT, b"b").unwrap();
    fs.forget(b, 1);
    assert_eq!(free(&fs), all);
}

/// Long files that are cloned and changed keep their contents, whether blocks are counted alone or
/// in lines (parents-P6), and give all of their space back.
#[test]
fn long_files() {
    const FILES: usize = 5;
    const BLOCKS: u64 = 700;
    let fs = mounted();
    let all = free(&fs);
    let files: Vec<_> = (0..FILES).map(|i| create(&fs, &i.to_string())).collect();
    // The byte that fills each block of each file.
    let mut want = vec![Vec::new(); FILES];
    let mut rng = Rng::new(5);
    for step in 0..1500 {
        let (one, other) = (rng.below(FILES as u64) as usize, rng.below(FILES as u64) as usize);
        let at = rng.below(BLOCKS);
        match rng.below(8) {
            0 if one != other => {
                truncate(&fs, files[other], 0);
                fs.clone_range((files[one], 0), (files[other], 0), 0).unwrap();
                want[other] = want[one].clone();
            }
            1 => {
                fs.write(files[one], 0, &vec![step as u8; (BLOCKS * BLOCK) as usize]).unwrap();
                want[one] = vec![step as u8; BLOCKS as usize];
            }
            2 => {
                let blocks = at.min(want[one].len() as u64);
                truncate(&fs, files[one], blocks * BLOCK);
                want[one].truncate(blocks as usize);
            }
            _ if at < want[one].len() as u64 => {
                fs.write(files[one], at * BLOCK, &[step as u8; BLOCK as usize]).unwrap();
                want[one][at as usize] = step as u8;
            }
            _ => {}
        }
    }
    for (file, want) in files.iter().zip(&want) {
        let mut data = vec![0; want.len() * BLOCK as usize];
        assert_eq!(fs.read(*file, 0, &mut data).unwrap(), data.len());
        let bytes = data.chunks(BLOCK as usize).zip(want);
        assert!(bytes.into_iter().all(|(block, byte)| block.iter().all(|b| b == byte)));
    }
    for (name, file) in files.iter().enumerate() {
        fs.unlink(ROOT, name.to_string().as_bytes()).unwrap();
        fs.forget(*file, 1);
    }
    assert_eq!(free(&fs), all);
}

/// Threads that clone one long file, and change it and the clones, give all space back. Each clone
/// has a state of the file between two writes, and the changes of its thread.
#[test]
fn threads_with_long_files() {
    const BLOCKS: u64 = 600;
    let fs = &mounted();
    let all = free(fs);
    let file = create(fs, "file");
    fs.write(file, 0, &vec![1; (BLOCKS * BLOCK) as usize]).unwrap();
    std::thread::scope(|s| {
        for thread in 2..6_u8 {
            s.spawn(move || {
                let mut rng = Rng::new(thread.into());
                for _ in 0..60 {
                    let clone = create(fs, &thread.to_string());
                    fs.clone_range((file, 0), (clone, 0), 0).unwrap();
                    let changed = rng.below(BLOCKS) * BLOCK;
                    fs.write(clone, changed, &[thread; BLOCK as usize]).unwrap();
                    fs.write(file, rng.below(BLOCKS) * BLOCK, &[7; BLOCK as usize]).unwrap();
                    let mut data = vec![0; (BLOCKS * BLOCK) as usize];
                    assert_eq!(fs.read(clone, 0, &mut data).unwrap(), data.len());
                    for (at, block) in
                        (0..).step_by(BLOCK as usize).zip(data.chunks(BLOCK as usize))
                    {
                        let is_possible = |byte| match at == changed {
                            true => byte == thread,
                            false => byte == 1 || byte == 7,
                        };
                        assert!(
                            is_possible(block[0]) && block.iter().all(|byte| *byte == block[0])
                        );
                    }
                    fs.unlink(ROOT, thread.to_string().as_bytes()).unwrap();
                    fs.forget(clone, 1);
                }
            });
        }
    });
    fs.unlink(ROOT, b"file").unwrap();
    fs.forget(file, 1);
    assert_eq!(free(fs), all);
}

/// A reader without a copy has bytes of one file, which the other file owns alone later.
#[test]
fn readers_without_a_copy_see_no_change_of_another_file() {
    let fs = mounted();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.write(a, 0, &[1; 4000]).unwrap();
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    let (at, len) = fs.pin_content(a, 0, 4000).unwrap();
    let at = at.unwrap().get();
    fs.write(a, 0, &[2; 4000]).unwrap();
    fs.write(b, 0, &[3; 8]).unwrap();
    fs.write(b, 100, &[3; 300]).unwrap();
    truncate(&fs, b, 2000);
    fs.append(b, &[3; 100]).unwrap();
    let mut seen = vec![0; len as usize];
    fs.medium().read(at, &mut seen);
    assert!(seen.iter().all(|byte| *byte == 1));
    fs.put_read_buf();
}

/// A copy of whole blocks shares them.
#[test]
fn long_copies_share() {
    let fs = mounted();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.write(a, 0, &vec![1; 1 << 20]).unwrap();
    let before = free(&fs);
    assert_eq!(fs.copy_range((a, 0), (b, 0), u64::MAX), Ok(1 << 20));
    assert_eq!(free(&fs), before);
    assert_eq!(fs.copy_range((a, 0), (b, 2 << 20), 128 << 10), Ok(128 << 10));
    assert!(before - free(&fs) <= 3, "pointers only");
}

/// A pool with a backing store has marks in its pointers, which files cannot share.
#[test]
fn backed_pools_do_not_share() {
    let region = Region::anonymous(BYTES).unwrap();
    let backed = FormatOptions { is_backed: true, ..FormatOptions::default() };
    bpfs::format(&region, &backed).unwrap();
    let fs = mount(region);
    assert!(!fs.limits().clones);
    assert_eq!(fs.clone_range((ROOT, 0), (ROOT, 0), 0), Err(Errno::OPNOTSUPP));
}

/// The state that operations keep is the one that a mount derives: free blocks, and the blocks of
/// each file. All contents are those of files that share nothing.
#[test]
fn what_operations_keep_is_what_a_mount_derives() {
    let seeds = std::env::var("KEEPSTONE_SEED").map_or(0..40, |seed| {
        let seed: u64 = seed.parse().expect("KEEPSTONE_SEED is a number");
        seed..seed + 1
    });
    for seed in seeds {
        let run = std::panic::catch_unwind(|| random_sharing(seed));
        assert!(run.is_ok(), "rerun with KEEPSTONE_SEED={seed}");
    }
}

fn random_sharing(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut fs = mounted();
    let empty = free(&fs);
    let model = vfs::model::Model::new();
    let names: Vec<String> = (0..5).map(|i| i.to_string()).collect();
    for name in &names {
        create(&fs, name);
        model.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap();
    }
    for step in 0..60 {
        let (from, to) = (rng.pick(&names[..]), rng.pick(&names[..]));
        let blocks = [0, 1, 2, 7, 511, 512, 513, 1024, 1500];
        let (at, other) = (BLOCK * rng.pick(&blocks), BLOCK * rng.pick(&blocks));
        let near = at + rng.below(BLOCK);
        let len: u64 = rng.pick(&[1, 8, 100, 1000, 4096, 9000, 70_000, 2 << 20]);
        let what = rng.below(14);
        let change = |fs: &dyn FileSystem| {
            let ino = |name: &str| {
                let entry = fs.lookup(ROOT, name.as_bytes()).unwrap();
                fs.forget(entry.ino, 1);
                entry.ino
            };
            let (from, to) = (ino(&from), ino(&to));
            let size = SetAttr { size: Some(near), ..SetAttr::default() };
            let data = vec![step as u8 + 1; len as usize];
            match what {
                0..4 => fs.clone_range((from, 0), (to, 0), 0),
                4 => fs.clone_range((from, at), (to, other), len.next_multiple_of(BLOCK)),
                5 => fs.clone_range((from, at), (to, other), 0),
                6..9 => fs.write(to, near, &data),
                9 => fs.append(to, &data).map(drop),
                10 => fs.setattr(&Caller::ROOT, to, &size).map(drop),
                11 => fs.fallocate(to, Fallocate::PunchHole, near, len * 3),
                12 => fs.fallocate(to, Fallocate::Collapse, at, BLOCK),
                _ => fs.fallocate(to, Fallocate::Insert, at, 2 * BLOCK),
            }
        };
        let (got, want) = (change(&fs), change(&model));
        if got == Err(Errno::NOSPC) {
            return;
        }
        assert_eq!(got, want, "step {step}: {what}");
        if step % 6 == 5 {
            fs = compare_after_mount(fs, &model, &names);
        }
    }
    for name in &names {
        fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    // The references of `create` went with the mount.
    assert_eq!(free(&fs), empty, "leaked");
}

/// Compares contents with the model, then the derived state with that of a new mount.
fn compare_after_mount(
    fs: Bpfs<Region>,
    model: &vfs::model::Model,
    names: &[String],
) -> Bpfs<Region> {
    let state = |fs: &Bpfs<Region>| {
        let blocks = names.iter().map(|name| fs.peek(ROOT, name.as_bytes()).unwrap().blocks);
        (free(fs), blocks.collect::<Vec<_>>())
    };
    for name in names {
        let (ours, theirs) =
            (fs.peek(ROOT, name.as_bytes()).unwrap(), model.peek(ROOT, name.as_bytes()).unwrap());
        assert_eq!(ours.size, theirs.size, "{name}");
        let mut got = vec![0; ours.size as usize];
        let mut want = got.clone();
        fs.read(ours.ino, 0, &mut got).unwrap();
        model.read(theirs.ino, 0, &mut want).unwrap();
        assert!(got == want, "content of {name}");
    }
    let before = state(&fs);
    let region = fs.into_medium();
    let report = bpfs::check(&region, &CheckOptions::default(), &|_, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    let fs = mount(region);
    assert_eq!(state(&fs), before, "free blocks, and those of each file");
    fs
}

/// A smaller pool keeps what files share.
#[test]
fn resizing_keeps_sharing() {
    let fs = mounted();
    let filler = create(&fs, "filler");
    fs.write(filler, 0, &vec![9; 40 << 20]).unwrap();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.write(a, 0, &vec![1; 5 << 20]).unwrap();
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    fs.write(b, 4096, &[2; 4096]).unwrap();
    fs.unlink(ROOT, b"filler").unwrap();
    fs.forget(filler, 1);
    fs.close().unwrap();
    let region = fs.into_medium();
    bpfs::resize(&region, 16 << 20).unwrap();
    let fs = mount(region);
    let mut content = vec![0; 5 << 20];
    fs.read(a, 0, &mut content).unwrap();
    assert!(content.iter().all(|byte| *byte == 1));
    fs.read(b, 0, &mut content).unwrap();
    assert!(content[4096..8192].iter().all(|byte| *byte == 2));
    assert!(content[8192..].iter().all(|byte| *byte == 1));
    assert!(free(&fs) > 8 << 8, "the 5 MiB are there once");
}

/// Names of the roots that the tests of damage change: the root words of inodes by number.
fn root_word(region: &Region, ino: Ino) -> u64 {
    region.load_u64(FIRST_INODES.at(ino.0 * INODE).get())
}

fn set_root_word(region: &Region, ino: Ino, word: u64) {
    region.store_u64(FIRST_INODES.at(ino.0 * INODE).get(), word);
}

fn problems(region: &Region) -> Vec<String> {
    let report = bpfs::check(region, &CheckOptions::default(), &|_, _| {}).unwrap();
    report.problems.iter().map(|problem| problem.to_string()).collect()
}

/// Makes a pool with two files that share a tree, a directory, and attributes; and changes its
/// words by `damage`. Returns the problems that a check finds. A mount for writing refuses such a
/// pool, and one for reading does not fail.
fn damaged(damage: impl FnOnce(&Region, [Ino; 4])) -> Vec<String> {
    let fs = mounted();
    let (a, b, c) = (create(&fs, "a"), create(&fs, "b"), create(&fs, "c"));
    let dir = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };
    let d = fs.create(&Caller::ROOT, ROOT, b"d", &dir).unwrap().ino;
    fs.create(&Caller::ROOT, d, b"in", &FILE).unwrap();
    fs.write(a, 0, &vec![1; 3 << 20]).unwrap();
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    fs.write(c, 0, &[1; 4096]).unwrap();
    fs.setxattr(c, b"user.x", b"value", SetXattr::Any).unwrap();
    fs.rename((ROOT, b"c"), (ROOT, b"c2"), RenameFlags::empty()).unwrap();
    let region = fs.into_medium();
    assert_eq!(problems(&region), [""; 0]);
    damage(&region, [a, b, c, d]);
    let found = problems(&region);
    let reading = MountOptions { read_only: true, ..MountOptions::default() };
    drop(Bpfs::mount(&region, &reading).unwrap());
    assert_eq!(
        Bpfs::mount(&region, &MountOptions::default()).is_err(),
        !found.is_empty(),
        "{found:?}"
    );
    found
}

#[test]
fn a_directory_shares_nothing() {
    let found = damaged(|region, [a, _, _, d]| set_root_word(region, a, root_word(region, d)));
    assert!(found.iter().any(|what| what.contains("another owner")), "{found:?}");
}

#[test]
fn attributes_share_nothing() {
    let xattr = FIRST_INODES.at(0).get() + 40;
    let found = damaged(|region, [a, _, c, _]| {
        set_root_word(region, a, region.load_u64(xattr + c.0 * INODE));
    });
    assert!(found.iter().any(|what| what.contains("another owner")), "{found:?}");
}

#[test]
fn heights_agree() {
    // The root of the shared tree as a block of data.
    let found = damaged(|region, [_, b, ..]| set_root_word(region, b, root_word(region, b) & !7));
    assert!(found.iter().any(|what| what.contains("another owner")), "{found:?}");
}

#[test]
fn cycles_end() {
    let found = damaged(|region, [a, ..]| {
        let top = root_word(region, a) & !7;
        region.store_u64(top + 8, top);
    });
    assert!(found.iter().any(|what| what.contains("another owner")), "{found:?}");
}

#[test]
fn a_shared_tree_ends_with_its_shortest_file() {
    let size = FIRST_INODES.at(0).get() + 8;
    for shorter in [0, 1] {
        let found = damaged(|region, files| {
            region.store_u64(size + files[shorter].0 * INODE, 1 << 20);
        });
        assert!(!found.is_empty());
    }
}

/// A block of pointers that all lead to one block, at each level: 2^36 blocks of a file, and five
/// in the pool. The scan, counting and removal read each of them once.
#[test]
fn many_pointers_to_one_block_take_no_time() {
    let fs = mounted();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.write(a, 0, &[1; 4096]).unwrap();
    let before = free(&fs);
    let mut size = BLOCK;
    while size < 1 << 46 {
        fs.clone_range((a, 0), (a, size), size).unwrap();
        size *= 2;
    }
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    assert!(before - free(&fs) < 100, "{}", before - free(&fs));
    let blocks = fs.getattr(a).unwrap().blocks;
    let fs = mount(fs.into_medium());
    assert_eq!(fs.getattr(a).unwrap().blocks, blocks);
    let mut byte = [0];
    fs.read(b, size - 1, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    fs.write(b, size / 2, &[2; 10]).unwrap();
    truncate(&fs, a, size / 2 + 4096);
    fs.unlink(ROOT, b"a").unwrap();
    fs.read(b, size / 2 - 1, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    fs.unlink(ROOT, b"b").unwrap();
    assert_eq!(free(&fs), before + 1, "nothing is left");
}

#[test]
fn a_damaged_word_of_sharing_is_refused() {
    let region = Region::anonymous(BYTES).unwrap();
    bpfs::format(&region, &FormatOptions::default()).unwrap();
    region.store_u64(96, 1);
    let refused = bpfs::info(&region).unwrap_err().to_string();
    assert!(refused.contains("damaged"), "{refused}");
}

/// A pool whose files shared blocks is as one whose files never did, after two unmounts: the first
/// mount that finds no shared block records that when it ends.
#[test]
fn a_pool_forgets_that_it_has_shared() {
    let word = |region: &Region| region.load_u64(96);
    let close = |fs: Bpfs<Region>| {
        fs.close().unwrap();
        fs.into_medium()
    };
    let fs = mounted();
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    fs.write(a, 0, &[1; 70_000]).unwrap();
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    let region = close(mount(close(fs)));
    assert_ne!(word(&region), 0, "blocks are shared");
    let fs = mount(region);
    fs.unlink(ROOT, b"b").unwrap();
    let region = close(fs);
    assert_ne!(word(&region), 0, "a mount has found shared blocks");
    let fs = mount(region);
    let (a, b) = (fs.lookup(ROOT, b"a").unwrap().ino, create(&fs, "b"));
    fs.clone_range((a, 0), (b, 0), 0).unwrap();
    let region = close(fs);
    assert_ne!(word(&region), 0, "blocks are shared again");
    let fs = mount(region);
    fs.unlink(ROOT, b"b").unwrap();
    let region = close(mount(close(fs)));
    assert_eq!(word(&region), 0);
    assert!(bpfs::info(&region).is_ok());
    let fs = mount(region);
    let b = create(&fs, "b");
    fs.clone_range((fs.lookup(ROOT, b"a").unwrap().ino, 0), (b, 0), 0).unwrap();
    let region = close(fs);
    assert_ne!(word(&region), 0);
    // A pool that has had snapshots keeps both words.
    let fs = mount(region);
    fs.create_snapshot("s").unwrap();
    fs.delete_snapshot("s").unwrap();
    fs.unlink(ROOT, b"b").unwrap();
    let region = close(mount(close(fs)));
    assert_ne!(word(&region), 0);
}
