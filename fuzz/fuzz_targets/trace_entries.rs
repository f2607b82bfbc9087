//! [`fuzzing::traces::entries`] as the target `trace_entries` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::traces::entries(bytes));
