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
//! `turn` is one task's turn, `waiting` its way to it, `hold` what it has then, `effects` what waits for the locks. Not here: what the
//! events mean (`protocol`).

pub(crate) mod effects;
pub(crate) mod hold;
pub(crate) mod turn;
pub(crate) mod waiting;

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::engine::effects::Effects;
use crate::engine::turn::{Ended, Seat, Turn};
use crate::error::LossCause;
use crate::protocol::Rules;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootTime;
use crate::protocol::hold::Released;
use crate::protocol::lane::{Action, Cx, Lane};
use crate::protocol::share::Offer;
use crate::protocol::strangers::Strangers;
use crate::protocol::waits::Waits;
use crate::sync::lock;
use crate::token::{Token, TokenSource};

/// All locks of one manager.
#[derive(Debug)]
pub(crate) struct Engine {
    shards: Box<[Shard]>,
    hasher: std::hash::RandomState,
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
    held: AtomicU64,
    drained: tokio::sync::Notify,
}

/// A part of the lanes, behind a lock of its own.
#[derive(Debug)]
struct Shard {
    slots: Mutex<Slots>,
    /// When the first of its lanes is due, readable without the lock.
    due: AtomicU64,
}

#[derive(Debug, Default)]
struct Slots {
    lanes: HashMap<Arc<str>, Box<Entry>>,
    timers: BTreeSet<(BootTime, Arc<str>)>,
    /// Empty, and kept for its room.
    actions: Vec<Action<Seat>>,
}

#[derive(Debug)]
struct Entry {
    lane: Lane<Seat>,
    /// The time under which the lane stands among the timers.
    armed: BootTime,
}

