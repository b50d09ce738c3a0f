//! Fuzzes URLs with a password, which must not be printed.
//!
//! The input lines are the arguments of `read_url_with_a_password`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n');
    let mut next = || lines.next().unwrap_or_default();
    dlock_runtime::hostile::read_url_with_a_password(next(), next(), next(), next(), next());
});
