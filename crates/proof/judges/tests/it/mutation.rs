//! Tests the explorer: it must find bugs planted at every flush, fence and store of the engine,
//! except those that `EXPLAINED` argues are harmless.

use crashsim::campaign::prepare_process;
use crashsim::format;
use crashsim::mutate::Bug::{self, *};
use crashsim::mutate::{Mutant, mutants, mutate};
use crashsim::persist::Semantics;
use crashsim::run::Base;
use crashsim::score::{Fate, label, score, table};
use crashsim::workload;
use judges::backed;
use judges::bpfs::Bpfs;
use judges::bpfs::branches;
use judges::bpfs::commands::CommandRun;
use judges::bpfs::snapshots::{self, Snapshotted};
use judges::catalogue::sources;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use vfs::script::parse;

/// Mutants that are not bugs: the start of the site's label, the bugs, and the reason. A text after
/// `…` may occur anywhere in the label. docs/CRASHTESTING.md has the arguments at length.
const EXPLAINED: &[(&str, &[Bug], &str)] = &[
    ("store.rs date: self.medium().store_u64", STORE, TIMES),
    ("backed.rs evict_names: let _ = self.medium().fence", &[DropFence], FREED_LATER),
    ("backed.rs empty_dir: self.medium.publish_word", &[DropStore, DelayStore, EarlyReuse], EITHER),
    ("backed.rs empty_dir: self.medium.store_u64", &[DropStore, DelayStore, SwapStores], EITHER),
    ("store.rs write_inode: self.medium().store_u64", &[DelayStore, TearStore], HALF_A_LIFE),
    ("attr.rs set_times: self.medium().store_u64", STORE, TIMES),
    ("crawler.rs grow: self.medium.write_nt", &[ShortStore], BEYOND),
    ("append.rs publish_append: self.medium.publish_word(size", &[EarlyReuse], NO_POINTER),
    ("crawler.rs edit: txn.commit(&self.medium, slot", &[DelayStore], ALONE),
    ("crawler.rs edit: txn.commit(&self.medium, at", &[DelayStore], ALONE),
    ("crawler.rs edit: txn.commit(&self.medium, at", &[DropFence, FlushAfterFence], PUNCHED),
    ("crawler.rs edit: txn.commit(&self.medium, at", &[EarlyStore], PUNCHED),
    ("extent.rs append_content: self.medium.flush(size", &[DropFlush, FlushAfterFence], GROWN),
    ("extent.rs append_content: let _ = self.medium.fence", &[DropFence], GROWN),
    ("file.rs write_leaf: txn.commit", &[DelayStore], ALONE),
    ("store.rs edit_tree: txn.commit", &[DelayStore], ALONE),
    ("redo.rs clear: medium.write_nt", &[DelayStore], CLEARED),
    ("redo.rs store_words: medium.publish_word", &[TearStore, SwapStores, EarlyReuse], RECORDED),
    ("file.rs replace_leaf: self.medium.publish_word", &[DelayStore], ALONE),
    ("file.rs prune: self.medium.store_u64", &[DelayStore, EarlyReuse], BEYOND),
    ("file.rs prune_node: self.medium.store_u64", &[DelayStore, EarlyReuse, SwapStores], BEYOND),
    ("file.rs prune_node: self.medium.flush", &[FlushAfterFence], BEYOND),
    ("dir.rs write_slot: self.medium().store_u64", &[EarlyStore, TearStore, SwapStores], UNSEEN),
    ("dir.rs commit_slot: self.medium().store_u64(at + 8", &[TearStore], UNSEEN),
    ("dir.rs commit_slot: let _ = self.medium().publish(at, life", &[DelayStore], ALONE),
    ("dir.rs clear_entry: self.medium().publish_word", &[DelayStore, EarlyStore], ALONE),
    ("dir.rs clear_entry: self.medium().store_u64(at + 8", STORE, ROOM),
    ("xattr.rs remove_in_place: let _ = self.medium().publish", &[DelayStore, EarlyStore], ALONE),
    ("words.rs copy: medium.store_u64", &[TearStore], UNSEEN),
    ("file.rs write_word: self.medium.publish_word", &[DelayStore, EarlyStore], ALONE),
    ("scan.rs clear_stale: self.medium().store_u64", &[DelayStore, EarlyStore, EarlyReuse], BEYOND),
    ("file.rs publish_in_line: self.medium.publish_line", &[DelayStore], ALONE),
    ("rename.rs rename_locked: self.medium().publish_line", &[DelayStore, EarlyStore], ALONE),
    ("superblock.rs write: let _ = medium.publish(0, 0", &[EarlyStore, TearStore], HALF_A_MAGIC),
    ("superblock.rs write: let _ = medium.publish", &[DelayStore, TearStore], HALF_A_MAGIC),
    ("superblock.rs write: medium.zero_nt", &[DropStore, ShortStore], TIDINESS),
    ("superblock.rs write: let _ = medium.fence()", &[DropFence], FENCED_AGAIN),
    (
        "parents.rs begin_sharing: let _ = self.medium.publish",
        &[DropFence, FlushAfterFence, DelayStore],
        SHARED_BY_OTHERS,
    ),
    ("parents.rs begin_sharing: let _ = self.medium.publish", &[EarlyStore], NOTHING_SHARED),
    ("superblock.rs write: medium.flush(root_at", &[ShortFlush], TIMES),
    ("snapshots.rs copy_inodes: self.medium.write_nt", &[ShortStore], OF_CACHES),
    ("leaves.rs leaf: store.medium.write_nt", &[ShortStore], OF_CACHES),
    ("leaves.rs edit_inode_file: txn.commit", &[FlushAfterFence, DelayStore], OWNED),
    ("leaves.rs prepare_leaf: self.medium.store_u64", &[EarlyStore], FREE),
    (
        "snapshots.rs begin_snapshots: let _ = self.medium.publish",
        &[DropFence, FlushAfterFence, DelayStore],
        FENCED_AGAIN,
    ),
    (
        "branches.rs make_branches_dir: let _ = self.medium().publish",
        &[DropFence, FlushAfterFence, DelayStore],
        FENCED_AGAIN,
    ),
    ("snapshots.rs publish_entry: let _ = self.medium.publish", &[DelayStore], ALONE),
    ("receive.rs receive_group: let _ = self.medium.publish", &[DelayStore], ALONE),
    ("receive.rs end_to_receive: let _ = self.medium.publish", &[DelayStore, EarlyStore], ALONE),
    ("receive.rs leaf: self.trees.medium.write_nt", &[DelayStore], NOT_REUSED),
    (
        "receive.rs receive_group: let _ = self.medium.publish",
        &[DropFlush, DropFence, FlushAfterFence],
        NOT_REUSED,
    ),
    ("snapshots.rs delete_snapshot: let _ = self.medium.publish", &[DelayStore, EarlyStore], ALONE),
    ("backed.rs unmark_block: let _ = self.medium.publish", &[EarlyStore], UNMARKED),
    ("backed.rs expand: self.medium.write_nt", &[ShortStore], BEYOND),
    ("backed.rs expand: self.medium.write_nt", &[InPlace], NEW),
    ("backed.rs load_leaves: self.medium.publish_word", &[DropStore, DelayStore, SwapStores], LOAD),
    ("backed.rs evict_subtree: self.medium.store_u64", &[DelayStore], ALONE),
    ("backed.rs evict_subtree: self.medium.store_u64", &[EarlyStore, SwapStores], EVICTED),
    ("backed.rs evict_tree: self.medium.store_u64", &[DelayStore], ALONE),
    ("backed.rs evict_tree: self.medium.store_u64", &[EarlyStore], EVICTED),
    ("backed.rs change_leaves: self.medium.store_u64", &[DelayStore], ALONE),
    ("backed.rs change_leaves: self.medium.store_u64", &[EarlyStore, SwapStores], WRITTEN),
    ("backed.rs set_identity: self.medium().store_u64(at, 0)", &[EarlyStore, TearStore], NO_MARKS),
    ("backed.rs set_identity: self.medium().store_u64(at + i", &[DelayStore], ALONE),
    ("backed.rs note_stamp: let _ = self.medium().publish", &[DelayStore, EarlyStore], ALONE),
    (
        "backed.rs begin_names_back: let _ = self.medium().publish",
        &[DelayStore, DropFlush, DropStore, FlushAfterFence],
        BUSY,
    ),
    ("backed.rs clean_inode: self.medium().publish_word", &[EarlyStore], BUSY),
    ("backed.rs store_state: self.medium().publish_word", &[EarlyStore], WRITTEN),
];

