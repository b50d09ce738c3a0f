//! The rules of a held lock: renewal, loss, hand-off, yield, and release.
//!
//! See also: `contender` (acquiring), `renewal` (when a renewal is due), `handoff_budget` (when
//! other processes get the lock), `reentrancy` (nested calls), `retained` (holds that have ended
//! and keep the key).

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::handoff_budget::{HandoffBudget, HandoffDecision};
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::invalidation::Verification;
use crate::protocol::key_state::{Action, EventContext, KeyPhase, KeyState};
use crate::protocol::reentrancy::NestedCalls;
use crate::protocol::timers::KeyTimer;
use crate::protocol::wait_queue::QueueEntry;
use crate::protocol::{contender, renewal};
use crate::token::Token;

/// A lock that a task of this process holds.
#[derive(Clone, Debug)]
pub(crate) struct Hold<A> {
    pub(super) acquisition: A,
    pub(super) token: Token,
    pub(super) lease: Duration,
    deadline: Deadline,
    /// The time for which tasks of this process may hand the lock to each other.
    budget: HandoffBudget,
    /// When the next renewal or confirmation is sent.
    pub(super) next_renewal: BootInstant,
    /// When the hold is verified. `check` says what the time means.
    pub(super) check_at: BootInstant,
    /// Terms that few holds have. Boxed to keep the hold small, since many exist at once.
    more: Option<Box<ExtendedTerms<A>>>,
    /// How long the fleet had held the lock when this process acquired it.
    granted_after: FleetHold,
    pub(super) check: Verification,
    renew: bool,
    /// Whether the hold is a grant that the server has not confirmed. Independent of `is_overdue`:
    /// a grant whose confirmation got no reply is both.
    pub(super) is_unconfirmed: bool,
    /// Whether the last renewal or confirmation failed or got no reply.
    is_overdue: bool,
}

/// Terms that few holds have: bounds of the present acquisition, and nested calls for the same key.
#[derive(Clone, Debug)]
struct ExtendedTerms<A> {
    /// When the acquisition ends, however often it is renewed.
    ends: BootInstant,
    /// No other acquisition gets the lock before this time.
    kept_until: BootInstant,
    levels: NestedCalls<A>,
}

impl<A: Clone + PartialEq> Default for ExtendedTerms<A> {
    fn default() -> Self {
        Self { ends: BootInstant::NEVER, kept_until: BootInstant::START, levels: NestedCalls::new() }
    }
}

/// A lock that this process is yielding to other processes.
#[derive(Clone, Debug)]
pub(crate) struct Yielding<A> {
    /// The hold at the time of its release. No body runs under it.
    pub(super) hold: Hold<A>,
    /// The token under which this process is queued if another process takes the lock.
    pub(super) next: Token,
}

/// The remainder of a lost acquisition in the server: the key stays under its token until its body
/// has ended or the key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResidualHold {
    pub(super) token: Token,
    pub(super) kept_until: BootInstant,
    /// When the lease of the hold expires.
    pub(crate) deadline: BootInstant,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// The caller must send this command under this token.
    Send(Token, Command),
    /// Nothing is left for the caller to send: a waiting task gets the lock, or contends for it.
    HandedOff,
    /// The acquisition did not hold the lock.
    NotHeld,
}

impl<A: Clone + PartialEq> Hold<A> {
    pub(super) fn new(
        waiter: &QueueEntry<A>,
        token: Token,
        deadline: Deadline,
        granted_after: FleetHold,
        ctx: &EventContext<'_, A>,
    ) -> Self {
        let since = ctx.now;
        let terms = &waiter.terms;
        let (check, check_at) = Verification::of_hold(since, ctx.rules);
        let mut hold = Self {
            acquisition: waiter.acquisition.clone(),
            token,
            lease: terms.lease(),
            deadline,
            budget: HandoffBudget::starting_at(since),
            next_renewal: BootInstant::NEVER,
            check_at,
            more: None,
            granted_after,
            check,
            renew: terms.is_renewed(),
            is_unconfirmed: false,
            is_overdue: false,
        };
        hold.bound(terms, since);
        hold
    }

