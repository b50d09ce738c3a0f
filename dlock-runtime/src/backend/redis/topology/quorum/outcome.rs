//! What the engine is told of a ballot: its outcome, once.
//!
//! Not here: what the outcome is (`ballots`).

use std::time::Duration;

use crate::backend::redis::topology::quorum::Quorum;
use crate::backend::redis::topology::quorum::operations::OperationOutcome;
use crate::protocol::command::Reply;
use crate::protocol::deadline::BootInstant;

impl Quorum {
    /// Tells the engine.
    pub(super) fn tell(&self, mut outcomes: Vec<OperationOutcome>, now: BootInstant) {
        while let Some(first) = outcomes.first() {
            let sent = first.sent;
            let others = outcomes.iter().position(|outcome| outcome.sent != sent).unwrap_or(outcomes.len());
            let replies = outcomes.drain(..others).map(|OperationOutcome { request, reply, .. }| {
                let reply = self.spread(reply, now.since(sent));
                (request, reply)
            });
            let abandoned = self.answers.tell(replies.collect(), sent);
            if !abandoned.is_empty() {
                for server in 0..self.voters.len() {
                    self.abandon(server, abandoned.clone());
                }
            }
        }
    }

    /// Who finds the lock free has met others who try: each tries again after a time of his own, by what a trip takes.
    fn spread(&self, reply: Reply, trip: Duration) -> Reply {
        match reply {
            Reply::NotQueued { ttl: Some(Duration::ZERO) } => {
                let longest = trip.saturating_mul(4).clamp(SHORTEST_SPREAD, LONGEST_SPREAD);
                Reply::NotQueued { ttl: Some(self.draw(longest)) }
            }
            reply => reply,
        }
    }

    /// Draws a time up to `longest`.
    fn draw(&self, longest: Duration) -> Duration {
        let draw = self.answers.engine.upgrade().map_or(0, |engine| engine.tokens.draw());
        longest.mul_f64(f64::from(draw) / f64::from(u32::MAX))
    }
}

/// Within this the contenders of a quorum that is near are done with one try.
const SHORTEST_SPREAD: Duration = Duration::from_millis(8);

const LONGEST_SPREAD: Duration = Duration::from_millis(200);
