//! [`fuzzing::device::atomic`] as the target `atomic_region` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::device::atomic(bytes));
