//! The spans and events of a call, by their fixed names.
//!
//! | name | level | when |
//! |---|---|---|
//! | span `dlock.hold` | info | around a call, from asking to release (of `acquire`: to the guard); fields `lock.name`, `lock.key`, `lock.wait_ms`, `lock.attempts`, `lock.outcome` |
//! | `dlock.acquired` | debug | the lock was taken |
//! | `dlock.contended` | debug | somebody else held it to the end |
//! | `dlock.lost` | error | the lock was lost: told when the body stops, or when a guard is released or dropped |
//! | `dlock.release_failed` | warn | the server did not confirm the release |
//! | `dlock.ran_without_lock` | error | a body runs without its lock, because the server could not be asked and `on_unavailable = run` says so |
//! | `dlock.error_suppressed` | error | a function that cannot return an error returned its stand-in value for one; limited like `dlock.unavailable` if the server could not be asked |
//! | `dlock.error_response` | error, debug | a web framework's client was told of an error without its details: error for status 500, debug for others |
//! | `dlock.unavailable` | warn | a call ended because the server could not be asked; at most one per second and manager, with the number of `suppressed` ones |
//! | `dlock.connected` | info | a connection is there, the first or a new one; fields `server`, and `manager`, by which an inspection names it |
//! | `dlock.disconnected` | warn | the connection was given up; it is made anew |
//! | `dlock.command_unsupported` | info | the server lacks a command that locks can do without; fields `server`, `command`, `reason` |
//! | `dlock.subscribe_failed` | info | the server did not let us subscribe to the channel of a namespace; told once; its waiters look at their locks every `poll_interval` instead |
//! | `dlock.namespaces_overlap` | info | locks of two namespaces are used that can have one key, as `a` and `a:b`; once per manager and pair |
//! | `dlock.driver_panicked` | error | what drives the connections panicked, as a subscriber may make it; it is started again |
//! | `dlock.in_process_only` | warn | a manager of `memory://` was made: it excludes within this process alone |
//!
//! Events carry fields, never sentences. Tokens and passwords are in none of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::span::Id;
use tracing::{Span, field};

use crate::engine::Engine;
use crate::engine::hold_guard::{HoldGuard, Loss};
use crate::error::{Error, LossCause};
use crate::key::LockKey;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;

/// The events of one manager that every call writes while the server is away: the first is written, then at most one per second.
#[derive(Debug, Default)]
pub(crate) struct EventLimits {
    unavailable: EventLimit,
    swallowed: EventLimit,
}

/// Limits one kind of event, without a lock.
#[derive(Debug, Default)]
struct EventLimit {
    /// When the next one may be written.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl EventLimit {
    /// Returns how many were suppressed since the last one that was written; `None` if this one is suppressed as well.
    fn admit(&self, now: BootInstant) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let after = now.plus(EVENT_INTERVAL).nanos();
        if now.nanos() >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// The least time between two events of one kind that are limited.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// The span of one call, and what is told about it. Small where nobody looks, since it is part of every call's future.
#[derive(Clone, Debug)]
pub(crate) struct CallSpan {
    span: Option<Box<Span>>,
}

impl CallSpan {
    /// Opens the span of a call. `name` is the annotated function's.
    pub(crate) fn begin(name: Option<&'static str>, key: Option<&LockKey>) -> Self {
        let span = tracing::info_span!(
            target: "dlock",
            "dlock.hold",
            lock.name = name,
            lock.key = key.and_then(shown),
            lock.wait_ms = field::Empty,
            lock.attempts = field::Empty,
            lock.outcome = field::Empty,
        );
        Self { span: (!span.is_disabled()).then(|| Box::new(span)) }
    }

    /// A call that has not begun.
    pub(crate) const fn none() -> Self {
        Self { span: None }
    }

    /// Enters the span until the returned value is dropped; never across an await.
    pub(crate) fn enter(&self) -> Option<tracing::span::Entered<'_>> {
        self.span.as_ref().map(|span| span.enter())
    }

    /// The span, for the events of the call to stand in.
    fn id(&self) -> Option<Id> {
        self.span.as_ref().and_then(|span| span.id())
    }

    /// Returns whether nobody is told that the lock was taken.
    pub(crate) fn is_silent(&self) -> bool {
        self.span.is_none() && !tracing::enabled!(target: "dlock", tracing::Level::DEBUG)
    }

