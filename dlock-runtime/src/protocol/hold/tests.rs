//! Unit tests of `hold`.

use super::*;
use crate::protocol::Rules;
use crate::protocol::command::{Failure, Sight};
use crate::protocol::scene::{RULES, TERMS, at, happen, happen_where, held, waiter};

/// A lane whose first task has let go while a second waits, and that has sent its yield at 100 ms; and the yield's two tokens.
fn yielding() -> (Lane<u32>, Token, Token) {
    yielding_to(TERMS)
}

/// The same where the second task has terms of its own.
fn yielding_to(terms: Terms) -> (Lane<u32>, Token, Token) {
    let (mut lane, old) = held(TERMS);
    happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, terms), cx));
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
fn a_lock_that_somebody_takes_when_it_is_offered_is_contended() {
    let (mut lane, old, next) = yielding();
    let mut contended = false;

    happen_where(&mut contended, &mut lane, 101, |lane, cx| {
        lane.reply(old, offer_of(next), at(100), Reply::Yielded, cx);
    });

    assert!(contended);
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
    assert_eq!(lane.due(), at(110));
    assert!(happen(&mut lane, 102, Lane::touched).is_empty(), "our own bell rings, too");
    let again = happen(&mut lane, 109, Lane::tick);
    assert!(matches!(again[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{again:?}");
}

/// A lane whose task was granted the lock at 110 ms, by a proof of 100 ms, and another task that waits; and its token.
fn granted() -> (Lane<u32>, Token) {
    let (mut lane, token) = granted_to(TERMS);
    happen(&mut lane, 110, |lane, cx| lane.join(waiter(3, TERMS), cx));
    (lane, token)
}

/// The same where the task has terms of its own, and nobody waits.
fn granted_to(terms: Terms) -> (Lane<u32>, Token) {
    let (mut lane, old, next) = yielding_to(terms);
    happen(&mut lane, 101, |lane, cx| lane.reply(old, offer_of(next), at(100), Reply::Yielded, cx));
    happen(&mut lane, 110, |lane, cx| {
        let offer = Offer { lease: RULES.grant_lease, streak: Streak::UNKNOWN };
        lane.granted(next, offer, cx);
    });
    (lane, next)
}

/// Has the task of `seat` let go where a lock may be handed on for so many seconds while others wait.
fn let_go_within(seconds: u64, lane: &mut Lane<u32>, seat: u32, ms: u64) -> Vec<Action<u32>> {
    let rules = Rules { handoff_budget: Duration::from_secs(seconds), ..RULES };
    happen(lane, ms, |lane, cx| {
        lane.release(&seat, &mut cx.under(&rules));
    })
}

fn let_go_within_a_second(lane: &mut Lane<u32>, seat: u32, ms: u64) -> Vec<Action<u32>> {
    let_go_within(1, lane, seat, ms)
}

/// Has the task of `seat` let go with time left in the hand-off.
fn let_go(lane: &mut Lane<u32>, seat: u32, ms: u64) -> Vec<Action<u32>> {
    let_go_within(60, lane, seat, ms)
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
                [Action::Send { token: of, command: Command::Renew { .. } }] => !is_handed_on && of == token,
                _ => false,
            },
            "{left}: {actions:?}"
        );
    }
}

#[test]
fn a_grant_that_is_not_confirmed_is_handed_on_while_more_than_half_of_it_is_left() {
    let deadline = 100 + 1_000 - 12;
    for (left, is_handed_on) in [(501, true), (500, false)] {
        let (mut lane, _) = granted();

        let actions = let_go(&mut lane, 2, deadline - left);

        assert_eq!(matches!(actions[..], [Action::Admit { seat: 3, .. }]), is_handed_on, "{actions:?}");
    }
}

#[test]
fn a_hold_that_nobody_renews_is_lost_when_its_deadline_has_come() {
    let (mut lane, _) = held(TERMS.renew(false));

    assert_eq!(lane.due(), at(30_000 - 302));
    assert!(happen(&mut lane, 29_697, Lane::tick).is_empty());
    let lost = happen(&mut lane, 29_698, Lane::tick);

    assert!(matches!(lost[..], [Action::Lose { seat: 1, cause: LossCause::Expired, .. }]), "{lost:?}");
}