/// A clone in a pool without shared blocks, and a change of one of the two files.
const FIRST_CLONE: &str =
    "create /one; write /one 0 4096; create /two; clone /one 0 /two 0 0; write /one 0 8";

const STORE: &[Bug] = &[DropStore, DelayStore, EarlyStore, TearStore, SwapStores];
const TIMES: &str = "times are not atomic with what they date, and not compared (§3.6)";
const BEYOND: &str =
    "what lies beyond the end of the file does not count and is cleared at mount (T3, S5)";
const FENCED_AGAIN: &str = "another fence follows before anything leans on this one";
const SHARED_BY_OTHERS: &str = "the clone fences again before it commits; this fence is for threads that share blocks meanwhile";
const NOTHING_SHARED: &str = "a pool may have the word without any shared block";
const HALF_A_MAGIC: &str = "half a magic is none, and the magic is all that is committed";
const HALF_A_LIFE: &str =
    "an inode that does not say its generation in both lines yet is none, nor is its entry (D4)";
const TIDINESS: &str = "what is not zeroed is written before it is read; zeros are for people";
const GROWN: &str =
    "where a directory grows, the times of the name that follows flush this line behind a fence";
const PUNCHED: &str =
    "the operations that come here remove one block, and nothing is to be durable before that";
const NO_POINTER: &str =
    "a size is no pointer: taken for one, it leads to redo records that nobody reads";
