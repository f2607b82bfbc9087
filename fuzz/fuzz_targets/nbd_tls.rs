//! [`fuzzing::nbd::tls`] as the target `nbd_tls` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::nbd::tls(bytes));