#[test]
fn an_answer_about_another_token_does_not_concern_a_hold() {
    let (mut lane, _) = held(TERMS);
    let (_, other) = held(TERMS);

    let renew = Command::Renew { lease: TERMS.lease() };
    let actions = happen(&mut lane, 50, |lane, cx| lane.reply(other, renew, at(40), Reply::NotOwner, cx));

    assert!(actions.is_empty() && matches!(lane.stage, Stage::Held(_)), "{actions:?}");
}

#[test]
fn a_hold_is_lost_to_what_is_no_lock_and_not_to_a_server_that_refuses() {
    for (kind, is_lost) in
        [(FailureKind::WrongKind, true), (FailureKind::Passing, false), (FailureKind::Lasting, false)]
    {
        let (mut lane, token) = held(TERMS);
        let (renew, refused) =
            (Command::Renew { lease: TERMS.lease() }, Reply::Refused(Failure::new(kind, "no")));

        let actions = happen(&mut lane, 50, |lane, cx| lane.reply(token, renew, at(40), refused, cx));

        let lost = matches!(actions[..], [Action::Lose { cause: LossCause::NotOwner, left: None, .. }]);
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
    let (offer, renew) = (offer_of(yielding.next), Command::Renew { lease: TERMS.lease() });
    happen(&mut lane, 10_004, |lane, cx| lane.reply(token, renew, at(10_001), Reply::Ours, cx));

    let kept = happen(&mut lane, 10_005, |lane, cx| lane.reply(token, offer, at(10_003), Reply::Ours, cx));

    let until = Deadline::of_lease(at(10_001), TERMS.lease());
    assert!(matches!(kept[..], [Action::Admit { seat: 2, deadline, .. }] if deadline == until), "{kept:?}");
}

#[test]
fn a_lock_that_was_lost_when_it_was_offered_is_asked_for_anew() {
    let (mut lane, old, next) = yielding();

    let actions =
        happen(&mut lane, 110, |lane, cx| lane.reply(old, offer_of(next), at(100), Reply::NotOwner, cx));

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
    let renew = Command::Renew { lease: TERMS.lease() };
    let ours = happen(&mut lane, 110, |lane, cx| lane.reply(next, renew, at(105), Reply::Ours, cx));

    assert!(
        matches!(asked[..], [Action::Send { token, command }] if token == next && command == renew),
        "{asked:?}"
    );
    assert!(matches!(ours[..], [Action::Admit { seat: 2, token, .. }] if token == next), "{ours:?}");
}

/// A lock that three tasks more want, of which the first two have let go at 400 and 600 ms; what came of each, and its token.
fn handed_on_twice() -> (Lane<u32>, [Vec<Action<u32>>; 2], Token) {
    let (mut lane, token) = held(TERMS);
    for seat in [2, 3, 4] {
        happen(&mut lane, 1, |lane, cx| lane.join(waiter(seat, TERMS), cx));
    }
    let [early, later] = [(1, 400), (2, 600)].map(|(seat, ms)| let_go_within_a_second(&mut lane, seat, ms));
    (lane, [early, later], token)
}

/// What comes of the third who lets go, at 1,100 ms, where the server has answered so, who else waits.
fn handed_on_after(answer: impl FnOnce(Token) -> Reply) -> Vec<Action<u32>> {
    let (mut lane, _, token) = handed_on_twice();
    let answer = answer(token);
    happen(&mut lane, 700, |lane, cx| lane.reply(token, Command::Inspect, at(600), answer, cx));
    let_go_within_a_second(&mut lane, 3, 1_100)
}

fn waiters(waiters: usize) -> impl FnOnce(Token) -> Reply {
    move |token| Reply::Seen(Some(Sight { holder: Some(token.process()), waiters, ttl: None }))
}

#[test]
fn a_hand_off_ends_where_somebody_else_waits_however_often_the_lock_was_handed_on() {
    let (_, [early, later], _) = handed_on_twice();
    let after_it = [
        handed_on_after(waiters(1)),
        handed_on_after(|_| Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"))),
    ];

    assert!(matches!(early[..], [Action::Admit { seat: 2, .. }]), "{early:?}");
    assert!(
        matches!(later[..], [Action::Send { command: Command::Inspect, .. }, Action::Admit { seat: 3, .. }]),
        "{later:?}"
    );
    let is_offered =
        |actions: &Vec<_>| matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]);
    assert!(after_it.iter().all(is_offered), "other processes have no turn: {after_it:?}");
}

