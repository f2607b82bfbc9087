//! `keepstone bdev serve` from its command line: what its options promise.

mod buffers;
mod daily;
mod served;
mod workers;
