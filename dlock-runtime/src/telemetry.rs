//! The spans and events of a call. Their names are fixed.
//!
//! [`docs::operating`](crate::docs::operating#tracing) lists them.
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

/// Emits an event, whose name is also its message.
macro_rules! event {
    ($level:ident, $name:literal, $(parent: $parent:expr,)? { $($fields:tt)* }) => {
        tracing::$level!(name: $name, target: "dlock", $(parent: $parent,)? { $($fields)* }, $name)
    };
}

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
        event!(debug, "dlock.acquired", parent: self.id(), { lock.key = shown(key) });
    }

    /// Records that the call failed to acquire the lock.
    pub(crate) fn not_acquired(&self, error: &Error, limits: ManagerLimits<'_>) {
        self.outcome(error_outcome(error));
        if let Error::Unavailable { key: Some(key), reason, .. } = error
            && tracing::enabled!(target: "dlock", tracing::Level::WARN)
            && let Some(suppressed) = admit(limits, |limits| &limits.unavailable)
        {
            let reason = &**reason;
            event!(warn, "dlock.unavailable", parent: self.id(), { lock.key = shown(key), lock.reason = reason, suppressed });
        }
        if let Error::Contended { key, attempts, waited, .. } = error {
            self.record(*attempts, *waited);
            event!(debug, "dlock.contended", parent: self.id(), { lock.key = shown(key), lock.attempts = *attempts });
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
        event!(error, "dlock.ran_without_lock", parent: self.id(), { lock.key = shown(key), lock.reason = reason(error) });
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
        event!(warn, "dlock.release_failed", parent: self.id(), { lock.key = shown(key), lock.reason = reason });
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
            event!(error, "dlock.error_suppressed", parent: self.id(), { lock.outcome = kind, error = error_text, suppressed });
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
            event!($level, "dlock.error_response", { lock.key = error.key().and_then(shown), lock.outcome = error_outcome(error), error = error_text(error) })
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
        event!(warn, "dlock.max_hold_reached", parent: parent, { lock.key = shown(key), lock.held_ms = millis(held) });
        return;
    }
    event!(error, "dlock.lost", parent: parent, { lock.key = shown(key), lock.held_ms = millis(held), lock.cause = ?cause });
}

/// Records that this process leads.
pub(crate) fn term_started(key: &LockKey, term: u64) {
    event!(info, "dlock.term_started", { lock.key = shown(key), term });
}

/// Records that the term of this process has ended.
pub(crate) fn term_ended(key: &LockKey, term: u64) {
    event!(info, "dlock.term_ended", { lock.key = shown(key), term });
}

/// Records that a tick of a job runs here.
#[cfg(feature = "scheduled")]
pub(crate) fn job_started(key: &LockKey, slot: u64, attempt: u32) {
    event!(info, "dlock.job_started", { lock.key = shown(key), job.slot = slot, job.attempt = attempt });
}

/// Records that the body of a job has ended.
#[cfg(feature = "scheduled")]
pub(crate) fn job_finished(key: &LockKey, slot: u64, outcome: &str, error: &str) {
    if error.is_empty() {
        event!(info, "dlock.job_finished", { lock.key = shown(key), job.slot = slot, job.outcome = outcome });
    } else {
        event!(warn, "dlock.job_finished", { lock.key = shown(key), job.slot = slot, job.outcome = outcome, job.error = error });
    }
}

/// Records that a tick of a job does not run here.
#[cfg(feature = "scheduled")]
pub(crate) fn job_skipped(key: &LockKey, reason: &str) {
    event!(debug, "dlock.job_skipped", { lock.key = shown(key), lock.reason = reason });
}

/// Records that no process started ticks in time.
#[cfg(feature = "scheduled")]
pub(crate) fn job_missed(key: &LockKey, missed: u64) {
    event!(warn, "dlock.job_missed", { lock.key = shown(key), missed });
}

/// Records that another run had replaced a run before its end was recorded.
#[cfg(feature = "scheduled")]
pub(crate) fn job_end_ignored(key: &LockKey) {
    event!(error, "dlock.job_end_ignored", { lock.key = shown(key) });
}

/// Records that the last tick of a job is ahead of the server's clock.
#[cfg(feature = "scheduled")]
pub(crate) fn job_slot_ahead(key: &LockKey, ahead: Duration) {
    let ahead_ms = millis(ahead);
    event!(error, "dlock.job_slot_ahead", { lock.key = shown(key), ahead_ms });
}

