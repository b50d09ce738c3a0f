//! [`Lock`], a key and its options.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use crate::body::Body;
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::key::{InvalidKey, LockKey};
use crate::manager::LockManager;
use crate::options::{MinHoldOn, OnLost, Options, ReleaseMode};
use crate::run::{Acquiring, Releasing, Running};
use crate::telemetry::CallSpan;

/// A key and the options to lock it with. Returned by [`LockManager::lock`].
///
/// It holds nothing until [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire),
/// [`run`](Self::run), or [`try_run`](Self::try_run) is called. Their futures do nothing until they
/// are polled, and borrow nothing from the lock: they can be stored or spawned.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// # let locks = dlock_runtime::LockManager::connect("memory://").await?;
/// let lock = locks.lock("order:7").lease(Duration::from_secs(10)).wait(Duration::from_secs(5));
/// let guard = lock.acquire().await?;
/// // .. the work ..
/// guard.release().await?;
///
/// let task = tokio::spawn(locks.lock("order:8").acquire());
/// task.await.expect("the task does not panic")?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock holds nothing until `acquire`, `try_acquire`, `run`, or `try_run` is called"]
pub struct Lock {
    manager: LockManager,
    key: Result<LockKey, Box<Error>>,
    options: Options,
}

impl Lock {
    pub(crate) fn new(manager: LockManager, key: Result<LockKey, InvalidKey>, options: Options) -> Self {
        Self { manager, key: key.map_err(|error| Box::new(error.into())), options }
    }

    /// Sets the lease: how long the server keeps a lock that is not renewed.
    ///
    /// Default: the manager's lease, which is 30 s unless set. From 100 ms to 365 days.
    #[doc(alias("ttl", "expire"))]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Sets whether the watchdog renews the lease. Default: `true`.
    ///
    /// It does so each time a quarter to a third of the lease has passed, or at most half of it
    /// while 64 renewals are in flight.
    #[doc(alias = "watchdog")]
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Sets the number of retries after the first attempt. Default: 0.
    ///
    /// [`backoff`](Self::backoff) sets the delays between them. If the lock is announced as
    /// released during a delay, the call tries immediately and uses up no retry. [The guide on
    /// waiting](crate::docs::waiting) says how long a call without `wait` can take.
    #[doc(alias("retries", "retry_count"))]
    pub fn retry(mut self, retries: u32) -> Self {
        self.options.retry = retries;
        self
    }

    /// Sets how long to wait for the lock, woken by releases. Default: the call does not wait.
    ///
    /// With [`retry`](Self::retry) as well, the limit that is reached first ends the call.
    #[doc(alias("timeout", "blocking_timeout"))]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Sets the delays between attempts. Default: 100 ms to 2 s.
    ///
    /// The n-th delay is random, from half of `first * 2^n` to all of it, and at most `last`. With
    /// the default, three retries wait 700 ms to 1.4 s.
    #[doc(alias = "retry_delay")]
    pub fn backoff(mut self, first: Duration, last: Duration) -> Self {
        self.options = self.options.backoff(first, last);
        self
    }

