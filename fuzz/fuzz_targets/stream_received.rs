//! [`fuzzing::stream::received`] as the target `stream_received` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::stream::received(bytes));
