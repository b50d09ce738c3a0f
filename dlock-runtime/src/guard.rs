//! [`LockGuard`], the guard of a held lock.

use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use crate::engine::acquisition::AcquisitionState;
use crate::engine::hold_guard::{HoldGuard, HoldObserver, LossTimer};
use crate::engine::pending_release::ReleaseReport;
use crate::error::{Error, LossCause, Result};
use crate::key::LockKey;
use crate::options::checked_lease;
use crate::protocol::command::{Command, Failure, FailureKind, Reply};

/// A held lock, which is released when the guard is dropped.
///
/// Dropping the guard never blocks, and works on any thread. Until [`deadline`](Self::deadline), no
/// other call holds the lock, within the guarantees of the deployment. The watchdog moves the
/// deadline forward unless `renew` is `false`.
///
/// A guard alone does not stop your code when the lock is lost. Call [`check`](Self::check) before
/// each step that must not happen twice, or use [`Lock::run`](crate::Lock::run) or the attribute,
/// which stop the body.
#[must_use = "bind it, as in `let guard = ..`: dropping the guard releases the lock, and `let _ = ..` drops it immediately"]
pub struct LockGuard {
    hold: std::result::Result<HoldGuard, Box<NotHeld>>,
}

/// The state of a guard whose body runs without the lock, as `on_unavailable = run` allows.
struct NotHeld {
    key: LockKey,
    error: Error,
}

impl LockGuard {
    pub(crate) fn new(held: HoldGuard) -> Self {
        Self { hold: Ok(held) }
    }

    /// Returns the guard of a body that runs without the lock of `key` because of `error`.
    pub(crate) fn unlocked(key: LockKey, error: Error) -> Self {
        Self { hold: Err(Box::new(NotHeld { key, error })) }
    }

    /// Makes the guard report a loss itself when it is dropped, since no call does any more.
    #[cfg(feature = "tower")]
    pub(crate) fn detach(&mut self) {
        if let Ok(held) = &mut self.hold {
            held.is_detached = true;
        }
    }

    /// Returns the hold, or `None` if the body runs without the lock.
    pub(crate) fn held(&self) -> Option<&HoldGuard> {
        self.hold.as_ref().ok()
    }