#[test]
fn a_hand_off_goes_on_where_nobody_else_waits() {
    let after_it = handed_on_after(waiters(0));

    assert!(matches!(after_it[..], [Action::Admit { seat: 4, .. }]), "{after_it:?}");
}

#[test]
fn a_hold_that_is_somebody_elses_when_it_is_asked_who_waits_is_checked() {
    let theirs = Token::of_numbers(77, 1).expect("a small number").process();
    let held_by = |holder| Some(Sight { holder, waiters: 0, ttl: None });
    for seen in [None, held_by(None), held_by(Some(theirs))] {
        let (mut lane, _, token) = handed_on_twice();

        let actions = happen(&mut lane, 700, |lane, cx| {
            lane.reply(token, Command::Inspect, at(600), Reply::Seen(seen), cx);
        });

        assert!(matches!(actions[..], [Action::Send { command: Command::Check, .. }]), "{actions:?}");
        let after_it = let_go_within_a_second(&mut lane, 3, 1_100);
        assert!(
            matches!(after_it[..], [Action::Send { command: Command::Yield { .. }, .. }]),
            "{after_it:?}"
        );
    }
}

#[test]
fn who_has_another_lease_goes_on_with_the_budget_of_those_before() {
    let (mut lane, token) = held(TERMS);
    let [shorter, longer] = [10, 40].map(|seconds| Terms::of_lease(Duration::from_secs(seconds)));
    for (seat, terms) in [(2, shorter), (3, longer), (4, shorter)] {
        happen(&mut lane, 1, |lane, cx| lane.join(waiter(seat, terms), cx));
    }

    for (seat, ms, lease) in [(1, 400, shorter.lease()), (2, 800, longer.lease())] {
        let renew = Command::Renew { lease };
        let actions = let_go_within_a_second(&mut lane, seat, ms);
        assert!(matches!(actions[..], [Action::Send { command, .. }] if command == renew), "{actions:?}");
        happen(&mut lane, ms + 10, |lane, cx| lane.reply(token, renew, at(ms), Reply::Ours, cx));
    }
    let actions = let_go_within_a_second(&mut lane, 3, 1_100);

    assert!(matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]), "{actions:?}");
}

#[test]
fn a_question_that_is_not_answered_does_not_prolong_the_budget_of_who_has_another_lease() {
    let (mut lane, token) = held(TERMS);
    let shorter = Terms::of_lease(Duration::from_secs(10));
    for (seat, terms) in [(2, TERMS), (3, shorter), (4, shorter)] {
        happen(&mut lane, 1, |lane, cx| lane.join(waiter(seat, terms), cx));
    }
    let_go_within_a_second(&mut lane, 1, 600);
    let_go_within_a_second(&mut lane, 2, 800);
    let renew = Command::Renew { lease: shorter.lease() };
    happen(&mut lane, 810, |lane, cx| lane.reply(token, renew, at(800), Reply::Ours, cx));

    let actions = let_go_within_a_second(&mut lane, 3, 1_100);

    assert!(matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]), "{actions:?}");
}

#[test]
fn a_lock_that_nobody_takes_when_it_is_offered_is_not_contended() {
    let (mut lane, old, next) = yielding();
    let mut contended = true;

    happen_where(&mut contended, &mut lane, 101, |lane, cx| {
        lane.reply(old, offer_of(next), at(100), Reply::Ours, cx);
    });

    assert!(!contended);
}

