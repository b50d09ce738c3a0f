//! The errors of lock operations: one variant per cause that a caller can act on.

use std::sync::Arc;
use std::time::Duration;

use crate::key::{InvalidKey, LockKey};
use crate::printable::Escaped;
use crate::protocol::failure::{Failure, FailureKind};

/// The result of a lock operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a lock operation.
///
/// Each variant is one cause that a caller can act on. [`http_status`](Self::http_status),
/// [`grpc_code`](Self::grpc_code), and [`retry_after`](Self::retry_after) return what a service
/// replies to its client. The features `axum`, `actix`, and `tonic` convert an error to such a
/// reply; see [`docs::services`](crate::docs::services). The text of an error contains no password
/// and no token, and each character that a terminal could act on is escaped.
///
/// The `Debug` text is the variant and the text of the error, since a `main` that returns an error
/// prints its `Debug` text: ``Error: Shutdown: the lock manager has been shut down``.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No lock manager is installed, so an annotated function has no server to use.
    #[error(
        "no lock manager is installed: call `dlock_runtime::init(url).await` once at start, or run the call inside `with_manager`"
    )]
    #[non_exhaustive]
    NotInstalled {},

    /// Another call holds the lock, and the call's `retry` and `wait` are used up.
    ///
    /// The body of that call may have ended: `min_hold` keeps the lock from other callers until it
    /// has passed. [`LockInfo::is_kept_here`](crate::LockInfo::is_kept_here) shows it for this
    /// manager.
    #[error("lock `{key}` is held by another call ({attempts} attempt{} in {} ms)", if *attempts == 1 { "" } else { "s" }, waited.as_millis())]
    #[non_exhaustive]
    Contended {
        /// The requested lock.
        key: LockKey,
        /// The number of attempts: one, plus one for each retry that was due.
        attempts: u32,
        /// How long the call waited, by this process's clock.
        waited: Duration,
        /// The time to live that the server reported for the current hold. The holder may renew it,
        /// or release it early: [`retry_after`](Self::retry_after) is when to try again.
        remaining: Option<Duration>,
    },

    /// The lock was lost while it was held.
    ///
    /// With `on_lost = abort`, the body was dropped, or it had completed.
    #[error(
        "lock `{key}` was lost after {} ms: {}{}",
        held.as_millis(),
        loss_text(*cause, reason.as_deref()),
        if *completed { "; the body had completed by then and may have overlapped with another holder's" } else { "" }
    )]
    #[non_exhaustive]
    Lost {
        /// The lost lock.
        key: LockKey,
        /// How long the lock was held before the loss was detected, by this process's clock.
        held: Duration,
        /// The cause of the loss.
        cause: LossCause,
        /// Whether the body had completed when the loss was detected.
        ///
        /// If `true`, all its work is done, and another holder may have worked at the same time:
        /// check what was written before you repeat the work. If `false`, the body was dropped
        /// before its end, was never started, or there was none.
        completed: bool,
        /// Why the last renewal before the loss failed, in the words of the server or of this
        /// library.
        ///
        /// Set if that failure has led to the loss: the cause is [`Expired`](LossCause::Expired),
        /// the server has refused to confirm a grant
        /// ([`GrantUnconfirmed`](LossCause::GrantUnconfirmed)), or another client has replaced the
        /// lock by a value that is none ([`NotOwner`](LossCause::NotOwner)).
        reason: Option<Arc<str>>,
    },

    /// The server is unreachable or gave no usable reply in time.
    ///
    /// It is also the error of a manager that another process connected before it forked this one.
    #[error("{} is unavailable: {}", subject(key.as_ref()), Escaped(reason))]
    #[non_exhaustive]
    Unavailable {
        /// The requested lock; `None` while connecting, and for requests that name no lock.
        key: Option<LockKey>,
        /// The failure and its cause, as text. The error has no
        /// [`source`](std::error::Error::source).
        reason: Arc<str>,
    },

    /// The key cannot be built from these arguments, or is not a valid key.
    #[error("invalid lock key `{}`: {}", Escaped(template), Escaped(problem))]
    #[non_exhaustive]
    InvalidKey {
        /// The key, or the template from which it is built.
        template: Arc<str>,
        /// The problem, and what to write instead.
        problem: Arc<str>,
    },

    /// The lock's key in Redis holds a value that is not a lock, or a lock of another layout.
    ///
    /// A string that another program wrote counts as a lock of that program: calls get
    /// [`Contended`](Self::Contended) until it is gone, and `dlock inspect` shows it.
    #[error("key `{}` holds data of another kind: {}; use the same `layout` in all clients, and keys that no other program writes", Escaped(key.full_name()), Escaped(found))]
    #[non_exhaustive]
    WrongKind {
        /// The requested lock.
        key: LockKey,
        /// The server's description of the value.
        found: Arc<str>,
    },

    /// No higher fencing token can be issued: the lock's counter is exhausted or is not a number.
    ///
    /// A lock is still held. The body of a job, whose counter is a part of its record, does not
    /// run. An operator must repair the counter; see
    /// [`docs::safety`](crate::docs::safety#fencing-tokens).
    #[error("no further fencing token for `{key}`: {}", Escaped(problem))]
    #[non_exhaustive]
    FencingCounter {
        /// The lock or the job whose fencing token was requested.
        key: LockKey,
        /// The name of the counter, the largest number, and what to do.
        problem: Arc<str>,
    },

    /// The current call chain already holds this key, and this kind of call does not join the hold.
    #[error(
        "lock `{key}` is already held by the current call chain: `acquire` and `reentrant = false` do not join a hold; use `run` or the attribute"
    )]
    #[non_exhaustive]
    Reentrant {
        /// The requested lock.
        key: LockKey,
    },

    /// Call chains of this process wait for each other's locks in a cycle.
    ///
    /// The call whose wait would close the cycle gets this error.
    #[error(
        "deadlock: this call holds `{held}` and waits for `{key}`, whose holder waits, directly or through others, for `{held}`; acquire both locks in the same order everywhere"
    )]
    #[non_exhaustive]
    Deadlock {
        /// The requested lock.
        key: LockKey,
        /// The lock that this call chain holds and that another call of the cycle waits for.
        held: LockKey,
    },

    /// The manager has been shut down and accepts no requests.
    #[error("{}the lock manager has been shut down", key.as_ref().map_or_else(String::new, |key| format!("lock `{key}` was not acquired: ")))]
    #[non_exhaustive]
    Shutdown {
        /// The requested lock; `None` for requests that name none, such as
        /// [`LockManager::ready`](crate::LockManager::ready).
        key: Option<LockKey>,
    },

    /// Another call with the same idempotency key is running.
    ///
    /// With a `wait`, the call waited that long.
    #[error("a call with idempotency key `{key}` is in progress: try again later, or wait for its result")]
    #[non_exhaustive]
    InProgress {
        /// The idempotency key.
        key: LockKey,
        /// The rest of the lease of the running call, which is renewed while it runs.
        remaining: Option<Duration>,
    },

    /// The idempotency key belongs to a call with another payload or to another function.
    ///
    /// The record of the other call is unchanged.
    #[error("idempotency key `{key}` was used for {}", other_call(.function.as_deref()))]
    #[non_exhaustive]
    KeyReused {
        /// The idempotency key.
        key: LockKey,
        /// The function of the other call, which may be empty; `None` if it is the same, and the
        /// fingerprint differs.
        function: Option<Arc<str>>,
    },

    /// An earlier call crashed, and its effects are unknown. The body did not run again.
    ///
    /// It is the result of `on_crash = fail` until an operator finds out what happened.
    #[error(
        "attempt {attempt} of the call with idempotency key `{key}` crashed, and its outcome is unknown: find out what it did, then run `dlock idem resolve`"
    )]
    #[non_exhaustive]
    OutcomeUnknown {
        /// The idempotency key.
        key: LockKey,
        /// The number of the attempt that crashed, from 1.
        attempt: u32,
    },

    /// An earlier call completed, but its result is not stored. The body did not run again.
    ///
    /// The result was larger than 64 KiB, or cannot be read from its JSON, such as `NaN` or
    /// `Some(())`. With `step`, the body ran up to that step, which did not run again.
    #[error(
        "{} is not stored: it is too large, or cannot be read from its JSON; look up what the call did, then run `dlock idem resolve`",
        missing_result(key, step.as_deref())
    )]
    #[non_exhaustive]
    ResultNotStored {
        /// The idempotency key.
        key: LockKey,
        /// The step whose result is missing; `None` if it is the result of the call.
        step: Option<Arc<str>>,
    },

    /// The stored result cannot be read as the type that this call returns. The body did not run
    /// again. For the result of a step, the body ran up to that step.
    #[error("the stored result for idempotency key `{key}` cannot be used: {}", Escaped(problem))]
    #[non_exhaustive]
    Undecodable {
        /// The idempotency key.
        key: LockKey,
        /// The problem, and what to do.
        problem: Arc<str>,
    },

    /// An operator names a job that has no record: no runner and no call has used that name.
    #[error(
        "job `{key}` is unknown: no runner has started with it, and no call has asked for its tick; check the name and the namespace"
    )]
    #[non_exhaustive]
    UnknownJob {
        /// The key of the job, which is `job:` and its name.
        key: LockKey,
    },

    /// A URL or an option is invalid, or the server has refused this client for a reason that
    /// another attempt would not change: its user, a missing permission, or a certificate.
    #[error("invalid lock configuration: {}: {}", Escaped(part), Escaped(problem))]
    #[non_exhaustive]
    Config {
        /// The part of the URL, or the option, that is wrong; `server` if the server has refused
        /// this client, and `tls` if one side has refused the other's certificate. Never a
        /// password.
        part: Arc<str>,
        /// The problem, and what is allowed.
        problem: Arc<str>,
    },
}

