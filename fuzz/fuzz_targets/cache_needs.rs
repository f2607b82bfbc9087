//! [`fuzzing::needs::needs`] as the target `cache_needs` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::needs::needs(bytes));
