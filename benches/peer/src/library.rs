//! The interface of a lock library that runs as a contender.

use std::fmt;
use std::time::Duration;

/// An error, sent as `cannot` if it is a [`Cannot`], and as `failed` otherwise.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The result of an order.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The longest wait for a lock.
pub const WAIT: Duration = Duration::from_secs(60);

/// The lease of orders without a lease.
pub const LEASE: Duration = Duration::from_secs(30);

/// A connected lock library. Clones share one connection, as in an application.
///
/// It waits as the library does by default. A library without a wait polls as its documentation
/// suggests.
pub trait Library: Clone + Send + Sync + 'static {
    /// A held lock, passed to [`unlock`](Self::unlock).
    type Guard: Send + 'static;

    /// Locks `key`, and waits at most `wait`. If the library renews leases, it renews this one.
    fn lock(
        &self,
        key: &str,
        wait: Duration,
        lease: Duration,
    ) -> impl Future<Output = Result<Self::Guard>> + Send;

    /// Unlocks, and waits for the server's reply unless the library never does.
    fn unlock(&self, guard: Self::Guard) -> impl Future<Output = Result<()>> + Send;

    /// Runs `body` under the lock of `key`. Default: lock, body, unlock.
    fn under<T: Send>(
        &self,
        key: &str,
        body: impl Future<Output = T> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        async move {
            let guard = self.lock(key, WAIT, LEASE).await?;
            let value = body.await;
            self.unlock(guard).await?;
            Ok(value)
        }
    }

    /// Locks and unlocks the uncontended key `bench:<id>`.
    ///
    /// Default: an empty body [`under`](Self::under) the lock.
    fn pair(&self, id: u64) -> impl Future<Output = Result<()>> + Send {
        async move { self.under(&format!("bench:{id}"), async {}).await }
    }

    /// Waits until the library reports that the lock is lost. Default: not supported.
    fn told(&self, guard: &mut Self::Guard) -> impl Future<Output = Result<()>> + Send {
        let _ = guard;
        async { Err(Cannot::because("it does not report a loss")) }
    }

    /// Locks `nest`, and inside it `times` times again. Returns the time of the inner calls.
    /// Default: not supported.
    fn nest(&self, times: u64) -> impl Future<Output = Result<Duration>> + Send {
        let _ = times;
        async { Err(Cannot::because("its locks are not reentrant")) }
    }

    /// Makes one call with the idempotency key `key`; its body takes `body`, and returns a text of
    /// a few bytes. Default: not supported.
    fn call(&self, key: &str, body: Duration) -> impl Future<Output = Result<Called>> + Send {
        let _ = (key, body);
        async { Err(Cannot::because("its calls are not idempotent")) }
    }
}

/// The end of an idempotent call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Its body ran.
    Ran,
    /// It got the result of another call.
    Replayed,
    /// It got an error that names a running call.
    Refused,
}

/// The reason why a library does not support an order.
#[derive(Debug)]
pub struct Cannot(String);

impl Cannot {
    /// Returns a failure with this reason.
    pub fn because(why: impl Into<String>) -> Failure {
        Box::new(Self(why.into()))
    }
}

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cannot {}
