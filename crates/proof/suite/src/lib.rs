//! Tests that every engine below [`namespace::Pool`] passes: generic functions over an [`Engine`], which the tests of each
//! engine call ([`tests!`](crate::tests)).
//!
//! What is here names no blocks of one layout. Tests of how an engine lays contents out, and of what its operations cost, are the
//! engine's own.

pub mod access;
pub mod conformance;
pub mod deaths;
pub mod delegations;
pub mod entries;
pub mod hostile;
pub mod limits;
pub mod mount_events;
pub mod pins;
pub mod processes;
pub mod scan;
pub mod sharing;
pub mod smoke;
pub mod watch;
pub mod writers;

use namespace::{Files, Pool, Storage};
use pmem::{Access, FlushInstruction, Lock, Medium, OpenOptions, Region};
use pool::{CheckOptions, CheckReport, Error, FormatOptions, MountOptions, Place, PoolInfo};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Caller, Durability, FileSystem, Ino, NewKind, NewNode, ROOT, SetAttr};

/// An engine as its tests see it.
pub trait Engine: 'static {
    /// The name of its layout.
    const NAME: &'static str;

    /// Its largest pool, in bytes.
    const POOL_MAX: u64;

    /// It on a medium.
    type Files<M: Medium>: Files<Storage: Storage<Medium = M>>;

    /// How tests mount it.
    fn options() -> MountOptions {
        MountOptions::default()
    }

    /// Formats a medium.
    ///
    /// # Errors
    /// [`Error::Unformattable`].
    fn format(medium: &impl Medium, options: &FormatOptions) -> Result<PoolInfo, Error>;

    /// Describes the pool on a medium.
    ///
    /// # Errors
    /// [`Error::NotAPool`] or [`Error::Unusable`].
    fn info(medium: &impl Medium) -> Result<PoolInfo, Error>;

    /// Checks the pool on a medium.
    ///
    /// # Errors
    /// As [`info`](Self::info).
    fn check(medium: &impl Medium, options: &CheckOptions) -> Result<CheckReport, Error>;

    /// Where one of the first inodes lies in a small pool.
    fn inode_at(ino: Ino) -> u64;

    /// The offset of a word that is worth damaging in a pool of this layout; `below(n)` is a random number below `n`.
    fn weak_spot(below: &mut dyn FnMut(u64) -> u64) -> u64;

    /// A word that leads somewhere in a pool of this many blocks, or just outside.
    fn wild_word(blocks: u64, below: &mut dyn FnMut(u64) -> u64) -> u64;

    /// Damages the image of a pool in ways that single words do not: what a checksum vouches for, for instance.
    fn forge(_image: &mut [u8], _below: &mut dyn FnMut(u64) -> u64) {}
}

/// A mounted pool of an engine.
pub type Fs<E, M = Region> = Pool<<E as Engine>::Files<M>>;

/// Whether a write inside a file is atomic. Else a death in the midst of it leaves of each byte the old or the new value, and
/// readers without a copy see it.
pub fn has_atomic_contents<E: Engine>() -> bool {
    <E::Files<Region> as Files>::DURABILITY == Durability::OnReturn
}

/// A node of a regular file.
pub const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
/// A node of a directory.
pub const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

/// DRAM as if it were persistent memory: else no line is stored past the caches.
pub fn flushed(without_line_stores: bool) -> OpenOptions {
    let flush = Some(FlushInstruction::detect());
    OpenOptions { flush, without_line_stores, ..OpenOptions::default() }
}

/// A formatted region of so many bytes.
pub fn formatted<E: Engine>(bytes: u64) -> Region {
    let region = Region::anonymous(bytes).unwrap();
    E::format(&region, &FormatOptions::default()).unwrap();
    region
}

/// A fresh pool of so many bytes, mounted.
pub fn mounted<E: Engine>(bytes: u64) -> Fs<E> {
    mount::<E, _>(formatted::<E>(bytes))
}

/// The pool on a medium, mounted.
pub fn mount<E: Engine, M: Medium>(medium: M) -> Fs<E, M> {
    Fs::<E, M>::mount(medium, &E::options()).unwrap()
}

/// Makes a node, to which nobody has a reference then but its name.
pub fn create<E: Engine>(fs: &Fs<E>, dir: Ino, name: &str, node: &NewNode<'_>) -> Ino {
    let ino = fs.create(&Caller::ROOT, dir, name.as_bytes(), node).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

/// Makes a file in the root directory, to which nobody has a reference then but its name, with this content.
pub fn file(fs: &dyn FileSystem, name: &str, content: &[u8]) -> Ino {
    let ino = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino;
    fs.forget(ino, 1);
    fs.write(ino, 0, content).unwrap();
    ino
}

/// Gives a file another size.
pub fn resize(fs: &dyn FileSystem, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, ino, &set).unwrap();
}

/// All that a file holds.
pub fn content(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0x55; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes), Ok(bytes.len()));
    bytes
}

/// Unmounts, checks that all is well, and mounts again; what was free is free then.
pub fn check_and_remount<E: Engine>(fs: Fs<E>) -> Fs<E> {
    let free = fs.statfs().blocks_free;
    let region = fs.into_medium();
    let report = E::check(&region, &CheckOptions::default()).unwrap();
    assert!(report.clean(), "{:?}", report.problems);
    let fs = mount::<E, _>(region);
    assert_eq!(fs.statfs().blocks_free, free, "what was free is free after a scan");
    fs
}

/// The file of a pool that processes share, removed when dropped.
pub struct PoolFile(pub PathBuf);

