//! The state of one key in one process: the waiting tasks, the holds, and the commands in flight.
//!
//! ```text
//!  queue       tasks of this process that wait for the lock
//!  contender   the attempt to acquire the lock for the first of them     contender
//!  holds       what the server has granted                               hold
//!  retained    holds that have ended and still keep the key              retained
//!  cooldown    time in which clients of other libraries get the lock     foreign_clients
//! ```
//!
//! The parts are independent: an event changes those that it concerns. The rules of a lock exclude
//! some combinations. Those of an exclusive lock permit:
//!
//! ```text
//!            join                       granted / owner
//!  nothing -----------> contender ------------------------> hold ----> nothing
//!                          ^                                 |  release, no task of this process waits
//!                          |          yielded                |
//!                          +------- hold and contender <-----+  release, the hand-off budget is used up
//! ```
//!
//! Events are methods `on_*`, with the time in [`EventContext`]. Their effects are [`Action`]s. The
//! reasons to call [`on_timeout`](KeyState::on_timeout) are the variants of [`KeyTimer`].

use crate::error::LossCause;
use crate::key::LockKey;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Failure, Reply};
use crate::protocol::contender::Contender;
#[cfg(test)]
use crate::protocol::contender::ContenderState;
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::hold::ResidualHold;
use crate::protocol::holds::Holds;
use crate::protocol::retry_state::RetryState;
use crate::protocol::timers::KeyTimer;
use crate::protocol::wait_queue::{QueueEntry, WaitQueue};
use crate::token::{Token, TokenSource};
use std::time::Duration;

/// The state of one key in this process. `A` identifies one acquisition and is compared by
/// equality.
#[derive(Clone, Debug)]
pub(crate) struct KeyState<A> {
    /// The acquisitions of this process that wait for the lock, in the order of their arrival. Next
    /// to them, behind the same pointer, are the parts that few held locks have: the
    /// [`contender`](Self::contender), the retained holds, and the cooldown.
    pub(super) queue: WaitQueue<A>,
    /// The holds that the server has granted. At most one for an exclusive lock.
    pub(super) holds: Holds<A>,
}

/// The last observation of the lock, which explains a failed acquire.
#[derive(Clone, Debug)]
pub(crate) enum LastObserved {
    /// No reply has arrived.
    Nothing,
    /// The lock is held. The duration is the remaining time to live of its key, if known.
    Taken(Option<Duration>),
    /// The request to the server failed.
    Failed(Box<Failure>),
}

/// The input of an event, and the list that receives its actions.
pub(crate) struct EventContext<'a, A> {
    pub(crate) now: BootInstant,
    pub(crate) rules: &'a ProtocolConfig,
    pub(crate) tokens: &'a TokenSource,
    pub(crate) actions: &'a mut Vec<Action<A>>,
    /// Whether another process held the lock at the last enqueue, or took it at the last yield. If
    /// so, the next contender enqueues at once, and a hand-off does not ask the server for waiters.
    /// The hint may outlive the state of the key, or be lost.
    pub(crate) contended: &'a mut bool,
}

/// An effect of an event.
#[derive(Clone, Debug)]
pub(crate) enum Action<A> {
    /// Sends a command; its reply comes back by [`KeyState::on_reply`].
    Send { token: Token, command: Command },
    /// The command under this token has an unknown outcome, and no task waits for it: its effect
    /// must be cleaned up.
    Orphan { token: Token },
    /// The acquisition holds the lock until `deadline`, which renewals move, but not beyond `ends`.
    Grant {
        acquisition: A,
        #[cfg_attr(not(test), expect(dead_code, reason = "the simulation judges by it"))]
        token: Token,
        deadline: Deadline,
        ends: BootInstant,
        /// Whether the server has not confirmed the grant.
        is_unconfirmed: bool,
        attempts: u32,
    },
    /// The nested acquisition joins the hold of its call chain.
    JoinNested { acquisition: A },
    /// The acquisition failed.
    Reject { acquisition: A, refusal: AcquireFailure },
    /// The deadline of the hold moves to `deadline`, but not beyond `ends`.
    Extend { acquisition: A, deadline: Deadline, ends: BootInstant },
    /// The acquisition has lost its hold. `left` remains in the server until the acquisition
    /// releases it, after its body has ended.
    Revoke { acquisition: A, cause: LossCause, left: Option<ResidualHold> },
}

/// Why an acquisition failed.
#[derive(Clone, Debug)]
pub(crate) enum AcquireFailure {
    /// Another call holds the lock.
    Contended { attempts: u32, waited: Duration, ttl: Option<Duration> },
    /// The request to the server failed.
    Failed(Failure),
    /// No reply arrived within the limit of the call.
    NoAnswer { waited: Duration },
    /// The manager is shut down.
    Shutdown,
    /// The hold that the call wanted to join has ended.
    ParentLost,
    /// The call would wait for a call that waits for the lock `held`, which its own call chain
    /// holds.
    Deadlock { held: LockKey },
}

