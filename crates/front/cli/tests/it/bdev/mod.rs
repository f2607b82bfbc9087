//! `keepstone bdev serve`: the promises of its options.

mod buffers;
mod crowd;
mod daily;
pub mod served;
mod workers;
