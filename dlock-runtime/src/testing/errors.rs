//! Constructors of lock errors, for unit tests of code that maps them.
//!
//! Outside of this crate, an [`Error`] cannot be built from its fields, since variants may get more
//! of them. Each function here returns the error that a call would return, with typical values.
//!
//! # Panics
//!
//! Each function panics if a key is invalid.
//!
//! # Examples
//!
//! ```
//! use dlock_runtime::Error;
//! use dlock_runtime::testing::errors;
//!
//! enum ShopError {
//!     Busy,
//!     Failed,
//! }
//!
//! impl From<Error> for ShopError {
//!     fn from(error: Error) -> Self {
//!         if error.is_contended() { Self::Busy } else { Self::Failed }
//!     }
//! }
//!
//! assert!(matches!(errors::contended("order:7").into(), ShopError::Busy));
//! assert!(matches!(errors::unavailable("order:7").into(), ShopError::Failed));
//! ```

use std::time::Duration;

use crate::config::config as config_error;
use crate::error::{Error, LossCause};
use crate::key::{IntoLockKey, LockKey};

/// Returns [`Error::NotInstalled`].
#[must_use]
pub fn not_installed() -> Error {
    Error::NotInstalled {}
}

/// Returns [`Error::Contended`] of one attempt on `key` that did not wait, for a lock whose time to
/// live is 30 s.
#[must_use]
#[track_caller]
pub fn contended(key: impl IntoLockKey) -> Error {
    let remaining = Some(Duration::from_secs(30));
    Error::Contended { key: self::key(key), attempts: 1, waited: Duration::ZERO, remaining }
}

/// Returns [`Error::Lost`] of a lock whose lease expired after 30 s. `completed` says whether the
/// body had completed by then.
#[must_use]
#[track_caller]
pub fn lost(key: impl IntoLockKey, completed: bool) -> Error {
    let held = Duration::from_secs(30);
    Error::Lost { key: self::key(key), held, cause: LossCause::Expired, completed, reason: None }
}

/// Returns [`Error::Unavailable`] of a request for `key`.
#[must_use]
#[track_caller]
pub fn unavailable(key: impl IntoLockKey) -> Error {
    let reason = "no connection to redis at 127.0.0.1:6379: connection refused";
    Error::Unavailable { key: Some(self::key(key)), reason: reason.into() }
}

/// Returns [`Error::InvalidKey`] of a key that is built from `template`.
#[must_use]
pub fn invalid_key(template: &str) -> Error {
    Error::InvalidKey { template: template.into(), problem: "the value of a placeholder is empty".into() }
}

/// Returns [`Error::WrongKind`] of a key that holds a list.
#[must_use]
#[track_caller]
pub fn wrong_kind(key: impl IntoLockKey) -> Error {
    Error::WrongKind { key: self::key(key), found: "it holds a list".into() }
}

/// Returns [`Error::FencingCounter`] of the lock of `key`.
#[must_use]
#[track_caller]
pub fn fencing_counter(key: impl IntoLockKey) -> Error {
    Error::FencingCounter { key: self::key(key), problem: "its counter is not a number".into() }
}

/// Returns [`Error::Reentrant`] of a nested call for `key`.
#[must_use]
#[track_caller]
pub fn reentrant(key: impl IntoLockKey) -> Error {
    Error::Reentrant { key: self::key(key) }
}

/// Returns [`Error::Deadlock`] of a call that holds `held` and waits for `key`.
#[must_use]
#[track_caller]
pub fn deadlock(key: impl IntoLockKey, held: impl IntoLockKey) -> Error {
    Error::Deadlock { key: self::key(key), held: self::key(held) }
}

/// Returns [`Error::Shutdown`] of a request for `key`.
#[must_use]
#[track_caller]
pub fn shutdown(key: impl IntoLockKey) -> Error {
    Error::Shutdown { key: Some(self::key(key)) }
}

/// Returns [`Error::Config`] of a part of the configuration.
#[must_use]
pub fn config(part: &str, problem: &str) -> Error {
    config_error(part, problem)
}

#[track_caller]
fn key(key: impl IntoLockKey) -> LockKey {
    match key.into_lock_key("dlock") {
        Ok(key) => key,
        Err(error) => panic!("{error}"),
    }
}
