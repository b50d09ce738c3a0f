//! The engine: binds the rules of `protocol` to tasks that wait and to a backend that answers.
//!
//! ```text
//!  task --join, release--> [ shard: lock { lane --actions--> turns, requests } ] --> backend
//!  task <--- wake -------- [                                                   ] <-- reply, grant, tick
//! ```
//!
//! KeyTable live in shards, each behind a lock that is held for the length of one event and never across an await. Within it turns
//! are changed and requests are queued, so that their order is the order of the rules; after it tasks are woken and the backend is
//! set off.
//!
//! `turn` is one task's turn, `until` how long it is believed, `waiting` its way to it, `hold` what it has then, `answer` who is told
//! what the server says of its end; `shard` has `lanes`, `lanes` their `timers`, each in a `row`; `pace` is how much goes out at once;
//! `effects` is what waits for the locks. Not here: what the events mean (`protocol`).

pub(crate) mod acquire_future;
pub(crate) mod acquisition;
mod atomic_deadline;
mod deadline_heap;
pub(crate) mod effects;
pub(crate) mod hold_guard;
#[cfg(any(dlock_loom, dlock_shuttle))]
pub(crate) mod interleavings;
mod key_table;
pub(crate) mod release_completion;
mod renewal_throttle;
mod row;
mod shard;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod throttle_tests;
mod used_namespaces;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::engine::acquisition::{AcquisitionRef, EndedAcquisition, SharedAcquisition};
use crate::engine::effects::Effects;
use crate::engine::release_completion::{
    BackgroundReleaseLimit, PendingRelease, ReleaseCompletion, ReleaseReport, ReleasedBy,
};
use crate::engine::renewal_throttle::{RenewalThrottle, ThrottleLimits};
use crate::engine::shard::{Shards, Slots};
use crate::engine::used_namespaces::UsedNamespaces;
use crate::error::{Error, LossCause};
use crate::fork::{FORKED, ForkDetector, forked_error};
use crate::key::{LockKey, Name};
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::deadlock::WaitGraph;
use crate::protocol::foreign_clients::Grant;
use crate::protocol::hold::ReleaseOutcome;
use crate::protocol::key_state::{Action, EventContext, KeyState};
use crate::protocol::stray_grants::StrayGrantFilter;
use crate::sync::lock;
use crate::sync::shared::atomic::{AtomicBool, AtomicI64, Ordering};
use crate::telemetry::{self, EventLimits};
use crate::token::{Token, TokenSource};

