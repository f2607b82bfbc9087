//! The crash explorer: which states can a power failure leave in persistent memory, and does
//! recovery handle them?
//!
//! A program runs once, on the [`recorder`]. From the [`trace`], the [`persist`]ency rules of the
//! machine give, for every crash point, the bytes that are durable and those that may or may not
//! be. The [`explore`]r lays states over an [`image`], runs recovery on them and judges the result;
//! states that agree on everything recovery reads need only one run.
//!
//! This crate has all that file systems ([`target`]) need: operations as data ([`vfs::script`],
//! [`workload`], [`generate`]), the oracle that compares with the contract's model ([`oracle`],
//! [`promise`], [`run`], [`mod@format`]), threads at once under seeded schedules ([`mod@schedule`],
//! [`threads`]), processes that die ([`deaths`]), second crashes ([`mod@twice`]), families of
//! workloads ([`campaign`]), for any file system ([`any`]). [`mod@lint`] reports problems that
//! traces show without a crash. Bugs planted in traces test the explorer itself ([`mutate`],
//! [`score`]). The crate knows no engine. The crate `judges` adds the facts about each engine,
//! block devices, which have an oracle of their own, and bugs planted in source.
//! `docs/CRASHTESTING.md` is the guide. Programs in other languages come as traces, also from
//! [`pmemcheck`], and are judged by commands ([`states`]).
//!
//! Any other program on a [`pmem::Medium`] can be tested, too. This example keeps a sum next to a
//! list of numbers, and neglects that two lines persist in any order:
//!
//! ```
//! use crashsim::{explore::Budget, image::CrashImage, persist::Semantics, program};
//! use crashsim::{recorder::Recorder, stats::Distinct};
//! use pmem::Medium;
//!
//! fn push(pm: &impl Medium, n: u64) {
//!     let (count, sum) = (pm.load_u64(0), pm.load_u64(64));
//!     pm.store_u64(128 + count * 8, n);
//!     pm.flush(128 + count * 8, 8);
//!     let _ = pm.fence();
//!     pm.store_u64(64, sum + n);
//!     pm.store_u64(0, count + 1); // the commit, but of one line only
//!     pm.flush(0, 128);
//!     let _ = pm.fence();
//! }
//!
//! fn recover(pm: &CrashImage) -> Result<u64, String> {
//!     let count = pm.load_u64(0);
//!     let sum: u64 = (0..count).map(|i| pm.load_u64(128 + i * 8)).sum();
//!     match sum == pm.load_u64(64) {
//!         true => Ok(count),
//!         false => Err(format!("{count} numbers do not have the sum they should")),
//!     }
//! }
//!
//! let pm = Recorder::new(CrashImage::new(4096));
//! for op in 0..3 {
//!     pm.begin(op);
//!     push(&pm, 5);
//!     pm.end(op);
//! }
//! let trace = pm.into_trace();
//! let judge = |now: program::Moment, count: &u64| {
//!     match (now.returned..=now.begun).contains(&(*count as u32)) {
//!         true => Ok(()),
//!         false => Err(format!("{count} numbers are there")),
//!     }
//! };
//! let (zeros, all) = ([0; 4096], Distinct::default());
//! let (budget, rules) = (Budget::default(), Semantics::Adr);
//! let (_, bugs) = program::find_bugs(&trace, &zeros, rules, budget, &all, &recover, &judge);
//! // For each number either line persists alone: six verdicts, and two bugs, by what was lost.
//! assert_eq!(bugs.iter().map(|bug| bug.times).collect::<Vec<_>>(), [3, 3]);
//! assert!(bugs.iter().all(|bug| bug.lost.len() == 1));
//! println!("{}", bugs[0]); // … lost: word 0x40, stored at src/lib.rs:10
//!
//! // The trace itself shows that every store is flushed.
//! assert!(crashsim::lint::lint(&trace).unflushed.is_empty());
//! ```

mod account;
pub mod any;
pub mod campaign;
pub mod deaths;
pub mod explore;
pub mod format;
pub mod generate;
pub mod image;
pub mod inflight;
pub mod keeping;
pub mod lint;
pub mod lost;
pub mod mutate;
pub mod oracle;
mod pending;
pub mod persist;
mod plan;
pub mod pmemcheck;
pub mod program;
pub mod promise;
pub mod recorder;
pub mod replay;
pub mod run;
pub mod schedule;
pub mod score;
mod show;
pub mod sited;
pub mod states;
pub mod stats;
pub mod target;
pub mod threads;
pub mod trace;
pub mod twice;
pub mod vinter;
pub mod workload;