    /// The call has the lock, or does not get it. `engine` is that of its manager, if it got so far.
    pub(crate) fn entered(&self, entered: std::result::Result<&HoldGuard, &Error>, engine: Option<&Engine>) {
        match entered {
            Ok(held) => {
                if self.is_silent() {
                    return;
                }
                let (attempts, waited) = held.attempts_and_wait();
                self.record(attempts, waited);
                tracing::debug!(name: "dlock.acquired", target: "dlock", parent: self.id(), { lock.key = shown(held.key()) }, "dlock.acquired");
            }
            Err(error) => {
                self.outcome(error_outcome(error));
                if let Error::Unavailable { key: Some(key), reason, .. } = error
                    && tracing::enabled!(target: "dlock", tracing::Level::WARN)
                    && let Some(suppressed) = admit(engine, |limits| &limits.unavailable)
                {
                    let reason = &**reason;
                    tracing::warn!(
                        name: "dlock.unavailable",
                        target: "dlock",
                        parent: self.id(),
                        { lock.key = shown(key), lock.reason = reason, suppressed },
                        "dlock.unavailable"
                    );
                }
                if let Error::Contended { key, attempts, waited, .. } = error {
                    self.record(*attempts, *waited);
                    tracing::debug!(
                        name: "dlock.contended",
                        target: "dlock",
                        parent: self.id(),
                        { lock.key = shown(key), lock.attempts = *attempts },
                        "dlock.contended"
                    );
                }
            }
        }
    }

    /// The lock was lost while the body ran.
    pub(crate) fn lost(&self, key: &LockKey, loss: Loss) {
        self.outcome("lost");
        let _entered = self.enter();
        guard_lost(key, loss);
    }

    /// The body runs without the lock, because of `error`.
    pub(crate) fn unlocked_run(&self, key: &LockKey, error: &Error) {
        self.outcome("unlocked_run");
        let reason = match error {
            Error::Unavailable { reason, .. } => Some(&**reason),
            _ => None,
        };
        tracing::error!(
            name: "dlock.ran_without_lock",
            target: "dlock",
            parent: self.id(),
            { lock.key = shown(key), lock.reason = reason },
            "dlock.ran_without_lock"
        );
    }

    /// The lock was released, or handed to another task.
    pub(crate) fn released(&self) {
        self.outcome("released");
    }

    /// The server has answered the release, or has not. `held` says for how long the lock was held.
    pub(crate) fn let_go(&self, key: &LockKey, reply: &Reply, held: impl FnOnce() -> Duration) {
        match reply {
            Reply::Owner => self.released(),
            Reply::NotOwner => self.lost(key, (LossCause::NotOwner, held())),
            reply => self.release_failed(key, reply),
        }
    }

    /// The same, of a release that the call did not wait for: whoever hears of it may be in a span of his own.
    pub(crate) fn let_go_behind(&self, key: &LockKey, reply: &Reply, held: impl FnOnce() -> Duration) {
        if let Reply::NotOwner = reply {
            self.outcome("lost");
            lost(self.id(), key, (LossCause::NotOwner, held()));
        } else {
            self.let_go(key, reply, held);
        }
    }

    /// The server did not confirm the release.
    fn release_failed(&self, key: &LockKey, reply: &Reply) {
        self.outcome("release_failed");
        let reason = match reply {
            Reply::Refused(failure) | Reply::Unknown(failure) => &*failure.reason,
            _ => "not ours any more",
        };
        tracing::warn!(name: "dlock.release_failed", target: "dlock", parent: self.id(), { lock.key = shown(key), lock.reason = reason }, "dlock.release_failed");
    }

    /// The call's value stands for an error that its return type cannot carry. Only that the server could not be asked is limited: a loss
    /// is always written.
    pub(crate) fn swallowed(&self, error: &Error, engine: Option<&Engine>) {
        let limited = || admit(engine, |limits| &limits.swallowed);
        if !error.is_contended()
            && tracing::enabled!(target: "dlock", tracing::Level::ERROR)
            && let Some(suppressed) = if error.is_unavailable() { limited() } else { Some(0) }
        {
            let error_text = error_text(error);
            let kind = error_outcome(error);
            tracing::error!(
                name: "dlock.error_suppressed",
                target: "dlock",
                parent: self.id(),
                { lock.outcome = kind, error = error_text, suppressed },
                "dlock.error_suppressed"
            );
        }
    }

    /// The call has ended with its lock held by a guard, which lives on.
    pub(crate) fn guarded(&self) {
        self.outcome("guarded");
    }

    fn record(&self, attempts: u32, waited: Duration) {
        if let Some(span) = &self.span {
            span.record("lock.attempts", attempts);
            span.record("lock.wait_ms", millis(waited));
        }
    }

    fn outcome(&self, outcome: &'static str) {
        if let Some(span) = &self.span {
            span.record("lock.outcome", outcome);
        }
    }
}

/// Returns how many events were suppressed since the last one; `None` if this one is to be suppressed as well.
fn admit(engine: Option<&Engine>, limit: impl FnOnce(&EventLimits) -> &EventLimit) -> Option<u64> {
    engine.map_or(Some(0), |engine| limit(&engine.event_limits).admit(engine.clock.now()))
}

/// Returns a key as a field; none for one that stands for a value marked `|hash`.
fn shown(key: &LockKey) -> Option<field::DisplayValue<&LockKey>> {
    (!key.is_hashed()).then(|| field::display(key))
}

