//! [`Duplicates`]: the calls of this process that wait for the same key.
//!
//! ```text
//! calls of one key --turn--> one of them asks the store
//!   Started      it runs its body, and keeps the turn until its end
//!   Running      it keeps the turn, and asks again when the record changes
//!   Completed    the reply is shared with all calls
//!   other        the turn passes on, and the next call asks
//! ```
//!
//! So a thousand calls of one process ask as often as one.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, watch};

use crate::backend::store_call::waiter;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::idempotent::attempt::millis;
use crate::idempotent::begin::{Asked, Begun, Call};
use crate::idempotent::operation::RecordOperation;
use crate::key::Name;
use crate::protocol::deadline::BootInstant;
use crate::protocol::idempotency::event::{IdempotencyEvent, IdempotencyReply};
use crate::sync::lock;

/// The waiting calls of one manager, by record.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    waiting: Mutex<HashMap<Name, Weak<WaitingCalls>>>,
}

/// The calls of this process that wait for one record.
#[derive(Debug)]
struct WaitingCalls {
    record: Name,
    engine: Weak<Engine>,
    duplicates: Arc<Duplicates>,
    turn: Arc<tokio::sync::Mutex<NextCheck>>,
    /// The reply that ends the wait of all calls.
    settled: watch::Sender<Option<Arc<IdempotencyReply>>>,
    /// Notified when the record changes.
    changed: Arc<Notify>,
    /// Whether the record notifies this process.
    is_queued: AtomicBool,
}

/// When the store is asked next. It belongs to the call whose turn it is.
#[derive(Debug)]
struct NextCheck {
    at: BootInstant,
}

/// The turn of one of the calls that wait for a record. The others wait until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    calls: Arc<WaitingCalls>,
    next: OwnedMutexGuard<NextCheck>,
}

impl Duplicates {
    /// Returns the calls that wait for `record`.
    fn join(self: &Arc<Self>, engine: &Arc<Engine>, record: &Name) -> Arc<WaitingCalls> {
        let mut waiting = lock(&self.waiting);
        if let Some(calls) = waiting.get(record).and_then(Weak::upgrade) {
            return calls;
        }
        let calls = Arc::new(WaitingCalls {
            record: Name::clone(record),
            engine: Arc::downgrade(engine),
            duplicates: Arc::clone(self),
            turn: Arc::new(tokio::sync::Mutex::new(NextCheck { at: BootInstant::START })),
            settled: watch::Sender::new(None),
            changed: engine.calls.watch(record),
            is_queued: AtomicBool::new(false),
        });
        waiting.insert(Name::clone(record), Arc::downgrade(&calls));
        calls
    }
}

impl WaitingCalls {
    /// Waits until the record has changed. Any client can send such messages, so it takes at least
    /// [`SHORTEST_PAUSE`].
    async fn wait_for_change(&self, engine: &Engine) {
        engine.backend.sleep(SHORTEST_PAUSE).await;
        self.changed.notified().await;
    }

    /// Ends the wait of all calls. Later calls ask the store.
    fn settle(&self, reply: IdempotencyReply) {
        self.is_queued.store(false, Ordering::Release);
        let mut waiting = lock(&self.duplicates.waiting);
        if waiting.get(&self.record).is_some_and(|calls| std::ptr::eq(calls.as_ptr(), self)) {
            waiting.remove(&self.record);
        }
        drop(waiting);
        self.settled.send_replace(Some(Arc::new(reply)));
    }
}

impl Drop for WaitingCalls {
    fn drop(&mut self) {
        let mut waiting = lock(&self.duplicates.waiting);
        if waiting.get(&self.record).is_some_and(|calls| std::ptr::eq(calls.as_ptr(), self)) {
            waiting.remove(&self.record);
        }
        drop(waiting);
        if *self.is_queued.get_mut()
            && let Some(engine) = self.engine.upgrade()
            && !engine.is_forked()
        {
            let event = IdempotencyEvent::Dequeue { waiter: waiter_id(&engine) };
            let operation = Arc::new(RecordOperation(event));
            engine.call_in_background(Name::clone(&self.record), operation, Duration::ZERO, |_| {});
        }
    }
}

