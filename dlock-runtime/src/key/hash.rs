//! The hash of keys: SHA-256, cut to 128 bits, as 32 lower-case hex digits. It must never change.
//!
//! Processes of different versions, and in other languages, must compute the same key.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Hashes its input, and appends the hash to a name.
pub(crate) struct Hasher {
    name: String,
    hash: Sha256,
}

impl Hasher {
    pub(crate) fn new(name: String) -> Self {
        Self { name, hash: Sha256::new() }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    pub(crate) fn finish(self) -> String {
        let Self { mut name, hash } = self;
        for byte in hash.finalize().iter().take(DIGITS / 2) {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

/// The number of hex digits of a hash.
pub(crate) const DIGITS: usize = 32;

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}