    /// Returns the key of the lock.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        match &self.hold {
            Ok(held) => held.key(),
            Err(unlocked) => &unlocked.key,
        }
    }

    /// Returns how long the hold is still valid; zero if it is not.
    ///
    /// A renewal extends it. The hold ends before the key expires, by 1 % of the lease plus 2 ms,
    /// and time for which the machine is suspended counts. Just after another process has handed
    /// the lock off, it is the rest of the `grant_lease`, which is at most 1 s by default. When the
    /// server has confirmed the grant, usually milliseconds later, it is that of the lease.
    #[must_use]
    #[doc(alias = "ttl")]
    pub fn remaining(&self) -> Duration {
        self.held().map_or(Duration::ZERO, HoldGuard::remaining)
    }

    /// Returns the instant until which the hold is valid, for example for
    /// `tokio::time::timeout_at`.
    ///
    /// It is computed from [`remaining`](Self::remaining), and is on tokio's clock, which stops
    /// while the machine is suspended; [`check`](Self::check) counts that time. Renewals move it.
    /// Just after a hand-off it is near, as for `remaining`. If you pass the deadline on,
    /// [`extend`](Self::extend) the hold first, for one round trip.
    #[must_use]
    pub fn deadline(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.remaining()
    }

    /// Checks that the hold is still valid, without a request to the server.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it is not; [`Error::Unavailable`] if the body runs without the lock
    /// (`on_unavailable = run`).
    #[doc(alias("is_valid", "is_held"))]
    pub fn check(&self) -> Result<()> {
        self.check_valid().map(|_| ())
    }

    /// Waits until the lock is lost, and returns the cause.
    ///
    /// It stays pending while the lock is held, and for ever if the body runs without the lock
    /// (`on_unavailable = run`). In a nested call that outlives the hold that it joined, it returns
    /// [`LossCause::Released`] when that hold ends. In a process that was forked from the holder,
    /// it returns [`LossCause::Forked`] immediately.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future only stops the waiting.
    pub async fn lost(&self) -> LossCause {
        let Some(held) = self.held() else { return std::future::pending().await };
        let observer = HoldObserver::alongside_call(held);
        let mut alarm = LossTimer::default();
        poll_fn(|cx| {
            loop {
                if held.engine.is_forked() {
                    return std::task::Poll::Ready(LossCause::Forked);
                }
                let lost = observer.poll_state(cx.waker(), |phase| match phase {
                    AcquisitionState::Lost(lost) => Some(lost.cause),
                    AcquisitionState::Released { .. } => Some(LossCause::Released),
                    _ => None,
                });
                match lost {
                    Some(cause) => return std::task::Poll::Ready(cause),
                    None if alarm.poll(&held.engine, cx).is_pending() => {
                        return std::task::Poll::Pending;
                    }
                    None => {}
                }
            }
        })
        .await
    }

    /// Returns the fencing token of this hold.
    ///
    /// It is higher than the tokens of all earlier holds of the key. Pass it to the resource with
    /// every write, and have the resource reject any token lower than the highest that it has seen.
    /// That protects the resource even if the lock is lost.
    ///
    /// The first call costs one round trip; later calls of the same hold return the same number
    /// from memory. A lock whose holder never calls this costs nothing extra.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the hold is not valid, or the server reports that this manager is not
    ///   the holder.
    /// - [`Error::Unavailable`] if the server is unavailable, or the body runs without the lock
    ///   (`on_unavailable = run`).
    /// - [`Error::WrongKind`] if the key holds a value that is not a lock of this layout.
    /// - [`Error::FencingCounter`] if the counter is exhausted or invalid.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a number unused. A later call returns a number that is as
    /// good.
    pub async fn fencing_token(&self) -> Result<FencingToken> {
        let held = self.check_valid()?;
        if let Some(known) = held.root().fencing_token() {
            return Ok(FencingToken(known));
        }
        match ask(held, Command::Fence).await? {
            Reply::Fenced(token) => Ok(FencingToken(held.root().record_fencing_token(token))),
            _ => Err(not_ours(held)),
        }
    }

    /// Extends the hold to at least `lease` from now, which costs one round trip.
    ///
    /// It never shortens the hold, and `max_hold` still ends it.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the hold is not valid, or the server reports that this manager is not
    ///   the holder.
    /// - [`Error::Unavailable`] if the server is unavailable, or the body runs without the lock
    ///   (`on_unavailable = run`).
    /// - [`Error::Config`] if `lease` is not between 100 ms and 365 days.
    /// - [`Error::WrongKind`] if the key holds a value that is not a lock of this layout.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the hold may or may not be extended.
    #[doc(alias("renew", "refresh"))]
    pub async fn extend(&self, lease: Duration) -> Result<()> {
        let lease = checked_lease(lease)?;
        let held = self.check_valid()?;
        match ask(held, Command::Renew { lease }).await? {
            Reply::Owner => Ok(()),
            _ => Err(not_ours(held)),
        }
    }

    /// Releases the lock and waits for the server's reply, for at most one response timeout. If the
    /// connection is lost before the release is sent, that time begins again with the next one.
    ///
    /// If a task of this process waits for the lock, it is handed off to that task, and there is no
    /// reply to wait for.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the lock was lost before the release: the work may have overlapped with
    ///   another holder's.
    /// - [`Error::Unavailable`] if the server did not reply, or not before the end of the lease.
    ///   The release is repeated in the background until it does. At the latest, the lock is free
    ///   when its lease expires.
    /// - [`Error::WrongKind`] if the key holds a value that is not a lock of this layout.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the release: either it is already queued, or the drop
    /// queues it.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        let believed = self.check();
        if let Some(held) = self.held() {
            held.record_success();
        }
        believed?; // the drop releases what is left, and reports the loss
        let answer = self.held().and_then(|held| held.release(ReleaseReport::Caller).answer());
        let (Some(held), Some(answer)) = (self.held(), answer) else { return Ok(()) };
        let reply = held.engine.reply(answer).await.map(|reply| held.release_outcome(reply));
        match usable(held.key(), reply)? {
            Reply::NotOwner => Err(not_ours(held)),
            _ => Ok(()),
        }
    }

    /// Returns the hold if it is still valid.
    fn check_valid(&self) -> Result<&HoldGuard> {
        let held = self.hold.as_ref().map_err(|unlocked| unlocked.error.clone())?;
        held.engine.in_own_process(Some(held.key()))?;
        held.check_valid().map(|()| held).map_err(|loss| held.lost_error(loss, false))
    }
}

