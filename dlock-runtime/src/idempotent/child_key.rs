//! Child keys: the idempotency keys for the calls that a body makes.

use sha2::{Digest, Sha256};

use crate::backend::store_call;

/// Returns the child key of a step: the same for every attempt, process, and version.
///
/// It is a hash of the record's full name and of the step, 32 hex digits. It must never change: a
/// payment provider knows a charge by it.
pub(super) fn child_key(record: &str, step: &str) -> String {
    let hash = Sha256::new()
        .chain_update(b"dlock child key 1:")
        .chain_update((record.len() as u64).to_be_bytes())
        .chain_update(record)
        .chain_update(step)
        .finalize();
    hex(&hash)
}

/// Returns the first 128 bits of a hash as hex digits.
pub(super) fn hex(hash: &[u8]) -> String {
    store_call::hex(hash.get(..16).unwrap_or(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_keys_never_change() {
        assert_eq!(child_key("dlock:charge:7:a1b2", "psp"), "a881ad68a453af9eb8b7891f2184a243");
        assert_eq!(child_key("dlock:charge:7:a1b2", ""), "3cbaec7c77f2d105fed65168b52ba2df");
    }

    #[test]
    fn a_child_key_depends_on_where_the_name_ends() {
        assert_ne!(child_key("dlock:a", "bc"), child_key("dlock:ab", "c"));
    }
}
