//! One call of a function with `#[idempotent]`: its key, its record, and its body.
//!
//! See `idempotent` for the records.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::return_types::CarriesLockError;
use crate::config::is_namespace;
use crate::error::Error;
use crate::idempotent::{ErrorPolicy, ForgetErrors, Idempotent, OnUnavailable, Outcome, RememberErrors};
pub use crate::idempotent::{IdempotentRecord, OnCrash};
use crate::key::{IntoLockKey, KeyBuilder};
use crate::manager::LockManager;

/// The properties that all calls of an annotated function have in common.
#[derive(Debug)]
pub struct IdempotentSite {
    name: &'static str,
    result_type: &'static str,
    namespace: Option<&'static str>,
    ttl: Option<Duration>,
    lease: Option<Duration>,
    wait: Option<Duration>,
    on_crash: OnCrash,
    on_unavailable: OnUnavailable,
    runs_without_key: bool,
    version: u32,
}

impl IdempotentSite {
    /// Describes a function. `name` is its name in records, spans, and metrics; `result_type` is
    /// its return type as the source writes it.
    #[must_use]
    pub const fn new(name: &'static str, result_type: &'static str) -> Self {
        Self {
            name,
            result_type,
            namespace: None,
            ttl: None,
            lease: None,
            wait: None,
            on_crash: OnCrash::Fail,
            on_unavailable: OnUnavailable::Error,
            runs_without_key: false,
            version: 0,
        }
    }

    /// Sets the namespace of the function's keys, instead of the manager's.
    ///
    /// # Panics
    ///
    /// Panics at compile time if the namespace is invalid.
    #[must_use]
    #[track_caller]
    pub const fn namespace(self, namespace: &'static str) -> Self {
        assert!(
            is_namespace(namespace),
            "`namespace` cannot have white space, control characters, braces, or angle brackets"
        );
        Self { namespace: Some(namespace), ..self }
    }

    /// Sets how long a result is stored.
    #[must_use]
    pub const fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Sets the lease.
    #[must_use]
    pub const fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Sets how long a duplicate waits.
    #[must_use]
    pub const fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Sets what happens after a crash.
    #[must_use]
    pub const fn on_crash(self, on_crash: OnCrash) -> Self {
        Self { on_crash, ..self }
    }

    /// Makes the body run without a record if the server is unavailable.
    #[must_use]
    pub const fn runs_while_unavailable(self) -> Self {
        Self { on_unavailable: OnUnavailable::Run, ..self }
    }

    /// Makes the body run without a record if a value of the key is missing.
    #[must_use]
    pub const fn runs_without_key(self) -> Self {
        Self { runs_without_key: true, ..self }
    }

    /// Sets the version of the result's type.
    #[must_use]
    pub const fn version(self, version: u32) -> Self {
        Self { version, ..self }
    }

    /// Sets the options of a call.
    fn configure(&self, call: Idempotent) -> Idempotent {
        let call = call
            .name(self.name)
            .version(self.version)
            .result_type(self.result_type)
            .on_crash(self.on_crash)
            .on_unavailable(self.on_unavailable);
        let call = match self.ttl {
            Some(ttl) => call.ttl(ttl),
            None => call,
        };
        let call = match self.lease {
            Some(lease) => call.lease(lease),
            None => call,
        };
        match self.wait {
            Some(wait) => call.wait(wait),
            None => call,
        }
    }
}

/// One call of an annotated function.
#[derive(Debug)]
pub struct IdempotentCall<P = ForgetErrors> {
    site: &'static IdempotentSite,
    manager: Option<LockManager>,
    call: Result<Idempotent<P>, Error>,
}

impl IdempotentCall {
    /// Begins a call that uses the installed manager.
    #[must_use]
    pub fn new(site: &'static IdempotentSite) -> Self {
        Self { site, manager: crate::global::current().ok(), call: Err(Error::NotInstalled {}) }
    }

    /// Begins a call that uses `manager`.
    #[must_use]
    pub fn under(manager: &LockManager, site: &'static IdempotentSite) -> Self {
        Self { site, manager: Some(manager.clone()), call: Err(Error::NotInstalled {}) }
    }

    /// Starts the key of this call.
    pub fn template(&self) -> KeyBuilder {
        KeyBuilder::new(self.namespace())
    }

    /// Sets the key of this call. The call reports an invalid one when it runs.
    #[must_use]
    pub fn key(self, key: impl IntoLockKey) -> Self {
        let Some(manager) = &self.manager else { return self };
        let site = self.site;
        let call = match key.into_lock_key(self.namespace()) {
            Ok(key) => Ok(site.configure(manager.idempotent(key))),
            // Its child keys must differ from those of every other call.
            Err(missing) if missing.is_missing_value() && site.runs_without_key => {
                let key = format!("without-key:{}", uuid::Uuid::new_v4());
                Ok(site.configure(manager.idempotent(key).without_record()))
            }
            Err(invalid) => Err(invalid.into()),
        };
        Self { call, ..self }
    }

    /// Sets the payload of the call.
    #[must_use]
    pub fn fingerprint(self, payload: &(impl Serialize + ?Sized)) -> Self {
        Self { call: self.call.map(|call| call.fingerprint(payload)), ..self }
    }

