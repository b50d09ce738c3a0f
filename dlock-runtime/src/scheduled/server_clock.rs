//! [`ServerClock`], the server's clock, as far as this process knows it.

use std::sync::atomic::{AtomicI64, Ordering};
#[cfg(feature = "testing")]
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use crate::engine::Engine;
use crate::scheduled::tick;
#[cfg(feature = "testing")]
use crate::testing::replica_clock::ReplicaClock;

/// The difference between the server's clock and the clock of leases.
///
/// Every reply carries the server's time. The clock of leases never steps, so a step of this
/// machine's wall clock changes nothing once a reply has arrived.
///
/// It needs no mutex: a runner reads it before it sends a request, also in a forked process.
#[derive(Debug)]
pub(crate) struct ServerClock {
    /// The server's clock minus the clock of leases, in milliseconds; [`UNKNOWN`] before any reply.
    ahead: AtomicI64,
    /// The wall clock of a simulated process, instead of the machine's.
    #[cfg(feature = "testing")]
    own: OnceLock<Arc<ReplicaClock>>,
}

impl ServerClock {
    /// Records the server's time in a reply that has just arrived.
    pub(super) fn learn(&self, engine: &Engine, now: u64) {
        let (now, local) = (i64::try_from(now), i64::try_from(local(engine)));
        let ahead = now.ok().zip(local.ok()).map_or(UNKNOWN, |(now, local)| now - local);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Returns the server's time in milliseconds since the epoch; the machine's before any reply.
    pub(super) fn now(&self, engine: &Engine) -> u64 {
        match self.ahead.load(Ordering::Relaxed) {
            UNKNOWN => self.wall_clock(),
            ahead => local(engine).saturating_add_signed(ahead),
        }
    }

    /// Sets the wall clock of a simulated process.
    #[cfg(feature = "testing")]
    pub(crate) fn assume(&self, clock: Arc<ReplicaClock>) {
        let _ = self.own.set(clock); // each process has one
    }

    /// Returns the time of this process in milliseconds since the epoch.
    #[cfg_attr(not(feature = "testing"), expect(clippy::unused_self, reason = "tests simulate a clock"))]
    fn wall_clock(&self) -> u64 {
        #[cfg(feature = "testing")]
        if let Some(clock) = self.own.get() {
            return clock.now();
        }
        tick::to_millis(SystemTime::now()).unwrap_or_default()
    }
}

impl Default for ServerClock {
    fn default() -> Self {
        Self {
            ahead: AtomicI64::new(UNKNOWN),
            #[cfg(feature = "testing")]
            own: OnceLock::new(),
        }
    }
}

/// Not the difference of two times that are at least zero.
const UNKNOWN: i64 = i64::MIN;

fn local(engine: &Engine) -> u64 {
    engine.now().nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::LockManager;

    #[tokio::test(start_paused = true)]
    async fn the_servers_clock_runs_on_from_its_last_reply() {
        let manager = LockManager::in_new_memory();
        let (engine, clock) = (manager.engine(), ServerClock::default());
        tokio::time::sleep(Duration::from_secs(7)).await;

        for now in [5_000_000, 4_000_000, 1] {
            clock.learn(engine, now);
            assert_eq!(clock.now(engine), now);
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(clock.now(engine), now + 3_000);
        }
    }

    #[tokio::test]
    async fn the_clock_of_the_machine_is_assumed_before_any_reply() {
        let manager = LockManager::in_new_memory();
        let machine = || tick::to_millis(SystemTime::now()).expect("after 1970");

        let before = machine();
        let now = ServerClock::default().now(manager.engine());

        assert!((before..=machine()).contains(&now), "{now} after {before}");
    }
}
