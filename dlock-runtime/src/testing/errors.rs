//! Constructors of lock errors, for unit tests of code that maps them.
//!
//! Outside of this crate, an [`Error`] cannot be built from its fields, since variants may get more
//! of them. Each function here returns the error that a call would return, with typical values.
//!
//! # Panics
//!
//! Each function panics if a key, or the name of a job, is invalid.
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
use crate::key::{IntoLockKey, InvalidKey, LockKey};

/// The namespace of a manager that sets none.
const NAMESPACE: &str = "dlock";

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

/// Returns [`Error::InProgress`] of a call that duplicates one whose lease ends in 30 s.
#[must_use]
#[track_caller]
pub fn in_progress(key: impl IntoLockKey) -> Error {
    Error::InProgress { key: self::key(key), remaining: Some(Duration::from_secs(30)) }
}

/// Returns [`Error::KeyReused`] of a call with another payload than the first call with `key`, or,
/// if `function` is given, of another function than that one.
#[must_use]
#[track_caller]
pub fn key_reused(key: impl IntoLockKey, function: Option<&str>) -> Error {
    Error::KeyReused { key: self::key(key), function: function.map(Into::into) }
}

/// Returns [`Error::OutcomeUnknown`] of a call whose first attempt crashed.
#[must_use]
#[track_caller]
pub fn outcome_unknown(key: impl IntoLockKey) -> Error {
    Error::OutcomeUnknown { key: self::key(key), attempt: 1 }
}

/// Returns [`Error::ResultNotStored`] of a completed call, or, if `step` is given, of a completed
/// step of a call that runs again.
#[must_use]
#[track_caller]
pub fn result_not_stored(key: impl IntoLockKey, step: Option<&str>) -> Error {
    Error::ResultNotStored { key: self::key(key), step: step.map(Into::into) }
}

/// Returns [`Error::Undecodable`] of a call that reads another version of the result's type than
/// the stored one.
#[must_use]
#[track_caller]
pub fn undecodable(key: impl IntoLockKey) -> Error {
    let problem = "it has version and type `1:Result<u64,Error>`, and this call reads `2:Result<u64,Error>`; the result stays until its `ttl` is over";
    Error::Undecodable { key: self::key(key), problem: problem.into() }
}

/// Returns [`Error::UnknownJob`] of a run that is requested of the job `name`.
#[must_use]
#[track_caller]
pub fn unknown_job(name: &str) -> Error {
    Error::UnknownJob { key: valid(LockKey::named("job", name, NAMESPACE)) }
}

/// Returns [`Error::Config`] of a part of the configuration.
#[must_use]
pub fn config(part: &str, problem: &str) -> Error {
    config_error(part, problem)
}

#[track_caller]
fn key(key: impl IntoLockKey) -> LockKey {
    valid(key.into_lock_key(NAMESPACE))
}

#[track_caller]
fn valid(key: Result<LockKey, InvalidKey>) -> LockKey {
    match key {
        Ok(key) => key,
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Declares `of_each_variant`, which returns the name of each variant and the error of its
    /// function, and `variant`, which does not compile without all of them.
    macro_rules! variants {
        ($($variant:ident: $error:expr,)*) => {
            fn of_each_variant() -> Vec<(&'static str, Error)> {
                vec![$((stringify!($variant), $error)),*]
            }

            fn variant(error: &Error) -> &'static str {
                match error {
                    $(Error::$variant { .. } => stringify!($variant),)*
                }
            }
        };
    }

    variants! {
        NotInstalled: not_installed(),
        Contended: contended("order:7"),
        Lost: lost("order:7", true),
        Unavailable: unavailable("order:7"),
        InvalidKey: invalid_key("order:<id>"),
        WrongKind: wrong_kind("order:7"),
        FencingCounter: fencing_counter("order:7"),
        Reentrant: reentrant("order:7"),
        Deadlock: deadlock("order:7", "order:8"),
        Shutdown: shutdown("order:7"),
        InProgress: in_progress("order:7"),
        KeyReused: key_reused("order:7", None),
        OutcomeUnknown: outcome_unknown("order:7"),
        ResultNotStored: result_not_stored("order:7", None),
        Undecodable: undecodable("order:7"),
        UnknownJob: unknown_job("report"),
        Config: config("url", "it is empty"),
    }

    #[test]
    fn each_variant_has_a_function_that_returns_it() {
        for (name, error) in of_each_variant() {
            assert_eq!(variant(&error), name, "{error:?}");
            let key = match name {
                "NotInstalled" | "InvalidKey" | "Config" => None,
                "UnknownJob" => Some("job:report"),
                _ => Some("order:7"),
            };
            assert_eq!(error.key().map(LockKey::as_str), key, "{error:?}");
        }
    }

    #[test]
    fn errors_of_idempotent_calls_have_the_fields_of_a_call() {
        let reused = [None, Some("charge")].map(|function| key_reused("order:7", function).to_string());
        let missing = [None, Some("psp")].map(|step| result_not_stored("order:7", step).to_string());

        assert!(reused[0].contains("was used for a call with another payload"), "{}", reused[0]);
        assert!(reused[1].contains("was used for a call of function `charge`"), "{}", reused[1]);
        assert!(missing[0].contains("has completed, and its result is not stored"), "{}", missing[0]);
        let step = "cannot continue: the result of its step `psp` is not stored";
        assert!(missing[1].contains(step) && !missing[1].contains("completed"), "{}", missing[1]);
        assert_eq!(in_progress("order:7").retry_after(), Some(Duration::from_secs(1)));
        assert!(outcome_unknown("order:7").to_string().starts_with("attempt 1 of the call"));
    }
}
