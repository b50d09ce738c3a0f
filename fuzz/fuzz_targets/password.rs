//! URLs with a password, of which none is shown. A line each: scheme, user, what stands before and behind it, the rest.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.split('\n');
    let mut next = || lines.next().unwrap_or_default();
    dlock_runtime::hostile::read_url_with_a_password(next(), next(), next(), next(), next());
});