#[test]
fn the_answer_who_else_waits_says_nothing_to_who_is_asking_by_then() {
    let (mut lane, _, token) = handed_on_twice();
    let other = Terms::of_lease(Duration::from_secs(10));
    happen(&mut lane, 601, |lane, cx| lane.join(waiter(5, other), cx));
    let_go_within_a_second(&mut lane, 3, 610);
    let_go_within_a_second(&mut lane, 4, 620);
    assert!(matches!(lane.stage, Stage::Asking(_)), "{lane:?}");

    let refused = Reply::Refused(Failure::new(FailureKind::Lasting, "no permission"));
    let actions =
        happen(&mut lane, 700, |lane, cx| lane.reply(token, Command::Inspect, at(600), refused, cx));

    assert!(actions.is_empty() && matches!(lane.stage, Stage::Asking(_)), "{actions:?}");
}

const RENEW: Command = Command::Renew { lease: TERMS.lease() };

#[test]
fn a_grant_is_confirmed_once_it_has_lasted_for_a_while() {
    let (mut lane, token) = granted();

    assert_eq!(lane.due(), at(110).plus(Duration::from_millis(1_088 - 110) / 200));
    assert!(happen(&mut lane, 114, Lane::tick).is_empty());
    let asked = happen(&mut lane, 115, Lane::tick);

    assert!(matches!(asked[..], [Action::Send { token: of, command: RENEW }] if of == token), "{asked:?}");
    assert!(happen(&mut lane, 116, Lane::tick).is_empty(), "it is asked once");
    happen(&mut lane, 117, |lane, cx| lane.reply(token, RENEW, at(115), Reply::Ours, cx));
    assert!(lane.due() > at(7_000), "from now on it is renewed as all others are: {:?}", lane.due());
}

#[test]
fn a_grant_is_confirmed_at_once_where_it_has_to_last_or_nobody_keeps_the_time() {
    let at_once = Rules { confirm_at_once: true, ..RULES };
    let minute = Some(Duration::from_secs(60));
    for (terms, rules) in [
        (TERMS, at_once),
        (TERMS.renew(false), RULES),
        (TERMS.max_hold(minute), RULES),
        (TERMS.min_hold(minute), RULES),
    ] {
        let (mut lane, old, next) = yielding_to(terms);
        happen(&mut lane, 101, |lane, cx| lane.reply(old, offer_of(next), at(100), Reply::Yielded, cx));
        let granted = happen(&mut lane, 110, |lane, cx| {
            let mut cx = cx.under(&rules);
            lane.granted(next, Offer { lease: rules.grant_lease, streak: Streak::UNKNOWN }, &mut cx);
        });

        assert!(
            matches!(granted[..], [Action::Admit { seat: 2, .. }, Action::Send { command: RENEW, .. }]),
            "{terms:?}: {granted:?}"
        );
        assert!(happen(&mut lane, 116, Lane::tick).is_empty(), "it is asked once");
    }
}

#[test]
fn a_grant_that_is_handed_on_to_a_turn_that_has_to_last_is_confirmed_at_once() {
    let (mut lane, token) = granted_to(TERMS);
    let min_hold = Some(Duration::from_secs(60));
    happen(&mut lane, 111, |lane, cx| lane.join(waiter(3, TERMS.min_hold(min_hold)), cx));

    let handed_on = let_go_within_a_second(&mut lane, 2, 112);

    assert!(
        matches!(
            handed_on[..],
            [Action::Admit { seat: 3, .. }, Action::Send { token: of, command: RENEW }] if of == token
        ),
        "{handed_on:?}"
    );
    assert!(happen(&mut lane, 116, Lane::tick).is_empty(), "it is asked once");
}

#[test]
fn what_confirms_a_grant_waits_for_no_place() {
    let (mut lane, _) = granted_to(Terms::of_lease(Duration::from_secs(1)));

    assert!(!lane.put_off(at(115), at(120)), "there is time: a renewal would wait");
    assert_eq!(happen(&mut lane, 115, Lane::tick).len(), 1);
}

#[test]
fn a_grant_whose_task_lets_go_soon_costs_a_release_and_no_more() {
    let (mut lane, token) = granted_to(TERMS);

    let mut released = Released::Kept;
    let asked = happen(&mut lane, 113, |lane, cx| released = lane.release(&2, cx));

    assert_eq!((released, asked.len()), (Released::ToServer(token, Command::Release), 0), "{asked:?}");
    assert!(lane.is_idle());
}

