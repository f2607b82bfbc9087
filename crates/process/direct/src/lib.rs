//! Chell-Direct: regular files of kernel DAX and tmpfs file systems, read and overwritten by memory
//! copies in the program's own process (Chell §2).
//!
//! The descriptor stays the kernel's own, and so do names, attributes, sizes and allocation. The
//! library adds only a fast path. It maps chunks of 2 MiB of a file when that pays, and all
//! descriptors of the process that refer to the inode share them. `read` and `write` copy from and
//! to them. The kernel makes every other call, after which the view is exact, because both see the
//! same pages. There is nothing to write back, and nothing can become stale, with four exceptions.
//! Each has its invariant:
//!
//! - **direct-C1 (ends)** A copy counts only if a byte of a page *behind* its last one could be
//!   loaded afterwards. If any process has truncated the file within or before the copied range,
//!   there is no such page any more: the load faults, and the kernel makes the call. So the size
//!   that is remembered here is a hint, and the kernel serves the last page of a file.
//! - **direct-C2 (faults)** Any fault during a copy, on the file's side (`SIGBUS`: truncated, no
//!   space for the page of a hole, broken memory) or the program's (`SIGSEGV`: a bad buffer),
//!   abandons it. Then the kernel makes the whole call, with its result, its partial transfer or
//!   its error.
//! - **direct-C3 (holes)** tmpfs allocates a page for a load from a hole. So only pages that are
//!   known to be allocated are touched (`present` in `chunk`).
//! - **direct-C4 (times)** The kernel keeps times to the tick of its coarse clock. It makes the
//!   first write to a file in each tick itself. Copies follow only within the same tick, when
//!   `mtime` and `ctime` are what they would be, and the bits that a write takes away (setuid) are
//!   gone.
//!
//! A copy to persistent memory (DAX, if the kernel grants `MAP_SYNC`) is durable when it returns.
//! The kernel makes `fsync` all the same: that covers the writes of other processes, too.
//!
//! Offsets (`position`):
//!
//! - **direct-O1** The library keeps the offset only while this process alone can move it: from the
//!   first use of a description whose opening it saw, until a fork, an exec that inherits it, or a
//!   call that hands it to unseen code. Before such an event, it gives the offset to the kernel by
//!   `lseek`, for good.
//! - **direct-O2** A `read` or `write` reserves its range by one compare-and-swap before it copies,
//!   so that threads get different ranges. If the kernel makes the call instead, other threads
//!   wait.
//!
//! Memory (`epoch`, `chunk`):
//!
//! - **direct-E1** A chunk, description or file is first taken out of its table. It is unmapped or
//!   reused only after every thread that was inside then has come out. If the process may not make
//!   its threads fence any more (seccomp), that cannot be known: the chunk stays mapped then, and
//!   nothing new is mapped or looked at.
//! - **direct-E2** A mapping keeps its open file description alive, with its locks and its right to
//!   write. So the chunks that were mapped by a description are unmapped when its last descriptor
//!   is closed. Chunks of a description that could only read, and was neither locked nor shared,
//!   may stay for a later opening of the file. They go when this process removes a name, or when
//!   their place is needed.
//!
//! As signal handlers make calls, too, no function here allocates from the heap of the program.
//! Functions wait only for a fault, a kernel call on the same description, or a change of the
//! tables.
//!
//! Differences from the kernel: two writes at the same place and time may interleave (the paper
//! relaxes that as well); `atime` does not follow reads by copy; an observer in another process
//! that asks for times and is overtaken by a write in the same tick sees no later time (as with
//! kernels before 6.13); two descriptors that another process shares by `pidfd_getfd` have two
//! offsets.

mod append;
mod buffers;
mod calls;
mod chunk;
mod copy;
mod descriptions;
mod epoch;
mod file;
mod lock;
mod look;
mod parts;
mod position;
mod seat;
mod slab;
mod table;

pub use calls::Lent;
pub use copy::{Copier, recover};
pub use table::Direct;

/// The files to serve, and the bounds from which that pays.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directories, absolute and without symbolic links: regular files at any depth below are
    /// served.
    pub dirs: Vec<Vec<u8>>,
    /// Reads and writes of a descriptor that the kernel makes before the library looks at it; a
    /// write of 16 KiB and more counts as several.
    pub look_after: u32,
    /// Reads and writes in a chunk that the kernel makes before it is mapped, if they are at random
    /// offsets; if they are sequential, two passes suffice.
    pub map_after: u32,
    /// Chunks mapped at the same time, at most.
    pub chunks_max: usize,
    /// Time for which writes by copy may leave the times as the kernel's last write has set them,
    /// in ns; 0: at most to the end of a tick (direct-C4).
    pub times_ns: u64,
    /// Copies to persistent memory; the bytes are durable when it returns.
    pub durable: Copier,
}

impl Config {
    /// Sets bounds that usually pay. Looking at a descriptor costs about as much as four calls.
    /// Mapping a chunk costs as much as 10 calls. The first touch of a page of it costs half a call
    /// more than the call that it saves, populated or not (`keepstone-bench chell first-touch`).
    pub fn new(dirs: Vec<Vec<u8>>, durable: Copier) -> Self {
        Self { dirs, look_after: 4, map_after: 16, chunks_max: 8192, times_ns: 0, durable }
    }
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer<T> {
    /// The library did it, by a copy or from what it knows.
    Copied(T),
    /// The kernel did it, with this result.
    Asked(Result<T, vfs::Errno>),
    /// The call is still to be made, by the kernel.
    Kernel,
}