const CLEARED: &str = "the next fence of this thread covers it; others wait for the lock, which is given back after its own";
const RECORDED: &str = "a record that is durable says what they are until they are, too";
const UNSEEN: &str = "nothing reads it before the commit that follows in its line or after a fence";
const ROOM: &str =
    "free entries are the same apart and as one, and so is a name with room behind it";
const ALONE: &str =
    "it is all that the operation commits: nothing follows, and what it names was fenced before";
const BUSY: &str = "an inode that is busy has no stamp that counts";
const UNMARKED: &str = "a mark that goes too early costs a write-back";
const FREED_LATER: &str = "the same call fences again when it frees the blocks of the directory";
const EITHER: &str = "each of the two words alone makes the directory empty";
const OF_CACHES: &str = "the last line of an inode has only what pools with a backing store use";
const OWNED: &str = "the change for which the leaf is copied is fenced after this one";
const FREE: &str = "a free inode may have any mode";
const NEW: &str = "nothing leads to the block yet";
const LOAD: &str =
    "content that is not loaded after a crash is absent, which is the same (backed-F5)";
const EVICTED: &str = "what is marked clean may be absent at any time";
const WRITTEN: &str = "the backing store has all that the mark covers before the call";
const NOT_REUSED: &str =
    "open: no workload stores to a block that a group of a stream freed, before the next fence";
const NO_MARKS: &str = "an inode without marks may lose its identity: it gets another object";

fn explanation(m: &Mutant, site: &str) -> Option<&'static str> {
    let is = |(prefix, bugs, _): &&(&str, &[Bug], &str)| {
        let (start, part) = prefix.split_once('…').unwrap_or((*prefix, ""));
        site.starts_with(start) && site.contains(part) && bugs.contains(&m.bug)
    };
    EXPLAINED.iter().find(is).map(|(.., why)| *why)
}

