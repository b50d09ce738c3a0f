//! The engine: binds the rules of `protocol` to tasks that wait and to a backend that answers.
//!
//! ```text
//!  task --join, release--> [ shard: lock { lane --actions--> turns, requests } ] --> backend
//!  task <--- wake -------- [                                                   ] <-- reply, grant, tick
//! ```
//!
//! Lanes live in shards, each behind a lock that is held for the length of one event and never across an await. Within it turns
//! are changed and requests are queued, so that their order is the order of the rules; after it tasks are woken and the backend is
//! set off.
//!
//! `turn` is one task's turn, `until` how long it is believed, `waiting` its way to it, `hold` what it has then, `answer` who is told
//! what the server says of its end; `shard` has `lanes`, `lanes` their `timers`, each in a `row`; `pace` is how much goes out at once;
//! `effects` is what waits for the locks. Not here: what the events mean (`protocol`).

pub(crate) mod answer;
pub(crate) mod effects;
pub(crate) mod hold;
#[cfg(any(dlock_loom, dlock_shuttle))]
pub(crate) mod interleavings;
mod lanes;
mod pace;
mod row;
mod shard;
#[cfg(test)]
mod simulation;
mod timers;
pub(crate) mod turn;
mod until;
mod used_namespaces;
pub(crate) mod waiting;
#[cfg(test)]
mod waves;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::engine::answer::{Answer, By, LetGo, Told, Unanswered};
use crate::engine::effects::Effects;
use crate::engine::pace::{Few, Pace};
use crate::engine::shard::{Shards, Slots};
use crate::engine::turn::{Ended, Seat, SharedTurn};
use crate::engine::used_namespaces::UsedNamespaces;
use crate::error::{Error, LossCause};
use crate::fork::{FORKED, ForkDetector, forked_error};
use crate::key::{LockKey, Name};
use crate::protocol::Rules;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};
use crate::protocol::deadline::BootTime;
use crate::protocol::hold::Released;
use crate::protocol::lane::{Action, Cx, Lane};
use crate::protocol::share::Offer;
use crate::protocol::strangers::Strangers;
use crate::protocol::waits::Waits;
use crate::sync::lock;
use crate::sync::shared::atomic::{AtomicBool, AtomicI64, Ordering};
use crate::telemetry::{self, EventLimits};
use crate::token::{Token, TokenSource};

