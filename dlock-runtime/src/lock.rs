//! A lock that can be taken: a key and options, nothing held.
//!
//! Not here: what a holder can do (`guard`), how waiting goes (`protocol`).

use std::pin::pin;
use std::time::Duration;

use crate::engine::waiting::Waiting;
use crate::error::{Error, LossCause, Result};
use crate::guard::LockGuard;
use crate::held::{Running, Scope};
use crate::key::LockKey;
use crate::manager::LockManager;
use crate::options::{OnLost, Options};
use crate::protocol::command::Reply;
use crate::telemetry::Hold;

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
    /// meanwhile leads to a try at once and uses up none of them.
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

    /// Sets what a loss does to the body of [`run`](Self::run). Default: it is dropped at its next await.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.options.on_lost = on_lost;
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
    /// current call chain holds this key; [`Error::Deadlock`] when waiting would never end.
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
        let once = Options { retry: 0, wait: None, ..self.options };
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
    /// and the body has been dropped then.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, then releases the lock.
    pub async fn run<F, R>(&self, body: F) -> Result<R>
    where
        F: AsyncFnOnce(&LockGuard) -> R,
    {
        let telemetry = Hold::begin(None, self.key.as_ref().ok());
        let guard = self.enter(&telemetry).await?;
        let mut body = pin!(Some(body(&guard)));
        let ended = telemetry.around(Running::new(guard.held(), body.as_mut(), self.options.on_lost)).await;
        finish(&guard, ended, &telemetry).await
    }

    /// Takes the lock or joins the hold that the current call chain has.
    pub(crate) async fn enter(&self, telemetry: &Hold) -> Result<LockGuard> {
        let entered = async {
            let (key, options) = self.checked(self.options)?;
            let scope = Scope::current();
            Waiting::join(self.manager.engine(), key, &options, scope.as_ref()).await
        };
        let entered = telemetry.around(entered).await;
        telemetry.entered(&entered);
        entered.map(LockGuard::new)
    }

    async fn acquire_with(&self, options: Options) -> Result<LockGuard> {
        let (key, options) = self.checked(options)?;
        let scope = Scope::current();
        if let Some(scope) = &scope
            && Scope::of_key(scope, self.manager.engine(), &key).is_some()
        {
            return Err(Error::Reentrant { key });
        }
        Waiting::join(self.manager.engine(), key, &options, scope.as_ref()).await.map(LockGuard::new)
    }

    fn checked(&self, mut options: Options) -> Result<(LockKey, Options)> {
        let key = self.key.clone()?;
        if let Some(lease) = options.lease {
            options.lease = Some(checked_lease(lease)?);
        }
        Ok((key, options))
    }
}

/// Lets go after a body has ended or was stopped, and gives what the call comes to. A release that fails never replaces the body's
/// own result: it is logged, and the lease is the backstop.
pub(crate) async fn finish<R>(
    guard: &LockGuard,
    ended: std::result::Result<R, crate::held::Loss>,
    telemetry: &Hold,
) -> Result<R> {
    let now = guard.held().engine.clock.now();
    let held_for = guard.held_for();
    let lost_meanwhile = guard.held().root().believed(now).err();
    let answer = guard.let_go();
    match ended {
        Err((cause, held)) => {
            let error = guard.lost_error(cause, held);
            telemetry.lost(&error);
            Err(error)
        }
        Ok(output) => {
            if let Some((cause, held)) = lost_meanwhile {
                telemetry.lost(&guard.lost_error(cause, held));
            } else if let Some(answer) = answer {
                match telemetry.around(answer).await {
                    Ok(Reply::Ours) => telemetry.released(),
                    Ok(Reply::NotOurs) => telemetry.lost(&guard.lost_error(LossCause::NotOurs, held_for)),
                    Ok(reply) => telemetry.release_failed(guard.key(), &reply),
                    Err(_) => {}
                }
            } else {
                telemetry.released();
            }
            Ok(output)
        }
    }
}

/// Checks a lease: a server counts in whole milliseconds, and a deadline needs room for a slow reply.
pub(crate) fn checked_lease(lease: Duration) -> Result<Duration> {
    if (LEAST_LEASE..=LONGEST_LEASE).contains(&lease) {
        return Ok(lease);
    }
    Err(Error::Config {
        part: "lease".into(),
        problem: format!("{lease:?} is not between 100 ms and 365 days").into(),
    })
}

/// A renewal is due every third of it and must be answered before the margin at its end.
const LEAST_LEASE: Duration = Duration::from_millis(100);

/// Far beyond any use, and far from where a server's arithmetic would overflow.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
