//! [`fuzzing::mounts::table`] as the target `mount_table` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::mounts::table(bytes));
