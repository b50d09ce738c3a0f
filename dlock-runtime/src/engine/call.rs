//! How the operations of features that are not locks are sent: to a caller that waits, or in the
//! background. See `store_calls` for their state.
#![allow(dead_code, reason = "used by features that are not locks")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::Request;
use crate::backend::store_call::StoreOperation;
use crate::engine::Engine;
use crate::engine::store_calls::{ActiveCall, CallFailure};
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, Reply, ScriptReply};
use crate::timer::Timer;

impl Engine {
    /// Runs an operation on `key`. If the connection is lost before the reply, sends it again if it
    /// is [repeatable](StoreOperation::is_repeatable).
    ///
    /// # Errors
    ///
    /// The failure, if there is no reply.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may or may not run.
    pub(crate) async fn call(
        &self,
        key: &Name,
        operation: &Arc<dyn StoreOperation>,
    ) -> Result<ScriptReply, CallFailure> {
        self.call_noting_resend(key, operation).await.0
    }

    /// Like [`call`](Self::call), and returns whether the operation was sent again.
    pub(crate) async fn call_noting_resend(
        &self,
        key: &Name,
        operation: &Arc<dyn StoreOperation>,
    ) -> (Result<ScriptReply, CallFailure>, bool) {
        let send = || {
            let request = Request::new(Name::clone(key), self.tokens.next(), Command::Call);
            self.reply(self.send_request(Request { call: Some(Arc::clone(operation)), ..request }))
        };
        let (reply, is_resent) = self.request_with_retry(u32::from(operation.is_repeatable()), send).await;
        let reply = match reply {
            Ok(Reply::Called(reply)) => Ok(reply),
            Ok(Reply::Refused(failure)) => Err(CallFailure::Refused(failure)),
            Ok(Reply::Unknown(failure)) => Err(CallFailure::Unknown(failure)),
            _ => Err(CallFailure::Unknown(unusable_reply())),
        };
        (reply, is_resent)
    }

    /// Runs an operation in the background until it has a reply, at most for `limit`, and passes
    /// the reply to `on_end`. Without one, it passes the last failure, or that too many calls are
    /// in the background.
    ///
    /// It runs while the callers' threads are blocked, and ends with the manager. In memory, the
    /// first attempt runs in place, and the others on the runtime of the caller, with which they
    /// end. The operation must be [repeatable](StoreOperation::is_repeatable).
    pub(crate) fn call_in_background(
        self: &Arc<Self>,
        key: Name,
        operation: Arc<dyn StoreOperation>,
        limit: Duration,
        on_end: impl FnOnce(Result<ScriptReply, Failure>) + Send + 'static,
    ) {
        let mut on_end = Some(on_end);
        let on_reply = move |reply| {
            if let Some(on_end) = on_end.take() {
                on_end(reply);
            }
            false
        };
        self.call_in_order(key, vec![operation], limit, on_reply, || {});
    }

    /// Runs operations in the background as [`call_in_background`](Self::call_in_background) does,
    /// each after the reply to the one before, as long as `on_reply` returns `true`. Then it calls
    /// `on_end`.
    ///
    /// All are admitted at once, since those that wait for their turn are in memory too. If they
    /// are not admitted, the failure is that of the first.
    pub(crate) fn call_in_order(
        self: &Arc<Self>,
        key: Name,
        operations: Vec<Arc<dyn StoreOperation>>,
        limit: Duration,
        mut on_reply: impl FnMut(Result<ScriptReply, Failure>) -> bool + Send + 'static,
        on_end: impl FnOnce() + Send + 'static,
    ) {
        let all = operations.iter();
        debug_assert!(all.clone().all(|operation| operation.is_repeatable()), "they may be sent many times");
        let bytes = all.clone().flat_map(|operation| operation.arguments()).map(|part| part.len()).sum();
        let Some(slot) = self.calls.admit(bytes, all.clone().all(|operation| operation.is_cleanup())) else {
            let problem = "too many requests of this manager wait for a reply in the background";
            on_reply(Err(Failure::new(FailureKind::Passing, problem)));
            return on_end();
        };
        let (engine, active) = (Arc::downgrade(self), self.active_call());
        self.backend.spawn(Box::pin(async move {
            for operation in operations {
                if !on_reply(call_until_answered(&engine, &key, &operation, limit).await) {
                    break;
                }
            }
            drop(slot);
            on_end();
            drop(active);
        }));
    }

    /// Counts an activity that a shutdown waits for, until the returned value is dropped.
    pub(crate) fn active_call(&self) -> ActiveCall {
        self.calls.active_call()
    }

    /// Waits until there is no activity, for at most `limit`.
    pub(super) async fn wait_for_calls(&self, limit: Duration) {
        self.at_most(limit, self.calls.drained()).await;
    }
}

/// Returns the failure of a reply that no operation has.
pub(crate) fn unusable_reply() -> Failure {
    Failure::new(FailureKind::Passing, "the server gave no usable reply")
}

/// Sends an operation until it has a reply. Returns the last failure if there is none within
/// `limit`, if the failure is permanent, or if the manager is dropped.
async fn call_until_answered(
    engine: &Weak<Engine>,
    key: &Name,
    operation: &Arc<dyn StoreOperation>,
    limit: Duration,
) -> Result<ScriptReply, Failure> {
    let upgraded =
        || engine.upgrade().ok_or_else(|| Failure::new(FailureKind::Passing, "the lock manager has ended"));
    let (started, mut pause) = (upgraded()?.now(), FIRST_PAUSE);
    loop {
        let current = upgraded()?;
        let failure = match current.call(key, operation).await {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        if !failure.is_passing() || current.now().since(started) >= limit {
            return Err(failure.into_failure());
        }
        drop(current);
        Timer::new(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// The pauses between the attempts of a call in the background.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
