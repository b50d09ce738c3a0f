//! [`ErrorPolicy`]: which errors of a body are stored.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::idempotent::json::{decoded, encoded};
use crate::idempotent::outcome::Completion;
use crate::key::LockKey;

/// Decides which errors of a body are stored and replayed.
///
/// It is implemented by [`ForgetErrors`] for every error, and by [`RememberErrors`] for errors that
/// can be serialized.
pub trait ErrorPolicy<E>: sealed::Sealed {
    /// Returns what to store for an error.
    #[doc(hidden)]
    fn completion(&self, error: &E) -> Completion;

    /// Decodes a stored error.
    ///
    /// # Errors
    ///
    /// [`Error::Undecodable`] if the bytes are not such an error.
    #[doc(hidden)]
    fn decode(&self, bytes: &[u8], key: &LockKey) -> Result<E>;
}

/// Stores no error: the next call runs its body. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForgetErrors;

/// Stores errors for which a predicate returns `true`.
///
/// Returned by [`Idempotent::remember_errors_if`](crate::Idempotent::remember_errors_if).
#[derive(Clone, Copy)]
pub struct RememberErrors<F>(pub(super) F);

impl<F> RememberErrors<F> {
    /// Stores errors for which `remember` returns `true`.
    pub(crate) fn new(remember: F) -> Self {
        Self(remember)
    }
}

impl<E> ErrorPolicy<E> for ForgetErrors {
    fn completion(&self, _error: &E) -> Completion {
        Completion::Forget
    }

    /// Another call stored an error that this one does not read.
    fn decode(&self, _bytes: &[u8], key: &LockKey) -> Result<E> {
        let problem = "it is an error, and this call does not remember errors; use one policy for a key";
        Err(Error::Undecodable { key: key.clone(), problem: problem.into() })
    }
}

impl<E: Serialize + DeserializeOwned, F: Fn(&E) -> bool> ErrorPolicy<E> for RememberErrors<F> {
    fn completion(&self, error: &E) -> Completion {
        if !(self.0)(error) {
            return Completion::Forget;
        }
        encoded(error).map_or(Completion::ErrorNotStored, Completion::StoreError)
    }

    fn decode(&self, bytes: &[u8], key: &LockKey) -> Result<E> {
        decoded(bytes, key)
    }
}

/// Returns what to store for the result of a body, and the result.
pub(super) fn to_store<T: Serialize + DeserializeOwned, E>(
    result: Result<T, E>,
    errors: &impl ErrorPolicy<E>,
) -> (Completion, Result<T, E>) {
    (completion(result.as_ref(), errors), result)
}

/// Returns what to store for the result of a body.
pub(crate) fn completion<T: Serialize + DeserializeOwned, E>(
    result: Result<&T, &E>,
    errors: &impl ErrorPolicy<E>,
) -> Completion {
    match result {
        Ok(value) => encoded(value).map_or(Completion::NotStored, Completion::Store),
        Err(error) => errors.completion(error),
    }
}

impl<F> fmt::Debug for RememberErrors<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RememberErrors").finish_non_exhaustive()
    }
}

mod sealed {
    /// Prevents implementations outside of this crate.
    pub trait Sealed {}
    impl Sealed for super::ForgetErrors {}
    impl<F> Sealed for super::RememberErrors<F> {}
}
