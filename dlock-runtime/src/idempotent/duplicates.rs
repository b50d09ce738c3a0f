//! [`Duplicates`]: the calls of this process that wait for the same key.
//!
//! ```text
//! equal calls --turn--> one of them asks the store
//!   Started      it runs its body, and keeps the turn until its end
//!   Running      it keeps the turn, and asks again when the record changes
//!   Completed    the reply is shared with all calls
//!   other        the turn passes on, and the next call asks
//! ```
//!
//! So a thousand calls of one process ask as often as one. A call whose wait ends asks by itself,
//! also without the turn.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, watch};

use crate::backend::store_call::waiter;
use crate::engine::Engine;
use crate::idempotent::operation::RecordOperation;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::protocol::idempotency::CallIdentity;
use crate::protocol::idempotency::event::{IdempotencyEvent, IdempotencyReply};
use crate::sync::lock;

/// The waiting calls of one manager, by record.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    waiting: Mutex<HashMap<DuplicateKey, Weak<WaitingCalls>>>,
}

/// The values that calls share if they wait for each other. A call with another payload does not
/// wait: it gets an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DuplicateKey {
    record: Name,
    function: String,
    fingerprint: String,
}

/// The calls of this process that wait for one record.
#[derive(Debug)]
pub(super) struct WaitingCalls {
    key: DuplicateKey,
    engine: Weak<Engine>,
    duplicates: Arc<Duplicates>,
    /// When the call whose turn it is asks the store next.
    pub(super) turn: Arc<tokio::sync::Mutex<BootInstant>>,
    /// The reply that ends the wait of all calls.
    pub(super) settled: watch::Sender<Option<Arc<IdempotencyReply>>>,
    /// Notified when the record changes.
    changed: Arc<Notify>,
    /// Whether the record notifies this process.
    pub(super) is_queued: AtomicBool,
    running: Mutex<RunningAttempts>,
}

/// The attempts of one record that may be running, as far as the process knows.
#[derive(Debug, Default)]
struct RunningAttempts {
    /// The number of attempts of this process, each an [`AwaitedAttempt`].
    own: usize,
    /// Whether there may be another one: of another process, or of this one without a confirmed
    /// end.
    other: bool,
}

/// The turn of one of the calls that wait for a record: when it asks the store next. The others
/// wait until it is dropped.
pub(super) type Turn = OwnedMutexGuard<BootInstant>;

/// An attempt of this process, for which other calls of it may wait.
#[derive(Debug)]
pub(super) struct AwaitedAttempt {
    calls: Arc<WaitingCalls>,
    /// `None` if the call has started at the end of its wait, while another one had the turn.
    _turn: Option<Turn>,
    is_over: bool,
}

impl Duplicates {
    /// Returns the calls with this identity that wait for `record`.
    pub(super) fn join(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        record: &Name,
        identity: &CallIdentity,
    ) -> Arc<WaitingCalls> {
        let CallIdentity { function, fingerprint, .. } = identity.clone();
        let key = DuplicateKey { record: Name::clone(record), function, fingerprint };
        let mut waiting = lock(&self.waiting);
        if let Some(calls) = waiting.get(&key).and_then(Weak::upgrade) {
            return calls;
        }
        let calls = Arc::new(WaitingCalls {
            key: key.clone(),
            engine: Arc::downgrade(engine),
            duplicates: Arc::clone(self),
            turn: Arc::new(tokio::sync::Mutex::new(BootInstant::START)),
            settled: watch::Sender::new(None),
            changed: engine.calls.watch(record),
            is_queued: AtomicBool::new(false),
            running: Mutex::default(),
        });
        waiting.insert(key, Arc::downgrade(&calls));
        calls
    }
}

impl WaitingCalls {
    /// Waits until the record has changed. Any client can send such messages, so it takes at least
    /// [`SHORTEST_PAUSE`].
    pub(super) async fn wait_for_change(&self, engine: &Engine) {
        engine.backend.sleep(SHORTEST_PAUSE).await;
        self.changed.notified().await;
    }

