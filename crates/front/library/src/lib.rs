//! Files in persistent memory, in the program's own process: pools of Keepstone as a library.
//!
//! A program opens a [`Pool`] by the path of its file or device, and uses the files in it by calls
//! that are named as in [`std::fs`]. There is no mount, no server and no system call on the way: a
//! read is a copy out of the pool's memory, and a write is durable when it returns (in memory that
//! is durable, with the layout `bpfs`). Mounts made with `-o direct`, programs under `keepstone
//! run` and other programs with this library may use the same pool at the same time.
//!
//! ```toml
//! [dependencies]
//! keepstone = { package = "keepstone-library", git = "…" }
//! ```
//!
//! ```
//! # use keepstone_library as keepstone;
//! use std::io::{Read, Seek, Write};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("pool");
//! // As `keepstone mkfs` does; `Pool::open` for one that exists.
//! let pool = keepstone::NewPool::new(64 << 20).create(&path)?;
//!
//! pool.create_dir("reports", 0o755)?;
//! pool.write("reports/2024", "twelve pages")?;
//! assert_eq!(pool.read_to_string("reports/2024")?, "twelve pages");
//!
//! let mut options = keepstone::OpenOptions::new();
//! let mut file = options.read(true).write(true).open(&pool, "reports/2024")?;
//! file.write_all(b"thirteen")?;
//! file.rewind()?;
//! let mut word = [0; 8];
//! file.read_exact(&mut word)?;
//! assert_eq!(&word, b"thirteen");
//!
//! for entry in pool.read_dir("reports")? {
//!     println!("{}", entry?.file_name().display());
//! }
//! pool.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Errors are [`std::io::Error`] with the error number that the kernel would give, except those of
//! opening a pool ([`PoolError`]).
//!
//! The library promises:
//!
//! - **library-L1** A call fails or takes effect as a whole, with respect to threads, other
//!   programs and crashes; a crash undoes no call that has returned, if the pool's memory is
//!   durable. With the layout `scmfs`, that holds for the content of files after
//!   [`File::sync_all`].
//! - **library-L2** No call ends the program because of a pool: one that is damaged, truncated or
//!   on broken memory gives errors ([`Pool::open`] installs a handler of SIGBUS for that).
//! - **library-L3** Memory that is lent ([`Map`]) stays mapped until it is given back, whatever
//!   other threads and programs do to the file.
//!
//! The C interface (`include/keepstone.h`) is made of this crate. It is for Linux on x86-64.

mod dir;
mod error;
mod file;
mod lent;
mod map;
mod metadata;
mod pool;
mod trees;

pub use dir::{DirEntry, ReadDir};
pub use error::PoolError;
#[doc(hidden)]
pub use error::errno_of;
pub use file::{File, OpenOptions};
#[doc(hidden)]
pub use lent::pool_file;
pub use map::{Map, MapMut};
pub use metadata::{FileType, Metadata, PoolSpace};
pub use pool::{NewPool, Pool};
pub use trees::{BranchCommit, NamedTree};
