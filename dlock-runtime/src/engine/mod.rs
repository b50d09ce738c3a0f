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
//! `turn` is one task's turn, `waiting` its way to it, `hold` what it has then. Not here: what the events mean (`protocol`).

pub(crate) mod hold;
pub(crate) mod turn;
pub(crate) mod waiting;

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::{Backend, Request};
use crate::clock::Clock;
use crate::engine::turn::{Seat, Turn};
use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::Rules;
use crate::protocol::command::{Command, Reply};
use crate::protocol::deadline::BootTime;
use crate::protocol::hold::Released;
use crate::protocol::lane::{Action, Cx, Lane};
use crate::protocol::waits::Waits;
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
    closed: AtomicBool,
    /// How many tasks hold a lock.
    held: AtomicU64,
    drained: tokio::sync::Notify,
}

/// A part of the lanes, behind a lock of its own.
#[derive(Debug)]
struct Shard {
    lanes: Mutex<Lanes>,
    /// When the first of its lanes is due, readable without the lock.
    due: AtomicU64,
}

#[derive(Debug, Default)]
struct Lanes {
    lanes: HashMap<Arc<str>, Box<LaneEntry>>,
    timers: BTreeSet<(BootTime, Arc<str>)>,
    /// Empty, and kept for its room.
    actions: Vec<Action<Seat>>,
}

#[derive(Debug)]
struct LaneEntry {
    lane: Lane<Seat>,
    /// The time under which the lane stands among the timers.
    armed: BootTime,
}