    /// Sets the maximum duration of the hold, even if it could be renewed. Default: no limit.
    ///
    /// After that time, the lock is lost with [`LossCause::MaxHold`](crate::LossCause::MaxHold).
    /// From 100 ms to 365 days. A longer default lease is reduced to it; a lease that is set
    /// explicitly must not be longer.
    #[doc(alias = "lock_at_most_for")]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Sets the minimum time, from acquisition, for which no other call gets the lock. Default: 0.
    ///
    /// It applies even if the lock is released earlier: it is for jobs that must not run again too
    /// soon. It outlives the process. If the process crashes *before* the release, the lock is free
    /// when its lease expires. At most 365 days.
    #[doc(alias = "lock_at_least_for")]
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.options.min_hold = Some(min_hold);
        self
    }

    /// Sets which ends of the hold [`min_hold`](Self::min_hold) applies to. Default:
    /// [`MinHoldOn::Always`].
    pub fn min_hold_on(mut self, min_hold_on: MinHoldOn) -> Self {
        self.options.min_hold_on = min_hold_on;
        self
    }

    /// Sets whether [`run`](Self::run) joins a hold of the same key in its call chain.
    ///
    /// Default: `true`. If `false`, such a call gets [`Error::Reentrant`]. A call that joins a hold
    /// ignores its own lease, `max_hold`, and `min_hold`.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.options.reentrant = reentrant;
        self
    }

    /// Sets what a loss does to the body of [`run`](Self::run). Default: [`OnLost::Abort`].
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.options.on_lost = on_lost;
        self
    }

    /// Sets whether [`run`](Self::run) waits for the server's reply to the release.
    ///
    /// Default: [`ReleaseMode::Awaited`]. [`ReleaseMode`] describes the trade-off. For a guard,
    /// [`release`](LockGuard::release) waits, and dropping it does not.
    pub fn release_mode(mut self, release_mode: ReleaseMode) -> Self {
        self.options.release_mode = release_mode;
        self
    }

    /// Sets all options at once.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Acquires the lock, within the limits of [`retry`](Self::retry) and [`wait`](Self::wait).
    ///
    /// With neither, it tries once. The guard is not reentrant: annotated calls that are made while
    /// it lives do not join its hold. Use [`run`](Self::run) for that.
    ///
    /// # Errors
    ///
    /// - [`Error::Contended`] if another call holds the lock until the limits are reached.
    /// - [`Error::Reentrant`] if the current call chain holds this key.
    /// - [`Error::Deadlock`] if the holder waits, directly or through others, for a lock of the
    ///   current call chain.
    /// - [`Error::Lost`] if the lock was granted, and lost before this task ran.
    /// - [`Error::Unavailable`], [`Error::WrongKind`], [`Error::InvalidKey`], [`Error::Config`],
    ///   and [`Error::Shutdown`], as their variants describe.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue immediately. A grant that is in flight is released.
    #[doc(alias = "lock")]
    pub fn acquire(&self) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        self.clone().acquire_as_guard()
    }

    /// Acquires the lock if it is free, and returns `None` if it is held.
    ///
    /// It tries once, and ignores `retry` and `wait`.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), without [`Error::Contended`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases a lock that may have been granted.
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<LockGuard>>> + Send + use<> {
        let mut lock = self.clone();
        lock.options = Options { retry: 0, wait: None, ..lock.options.try_only() };
        async move {
            match lock.acquire_as_guard().await {
                Ok(guard) => Ok(Some(guard)),
                Err(Error::Contended { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
    }

    /// Acquires the lock and runs `body` under it, as the attribute does.
    ///
    /// The watchdog renews the lease, a loss stops the body, and the lock is released when the body
    /// ends. Calls inside the body that need the same key join the hold.
    ///
    /// Write the body as an async closure, `async |guard| ..` or `async move |guard| ..`: the
    /// future of `|guard| async move { .. }` cannot borrow the guard. If the body returns a
    /// `Result`, use [`try_run`](Self::try_run): with `run`, the compiler cannot infer the error
    /// type of `?` in the body.
    ///
    /// On stable Rust, the future is not `Send` inside a function that is generic over the body. If
    /// `run` is called with a closure, the future is `Send` if the closure's future is.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`Error::Reentrant`] only with
    /// [`reentrant(false)`](Self::reentrant). [`Error::Lost`] if the lock was lost before the body
    /// ended. Then the body was dropped. If it had completed when the loss was detected, its value
    /// is dropped, even if it is an error, and the error has `completed: true`. If only `max_hold`
    /// has passed, the value is returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, then releases the lock.
    #[doc(alias = "with_lock")]
    pub fn run<F, R>(&self, body: F) -> impl Future<Output = Result<R>> + use<F, R>
    where
        F: AsyncFnOnce(&LockGuard) -> R,
    {
        self.clone().run_under(body, |_| false)
    }

    /// As [`run`](Self::run), for a body that returns a `Result`: returns the error of the lock or
    /// that of the body.
    ///
    /// The type of the error is that of the body. Inside the body, `?` needs no annotation if the
    /// result of the call is returned, or assigned to a variable whose type is known. If the result
    /// is passed to another `?`, name the type at the end of the body, as in `Ok::<_, Error>(())`.
    ///
    /// # Errors
    ///
    /// The error of the body, or one of [`run`](Self::run), converted by `From`. If the body had
    /// completed with an error when a loss was detected, its error is returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body, then releases the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use dlock_runtime::{Error, LockManager};
    /// #[derive(Debug, thiserror::Error)]
    /// enum OrderError {
    ///     #[error(transparent)]
    ///     Lock(#[from] Error),
    ///     #[error("not a number")]
    ///     Number(#[from] std::num::ParseIntError),
    /// }
    ///
    /// async fn place(locks: &LockManager, cents: &str) -> Result<u64, OrderError> {
    ///     locks
    ///         .lock("order:7")
    ///         .try_run(async |guard| {
    ///             let cents: u64 = cents.parse()?;
    ///             guard.check()?;
    ///             Ok(cents + 100)
    ///         })
    ///         .await
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), OrderError> {
    /// # let locks = LockManager::connect("memory://").await?;
    /// assert_eq!(place(&locks, "250").await?, 350);
    /// assert!(matches!(place(&locks, "much").await, Err(OrderError::Number(_))));
    /// # Ok(()) }
    /// ```
    pub fn try_run<F, T, E>(&self, body: F) -> impl Future<Output = Result<T, E>> + use<F, T, E>
    where
        F: AsyncFnOnce(&LockGuard) -> Result<T, E>,
        E: From<Error>,
    {
        let lock = self.clone();
        async move { lock.run_under(body, Result::is_err).await.unwrap_or_else(|error| Err(error.into())) }
    }

    /// Runs `body` under the lock. `is_error` decides whether the value of a completed body is an
    /// error, which is returned even if the lock is found lost then.
    async fn run_under<F, R>(self, body: F, is_error: fn(&R) -> bool) -> Result<R>
    where
        F: AsyncFnOnce(&LockGuard) -> R,
    {
        let Self { manager, key, options } = self;
        let telemetry = CallSpan::begin(None, key.as_ref().ok());
        let mut entering = Acquiring::new(&manager, &key, &options);
        let guard = LockGuard::new(
            poll_fn(|cx| entering.poll(&options, &telemetry, cx)).await.map_err(|error| *error)?,
        );
        let Some(held) = guard.held() else { unreachable!("the guard was made of a hold") };
        let mut body = pin!(Body::Future { future: body(&guard) });
        let mut running = Running::new(held);
        let on_lost = options.on_lost;
        let ended = poll_fn(|cx| running.poll(body.as_mut(), on_lost, false, &telemetry, cx)).await;
        if body.as_ref().value().is_some_and(|value| !is_error(value)) {
            held.record_success();
        }
        let mut leaving = Releasing::new(held, ended, &options, &telemetry);
        match poll_fn(|cx| leaving.poll(&telemetry, cx)).await {
            Err(error) if !body.as_ref().value().is_some_and(is_error) => Err(error),
            _ => Ok(body.take()),
        }
    }

    async fn acquire_as_guard(self) -> Result<LockGuard> {
        let Self { manager, key, options } = self;
        let telemetry = CallSpan::begin(None, key.as_ref().ok());
        // A guard opens no scope, so it cannot be part of one.
        let options = options.reentrant(false);
        let mut entering = Acquiring::new(&manager, &key, &options);
        let mut held = poll_fn(|cx| entering.poll(&options, &telemetry, cx)).await.map_err(|error| *error)?;
        held.is_detached = true;
        telemetry.guarded();
        Ok(LockGuard::new(held))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::error::LossCause;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn each_method_sets_its_option() {
        let lock = LockManager::in_new_memory().lock("order:7");

        let lock = lock
            .lease(SECOND)
            .renew(false)
            .retry(3)
            .wait(2 * SECOND)
            .backoff(SECOND, 4 * SECOND)
            .max_hold(5 * SECOND)
            .min_hold(SECOND / 2)
            .min_hold_on(MinHoldOn::Ok)
            .reentrant(false)
            .on_lost(OnLost::Finish)
            .release_mode(ReleaseMode::Background);

        let expected = Options::new()
            .lease(SECOND)
            .renew(false)
            .retry(3)
            .wait(2 * SECOND)
            .backoff(SECOND, 4 * SECOND)
            .max_hold(5 * SECOND)
            .min_hold(SECOND / 2)
            .min_hold_on(MinHoldOn::Ok)
            .reentrant(false)
            .on_lost(OnLost::Finish)
            .release_mode(ReleaseMode::Background);
        assert_eq!(format!("{:?}", lock.options), format!("{expected:?}"));
        assert_eq!(format!("{:?}", lock.options(Options::new()).options), format!("{:?}", Options::new()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_try_neither_waits_nor_retries() {
        let lock = LockManager::in_new_memory().lock("order:7").retry(3).wait(60 * SECOND);
        let held = lock.try_acquire().await.expect("memory replies").expect("it is free");
        let start = Instant::now();

        assert!(lock.try_acquire().await.expect("memory replies").is_none());

        assert_eq!(start.elapsed(), Duration::ZERO);
        drop(held);
        assert!(lock.try_acquire().await.expect("memory replies").is_some());
    }

    /// The caller of an error must repeat the work, so it need not learn of the loss.
    #[tokio::test(start_paused = true)]
    async fn a_value_after_a_loss_is_replaced_and_an_error_is_not() {
        let lock = LockManager::in_new_memory().lock("order:7").lease(SECOND).renew(false);
        let outlive = async |result: Result<u8, Error>| {
            lock.try_run(async |_| {
                let _ = futures_util::FutureExt::now_or_never(tokio::time::advance(2 * SECOND));
                result
            })
            .await
        };

        let (value, failed) = (outlive(Ok(7)).await, outlive(Err(Error::NotInstalled {})).await);

        assert!(matches!(value, Err(Error::Lost { completed: true, .. })), "{value:?}");
        assert!(matches!(failed, Err(Error::NotInstalled {})), "{failed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn min_hold_on_success_keeps_the_lock_after_a_success_only() {
        for (result, is_kept) in [(Ok(()), true), (Err(Error::NotInstalled {}), false)] {
            let lock =
                LockManager::in_new_memory().lock("order:7").min_hold(10 * SECOND).min_hold_on(MinHoldOn::Ok);

            let _ = lock.try_run(async |_| result).await;

            assert_eq!(lock.try_acquire().await.expect("memory replies").is_none(), is_kept);
            tokio::time::sleep(11 * SECOND).await;
            assert!(lock.try_acquire().await.expect("memory replies").is_some());
        }
    }

    #[tokio::test]
    async fn a_lock_is_joined_only_by_a_call_that_may() {
        let locks = LockManager::in_new_memory();
        let (lock, other) = (locks.lock("order:7"), locks.lock("order:8").reentrant(false));
        let strict = lock.clone().reentrant(false);

        let ended = strict.run(async |_| {
            let joined = lock.run(async |_| ()).await;
            (
                joined.is_ok(),
                strict.run(async |_| ()).await,
                lock.acquire().await.err(),
                other.run(async |_| ()).await,
            )
        });

        let (has_joined, refused, guard, elsewhere) = ended.await.expect("it is free");
        assert!(has_joined && elsewhere.is_ok());
        assert!(matches!(refused, Err(Error::Reentrant { key }) if key.as_str() == "order:7"));
        assert!(matches!(guard, Some(Error::Reentrant { .. })), "{guard:?}");
    }

    /// No other process had the lock while the body ran: its lease lasts a little longer.
    #[tokio::test(start_paused = true)]
    async fn a_value_just_after_max_hold_is_returned() {
        for (passed, is_returned) in [(10_001, true), (11_000, false)] {
            let lock = LockManager::in_new_memory().lock("order:7").max_hold(10 * SECOND).renew(false);

            let ran = lock.run(async |_| {
                let pause = tokio::time::advance(Duration::from_millis(passed));
                let _ = futures_util::FutureExt::now_or_never(pause);
            });

            let ran = ran.await;
            assert_eq!(ran.is_ok(), is_returned, "{passed} ms: {ran:?}");
            assert!(matches!(ran, Ok(()) | Err(Error::Lost { completed: true, .. })), "{ran:?}");
            assert!(lock.try_acquire().await.expect("memory replies").is_some(), "it was released");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_loss_during_a_poll_ends_the_body_that_may_be_stopped() {
        for on_lost in [OnLost::Abort, OnLost::Finish] {
            let locks = LockManager::in_new_memory();

            let lock = locks.lock("order:7").on_lost(on_lost);
            let ran = lock.run(async |guard| {
                locks.force_release("order:7").await.expect("memory replies");
                let extended = guard.extend(60 * SECOND).await;
                assert!(extended.is_err_and(|error| error.is_lost()), "it learns of the loss");
                tokio::time::sleep(5 * SECOND).await;
            });

            let start = Instant::now();
            match ran.await {
                Ok(()) => assert_eq!((on_lost, start.elapsed()), (OnLost::Finish, 5 * SECOND)),
                Err(Error::Lost { cause: LossCause::NotOwner, completed: false, .. }) => {
                    assert_eq!((on_lost, start.elapsed()), (OnLost::Abort, Duration::ZERO));
                }
                Err(error) => panic!("{on_lost:?}: {error:?}"),
            }
        }
    }
}
