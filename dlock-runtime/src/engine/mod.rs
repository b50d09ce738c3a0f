//! The engine: connects the state machines of `protocol` to waiting tasks and to a backend.
//!
//! ```text
//!  task --join, release--> [ shard: lock { key state --actions--> acquisitions, requests } ] --> backend
//!  task <--- wake -------- [                                                               ] <-- reply, grant, tick
//! ```
//!
//! Invariants:
//!
//! - The lock of a shard is held for one event and never across an await.
//! - Acquisitions change and requests are queued under that lock, so their order is that of the
//!   protocol.
//! - Tasks are woken and the backend is flushed with no lock held.
//!
//! | module | implements |
//! |---|---|
//! | `acquisition` | the state of one acquisition, with its deadline in `atomic_deadline` |
//! | `acquire_future` | the future that waits for the lock |
//! | `hold_guard` | the guard of a hold |
//! | `pending_release` | what happens to the reply to a release |
//! | `shard`, `key_table` | the states of all keys |
//! | `renewal_throttle` | the bound on renewals in flight |
//! | `renewal_failure` | why the last renewal failed: the reason of a loss |
//! | `effects` | what runs once no lock is held |
//! | `events` | what a backend reports: the engine's side of the port |
//! | `store_calls`, `call` | operations of features that are not locks: their state, and how they are sent |
//! | `late_start` | a start under a record that may take effect after it was undone |
//! | `renewed_lease` | the lease of a body that runs under a record, renewed while it runs |

pub(crate) mod acquire_future;
pub(crate) mod acquisition;
mod atomic_deadline;
pub(crate) mod call;
mod effects;
mod events;
pub(crate) mod hold_guard;
#[cfg(any(dlock_loom, dlock_shuttle))]
pub(crate) mod interleavings;
mod key_table;
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
pub(crate) mod late_start;
pub(crate) mod pending_release;
mod renewal_failure;
mod renewal_throttle;
#[cfg(any(feature = "idempotent", feature = "scheduled"))]
pub(crate) mod renewed_lease;
mod shard;
#[cfg(test)]
mod simulation;
pub(crate) mod store_calls;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod throttle_tests;
mod used_namespaces;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use crate::backend::event_effects::EventEffects;
use crate::backend::reply_recipient::ReplyRecipient;
use crate::backend::{Backend, Capabilities, Request};
use crate::clock::Clock;
use crate::engine::acquisition::{Acquisition, EndedAcquisition, SharedAcquisition};
use crate::engine::effects::Effects;
use crate::engine::key_table::KeyEntry;
use crate::engine::pending_release::{BackgroundReleaseLimit, PendingRelease, ReleaseReport, ReleasedBy};
use crate::engine::renewal_failure::RenewalFailures;
use crate::engine::renewal_throttle::RenewalThrottle;
use crate::engine::shard::{Shards, Slots};
use crate::engine::store_calls::StoreCalls;
use crate::engine::used_namespaces::UsedNamespaces;
use crate::error::{Error, Loss, LossCause};
use crate::fork::{FORKED, ForkDetector, forked_error, in_one_process};
use crate::key::{LockKey, Name};
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::deadlock::WaitGraph;
use crate::protocol::hold::ReleaseOutcome;
use crate::protocol::key_state::{Action, EventContext, KeyState};
use crate::protocol::stray_grants::StrayGrantFilter;
use crate::sync::shared::atomic::{AtomicBool, AtomicI64, Ordering};
use crate::telemetry::{self, EventLimits};
use crate::token::{Token, TokenSource};

/// The locks of one manager.
#[derive(Debug)]
pub(crate) struct Engine {
    shards: Shards,
    pub(crate) fork: ForkDetector,
    throttle: RenewalThrottle,
    pub(crate) clock: Clock,
    pub(crate) tokens: TokenSource,
    pub(crate) rules: ProtocolConfig,
    /// The default lease.
    pub(crate) lease: Duration,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) capabilities: Capabilities,
    /// The wait-for graph of nested calls.
    pub(crate) wait_graph: Mutex<WaitGraph>,
    stray_grants: Mutex<StrayGrantFilter>,
    closed: AtomicBool,
    /// The number of tasks that hold a lock.
    holders: AtomicI64,
    drained: tokio::sync::Notify,
    /// Releases in the background without a reply.
    background_releases: BackgroundReleaseLimit,
    /// Bounds on the events of calls that fail together.
    event_limits: EventLimits,
    used_namespaces: UsedNamespaces,
    /// The calls of features that are not locks.
    pub(crate) calls: Arc<StoreCalls>,
}