/// What is done after the shard's lock is free again.
#[derive(Default)]
struct After {
    wake: Vec<Waker>,
    answers: Vec<(oneshot::Sender<Reply>, Reply)>,
    flush: bool,
    /// Something of the shard has come due earlier than before.
    earlier: Option<BootTime>,
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
            .map(|_| Shard { lanes: Mutex::default(), due: AtomicU64::new(BootTime::NEVER.nanos()) });
        Self {
            shards: shards.collect(),
            hasher: std::hash::RandomState::new(),
            clock,
            tokens,
            rules,
            lease,
            backend,
            waits: Mutex::default(),
            closed: AtomicBool::new(false),
            held: AtomicU64::new(0),
            drained: tokio::sync::Notify::new(),
        }
    }

    /// Lets `event` happen to the lane of `key`, and does what comes of it.
    fn on_lane<R>(
        &self,
        key: &Arc<str>,
        now: BootTime,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        self.with_shard(key, |lanes, after| self.on_locked(lanes, key, now, after, event))
    }

    /// Changes the shard of `key` under its lock, then does what is to be done without it.
    fn with_shard<R>(&self, key: &Arc<str>, change: impl FnOnce(&mut Lanes, &mut After) -> R) -> R {
        let mut after = After::default();
        let result = self.in_shard(key, &mut after, change);
        self.finish(after);
        result
    }

    /// Changes the shard of `key` under its lock, and leaves it to the caller to do what is to be done without it.
    fn in_shard<R>(
        &self,
        key: &Arc<str>,
        after: &mut After,
        change: impl FnOnce(&mut Lanes, &mut After) -> R,
    ) -> R {
        let shard = self.shard(key);
        let mut lanes = lock(&shard.lanes);
        let result = change(&mut lanes, after);
        let due = lanes.timers.first().map_or(BootTime::NEVER, |(due, _)| *due);
        if shard.due.swap(due.nanos(), Ordering::SeqCst) > due.nanos() {
            after.earlier = Some(after.earlier.map_or(due, |earlier| earlier.min(due)));
        }
        result
    }

    fn on_locked<R>(
        &self,
        lanes: &mut Lanes,
        key: &Arc<str>,
        now: BootTime,
        after: &mut After,
        event: impl FnOnce(&mut Lane<Seat>, &mut Cx<'_, Seat>) -> R,
    ) -> R {
        let entry = lanes
            .lanes
            .entry(Arc::clone(key))
            .or_insert_with(|| Box::new(LaneEntry { lane: Lane::new(), armed: BootTime::NEVER }));
        let mut actions = std::mem::take(&mut lanes.actions);
        let mut cx = Cx { now, rules: &self.rules, tokens: &self.tokens, actions: &mut actions };
        let result = event(&mut entry.lane, &mut cx);
        for action in actions.drain(..) {
            self.act(key, now, action, after);
        }
        let due = entry.lane.due();
        if due != entry.armed {
            if entry.armed != BootTime::NEVER {
                lanes.timers.remove(&(entry.armed, Arc::clone(key)));
            }
            if due != BootTime::NEVER {
                lanes.timers.insert((due, Arc::clone(key)));
            }
            entry.armed = due;
        }
        if entry.lane.is_idle() {
            lanes.lanes.remove(key);
        }
        lanes.actions = actions;
        result
    }

    /// Does what a lane wants done, in the order in which it wants it.
    fn act(&self, key: &Arc<str>, now: BootTime, action: Action<Seat>, after: &mut After) {
        match action {
            Action::Send { token, command } => self.push(key, token, command, None, after),
            Action::Abandon { token } => {
                self.backend.abandon(Arc::clone(key), token);
                after.flush = true;
            }
            Action::Admit { seat, token, deadline, attempts } => {
                self.held.fetch_add(1, Ordering::Relaxed);
                after.wake.extend(seat.admit(token, deadline, attempts, now));
            }
            Action::Join { seat } => after.wake.extend(seat.join()),
            Action::Refuse { seat, refusal } => after.wake.extend(seat.refuse(refusal)),
            Action::Prolong { seat, deadline } => seat.prolong(deadline),
            Action::Lose { seat, cause } => {
                self.one_less();
                after.wake.extend(seat.lose(cause, now));
            }
        }
    }

    fn push(
        &self,
        key: &Arc<str>,
        token: Token,
        command: Command,
        answer: Option<oneshot::Sender<Reply>>,
        after: &mut After,
    ) {
        self.backend.push(Request { key: Arc::clone(key), token, command, answer });
        after.flush = true;
    }

    /// Wakes tasks and sets the backend off, with nothing locked.
    fn finish(&self, after: After) {
        if after.flush {
            self.backend.flush(self);
        } else if let Some(due) = after.earlier {
            self.backend.due_earlier(due);
        }
        after.wake.into_iter().for_each(Waker::wake);
    }

    /// A task lets go of the lock that it holds. With `answered`, the returned receiver is told the server's answer; there is none
    /// where another task of this process has the lock now.
    pub(crate) fn release(&self, turn: &Arc<Turn>, answered: bool) -> Option<oneshot::Receiver<Reply>> {
        let now = self.clock.now();
        self.backend.advance(now);
        let seat = Seat(Arc::clone(turn));
        let key = turn.key.name();
        self.with_shard(key, |lanes, after| {
            let released = self.on_locked(lanes, key, now, after, |lane, cx| lane.release(&seat, cx));
            if released != Released::NotHeld {
                self.one_less();
            }
            let Released::ToServer(token) = released else { return None };
            let (answer, receiver) = answered.then(oneshot::channel).unzip();
            self.push(key, token, Command::Release, answer, after);
            receiver
        })
    }

    /// Asks the server something beside what the rules ask.
    pub(crate) fn ask(&self, key: &LockKey, token: Token, command: Command) -> oneshot::Receiver<Reply> {
        let now = self.clock.now();
        self.backend.advance(now);
        let (answer, receiver) = oneshot::channel();
        let mut after = After::default();
        self.push(key.name(), token, command, Some(answer), &mut after);
        self.finish(after);
        receiver
    }

    /// The backend answers a request.
    pub(crate) fn reply(&self, request: Request, sent: BootTime, reply: Reply) {
        self.replies(sent, [(request, reply)]);
    }

    /// The backend answers requests that were sent together: tasks are woken once all are dealt with, so that the threads which
    /// run them are woken once.
    pub(crate) fn replies(&self, sent: BootTime, replies: impl IntoIterator<Item = (Request, Reply)>) {
        let mut after = After::default();
        for (request, reply) in replies {
            self.replied(request, sent, reply, &mut after);
        }
        self.finish(after);
    }

    fn replied(&self, request: Request, sent: BootTime, reply: Reply, after: &mut After) {
        let Request { key, token, command, answer, .. } = request;
        match command {
            // The lane has forgotten these when they leave; what is left of them is the backend's to undo.
            Command::Release | Command::Leave => {
                if matches!(reply, Reply::Unknown(_) | Reply::Refused(_)) {
                    self.backend.abandon(Arc::clone(&key), token);
                }
            }
            _ => {
                let reply = reply.clone();
                let now = self.clock.now();
                self.in_shard(&key, after, |lanes, after| {
                    self.on_locked(lanes, &key, now, after, |lane, cx| {
                        lane.reply(token, command, sent, reply, cx)
                    });
                });
            }
        }
        after.answers.extend(answer.map(|answer| (answer, reply)));
    }

    /// The backend was told of a grant.
    pub(crate) fn granted(&self, key: &Arc<str>, token: Token) {
        self.on_lane(key, self.clock.now(), |lane, cx| lane.granted(token, cx));
    }

    /// The backend has a new connection.
    pub(crate) fn reconnected(&self) {
        let now = self.clock.now();
        for key in self.keys() {
            self.on_lane(&key, now, Lane::reconnected);
        }
    }

    /// Does what is due by `now`, and returns when something is due next.
    pub(crate) fn tick(&self, now: BootTime) -> BootTime {
        for shard in &self.shards {
            while shard.due.load(Ordering::SeqCst) <= now.nanos() {
                let key = lock(&shard.lanes).timers.first().map(|(_, key)| Arc::clone(key));
                let Some(key) = key else { break };
                self.on_lane(&key, now, Lane::tick);
            }
        }
        self.due()
    }

    /// Returns when something is due next.
    pub(crate) fn due(&self) -> BootTime {
        let first = self.shards.iter().map(|shard| shard.due.load(Ordering::SeqCst)).min();
        first.map_or(BootTime::NEVER, BootTime::from_nanos)
    }

    /// Returns whether the engine takes no new work.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Takes no new work: who waits is refused, who holds goes on. Returns when nobody holds any more, or after `patience`, when
    /// those who still do lose their hold.
    pub(crate) async fn shutdown(&self, patience: Duration) {
        self.closed.store(true, Ordering::Release);
        let now = self.clock.now();
        for key in self.keys() {
            self.on_lane(&key, now, Lane::close);
        }
        let all_released = async {
            loop {
                let drained = self.drained.notified();
                if self.held.load(Ordering::Acquire) == 0 {
                    break;
                }
                drained.await;
            }
        };
        let _ = tokio::time::timeout(patience, all_released).await;
        let now = self.clock.now();
        for key in self.keys() {
            self.on_lane(&key, now, |lane, cx| lane.lose(LossCause::Shutdown, cx));
        }
        self.backend.settle().await;
    }

    fn keys(&self) -> Vec<Arc<str>> {
        self.shards
            .iter()
            .flat_map(|shard| lock(&shard.lanes).lanes.keys().cloned().collect::<Vec<_>>())
            .collect()
    }

    fn one_less(&self) {
        if self.held.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drained.notify_waiters();
        }
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

/// Locks a mutex. A panic of somebody else's waker is no reason to refuse all locks from then on: every change under our locks is
/// whole before a waker runs.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Enough that tasks of two dozen cores seldom meet, few enough to look at all of them for the next timer.
const SHARDS: u64 = 16;