#[test]
fn planted_bugs_are_found() {
    prepare_process();
    let mut bases = workload::bases(&Bpfs).unwrap();
    // Tall trees have the same stores and flushes as small ones.
    bases.retain(|base| !base.name.starts_with(workload::TALL));
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let places = orderings(crates);
    let elsewhere: BTreeSet<&str> =
        places.iter().filter(|(_, label)| is_elsewhere(label)).map(|(site, _)| &**site).collect();
    let here = |m: &Mutant| !elsewhere.contains(&*m.site);
    let of = |base| workload::universe().into_iter().map(move |op| (base, vec![op]));
    let single: Vec<_> = bases.iter().flat_map(of).collect();
    let mut fates = score(&Bpfs, &single, 0, &here).unwrap();
    let first_clone = parse(FIRST_CLONE).unwrap();
    let of = |base| {
        let sequences = workload::sequences().into_iter().chain([first_clone.clone()]);
        sequences.map(move |ops| (base, ops))
    };
    let sequences: Vec<_> = bases.iter().flat_map(of).collect();
    // Mutants that were found or are explained, so that the sequences need not explore them.
    let is_settled = |(m, fate): &(&Mutant, &Fate)| {
        matches!(fate, Fate::Killed { .. }) || explanation(m, &label(crates, &m.site)).is_some()
    };
    let settled: BTreeSet<Mutant> =
        fates.iter().filter(is_settled).map(|(m, _)| m.clone()).collect();
    let open = |m: &Mutant| here(m) && !settled.contains(m);
    let more = score(&Bpfs, &sequences, 0, &open).unwrap();
    fates.extend(more);
    fates.extend(formatting_mutants(&bases[0]));
    let with_snapshots = snapshots::bases().unwrap();
    let of = |base| snapshots::workloads().into_iter().map(move |ops| (base, ops));
    let workloads: Vec<_> = with_snapshots.iter().flat_map(of).collect();
    fates.extend(score(&Snapshotted::default(), &workloads, 0, &is_of_snapshots).unwrap());
    let of_commands = snapshots::command_runs().unwrap();
    let of_snapshots = |run| command_mutants(run, &is_of_snapshots);
    for (m, fate) in of_commands.iter().flat_map(of_snapshots) {
        let is_new = m.site.contains("src/receive.rs:") && !fates.contains_key(&m);
        if is_new || matches!(fate, Fate::Killed { .. }) && fates.contains_key(&m) {
            fates.insert(m, fate);
        }
    }
    for run in branches::command_runs().unwrap() {
        for (m, fate) in command_mutants(&run, &|m| m.site.contains("src/branches.rs:")) {
            if matches!(fate, Fate::Killed { .. }) || !fates.contains_key(&m) {
                fates.insert(m, fate);
            }
        }
    }
    // These two files are about pools with a backing store.
    fates.extend(backed::score(&|m| m.site.contains("src/backed.rs:")).unwrap());

    let mut unexplained = 0;
    for (m, fate) in &fates {
        let site = label(crates, &m.site);
        match fate {
            Fate::Killed { by, what } => {
                let what = what.lines().next().unwrap_or_default();
                println!("{:?} at {site}\n    {by}\n    {what}", m.bug);
            }
            Fate::Survived => {
                let why = explanation(m, &site);
                println!("{:?} at {site}\n    survives: {}", m.bug, why.unwrap_or("WHY?"));
                unexplained += u32::from(why.is_none());
            }
            Fate::Moot => {}
        }
    }
    for (bug, (killed, tried)) in table(&fates) {
        println!("| {bug:?} | {killed} | {tried} |");
    }
    for (place, bug, text) in [
        ("file.rs publish_in_line: ", TearStore, ".publish_line"),
        ("file.rs write_line: ", DropFence, ".fence()"),
        ("rename.rs rename_locked: ", TearStore, ".publish_line"),
        ("rename.rs rename_locked: ", DropFence, ".fence()"),
    ] {
        let is_it = |m: &&Mutant| {
            let site = label(crates, &m.site);
            m.bug == bug && site.starts_with(place) && site.contains(text)
        };
        let fate = fates.keys().find(is_it).map(|m| &fates[m]);
        assert!(matches!(fate, Some(Fate::Killed { .. })), "{bug:?} in {place}{fate:?}");
    }
    let reached = |site: &str| fates.keys().any(|m| m.site == site) || elsewhere.contains(site);
    let missed: Vec<_> = places.iter().filter(|(site, _)| !reached(site)).collect();
    assert!(missed.is_empty(), "no workload reaches {missed:?}");
    assert_eq!(unexplained, 0, "mutants survive and are not explained");
}

/// A copy of a tree has no flush and no fence of its own: its bugs are in its stores, and in the
/// commit of its name.
#[test]
fn planted_bugs_in_copies_of_trees_are_found() {
    prepare_process();
    let crates = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    // Other workloads have the other bugs in a commit of a name.
    let is_fence = |m: &Mutant| m.bug == DropFence && m.site.contains("src/dir.rs:");
    let is_of_copies = |m: &Mutant| m.site.contains("src/copy_tree.rs:") || is_fence(m);
    let (mut killed, mut unexplained) = (0, 0);
    for run in branches::command_runs().unwrap() {
        if !run.name.starts_with("clone") {
            continue;
        }
        for (m, fate) in command_mutants(&run, &is_of_copies) {
            let (bug, site) = (m.bug, label(crates, &m.site));
            let why = explanation(&m, &site);
            println!("{}: {bug:?} at {site}\n    {fate:?} {why:?}", run.name);
            killed += u32::from(matches!(fate, Fate::Killed { .. }));
            unexplained += u32::from(matches!(fate, Fate::Survived) && why.is_none());
        }
    }
    assert_eq!(unexplained, 0, "mutants survive and are not explained");
    assert!(killed > 10, "{killed}");
}

