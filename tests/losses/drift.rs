//! The server's clock runs at another rate than ours (A1): within the margin of the deadline nothing is lost, beyond it leases end early.

use std::time::Duration;

use dlock_runtime::LockManager;
use dlock_tests::{RedisServer, WallClock, within};
use tokio::time::Instant;

use super::{KEY, Resource, SOON, clocks::clock};

const LEASE: Duration = Duration::from_secs(1);
const ROUNDS: u32 = 2;

/// What became of one lease that nobody renewed.
struct Round {
    /// How long before the first holder's deadline the second got in.
    overlap: Duration,
    /// How long after it.
    late: Duration,
    /// Whether the first one's write was refused once the second had registered.
    is_fenced: bool,
}

/// Has a second process want a lock as fast as it can, whose first holder does not renew it, on a server whose clock drifts.
async fn round(url: &str) -> Round {
    let first = LockManager::connect(url).await.expect("the server takes managers");
    let second = LockManager::connect(url).await.expect("the server takes managers");
    let first = first.lock(KEY).lease(LEASE).renew(false).acquire().await.expect("it is free");
    let (deadline, stale) = (first.deadline(), first.fencing_token().await.expect("it is held"));
    let wants = second.lock(KEY).lease(LEASE).renew(false);
    let got = within(SOON, "the lease's end", async {
        loop {
            if let Some(guard) = wants.try_acquire().await.expect("the server answers") {
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

/// The margin is a hundredth of the lease and 2 ms: it is for this.
#[tokio::test]
async fn a_server_whose_clock_drifts_by_less_than_a_hundredth_lets_nobody_in_early() {
    for thousandths in [9, -9] {
        let Some(rounds) = rounds(thousandths).await else { return };
        for Round { overlap, is_fenced, .. } in rounds {
            assert_eq!(overlap, Duration::ZERO, "drift of {thousandths} in a thousand");
            assert!(is_fenced);
        }
    }
}

#[tokio::test]
async fn a_server_whose_clock_is_too_fast_lets_somebody_in_early_and_the_first_is_fenced_off() {
    let Some(rounds) = rounds(100).await else { return };

    for Round { overlap, is_fenced, .. } in rounds {
        assert!(overlap > Duration::from_millis(50) && overlap < Duration::from_millis(100), "{overlap:?}");
        assert!(is_fenced, "a stale write was accepted");
    }
}

#[tokio::test]
async fn a_server_whose_clock_is_too_slow_keeps_a_dead_lock_for_longer() {
    let Some(rounds) = rounds(-100).await else { return };

    for Round { overlap, late, is_fenced } in rounds {
        assert_eq!(overlap, Duration::ZERO);
        assert!(late > Duration::from_millis(80), "{late:?}");
        assert!(is_fenced);
    }
}

/// Renewed at a third of the lease, a hold bears far more than it does without.
#[tokio::test]
async fn a_hold_that_is_renewed_bears_a_clock_that_is_half_as_fast_again() {
    let Some(clock) = clock() else { return };
    let server = RedisServer::builder().wall_clock(&clock).start();
    let _drift = WallClock::drift(&clock, 500);
    let holder = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let other = LockManager::connect(&server.url()).await.expect("the server takes managers");
    let held = holder.lock(KEY).lease(LEASE).acquire().await.expect("it is free");

    let wanted = other.lock(KEY).lease(LEASE).wait(LEASE * 3).acquire().await;

    assert!(wanted.as_ref().is_err_and(dlock_runtime::Error::is_contended), "{wanted:?}");
    assert!(held.release().await.is_ok());
}