    /// Passes each timer to `set`.
    pub(super) fn timers(&self, set: &mut impl FnMut(KeyTimer, BootInstant)) {
        set(KeyTimer::Renewal, self.next_renewal);
        set(KeyTimer::Verification, self.check_due());
        set(KeyTimer::Expiry, self.deadline.at());
        if let Some(more) = &self.more {
            set(KeyTimer::MaxHold, more.ends);
            set(KeyTimer::WaitTimeout, more.levels.due());
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn ends(&self) -> BootInstant {
        self.more.as_ref().map_or(BootInstant::NEVER, |more| more.ends)
    }

    fn kept_until(&self) -> BootInstant {
        self.more.as_ref().map_or(BootInstant::START, |more| more.kept_until)
    }

    /// Sets the bounds of an acquisition that begins at `since`.
    fn bound(&mut self, terms: &HoldTerms, since: BootInstant) {
        if self.more.is_some() || terms.has_bounds() {
            let more = self.more.get_or_insert_default();
            (more.ends, more.kept_until) = (terms.ends(since), terms.kept_until(since));
        }
    }

    /// Returns the nested calls of the hold.
    pub(super) fn levels(&mut self) -> &mut NestedCalls<A> {
        &mut self.more.get_or_insert_default().levels
    }

    /// Removes a nested call, which has ended or stopped waiting. Returns `true` if there was one.
    pub(super) fn leave(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> bool {
        self.more.as_mut().is_some_and(|more| more.levels.leave(acquisition, ctx))
    }

    /// Rejects the nested calls that wait to join.
    fn close(&mut self, ctx: &mut EventContext<'_, A>) {
        if let Some(more) = &mut self.more {
            more.levels.close(ctx);
        }
    }

    /// Returns the action that grants the hold to `waiter`.
    pub(super) fn grant_action(&self, waiter: &QueueEntry<A>) -> Action<A> {
        Action::Grant {
            acquisition: waiter.acquisition.clone(),
            token: self.token,
            deadline: self.deadline,
            ends: self.ends(),
            is_unconfirmed: self.is_unconfirmed,
            attempts: waiter.retry_state.attempts(),
        }
    }

    /// Schedules the confirmation of a grant. Most holds of a contended lock end before it is due.
    /// It is sent at once if the hold is not renewed, or has bounds of its own.
    pub(super) fn confirm_grant(&mut self, ctx: &mut EventContext<'_, A>) {
        if ctx.rules.confirm_grants_first || !self.renew || self.more.is_some() {
            self.confirm(ctx);
        } else {
            self.next_renewal = renewal::confirmation_due(ctx.now, self.deadline.at().since(ctx.now));
        }
    }

    /// Returns `true` if the hold is a grant with a scheduled confirmation.
    pub(super) fn needs_confirmation(&self) -> bool {
        self.is_unconfirmed && self.next_renewal != BootInstant::NEVER
    }

    /// Sends a renewal, which confirms the hold.
    pub(super) fn confirm(&mut self, ctx: &mut EventContext<'_, A>) {
        self.next_renewal = BootInstant::NEVER;
        ctx.send(self.token, Command::Renew { lease: self.lease });
    }

    /// Handles a confirmation of the hold that was sent at `sent`.
    pub(super) fn on_confirmed(&mut self, sent: BootInstant, lease: Duration, ctx: &EventContext<'_, A>) {
        self.deadline = self.deadline.or_later(Deadline::of_lease(sent, lease));
        (self.is_unconfirmed, self.is_overdue) = (false, false);
        // An `extend` has its own lease and does not change when the watchdog renews.
        if lease == self.lease {
            self.next_renewal = if self.renew {
                renewal::due(sent, lease, ctx.tokens.place(self.token.number()))
            } else {
                BootInstant::NEVER
            };
        }
    }

    /// Schedules a retry of a confirmation that failed.
    fn on_confirm_failed(&mut self, lease: Duration, now: BootInstant) {
        if lease == self.lease {
            self.is_overdue = true;
            self.next_renewal = renewal::retry_at(now, lease, self.deadline.at().since(now));
        }
    }

    /// Makes the renewal due if the last one is unanswered, or if the server has changed (`moved`).
    ///
    /// It is due with those of all other holds, which are sent a few at a time. A hold with less
    /// than [`LITTLE_TIME`] left is renewed at once.
    pub(super) fn renew_if_overdue(&mut self, moved: bool, ctx: &mut EventContext<'_, A>) {
        if !(self.is_overdue || moved) || self.next_renewal == BootInstant::NEVER {
            return;
        }
        if self.deadline.at().since(ctx.now) < LITTLE_TIME {
            self.confirm(ctx);
        } else {
            self.next_renewal = self.next_renewal.min(ctx.now);
        }
    }

    /// Returns how long the fleet has held the lock without a gap.
    pub(super) fn fleet_hold(&self, now: BootInstant) -> FleetHold {
        self.granted_after.plus(now.since(self.budget.since()))
    }

    /// Returns the budget for the next task, and the fleet hold at the start of that budget.
    pub(super) fn fleet_hold_and_budget(&self) -> (FleetHold, Option<HandoffBudget>) {
        (self.granted_after, Some(self.budget.without_probe()))
    }

    /// Continues the budget of the task of this process that held the lock before.
    pub(super) fn continue_budget(&mut self, budget: HandoffBudget) {
        self.budget = budget;
    }

    /// Starts a new budget. If it starts a little later, the fleet hold counts from then.
    fn begin_budget(&mut self, budget: HandoffBudget) {
        (self.granted_after, self.budget) = (self.fleet_hold(budget.since()), budget);
    }

    /// Asks the server whether other processes wait.
    fn probe_waiters(&mut self, ctx: &mut EventContext<'_, A>) {
        self.budget.mark_probed();
        ctx.send(self.token, Command::Inspect);
    }

    /// Handles the reply to [`probe_waiters`](Self::probe_waiters).
    fn on_waiters_probed(&mut self, sent: BootInstant, reply: &Reply, ctx: &mut EventContext<'_, A>) {
        let has_no_waiters = match reply {
            Reply::Info(Some(info)) if info.holder == Some(self.token.process()) => info.waiters == 0,
            Reply::Info(_) => {
                self.check_soon(ctx); // another token may hold the lock
                false
            }
            _ => false,
        };
        self.begin_budget(self.budget.answered(sent, ctx.now, has_no_waiters, ctx.rules));
    }

    /// Returns `true` if `next` can be granted the lock without a request to the server: its lease
    /// is the same, and enough of it remains. A grant that is not confirmed passes to the next task
    /// in the same state.
    fn can_hand_off_to(&self, next: &QueueEntry<A>, ctx: &EventContext<'_, A>) -> bool {
        let lease = next.terms.lease();
        let left = self.deadline.at().since(ctx.now);
        let is_enough =
            left > lease / 2 || (self.is_unconfirmed && !self.is_overdue && left > ctx.rules.grant_lease / 2);
        self.renew && next.terms.is_renewed() && lease == self.lease && is_enough
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Releases the lock of the acquisition.
    pub(crate) fn release(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> ReleaseOutcome {
        let KeyPhase::Held(hold) = &mut self.phase else { return ReleaseOutcome::NotHeld };
        if hold.acquisition != *acquisition {
            return ReleaseOutcome::NotHeld;
        }
        hold.close(ctx);
        let (token, kept_until) = (hold.token, hold.kept_until());
        if ctx.now < kept_until {
            let set_ttl = self.keep(token, kept_until, ctx.now);
            self.contend(ctx);
            return ReleaseOutcome::Send(token, set_ttl);
        }
        if ctx.rules.yield_to_foreign && hold.fleet_hold(ctx.now).is_over() {
            self.start_cooldown(ctx);
            return ReleaseOutcome::Send(token, Command::ReleaseWithoutHandoff);
        }
        let Some(next) = self.queue.head() else {
            return ReleaseOutcome::Send(token, self.release_last(ctx));
        };
        if !hold.deadline.holds_at(ctx.now) {
            ctx.send(token, Command::Release);
            self.contend(ctx);
            return ReleaseOutcome::HandedOff;
        }
        match hold.budget.next(ctx.now, *ctx.contended, ctx.rules) {
            HandoffDecision::Yield => self.yield_to_other_processes(ctx),
            decision if hold.can_hand_off_to(next, ctx) => {
                if decision == HandoffDecision::HandOffAndProbe {
                    hold.probe_waiters(ctx);
                }
                self.hand_off(ctx);
            }
            _ => self.confirm_for_head(token, ctx),
        }
        ReleaseOutcome::HandedOff
    }

    /// Releases a granted lock under which no body ran: `min_hold` does not apply.
    pub(crate) fn cancel_granted(
        &mut self,
        acquisition: &A,
        ctx: &mut EventContext<'_, A>,
    ) -> ReleaseOutcome {
        if let KeyPhase::Held(hold) = &mut self.phase
            && hold.acquisition == *acquisition
            && let Some(more) = &mut hold.more
        {
            more.kept_until = BootInstant::START;
        }
        self.release(acquisition, ctx)
    }

    /// Hands the hold to the head of the local queue, in memory: with its token, its deadline, and
    /// any renewal in flight.
    fn hand_off(&mut self, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &mut self.phase else { return };
        let Some(next) = self.queue.head_mut() else { return };
        hold.bound(&next.terms, ctx.now);
        ctx.actions.push(hold.grant_action(next));
        std::mem::swap(&mut hold.acquisition, &mut next.acquisition); // the old one is dropped
        self.queue.pop();
        if hold.needs_confirmation() && hold.more.is_some() {
            hold.confirm(ctx);
        }
    }

    /// Yields the lock to other processes, because the hand-off budget is used up. No body runs
    /// under the old token until the server replies that the lock was kept.
    fn yield_to_other_processes(&mut self, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &self.phase else { return };
        let (next, fleet_hold) = (ctx.tokens.next(), hold.fleet_hold(ctx.now).announced(ctx.rules));
        ctx.send(hold.token, Command::Yield { next, fleet_hold });
        self.phase = KeyPhase::Yielding(Box::new(Yielding { hold: hold.clone(), next }));
    }

    /// Handles the replies while a yield is in flight.
    pub(super) fn on_yielded(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let KeyPhase::Yielding(yielding) = &mut self.phase else { return };
        let Yielding { hold, next } = &mut **yielding;
        let (old, next) = (hold.token, *next);
        match (command, reply) {
            (Command::Renew { lease }, Reply::Owner) => hold.on_confirmed(sent, lease, ctx),
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.on_confirm_failed(lease, ctx.now);
            }
            // A duplicate reply to an earlier yield: the server may have granted the lock to
            // another token since.
            (Command::Yield { next: of, .. }, _) if of != next => {}
            (Command::Yield { .. }, Reply::Owner) => {
                let Some(head) = self.queue.head() else { return };
                *ctx.contended = false;
                if hold.can_hand_off_to(head, ctx) {
                    hold.begin_budget(HandoffBudget::starting_at(ctx.now));
                    self.phase = KeyPhase::Held(hold.clone());
                    self.hand_off(ctx);
                } else {
                    self.confirm_for_head(old, ctx);
                }
            }
            (Command::Yield { .. }, Reply::Yielded) => {
                *ctx.contended = true;
                self.enqueue_after_yield(next, sent, ctx);
            }
            (Command::Yield { .. }, Reply::NotOwner) => self.contend(ctx),
            // The backend has no queue: the lock was freed for other clients.
            (Command::Yield { .. }, Reply::NotQueued { ttl }) => {
                self.on_contended(ttl, ctx);
                self.back_off(ttl.unwrap_or_default(), ctx);
            }
            (Command::Yield { .. }, Reply::Unknown(failure)) => {
                ctx.orphan(old);
                ctx.orphan(next);
                self.on_failed(failure, ctx);
            }
            (Command::Yield { .. }, Reply::Refused(failure)) => {
                ctx.orphan(old);
                self.on_failed(failure, ctx);
            }
            _ => {}
        }
    }

    /// Continues as a queued contender: the yield queued the next token, which counts as an enqueue
    /// answered "queued".
    fn enqueue_after_yield(&mut self, next: Token, sent: BootInstant, ctx: &EventContext<'_, A>) {
        let recheck = sent.plus(ctx.rules.grant_lease / 2);
        let step = contender::ContenderState::queued(sent, recheck);
        let mut contender = contender::Contender::new(next, step, FleetHold::UNKNOWN);
        contender.round_trip = contender.round_trip.measured(sent, ctx.now);
        self.phase = KeyPhase::Contending(contender);
    }

    /// Handles a grant of the yield's next token that arrived before the reply to the yield. The
    /// later reply adds nothing.
    pub(super) fn on_grant_while_yielding(&mut self, grant: Grant, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Yielding(yielding) = &self.phase else { return };
        let next = yielding.next;
        self.confirm_for_head(next, ctx);
        if let KeyPhase::Contending(contender) = &mut self.phase {
            contender.fleet_hold = grant.fleet_hold;
        }
    }

    /// Handles a reply that concerns the present hold.
    pub(super) fn on_reply_while_held(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let KeyPhase::Held(hold) = &mut self.phase else { return };
        match (command, reply) {
            (Command::Renew { lease }, Reply::Owner) => {
                hold.on_confirmed(sent, lease, ctx);
                ctx.actions.push(Action::Extend {
                    acquisition: hold.acquisition.clone(),
                    deadline: hold.deadline,
                    ends: hold.ends(),
                });
            }
            (Command::Renew { .. } | Command::Verify | Command::Fence, Reply::NotOwner) => {
                self.mark_lost(LossCause::NotOwner, ctx);
            }
            (Command::Renew { .. } | Command::Verify | Command::Inspect, Reply::Refused(failure))
                if failure.kind == FailureKind::WrongKind =>
            {
                self.mark_lost(LossCause::NotOwner, ctx);
            }
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.on_confirm_failed(lease, ctx.now);
            }
            (Command::Inspect, reply) => hold.on_waiters_probed(sent, &reply, ctx),
            _ => {} // the reply to an enqueue, which the grant overtook
        }
    }

    /// Sends renewals that are due, and revokes a hold that has expired.
    pub(super) fn watch(&mut self, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &mut self.phase else { return };
        if !hold.deadline.holds_at(ctx.now) {
            let cause = if hold.is_unconfirmed { LossCause::GrantUnconfirmed } else { LossCause::Expired };
            self.mark_lost(cause, ctx);
            return;
        }
        if ctx.now >= hold.ends() {
            self.mark_lost(LossCause::MaxHold, ctx);
            return;
        }
        if let Some(more) = &mut hold.more {
            more.levels.tick(ctx);
        }
        if ctx.now >= hold.next_renewal {
            hold.confirm(ctx);
        }
        hold.check_if_due(ctx);
    }

    /// Revokes the hold. Waiting tasks of this process contend again. The remainder in the server
    /// excludes them until the body has ended or the key expires.
    pub(crate) fn mark_lost(&mut self, cause: LossCause, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &mut self.phase else { return };
        hold.close(ctx);
        let (token, kept_until, deadline) = (hold.token, hold.kept_until(), hold.deadline.at());
        let left = ResidualHold { token, kept_until, deadline };
        let left = (cause != LossCause::NotOwner).then_some(left);
        ctx.actions.push(Action::Revoke { acquisition: hold.acquisition.clone(), cause, left });
        if let Some(left) = left {
            self.leave_to_body(left, ctx);
        }
        self.contend(ctx);
    }
}

/// The remaining time below which a renewal is sent at once: that of a short lease, or of one that
/// is long overdue.
const LITTLE_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