#[test]
fn a_grant_that_is_handed_on_is_confirmed_for_whoever_has_it_then() {
    let (mut lane, token) = granted();

    let handed_on = let_go_within_a_second(&mut lane, 2, 112);

    assert!(
        matches!(handed_on[..], [Action::Admit { seat: 3, token: of, .. }] if of == token),
        "{handed_on:?}"
    );
    let asked = happen(&mut lane, 115, Lane::tick);
    assert!(matches!(asked[..], [Action::Send { token: of, command: RENEW }] if of == token), "{asked:?}");
    let prolonged = happen(&mut lane, 116, |lane, cx| lane.reply(token, RENEW, at(115), Reply::Ours, cx));
    assert!(matches!(prolonged[..], [Action::Prolong { seat: 3, .. }]), "{prolonged:?}");
}

#[test]
fn a_grant_whose_confirmation_is_late_or_was_not_answered_is_confirmed_before_it_is_handed_on() {
    let (mut late, _) = granted();
    let (mut unanswered, token) = granted();
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    happen(&mut unanswered, 115, Lane::tick);
    happen(&mut unanswered, 117, |lane, cx| lane.reply(token, RENEW, at(115), unknown, cx));

    for (lane, ms) in [(&mut late, 700), (&mut unanswered, 118)] {
        let asked = let_go_within_a_second(lane, 2, ms);
        assert!(matches!(asked[..], [Action::Send { command: RENEW, .. }]), "{asked:?}");
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
    let renew = Command::Renew { lease: TERMS.lease() };
    happen(&mut lane, 10_004, |lane, cx| lane.reply(token, renew, at(10_001), busy, cx));

    let kept = happen(&mut lane, 10_005, |lane, cx| lane.reply(token, offer, at(10_003), Reply::Ours, cx));

    assert!(matches!(kept[..], [Action::Admit { seat: 2, .. }]), "{kept:?}");
    assert!(lane.due() <= at(11_005), "{:?}", lane.due());
}

/// A lane in which a hold is prolonged, at 100 ms, for the next task, which wants it for longer; its token, and what that task wants.
fn confirming() -> (Lane<u32>, Token, Terms) {
    let (mut lane, held) = held(TERMS);
    let terms = Terms::of_lease(2 * TERMS.lease());
    happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, terms), cx));
    let rules = Rules { handoff_budget: Duration::from_secs(1), ..RULES };
    happen(&mut lane, 100, |lane, cx| {
        let mut cx = cx.under(&rules);
        lane.release(&1, &mut cx);
    });
    (lane, held, terms)
}

