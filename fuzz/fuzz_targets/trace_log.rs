//! [`fuzzing::traces::log`] as the target `trace_log` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::traces::log(bytes));
