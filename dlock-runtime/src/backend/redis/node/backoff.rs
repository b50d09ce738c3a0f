//! How long to wait before a connection is made anew: 10 ms doubling to 1 s, with jitter, without end.

use std::sync::Weak;
use std::time::Duration;

use crate::engine::Engine;

/// What is known of the attempts so far.
pub(crate) struct Backoff {
    engine: Weak<Engine>,
    failures: u32,
}

impl Backoff {
    /// Starts with no failure; `engine` draws the jitter.
    pub(crate) fn new(engine: &Weak<Engine>) -> Self {
        Self { engine: Weak::clone(engine), failures: 0 }
    }

    /// WaitGraph with the next attempt, after one whose connection worked for this long. One that worked for a while was a good one; a
    /// replica lets us in and refuses the first write.
    pub(crate) async fn pause(&mut self, worked: Duration) {
        self.failures = if worked >= PROVEN { 0 } else { self.failures.saturating_add(1) };
        tokio::time::sleep(self.delay()).await;
    }

    /// Spread by half, so that a fleet does not come back in step.
    fn delay(&self) -> Duration {
        let longest = Duration::from_millis(10).saturating_mul(1 << self.failures.min(7)).min(LONGEST);
        let draw = self.engine.upgrade().map_or(0, |engine| engine.tokens.draw());
        longest.mul_f64(0.5 + 0.5 * f64::from(draw) / f64::from(u32::MAX))
    }
}

/// How long a connection must have worked for the next failure to count as the first.
pub(crate) const PROVEN: Duration = Duration::from_secs(1);

const LONGEST: Duration = Duration::from_secs(1);
