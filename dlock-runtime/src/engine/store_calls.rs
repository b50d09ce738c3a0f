//! [`StoreCalls`]: the operations of features that are not locks, on their way to the server.
//!
//! Invariants:
//!
//! - A call is answered within two response timeouts.
//! - A call in the background is sent again until it has a definite reply, for a bounded time.
//! - Calls in the background are bounded in number and in bytes.
#![allow(dead_code, reason = "used by features that are not locks")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Request;
use crate::backend::store_call::StoreOperation;
use crate::engine::Engine;
use crate::key::Name;
use crate::protocol::command::{Command, Failure, FailureKind, Reply, ScriptReply};
use crate::sync::lock;
use crate::sync::shared::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The calls of one manager.
#[derive(Debug, Default)]
pub(crate) struct StoreCalls {
    /// The keys whose changes are awaited.
    watched: Mutex<HashMap<Name, Weak<Notify>>>,
    watched_count: AtomicUsize,
    /// The number of activities that a shutdown waits for.
    active: AtomicUsize,
    drained: Notify,
    is_closed: AtomicBool,
    closed: Notify,
    is_aborted: AtomicBool,
    aborted: Notify,
    background: Mutex<BackgroundLoad>,
}

/// The calls in the background that have no reply.
#[derive(Debug, Default)]
struct BackgroundLoad {
    count: usize,
    bytes: usize,
}

/// The place of one call in the background.
#[derive(Debug)]
struct BackgroundSlot {
    engine: Weak<Engine>,
    bytes: usize,
}

impl Drop for BackgroundSlot {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            let mut load = lock(&engine.calls.background);
            load.count -= 1;
            load.bytes -= self.bytes;
        }
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug)]
pub(crate) enum CallFailure {
    /// The operation did not run, and will not run.
    Refused(Failure),
    /// The operation may have run, or may still run.
    Unknown(Failure),
}

impl CallFailure {
    /// Returns the reason.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Refused(failure) | Self::Unknown(failure) => failure,
        }
    }

    /// Returns `true` if another attempt may succeed.
    fn is_passing(&self) -> bool {
        let (Self::Refused(failure) | Self::Unknown(failure)) = self;
        failure.kind == FailureKind::Passing
    }
}

/// An activity that a shutdown waits for.
#[derive(Debug)]
pub(crate) struct ActiveCall {
    engine: Weak<Engine>,
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade()
            && engine.calls.active.fetch_sub(1, Ordering::AcqRel) == 1
        {
            engine.calls.drained.notify_waiters();
        }
    }
}

impl StoreCalls {
    /// Returns what is notified when `key` changes.
    pub(crate) fn watch(&self, key: &Name) -> Arc<Notify> {
        let mut watched = lock(&self.watched);
        if let Some(watch) = watched.get(key).and_then(Weak::upgrade) {
            return watch;
        }
        watched.retain(|_, watch| watch.strong_count() > 0);
        let watch = Arc::new(Notify::new());
        watched.insert(Name::clone(key), Arc::downgrade(&watch));
        self.watched_count.store(watched.len(), Ordering::Release);
        watch
    }

    /// Handles a change of `key`.
    pub(crate) fn on_changed(&self, key: &Name) {
        if self.watched_count.load(Ordering::Acquire) == 0 {
            return; // the usual case
        }
        let watch = lock(&self.watched).get(key).and_then(Weak::upgrade);
        if let Some(watch) = watch {
            watch.notify_one();
        }
    }

    /// Ends all waiting: a shutdown begins.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.closed.notify_waiters();
    }

    /// Waits until a shutdown begins.
    pub(crate) async fn closed(&self) {
        let closed = self.closed.notified();
        if !self.is_closed.load(Ordering::Acquire) {
            closed.await;
        }
    }

    /// Ends all activities: the time of a shutdown is over.
    pub(super) fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        self.aborted.notify_waiters();
    }

    /// Returns `true` if the time of a shutdown is over.
    pub(crate) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Waits until the time of a shutdown is over.
    pub(crate) async fn aborted(&self) {
        let aborted = self.aborted.notified();
        if !self.is_aborted() {
            aborted.await;
        }
    }

    /// Counts a call in the background of this size. Returns `false` if there are too many.
    fn admit(&self, bytes: usize) -> bool {
        let mut load = lock(&self.background);
        let has_room = load.count < MAX_BACKGROUND_CALLS && load.bytes + bytes <= MAX_BACKGROUND_BYTES;
        if has_room {
            load.count += 1;
            load.bytes += bytes;
        }
        has_room
    }
}

