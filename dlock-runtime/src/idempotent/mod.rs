//! Calls that are safe to repeat: the first call runs, and later calls with the same key get its
//! result.
//!
//! ```text
//! mod                 Idempotent: a key, its options, and the ways to run a body
//! options, fingerprint, error_policy      the options, and their bounds
//! idempotent_record   the handle that the body receives: steps, child keys, the attempt
//! child_key           the idempotency keys for the calls that the body makes
//! outcome, json, lossy_parts      what a call returns, and what it stores
//! begin               how a call starts, replays, waits, or is rejected
//! duplicates, waiting the calls of this process that wait for the same key, and how they wait
//! attempt             one attempt that runs: its lease and its steps
//! execution           runs a body, and stores its result
//! status              what operators and tests see of a record
//! operation           the operations on a record: a script for Redis, a pure rule for memory
//! ```
//!
//! The rules of a record are in `protocol::idempotency`, and the lease of an attempt is in
//! `engine::renewed_lease`.

mod attempt;
mod begin;
mod child_key;
pub(crate) mod duplicates;
mod error_policy;
mod execution;
mod fingerprint;
mod idempotent_record;
mod json;
mod lossy_parts;
mod operation;
mod options;
mod outcome;
mod status;
#[cfg(test)]
mod tests;
mod waiting;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::error::{Error, Result};
use crate::idempotent::begin::Begun;
use crate::idempotent::error_policy::to_store;
use crate::idempotent::execution::run_detached;
use crate::idempotent::fingerprint::Fingerprints;
use crate::key::{IntoLockKey, LockKey};
use crate::manager::LockManager;
pub use crate::protocol::idempotency::OnCrash;
use crate::telemetry;

#[cfg(feature = "testing")]
pub(crate) use begin::record_name;
pub(crate) use error_policy::completion;
pub use error_policy::{ErrorPolicy, ForgetErrors, RememberErrors};
pub use idempotent_record::{IdempotentRecord, StepValue};
pub(crate) use json::decoded;
pub(crate) use options::IdempotentOptions;
pub use options::OnUnavailable;
#[cfg(feature = "tower")]
pub(crate) use options::checked_ttl;
pub use outcome::{BytesOutcome, Completion, Outcome};
pub use status::{IdempotencyState, IdempotencyStatus};

/// A call that is safe to repeat. Returned by [`LockManager::idempotent`].
///
/// The first call with a key runs its body under a renewed lease, and its result is stored. Later
/// calls with the same key get the stored result, and their bodies do not run.
///
/// | case | what a call gets |
/// |---|---|
/// | first call | the value of its body |
/// | the first call is running | [`Error::InProgress`]; with [`wait`](Self::wait), its result; with [`run_or_skip`](Self::run_or_skip), `None` |
/// | the first call has completed | the stored result, [marked](Outcome::is_replayed) as replayed |
/// | its body returned an error | the body runs; with [`remember_errors_if`](Self::remember_errors_if), the stored error |
/// | its process crashed | until its lease ends, as while it runs; then what [`on_crash`](Self::on_crash) says |
/// | its body returned an error after its lease was over | with [`OnCrash::Rerun`] and [`OnCrash::Resume`], as after a crash; with [`OnCrash::Fail`], as after any other error |
/// | another fingerprint or function | [`Error::KeyReused`] |
///
/// The record of a key is independent of the lock of the same key.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use dlock_runtime::{Error, LockManager};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let manager = LockManager::connect("memory://").await?;
/// let charge = manager.idempotent("charge:7:a1b2").fingerprint(&(1_200, "EUR"));
///
/// let first = charge.run(async |_record| Ok::<_, Error>("receipt 1".to_owned())).await?;
/// let again = charge.run(async |_record| Ok::<_, Error>("receipt 2".to_owned())).await?;
///
/// assert!(!first.is_replayed() && again.is_replayed());
/// assert_eq!(again.into_value(), "receipt 1");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a call does nothing until `run` is called"]
pub struct Idempotent<P = ForgetErrors> {
    manager: LockManager,
    key: Result<LockKey>,
    options: IdempotentOptions,
    errors: P,
}

impl LockManager {
    /// Returns a call for `key` that is safe to repeat: after a success, later calls get its
    /// result.
    ///
    /// An invalid key is reported when the call runs. Over a quorum, every call gets
    /// [`Error::Config`].
    ///
    /// Put into the key who may see the result: if clients choose the whole key, one client can
    /// read the result of another.
    pub fn idempotent(&self, key: impl IntoLockKey) -> Idempotent {
        Idempotent {
            manager: self.clone(),
            key: key.into_lock_key(self.namespace()).map_err(Into::into),
            options: IdempotentOptions::default(),
            errors: ForgetErrors,
        }
    }