/// Returns the text of an error as a field; none where it names a key that stands for a value marked `|hash`.
fn error_text(error: &Error) -> Option<field::DisplayValue<&Error>> {
    error.key().is_none_or(|key| !key.is_hashed()).then(|| field::display(error))
}

/// The client of a web framework is told of an error without its details; the current span says in which request.
#[cfg(any(feature = "actix", feature = "axum", feature = "tonic"))]
pub(crate) fn answered(error: &Error) {
    // The level of an event is a constant to `tracing`, so that a subscriber can turn it off for good: there are two events.
    macro_rules! tell {
        ($level:ident) => {
            tracing::$level!(
                name: "dlock.error_response",
                target: "dlock",
                { lock.key = error.key().and_then(shown), lock.outcome = error_outcome(error), error = error_text(error) },
                "dlock.error_response"
            )
        };
    }
    if error.http_status() == 500 { tell!(error) } else { tell!(debug) }
}

/// A lock was lost; the current span, if there is one, says in which call.
pub(crate) fn guard_lost(key: &LockKey, loss: Loss) {
    lost(Span::current().id(), key, loss);
}

fn lost(parent: Option<Id>, key: &LockKey, (cause, held): Loss) {
    tracing::error!(
        name: "dlock.lost",
        target: "dlock",
        parent: parent,
        { lock.key = shown(key), lock.held_ms = millis(held), lock.cause = ?cause },
        "dlock.lost"
    );
}

/// The actor of a server has a connection.
pub(crate) fn connected(server: &dyn std::fmt::Display, manager: &str) {
    from_the_actor(
        || tracing::info!(name: "dlock.connected", target: "dlock", { %server, manager }, "dlock.connected"),
    );
}

/// The actor of a server has lost its connection.
pub(crate) fn disconnected(reason: &str) {
    from_the_actor(
        || tracing::warn!(name: "dlock.disconnected", target: "dlock", reason, "dlock.disconnected"),
    );
}

/// The server lacks a command that locks can do without.
pub(crate) fn command_unsupported(
    server: &dyn std::fmt::Display,
    command: &str,
    reason: &dyn std::fmt::Display,
) {
    from_the_actor(|| {
        tracing::info!(
            name: "dlock.command_unsupported",
            target: "dlock",
            { %server, command, %reason },
            "dlock.command_unsupported"
        );
    });
}

/// The server does not tell us of grants.
pub(crate) fn not_listening(reason: &str) {
    from_the_actor(
        || tracing::info!(name: "dlock.subscribe_failed", target: "dlock", reason, "dlock.subscribe_failed"),
    );
}

/// Two namespaces are in use that can have one key.
pub(crate) fn namespaces_overlap(namespace: &str, other: &str) {
    tracing::info!(
        name: "dlock.namespaces_overlap",
        target: "dlock",
        namespace,
        other,
        "dlock.namespaces_overlap"
    );
}

/// The server does not tell us of changes of keys.
pub(crate) fn not_tracking(reason: &str) {
    from_the_actor(
        || tracing::info!(name: "dlock.tracking_disabled", target: "dlock", reason, "dlock.tracking_disabled"),
    );
}

/// The actor of a server panicked and is started again.
pub(crate) fn actor_failed(error: &dyn std::fmt::Display) {
    from_the_actor(
        || tracing::error!(name: "dlock.driver_panicked", target: "dlock", { %error }, "dlock.driver_panicked"),
    );
}

/// A subscriber is foreign code: one that panics must not end the thread that renews all leases.
fn from_the_actor(tell: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell));
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn error_outcome(error: &Error) -> &'static str {
    match error {
        Error::Contended { .. } => "contended",
        Error::Lost { .. } => "lost",
        Error::Unavailable { .. } => "unavailable",
        Error::Shutdown { .. } => "shutdown",
        Error::Deadlock { .. } => "deadlock",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_event_is_written_once_per_second_with_a_count() {
        let (limit, at) = (EventLimit::default(), |ms: u64| BootInstant::from_nanos(ms * 1_000_000));

        assert_eq!(limit.admit(at(5_000)), Some(0), "the first is written");
        for ms in 5_001..6_000 {
            assert_eq!(limit.admit(at(ms)), None);
        }
        assert_eq!(limit.admit(at(6_000)), Some(999));
        assert_eq!(limit.admit(at(6_999)), None);
        assert_eq!(limit.admit(at(60_000)), Some(1), "however long it was silent");
    }

    #[test]
    fn of_many_threads_one_writes_a_limited_event() {
        let (limit, written) = (EventLimit::default(), AtomicU64::new(0));

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        written.fetch_add(
                            limit.admit(BootInstant::from_nanos(1)).map_or(0, |_| 1),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
        });

        assert_eq!(written.into_inner(), 1);
        assert_eq!(limit.admit(BootInstant::from_nanos(2_000_000_000)), Some(3_999));
    }
}
