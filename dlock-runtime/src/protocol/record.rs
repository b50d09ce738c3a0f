//! What stands under one key and until when, and what each command makes of it: a server, in short.
//!
//! The scripts of `backend/redis` do the same in Lua; the in-memory backend and the simulation run this. To the scripts a value may be a
//! foreign client's, such as one that is longer than a full queue: it answers like a record that another holds for as long as it lives.
//!
//! Not here: the order of those who wait (`value`), the numbers of the fencing tokens (`fencing`).

use std::time::Duration;

use crate::protocol::command::{Command, EnqueueMode, RecordInfo, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::lock_value::{LockValue, QueuePosition, ReleaseEffect};
use crate::token::Token;

/// One key of a server; empty when nothing stands there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Option<(LockValue, BootInstant)>);

impl Record {
    /// Does one command at server time `now`. `grant_lease` is how long a lock that is handed over stays with a waiter who does not
    /// confirm; `told` tells a waiter what it is offered and returns whether anybody listened.
    ///
    /// [`Command::Fence`] is answered [`Reply::Owner`] where a token is to be issued.
    pub(crate) fn run(
        &mut self,
        token: Token,
        command: Command,
        now: BootInstant,
        grant_lease: Duration,
        mut told: impl FnMut(Token, Grant) -> bool,
    ) -> Reply {
        let Some((value, ends)) = self.0.as_mut().filter(|(_, ends)| now < *ends) else {
            return self.run_on_nothing(token, command, now);
        };
        let ttl = Some(whole_millis(ends.since(now)));
        let fleet_hold = match command {
            Command::ReleaseWithFleetHold { fleet_hold } | Command::Yield { fleet_hold, .. } => fleet_hold,
            _ => FleetHold::UNKNOWN,
        };
        let mut granted = |token| told(token, Grant { lease: grant_lease, fleet_hold });
        let let_go = match command {
            Command::Acquire { .. } => return Reply::Contended,
            Command::Enqueue { lease, mode } => {
                let place = match mode {
                    EnqueueMode::Join => value.append(token),
                    EnqueueMode::Recheck => value.position_of(token),
                    EnqueueMode::TryOnly => return Reply::NotQueued { ttl },
                };
                return match place {
                    QueuePosition::Holder => {
                        *ends = (*ends).max(now.plus(lease));
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
                *ends = (*ends).max(now.plus(lease));
                return Reply::Owner;
            }
            Command::SetTtl { ttl } => {
                *ends = now.plus(ttl);
                return Reply::Owner;
            }
            Command::RaiseFence { fence } => return Reply::Fenced(fence),
            Command::Verify | Command::Fence | Command::Ping => return Reply::Owner,
            Command::Inspect => {
                let holder = Some(value.holder().process());
                return Reply::Info(Some(RecordInfo { holder, waiters: value.waiters(), ttl }));
            }
            Command::Release | Command::ReleaseWithFleetHold { .. } => value.release(token, &mut granted),
            Command::ReleaseWithoutHandoff => value.free(token, |waiter| {
                told(waiter, Grant::NONE);
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
        match let_go {
            ReleaseEffect::NotOwner => Reply::NotOwner,
            ReleaseEffect::Freed if yields => Reply::Owner,
            ReleaseEffect::Freed => {
                self.0 = None;
                Reply::Owner
            }
            ReleaseEffect::Granted(_) => {
                *ends = now.plus(grant_lease);
                if yields { Reply::Yielded } else { Reply::Owner }
            }
        }
    }

    fn run_on_nothing(&mut self, token: Token, command: Command, now: BootInstant) -> Reply {
        match command {
            Command::Acquire { lease }
            | Command::Enqueue { lease, mode: EnqueueMode::Join | EnqueueMode::TryOnly } => {
                self.0 = Some((LockValue::held_by(token), now.plus(lease)));
                Reply::Owner
            }
            Command::Enqueue { .. } => Reply::Absent,
            Command::Inspect => Reply::Info(None),
            Command::Ping => Reply::Owner,
            _ => Reply::NotOwner,
        }
    }

    /// Returns whether nothing stands there at `now`.
    pub(crate) fn is_empty(&self, now: BootInstant) -> bool {
        self.0.as_ref().is_none_or(|(_, ends)| *ends <= now)
    }

    /// Returns until when it stands.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> Option<BootInstant> {
        self.0.as_ref().map(|(_, ends)| *ends)
    }

    /// Returns the holder and those who wait, at `now`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn tokens(&self, now: BootInstant) -> Vec<Token> {
        self.0.iter().filter(|(_, ends)| now < *ends).flat_map(|(value, _)| value.tokens()).collect()
    }
}

/// What a server says of a time: what is less than a millisecond it leaves out.
fn whole_millis(time: Duration) -> Duration {
    time.saturating_sub(Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000)))
}

#[cfg(test)]
mod tests;
