//! [`fuzzing::image::bpfs`] as the target `pool_bpfs` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::image::bpfs(bytes));
