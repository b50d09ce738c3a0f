//! A held lock, as its holder sees it.
//!
//! Not here: how it came to be held (`lock`), when it is renewed or lost (`protocol::hold`).

use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use crate::engine::hold::{Alarm, Held};
use crate::engine::turn::Phase;
use crate::error::{Error, LossCause, Result};
use crate::key::LockKey;
use crate::options::checked_lease;
use crate::protocol::command::{Command, Failure, Reply};

/// A lock that is held. Dropping it releases the lock: at once, without blocking, from any thread.
///
/// Until [`deadline`](Self::deadline) nobody else holds the lock, within the promises of the topology. The watchdog moves the
/// deadline on unless the lock was taken with `renew = false`. A guard alone does not stop your code when the lock is lost: ask
/// [`check`](Self::check) before what must not happen twice, or run the code with [`Lock::run`](crate::Lock::run) or the attribute,
/// which do stop it.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    held: Held,
}

impl LockGuard {
    pub(crate) fn new(held: Held) -> Self {
        Self { held }
    }

    /// Notes that no call reports what becomes of the hold, so that the guard has to.
    pub(crate) fn stands_alone(&mut self) {
        self.held.stands_alone = true;
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Returns what is locked.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.held.turn().key
    }

    /// Returns how long the hold may still be believed; zero once it may not. A renewal prolongs it.
    ///
    /// It ends before the key expires, by a hundredth of the lease and 2 ms, and counts the time that the machine is suspended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let root = self.held.root();
        let now = self.held.engine.now();
        if root.believed(now).is_ok() { root.deadline().since(now) } else { Duration::ZERO }
    }

    /// Returns the instant until which the hold may be believed, as of now: for `tokio::time::timeout_at` and the like.
    #[must_use]
    pub fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.remaining()
    }

    /// Returns whether the hold may still be believed, without asking the server.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] once it may not.
    pub fn check(&self) -> Result<()> {
        let now = self.held.engine.now();
        self.held.root().believed(now).map_err(|(cause, held)| self.lost_error(cause, held))
    }

    /// Waits until the lock is lost, and returns how. It never ends while the lock is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping it only stops the waiting.
    pub async fn lost(&self) -> LossCause {
        let root = self.held.root();
        let mut alarm = Alarm::default();
        poll_fn(|cx| {
            loop {
                let lost = root.look(Some(cx.waker()), |phase| match phase {
                    Phase::Lost { cause, .. } => Some(*cause),
                    _ => None,
                });
                match lost {
                    Some(cause) => return std::task::Poll::Ready(cause),
                    None if alarm.ring(&self.held.engine, cx).is_pending() => {
                        return std::task::Poll::Pending;
                    }
                    None => {}
                }
            }
        })
        .await
    }

    /// Returns the fencing token of this hold: a number above that of every hold of this key before it.
    ///
    /// Hand it to the resource with every write, and let the resource refuse a number below the highest that it has seen. That
    /// protects the resource even where the lock itself can be lost. It is issued on demand by one round trip, inside the hold; asked
    /// twice, the guard answers from memory. A lock whose holder never asks costs nothing for it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the server says that the lock is not ours any more, or the hold may not be believed any more;
    /// [`Error::Unavailable`] when it cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave a number unused. Ask again: a later number is as good.
    pub async fn fencing_token(&self) -> Result<FencingToken> {
        self.check()?;
        let root = self.held.root();
        if let Some(known) = root.fencing.get() {
            return Ok(FencingToken(*known));
        }
        match self.ask(Command::Fence).await? {
            Reply::Fenced(token) => Ok(FencingToken(*root.fencing.get_or_init(|| token))),
            _ => Err(self.lost_error(LossCause::NotOurs, self.held_for())),
        }
    }

    /// Prolongs the hold to at least `lease` from now, by one round trip. It never shortens it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock is not ours any more, [`Error::Unavailable`] when the server cannot be asked,
    /// [`Error::Config`] for a lease under 100 ms or over a year.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not prolong the hold.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let lease = checked_lease(lease)?;
        self.check()?;
        match self.ask(Command::Renew { lease }).await? {
            Reply::Ours => Ok(()),
            _ => Err(self.lost_error(LossCause::NotOurs, self.held_for())),
        }
    }

    /// Releases the lock and waits for the server's answer, a response timeout at most.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock was not ours any more: what ran under it may have run beside another holder.
    /// [`Error::Unavailable`] when the server did not answer; the release is repeated in the background until it does, and the
    /// lease is the last bound.
    ///
    /// # Cancel safety
    ///
    /// Dropping it does not undo the release: it has been handed over, or is by the drop.
    pub async fn release(self) -> Result<()> {
        let state = self.check();
        let held = self.held_for();
        let answer = self.held.let_go(true);
        state?;
        let Some(answer) = answer else { return Ok(()) };
        match usable(self.key(), answer.await)? {
            Reply::NotOurs => Err(self.lost_error(LossCause::NotOurs, held)),
            _ => Ok(()),
        }
    }

    /// Lets go of the hold; see [`Held::let_go`].
    pub(crate) fn let_go(&self) -> Option<tokio::sync::oneshot::Receiver<Reply>> {
        self.held.let_go(true)
    }

    /// Asks the server something under this hold.
    async fn ask(&self, command: Command) -> Result<Reply> {
        let root = self.held.root();
        let Some(token) = root.token() else {
            return Err(self.lost_error(LossCause::Released, Duration::ZERO));
        };
        let answer = self.held.engine.ask(&root.key, token, command);
        usable(self.key(), answer.await)
    }

    pub(crate) fn held_for(&self) -> Duration {
        let now = self.held.engine.now();
        let since = self.held.root().look(None, |phase| match phase {
            Phase::Held { since, .. } => Some(now.since(*since)),
            _ => None,
        });
        since.unwrap_or_default()
    }

    pub(crate) fn lost_error(&self, cause: LossCause, held: Duration) -> Error {
        Error::Lost { key: self.key().clone(), held, cause }
    }
}

/// Turns an answer that says nothing of the lock into an error.
pub(crate) fn usable<E>(key: &LockKey, answer: std::result::Result<Reply, E>) -> Result<Reply> {
    let key = Some(key.clone());
    match answer {
        Ok(
            Reply::Refused(Failure { reason, source, .. }) | Reply::Unknown(Failure { reason, source, .. }),
        ) => Err(Error::Unavailable { key, reason, source }),
        Ok(reply) => Ok(reply),
        Err(_) => Err(Error::Unavailable { key, reason: "the lock manager has ended".into(), source: None }),
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard").field("key", self.key()).field("remaining", &self.remaining()).finish()
    }
}

/// Which turn at a lock it is: a number that rises from holder to holder, for the resource to compare.
///
/// The larger of the last number plus one and the server's time in microseconds: 16 digits, under 2^53, so that it fits into a
/// JSON number and an SQL `BIGINT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
