//! The rules of the lock with their fast tests, as a separate crate for testing mutants.
//!
//! It consists of the files of `dlock-runtime/src/protocol` and the few that they need. The whole
//! runtime would take 30 s to build for each of about 800 mutants. The crate also shows that the
//! rules use no clock, socket, or runtime.
//!
//! See also: `.cargo/mutants.toml` for the mutants, and `proof/mutants.sh`, which runs them.
#![cfg(all(test, feature = "alone"))]
#![allow(
    dead_code,
    unexpected_cfgs,
    unreachable_pub,
    reason = "the runtime uses the rules, and has the features"
)]

#[path = "../../dlock-runtime/src/bounds.rs"]
mod bounds;
#[path = "../../dlock-runtime/src/error.rs"]
mod error;
#[path = "../../dlock-runtime/src/key/invalid_key.rs"]
mod invalid_key;
#[path = "../../dlock-runtime/src/printable.rs"]
mod printable;
#[path = "../../dlock-runtime/src/protocol/mod.rs"]
mod protocol;
#[path = "../../dlock-runtime/src/retry.rs"]
mod retry;
#[path = "../../dlock-runtime/src/token.rs"]
mod token;

/// The setting of simulations of more than the rules.
mod simulated {
    pub(crate) const fn next_process() -> Option<u64> {
        None
    }
}

/// The key of a lock, which the rules only compare.
mod key {
    use std::fmt;
    use std::sync::Arc;

    pub use crate::invalid_key::InvalidKey;
    use crate::printable::Escaped;

    pub(crate) type Name = Arc<str>;

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LockKey(Name);

    impl LockKey {
        #[allow(clippy::unnecessary_wraps, reason = "the real constructor may fail")]
        pub(crate) fn new(name: &str) -> Option<Self> {
            Some(Self(name.into()))
        }

        pub(crate) fn as_str(&self) -> &str {
            &self.0
        }

        pub(crate) fn full_name(&self) -> &str {
            &self.0
        }
    }

    impl fmt::Display for LockKey {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            Escaped(&self.0).fmt(f)
        }
    }
}
