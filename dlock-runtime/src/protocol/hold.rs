//! What a task that holds the lock does with it: it is renewed, lost, handed on, yielded, or released.
//!
//! Not here: how a task comes to hold (`acquire`), when a renewal is due (`renew`), when others get their turn (`budget`), calls inside
//! the hold (`nesting`), what becomes of a turn that is over too early (`keep`).

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::{BootInstant, Deadline, Span};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::handoff_budget::{HandoffBudget, HandoffDecision};
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::invalidation::Verification;
use crate::protocol::key_state::{Action, EventContext, KeyPhase, KeyState};
use crate::protocol::reentrancy::NestedCalls;
use crate::protocol::wait_queue::QueueEntry;
use crate::protocol::{contender, renewal};
use crate::token::Token;

/// A lock that a task of this process has.
#[derive(Clone, Debug)]
pub(crate) struct Hold<A> {
    pub(super) acquisition: A,
    /// The number of its token: all that a lane knows are of its own process.
    number: u64,
    lease: Span,
    deadline: Deadline,
    /// For how long the tasks of this process hand it to each other.
    budget: HandoffBudget,
    /// When the next renewal (or confirmation) is to be sent.
    pub(super) next_renewal: BootInstant,
    /// When it is checked; `check` says what it means.
    pub(super) check_at: BootInstant,
    /// What few holds have; most are held by many at once, and small.
    more: Option<Box<ExtendedTerms<A>>>,
    /// For how long our family had had it when it came to us.
    fleet_hold: FleetHold,
    pub(super) check: Verification,
    renew: bool,
    /// Whether it is a grant that the server has not confirmed yet.
    pub(super) granted: bool,
    /// Whether the last renewal got no answer.
    overdue: bool,
}

/// What few holds have: bounds of the present turn, and calls inside it that want the same key.
#[derive(Clone, Debug)]
struct ExtendedTerms<A> {
    /// When the turn of its task is over, however often it is renewed.
    ends: BootInstant,
    /// Before then nobody else gets the lock.
    kept_until: BootInstant,
    levels: NestedCalls<A>,
}

impl<A: Clone + PartialEq> Default for ExtendedTerms<A> {
    fn default() -> Self {
        Self { ends: BootInstant::NEVER, kept_until: BootInstant::START, levels: NestedCalls::new() }
    }
}

/// A lock that was ours and is on offer to other processes.
#[derive(Clone, Debug)]
pub(crate) struct Yielding<A> {
    /// The hold as it was when its last task let go; nobody runs on it.
    pub(super) hold: Hold<A>,
    /// The token under which we wait for our next turn, if somebody takes the offer.
    pub(super) next: Token,
}

/// What a turn that was lost leaves in the server: it was ours to the end, and is nobody's until its body is gone or the key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResidualHold {
    pub(super) token: Token,
    pub(super) kept_until: BootInstant,
    /// When its lease is over.
    pub(crate) deadline: BootInstant,
}

/// What a release comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// The server is to be told, about this token.
    Send(Token, Command),
    /// A task of this process has it now, or will.
    HandedOff,
    /// The seat did not hold.
    NotHeld,
}

impl<A: Clone + PartialEq> Hold<A> {
    pub(super) fn new(
        waiter: &QueueEntry<A>,
        token: Token,
        deadline: Deadline,
        fleet_hold: FleetHold,
        ctx: &EventContext<'_, A>,
    ) -> Self {
        let since = ctx.now;
        let terms = &waiter.terms;
        let (check, check_at) = Verification::of_hold(since, ctx.rules);
        let mut hold = Self {
            acquisition: waiter.acquisition.clone(),
            number: token.number(),
            lease: Span::of(terms.lease()),
            deadline,
            budget: HandoffBudget::begun(since),
            next_renewal: BootInstant::NEVER,
            check_at,
            more: None,
            fleet_hold,
            check,
            renew: terms.is_renewed(),
            granted: false,
            overdue: false,
        };
        hold.bound(terms, since);
        hold
    }

    pub(super) fn due(&self) -> BootInstant {
        self.next_renewal.min(self.check_due()).min(self.deadline.at()).min(self.bounds_due())
    }

