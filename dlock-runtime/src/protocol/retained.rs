//! Retained holds: acquisitions that have ended but keep their key, until `min_hold` is over or the
//! body has ended.
//!
//! ```text
//!  acquired         hold ends                    min_hold over           key expires
//!    |---- body ------->|--------- retained --------->| release               |
//!                       |----------------- time to live --------------------->|
//! ```
//!
//! If a hold is revoked while the key is still its own (`max_hold`, shutdown), the key is retained
//! for its body. It is released when the body has ended, or the key expires.
//!
//! For `min_hold` the time to live of the key is set in the server, so the lock is kept even if
//! this process exits. The release is sent when `min_hold` is over, 100 ms before the key would
//! expire, so that it wakes a waiter. Meanwhile the state of the key goes on as if another client
//! held the lock: new tasks ask the server, which knows whether the lock is still kept.

use std::time::Duration;

use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::hold::ResidualHold;
use crate::protocol::key_state::{EventContext, KeyState};
use crate::protocol::renewal;
use crate::protocol::timers::KeyTimer;
use crate::token::Token;

/// A hold that has ended and keeps its key.
#[derive(Clone, Debug)]
pub(crate) struct RetainedHold {
    token: Token,
    until: BootInstant,
    reason: RetainReason,
    ttl: TtlRequest,
    /// Whether the backend tracked the key under the hold. `SetTtl` is then sent like the renewals
    /// of the hold: one that ran after it would extend the time to live again.
    is_tracked: bool,
}

/// The last request that sets the time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TtlRequest {
    InFlight,
    /// It was answered, or is not needed.
    Done,
    /// It failed, and is sent again at this time.
    Failed(BootInstant),
}

/// Why a key is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetainReason {
    /// The body of a revoked hold, which releases the key itself. The key expires after the
    /// deadline.
    Body { kept_until: BootInstant },
    /// The rest of a `min_hold`.
    MinHold,
    /// The reply to the last `SetTtl`, which the release must not overtake: it would report a loss.
    Reply,
}

impl RetainedHold {
    /// Passes its timer to `set`.
    pub(super) fn timers(&self, set: &mut impl FnMut(KeyTimer, BootInstant)) {
        let resend_at = if let TtlRequest::Failed(at) = self.ttl { at } else { BootInstant::NEVER };
        set(KeyTimer::MinHold, self.until.min(resend_at));
    }

    /// Returns `true` if the backend tracks the key.
    pub(super) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    fn is_for_min_hold(&self, now: BootInstant) -> bool {
        match self.reason {
            RetainReason::Body { kept_until } => now < kept_until,
            RetainReason::MinHold => true,
            RetainReason::Reply => false,
        }
    }