impl Failure {
    /// Returns the error for a call on `key`: each kind of failure has its own remedy.
    pub(crate) fn into_error(self, key: LockKey) -> Error {
        match self.kind {
            FailureKind::WrongKind => Error::WrongKind { key, found: self.reason },
            FailureKind::InvalidKey => {
                Error::InvalidKey { template: key.as_str().into(), problem: self.reason }
            }
            FailureKind::FencingCounter => Error::FencingCounter { key, problem: self.reason },
            _ => self.error(Some(key)),
        }
    }

    /// Returns the error for a request without a key.
    pub(crate) fn of_the_server(self) -> Error {
        self.error(None)
    }

    fn error(self, key: Option<LockKey>) -> Error {
        let Self { kind, reason, connection_lost: _ } = self;
        match kind {
            FailureKind::Passing
            | FailureKind::WrongKind
            | FailureKind::InvalidKey
            | FailureKind::FencingCounter => Error::Unavailable { key, reason },
            FailureKind::Lasting => Error::Config { part: "server".into(), problem: reason },
            FailureKind::Untrusted => Error::Config { part: "tls".into(), problem: reason },
        }
    }
}

/// Returns the error of a part of the configuration.
pub(crate) fn config(part: &str, problem: impl Into<String>) -> Error {
    Error::Config { part: part.into(), problem: problem.into().into() }
}

