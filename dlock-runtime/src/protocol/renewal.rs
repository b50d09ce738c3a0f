//! The times at which holds are renewed.

use std::time::Duration;

use crate::protocol::deadline::BootInstant;

/// Returns when a hold whose last renewal was sent at `sent` is renewed: a quarter to a third of
/// the lease later.
///
/// Holds that were acquired in one burst are not renewed in one, since the server would be busy
/// with them while other requests wait. Each cohort of holds, by the order of its tokens, has its
/// own place in that span. The places spread evenly, however many there are (a Weyl sequence;
/// Knuth, The Art of Computer Programming, 6.4), and start elsewhere in each process. Renewals that
/// are due within 16 ms are due together: 10,000 holds need one timer and few wake-ups, and 100
/// need seven or eight.
pub(crate) fn due(sent: BootInstant, lease: Duration, (process, position): (u64, u64)) -> BootInstant {
    let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
    let grid = (lease / 1_536).clamp(1, TOGETHER);
    let cohort = (position / COHORT).wrapping_add(process);
    let place = cohort.wrapping_mul(GOLDEN_RATIO) >> 32;
    let span = u128::from((lease / 12).saturating_sub(grid));
    let early = u64::try_from((span * u128::from(place)) >> 32).unwrap_or_default();
    let exact = sent.nanos().saturating_add(lease / 3 - early);
    BootInstant::from_nanos((exact / grid * grid).max(sent.nanos()))
}

/// Returns when a grant that arrived at `now`, with `left` remaining, is confirmed: 5 ms later by
/// default. A hold that ends earlier saves the server a third of the work of a hand-off. A hold
/// that lasts must be confirmed soon: a grant survives a server stall of 1 s, and a confirmed hold
/// one of its whole lease.
pub(crate) fn confirmation_due(now: BootInstant, left: Duration) -> BootInstant {
    now.plus(left / 200)
}

/// Returns when a failed renewal is retried: often enough to use what is `left` of the hold, but
/// not so often as to flood a server that has just come back.
pub(crate) fn retry_at(now: BootInstant, lease: Duration, left: Duration) -> BootInstant {
    now.plus((lease / 20).min(left / 4).clamp(Duration::from_millis(5), Duration::from_secs(1)))
}

/// The grid of renewals: 16 ms, so at most about 60 wake-ups in a second.
const TOGETHER: u64 = 16_000_000;

/// The size of a cohort in token numbers: 16 holds, since an uncontended call uses two. That is
/// fewer than are sent at once if no other request is in flight (`engine::renewal_throttle`), so
/// several cohorts that meet are no burst.
const COHORT: u64 = 32;

/// 2^64 divided by the golden ratio.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests;
