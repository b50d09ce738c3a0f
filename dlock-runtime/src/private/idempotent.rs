//! One call of a function with `#[idempotent]`: its key, its record, and its body.
//!
//! See `idempotent` for the records.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::return_types::CarriesLockError;
use crate::config::namespace_problem;
use crate::error::Error;
use crate::idempotent::{
    BytesOutcome, Completion, ErrorPolicy, ForgetErrors, Idempotent, IdempotentOptions, OnUnavailable,
    RememberErrors, completion, decoded,
};
pub use crate::idempotent::{IdempotentRecord, OnCrash};
use crate::key::{IntoLockKey, KeyBuilder, LockKey};
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
    /// Describes a function. `name` is its name in records and spans; `result_type` names the type
    /// of its results in records.
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
        if let Some(problem) = namespace_problem(namespace) {
            panic!("{}", problem);
        }
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

    /// Returns the options of a call.
    fn options(&self) -> IdempotentOptions {
        let default = IdempotentOptions::default();
        IdempotentOptions {
            ttl: self.ttl.unwrap_or(default.ttl),
            lease: self.lease,
            wait: self.wait,
            on_crash: self.on_crash,
            on_unavailable: self.on_unavailable,
            version: self.version,
            result_type: self.result_type.to_owned(),
            name: self.name.to_owned(),
            ..default
        }
    }
}

/// One call of an annotated function.
#[derive(Debug)]
pub struct IdempotentCall {
    site: &'static IdempotentSite,
    manager: Option<LockManager>,
    call: Result<(Idempotent, LockKey), Error>,
}

impl IdempotentCall {
    /// Begins a call that uses the installed manager.
    #[must_use]
    pub fn new(site: &'static IdempotentSite) -> Self {
        Self { site, manager: crate::global::manager().ok(), call: Err(Error::NotInstalled {}) }
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
            Ok(key) => Ok((manager.idempotent(&key).with_options(site.options()), key)),
            // Its child keys must differ from those of every other call.
            Err(missing) if missing.is_missing_value() && site.runs_without_key => {
                let key = format!("without-key:{}", uuid::Uuid::new_v4());
                let key = key.into_lock_key(self.namespace());
                let options = IdempotentOptions { is_recorded: false, ..site.options() };
                key.map(|key| (manager.idempotent(&key).with_options(options), key)).map_err(Into::into)
            }
            Err(invalid) => Err(invalid.into()),
        };
        Self { call, ..self }
    }

    /// Sets the payload of the call.
    #[must_use]
    pub fn fingerprint(self, payload: &(impl FingerprintValue + ?Sized)) -> Self {
        Self { call: self.call.map(|(call, key)| (call.fingerprint(payload), key)), ..self }
    }

    /// Returns the function's own namespace, or the manager's.
    fn namespace(&self) -> &str {
        let of_manager = || self.manager.as_ref().map_or("", LockManager::namespace);
        self.site.namespace.unwrap_or_else(of_manager)
    }
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

    /// Borrows the value or the error.
    ///
    /// # Errors
    ///
    /// The error that it is.
    fn as_result(&self) -> Result<&Self::Value, &Self::Failure>;

    /// Converts from a plain `Result`.
    fn from_result(result: Result<Self::Value, Self::Failure>) -> Self;
}

impl<T: ReplayableValue, E: CarriesLockError> ReplayableResult for Result<T, E> {
    type Value = T;
    type Failure = E;

    fn as_result(&self) -> Result<&T, &E> {
        self.as_ref()
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// A value that can be stored as JSON and read again.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored and replayed",
    label = "later calls get this value from its stored JSON",
    note = "write `#[derive(serde::Serialize, serde::Deserialize)]` above the type; it must own its parts",
    note = "a response of a web framework, such as `Json<T>`, cannot be stored: return `Result<T, E>`, and convert it in the handler that calls this function"
)]
pub trait ReplayableValue: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> ReplayableValue for T {}

/// A payload whose JSON is compared with that of earlier calls.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be compared with the payload of earlier calls",
    label = "the fingerprint is a hash of the JSON of this value",
    note = "write `#[derive(serde::Serialize)]` above the type, or name the parts that count: `fingerprint = (request.amount, &request.currency)`",
    note = "an extractor of a web framework, such as `Json<T>`, has no JSON of its own: write `fingerprint = json.0`"
)]
pub trait FingerprintValue: Serialize {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + ?Sized> FingerprintValue for T {}

/// An error that can be stored as JSON and read again.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot be stored and replayed, which `on_error` needs",
    label = "later calls get this error from its stored JSON",
    note = "write `#[derive(serde::Serialize, serde::Deserialize)]` above the type, or `on_error = forget`"
)]
pub trait ReplayableError: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<E: Serialize + DeserializeOwned> ReplayableError for E {}

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