impl From<InvalidKey> for Error {
    fn from(error: InvalidKey) -> Self {
        let (template, problem) = error.into_parts();
        Self::InvalidKey { template, problem }
    }
}

impl Error {
    /// Returns `true` if another call held the lock.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. })
    }

    /// Returns `true` if the lock was held and was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Returns `true` if the server was unavailable.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Returns the lock that the error is about, or `None` if it is about none.
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Contended { key, .. }
            | Self::Lost { key, .. }
            | Self::WrongKind { key, .. }
            | Self::FencingCounter { key, .. }
            | Self::Reentrant { key }
            | Self::Deadlock { key, .. }
            | Self::InProgress { key, .. }
            | Self::KeyReused { key, .. }
            | Self::OutcomeUnknown { key, .. }
            | Self::ResultNotStored { key, .. }
            | Self::UnknownJob { key }
            | Self::Undecodable { key, .. } => Some(key),
            Self::Unavailable { key, .. } | Self::Shutdown { key } => key.as_ref(),
            Self::NotInstalled {} | Self::InvalidKey { .. } | Self::Config { .. } => None,
        }
    }

    /// Returns the name of the variant, its outcome in events, its HTTP status, and its gRPC code.
    pub(crate) fn codes(&self) -> (&'static str, &'static str, u16, i32) {
        match self {
            Self::NotInstalled {} => ("NotInstalled", "error", 500, 13),
            Self::Contended { .. } => ("Contended", "contended", 409, 10),
            Self::Lost { .. } => ("Lost", "lost", 500, 13),
            Self::Unavailable { .. } => ("Unavailable", "unavailable", 503, 14),
            Self::InvalidKey { .. } => ("InvalidKey", "error", 400, 3),
            Self::WrongKind { .. } => ("WrongKind", "error", 500, 13),
            Self::FencingCounter { .. } => ("FencingCounter", "error", 500, 13),
            Self::Reentrant { .. } => ("Reentrant", "error", 500, 13),
            Self::Deadlock { .. } => ("Deadlock", "deadlock", 500, 13),
            Self::Shutdown { .. } => ("Shutdown", "shutdown", 503, 14),
            Self::Config { .. } => ("Config", "error", 500, 13),
            Self::InProgress { .. } => ("InProgress", "in_progress", 409, 10),
            Self::KeyReused { .. } => ("KeyReused", "key_reused", 422, 3),
            Self::OutcomeUnknown { .. } => ("OutcomeUnknown", "outcome_unknown", 500, 2),
            Self::ResultNotStored { .. } => ("ResultNotStored", "result_not_stored", 500, 15),
            Self::UnknownJob { .. } => ("UnknownJob", "error", 404, 5),
            Self::Undecodable { .. } => ("Undecodable", "undecodable", 500, 13),
        }
    }

    /// Returns the HTTP status for the reply of a service.
    ///
    /// It is 409 for contention and for a call in progress, 422 for an idempotency key that was
    /// used for another call, 503 if the server is unavailable or the manager is shut down, 400 for
    /// an invalid key, 404 for an unknown job, and 500 for all other errors.
    #[must_use]
    pub fn http_status(&self) -> u16 {
        let (_, _, status, _) = self.codes();
        status
    }

    /// Returns the gRPC status code for the reply of a service.
    ///
    /// It is 10 `ABORTED` for contention and for a call in progress, 14 `UNAVAILABLE` if the server
    /// is unavailable or the manager is shut down, 3 `INVALID_ARGUMENT` for an invalid key and for
    /// an idempotency key that was used for another call, 2 `UNKNOWN` if the outcome of an earlier
    /// call is unknown, 15 `DATA_LOSS` if its result is not stored, 5 `NOT_FOUND` for an unknown
    /// job, and 13 `INTERNAL` for all other errors.
    #[must_use]
    pub fn grpc_code(&self) -> i32 {
        let (_, _, _, code) = self.codes();
        code
    }

    /// Returns how long to wait before the call is repeated.
    ///
    /// Returns `None` if the call should not be repeated: it would fail again, or may do the work
    /// twice.
    ///
    /// For [`Contended`](Self::Contended), it is the time to live that the server reported for the
    /// current hold, limited to the range from 100 ms to 1 s. A holder usually releases its lock
    /// long before a long time to live has passed. At the end of a short one, the holder may renew
    /// it, or the next waiter may be granted the lock.
    ///
    /// For [`InProgress`](Self::InProgress), it is the rest of the lease of the running call, limited
    /// to the same range.
    ///
    /// For [`Unavailable`](Self::Unavailable) and [`Shutdown`](Self::Shutdown), it is 1 s: within
    /// that time the manager reconnects, or another process can serve the request.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Contended { remaining, .. } | Self::InProgress { remaining, .. } => {
                Some(remaining.map_or(LATEST_RETRY, |live| live.clamp(SOONEST_RETRY, LATEST_RETRY)))
            }
            Self::Unavailable { .. } | Self::Shutdown { .. } => Some(LATEST_RETRY),
            _ => None,
        }
    }
}

