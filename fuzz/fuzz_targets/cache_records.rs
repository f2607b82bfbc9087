//! [`fuzzing::cache::records`] as the target `cache_records` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::cache::records(bytes));
