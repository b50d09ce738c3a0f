//! One call of an annotated function: its key, its lock and its body.
//!
//! Not here: what becomes of an error (`outcome`).

use std::pin::Pin;

use crate::error::Error;
use crate::guard::LockGuard;
use crate::key::{IntoLockKey, KeyBuilder};
use crate::manager::LockManager;
use crate::options::Options;

/// One call of an annotated function: made before the body, so that it is dropped after it.
#[derive(Debug)]
pub struct Call {
    _todo: (),
}

impl Call {
    /// Begins a call under `manager`, or under the installed one where `None`. `name` labels spans and metrics.
    #[must_use]
    pub fn new(manager: Option<&LockManager>, name: &'static str, options: Options) -> Self {
        let _ = (manager, name, options);
        todo!()
    }

    /// Starts the key of this call, in the manager's namespace.
    pub fn template(&self) -> KeyBuilder {
        todo!()
    }

    /// Sets the key of this call; a bad one is reported by [`run`](Self::run).
    #[must_use]
    pub fn key(self, key: impl IntoLockKey) -> Self {
        drop(key);
        todo!()
    }

    /// Takes the lock, without a body yet: for `fallback`, whose arguments must be whole when it fails.
    ///
    /// # Errors
    ///
    /// Every cause for which a body cannot start.
    pub async fn acquire(&self) -> Result<(), Error> {
        std::future::ready(()).await;
        todo!()
    }

    /// Takes the lock where [`acquire`](Self::acquire) has not, runs the body under it, drops the body in place, releases.
    ///
    /// # Errors
    ///
    /// Every cause for which the body could not start or could not go on.
    pub async fn run<F: Future>(&self, body: Pin<&mut Option<F>>) -> Result<F::Output, Error> {
        let _ = body;
        std::future::ready(()).await;
        todo!()
    }

    /// Runs the body to its own end under the lock that [`acquire`](Self::acquire) has taken: what `on_lost = finish` promises.
    ///
    /// Nothing can replace the body's value any more, so there is no error. A loss is logged and counted.
    pub async fn run_to_end<F: Future>(&self, body: Pin<&mut Option<F>>) -> F::Output {
        let _ = body;
        std::future::ready(()).await;
        todo!()
    }

    /// Takes note of an error that the function's return type cannot carry and another value stands for: logs it as an error
    /// and counts it, unless it is contention, which was expected.
    pub fn swallow(&self, error: &Error) {
        if !error.is_contended() {
            tracing::error!(%error, "an annotated function returned its stand-in value");
        }
    }

    /// The hold, inside the body.
    pub fn guard(&self) -> &LockGuard {
        todo!()
    }
}
