//! `libkeepstone.so`: serves pools in the program's own process.
//!
//! Loaded by `LD_PRELOAD` (`keepstone run` sets it), the library exports the file functions of
//! libc. Each asks the process layer ([`posix`]). If that does not answer, the call goes to libc
//! unchanged, that is through the mount if it concerns a pool. *The mount is the truth; this is the
//! accelerator.* The C interface of `include/keepstone.h` is in the same file.
//!
//! The library promises:
//!
//! - **preload-P1** A call on a descriptor or path that is not a pool's does what it does without
//!   the library. It costs two loads more for a descriptor, a comparison with the mount points for
//!   a path, and an atomic addition for a number that the kernel takes back.
//! - **preload-P2** A function that libc calls internally (within `nftw`, `wordexp`, `dlopen`…)
//!   reaches the kernel directly, that is the mount. It never sees a descriptor of the library,
//!   except placeholders, which give `EBADF`. Functions of libc that take a descriptor are exported
//!   and give it to the kernel first; those that close it internally make it the kernel's for good
//!   (`symbols.txt` lists each of them, with the reason if it is left to libc). Streams are served:
//!   libc finds the functions for them in tables, which the library changes (`streams`).
//! - **preload-P3** No code of the program runs while the engine holds locks: signal handlers wait
//!   (`signals`), buffers are probed before (`memory`).
//! - **preload-P4** The library never ends the program: after a panic, the kernel does the call.
//! - **preload-P5** Forked processes share offsets through the kernel's descriptions. Programs
//!   started by `exec` find these on the numbers that they inherit (`fork`, `exec`).
//!
//! A program can see these differences from a kernel file system:
//!
//! - A file that the program has open for writing can be executed (the other way round gives
//!   `ETXTBSY`). The library notices that a mount is remounted or covered when the mount's server
//!   has announced it: at once if programs under `keepstone run` or the mount helper do it, else as
//!   soon as the server runs. A mount can become read-only while files are open for writing; writes
//!   then give `EROFS`.
//! - A private mapping of up to 16 MiB is a snapshot.
//! - `inotify` and `fanotify` report only accesses through the mount.
//! - A thread that waits for a lock of a pool's file is cancelled when it has got it (`cancel`).
//! - The kernel does all calls of a child made by `clone`, and of a program that enters a user
//!   namespace.
//! - `/proc/PID/fd` shows other processes the mount's root in place of an open file.
//!
//! The library is for x86-64 Linux with glibc: variadic functions are defined with the arguments
//! that registers hold, and probes are instructions.

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
mod memory;
mod mounts;
mod needs;
mod next;
mod real;
mod record;
mod signals;
mod start;
mod stats;
mod streams;
mod unwind;