impl Engine {
    /// Creates the engine of a backend, and reports the backend's events to it.
    pub(crate) fn over(
        backend: Arc<dyn Backend>,
        clock: Clock,
        tokens: TokenSource,
        rules: ProtocolConfig,
        lease: Duration,
    ) -> Arc<Self> {
        let engine = Arc::new(Self::new(backend, clock, tokens, rules, lease));
        let events: Weak<Self> = Arc::downgrade(&engine);
        engine.backend.attach(events);
        engine
    }

    /// Creates an engine that does not receive the events of the backend.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Clock,
        tokens: TokenSource,
        rules: ProtocolConfig,
        lease: Duration,
    ) -> Self {
        let capabilities = backend.capabilities();
        Self {
            shards: Shards::new(),
            fork: ForkDetector::new(),
            throttle: RenewalThrottle::new(capabilities.max_renewals_in_flight),
            clock,
            tokens,
            rules: capabilities.apply_to(rules),
            lease,
            backend,
            capabilities,
            wait_graph: Mutex::default(),
            stray_grants: Mutex::new(StrayGrantFilter::new()),
            closed: AtomicBool::new(false),
            holders: AtomicI64::new(0),
            drained: tokio::sync::Notify::new(),
            background_releases: BackgroundReleaseLimit::default(),
            event_limits: EventLimits::default(),
            used_namespaces: UsedNamespaces::default(),
            calls: Arc::default(),
        }
    }

    /// Returns `true` if the current process was forked from the one that connected.
    ///
    /// Each entry point checks it first.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    /// Returns the bounds on the events of calls that fail together, and the clock that they use.
    pub(crate) fn event_limits(&self) -> (&EventLimits, &Clock) {
        (&self.event_limits, &self.clock)
    }

    /// Checks that the current process is the one that connected.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the current process was forked after that.
    pub(crate) fn in_own_process(&self, key: Option<&LockKey>) -> Result<(), Error> {
        if self.is_forked() { Err(forked_error(key.cloned())) } else { Ok(()) }
    }

    /// Polls `request` in the process that connected.
    ///
    /// In a forked process, `request` is neither polled nor dropped, since it may be in the list of
    /// a mutex that another thread held at the `fork`.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the current process was forked after it connected.
    pub(crate) async fn run_in_own_process<T>(
        &self,
        key: Option<&LockKey>,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut request = in_one_process(request);
        poll_fn(|cx| match self.in_own_process(key) {
            Ok(()) => Pin::new(&mut request).poll(cx),
            Err(forked) => Poll::Ready(Err(forked)),
        })
        .await
    }

    /// Returns the time, and brings the backend up to date.
    pub(crate) fn now(&self) -> BootInstant {
        let now = self.clock.now();
        self.backend.advance(now);
        now
    }

    /// Applies `event` to the state of `key` and runs its effects.
    pub(super) fn with_key<R>(
        &self,
        key: &Name,
        event: impl FnOnce(&mut KeyState<SharedAcquisition>, &mut EventContext<'_, SharedAcquisition>) -> R,
    ) -> R {
        self.with_key_now(self.now(), key, event)
    }

    /// Like [`with_key`](Self::with_key), but reuses a timestamp that the caller has already read.
    ///
    /// Reading the clock is measurable on the uncontended path.
    pub(super) fn with_key_now<R>(
        &self,
        now: BootInstant,
        key: &Name,
        event: impl FnOnce(&mut KeyState<SharedAcquisition>, &mut EventContext<'_, SharedAcquisition>) -> R,
    ) -> R {
        let mut tasks = EventEffects::default();
        let mut effects = Effects::new(&mut tasks);
        let result = self.with_key_at(key, now, &mut effects, event);
        self.run_effects(now, &mut effects);
        result
    }

    fn with_key_at<R>(
        &self,
        key: &Name,
        now: BootInstant,
        effects: &mut Effects<'_>,
        event: impl FnOnce(&mut KeyState<SharedAcquisition>, &mut EventContext<'_, SharedAcquisition>) -> R,
    ) -> R {
        let (shard, hash) = self.shards.of_key(key);
        shard.change(effects, |slots, effects| self.with_locked(slots, (key, hash), now, effects, event))
    }

    /// Applies `event` to a key of a locked shard.
    fn with_locked<R>(
        &self,
        slots: &mut Slots,
        (key, hash): (&Name, u64),
        now: BootInstant,
        effects: &mut Effects<'_>,
        event: impl FnOnce(&mut KeyState<SharedAcquisition>, &mut EventContext<'_, SharedAcquisition>) -> R,
    ) -> R {
        let mut actions = std::mem::take(&mut slots.actions);
        let result = slots.table.change(key, hash, |KeyEntry { state, contended, .. }| {
            let (rules, tokens, due) = (&self.rules, &self.tokens, state.next_timeout());
            let mut cx = EventContext { now, rules, tokens, actions: &mut actions, contended };
            let result = event(state, &mut cx);
            let (is_tracked, failures) = (state.is_tracked(), &mut slots.renewal_failures);
            for action in actions.drain(..) {
                self.run_action((key, is_tracked), failures, now, action, effects);
            }
            self.count_holders(effects);
            if !self.capabilities.keeps_time
                && let Some(head) = state.head()
                && state.next_timeout() < due
            {
                // The waiter drives the backend, and its timer is set for later.
                effects.wakes(head.take_wakers());
            }
            result
        });
        slots.actions = actions;
        if !slots.renewal_failures.is_empty() && slots.table.get(key, hash).is_none() {
            slots.renewal_failures.take(key);
        }
        result
    }

    /// Runs one action of a key. The caller keeps their order.
    fn run_action(
        &self,
        (key, is_tracked): (&Name, bool),
        failures: &mut RenewalFailures,
        now: BootInstant,
        action: Action<SharedAcquisition>,
        effects: &mut Effects<'_>,
    ) {
        match action {
            Action::Send { token, command } => {
                let request = Request::new(Name::clone(key), token, command);
                self.submit(Request { is_tracked, ..request }, effects);
            }
            Action::Orphan { token } => effects.orphaned.push((Name::clone(key), token)),
            Action::Grant { acquisition, deadline, ends, is_unconfirmed, attempts, .. } => {
                effects.holders += 1;
                failures.take(key);
                #[cfg(feature = "testing")]
                if let Some(recorder) = self.backend.recorder() {
                    recorder.on_acquired(key, self.tokens.process());
                }
                effects.wakes(acquisition.grant((deadline, ends), is_unconfirmed, attempts, now));
            }
            Action::JoinNested { acquisition } => effects.wakes(acquisition.join()),
            Action::Reject { acquisition, refusal } => effects.wakes(acquisition.reject(refusal)),
            Action::Extend { acquisition, deadline, ends } => {
                failures.take(key);
                acquisition.extend(deadline, ends);
            }
            Action::Revoke { acquisition, cause, left } => {
                acquisition.record_renewal_failure(failures.take(key));
                effects.wakes(acquisition.mark_lost(cause, left, now));
            }
        }
    }

    /// Checks that the hold of `acquisition` is valid at `now`. Otherwise, returns how and after
    /// how long it was lost, and records the reason for [`Acquisition::loss_reason`].
    pub(crate) fn check_hold(&self, acquisition: &Acquisition, now: BootInstant) -> Result<(), Loss> {
        let checked = acquisition.check_valid(now);
        // The deadline may have passed, and the key has not been ticked after that.
        if checked.is_err() && acquisition.is_held() {
            let key = acquisition.key.name();
            let failure = self.shards.of_key(key).0.read(|slots| slots.renewal_failures.get(key).cloned());
            acquisition.record_renewal_failure(failure);
        }
        checked
    }

    fn submit(&self, request: Request, effects: &mut Effects<'_>) {
        self.throttle.on_sent(request.command);
        self.backend.submit(request);
        effects.tasks.note_request();
    }

    /// Flushes the backend and wakes tasks. Nothing may be locked.
    fn run_effects(&self, now: BootInstant, effects: &mut Effects<'_>) {
        if effects.tasks.take_has_requests() {
            self.backend.flush(now, effects.tasks);
        }
        self.report_earlier(effects);
        effects.tasks.run_all();
    }

    /// Releases the lock that `acquisition` holds or has lost, at `now`.
    ///
    /// `is_kept`: `min_hold` applies to its end. `by`: what releases it. Sends nothing to the
    /// server if the lock is handed off to another task of this process.
    pub(crate) fn release(
        &self,
        acquisition: &SharedAcquisition,
        is_kept: bool,
        by: ReleasedBy,
        report: ReleaseReport<'_>,
        now: BootInstant,
    ) -> PendingRelease {
        let key = acquisition.key.name();
        let mut tasks = EventEffects::default();
        let mut effects = Effects::new(&mut tasks);
        let (shard, hash) = self.shards.of_key(key);
        let pending = shard.change(&mut effects, |slots, effects| {
            // Ended before another task can acquire the lock, so a body under it is not polled
            // again.
            let EndedAcquisition { mut wakers, was_granted, left } = acquisition.end(now);
            if by == ReleasedBy::Call {
                effects.tasks.discard_waker(wakers.own.take());
            }
            effects.wakes(wakers);
            effects.holders -= i64::from(was_granted);
            let (is_tracked, released) =
                self.with_locked(slots, (key, hash), now, effects, |key_state, cx| {
                    let released = match left {
                        Some(left) => {
                            key_state.release_residual(left, is_kept, cx);
                            ReleaseOutcome::HandedOff
                        }
                        None if is_kept => key_state.release(acquisition, cx),
                        None => key_state.cancel_granted(acquisition, cx),
                    };
                    (key_state.is_tracked(), released)
                });
            let ReleaseOutcome::Send(token, command) = released else { return PendingRelease::Done };
            let (recipient, pending) = report.begin(acquisition, &self.background_releases);
            let request = Request::new(Name::clone(key), token, command);
            self.submit(Request { is_tracked, recipient, ..request }, effects);
            pending
        });
        self.run_effects(now, &mut effects);
        if effects.drained && self.holders.load(Ordering::Acquire) == 0 {
            self.drained.notify_waiters(); // with nothing locked
        }
        pending
    }

    /// Counts grants and releases, under the lock of the shard: a shutdown closes all keys before
    /// it reads the count. A hand-off to another task does not change it.
    fn count_holders(&self, effects: &mut Effects<'_>) {
        let more = std::mem::take(&mut effects.holders);
        if more != 0 {
            effects.drained |= self.holders.fetch_add(more, Ordering::AcqRel) == -more;
        }
    }

    /// Records the use of `namespace`. The first time, informs the backend, and logs each namespace
    /// that overlaps with it.
    pub(crate) fn uses(&self, namespace: &str) {
        let Some(overlapping) = self.used_namespaces.record(namespace) else { return };
        self.backend.use_namespace(namespace);
        for other in overlapping {
            telemetry::namespaces_overlap(&other, namespace);
        }
    }

    /// Sends a command that is not part of the protocol, for the key with this full name.
    pub(crate) fn request(&self, name: &Name, token: Token, command: Command) -> oneshot::Receiver<Reply> {
        self.send_request(Request::new(Name::clone(name), token, command))
    }

    /// Sends a command that changes nothing. If the connection is lost before the reply, sends it
    /// again.
    pub(crate) async fn query(&self, name: &Name, command: Command) -> Result<Reply, RecvError> {
        self.request_with_retry(1, || self.reply(self.request(name, self.tokens.next(), command))).await.0
    }

    /// Sends a request, and sends it again, at most `resends` times, if the connection is lost
    /// before the reply. Also returns whether it was sent again.
    ///
    /// It is sent again within one response timeout. If one may have taken effect and a later one
    /// is refused, the outcome is unknown.
    pub(crate) async fn request_with_retry<E, F>(
        &self,
        resends: u32,
        send: impl Fn() -> F,
    ) -> (Result<Reply, E>, bool)
    where
        F: Future<Output = Result<Reply, E>>,
    {
        let started = self.now();
        let (mut answer, mut is_resent) = (send().await, false);
        for _ in 0..resends {
            let is_connection_lost = matches!(
                &answer,
                Ok(Reply::Unknown(failure) | Reply::Refused(failure)) if failure.connection_lost
            );
            if !is_connection_lost {
                break;
            }
            let left = started.plus(self.rules.response_timeout).since(self.now());
            is_resent = true;
            tokio::select! {
                biased;
                again = send() => answer = match (&answer, again) {
                    (Ok(Reply::Unknown(_)), Ok(Reply::Refused(failure))) => Ok(Reply::Unknown(failure)),
                    (_, again) => again,
                },
                () = self.backend.sleep(left) => break,
            }
        }
        (answer, is_resent)
    }

    fn send_request(&self, request: Request) -> oneshot::Receiver<Reply> {
        let now = self.now();
        let (reply, receiver) = oneshot::channel();
        let mut tasks = EventEffects::default();
        let mut effects = Effects::new(&mut tasks);
        self.submit(Request { recipient: Some(ReplyRecipient::Caller(reply)), ..request }, &mut effects);
        self.run_effects(now, &mut effects);
        receiver
    }

    /// Waits for the reply to a request. In a forked process, returns a refusal: the driver runs in
    /// the parent process.
    pub(crate) async fn reply(&self, mut receiver: oneshot::Receiver<Reply>) -> Result<Reply, RecvError> {
        poll_fn(|cx| {
            if self.is_forked() {
                return Poll::Ready(Ok(Reply::Refused(Failure::new(FailureKind::Passing, FORKED))));
            }
            Pin::new(&mut receiver).poll(cx)
        })
        .await
    }

    /// Sends a command under the hold of `acquisition`. If the hold has ended, returns how.
    pub(crate) fn request_for_holder(
        &self,
        acquisition: &SharedAcquisition,
        command: Command,
    ) -> Result<oneshot::Receiver<Reply>, Loss> {
        let key = acquisition.key.name();
        // If the key becomes tracked meanwhile, an invalidation follows, and the hold is verified
        // again.
        let held = self.with_key(key, |key_state, cx| {
            let token = key_state.on_holder_request(acquisition, command, cx)?;
            Some((token, key_state.is_tracked()))
        });
        let Some((token, is_tracked)) = held else {
            self.check_hold(acquisition, self.now())?;
            return Err((LossCause::Released, Duration::ZERO));
        };
        Ok(self.send_request(Request { is_tracked, ..Request::new(Name::clone(key), token, command) }))
    }

    /// Returns `true` if this process keeps the lock of `name` for a `min_hold`, and does not hold
    /// it.
    pub(crate) fn is_kept(&self, name: &Name) -> bool {
        let (shard, hash) = self.shards.of_key(name);
        shard.read(|slots| slots.table.get(name, hash).is_some_and(KeyState::is_kept))
    }

    /// Returns `true` if the engine was shut down.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Shuts the engine down.
    ///
    /// Rejects waiting and new calls, and lets holders continue for `grace`. Then marks the
    /// remaining holds as lost, and releases those that their tasks do not release within one
    /// response timeout. In a forked process it ends immediately, even if it was running at the
    /// fork.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let _ = self.run_in_own_process(None, self.shut_down(grace)).await;
    }

    async fn shut_down(&self, grace: Duration) -> Result<(), Error> {
        self.closed.store(true, Ordering::Release);
        self.calls.closed.set();
        for key in self.keys() {
            self.with_key(&key, KeyState::close);
        }
        futures_util::future::join(self.wait_for_holders(grace), self.wait_for_calls(grace)).await;
        self.calls.aborted.set();
        for key in self.keys() {
            self.with_key(&key, |key_state, cx| key_state.mark_all_lost(LossCause::Shutdown, cx));
        }
        let limit = self.rules.response_timeout;
        futures_util::future::join(self.wait_for_holders(limit), self.wait_for_calls(limit)).await;
        for key in self.keys() {
            self.with_key(&key, KeyState::release_all);
        }
        self.settle().await;
        Ok(())
    }

    /// Waits until all requests have replies and all orphaned tokens are cleaned up.
    ///
    /// Takes at most one response timeout, and [`WITHDRAW_REPEAT`] if something is left then. A
    /// command that was sent on a lost connection may arrive late. A process that does not stay to
    /// clean it up leaves the lock held for a lease.
    async fn settle(&self) {
        self.backend.settle().await;
        self.at_most(WITHDRAW_REPEAT, async {
            for _ in 0..WITHDRAW_REPEAT.as_nanos().div_ceil(self.rules.response_timeout.as_nanos().max(1)) {
                self.backend.settle().await; // ready immediately if nothing is left
            }
        })
        .await;
    }

    /// Waits until no task holds a lock, for at most `limit`.
    async fn wait_for_holders(&self, limit: Duration) {
        self.at_most(limit, async {
            loop {
                let drained = self.drained.notified();
                if self.holders.load(Ordering::Acquire) == 0 {
                    break;
                }
                drained.await;
            }
        })
        .await;
    }

    /// Waits for `future`, for at most `limit`.
    async fn at_most(&self, limit: Duration, future: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = future => {}
            () = self.backend.sleep(limit) => {}
        }
    }

    /// Locks all shards.
    #[cfg(test)]
    pub(crate) fn lock_shards(&self) -> impl Sized + '_ {
        self.shards.lock_all()
    }

    /// Returns the keys with state. Locks one shard at a time.
    fn keys(&self) -> impl Iterator<Item = Name> + '_ {
        self.shards.keys()
    }
}

/// The time between the two withdrawals of a token that was sent on a lost connection
/// (`protocol::orphans`).
const WITHDRAW_REPEAT: Duration = Duration::from_secs(1);

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            // Connections and wakers belong to the parent process.
            std::mem::forget(Arc::clone(&self.backend));
            return self.shards.leak();
        }
        self.backend.close();
    }
}