impl<A: Clone + PartialEq> KeyState<A> {
    pub(crate) fn new() -> Self {
        Self { queue: WaitQueue::new(), holds: Holds::new() }
    }

    /// Returns `true` if the state can be dropped.
    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.queue.is_unused()
    }

    /// Returns `true` if the parts are as the rules of an exclusive lock allow: this process
    /// contends or holds, and both only while it yields.
    #[cfg(test)]
    pub(super) fn is_exclusive(&self) -> bool {
        let is_yielding = self.contender().map(|contender| contender.step == ContenderState::Yielding);
        let is_cooling_down = self.queue.cooldown().is_some();
        match (self.holds.iter().count(), is_yielding) {
            (0, None) => true,
            (0, Some(is_yielding)) => !is_yielding && !is_cooling_down,
            (1, None) => self.holds.active().count() == 1 && !is_cooling_down,
            (1, Some(is_yielding)) => is_yielding && self.holds.active().count() == 0,
            _ => false,
        }
    }

    /// Returns a time at or before the first at which [`on_timeout`](Self::on_timeout) has work to
    /// do.
    pub(crate) fn next_timeout(&self) -> BootInstant {
        let mut next = BootInstant::NEVER;
        self.timers(&mut |_, at| next = next.min(at));
        next
    }

    /// Passes each timer to `set`. The time is [`BootInstant::NEVER`] if the timer is not set.
    pub(super) fn timers(&self, set: &mut impl FnMut(KeyTimer, BootInstant)) {
        self.holds.active().for_each(|hold| hold.timers(set));
        self.queue.timers(set);
    }

    /// Returns the attempt to acquire the lock for the head of the queue.
    pub(super) fn contender(&self) -> Option<&Contender> {
        self.queue.contender()
    }

    /// Returns the acquisition at the head of the local queue.
    pub(crate) fn head(&self) -> Option<&A> {
        self.queue.head().map(|head| &head.acquisition)
    }

    /// Returns how many tasks of this process wait for the lock.
    #[cfg(feature = "testing")]
    pub(crate) fn waiting(&self) -> usize {
        self.queue.count()
    }

    /// Adds a task that wants the lock.
    pub(crate) fn join(&mut self, mut waiter: QueueEntry<A>, ctx: &mut EventContext<'_, A>) {
        if let Some(cooldown) = self.queue.cooldown() {
            return self.join_in_cooldown(waiter, cooldown, ctx);
        }
        let is_held = !self.holds.is_empty();
        let is_answered = match self.contender() {
            _ if is_held => true,
            Some(contender) => !contender.is_unanswered(),
            None => {
                self.enlist(waiter);
                return self.contend(FleetHold::NEW, ctx);
            }
        };
        if is_answered && waiter.retry_state.is_single_try() {
            return self.refuse(waiter, ctx);
        }
        if is_held || !self.queue.is_empty() {
            waiter.retry_state.on_contended(ctx.now);
        }
        self.enlist(waiter);
    }

    /// Adds a waiter to the end of the local queue.
    pub(super) fn enlist(&mut self, waiter: QueueEntry<A>) {
        let heard = self.default_observation();
        self.queue.push(waiter, heard);
    }

    /// Returns the last observation of the lock.
    pub(super) fn last_observed(&self) -> LastObserved {
        self.queue.last_observed().cloned().unwrap_or_else(|| self.default_observation())
    }

    /// Returns what the state alone says of the lock.
    fn default_observation(&self) -> LastObserved {
        if self.holds.is_empty() { LastObserved::Nothing } else { LastObserved::Taken(None) }
    }

    /// Returns the token under which the acquisition holds the lock, or `None` if it does not hold
    /// it.
    #[cfg(test)]
    pub(crate) fn token_of(&self, acquisition: &A) -> Option<Token> {
        self.holds.active().find(|hold| hold.acquisition == *acquisition).map(|hold| hold.token)
    }

    /// Returns `true` if an acquisition holds the lock under this token.
    pub(crate) fn is_held_under(&self, token: Token) -> bool {
        self.holds.active().any(|hold| hold.token == token)
    }

    /// Removes a waiting task. Returns `true` if it was waiting.
    pub(crate) fn leave(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> bool {
        if self.queue.remove(acquisition).is_some() {
            self.withdraw_if_unwanted(ctx);
            return true;
        }
        self.holds.active_mut().any(|hold| hold.leave(acquisition, ctx))
    }

    /// Handles a reply of the server, or a failure to reply.
    pub(crate) fn on_reply(
        &mut self,
        token: Token,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        if self.contender().is_some_and(|contender| contender.token == token) {
            self.on_reply_while_contending(command, sent, reply, ctx);
        } else if let Some(hold) = self.holds.with_token(token) {
            if hold.is_yielded {
                self.on_reply_while_yielding(token, command, sent, reply, ctx);
            } else {
                self.on_reply_while_held(token, command, sent, reply, ctx);
            }
        } else if self.keeps(token) {
            self.on_reply_while_retained(token, command, &reply, ctx);
        } else {
            Self::on_stale_reply(token, command, &reply, ctx);
        }
    }

    /// Handles the message of a grant, which proves nothing by its arrival. Returns `false` if the
    /// token is unknown here, so that the lock must be passed on.
    pub(crate) fn on_grant(&mut self, token: Token, grant: Grant, ctx: &mut EventContext<'_, A>) -> bool {
        if self.contender().is_some_and(|contender| contender.token == token) {
            return self.on_grant_while_contending(grant, ctx);
        }
        self.keeps(token) || self.holds.with_token(token).is_some()
    }

    /// Handles every [`KeyTimer`] that is due.
    pub(crate) fn on_timeout(&mut self, ctx: &mut EventContext<'_, A>) {
        let unobserved = matches!(self.last_observed(), LastObserved::Nothing);
        let (retry_due, given_up) = self.queue.tick(ctx.now, !self.holds.is_empty(), unobserved);
        self.refuse_all(given_up, ctx);
        self.withdraw_if_unwanted(ctx);
        self.end_cooldown_if_due(ctx.now);
        self.recheck_queue(retry_due, ctx);
        self.check_holds(ctx);
        self.check_retained(ctx);
    }

    /// Handles a new connection: checks what may have changed while there was none.
    ///
    /// `moved`: the server may lack writes, so holds are verified too. Renewals of a hold become
    /// due, and [`on_timeout`](Self::on_timeout) sends them, since there may be many.
    pub(crate) fn on_reconnect(&mut self, moved: bool, ctx: &mut EventContext<'_, A>) {
        if moved {
            self.set_ttl_again(ctx);
        }
        if let Some(contender) = self.queue.contender_mut() {
            contender.note_invalidation();
            self.recheck_queue(true, ctx);
        }
        for hold in self.holds.active_mut() {
            hold.renew_if_overdue(moved, ctx);
            if ctx.rules.tracking {
                hold.mark_unverified(ctx.now); // invalidations may have been missed
            }
        }
    }

    /// Rejects all waiting tasks, because the manager is shut down.
    pub(crate) fn close(&mut self, ctx: &mut EventContext<'_, A>) {
        for waiter in self.queue.drain() {
            ctx.refuse(waiter.acquisition, AcquireFailure::Shutdown);
        }
        self.withdraw_if_unwanted(ctx);
    }

    /// Rejects waiters that have left the queue, with the last observation.
    pub(super) fn refuse_all(&mut self, waiters: Vec<QueueEntry<A>>, ctx: &mut EventContext<'_, A>) {
        for waiter in waiters {
            self.refuse(waiter, ctx);
        }
        self.queue.shrink();
    }

    /// Rejects a waiter with the last observation.
    pub(super) fn refuse(&self, waiter: QueueEntry<A>, ctx: &mut EventContext<'_, A>) {
        let refusal = self.last_observed().refusal(&waiter.retry_state, ctx.now);
        ctx.refuse(waiter.acquisition, refusal);
    }

    /// Handles a reply that no task waits for: what the command may have done is undone.
    pub(super) fn on_stale_reply(
        token: Token,
        command: Command,
        reply: &Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        match (command, reply) {
            (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Unknown(_))
            | (Command::Yield { .. }, Reply::Unknown(_) | Reply::Owner) => ctx.orphan(token),
            (Command::Acquire { .. } | Command::Enqueue { .. }, Reply::Owner | Reply::Queued { .. }) => {
                ctx.send(token, Command::Withdraw);
            }
            _ => {}
        }
    }
}

impl LastObserved {
    pub(super) fn refusal(&self, retry_state: &RetryState, now: BootInstant) -> AcquireFailure {
        let waited = now.since(retry_state.started());
        match self {
            Self::Nothing => AcquireFailure::NoAnswer { waited },
            Self::Taken(ttl) => {
                AcquireFailure::Contended { attempts: retry_state.attempts(), waited, ttl: *ttl }
            }
            Self::Failed(failure) => AcquireFailure::Failed(Failure::clone(failure)),
        }
    }
}

impl<A> EventContext<'_, A> {
    pub(super) fn send(&mut self, token: Token, command: Command) {
        self.actions.push(Action::Send { token, command });
    }

    pub(crate) fn refuse(&mut self, acquisition: A, refusal: AcquireFailure) {
        self.actions.push(Action::Reject { acquisition, refusal });
    }

    /// Returns a random duration of at most `most`, evenly distributed.
    pub(super) fn random_up_to(&self, most: Duration) -> Duration {
        most.mul_f64(f64::from(self.tokens.draw()) / f64::from(u32::MAX))
    }

    pub(super) fn orphan(&mut self, token: Token) {
        self.actions.push(Action::Orphan { token });
    }
}

#[cfg(test)]
mod tests;
