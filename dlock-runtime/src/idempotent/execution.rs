//! [`Execution`]: runs the body of an attempt, and stores its result.

use std::future::Future;
use std::sync::Arc;

use tracing::Instrument as _;

use crate::clock::millis;
use crate::config::config;
use crate::engine::store_calls::{ActiveCall, CallFailure};
use crate::error::{Error, Result};
use crate::global::in_current_scope;
use crate::idempotent::attempt::Attempt;
use crate::idempotent::duplicates::AwaitedAttempt;
use crate::idempotent::idempotent_record::IdempotentRecord;
use crate::idempotent::outcome::Completion;
use crate::key::LockKey;
use crate::protocol::idempotency::event::{IdempotencyEvent, IdempotencyReply};
use crate::protocol::idempotency::{CallIdentity, StoredResult};
use crate::scope::Scope;
use crate::telemetry;
#[cfg(feature = "testing")]
use crate::testing::crash_point::CrashPoint;

/// An attempt that has started, and has not ended yet.
///
/// If it is dropped before its end, the record shows what happened: the body did not run, it
/// crashed, or its outcome is unknown.
#[derive(Debug)]
pub(super) struct Execution {
    attempt: Arc<Attempt>,
    identity: CallIdentity,
    /// The attempt, if other calls of this process may wait for it.
    pub(super) awaited: Option<AwaitedAttempt>,
    /// The event that ends the attempt, while its reply is missing.
    ending: Option<IdempotencyEvent>,
    is_ended: bool,
    /// Whether the body has ended, and counts as crashed.
    has_crashed: bool,
    _active: ActiveCall,
}

impl Execution {
    pub(super) fn new(attempt: Attempt, identity: CallIdentity) -> Self {
        let attempt = Arc::new(attempt);
        let active = attempt.engine().active_call();
        let is_ended = !attempt.is_recorded;
        Self { attempt, identity, awaited: None, ending: None, is_ended, has_crashed: false, _active: active }
    }

    /// Runs `body`, and stores what it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the body was dropped because another attempt may have started.
    pub(super) async fn run<V, F, Fut>(mut self, body: F) -> Result<V>
    where
        F: FnOnce(IdempotentRecord) -> Fut,
        Fut: Future<Output = (Completion, V)>,
    {
        // A body that is refused before it starts has not run.
        let report_loss = |error: &Error| report_loss(self.attempt.key(), error);
        self.attempt.lease.check().inspect_err(report_loss)?;
        self.attempt.mark_run();
        let body = body(IdempotentRecord::new(&self.attempt));
        let ran = self.attempt.lease.run_while_valid(body).await;
        let (completion, value) = ran.inspect_err(report_loss)?;
        #[cfg(feature = "testing")]
        self.attempt.crash_at(CrashPoint::BeforeResult).await?;
        self.has_crashed = self.is_unfinished(&completion);
        if self.has_crashed {
            return Ok(value);
        }
        self.finish(completion).await;
        #[cfg(feature = "testing")]
        self.attempt.crash_at(CrashPoint::AfterResult).await?;
        Ok(value)
    }

    /// Returns `true` if it is not known how the body has ended: the completion says so, or its
    /// error is no proof.
    ///
    /// If the lease is lost, its error may be a consequence, and another attempt may start. If its
    /// record has refused a step, the error is not final, whatever the policy takes it for.
    fn is_unfinished(&self, completion: &Completion) -> bool {
        let is_lost = || {
            let loss = self.attempt.lease.check();
            loss.inspect_err(|error| report_loss(self.attempt.key(), error)).is_err()
        };
        let is_refused = self.attempt.has_refused() && *completion != Completion::Forget;
        *completion == Completion::Crashed || completion.is_error() && (is_lost() || is_refused)
    }

    /// Ends the attempt. Without a reply, its end is stored in the background.
    async fn finish(&mut self, completion: Completion) {
        self.attempt.lease.end();
        if self.is_ended {
            return; // there is no record
        }
        let event = self.event(completion);
        if matches!(event, IdempotencyEvent::Complete { .. }) {
            self.attempt.replace_steps();
        }
        self.ending = Some(event.clone());
        let reply = self.end(event).await;
        let Some(event) = self.ending.take() else { return };
        self.is_ended = true;
        if let Ok(IdempotencyReply::Done | IdempotencyReply::Absent) = reply {
            self.mark_over();
        }
        match (reply, event) {
            (Ok(IdempotencyReply::Done), IdempotencyEvent::Complete { result, .. }) => {
                if let Some(awaited) = self.awaited.take() {
                    awaited.settle(IdempotencyReply::Completed { identity: self.identity.clone(), result });
                }
            }
            (Ok(reply), event) => {
                self.attempt.on_reply(&event, &reply);
                if let Some(late_start) = self.attempt.late_start(&event) {
                    late_start.undo_later();
                }
            }
            (Err(failure), event) => self.finish_in_background(event, &failure.into_failure().reason),
        }
    }

