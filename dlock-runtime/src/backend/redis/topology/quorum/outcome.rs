//! Reports the outcome of each operation to the engine, once.

use std::time::Duration;

use crate::backend::redis::topology::quorum::Quorum;
use crate::backend::redis::topology::quorum::operations::OperationOutcome;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;

impl Quorum {
    /// Reports outcomes to the engine, and queues orphaned tokens for cleanup.
    pub(super) fn report(&self, mut outcomes: Vec<OperationOutcome>, now: BootInstant) {
        while let Some(first) = outcomes.first() {
            let sent = first.sent;
            let others = outcomes.iter().position(|outcome| outcome.sent != sent).unwrap_or(outcomes.len());
            let replies = outcomes.drain(..others).map(|OperationOutcome { request, reply, .. }| {
                let reply = self.spread(reply, now.since(sent));
                (request, reply)
            });
            let orphaned = self.sink.deliver(replies.collect(), sent);
            if !orphaned.is_empty() {
                for server in 0..self.voters.len() {
                    self.schedule_cleanup(server, orphaned.clone());
                }
            }
        }
    }

    /// Spreads retries: if the lock is free but no majority was reached, contenders have collided,
    /// so each retries after a random time relative to the round trip.
    fn spread(&self, reply: Reply, round_trip: Duration) -> Reply {
        match reply {
            Reply::NotQueued { ttl: Some(Duration::ZERO) } => {
                let longest = round_trip.saturating_mul(4).clamp(SHORTEST_SPREAD, LONGEST_SPREAD);
                Reply::NotQueued { ttl: Some(self.jitter.up_to(longest)) }
            }
            reply => reply,
        }
    }
}

/// With servers in the same network, contenders complete an attempt within this time.
const SHORTEST_SPREAD: Duration = Duration::from_millis(8);

const LONGEST_SPREAD: Duration = Duration::from_millis(200);
