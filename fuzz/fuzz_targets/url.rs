//! Fuzzes URLs.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| dlock_runtime::hostile::read_url(text));