    /// Returns when the turn is over, or something is due for the calls inside it.
    pub(super) fn bounds_due(&self) -> BootInstant {
        self.more.as_ref().map_or(BootInstant::NEVER, |more| more.ends.min(more.levels.due()))
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Returns the token that holds the lock.
    pub(super) fn token(&self, ctx: &EventContext<'_, A>) -> Token {
        ctx.tokens.numbered(self.number)
    }

    /// Returns whether a token of this process holds the lock.
    pub(super) fn is_under(&self, token: Token) -> bool {
        self.number == token.number()
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease.get()
    }

    fn ends(&self) -> BootInstant {
        self.more.as_ref().map_or(BootInstant::NEVER, |more| more.ends)
    }

    fn kept_until(&self) -> BootInstant {
        self.more.as_ref().map_or(BootInstant::START, |more| more.kept_until)
    }

    /// Sets the bounds of a turn that begins at `since`.
    fn bound(&mut self, terms: &HoldTerms, since: BootInstant) {
        if self.more.is_some() || terms.has_bounds() {
            let more = self.more.get_or_insert_default();
            (more.ends, more.kept_until) = (terms.ends(since), terms.kept_until(since));
        }
    }

    /// Returns the calls inside the hold.
    pub(super) fn levels(&mut self) -> &mut NestedCalls<A> {
        &mut self.more.get_or_insert_default().levels
    }

    /// A call inside the hold has ended, or does not want to wait any more. Returns whether there was one.
    pub(super) fn leave(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> bool {
        self.more.as_mut().is_some_and(|more| more.levels.leave(acquisition, ctx))
    }

    /// Nobody joins the turn any more.
    fn close(&mut self, ctx: &mut EventContext<'_, A>) {
        if let Some(more) = &mut self.more {
            more.levels.close(ctx);
        }
    }

    /// Tells the waiter that has the hold now.
    pub(super) fn grant_action(&self, waiter: &QueueEntry<A>, ctx: &EventContext<'_, A>) -> Action<A> {
        Action::Grant {
            acquisition: waiter.acquisition.clone(),
            token: self.token(ctx),
            deadline: self.deadline,
            ends: self.ends(),
            is_unconfirmed: self.granted,
            attempts: waiter.retry_state.attempts(),
        }
    }

    /// The hold is a grant that is believed: the server is asked to confirm it, soon, as most turns of a lock that many want are over
    /// before. One that has to last is confirmed at once: by no renewal, or for longer than its task lives.
    pub(super) fn confirm_grant(&mut self, ctx: &mut EventContext<'_, A>) {
        if ctx.rules.confirm_grants_first || !self.renew || self.more.is_some() {
            self.confirm(ctx);
        } else {
            self.next_renewal = renewal::confirmation_due(ctx.now, self.deadline.at().since(ctx.now));
        }
    }

    /// Returns whether it is a grant that is to be confirmed soon.
    pub(super) fn needs_confirmation(&self) -> bool {
        self.granted && self.next_renewal != BootInstant::NEVER
    }

    /// Asks the server to confirm the hold.
    pub(super) fn confirm(&mut self, ctx: &mut EventContext<'_, A>) {
        self.next_renewal = BootInstant::NEVER;
        ctx.send(self.token(ctx), Command::Renew { lease: self.lease() });
    }

    /// The server has confirmed the hold, as asked at `sent`.
    pub(super) fn on_confirmed(&mut self, sent: BootInstant, lease: Duration, ctx: &EventContext<'_, A>) {
        self.deadline = self.deadline.or_later(Deadline::of_lease(sent, lease));
        (self.granted, self.overdue) = (false, false);
        // An `extend` asks for a lease of its own and leaves the watchdog's rhythm alone.
        if lease == self.lease() {
            self.next_renewal = if self.renew {
                renewal::due(sent, lease, ctx.tokens.place(self.number))
            } else {
                BootInstant::NEVER
            };
        }
    }

    /// The server did not confirm the hold: it is asked again soon.
    fn on_confirm_failed(&mut self, lease: Duration, now: BootInstant) {
        if lease == self.lease() {
            self.overdue = true;
            self.next_renewal = renewal::retry_at(now, lease, self.deadline.at().since(now));
        }
    }

    /// Has it renewed where an answer is missing, and wherever it is renewed at all where the server is another.
    ///
    /// It is due then with all others, which go out a few at a time; one that has little time left waits for none.
    pub(super) fn renew_if_overdue(&mut self, moved: bool, ctx: &mut EventContext<'_, A>) {
        if !(self.overdue || moved) || self.next_renewal == BootInstant::NEVER {
            return;
        }
        if self.deadline.at().since(ctx.now) < LITTLE_TIME {
            self.confirm(ctx);
        } else {
            self.next_renewal = self.next_renewal.min(ctx.now);
        }
    }

    /// For how long our family has had the lock without a break.
    pub(super) fn fleet_hold(&self, now: BootInstant) -> FleetHold {
        self.fleet_hold.plus(now.since(self.budget.since()))
    }

    /// Returns the budget for a task that follows, and the streak by its begin.
    pub(super) fn streak_and_budget(&self) -> (FleetHold, Option<HandoffBudget>) {
        (self.fleet_hold, Some(self.budget.left()))
    }

    /// A task of this process had it before.
    pub(super) fn continue_budget(&mut self, budget: HandoffBudget) {
        self.budget = budget;
    }

    /// The tasks of this process may have it for longer. Where the budget begins a little later, the streak is that of then.
    fn begin_budget(&mut self, budget: HandoffBudget) {
        (self.fleet_hold, self.budget) = (self.fleet_hold(budget.since()), budget);
    }

    /// Asks the server who else waits.
    fn probe_waiters(&mut self, ctx: &mut EventContext<'_, A>) {
        self.budget.ask();
        ctx.send(self.token(ctx), Command::Inspect);
    }

    /// The server has said who else waits, or nothing.
    fn on_waiters_probed(&mut self, sent: BootInstant, reply: &Reply, ctx: &mut EventContext<'_, A>) {
        let nobody = match reply {
            Reply::Info(Some(sight)) if sight.holder == Some(self.token(ctx).process()) => sight.waiters == 0,
            Reply::Info(_) => {
                self.check_soon(ctx); // it was taken away, it seems
                false
            }
            _ => false,
        };
        self.begin_budget(self.budget.answered(sent, ctx.now, nobody, ctx.rules));
    }

    /// Returns whether `next` can have the lock without asking the server: it would ask for just what stands there, or for what is asked
    /// soon. A grant that is not confirmed yet is believed by whoever has it: a task of this process as well as the first.
    fn can_hand_off_to(&self, next: &QueueEntry<A>, ctx: &EventContext<'_, A>) -> bool {
        let lease = next.terms.lease();
        let left = self.deadline.at().since(ctx.now);
        let is_enough =
            left > lease / 2 || (self.granted && !self.overdue && left > ctx.rules.grant_lease / 2);
        self.renew && next.terms.is_renewed() && lease == self.lease() && is_enough
    }
}

impl<A: Clone + PartialEq> KeyState<A> {
    /// The seat lets go of the lock.
    pub(crate) fn release(&mut self, acquisition: &A, ctx: &mut EventContext<'_, A>) -> ReleaseOutcome {
        let KeyPhase::Held(hold) = &mut self.phase else { return ReleaseOutcome::NotHeld };
        if hold.acquisition != *acquisition {
            return ReleaseOutcome::NotHeld;
        }
        hold.close(ctx);
        let (token, kept_until) = (hold.token(ctx), hold.kept_until());
        if ctx.now < kept_until {
            let keep = self.keep(acquisition.clone(), token, kept_until, ctx.now);
            self.contend(ctx);
            return ReleaseOutcome::Send(token, keep);
        }
        if ctx.rules.yield_to_foreign && hold.fleet_hold(ctx.now).is_over() {
            self.start_cooldown(acquisition, ctx);
            return ReleaseOutcome::Send(token, Command::ReleaseWithoutHandoff);
        }
        let Some(next) = self.queue.head() else {
            return ReleaseOutcome::Send(token, self.release_last(acquisition, ctx));
        };
        if !hold.deadline.holds_at(ctx.now) {
            ctx.send(token, Command::Release);
            self.contend(ctx);
            return ReleaseOutcome::HandedOff;
        }
        match hold.budget.next(ctx.now, *ctx.contended, ctx.rules) {
            HandoffDecision::Yield => self.yield_to_other_processes(ctx),
            to if hold.can_hand_off_to(next, ctx) => {
                if to == HandoffDecision::HandOffAndProbe {
                    hold.probe_waiters(ctx);
                }
                self.hand_off(ctx);
            }
            _ => self.confirm_for_head(token, ctx),
        }
        ReleaseOutcome::HandedOff
    }

    /// The seat was let in and does not want its turn: nothing ran under it that `min_hold` could be for.
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

    /// Gives the hold to the head of the local queue, in memory: the token, its renewal on its way and its deadline go with it.
    fn hand_off(&mut self, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &mut self.phase else { return };
        let Some(next) = self.queue.head_mut() else { return };
        hold.bound(&next.terms, ctx.now);
        ctx.actions.push(hold.grant_action(next, ctx));
        std::mem::swap(&mut hold.acquisition, &mut next.acquisition); // who had it goes with the place of who has it now
        self.queue.advance();
        if hold.needs_confirmation() && hold.more.is_some() {
            hold.confirm(ctx);
        }
    }

    /// The hand-off budget is used up: other processes get their turn, if any waits. From here on no body runs under the old
    /// token until the server says that the lock was kept.
    fn yield_to_other_processes(&mut self, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &self.phase else { return };
        let (next, fleet_hold) = (ctx.tokens.next(), hold.fleet_hold(ctx.now).told(ctx.rules));
        ctx.send(hold.token(ctx), Command::Yield { next, fleet_hold });
        self.phase = KeyPhase::Yielding(Box::new(Yielding { hold: hold.clone(), next }));
    }

    /// The answer to a yield.
    pub(super) fn on_yielded(
        &mut self,
        command: Command,
        sent: BootInstant,
        reply: Reply,
        ctx: &mut EventContext<'_, A>,
    ) {
        let KeyPhase::Yielding(yielding) = &mut self.phase else { return };
        let Yielding { hold, next } = &mut **yielding;
        let (old, next) = (hold.token(ctx), *next);
        match (command, reply) {
            (Command::Renew { lease }, Reply::Owner) => hold.on_confirmed(sent, lease, ctx),
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.on_confirm_failed(lease, ctx.now);
            }
            // That to an earlier offer, heard twice: the server may have handed the lock on since.
            (Command::Yield { next: of, .. }, _) if of != next => {}
            (Command::Yield { .. }, Reply::Owner) => {
                let Some(head) = self.queue.head() else { return };
                *ctx.contended = false;
                if hold.can_hand_off_to(head, ctx) {
                    hold.begin_budget(HandoffBudget::begun(ctx.now));
                    self.phase = KeyPhase::Held(hold.clone());
                    self.hand_off(ctx);
                } else {
                    self.confirm_for_head(old, ctx);
                }
            }
            (Command::Yield { .. }, Reply::Yielded) => {
                *ctx.contended = true;
                let whose = hold.acquisition.clone();
                self.enqueue_after_yield(whose, next, sent, ctx);
            }
            (Command::Yield { .. }, Reply::NotOwner) => self.contend(ctx),
            // Where nobody queues, the lock was let go of for others to take.
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

    /// The yield queued our next token: that counts as an enqueue answered "queued".
    fn enqueue_after_yield(&mut self, whose: A, next: Token, sent: BootInstant, ctx: &EventContext<'_, A>) {
        let recheck = sent.plus(ctx.rules.grant_lease / 2);
        let step = contender::ContenderState::queued(sent, recheck);
        let mut contender = contender::Contender::new(whose, next, step, FleetHold::UNKNOWN);
        contender.round_trip = contender.round_trip.measured(sent, ctx.now);
        self.phase = KeyPhase::Contending(contender);
    }

    /// A grant for the yield's next token came before the yield's own answer: it is a grant, and that answer says nothing new.
    pub(super) fn on_grant_while_yielding(&mut self, offer: Grant, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Yielding(yielding) = &self.phase else { return };
        let next = yielding.next;
        self.confirm_for_head(next, ctx);
        if let KeyPhase::Contending(contender) = &mut self.phase {
            contender.fleet_hold = offer.fleet_hold;
        }
    }

    /// An answer that concerns the present hold.
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
            _ => {} // the answer to an enqueue that a grant overtook
        }
    }

    /// Renews what is due and gives up what cannot be believed any more.
    pub(super) fn watch(&mut self, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &mut self.phase else { return };
        if !hold.deadline.holds_at(ctx.now) {
            let cause = if hold.granted { LossCause::GrantUnconfirmed } else { LossCause::Expired };
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

    /// The hold is over before its end. Those who wait here ask anew; what is left of it in the server keeps them out until its body
    /// is gone, or the key expires.
    pub(crate) fn mark_lost(&mut self, cause: LossCause, ctx: &mut EventContext<'_, A>) {
        let KeyPhase::Held(hold) = &mut self.phase else { return };
        hold.close(ctx);
        let (token, kept_until, deadline) = (hold.token(ctx), hold.kept_until(), hold.deadline.at());
        let left = ResidualHold { token, kept_until, deadline };
        let left = (cause != LossCause::NotOwner).then_some(left);
        let acquisition = hold.acquisition.clone();
        ctx.actions.push(Action::Revoke { acquisition: acquisition.clone(), cause, left });
        if let Some(left) = left {
            self.leave_to_body(acquisition, left, ctx);
        }
        self.contend(ctx);
    }
}

/// So little is left of a short lease, or of one that is long overdue.
const LITTLE_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
