//! A lock that can be taken: a key and options, nothing held.
//!
//! Not here: what a holder can do (`guard`), how waiting goes (`protocol`).

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use crate::body::Body;
use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::options::{OnLost, Options, ReleaseMode};
use crate::run::{Acquiring, Releasing, Running};
use crate::telemetry::CallSpan;

/// A key and how to lock it. Made by [`LockManager::lock`]; holds nothing until it is asked to.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_runtime::Result<()> {
/// # let locks = dlock_runtime::LockManager::connect("memory://").await?;
/// let lock = locks.lock("order:7").lease(Duration::from_secs(10)).wait(Duration::from_secs(5));
/// let guard = lock.acquire().await?;
/// // .. the work ..
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock holds nothing until `acquire`, `try_acquire` or `run` is called"]
pub struct Lock {
    manager: LockManager,
    key: Result<LockKey>,
    options: Options,
}

impl Lock {
    pub(crate) fn new(manager: LockManager, key: Result<LockKey>, options: Options) -> Self {
        Self { manager, key, options }
    }

    /// Sets the lease: how long the server keeps the lock when nobody renews it. Default: the manager's, 30 s unless set.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Sets whether the watchdog renews the lease every third of it. Default: it does.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Sets how many further tries follow the first, spaced by [`backoff`](Self::backoff). Default: none. Being told of a release
    /// meanwhile leads to a try at once and uses up none of them. How long that may take without `wait` is in
    /// [the guide on waiting](crate::docs::waiting).
    pub fn retry(mut self, retries: u32) -> Self {
        self.options.retry = retries;
        self
    }

    /// Sets how long to wait for the lock, woken by releases. Default: not at all. With [`retry`](Self::retry) too, whichever ends
    /// first ends the call.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Sets the delays between tries: from `first` doubling to `last`, with full jitter. Default: 100 ms to 2 s.
    pub fn backoff(mut self, first: Duration, last: Duration) -> Self {
        self.options = self.options.backoff(first, last);
        self
    }

    /// Sets after how long the hold ends though it could be renewed: it is lost then, by
    /// [`LossCause::MaxHold`](crate::LossCause::MaxHold). Default: never. From 100 ms to 365 days; a default lease that is longer is
    /// cut to it, and a lease that is set must not be longer.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Sets for how long nobody else gets the lock, counted from when it was taken, though it may be released earlier: for jobs
    /// that must not run again too soon. Default: not at all. It outlives the process. What it does not outlive is a crash *before*
    /// the release: then the lock is free after the lease.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.options.min_hold = Some(min_hold);
        self
    }

    /// Sets whether [`run`](Self::run) joins the hold that its call chain has of the key, or gets [`Error::Reentrant`]. Default: it
    /// joins. A call that joins takes the hold as it is: its own lease, `max_hold` and `min_hold` mean nothing then.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.options.reentrant = reentrant;
        self
    }

    /// Sets what a loss does to the body of [`run`](Self::run). Default: it is dropped at its next await.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.options.on_lost = on_lost;
        self
    }

    /// Sets whether [`run`](Self::run) waits for the server to release the lock when the body has ended. Default: it does,
    /// [`ReleaseMode::Awaited`]; [`ReleaseMode`] says what is given up else. A guard has its own way to say it:
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

    /// Takes the lock, within what [`retry`](Self::retry) and [`wait`](Self::wait) allow; with neither, tries once.
    ///
    /// The guard is not re-entrant: annotated calls made while it lives do not join it. Use [`run`](Self::run) for that.
    ///
    /// # Errors
    ///
    /// [`Error::Contended`] when somebody else holds it to the end; [`Error::Unavailable`], [`Error::WrongKind`],
    /// [`Error::InvalidKey`], [`Error::Config`] and [`Error::Shutdown`] for what their names say; [`Error::Reentrant`] when the
    /// current call chain holds this key; [`Error::Deadlock`] when who holds it waits for what the current call chain holds;
    /// [`Error::Lost`] when it was granted, and lost again before this task ran on.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the queue at once; a grant that is on its way is released.
    pub async fn acquire(&self) -> Result<LockGuard> {
        self.acquire_with(self.options).await
    }

    /// Takes the lock if nobody holds it; `None` when somebody does. It tries once, whatever `retry` and `wait` say.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), without [`Error::Contended`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it releases what may have been granted.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let once = Options { retry: 0, wait: None, ..self.options.try_only() };
        match self.acquire_with(once).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Contended { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock and runs `body` under it, as the attribute does: with the watchdog, stopped when the lock is lost, the lock
    /// released when it ends. Calls inside it that want the same key join the hold.
    ///
    /// On stable Rust the future is not `Send` inside a function that is generic over the body; where it is called with a closure, it
    /// is what the closure is.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), without [`Error::Reentrant`]; [`Error::Lost`] when the lock was lost before the body ended,
    /// and the body has been dropped then. If the body had completed when the loss was found, its value has been dropped (an error
    /// of its own, too: `run` does not know one) and the error says `completed: true`. If only `max_hold` has passed, the value is
    /// returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, then releases the lock.
    pub async fn run<F, R>(&self, body: F) -> Result<R>
    where
        F: AsyncFnOnce(&LockGuard) -> R,
    {
        let key = self.key.clone().map_err(Box::new);
        let telemetry = CallSpan::begin(None, key.as_ref().ok());
        let mut entering = Acquiring::new(&self.manager, &key, &self.options);
        let guard = LockGuard::new(
            poll_fn(|cx| entering.poll(&self.options, &telemetry, cx)).await.map_err(|error| *error)?,
        );
        let Some(held) = guard.held() else { unreachable!("the guard was made of a hold") };
        let mut body = pin!(Body::Future { future: body(&guard) });
        let mut running = Running::new(held);
        let on_lost = self.options.on_lost;
        let ended = poll_fn(|cx| running.poll(body.as_mut(), on_lost, false, &telemetry, cx)).await;
        let mut leaving = Releasing::new(held, ended, &self.options, &telemetry);
        poll_fn(|cx| leaving.poll(&telemetry, cx)).await?;
        Ok(body.take())
    }

    async fn acquire_with(&self, options: Options) -> Result<LockGuard> {
        let key = self.key.clone().map_err(Box::new);
        let telemetry = CallSpan::begin(None, key.as_ref().ok());
        // A guard opens no scope, so it cannot take part in one.
        let options = options.reentrant(false);
        let mut entering = Acquiring::new(&self.manager, &key, &options);
        let mut held = poll_fn(|cx| entering.poll(&options, &telemetry, cx)).await.map_err(|error| *error)?;
        held.stands_alone = true;
        telemetry.guarded();
        Ok(LockGuard::new(held))
    }
}
