//! Counts requests by kind, the time that they take, and the bytes of reads and writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use counters::{Histogram, LatencyReport};
use serde::Serialize;

macro_rules! ops {
    ($($variant:ident $name:literal,)*) => {
        /// A kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // each is the request of that name in fuse(4)
        pub enum CountedOp { $($variant,)* }

        impl CountedOp {
            /// Every kind, in declaration order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name under which it is reported.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

ops! {
    Lookup "lookup",
    Forget "forget",
    GetAttr "getattr",
    SetAttr "setattr",
    ReadLink "readlink",
    MkNod "mknod",
    MkDir "mkdir",
    Unlink "unlink",
    RmDir "rmdir",
    Symlink "symlink",
    Rename "rename",
    Link "link",
    Open "open",
    Read "read",
    Write "write",
    StatFs "statfs",
    Release "release",
    FSync "fsync",
    SetXattr "setxattr",
    GetXattr "getxattr",
    ListXattr "listxattr",
    RemoveXattr "removexattr",
    Flush "flush",
    OpenDir "opendir",
    ReadDir "readdir",
    ReadDirPlus "readdirplus",
    FSyncDir "fsyncdir",
    Create "create",
    Tmpfile "tmpfile",
    Ioctl "ioctl",
    Poll "poll",
    Fallocate "fallocate",
    Lseek "lseek",
    CopyFileRange "copy_file_range",
}

/// Counters of one mount. Relaxed: each is exact, but together they are no snapshot.
#[derive(Debug)]
pub struct OpCounters {
    calls: [AtomicU64; CountedOp::ALL.len()],
    times: [Histogram; CountedOp::ALL.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    panics: AtomicU64,
}

/// The values of the counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpSnapshot {
    /// Requests by kind; kinds that never came are left out.
    pub requests: BTreeMap<&'static str, u64>,
    /// Times of the requests that the engine answers, by kind: from the moment at which a thread
    /// takes the request until it has the result.
    pub latency: BTreeMap<&'static str, LatencyReport>,
    /// Bytes sent in reply to reads.
    pub read_bytes: u64,
    /// Bytes taken from writes.
    pub written_bytes: u64,
    /// Requests that ended with `EIO` because the engine panicked.
    pub panics: u64,
}

impl Default for OpCounters {
    fn default() -> Self {
        Self {
            calls: [const { AtomicU64::new(0) }; CountedOp::ALL.len()],
            times: std::array::from_fn(|_| Histogram::default()),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }
}

impl OpCounters {
    /// Returns the number of requests `op`.
    pub fn calls(&self, op: CountedOp) -> u64 {
        self.calls[op as usize].load(Relaxed)
    }

    /// Returns all counters.
    pub fn snapshot(&self) -> OpSnapshot {
        let requests = CountedOp::ALL.iter().map(|&op| (op.name(), self.calls(op)));
        let times = CountedOp::ALL.iter().zip(&self.times);
        let latency = times.filter_map(|(op, times)| {
            LatencyReport::new(&times.counts()).map(|report| (op.name(), report))
        });
        OpSnapshot {
            latency: latency.collect(),
            requests: requests.filter(|&(_, n)| n > 0).collect(),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            panics: self.panics.load(Relaxed),
        }
    }

    pub(crate) fn count(&self, op: CountedOp) {
        self.calls[op as usize].fetch_add(1, Relaxed);
    }

    /// Records the time of a request.
    pub(crate) fn took(&self, op: CountedOp, time: Duration) {
        self.times[op as usize].record(time.as_nanos() as u64);
    }

    pub(crate) fn add_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn add_written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn add_panic(&self) {
        self.panics.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_names_what_came() {
        let counters = OpCounters::default();
        counters.count(CountedOp::Write);
        counters.count(CountedOp::Write);
        counters.count(CountedOp::CopyFileRange);
        counters.add_written(4096);
        counters.took(CountedOp::Write, Duration::from_micros(8));
        let snapshot = counters.snapshot();
        let write = &snapshot.latency["write"];
        assert_eq!((write.total_ns, snapshot.latency.len(), write.buckets.len()), (8000, 1, 1));
        assert!((8000..=9000).contains(&write.p50_ns) && write.p50_ns == write.p999_ns);
        assert_eq!(snapshot.requests, BTreeMap::from([("write", 2), ("copy_file_range", 1)]));
        assert_eq!((snapshot.read_bytes, snapshot.written_bytes), (0, 4096));
    }
}
