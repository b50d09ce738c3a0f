//! A held lock, as its holder sees it.
//!
//! Not here: how it came to be held (`lock`), when it is renewed or lost (`protocol::hold`).

use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use crate::engine::acquisition::AcquisitionState;
use crate::engine::hold_guard::{HoldGuard, HoldObserver, LossTimer};
use crate::engine::release_completion::ReleaseReport;
use crate::error::{Error, LossCause, Result};
use crate::key::LockKey;
use crate::options::checked_lease;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};

/// A lock that is held. Dropping it releases the lock: at once, without blocking, from any thread.
///
/// AtomicDeadline [`deadline`](Self::deadline) nobody else holds the lock, within the promises of the topology. The watchdog moves the
/// deadline on unless the lock was taken with `renew = false`. A guard alone does not stop your code when the lock is lost: ask
/// [`check`](Self::check) before what must not happen twice, or run the code with [`Lock::run`](crate::Lock::run) or the attribute,
/// which do stop it.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    hold: std::result::Result<HoldGuard, Box<Unlocked>>,
}

/// Why there is no hold where `on_unavailable = run` has a body run without one.
struct Unlocked {
    key: LockKey,
    error: Error,
}

impl LockGuard {
    pub(crate) fn new(held: HoldGuard) -> Self {
        Self { hold: Ok(held) }
    }

    /// The guard of a body that runs without the lock of `key`, because of `error`.
    pub(crate) fn unlocked(key: LockKey, error: Error) -> Self {
        Self { hold: Err(Box::new(Unlocked { key, error })) }
    }

    /// Returns the hold, if there is one.
    pub(crate) fn held(&self) -> Option<&HoldGuard> {
        self.hold.as_ref().ok()
    }