/// How the results of a function are stored, replayed, and reported.
///
/// The functions that return it have the bounds on the return type, and nothing else has: so a type
/// that does not fit is one error of the compiler.
pub struct ResultCodec<R> {
    encode: Box<dyn Fn(&R) -> Completion + Send>,
    replies: Replies<R>,
}

/// Reads stored bytes, which are an error if the flag is set.
type Decode<R> = dyn Fn(&[u8], bool, &LockKey) -> R + Send + Sync;

/// The results of calls whose body did not run.
struct Replies<R> {
    decode: Box<Decode<R>>,
    report: fn(Error) -> R,
    skipped: Option<fn() -> R>,
}

impl<R> fmt::Debug for ResultCodec<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultCodec").finish_non_exhaustive()
    }
}

/// Stores values, and no errors.
#[must_use]
pub fn forgetting<R: ReplayableResult>() -> ResultCodec<R> {
    codec(ForgetErrors)
}

/// Stores values, and errors for which `is_final` returns `true`.
#[must_use]
pub fn remembering<R>(is_final: fn(&R::Failure) -> bool) -> ResultCodec<R>
where
    R: ReplayableResult<Failure: ReplayableError + 'static>,
{
    codec(RememberErrors::new(is_final))
}

/// Returns the value for "did not run" while another call runs.
#[must_use]
pub fn skipping<R>(codec: ResultCodec<R>) -> ResultCodec<R>
where
    R: ReplayableResult<Value: SkippedValue>,
{
    let skipped: fn() -> R = || R::from_result(Ok(R::Value::skipped()));
    ResultCodec { replies: Replies { skipped: Some(skipped), ..codec.replies }, ..codec }
}

fn codec<R: ReplayableResult>(
    errors: impl ErrorPolicy<R::Failure> + Clone + Send + Sync + 'static,
) -> ResultCodec<R> {
    let stored = errors.clone();
    ResultCodec {
        encode: Box::new(move |result: &R| completion(result.as_result(), &stored)),
        replies: Replies {
            decode: Box::new(move |bytes, is_error, key| {
                R::from_result(if is_error {
                    Err(errors.decode(bytes, key).unwrap_or_else(R::Failure::carry))
                } else {
                    decoded(bytes, key).map_err(R::Failure::carry)
                })
            }),
            report: |error| R::from_result(Err(R::Failure::carry(error))),
            skipped: None,
        },
    }
}

/// Returns the result of a call that has ended.
fn ended<R>(outcome: Result<BytesOutcome<R>, Error>, key: &LockKey, replies: &Replies<R>) -> R {
    match (outcome, replies.skipped) {
        (Ok(BytesOutcome::Ran(result)), _) => result,
        (Ok(BytesOutcome::Replayed { bytes, is_error }), _) => (replies.decode)(&bytes, is_error, key),
        (Err(Error::InProgress { .. }), Some(skipped)) => skipped(),
        (Err(error), _) => (replies.report)(error),
    }
}

/// Runs the body on a task of its own, or returns the stored result.
pub async fn run_detached<R, F, Fut>(call: IdempotentCall, codec: ResultCodec<R>, body: F) -> R
where
    R: Send + 'static,
    F: FnOnce(IdempotentRecord) -> Fut + Send + 'static,
    Fut: Future<Output = R> + Send + 'static,
{
    let ResultCodec { encode, replies } = codec;
    let (call, key) = match call.call {
        Ok(call) => call,
        Err(error) => return (replies.report)(error),
    };
    let body = move |record| async move {
        let result = body(record).await;
        (encode(&result), result)
    };
    ended(call.run_bytes(body).await, &key, &replies)
}

/// Runs the body inside this future, or returns the stored result.
pub async fn run_attached<R, F, Fut>(call: IdempotentCall, codec: ResultCodec<R>, body: F) -> R
where
    F: FnOnce(IdempotentRecord) -> Fut,
    Fut: Future<Output = R>,
{
    let ResultCodec { encode, replies } = codec;
    let (call, key) = match call.call {
        Ok(call) => call,
        Err(error) => return (replies.report)(error),
    };
    let body = move |record| async move {
        let result = body(record).await;
        (encode(&result), result)
    };
    ended(call.run_bytes_attached(body).await, &key, &replies)
}

#[cfg(test)]
mod tests {
    use super::super::ConstantKey;
    use super::*;

    type Output = Result<Option<u8>, Error>;

