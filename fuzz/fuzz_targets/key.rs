//! Fuzzes keys: two lists of values, separated by an empty line.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (left, right) = text.split_once("\n\n").unwrap_or((text, ""));
    let (left, right): (Vec<_>, Vec<_>) = (left.split('\n').collect(), right.split('\n').collect());
    dlock_runtime::hostile::tell_keys_apart(&left, &right);
});
