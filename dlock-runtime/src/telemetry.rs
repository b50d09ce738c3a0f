//! The spans and events of a call. Their names are fixed.
//!
//! [`docs::operating`](crate::docs::operating#tracing) lists them.
//!
//! Events carry fields, never sentences. No event contains a token or a password.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::span::Id;
use tracing::{Span, field};

use crate::clock::{Clock, millis};
use crate::error::{Error, Loss, LossCause};
use crate::key::LockKey;
#[cfg(feature = "scheduled")]
use crate::printable::shortened;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;
use crate::sync::lock;

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
    failed_renewals: ReasonLimit,
}

impl EventLimits {
    /// Returns how many failed renewals were suppressed since the last event; `None` if this one is
    /// suppressed.
    pub(crate) fn admit_failed_renewal(&self, reason: &Arc<str>, now: BootInstant) -> Option<u64> {
        self.failed_renewals.admit(reason, now)
    }

    /// Records that a renewal was answered: the next failure is an event, whatever its reason.
    pub(crate) fn on_renewed(&self) {
        self.failed_renewals.reset();
    }
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

/// Limits one kind of event to one for each change of its reason, and one per minute without a
/// change.
#[derive(Debug, Default)]
struct ReasonLimit {
    /// The reason and the time of the last event, until there is a success.
    last: Mutex<Option<(Arc<str>, BootInstant)>>,
    /// Whether there is one, readable without the mutex.
    has_last: AtomicBool,
    /// Applies if different reasons, or failures and successes, alternate.
    limit: EventLimit,
}

impl ReasonLimit {
    /// Returns how many events were suppressed since the last one; `None` if this one is
    /// suppressed.
    fn admit(&self, reason: &Arc<str>, now: BootInstant) -> Option<u64> {
        let mut last = lock(&self.last);
        if last.as_ref().is_some_and(|(last, at)| last == reason && now.since(*at) < REASON_INTERVAL) {
            self.limit.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let suppressed = self.limit.admit(now)?;
        *last = Some((Arc::clone(reason), now));
        self.has_last.store(true, Ordering::Relaxed);
        Some(suppressed)
    }

    /// Forgets the last reason.
    fn reset(&self) {
        if self.has_last.load(Ordering::Relaxed) && self.has_last.swap(false, Ordering::Relaxed) {
            *lock(&self.last) = None;
        }
    }
}

/// The minimum time between two events of one kind and reason.
const REASON_INTERVAL: Duration = Duration::from_secs(60);

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
        unavailable(self.id(), error, limits);
        if let Error::Contended { key, attempts, waited, .. } = error {
            self.record(*attempts, *waited);
            event!(debug, "dlock.contended", parent: self.id(), { lock.key = shown(key), lock.attempts = *attempts });
        }
    }

