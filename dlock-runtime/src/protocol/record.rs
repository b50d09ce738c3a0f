//! What stands under one key and until when, and what each command makes of it: a server, in short.
//!
//! The scripts of `backend/redis` do the same in Lua; the in-memory backend and the simulation run this. To the scripts a value may be a
//! foreign client's, such as one that is longer than a full queue: it answers like a record that another holds for as long as it lives.
//!
//! Not here: the order of those who wait (`value`), the numbers of the fencing tokens (`fencing`).

use std::time::Duration;

use crate::protocol::command::{Command, Enqueue, Reply, Sight};
use crate::protocol::deadline::BootTime;
use crate::protocol::share::{Offer, Streak};
use crate::protocol::value::{LetGo, LockValue, Place};
use crate::token::Token;

/// One key of a server; empty when nothing stands there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Option<(LockValue, BootTime)>);

impl Record {
    /// Does one command at server time `now`. `grant_lease` is how long a lock that is handed over stays with a waiter who does not
    /// confirm; `told` tells a waiter what it is offered and returns whether anybody listened.
    ///
    /// [`Command::Fence`] is answered [`Reply::Ours`] where a token is to be issued.
    pub(crate) fn run(
        &mut self,
        token: Token,
        command: Command,
        now: BootTime,
        grant_lease: Duration,
        mut told: impl FnMut(Token, Offer) -> bool,
    ) -> Reply {
        let Some((value, ends)) = self.0.as_mut().filter(|(_, ends)| now < *ends) else {
            return self.run_on_nothing(token, command, now);
        };
        let ttl = Some(whole_millis(ends.since(now)));
        let streak = match command {
            Command::PassOn { streak } | Command::Yield { streak, .. } => streak,
            _ => Streak::UNKNOWN,
        };
        let mut granted = |token| told(token, Offer { lease: grant_lease, streak });
        let let_go = match command {
            Command::Acquire { .. } => return Reply::Taken,
            Command::Enqueue { lease, mode } => {
                let place = match mode {
                    Enqueue::First => value.append(token),
                    Enqueue::Again => value.place_of(token),
                    Enqueue::Peek => return Reply::NotQueued { ttl },
                };
                return match place {
                    Place::Holder => {
                        *ends = (*ends).max(now.plus(lease));
                        Reply::Ours
                    }
                    Place::Queued => Reply::Queued { ttl },
                    Place::Full => Reply::NotQueued { ttl },
                    Place::Gone => Reply::Gone,
                };
            }
            Command::Renew { .. }
            | Command::Check
            | Command::Keep { .. }
            | Command::Fence
            | Command::Register { .. }
                if value.holder() != token =>
            {
                return Reply::NotOwner;
            }
            Command::Renew { lease } => {
                *ends = (*ends).max(now.plus(lease));
                return Reply::Ours;
            }
            Command::Keep { ttl } => {
                *ends = now.plus(ttl);
                return Reply::Ours;
            }
            Command::Register { fence } => return Reply::Fenced(fence),
            Command::Check | Command::Fence | Command::Ping => return Reply::Ours,
            Command::Inspect => {
                let holder = Some(value.holder().process());
                return Reply::Seen(Some(Sight { holder, waiters: value.waiters(), ttl }));
            }
            Command::Release | Command::PassOn { .. } => value.release(token, &mut granted),
            Command::Free => value.free(token, |waiter| {
                told(waiter, Offer::NONE);
            }),
            Command::ForceRelease => value.force_release(&mut granted),
            Command::Leave if value.place_of(token) == Place::Queued => {
                value.leave(token, &mut granted);
                return Reply::Ours;
            }
            Command::Leave => value.leave(token, &mut granted),
            Command::Yield { next, .. } => value.hand_on(token, next, &mut granted),
        };
        let yields = matches!(command, Command::Yield { .. });
        match let_go {
            LetGo::NotOwner => Reply::NotOwner,
            LetGo::Freed if yields => Reply::Ours,
            LetGo::Freed => {
                self.0 = None;
                Reply::Ours
            }
            LetGo::Granted(_) => {
                *ends = now.plus(grant_lease);
                if yields { Reply::Yielded } else { Reply::Ours }
            }
        }
    }

    fn run_on_nothing(&mut self, token: Token, command: Command, now: BootTime) -> Reply {
        match command {
            Command::Acquire { lease } | Command::Enqueue { lease, mode: Enqueue::First | Enqueue::Peek } => {
                self.0 = Some((LockValue::held_by(token), now.plus(lease)));
                Reply::Ours
            }
            Command::Enqueue { .. } => Reply::Gone,
            Command::Inspect => Reply::Seen(None),
            Command::Ping => Reply::Ours,
            _ => Reply::NotOwner,
        }
    }

    /// Returns whether nothing stands there at `now`.
    pub(crate) fn is_empty(&self, now: BootTime) -> bool {
        self.0.as_ref().is_none_or(|(_, ends)| *ends <= now)
    }

    /// Returns until when it stands.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> Option<BootTime> {
        self.0.as_ref().map(|(_, ends)| *ends)
    }

    /// Returns the holder and those who wait, at `now`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn tokens(&self, now: BootTime) -> Vec<Token> {
        self.0.iter().filter(|(_, ends)| now < *ends).flat_map(|(value, _)| value.tokens()).collect()
    }
}

/// What a server says of a time: what is less than a millisecond it leaves out.
fn whole_millis(time: Duration) -> Duration {
    time.saturating_sub(Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000)))
}

#[cfg(test)]
mod tests;