impl Error {
    /// Returns a sentence for the client of a service. It names no key, no server, and no cause.
    ///
    /// There is one sentence for each [`http_status`](Self::http_status). Use it in the response of
    /// an error type of your own, and log the error itself: its text has the details.
    ///
    /// # Examples
    ///
    /// ```
    /// # use dlock_runtime::Error;
    /// /// A response of any web framework: status, headers, and body.
    /// fn response(error: &Error) -> (u16, Vec<(&'static str, String)>, &'static str) {
    ///     (error.http_status(), error.headers().collect(), error.client_message())
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let locks = dlock_runtime::LockManager::connect("memory://").await?;
    /// # let _held = locks.lock("order:7").acquire().await?;
    /// let Err(contended) = locks.lock("order:7").acquire().await else { panic!("it is held") };
    ///
    /// let (status, headers, body) = response(&contended);
    /// assert_eq!((status, headers), (409, vec![("Retry-After", "1".to_owned())]));
    /// assert!(!body.contains("order"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn client_message(&self) -> &'static str {
        match self.http_status() {
            400 => "a value in the request is empty or cannot be used",
            404 => "there is no such job",
            409 => "another request is working on this: try again in a moment",
            422 => "the idempotency key was used for another request: use a new key",
            503 => "the service cannot do this right now: try again in a moment",
            _ => "the request could not be completed",
        }
    }

    /// Returns the HTTP headers of the response of a service, as names and values.
    ///
    /// It is `Retry-After` if [`retry_after`](Self::retry_after) is `Some`: whole seconds, rounded
    /// up, as RFC 9110 (section 10.2.3) requires. Otherwise, there is none. Later versions may
    /// return more.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let seconds = |after: Duration| after.as_secs() + u64::from(after.subsec_nanos() > 0);
        self.retry_after().map(|after| ("Retry-After", seconds(after).to_string())).into_iter()
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (variant, ..) = self.codes();
        write!(f, "{variant}: {self}")
    }
}

