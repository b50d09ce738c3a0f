//! What follows from a hint that somebody changed a key: it is looked at.
//!
//! A hint proves nothing, and anybody may send any number of them. So it only brings forward what would be asked in any case, and
//! never more often than every few milliseconds: a contender that pauses, or is about to, looks again, a holder has the server confirm
//! its hold. Who stands in the server's queue is told by a grant and needs no hint.
//!
//! Not here: where hints come from (`backend`), what the answers mean (`acquire`, `hold`).

use std::time::Duration;

use crate::protocol::Rules;
use crate::protocol::acquire::{Asking, Step};
use crate::protocol::command::Command;
use crate::protocol::deadline::BootTime;
use crate::protocol::hold::Hold;
use crate::protocol::lane::{Cx, Lane, Stage};

/// What the time means that a hold has for its checks: one that may have been taken away is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// It is checked then for the first time, or as soon as there is a hint.
    First,
    /// It is checked then.
    Due,
    /// It is checked once there is a hint, and not before then.
    Rests,
}

impl Check {
    /// That of a hold which has just begun. Where the backend can tell of changes it is asked once the hold has lived for a while, and
    /// tells from then on; a little early, so that many are asked about together.
    pub(super) fn of_hold(since: BootTime, rules: &Rules) -> (Self, BootTime) {
        if !rules.tracking {
            return (Self::Rests, BootTime::START);
        }
        let grid = u64::try_from(TOGETHER.as_nanos()).unwrap_or(u64::MAX);
        (Self::First, BootTime::from_nanos(since.plus(AT_AGE).nanos() / grid * grid))
    }
}

impl<S: Clone + PartialEq> Lane<S> {
    /// Somebody may have changed the key.
    pub(crate) fn touched(&mut self, cx: &mut Cx<'_, S>) {
        match &mut self.stage {
            Stage::Asking(asking) => {
                match &mut asking.step {
                    Step::Paused { until, earliest } => {
                        let soon = match cx.rules.hold_back {
                            Duration::ZERO => cx.now,
                            most => cx.now.plus(cx.at_random(most)),
                        };
                        *until = (*until).min(soon.max(*earliest));
                    }
                    _ => asking.note_hint(),
                }
                self.ask_again(false, cx);
            }
            Stage::Held(hold) => hold.check_soon(cx),
            Stage::Idle | Stage::Yielding(_) | Stage::Away(_) => {}
        }
    }

    /// Nobody told of changes for a while, of any key.
    pub(crate) fn untold(&mut self, cx: &mut Cx<'_, S>) {
        match &mut self.stage {
            Stage::Held(hold) => hold.doubt(cx.now),
            _ => self.touched(cx),
        }
    }
}

impl Asking {
    /// Notes a hint while a look is on its way: what it says may be older.
    pub(super) fn note_hint(&mut self) {
        self.hinted |= matches!(self.step, Step::Enqueuing(_));
    }
}

impl<S: Clone + PartialEq> Hold<S> {
    /// Returns when the hold is to be checked.
    pub(super) fn check_due(&self) -> BootTime {
        if self.check == Check::Rests { BootTime::NEVER } else { self.check_at }
    }

    /// Asks the server as soon as may be.
    pub(super) fn check_soon(&mut self, cx: &mut Cx<'_, S>) {
        if self.check == Check::First {
            self.check_at = BootTime::START;
        }
        self.check = Check::Due;
        self.check_if_due(cx);
    }

    /// Has the server asked, with all others of which nobody told for a while: the hold is due, and waits for its place among them.
    pub(super) fn doubt(&mut self, now: BootTime) {
        self.check_at = if self.check == Check::First { now } else { self.check_at.max(now) };
        self.check = Check::Due;
    }

    /// Asks the server whether the hold is still ours, where a hint has made that doubtful. It prolongs nothing.
    pub(super) fn check_if_due(&mut self, cx: &mut Cx<'_, S>) {
        if cx.now >= self.check_due() {
            (self.check, self.check_at) = (Check::Rests, cx.now.plus(BETWEEN_CHECKS));
            cx.send(self.token(cx), Command::Renew { lease: NOTHING });
        }
    }
}

/// Most holds are over before: to be told of their changes would cost more than it is worth.
const AT_AGE: Duration = Duration::from_millis(100);

const TOGETHER: Duration = Duration::from_millis(20);

/// Checks are no closer together, however many hints come. It bounds how late a second theft is told, too.
const BETWEEN_CHECKS: Duration = Duration::from_millis(10);

