//! When a hold is renewed.
//!
//! Not here: what an answer to a renewal means (`hold`), how renewals are batched (`backend`).

use std::time::Duration;

use crate::protocol::deadline::BootInstant;

/// Returns when a hold whose last renewal was sent at `sent` is to be renewed: a quarter to a third of the lease later.
///
/// Holds that were taken in one burst must not be renewed in one: a server would be busy with them while others wait. So each company
/// of them, by the order in which their tokens were made, has a place of its own in that span: one after the other they spread evenly over it, however
/// many there are (a Weyl sequence; Knuth, The Art of Computer Programming, 6.4), and begin elsewhere in each process. What falls due
/// within a few milliseconds falls due together: ten thousand holds cost one timer, and few wake-ups; a hundred cost seven or eight.
pub(crate) fn due(sent: BootInstant, lease: Duration, (process, turn): (u64, u64)) -> BootInstant {
    let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
    let grid = (lease / 1_536).clamp(1, TOGETHER);
    let company = (turn / COMPANY).wrapping_add(process);
    let place = company.wrapping_mul(GOLDEN_RATIO) >> 32;
    let span = u128::from((lease / 12).saturating_sub(grid));
    let early = u64::try_from((span * u128::from(place)) >> 32).unwrap_or_default();
    let exact = sent.nanos().saturating_add(lease / 3 - early);
    BootInstant::from_nanos((exact / grid * grid).max(sent.nanos()))
}

/// Returns when a grant that was believed at `now`, with so much `left`, is confirmed: 5 ms later, by default. A turn that is over before
/// spares the server a third of its work for a hand-over. For one that lasts it must be soon: who is granted a lock has a second to get
/// through a stall of the server, and who is confirmed a lease.
pub(crate) fn confirmation_due(now: BootInstant, left: Duration) -> BootInstant {
    now.plus(left / 200)
}

/// Returns when a renewal that got no answer is tried again: often enough to use what is `left` of the hold, seldom enough not to
/// flood a server that has just come back.
pub(crate) fn retry_at(now: BootInstant, lease: Duration, left: Duration) -> BootInstant {
    now.plus((lease / 20).min(left / 4).clamp(Duration::from_millis(5), Duration::from_secs(1)))
}

/// 16 ms: a machine is not woken more than some sixty times a second.
const TOGETHER: u64 = 16_000_000;

/// Sixteen holds, since a call that waits for nobody uses two numbers: fewer than leave at once where nothing else is under way
/// (`engine::renewal_throttle`), so that several that meet are no burst either.
const COMPANY: u64 = 32;

/// Two to the 64 by the golden ratio.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests;
