//! The delay before the next attempt to connect: 10 ms, doubling to 1 s, with jitter, without end.

use std::sync::Weak;
use std::time::Duration;

use crate::engine::Engine;

/// The number of consecutive failures, which sets the next delay.
pub(crate) struct Backoff {
    engine: Weak<Engine>,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff without failures. `engine` is the source of jitter.
    pub(crate) fn new(engine: &Weak<Engine>) -> Self {
        Self { engine: Weak::clone(engine), failures: 0 }
    }

    /// Waits before the next attempt. `worked` is how long the last connection was of use.
    ///
    /// A connection that was of use for [`PROVEN`] resets the delay. A shorter one does not: a
    /// replica accepts connections, and rejects the first write.
    pub(crate) async fn pause(&mut self, worked: Duration) {
        self.failures = if worked >= PROVEN { 0 } else { self.failures.saturating_add(1) };
        tokio::time::sleep(self.delay()).await;
    }

    /// Subtracts up to half at random, so that the clients of a fleet do not reconnect all at once.
    fn delay(&self) -> Duration {
        let longest = Duration::from_millis(10).saturating_mul(1 << self.failures.min(7)).min(LONGEST);
        let draw = self.engine.upgrade().map_or(0, |engine| engine.tokens.draw());
        longest.mul_f64(0.5 + 0.5 * f64::from(draw) / f64::from(u32::MAX))
    }
}

/// How long a connection must be of use to reset the delay.
pub(crate) const PROVEN: Duration = Duration::from_secs(1);

const LONGEST: Duration = Duration::from_secs(1);
