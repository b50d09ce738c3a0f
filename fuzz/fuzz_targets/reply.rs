//! Fuzzes the replies of a server, as bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| dlock_runtime::hostile::read_reply(bytes));