    /// Stores errors for which `is_final` returns `true`.
    #[must_use]
    pub fn remember_errors_if<F>(self, is_final: F) -> IdempotentCall<RememberErrors<F>> {
        let call = self.call.map(|call| call.remember_errors_if(is_final));
        IdempotentCall { site: self.site, manager: self.manager, call }
    }

    /// Returns the function's own namespace, or the manager's.
    fn namespace(&self) -> &str {
        let of_manager = || self.manager.as_ref().map_or("", LockManager::namespace);
        self.site.namespace.unwrap_or_else(of_manager)
    }
}

/// Returns `true`: every error is stored.
#[must_use]
pub fn any<E>(_error: &E) -> bool {
    true
}

/// A return type that can be stored and replayed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored and replayed",
    label = "an idempotent call returns a `Result`",
    note = "return `Result<T, E>` where `T` implements `Serialize` and `DeserializeOwned`, and `E` implements `From<dlock_runtime::Error>`"
)]
pub trait ReplayableResult: Sized {
    /// The value that is stored.
    type Value: ReplayableValue;
    /// The error type, which carries the errors of idempotent calls as well.
    type Failure: CarriesLockError;

    /// Converts into a plain `Result`.
    ///
    /// # Errors
    ///
    /// The error that it is.
    fn into_result(self) -> Result<Self::Value, Self::Failure>;

    /// Converts from a plain `Result`.
    fn from_result(result: Result<Self::Value, Self::Failure>) -> Self;
}

impl<T: ReplayableValue, E: CarriesLockError> ReplayableResult for Result<T, E> {
    type Value = T;
    type Failure = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// A value that can be stored as JSON and read again.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored and replayed",
    label = "later calls get this value from its stored JSON",
    note = "write `#[derive(serde::Serialize, serde::Deserialize)]` above the type; it must own its parts"
)]
pub trait ReplayableValue: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> ReplayableValue for T {}

/// A value that says that the body did not run.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no value that says that the body did not run, which `on_duplicate = skip` needs",
    label = "`skip` has nothing to return here",
    note = "return `Result<(), E>` or `Result<Option<T>, E>`, or write `on_duplicate = wait(\"10s\")`"
)]
pub trait SkippedValue: Sized {
    /// Returns that value.
    fn skipped() -> Self;
}

impl SkippedValue for () {
    fn skipped() -> Self {}
}

impl<T> SkippedValue for Option<T> {
    fn skipped() -> Self {
        None
    }
}

/// Runs the body on a task of its own.
pub async fn run_detached<R, P, F, Fut>(call: IdempotentCall<P>, body: F) -> R
where
    R: ReplayableResult<Value: Send + 'static, Failure: Send + 'static>,
    P: ErrorPolicy<R::Failure> + Clone + Send + Sync + 'static,
    F: FnOnce(IdempotentRecord) -> Fut + Send + 'static,
    Fut: Future<Output = R> + Send + 'static,
{
    let body = |record| async move { body(record).await.into_result() };
    R::from_result(match call.call {
        Ok(call) => call.run(body).await.map(Outcome::into_value),
        Err(error) => Err(error.into()),
    })
}

/// Runs the body on a task of its own. If a call with the same key is running, returns the value
/// for "did not run".
pub async fn run_detached_or_skip<R, P, F, Fut>(call: IdempotentCall<P>, body: F) -> R
where
    R: ReplayableResult<Value: SkippedValue + Send + 'static, Failure: Send + 'static>,
    P: ErrorPolicy<R::Failure> + Clone + Send + Sync + 'static,
    F: FnOnce(IdempotentRecord) -> Fut + Send + 'static,
    Fut: Future<Output = R> + Send + 'static,
{
    let body = |record| async move { body(record).await.into_result() };
    R::from_result(match call.call {
        Ok(call) => call.try_run(body).await.map(value_or_skip),
        Err(error) => Err(error.into()),
    })
}

/// Runs the body inside this future.
pub async fn run_attached<R, P, F, Fut>(call: IdempotentCall<P>, body: F) -> R
where
    R: ReplayableResult,
    P: ErrorPolicy<R::Failure>,
    F: FnOnce(IdempotentRecord) -> Fut,
    Fut: Future<Output = R>,
{
    let body = |record| async move { body(record).await.into_result() };
    R::from_result(match call.call {
        Ok(call) => call.run_attached(body).await.map(Outcome::into_value),
        Err(error) => Err(error.into()),
    })
}

/// Runs the body inside this future. If a call with the same key is running, returns the value for
/// "did not run".
pub async fn run_attached_or_skip<R, P, F, Fut>(call: IdempotentCall<P>, body: F) -> R
where
    R: ReplayableResult<Value: SkippedValue>,
    P: ErrorPolicy<R::Failure>,
    F: FnOnce(IdempotentRecord) -> Fut,
    Fut: Future<Output = R>,
{
    let body = |record| async move { body(record).await.into_result() };
    R::from_result(match call.call {
        Ok(call) => call.try_run_attached(body).await.map(value_or_skip),
        Err(error) => Err(error.into()),
    })
}

fn value_or_skip<T: SkippedValue>(outcome: Option<Outcome<T>>) -> T {
    outcome.map_or_else(T::skipped, Outcome::into_value)
}
