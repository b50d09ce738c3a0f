//! Options that are evaluated at each call: with `self`, with an argument, or with any item.

use std::time::Duration;

use dlock_runtime::{Error, LockManager, distributed_lock};

const LEASE: Duration = Duration::from_secs(5);

struct Config {
    lease: Duration,
    retries: u32,
}

struct Service {
    config: Config,
    locks: LockManager,
}

impl Service {
    #[distributed_lock(
        key = "a",
        lease = self.config.lease,
        wait = self.wait(),
        retry = self.config.retries,
        max_hold = self.config.lease * 2,
        manager = self.locks,
        guard = lock
    )]
    async fn of_self(&self) -> Result<Duration, Error> {
        Ok(lock.remaining())
    }

    fn wait(&self) -> Duration {
        self.config.lease / 2
    }
}

#[distributed_lock(key = "b:<id>", wait = timeout, lease = LEASE, manager = locks, guard = lock)]
async fn of_an_argument(locks: &LockManager, id: u64, timeout: Duration) -> Result<Duration, Error> {
    assert_eq!((id, timeout), (7, Duration::ZERO));
    Ok(lock.remaining())
}

struct Wrapped<T>(T);

#[distributed_lock(
    key = "c",
    lease = Duration::from_secs(*seconds),
    min_hold = if *seconds > 1 { LEASE } else { Duration::ZERO },
    manager = locks,
    guard = lock
)]
async fn of_a_pattern(locks: &LockManager, Wrapped(seconds): Wrapped<u64>) -> Result<Duration, Error> {
    let _owned: u64 = seconds;
    Ok(lock.remaining())
}

#[distributed_lock(key = "d", lease = { Duration::from_secs(3) }, manager = locks, guard = lock)]
async fn of_a_block(locks: &LockManager) -> Result<Duration, Error> {
    Ok(lock.remaining())
}

fn is_send(_: &impl Send) {}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let locks = LockManager::connect("memory://").await.expect("no server is needed");
    let config = Config { lease: Duration::from_secs(2), retries: 1 };
    let service = Service { config, locks: locks.clone() };
    is_send(&service.of_self());

    let remaining = [
        (service.of_self().await, 2),
        (of_an_argument(&locks, 7, Duration::ZERO).await, 5),
        (of_a_pattern(&locks, Wrapped(4)).await, 4),
        (of_a_block(&locks).await, 3),
    ];

    for (remaining, lease) in remaining {
        let (remaining, lease) = (remaining.expect("the lock is free"), Duration::from_secs(lease));
        assert!(remaining <= lease && remaining > lease / 2, "{remaining:?} of {lease:?}");
    }
    let short = Service { config: Config { lease: Duration::ZERO, retries: 0 }, locks };
    let refused = short.of_self().await;
    assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
}
