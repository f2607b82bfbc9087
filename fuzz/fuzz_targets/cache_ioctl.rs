//! [`fuzzing::cache::announcements`] as the target `cache_ioctl` of cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzing::cache::announcements(bytes));
