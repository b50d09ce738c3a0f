//! Servers whose round trip is up to the `response_timeout`: no hold is lost while the server is
//! healthy.
//!
//! See also: `round_trips`, which counts them.

mod deployments;
mod doctor;
mod hand_offs;
mod holds;
mod records;

use std::time::Duration;

use dlock_tests::{Proxy, RedisServer};

/// A server behind a proxy that adds `round_trip`, half of it each way.
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
