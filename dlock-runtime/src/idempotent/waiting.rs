//! How a call waits while another one with its key runs.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::idempotent::begin::{Asked, Begun, PendingCall};
use crate::idempotent::duplicates::{AwaitedAttempt, Turn, WaitingCalls, waiter_id};
use crate::idempotent::execution::Execution;
use crate::protocol::deadline::BootInstant;
use crate::protocol::idempotency::event::IdempotencyReply;

impl PendingCall {
    /// Begins the call, and waits at most `wait` while another one runs.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask) and [`decide`](Self::decide). If the server is unavailable at the end of
    /// the wait, [`Error::InProgress`] if a call with the key may be running.
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
        let turn = tokio::select! {
            biased;
            reply = settled.wait_for(Option::is_some) => {
                let reply = reply.ok().and_then(|reply| reply.clone());
                return reply.map_or_else(|| Err(self.in_progress(None)), |reply| self.decide(&reply));
            }
            turn = Arc::clone(&calls.turn).lock_owned() => Some(turn),
            () = &mut timeout => None,
        };
        // The call whose turn it is may be on a runtime that stands still.
        let Some(turn) = turn else { return self.begin_at_the_end(&calls, None).await };
        if let Some(reply) = calls.settled.borrow().clone() {
            return self.decide(&reply);
        }
        self.take_turn(&calls, turn, timeout).await
    }

    /// Asks the store until the call is decided, or `timeout` ends.
    async fn take_turn(
        &self,
        calls: &Arc<WaitingCalls>,
        mut turn: Turn,
        mut timeout: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Begun> {
        let engine = self.manager.engine();
        let check_after = engine.rules.grant_lease / 2;
        loop {
            let pause = turn.since(engine.now());
            if !pause.is_zero() {
                tokio::select! {
                    biased;
                    () = &mut timeout => return self.begin_at_the_end(calls, Some(turn)).await,
                    () = calls.wait_for_change(engine) => {}
                    () = engine.backend.sleep(pause) => {}
                }
            }
            let asked = self.ask(Some(waiter_id(engine))).await;
            let now = engine.now();
            match asked {
                Ok(Asked::Started(execution)) => return Ok(started(execution, calls, Some(turn))),
                Ok(Asked::Found(found)) => {
                    calls.on_reply(&found);
                    let decided = self.decide(&found);
                    *turn = BootInstant::START;
                    if let IdempotencyReply::Running { lease_left, is_queued, .. } = found {
                        calls.is_queued.store(is_queued, Ordering::Release);
                        *turn = now.plus(check_after.min(Duration::from_millis(lease_left)));
                        if matches!(decided, Err(Error::InProgress { .. })) {
                            continue;
                        }
                    }
                    return decided;
                }
                Err(Error::Unavailable { .. }) => *turn = now.plus(check_after),
                Err(error) => return Err(error),
            }
        }
    }

    /// Begins the call when its wait has ended: the last reply may be old, and its turn may not
    /// have come.
    async fn begin_at_the_end(&self, calls: &Arc<WaitingCalls>, turn: Option<Turn>) -> Result<Begun> {
        match self.ask(None).await {
            Ok(Asked::Started(execution)) => Ok(started(execution, calls, turn)),
            Ok(Asked::Found(found)) => {
                calls.on_reply(&found);
                self.decide(&found)
            }
            Err(Error::Unavailable { .. }) if calls.may_be_running() => Err(self.in_progress(None)),
            Err(error) => Err(error),
        }
    }

    pub(super) fn in_progress(&self, remaining: Option<Duration>) -> Error {
        Error::InProgress { key: self.key.clone(), remaining }
    }
}

/// Begins the body of a call for which the other `calls` wait.
fn started(mut execution: Box<Execution>, calls: &Arc<WaitingCalls>, turn: Option<Turn>) -> Begun {
    execution.awaited = Some(AwaitedAttempt::new(calls, turn));
    Begun::Started(execution)
}