    /// Handles what the store has replied to one of the calls. A result ends the wait of all.
    pub(super) fn on_reply(&self, reply: &IdempotencyReply) {
        let mut running = lock(&self.running);
        match reply {
            // If this process runs the call, its own end is confirmed to it.
            IdempotencyReply::Running { .. } => running.other |= running.own == 0,
            // With `OnCrash::Fail`, its body may still run.
            IdempotencyReply::Crashed { .. } => {}
            _ => running.other = false,
        }
        drop(running);
        if matches!(reply, IdempotencyReply::Completed { .. }) {
            self.settle(reply.clone());
        }
    }

    /// Returns `true` if the call may be running, as far as this process knows.
    pub(super) fn may_be_running(&self) -> bool {
        let running = lock(&self.running);
        running.own > 0 || running.other
    }

    fn is_forked(&self) -> bool {
        self.engine.upgrade().is_some_and(|engine| engine.is_forked())
    }

    /// Ends the wait of all calls. Later calls ask the store.
    fn settle(&self, reply: IdempotencyReply) {
        self.is_queued.store(false, Ordering::Release);
        let mut waiting = lock(&self.duplicates.waiting);
        if waiting.get(&self.key).is_some_and(|calls| std::ptr::eq(calls.as_ptr(), self)) {
            waiting.remove(&self.key);
        }
        drop(waiting);
        self.settled.send_replace(Some(Arc::new(reply)));
    }
}

impl Drop for WaitingCalls {
    fn drop(&mut self) {
        let engine = self.engine.upgrade();
        if engine.as_ref().is_some_and(|engine| engine.is_forked()) {
            return;
        }
        let mut waiting = lock(&self.duplicates.waiting);
        if waiting.get(&self.key).is_some_and(|calls| std::ptr::eq(calls.as_ptr(), self)) {
            waiting.remove(&self.key);
        }
        drop(waiting);
        if *self.is_queued.get_mut()
            && let Some(engine) = engine
        {
            let event = IdempotencyEvent::Dequeue { waiter: waiter_id(&engine) };
            let operation = Arc::new(RecordOperation(event));
            engine.call_in_background(Name::clone(&self.key.record), operation, Duration::ZERO, |_| {});
        }
    }
}

impl AwaitedAttempt {
    /// Creates it when the store has started the attempt, so no other one runs. The `turn` is kept
    /// until its end, and the next call asks at once.
    pub(super) fn new(calls: &Arc<WaitingCalls>, mut turn: Option<Turn>) -> Self {
        let mut running = lock(&calls.running);
        running.own += 1;
        running.other = false;
        drop(running);
        if let Some(next) = turn.as_deref_mut() {
            *next = BootInstant::START;
        }
        Self { calls: Arc::clone(calls), _turn: turn, is_over: false }
    }

    /// Marks that neither the attempt nor another one runs: the store has confirmed its end, or its
    /// body has not run. Otherwise, it counts as running until the store has replied to a later
    /// call, so that an outage at its end starts no second body.
    pub(super) fn mark_over(&mut self) {
        self.is_over = true;
    }

    /// Gives the result to all calls that wait.
    pub(super) fn settle(self, reply: IdempotencyReply) {
        self.calls.settle(reply);
    }
}

impl Drop for AwaitedAttempt {
    fn drop(&mut self) {
        if self.calls.is_forked() {
            return;
        }
        let mut running = lock(&self.calls.running);
        running.own -= 1;
        running.other |= !self.is_over;
    }
}

/// The shortest time between two questions about a record: it bounds what forged messages cause.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// Returns the ID under which records notify the manager of `engine`.
pub(super) fn waiter_id(engine: &Engine) -> String {
    waiter(&engine.tokens.process().token_prefix())
}
