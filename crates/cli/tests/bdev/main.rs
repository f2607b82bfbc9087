//! `keepstone bdev serve` from its command line: what its options promise.

mod buffers;
mod served;
mod workers;
