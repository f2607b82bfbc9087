//! [`fuzzing::cache::control`] as the target `cache_control` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::cache::control(bytes));
