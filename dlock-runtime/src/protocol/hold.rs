//! The rules of a held lock: renewal, loss, hand-off, yield, and release.
//!
//! A release yields the lock if a task of this process waits, and the hand-off budget is used up or
//! the key may outlive the lease of that task.
//! Until the server replies, there are the yielded hold, under which no body runs, and a contender
//! with the next token. Then one of the two remains: the hold if no other process waits, and
//! otherwise the contender, which is queued.
//!
//! See also: `contender` (acquiring), `renewal` (when a renewal is due), `handoff_budget` (when
//! other processes get the lock), `reentrancy` (nested calls), `retained` (holds that have ended
//! and keep the key).

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::contender::{Contender, ContenderState};
use crate::protocol::deadline::{BootInstant, Deadline};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::handoff_budget::{HandoffBudget, HandoffDecision};
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::invalidation::Verification;
use crate::protocol::key_state::{Action, EventContext, KeyState};
use crate::protocol::reentrancy::NestedCalls;
use crate::protocol::renewal;
use crate::protocol::timers::KeyTimer;
use crate::protocol::wait_queue::QueueEntry;
use crate::token::Token;

/// A lock that a task of this process holds.
#[derive(Clone, Debug)]
pub(crate) struct Hold<A> {
    pub(super) acquisition: A,
    pub(super) token: Token,
    /// In nanoseconds: a `Duration` would add 8 bytes to each held lock.
    lease: u64,
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
    pub(super) status: HoldStatus,
    /// Whether the hold was released and is being yielded to other processes. No body runs under
    /// it.
    pub(super) is_yielded: bool,
}

/// The last reply of the server about a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldStatus {
    /// The server has confirmed it.
    Confirmed,
    /// The server has confirmed it, and the last renewal failed or got no reply.
    RenewalOverdue,
    /// The hold is a grant, and the server has not confirmed it.
    GrantUnconfirmed,
    /// The hold is a grant, and its last confirmation failed or got no reply.
    ConfirmationOverdue,
}

impl HoldStatus {
    /// Returns `true` if the hold is a grant that the server has not confirmed.
    const fn is_unconfirmed(self) -> bool {
        matches!(self, Self::GrantUnconfirmed | Self::ConfirmationOverdue)
    }

    /// Returns `true` if the last renewal or confirmation failed or got no reply.
    const fn is_overdue(self) -> bool {
        matches!(self, Self::RenewalOverdue | Self::ConfirmationOverdue)
    }

    /// Returns the status after a renewal or confirmation without success.
    const fn overdue(self) -> Self {
        if self.is_unconfirmed() { Self::ConfirmationOverdue } else { Self::RenewalOverdue }
    }
}

/// Terms that few holds have: bounds of the present acquisition, and nested calls for the same key.
#[derive(Clone, Debug)]
struct ExtendedTerms<A> {
    /// When the acquisition ends, however often it is renewed.
    ends: BootInstant,
    /// No other acquisition gets the lock before this time, unless `needs_success` and the work
    /// fails.
    kept_until: BootInstant,
    needs_success: bool,
    /// How long the key may live because of a longer lease, for example of an `extend`, even if no
    /// reply has arrived.
    extended_until: BootInstant,
    levels: NestedCalls<A>,
}

impl<A: Clone + PartialEq> Default for ExtendedTerms<A> {
    fn default() -> Self {
        Self {
            ends: BootInstant::NEVER,
            kept_until: BootInstant::START,
            needs_success: false,
            extended_until: BootInstant::START,
            levels: NestedCalls::new(),
        }
    }
}