    fn command(&self, now: BootInstant) -> Command {
        Command::SetTtl { ttl: self.until.since(now).saturating_add(RELEASE_MARGIN) }
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Retains the key of an acquisition that has ended, until `until`. Returns the command for the
    /// server.
    pub(super) fn keep(
        &mut self,
        (token, is_tracked): (Token, bool),
        until: BootInstant,
        now: BootInstant,
    ) -> Command {
        let (reason, ttl) = (RetainReason::MinHold, TtlRequest::InFlight);
        let kept = RetainedHold { token, until, reason, ttl, is_tracked };
        let command = kept.command(now);
        self.queue.retain(kept);
        command
    }

    /// Retains the key of a revoked hold for its body, until its lease expires. If `min_hold` lasts
    /// longer, the time to live is set now, since the body may outlive the key. If `min_hold` needs
    /// a success, the body decides when it ends.
    pub(super) fn leave_to_body(&mut self, left: ResidualHold, ctx: &mut EventContext<'_, A>) {
        let ResidualHold { token, kept_until, needs_success, deadline, is_tracked } = left;
        let kept_until = if needs_success { BootInstant::START } else { kept_until };
        let until = deadline.max(kept_until);
        if ctx.now >= until {
            return;
        }
        let reason = RetainReason::Body { kept_until };
        let kept = RetainedHold { token, until, reason, ttl: TtlRequest::Done, is_tracked };
        if ctx.now < kept_until {
            ctx.send(token, kept.command(ctx.now));
        }
        self.queue.retain(kept);
    }

    /// Sets the time to live again for each `min_hold`, since the server may lack it.
    pub(super) fn set_ttl_again(&mut self, ctx: &mut EventContext<'_, A>) {
        self.queue.filter_retained(|kept| {
            if kept.is_for_min_hold(ctx.now) {
                ctx.send(kept.token, kept.command(ctx.now));
            }
            true
        });
    }

    /// Releases all keys that are retained for bodies, without waiting for them.
    pub(crate) fn release_all(&mut self, ctx: &mut EventContext<'_, A>) {
        let left = self.queue.retained().iter().filter_map(|kept| match kept.reason {
            RetainReason::Body { kept_until } => Some((kept.token, kept.is_tracked, kept_until)),
            RetainReason::MinHold | RetainReason::Reply => None,
        });
        for (token, is_tracked, kept_until) in left.collect::<Vec<_>>() {
            self.end_retention((token, is_tracked), kept_until, ctx);
        }
    }

    /// Releases the key of a revoked hold whose body has ended. `is_kept`: `min_hold` applies to
    /// its end.
    pub(crate) fn release_residual(
        &mut self,
        left: ResidualHold,
        is_kept: bool,
        ctx: &mut EventContext<'_, A>,
    ) {
        let kept_until = if is_kept { left.kept_until } else { BootInstant::START };
        self.end_retention((left.token, left.is_tracked), kept_until, ctx);
    }

    /// Releases a key that is retained for a body, or keeps it for the rest of a `min_hold`.
    fn end_retention(
        &mut self,
        (token, is_tracked): (Token, bool),
        kept_until: BootInstant,
        ctx: &mut EventContext<'_, A>,
    ) {
        self.queue.filter_retained(|kept| kept.token != token);
        let command = if ctx.now < kept_until {
            self.keep((token, is_tracked), kept_until, ctx.now)
        } else {
            Command::RELEASE
        };
        ctx.send(token, command);
    }

    /// Returns `true` if the key is retained for a `min_hold`, and this process has no other hold.
    pub(crate) fn is_kept(&self) -> bool {
        let is_kept = self.queue.retained().iter().any(|kept| kept.reason == RetainReason::MinHold);
        is_kept && self.holds.active().next().is_none()
    }

    /// Returns `true` if the key is retained under `token`.
    pub(super) fn keeps(&self, token: Token) -> bool {
        self.queue.retained().iter().any(|kept| kept.token == token)
    }

    /// Handles a reply for a retained key.
    ///
    /// A renewal that was in flight when the hold ended may have run after `SetTtl`, and have
    /// extended the time to live again. Other requests may have run before the grant.
    pub(super) fn on_reply_while_retained(
        &mut self,
        token: Token,
        command: Command,
        reply: &Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        self.queue.filter_retained(|kept| {
            match (command, reply) {
                _ if kept.token != token => true,
                (Command::Renew { .. }, Reply::Owner | Reply::Unknown(_)) => {
                    if kept.is_for_min_hold(ctx.now) {
                        ctx.send(token, kept.command(ctx.now));
                    }
                    true
                }
                _ if !matches!(command, Command::SetTtl { .. }) => true,
                (_, Reply::NotOwner) => false, // the key is gone
                (_, Reply::Refused(failure)) if failure.kind == FailureKind::WrongKind => false,
                _ if kept.reason == RetainReason::Reply => {
                    ctx.send(token, Command::RELEASE);
                    false
                }
                (_, Reply::Unknown(_) | Reply::Refused(_)) => {
                    let left = kept.until.since(ctx.now);
                    kept.ttl = TtlRequest::Failed(renewal::retry_at(ctx.now, left, left));
                    true
                }
                _ => {
                    kept.ttl = TtlRequest::Done;
                    true
                }
            }
        });
    }

    /// Releases keys whose time is over, and repeats commands that failed.
    pub(super) fn check_retained(&mut self, ctx: &mut EventContext<'_, A>) {
        self.queue.filter_retained(|kept| {
            if ctx.now >= kept.until {
                if kept.reason != RetainReason::MinHold {
                    return false;
                }
                if kept.ttl == TtlRequest::InFlight {
                    (kept.reason, kept.until) = (RetainReason::Reply, BootInstant::NEVER);
                    return true;
                }
                ctx.send(kept.token, Command::RELEASE);
                return false;
            }
            if let TtlRequest::Failed(at) = kept.ttl
                && ctx.now >= at
            {
                kept.ttl = TtlRequest::InFlight;
                ctx.send(kept.token, kept.command(ctx.now));
            }
            true
        });
    }
}

/// The extra time to live of a retained key. The release of a live process comes first and hands
/// off.
const RELEASE_MARGIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
