//! [`fuzzing::cache::pool`] as the target `cache_pool` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::cache::pool(bytes));
