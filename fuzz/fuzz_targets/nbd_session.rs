//! [`fuzzing::nbd::session`] as the target `nbd_session` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::nbd::session(bytes));