#[test]
fn a_lock_that_is_gone_before_it_is_handed_on_is_asked_for_anew_where_nobody_queues() {
    let (mut lane, held, terms) = confirming();
    let renew = Command::Renew { lease: terms.lease() };
    happen(&mut lane, 101, |lane, cx| lane.reply(held, renew, at(100), Reply::NotOwner, cx));

    let again = Command::Enqueue { lease: terms.lease(), mode: crate::protocol::command::Enqueue::Again };
    let free = Reply::NotQueued { ttl: Some(Duration::ZERO) };
    happen(&mut lane, 102, |lane, cx| lane.reply(held, again, at(101), free, cx));

    let asked = happen(&mut lane, 104, Lane::tick);
    assert!(matches!(asked[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{asked:?}");
}

#[test]
fn a_lock_is_let_go_of_that_nobody_said_is_still_ours_where_nobody_queues() {
    let (mut lane, held, terms) = confirming();
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    let renew = Command::Renew { lease: terms.lease() };
    happen(&mut lane, 600, |lane, cx| lane.reply(held, renew, at(100), unknown, cx));

    let again = Command::Enqueue { lease: terms.lease(), mode: crate::protocol::command::Enqueue::Again };
    let kept = Reply::NotQueued { ttl: Some(TERMS.lease()) };
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
    let actions = happen(&mut lane, 600, |lane, cx| lane.reply(old, offer_of(next), at(100), unknown, cx));

    let abandoned =
        |wanted| actions.iter().any(|action| matches!(action, Action::Abandon { token } if *token == wanted));
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
    let (mut lane, _) = held(Terms::of_lease(Duration::from_millis(300)));

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
    let (mut lane, _) = held(TERMS.renew(false));

    let mut actions = happen(&mut lane, 200, |lane, cx| lane.reconnected(true, cx));
    actions.extend(happen(&mut lane, 200, Lane::tick));

    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn a_turn_is_lost_when_its_max_hold_is_over_and_released_when_its_body_is_gone() {
    let (mut lane, held) = held(TERMS.max_hold(Some(Duration::from_secs(40))));
    let renewed = Command::Renew { lease: TERMS.lease() };
    happen(&mut lane, 30_000, |lane, cx| lane.reply(held, renewed, at(29_999), Reply::Ours, cx));
    assert_eq!(happen(&mut lane, 40_000, Lane::tick).len(), 1, "a renewal");
    assert_eq!(lane.due(), at(40_001));

    let actions = happen(&mut lane, 40_001, Lane::tick);

    let [Action::Lose { cause: LossCause::MaxHold, left: Some(left), .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    let gone = happen(&mut lane, 41_000, |lane, cx| lane.let_go_of(&1, left, true, cx));
    assert!(
        matches!(gone[..], [Action::Send { token, command: Command::Release }] if token == held),
        "{gone:?}"
    );
}

#[test]
fn a_turn_that_was_handed_on_has_a_max_hold_of_its_own() {
    let (mut lane, _) = held(TERMS);
    let terms = TERMS.max_hold(Some(Duration::from_secs(1)));
    happen(&mut lane, 1, |lane, cx| lane.join(waiter(2, terms), cx));
    let rules = Rules { handoff_budget: Duration::from_secs(1), ..RULES };

    let actions = happen(&mut lane, 400, |lane, cx| {
        let mut cx = cx.under(&rules);
        lane.release(&1, &mut cx);
    });

    assert!(matches!(actions[..], [Action::Admit { seat: 2, ends, .. }] if ends == at(1_400)), "{actions:?}");
    assert_eq!(lane.due(), at(1_400));
}

#[test]
fn a_hold_takes_more_memory_only_for_the_bounds_of_its_turn() {
    let minute = Some(Duration::from_secs(60));

    for (terms, has_more) in [(TERMS, false), (TERMS.max_hold(minute), true), (TERMS.min_hold(minute), true)]
    {
        let (lane, _) = held(terms);
        let Stage::Held(hold) = &lane.stage else { panic!("{lane:?}") };
        assert_eq!(hold.more.is_some(), has_more, "{terms:?}");
    }
}

#[test]
fn grant_that_is_not_confirmed_in_time_is_lost_by_that() {
    let deadline = 100 + 1_000 - 12;
    let lease = TERMS.lease();
    for (is_confirmed, cause) in [(false, LossCause::GrantUnconfirmed), (true, LossCause::Expired)] {
        let (mut lane, token) = granted_to(TERMS.renew(false));
        let mut ends = deadline;
        if is_confirmed {
            happen(&mut lane, 200, |lane, cx| {
                lane.reply(token, Command::Renew { lease }, at(110), Reply::Ours, cx);
            });
            ends = 110 + 30_000 - 302;
        }

        assert!(
            happen(&mut lane, ends - 1, Lane::tick)
                .iter()
                .all(|action| !matches!(action, Action::Lose { .. }))
        );
        let lost = happen(&mut lane, ends, Lane::tick);

        assert!(matches!(lost[..], [Action::Lose { cause: of, .. }] if of == cause), "{lost:?}");
    }
}

#[test]
fn round_trip_of_a_yield_counts_for_the_grant_that_follows() {
    let (mut lane, old, next) = yielding();
    happen(&mut lane, 400, |lane, cx| lane.reply(old, offer_of(next), at(100), Reply::Yielded, cx));

    let offer = Offer { lease: RULES.grant_lease, streak: Streak::UNKNOWN };
    let actions = happen(&mut lane, 500, |lane, cx| {
        lane.granted(next, offer, cx);
    });

    assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
}