impl Engine {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Clock,
        tokens: TokenSource,
        rules: Rules,
        lease: Duration,
    ) -> Self {
        let shards = (0..SHARDS)
            .map(|_| Shard { slots: Mutex::default(), due: AtomicU64::new(BootTime::NEVER.nanos()) });
        Self {
            shards: shards.collect(),
            hasher: std::hash::RandomState::new(),
            clock,
            tokens,
            rules,
            lease,
            backend,
            waits: Mutex::default(),
            strangers: Mutex::new(Strangers::new()),
            closed: AtomicBool::new(false),
            held: AtomicU64::new(0),
            drained: tokio::sync::Notify::new(),
        }
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
        key: &Arc<str>,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        let now = self.now();
        let mut effects = Effects::default();
        let result = self
            .in_shard(key, &mut effects, |lanes, effects| self.on_locked(lanes, key, now, effects, event));
        self.finish(now, effects);
        result
    }

    /// Changes the shard of `key` under its lock.
    fn in_shard<R>(
        &self,
        key: &Arc<str>,
        effects: &mut Effects,
        change: impl FnOnce(&mut Slots, &mut Effects) -> R,
    ) -> R {
        let shard = self.shard(key);
        let mut slots = lock(&shard.slots);
        let result = change(&mut slots, effects);
        let due = slots.timers.first().map_or(BootTime::NEVER, |(due, _)| *due);
        if shard.due.swap(due.nanos(), Ordering::SeqCst) > due.nanos() {
            effects.due(due);
        }
        result
    }

    fn on_locked<R>(
        &self,
        slots: &mut Slots,
        key: &Arc<str>,
        now: BootTime,
        effects: &mut Effects,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        let entry = slots
            .lanes
            .entry(Arc::clone(key))
            .or_insert_with(|| Box::new(Entry { lane: Lane::new(), armed: BootTime::NEVER }));
        let mut actions = std::mem::take(&mut slots.actions);
        let mut cx = Cx { now, rules: &self.rules, tokens: &self.tokens, actions: &mut actions };
        let result = event(&mut entry.lane, &mut cx);
        for action in actions.drain(..) {
            self.act(key, now, action, effects);
        }
        let due = entry.lane.due();
        if let (Clock::Tokio(_), Some(head)) = (&self.clock, entry.lane.head())
            && due < entry.armed
        {
            effects.wakes(head.look_again()); // who waits keeps the time, and has set an alarm for later
        }
        if due != entry.armed {
            if entry.armed != BootTime::NEVER {
                slots.timers.remove(&(entry.armed, Arc::clone(key)));
            }
            if due != BootTime::NEVER {
                slots.timers.insert((due, Arc::clone(key)));
            }
            entry.armed = due;
        }
        if entry.lane.is_idle() {
            slots.lanes.remove(key);
        }
        slots.actions = actions;
        result
    }

    /// Does what a lane wants done, in the order in which it wants it.
    fn act(&self, key: &Arc<str>, now: BootTime, action: Action<Seat>, effects: &mut Effects) {
        match action {
            Action::Send { token, command } => self.push(key, token, command, None, effects),
            Action::Abandon { token } => effects.abandoned.push((Arc::clone(key), token)),
            Action::Admit { seat, token, deadline, ends, attempts } => {
                self.held.fetch_add(1, Ordering::Relaxed);
                #[cfg(feature = "testing")]
                self.backend.admitted(key);
                effects.wakes(seat.admit(token, deadline, ends, attempts, now));
            }
            Action::Join { seat } => effects.wakes(seat.join()),
            Action::Refuse { seat, refusal } => effects.wakes(seat.refuse(refusal)),
            Action::Prolong { seat, deadline } => seat.prolong(deadline),
            Action::Lose { seat, cause, left } => effects.wakes(seat.lose(cause, left, now)),
        }
    }

    fn push(
        &self,
        key: &Arc<str>,
        token: Token,
        command: Command,
        answer: Option<oneshot::Sender<Reply>>,
        effects: &mut Effects,
    ) {
        self.backend.push(Request { answer, ..Request::new(Arc::clone(key), token, command) });
        effects.flush = true;
    }

    /// Sets the backend off and wakes tasks, with nothing locked.
    fn finish(&self, now: BootTime, mut effects: Effects) {
        self.set_off(now, &mut effects);
        effects.wake();
    }

    fn set_off(&self, now: BootTime, effects: &mut Effects) {
        let earlier = effects.earlier.take();
        if std::mem::take(&mut effects.flush) {
            self.backend.flush(self, now, effects);
        } else if let Some(due) = earlier {
            self.backend.due_earlier(due);
        }
    }

    /// A task lets go of the lock that it holds or has lost; `ran`: something ran under it. With `answered`, the returned
    /// receiver is told the server's answer; there is none where another task of this process has the lock now.
    pub(crate) fn release(
        &self,
        turn: &Arc<Turn>,
        ran: bool,
        answered: bool,
    ) -> Option<oneshot::Receiver<Reply>> {
        let now = self.now();
        let seat = Seat(Arc::clone(turn));
        let key = turn.key.name();
        let mut effects = Effects::default();
        let mut drained = false;
        let receiver = self.in_shard(key, &mut effects, |slots, effects| {
            // Over before anybody else can have it: what still runs under it is not polled again.
            let Ended { wakers, was_admitted, left } = turn.end();
            effects.wakes(wakers);
            drained = was_admitted && self.held.fetch_sub(1, Ordering::AcqRel) == 1;
            let released = self.on_locked(slots, key, now, effects, |lane, cx| match left {
                Some(left) => {
                    lane.let_go_of(left, ran, cx);
                    Released::Kept
                }
                None if ran => lane.release(&seat, cx),
                None => lane.decline(&seat, cx),
            });
            let Released::ToServer(token, command) = released else { return None };
            let (answer, receiver) = answered.then(oneshot::channel).unzip();
            self.push(key, token, command, answer, effects);
            receiver
        });
        self.finish(now, effects);
        if drained {
            self.drained.notify_waiters(); // with nothing locked
        }
        receiver
    }

    /// Asks the server something beside what the rules ask, of the key with this full name.
    pub(crate) fn ask(&self, name: &Arc<str>, token: Token, command: Command) -> oneshot::Receiver<Reply> {
        let now = self.now();
        let (answer, receiver) = oneshot::channel();
        let mut effects = Effects::default();
        self.push(name, token, command, Some(answer), &mut effects);
        self.finish(now, effects);
        receiver
    }

    /// The backend answers requests that were sent together, at `sent`; tasks are woken once all are dealt with. Returns the keys and
    /// tokens whose commands may still have an effect that nobody wants.
    pub(crate) fn replies(
        &self,
        now: BootTime,
        sent: BootTime,
        replies: impl IntoIterator<Item = (Request, Reply)>,
        effects: &mut Effects,
    ) -> Vec<(Arc<str>, Token)> {
        for (Request { key, token, command, answer, .. }, reply) in replies {
            match command {
                _ if command.lets_go() => {
                    if matches!(reply, Reply::Unknown(_) | Reply::Refused(_)) {
                        effects.abandoned.push((key, token));
                    }
                }
                _ => {
                    let reply = reply.clone();
                    self.in_shard(&key, effects, |slots, effects| {
                        self.on_locked(slots, &key, now, effects, |lane, cx| {
                            lane.reply(token, command, sent, reply, cx);
                        });
                    });
                }
            }
            effects.answer(answer, reply);
        }
        self.set_off(now, effects);
        std::mem::take(&mut effects.abandoned)
    }

    /// The backend was told what `token` has been granted.
    pub(crate) fn granted(
        &self,
        key: &Arc<str>,
        token: Token,
        offer: Offer,
        now: BootTime,
        effects: &mut Effects,
    ) {
        if !self.tokens.has_issued(token) {
            return;
        }
        let known = self.in_shard(key, effects, |slots, effects| {
            self.on_locked(slots, key, now, effects, |lane, cx| lane.granted(token, offer, cx))
        });
        if !known && lock(&self.strangers).may_answer(now) {
            self.push(key, token, Command::Leave, None, effects);
        }
        self.set_off(now, effects);
    }

    /// The backend has a new connection for the keys whose full names `concerns` takes; where they `moved`, to another server than
    /// before.
    pub(crate) fn reconnected(&self, moved: bool, concerns: impl Fn(&str) -> bool) {
        for key in self.keys().into_iter().filter(|key| concerns(key)) {
            self.on_lane(&key, |lane, cx| lane.reconnected(moved, cx));
        }
    }

    /// The backend has a hint that somebody changed the key with this full name.
    pub(crate) fn touched(&self, name: &Arc<str>) {
        if self.wants(name) {
            self.on_lane(name, Lane::touched);
        }
    }

    /// Returns whether something of the key is remembered: it is held here, or waited for.
    pub(crate) fn wants(&self, name: &Arc<str>) -> bool {
        lock(&self.shard(name).slots).lanes.contains_key(name)
    }

    /// Does what is due by `now`, and returns when something is due next.
    pub(crate) fn tick(&self, now: BootTime, effects: &mut Effects) -> BootTime {
        for shard in &self.shards {
            while shard.due.load(Ordering::SeqCst) <= now.nanos() {
                let key = lock(&shard.slots).timers.first().map(|(_, key)| Arc::clone(key));
                let Some(key) = key else { break };
                self.in_shard(&key, effects, |slots, effects| {
                    self.on_locked(slots, &key, now, effects, Lane::tick);
                });
            }
        }
        self.set_off(now, effects);
        self.due()
    }

    /// Returns when something is due next.
    pub(crate) fn due(&self) -> BootTime {
        let first = self.shards.iter().map(|shard| shard.due.load(Ordering::SeqCst)).min();
        first.map_or(BootTime::NEVER, BootTime::from_nanos)
    }

    /// Returns how many calls wait for the lock of `key`.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self, key: &Arc<str>) -> usize {
        lock(&self.shard(key).slots).lanes.get(key).map_or(0, |entry| entry.lane.waiting())
    }

    /// Returns whether the engine takes no new work.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Takes no new work: who waits is refused, who holds goes on. After `patience` those who still hold lose their hold, and what they
    /// do not let go of in the time of one answer is released all the same.
    pub(crate) async fn shutdown(&self, patience: Duration) {
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
        self.backend.settle().await;
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

    /// Returns the keys of which something is remembered.
    pub(crate) fn keys(&self) -> Vec<Arc<str>> {
        self.shards
            .iter()
            .flat_map(|shard| lock(&shard.slots).lanes.keys().cloned().collect::<Vec<_>>())
            .collect()
    }

    fn shard(&self, key: &Arc<str>) -> &Shard {
        let at = self.hasher.hash_one(key) % SHARDS;
        let at = usize::try_from(at).unwrap_or_default();
        self.shards.get(at).expect("there are SHARDS shards, and `at` is a remainder of SHARDS")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.backend.close();
    }
}

/// Enough that tasks of two dozen cores seldom meet, few enough to look at all of them for the next timer.
const SHARDS: u64 = 16;
