//! States are told apart by what they print: what production keeps needs no equality for the sake of its tests.
//!
//! A token prints its number alone, which tells it from others of its process; where those of several processes meet, the numbers
//! of both are printed beside it.

use std::fmt::{self, Debug, Write};
use std::hash::{Hash, Hasher};

use crate::protocol::deadline::BootInstant;
use crate::protocol::record::Record;
use crate::token::TokenSource;

/// Hashes what a value prints, without keeping it.
pub(super) fn hash_as_printed<H: Hasher>(value: &impl Debug, hasher: &mut H) {
    struct Into<'a, H>(&'a mut H);
    impl<H: Hasher> Write for Into<'_, H> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    write!(Into(hasher), "{value:?}").expect("a hasher takes all");
}

/// Hashes what stands in a server at `now`; what has ended is as good as nothing.
pub(super) fn hash_record<H: Hasher>(record: &Record, now: BootInstant, hasher: &mut H) {
    for token in record.tokens(now) {
        token.numbers().hash(hasher);
    }
    if !record.is_empty(now) {
        hash_as_printed(record, hasher);
    }
}

/// Whether two states are the same to the model checker.
pub(super) fn same_hash<A: Hash>(one: &A, other: &A) -> bool {
    let hash = |state: &A| {
        let mut hasher = std::hash::DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    hash(one) == hash(other)
}

/// The source of a process that has made so many tokens.
pub(super) fn tokens_after(process: u64, made: u64) -> TokenSource {
    let source = TokenSource::of_process(process);
    for _ in 0..made {
        source.next();
    }
    source
}
