//! The spans and events of a call. Their names are fixed.
//!
//! This table is also in [`docs::operating`](crate::docs::operating#tracing).
//!
//! | name | level | when |
//! |---|---|---|
//! | span `dlock.hold` | info | around a call, from the acquire to the release (of `acquire` and `try_acquire`: to the guard); fields `lock.name` (the function), `lock.key`, `lock.wait_ms`, `lock.attempts`, `lock.outcome` |
//! | `dlock.acquired` | debug | the lock was acquired |
//! | `dlock.contended` | debug | another call or process held the lock until the call ended |
//! | `dlock.lost` | error | the lock was lost: written when the body stops, or when a guard is released or dropped; fields `lock.key`, `lock.held_ms`, `lock.cause` |
//! | `dlock.max_hold_reached` | warn | the same, because `max_hold` has passed: no other call held the lock; without `lock.cause` |
//! | `dlock.release_failed` | warn | the server did not confirm the release; the lock expires with its lease |
//! | `dlock.term_started` | info | this process leads; fields `lock.key` and `term`, the fencing token |
//! | `dlock.term_ended` | info | it leads no more: it resigned, its body ended, or its lock was lost; the same fields |
//! | `dlock.job_started` | info | a tick of a job runs here; fields `lock.key`, `job.slot`, `job.attempt` |
//! | `dlock.job_finished` | info, warn | its body has ended; fields `lock.key`, `job.slot`, `job.outcome`, `job.error`; warn unless it succeeded |
//! | `dlock.job_skipped` | debug | a tick does not run here; fields `lock.key` and `lock.reason` |
//! | `dlock.job_missed` | warn | a tick runs, and before it no process started `missed` ticks in time; fields `lock.key` and `missed` |
//! | `dlock.job_end_ignored` | error | the end of a run was not recorded: another run had replaced it; field `lock.key` |
//! | `dlock.job_slot_ahead` | error | the last tick of a job is ahead of the server's clock by more than a period, so later ticks are late; `Job::reset` clears it; fields `lock.key` and `ahead_ms` |
//! | `dlock.schedule_mismatched` | warn | another replica ran the job with another schedule; fields `lock.key`, `own`, and `other` |
//! | `dlock.error_suppressed` | error | a function that cannot return an error returned its fallback value for one; if the server was unavailable, limited like `dlock.unavailable` |
//! | `dlock.ran_without_lock` | error | a body runs without its lock, as `on_unavailable = run` allows |
//! | `dlock.error_response` | error, debug | with a feature for a web framework: a client received an error without its details; the event has them; error for status 500, debug for others |
//! | `dlock.unavailable` | warn | a call ended because the server was unavailable; for each manager the first, then at most one per second; field `suppressed`: the number of such calls since the last event |
//! | `dlock.connected` | info | a connection is open, the first or a new one; fields `server`, and `manager` and `owner`, by which `inspect` names its holds |
//! | `dlock.disconnected` | warn | a connection failed, or was closed because the server exceeded the [bounds](crate::docs::operating#bounds); the manager reconnects |
//! | `dlock.command_unsupported` | info | the server lacks an optional command, such as `SCRIPT LOAD`; once for each command; fields `server`, `command`, `reason` |
//! | `dlock.subscribe_failed` | info | the server rejected the subscription to the channel of a namespace; once per namespace until the server accepts it; fields `namespace` and `reason`; waiters of that namespace check their locks every `poll_interval` instead |
//! | `dlock.namespaces_overlap` | info | two namespaces in use can have the same key, such as `shop` and `shop:eu`; fields `namespace` and `other`; once per manager and pair. See [`keys`](crate::docs::keys#the-name-in-redis) |
//! | `dlock.tracking_disabled` | info | the server does not send invalidations; once. Renewals confirm holds, and locks of other libraries are checked every `poll_interval` |
//! | `dlock.driver_panicked` | error | the task that drives the connections panicked, for example in a `tracing` subscriber; it is restarted |
//! | `dlock.override_unused` | warn | at shutdown: an override names a function that no call of this manager has run |
//! | `dlock.in_process_only` | warn | a manager of `memory://` was created, which excludes within this process only |
//! | span `dlock.idempotent` | info | around an idempotent call; fields `lock.name` (the function), `lock.key`, and `lock.outcome`: `started`, `replayed`, or the error |
//! | `dlock.result_pending` | warn | the server did not confirm the end of an idempotent call, which is sent again in the background; field `lock.pending`: the number of such calls of this manager, as `LockManager::pending_results` returns it |
//! | `dlock.result_lost` | error | the end of an idempotent call was not stored: another attempt owns the record, or it has expired; field `lock.reason` |
//! | `dlock.result_not_stored` | error | the result of an idempotent call or of its step is too large, or cannot be serialized; field `lock.step` |
//! | `dlock.ran_without_record` | error | the body of an idempotent call runs without a record, as `OnUnavailable::Run` allows |
//!
//! Events carry fields, never sentences. No event contains a token or a password.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::span::Id;
use tracing::{Span, field};

