//! One key of a server: its value, its expiry, and the effect of each command on them.
//!
//! The scripts of `backend/redis` implement the same in Lua. The in-memory backend and the
//! simulation run this module. A value can also be a foreign client's, such as one that is longer
//! than a full queue: to the scripts it is a lock that another client holds until the key expires.

use std::time::Duration;

use crate::protocol::command::{Command, EnqueueMode, RecordInfo, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::lock_value::{LockValue, QueuePosition, ReleaseEffect};
use crate::token::Token;

/// One key of a server. Empty if the key is absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Option<(LockValue, BootInstant)>);

impl Record {
    /// Executes one command at server time `now`.
    ///
    /// `grant_lease` is the time for which a granted token holds the lock unless it confirms.
    /// `notify` sends a waiter its grant and returns whether a subscriber received it.
    ///
    /// [`Command::Fence`] is answered [`Reply::Owner`] if a token must be issued.
    pub(crate) fn run(
        &mut self,
        token: Token,
        command: Command,
        now: BootInstant,
        grant_lease: Duration,
        mut notify: impl FnMut(Token, Grant) -> bool,
    ) -> Reply {
        let Some((value, expires_at)) = self.0.as_mut().filter(|(_, expires_at)| now < *expires_at) else {
            return self.run_on_absent_key(token, command, now);
        };
        let ttl = Some(whole_millis(expires_at.since(now)));
        let fleet_hold = match command {
            Command::Release { fleet_hold } | Command::Yield { fleet_hold, .. } => fleet_hold,
            _ => FleetHold::UNKNOWN,
        };
        let mut granted = |token| notify(token, Grant { lease: grant_lease, fleet_hold });
        let effect = match command {
            Command::Acquire { .. } => return Reply::Contended,
            Command::Enqueue { lease, mode } => {
                let position = match mode {
                    EnqueueMode::Join => value.append(token),
                    EnqueueMode::Recheck => value.position_of(token),
                    EnqueueMode::TryOnly => return Reply::NotQueued { ttl },
                };
                return match position {
                    QueuePosition::Holder => {
                        *expires_at = (*expires_at).max(now.plus(lease));
                        Reply::Owner
                    }
                    QueuePosition::Queued => Reply::Queued { ttl },
                    QueuePosition::Full => Reply::NotQueued { ttl },
                    QueuePosition::Gone => Reply::Absent,
                };
            }
            Command::Renew { .. }
            | Command::Verify
            | Command::SetTtl { .. }
            | Command::Fence
            | Command::RaiseFence { .. }
                if value.holder() != token =>
            {
                return Reply::NotOwner;
            }
            Command::Renew { lease } => {
                *expires_at = (*expires_at).max(now.plus(lease));
                return Reply::Owner;
            }
            Command::SetTtl { ttl } => {
                *expires_at = now.plus(ttl);
                return Reply::Owner;
            }
            Command::RaiseFence { fence } => return Reply::Fenced(fence),
            Command::Verify | Command::Fence | Command::Ping | Command::Call => return Reply::Owner,
            Command::Inspect => {
                let holder = Some(value.holder().process());
                // The counter of fencing tokens has a key of its own.
                return Reply::Info(Some(RecordInfo { holder, waiters: value.waiters(), ttl, fence: None }));
            }
            Command::Release { .. } => value.release(token, &mut granted),
            Command::ReleaseWithoutHandoff => value.free(token, |waiter| {
                notify(waiter, Grant::NONE);
            }),
            Command::ForceRelease => value.force_release(&mut granted),
            Command::Withdraw if value.position_of(token) == QueuePosition::Queued => {
                value.leave(token, &mut granted);
                return Reply::Owner;
            }
            Command::Withdraw => value.leave(token, &mut granted),
            Command::Yield { next, .. } => value.hand_off(token, next, &mut granted),
        };
        let yields = matches!(command, Command::Yield { .. });
        match effect {
            ReleaseEffect::NotOwner => Reply::NotOwner,
            ReleaseEffect::Freed if yields => Reply::Owner,
            ReleaseEffect::Freed => {
                self.0 = None;
                Reply::Owner
            }
            ReleaseEffect::Granted(_) => {
                *expires_at = now.plus(grant_lease);
                if yields { Reply::Yielded } else { Reply::Owner }
            }
        }
    }

    fn run_on_absent_key(&mut self, token: Token, command: Command, now: BootInstant) -> Reply {
        match command {
            Command::Acquire { lease }
            | Command::Enqueue { lease, mode: EnqueueMode::Join | EnqueueMode::TryOnly } => {
                self.0 = Some((LockValue::held_by(token), now.plus(lease)));
                Reply::Owner
            }
            Command::Enqueue { .. } => Reply::Absent,
            Command::Inspect => Reply::Info(None),
            Command::Ping | Command::Call => Reply::Owner,
            _ => Reply::NotOwner,
        }
    }

    /// Returns `true` if the key is absent at `now`.
    pub(crate) fn is_empty(&self, now: BootInstant) -> bool {
        self.0.as_ref().is_none_or(|(_, expires_at)| *expires_at <= now)
    }

    /// Returns when the key expires.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> Option<BootInstant> {
        self.0.as_ref().map(|(_, expires_at)| *expires_at)
    }

    /// Returns the holder and the waiters at `now`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn tokens(&self, now: BootInstant) -> Vec<Token> {
        self.0
            .iter()
            .filter(|(_, expires_at)| now < *expires_at)
            .flat_map(|(value, _)| value.tokens())
            .collect()
    }
}

/// Returns the time in whole milliseconds, rounded down, as a server reports it.
fn whole_millis(time: Duration) -> Duration {
    time.saturating_sub(Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000)))
}

#[cfg(test)]
mod tests;