    /// Records that the lock was lost while the body ran. `reason`: why the last renewal failed.
    pub(crate) fn lost(&self, key: &LockKey, loss: Loss, reason: Option<&str>) {
        self.outcome("lost");
        let _entered = self.enter();
        guard_lost(key, loss, reason);
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
            Reply::NotOwner => self.lost(key, (LossCause::NotOwner, held()), None),
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
            lost(self.id(), key, (LossCause::NotOwner, held()), None);
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

/// Records that a lock was lost. The current span, if any, identifies the call. `reason`: why the
/// last renewal failed.
pub(crate) fn guard_lost(key: &LockKey, loss: Loss, reason: Option<&str>) {
    lost(Span::current().id(), key, loss, reason);
}

fn lost(parent: Option<Id>, key: &LockKey, (cause, held): Loss, reason: Option<&str>) {
    if cause == LossCause::MaxHold {
        event!(warn, "dlock.max_hold_reached", parent: parent, { lock.key = shown(key), lock.held_ms = millis(held) });
        return;
    }
    event!(error, "dlock.lost", parent: parent, { lock.key = shown(key), lock.held_ms = millis(held), lock.cause = ?cause, lock.reason = reason });
}

/// Records that a renewal of a hold or of a record failed. Another call's span may be the current
/// one.
pub(crate) fn renewal_failed(reason: &str, suppressed: u64) {
    from_the_actor(|| {
        event!(warn, "dlock.renewal_failed", parent: None::<Id>, { lock.reason = reason, suppressed });
    });
}

/// Records that a task which repeats its requests found the server unavailable. Other errors are
/// returned to its owner.
pub(crate) fn task_unavailable(error: &Error, limits: (&EventLimits, &Clock)) {
    unavailable(Span::current().id(), error, Some(limits));
}

fn unavailable(parent: Option<Id>, error: &Error, limits: ManagerLimits<'_>) {
    if let Error::Unavailable { key: Some(key), reason, .. } = error
        && tracing::enabled!(target: "dlock", tracing::Level::WARN)
        && let Some(suppressed) = admit(limits, |limits| &limits.unavailable)
    {
        let reason = &**reason;
        event!(warn, "dlock.unavailable", parent: parent, { lock.key = shown(key), lock.reason = reason, suppressed });
    }
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

/// Records that the body of a job has ended, with its error unless it has succeeded.
#[cfg(feature = "scheduled")]
pub(crate) fn job_finished(key: &LockKey, slot: u64, outcome: &str, error: Option<&str>) {
    if let Some(error) = error {
        event!(warn, "dlock.job_finished", { lock.key = shown(key), job.slot = slot, job.outcome = outcome, job.error = error });
    } else {
        event!(info, "dlock.job_finished", { lock.key = shown(key), job.slot = slot, job.outcome = outcome });
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

/// Records that the end of a run was not recorded.
#[cfg(feature = "scheduled")]
pub(crate) fn job_end_ignored(key: &LockKey, reason: &str) {
    from_the_actor(|| {
        event!(error, "dlock.job_end_ignored", { lock.key = shown(key), lock.reason = reason });
    });
}

/// Records that the last slot of a job is ahead of the server's clock, and blocks later ones.
#[cfg(feature = "scheduled")]
pub(crate) fn job_slot_ahead(key: &LockKey, ahead: Duration) {
    let ahead_ms = millis(ahead);
    event!(error, "dlock.job_slot_ahead", { lock.key = shown(key), ahead_ms });
}

/// Records that the last request for a job had another schedule.
#[cfg(feature = "scheduled")]
pub(crate) fn schedule_mismatched(key: &LockKey, own: &str, other: &str) {
    let other = &*shortened(other);
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

/// Records that the end of a call has no reply because of `reason`, and is stored in the
/// background, as `pending` ends of this manager are.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_end_pending(key: &LockKey, pending: usize, reason: &str) {
    event!(warn, "dlock.result_pending", { lock.key = shown(key), lock.pending = pending, lock.reason = reason });
}

/// Records that the end of a call, or the result of a step, was not stored.
#[cfg(feature = "idempotent")]
pub(crate) fn idempotent_result_lost(key: &LockKey, step: Option<&str>, reason: &str) {
    from_the_actor(|| {
        event!(error, "dlock.result_lost", { lock.key = shown(key), lock.step = step, lock.reason = reason });
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
    let (_, outcome, ..) = error.codes();
    outcome
}

/// Sets the subscriber of this thread, until the returned guard is dropped.
///
/// There is always another one as well. If a process has only one, `tracing` disables an event that
/// a thread without a subscriber emits first, for all threads.
#[cfg(test)]
pub(crate) fn set_subscriber(
    subscriber: impl tracing::Subscriber + Send + Sync + 'static,
) -> tracing::subscriber::DefaultGuard {
    use std::sync::LazyLock;

    use tracing::Dispatch;
    use tracing::subscriber::{NoSubscriber, set_default};

    static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
    LazyLock::force(&OTHER);
    set_default(subscriber)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use crate::key::KeyBuilder;
    use crate::protocol::command::{Failure, FailureKind};
    use crate::sync::lock;

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

    /// Records events, and what is recorded in spans, one line each.
    #[derive(Clone, Debug)]
    struct LineRecorder {
        lines: Arc<Mutex<Vec<String>>>,
        /// The last level that is enabled, and whether spans are.
        enabled: (Level, bool),
    }

    impl LineRecorder {
        fn add(&self, line: String) {
            lock(&self.lines).push(line);
        }
    }

    impl Subscriber for LineRecorder {
        fn enabled(&self, of: &Metadata<'_>) -> bool {
            *of.level() <= self.enabled.0 && (!of.is_span() || self.enabled.1)
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            let mut line = Line(format!("new {}", span.metadata().name()));
            span.record(&mut line);
            self.add(line.0);
            Id::from_u64(7)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            let mut line = Line("span".to_owned());
            values.record(&mut line);
            self.add(line.0);
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let of = event.metadata();
            assert_eq!(of.target(), "dlock");
            let mut line = Line(format!("{} {}", of.level(), of.name()));
            event.record(&mut line);
            if let Some(parent) = event.parent() {
                let _ = write!(line.0, " in {}", parent.into_u64());
            }
            self.add(line.0);
        }

        fn enter(&self, _: &Id) {
            self.add("enter".to_owned());
        }

        fn exit(&self, _: &Id) {
            self.add("exit".to_owned());
        }
    }

    /// The fields of one event or span.
    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() != "message" {
                let _ = write!(self.0, " {}={value:?}", field.name());
            }
        }
    }

    /// Returns what `tell` emits, for a subscriber with these levels and with or without spans.
    fn emitted_at(level: Level, has_spans: bool, tell: impl FnOnce()) -> Vec<String> {
        let recorder = LineRecorder { lines: Arc::default(), enabled: (level, has_spans) };
        let subscriber = set_subscriber(recorder.clone());
        tell();
        drop(subscriber);
        std::mem::take(&mut *lock(&recorder.lines))
    }

    /// Returns all that `tell` emits, one line each.
    pub(crate) fn emitted(tell: impl FnOnce()) -> Vec<String> {
        emitted_at(Level::TRACE, true, tell)
    }

    fn key() -> LockKey {
        LockKey::new("order:7").expect("a key")
    }

    fn hashed_key() -> LockKey {
        KeyBuilder::new("").text("order:").hashed("id", "7").build().expect("a key")
    }

    fn unavailable(key: Option<LockKey>) -> Error {
        Error::Unavailable { key, reason: "no connection".into() }
    }

    fn contended() -> Error {
        Error::Contended { key: key(), attempts: 3, waited: SECOND, remaining: None }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn events_have_their_levels_and_fields() {
        let (key, lost) = (key(), |cause| (cause, SECOND));
        let emitted = emitted(|| {
            guard_lost(&key, lost(LossCause::Expired), None);
            guard_lost(&key, lost(LossCause::Expired), Some("NOREPLICAS"));
            guard_lost(&key, lost(LossCause::MaxHold), None);
            renewal_failed("NOREPLICAS", 2);
            term_started(&key, 3);
            term_ended(&key, 3);
            connected(&"redis at h", "dl-1", "web-1");
            disconnected("closed");
            command_unsupported(&"redis at h", "WAIT", &"unknown command");
            not_listening("shop", "no permission");
            in_process_only(None);
            in_process_only(Some("orders"));
            override_unused("nightly");
            namespaces_overlap("shop", "shop:eu");
            not_tracking("unknown command");
            actor_failed(&"a panic");
        });

        assert_eq!(
            emitted,
            [
                "ERROR dlock.lost lock.key=order:7 lock.held_ms=1000 lock.cause=Expired",
                r#"ERROR dlock.lost lock.key=order:7 lock.held_ms=1000 lock.cause=Expired lock.reason="NOREPLICAS""#,
                "WARN dlock.max_hold_reached lock.key=order:7 lock.held_ms=1000",
                r#"WARN dlock.renewal_failed lock.reason="NOREPLICAS" suppressed=2"#,
                "INFO dlock.term_started lock.key=order:7 term=3",
                "INFO dlock.term_ended lock.key=order:7 term=3",
                r#"INFO dlock.connected server=redis at h manager="dl-1" owner="web-1""#,
                r#"WARN dlock.disconnected reason="closed""#,
                r#"INFO dlock.command_unsupported server=redis at h command="WAIT" reason=unknown command"#,
                r#"INFO dlock.subscribe_failed namespace="shop" reason="no permission""#,
                r#"WARN dlock.in_process_only scope="this process alone""#,
                r#"WARN dlock.in_process_only store="orders" scope="this process alone""#,
                r#"WARN dlock.override_unused name="nightly""#,
                r#"INFO dlock.namespaces_overlap namespace="shop" other="shop:eu""#,
                r#"INFO dlock.tracking_disabled reason="unknown command""#,
                "ERROR dlock.driver_panicked error=a panic",
            ]
        );
    }

    #[cfg(feature = "scheduled")]
    #[test]
    fn events_of_jobs_have_their_levels_and_fields() {
        let key = key();
        let emitted = emitted(|| {
            job_started(&key, 9, 2);
            job_finished(&key, 9, "ok", None);
            job_finished(&key, 9, "failed", Some("no disk"));
            job_skipped(&key, "it runs elsewhere");
            job_missed(&key, 4);
            job_end_ignored(&key, "no reply");
            job_slot_ahead(&key, SECOND);
            schedule_mismatched(&key, "1m", "2m");
        });

        assert_eq!(
            emitted,
            [
                "INFO dlock.job_started lock.key=order:7 job.slot=9 job.attempt=2",
                r#"INFO dlock.job_finished lock.key=order:7 job.slot=9 job.outcome="ok""#,
                r#"WARN dlock.job_finished lock.key=order:7 job.slot=9 job.outcome="failed" job.error="no disk""#,
                r#"DEBUG dlock.job_skipped lock.key=order:7 lock.reason="it runs elsewhere""#,
                "WARN dlock.job_missed lock.key=order:7 missed=4",
                r#"ERROR dlock.job_end_ignored lock.key=order:7 lock.reason="no reply""#,
                "ERROR dlock.job_slot_ahead lock.key=order:7 ahead_ms=1000",
                r#"WARN dlock.schedule_mismatched lock.key=order:7 own="1m" other="2m""#,
            ]
        );
    }

    #[cfg(feature = "idempotent")]
    #[test]
    fn events_of_idempotent_calls_have_their_levels_and_fields() {
        let key = key();
        let emitted = emitted(|| {
            ran_without_record(&key, &unavailable(None));
            idempotent_result_not_stored(&key, None);
            idempotent_result_not_stored(&key, Some("pay"));
            idempotent_end_pending(&key, 2, "no reply");
            idempotent_result_lost(&key, None, "the record has expired");
            idempotent_result_lost(&key, Some("pay"), "no reply");
            let span = idempotent_span("charge", Some(&key));
            span.in_scope(|| {
                idempotent_begun(Ok(false));
                idempotent_begun(Ok(true));
                idempotent_begun(Err(&contended()));
            });
        });

        assert_eq!(
            emitted,
            [
                r#"ERROR dlock.ran_without_record lock.key=order:7 lock.reason="no connection""#,
                "ERROR dlock.result_not_stored lock.key=order:7",
                r#"ERROR dlock.result_not_stored lock.key=order:7 lock.step="pay""#,
                r#"WARN dlock.result_pending lock.key=order:7 lock.pending=2 lock.reason="no reply""#,
                r#"ERROR dlock.result_lost lock.key=order:7 lock.reason="the record has expired""#,
                r#"ERROR dlock.result_lost lock.key=order:7 lock.step="pay" lock.reason="no reply""#,
                r#"new dlock.idempotent lock.name="charge" lock.key=order:7"#,
                "enter",
                "exit",
            ]
        );
    }

    #[cfg(any(feature = "actix", feature = "axum", feature = "tonic", feature = "tower"))]
    #[test]
    fn an_error_that_a_client_caused_is_no_error_event() {
        let emitted = emitted(|| {
            answered(&Error::NotInstalled {});
            answered(&contended());
        });

        let (levels, outcomes): (Vec<_>, Vec<_>) =
            emitted.iter().filter_map(|line| line.split_once(' ')).unzip();
        assert_eq!(levels, ["ERROR", "DEBUG"]);
        assert!(
            outcomes[0].contains(r#"lock.outcome="error""#) && outcomes[1].contains("order:7"),
            "{outcomes:?}"
        );
    }

    #[test]
    fn a_call_records_how_it_ended_in_its_span() {
        let key = key();
        let outcome = |tell: &dyn Fn(&CallSpan)| {
            let span = std::cell::OnceCell::new();
            let mut lines = emitted(|| tell(span.get_or_init(|| CallSpan::begin(Some("place"), Some(&key)))));
            assert_eq!(lines.remove(0), r#"new dlock.hold lock.name="place" lock.key=order:7"#);
            lines.retain(|line| line != "enter" && line != "exit");
            lines
        };
        let failure = || Failure::new(FailureKind::Passing, "no reply");
        let held = || SECOND;
        let lost = "ERROR dlock.lost lock.key=order:7 lock.held_ms=1000 lock.cause=NotOwner";
        let lost_in_span = format!("{lost} in 7");
        let failed =
            |reason| format!(r#"WARN dlock.release_failed lock.key=order:7 lock.reason="{reason}" in 7"#);

        for is_background in [false, true] {
            let ended = |reply| {
                outcome(&|span| {
                    if is_background {
                        span.record_background_release(&key, &reply, held);
                    } else {
                        span.record_release(&key, &reply, held);
                    }
                })
            };

            assert_eq!(ended(Reply::Owner), [r#"span lock.outcome="released""#]);
            for reply in [Reply::Unknown(failure()), Reply::Refused(failure())] {
                assert_eq!(ended(reply), [r#"span lock.outcome="release_failed""#, &*failed("no reply")]);
            }
            assert_eq!(
                ended(Reply::Contended),
                [r#"span lock.outcome="release_failed""#, &*failed("not the owner")]
            );
        }
        let not_owner = Reply::NotOwner;
        assert_eq!(
            outcome(&|span| span.record_background_release(&key, &not_owner, held)),
            [r#"span lock.outcome="lost""#, &*lost_in_span]
        );
        assert_eq!(
            outcome(&|span| span.record_release(&key, &not_owner, held))[0],
            r#"span lock.outcome="lost""#
        );
        assert_eq!(outcome(&CallSpan::guarded), [r#"span lock.outcome="guarded""#]);
        assert_eq!(outcome(&CallSpan::released), [r#"span lock.outcome="released""#]);
        assert_eq!(
            outcome(&|span| span.ran_without_lock(&key, &unavailable(None))),
            [
                r#"span lock.outcome="ran_without_lock""#,
                r#"ERROR dlock.ran_without_lock lock.key=order:7 lock.reason="no connection" in 7"#
            ]
        );
        assert_eq!(
            outcome(&|span| span.acquired(&key, || (2, SECOND))),
            ["span lock.attempts=2", "span lock.wait_ms=1000", "DEBUG dlock.acquired lock.key=order:7 in 7"]
        );
        assert_eq!(
            outcome(&|span| span.not_acquired(&contended(), None)),
            [
                r#"span lock.outcome="contended""#,
                "span lock.attempts=3",
                "span lock.wait_ms=1000",
                "DEBUG dlock.contended lock.key=order:7 lock.attempts=3 in 7"
            ]
        );
        assert_eq!(
            outcome(&|span| span.not_acquired(&unavailable(Some(key.clone())), None)),
            [
                r#"span lock.outcome="unavailable""#,
                r#"WARN dlock.unavailable lock.key=order:7 lock.reason="no connection" suppressed=0 in 7"#
            ]
        );
        assert_eq!(
            outcome(&|span| span.not_acquired(&unavailable(None), None)),
            [r#"span lock.outcome="unavailable""#],
            "it is not about a lock"
        );
    }

    #[test]
    fn a_call_is_silent_only_if_no_subscriber_receives_its_parts() {
        let is_silent = |level, has_spans| {
            let mut is_silent = false;
            drop(emitted_at(level, has_spans, || {
                let span = CallSpan::begin(None, Some(&key()));
                is_silent = span.is_silent();
                assert_eq!((span.id().is_some(), span.enter().is_some()), (has_spans, has_spans));
            }));
            is_silent
        };

        assert!(!is_silent(Level::INFO, true) && !is_silent(Level::DEBUG, true));
        assert!(!is_silent(Level::DEBUG, false), "`dlock.acquired` is received");
        assert!(is_silent(Level::INFO, false));
    }

    #[test]
    fn suppressed_errors_are_events_except_contention() {
        let limits = EventLimits::default();
        let clock = Clock::Set(Arc::default());
        let suppress = |errors: &[Error]| {
            let limits = Some((&limits, &clock));
            emitted(|| errors.iter().for_each(|error| CallSpan::none().swallowed(error, limits)))
        };
        let lost = || Error::Lost {
            key: key(),
            held: SECOND,
            cause: LossCause::Expired,
            completed: false,
            reason: None,
        };

        assert_eq!(suppress(&[contended()]), <[&str; 0]>::default());
        let losses = suppress(&[lost(), lost()]);
        assert_eq!(losses.len(), 2, "a loss is always emitted");
        assert!(
            losses.iter().all(|line| line.starts_with(
                r#"ERROR dlock.error_suppressed lock.outcome="lost" error=lock `order:7` was lost"#
            ) && line.ends_with("suppressed=0")),
            "{losses:?}"
        );
        let outage = suppress(&[unavailable(None), unavailable(None)]);
        assert_eq!(outage.len(), 1, "an outage is emitted once per second");
        let Clock::Set(now) = &clock else { unreachable!("it is set") };
        now.set(1_000_000_000);
        assert!(suppress(&[unavailable(None)])[0].ends_with("suppressed=1"));
    }

    #[test]
    fn failed_renewals_are_an_event_once_per_reason_until_a_success() {
        let limits = EventLimits::default();
        let admit = |seconds, reason: &str| {
            let now = BootInstant::START.plus(Duration::from_secs(seconds));
            limits.admit_failed_renewal(&reason.into(), now)
        };

        assert_eq!(admit(0, "NOREPLICAS"), Some(0));
        assert_eq!([admit(0, "NOREPLICAS"), admit(9, "NOREPLICAS")], [None; 2]);
        assert_eq!(admit(9, "OOM"), Some(2), "the reason has changed");
        assert_eq!(admit(9, "NOREPLICAS"), None, "at most one per second");
        limits.on_renewed();
        assert_eq!(admit(10, "OOM"), Some(1), "a renewal has succeeded");
        assert_eq!([admit(69, "OOM"), admit(70, "OOM")], [None, Some(1)], "once per minute");
    }

    #[test]
    fn hashed_values_are_in_no_event() {
        let key = hashed_key();
        let error = Error::Shutdown { key: Some(key.clone()) };
        let shut_down = Error::Shutdown { key: None };

        let emitted = emitted(|| {
            guard_lost(&key, (LossCause::Expired, SECOND), None);
            CallSpan::none().swallowed(&error, None);
            CallSpan::none().swallowed(&shut_down, None);
        });

        assert_eq!(
            emitted,
            [
                "ERROR dlock.lost lock.held_ms=1000 lock.cause=Expired",
                r#"ERROR dlock.error_suppressed lock.outcome="shutdown" suppressed=0"#,
                r#"ERROR dlock.error_suppressed lock.outcome="shutdown" error=the lock manager has been shut down suppressed=0"#,
            ]
        );
    }

    #[test]
    fn each_error_has_its_outcome() {
        for (error, outcome) in [
            (contended(), "contended"),
            (
                Error::Lost {
                    key: key(),
                    held: SECOND,
                    cause: LossCause::Expired,
                    completed: false,
                    reason: None,
                },
                "lost",
            ),
            (unavailable(None), "unavailable"),
            (Error::Shutdown { key: None }, "shutdown"),
            (Error::Deadlock { key: key(), held: key() }, "deadlock"),
            (Error::InProgress { key: key(), remaining: None }, "in_progress"),
            (Error::KeyReused { key: key(), function: None }, "key_reused"),
            (Error::OutcomeUnknown { key: key(), attempt: 1 }, "outcome_unknown"),
            (Error::ResultNotStored { key: key(), step: None }, "result_not_stored"),
            (Error::Undecodable { key: key(), problem: "of version 1".into() }, "undecodable"),
            (Error::NotInstalled {}, "error"),
        ] {
            assert_eq!(error_outcome(&error), outcome);
        }
    }

    #[test]
    fn a_subscriber_that_panics_does_not_end_the_driver() {
        from_the_actor(|| panic!("this panic is part of the test"));
    }
}