/// A renewal by less than any lease only asks.
pub(in crate::protocol) const NOTHING: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LossCause;
    use crate::protocol::Rules;
    use crate::protocol::command::{Enqueue, Reply};
    use crate::protocol::lane::Action;
    use crate::protocol::scene::{RULES, TERMS, at, happen, held, waiter};
    use crate::token::{Token, TokenSource};

    const CHECK: Command = Command::Renew { lease: NOTHING };

    const FOREIGN: Reply = Reply::NotQueued { ttl: Some(TERMS.lease) };

    fn checks(actions: &[Action<u32>]) -> usize {
        actions.iter().filter(|action| matches!(action, Action::Send { command: CHECK, .. })).count()
    }

    /// A lane whose contender found the lock held and looks what stands there since 1 ms; and the look.
    fn looking() -> (Lane<u32>, Token, Command) {
        let mut lane = Lane::new();
        happen(&mut lane, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));
        let token = |lane: &Lane<u32>| -> Token {
            let Stage::Asking(asking) = &lane.stage else { panic!("{lane:?}") };
            asking.token
        };
        let first = token(&lane);
        let acquire = Command::Acquire { lease: TERMS.lease };
        happen(&mut lane, 1, |lane, cx| lane.reply(first, acquire, at(0), Reply::Taken, cx));
        let second = token(&lane);
        (lane, second, Command::Enqueue { lease: TERMS.lease, mode: Enqueue::First })
    }

    /// The same a moment later: it is held by somebody who queues nobody, and the contender pauses since 1 ms.
    fn paused() -> Lane<u32> {
        let (mut lane, token, enqueue) = looking();
        happen(&mut lane, 1, |lane, cx| lane.reply(token, enqueue, at(1), FOREIGN, cx));
        lane
    }

    #[test]
    fn a_hint_makes_a_paused_contender_look_at_once() {
        let mut lane = paused();

        let actions = happen(&mut lane, 20, Lane::touched);

        assert!(
            matches!(actions[..], [Action::Send { command: Command::Acquire { .. }, .. }]),
            "{actions:?}"
        );
    }

    #[test]
    fn a_hint_that_overtakes_the_answer_to_a_look_is_not_forgotten() {
        let (mut lane, token, enqueue) = looking();

        assert!(happen(&mut lane, 2, Lane::touched).is_empty());
        assert!(happen(&mut lane, 3, |lane, cx| lane.reply(token, enqueue, at(1), FOREIGN, cx)).is_empty());

        assert_eq!(lane.due(), at(5));
        assert_eq!(happen(&mut lane, 5, Lane::tick).len(), 1);
    }

    #[test]
    fn who_looks_while_a_connection_is_made_anew_looks_once_more() {
        let (mut lane, token, enqueue) = looking();

        happen(&mut lane, 2, |lane, cx| lane.reconnected(false, cx));
        happen(&mut lane, 3, |lane, cx| lane.reply(token, enqueue, at(1), FOREIGN, cx));

        assert_eq!(lane.due(), at(5));
    }

    #[test]
    fn who_holds_back_looks_within_the_time_that_he_may() {
        let mut lane = paused();
        let rules = Rules { hold_back: Duration::from_millis(5), ..RULES };

        let actions = happen(&mut lane, 20, |lane, cx| {
            let mut cx = Cx { rules: &rules, now: cx.now, tokens: cx.tokens, actions: &mut *cx.actions };
            lane.touched(&mut cx);
        });

        assert!(actions.is_empty() && lane.due() > at(20) && lane.due() <= at(25), "{lane:?}");
        assert_eq!(happen(&mut lane, 25, Lane::tick).len(), 1);
    }

    #[test]
    fn a_hint_that_comes_at_once_after_a_look_waits_for_the_floor() {
        let mut lane = paused();

        assert!(happen(&mut lane, 1, Lane::touched).is_empty());

        assert_eq!(lane.due(), at(3));
        assert_eq!(happen(&mut lane, 3, Lane::tick).len(), 1);
    }

    #[test]
    fn a_hint_makes_a_holder_ask_and_a_flood_of_hints_does_not_make_a_flood_of_questions() {
        let (mut lane, _) = held(TERMS);

        let asked: usize = (100..200).map(|ms| checks(&happen(&mut lane, ms, Lane::touched))).sum();

        assert_eq!(asked, 10);
        assert_eq!(checks(&happen(&mut lane, 210, Lane::tick)), 1, "the last hint is not forgotten");
    }

    #[test]
    fn a_holder_that_is_answered_not_yours_has_lost_and_one_that_is_answered_yours_goes_on() {
        let (mut lane, token) = held(TERMS);
        happen(&mut lane, 100, Lane::touched);
        assert!(
            !happen(&mut lane, 101, |lane, cx| lane.reply(token, CHECK, at(100), Reply::Ours, cx))
                .iter()
                .any(|action| matches!(action, Action::Lose { .. }))
        );

        happen(&mut lane, 200, Lane::touched);
        let actions =
            happen(&mut lane, 201, |lane, cx| lane.reply(token, CHECK, at(200), Reply::NotOurs, cx));

        assert!(matches!(actions[..], [Action::Lose { cause: LossCause::NotOurs, .. }]), "{actions:?}");
    }

    #[test]
    fn where_changes_are_told_a_hold_is_asked_about_once_it_has_lived_and_after_each_gap() {
        let (tokens, rules) = (TokenSource::of_process(1), Rules { tracking: true, ..RULES });
        let happen = |lane: &mut Lane<u32>, ms, event: &dyn Fn(&mut Lane<u32>, &mut Cx<'_, u32>)| {
            let mut actions = Vec::new();
            event(lane, &mut Cx { now: at(ms), rules: &rules, tokens: &tokens, actions: &mut actions });
            checks(&actions)
        };
        let mut lane = Lane::new();
        happen(&mut lane, 0, &|lane, cx| lane.join(waiter(1, TERMS), cx));
        let Stage::Asking(asking) = &lane.stage else { panic!("{lane:?}") };
        let (token, acquire) = (asking.token, Command::Acquire { lease: TERMS.lease });
        happen(&mut lane, 7, &|lane, cx| lane.reply(token, acquire, at(0), Reply::Ours, cx));

        assert_eq!(lane.due(), at(100));
        assert_eq!(happen(&mut lane, 100, &Lane::tick), 1);
        assert!(lane.due() > at(5_000), "{:?}", lane.due());
        for (ms, gap) in [(400, true), (500, false)] {
            let event = |lane: &mut Lane<u32>, cx: &mut Cx<'_, u32>| {
                if gap { lane.reconnected(false, cx) } else { lane.untold(cx) }
            };
            assert_eq!(happen(&mut lane, ms, &event), 0, "it waits for its place");
            assert_eq!(lane.due(), at(ms));
            assert_eq!(happen(&mut lane, ms, &Lane::tick), 1);
        }
    }
}
