//! When a hold is renewed.
//!
//! Not here: what an answer to a renewal means (`hold`), how renewals are batched (`backend`).

use std::time::Duration;

use crate::protocol::deadline::BootTime;

/// Returns when a hold whose last renewal was sent at `sent` is to be renewed: a third of the lease later, a little early so that
/// many holds fall due together and ten thousand of them cost one timer.
pub(crate) fn due(sent: BootTime, lease: Duration) -> BootTime {
    let grid = u64::try_from(lease.as_nanos() / 48).unwrap_or(u64::MAX).max(1);
    let exact = sent.plus(lease / 3).nanos();
    BootTime::from_nanos((exact / grid * grid).max(sent.nanos()))
}

/// Returns when a renewal that got no answer is tried again: often enough to use what is `left` of the hold, seldom enough not to
/// flood a server that has just come back.
pub(crate) fn retry_at(now: BootTime, lease: Duration, left: Duration) -> BootTime {
    now.plus((lease / 20).min(left / 4).clamp(Duration::from_millis(5), Duration::from_secs(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn holds_of_one_lease_fall_due_together() {
        let lease = Duration::from_secs(30);
        let dues: std::collections::BTreeSet<_> =
            (0..1_000_u64).map(|n| due(BootTime::from_nanos(n * SECOND / 100), lease)).collect();

        assert!(dues.len() <= 17, "{}", dues.len());
    }

    #[test]
    fn a_renewal_is_due_between_a_quarter_and_a_third_of_the_lease() {
        for ms in [100, 999, 30_000, 3_600_000] {
            let lease = Duration::from_millis(ms);
            let sent = BootTime::from_nanos(7 * SECOND + 123_456_789);

            let after = due(sent, lease).since(sent);

            assert!(after <= lease / 3 && after >= lease / 4, "{ms}: {after:?}");
        }
    }
}
