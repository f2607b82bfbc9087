//! Name, title and note of each document of docs/measurements, by subcommand.

use crate::report::Section;

/// The head of a document.
pub struct About {
    /// Its name, without `.md`.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// How to read its tables, in lines of a document.
    pub note: &'static str,
    /// The formats on the media that were measured, by the names of docs/format.
    pub formats: &'static [&'static str],
}

impl Section {
    /// The head of its document.
    pub fn about(&self) -> About {
        let (name, title, note, formats): (_, _, _, &[_]) = match self {
            Self::Engine(_) => (
                "engine",
                "The engine, called directly",
                "BPFS, called in this process, beside tmpfs and ext4 on a RAM disk by system\n\
                 calls, and beside bare copies of the same bytes. *Keepstone is ×2*: it takes\n\
                 half the time of that system.",
                &["bpfs"],
            ),
            Self::Traffic(_) => (
                "traffic",
                "Bytes written to the medium",
                "The microbenchmarks of the paper on BPFS (§5.2.1). Bytes to the medium are the\n\
                 lines flushed, 64 bytes each, and the bytes written past the cache. Counts\n\
                 repeat exactly on one machine; they depend on whether the CPU has MOVDIR64B.",
                &["bpfs"],
            ),
            Self::Mount(_) => (
                "mount",
                "Time to mount",
                "A mount scans the pool and derives its volatile state. All pages of the pool\n\
                 are in memory.",
                &["bpfs"],
            ),
            Self::Fuse(_) => (
                "fuse",
                "Mounts, beside libfuse's passthrough examples",
                "The same system calls on a mount of BPFS and on two passthrough servers over\n\
                 tmpfs. All servers and the client are bound to one CPU.\n\n\
                 Each `open` is a request, and so is the end of each opening. A mount with\n\
                 caching and `-o exclusive` has neither. In the rows without caching, the server\n\
                 also examines the descriptors of the client at each `open`, in search of a ring\n\
                 of io_uring.",
                &["bpfs"],
            ),
            Self::Direct(_) => (
                "direct",
                "Direct access: programs under `keepstone run`",
                "The same calls of libc on a pool, on tmpfs and on ext4 on a RAM disk. A *raw*\n\
                 row does only what Keepstone has to do at least; *limit* is the ratio of a\n\
                 system that takes no other time. With 2 threads or processes, ×2 means twice\n\
                 the work.",
                &["bpfs"],
            ),
            Self::Chell(_) => (
                "chell",
                "Direct files: `keepstone run --direct` on tmpfs",
                "Calls served by copies from and to a mapped file, beside the same calls by the\n\
                 kernel (Chell §3). Files have 1 MiB, which the caches hold, and those of\n\
                 `far/` 128 MiB. `lend/` is `ks_fd_get_read_buf`. `first-touch/N` reads N pages\n\
                 of a new mapping of 512 (Figure 3).",
                &[],
            ),
            Self::Cached(_) => (
                "cached",
                "A cache over ext4, used by programs under `keepstone run`",
                "*kernel* is the page cache of the ext4 that is cached, *mount* the kernel on\n\
                 the cache's mount, *copy* a bare copy from or to memory that a pool could lie\n\
                 in. Targets are the gains of Chell's Figures 7, 9 and 10.",
                &["bpfs"],
            ),
            Self::Bdev(_) => (
                "bdev",
                "Block devices, called directly",
                "Protection, buffers, write schemes, atomic blocks and checksums (PMBD, Figures\n\
                 3, 5, 6, 8, 9 and 11). *keepstone* has the default protection, which is by\n\
                 protection keys if the CPU has them. Cases are named by request, pattern and\n\
                 threads.",
                &["pmbd"],
            ),
            Self::Nbd(_) => (
                "nbd",
                "Block devices through their servers",
                "NBD by one client that keeps requests in flight; two worker processes beside\n\
                 two threads; loop devices with content copied by the kernel, and by the\n\
                 server.",
                &["pmbd"],
            ),
            Self::Sensitivity(_) => (
                "sensitivity",
                "Applications on slower memory",
                "SQLite and direct I/O on ext4, on loop devices whose copies are delayed in\n\
                 proportion to the time they take (PMBD §V-C, Figure 15). Cells are multiples\n\
                 of the time at 1×.",
                &["pmbd"],
            ),
            Self::Aging(_) => (
                "aging",
                "Aged pools",
                "Pools that are held full while their files come and go, beside fresh pools\n\
                 with the same files.\n\n\
                 In a full run, pools have 4 GiB and files of up to 1 GiB, and are churned 100\n\
                 times. The collector works as in a server.",
                &["bpfs", "scmfs"],
            ),
            Self::Iozone(_) => (
                "iozone",
                "IOzone's matrix",
                "Bandwidth of SCMFS through the process layer, and how many times as fast it is\n\
                 as each peer (SCMFS §4.2, Figures 6 and 7). No contender syncs.",
                &["bpfs", "scmfs"],
            ),
            Self::Postmark(_) => (
                "postmark",
                "PostMark",
                "10 000 files in 100 directories and 400 000 transactions (SCMFS §4.3).\n\
                 `scmfs-2` and `scmfs-1` have no consistency, and `scmfs-1` no pre-allocation\n\
                 either.",
                &["bpfs", "scmfs"],
            ),
            Self::Scaling(_) => (
                "scaling",
                "Threads",
                "Random reads and overwrites by several threads, each on its own file or all on\n\
                 one (`write-one`), as a share of what bare copies by as many threads move\n\
                 (SCMFS §4.2, Figures 9 and 10). *lent* copies from `get_read_buf`, *mapped*\n\
                 from a mapping.",
                &["bpfs", "scmfs"],
            ),
            Self::Ratios(_) => (
                "ratios",
                "Targets of SCMFS",
                "Overwriting in place, mapped memory, pre-allocation and null files (SCMFS §3.3\n\
                 and §3.4). A *raw* row does only what each needs at least.",
                &["scmfs"],
            ),
            Self::Misses(_) => (
                "misses",
                "Cache and TLB misses",
                "Caches are simulated by valgrind with the sizes of the paper's machine, TLBs\n\
                 modelled by `bench/src/tlb.rs` (SCMFS §4.2, Figures 6 to 8). Kernel file\n\
                 systems have no rows: valgrind does not see the kernel.",
                &["bpfs", "scmfs"],
            ),
            Self::Targets(_) => (
                "targets",
                "Targets of the user's choice",
                "`keepstone bench page` writes the results of `run`.",
                &[],
            ),
            Self::Growth(_) => ("growth", "Growth", "Results of `keepstone bench scale`.", &[]),
        };
        About { name, title, note, formats }
    }
}
