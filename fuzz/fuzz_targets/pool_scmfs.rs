//! [`fuzzing::image::scmfs`] as the target `pool_scmfs` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::image::scmfs(bytes));
