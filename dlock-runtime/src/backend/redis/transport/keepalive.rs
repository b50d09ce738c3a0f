//! The timer for a `PING` on an idle connection.
//!
//! TCP keepalive ([`stream`](super::stream)) finds a server that is gone, but it does not count for
//! the idle limit of a server (`timeout` in redis.conf) or of a proxy, and it does not reach a
//! server behind a proxy. A `PING` does both.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// The `PING` timer of one connection.
#[derive(Debug)]
pub(crate) struct Keepalive(Interval);

impl Keepalive {
    /// Creates a timer whose first `PING` is due after [`PING_INTERVAL`].
    pub(crate) fn new() -> Self {
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(pings)
    }

    /// Returns the output of `event`, or `None` if a `PING` is due first.
    pub(crate) async fn before_ping<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            output = event => Some(output),
            _ = self.0.tick() => None,
        }
    }
}

/// Less than the minute after which many proxies close an idle connection.
const PING_INTERVAL: Duration = Duration::from_secs(55);

/// How long a subscriber waits for the reply to a `PING`. The client library sets no limit for it.
pub(crate) const PONG_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_pinged_every_55_seconds() {
        let (mut keepalive, begun) = (Keepalive::new(), Instant::now());

        for pings in 1..=3 {
            assert_eq!(keepalive.before_ping(pending::<()>()).await, None);
            assert_eq!(begun.elapsed().as_secs(), 55 * pings);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_is_ready_comes_before_a_ping() {
        let mut keepalive = Keepalive::new();
        tokio::time::advance(PING_INTERVAL).await;

        assert_eq!(keepalive.before_ping(async { 7 }).await, Some(7));
        assert_eq!(keepalive.before_ping(pending::<u32>()).await, None);
    }
}
