//! [`fuzzing::stream::sent`] as the target `stream_sent` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::stream::sent(bytes));
