//! The known ways to lose a lock, each shown, and the fencing token that stops the damage: the tables of the guide on safety.
//!
//! A lock is *lost* when somebody else gets it before the lease that its holder believes in has ended. Most of these tests pass when
//! that **happens**: they show that the guide tells the truth, and that a resource which compares tokens refuses what the first holder
//! writes late. Beside them stand the events that lose nothing.

mod clocks;
mod data;
mod drift;
mod messages;
mod replicas;

use std::time::Duration;

use dlock_runtime::{FencingToken, LockGuard, LockManager};
use dlock_tests::{RedisServer, within};
use tokio::time::Instant;

/// Far longer than anybody here takes to get a lock that is free.
const LEASE: Duration = Duration::from_secs(6);
/// What getting a free lock may take, connecting to a server that has just started again included.
const SOON: Duration = Duration::from_secs(3);
const KEY: &str = "order:7";
/// What [`KEY`] is called on the server.
const NAME: &str = "dlock:order:7";

/// A process that has the lock.
struct Holder {
    manager: LockManager,
    guard: LockGuard,
    token: FencingToken,
    /// Until when its lease was good when it got in.
    until: Instant,
}

impl Holder {
    /// Gets the lock, on the server at `url`.
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

/// What the lock is for: it keeps the highest token that it has seen and refuses a write with a lower one.
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

/// Has a second process get the lock of the first, whose lease is not over, on the server at `url`; shows that the first is fenced off.
async fn assert_lost_and_fenced(first: &Holder, url: &str) {
    let second = Holder::at(url).await;
    assert!(Instant::now() < first.until, "the lease was over: that is no loss");

    let mut resource = Resource::default();
    assert_eq!(resource.write(second.token), Ok(()));
    assert_eq!(resource.write(first.token), Err(second.token), "a stale write was accepted");
}

/// Shows that nobody gets the lock and that its holder, who is not told of any loss, can release it.
async fn assert_kept(first: Holder, url: &str) {
    let other = LockManager::connect(url).await.expect("the server takes managers");
    let tried = other.lock(KEY).lease(LEASE).try_acquire().await.expect("the server answers");
    assert!(tried.is_none(), "somebody else got in");
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

/// Shows that the first is told, before its lease is over.
async fn assert_told(first: &Holder) {
    within(LEASE, "the loss", first.guard.lost()).await;
    assert!(Instant::now() < first.until + LEASE / 3, "told {:?} late", Instant::now() - first.until);
}