    /// Returns what is locked.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        match &self.hold {
            Ok(held) => held.key(),
            Err(unlocked) => &unlocked.key,
        }
    }

    /// Returns how long the hold may still be believed; zero once it may not. A renewal prolongs it.
    ///
    /// It ends before the key expires, by a hundredth of the lease and 2 ms, and counts the time that the machine is suspended. When another
    /// process has just handed the lock over it is what is left of the `grant_lease`, less than a second by default, whatever the lease;
    /// some milliseconds later, once the server has confirmed it, it is that of the lease.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held().map_or(Duration::ZERO, HoldGuard::remaining)
    }

    /// Returns the instant until which the hold may be believed, as of now: for `tokio::time::timeout_at` and the like.
    ///
    /// Renewals move it, and just after a hand-over it is near, as [`remaining`](Self::remaining) says: for a deadline that you pass on
    /// [`extend`](Self::extend) the hold first, which takes one round trip.
    #[must_use]
    pub fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.remaining()
    }

    /// Returns whether the hold may still be believed, without asking the server.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] once it may not; [`Error::Unavailable`] where the body runs without the lock (`on_unavailable = run`).
    pub fn check(&self) -> Result<()> {
        self.check_valid().map(|_| ())
    }

    /// WaitGraph until the lock is lost, and returns how. It never ends while the lock is held.
    ///
    /// In a nested call that outlives the hold it joined, it ends with that hold: [`LossCause::ReleaseOutcome`]. Where the body runs
    /// without the lock (`on_unavailable = run`) nothing can be lost, and it never ends. In a process that was forked from the one that
    /// holds the lock, it ends at once: [`LossCause::Forked`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it only stops the waiting.
    pub async fn lost(&self) -> LossCause {
        let Some(held) = self.held() else { return std::future::pending().await };
        let observer = HoldObserver::beside_call(held);
        let mut alarm = LossTimer::default();
        poll_fn(|cx| {
            loop {
                if held.engine.is_forked() {
                    return std::task::Poll::Ready(LossCause::Forked);
                }
                let lost = observer.poll_state(cx.waker(), |phase| match phase {
                    AcquisitionState::Lost(lost) => Some(lost.cause),
                    AcquisitionState::Over { .. } => Some(LossCause::ReleaseOutcome),
                    _ => None,
                });
                match lost {
                    Some(cause) => return std::task::Poll::Ready(cause),
                    None if alarm.ring(&held.engine, cx).is_pending() => {
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
    /// [`Error::Unavailable`] when it cannot be asked, and where the body runs without the lock (`on_unavailable = run`);
    /// [`Error::WrongKind`] when something that is no lock of this kind stands under its name; [`Error::FencingCounter`] if its
    /// counter is spent or invalid.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may leave a number unused. Ask again: a later number is as good.
    pub async fn fencing_token(&self) -> Result<FencingToken> {
        let held = self.check_valid()?;
        if let Some(known) = held.root().fencing_token() {
            return Ok(FencingToken(known));
        }
        match ask(held, Command::Fence).await? {
            Reply::Fenced(token) => Ok(FencingToken(held.root().note_fencing_token(token))),
            _ => Err(not_ours(held)),
        }
    }

    /// Prolongs the hold to at least `lease` from now, by one round trip. It never shortens it, and a `max_hold` still ends it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock is not ours any more, [`Error::Unavailable`] when the server cannot be asked and where the
    /// body runs without the lock (`on_unavailable = run`),
    /// [`Error::Config`] for a lease under 100 ms or over a year, [`Error::WrongKind`] when something that is no lock of this kind
    /// stands under its name by now.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not prolong the hold.
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let lease = checked_lease(lease)?;
        let held = self.check_valid()?;
        match ask(held, Command::Renew { lease }).await? {
            Reply::Owner => Ok(()),
            _ => Err(not_ours(held)),
        }
    }

    /// Releases the lock and waits for the server's answer, a response timeout at most.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the lock was not ours any more: what ran under it may have run beside another holder.
    /// [`Error::Unavailable`] when the server did not answer; the release is repeated in the background until it does, and the
    /// lease is the last bound. [`Error::WrongKind`] when something that is no lock of this kind stands under its name by now.
    ///
    /// # Cancel safety
    ///
    /// Dropping it does not undo the release: it has been handed over, or is by the drop.
    pub async fn release(self) -> Result<()> {
        let believed = self.check();
        let answer = self.held().and_then(|held| held.let_go(ReleaseReport::Caller).answer());
        believed?;
        let (Some(held), Some(answer)) = (self.held(), answer) else { return Ok(()) };
        match usable(held.key(), held.engine.reply(answer).await)? {
            Reply::NotOwner => Err(not_ours(held)),
            _ => Ok(()),
        }
    }

    /// Returns the hold if it may still be believed.
    fn check_valid(&self) -> Result<&HoldGuard> {
        let held = self.hold.as_ref().map_err(|unlocked| unlocked.error.clone())?;
        held.engine.in_own_process(Some(held.key()))?;
        held.check_valid().map(|()| held).map_err(|loss| held.lost_error(loss))
    }
}

/// Asks the server something under a hold.
///
/// If the connection is lost before the reply, it asks once more: what is asked here may run twice.
async fn ask(held: &HoldGuard, command: Command) -> Result<Reply> {
    let ask = move || async move {
        let answer = held.engine.request_for_holder(held.root(), command);
        let answer = answer.ok_or_else(|| held.lost_error((LossCause::ReleaseOutcome, Duration::ZERO)))?;
        match held.engine.reply(answer).await {
            Ok(reply) => Ok(reply),
            ended => usable(held.key(), ended),
        }
    };
    usable(held.key(), Ok::<_, Error>(held.engine.ask_twice(ask).await?))
}

/// The loss of a hold that the server does not know.
fn not_ours(held: &HoldGuard) -> Error {
    held.lost_error((LossCause::NotOwner, held.held_for()))
}

/// Turns an answer that says nothing of the lock into an error.
pub(crate) fn usable<E>(key: &LockKey, answer: Result<Reply, E>) -> Result<Reply> {
    answered(answer).map_err(|failure| failure.into_error(key.clone()))
}

/// Tells an answer from a failure to get one.
pub(crate) fn answered<E>(answer: Result<Reply, E>) -> Result<Reply, Failure> {
    match answer {
        Ok(Reply::Refused(failure) | Reply::Unknown(failure)) => Err(failure),
        Ok(reply) => Ok(reply),
        Err(_) => Err(Failure::new(FailureKind::Passing, "the lock manager has ended")),
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::{LockManager, OnLost, in_current_scope};

    fn refused(kind: FailureKind) -> Error {
        let key = LockKey::new("order:7").expect("a key");
        let answer = Ok::<_, ()>(Reply::Refused(Failure::new(kind, "the server said no")));
        usable(&key, answer).expect_err("a refusal is no answer")
    }

    #[test]
    fn what_is_no_lock_is_told_from_a_server_that_refuses() {
        let wrong = refused(FailureKind::WrongKind);

        assert!(
            matches!(&wrong, Error::WrongKind { key, found } if key.as_str() == "order:7" && &**found == "the server said no"),
            "{wrong:?}"
        );
        assert!(refused(FailureKind::Passing).is_unavailable());
        assert!(matches!(refused(FailureKind::Lasting), Error::Config { .. }));
    }

    #[tokio::test]
    async fn a_nested_guard_is_told_that_the_hold_around_it_is_over() {
        let locks = LockManager::connect("memory://").await.expect("no server is needed");
        let same = locks.clone();
        let (entered, has_entered) = oneshot::channel();
        let nested = async move {
            let lock = same.lock("order:7").on_lost(OnLost::Finish);
            lock.run(async |guard| {
                let _ = entered.send(());
                guard.lost().await
            })
            .await
        };

        let lock = locks.lock("order:7");
        let mut spawned = None;
        let around = lock.run(async |_guard| {
            spawned = Some(tokio::spawn(in_current_scope(nested)));
            let _ = has_entered.await;
        });
        around.await.expect("the lock is free");
        let nested = spawned.expect("the body ran");
        let cause = tokio::time::timeout(Duration::from_secs(10), nested).await.expect("it is told");

        assert_eq!(cause.expect("no panic").expect("its own result"), LossCause::ReleaseOutcome);
    }

    #[tokio::test]
    async fn a_loss_stops_the_body_and_a_nested_one_in_another_task() {
        let locks = LockManager::connect("memory://").await.expect("no server is needed");
        let (same, other) = (locks.clone(), locks.clone());
        let (entered, has_entered) = oneshot::channel::<()>();
        let (nested_alive, nested_dropped) = oneshot::channel::<()>();
        let (alive, dropped) = oneshot::channel::<()>();
        let nested = async move {
            let lock = same.lock("order:7");
            lock.run(async move |_guard| {
                let _alive = nested_alive;
                let _ = entered.send(());
                std::future::pending::<()>().await;
            })
            .await
        };
        let root = tokio::spawn(async move {
            let lock = locks.lock("order:7");
            lock.run(async move |_guard| {
                let _alive = alive;
                let _spawned = tokio::spawn(in_current_scope(nested));
                std::future::pending::<()>().await;
            })
            .await
        });
        let _ = has_entered.await;

        other.shutdown(Duration::ZERO).await;
        let both = async { (dropped.await, nested_dropped.await) };
        let stopped = tokio::time::timeout(Duration::from_secs(5), both).await;

        assert!(stopped.is_ok(), "a body is kept");
        assert!(root.await.expect("no panic").is_err_and(|error| error.is_lost()));
    }
}