    /// Returns the number of idempotent calls that have ended, and whose end the server has not
    /// confirmed: results, errors, and errors that are forgotten.
    ///
    /// It is above 0 while the server is unavailable, and at most 1,024. Each of these calls counts
    /// as crashed if the process ends before its end is confirmed, so publish the number as a
    /// gauge, and call [`shutdown`](Self::shutdown) before the process ends. The event
    /// `dlock.result_pending` has the number in its field `lock.pending`.
    #[must_use]
    pub fn pending_results(&self) -> usize {
        Arc::strong_count(&self.idempotency().pending) - 1 // one is that of the manager
    }
}

impl<P> Idempotent<P> {
    /// Sets how long a result is stored, from the completion of the call. Default: 24 h. From 1 min
    /// to 365 days.
    ///
    /// While a call runs, its record lives for this time after the last renewal.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets the lease: how long after a crash the call counts as running. Default: the manager's
    /// lease, which is 30 s unless set. From 100 ms to 365 days, and at most the `ttl`.
    ///
    /// It is renewed while the body runs.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Sets how long a duplicate waits for the result of a running call. Default: it does not wait.
    ///
    /// Waiting calls of one process ask the server together, not one by one. If the wait of a call
    /// ends, it asks once by itself.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Sets what happens after a crash. Default: [`OnCrash::Fail`].
    ///
    /// An attempt also counts as crashed if its body returns an error after its lease was lost, or
    /// an error that would be [stored](Self::remember_errors_if) after a method of its
    /// [record](IdempotentRecord) has returned an error. With [`OnCrash::Fail`], a lease is not
    /// lost at its end: see [`OnCrash`].
    pub fn on_crash(mut self, on_crash: OnCrash) -> Self {
        self.options.on_crash = on_crash;
        self
    }