/// All locks of one manager.
#[derive(Debug)]
pub(crate) struct Engine {
    shards: Shards,
    pub(crate) fork: ForkDetector,
    pace: Pace,
    pub(crate) clock: Clock,
    pub(crate) tokens: TokenSource,
    pub(crate) rules: Rules,
    /// The lease of a call that names none.
    pub(crate) lease: Duration,
    pub(crate) backend: Arc<dyn Backend>,
    /// Who waits for whom among nested calls.
    pub(crate) waits: Mutex<Waits>,
    strangers: Mutex<Strangers>,
    closed: AtomicBool,
    /// How many tasks were let in and have not let go.
    held: AtomicI64,
    drained: tokio::sync::Notify,
    /// Releases that nobody waits for.
    unanswered: Unanswered,
    /// What is written of calls that fail together.
    pub(crate) event_limits: EventLimits,
    used_namespaces: UsedNamespaces,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Clock,
        tokens: TokenSource,
        rules: Rules,
        lease: Duration,
    ) -> Self {
        let few = if matches!(clock, Clock::Boot) { Few::OF_A_SERVER } else { Few::ALL };
        Self {
            shards: Shards::new(),
            fork: ForkDetector::new(),
            pace: Pace::new(few),
            clock,
            tokens,
            rules,
            lease,
            backend,
            waits: Mutex::default(),
            strangers: Mutex::new(Strangers::new()),
            closed: AtomicBool::new(false),
            held: AtomicI64::new(0),
            drained: tokio::sync::Notify::new(),
            unanswered: Unanswered::default(),
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
    pub(crate) fn now(&self) -> BootTime {
        let now = self.clock.now();
        self.backend.advance(now);
        now
    }

    /// Lets `event` happen to the lane of `key` here and now, and does what comes of it.
    pub(super) fn on_lane<R>(
        &self,
        key: &Name,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        self.on_lane_now(self.now(), key, event)
    }

    /// Does the same for who has just looked at the time: a clock is not free, and a call that need not wait looks at it often enough.
    pub(super) fn on_lane_now<R>(
        &self,
        now: BootTime,
        key: &Name,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let result = self.on_lane_at(key, now, &mut effects, event);
        self.finish(now, &mut effects);
        result
    }

    fn on_lane_at<R>(
        &self,
        key: &Name,
        now: BootTime,
        effects: &mut Effects,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        let (shard, hash) = self.shards.of_key(key);
        shard.change(effects, |slots, effects| {
            let at = slots.lanes.find_or_add(key, hash);
            self.on_locked(slots, (key, at), now, effects, event)
        })
    }

    /// Lets `event` happen to the lane of a key, which stands at this place.
    fn on_locked<R>(
        &self,
        slots: &mut Slots,
        (key, at): (&Name, u32),
        now: BootTime,
        effects: &mut Effects,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        let mut actions = std::mem::take(&mut slots.actions);
        let found = slots.lanes.lane(at);
        let (lane, mut note) = found.expect("nothing has been taken out since it was found or added");
        let (rules, tokens, contended) = (&self.rules, &self.tokens, &mut note.contended);
        let mut cx = Cx { now, rules, tokens, actions: &mut actions, contended };
        let result = event(lane, &mut cx);
        let is_watched = lane.is_watched();
        for action in actions.drain(..) {
            self.act((key, is_watched), now, action, effects);
        }
        self.count_holders(effects);
        let alarm = std::mem::replace(&mut note.due, lane.due());
        if let (Clock::Tokio(_), Some(head)) = (&self.clock, lane.head())
            && note.due < alarm
        {
            effects.wakes(head.look_again()); // who waits keeps the time, and has set an alarm for later
        }
        slots.lanes.note(at, note);
        slots.actions = actions;
        result
    }

    /// Does what a lane wants done, in the order in which it wants it.
    fn act(
        &self,
        (key, is_watched): (&Name, bool),
        now: BootTime,
        action: Action<Seat>,
        effects: &mut Effects,
    ) {
        match action {
            Action::Send { token, command } => {
                let request = Request::new(Name::clone(key), token, command);
                self.push(Request { is_watched, ..request }, now, effects);
            }
            Action::Abandon { token } => effects.abandoned.push((Name::clone(key), token)),
            Action::Admit { seat, deadline, ends, is_unconfirmed, attempts, .. } => {
                effects.holders += 1;
                #[cfg(feature = "testing")]
                self.backend.admitted(key);
                effects.wakes(seat.admit((deadline, ends), is_unconfirmed, attempts, now));
            }
            Action::Join { seat } => effects.wakes(seat.join()),
            Action::Refuse { seat, refusal } => effects.wakes(seat.refuse(refusal)),
            Action::Prolong { seat, deadline, ends } => seat.prolong(deadline, ends),
            Action::Lose { seat, cause, left } => effects.wakes(seat.lose(cause, left, now)),
        }
    }

    fn push(&self, request: Request, now: BootTime, effects: &mut Effects) {
        self.pace.sent(request.command, now);
        self.backend.push(request);
        effects.flush = true;
    }

    /// Sets the backend off and wakes tasks, with nothing locked.
    fn finish(&self, now: BootTime, effects: &mut Effects) {
        self.set_off(now, effects);
        effects.wake_all();
    }

    fn set_off(&self, now: BootTime, effects: &mut Effects) {
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
    pub(crate) fn release(&self, seat: &Seat, ran: bool, by: By, told: Told<'_>, now: BootTime) -> LetGo {
        let key = seat.key.name();
        let mut effects = Effects::default();
        let (shard, hash) = self.shards.of_key(key);
        let let_go = shard.change(&mut effects, |slots, effects| {
            // Over before anybody else can have it: what still runs under it is not polled again.
            let Ended { mut wakers, was_admitted, left } = seat.end(now);
            if by == By::TheCall {
                effects.spares(wakers.own.take());
            }
            effects.wakes(wakers);
            effects.holders -= i64::from(was_admitted);
            let at = slots.lanes.find_or_add(key, hash);
            let released = self.on_locked(slots, (key, at), now, effects, |lane, cx| match left {
                Some(left) => {
                    lane.let_go_of(seat, left, ran, cx);
                    Released::Kept
                }
                None if ran => lane.release(seat, cx),
                None => lane.decline(seat, cx),
            });
            let Released::ToServer(token, command) = released else { return LetGo::Done };
            let (answer, let_go) = told.begin(&seat.0, &self.unanswered);
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
        self.ask_by(Request::new(Name::clone(name), token, command))
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

    fn ask_by(&self, request: Request) -> oneshot::Receiver<Reply> {
        let now = self.now();
        let (answer, receiver) = oneshot::channel();
        let mut effects = Effects::default();
        self.push(Request { answer: Some(Answer::Caller(answer)), ..request }, now, &mut effects);
        self.finish(now, &mut effects);
        receiver
    }

    /// Waits for the reply to a request. A forked process does not: the driver is the parent's.
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
    pub(crate) fn ask_under(&self, turn: &SharedTurn, command: Command) -> Option<oneshot::Receiver<Reply>> {
        let (seat, key) = (Seat(SharedTurn::clone(turn)), turn.key.name());
        // What is checked for the first time meanwhile has its change told, and is checked once more.
        let (token, is_watched) =
            self.on_lane(key, |lane, cx| Some((lane.token_of(&seat, cx)?, lane.is_watched())))?;
        Some(self.ask_by(Request { is_watched, ..Request::new(Name::clone(key), token, command) }))
    }

    /// The backend answers requests that were sent together, at `sent`; tasks are woken once all are dealt with. Returns the keys and
    /// tokens whose commands may still have an effect that nobody wants.
    pub(crate) fn replies(
        &self,
        now: BootTime,
        sent: BootTime,
        replies: impl IntoIterator<Item = (Request, Reply)>,
        effects: &mut Effects,
    ) -> Vec<(Name, Token)> {
        for (Request { key, token, command, answer, .. }, reply) in replies {
            self.pace.answered(command);
            match command {
                _ if command.lets_go() => {
                    if matches!(reply, Reply::Unknown(_) | Reply::Refused(_)) {
                        effects.abandoned.push((key, token));
                    }
                }
                _ => {
                    let reply = reply.clone();
                    self.on_lane_at(&key, now, effects, |lane, cx| {
                        lane.reply(token, command, sent, reply, cx);
                    });
                }
            }
            self.unanswered.one_less(answer.as_ref());
            effects.answer(answer, reply, now);
        }
        self.set_off(now, effects);
        std::mem::take(&mut effects.abandoned)
    }

    /// The backend was told what `token` has been granted.
    pub(crate) fn granted(
        &self,
        key: &Name,
        token: Token,
        offer: Offer,
        now: BootTime,
        effects: &mut Effects,
    ) {
        if !self.tokens.has_issued(token) {
            return;
        }
        let known = self.on_lane_at(key, now, effects, |lane, cx| lane.granted(token, offer, cx));
        if !known && lock(&self.strangers).may_answer(now) {
            self.push(Request::new(Name::clone(key), token, Command::Leave), now, effects);
        }
        self.set_off(now, effects);
    }

    /// The backend has a new connection for the keys whose full names `concerns` takes; where they `moved`, to another server than
    /// before.
    pub(crate) fn reconnected(&self, moved: bool, concerns: impl Fn(&str) -> bool) {
        for key in self.keys().filter(|key| concerns(key)) {
            self.on_lane(&key, |lane, cx| lane.reconnected(moved, cx));
        }
        self.now(); // where the backend has no thread, what is due is done here
    }

    /// The backend may have missed hints, of any key.
    pub(crate) fn untold(&self) {
        let now = self.now(); // one for all of them
        for key in self.keys() {
            self.on_lane_now(now, &key, Lane::untold);
        }
    }

    /// The backend has a hint that somebody changed the key with this full name.
    pub(crate) fn touched(&self, name: &Name) {
        if self.wants(name) {
            self.on_lane(name, Lane::touched);
        }
    }

    /// Returns whether something of the key is remembered: it is held here, or waited for.
    pub(crate) fn wants(&self, name: &Name) -> bool {
        let (shard, hash) = self.shards.of_key(name);
        shard.look(|slots| slots.lanes.find(name, hash).is_some())
    }

    /// Does what is due by `now`, and returns when something is due next. That is no later than now where much is due, so that others
    /// have their turn; what only asks the server about holds goes out a few at a time.
    pub(crate) fn tick(&self, now: BootTime, effects: &mut Effects) -> BootTime {
        for _ in 0..LOOKED_AT {
            let (due, shard) = self.shards.first_due();
            let Some(shard) = shard.filter(|_| due <= now) else { break };
            shard.change(effects, |slots, effects| {
                let due = slots.lanes.first_due().filter(|(due, _)| *due <= now);
                let Some((at, key)) = due.and_then(|(_, at)| Some((at, slots.lanes.key(at).cloned()?)))
                else {
                    return; // somebody has seen to it
                };
                self.on_locked(slots, (&key, at), now, effects, |lane, cx| {
                    let place = self.pace.puts_off(now);
                    if !place.is_some_and(|place| lane.put_off(now, place)) {
                        lane.tick(cx);
                    }
                });
            });
        }
        self.set_off(now, effects);
        self.due()
    }

    /// Returns when something is due next.
    pub(crate) fn due(&self) -> BootTime {
        self.shards.first_due().0
    }

    /// Returns how many calls wait for the lock of `key`.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self, key: &Name) -> usize {
        let (shard, hash) = self.shards.of_key(key);
        shard.look(|slots| {
            let at = slots.lanes.find(key, hash);
            at.and_then(|at| slots.lanes.lane(at)).map_or(0, |(lane, _)| lane.waiting())
        })
    }

    /// Returns whether the engine takes no new work.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Takes no new work: who waits is refused, who holds goes on. After `patience` those who still hold lose their hold, and what they
    /// do not let go of in the time of one answer is released all the same. In a forked process it ends, also if it is under way at the
    /// fork.
    pub(crate) async fn shutdown(&self, patience: Duration) {
        let mut shutting_down = std::pin::pin!(self.shut_down(patience));
        poll_fn(|cx| if self.is_forked() { Poll::Ready(()) } else { shutting_down.as_mut().poll(cx) }).await;
    }

    async fn shut_down(&self, patience: Duration) {
        self.closed.store(true, Ordering::Release);
        for key in self.keys() {
            self.on_lane(&key, Lane::close);
        }
        self.until_all_let_go(patience).await;
        for key in self.keys() {
            self.on_lane(&key, |lane, cx| lane.lose(LossCause::Shutdown, cx));
        }
        self.until_all_let_go(self.rules.response_timeout).await;
        for key in self.keys() {
            self.on_lane(&key, Lane::let_go_of_all);
        }
        self.settle().await;
    }

    /// Waits until what was asked is answered, and what nobody may have any more is given back: a response timeout, and
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

    /// Waits until nobody has a lock, `patience` at most.
    async fn until_all_let_go(&self, patience: Duration) {
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
            () = self.backend.sleep(patience) => {}
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

/// How far apart the two leaves of what went out on a lost connection are (`protocol::abandon`).
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
