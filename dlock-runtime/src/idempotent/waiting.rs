//! How a call waits while another one with its key runs.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::idempotent::begin::{Asked, Begun, PendingCall};
use crate::idempotent::duplicates::{Turn, WaitingCalls, waiter_id};
use crate::protocol::deadline::BootInstant;
use crate::protocol::idempotency::event::IdempotencyReply;

impl PendingCall {
    /// Begins the call, and waits at most `wait` while another one runs.
    ///
    /// # Errors
    ///
    /// [`Error::InProgress`] if the other call was found running; the last failure if the server is
    /// unavailable from the start; as [`decide`](Self::decide).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call leaves no record, and another call takes its turn.
    pub(super) async fn wait(&self, wait: Duration) -> Result<Begun> {
        let engine = self.manager.engine();
        let waiting = engine.run_in_own_process(Some(&self.key), self.wait_for_turn(wait));
        tokio::select! {
            biased;
            begun = waiting => begun,
            () = engine.calls.closed.wait() => Err(Error::Shutdown { key: Some(self.key.clone()) }),
        }
    }

    async fn wait_for_turn(&self, wait: Duration) -> Result<Begun> {
        let engine = self.manager.engine();
        let calls = self.manager.idempotency().duplicates.join(engine, &self.record, &self.identity);
        let mut settled = calls.settled.subscribe();
        let mut timeout = pin!(engine.backend.sleep(wait));
        let next = tokio::select! {
            biased;
            reply = settled.wait_for(Option::is_some) => {
                let reply = reply.ok().and_then(|reply| reply.clone());
                return reply.map_or_else(|| Err(self.in_progress(None)), |reply| self.decide(&reply));
            }
            next = Arc::clone(&calls.turn).lock_owned() => Some(next),
            () = &mut timeout => None,
        };
        let Some(next) = next else { return self.begin_at_the_end(&calls).await };
        if let Some(reply) = calls.settled.borrow().clone() {
            return self.decide(&reply);
        }
        self.take_turn(Turn { calls, next }, timeout).await
    }

    /// Begins the call after a wait in which it has not asked. The call whose turn it was may be on
    /// a runtime that stands still.
    async fn begin_at_the_end(&self, calls: &WaitingCalls) -> Result<Begun> {
        match self.begin_now().await {
            Err(Error::Unavailable { .. }) if calls.has_seen_running.load(Ordering::Acquire) => {
                Err(self.in_progress(None))
            }
            begun => begun,
        }
    }

    /// Asks the store until the call is decided, or `timeout` ends.
    async fn take_turn(
        &self,
        mut turn: Turn,
        mut timeout: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Begun> {
        let engine = self.manager.engine();
        let (calls, mut last) = (Arc::clone(&turn.calls), None);
        loop {
            let pause = turn.next.since(engine.now());
            if !pause.is_zero() {
                tokio::select! {
                    biased;
                    () = &mut timeout => {
                        let Some(last) = last else { return self.begin_at_the_end(&calls).await };
                        return Err(last);
                    }
                    () = turn.calls.wait_for_change(engine) => {}
                    () = engine.backend.sleep(pause) => {}
                }
            }
            let check_after = engine.rules.grant_lease / 2;
            let asked = self.ask(Some(waiter_id(engine))).await;
            let now = engine.now();
            match asked {
                Ok(Asked::Started(execution)) => {
                    calls.has_seen_running.store(true, Ordering::Release);
                    *turn.next = BootInstant::START;
                    return Ok(Begun::Started(Box::new(execution.with_turn(turn))));
                }
                Ok(Asked::Found(found)) => {
                    let decided = self.decide(&found);
                    if let IdempotencyReply::Running { lease_left, is_queued, .. } = found {
                        calls.is_queued.store(is_queued, Ordering::Release);
                        calls.has_seen_running.store(true, Ordering::Release);
                        *turn.next = now.plus(check_after.min(Duration::from_millis(lease_left)));
                        let Err(error @ Error::InProgress { .. }) = decided else { return decided };
                        last = Some(error);
                        continue;
                    }
                    *turn.next = BootInstant::START;
                    if matches!(found, IdempotencyReply::Completed { .. }) {
                        turn.settle(found);
                    }
                    return decided;
                }
                Err(error @ Error::Unavailable { .. }) => {
                    last = if calls.has_seen_running.load(Ordering::Acquire) {
                        last.or_else(|| Some(self.in_progress(None)))
                    } else {
                        Some(error)
                    };
                    *turn.next = now.plus(check_after);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn in_progress(&self, remaining: Option<Duration>) -> Error {
        Error::InProgress { key: self.key.clone(), remaining }
    }
}