/// Flushes and fences that get no bugs here, and the reasons.
const ELSEWHERE: &[(&str, &str)] = &[
    ("check.rs check:", "repairing a damaged pool is not the business of crashes"),
    ("scan.rs scan:", DEAD),
    ("scan.rs scan_inode_file:", DEAD),
    ("scan.rs scan_dir:", DEAD),
    ("scan.rs walk:", DEAD),
    ("order.rs order:", CALLERS),
    ("order.rs end_commit:", CALLERS),
    ("order.rs settle:", "only in `ordered`, whose bugs are in the catalogue"),
    ("vacate.rs", "crashes of a change of size, and bugs in it: tests/it/resize.rs"),
    ("snapshots.rs roll_back:", "commands on a whole pool: tests/it/bpfs.rs"),
    ("branches.rs end_branches:", "a part of roll_back: bpfs/tests/it/branches.rs"),
    ("resize.rs", "crashes of a change of size, and bugs in it: tests/it/resize.rs"),
    ("parents.rs end_sharing:", "one word at an unmount: bpfs/tests/it/shared.rs"),
    ("scan.rs help_scan:", "runs repeat because one thread scans: crates/proof/suite/src/scan.rs"),
];
const CALLERS: &str = "traces name its callers, which get the bugs";
const DEAD: &str = "it makes durable what a killed process has left: tests/it/deaths.rs";

fn is_elsewhere(label: &str) -> bool {
    ELSEWHERE.iter().any(|(place, _)| label.starts_with(place))
}

/// Finds the flushes and fences in the engine's source: their sites and labels.
fn orderings(crates: &Path) -> Vec<(String, String)> {
    let orders = ["flush(", "fence()", "publish("];
    let orders = orders.map(|order| ["medium.", "medium()."].map(|of| format!("{of}{order}")));
    let mut places = Vec::new();
    let folders = ["engines/bpfs/src", "tree/namespace/src"]
        .map(|folder| sources(&crates.join(folder)).unwrap());
    for path in folders.concat() {
        let text = std::fs::read_to_string(&path).unwrap();
        for (i, line) in text.lines().enumerate() {
            let is_order =
                orders.iter().flatten().any(|o| line.contains(o)) && !line.trim().starts_with("//");
            if is_order {
                let file = path.strip_prefix(crates).unwrap().display();
                let site = format!("{file}:{}", i + 1);
                let label = label(crates, &site);
                places.push((site, label));
            }
        }
    }
    places
}

/// Returns whether a mutant is of the code for snapshots.
fn is_of_snapshots(m: &Mutant) -> bool {
    ["src/snapshots.rs:", "src/leaves.rs:", "src/receive.rs:"]
        .iter()
        .any(|file| m.site.contains(file))
}

/// Explores the wanted mutants of a command on the snapshots or branches of a pool.
fn command_mutants<F: Clone + PartialEq + Debug>(
    run: &CommandRun<F>,
    is_wanted: &dyn Fn(&Mutant) -> bool,
) -> Vec<(Mutant, Fate)> {
    let mut all = mutants(&run.trace, 0);
    all.retain(|m| is_wanted(m));
    let fate = |m: Mutant| {
        let Some(mutated) = mutate(&run.trace, &run.bytes, &m) else { return (m, Fate::Moot) };
        let killed = |what| Fate::Killed { by: "a command".into(), what };
        let found = run.explore(&mutated, Semantics::Adr).err();
        (m, found.map_or(Fate::Survived, killed))
    };
    all.into_iter().map(fate).collect()
}

/// Explores the mutants of formatting over a pool.
fn formatting_mutants(base: &Base) -> Vec<(Mutant, Fate)> {
    let trace = format::record(&Bpfs, base).unwrap();
    let fate = |m: Mutant| {
        let Some(mutated) = mutate(&trace, &base.bytes, &m) else { return (m, Fate::Moot) };
        let (_, wrong) = format::explore(&Bpfs, base, &mutated, Semantics::Adr).unwrap();
        let killed = |what| Fate::Killed { by: "mkfs".into(), what };
        (m, wrong.into_iter().next().map_or(Fate::Survived, killed))
    };
    mutants(&trace, 0).into_iter().map(fate).collect()
}
