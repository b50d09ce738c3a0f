//! Whether a token still stands in the server's queue: when its contender asks that, and what follows the question.
//!
//! ```text
//!  Due --asked--> InFlight --"queued, for a while"------------------> Due
//!                    |  |
//!                    |  +--"queued, gone in a moment"--> Behind --refused--> Due
//!                    |                                     |
//!                    +--"gone"--> the spare is waited for  +--ours--> held
//! ```
//!
//! A message may be lost, so who is queued asks now and then. And a queue ends with its key. Where that may have expired an acquire under a
//! fresh token, the *spare*, follows the question in the same pipeline: it takes the lock a trip earlier, and else is refused. (The
//! token is dead where the spare is ours: nothing stood there.)
//!
//! Not here: how a token comes into the queue, and what a grant leads to (`acquire`).

use std::num::NonZeroU64;
use std::time::Duration;

use crate::protocol::command::{Command, EnqueueMode, Reply};
use crate::protocol::contender::{Contender, ContenderState};
use crate::protocol::deadline::BootInstant;
use crate::protocol::key_state::{EventContext, KeyPhase, KeyState};
use crate::token::Token;

/// The question whether a token is still queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueCheck {
    /// It is asked next.
    Scheduled {
        at: BootInstant,
        /// So many milliseconds after what proves its place was sent the key may have expired, and is free for us; or [`NOT_FREE`]. (A
        /// time would not fit: there is a lane for every lock that is held.)
        free_after: u32,
    },
    /// It is on its way.
    InFlight {
        /// The number of the spare that follows it, until that is answered.
        spare: Option<NonZeroU64>,
    },
    /// Its answer was that the key would be gone in a moment, as it may be by now: the spare of this number, which is behind it, will tell.
    Behind(NonZeroU64),
}

/// It is not known, or not ours to take.
const NOT_FREE: u32 = u32::MAX;

impl QueueCheck {
    /// One that is due at a time, while nothing is known of the key's.
    pub(super) const fn at(at: BootInstant) -> Self {
        Self::Scheduled { at, free_after: NOT_FREE }
    }

    /// The next one after an answer: half a grant lease later, so that a grant always leaves time to start on, or when the present hold may
    /// have expired and the queue with it.
    fn again<A>(sent: BootInstant, ttl: Option<Duration>, ctx: &EventContext<'_, A>) -> Self {
        let half = ctx.rules.grant_lease / 2;
        let expires = ttl.map_or(half, |ttl| until_expiry(ttl, ctx.now.since(sent)));
        let free_after = match (ttl, ctx.rules.yield_to_foreign) {
            (Some(ttl), false) => u32::try_from(ttl.as_millis()).unwrap_or(NOT_FREE),
            _ => NOT_FREE, // others who share by `SET NX` are to have a chance then
        };
        Self::Scheduled { at: sent.plus(half.min(expires)), free_after }
    }

    /// What comes after the answer "queued", to one who was at `step`.
    pub(super) fn answered<A>(
        step: ContenderState,
        sent: BootInstant,
        ttl: Option<Duration>,
        ctx: &EventContext<'_, A>,
    ) -> Self {
        match step {
            ContenderState::Queued { queue_check: Self::InFlight { spare: Some(spare) }, .. }
                if ttl == Some(Duration::ZERO) =>
            {
                Self::Behind(spare)
            }
            _ => Self::again(sent, ttl, ctx),
        }
    }

    pub(super) const fn due(self) -> BootInstant {
        match self {
            Self::Scheduled { at, .. } => at,
            Self::InFlight { .. } | Self::Behind(_) => BootInstant::NEVER,
        }
    }

    /// Asks, unless that is on its way; `proof` is what the token's place was proved by.
    pub(super) fn ask<A>(
        &mut self,
        token: Token,
        proof: BootInstant,
        lease: Duration,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Self::Scheduled { free_after, .. } = *self else { return };
        ctx.send(token, Command::Enqueue { lease, mode: EnqueueMode::Recheck });
        let free_at = proof.plus(Duration::from_millis(free_after.into()));
        let may_be_free = free_after != NOT_FREE && ctx.now >= free_at;
        let spare = may_be_free.then(|| ctx.tokens.next());
        if let Some(spare) = spare {
            ctx.send(spare, Command::Acquire { lease });
        }
        *self = Self::InFlight { spare: spare.and_then(|spare| NonZeroU64::new(spare.number())) };
    }
}

impl<A> Contender<A> {
    /// Returns whether this is the token of an acquire that followed the question whether the contender's is still queued.
    pub(super) fn is_spare(&self, token: Token) -> bool {
        self.spare().is_some_and(|spare| spare.get() == token.number())
    }

    const fn spare(&self) -> Option<NonZeroU64> {
        match self.step {
            ContenderState::Queued { queue_check: QueueCheck::InFlight { spare }, .. } => spare,
            ContenderState::Queued { queue_check: QueueCheck::Behind(spare), .. } => Some(spare),
            _ => None,
        }
    }

    /// Tells the server that neither of its tokens wants the lock any more. (A spare that it waits for no longer is left when it is answered.)
    pub(super) fn leave(&self, ctx: &mut EventContext<'_, A>) {
        ctx.send(self.token, Command::Withdraw);
        if let Some(spare) = self.spare() {
            ctx.send(ctx.tokens.numbered(spare.get()), Command::Withdraw);
        }
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// The acquire is answered that followed the question whether the contender's token is still queued.
    pub(super) fn spare_answered(
        &mut self,
        spare: Token,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let KeyPhase::Contending(contender) = &mut self.phase else { return };
        if let Reply::Owner = reply {
            // Nothing stood there any more, and so the token that was queued is dead, whatever was said of it.
            (contender.token, contender.step) = (spare, ContenderState::Trying);
            return self.on_reply(command, sent, reply, ctx);
        }
        Self::on_stale_reply(spare, command, &reply, ctx);
        let ContenderState::Queued { queue_check, .. } = &mut contender.step else { return };
        if let QueueCheck::InFlight { .. } = queue_check {
            *queue_check = QueueCheck::InFlight { spare: None }; // its answer says what there is to say
            return;
        }
        let ttl = Some(Duration::ZERO);
        *queue_check = QueueCheck::again(sent, ttl, ctx);
        match reply {
            Reply::Refused(failure) | Reply::Unknown(failure) => self.on_queue_check_failed(failure, ctx),
            _ => {
                self.on_contended(ttl, ctx);
                self.withdraw_if_unwanted(ctx);
            }
        }
    }
}

/// How long after an answer was asked for to ask again about what has so long to live by it.
///
/// Far from the server, whence who asks too early has the lock a trip later, that is when it is gone for certain. Near it once more before,
/// to hear of its end more exactly, then as soon as that may be, and four times in the millisecond that it may last: a few commands, for
/// each lease that nobody ended.
fn until_expiry(ttl: Duration, trip: Duration) -> Duration {
    match (trip < NEAR, ttl > RESOLUTION) {
        (true, true) => ttl.saturating_sub(RESOLUTION),
        (true, false) => ttl.max(RESOLUTION / 4),
        (false, _) => ttl.saturating_add(RESOLUTION),
    }
}

/// A server counts whole milliseconds, of which its answer left out a part: within so much of its time to live a key is gone.
pub(super) const RESOLUTION: Duration = Duration::from_millis(1);

/// What is answered within this can be asked several times while a key may expire.
const NEAR: Duration = RESOLUTION;

#[cfg(test)]
mod tests;
