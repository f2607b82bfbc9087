//! [`fuzzing::replies::http`] as the target `store_replies` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::replies::http(bytes));
