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
use crate::protocol::deadline::BootTime;
use crate::protocol::hold::Left;
use crate::protocol::lane::{Cx, Lane};
use crate::protocol::renew;
use crate::token::Token;

/// A lock that is kept from everybody.
#[derive(Clone, Debug)]
pub(crate) struct Kept<S> {
    /// Whose turn it was.
    pub(super) seat: S,
    token: Token,
    until: BootTime,
    what_for: WhatFor,
    /// When the server is told again; never, while an answer is on its way and once it has come.
    tell_at: BootTime,
}

/// What a lock is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhatFor {
    /// The body of a turn that is lost, which lets go itself; after the deadline the key expires.
    Body { kept_until: BootTime },
    /// The rest of an `min_hold`.
    AtLeast,
}

impl<S> Kept<S> {
    fn due(&self) -> BootTime {
        self.until.min(self.tell_at)
    }

    fn is_for_at_least(&self, now: BootTime) -> bool {
        match self.what_for {
            WhatFor::Body { kept_until } => now < kept_until,
            WhatFor::AtLeast => true,
        }
    }

    fn command(&self, now: BootTime) -> Command {
        Command::Keep { ttl: self.until.since(now).saturating_add(RELEASE_COMES_FIRST) }
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// Keeps the lock of a turn that is over `until` then. Returns what the server is to be told.
    pub(super) fn keep(&mut self, seat: S, token: Token, until: BootTime, now: BootTime) -> Command {
        let kept = Kept { seat, token, until, what_for: WhatFor::AtLeast, tell_at: BootTime::NEVER };
        let command = kept.command(now);
        self.queue.keep(kept);
        command
    }

    /// Leaves the lock of a turn that is lost to its body, until its lease is over at most; where it is kept for longer, the server is
    /// told now, since the body may outlive the key.
    pub(super) fn leave_to_body(&mut self, seat: S, left: Left, cx: &mut Cx<'_, S>) {
        let Left { token, kept_until, deadline } = left;
        let until = deadline.max(kept_until);
        if cx.now >= until {
            return;
        }
        let what_for = WhatFor::Body { kept_until };
        let kept = Kept { seat, token, until, what_for, tell_at: BootTime::NEVER };
        if cx.now < kept_until {
            cx.send(token, kept.command(cx.now));
        }
        self.queue.keep(kept);
    }

    /// Another server has the lock, which may not have been told: what is kept for an `min_hold` is told again.
    pub(super) fn tell_another_server(&mut self, cx: &mut Cx<'_, S>) {
        self.queue.retain_kept(|kept| {
            if kept.is_for_at_least(cx.now) {
                cx.send(kept.token, kept.command(cx.now));
            }
            true
        });
    }

    /// Nobody waits any longer for the bodies of lost turns to go.
    pub(crate) fn let_go_of_all(&mut self, cx: &mut Cx<'_, S>) {
        let left = self.queue.kept().iter().filter_map(|kept| match kept.what_for {
            WhatFor::Body { kept_until } => {
                Some((kept.seat.clone(), Left { token: kept.token, kept_until, deadline: kept.until }))
            }
            WhatFor::AtLeast => None,
        });
        for (seat, left) in left.collect::<Vec<_>>() {
            self.let_go_of(&seat, left, true, cx);
        }
    }

    /// The body of a turn that its seat has lost is gone, and with it the last that could use what the turn has left. `ran`: there was
    /// one.
    pub(crate) fn let_go_of(&mut self, seat: &S, left: Left, ran: bool, cx: &mut Cx<'_, S>) {
        let Left { token, kept_until, .. } = left;
        self.queue.retain_kept(|kept| kept.token != token);
        let keeps = ran && cx.now < kept_until;
        let command =
            if keeps { self.keep(seat.clone(), token, kept_until, cx.now) } else { Command::Release };
        cx.send(token, command);
    }

    /// Returns whether the lock is kept under this token.
    pub(super) fn keeps(&self, token: Token) -> bool {
        self.queue.kept().iter().any(|kept| kept.token == token)
    }

    /// An answer about a kept lock. Only one to the keep tells how it stands: what was asked before may be older than the grant.
    pub(super) fn answered_while_kept(
        &mut self,
        token: Token,
        command: Command,
        reply: &Reply,
        cx: &Cx<'_, S>,
    ) {
        if !matches!(command, Command::Keep { .. }) {
            return;
        }
        self.queue.retain_kept(|kept| {
            match reply {
                _ if kept.token != token => true,
                Reply::NotOwner => false, // nothing is left to keep
                Reply::Refused(failure) if failure.kind == FailureKind::WrongKind => false,
                Reply::Unknown(_) | Reply::Refused(_) => {
                    let left = kept.until.since(cx.now);
                    kept.tell_at = renew::retry_at(cx.now, left, left);
                    true
                }
                _ => true,
            }
        });
    }

    /// Lets go once the time has come, and tells the server again what it did not confirm.
    pub(super) fn watch_kept(&mut self, cx: &mut Cx<'_, S>) {
        self.queue.retain_kept(|kept| {
            if cx.now >= kept.until {
                if kept.what_for == WhatFor::AtLeast {
                    cx.send(kept.token, Command::Release);
                }
                return false;
            }
            if cx.now >= kept.tell_at {
                kept.tell_at = BootTime::NEVER;
                cx.send(kept.token, kept.command(cx.now));
            }
            true
        });
    }

    pub(super) fn kept_due(&self) -> BootTime {
        self.queue.kept().iter().map(Kept::due).min().unwrap_or(BootTime::NEVER)
    }
}

/// How much longer than asked the key lives where nobody releases it: the release of a process that lives comes first, and hands over.
const RELEASE_COMES_FIRST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
