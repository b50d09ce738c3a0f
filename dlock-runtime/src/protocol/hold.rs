//! What a task that holds the lock does with it: it is renewed, lost, handed on, yielded, or released.
//!
//! Not here: how a task comes to hold (`acquire`), when a renewal is due (`renew`), when others get their turn (`budget`), calls inside
//! the hold (`nesting`), what becomes of a turn that is over too early (`keep`).

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::budget::{Budget, Next};
use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::{BootTime, Deadline, Span};
use crate::protocol::hint::Check;
use crate::protocol::lane::{Action, Cx, Lane, Stage};
use crate::protocol::nesting::Levels;
use crate::protocol::queue::Waiter;
use crate::protocol::share::{Offer, Streak};
use crate::protocol::terms::Terms;
use crate::protocol::{acquire, renew};
use crate::token::Token;

/// A lock that a task of this process has.
#[derive(Clone, Debug)]
pub(crate) struct Hold<S> {
    pub(super) seat: S,
    /// The number of its token: all that a lane knows are of its own process.
    number: u64,
    lease: Span,
    deadline: Deadline,
    /// For how long the tasks of this process hand it to each other.
    budget: Budget,
    /// When the next renewal (or confirmation) is to be sent.
    pub(super) next_renewal: BootTime,
    /// When it is checked; `check` says what it means.
    pub(super) check_at: BootTime,
    /// What few holds have; most are held by many at once, and small.
    more: Option<Box<More<S>>>,
    /// For how long our family had had it when it came to us.
    streak: Streak,
    pub(super) check: Check,
    renew: bool,
    /// Whether it is a grant that the server has not confirmed yet.
    pub(super) granted: bool,
    /// Whether the last renewal got no answer.
    overdue: bool,
}

/// What few holds have: bounds of the present turn, and calls inside it that want the same key.
#[derive(Clone, Debug)]
struct More<S> {
    /// When the turn of its task is over, however often it is renewed.
    ends: BootTime,
    /// Before then nobody else gets the lock.
    kept_until: BootTime,
    levels: Levels<S>,
}

impl<S: Clone + PartialEq> Default for More<S> {
    fn default() -> Self {
        Self { ends: BootTime::NEVER, kept_until: BootTime::START, levels: Levels::new() }
    }
}

/// A lock that was ours and is on offer to other processes.
#[derive(Clone, Debug)]
pub(crate) struct Yielding<S> {
    /// The hold as it was when its last task let go; nobody runs on it.
    pub(super) hold: Hold<S>,
    /// The token under which we wait for our next turn, if somebody takes the offer.
    pub(super) next: Token,
}

/// What a turn that was lost leaves in the server: it was ours to the end, and is nobody's until its body is gone or the key expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(super) token: Token,
    pub(super) kept_until: BootTime,
    /// When its lease is over.
    pub(crate) deadline: BootTime,
}

/// What a release comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// The server is to be told, about this token.
    ToServer(Token, Command),
    /// A task of this process has it now, or will.
    Kept,
    /// The seat did not hold.
    NotHeld,
}

impl<S: Clone + PartialEq> Hold<S> {
    pub(super) fn new(
        waiter: &Waiter<S>,
        token: Token,
        deadline: Deadline,
        streak: Streak,
        cx: &Cx<'_, S>,
    ) -> Self {
        let since = cx.now;
        let terms = &waiter.terms;
        let (check, check_at) = Check::of_hold(since, cx.rules);
        let mut hold = Self {
            seat: waiter.seat.clone(),
            number: token.number(),
            lease: Span::of(terms.lease()),
            deadline,
            budget: Budget::begun(since),
            next_renewal: BootTime::NEVER,
            check_at,
            more: None,
            streak,
            check,
            renew: terms.is_renewed(),
            granted: false,
            overdue: false,
        };
        hold.bound(terms, since);
        hold
    }

    pub(super) fn due(&self) -> BootTime {
        self.next_renewal.min(self.check_due()).min(self.deadline.at()).min(self.bounds_due())
    }

