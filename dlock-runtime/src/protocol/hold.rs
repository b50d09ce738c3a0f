//! What a task that holds the lock does with it: it is renewed, lost, handed on, yielded, or released.
//!
//! Not here: how a task comes to hold (`acquire`), when a renewal is due (`renew`), calls inside the hold (`nesting`), what becomes
//! of a turn that is over too early (`keep`).

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::{BootTime, Deadline};
use crate::protocol::hint::Check;
use crate::protocol::lane::{Action, Cx, Lane, Stage};
use crate::protocol::nesting::Levels;
use crate::protocol::queue::Waiter;
use crate::protocol::share::{Offer, Share, Streak};
use crate::protocol::terms::Terms;
use crate::protocol::{acquire, renew};
use crate::token::Token;

/// A lock that a task of this process has.
#[derive(Clone, Debug)]
pub(crate) struct Hold<S> {
    pub(super) seat: S,
    pub(super) token: Token,
    pub(super) lease: Duration,
    renew: bool,
    deadline: Deadline,
    /// When the turn of its task is over, however often it is renewed.
    ends: BootTime,
    /// Before then nobody else gets the lock.
    kept_until: BootTime,
    /// Since when the tasks of this process have it without a break; the hand-off budget counts from here.
    since: BootTime,
    /// For how long our family had had it then.
    streak: Streak,
    /// When the next renewal (or confirmation) is to be sent.
    next_renewal: BootTime,
    /// Whether the last renewal got no answer.
    overdue: bool,
    pub(super) check: Check,
    pub(super) levels: Levels<S>,
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
        Self {
            seat: waiter.seat.clone(),
            token,
            lease: terms.lease,
            renew: terms.renew,
            deadline,
            ends: terms.ends(since),
            kept_until: terms.kept_until(since),
            since,
            streak,
            next_renewal: BootTime::NEVER,
            overdue: false,
            check: Check::of_hold(since, cx.rules),
            levels: Levels::new(),
        }
    }

    pub(super) fn due(&self) -> BootTime {
        let renewed = self.next_renewal.min(self.check.due());
        renewed.min(self.deadline.at()).min(self.ends).min(self.levels.due())
    }

    /// Tells the waiter that has the hold now.
    pub(super) fn admits(&self, waiter: &Waiter<S>) -> Action<S> {
        Action::Admit {
            seat: waiter.seat.clone(),
            token: self.token,
            deadline: self.deadline,
            ends: self.ends,
            attempts: waiter.patience.attempts(),
        }
    }

    /// Asks the server to confirm a grant that has been believed already.
    pub(super) fn confirm(&mut self, cx: &mut Cx<'_, S>) {
        self.next_renewal = BootTime::NEVER;
        cx.send(self.token, Command::Renew { lease: self.lease });
    }

    /// The server has confirmed the hold, as asked at `sent`.
    pub(super) fn confirmed(&mut self, sent: BootTime, lease: Duration) {
        self.deadline = self.deadline.or_later(Deadline::of_lease(sent, lease));
        self.overdue = false;
        // An `extend` asks for a lease of its own and leaves the watchdog's rhythm alone.
        if lease == self.lease {
            self.next_renewal = if self.renew { renew::due(sent, lease) } else { BootTime::NEVER };
        }
    }

    /// Renews at once where an answer is missing, and whatever is renewed at all where the server is another.
    pub(super) fn renew_if_overdue(&mut self, moved: bool, cx: &mut Cx<'_, S>) {
        if (self.overdue || moved) && self.next_renewal != BootTime::NEVER {
            self.confirm(cx);
        }
    }

    /// For how long our family has had the lock without a break.
    pub(super) fn streak(&self, now: BootTime) -> Streak {
        self.streak.plus(now.since(self.since))
    }

    /// Returns whether `next` can have the lock without asking the server: it would ask for just what stands there.
    fn passes_to(&self, next: &Waiter<S>, now: BootTime) -> bool {
        let Terms { lease, renew, .. } = next.terms;
        self.renew && renew && lease == self.lease && self.deadline.at().since(now) > lease / 2
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// The seat lets go of the lock.
    pub(crate) fn release(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> Released {
        let Stage::Held(hold) = &mut self.stage else { return Released::NotHeld };
        if hold.seat != *seat {
            return Released::NotHeld;
        }
        hold.levels.close(cx);
        let (token, kept_until) = (hold.token, hold.kept_until);
        if cx.now < kept_until {
            let keep = self.keep(token, kept_until, cx.now);
            self.ask(cx);
            return Released::ToServer(token, keep);
        }
        if cx.rules.share == Share::SetNx && hold.streak(cx.now).is_over() {
            self.stay_away(cx);
            return Released::ToServer(token, Command::Free);
        }
        let Some(next) = self.queue.head() else {
            return Released::ToServer(token, self.let_go_alone(cx));
        };
        if !hold.deadline.holds_at(cx.now) {
            cx.send(token, Command::Release);
            self.ask(cx);
            return Released::Kept;
        }
        if cx.now.since(hold.since) >= cx.rules.hand_off {
            self.offer_to_others(cx);
        } else if hold.passes_to(next, cx.now) {
            self.hand_on(cx);
        } else {
            let lease = next.terms.lease;
            self.confirm_for(token, lease, cx);
        }
        Released::Kept
    }

    /// The seat was let in and does not want its turn: nothing ran under it that `at_least` could be for.
    pub(crate) fn decline(&mut self, seat: &S, cx: &mut Cx<'_, S>) -> Released {
        if let Stage::Held(hold) = &mut self.stage
            && hold.seat == *seat
        {
            hold.kept_until = BootTime::START;
        }
        self.release(seat, cx)
    }

    /// Gives the hold to the head of the local queue, in memory: the token, its renewal on its way and its deadline go with it.
    fn hand_on(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let Some(next) = self.queue.pop() else { return };
        hold.seat = next.seat.clone();
        (hold.ends, hold.kept_until) = (next.terms.ends(cx.now), next.terms.kept_until(cx.now));
        cx.actions.push(hold.admits(&next));
    }

    /// The hand-off budget is used up: other processes get their turn, if any waits. From here on no body runs under the old
    /// token until the server says that the lock was kept.
    fn offer_to_others(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &self.stage else { return };
        let (next, streak) = (cx.tokens.next(), cx.rules.share.told(hold.streak(cx.now)));
        cx.send(hold.token, Command::Yield { next, streak });
        self.stage = Stage::Yielding(Yielding { hold: hold.clone(), next });
    }

    /// The answer to a yield.
    pub(super) fn yielded(&mut self, command: Command, sent: BootTime, reply: Reply, cx: &mut Cx<'_, S>) {
        let Stage::Yielding(Yielding { hold, next }) = &mut self.stage else { return };
        let (old, next) = (hold.token, *next);
        match (command, reply) {
            (Command::Renew { lease }, Reply::Ours) => hold.confirmed(sent, lease),
            (Command::Yield { .. }, Reply::Ours) => {
                let Some(head) = self.queue.head() else { return };
                if hold.passes_to(head, cx.now) {
                    (hold.streak, hold.since) = (hold.streak(cx.now), cx.now);
                    self.stage = Stage::Held(hold.clone());
                    self.hand_on(cx);
                } else {
                    let lease = head.terms.lease;
                    self.confirm_for(old, lease, cx);
                }
            }
            (Command::Yield { .. }, Reply::Yielded) => self.queued_by_yield(next, sent, cx),
            (Command::Yield { .. }, Reply::NotOurs) => self.ask(cx),
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
    fn queued_by_yield(&mut self, next: Token, sent: BootTime, cx: &Cx<'_, S>) {
        let recheck = sent.plus(cx.rules.grant_lease / 2);
        let step = acquire::Step::Queued { proof: sent, recheck, asked: false };
        self.stage = Stage::Asking(acquire::Asking::new(next, step, Streak::UNKNOWN));
    }

    /// A grant for the yield's next token came before the yield's own answer: it is a grant, and that answer says nothing new.
    pub(super) fn granted_before_the_yield_is_answered(&mut self, offer: Offer, cx: &mut Cx<'_, S>) {
        let (Stage::Yielding(yielding), Some(lease)) = (&self.stage, self.head_lease()) else { return };
        let next = yielding.next;
        self.confirm_for(next, lease, cx);
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
                hold.confirmed(sent, lease);
                cx.actions.push(Action::Prolong { seat: hold.seat.clone(), deadline: hold.deadline });
            }
            (Command::Renew { .. } | Command::Fence, Reply::NotOurs) => self.lose(LossCause::NotOurs, cx),
            (Command::Renew { .. }, Reply::Refused(failure)) if failure.kind == FailureKind::WrongKind => {
                self.lose(LossCause::NotOurs, cx);
            }
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) if lease == hold.lease => {
                hold.overdue = true;
                hold.next_renewal = renew::retry_at(cx.now, lease, hold.deadline.at().since(cx.now));
            }
            _ => {} // the answer to an enqueue that a grant overtook
        }
    }

    /// Renews what is due and gives up what cannot be believed any more.
    pub(super) fn watch(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        if !hold.deadline.holds_at(cx.now) {
            self.lose(LossCause::Expired, cx);
            return;
        }
        if cx.now >= hold.ends {
            self.lose(LossCause::MaxHold, cx);
            return;
        }
        hold.levels.tick(cx);
        if cx.now >= hold.next_renewal {
            hold.confirm(cx);
        }
        hold.check_if_due(cx);
    }

    /// The hold is over before its end. Those who wait here ask anew; what is left of it in the server keeps them out until its body
    /// is gone, or the key expires.
    pub(crate) fn lose(&mut self, cause: LossCause, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        hold.levels.close(cx);
        let (left, deadline) = (Left { token: hold.token, kept_until: hold.kept_until }, hold.deadline);
        let left = (cause != LossCause::NotOurs).then_some(left);
        cx.actions.push(Action::Lose { seat: hold.seat.clone(), cause, left });
        if let Some(left) = left {
            self.leave_to_body(left, deadline.at(), cx);
        }
        self.ask(cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Rules;
    use crate::protocol::command::Failure;
    use crate::protocol::scene::{RULES, TERMS, at, happen, held, waiter};

    /// A lane whose first task has let go while a second waits, and that has sent its yield at 100 ms; and the yield's two tokens.
    fn yielding() -> (Lane<u32>, Token, Token) {
        let (mut lane, old) = held(TERMS);
        happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, TERMS), cx));
        happen(&mut lane, 100, |lane, cx| {
            lane.release(&1, cx);
        });
        let Stage::Yielding(yielding) = &lane.stage else { panic!("{lane:?}") };
        let next = yielding.next;
        (lane, old, next)
    }

    fn offer_of(next: Token) -> Command {
        Command::Yield { next, streak: Streak::UNKNOWN }
    }

    #[test]
    fn a_grant_after_a_yield_is_counted_from_when_the_yield_was_sent() {
        let (mut lane, old, next) = yielding();
        happen(&mut lane, 1_000, |lane, cx| {
            lane.reply(old, offer_of(next), at(100), Reply::Yielded, cx);
        });

        let actions = happen(&mut lane, 1_100, |lane, cx| {
            let offer = Offer { lease: RULES.grant_lease, streak: Streak::UNKNOWN };
            lane.granted(next, offer, cx);
        });

        assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
    }

    #[test]
    fn a_yield_where_nobody_queues_leaves_others_a_moment_to_take_the_lock() {
        let (mut lane, old, next) = yielding();
        let freed = Reply::NotQueued { ttl: Some(Duration::from_millis(8)) };

        let actions = happen(&mut lane, 101, |lane, cx| lane.reply(old, offer_of(next), at(100), freed, cx));

        assert!(actions.is_empty(), "{actions:?}");
        assert_eq!(lane.due(), at(111));
        assert!(happen(&mut lane, 102, Lane::touched).is_empty(), "our own bell rings, too");
        let again = happen(&mut lane, 109, Lane::tick);
        assert!(matches!(again[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{again:?}");
    }

    /// A lane in which a hold is prolonged, at 100 ms, for the next task, which wants it for longer; its token, and what that task wants.
    fn confirming() -> (Lane<u32>, Token, Terms) {
        let (mut lane, held) = held(TERMS);
        let terms = Terms { lease: 2 * TERMS.lease, ..TERMS };
        happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, terms), cx));
        let rules = Rules { hand_off: Duration::from_secs(1), ..RULES };
        happen(&mut lane, 100, |lane, cx| {
            let mut cx = Cx { rules: &rules, now: cx.now, tokens: cx.tokens, actions: &mut *cx.actions };
            lane.release(&1, &mut cx);
        });
        (lane, held, terms)
    }

    #[test]
    fn a_lock_that_is_gone_before_it_is_handed_on_is_asked_for_anew_where_nobody_queues() {
        let (mut lane, held, terms) = confirming();
        let renew = Command::Renew { lease: terms.lease };
        happen(&mut lane, 101, |lane, cx| lane.reply(held, renew, at(100), Reply::NotOurs, cx));

        let again = Command::Enqueue { lease: terms.lease, mode: crate::protocol::command::Enqueue::Again };
        let free = Reply::NotQueued { ttl: Some(Duration::ZERO) };
        happen(&mut lane, 102, |lane, cx| lane.reply(held, again, at(101), free, cx));

        let asked = happen(&mut lane, 104, Lane::tick);
        assert!(matches!(asked[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{asked:?}");
    }

    #[test]
    fn a_lock_is_let_go_of_that_nobody_said_is_still_ours_where_nobody_queues() {
        let (mut lane, held, terms) = confirming();
        let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
        let renew = Command::Renew { lease: terms.lease };
        happen(&mut lane, 600, |lane, cx| lane.reply(held, renew, at(100), unknown, cx));

        let again = Command::Enqueue { lease: terms.lease, mode: crate::protocol::command::Enqueue::Again };
        let kept = Reply::NotQueued { ttl: Some(TERMS.lease) };
        let let_go = happen(&mut lane, 800, |lane, cx| lane.reply(held, again, at(790), kept, cx));

        assert!(
            matches!(let_go[..], [Action::Send { token, command: Command::Release }] if token == held),
            "{let_go:?}"
        );
    }

    #[test]
    fn a_yield_without_an_answer_leaves_both_its_tokens() {
        let (mut lane, old, next) = yielding();

        let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
        let actions =
            happen(&mut lane, 600, |lane, cx| lane.reply(old, offer_of(next), at(100), unknown, cx));

        let abandoned = |wanted| {
            actions.iter().any(|action| matches!(action, Action::Abandon { token } if *token == wanted))
        };
        assert!(abandoned(old) && abandoned(next), "{actions:?}");
    }

    #[test]
    fn on_another_server_a_hold_is_confirmed_before_it_is_due() {
        let (mut lane, held) = held(TERMS);

        assert!(happen(&mut lane, 100, |lane, cx| lane.reconnected(false, cx)).is_empty());
        let actions = happen(&mut lane, 200, |lane, cx| lane.reconnected(true, cx));

        assert!(
            matches!(actions[..], [Action::Send { token, command: Command::Renew { .. } }] if token == held),
            "{actions:?}"
        );
    }

    #[test]
    fn on_another_server_a_fixed_lease_is_not_prolonged() {
        let (mut lane, _) = held(Terms { renew: false, ..TERMS });

        let actions = happen(&mut lane, 200, |lane, cx| lane.reconnected(true, cx));

        assert!(actions.is_empty(), "{actions:?}");
    }

    #[test]
    fn a_turn_is_lost_when_its_max_hold_is_over_and_released_when_its_body_is_gone() {
        let (mut lane, held) = held(Terms { max_hold: Some(Duration::from_secs(40)), ..TERMS });
        let renewed = Command::Renew { lease: TERMS.lease };
        happen(&mut lane, 30_000, |lane, cx| lane.reply(held, renewed, at(29_999), Reply::Ours, cx));
        assert_eq!(happen(&mut lane, 40_000, Lane::tick).len(), 1, "a renewal");
        assert_eq!(lane.due(), at(40_001));

        let actions = happen(&mut lane, 40_001, Lane::tick);

        let [Action::Lose { cause: LossCause::MaxHold, left: Some(left), .. }] = actions[..] else {
            panic!("{actions:?}")
        };
        let gone = happen(&mut lane, 41_000, |lane, cx| lane.let_go_of(left, true, cx));
        assert!(
            matches!(gone[..], [Action::Send { token, command: Command::Release }] if token == held),
            "{gone:?}"
        );
    }

    #[test]
    fn a_turn_that_was_handed_on_has_a_max_hold_of_its_own() {
        let (mut lane, _) = held(TERMS);
        let terms = Terms { max_hold: Some(Duration::from_secs(1)), ..TERMS };
        happen(&mut lane, 1, |lane, cx| lane.join(waiter(2, terms), cx));
        let rules = Rules { hand_off: Duration::from_secs(1), ..RULES };

        let actions = happen(&mut lane, 500, |lane, cx| {
            let mut cx = Cx { rules: &rules, now: cx.now, tokens: cx.tokens, actions: &mut *cx.actions };
            lane.release(&1, &mut cx);
        });

        assert!(
            matches!(actions[..], [Action::Admit { seat: 2, ends, .. }] if ends == at(1_500)),
            "{actions:?}"
        );
        assert_eq!(lane.due(), at(1_500));
    }
}