/// Records that another replica ran the job with another schedule.
#[cfg(feature = "scheduled")]
pub(crate) fn schedule_mismatched(key: &LockKey, own: &str, other: &str) {
    event!(warn, "dlock.schedule_mismatched", { lock.key = shown(key), own, other });
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
    event!(error, "dlock.ran_without_record", { lock.key = shown(key), lock.reason = reason(error) });
}

/// Records that a call or a step has completed, and its result is too large or cannot be
/// serialized.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_result_not_stored(key: &LockKey, step: Option<&str>) {
    event!(error, "dlock.result_not_stored", { lock.key = shown(key), lock.step = step });
}

/// Records that the end of a call has no reply, and is stored in the background, as `pending` ends
/// of this manager are.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_end_pending(key: &LockKey, pending: usize) {
    event!(warn, "dlock.result_pending", { lock.key = shown(key), lock.pending = pending });
}

/// Records that the end of a call was not stored.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_result_lost(key: &LockKey, reason: &str) {
    from_the_actor(|| {
        event!(error, "dlock.result_lost", { lock.key = shown(key), lock.reason = reason });
    });
}

/// Records that the driver of a server has connected.
pub(crate) fn connected(server: &dyn std::fmt::Display, manager: &str, owner: &str) {
    from_the_actor(|| event!(info, "dlock.connected", { %server, manager, owner }));
}

/// Records that the driver of a server has lost its connection.
pub(crate) fn disconnected(reason: &str) {
    from_the_actor(|| event!(warn, "dlock.disconnected", { reason }));
}

/// Records that the server lacks a command that locks can do without.
pub(crate) fn command_unsupported(
    server: &dyn std::fmt::Display,
    command: &str,
    reason: &dyn std::fmt::Display,
) {
    from_the_actor(|| {
        event!(info, "dlock.command_unsupported", { %server, command, %reason });
    });
}

/// Records that the server sends no notifications of grants of a namespace.
pub(crate) fn not_listening(namespace: &str, reason: &str) {
    from_the_actor(|| {
        event!(info, "dlock.subscribe_failed", { namespace, reason });
    });
}

/// Records that a manager of `memory://` was created.
pub(crate) fn in_process_only(store: Option<&str>) {
    event!(warn, "dlock.in_process_only", { store, scope = "this process alone" });
}

/// Records that no call has used the override of the function `name`.
pub(crate) fn override_unused(name: &str) {
    event!(warn, "dlock.override_unused", { name });
}

/// Records that two namespaces in use can have a key in common.
pub(crate) fn namespaces_overlap(namespace: &str, other: &str) {
    event!(info, "dlock.namespaces_overlap", { namespace, other });
}

/// Records that the server sends no notifications of changed keys.
pub(crate) fn not_tracking(reason: &str) {
    from_the_actor(|| event!(info, "dlock.tracking_disabled", { reason }));
}

/// Records that the driver of a server panicked and is restarted.
pub(crate) fn actor_failed(error: &dyn std::fmt::Display) {
    from_the_actor(|| event!(error, "dlock.driver_panicked", { %error }));
}

/// Emits an event. A subscriber that panics must not end the thread that renews all leases.
fn from_the_actor(tell: impl FnOnce()) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell));
}

/// Returns why the server was unavailable.
fn reason(error: &Error) -> Option<&str> {
    if let Error::Unavailable { reason, .. } = error { Some(reason) } else { None }
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
    fn the_guide_lists_every_event_with_its_level() {
        let (guide, source) = (include_str!("docs/operating.md"), include_str!("telemetry.rs"));
        let events = source.split("event!(").filter_map(|call| call.split_once(", \"dlock."));
        let events = events.filter(|(level, _)| level.chars().all(|c| c.is_ascii_lowercase() || c == '$'));

        let mut count = 0;
        for (level, rest) in events {
            let name = rest.split('"').next().unwrap_or_default();
            let row = guide.lines().find(|line| line.starts_with(&format!("| `dlock.{name}` |")));
            let row = row.unwrap_or_else(|| panic!("the guide on operating has no event `dlock.{name}`"));
            let levels = row.split(" | ").nth(1).unwrap_or_default();
            assert!(level == "$level" || levels.contains(level), "`dlock.{name}` is {level}, not {levels}");
            count += 1;
        }
        assert!(count > 30, "{count} events");
    }

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
