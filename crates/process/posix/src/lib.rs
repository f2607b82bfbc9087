//! The POSIX process layer: descriptors, open file descriptions, paths and permissions over an
//! engine of the contract [`vfs`]. It serves a process without a server in the path.
//!
//! A front end (`preload`) passes on each call that it intercepts. [`Process`] answers with
//! [`Served::Done`], or with [`Served::Kernel`]: the front end then makes the call as it stands,
//! and the mount serves it. *The mount is the truth*: a call that is not worth serving here is
//! right there, only slower.
//!
//! # State and its owners
//!
//! | state | kept by |
//! |---|---|
//! | descriptors, close-on-exec, their limits | the kernel: each descriptor is a duplicate of an `O_PATH` placeholder, or of the kernel's description |
//! | status flags, inode of a description | memory that a family of forked processes shares |
//! | offset of a description | the same memory; the kernel if the description is *promoted* |
//! | the description of each descriptor | a table per process, in the same memory |
//! | content, names, attributes | the engine |
//! | file locks, the working directory of libc | the kernel, through the mount |
//!
//! # Reading order
//!
//! From below. Each layer is a type that owns the layer before it, and reaches lower ones by
//! accessors that name them (`layers`). No layer calls one above it, as the compiler ensures:
//!
//! - without a process: `served`, `sys` (the kernel), `family` (the shared memory), `creds`,
//!   `known`, `identity`, `attach_lock`, `mount`, `noted`;
//! - `Task`: `task`: the kernel, the mounts, the process's identity and its limits;
//! - `DescriptorTable`: `table`: the description of each descriptor, and descriptions in use;
//! - `FdAllocator`: `fd_allocator`, `parked`: descriptors from the kernel and back to it, hidden
//!   and parked ones;
//! - `Promotions`: `promote`, `offset`, `mappings`: the kernel's descriptions, locks and mappings
//!   of files, fork;
//! - `Descriptors`: `descriptors`: closing, duplicating, flags;
//! - `PathWalk`: `walk`, over `held` and `path_cache`: from a path and its start to an inode that
//!   is held;
//! - `WorkingDir`: `cwd`: the start of relative paths;
//! - `Paths`: `lookup`: from a path to its inode, by one look or by a walk;
//! - `Names`: `names`, `attributes`, `xattrs`, `directories`: calls on the inodes of paths;
//! - `FileContents`: `open`, `recognize`, `content`, `transfer`: open files, reads and writes;
//! - [`Process`]: `process`: start and end, mounts, other users, fork and exec.
//!
//! # Calls that are served
//!
//! Calls on regular files, directories and symbolic links below a mount point. Paths are absolute
//! ones that lead there by their text, those relative to a directory in the pool, and those that
//! lead there by their text from a working directory outside. Calls: open (all flags), read, write
//! and their vector forms, seek, truncate, fallocate, sync, stat, access, modes, owners, times,
//! extended attributes and ACLs, names, listings, working directory, copies between files of one
//! pool, mappings of files in place, and private mappings up to 16 MiB (a snapshot).
//!
//! # Calls that are the kernel's
//!
//! - Paths that reach the pool through links elsewhere, that leave it (`..` above the root,
//!   absolute links), that another mount covers, or that end at the mount point where a name is to
//!   be made. All paths after a change of root or namespace. Pipes, sockets and devices.
//! - Data of a file that the kernel may have mapped, in any process: only through the page cache do
//!   mappings and calls see the same data ([`MountEvents::is_mapped`]).
//! - Locks, and unknown calls on a description. For these the description is *promoted*: opened
//!   through the mount, with its offset, in place of the placeholders. So are descriptors 0 to 2,
//!   descriptors that exec inherits, and every open file before a fork. Reads and writes are served
//!   as before, at the kernel's offset (`Promotions::promote`). Files that are open when a program
//!   starts are such descriptors, and are served once they are used enough
//!   (`FileContents::recognize`).
//! - Descriptors that libc uses and closes by itself (`Promotions::leave_to_kernel`).
//!
//! # Differences from the mount
//!
//! - A file that is open for writing here can be executed (`ETXTBSY` through the mount). A file
//!   that is being executed cannot be opened for writing, because the kernel makes that call
//!   ([`MountEvents::is_executed`]).
//! - Changes of the mount by other processes are seen once the mount's server has announced them
//!   (mount-T1 in `mount`). Changes in another mount namespace than the server's are not seen. A
//!   mount can become read-only while descriptors are open for writing; they then give `EROFS`.
//! - Limits that another process sets (`prlimit`) are not seen.
//! - Search permission on the directories above the mount point is checked once per user. On the
//!   way there from a working directory outside, it is checked once per change of the directory or
//!   the user (cwd-L2).
//!
//! # Invariants
//!
//! The modules define them: descriptors-D1–D2 (the table), parked-N1–N4, cwd-L1–L2 (the working
//! directory outside), family-F1–F4 (holds, sweeping), promote-M1–M6 (the kernel's description),
//! held-H1 (inodes that a walk returns), walk-W1, path_cache-G1–G3, mount-T1 (state of mounts).
//!
//! Reading, writing, seeking and `fstat` make no system call and allocate nothing
//! (`tests/it/cost.rs`). Opening and closing usually do neither. Locks survive a fork, because they
//! are in shared memory with their owner's name on it. They also survive the death of their owner:
//! the next process takes them over.
//!
//! This crate leaves symbols, signals, `errno`, bad buffers and C structures to `preload`. Memory
//! and paths that are passed to it must be readable.

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

pub use attributes::{Unaligned, times_to_set};
pub use content::fallocate_mode;
pub use directories::DirItem;
pub use mappings::{PoolFile, map_window, unmap_window};
pub use mount::{AttachedPool, Fork, MountSpec};
pub use mounts::{MountEvents, MountState};
pub use process::Process;
pub use served::Served;
pub use sys::{Kernel, Raw, update_kernel_size};
pub use vfs::Errno;
pub use walk::proc_fd;
pub use xattrs::check_set as check_set_xattr;
