//! The port between the engine and the stores of locks: [`Backend`], which the engine calls, and
//! [`BackendEvents`], which a backend calls.
//!
//! ```text
//!            submit (key locked), flush (nothing locked)
//!  engine ------------------------------------------------> backend ---> store
//!    ^                                                         |
//!    +---- on_reply, on_grant, on_invalidation, on_timeout ----+
//! ```
//!
//! A backend takes [`Request`]s and runs each [`Command`] atomically on one key. It answers each
//! request exactly once, through [`BackendEvents::on_reply`], with:
//!
//! - the store's reply, or
//! - [`Reply::Refused`] if the command did not run and never will, or
//! - [`Reply::Unknown`] if the command may have run or may still run.
//!
//! Guarantees of a backend:
//!
//! - The backend reads `sent` **before** it sends the command.
//! - A command runs to its end even if its caller is dropped. If its outcome stays unknown and no
//!   caller waits for it, the engine returns its token, and the backend cleans up.
//! - Requests for one key are sent in the order in which they were submitted.
//! - A grant is delivered to the manager that owns the token, through [`BackendEvents::on_grant`].
//!   A waiter that cannot be notified is passed over.
//! - A backend that cannot receive grants does not queue waiters: it handles an enqueue as a single
//!   try.
//! - Every key has a time to live at every instant.
//! - Events may submit requests. The backend flushes them itself, if
//!   [`EventEffects::take_has_requests`] returns `true`: an event never calls [`Backend::flush`].
//!
//! The contract suite in `tests/contract` runs against every backend. `PORT.md` in this folder
//! shows how a relational database and etcd would implement the port.

pub(crate) mod event_effects;
pub(crate) mod memory;
pub(crate) mod redis;
pub(crate) mod reply_recipient;
pub(crate) mod store_call;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::backend::event_effects::EventEffects;
use crate::backend::reply_recipient::ReplyRecipient;
use crate::backend::store_call::StoreOperation;
use crate::key::Name;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Reply, ScriptReply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::Grant;
#[cfg(feature = "testing")]
use crate::testing::recorder::Recorder;
use crate::timer;
use crate::token::{ProcessId, Token};

/// One command for one key.
#[derive(Debug)]
pub(crate) struct Request {
    /// The full name of the key.
    pub(crate) key: Name,
    pub(crate) token: Token,
    pub(crate) command: Command,
    /// Whether the backend must report changes of this hold
    /// ([`Capabilities::reports_changes`]). A renewal of a tracked hold must track its key again,
    /// and its last `SetTtl` must run after its renewals.
    pub(crate) is_tracked: bool,
    /// Receives the reply in addition to the key.
    pub(crate) recipient: Option<ReplyRecipient>,
    /// The operation of [`Command::Call`].
    pub(crate) call: Option<Arc<dyn StoreOperation>>,
}

impl Request {
    /// Creates a command whose reply only the engine receives.
    pub(crate) fn new(key: Name, token: Token, command: Command) -> Self {
        Self { key, token, command, is_tracked: false, recipient: None, call: None }
    }

    /// Returns a copy for one of several servers. The caller receives the combined outcome instead.
    pub(crate) fn for_one_of_many(&self) -> Self {
        Self { key: Name::clone(&self.key), recipient: None, call: self.call.clone(), ..*self }
    }

    /// Returns `true` if the reply counts only once the configured number of replicas has it.
    pub(crate) fn needs_acks(&self) -> bool {
        self.call.as_ref().map_or_else(|| self.command.grants_ownership(), |call| call.needs_acks())
    }

    /// Returns `true` unless the request is a release in the background, whose caller does not
    /// wait.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.recipient.as_ref().is_some_and(ReplyRecipient::is_background)
    }
}

/// Where the owner of a manager is found.
pub(crate) enum OwnerSource {
    Unknown,
    /// In this process.
    Known(Arc<str>),
    /// At the server of the lock: by an operation on its key, and a function that reads the reply.
    Server(Arc<dyn StoreOperation>, OwnerReader),
}

/// Reads the owner in a reply.
pub(crate) type OwnerReader = Box<dyn Fn(&ScriptReply) -> Option<String> + Send>;

/// How the contenders of a key learn that it was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseNotice {
    /// The store queues them, and a release grants the lock to the first.
    Grant {
        /// Whether the message of a grant proves the grant. Otherwise the store confirms it before
        /// a body runs.
        is_proof: bool,
    },
    /// Each of them tries again.
    Retry {
        /// The longest random delay before the retry, since other contenders receive the message
        /// later. Not zero.
        jitter: Duration,
    },
}

/// The facts of a backend that the engine and the protocol depend on. They do not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub(crate) release_notice: ReleaseNotice,
    /// Whether the backend can report changes of a key by other clients.
    pub(crate) reports_changes: bool,
    /// Whether the backend keeps time: it calls [`BackendEvents::on_timeout`] when a deadline has
    /// passed, even while the callers' threads are blocked. Otherwise each request and each waiting
    /// task drives it ([`Backend::advance`]).
    pub(crate) keeps_time: bool,
    /// How many renewals and verifications may be in flight at once.
    pub(crate) max_renewals_in_flight: usize,
    /// Whether the backend runs [`Command::Call`]. Several servers that vote have no order of
    /// operations on one key, so they do not.
    pub(crate) store_calls: bool,
}

