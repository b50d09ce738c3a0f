//! [`Outcome`], what a call returns, and [`Completion`], what it stores.

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

/// The part of an outcome that is stored for later calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completion {
    /// This result, of at most 64 KiB. A larger one is treated as [`NotStored`](Self::NotStored).
    Store(Vec<u8>),
    /// This error, within the same limit. Later calls get it with
    /// [`is_error`](BytesOutcome::Replayed::is_error).
    StoreError(Vec<u8>),
    /// Only that the call has completed. Later calls get
    /// [`Error::ResultNotStored`](crate::Error::ResultNotStored).
    NotStored,
    /// Only that the call has completed with an error. Later calls get what they get after
    /// [`NotStored`](Self::NotStored).
    ErrorNotStored,
    /// Nothing, since the call has ended with an error: the next call runs its body. Completed
    /// steps stay, and are replayed to it.
    Forget,
    /// Nothing, since the body may have been stopped before its end, for example because its lock
    /// was lost. [`OnCrash`](crate::idempotent::OnCrash) decides what later calls get, as after a
    /// crash.
    Crashed,
}

impl Completion {
    /// Returns `true` if the body has ended with an error.
    pub(super) fn is_error(&self) -> bool {
        match self {
            Self::Store(_) | Self::NotStored => false,
            Self::StoreError(_) | Self::ErrorNotStored | Self::Forget | Self::Crashed => true,
        }
    }
}

/// The outcome of an idempotent call whose result is bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BytesOutcome<V> {
    /// The body ran and returned this value.
    Ran(V),
    /// An earlier call has stored this result.
    #[non_exhaustive]
    Replayed {
        /// The bytes that it stored.
        bytes: Vec<u8>,
        /// Whether it stored them as an error.
        is_error: bool,
    },
}
