//! Persistent memory as a [`Medium`]: regions, persistence domains, flush instructions, counters.
//!
//! A [`Region`] maps a file on fsdax, a devdax device, or a substitute for persistent memory: a
//! file on tmpfs or hugetlbfs, an ordinary file, anonymous memory. Its [`Domain`] states what a
//! fence guarantees there. The CPU's flush instruction and non-temporal stores are chosen at
//! start-up ([`cpu`]). [`Counters`] count the traffic; [`Emulation`] slows it down to the speed of
//! other memory.
//!
//! ```
//! use pmem::{Domain, Medium, Region};
//!
//! let region = Region::anonymous(1 << 20)?;
//! region.write_nt(4096, b"shadow");
//! let ready = region.fence();
//! let _ = region.publish(0, 4096, ready);
//! assert!(region.equals(region.load_u64(0), b"shadow"));
//! assert_eq!(region.domain(), Domain::Volatile);
//! # Ok::<(), pmem::Error>(())
//! ```

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("pmem knows the persistence rules of x86-64 on Linux only");

mod copy;
mod counters;
pub mod cpu;
mod domain;
mod emulation;
mod error;
mod features;
mod file_id;
mod flush;
mod guard;
mod holes;
mod host;
mod huge;
mod line;
mod lock;
mod lost;
mod mapping;
mod medium;
pub mod memories;
mod naming;
mod observe;
mod open;
mod pagesync;
mod pm;
mod probe;
mod region;
mod sharded;
pub mod stray;
mod touched;

pub use copy::{NtWidth, copy_durably, copy_out};
pub use counters::{Counters, CountersSnapshot};
pub use domain::{Domain, UnknownDomain};
pub use emulation::{Emulation, ParseEmulationError};
pub use error::Error;
pub use file_id::FileId;
pub use flush::{FlushInstruction, LINE, lines};
pub use guard::{Guarded, Protection, Tally, UnknownProtection};
pub use host::{FsType, PlatformDomain};
pub use line::Line;
pub use lost::{handle_fault, is_mapped};
pub use medium::{Fenced, Medium};
pub use observe::{Observed, Observer, SharedObserver, StoreWay};
pub use open::{Access, Lock, OpenOptions};
pub use pm::{Pm, PmOff};
pub use probe::{ProbeKind, ProbeReport, probe};
pub use region::Region;
pub use sharded::Sharded;