/// The remainder of a lost acquisition in the server: the key stays under its token until its body
/// has ended or the key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResidualHold {
    pub(super) token: Token,
    pub(super) kept_until: BootInstant,
    /// Whether `kept_until` applies only if the body succeeds.
    pub(super) needs_success: bool,
    /// When the lease of the hold expires.
    pub(crate) deadline: BootInstant,
    /// Whether the backend tracked the key.
    pub(super) is_tracked: bool,
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
            lease: u64::try_from(terms.lease().as_nanos()).unwrap_or(u64::MAX),
            deadline,
            budget: HandoffBudget::starting_at(since),
            next_renewal: BootInstant::NEVER,
            check_at,
            more: None,
            granted_after,
            check,
            renew: terms.is_renewed(),
            status: HoldStatus::Confirmed,
            is_yielded: false,
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

    /// Returns how long the key lives after a renewal.
    pub(super) const fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease)
    }

    fn ends(&self) -> BootInstant {
        self.more.as_ref().map_or(BootInstant::NEVER, |more| more.ends)
    }

    fn kept_until(&self) -> BootInstant {
        self.more.as_ref().map_or(BootInstant::START, |more| more.kept_until)
    }

    fn needs_success(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.needs_success)
    }

    /// Sets the bounds of an acquisition that begins at `since`.
    fn bound(&mut self, terms: &HoldTerms, since: BootInstant) {
        if self.more.is_some() || terms.has_bounds() {
            let more = self.more.get_or_insert_default();
            (more.ends, more.kept_until) = (terms.ends(since), terms.kept_until(since));
            more.needs_success = terms.needs_success();
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
            is_unconfirmed: self.status.is_unconfirmed(),
            attempts: waiter.retry_state.attempts(),
        }
    }

    /// Schedules the confirmation of a grant. Most holds of a contended lock end before it is due.
    /// It is sent at once if the hold is not renewed, or has bounds of its own.
    pub(super) fn confirm_grant(&mut self, ctx: &mut EventContext<'_, A>) {
        if !self.renew || self.more.is_some() {
            self.confirm(ctx);
        } else {
            self.next_renewal = renewal::confirmation_due(ctx.now, self.deadline.at().since(ctx.now));
        }
    }

    /// Returns `true` if the hold is a grant with a scheduled confirmation.
    pub(super) fn needs_confirmation(&self) -> bool {
        self.status.is_unconfirmed() && self.next_renewal != BootInstant::NEVER
    }

    /// Sends a renewal, which confirms the hold.
    pub(super) fn confirm(&mut self, ctx: &mut EventContext<'_, A>) {
        self.next_renewal = BootInstant::NEVER;
        ctx.send(self.token, Command::Renew { lease: self.lease() });
    }

    /// Handles a confirmation of the hold that was sent at `sent`.
    pub(super) fn on_confirmed(&mut self, sent: BootInstant, lease: Duration, ctx: &EventContext<'_, A>) {
        self.deadline = self.deadline.or_later(Deadline::of_lease(sent, lease));
        self.status = HoldStatus::Confirmed;
        // An `extend` has its own lease and does not change when the watchdog renews.
        if lease == self.lease() {
            self.next_renewal = if self.renew {
                renewal::due(sent, lease, ctx.tokens.place(self.token.number()))
            } else {
                BootInstant::NEVER
            };
        }
    }

    /// Schedules a retry of a confirmation that failed.
    fn on_confirm_failed(&mut self, lease: Duration, now: BootInstant) {
        if lease == self.lease() {
            self.status = self.status.overdue();
            self.next_renewal = renewal::retry_at(now, lease, self.deadline.at().since(now));
        }
    }

    /// Makes the renewal due if the last one is unanswered, or if the server has changed (`moved`).
    ///
    /// It is due with those of all other holds, which are sent a few at a time. A hold with less
    /// than [`LITTLE_TIME`] left is renewed at once.
    pub(super) fn renew_if_overdue(&mut self, moved: bool, ctx: &mut EventContext<'_, A>) {
        if !(self.status.is_overdue() || moved) || self.next_renewal == BootInstant::NEVER {
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

    /// Records that the key may live until `until`, since it may have been given `lease`.
    fn note_extension(&mut self, until: BootInstant, lease: Duration) {
        if lease > self.lease() {
            let more = self.more.get_or_insert_default();
            more.extended_until = more.extended_until.max(until);
        }
    }

    /// Returns `true` if the key may live for longer than the lease of `next` from now: the hold
    /// has a longer lease, or was extended. A renewal never shortens that time, so if the process
    /// ended under `next`, the lock would be blocked for longer than the lease of its holder.
    /// `SetTtl` would shorten it, but a late one also that of a later holder under the same token.
    fn may_outlive(&self, next: &QueueEntry<A>, now: BootInstant) -> bool {
        let lease = next.terms.lease();
        let extended_until = self.more.as_ref().map_or(BootInstant::START, |more| more.extended_until);
        self.lease() > lease || extended_until.since(now) > lease
    }

    /// Returns `true` if `next` can be granted the lock without a request to the server: its lease
    /// is the same, and enough of it remains. A grant that is not confirmed passes to the next task
    /// in the same state.
    fn can_hand_off_to(&self, next: &QueueEntry<A>, ctx: &EventContext<'_, A>) -> bool {
        let lease = next.terms.lease();
        let left = self.deadline.at().since(ctx.now);
        let is_enough = left > lease / 2
            || (self.status == HoldStatus::GrantUnconfirmed && left > ctx.rules.grant_lease / 2);
        self.renew && next.terms.is_renewed() && lease == self.lease() && is_enough
    }

    /// Returns the contender's state for a task that gets the lock with a longer lease, and the
    /// fleet hold at its start. The task continues the budget, but not while the lock is yielded.
    fn confirming(&self, now: BootInstant) -> (ContenderState, FleetHold) {
        let is_tracked = self.is_tracked();
        if self.is_yielded {
            return (ContenderState::Confirming { budget: None, is_tracked }, self.fleet_hold(now));
        }
        let budget = Some(self.budget.without_probe());
        (ContenderState::Confirming { budget, is_tracked }, self.granted_after)
    }

    /// Sends what is due. Returns why the hold is lost, if it is.
    fn on_timeout(&mut self, ctx: &mut EventContext<'_, A>) -> Option<LossCause> {
        if !self.deadline.holds_at(ctx.now) {
            let is_grant = self.status.is_unconfirmed();
            return Some(if is_grant { LossCause::GrantUnconfirmed } else { LossCause::Expired });
        }
        if ctx.now >= self.ends() {
            return Some(LossCause::MaxHold);
        }
        if let Some(more) = &mut self.more {
            more.levels.tick(ctx);
        }
        if ctx.now >= self.next_renewal {
            self.confirm(ctx);
        }
        self.check_if_due(ctx);
        None
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// Releases the lock of the acquisition.
    pub(crate) fn release(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> ReleaseOutcome {
        let Some(hold) = self.holds.of_acquisition(acquisition) else { return ReleaseOutcome::NotHeld };
        hold.close(ctx);
        let (token, kept_until) = (hold.token, hold.kept_until());
        if ctx.now < kept_until {
            let is_tracked = hold.is_tracked();
            let fleet_hold = self.end_hold(token, ctx.now);
            let set_ttl = self.keep((token, is_tracked), kept_until, ctx.now);
            self.contend(fleet_hold, ctx);
            return ReleaseOutcome::Send(token, set_ttl);
        }
        if ctx.rules.yield_to_foreign && hold.fleet_hold(ctx.now).is_over() {
            self.holds.remove(token);
            self.start_cooldown(ctx);
            return ReleaseOutcome::Send(token, Command::ReleaseWithoutHandoff);
        }
        let Some(next) = self.queue.head() else {
            return ReleaseOutcome::Send(token, self.release_last(token, ctx));
        };
        if !hold.deadline.holds_at(ctx.now) {
            self.release_and_contend(token, ctx);
            return ReleaseOutcome::HandedOff;
        }
        let decision = hold.budget.next(ctx.now, *ctx.contended, ctx.rules);
        if decision == HandoffDecision::Yield || hold.may_outlive(next, ctx.now) {
            self.yield_to_other_processes(token, ctx);
        } else if hold.can_hand_off_to(next, ctx) {
            if decision == HandoffDecision::HandOffAndProbe {
                hold.probe_waiters(ctx);
            }
            self.hand_off(token, ctx);
        } else {
            self.renew_for_head(token, ctx);
        }
        ReleaseOutcome::HandedOff
    }

    /// Releases the hold, and contends for the next task under a fresh token. The requests are
    /// queued in this order.
    fn release_and_contend(&mut self, token: Token, ctx: &mut EventContext<'_, A>) {
        let fleet_hold = self.end_hold(token, ctx.now);
        ctx.send(token, Command::Release { fleet_hold: fleet_hold.announced(ctx.rules) });
        self.contend(fleet_hold, ctx);
    }

    /// Records a request that the holder sends itself, and returns the token to send it under.
    /// Returns `None` if the acquisition does not hold the lock.
    pub(crate) fn on_holder_request(
        &mut self,
        acquisition: &A,
        command: Command,
        ctx: &EventContext<'_, A>,
    ) -> Option<Token> {
        let hold = self.holds.of_acquisition(acquisition)?;
        if let Command::Renew { lease } = command {
            hold.note_extension(ctx.now.plus(lease), lease);
        }
        Some(hold.token)
    }

    /// Removes a hold that has ended, and returns how long the fleet has held the lock.
    pub(super) fn end_hold(&mut self, token: Token, now: BootInstant) -> FleetHold {
        let fleet_hold = self.holds.with_token(token).map_or(FleetHold::NEW, |hold| hold.fleet_hold(now));
        self.holds.remove(token);
        fleet_hold
    }

    /// Releases a granted lock under which no body ran: `min_hold` does not apply.
    pub(crate) fn cancel_granted(
        &mut self,
        acquisition: &A,
        ctx: &mut EventContext<'_, A>,
    ) -> ReleaseOutcome {
        if let Some(hold) = self.holds.of_acquisition(acquisition)
            && let Some(more) = &mut hold.more
        {
            more.kept_until = BootInstant::START;
        }
        self.release(acquisition, ctx)
    }

    /// Hands the hold to the head of the local queue, in memory: with its token, its deadline, and
    /// any renewal in flight.
    fn hand_off(&mut self, token: Token, ctx: &mut EventContext<'_, A>) {
        let (Some(hold), Some(next)) = (self.holds.with_token(token), self.queue.head_mut()) else { return };
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
    fn yield_to_other_processes(&mut self, token: Token, ctx: &mut EventContext<'_, A>) {
        let Some(hold) = self.holds.with_token(token) else { return };
        let (next, fleet_hold) = (ctx.tokens.next(), hold.fleet_hold(ctx.now).announced(ctx.rules));
        hold.is_yielded = true;
        ctx.send(token, Command::Yield { next, fleet_hold });
        self.queue.set_contender(Contender::new(next, ContenderState::Yielding, FleetHold::UNKNOWN));
    }

    /// Renews the hold to the lease of the next task, which gets it with the reply.
    fn renew_for_head(&mut self, token: Token, ctx: &mut EventContext<'_, A>) {
        let Some(hold) = self.holds.with_token(token) else { return };
        let (step, fleet_hold) = hold.confirming(ctx.now);
        self.holds.remove(token);
        self.confirm_for_head(token, step, fleet_hold, ctx);
    }

    /// Handles a reply that concerns a hold that is being yielded.
    pub(super) fn on_reply_while_yielding(
        &mut self,
        token: Token,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let (Some(hold), Some(contender)) = (self.holds.with_token(token), self.queue.contender()) else {
            return;
        };
        match (command, reply) {
            (Command::Renew { lease }, Reply::Owner) => hold.on_confirmed(sent, lease, ctx),
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.on_confirm_failed(lease, ctx.now);
            }
            // The reply to another `next` is a duplicate, of an earlier yield: the server may have
            // granted the lock to another token since.
            (Command::Yield { next, .. }, reply) if next == contender.token => {
                self.on_yielded((token, next), sent, reply, ctx);
            }
            _ => {}
        }
    }

    /// Handles the reply to a yield of the hold under `old`, which may have queued `next`.
    fn on_yielded(
        &mut self,
        (old, next): (Token, Token),
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        match reply {
            Reply::Owner => self.on_not_yielded(old, ctx),
            Reply::Yielded => {
                *ctx.contended = true;
                self.holds.remove(old);
                self.enqueue_after_yield(next, sent, ctx);
            }
            Reply::NotOwner => {
                let fleet_hold = self.end_hold(old, ctx.now);
                self.contend(fleet_hold, ctx);
            }
            // The backend has no queue: the lock was freed for other clients.
            Reply::NotQueued { ttl } => {
                self.end_yield(old);
                self.on_contended(ttl, ctx);
                self.back_off(ttl.unwrap_or_default(), ctx);
            }
            Reply::Unknown(failure) => {
                ctx.orphan(old);
                ctx.orphan(next);
                self.end_yield(old);
                self.on_failed(failure, ctx);
            }
            Reply::Refused(failure) => {
                ctx.orphan(old);
                self.end_yield(old);
                self.on_failed(failure, ctx);
            }
            _ => {}
        }
    }

    /// Handles the reply that no other process waits: the next task of this process gets the hold.
    fn on_not_yielded(&mut self, token: Token, ctx: &mut EventContext<'_, A>) {
        let (Some(hold), Some(head)) = (self.holds.with_token(token), self.queue.head()) else { return };
        *ctx.contended = false;
        if hold.may_outlive(head, ctx.now) {
            self.queue.end_contender();
            self.release_and_contend(token, ctx);
        } else if hold.can_hand_off_to(head, ctx) {
            hold.begin_budget(HandoffBudget::starting_at(ctx.now));
            hold.is_yielded = false;
            self.queue.end_contender();
            self.hand_off(token, ctx);
        } else {
            self.renew_for_head(token, ctx);
        }
    }

    /// Removes a yielded hold, and the contender with the next token.
    fn end_yield(&mut self, token: Token) {
        self.holds.remove(token);
        self.queue.end_contender();
    }

    /// Continues as a queued contender: the yield queued the next token, which counts as an enqueue
    /// answered "queued".
    fn enqueue_after_yield(&mut self, next: Token, sent: BootInstant, ctx: &EventContext<'_, A>) {
        let recheck = sent.plus(ctx.rules.grant_lease / 2);
        let mut contender = Contender::new(next, ContenderState::queued(sent, recheck), FleetHold::UNKNOWN);
        contender.round_trip = contender.round_trip.measured(sent, ctx.now);
        self.queue.set_contender(contender);
    }

    /// Handles a grant of the yield's next token that arrived before the reply to the yield. The
    /// later reply adds nothing.
    pub(super) fn on_grant_while_yielding(&mut self, grant: Grant, ctx: &mut EventContext<'_, A>) {
        let (Some(hold), Some(contender)) = (self.holds.yielded(), self.queue.contender()) else { return };
        let (yielded, next, (step, _)) = (hold.token, contender.token, hold.confirming(ctx.now));
        self.holds.remove(yielded);
        self.confirm_for_head(next, step, grant.fleet_hold, ctx);
    }

    /// Handles a reply that concerns a hold.
    pub(super) fn on_reply_while_held(
        &mut self,
        token: Token,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let Some(hold) = self.holds.with_token(token) else { return };
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
                self.mark_lost(token, LossCause::NotOwner, ctx);
            }
            (Command::Renew { .. } | Command::Verify | Command::Inspect, Reply::Refused(failure))
                if failure.kind == FailureKind::WrongKind =>
            {
                self.mark_lost(token, LossCause::NotOwner, ctx);
            }
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.on_confirm_failed(lease, ctx.now);
            }
            (Command::Inspect, reply) => hold.on_waiters_probed(sent, &reply, ctx),
            _ => {}
        }
    }

    /// Sends what is due for the holds, and revokes one that is lost.
    pub(super) fn check_holds(&mut self, ctx: &mut EventContext<'_, A>) {
        let on_timeout = |hold: &mut Hold<A>| hold.on_timeout(ctx).map(|cause| (hold.token, cause));
        let lost = self.holds.active_mut().find_map(on_timeout);
        if let Some((token, cause)) = lost {
            self.mark_lost(token, cause, ctx);
        }
    }

    /// Revokes all holds.
    pub(crate) fn mark_all_lost(&mut self, cause: LossCause, ctx: &mut EventContext<'_, A>) {
        let tokens: Vec<_> = self.holds.active().map(|hold| hold.token).collect();
        for token in tokens {
            self.mark_lost(token, cause, ctx);
        }
    }

    /// Revokes a hold. Waiting tasks of this process contend again. The remainder in the server
    /// excludes them until the body has ended or the key expires.
    fn mark_lost(&mut self, token: Token, cause: LossCause, ctx: &mut EventContext<'_, A>) {
        let Some(hold) = self.holds.with_token(token) else { return };
        hold.close(ctx);
        let (kept_until, needs_success) = (hold.kept_until(), hold.needs_success());
        let (deadline, is_tracked) = (hold.deadline.at(), hold.is_tracked());
        let left = ResidualHold { token, kept_until, needs_success, deadline, is_tracked };
        let left = (cause != LossCause::NotOwner).then_some(left);
        ctx.actions.push(Action::Revoke { acquisition: hold.acquisition.clone(), cause, left });
        let fleet_hold = self.end_hold(token, ctx.now);
        if let Some(left) = left {
            self.leave_to_body(left, ctx);
        }
        self.contend(fleet_hold, ctx);
    }
}

/// The remaining time below which a renewal is sent at once: that of a short lease, or of one that
/// is long overdue.
const LITTLE_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
