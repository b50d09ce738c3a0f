//! What a task that holds the lock does with it: it is renewed, lost, handed on, yielded, or released.
//!
//! Not here: how a task comes to hold (`acquire`), when a renewal is due (`renew`), calls inside the hold (`nesting`), what becomes
//! of a turn that is over too early (`keep`).

use std::time::Duration;

use crate::error::LossCause;
use crate::protocol::command::{Command, FailureKind, Reply};
use crate::protocol::deadline::{BootTime, Deadline, Span};
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
    /// The number of its token: all that a lane knows are of its own process.
    number: u64,
    lease: Span,
    deadline: Deadline,
    /// Since when the tasks of this process have it without a break; the hand-off budget counts from here.
    since: BootTime,
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
            lease: Span::of(terms.lease),
            deadline,
            since,
            next_renewal: BootTime::NEVER,
            check_at,
            more: None,
            streak,
            check,
            renew: terms.renew,
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
            attempts: waiter.patience.attempts(),
        }
    }

    /// Asks the server to confirm a grant that has been believed already.
    pub(super) fn confirm(&mut self, cx: &mut Cx<'_, S>) {
        self.next_renewal = BootTime::NEVER;
        cx.send(self.token(cx), Command::Renew { lease: self.lease() });
    }

    /// The server has confirmed the hold, as asked at `sent`.
    pub(super) fn confirmed(&mut self, sent: BootTime, lease: Duration) {
        self.deadline = self.deadline.or_later(Deadline::of_lease(sent, lease));
        self.overdue = false;
        // An `extend` asks for a lease of its own and leaves the watchdog's rhythm alone.
        if lease == self.lease() {
            self.next_renewal =
                if self.renew { renew::due(sent, lease, self.number) } else { BootTime::NEVER };
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
        self.streak.plus(now.since(self.since))
    }

    /// Returns whether `next` can have the lock without asking the server: it would ask for just what stands there, or for what is on
    /// its way. A grant is believed while its confirmation is, by whoever has it: a task of this process as well as the first.
    fn passes_to(&self, next: &Waiter<S>, cx: &Cx<'_, S>) -> bool {
        let Terms { lease, renew, .. } = next.terms;
        let left = self.deadline.at().since(cx.now);
        let is_being_asked = self.next_renewal == BootTime::NEVER && !self.overdue;
        let is_enough = left > lease / 2 || (is_being_asked && left > cx.rules.grant_lease / 2);
        self.renew && renew && lease == self.lease() && is_enough
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
        } else if hold.passes_to(next, cx) {
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
            && let Some(more) = &mut hold.more
        {
            more.kept_until = BootTime::START;
        }
        self.release(seat, cx)
    }

    /// Gives the hold to the head of the local queue, in memory: the token, its renewal on its way and its deadline go with it.
    fn hand_on(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let Some(next) = self.queue.pop() else { return };
        hold.seat = next.seat.clone();
        hold.bound(&next.terms, cx.now);
        cx.actions.push(hold.admits(&next, cx));
    }

    /// The hand-off budget is used up: other processes get their turn, if any waits. From here on no body runs under the old
    /// token until the server says that the lock was kept.
    fn offer_to_others(&mut self, cx: &mut Cx<'_, S>) {
        let Stage::Held(hold) = &self.stage else { return };
        let (next, streak) = (cx.tokens.next(), cx.rules.share.told(hold.streak(cx.now)));
        cx.send(hold.token(cx), Command::Yield { next, streak });
        self.stage = Stage::Yielding(Box::new(Yielding { hold: hold.clone(), next }));
    }

    /// The answer to a yield.
    pub(super) fn yielded(&mut self, command: Command, sent: BootTime, reply: Reply, cx: &mut Cx<'_, S>) {
        let Stage::Yielding(yielding) = &mut self.stage else { return };
        let Yielding { hold, next } = &mut **yielding;
        let (old, next) = (hold.token(cx), *next);
        match (command, reply) {
            (Command::Renew { lease }, Reply::Ours) => hold.confirmed(sent, lease),
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.unconfirmed(lease, cx.now);
            }
            // That to an earlier offer, heard twice: the server may have handed the lock on since.
            (Command::Yield { next: of, .. }, _) if of != next => {}
            (Command::Yield { .. }, Reply::Ours) => {
                let Some(head) = self.queue.head() else { return };
                if hold.passes_to(head, cx) {
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
                cx.actions.push(Action::Prolong {
                    seat: hold.seat.clone(),
                    deadline: hold.deadline,
                    ends: hold.ends(),
                });
            }
            (Command::Renew { .. } | Command::Fence, Reply::NotOurs) => self.lose(LossCause::NotOurs, cx),
            (Command::Renew { .. }, Reply::Refused(failure)) if failure.kind == FailureKind::WrongKind => {
                self.lose(LossCause::NotOurs, cx);
            }
            (Command::Renew { lease }, Reply::Unknown(_) | Reply::Refused(_)) => {
                hold.unconfirmed(lease, cx.now);
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
        let (left, deadline) = (Left { token: hold.token(cx), kept_until: hold.kept_until() }, hold.deadline);
        let left = (cause != LossCause::NotOurs).then_some(left);
        cx.actions.push(Action::Lose { seat: hold.seat.clone(), cause, left });
        if let Some(left) = left {
            self.leave_to_body(left, deadline.at(), cx);
        }
        self.ask(cx);
    }
}

/// So little is left of a short lease, or of one that is long overdue.
const LITTLE_TIME: Duration = Duration::from_secs(1);

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
    fn an_answer_that_is_heard_twice_does_not_answer_the_next_offer() {
        let (mut lane, old, next) = yielding();
        let earlier = Token::of_numbers(1, next.number() + 1).expect("a small number");

        let actions =
            happen(&mut lane, 101, |lane, cx| lane.reply(old, offer_of(earlier), at(50), Reply::Ours, cx));

        assert!(actions.is_empty() && matches!(lane.stage, Stage::Yielding(_)), "{actions:?}");
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

    /// A lane whose task was granted the lock, its confirmation on its way since 100 ms, and another task that waits; and its token.
    fn granted() -> (Lane<u32>, Token) {
        let (mut lane, old, next) = yielding();
        happen(&mut lane, 101, |lane, cx| lane.reply(old, offer_of(next), at(100), Reply::Yielded, cx));
        happen(&mut lane, 102, |lane, cx| lane.join(waiter(3, TERMS), cx));
        happen(&mut lane, 110, |lane, cx| {
            let offer = Offer { lease: RULES.grant_lease, streak: Streak::UNKNOWN };
            lane.granted(next, offer, cx);
        });
        (lane, next)
    }

    /// Has the second task let go with time left in the hand-off.
    fn hand_on(lane: &mut Lane<u32>, ms: u64) -> Vec<Action<u32>> {
        let rules = Rules { hand_off: Duration::from_secs(1), ..RULES };
        happen(lane, ms, |lane, cx| {
            let mut cx = Cx { rules: &rules, now: cx.now, tokens: cx.tokens, actions: &mut *cx.actions };
            lane.release(&2, &mut cx);
        })
    }

    /// Has the task of `seat` let go with time left in the hand-off.
    fn let_go(lane: &mut Lane<u32>, seat: u32, ms: u64) -> Vec<Action<u32>> {
        let rules = Rules { hand_off: Duration::from_secs(60), ..RULES };
        happen(lane, ms, |lane, cx| {
            let mut cx = Cx { rules: &rules, now: cx.now, tokens: cx.tokens, actions: &mut *cx.actions };
            lane.release(&seat, &mut cx);
        })
    }

    #[test]
    fn a_hold_is_handed_on_while_more_than_half_of_it_is_left() {
        let deadline = 30_000 - 302;
        for (left, is_handed_on) in [(15_001, true), (15_000, false)] {
            let (mut lane, token) = held(TERMS);
            happen(&mut lane, 2, |lane, cx| lane.join(waiter(2, TERMS), cx));

            let actions = let_go(&mut lane, 1, deadline - left);

            assert!(
                match actions[..] {
                    [Action::Admit { seat: 2, token: of, .. }] => is_handed_on && of == token,
                    [Action::Send { token: of, command: Command::Renew { .. } }] =>
                        !is_handed_on && of == token,
                    _ => false,
                },
                "{left}: {actions:?}"
            );
        }
    }

    #[test]
    fn a_grant_that_is_being_confirmed_is_handed_on_while_more_than_half_of_it_is_left() {
        let deadline = 100 + 1_000 - 12;
        for (left, is_handed_on) in [(501, true), (500, false)] {
            let (mut lane, _) = granted();

            let actions = let_go(&mut lane, 2, deadline - left);

            assert_eq!(matches!(actions[..], [Action::Admit { seat: 3, .. }]), is_handed_on, "{actions:?}");
        }
    }

    #[test]
    fn a_hold_that_nobody_renews_is_lost_when_its_deadline_has_come() {
        let (mut lane, _) = held(Terms { renew: false, ..TERMS });

        assert_eq!(lane.due(), at(30_000 - 302));
        assert!(happen(&mut lane, 29_697, Lane::tick).is_empty());
        let lost = happen(&mut lane, 29_698, Lane::tick);

        assert!(matches!(lost[..], [Action::Lose { seat: 1, cause: LossCause::Expired, .. }]), "{lost:?}");
    }

    #[test]
    fn an_answer_about_another_token_does_not_concern_a_hold() {
        let (mut lane, _) = held(TERMS);
        let (_, other) = held(TERMS);

        let renew = Command::Renew { lease: TERMS.lease };
        let actions = happen(&mut lane, 50, |lane, cx| lane.reply(other, renew, at(40), Reply::NotOurs, cx));

        assert!(actions.is_empty() && matches!(lane.stage, Stage::Held(_)), "{actions:?}");
    }

    #[test]
    fn a_hold_is_lost_to_what_is_no_lock_and_not_to_a_server_that_refuses() {
        for (kind, is_lost) in
            [(FailureKind::WrongKind, true), (FailureKind::Passing, false), (FailureKind::Lasting, false)]
        {
            let (mut lane, token) = held(TERMS);
            let (renew, refused) =
                (Command::Renew { lease: TERMS.lease }, Reply::Refused(Failure::new(kind, "no")));

            let actions = happen(&mut lane, 50, |lane, cx| lane.reply(token, renew, at(40), refused, cx));

            let lost = matches!(actions[..], [Action::Lose { cause: LossCause::NotOurs, left: None, .. }]);
            assert_eq!(lost, is_lost, "{kind:?}: {actions:?}");
        }
    }

    #[test]
    fn a_renewal_that_is_answered_while_the_lock_is_on_offer_counts() {
        let (mut lane, token) = held(TERMS);
        happen(&mut lane, 10_001, Lane::tick);
        happen(&mut lane, 10_002, |lane, cx| lane.join(waiter(2, TERMS), cx));
        happen(&mut lane, 10_003, |lane, cx| {
            lane.release(&1, cx);
        });
        let Stage::Yielding(yielding) = &lane.stage else { panic!("{lane:?}") };
        let (offer, renew) = (offer_of(yielding.next), Command::Renew { lease: TERMS.lease });
        happen(&mut lane, 10_004, |lane, cx| lane.reply(token, renew, at(10_001), Reply::Ours, cx));

        let kept =
            happen(&mut lane, 10_005, |lane, cx| lane.reply(token, offer, at(10_003), Reply::Ours, cx));

        let until = Deadline::of_lease(at(10_001), TERMS.lease);
        assert!(
            matches!(kept[..], [Action::Admit { seat: 2, deadline, .. }] if deadline == until),
            "{kept:?}"
        );
    }

    #[test]
    fn a_lock_that_was_lost_when_it_was_offered_is_asked_for_anew() {
        let (mut lane, old, next) = yielding();

        let actions =
            happen(&mut lane, 110, |lane, cx| lane.reply(old, offer_of(next), at(100), Reply::NotOurs, cx));

        assert!(
            matches!(actions[..], [Action::Send { token, command: Command::Acquire { .. } }] if token != old && token != next),
            "{actions:?}"
        );
    }

    #[test]
    fn a_yield_that_was_refused_leaves_the_token_that_held() {
        let (mut lane, old, next) = yielding();

        let busy = Reply::Refused(Failure::new(FailureKind::Passing, "busy"));
        let actions = happen(&mut lane, 110, |lane, cx| lane.reply(old, offer_of(next), at(100), busy, cx));

        assert!(matches!(actions[..], [Action::Abandon { token }] if token == old), "{actions:?}");
        assert!(lane.due() < BootTime::NEVER, "it is asked for again");
    }

    #[test]
    fn who_was_queued_by_a_yield_asks_again_half_a_grant_lease_after_it() {
        let (mut lane, old, next) = yielding();

        happen(&mut lane, 110, |lane, cx| lane.reply(old, offer_of(next), at(100), Reply::Yielded, cx));

        assert_eq!(lane.due(), at(100).plus(RULES.grant_lease / 2));
    }

    #[test]
    fn a_grant_that_overtakes_the_answer_to_the_yield_is_confirmed() {
        let (mut lane, _, next) = yielding();

        let asked = happen(&mut lane, 105, |lane, cx| {
            let offer = Offer { lease: RULES.grant_lease, streak: Streak::UNKNOWN };
            assert!(lane.granted(next, offer, cx));
        });
        let renew = Command::Renew { lease: TERMS.lease };
        let ours = happen(&mut lane, 110, |lane, cx| lane.reply(next, renew, at(105), Reply::Ours, cx));

        assert!(
            matches!(asked[..], [Action::Send { token, command }] if token == next && command == renew),
            "{asked:?}"
        );
        assert!(matches!(ours[..], [Action::Admit { seat: 2, token, .. }] if token == next), "{ours:?}");
    }

    #[test]
    fn a_hand_off_ends_however_often_the_lock_was_handed_on() {
        let (mut lane, _) = held(TERMS);
        for seat in [2, 3] {
            happen(&mut lane, 1, |lane, cx| lane.join(waiter(seat, TERMS), cx));
        }
        let rules = Rules { hand_off: Duration::from_secs(1), ..RULES };
        let mut let_go = |seat, ms| {
            happen(&mut lane, ms, |lane, cx| {
                let mut cx = Cx { rules: &rules, now: cx.now, tokens: cx.tokens, actions: &mut *cx.actions };
                lane.release(&seat, &mut cx);
            })
        };

        let (in_time, after_it) = (let_go(1, 600), let_go(2, 1_100));

        assert!(matches!(in_time[..], [Action::Admit { seat: 2, .. }]), "{in_time:?}");
        assert!(
            matches!(after_it[..], [Action::Send { command: Command::Yield { .. }, .. }]),
            "other processes have no turn: {after_it:?}"
        );
    }

    #[test]
    fn a_grant_is_handed_on_while_its_confirmation_is_on_its_way() {
        let (mut lane, token) = granted();

        let handed_on = hand_on(&mut lane, 120);

        assert!(
            matches!(handed_on[..], [Action::Admit { seat: 3, token: of, .. }] if of == token),
            "{handed_on:?}"
        );
        let renew = Command::Renew { lease: TERMS.lease };
        let prolonged = happen(&mut lane, 150, |lane, cx| lane.reply(token, renew, at(110), Reply::Ours, cx));
        assert!(matches!(prolonged[..], [Action::Prolong { seat: 3, .. }]), "{prolonged:?}");
    }

    #[test]
    fn a_grant_whose_confirmation_is_late_or_was_not_answered_is_confirmed_before_it_is_handed_on() {
        let renew = Command::Renew { lease: TERMS.lease };
        let (mut late, _) = granted();
        let (mut unanswered, token) = granted();
        let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
        happen(&mut unanswered, 115, |lane, cx| lane.reply(token, renew, at(110), unknown, cx));

        for (lane, ms) in [(&mut late, 700), (&mut unanswered, 120)] {
            let asked = hand_on(lane, ms);
            assert!(matches!(asked[..], [Action::Send { command, .. }] if command == renew), "{asked:?}");
        }
    }

    #[test]
    fn a_hold_whose_renewal_was_not_answered_while_it_was_on_offer_is_renewed_when_it_is_kept() {
        let (mut lane, token) = held(TERMS);
        happen(&mut lane, 10_001, Lane::tick);
        happen(&mut lane, 10_002, |lane, cx| lane.join(waiter(2, TERMS), cx));
        happen(&mut lane, 10_003, |lane, cx| {
            lane.release(&1, cx);
        });
        let Stage::Yielding(yielding) = &lane.stage else { panic!("{lane:?}") };
        let offer = offer_of(yielding.next);
        let busy = Reply::Refused(Failure::new(FailureKind::Passing, "busy"));
        let renew = Command::Renew { lease: TERMS.lease };
        happen(&mut lane, 10_004, |lane, cx| lane.reply(token, renew, at(10_001), busy, cx));

        let kept =
            happen(&mut lane, 10_005, |lane, cx| lane.reply(token, offer, at(10_003), Reply::Ours, cx));

        assert!(matches!(kept[..], [Action::Admit { seat: 2, .. }]), "{kept:?}");
        assert!(lane.due() <= at(11_005), "{:?}", lane.due());
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
        assert!(lane.due() > at(200), "{:?}", lane.due());
        assert!(
            happen(&mut lane, 200, |lane, cx| lane.reconnected(true, cx)).is_empty(),
            "it waits for its place"
        );
        assert_eq!(lane.due(), at(200));
        let actions = happen(&mut lane, 200, Lane::tick);

        assert!(
            matches!(actions[..], [Action::Send { token, command: Command::Renew { .. } }] if token == held),
            "{actions:?}"
        );
    }

    #[test]
    fn on_another_server_a_hold_with_little_time_waits_for_no_place() {
        let (mut lane, _) = held(Terms { lease: Duration::from_millis(300), ..TERMS });

        let actions = happen(&mut lane, 20, |lane, cx| lane.reconnected(true, cx));

        assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
    }

    #[test]
    fn on_another_server_a_hold_with_a_second_waits_for_its_place() {
        let (mut lane, _) = held(TERMS);

        let actions = happen(&mut lane, 30_000 - 302 - 1_000, |lane, cx| lane.reconnected(true, cx));

        assert!(actions.is_empty(), "{actions:?}");
    }

    #[test]
    fn on_another_server_a_fixed_lease_is_not_prolonged() {
        let (mut lane, _) = held(Terms { renew: false, ..TERMS });

        let mut actions = happen(&mut lane, 200, |lane, cx| lane.reconnected(true, cx));
        actions.extend(happen(&mut lane, 200, Lane::tick));

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
