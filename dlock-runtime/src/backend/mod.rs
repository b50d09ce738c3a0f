//! Where locks live: the contract of every backend, in words and as a trait.
//!
//! A backend takes [`Request`]s, does each [`Command`] atomically on one key, and answers each exactly once by
//! [`Engine::replies`](crate::engine::Engine::replies):
//!
//! - with what the server said, or
//! - [`Reply::Refused`](crate::protocol::command::Reply::Refused) when the command did not run and will not, or
//! - [`Reply::Unknown`](crate::protocol::command::Reply::Unknown) when it may have run, or may still run.
//!
//! `sent` in the answer was read **before** that very command left. A command is owned to its end, whoever waits for it; where its
//! outcome stays unknown and nobody waits for it any more, the engine says so and the backend undoes it. Requests on one key leave in
//! the order in which they were pushed. A grant is told to the manager that the token belongs to, by
//! [`Engine::granted`](crate::engine::Engine::granted); a waiter that cannot be told is passed over. Where a backend cannot be told
//! of grants itself, it queues nobody: it answers an enqueue as if it were a peek. Every key has a time to live at every instant.
//!
//! One contract suite runs over all of them: `tests/contract`.

pub(crate) mod memory;
pub(crate) mod redis;

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::effects::Effects;
use crate::engine::release_completion::ReleaseCompletion;
use crate::key::Name;
use crate::protocol::command::Command;
use crate::protocol::deadline::BootInstant;
use crate::token::Token;

/// One command for one key.
#[derive(Debug)]
pub(crate) struct Request {
    /// The full name of the key.
    pub(crate) key: Name,
    pub(crate) token: Token,
    pub(crate) command: Command,
    /// Whether it is about a hold of whose changes the server is to tell: its renewal leaves it so.
    pub(crate) is_tracked: bool,
    /// Who is told the answer himself, beside the engine.
    pub(crate) answer: Option<ReleaseCompletion>,
    /// The ballot that the answer is a vote in, where several servers have one.
    pub(crate) ballot: Option<usize>,
}

impl Request {
    /// A command that nobody waits for beside the engine.
    pub(crate) fn new(key: Name, token: Token, command: Command) -> Self {
        Self { key, token, command, is_tracked: false, answer: None, ballot: None }
    }

    /// Returns the same for one of several servers: who waits for the answer is told what comes of all.
    pub(crate) fn for_one_of_many(&self) -> Self {
        Self { key: Name::clone(&self.key), answer: None, ..*self }
    }

    /// Returns whether somebody may wait for what comes of it; nobody does for a release in the background.
    pub(crate) fn is_awaited(&self) -> bool {
        !matches!(self.answer, Some(ReleaseCompletion::Log(..)))
    }
}

/// A place where locks live.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Takes a request. Called while a lane is locked: it queues and returns.
    fn push(&self, request: Request);

    /// Sets off what was pushed. Called with no lane locked.
    fn flush(&self, engine: &Engine, now: BootInstant, effects: &mut Effects);

    /// Brings the backend up to `now` where it has no thread of its own. Called with nothing locked, before anything is asked.
    fn advance(&self, _now: BootInstant) {}

    /// Tells a backend that keeps the time that something has come due earlier than it thinks.
    fn due_earlier(&self, _due: BootInstant) {}

    /// A lock of `namespace` is asked for, for the first time.
    fn uses(&self, _namespace: &str) {}

    /// A task was let in: it holds the lock of `key` now. Called while a lane is locked.
    #[cfg(feature = "testing")]
    fn admitted(&self, _key: &Name) {}

    /// WaitGraph; works on a runtime without timers too, where the backend has a thread of its own.
    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// WaitGraph until everything pushed so far is answered and undone, which takes a response timeout at most.
    fn settle(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// The engine is gone: what was pushed still goes out, then the backend ends.
    fn close(&self);
}