    /// Returns when the turn is over, or something is due for the calls inside it.
    pub(super) fn bounds_due(&self) -> BootTime {
        self.more.as_ref().map_or(BootTime::NEVER, |more| more.ends.min(more.levels.due()))
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Returns the token that holds the lock.
    pub(super) fn token(&self, cx: &Cx<'_, S>) -> Token {
        cx.tokens.numbered(self.number)
    }

    /// Returns whether a token of this process holds the lock.
    pub(super) fn is_under(&self, token: Token) -> bool {
        self.number == token.number()
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease.get()
    }

    fn ends(&self) -> BootTime {
        self.more.as_ref().map_or(BootTime::NEVER, |more| more.ends)
    }

    fn kept_until(&self) -> BootTime {
        self.more.as_ref().map_or(BootTime::START, |more| more.kept_until)
    }

    /// Sets the bounds of a turn that begins at `since`.
    fn bound(&mut self, terms: &Terms, since: BootTime) {
        if self.more.is_some() || terms.has_bounds() {
            let more = self.more.get_or_insert_default();
            (more.ends, more.kept_until) = (terms.ends(since), terms.kept_until(since));
        }
    }

    /// Returns the calls inside the hold.
    pub(super) fn levels(&mut self) -> &mut Levels<S> {
        &mut self.more.get_or_insert_default().levels
    }

    /// A call inside the hold has ended, or does not want to wait any more. Returns whether there was one.
    pub(super) fn leave(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> bool {
        self.more.as_mut().is_some_and(|more| more.levels.leave(seat, cx))
    }

    /// Nobody joins the turn any more.
    fn close(&mut self, cx: &mut Cx<'_, S>) {
        if let Some(more) = &mut self.more {
            more.levels.close(cx);
        }
    }

    /// Tells the waiter that has the hold now.
    pub(super) fn admits(&self, waiter: &Waiter<S>, cx: &Cx<'_, S>) -> Action<S> {
        Action::Admit {
            seat: waiter.seat.clone(),
            token: self.token(cx),
            deadline: self.deadline,
            ends: self.ends(),
            is_unconfirmed: self.granted,
            attempts: waiter.patience.attempts(),
        }
    }

    /// The hold is a grant that is believed: the server is asked to confirm it, soon, as most turns of a lock that many want are over
    /// before. One that has to last is confirmed at once: by no renewal, or for longer than its task lives.
    pub(super) fn confirm_grant(&mut self, cx: &mut Cx<'_, S>) {
        if cx.rules.confirm_at_once || !self.renew || self.more.is_some() {
            self.confirm(cx);
        } else {
            self.next_renewal = renew::confirmation_due(cx.now, self.deadline.at().since(cx.now));
        }
    }

    /// Returns whether it is a grant that is to be confirmed soon.
    pub(super) fn is_to_be_confirmed(&self) -> bool {
        self.granted && self.next_renewal != BootTime::NEVER
    }

    /// Asks the server to confirm the hold.
    pub(super) fn confirm(&mut self, cx: &mut Cx<'_, S>) {
        self.next_renewal = BootTime::NEVER;
        cx.send(self.token(cx), Command::Renew { lease: self.lease() });
    }

    /// The server has confirmed the hold, as asked at `sent`.
    pub(super) fn confirmed(&mut self, sent: BootTime, lease: Duration, cx: &Cx<'_, S>) {
        self.deadline = self.deadline.or_later(Deadline::of_lease(sent, lease));
        (self.granted, self.overdue) = (false, false);
        // An `extend` asks for a lease of its own and leaves the watchdog's rhythm alone.
        if lease == self.lease() {
            self.next_renewal = if self.renew {
                renew::due(sent, lease, cx.tokens.place(self.number))
            } else {
                BootTime::NEVER
            };
        }
    }

    /// The server did not confirm the hold: it is asked again soon.
    fn unconfirmed(&mut self, lease: Duration, now: BootTime) {
        if lease == self.lease() {
            self.overdue = true;
            self.next_renewal = renew::retry_at(now, lease, self.deadline.at().since(now));
        }
    }

    /// Has it renewed where an answer is missing, and wherever it is renewed at all where the server is another.
    ///
    /// It is due then with all others, which go out a few at a time; one that has little time left waits for none.
    pub(super) fn renew_if_overdue(&mut self, moved: bool, cx: &mut Cx<'_, S>) {
        if !(self.overdue || moved) || self.next_renewal == BootTime::NEVER {
            return;
        }
        if self.deadline.at().since(cx.now) < LITTLE_TIME {
            self.confirm(cx);
        } else {
            self.next_renewal = self.next_renewal.min(cx.now);
        }
    }

    /// For how long our family has had the lock without a break.
    pub(super) fn streak(&self, now: BootTime) -> Streak {
        self.streak.plus(now.since(self.budget.since()))
    }

    /// Returns the budget for a task that follows, and the streak by its begin.
    pub(super) fn streak_and_budget(&self) -> (Streak, Option<Budget>) {
        (self.streak, Some(self.budget.left()))
    }

    /// A task of this process had it before.
    pub(super) fn go_on_with(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// The tasks of this process may have it for longer. Where the budget begins a little later, the streak is that of then.
    fn begin_budget(&mut self, budget: Budget) {
        (self.streak, self.budget) = (self.streak(budget.since()), budget);
    }

    /// Asks the server who else waits.
    fn ask_who_waits(&mut self, cx: &mut Cx<'_, S>) {
        self.budget.ask();
        cx.send(self.token(cx), Command::Inspect);
    }

    /// The server has said who else waits, or nothing.
    fn heard_who_waits(&mut self, sent: BootTime, reply: &Reply, cx: &mut Cx<'_, S>) {
        let nobody = match reply {
            Reply::Seen(Some(sight)) if sight.holder == Some(self.token(cx).process()) => sight.waiters == 0,
            Reply::Seen(_) => {
                self.check_soon(cx); // it was taken away, it seems
                false
            }
            _ => false,
        };
        self.begin_budget(self.budget.answered(sent, cx.now, nobody, cx.rules));
    }

    /// Returns whether `next` can have the lock without asking the server: it would ask for just what stands there, or for what is asked
    /// soon. A grant that is not confirmed yet is believed by whoever has it: a task of this process as well as the first.
    fn passes_to(&self, next: &Waiter<S>, cx: &Cx<'_, S>) -> bool {
        let lease = next.terms.lease();
        let left = self.deadline.at().since(cx.now);
        let is_enough =
            left > lease / 2 || (self.granted && !self.overdue && left > cx.rules.grant_lease / 2);
        self.renew && next.terms.is_renewed() && lease == self.lease() && is_enough
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// The seat lets go of the lock.
    pub(crate) fn release(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> Released {
        let Stage::Held(hold) = &mut self.stage else { return Released::NotHeld };
        if hold.seat != *seat {
            return Released::NotHeld;
        }
        hold.close(cx);
        let (token, kept_until) = (hold.token(cx), hold.kept_until());
        if cx.now < kept_until {
            let keep = self.keep(seat.clone(), token, kept_until, cx.now);
            self.ask(cx);
            return Released::ToServer(token, keep);
        }
        if cx.rules.yield_to_foreign && hold.streak(cx.now).is_over() {
            self.stay_away(seat, cx);
            return Released::ToServer(token, Command::Free);
        }
        let Some(next) = self.queue.head() else {
            return Released::ToServer(token, self.let_go_alone(seat, cx));
        };
        if !hold.deadline.holds_at(cx.now) {
            cx.send(token, Command::Release);
            self.ask(cx);
            return Released::Kept;
        }
        match hold.budget.next(cx.now, *cx.contended, cx.rules) {
            Next::Offer => self.offer_to_others(cx),
            to if hold.passes_to(next, cx) => {
                if to == Next::HandOnAndAsk {
                    hold.ask_who_waits(cx);
                }
                self.hand_on(cx);
            }
            _ => self.confirm_for_head(token, cx),
        }
        Released::Kept
    }

    /// The seat was let in and does not want its turn: nothing ran under it that `min_hold` could be for.
    pub(crate) fn decline(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> Released {
        if let Stage::Held(hold) = &mut self.stage
            && hold.seat == *seat
            && let Some(more) = &mut hold.more
        {
            more.kept_until = BootTime::START;
        }
        self.release(seat, cx)
    }

    /// Gives the hold to the head of the local queue, in memory: the token, its renewal on its way and its deadline go with it.
    fn hand_on(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let Some(next) = self.queue.head_mut() else { return };
        hold.bound(&next.terms, cx.now);
        cx.actions.push(hold.admits(next, cx));
        std::mem::swap(&mut hold.seat, &mut next.seat); // who had it goes with the place of who has it now
        self.queue.advance();
        if hold.is_to_be_confirmed() && hold.more.is_some() {
            hold.confirm(cx);
        }
    }

    /// The hand-off budget is used up: other processes get their turn, if any waits. From here on no body runs under the old
    /// token until the server says that the lock was kept.
    fn offer_to_others(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &self.stage else { return };
        let (next, streak) = (cx.tokens.next(), hold.streak(cx.now).told(cx.rules));
        cx.send(hold.token(cx), Command::Yield { next, streak });
        self.stage = Stage::Yielding(Box::new(Yielding { hold: hold.clone(), next }));
    }

    /// The answer to a yield.
    pub(super) fn yielded(&mut self, command: Command, sent: BootTime, reply: Reply, cx: &mut Cx<'_, S>) {
        let Stage::Yielding(yielding) = &mut self.stage else { return };
        let Yielding { hold, next } = &mut **yielding;
        let (old, next) = (hold.token(cx), *next);
        match (command, reply) {
            (Command::Renew { lease }, Reply::Ours) => hold.confirmed(sent, lease, cx),
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.unconfirmed(lease, cx.now);
            }
            // That to an earlier offer, heard twice: the server may have handed the lock on since.
            (Command::Yield { next: of, .. }, _) if of != next => {}
            (Command::Yield { .. }, Reply::Ours) => {
                let Some(head) = self.queue.head() else { return };
                *cx.contended = false;
                if hold.passes_to(head, cx) {
                    hold.begin_budget(Budget::begun(cx.now));
                    self.stage = Stage::Held(hold.clone());
                    self.hand_on(cx);
                } else {
                    self.confirm_for_head(old, cx);
                }
            }
            (Command::Yield { .. }, Reply::Yielded) => {
                *cx.contended = true;
                let whose = hold.seat.clone();
                self.queued_by_yield(whose, next, sent, cx);
            }
            (Command::Yield { .. }, Reply::NotOwner) => self.ask(cx),
            // Where nobody queues, the lock was let go of for others to take.
            (Command::Yield { .. }, Reply::NotQueued { ttl }) => {
                self.taken(ttl, cx);
                self.stand_back(ttl.unwrap_or_default(), cx);
            }
            (Command::Yield { .. }, Reply::Unknown(failure)) => {
                cx.abandon(old);
                cx.abandon(next);
                self.failed(failure, cx);
            }
            (Command::Yield { .. }, Reply::Refused(failure)) => {
                cx.abandon(old);
                self.failed(failure, cx);
            }
            _ => {}
        }
    }

    /// The yield queued our next token: that counts as an enqueue answered "queued".
    fn queued_by_yield(&mut self, whose: S, next: Token, sent: BootTime, cx: &Cx<'_, S>) {
        let recheck = sent.plus(cx.rules.grant_lease / 2);
        let step = acquire::Step::queued(sent, recheck);
        let mut asking = acquire::Asking::new(whose, next, step, Streak::UNKNOWN);
        asking.round_trip = asking.round_trip.measured(sent, cx.now);
        self.stage = Stage::Asking(asking);
    }

    /// A grant for the yield's next token came before the yield's own answer: it is a grant, and that answer says nothing new.
    pub(super) fn granted_before_the_yield_is_answered(&mut self, offer: Offer, cx: &mut Cx<'_, S>) {
        let Stage::Yielding(yielding) = &self.stage else { return };
        let next = yielding.next;
        self.confirm_for_head(next, cx);
        if let Stage::Asking(asking) = &mut self.stage {
            asking.streak = offer.streak;
        }
    }

    /// An answer that concerns the present hold.
    pub(super) fn answered_while_held(
        &mut self,
        command: Command,
        sent: BootTime,
        reply: Reply,
        cx: &mut Cx<'_, S>,
    ) {
        let Stage::Held(hold) = &mut self.stage else { return };
        match (command, reply) {
            (Command::Renew { lease }, Reply::Ours) => {
                hold.confirmed(sent, lease, cx);
                cx.actions.push(Action::Prolong {
                    seat: hold.seat.clone(),
                    deadline: hold.deadline,
                    ends: hold.ends(),
                });
            }
            (Command::Renew { .. } | Command::Check | Command::Fence, Reply::NotOwner) => {
                self.lose(LossCause::NotOwner, cx);
            }
            (Command::Renew { .. } | Command::Check | Command::Inspect, Reply::Refused(failure))
                if failure.kind == FailureKind::WrongKind =>
            {
                self.lose(LossCause::NotOwner, cx);
            }
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.unconfirmed(lease, cx.now);
            }
            (Command::Inspect, reply) => hold.heard_who_waits(sent, &reply, cx),
            _ => {} // the answer to an enqueue that a grant overtook
        }
    }

    /// Renews what is due and gives up what cannot be believed any more.
    pub(super) fn watch(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        if !hold.deadline.holds_at(cx.now) {
            let cause = if hold.granted { LossCause::GrantUnconfirmed } else { LossCause::Expired };
            self.lose(cause, cx);
            return;
        }
        if cx.now >= hold.ends() {
            self.lose(LossCause::MaxHold, cx);
            return;
        }
        if let Some(more) = &mut hold.more {
            more.levels.tick(cx);
        }
        if cx.now >= hold.next_renewal {
            hold.confirm(cx);
        }
        hold.check_if_due(cx);
    }

    /// The hold is over before its end. Those who wait here ask anew; what is left of it in the server keeps them out until its body
    /// is gone, or the key expires.
    pub(crate) fn lose(&mut self, cause: LossCause, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        hold.close(cx);
        let (token, kept_until, deadline) = (hold.token(cx), hold.kept_until(), hold.deadline.at());
        let left = Left { token, kept_until, deadline };
        let left = (cause != LossCause::NotOwner).then_some(left);
        let seat = hold.seat.clone();
        cx.actions.push(Action::Lose { seat: seat.clone(), cause, left });
        if let Some(left) = left {
            self.leave_to_body(seat, left, cx);
        }
        self.ask(cx);
    }
}

/// So little is left of a short lease, or of one that is long overdue.
const LITTLE_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
