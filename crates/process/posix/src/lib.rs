//! The POSIX process layer: descriptors, open file descriptions, paths and permissions over an
//! engine of the contract [`vfs`], for a process that has no server in the path.
//!
//! A front end (`preload`) passes on each call that it intercepts. [`Process`] answers with
//! [`Served::Done`], or with [`Served::Kernel`]: make the call as it stands, and the mount serves it.
//! *The mount is the truth*: whatever is not worth doing here is right there, only slower.
//!
//! # Who keeps what
//!
//! | thing | kept by |
//! |---|---|
//! | descriptors, close-on-exec, their limits | the kernel: each descriptor is a duplicate of an `O_PATH` placeholder, or of the kernel's description |
//! | status flags, inode of a description | memory that a family of forked processes shares |
//! | offset of a description | the same memory; the kernel where the description is *promoted* |
//! | which descriptor means which description | a table per process, in the same memory |
//! | content, names, attributes | the engine |
//! | file locks, the working directory of libc | the kernel, through the mount |
//!
//! # Reading order
//!
//! From below. Each layer is a type that owns the layer before it, and reaches lower ones by accessors that name
//! them (`layers`). No layer calls one above it, as the compiler ensures:
//!
//! - without a process: `served`, `sys` (the kernel), `family` (the shared memory), `creds`, `known`, `identity`, `attach_lock`,
//!   `mount`, `noted`;
//! - `Task`: `task`: the kernel, the mounts, who the process is, and its limits;
//! - `DescriptorTable`: `table`: which descriptor means which description, and descriptions in use;
//! - `FdAllocator`: `fd_allocator`, `parked`: descriptors from the kernel and back to it, hidden and parked ones;
//! - `Promotions`: `promote`, `offset`: the kernel's descriptions, locks and mappings of files, what a fork inherits;
//! - `Descriptors`: `descriptors`: closing, duplicating, flags;
//! - `PathWalk`: `walk`, over `held` and `path_cache`: a path from where it starts to an inode that is held;
//! - `WorkingDir`: `cwd`: where relative paths start;
//! - `Paths`: `lookup`: what a path names, by one look or by a walk;
//! - `Names`: `names`, `attributes`, `xattrs`, `directories`: calls on what paths name;
//! - `FileContents`: `open`, `recognize`, `content`, `transfer`: open files, what is read from them and written to them;
//! - [`Process`]: `process`: start and end, mounts, other users, fork and exec.
//!
//! # What is served
//!
//! Regular files, directories and symbolic links below a mount point, by absolute paths that say so
//! by their text, by paths relative to a directory in the pool, and by paths that lead there from a working
//! directory outside by their text: open (all flags), read, write and
//! their vector forms, seek, truncate, fallocate, sync, stat, access, modes, owners, times, extended
//! attributes and ACLs, names, listings, working directory, copies between files of one pool, and
//! private mappings up to 16 MiB (a snapshot).
//!
//! # What is the kernel's
//!
//! - Paths that reach the pool through links elsewhere, that leave it (`..` above the root, absolute
//!   links), that another mount covers, or that end at the mount point where a name is to be made;
//!   everything after a change of root or namespace. Pipes, sockets and devices.
//! - Data of a file that the kernel may have mapped, in whatever process: the page cache and calls meet there
//!   ([`MountEvents::is_mapped`]).
//! - Locks, and what is done to a description by unknown calls. For these the description is *promoted*: opened through
//!   the mount, with its offset, in place of the placeholders. So are descriptors 0 to 2, what exec inherits, and every
//!   open file before a fork. Reading and writing is served as before, at the kernel's offset (`Process::promote`).
//!   What a program finds open when it starts is such a descriptor, and served when it is used enough (`Process::recognize`).
//! - Descriptors that libc uses and closes by itself (`Process::delegate`).
//!
//! # What differs from the mount
//!
//! - A file that is open for writing here can be executed (`ETXTBSY`); one that is executed cannot be
//!   opened for writing, because the kernel makes that call ([`MountEvents::is_executed`]).
//! - What others change about the mount is seen once the mount's server has announced it (mount-T1 in `mount`),
//!   and a mount can become read-only while descriptors are open for writing: they give `EROFS`.
//!   What changes in another mount namespace than the server's is not seen.
//! - Limits that another process sets (`prlimit`) are not seen.
//! - Search permission on the directories above the mount point is looked at once per user, and on the way
//!   there from a working directory outside once per change of that or of the user (cwd-L2).
//!
//! # Invariants
//!
//! They stand where they are kept: descriptors-D1–D2 (the table), parked-N1–N4, cwd-L1–L2 (the working directory
//! outside), family-F1–F4 (holds, sweeping), promote-M1–M6 (the kernel's description), held-H1 (what a walk gives), walk-W1,
//! path_cache-G1–G3, mount-T1 (state of mounts).
//!
//! Reading, writing, seeking and `fstat` make no system call and allocate nothing
//! (`tests/it/cost.rs`), nor, usually, opening and closing. Locks survive fork, because
//! they are in shared memory with their owner's name on it, and the death of their owner.
//!
//! What this crate leaves out: symbols, signals, `errno`, bad buffers and C structures (`preload`);
//! memory and paths that are passed to it are taken to be readable.

mod attach_lock;
mod attributes;
mod content;
mod creds;
mod cwd;
mod descriptors;
mod directories;
mod family;
mod fd_allocator;
mod held;
mod identity;
mod known;
mod layers;
mod lookup;
mod mappings;
mod mount;
mod names;
mod noted;
mod offset;
mod open;
mod owner;
mod parked;
mod path_cache;
mod process;
mod promote;
mod recognize;
mod served;
mod sys;
mod table;
mod task;
mod text;
mod transfer;
mod walk;
mod xattrs;

pub use attributes::Unaligned;
pub use directories::DirItem;
pub use mappings::{PoolFile, map_window, unmap_window};
pub use mount::{AttachedPool, Fork, MountSpec};
pub use mounts::{MountEvents, MountState};
pub use process::Process;
pub use served::Served;
pub use sys::{Kernel, Raw, update_kernel_size};
pub use vfs::Errno;
pub use walk::proc_fd;
