//! Wear: writes of each line behind the caches, and the time until the first cell fails (§4.2;
//! SCMFS §5).
//!
//! - `counts`: writes of lines and of their words;
//! - [`lifetime`]: the time until a failure, with and without wear levelling;
//! - [`start_gap`], [`swap`]: levelling by moving a gap (Qureshi et al., MICRO 2009), and by swaps
//!   of pages, which §4.2 combines with rotation within a page.

mod counts;
pub mod lifetime;
pub mod start_gap;
pub mod swap;

pub use counts::{HotLine, WearCounts, WearTotals};
