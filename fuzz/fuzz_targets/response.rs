//! Fuzzes stored HTTP responses, as bytes of a record.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dlock_runtime::hostile::read_stored_response(bytes));
