//! The delay before the next attempt to connect: 5 to 10 ms, doubling to 1 s, without end.

use std::time::Duration;

use crate::token::Jitter;

/// The number of consecutive failures, which sets the next delay.
pub(crate) struct Backoff<'a> {
    jitter: &'a Jitter,
    failures: u32,
}

impl<'a> Backoff<'a> {
    /// Creates a backoff without failures.
    pub(crate) fn new(jitter: &'a Jitter) -> Self {
        Self { jitter, failures: 0 }
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
        longest / 2 + self.jitter.up_to(longest / 2)
    }
}

/// How long a connection must be of use to reset the delay.
pub(crate) const PROVEN: Duration = Duration::from_secs(1);

const LONGEST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::token::TokenSource;

    #[tokio::test(start_paused = true)]
    async fn the_delay_doubles_to_a_second_until_a_connection_is_of_use() {
        let jitter = Jitter::of(TokenSource::of_process(7).process());
        let mut backoff = Backoff::new(&jitter);
        let almost = Duration::from_millis(999);

        for (worked, longest) in [
            (Duration::ZERO, 20),
            (almost, 40),
            (Duration::ZERO, 80),
            (almost, 160),
            (almost, 320),
            (almost, 640),
            (almost, 1_000),
            (almost, 1_000),
            (PROVEN, 10),
            (Duration::ZERO, 20),
        ] {
            let begun = Instant::now();
            backoff.pause(worked).await;
            let delay = begun.elapsed().as_millis();

            // A timer has a resolution of one millisecond.
            assert!((longest / 2..=longest + 1).contains(&delay), "{delay} ms instead of {longest}");
        }
    }
}
