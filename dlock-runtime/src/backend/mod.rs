//! Backends that store locks, and the contract that they share.
//!
//! A backend takes [`Request`]s and runs each [`Command`] atomically on one key. It answers each
//! request exactly once, through [`Engine::on_replies`](crate::engine::Engine::on_replies), with:
//!
//! - the server's reply, or
//! - [`Reply::Refused`](crate::protocol::command::Reply::Refused) if the command did not run and
//!   never will, or
//! - [`Reply::Unknown`](crate::protocol::command::Reply::Unknown) if the command may have run or
//!   may still run.
//!
//! Guarantees of a backend:
//!
//! - The backend reads `sent` **before** it sends the command.
//! - A command runs to its end even if its caller is dropped. If its outcome stays unknown and no
//!   caller waits for it, the engine returns its token, and the backend cleans up.
//! - Requests for one key are sent in the order in which they were pushed.
//! - A grant is delivered to the manager that owns the token, through
//!   [`Engine::on_grant`](crate::engine::Engine::on_grant). A waiter that cannot be notified is
//!   passed over.
//! - A backend that cannot receive grants does not queue waiters: it handles an enqueue as a single
//!   try.
//! - Every key has a time to live at every instant.
//!
//! The contract suite in `tests/contract` runs against every backend.

pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod store_call;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::store_call::StoreOperation;
use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::engine::release_completion::ReleaseCompletion;
use crate::key::Name;
use crate::protocol::command::Command;
use crate::protocol::deadline::BootInstant;
#[cfg(all(feature = "idempotent", feature = "testing"))]
use crate::testing::crash_point::CrashPoint;
use crate::token::Token;

/// One command for one key.
#[derive(Debug)]
pub(crate) struct Request {
    /// The full name of the key.
    pub(crate) key: Name,
    pub(crate) token: Token,
    pub(crate) command: Command,
    /// Whether the server must track changes of this hold. A renewal leaves the tracking as it is.
    pub(crate) is_tracked: bool,
    /// Receives the reply in addition to the engine.
    pub(crate) answer: Option<ReleaseCompletion>,
    /// The operation of [`Command::Call`].
    pub(crate) call: Option<Arc<dyn StoreOperation>>,
    /// The quorum operation that the reply is a vote in, if several servers vote.
    pub(crate) ballot: Option<usize>,
}

impl Request {
    /// Creates a command whose reply only the engine receives.
    pub(crate) fn new(key: Name, token: Token, command: Command) -> Self {
        Self { key, token, command, is_tracked: false, answer: None, call: None, ballot: None }
    }

    /// Returns a copy for one of several servers. The caller receives the combined outcome instead.
    pub(crate) fn for_one_of_many(&self) -> Self {
        Self { key: Name::clone(&self.key), answer: None, call: self.call.clone(), ..*self }
    }

    /// Returns `true` if the reply counts only once the configured number of replicas has it.
    pub(crate) fn needs_acks(&self) -> bool {
        self.call.as_ref().map_or_else(|| self.command.grants_ownership(), |call| call.needs_acks())
    }

    /// Returns `true` unless the request is a release in the background, whose caller does not
    /// wait.
    pub(crate) fn is_awaited(&self) -> bool {
        !matches!(self.answer, Some(ReleaseCompletion::Log(..)))
    }
}

/// A store of locks.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Queues a request and returns. Called while the state of a key is locked.
    fn push(&self, request: Request);

    /// Sends the queued requests. Called while no key is locked.
    fn flush(&self, engine: &Engine, now: BootInstant, effects: &mut Effects);

    /// Brings a backend that has no thread of its own up to `now`. Called with no lock held, before
    /// each request.
    fn advance(&self, _now: BootInstant) {}

    /// Notifies the backend that a deadline is earlier than the ones before.
    fn due_earlier(&self, _due: BootInstant) {}

    /// Notifies the backend of the first request for a lock in `namespace`.
    fn uses(&self, _namespace: &str) {}

    /// Notifies the backend that a task acquired the lock of `key`. Called while the key is locked.
    #[cfg(feature = "testing")]
    fn on_acquired(&self, _key: &Name) {}

    /// Returns `true` if the backend runs [`Command::Call`]. Several servers that vote have no
    /// order of operations on one key, so they do not.
    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    fn runs_calls(&self) -> bool {
        true
    }

    /// Spawns a task that runs even while the callers' threads are blocked, if the backend has its
    /// own thread.
    #[cfg(any(feature = "idempotent", feature = "scheduled"))]
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        crate::timer::spawn(task);
    }

    /// Returns `true` if a test has the attempt of `record` crash at this point.
    #[cfg(all(feature = "idempotent", feature = "testing"))]
    fn takes_crash(&self, _record: &Name, _point: &CrashPoint) -> bool {
        false
    }

    /// Sleeps for `time`. If the backend has its own thread, works on a runtime without timers.
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Waits until every pushed request is answered and cleaned up, at most for the response
    /// timeout.
    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Ends the backend after the engine is dropped. Requests that were pushed before are still
    /// sent.
    fn close(&self);
}
