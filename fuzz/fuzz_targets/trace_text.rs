//! [`fuzzing::traces::text`] as the target `trace_text` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::traces::text(bytes));
