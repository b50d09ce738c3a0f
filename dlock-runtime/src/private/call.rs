//! One call of an annotated function: its key, its lock and its body.
//!
//! Not here: what becomes of an error (`outcome`).

use std::future::Future;
use std::pin::Pin;

use once_cell::sync::OnceCell;

use crate::error::{Error, Result};
use crate::guard::LockGuard;
use crate::held::Running;
use crate::key::{IntoLockKey, KeyBuilder, LockKey};
use crate::lock::{Lock, finish};
use crate::manager::LockManager;
use crate::options::{OnLost, Options};
use crate::telemetry::Hold;

/// One call of an annotated function: made before the body, so that it is dropped after it.
#[derive(Debug)]
pub struct Call {
    manager: Result<LockManager>,
    name: &'static str,
    options: Options,
    key: Result<LockKey>,
    telemetry: OnceCell<Hold>,
    guard: OnceCell<LockGuard>,
}

impl Call {
    /// Begins a call under `manager`, or under the installed one where `None`. `name` labels spans and metrics.
    #[must_use]
    pub fn new(manager: Option<&LockManager>, name: &'static str, options: Options) -> Self {
        let manager = manager.cloned().map_or_else(crate::global::current, Ok);
        Self {
            manager,
            name,
            options,
            key: Err(Error::NotInstalled {}),
            telemetry: OnceCell::new(),
            guard: OnceCell::new(),
        }
    }

    /// Starts the key of this call, in the manager's namespace.
    pub fn template(&self) -> KeyBuilder {
        KeyBuilder::new(self.namespace())
    }

    /// Sets the key of this call; a bad one is reported by [`run`](Self::run).
    #[must_use]
    pub fn key(mut self, key: impl IntoLockKey) -> Self {
        self.key = key.into_lock_key(self.namespace());
        self
    }

    /// Takes the lock, without a body yet: for `fallback`, whose arguments must be whole when it fails.
    ///
    /// # Errors
    ///
    /// Every cause for which a body cannot start.
    pub async fn acquire(&self) -> Result<()> {
        if self.guard.get().is_some() {
            return Ok(());
        }
        let manager = self.manager.clone()?;
        let guard = Lock::new(manager, self.key.clone(), self.options).enter(self.telemetry()).await?;
        // A call is asked once; were it twice, the second guard is released here.
        let _ = self.guard.set(guard);
        Ok(())
    }

    /// Takes the lock where [`acquire`](Self::acquire) has not, runs the body under it, drops the body in place, releases.
    ///
    /// # Errors
    ///
    /// Every cause for which the body could not start or could not go on.
    pub async fn run<F: Future>(&self, body: Pin<&mut Option<F>>) -> Result<F::Output> {
        self.acquire().await?;
        let guard = self.guard();
        let ended = self.telemetry().around(Running::new(guard.held(), body, self.options.on_lost)).await;
        finish(guard, ended, self.telemetry()).await
    }

    /// Runs the body to its own end under the lock that [`acquire`](Self::acquire) has taken: what `on_lost = finish` promises.
    ///
    /// Nothing can replace the body's value any more, so there is no error. A loss is logged and counted.
    pub async fn run_to_end<F: Future>(&self, body: Pin<&mut Option<F>>) -> F::Output {
        let guard = self.guard();
        let running = Running::new(guard.held(), body, OnLost::Finish);
        let ended = self.telemetry().around(running).await;
        match finish(guard, ended, self.telemetry()).await {
            Ok(output) => output,
            Err(error) => unreachable!("a body that runs to its end is not stopped: {error}"),
        }
    }

    /// Takes note of an error that the function's return type cannot carry and another value stands for: logs it as an error
    /// and counts it, unless it is contention, which was expected.
    pub fn swallow(&self, error: &Error) {
        self.telemetry().swallowed(error);
    }

    /// Returns the hold, inside the body.
    pub fn guard(&self) -> &LockGuard {
        self.guard.get().expect("the body is built and polled only after the lock was taken")
    }

    fn telemetry(&self) -> &Hold {
        self.telemetry.get_or_init(|| Hold::begin(Some(self.name), self.key.as_ref().ok()))
    }

    fn namespace(&self) -> &str {
        self.manager.as_ref().map_or("", LockManager::namespace)
    }
}
