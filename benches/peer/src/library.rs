//! What a lock library must do to be a contender.
//!
//! Not here: who asks it to (`serve`).

use std::fmt;
use std::time::Duration;

/// What can go wrong: said as `failed`, or as `cannot` where it is a [`Cannot`].
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a library answers.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// How long a lock is waited for.
pub const WAIT: Duration = Duration::from_secs(60);

/// The lease where an order names none.
pub const LEASE: Duration = Duration::from_secs(30);

/// A lock library, connected. Clones are handles of one connection, as an application would share them.
///
/// It uses its own way to wait with its own defaults, and polls as its documentation suggests where it has none.
pub trait Library: Clone + Send + Sync + 'static {
    /// A lock that is held. It is given back to [`unlock`](Self::unlock).
    type Guard: Send + 'static;

    /// Locks `key`, and waits for it for `wait` at most. Where the library renews leases, it renews this one.
    fn lock(
        &self,
        key: &str,
        wait: Duration,
        lease: Duration,
    ) -> impl Future<Output = Result<Self::Guard>> + Send;

    /// Unlocks, and waits for the server's answer unless the library never does.
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

    /// Locks and unlocks `bench:<id>`, which nobody else wants. Default: an empty body [`under`](Self::under) it.
    fn pair(&self, id: u64) -> impl Future<Output = Result<()>> + Send {
        async move { self.under(&format!("bench:{id}"), async {}).await }
    }

    /// Waits until the library tells its user that the lock is lost. Default: it never does.
    fn told(&self, guard: &mut Self::Guard) -> impl Future<Output = Result<()>> + Send {
        let _ = guard;
        async { Err(Cannot::because("its user is not told of a loss")) }
    }

    /// Locks `nest`, and inside it `times` times again; returns what the inner ones took. Default: it cannot be locked again.
    fn nest(&self, times: u64) -> impl Future<Output = Result<Duration>> + Send {
        let _ = times;
        async { Err(Cannot::because("who holds a lock cannot take it again")) }
    }
}

/// Says that a library has no such thing, and why.
#[derive(Debug)]
pub struct Cannot(String);

impl Cannot {
    /// Makes a failure of it.
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
