//! Tests that every engine below [`namespace::Pool`] must pass. They are generic functions over an
//! [`Engine`]; the tests of each engine call them ([`tests!`](crate::tests)).
//!
//! These tests know no block layout. Each engine has its own tests of its layout and of the costs
//! of its operations.

pub mod access;
pub mod conformance;
pub mod deaths;
pub mod entries;
pub mod hostile;
pub mod limits;
pub mod mount_events;
pub mod pins;
pub mod processes;
pub mod scan;
pub mod sharing;
pub mod smoke;
pub mod thin;
pub mod watch;
pub mod writers;

use namespace::{Files, Pool, Storage};
use pmem::{Access, FlushInstruction, Lock, Medium, OpenOptions, Region};
use pool::{CheckOptions, CheckReport, Error, FormatOptions, MountOptions, Place, PoolInfo};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{Caller, Durability, FileSystem, Ino, NewKind, NewNode, ROOT, SetAttr};

/// An engine under test.
pub trait Engine: 'static {
    /// The name of its layout.
    const NAME: &'static str;

    /// Its largest pool, in bytes.
    const POOL_MAX: u64;

    /// The engine on a medium.
    type Files<M: Medium>: Files<Storage: Storage<Medium = M>>;

    /// Returns the options with which tests mount the engine.
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

    /// Gives the pool on a medium another size.
    ///
    /// # Errors
    /// As [`namespace::resize`].
    fn resize(medium: &impl Medium, bytes: u64) -> Result<u64, Error>;

    /// Returns the offset of one of the first inodes in a small pool.
    fn inode_at(ino: Ino) -> u64;

    /// Returns the offset of a word worth damaging in a pool of this layout; `below(n)` returns a
    /// random number below `n`.
    fn weak_spot(below: &mut dyn FnMut(u64) -> u64) -> u64;

    /// Returns a pointer word of this layout that leads to a random place in a pool of this many
    /// blocks, or just outside.
    fn wild_word(blocks: u64, below: &mut dyn FnMut(u64) -> u64) -> u64;

    /// Damages the image of a pool in ways that random words cannot, for instance with a valid
    /// checksum over wrong content.
    fn forge(_image: &mut [u8], _below: &mut dyn FnMut(u64) -> u64) {}
}

/// A mounted pool of an engine.
pub type Fs<E, M = Region> = Pool<<E as Engine>::Files<M>>;

/// Returns whether a write inside a file is atomic. If it is not, a death during the write may
/// leave the old or the new value of each byte, and readers without a copy see that.
pub fn has_atomic_contents<E: Engine>() -> bool {
    <E::Files<Region> as Files>::DURABILITY == Durability::OnReturn
}

/// A node of a regular file.
pub const FILE: NewNode<'static> = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
/// A node of a directory.
pub const DIR: NewNode<'static> = NewNode { kind: NewKind::Dir, mode: 0o755, umask: 0 };

/// Returns options that treat DRAM as persistent memory; otherwise no line is stored past the
/// caches.
pub fn flushed(without_line_stores: bool) -> OpenOptions {
    let flush = Some(FlushInstruction::detect());
    OpenOptions { flush, without_line_stores, ..OpenOptions::default() }
}

/// Returns a formatted region of `bytes` bytes.
pub fn formatted<E: Engine>(bytes: u64) -> Region {
    let region = Region::anonymous(bytes).unwrap();
    E::format(&region, &FormatOptions::default()).unwrap();
    region
}

/// Mounts a fresh pool of `bytes` bytes.
pub fn mounted<E: Engine>(bytes: u64) -> Fs<E> {
    mount::<E, _>(formatted::<E>(bytes))
}

/// Mounts the pool on a medium.
pub fn mount<E: Engine, M: Medium>(medium: M) -> Fs<E, M> {
    Fs::<E, M>::mount(medium, &E::options()).unwrap()
}

/// Creates a node without references except for its name.
pub fn create<E: Engine>(fs: &Fs<E>, dir: Ino, name: &str, node: &NewNode<'_>) -> Ino {
    let ino = fs.create(&Caller::ROOT, dir, name.as_bytes(), node).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

/// Creates a file in the root directory with this content, without references except for its name.
pub fn file(fs: &dyn FileSystem, name: &str, content: &[u8]) -> Ino {
    let ino = fs.create(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).unwrap().ino;
    fs.forget(ino, 1);
    fs.write(ino, 0, content).unwrap();
    ino
}

/// Changes the size of a file.
pub fn resize(fs: &dyn FileSystem, ino: Ino, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, ino, &set).unwrap();
}

/// Reads the whole content of a file.
pub fn content(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0x55; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes), Ok(bytes.len()));
    bytes
}

/// Unmounts and checks the pool, and mounts it again. The number of free blocks must not change.
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
    /// Creates and formats a pool of `bytes` bytes.
    pub fn new<E: Engine>(name: &str, bytes: u64) -> Self {
        // Several tests of a process may use the same name, as an engine is tested under several
        // configurations.
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

/// Opens a pool's file as the processes do that share it.
pub fn open_shared(pool: &Path) -> Region {
    let options = OpenOptions { lock: Some(Lock::Shared), ..OpenOptions::default() };
    options.open(pool, Access::ReadWrite).unwrap()
}

/// Returns the place where the processes that share a pool meet.
///
/// # Errors
/// As [`namespace::place`].
pub fn place<E: Engine>(region: &Region) -> Result<Place, Error> {
    namespace::place::<E::Files<Region>>(region)
}

/// Returns the path of the shared state of a pool, if the owner or root made it.
pub fn state_at(place: &Place) -> PathBuf {
    place.root.join(format!("keepstone-{}", place.owner)).join(&place.name)
}

/// Attaches to a shared pool.
///
/// # Errors
/// As [`Pool::attach`].
pub fn try_attach<E: Engine>(pool: &Path) -> Result<Fs<E>, Error> {
    let region = open_shared(pool);
    let place = place::<E>(&region)?;
    let options = MountOptions { threads: Some(1), ..E::options() };
    Fs::<E>::attach(region, &place, &options)
}

/// Attaches to a shared pool.
pub fn attach<E: Engine>(pool: &Path) -> Fs<E> {
    try_attach::<E>(pool).unwrap()
}

/// Defines the tests of some modules as `#[test]` functions, each in a module of the same name, for
/// an engine that is in scope: `suite::tests!(Bpfs: pins, smoke);`.
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
            threads_of_a_server_count_as_one
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
    (@ $engine:ident, thin) => {
        $crate::tests!(@ $engine, thin:
            space_is_taken_and_given_back
            a_few_files_keep_little_space
            a_full_file_system_below_refuses_and_keeps
            trims_beside_threads
            a_sparse_file_takes_what_is_needed
            pools_get_other_sizes
            pools_in_use_get_other_sizes
            a_resizable_pool_is_moved_together
        );
    };
    (@ $engine:ident, writers) => {
        $crate::tests!(@ $engine, writers: blocks_of_one_file_are_whole);
    };
    ($engine:ident: $($module:ident),*) => { $($crate::tests!(@ $engine, $module);)* };
}
