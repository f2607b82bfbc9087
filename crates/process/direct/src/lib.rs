//! Chell-Direct: regular files of kernel DAX and tmpfs file systems, read and overwritten by memory
//! copies in the program's own process (Chell §2); and files of our own caches over directories, read by copies.
//!
//! The descriptor stays the kernel's own, and so do names, attributes, sizes and allocation. What is
//! ours is the fast path: chunks of 2 MiB of a file are mapped when it pays, shared by all descriptors
//! of the process that refer to the inode, and `read` and `write` copy from and to them. Whatever
//! cannot be a copy is made by the kernel, after which the view is exact, because both see the same
//! pages. There is nothing to write back and nothing that could become stale, except these five, each
//! of which has its invariant:
//!
//! - **direct-C1 (ends)** A copy counts only if a byte of a page *behind* its last one could be loaded
//!   afterwards. A file that anybody, in any process, has cut off within or before the copied range
//!   has no such page any more: the load faults, and the kernel makes the call. So the size that is
//!   remembered here is a hint, and the last page of a file is the kernel's.
//! - **direct-C2 (faults)** Any fault during a copy, on the file's side (`SIGBUS`: truncated, no space for the
//!   page of a hole, broken memory) or the program's (`SIGSEGV`: a bad buffer), abandons it, and the
//!   kernel makes the whole call, with its result, its partial transfer or its error.
//! - **direct-C3 (holes)** tmpfs allocates a page for a load from a hole. Only pages that are known to be
//!   allocated are touched (`present` in `chunk`).
//! - **direct-C4 (times)** The kernel keeps times to the tick of its coarse clock. The first write to a file
//!   in each tick is the kernel's; a copy follows only within the same tick, when `mtime` and `ctime`
//!   are what they would be, and the bits that a write takes away (setuid) are gone.
//! - **direct-C5 (caches)** Of a file that the server of a cache serves, the kernel keeps pages, which are mapped here. It
//!   drops them when it learns that the file has changed below, and learns that when it asks. So in each period for which
//!   the cache believes what it has found below, the first read makes the kernel ask, and is its own.
//!
//! What a cache delegates to the process is read and written in the cache's pool instead (`delegation`, `append`), also when it is
//! closed and opened again (`remembered`).
//!
//! A copy to persistent memory (DAX, where the kernel grants `MAP_SYNC`) is durable when it returns.
//! `fsync` is the kernel's all the same: it promises as much for what other processes have written.
//!
//! Offsets (`position`):
//!
//! - **direct-O1** The offset is ours only while this process is the only one that can move it: from the
//!   first use of a description that we saw opened, until a fork, an exec that inherits it, or a call
//!   that hands it to code we do not see. Before that it is given back by `lseek`, for good.
//! - **direct-O2** A `read` or `write` reserves its range by one compare-and-swap before it copies, so that
//!   threads get different ranges; where the kernel makes the call instead, others wait.
//!
//! Memory (`epoch`, `chunk`):
//!
//! - **direct-E1** A chunk is unmapped, and a description or file used anew, only after every thread that was
//!   inside when it was taken out of its table has come out. Where the process may not make its threads fence any more
//!   (seccomp), that cannot be told: it stays mapped then, and nothing new is mapped or looked at.
//! - **direct-E2** A mapping keeps its open file description alive, with its locks and its right to write. So
//!   the chunks that were mapped by a description go when its last descriptor is closed; those of
//!   one that could only read, and was neither locked nor shared, may stay for the next one to open the
//!   file, until a name is removed by this process or others need the place.
//!
//! Nothing here allocates from the heap of the program or waits for anything but a fault, a kernel
//! call on the same description, or a change of the tables: calls are made in signal handlers, too.
//!
//! What differs from the kernel: two writes at the same place and time may interleave (the paper
//! relaxes that as well); `atime` does not follow reads by copy; an observer in another process that
//! asks for times and is overtaken by a write in the same tick sees no later time (as kernels before
//! 6.13); two descriptors that another process shares by `pidfd_getfd` have two offsets.

mod append;
mod buffers;
mod calls;
mod chunk;
mod copy;
mod delegation;
mod descriptions;
mod epoch;
mod file;
mod habits;
mod lock;
mod look;
mod parts;
mod position;
mod remembered;
mod seat;
mod slab;
mod table;
mod turn;

pub use calls::Lent;
pub use copy::{Copier, recover};
pub use delegation::OpenPool;
pub use table::Direct;

/// What is served, and when it pays.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directories, absolute and without symbolic links: regular files at any depth below are served.
    pub dirs: Vec<Vec<u8>>,
    /// How many reads and writes of a descriptor the kernel makes before it is looked at; a write of 16 KiB and more counts as
    /// several.
    pub look_after: u32,
    /// How many reads and writes in a chunk the kernel makes before it is mapped, where they jump;
    /// where they go through it in order, two passes do.
    pub map_after: u32,
    /// Chunks mapped at the same time.
    pub chunks_max: usize,
    /// For how long writes by copy may leave the times as the kernel's last write has set them, in ns:
    /// at most to the end of a tick (direct-C4) where it is 0.
    pub times_ns: u64,
    /// Copies to persistent memory: durable when it returns.
    pub durable: Copier,
    /// Opens the pool of a cache, by its path and the device of its files, together with who serves it. What it gives stays
    /// open.
    pub open_pool: OpenPool,
    /// Whether all of a buffer of the program's can be read, or written to.
    pub is_there: unsafe fn(*const u8, usize, bool) -> bool,
}

impl Config {
    /// What pays as a rule: a look costs about as much as four calls. A mapping of a chunk costs as
    /// much as 10 calls, and the first touch of a page of it half a call more than the call that it
    /// saves, populated or not (`keepstone-bench chell first-touch`).
    pub fn new(dirs: Vec<Vec<u8>>, durable: Copier) -> Self {
        Self {
            dirs,
            look_after: 4,
            map_after: 16,
            chunks_max: 8192,
            times_ns: 0,
            durable,
            open_pool: |_, _| None,
            is_there: |_, _, _| false,
        }
    }
}

/// Who answered a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer<T> {
    /// We did, by a copy or from what we know.
    Copied(T),
    /// The kernel, and this is what it returned.
    Asked(Result<T, vfs::Errno>),
    /// Nobody yet: the call is the kernel's as it stands.
    Kernel,
}
