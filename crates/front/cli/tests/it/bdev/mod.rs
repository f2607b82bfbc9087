//! `keepstone bdev serve` from its command line: what its options promise.

mod buffers;
mod crowd;
mod daily;
pub mod served;
mod workers;
