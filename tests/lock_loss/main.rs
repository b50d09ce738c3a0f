//! The known ways to lose a lock, and the fencing token that prevents damage, as in the safety
//! guide.
//!
//! A lock is *lost* if another process acquires it before the lease expires that its holder
//! considers valid. Most of these tests pass if that **happens**: they show that the guide is
//! correct, and that a resource that compares tokens rejects the late writes of the first holder.
//! Other tests show events that do not lose a lock.

mod clocks;
mod data;
mod drift;
mod messages;
mod replicas;

use std::time::Duration;

use dlock_runtime::{FencingToken, LockGuard, LockManager};
use dlock_tests::{RedisServer, within};
use tokio::time::Instant;

/// Far longer than it takes to acquire a free lock in these tests.
const LEASE: Duration = Duration::from_secs(6);
/// The longest acceptable time to acquire a free lock, including a connection to a restarted
/// server.
const SOON: Duration = Duration::from_secs(3);
const KEY: &str = "order:7";
/// The name of [`KEY`] on the server.
const NAME: &str = "dlock:order:7";

/// A process that holds the lock.
struct Holder {
    manager: LockManager,
    guard: LockGuard,
    token: FencingToken,
    /// The deadline of the lease when the lock was acquired.
    until: Instant,
}

impl Holder {
    /// Acquires the lock on the server at `url`.
    async fn at(url: &str) -> Self {
        let manager = LockManager::connect(url).await.expect("the server takes managers");
        let guard = manager.lock(KEY).lease(LEASE).wait(SOON).acquire().await.expect("the lock is free");
        let token = guard.fencing_token().await.expect("it is held");
        Self { until: guard.deadline(), manager, guard, token }
    }

    async fn of(server: &RedisServer) -> Self {
        Self::at(&server.url()).await
    }
}

/// A protected resource: it keeps the highest token and rejects a write with a lower one.
#[derive(Default)]
struct Resource {
    highest: Option<FencingToken>,
}

impl Resource {
    fn write(&mut self, token: FencingToken) -> Result<(), FencingToken> {
        match self.highest {
            Some(highest) if token < highest => Err(highest),
            _ => {
                self.highest = Some(token);
                Ok(())
            }
        }
    }
}

/// Checks that a second process acquires the lock before the lease of the first has expired.
///
/// Also checks that the resource rejects a write of the first holder after that.
async fn assert_lost_and_fenced(first: &Holder, url: &str) {
    let second = Holder::at(url).await;
    assert!(Instant::now() < first.until, "the lease has expired, which is no loss");

    let mut resource = Resource::default();
    assert_eq!(resource.write(second.token), Ok(()));
    assert_eq!(resource.write(first.token), Err(second.token), "a stale write was accepted");
}

/// Checks that no other process acquires the lock, and that its holder can release it.
async fn assert_kept(first: Holder, url: &str) {
    let other = LockManager::connect(url).await.expect("the server takes managers");
    let tried = other.lock(KEY).lease(LEASE).try_acquire().await.expect("the server replies");
    assert!(tried.is_none(), "another process acquired the lock");
    assert!(first.guard.check().is_ok(), "{:?}", first.guard.check());
    let ready = async {
        while first.manager.ready().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(SOON, "a connection again", ready).await;
    let released = first.guard.release().await;
    assert!(released.is_ok(), "{released:?}");
}

/// Checks that the loss is reported to the first holder within a third of a lease after its
/// deadline.
async fn assert_loss_is_reported(first: &Holder) {
    within(LEASE, "the loss", first.guard.lost()).await;
    assert!(Instant::now() < first.until + LEASE / 3, "reported {:?} late", Instant::now() - first.until);
}