use crate::clock::{Clock, millis};
use crate::error::{Error, Loss, LossCause};
use crate::key::LockKey;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;

/// The events that every call emits while the server is unavailable, limited to one per second.
#[derive(Debug, Default)]
pub(crate) struct EventLimits {
    unavailable: EventLimit,
    swallowed: EventLimit,
}

/// Limits one kind of event, without a mutex.
#[derive(Debug, Default)]
struct EventLimit {
    /// When the next event may be emitted.
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl EventLimit {
    /// Returns how many events were suppressed since the last one; `None` if this one is
    /// suppressed.
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

/// The minimum time between two limited events of one kind.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// The span of one call and its events. It is small if disabled, as each call's future contains it.
#[derive(Clone, Debug)]
pub(crate) struct CallSpan {
    span: Option<Box<Span>>,
}

impl CallSpan {
    /// Opens the span of a call. `name` is the name of the annotated function.
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

    /// Returns the span of a call that has not begun.
    pub(crate) const fn none() -> Self {
        Self { span: None }
    }

    /// Enters the span until the returned value is dropped; never across an await.
    pub(crate) fn enter(&self) -> Option<tracing::span::Entered<'_>> {
        self.span.as_ref().map(|span| span.enter())
    }

    /// Returns the ID of the span, the parent of the call's events.
    fn id(&self) -> Option<Id> {
        self.span.as_ref().and_then(|span| span.id())
    }

    /// Returns `true` if no subscriber receives that the lock was acquired.
    pub(crate) fn is_silent(&self) -> bool {
        self.span.is_none() && !tracing::enabled!(target: "dlock", tracing::Level::DEBUG)
    }

    /// Records that the call acquired the lock.
    pub(crate) fn acquired(&self, key: &LockKey, attempts_and_wait: impl FnOnce() -> (u32, Duration)) {
        if self.is_silent() {
            return;
        }
        let (attempts, waited) = attempts_and_wait();
        self.record(attempts, waited);
        tracing::debug!(name: "dlock.acquired", target: "dlock", parent: self.id(), { lock.key = shown(key) }, "dlock.acquired");
    }

    /// Records that the call failed to acquire the lock.
    pub(crate) fn not_acquired(&self, error: &Error, limits: ManagerLimits<'_>) {
        self.outcome(error_outcome(error));
        if let Error::Unavailable { key: Some(key), reason, .. } = error
            && tracing::enabled!(target: "dlock", tracing::Level::WARN)
            && let Some(suppressed) = admit(limits, |limits| &limits.unavailable)
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

    /// Records that the lock was lost while the body ran.
    pub(crate) fn lost(&self, key: &LockKey, loss: Loss) {
        self.outcome("lost");
        let _entered = self.enter();
        guard_lost(key, loss);
    }

    /// Records that the body runs without the lock because of `error`.
    pub(crate) fn ran_without_lock(&self, key: &LockKey, error: &Error) {
        self.outcome("ran_without_lock");
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

    /// Records that the lock was released, or handed off to another task.
    pub(crate) fn released(&self) {
        self.outcome("released");
    }

    /// Records the reply to the release, or its absence. `held` returns how long the lock was held.
    pub(crate) fn record_release(&self, key: &LockKey, reply: &Reply, held: impl FnOnce() -> Duration) {
        match reply {
            Reply::Owner => self.released(),
            Reply::NotOwner => self.lost(key, (LossCause::NotOwner, held())),
            reply => self.release_failed(key, reply),
        }
    }

    /// The same for a background release, whose reply may arrive inside the span of another call.
    pub(crate) fn record_background_release(
        &self,
        key: &LockKey,
        reply: &Reply,
        held: impl FnOnce() -> Duration,
    ) {
        if let Reply::NotOwner = reply {
            self.outcome("lost");
            lost(self.id(), key, (LossCause::NotOwner, held()));
        } else {
            self.record_release(key, reply, held);
        }
    }

    /// Records that the server did not confirm the release.
    fn release_failed(&self, key: &LockKey, reply: &Reply) {
        self.outcome("release_failed");
        let reason = match reply {
            Reply::Refused(failure) | Reply::Unknown(failure) => &*failure.reason,
            _ => "not the owner",
        };
        tracing::warn!(name: "dlock.release_failed", target: "dlock", parent: self.id(), { lock.key = shown(key), lock.reason = reason }, "dlock.release_failed");
    }

    /// Records that the call's value replaces an error that its return type cannot carry. Only
    /// "unavailable" is limited: a loss is always emitted.
    pub(crate) fn swallowed(&self, error: &Error, limits: ManagerLimits<'_>) {
        let limited = || admit(limits, |limits| &limits.swallowed);
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

    /// Records that the call has ended and a guard holds the lock.
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

/// The limits of a manager and their clock; `None` if the call used no manager.
type ManagerLimits<'a> = Option<(&'a EventLimits, &'a Clock)>;

/// Returns how many events were suppressed since the last one; `None` if this one is suppressed.
fn admit(limits: ManagerLimits<'_>, limit: impl FnOnce(&EventLimits) -> &EventLimit) -> Option<u64> {
    limits.map_or(Some(0), |(limits, clock)| limit(limits).admit(clock.now()))
}

/// Returns a key as a field; `None` if it contains a value marked `|hash`.
fn shown(key: &LockKey) -> Option<field::DisplayValue<&LockKey>> {
    (!key.is_hashed()).then(|| field::display(key))
}

/// Returns the text of an error as a field; `None` if it names a key with a value marked `|hash`.
fn error_text(error: &Error) -> Option<field::DisplayValue<&Error>> {
    error.key().is_none_or(|key| !key.is_hashed()).then(|| field::display(error))
}

/// Records that a web client got an error without its details. The current span identifies the
/// request.
#[cfg(any(feature = "actix", feature = "axum", feature = "tonic", feature = "tower"))]
pub(crate) fn answered(error: &Error) {
    // `tracing` needs a constant level, so that a subscriber can disable an event for good. Hence
    // two events.
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

/// Records that a lock was lost. The current span, if any, identifies the call.
pub(crate) fn guard_lost(key: &LockKey, loss: Loss) {
    lost(Span::current().id(), key, loss);
}

fn lost(parent: Option<Id>, key: &LockKey, (cause, held): Loss) {
    if cause == LossCause::MaxHold {
        tracing::warn!(
            name: "dlock.max_hold_reached",
            target: "dlock",
            parent: parent,
            { lock.key = shown(key), lock.held_ms = millis(held) },
            "dlock.max_hold_reached"
        );
        return;
    }
    tracing::error!(
        name: "dlock.lost",
        target: "dlock",
        parent: parent,
        { lock.key = shown(key), lock.held_ms = millis(held), lock.cause = ?cause },
        "dlock.lost"
    );
}

/// Records that this process leads.
pub(crate) fn term_started(key: &LockKey, term: u64) {
    tracing::info!(name: "dlock.term_started", target: "dlock", { lock.key = shown(key), term }, "dlock.term_started");
}

/// Records that the term of this process has ended.
pub(crate) fn term_ended(key: &LockKey, term: u64) {
    tracing::info!(name: "dlock.term_ended", target: "dlock", { lock.key = shown(key), term }, "dlock.term_ended");
}

/// Records that a tick of a job runs here.
#[cfg(feature = "scheduled")]
pub(crate) fn job_started(key: &LockKey, slot: u64, attempt: u32) {
    tracing::info!(
        name: "dlock.job_started",
        target: "dlock",
        { lock.key = shown(key), job.slot = slot, job.attempt = attempt },
        "dlock.job_started"
    );
}

/// Records that the body of a job has ended.
#[cfg(feature = "scheduled")]
pub(crate) fn job_finished(key: &LockKey, slot: u64, outcome: &str, error: &str) {
    if error.is_empty() {
        tracing::info!(
            name: "dlock.job_finished",
            target: "dlock",
            { lock.key = shown(key), job.slot = slot, job.outcome = outcome },
            "dlock.job_finished"
        );
    } else {
        tracing::warn!(
            name: "dlock.job_finished",
            target: "dlock",
            { lock.key = shown(key), job.slot = slot, job.outcome = outcome, job.error = error },
            "dlock.job_finished"
        );
    }
}

/// Records that a tick of a job does not run here.
#[cfg(feature = "scheduled")]
pub(crate) fn job_skipped(key: &LockKey, reason: &str) {
    tracing::debug!(name: "dlock.job_skipped", target: "dlock", { lock.key = shown(key), lock.reason = reason }, "dlock.job_skipped");
}

/// Records that no process started ticks in time.
#[cfg(feature = "scheduled")]
pub(crate) fn job_missed(key: &LockKey, missed: u64) {
    tracing::warn!(name: "dlock.job_missed", target: "dlock", { lock.key = shown(key), missed }, "dlock.job_missed");
}

/// Records that another run had replaced a run before its end was recorded.
#[cfg(feature = "scheduled")]
pub(crate) fn job_end_ignored(key: &LockKey) {
    tracing::error!(name: "dlock.job_end_ignored", target: "dlock", { lock.key = shown(key) }, "dlock.job_end_ignored");
}

/// Records that the last tick of a job is ahead of the server's clock.
#[cfg(feature = "scheduled")]
pub(crate) fn job_slot_ahead(key: &LockKey, ahead: Duration) {
    let ahead_ms = millis(ahead);
    tracing::error!(name: "dlock.job_slot_ahead", target: "dlock", { lock.key = shown(key), ahead_ms }, "dlock.job_slot_ahead");
}

/// Records that another replica ran the job with another schedule.
#[cfg(feature = "scheduled")]
pub(crate) fn schedule_mismatched(key: &LockKey, own: &str, other: &str) {
    tracing::warn!(name: "dlock.schedule_mismatched", target: "dlock", { lock.key = shown(key), own, other }, "dlock.schedule_mismatched");
}

/// Returns the span of an idempotent call. `name` is the name of its function.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_span(name: &str, key: Option<&LockKey>) -> Span {
    tracing::info_span!(
        target: "dlock",
        "dlock.idempotent",
        lock.name = name,
        lock.key = key.and_then(shown),
        lock.outcome = field::Empty,
    )
}

/// Records in the current span how an idempotent call begins: `true` if it is replayed.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_begun(begun: std::result::Result<bool, &Error>) {
    Span::current().record(
        "lock.outcome",
        match begun {
            Ok(false) => "started",
            Ok(true) => "replayed",
            Err(error) => error_outcome(error),
        },
    );
}

/// Records that the body of an idempotent call runs without a record because of `error`.
#[cfg(feature = "idempotent")]
pub(crate) fn ran_without_record(key: &LockKey, error: &Error) {
    let reason = match error {
        Error::Unavailable { reason, .. } => Some(&**reason),
        _ => None,
    };
    tracing::error!(
        name: "dlock.ran_without_record",
        target: "dlock",
        { lock.key = shown(key), lock.reason = reason },
        "dlock.ran_without_record"
    );
}

/// Records that a call or a step has completed, and its result is too large or cannot be
/// serialized.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_result_not_stored(key: &LockKey, step: Option<&str>) {
    tracing::error!(
        name: "dlock.result_not_stored",
        target: "dlock",
        { lock.key = shown(key), lock.step = step },
        "dlock.result_not_stored"
    );
}

/// Records that the end of a call has no reply, and is stored in the background, as `pending` ends
/// of this manager are.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_end_pending(key: &LockKey, pending: usize) {
    tracing::warn!(
        name: "dlock.result_pending",
        target: "dlock",
        { lock.key = shown(key), lock.pending = pending },
        "dlock.result_pending"
    );
}

/// Records that the end of a call was not stored.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_result_lost(key: &LockKey, reason: &str) {
    from_the_actor(|| {
        tracing::error!(
            name: "dlock.result_lost",
            target: "dlock",
            { lock.key = shown(key), lock.reason = reason },
            "dlock.result_lost"
        );
    });
}

/// Records that the driver of a server has connected.
pub(crate) fn connected(server: &dyn std::fmt::Display, manager: &str, owner: &str) {
    from_the_actor(
        || tracing::info!(name: "dlock.connected", target: "dlock", { %server, manager, owner }, "dlock.connected"),
    );
}

/// Records that the driver of a server has lost its connection.
pub(crate) fn disconnected(reason: &str) {
    from_the_actor(
        || tracing::warn!(name: "dlock.disconnected", target: "dlock", reason, "dlock.disconnected"),
    );
}

/// Records that the server lacks a command that locks can do without.
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

/// Records that the server sends no notifications of grants of a namespace.
pub(crate) fn not_listening(namespace: &str, reason: &str) {
    from_the_actor(|| {
        tracing::info!(
            name: "dlock.subscribe_failed",
            target: "dlock",
            namespace,
            reason,
            "dlock.subscribe_failed"
        );
    });
}

/// Records that no call has used the override of the function `name`.
pub(crate) fn override_unused(name: &str) {
    tracing::warn!(name: "dlock.override_unused", target: "dlock", name, "dlock.override_unused");
}

/// Records that two namespaces in use can have a key in common.
pub(crate) fn namespaces_overlap(namespace: &str, other: &str) {
    tracing::info!(
        name: "dlock.namespaces_overlap",
        target: "dlock",
        namespace,
        other,
        "dlock.namespaces_overlap"
    );
}

/// Records that the server sends no notifications of changed keys.
pub(crate) fn not_tracking(reason: &str) {
    from_the_actor(
        || tracing::info!(name: "dlock.tracking_disabled", target: "dlock", reason, "dlock.tracking_disabled"),
    );
}

/// Records that the driver of a server panicked and is restarted.
pub(crate) fn actor_failed(error: &dyn std::fmt::Display) {
    from_the_actor(
        || tracing::error!(name: "dlock.driver_panicked", target: "dlock", { %error }, "dlock.driver_panicked"),
    );
}

/// Emits an event. A subscriber that panics must not end the thread that renews all leases.
fn from_the_actor(tell: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell));
}

fn error_outcome(error: &Error) -> &'static str {
    match error {
        Error::Contended { .. } => "contended",
        Error::Lost { .. } => "lost",
        Error::Unavailable { .. } => "unavailable",
        Error::Shutdown { .. } => "shutdown",
        Error::Deadlock { .. } => "deadlock",
        Error::InProgress { .. } => "in_progress",
        Error::KeyReused { .. } => "key_reused",
        Error::OutcomeUnknown { .. } => "outcome_unknown",
        Error::ResultNotStored { .. } => "result_not_stored",
        Error::Undecodable { .. } => "undecodable",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_events_are_emitted_once_per_second_with_a_count() {
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
    fn one_of_many_threads_emits_a_limited_event() {
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
