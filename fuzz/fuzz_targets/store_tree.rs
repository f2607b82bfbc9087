//! [`fuzzing::store::tree`] as the target `store_tree` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::store::tree(bytes));