impl PoolFile {
    /// A fresh pool of so many bytes.
    pub fn new<E: Engine>(name: &str, bytes: u64) -> Self {
        // Tests of one process may give the same name: an engine is tested under several configurations.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let name = format!("/dev/shm/keepstone-{}-{name}-{process}-{number}", E::NAME);
        let file = Self(name.into());
        let region = Region::create(&file.0, bytes).unwrap();
        E::format(&region, &FormatOptions::default()).unwrap();
        file
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens a pool's file as those do who share it.
pub fn open_shared(pool: &Path) -> Region {
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    options.open(pool, Access::ReadWrite).unwrap()
}

/// Where those meet who share a pool.
///
/// # Errors
/// As [`namespace::place`].
pub fn place<E: Engine>(region: &Region) -> Result<Place, Error> {
    namespace::place::<E::Files<Region>>(region)
}

/// The file of the state of those who share a pool, if the owner or root has made it.
pub fn state_at(place: &Place) -> PathBuf {
    place.root.join(format!("keepstone-{}", place.owner)).join(&place.name)
}

/// Joins those who share a pool.
///
/// # Errors
/// As [`Pool::attach`].
pub fn try_attach<E: Engine>(pool: &Path) -> Result<Fs<E>, Error> {
    let region = open_shared(pool);
    let place = place::<E>(&region)?;
    let options = MountOptions { threads: Some(1), ..E::options() };
    Fs::<E>::attach(region, &place, &options)
}

/// Joins those who share a pool.
pub fn attach<E: Engine>(pool: &Path) -> Fs<E> {
    try_attach::<E>(pool).unwrap()
}

/// The tests of some modules as `#[test]` functions, in a module of the same name each, for an engine that is in scope:
/// `suite::tests!(Bpfs: pins, smoke);`.
#[macro_export]
macro_rules! tests {
    (@ $engine:ident, $module:ident: $($name:ident)*) => {
        mod $module {
            $(#[test]
            fn $name() {
                $crate::$module::$name::<super::$engine>();
            })*
        }
    };
    (@ $engine:ident, access) => {
        $crate::tests!(@ $engine, access: modes all_processes_keep_to_it);
    };
    (@ $engine:ident, conformance) => {
        $crate::tests!(@ $engine, conformance: scenarios generated stress);
    };
    (@ $engine:ident, deaths) => { $crate::tests!(@ $engine, deaths: at_every_access); };
    (@ $engine:ident, delegations) => {
        $crate::tests!(@ $engine, delegations:
            nobody_writes_after_a_recall
            appends_are_whole_and_where_they_may_be
            bits_are_set_beside_others
            delegations_are_numbers_of_their_own
        );
    };
    (@ $engine:ident, entries) => {
        $crate::tests!(@ $engine, entries:
            an_entry_without_its_inode_is_left_over
            free_entries_become_one
            directories_lie_at_the_end_of_a_pool
        );
    };
    (@ $engine:ident, hostile) => {
        $crate::tests!(@ $engine, hostile: damaged_images truncated_images garbage impossible_inodes);
    };
    (@ $engine:ident, limits) => {
        $crate::tests!(@ $engine, limits:
            the_largest_pool_can_be_shared_and_takes_memory_as_it_fills
            a_full_pool_refuses_and_keeps
            what_threads_have_counted_for_themselves_is_used_before_a_pool_is_full
            the_largest_file
            large_directories_and_long_names
            inode_numbers_do_not_creep
            zeroed_ranges_have_space
            a_full_pool_lets_files_with_attributes_be_cut
            a_full_pool_lets_attributes_be_replaced
            a_full_pool_lets_attributes_be_removed
            files_that_compete_for_space_keep_what_they_hold
            small_pools_that_fill_up_do_as_the_model_does
        );
    };
    (@ $engine:ident, mount_events) => {
        $crate::tests!(@ $engine, mount_events:
            mount_events_are_shared_and_outlast_recoveries
            mappings_end_with_those_who_count_them
            openings_are_waited_for
            a_mount_is_one_while_its_server_says_so
            the_server_hears_of_removals
            the_server_is_not_told_of_who_has_the_number_next
            who_comes_waits_until_the_kernel_keeps_nothing
            a_full_pool_waits_for_the_server
            a_pool_of_one_process_counts_mappings_too
        );
    };
    (@ $engine:ident, pins) => {
        $crate::tests!(@ $engine, pins:
            it_is_what_read_gives
            pieces_of_a_scattered_file_make_up_the_file
            what_is_held_is_not_used_again
            what_is_held_is_not_free_after_a_recovery
        );
    };
    (@ $engine:ident, processes) => {
        $crate::tests!(@ $engine, processes: worker killed_processes_do_no_harm);
    };
    (@ $engine:ident, scan) => {
        $crate::tests!(@ $engine, scan: each_worker_fences_what_it_flushed);
    };
    (@ $engine:ident, sharing) => {
        $crate::tests!(@ $engine, sharing:
            a_state_that_was_removed_has_no_successor_beside_it
            a_strangers_file_is_named
            all_who_come_at_once_get_in
            a_truncated_state_kills_nobody
            a_state_of_zeros_kills_nobody
            who_has_the_pool_alone_is_not_joined
            a_full_shm_refuses_and_kills_nobody
            in_a_small_shm
        );
    };
    (@ $engine:ident, smoke) => { $crate::tests!(@ $engine, smoke: survives_remount); };
    (@ $engine:ident, writers) => {
        $crate::tests!(@ $engine, writers: blocks_of_one_file_are_whole);
    };
    ($engine:ident: $($module:ident),*) => { $($crate::tests!(@ $engine, $module);)* };
}