impl Capabilities {
    /// The capabilities of one server that queues contenders.
    pub(crate) const SERVER: Self = Self {
        release_notice: ReleaseNotice::Grant { is_proof: true },
        reports_changes: true,
        keeps_time: true,
        // A server replies to so many in about half a millisecond.
        max_renewals_in_flight: 64,
        store_calls: true,
    };

    /// Returns the configuration of the protocol over this backend.
    pub(crate) fn apply_to(self, rules: ProtocolConfig) -> ProtocolConfig {
        let (grants_are_proof, wakeup_jitter) = match self.release_notice {
            ReleaseNotice::Grant { is_proof } => (is_proof, Duration::ZERO),
            ReleaseNotice::Retry { jitter } => {
                debug_assert!(!jitter.is_zero(), "without a delay, the protocol expects a queue");
                (false, jitter)
            }
        };
        let tracking = rules.tracking && self.reports_changes;
        ProtocolConfig { wakeup_jitter, tracking, grants_are_proof, ..rules }
    }
}

/// A store of locks.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Returns the facts of the backend. Read once, before the first request.
    fn capabilities(&self) -> Capabilities;

    /// Sets the receiver of the events. Called once, before the first request.
    fn attach(&self, events: Weak<dyn BackendEvents>);

    /// Queues a request and returns. Called while the state of a key is locked, so it must not
    /// report an event.
    fn submit(&self, request: Request);

    /// Sends the queued requests. Called by the engine while no key is locked, and never by an
    /// event. A backend that answers in the caller's thread reports events before it returns, and
    /// adds their effects to `effects`.
    fn flush(&self, now: BootInstant, effects: &mut EventEffects);

    /// Brings a backend that does not keep time up to `now`. Called with no lock held, before each
    /// request.
    fn advance(&self, _now: BootInstant) {}

    /// Notifies the backend that a deadline is earlier than the ones before.
    fn due_earlier(&self, _due: BootInstant) {}

    /// Announces that requests for keys of `namespace` will follow. A backend that receives grants
    /// by namespace subscribes to them.
    fn use_namespace(&self, _namespace: &str) {}

    /// Returns the recorder of the testing API, if the backend has one.
    #[cfg(feature = "testing")]
    fn recorder(&self) -> Option<&Recorder> {
        None
    }

    /// Returns where the owner of a manager that holds a lock in `namespace` is found.
    fn owner_of(&self, _manager: ProcessId, _namespace: &str) -> OwnerSource {
        OwnerSource::Unknown
    }

    /// Spawns a task that runs even while the callers' threads are blocked, if the backend has its
    /// own thread.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        timer::spawn(task);
    }

    /// Sleeps for `time`. If the backend has its own thread, works on a runtime without timers.
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Waits until every submitted request is answered and cleaned up, at most for the response
    /// timeout.
    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Ends the backend after the engine is dropped. Requests that were submitted before are still
    /// sent.
    fn close(&self);
}

/// The receiver of what happens in a backend: the engine.
///
/// Each method is called while no key is locked, from any thread: the engine orders the events of
/// one key. The caller flushes the submitted requests and runs the effects afterwards.
pub(crate) trait BackendEvents: Debug + Send + Sync {
    /// Handles the reply to a request that was sent at `sent`.
    ///
    /// Returns the keys and tokens of commands that may still take effect and must be cleaned up.
    fn on_reply(
        &self,
        request: Request,
        reply: Reply,
        sent: BootInstant,
        now: BootInstant,
        effects: &mut EventEffects,
    ) -> Vec<(Name, Token)>;

    /// Handles a grant to `token`, which may be that of another manager.
    fn on_grant(&self, key: &Name, token: Token, grant: Grant, now: BootInstant, effects: &mut EventEffects);

    /// Handles a possible change of `key` by another client. `None`: of any key, because reports
    /// may have been missed.
    fn on_invalidation(&self, key: Option<&Name>, now: BootInstant, effects: &mut EventEffects);

    /// Handles a new connection for the keys whose full names match `concerns`. `moved`: the server
    /// may lack writes, because it is another one than before, or belongs to a quorum.
    fn on_reconnect(
        &self,
        moved: bool,
        concerns: &dyn Fn(&str) -> bool,
        now: BootInstant,
        effects: &mut EventEffects,
    );

    /// Runs what is due by `now`, and returns the next deadline.
    ///
    /// Stops after 1,024 keys, so that other work can run, and then returns a deadline that has
    /// passed.
    fn on_timeout(&self, now: BootInstant, effects: &mut EventEffects) -> BootInstant;

    /// Returns the next deadline.
    fn due(&self) -> BootInstant;

    /// Returns `true` if a call holds or waits for the lock of `key`, so that its events matter.
    fn is_in_use(&self, key: &Name) -> bool;

    /// Returns the number of calls that wait for the lock of `key`.
    #[cfg(feature = "testing")]
    fn waiting(&self, key: &Name) -> usize;
}

/// Where a backend finds the receiver of its events.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventReceiver(Arc<OnceCell<Weak<dyn BackendEvents>>>);

impl EventReceiver {
    /// Sets the receiver.
    pub(crate) fn attach(&self, events: Weak<dyn BackendEvents>) {
        let _ = self.0.set(events);
    }

    /// Returns the receiver; `None` before it is attached, and after the engine is dropped.
    pub(crate) fn get(&self) -> Option<Arc<dyn BackendEvents>> {
        self.0.get()?.upgrade()
    }
}