impl Turn {
    /// Gives the result to all calls that wait.
    pub(super) fn settle(self, reply: IdempotencyReply) {
        self.calls.settle(reply);
    }
}

impl Call {
    /// Begins the call, and waits at most `wait` while another one runs.
    ///
    /// # Errors
    ///
    /// [`Error::InProgress`] if the other call is still running; the last failure if the server is
    /// unavailable; the error of the verdict.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call leaves no record, and another call takes its turn.
    pub(super) async fn wait(&self, wait: Duration) -> Result<Begun> {
        let engine = self.manager.engine();
        let waiting = self.wait_for_turn(wait);
        tokio::select! {
            biased;
            begun = waiting => begun,
            () = engine.calls.closed() => Err(Error::Shutdown { key: Some(self.key.clone()) }),
        }
    }

    async fn wait_for_turn(&self, wait: Duration) -> Result<Begun> {
        let engine = self.manager.engine();
        let calls = self.manager.duplicates().join(engine, &self.record);
        let mut settled = calls.settled.subscribe();
        let mut timeout = pin!(engine.backend.sleep(wait));
        let next = tokio::select! {
            biased;
            reply = settled.wait_for(Option::is_some) => {
                let reply = reply.ok().and_then(|reply| reply.clone());
                return reply.map_or_else(|| Err(self.in_progress(None)), |reply| self.decide(&reply));
            }
            next = Arc::clone(&calls.turn).lock_owned() => next,
            () = &mut timeout => return Err(self.in_progress(None)),
        };
        if let Some(reply) = calls.settled.borrow().clone() {
            return self.decide(&reply);
        }
        self.take_turn(Turn { calls, next }, timeout).await
    }

    /// Asks the store until the call is decided, or `timeout` ends.
    async fn take_turn(
        &self,
        mut turn: Turn,
        mut timeout: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Begun> {
        let engine = self.manager.engine();
        let mut last = self.in_progress(None);
        loop {
            let pause = turn.next.at.since(engine.now());
            if !pause.is_zero() {
                tokio::select! {
                    biased;
                    () = &mut timeout => return Err(last),
                    () = turn.calls.wait_for_change(engine) => {}
                    () = engine.backend.sleep(pause) => {}
                }
            }
            let check_after = engine.rules.grant_lease / 2;
            let asked = self.ask(Some(waiter_id(engine))).await;
            let now = engine.now();
            match asked {
                Ok(Asked::Started(execution)) => {
                    turn.next.at = BootInstant::START;
                    return Ok(Begun::Started(execution.with_turn(turn)));
                }
                Ok(Asked::Found(IdempotencyReply::Running { identity, lease_left, is_queued })) => {
                    turn.calls.is_queued.store(is_queued, Ordering::Release);
                    let lease_left = Duration::from_millis(lease_left);
                    turn.next.at = now.plus(check_after.min(lease_left));
                    let found =
                        IdempotencyReply::Running { identity, lease_left: millis(lease_left), is_queued };
                    match self.decide(&found) {
                        Err(error @ Error::InProgress { .. }) => last = error,
                        other => return other,
                    }
                }
                Ok(Asked::Found(found)) => {
                    turn.next.at = BootInstant::START;
                    let decided = self.decide(&found);
                    if matches!(found, IdempotencyReply::Completed { .. }) {
                        turn.settle(found);
                    }
                    return decided;
                }
                Err(error @ Error::Unavailable { .. }) => {
                    last = error;
                    turn.next.at = now.plus(check_after);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn in_progress(&self, retry_after: Option<Duration>) -> Error {
        Error::InProgress { key: self.key.clone(), retry_after }
    }
}

/// The shortest time between two questions about a record: it bounds what forged messages cause.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// Returns the ID under which records notify the manager of `engine`.
fn waiter_id(engine: &Engine) -> String {
    waiter(&engine.tokens.process().token_prefix())
}
