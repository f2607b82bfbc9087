//! `libkeepstone.so`: serves pools in the program's own process.
//!
//! Loaded by `LD_PRELOAD` (`keepstone run` sets it), the library exports the file functions of libc.
//! Each asks the process layer ([`posix`]); where that does not answer, the call goes to libc
//! unchanged, that is through the mount if it concerns a pool. *The mount is the truth; this is the
//! accelerator.* The C interface of `include/keepstone.h` is in the same file.
//!
//! What holds:
//!
//! - **preload-P1** A call on a descriptor or path that is not a pool's does what it does without the library.
//!   It costs two loads more for a descriptor, a look at the path for a path, and an atomic addition for
//!   a number that the kernel takes back.
//! - **preload-P2** A function that libc calls internally (within `nftw`, `wordexp`, `dlopen`…) reaches the
//!   kernel directly, that is the mount. It never sees a descriptor of ours, except placeholders,
//!   which give `EBADF`; functions that take a descriptor are exported and let the kernel have it first, and those
//!   that close it by themselves make it the kernel's for good
//!   (`symbols.txt` has each of them, with the reason where one is left to libc). Streams are served: libc asks tables
//!   what to call for them (`streams`).
//! - **preload-P3** Nothing of the program runs while the engine holds locks: signal handlers wait
//!   (`signals`), buffers are probed before (`memory`).
//! - **preload-P4** Nothing here ends the program: a panic leaves the call to the kernel.
//! - **preload-P5** Forked processes share offsets by the kernel's descriptions; programs started by `exec` find
//!   them on the numbers that they inherit (`fork`, `exec`).
//!
//! Where a program can tell the difference from a kernel file system:
//!
//! - A file that the program has open for writing can be executed (the other way round gives `ETXTBSY`).
//!   That a mount is remounted, or something is mounted over it, is noticed when the mount's server has
//!   announced it: at once where programs under `keepstone run` or the mount helper do it, else as soon as
//!   the server runs. A mount can become read-only while files are open for writing, which then give
//!   `EROFS`.
//! - A private mapping of up to 16 MiB is a snapshot.
//! - `inotify` and `fanotify` hear only of what goes through the mount.
//! - A thread that waits for a lock of a pool's file is cancelled when it has got it (`cancel`).
//! - A child made by `clone`, and a program that enters a user namespace, have everything done by the kernel.
//! - `/proc/PID/fd` shows other processes the mount's root where a file is open.
//!
//! Everything here is x86-64 Linux with glibc: variadic functions are defined with the arguments that
//! registers hold, and probes are instructions.

#[macro_use]
mod serve;

mod calls;
mod cancel;
mod capi;
mod credentials;
mod cwd;
mod direct;
mod engine;
mod environment;
mod exec;
mod exit;
mod fork;
mod guard;
mod inherited;
mod later;
mod lent;
mod memory;
mod mounts;
mod next;
mod real;
mod signals;
mod start;
mod stats;
mod streams;
mod unwind;
