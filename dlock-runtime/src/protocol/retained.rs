//! Locks whose turn is over and that nobody gets yet: those whose `min_hold` is not over, and those whose body is not gone.
//!
//! ```text
//!  taken          turn over                       min_hold over          key expires
//!    |--- body ------>|--- kept: the server knows how long --->| release       |
//!                     |------------------ time to live ----------------------->|
//! ```
//!
//! A turn that is lost while the lock is ours (`max_hold`, shutdown) leaves it to its body: it is let go of when the body is gone, and
//! else the key expires.
//!
//! For `min_hold` the server is told how long the key has to live, so the time is kept though this process may end. The release is
//! sent when the time has come, a little before the key would expire, so that it wakes whoever waits. Meanwhile the lane goes on as if
//! a stranger held the lock: who wants it asks the server, which knows best whether it is still kept.
//!
//! Not here: turns that are not over (`hold`).

use std::time::Duration;

use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::ResidualHold;
use crate::protocol::key_state::{EventContext, KeyState};
use crate::protocol::renewal;
use crate::token::Token;

/// A lock that is kept from everybody.
#[derive(Clone, Debug)]
pub(crate) struct RetainedHold<A> {
    /// Whose turn it was.
    pub(super) acquisition: A,
    token: Token,
    until: BootInstant,
    what_for: RetainReason,
    /// When the server is told again; never, while an answer is on its way and once it has come.
    tell_at: BootInstant,
}

/// What a lock is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetainReason {
    /// The body of a turn that is lost, which lets go itself; after the deadline the key expires.
    Body { kept_until: BootInstant },
    /// The rest of an `min_hold`.
    AtLeast,
}

impl<A> RetainedHold<A> {
    fn due(&self) -> BootInstant {
        self.until.min(self.tell_at)
    }

    fn is_for_at_least(&self, now: BootInstant) -> bool {
        match self.what_for {
            RetainReason::Body { kept_until } => now < kept_until,
            RetainReason::AtLeast => true,
        }
    }

    fn command(&self, now: BootInstant) -> Command {
        Command::SetTtl { ttl: self.until.since(now).saturating_add(RELEASE_COMES_FIRST) }
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Keeps the lock of a turn that is over `until` then. Returns what the server is to be told.
    pub(super) fn keep(
        &mut self,
        acquisition: A,
        token: Token,
        until: BootInstant,
        now: BootInstant,
    ) -> Command {
        let kept = RetainedHold {
            acquisition,
            token,
            until,
            what_for: RetainReason::AtLeast,
            tell_at: BootInstant::NEVER,
        };
        let command = kept.command(now);
        self.queue.keep(kept);
        command
    }

    /// Leaves the lock of a turn that is lost to its body, until its lease is over at most; where it is kept for longer, the server is
    /// told now, since the body may outlive the key.
    pub(super) fn leave_to_body(
        &mut self,
        acquisition: A,
        left: ResidualHold,
        ctx: &mut EventContext<'_, A>,
    ) {
        let ResidualHold { token, kept_until, deadline } = left;
        let until = deadline.max(kept_until);
        if ctx.now >= until {
            return;
        }
        let what_for = RetainReason::Body { kept_until };
        let kept = RetainedHold { acquisition, token, until, what_for, tell_at: BootInstant::NEVER };
        if ctx.now < kept_until {
            ctx.send(token, kept.command(ctx.now));
        }
        self.queue.keep(kept);
    }

    /// Another server has the lock, which may not have been told: what is kept for an `min_hold` is told again.
    pub(super) fn on_primary_changed(&mut self, ctx: &mut EventContext<'_, A>) {
        self.queue.retain_kept(|kept| {
            if kept.is_for_at_least(ctx.now) {
                ctx.send(kept.token, kept.command(ctx.now));
            }
            true
        });
    }

    /// Nobody waits any longer for the bodies of lost turns to go.
    pub(crate) fn release_all(&mut self, ctx: &mut EventContext<'_, A>) {
        let left = self.queue.kept().iter().filter_map(|kept| match kept.what_for {
            RetainReason::Body { kept_until } => Some((
                kept.acquisition.clone(),
                ResidualHold { token: kept.token, kept_until, deadline: kept.until },
            )),
            RetainReason::AtLeast => None,
        });
        for (acquisition, left) in left.collect::<Vec<_>>() {
            self.release_residual(&acquisition, left, true, ctx);
        }
    }

    /// The body of a turn that its seat has lost is gone, and with it the last that could use what the turn has left. `ran`: there was
    /// one.
    pub(crate) fn release_residual(
        &mut self,
        acquisition: &A,
        left: ResidualHold,
        ran: bool,
        ctx: &mut EventContext<'_, A>,
    ) {
        let ResidualHold { token, kept_until, .. } = left;
        self.queue.retain_kept(|kept| kept.token != token);
        let keeps = ran && ctx.now < kept_until;
        let command =
            if keeps { self.keep(acquisition.clone(), token, kept_until, ctx.now) } else { Command::Release };
        ctx.send(token, command);
    }

    /// Returns whether the lock is kept under this token.
    pub(super) fn keeps(&self, token: Token) -> bool {
        self.queue.kept().iter().any(|kept| kept.token == token)
    }

    /// An answer about a kept lock. Only one to the keep tells how it stands: what was asked before may be older than the grant.
    pub(super) fn on_reply_while_retained(
        &mut self,
        token: Token,
        command: Command,
        reply: &Reply,
        ctx: &EventContext<'_, A>,
    ) {
        if !matches!(command, Command::SetTtl { .. }) {
            return;
        }
        self.queue.retain_kept(|kept| {
            match reply {
                _ if kept.token != token => true,
                Reply::NotOwner => false, // nothing is left to keep
                Reply::Refused(failure) if failure.kind == FailureKind::WrongKind => false,
                Reply::Unknown(_) | Reply::Refused(_) => {
                    let left = kept.until.since(ctx.now);
                    kept.tell_at = renewal::retry_at(ctx.now, left, left);
                    true
                }
                _ => true,
            }
        });
    }

    /// Lets go once the time has come, and tells the server again what it did not confirm.
    pub(super) fn check_retained(&mut self, ctx: &mut EventContext<'_, A>) {
        self.queue.retain_kept(|kept| {
            if ctx.now >= kept.until {
                if kept.what_for == RetainReason::AtLeast {
                    ctx.send(kept.token, Command::Release);
                }
                return false;
            }
            if ctx.now >= kept.tell_at {
                kept.tell_at = BootInstant::NEVER;
                ctx.send(kept.token, kept.command(ctx.now));
            }
            true
        });
    }

    pub(super) fn retained_due(&self) -> BootInstant {
        self.queue.kept().iter().map(RetainedHold::due).min().unwrap_or(BootInstant::NEVER)
    }
}

/// How much longer than asked the key lives where nobody releases it: the release of a process that lives comes first, and hands over.
const RELEASE_COMES_FIRST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