/// The first delay of the default backoff, and the shortest lease. An earlier retry is pointless.
const SOONEST_RETRY: Duration = Duration::from_millis(100);
const LATEST_RETRY: Duration = Duration::from_secs(1);

fn subject(key: Option<&LockKey>) -> String {
    key.map_or_else(|| "the lock server".to_owned(), |key| format!("lock `{key}`"))
}

/// Describes a loss. A refused confirmation is quoted instead of advice, since more time would not
/// help.
fn loss_text(cause: LossCause, reason: Option<&str>) -> String {
    match (cause, reason) {
        (cause, None) => cause.to_string(),
        (LossCause::GrantUnconfirmed, Some(reason)) => {
            format!("the grant was not confirmed: {}", Escaped(reason))
        }
        (cause, Some(reason)) => format!("{cause}; the last renewal failed: {}", Escaped(reason)),
    }
}

/// Describes the result that a call needs: that of an earlier call, or that of a step.
fn missing_result(key: &LockKey, step: Option<&str>) -> String {
    match step {
        None => format!("the call with idempotency key `{key}` has completed, and its result"),
        Some(step) => format!(
            "a call with idempotency key `{key}` cannot continue: the result of its step `{}`",
            Escaped(step)
        ),
    }
}

/// Describes the call that used the key before, and says what to do.
fn other_call(function: Option<&str>) -> String {
    let Some(function) = function else {
        return "a call with another payload: its fingerprint differs; use a new key for a new call"
            .to_owned();
    };
    let of = match function {
        "" => "a function without a name".to_owned(),
        name => format!("function `{}`", Escaped(name)),
    };
    format!("a call of {of}: use another key, or if the function was renamed, set `name` to its old name")
}

/// How a lock was lost, and after how long.
pub(crate) type Loss = (LossCause, Duration);

/// How a held lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The lease expired, by this process's clock, before a renewal was confirmed.
    Expired,
    /// The last holder handed the lock off, and the server did not confirm the grant in time.
    GrantUnconfirmed,
    /// The server reported that this manager is not the holder.
    ///
    /// The key was deleted, flushed, or overwritten, had expired on the server, or was lost in a
    /// failover or restart. The record of an idempotent call or a job may also belong to a later
    /// attempt or run.
    NotOwner,
    /// The lock was held for its `max_hold`. No other call held it in that time.
    MaxHold,
    /// The manager was shut down while the body ran, and the deadline of `shutdown` passed.
    Shutdown,
    /// The guard was released while a nested call or a request still used the hold.
    Released,
    /// A newer tick of the job replaced the run.
    Cancelled,
    /// The current process was forked from the holder, which still holds the lock.
    Forked,
}