/// Sends a command under a hold.
///
/// If the connection is lost before the reply, it is sent again: the commands sent here may run
/// several times.
async fn ask(held: &HoldGuard, command: Command) -> Result<Reply> {
    let ask = move || async move {
        let answer = held.engine.request_for_holder(held.root(), command);
        let answer = answer.map_err(|loss| held.lost_error(loss, false))?;
        match held.engine.reply(answer).await {
            Ok(reply) => Ok(reply),
            ended => usable(held.key(), ended),
        }
    };
    usable(held.key(), Ok::<_, Error>(held.engine.request_with_retry(RESENDS, ask).await.0?))
}

/// A network that fails takes both connections that carry commands under a hold: the one with key
/// tracking and the other. The last resend waits for a new connection.
const RESENDS: u32 = 2;

/// Returns the loss of a hold that the server does not know.
fn not_ours(held: &HoldGuard) -> Error {
    held.lost_error((LossCause::NotOwner, held.held_for()), false)
}

/// Returns an error for a reply that does not describe the lock.
pub(crate) fn usable<E>(key: &LockKey, answer: Result<Reply, E>) -> Result<Reply> {
    answered(answer).map_err(|failure| failure.into_error(key.clone()))
}

/// Separates replies from failures to get one.
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

/// A fencing token: a number that increases from holder to holder, for the resource to compare.
///
/// It is the larger of the last number plus one and the server's time in microseconds. It has 16
/// digits and is below 2^53, so it fits into a JSON number and an SQL `BIGINT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) const fn new(token: u64) -> Self {
        Self(token)
    }

    /// Returns the token as a number.
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
    fn wrong_kind_differs_from_a_refusing_server() {
        let wrong = refused(FailureKind::WrongKind);

        assert!(
            matches!(&wrong, Error::WrongKind { key, found } if key.as_str() == "order:7" && &**found == "the server said no"),
            "{wrong:?}"
        );
        assert!(refused(FailureKind::Passing).is_unavailable());
        assert!(matches!(refused(FailureKind::Lasting), Error::Config { .. }));
    }

    #[tokio::test]
    async fn nested_guard_ends_with_the_outer_hold() {
        let locks = LockManager::in_new_memory();
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
        let cause = tokio::time::timeout(Duration::from_secs(10), nested).await.expect("it is notified");

        assert_eq!(cause.expect("no panic").expect("its own result"), LossCause::Released);
    }

    #[tokio::test]
    async fn a_loss_stops_the_body_and_a_nested_one_in_another_task() {
        let locks = LockManager::in_new_memory();
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

    #[tokio::test(start_paused = true)]
    async fn a_guard_shows_how_long_it_is_valid() {
        let (lease, second) = (Duration::from_secs(30), Duration::from_secs(1));
        let lock = LockManager::in_new_memory().lock("order:7").lease(lease).renew(false);
        let guard = lock.acquire().await.expect("it is free");
        let (start, remaining) = (tokio::time::Instant::now(), guard.remaining());
        assert!(remaining <= lease && remaining + second > lease, "{remaining:?}");
        assert_eq!(guard.deadline(), start + remaining);

        tokio::time::advance(10 * second).await;
        assert_eq!(
            (guard.remaining(), guard.deadline()),
            (remaining.saturating_sub(10 * second), start + remaining)
        );
        guard.check().expect("it is held");
        guard.extend(2 * lease).await.expect("it is held");
        let extended = guard.remaining();
        assert!(extended <= 2 * lease && extended + 2 * second > 2 * lease, "{extended:?}");

        tokio::time::advance(2 * lease).await;
        assert_eq!((guard.remaining(), guard.lost().await), (Duration::ZERO, LossCause::Expired));
        assert!(guard.check().is_err_and(|error| error.is_lost()));
        assert!(guard.extend(lease).await.is_err_and(|error| error.is_lost()));
        assert!(guard.fencing_token().await.is_err_and(|error| error.is_lost()));
        assert!(guard.release().await.is_err_and(|error| error.is_lost()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_another_call_has_released_is_lost() {
        let locks = LockManager::in_new_memory();
        let lock = locks.lock("order:7");

        for request in [0, 1, 2] {
            let guard = lock.acquire().await.expect("it is free");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(locks.force_release("order:7").await.expect("memory replies"));

            let told = match request {
                0 => guard.extend(Duration::from_secs(30)).await,
                1 => guard.fencing_token().await.map(drop),
                _ => guard.release().await,
            };

            let Err(Error::Lost { cause, held, completed: false, .. }) = told else {
                panic!("request {request}: {told:?}")
            };
            assert_eq!((cause, held.as_secs()), (LossCause::NotOwner, 1), "request {request}");
        }
        assert!(!locks.force_release("order:7").await.expect("memory replies"), "it is free");
    }

    #[tokio::test]
    async fn fencing_tokens_grow_with_each_hold() {
        let lock = LockManager::in_new_memory().lock("order:7");
        let first = lock.acquire().await.expect("it is free");
        let token = first.fencing_token().await.expect("it is held");
        assert_eq!(first.fencing_token().await.expect("it is held"), token, "one for each hold");
        first.release().await.expect("it is held");

        let second = lock.acquire().await.expect("it is free");
        let next = second.fencing_token().await.expect("it is held");

        assert!(next > token && next.get() > 1, "{next} {token}");
        assert_eq!(next.to_string(), next.get().to_string());
    }

    #[test]
    fn a_guard_without_a_hold_has_its_key_and_its_error() {
        let key = LockKey::new("order:7").expect("a key");
        let guard = LockGuard::unlocked(key.clone(), Error::Shutdown { key: None });

        assert_eq!((guard.key(), guard.remaining(), guard.held().is_none()), (&key, Duration::ZERO, true));
        assert!(matches!(guard.check(), Err(Error::Shutdown { key: None })));
        assert!(format!("{guard:?}").contains("order:7"));
    }

    #[test]
    fn a_manager_that_has_ended_is_unavailable() {
        let key = LockKey::new("order:7").expect("a key");

        let ended = usable(&key, Err(())).expect_err("there is no reply");

        assert!(
            matches!(&ended, Error::Unavailable { reason, .. } if &**reason == "the lock manager has ended")
        );
        assert!(matches!(usable(&key, Ok::<_, ()>(Reply::NotOwner)), Ok(Reply::NotOwner)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_watches_a_guard_learns_of_its_loss_in_time() {
        let second = Duration::from_secs(1);
        let locks = LockManager::in_new_memory();
        let lock = locks.lock("order:7").lease(10 * second).renew(false);
        let (guard, start) = (lock.acquire().await.expect("it is free"), tokio::time::Instant::now());

        assert_eq!(guard.lost().await, LossCause::Expired);
        assert!(start.elapsed() <= 10 * second && start.elapsed() > 9 * second, "{:?}", start.elapsed());

        let bounded = locks.lock("order:8").max_hold(2 * second).acquire().await.expect("it is free");
        let start = tokio::time::Instant::now();
        assert_eq!((bounded.lost().await, start.elapsed()), (LossCause::MaxHold, 2 * second));
    }
}