impl Engine {
    /// Runs an operation on `key`. If the connection is lost before the reply, sends it again.
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
        let send = || {
            let request = Request::new(Name::clone(key), self.tokens.next(), Command::Call);
            self.reply(self.send_request(Request { call: Some(Arc::clone(operation)), ..request }))
        };
        let reply = tokio::select! {
            biased;
            reply = self.request_with_retry(send) => reply.ok(),
            () = self.backend.sleep(2 * self.rules.response_timeout) => None,
        };
        match reply {
            Some(Reply::Called(reply)) => Ok(reply),
            Some(Reply::Refused(failure)) => Err(CallFailure::Refused(failure)),
            Some(Reply::Unknown(failure)) => Err(CallFailure::Unknown(failure)),
            _ => {
                let failure = Failure::new(FailureKind::Passing, "the server gave no usable reply in time");
                Err(CallFailure::Unknown(failure))
            }
        }
    }

    /// Runs an operation in the background until it has a reply, at most for `limit`, and passes the
    /// reply to `on_end`. Without one, or if too many calls are in the background, it passes `None`.
    ///
    /// It runs while the callers' threads are blocked, and ends with the manager.
    pub(crate) fn call_in_background(
        self: &Arc<Self>,
        key: Name,
        operation: Arc<dyn StoreOperation>,
        limit: Duration,
        on_end: impl FnOnce(Option<ScriptReply>) + Send + 'static,
    ) {
        let bytes = operation.arguments().iter().map(|argument| argument.len()).sum();
        if !self.calls.admit(bytes) {
            return on_end(None);
        }
        let (engine, active) = (Arc::downgrade(self), self.active_call());
        let slot = BackgroundSlot { engine: Weak::clone(&engine), bytes };
        self.backend.spawn(Box::pin(async move {
            let reply = call_until_answered(&engine, &key, &operation, limit).await;
            drop(slot);
            on_end(reply);
            drop(active);
        }));
    }

    /// Counts an activity that a shutdown waits for, until the returned value is dropped.
    pub(crate) fn active_call(self: &Arc<Self>) -> ActiveCall {
        self.calls.active.fetch_add(1, Ordering::AcqRel);
        ActiveCall { engine: Arc::downgrade(self) }
    }

    /// Waits until there is no activity, for at most `limit`.
    pub(super) async fn wait_for_calls(&self, limit: Duration) {
        let all = async {
            loop {
                let drained = self.calls.drained.notified();
                if self.calls.active.load(Ordering::Acquire) == 0 {
                    break;
                }
                drained.await;
            }
        };
        tokio::select! {
            biased;
            () = all => {}
            () = self.backend.sleep(limit) => {}
        }
    }
}

/// Sends an operation until it has a reply. Returns `None` if there is none within `limit`, if the
/// failure is permanent, or if the manager is dropped.
async fn call_until_answered(
    engine: &Weak<Engine>,
    key: &Name,
    operation: &Arc<dyn StoreOperation>,
    limit: Duration,
) -> Option<ScriptReply> {
    let (started, mut pause) = (engine.upgrade()?.now(), FIRST_PAUSE);
    loop {
        let current = engine.upgrade()?;
        match current.call(key, operation).await {
            Ok(reply) => return Some(reply),
            Err(failure) if !failure.is_passing() => return None,
            Err(_) => {}
        }
        if current.now().since(started) >= limit {
            return None;
        }
        let sleep = current.backend.sleep(pause);
        drop(current);
        sleep.await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// The pauses between the attempts of a call in the background.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The bounds on calls in the background that have no reply. They apply to an outage of the server.
pub(crate) const MAX_BACKGROUND_CALLS: usize = 1_024;
pub(crate) const MAX_BACKGROUND_BYTES: usize = 16 << 20;