    /// Sends the end of the attempt, after its steps without a reply. If a step is refused, the end
    /// would be as well, and has the same reply.
    async fn end(&self, event: IdempotencyEvent) -> Result<IdempotencyReply, CallFailure> {
        for step in self.attempt.unconfirmed_steps() {
            let reply = self.attempt.send(step.clone()).await?;
            self.attempt.on_reply(&step, &reply);
            if reply != IdempotencyReply::Done {
                return Ok(reply);
            }
        }
        self.attempt.send(event).await
    }

    fn event(&self, completion: Completion) -> IdempotencyEvent {
        let (token, ttl) = (self.attempt.token, millis(self.attempt.terms.ttl));
        let stored = |bytes: Vec<u8>, is_error| {
            let fits = bytes.len() <= self.attempt.terms.longest_result;
            if fits { StoredResult::Bytes { bytes, is_error } } else { StoredResult::NotStored }
        };
        let result = match completion {
            Completion::Store(bytes) => stored(bytes, false),
            Completion::StoreError(bytes) => stored(bytes, true),
            Completion::NotStored | Completion::ErrorNotStored => StoredResult::NotStored,
            Completion::Forget => return IdempotencyEvent::Forget { token, has_run: true, ttl },
            Completion::Crashed => return IdempotencyEvent::EndLease { token },
        };
        if result == StoredResult::NotStored {
            telemetry::idempotent_result_not_stored(self.attempt.key(), None);
        }
        IdempotencyEvent::Complete { token, result, ttl }
    }

    /// Marks, for the calls that wait, that no attempt runs.
    fn mark_over(&mut self) {
        if let Some(awaited) = &mut self.awaited {
            awaited.mark_over();
        }
    }

    /// Sends the end in the background. `reason`: why it has no reply.
    fn finish_in_background(&self, event: IdempotencyEvent, reason: &str) {
        let pending = Arc::clone(&self.attempt.manager.idempotency().pending);
        let count = self.attempt.manager.pending_results();
        telemetry::idempotent_end_pending(self.attempt.key(), count, reason);
        let late_start = self.attempt.late_start(&event);
        self.attempt.end_in_background(event, move || {
            drop(pending);
            if let Some(late_start) = late_start {
                late_start.undo_later();
            }
        });
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.attempt.engine().is_forked() {
            return;
        }
        self.attempt.lease.end();
        if self.is_ended {
            return;
        }
        let token = self.attempt.token;
        if let Some(ending) = self.ending.take() {
            self.finish_in_background(ending, "the call was dropped before the reply");
        } else if !self.attempt.has_run() {
            self.mark_over();
            let ttl = millis(self.attempt.terms.ttl);
            let unused = IdempotencyEvent::Forget { token, has_run: false, ttl };
            match self.attempt.late_start(&unused) {
                Some(late_start) => late_start.undo(),
                None => self.attempt.send_in_background(unused),
            }
        } else if self.has_crashed || std::thread::panicking() {
            self.attempt.end_in_background(self.event(Completion::Crashed), || {});
        }
    }
}

/// Reports that a body was dropped, or did not start, because it may not run.
fn report_loss(key: &LockKey, error: &Error) {
    if let Error::Lost { cause, held, reason, .. } = error {
        telemetry::guard_lost(key, (*cause, *held), reason.as_deref());
    }
}

/// Checks that a body can run on a task of its own.
///
/// # Errors
///
/// [`Error::Config`] outside a tokio runtime.
pub(super) fn check_runtime() -> Result<()> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return Ok(());
    }
    let problem = "the body runs on a task of its own, which needs a tokio runtime: use `run_attached`, or `detached = false`";
    Err(config("runtime", problem))
}

/// Runs `execution` on a task of its own, with the manager and the span of the current one.
///
/// Inside a lock, runs it on the current task: the lock is released when the caller is dropped, and
/// a body on another task would continue without it.
///
/// # Errors
///
/// As `execution`; [`Error::Shutdown`] if the runtime ends.
pub(super) async fn run_detached<V: Send + 'static>(
    execution: impl Future<Output = Result<V>> + Send + 'static,
) -> Result<V> {
    if Scope::current().is_some() {
        return Box::pin(execution).await; // otherwise, it makes the future of every call larger
    }
    let execution = in_current_scope(execution).in_current_span();
    match tokio::spawn(execution).await {
        Ok(result) => result,
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        Err(_) => Err(Error::Shutdown { key: None }),
    }
}

#[cfg(test)]
mod tests;
