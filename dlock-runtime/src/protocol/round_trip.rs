//! The measured round trip to the server.
//!
//! A rule that needs a reply before a deadline compares the remaining time with this value: a
//! constant would assume a nearby server.
//!
//! See also: `contender`, which confirms a grant first if two round trips do not fit into the rest
//! of it.

use std::time::Duration;

use crate::protocol::deadline::BootInstant;

/// A round trip in whole milliseconds, rounded up. Two bytes, since each contender has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundTrip(u16);

impl RoundTrip {
    /// No reply has been received yet.
    pub(super) const UNKNOWN: Self = Self(0);

    /// Returns the estimate after a reply at `now` to a request that was sent at `sent`. A longer
    /// round trip counts at once, and a shorter one by half: a route that varies is judged by its
    /// slow replies.
    pub(super) fn measured(self, sent: BootInstant, now: BootInstant) -> Self {
        let took = now.since(sent).as_nanos().div_ceil(1_000_000);
        let took = u16::try_from(took).unwrap_or(u16::MAX);
        Self(took.max(self.0.midpoint(took)))
    }

    /// Returns `true` if two round trips take at most `left`: one for the reply, and one in
    /// reserve.
    pub(super) fn fits_twice_into(self, left: Duration) -> bool {
        Duration::from_millis(2 * u64::from(self.0)) <= left
    }
}

#[cfg(test)]
mod tests;