    const SECOND: Duration = Duration::from_secs(1);

    static SITE: IdempotentSite = IdempotentSite::new("charge", "Option<u8>")
        .namespace("billing")
        .ttl(SECOND.saturating_mul(90))
        .lease(SECOND.saturating_mul(20))
        .wait(SECOND.saturating_mul(3))
        .on_crash(OnCrash::Resume)
        .runs_while_unavailable()
        .version(4);

    static PLAIN: IdempotentSite = IdempotentSite::new("pay", "u8").runs_without_key();

    async fn in_memory() -> LockManager {
        let builder = LockManager::builder("memory://").namespace("shop");
        builder.connect().await.expect("no server is needed")
    }

    #[tokio::test]
    async fn a_site_passes_its_options_to_each_call() {
        let locks = in_memory().await;

        let (call, key) = IdempotentCall::under(&locks, &SITE).key("order:7").call.expect("a key");

        let shown = format!("{call:?}");
        for option in [
            "ttl: 90s",
            "lease: Some(20s)",
            "wait: Some(3s)",
            "on_crash: Resume",
            "on_unavailable: Run",
            "version: 4",
            r#"result_type: "Option<u8>""#,
            r#"name: "charge""#,
            "is_recorded: true",
        ] {
            assert!(shown.contains(option), "{option}: {shown}");
        }
        assert_eq!(key.full_name(), "billing:order:7");
        let built = IdempotentCall::under(&locks, &SITE).template().text("order:7").build().expect("a key");
        assert_eq!(built.full_name(), "billing:order:7");
    }

    #[tokio::test]
    async fn a_call_without_a_key_runs_only_if_its_site_allows_it() {
        let locks = in_memory().await;
        let without_key = |site| {
            let call = IdempotentCall::under(&locks, site);
            let key = call.template().text("order:").part("id", &None::<u8>);
            call.key(key).call
        };
        let invalid = IdempotentCall::under(&locks, &PLAIN).key(ConstantKey("order:<id>")).call;

        let (call, key) = without_key(&PLAIN).expect("it is allowed");
        let (_, other) = without_key(&PLAIN).expect("it is allowed");

        assert!(format!("{call:?}").contains("is_recorded: false"), "{call:?}");
        assert!(key.full_name().starts_with("shop:without-key:") && key != other, "{key}");
        assert!(matches!(without_key(&SITE), Err(Error::InvalidKey { .. })));
        assert!(matches!(invalid, Err(Error::InvalidKey { .. })), "{invalid:?}");
    }

    #[tokio::test]
    async fn a_fingerprint_tells_payloads_apart() {
        let locks = in_memory().await;
        let pay = |payload: u8, result: u8| {
            let call = IdempotentCall::under(&locks, &PLAIN).key("order:7").fingerprint(&payload);
            run_attached(call, forgetting::<Output>(), async move |_| Ok(Some(result)))
        };

        assert!(matches!(pay(1, 7).await, Ok(Some(7))));
        assert!(matches!(pay(1, 8).await, Ok(Some(7))), "it is replayed");
        assert!(matches!(pay(2, 9).await, Err(Error::KeyReused { .. })));
    }

    #[tokio::test]
    async fn a_duplicate_of_a_running_call_is_skipped_or_reported() {
        let locks = in_memory().await;
        let call = || IdempotentCall::under(&locks, &PLAIN).key("order:7");
        let (entered, has_entered) = tokio::sync::oneshot::channel();
        let running = async move |_| {
            let _ = entered.send(());
            std::future::pending::<Output>().await
        };
        let running = tokio::spawn(run_attached(call(), forgetting::<Output>(), running));
        has_entered.await.expect("it runs");

        let skipped = run_detached(call(), skipping(forgetting::<Output>()), async |_| Ok(Some(1))).await;
        let refused = run_attached(call(), forgetting::<Output>(), async |_| Ok(Some(1))).await;

        assert!(matches!(skipped, Ok(None)), "{skipped:?}");
        assert!(matches!(refused, Err(Error::InProgress { .. })), "{refused:?}");
        running.abort();
    }

    #[tokio::test]
    async fn without_a_manager_no_body_runs() {
        let call = || IdempotentCall::new(&PLAIN).key("order:7").fingerprint(&1);
        let body = async |_| panic!("it does not run");

        let attached = run_attached(call(), forgetting::<Output>(), body).await;
        let detached = run_detached(call(), skipping(forgetting::<Output>()), body).await;

        assert!(matches!(attached, Err(Error::NotInstalled {})), "{attached:?}");
        assert!(matches!(detached, Err(Error::NotInstalled {})), "{detached:?}");
    }
}
