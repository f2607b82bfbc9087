//! [`fuzzing::store::objects`] as the target `store_objects` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::store::objects(bytes));
