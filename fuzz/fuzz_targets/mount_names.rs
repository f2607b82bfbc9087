//! [`fuzzing::mounts::names`] as the target `mount_names` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::mounts::names(bytes));
