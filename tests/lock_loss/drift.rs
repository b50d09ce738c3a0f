//! The server's clock runs at another rate (A1): beyond the margin of the deadline, leases expire
//! early.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, WallClock, within};
use tokio::time::Instant;

use super::{KEY, Resource, SOON, clocks::clock};

const LEASE: Duration = Duration::from_secs(1);
const ROUNDS: u32 = 2;

/// The result of one lease that was not renewed.
struct Round {
    /// How long before the first holder's deadline the second acquired the lock.
    overlap: Duration,
    /// How long after the deadline the second acquired the lock.
    late: Duration,
    /// Whether the first holder's write was rejected after the second holder's.
    is_fenced: bool,
}

/// Acquires a lock with a second process as early as possible.
///
/// The first holder does not renew its lease, on a server whose clock drifts.
async fn round(url: &str) -> Round {
    let first = LockManager::connect(url).await.expect("the server takes managers");
    let second = LockManager::connect(url).await.expect("the server takes managers");
    let first = first.lock(KEY).lease(LEASE).renew(false).acquire().await.expect("it is free");
    let (deadline, stale) = (first.deadline(), first.fencing_token().await.expect("it is held"));
    let wants = second.lock(KEY).lease(LEASE).renew(false);
    let got = within(SOON, "the end of the lease", async {
        loop {
            if let Some(guard) = wants.try_acquire().await.expect("the server replies") {
                return guard;
            }
        }
    })
    .await;
    let entered = Instant::now();

    let mut resource = Resource::default();
    let token = got.fencing_token().await.expect("it is held");
    let is_fenced = resource.write(token).is_ok() && resource.write(stale).is_err();
    got.release().await.expect("it is held");
    Round {
        overlap: deadline.saturating_duration_since(entered),
        late: entered.saturating_duration_since(deadline),
        is_fenced,
    }
}

async fn rounds(thousandths: i64) -> Option<Vec<Round>> {
    let clock = clock()?;
    let server = RedisServer::builder().wall_clock(&clock).start();
    let _drift = WallClock::drift(&clock, thousandths);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(&server.url()).await);
    }
    Some(rounds)
}

/// The margin of a deadline is 1 % of the lease plus 2 ms. It exists for this drift.
#[tokio::test]
async fn drift_below_one_percent_causes_no_overlap() {
    for thousandths in [9, -9] {
        let Some(rounds) = rounds(thousandths).await else { return };
        for Round { overlap, is_fenced, .. } in rounds {
            assert_eq!(overlap, Duration::ZERO, "drift of {thousandths} in a thousand");
            assert!(is_fenced);
        }
    }
}

#[tokio::test]
async fn a_fast_server_clock_causes_an_overlap_and_fencing_holds() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let _drift = WallClock::drift(&clock, 100);
    let mut overlaps = Vec::new();
    // A busy machine delays the second holder, or a step of the clock.
    for _ in 0..8 {
        let Round { overlap, is_fenced, .. } = round(&server.url()).await;

        assert!(is_fenced, "a stale write was accepted");
        if overlap > Duration::from_millis(50) && overlap < Duration::from_millis(100) {
            return;
        }
        overlaps.push(overlap);
    }
    panic!("no round had the overlap of this drift: {overlaps:?}");
}

#[tokio::test]
async fn a_slow_server_clock_extends_dead_locks() {
    let Some(rounds) = rounds(-100).await else { return };

    for Round { overlap, late, is_fenced } in rounds {
        assert_eq!(overlap, Duration::ZERO);
        assert!(late > Duration::from_millis(80), "{late:?}");
        assert!(is_fenced);
    }
}

/// With renewals at each third of the lease, a hold tolerates far more drift.
#[tokio::test]
async fn a_renewed_hold_tolerates_a_clock_50_percent_fast() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let _drift = WallClock::drift(&clock, 500);
    let holder = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let other = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let held = holder.lock(KEY).lease(LEASE * 2).acquire().await.expect("it is free");

    let wanted = other.lock(KEY).lease(LEASE).wait(LEASE * 6).acquire().await;

    assert!(wanted.as_ref().is_err_and(dlock_runtime::Error::is_contended), "{wanted:?}");
    assert!(held.release().await.is_ok());
}