/// All locks of one manager.
#[derive(Debug)]
pub(crate) struct Engine {
    shards: Shards,
    pub(crate) fork: ForkDetector,
    pace: RenewalThrottle,
    pub(crate) clock: Clock,
    pub(crate) tokens: TokenSource,
    pub(crate) rules: ProtocolConfig,
    /// The lease of a call that names none.
    pub(crate) lease: Duration,
    pub(crate) backend: Arc<dyn Backend>,
    /// Who waits for whom among nested calls.
    pub(crate) waits: Mutex<WaitGraph>,
    strangers: Mutex<StrayGrantFilter>,
    closed: AtomicBool,
    /// How many tasks were let in and have not let go.
    held: AtomicI64,
    drained: tokio::sync::Notify,
    /// Releases that nobody waits for.
    unanswered: BackgroundReleaseLimit,
    /// What is written of calls that fail together.
    pub(crate) event_limits: EventLimits,
    used_namespaces: UsedNamespaces,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Clock,
        tokens: TokenSource,
        rules: ProtocolConfig,
        lease: Duration,
    ) -> Self {
        let few =
            if matches!(clock, Clock::Boot) { ThrottleLimits::OF_A_SERVER } else { ThrottleLimits::ALL };
        Self {
            shards: Shards::new(),
            fork: ForkDetector::new(),
            pace: RenewalThrottle::new(few),
            clock,
            tokens,
            rules,
            lease,
            backend,
            waits: Mutex::default(),
            strangers: Mutex::new(StrayGrantFilter::new()),
            closed: AtomicBool::new(false),
            held: AtomicI64::new(0),
            drained: tokio::sync::Notify::new(),
            unanswered: BackgroundReleaseLimit::default(),
            event_limits: EventLimits::default(),
            used_namespaces: UsedNamespaces::default(),
        }
    }

    /// Returns `true` if the current process was forked from the one that connected. Each entry point checks it before anything else.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    /// Checks that the current process is the one that connected.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if it was forked after that.
    pub(crate) fn in_own_process(&self, key: Option<&LockKey>) -> Result<(), Error> {
        if self.is_forked() { Err(forked_error(key.cloned())) } else { Ok(()) }
    }

    /// Returns the time, with the backend brought up to it.
    pub(crate) fn now(&self) -> BootInstant {
        let now = self.clock.now();
        self.backend.advance(now);
        now
    }

    /// Lets `event` happen to the lane of `key` here and now, and does what comes of it.
    pub(super) fn with_key<R>(
        &self,
        key: &Name,
        event: impl FnOnce(&mut KeyState<AcquisitionRef>, &mut EventContext<'_, AcquisitionRef>) -> R,
    ) -> R {
        self.with_key_now(self.now(), key, event)
    }

    /// Does the same for who has just looked at the time: a clock is not free, and a call that need not wait looks at it often enough.
    pub(super) fn with_key_now<R>(
        &self,
        now: BootInstant,
        key: &Name,
        event: impl FnOnce(&mut KeyState<AcquisitionRef>, &mut EventContext<'_, AcquisitionRef>) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let result = self.with_key_at(key, now, &mut effects, event);
        self.finish(now, &mut effects);
        result
    }

    fn with_key_at<R>(
        &self,
        key: &Name,
        now: BootInstant,
        effects: &mut Effects,
        event: impl FnOnce(&mut KeyState<AcquisitionRef>, &mut EventContext<'_, AcquisitionRef>) -> R,
    ) -> R {
        let (shard, hash) = self.shards.of_key(key);
        shard.change(effects, |slots, effects| {
            let at = slots.lanes.find_or_add(key, hash);
            self.with_locked(slots, (key, at), now, effects, event)
        })
    }

    /// Lets `event` happen to the lane of a key, which stands at this place.
    fn with_locked<R>(
        &self,
        slots: &mut Slots,
        (key, at): (&Name, u32),
        now: BootInstant,
        effects: &mut Effects,
        event: impl FnOnce(&mut KeyState<AcquisitionRef>, &mut EventContext<'_, AcquisitionRef>) -> R,
    ) -> R {
        let mut actions = std::mem::take(&mut slots.actions);
        let found = slots.lanes.key_state(at);
        let (key_state, mut note) = found.expect("nothing has been taken out since it was found or added");
        let (rules, tokens, contended) = (&self.rules, &self.tokens, &mut note.contended);
        let mut cx = EventContext { now, rules, tokens, actions: &mut actions, contended };
        let result = event(key_state, &mut cx);
        let is_tracked = key_state.is_tracked();
        for action in actions.drain(..) {
            self.act((key, is_tracked), now, action, effects);
        }
        self.count_holders(effects);
        let alarm = std::mem::replace(&mut note.due, key_state.due());
        if let (Clock::Tokio(_), Some(head)) = (&self.clock, key_state.head())
            && note.due < alarm
        {
            effects.wakes(head.take_wakers()); // who waits keeps the time, and has set an alarm for later
        }
        slots.lanes.note(at, note);
        slots.actions = actions;
        result
    }

    /// Does what a lane wants done, in the order in which it wants it.
    fn act(
        &self,
        (key, is_tracked): (&Name, bool),
        now: BootInstant,
        action: Action<AcquisitionRef>,
        effects: &mut Effects,
    ) {
        match action {
            Action::Send { token, command } => {
                let request = Request::new(Name::clone(key), token, command);
                self.push(Request { is_tracked, ..request }, now, effects);
            }
            Action::Orphan { token } => effects.abandoned.push((Name::clone(key), token)),
            Action::Grant { acquisition, deadline, ends, is_unconfirmed, attempts, .. } => {
                effects.holders += 1;
                #[cfg(feature = "testing")]
                self.backend.admitted(key);
                effects.wakes(acquisition.grant((deadline, ends), is_unconfirmed, attempts, now));
            }
            Action::JoinNested { acquisition } => effects.wakes(acquisition.join()),
            Action::Reject { acquisition, refusal } => effects.wakes(acquisition.refuse(refusal)),
            Action::Extend { acquisition, deadline, ends } => acquisition.extend(deadline, ends),
            Action::Revoke { acquisition, cause, left } => {
                effects.wakes(acquisition.mark_lost(cause, left, now))
            }
        }
    }

    fn push(&self, request: Request, now: BootInstant, effects: &mut Effects) {
        self.pace.sent(request.command, now);
        self.backend.push(request);
        effects.flush = true;
    }

    /// Sets the backend off and wakes tasks, with nothing locked.
    fn finish(&self, now: BootInstant, effects: &mut Effects) {
        self.flush_backend(now, effects);
        effects.wake_all();
    }

    fn flush_backend(&self, now: BootInstant, effects: &mut Effects) {
        let earlier = effects.earlier.take();
        if std::mem::take(&mut effects.flush) {
            self.backend.flush(self, now, effects);
        }
        if let Some(due) = earlier {
            self.backend.due_earlier(due);
        }
    }

    /// A task lets go at `now` of the lock that its turn holds or has lost; `ran`: something ran under it. `by`: who lets go. The
    /// server is not asked where another task of this process has the lock now.
    pub(crate) fn release(
        &self,
        acquisition: &AcquisitionRef,
        ran: bool,
        by: ReleasedBy,
        told: ReleaseReport<'_>,
        now: BootInstant,
    ) -> PendingRelease {
        let key = acquisition.key.name();
        let mut effects = Effects::default();
        let (shard, hash) = self.shards.of_key(key);
        let let_go = shard.change(&mut effects, |slots, effects| {
            // Over before anybody else can have it: what still runs under it is not polled again.
            let EndedAcquisition { mut wakers, was_admitted, left } = acquisition.end(now);
            if by == ReleasedBy::Call {
                effects.discard_waker(wakers.own.take());
            }
            effects.wakes(wakers);
            effects.holders -= i64::from(was_admitted);
            let at = slots.lanes.find_or_add(key, hash);
            let released = self.with_locked(slots, (key, at), now, effects, |key_state, cx| match left {
                Some(left) => {
                    key_state.release_residual(acquisition, left, ran, cx);
                    ReleaseOutcome::HandedOff
                }
                None if ran => key_state.release(acquisition, cx),
                None => key_state.cancel_granted(acquisition, cx),
            });
            let ReleaseOutcome::Send(token, command) = released else { return PendingRelease::Done };
            let (answer, let_go) = told.begin(&acquisition.0, &self.unanswered);
            self.push(Request { answer, ..Request::new(Name::clone(key), token, command) }, now, effects);
            let_go
        });
        self.finish(now, &mut effects);
        if effects.drained && self.held.load(Ordering::Acquire) == 0 {
            self.drained.notify_waiters(); // with nothing locked
        }
        let_go
    }

    /// Counts who was let in and who has let go, under the lane's lock, as who shuts down closes all lanes before he looks: at a hand-over
    /// it is one for the other.
    fn count_holders(&self, effects: &mut Effects) {
        let more = std::mem::take(&mut effects.holders);
        if more != 0 {
            effects.drained |= self.held.fetch_add(more, Ordering::AcqRel) == -more;
        }
    }

    /// Notes that a lock of `namespace` is asked for: the first time the backend learns of it, and the log if it overlaps another one.
    pub(crate) fn uses(&self, namespace: &str) {
        let Some(overlapping) = self.used_namespaces.note(namespace) else { return };
        self.backend.uses(namespace);
        for other in overlapping {
            telemetry::namespaces_overlap(&other, namespace);
        }
    }

    /// Asks the server something beside what the rules ask, of the key with this full name.
    pub(crate) fn ask(&self, name: &Name, token: Token, command: Command) -> oneshot::Receiver<Reply> {
        self.send_request(Request::new(Name::clone(name), token, command))
    }

    /// Asks the server a question that changes nothing. If the connection is lost before the reply, it asks once more.
    pub(crate) async fn query(&self, name: &Name, command: Command) -> Result<Reply, RecvError> {
        self.ask_twice(|| self.reply(self.ask(name, self.tokens.next(), command))).await
    }

    /// Asks, and asks once more if the connection is lost before the reply. Both together take a response timeout at most.
    pub(crate) async fn ask_twice<E, F>(&self, ask: impl Fn() -> F) -> Result<Reply, E>
    where
        F: Future<Output = Result<Reply, E>>,
    {
        let started = self.now();
        let answer = ask().await;
        let is_connection_lost = matches!(
            &answer,
            Ok(Reply::Unknown(failure) | Reply::Refused(failure)) if failure.connection_lost
        );
        if !is_connection_lost {
            return answer;
        }
        let left = started.plus(self.rules.response_timeout).since(self.now());
        tokio::select! {
            biased;
            again = ask() => again,
            () = self.backend.sleep(left) => answer,
        }
    }

    fn send_request(&self, request: Request) -> oneshot::Receiver<Reply> {
        let now = self.now();
        let (answer, receiver) = oneshot::channel();
        let mut effects = Effects::default();
        self.push(Request { answer: Some(ReleaseCompletion::Caller(answer)), ..request }, now, &mut effects);
        self.finish(now, &mut effects);
        receiver
    }

    /// WaitGraph for the reply to a request. A forked process does not: the driver is the parent's.
    pub(crate) async fn reply(&self, mut receiver: oneshot::Receiver<Reply>) -> Result<Reply, RecvError> {
        poll_fn(|cx| {
            if self.is_forked() {
                return Poll::Ready(Ok(Reply::Refused(Failure::new(FailureKind::Passing, FORKED))));
            }
            Pin::new(&mut receiver).poll(cx)
        })
        .await
    }

    /// Asks the server something under the hold of `turn`. There is no answer where that is over.
    pub(crate) fn request_for_holder(
        &self,
        acquisition: &SharedAcquisition,
        command: Command,
    ) -> Option<oneshot::Receiver<Reply>> {
        let (acquisition, key) =
            (AcquisitionRef(SharedAcquisition::clone(acquisition)), acquisition.key.name());
        // What is checked for the first time meanwhile has its change told, and is checked once more.
        let (token, is_tracked) = self.with_key(key, |key_state, cx| {
            Some((key_state.token_of(&acquisition, cx)?, key_state.is_tracked()))
        })?;
        Some(self.send_request(Request { is_tracked, ..Request::new(Name::clone(key), token, command) }))
    }

    /// The backend answers requests that were sent together, at `sent`; tasks are woken once all are dealt with. Returns the keys and
    /// tokens whose commands may still have an effect that nobody wants.
    pub(crate) fn on_replies(
        &self,
        now: BootInstant,
        sent: BootInstant,
        replies: impl IntoIterator<Item = (Request, Reply)>,
        effects: &mut Effects,
    ) -> Vec<(Name, Token)> {
        for (Request { key, token, command, answer, .. }, reply) in replies {
            self.pace.answered(command);
            match command {
                _ if command.is_release() => {
                    if matches!(reply, Reply::Unknown(_) | Reply::Refused(_)) {
                        effects.abandoned.push((key, token));
                    }
                }
                _ => {
                    let reply = reply.clone();
                    self.with_key_at(&key, now, effects, |key_state, cx| {
                        key_state.reply(token, command, sent, reply, cx);
                    });
                }
            }
            self.unanswered.one_less(answer.as_ref());
            effects.answer(answer, reply, now);
        }
        self.flush_backend(now, effects);
        std::mem::take(&mut effects.abandoned)
    }

    /// The backend was told what `token` has been granted.
    pub(crate) fn on_grant(
        &self,
        key: &Name,
        token: Token,
        offer: Grant,
        now: BootInstant,
        effects: &mut Effects,
    ) {
        if !self.tokens.has_issued(token) {
            return;
        }
        let known = self.with_key_at(key, now, effects, |key_state, cx| key_state.on_grant(token, offer, cx));
        if !known && lock(&self.strangers).may_answer(now) {
            self.push(Request::new(Name::clone(key), token, Command::Withdraw), now, effects);
        }
        self.flush_backend(now, effects);
    }

    /// The backend has a new connection for the keys whose full names `concerns` takes; where they `moved`, to another server than
    /// before.
    pub(crate) fn on_reconnect(&self, moved: bool, concerns: impl Fn(&str) -> bool) {
        for key in self.keys().filter(|key| concerns(key)) {
            self.with_key(&key, |key_state, cx| key_state.on_reconnect(moved, cx));
        }
        self.now(); // where the backend has no thread, what is due is done here
    }

    /// The backend may have missed hints, of any key.
    pub(crate) fn on_invalidations_missed(&self) {
        let now = self.now(); // one for all of them
        for key in self.keys() {
            self.with_key_now(now, &key, KeyState::on_invalidations_missed);
        }
    }

    /// The backend has a hint that somebody changed the key with this full name.
    pub(crate) fn on_invalidation(&self, name: &Name) {
        if self.wants(name) {
            self.with_key(name, KeyState::on_invalidation);
        }
    }

    /// Returns whether something of the key is remembered: it is held here, or waited for.
    pub(crate) fn wants(&self, name: &Name) -> bool {
        let (shard, hash) = self.shards.of_key(name);
        shard.poll_state(|slots| slots.lanes.find(name, hash).is_some())
    }

    /// Does what is due by `now`, and returns when something is due next. That is no later than now where much is due, so that others
    /// have their turn; what only asks the server about holds goes out a few at a time.
    pub(crate) fn tick(&self, now: BootInstant, effects: &mut Effects) -> BootInstant {
        for _ in 0..LOOKED_AT {
            let (due, shard) = self.shards.first_due();
            let Some(shard) = shard.filter(|_| due <= now) else { break };
            shard.change(effects, |slots, effects| {
                let due = slots.lanes.first_due().filter(|(due, _)| *due <= now);
                let Some((at, key)) = due.and_then(|(_, at)| Some((at, slots.lanes.key(at).cloned()?)))
                else {
                    return; // somebody has seen to it
                };
                self.with_locked(slots, (&key, at), now, effects, |key_state, cx| {
                    let place = self.pace.should_defer(now);
                    if !place.is_some_and(|place| key_state.defer(now, place)) {
                        key_state.tick(cx);
                    }
                });
            });
        }
        self.flush_backend(now, effects);
        self.due()
    }

    /// Returns when something is due next.
    pub(crate) fn due(&self) -> BootInstant {
        self.shards.first_due().0
    }

    /// Returns how many calls wait for the lock of `key`.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self, key: &Name) -> usize {
        let (shard, hash) = self.shards.of_key(key);
        shard.poll_state(|slots| {
            let at = slots.lanes.find(key, hash);
            at.and_then(|at| slots.lanes.key_state(at)).map_or(0, |(key_state, _)| key_state.waiting())
        })
    }

    /// Returns whether the engine takes no new work.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Takes no new work: who waits is refused, who holds goes on. After `patience` those who still hold lose their hold, and what they
    /// do not let go of in the time of one answer is released all the same. In a forked process it ends, also if it is under way at the
    /// fork.
    pub(crate) async fn shutdown(&self, retry_state: Duration) {
        let mut shutting_down = std::pin::pin!(self.shut_down(retry_state));
        poll_fn(|cx| if self.is_forked() { Poll::Ready(()) } else { shutting_down.as_mut().poll(cx) }).await;
    }

    async fn shut_down(&self, retry_state: Duration) {
        self.closed.store(true, Ordering::Release);
        for key in self.keys() {
            self.with_key(&key, KeyState::close);
        }
        self.wait_for_holders(retry_state).await;
        for key in self.keys() {
            self.with_key(&key, |key_state, cx| key_state.mark_lost(LossCause::Shutdown, cx));
        }
        self.wait_for_holders(self.rules.response_timeout).await;
        for key in self.keys() {
            self.with_key(&key, KeyState::release_all);
        }
        self.settle().await;
    }

    /// WaitGraph until what was asked is answered, and what nobody may have any more is given back: a response timeout, and
    /// [`SAID_AGAIN`] where something is left then. What went out on a connection that was lost may arrive late; a process that does not
    /// stay to give it back once more leaves a lock taken for a lease.
    async fn settle(&self) {
        self.backend.settle().await;
        let rest = async {
            for _ in 0..SAID_AGAIN.as_nanos().div_ceil(self.rules.response_timeout.as_nanos().max(1)) {
                self.backend.settle().await; // over at once where nothing is left
            }
        };
        tokio::select! {
            biased;
            () = rest => {}
            () = self.backend.sleep(SAID_AGAIN) => {}
        }
    }

    /// WaitGraph until nobody has a lock, `patience` at most.
    async fn wait_for_holders(&self, retry_state: Duration) {
        let all = async {
            loop {
                let drained = self.drained.notified();
                if self.held.load(Ordering::Acquire) == 0 {
                    break;
                }
                drained.await;
            }
        };
        tokio::select! {
            biased;
            () = all => {}
            () = self.backend.sleep(retry_state) => {}
        }
    }

    /// Locks all lanes.
    #[cfg(test)]
    pub(crate) fn lock_shards(&self) -> impl Sized + '_ {
        self.shards.lock_all()
    }

    /// Returns the keys of which something is remembered, those of one shard at a time.
    fn keys(&self) -> impl Iterator<Item = Name> + '_ {
        self.shards.keys()
    }
}

/// How many lanes are looked at before others have their turn: it takes a third of a millisecond or so.
const LOOKED_AT: usize = 1_024;

/// How far apart the two leaves of what went out on a lost connection are (`protocol::orphans`).
const SAID_AGAIN: Duration = Duration::from_secs(1);

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            // Connections, and wakers of tasks, are also those of the process that made them.
            std::mem::forget(Arc::clone(&self.backend));
            return self.shards.leak();
        }
        self.backend.close();
    }
}