impl std::fmt::Display for LossCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease expired",
            Self::GrantUnconfirmed => "the grant was not confirmed in time; raise `grant_lease`",
            Self::NotOwner => {
                "the server reports that this manager does not hold it: the key expired, was deleted or overwritten, or was lost in a failover or restart"
            }
            Self::MaxHold => "its `max_hold` has passed",
            Self::Shutdown => "the lock manager was shut down",
            Self::Released => "it was released",
            Self::Cancelled => "a newer tick of the job replaced it",
            Self::Forked => "this process was forked from the one that holds the lock",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::printable::is_unprintable;

    fn contended(remaining: Option<Duration>) -> Error {
        let key = LockKey::new("order:7").expect("a key");
        Error::Contended { key, attempts: 1, waited: Duration::ZERO, remaining }
    }

    #[test]
    fn contended_calls_retry_after_100_ms_to_1_s() {
        let after = |millis| contended(Some(Duration::from_millis(millis))).retry_after();

        assert_eq!(after(0), Some(Duration::from_millis(100)));
        assert_eq!(after(700), Some(Duration::from_millis(700)));
        assert_eq!(after(30_000), Some(Duration::from_secs(1)));
        assert_eq!(contended(None).retry_after(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_part_of_a_second_is_a_whole_one_in_retry_after() {
        let headers = |millis| contended(Some(Duration::from_millis(millis))).headers().collect::<Vec<_>>();

        assert_eq!(headers(300), [("Retry-After", "1".to_owned())]);
        assert_eq!(headers(1_000), [("Retry-After", "1".to_owned())]);
        assert_eq!(config("url", "it is empty").headers().count(), 0);
    }

    #[test]
    fn each_error_of_an_idempotent_call_has_its_codes() {
        let key = || LockKey::new("charge:7").expect("a key");
        let left = Some(Duration::from_millis(300));
        for (error, http, grpc, retry_after) in [
            (Error::InProgress { key: key(), remaining: left }, 409, 10, left),
            (Error::KeyReused { key: key(), function: None }, 422, 3, None),
            (Error::KeyReused { key: key(), function: Some("charge".into()) }, 422, 3, None),
            (Error::OutcomeUnknown { key: key(), attempt: 1 }, 500, 2, None),
            (Error::ResultNotStored { key: key(), step: None }, 500, 15, None),
            (Error::Undecodable { key: key(), problem: "of version 1".into() }, 500, 13, None),
        ] {
            let codes = (error.http_status(), error.grpc_code(), error.retry_after());

            assert_eq!(codes, (http, grpc, retry_after), "{error:?}");
            assert!(!error.client_message().contains("charge"), "{error:?}");
        }
    }

    #[test]
    fn client_messages_name_no_key_and_no_cause() {
        let key = LockKey::new("order:7").expect("a key");
        let reason = "no connection to redis at 10.0.0.1".into();
        let errors = [
            contended(None),
            Error::Unavailable { key: Some(key.clone()), reason },
            Error::WrongKind { key, found: "a list".into() },
            Error::InvalidKey { template: "order:<id>".into(), problem: "empty".into() },
        ];

        for error in errors {
            let message = error.client_message();
            for detail in ["order", "redis", "10.0.0.1", "list"] {
                assert!(!message.contains(detail), "{error:?}: {message}");
            }
        }
    }

    #[test]
    fn each_http_status_has_its_client_message() {
        let key = || LockKey::new("order:7").expect("a key");
        let errors = [
            Error::InvalidKey { template: "order:<id>".into(), problem: "empty".into() },
            Error::UnknownJob { key: key() },
            contended(None),
            Error::KeyReused { key: key(), function: None },
            config("url", "it is empty"),
            Error::Unavailable { key: None, reason: "no connection".into() },
        ];

        let statuses = errors.each_ref().map(Error::http_status);
        let messages: HashSet<_> = errors.iter().map(Error::client_message).collect();

        assert_eq!(statuses, [400, 404, 409, 422, 500, 503]);
        assert_eq!(messages.len(), statuses.len(), "{messages:?}");
    }

    #[test]
    fn no_text_of_an_error_acts_on_a_terminal() {
        let hostile = "a\u{1b}[31m\n12:00 ERROR \u{202e}b\u{2028}";
        let text = || Arc::<str>::from(hostile);
        let key = || LockKey::new(hostile).expect("a key");
        for error in [
            Error::Unavailable { key: Some(key()), reason: text() },
            lost(LossCause::Expired, Some(hostile)),
            Error::InvalidKey { template: text(), problem: text() },
            Error::WrongKind { key: key(), found: text() },
            Error::FencingCounter { key: key(), problem: text() },
            Error::Deadlock { key: key(), held: key() },
            Error::KeyReused { key: key(), function: Some(text()) },
            Error::ResultNotStored { key: key(), step: Some(text()) },
            Error::Undecodable { key: key(), problem: text() },
            config(hostile, hostile),
            InvalidKey::new(hostile, hostile).into(),
        ] {
            for shown in [format!("{error}"), format!("{error:?}")] {
                assert!(!shown.contains(is_unprintable), "{shown:?}");
                assert!(shown.contains(r"a\u{1b}[31m\n12:00"), "{shown}");
            }
        }
        let invalid = InvalidKey::new(hostile, hostile).to_string();
        assert!(!invalid.contains(is_unprintable), "{invalid:?}");
    }

    #[test]
    fn lost_locks_suggest_no_retry() {
        let key = LockKey::new("order:7").expect("a key");

        for completed in [false, true] {
            let lost = Error::Lost {
                key: key.clone(),
                held: Duration::ZERO,
                cause: LossCause::Expired,
                completed,
                reason: None,
            };

            assert_eq!(lost.retry_after(), None);
        }
    }

    #[test]
    fn loss_text_reports_a_completed_body() {
        let text = |completed| {
            let key = LockKey::new("order:7").expect("a key");
            let held = Duration::from_millis(150);
            Error::Lost { key, held, cause: LossCause::Expired, completed, reason: None }.to_string()
        };

        assert_eq!(text(false), "lock `order:7` was lost after 150 ms: its lease expired");
        assert_eq!(
            text(true),
            "lock `order:7` was lost after 150 ms: its lease expired; the body had completed by then and may have \
             overlapped with another holder's"
        );
    }

    fn lost(cause: LossCause, reason: Option<&str>) -> Error {
        let (held, reason) = (Duration::from_millis(150), reason.map(Into::into));
        Error::Lost { key: key(), held, cause, completed: false, reason }
    }

    #[test]
    fn loss_text_quotes_the_last_failed_renewal() {
        let text = |cause| lost(cause, Some("NOREPLICAS")).to_string();

        assert_eq!(
            text(LossCause::Expired),
            "lock `order:7` was lost after 150 ms: its lease expired; the last renewal failed: NOREPLICAS"
        );
        assert_eq!(
            text(LossCause::GrantUnconfirmed),
            "lock `order:7` was lost after 150 ms: the grant was not confirmed: NOREPLICAS"
        );
        let late = lost(LossCause::GrantUnconfirmed, None).to_string();
        assert!(late.ends_with("the grant was not confirmed in time; raise `grant_lease`"), "{late}");
    }

    #[test]
    fn debug_text_is_the_variant_and_the_text() {
        #[derive(Debug)]
        struct AppError(#[expect(dead_code, reason = "it is printed")] Error);
        let error = config("url", "it is empty");

        assert_eq!(format!("{error:?}"), "Config: invalid lock configuration: url: it is empty");
        assert_eq!(
            format!("{:?}", AppError(error)),
            "AppError(Config: invalid lock configuration: url: it is empty)"
        );
    }

    #[test]
    fn deadlock_text_names_both_locks() {
        let key = |key| LockKey::new(key).expect("a key");

        let text = Error::Deadlock { key: key("a"), held: key("b") }.to_string();

        assert_eq!(
            text,
            "deadlock: this call holds `b` and waits for `a`, whose holder waits, directly or through others, for `b`; acquire both locks in the same order everywhere"
        );
    }

    fn key() -> LockKey {
        LockKey::new("order:7").expect("a key")
    }

    #[test]
    fn each_error_of_a_lock_has_its_codes_and_key() {
        let second = Some(Duration::from_secs(1));
        let (text, held) = (|| Arc::<str>::from("problem"), Duration::ZERO);
        for (error, http, grpc, retry_after, has_key) in [
            (contended(None), 409, 10, second, true),
            (
                Error::Lost { key: key(), held, cause: LossCause::Expired, completed: false, reason: None },
                500,
                13,
                None,
                true,
            ),
            (Error::Unavailable { key: Some(key()), reason: text() }, 503, 14, second, true),
            (Error::Unavailable { key: None, reason: text() }, 503, 14, second, false),
            (Error::Shutdown { key: Some(key()) }, 503, 14, second, true),
            (Error::Shutdown { key: None }, 503, 14, second, false),
            (Error::InvalidKey { template: text(), problem: text() }, 400, 3, None, false),
            (Error::UnknownJob { key: key() }, 404, 5, None, true),
            (Error::WrongKind { key: key(), found: text() }, 500, 13, None, true),
            (Error::FencingCounter { key: key(), problem: text() }, 500, 13, None, true),
            (Error::Reentrant { key: key() }, 500, 13, None, true),
            (Error::Deadlock { key: key(), held: key() }, 500, 13, None, true),
            (Error::InProgress { key: key(), remaining: None }, 409, 10, second, true),
            (Error::KeyReused { key: key(), function: None }, 422, 3, None, true),
            (Error::OutcomeUnknown { key: key(), attempt: 1 }, 500, 2, None, true),
            (Error::ResultNotStored { key: key(), step: None }, 500, 15, None, true),
            (Error::Undecodable { key: key(), problem: text() }, 500, 13, None, true),
            (Error::NotInstalled {}, 500, 13, None, false),
            (config("url", "it is empty"), 500, 13, None, false),
        ] {
            let codes = (error.http_status(), error.grpc_code(), error.retry_after());
            assert_eq!(codes, (http, grpc, retry_after), "{error:?}");
            assert_eq!(error.key(), has_key.then(key).as_ref(), "{error:?}");
            let variant = format!("{error:?}");
            assert_eq!(error.is_contended(), variant.starts_with("Contended"), "{error:?}");
            assert_eq!(error.is_lost(), variant.starts_with("Lost"), "{error:?}");
            assert_eq!(error.is_unavailable(), variant.starts_with("Unavailable"), "{error:?}");
        }
    }

    #[test]
    fn a_failure_becomes_the_error_with_its_remedy() {
        for (kind, of_key, of_server) in [
            (
                FailureKind::Passing,
                "Unavailable: lock `order:7` is unavailable: no",
                "Unavailable: the lock server is",
            ),
            (
                FailureKind::Lasting,
                "Config: invalid lock configuration: server: no",
                "Config: invalid lock configuration: server",
            ),
            (
                FailureKind::Untrusted,
                "Config: invalid lock configuration: tls: no",
                "Config: invalid lock configuration: tls",
            ),
            (
                FailureKind::WrongKind,
                "WrongKind: key `order:7` holds data of another kind: no",
                "Unavailable",
            ),
            (FailureKind::InvalidKey, "InvalidKey: invalid lock key `order:7`: no", "Unavailable"),
            (
                FailureKind::FencingCounter,
                "FencingCounter: no further fencing token for `order:7`: no",
                "Unavailable",
            ),
        ] {
            let failure = Failure::new(kind, "no");

            let (shown, of_request) =
                (format!("{:?}", failure.clone().into_error(key())), failure.of_the_server());

            assert!(shown.starts_with(of_key), "{shown}");
            assert!(format!("{of_request:?}").starts_with(of_server), "{of_request:?}");
            assert_eq!(of_request.key(), None);
        }
    }

    #[test]
    fn retry_after_of_a_call_in_progress_is_one_second() {
        let after = |live| Error::InProgress { key: key(), remaining: Some(live) }.headers().next();

        for (live, seconds) in [(0, "1"), (1_000, "1"), (5_000, "1")] {
            assert_eq!(after(Duration::from_millis(live)), Some(("Retry-After", seconds.to_owned())));
        }
    }

    #[test]
    fn each_cause_of_a_loss_has_its_own_text() {
        use LossCause::{
            Cancelled, Expired, Forked, GrantUnconfirmed, MaxHold, NotOwner, Released, Shutdown,
        };
        let causes = [Expired, GrantUnconfirmed, NotOwner, MaxHold, Shutdown, Released, Cancelled, Forked];

        let texts: HashSet<_> = causes.iter().map(ToString::to_string).collect();

        assert_eq!(texts.len(), causes.len());
        assert!(!texts.contains("") && texts.contains("its lease expired"), "{texts:?}");
    }

    #[test]
    fn a_reused_key_names_the_other_call() {
        let text = |function: Option<&str>| {
            Error::KeyReused { key: key(), function: function.map(Into::into) }.to_string()
        };

        assert!(text(None).contains("`order:7` was used for a call with another payload"), "{}", text(None));
        assert!(text(Some("")).contains("a call of a function without a name"), "{}", text(Some("")));
        assert!(text(Some("charge")).contains("a call of function `charge`"), "{}", text(Some("charge")));
    }
}
