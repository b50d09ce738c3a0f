//! Compares states by their debug output, so that production types need no equality for the tests.
//!
//! The debug output of a token contains its number, which is unique within its process only. The
//! hash of a record with tokens of several processes therefore includes the process numbers, too.

use std::fmt::{self, Debug, Write};
use std::hash::{Hash, Hasher};

use crate::protocol::deadline::BootInstant;
use crate::protocol::record::Record;
use crate::token::TokenSource;

/// Hashes the debug output of a value, without storing it.
pub(super) fn hash_as_printed<H: Hasher>(value: &impl Debug, hasher: &mut H) {
    struct HashWriter<'a, H>(&'a mut H);
    impl<H: Hasher> Write for HashWriter<'_, H> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    write!(HashWriter(hasher), "{value:?}").expect("a hasher accepts any text");
}

/// Hashes the record of a server at `now`. An expired record equals an empty one.
pub(super) fn hash_record<H: Hasher>(record: &Record, now: BootInstant, hasher: &mut H) {
    for token in record.tokens(now) {
        token.numbers().hash(hasher);
    }
    if !record.is_empty(now) {
        hash_as_printed(record, hasher);
    }
}

/// Returns `true` if two states are equal to the model checker.
pub(super) fn same_hash<A: Hash>(one: &A, other: &A) -> bool {
    let hash = |state: &A| {
        let mut hasher = std::hash::DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    hash(one) == hash(other)
}

/// Returns the token source of a process that has created `made` tokens.
pub(super) fn tokens_after(process: u64, made: u64) -> TokenSource {
    let source = TokenSource::of_process(process);
    for _ in 0..made {
        source.next();
    }
    source
}
