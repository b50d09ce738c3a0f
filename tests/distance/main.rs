//! A server that is far away, up to a `response_timeout` of round trip: no turn is lost while it is healthy.
//!
//! See also: `trips`, which counts round trips.

mod doctor;
mod hand_overs;
mod holds;

use std::time::Duration;

use dlock_tests::{Proxy, RedisServer};

/// A server behind a network that takes half of `round_trip` each way.
struct Far {
    server: RedisServer,
    proxy: Proxy,
}

impl Far {
    fn start(round_trip: Duration) -> Self {
        let far = Self::start_near();
        far.proxy.round_trip(round_trip);
        far
    }

    fn start_near() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        Self { server, proxy }
    }
}

const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(60);
