//! [`Term`], what the body of the leader receives.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{Error, LossCause, Result};
use crate::guard::FencingToken;
use crate::key::LockKey;
use crate::leader::elections::ActiveTerm;

/// One term of a leader.
///
/// Pass [`number`](Self::number) to every resource that only the leader may write, and have the
/// resource reject lower numbers. That protects it even from a leader that was suspended in the
/// middle of a write.
#[derive(Clone, Debug)]
pub struct Term {
    engine: Arc<Engine>,
    key: LockKey,
    number: FencingToken,
    active: ActiveTerm,
}

impl Term {
    pub(super) fn new(
        engine: &Arc<Engine>,
        key: &LockKey,
        number: FencingToken,
        active: &ActiveTerm,
    ) -> Self {
        Self { engine: Arc::clone(engine), key: key.clone(), number, active: active.clone() }
    }

    /// Returns the number of the term, which is the fencing token of its lock.
    ///
    /// It is higher than the numbers of all earlier terms of this name, in all processes.
    #[must_use]
    pub fn number(&self) -> FencingToken {
        self.number
    }

    /// Returns `true` if the lease is valid, by this machine's clock. It sends no request.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.check().is_ok()
    }

    /// Returns how long the lease is still valid; zero if it is not.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_valid() { self.active.acquisition.remaining(self.engine.now()) } else { Duration::ZERO }
    }

    /// Checks that the lease is valid. It sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if it is not.
    pub fn check(&self) -> Result<()> {
        let acquisition = &self.active.acquisition;
        let lost = |(cause, held)| {
            let (key, reason) = (self.key.clone(), acquisition.loss_reason(cause));
            Error::Lost { key, held, cause, completed: false, reason }
        };
        if self.engine.is_forked() {
            return Err(lost((LossCause::Forked, Duration::ZERO)));
        }
        self.engine.check_hold(acquisition, self.engine.now()).map_err(lost)
    }

    /// Ends the term. It does not return: the body is dropped here, and the lock is released.
    ///
    /// If another process waits, it leads one round trip later, and this one pauses for one lease
    /// before it contends again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is polled, nothing happens. After that, the term ends at
    /// the next await of the body.
    pub async fn resign(&self) {
        if !self.engine.is_forked() {
            self.active.request_resignation();
        }
        std::future::pending::<()>().await;
    }
}
