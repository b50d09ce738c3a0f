//! [`RunLease`], the lease of a run as its body sees it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::renewed_lease::RenewedLease;
use crate::error::{Error, LossCause, Result};
use crate::guard::FencingToken;
use crate::key::LockKey;

/// The lease of a run, which is renewed while its body runs. It is [`Tick::lease`], and
/// `guard = lease` of [`#[scheduled]`](macro@crate::scheduled) binds it.
///
/// [`Tick::lease`]: crate::scheduled::Tick::lease
///
/// If the lease is lost, the body is dropped at its next await. Use [`check`](Self::check) between
/// steps without one, and pass the [`fencing_token`](Self::fencing_token) to what the body writes.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use dlock_runtime::{Error, scheduled};
///
/// #[scheduled(name = "import", every = "5m", guard = lease)]
/// async fn import(rows: Vec<u64>) -> Result<Option<u64>, Error> {
///     let mut sum = 0;
///     for row in rows {
///         lease.check()?; // stops here if another process may run the job
///         sum += row; // .. a write carries `lease.fencing_token()` ..
///     }
///     assert!(lease.remaining() > Duration::ZERO);
///     Ok(Some(sum))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # dlock_runtime::init("memory://").await?;
/// assert_eq!(import(vec![1, 2]).await?, Some(3));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RunLease {
    /// The run holds it. A tick that outlives its run does not keep the manager alive.
    lease: Weak<RenewedLease>,
    key: LockKey,
    fence: FencingToken,
}

impl RunLease {
    pub(super) fn new(lease: &Arc<RenewedLease>, fence: FencingToken) -> Self {
        Self { lease: Arc::downgrade(lease), key: lease.key.clone(), fence }
    }

    /// Checks that the run may continue, by this machine's clock. It sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if another process may run the job, a newer tick has
    /// replaced the run, `max_hold` has passed, or the run has ended, after which its `held` is
    /// zero; [`Error::Unavailable`](crate::Error::Unavailable) in a forked process.
    pub fn check(&self) -> Result<()> {
        let Some(lease) = self.lease.upgrade() else {
            let (key, cause) = (self.key.clone(), LossCause::Released);
            return Err(Error::Lost { key, held: Duration::ZERO, cause, completed: false, reason: None });
        };
        lease.check()
    }

    /// Returns how long the lease is still valid, and at most the rest of `max_hold`; zero if it is
    /// not. A renewal extends it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease.upgrade().map_or(Duration::ZERO, |lease| lease.remaining())
    }

    /// Returns the fencing token of the run. It is higher than the tokens of all earlier runs of
    /// the job, in all processes.
    ///
    /// Pass it to the resource with every write, and have the resource reject any token lower than
    /// the highest that it has seen. It is in the reply that started the run, so it costs nothing.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.fence
    }
}

/// Leases are equal if they are of one run.
impl PartialEq for RunLease {
    fn eq(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.lease, &other.lease)
    }
}

impl Eq for RunLease {}
