//! [`Outcome`], what a call returns, and [`Completion`], what it stores.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::idempotent::error_policy::ErrorPolicy;
use crate::key::LockKey;

/// The value of an idempotent call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome<T> {
    value: T,
    is_replayed: bool,
}

impl<T> Outcome<T> {
    pub(super) fn ran(value: T) -> Self {
        Self { value, is_replayed: false }
    }

    pub(super) fn replayed(value: T) -> Self {
        Self { value, is_replayed: true }
    }

    /// Returns `true` if the value was stored by an earlier call. The body of this call did not
    /// run.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        self.is_replayed
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the value.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }
}

/// What an idempotent call stores for later calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completion {
    /// This result, of at most 64 KiB. A larger one is not stored, as [`NotStored`](Self::NotStored).
    Store(Vec<u8>),
    /// This error, within the same limit. Later calls get it with
    /// [`is_error`](BytesOutcome::Replayed::is_error).
    StoreError(Vec<u8>),
    /// Only that the call has completed. Later calls get
    /// [`Error::ResultNotStored`](crate::Error::ResultNotStored).
    NotStored,
    /// Nothing: the next call runs its body. Completed steps stay, and are replayed to it.
    Forget,
}

/// The outcome of an idempotent call whose result is bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BytesOutcome<V> {
    /// The body ran and returned this value.
    Ran(V),
    /// An earlier call has stored this result.
    Replayed {
        /// The bytes that it stored.
        bytes: Vec<u8>,
        /// Whether it stored them as an error.
        is_error: bool,
    },
}

/// Returns what to store for the result of a body, and the result.
pub(super) fn to_store<T: Serialize, E>(
    result: Result<T, E>,
    errors: &impl ErrorPolicy<E>,
) -> (Completion, Result<T, E>) {
    (completion(result.as_ref(), errors), result)
}

/// Returns what to store for the result of a body.
pub(crate) fn completion<T: Serialize, E>(
    result: Result<&T, &E>,
    errors: &impl ErrorPolicy<E>,
) -> Completion {
    match result {
        Ok(value) => serde_json::to_vec(value).map_or(Completion::NotStored, Completion::Store),
        Err(error) => errors.completion(error),
    }
}

/// Decodes a stored result.
pub(crate) fn decoded<T: DeserializeOwned>(bytes: &[u8], key: &LockKey) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|problem| undecodable(key, &problem))
}

/// Returns the error of a stored result that does not decode. It contains no part of the result.
pub(super) fn undecodable(key: &LockKey, problem: &serde_json::Error) -> Error {
    let problem = format!(
        "it is not the JSON of the returned type ({:?} at column {}); raise `version` when the type changes",
        problem.classify(),
        problem.column()
    );
    Error::Undecodable { key: key.clone(), problem: problem.into() }
}
