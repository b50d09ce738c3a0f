//! The rules of the lock with their fast tests, as a crate of their own that is built in a few seconds: what mutants are judged by.
//!
//! It is nothing but the files of `dlock-runtime/src/protocol` and the few that they need; the whole runtime would take half a minute for
//! each of some eight hundred mutants. That it can be is proof by the way: the rules know no clock, no socket and no runtime.
//!
//! Not here: which mutants there are (`.cargo/mutants.toml`), and running them (`proof/mutants.sh`).
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
#[path = "../../dlock-runtime/src/printable.rs"]
mod printable;
#[path = "../../dlock-runtime/src/protocol/mod.rs"]
mod protocol;
#[path = "../../dlock-runtime/src/retry.rs"]
mod retry;
#[path = "../../dlock-runtime/src/token.rs"]
mod token;

/// What the rules need of the settings.
mod config {
    use crate::error::Error;

    pub(crate) fn config(part: &str, problem: impl Into<String>) -> Error {
        Error::Config { part: part.into(), problem: problem.into().into() }
    }
}

/// What a simulation of more than the rules sets.
mod simulated {
    pub(crate) const fn next_process() -> Option<u64> {
        None
    }
}

/// A name, which to the rules is nothing but that.
mod key {
    use std::fmt;
    use std::sync::Arc;

    pub(crate) type Name = Arc<str>;

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LockKey(Name);

    impl LockKey {
        #[allow(clippy::unnecessary_wraps, reason = "what is given to the real one may be refused")]
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
            self.0.fmt(f)
        }
    }
}