    /// Sets what happens if the server is unavailable at the start. Default:
    /// [`OnUnavailable::Error`].
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.options.on_unavailable = on_unavailable;
        self
    }

    /// Sets the payload of the call. Default: none.
    ///
    /// A call with the same key and another payload gets [`Error::KeyReused`]. The record contains
    /// only a hash of the payload: SHA-256 of its canonical JSON, cut to 128 bits, and keyed if the
    /// manager has a [secret](crate::Builder::fingerprint_secret).
    ///
    /// Do not change whether a crate of the program enables the feature `arbitrary_precision` of
    /// `serde_json`: it gives another fingerprint to an `f32`, to `-0`, and to an integer of more
    /// than 64 bits.
    pub fn fingerprint(mut self, payload: &(impl Serialize + ?Sized)) -> Self {
        self.options.fingerprints = Fingerprints::of_value(&self.manager.idempotency().secrets, payload);
        self
    }

    /// Sets the payload of the call as bytes, such as the body of a request. Default: none.
    ///
    /// See [`fingerprint`](Self::fingerprint). Bytes never have the fingerprint of a value.
    pub fn fingerprint_bytes(mut self, payload: &[u8]) -> Self {
        self.options.fingerprints = Ok(Fingerprints::of_bytes(&self.manager.idempotency().secrets, payload));
        self
    }

    /// Sets the name of the function that runs. Default: empty.
    ///
    /// The record stores it. A call of another function with the same key gets
    /// [`Error::KeyReused`].
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.options.name = name.into();
        self
    }

    /// Sets the version of the result's type. Default: 0.
    ///
    /// If the type changes in a way that stored results cannot be read, raise the version. A call
    /// that finds a result of another version gets [`Error::Undecodable`]; its body does not run.
    pub fn version(mut self, version: u32) -> Self {
        self.options.version = version;
        self
    }

    /// Sets the name of the result's type, which is compared as [`version`](Self::version) is.
    /// Default: empty.
    pub fn result_type(mut self, name: impl Into<String>) -> Self {
        self.options.result_type = name.into();
        self
    }

    /// Replaces all options.
    pub(crate) fn with_options(self, options: IdempotentOptions) -> Self {
        Self { options, ..self }
    }

    /// Stores errors for which `remember` returns `true`, and replays them to later calls. Default:
    /// no error is stored.
    ///
    /// Use it for errors that are final, such as a rejected payment. After another error, the next
    /// call runs its body. An error of an attempt that could not finish is not stored: it counts as
    /// a [crash](Self::on_crash).
    ///
    /// # Examples
    ///
    /// ```
    /// # use dlock_runtime::{Error, LockManager};
    /// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// enum ChargeError {
    ///     Declined,
    ///     Lock(String),
    /// }
    ///
    /// impl From<Error> for ChargeError {
    ///     fn from(error: Error) -> Self {
    ///         Self::Lock(error.to_string())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let manager = LockManager::connect("memory://").await?;
    /// let is_final = |error: &ChargeError| matches!(error, ChargeError::Declined);
    /// let charge = manager.idempotent("charge:7:a1b2").remember_errors_if(is_final);
    ///
    /// let first = charge.run(async |_| Err::<u64, _>(ChargeError::Declined)).await;
    /// let again = charge.run(async |_| Ok::<u64, ChargeError>(1_200)).await;
    ///
    /// assert_eq!(first.err(), Some(ChargeError::Declined));
    /// assert_eq!(again.err(), Some(ChargeError::Declined)); // the second body did not run
    /// # Ok(()) }
    /// ```
    pub fn remember_errors_if<E, F>(self, remember: F) -> Idempotent<RememberErrors<F>>
    where
        F: Fn(&E) -> bool,
    {
        let Self { manager, key, options, .. } = self;
        Idempotent { manager, key, options, errors: RememberErrors(remember) }
    }

    /// Runs `body` on a task of its own, or returns the stored result.
    ///
    /// Inside a lock, it runs the body within this future. The body gets a
    /// [record](IdempotentRecord) for its steps. Its value is stored as JSON. If the value is
    /// larger than 64 KiB, or cannot be read from its JSON, such as `NaN` or `Some(())`, this call
    /// still returns it, and later calls get [`Error::ResultNotStored`].
    ///
    /// The first call costs two round trips and one per renewal, a replay costs one.
    ///
    /// # Errors
    ///
    /// The error of the body. Converted to `E`:
    ///
    /// - [`Error::InProgress`], [`Error::KeyReused`], [`Error::OutcomeUnknown`],
    ///   [`Error::ResultNotStored`], and [`Error::Undecodable`], as their variants describe.
    /// - [`Error::Lost`] if the lease was lost while the body ran, unless `on_crash` is
    ///   [`OnCrash::Fail`]. The body was dropped.
    /// - [`Error::Unavailable`] if the server is unavailable at the start. The body did not run.
    /// - [`Error::InvalidKey`], [`Error::Shutdown`]; [`Error::Config`] if an option is out of
    ///   bounds, over a quorum, or outside a tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics if the body panics. For the record, that is a crash.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before the body starts, the body does not run and the call leaves
    /// no record. After that, the body runs to its end as long as its runtime runs, and its result
    /// is stored. Inside a lock of the call chain, the body is dropped with the future, as with
    /// [`run_attached`](Self::run_attached): it would continue without the lock.
    pub async fn run<T, E, F, Fut>(&self, body: F) -> Result<Outcome<T>, E>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: From<Error> + Send + 'static,
        P: ErrorPolicy<E> + Clone + Send + 'static,
        F: FnOnce(IdempotentRecord) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let errors = self.errors.clone();
        let body = |record| async move { to_store(body(record).await, &errors) };
        self.decode(self.run_bytes(body).await)
    }

    /// Like [`run`](Self::run), and returns `None` if a call with the same key is running.
    ///
    /// It ignores [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), without [`Error::InProgress`].
    ///
    /// # Panics
    ///
    /// Panics if the body panics. For the record, that is a crash.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_or_skip<T, E, F, Fut>(&self, body: F) -> Result<Option<Outcome<T>>, E>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: From<Error> + Send + 'static,
        P: ErrorPolicy<E> + Clone + Send + 'static,
        F: FnOnce(IdempotentRecord) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let errors = self.errors.clone();
        let body = |record| async move { to_store(body(record).await, &errors) };
        self.decode_unless_running(self.without_wait().run_bytes(body).await)
    }

    /// Like [`run`](Self::run), but runs `body` inside this future, so that it can borrow.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). It needs no tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics if the body panics. For the record, that is a crash.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body. If the body had not been polled, the call leaves no
    /// record. Otherwise its outcome is unknown: the record stays in progress until its lease ends,
    /// and then [`on_crash`](Self::on_crash) applies.
    pub async fn run_attached<T, E, F, Fut>(&self, body: F) -> Result<Outcome<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
        P: ErrorPolicy<E>,
        F: FnOnce(IdempotentRecord) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let body = async |record| to_store(body(record).await, &self.errors);
        self.decode(self.run_bytes_attached(body).await)
    }

    /// Like [`run_attached`](Self::run_attached), and returns `None` if a call with the same key is
    /// running.
    ///
    /// It ignores [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// As [`run_attached`](Self::run_attached), without [`Error::InProgress`].
    ///
    /// # Panics
    ///
    /// Panics if the body panics. For the record, that is a crash.
    ///
    /// # Cancel safety
    ///
    /// As [`run_attached`](Self::run_attached).
    pub async fn run_or_skip_attached<T, E, F, Fut>(&self, body: F) -> Result<Option<Outcome<T>>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<Error>,
        P: ErrorPolicy<E>,
        F: FnOnce(IdempotentRecord) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let body = async |record| to_store(body(record).await, &self.errors);
        self.decode_unless_running(self.without_wait().run_bytes_attached(body).await)
    }

    /// Runs `body` on a task of its own, or returns the stored bytes.
    ///
    /// Inside a lock, it runs the body within this future. It is the form of [`run`](Self::run) for
    /// results that are not JSON, such as HTTP responses. The body returns its value for this call,
    /// and what to store for later ones.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); the body has no error of its own.
    ///
    /// # Panics
    ///
    /// Panics if the body panics. For the record, that is a crash.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_bytes<V, F, Fut>(&self, body: F) -> Result<BytesOutcome<V>>
    where
        V: Send + 'static,
        F: FnOnce(IdempotentRecord) -> Fut + Send + 'static,
        Fut: Future<Output = (Completion, V)> + Send + 'static,
    {
        execution::check_runtime()?;
        let call = async {
            match begin::begin(&self.manager, self.key.clone()?, &self.options).await? {
                Begun::Replayed { bytes, is_error } => Ok(BytesOutcome::Replayed { bytes, is_error }),
                Begun::Started(execution) => run_detached(execution.run(body)).await.map(BytesOutcome::Ran),
            }
        };
        call.instrument(self.span()).await
    }

    /// Like [`run_bytes`](Self::run_bytes), but runs `body` inside this future.
    ///
    /// # Errors
    ///
    /// As [`run_bytes`](Self::run_bytes). It needs no tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics if the body panics. For the record, that is a crash.
    ///
    /// # Cancel safety
    ///
    /// As [`run_attached`](Self::run_attached).
    pub async fn run_bytes_attached<V, F, Fut>(&self, body: F) -> Result<BytesOutcome<V>>
    where
        F: FnOnce(IdempotentRecord) -> Fut,
        Fut: Future<Output = (Completion, V)>,
    {
        let call = async {
            match begin::begin(&self.manager, self.key.clone()?, &self.options).await? {
                Begun::Replayed { bytes, is_error } => Ok(BytesOutcome::Replayed { bytes, is_error }),
                Begun::Started(execution) => execution.run(body).await.map(BytesOutcome::Ran),
            }
        };
        call.instrument(self.span()).await
    }

    fn span(&self) -> tracing::Span {
        telemetry::idempotent_span(&self.options.name, self.key.as_ref().ok())
    }

    /// Decodes what [`run_bytes`](Self::run_bytes) returned.
    fn decode<T, E>(&self, ended: Result<BytesOutcome<Result<T, E>>>) -> Result<Outcome<T>, E>
    where
        T: DeserializeOwned,
        E: From<Error>,
        P: ErrorPolicy<E>,
    {
        let key = self.key.as_ref().map_err(Error::clone)?;
        match ended? {
            BytesOutcome::Ran(value) => value.map(Outcome::ran),
            BytesOutcome::Replayed { bytes, is_error: false } => {
                Ok(Outcome::replayed(json::decoded(&bytes, key)?))
            }
            BytesOutcome::Replayed { bytes, is_error: true } => {
                Err(self.errors.decode(&bytes, key).unwrap_or_else(E::from))
            }
        }
    }

    fn decode_unless_running<T, E>(
        &self,
        ended: Result<BytesOutcome<Result<T, E>>>,
    ) -> Result<Option<Outcome<T>>, E>
    where
        T: DeserializeOwned,
        E: From<Error>,
        P: ErrorPolicy<E>,
    {
        match ended {
            Err(Error::InProgress { .. }) => Ok(None),
            ended => self.decode(ended).map(Some),
        }
    }

    fn without_wait(&self) -> Idempotent {
        let options = IdempotentOptions { wait: None, ..self.options.clone() };
        Idempotent { manager: self.manager.clone(), key: self.key.clone(), options, errors: ForgetErrors }
    }
}

impl<P> fmt::Debug for Idempotent<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent")
            .field("key", &self.key)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
