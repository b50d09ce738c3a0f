//! Unit tests of `hold`.

use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Failure, RecordInfo};
use crate::protocol::scene::{RULES, TERMS, at, happen, happen_where, held, waiter};

/// A lane whose first task has let go while a second waits, and that has sent its yield at 100 ms; and the yield's two tokens.
fn yielding() -> (KeyState<u32>, Token, Token) {
    yielding_to(TERMS)
}

/// The same where the second task has terms of its own.
fn yielding_to(terms: HoldTerms) -> (KeyState<u32>, Token, Token) {
    let (mut key_state, old) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, terms), ctx));
    happen(&mut key_state, 100, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let KeyPhase::Yielding(yielding) = &key_state.phase else { panic!("{key_state:?}") };
    let next = yielding.next;
    (key_state, old, next)
}

fn offer_of(next: Token) -> Command {
    Command::Yield { next, fleet_hold: FleetHold::UNKNOWN }
}

#[test]
fn an_answer_that_is_heard_twice_does_not_answer_the_next_offer() {
    let (mut key_state, old, next) = yielding();
    let earlier = Token::of_numbers(1, next.number() + 1).expect("a small number");

    let actions = happen(&mut key_state, 101, |key_state, ctx| {
        key_state.reply(old, offer_of(earlier), at(50), Reply::Owner, ctx)
    });

    assert!(actions.is_empty() && matches!(key_state.phase, KeyPhase::Yielding(_)), "{actions:?}");
}

#[test]
fn a_lock_that_somebody_takes_when_it_is_offered_is_contended() {
    let (mut key_state, old, next) = yielding();
    let mut contended = false;

    happen_where(&mut contended, &mut key_state, 101, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), Reply::Yielded, ctx);
    });

    assert!(contended);
}

#[test]
fn a_grant_after_a_yield_is_counted_from_when_the_yield_was_sent() {
    let (mut key_state, old, next) = yielding();
    happen(&mut key_state, 1_000, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), Reply::Yielded, ctx);
    });

    let actions = happen(&mut key_state, 1_100, |key_state, ctx| {
        let offer = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        key_state.on_grant(next, offer, ctx);
    });

    assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
}

#[test]
fn a_yield_where_nobody_queues_leaves_others_a_moment_to_take_the_lock() {
    let (mut key_state, old, next) = yielding();
    let freed = Reply::NotQueued { ttl: Some(Duration::from_millis(8)) };

    let actions = happen(&mut key_state, 101, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), freed, ctx)
    });

    assert!(actions.is_empty(), "{actions:?}");
    assert_eq!(key_state.due(), at(110));
    assert!(happen(&mut key_state, 102, KeyState::on_invalidation).is_empty(), "our own bell rings, too");
    let again = happen(&mut key_state, 109, KeyState::tick);
    assert!(matches!(again[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{again:?}");
}

/// A lane whose task was granted the lock at 110 ms, by a proof of 100 ms, and another task that waits; and its token.
fn granted() -> (KeyState<u32>, Token) {
    let (mut key_state, token) = granted_to(TERMS);
    happen(&mut key_state, 110, |key_state, ctx| key_state.join(waiter(3, TERMS), ctx));
    (key_state, token)
}

/// The same where the task has terms of its own, and nobody waits.
fn granted_to(terms: HoldTerms) -> (KeyState<u32>, Token) {
    let (mut key_state, old, next) = yielding_to(terms);
    happen(&mut key_state, 101, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), Reply::Yielded, ctx)
    });
    happen(&mut key_state, 110, |key_state, ctx| {
        let offer = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        key_state.on_grant(next, offer, ctx);
    });
    (key_state, next)
}

/// Has the task of `seat` let go where a lock may be handed on for so many seconds while others wait.
fn let_go_within(seconds: u64, key_state: &mut KeyState<u32>, acquisition: u32, ms: u64) -> Vec<Action<u32>> {
    let rules = ProtocolConfig { handoff_budget: Duration::from_secs(seconds), ..RULES };
    happen(key_state, ms, |key_state, ctx| {
        key_state.release(&acquisition, &mut ctx.under(&rules));
    })
}

fn let_go_within_a_second(key_state: &mut KeyState<u32>, acquisition: u32, ms: u64) -> Vec<Action<u32>> {
    let_go_within(1, key_state, acquisition, ms)
}

/// Has the task of `seat` let go with time left in the hand-off.
fn let_go(key_state: &mut KeyState<u32>, acquisition: u32, ms: u64) -> Vec<Action<u32>> {
    let_go_within(60, key_state, acquisition, ms)
}

#[test]
fn a_hold_is_handed_on_while_more_than_half_of_it_is_left() {
    let deadline = 30_000 - 302;
    for (left, is_handed_on) in [(15_001, true), (15_000, false)] {
        let (mut key_state, token) = held(TERMS);
        happen(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

        let actions = let_go(&mut key_state, 1, deadline - left);

        assert!(
            match actions[..] {
                [Action::Grant { acquisition: 2, token: of, .. }] => is_handed_on && of == token,
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
        let (mut key_state, _) = granted();

        let actions = let_go(&mut key_state, 2, deadline - left);

        assert_eq!(
            matches!(actions[..], [Action::Grant { acquisition: 3, .. }]),
            is_handed_on,
            "{actions:?}"
        );
    }
}

#[test]
fn a_hold_that_nobody_renews_is_lost_when_its_deadline_has_come() {
    let (mut key_state, _) = held(TERMS.renew(false));

    assert_eq!(key_state.due(), at(30_000 - 302));
    assert!(happen(&mut key_state, 29_697, KeyState::tick).is_empty());
    let lost = happen(&mut key_state, 29_698, KeyState::tick);

    assert!(
        matches!(lost[..], [Action::Revoke { acquisition: 1, cause: LossCause::Expired, .. }]),
        "{lost:?}"
    );
}

#[test]
fn an_answer_about_another_token_does_not_concern_a_hold() {
    let (mut key_state, _) = held(TERMS);
    let (_, other) = held(TERMS);

    let renew = Command::Renew { lease: TERMS.lease() };
    let actions = happen(&mut key_state, 50, |key_state, ctx| {
        key_state.reply(other, renew, at(40), Reply::NotOwner, ctx)
    });

    assert!(actions.is_empty() && matches!(key_state.phase, KeyPhase::Held(_)), "{actions:?}");
}

#[test]
fn a_hold_is_lost_to_what_is_no_lock_and_not_to_a_server_that_refuses() {
    for (kind, is_lost) in
        [(FailureKind::WrongKind, true), (FailureKind::Passing, false), (FailureKind::Lasting, false)]
    {
        let (mut key_state, token) = held(TERMS);
        let (renew, refused) =
            (Command::Renew { lease: TERMS.lease() }, Reply::Refused(Failure::new(kind, "no")));

        let actions =
            happen(&mut key_state, 50, |key_state, ctx| key_state.reply(token, renew, at(40), refused, ctx));

        let lost = matches!(actions[..], [Action::Revoke { cause: LossCause::NotOwner, left: None, .. }]);
        assert_eq!(lost, is_lost, "{kind:?}: {actions:?}");
    }
}

#[test]
fn a_renewal_that_is_answered_while_the_lock_is_on_offer_counts() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 10_001, KeyState::tick);
    happen(&mut key_state, 10_002, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 10_003, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let KeyPhase::Yielding(yielding) = &key_state.phase else { panic!("{key_state:?}") };
    let (offer, renew) = (offer_of(yielding.next), Command::Renew { lease: TERMS.lease() });
    happen(&mut key_state, 10_004, |key_state, ctx| {
        key_state.reply(token, renew, at(10_001), Reply::Owner, ctx)
    });

    let kept = happen(&mut key_state, 10_005, |key_state, ctx| {
        key_state.reply(token, offer, at(10_003), Reply::Owner, ctx)
    });

    let until = Deadline::of_lease(at(10_001), TERMS.lease());
    assert!(
        matches!(kept[..], [Action::Grant { acquisition: 2, deadline, .. }] if deadline == until),
        "{kept:?}"
    );
}

#[test]
fn a_lock_that_was_lost_when_it_was_offered_is_asked_for_anew() {
    let (mut key_state, old, next) = yielding();

    let actions = happen(&mut key_state, 110, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), Reply::NotOwner, ctx)
    });

    assert!(
        matches!(actions[..], [Action::Send { token, command: Command::Acquire { .. } }] if token != old && token != next),
        "{actions:?}"
    );
}

#[test]
fn a_yield_that_was_refused_leaves_the_token_that_held() {
    let (mut key_state, old, next) = yielding();

    let busy = Reply::Refused(Failure::new(FailureKind::Passing, "busy"));
    let actions = happen(&mut key_state, 110, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), busy, ctx)
    });

    assert!(matches!(actions[..], [Action::Orphan { token }] if token == old), "{actions:?}");
    assert!(key_state.due() < BootInstant::NEVER, "it is asked for again");
}

#[test]
fn who_was_queued_by_a_yield_asks_again_half_a_grant_lease_after_it() {
    let (mut key_state, old, next) = yielding();

    happen(&mut key_state, 110, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), Reply::Yielded, ctx)
    });

    assert_eq!(key_state.due(), at(100).plus(RULES.grant_lease / 2));
}

#[test]
fn a_grant_that_overtakes_the_answer_to_the_yield_is_confirmed() {
    let (mut key_state, _, next) = yielding();

    let asked = happen(&mut key_state, 105, |key_state, ctx| {
        let offer = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        assert!(key_state.on_grant(next, offer, ctx));
    });
    let renew = Command::Renew { lease: TERMS.lease() };
    let ours = happen(&mut key_state, 110, |key_state, ctx| {
        key_state.reply(next, renew, at(105), Reply::Owner, ctx)
    });

    assert!(
        matches!(asked[..], [Action::Send { token, command }] if token == next && command == renew),
        "{asked:?}"
    );
    assert!(matches!(ours[..], [Action::Grant { acquisition: 2, token, .. }] if token == next), "{ours:?}");
}

/// A lock that three tasks more want, of which the first two have let go at 400 and 600 ms; what came of each, and its token.
fn handed_on_twice() -> (KeyState<u32>, [Vec<Action<u32>>; 2], Token) {
    let (mut key_state, token) = held(TERMS);
    for acquisition in [2, 3, 4] {
        happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(acquisition, TERMS), ctx));
    }
    let [early, later] =
        [(1, 400), (2, 600)].map(|(acquisition, ms)| let_go_within_a_second(&mut key_state, acquisition, ms));
    (key_state, [early, later], token)
}

/// What comes of the third who lets go, at 1,100 ms, where the server has answered so, who else waits.
fn handed_on_after(answer: impl FnOnce(Token) -> Reply) -> Vec<Action<u32>> {
    let (mut key_state, _, token) = handed_on_twice();
    let answer = answer(token);
    happen(&mut key_state, 700, |key_state, ctx| {
        key_state.reply(token, Command::Inspect, at(600), answer, ctx)
    });
    let_go_within_a_second(&mut key_state, 3, 1_100)
}

fn waiters(waiters: usize) -> impl FnOnce(Token) -> Reply {
    move |token| Reply::Info(Some(RecordInfo { holder: Some(token.process()), waiters, ttl: None }))
}

#[test]
fn a_hand_off_ends_where_somebody_else_waits_however_often_the_lock_was_handed_on() {
    let (_, [early, later], _) = handed_on_twice();
    let after_it = [
        handed_on_after(waiters(1)),
        handed_on_after(|_| Reply::Unknown(Failure::new(FailureKind::Passing, "no answer"))),
    ];

    assert!(matches!(early[..], [Action::Grant { acquisition: 2, .. }]), "{early:?}");
    assert!(
        matches!(
            later[..],
            [Action::Send { command: Command::Inspect, .. }, Action::Grant { acquisition: 3, .. }]
        ),
        "{later:?}"
    );
    let is_offered =
        |actions: &Vec<_>| matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]);
    assert!(after_it.iter().all(is_offered), "other processes have no turn: {after_it:?}");
}

#[test]
fn a_hand_off_goes_on_where_nobody_else_waits() {
    let after_it = handed_on_after(waiters(0));

    assert!(matches!(after_it[..], [Action::Grant { acquisition: 4, .. }]), "{after_it:?}");
}

#[test]
fn a_hold_that_is_somebody_elses_when_it_is_asked_who_waits_is_checked() {
    let theirs = Token::of_numbers(77, 1).expect("a small number").process();
    let held_by = |holder| Some(RecordInfo { holder, waiters: 0, ttl: None });
    for seen in [None, held_by(None), held_by(Some(theirs))] {
        let (mut key_state, _, token) = handed_on_twice();

        let actions = happen(&mut key_state, 700, |key_state, ctx| {
            key_state.reply(token, Command::Inspect, at(600), Reply::Info(seen), ctx);
        });

        assert!(matches!(actions[..], [Action::Send { command: Command::Verify, .. }]), "{actions:?}");
        let after_it = let_go_within_a_second(&mut key_state, 3, 1_100);
        assert!(
            matches!(after_it[..], [Action::Send { command: Command::Yield { .. }, .. }]),
            "{after_it:?}"
        );
    }
}

#[test]
fn who_has_another_lease_goes_on_with_the_budget_of_those_before() {
    let (mut key_state, token) = held(TERMS);
    let [shorter, longer] = [10, 40].map(|seconds| HoldTerms::of_lease(Duration::from_secs(seconds)));
    for (acquisition, terms) in [(2, shorter), (3, longer), (4, shorter)] {
        happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(acquisition, terms), ctx));
    }

    for (acquisition, ms, lease) in [(1, 400, shorter.lease()), (2, 800, longer.lease())] {
        let renew = Command::Renew { lease };
        let actions = let_go_within_a_second(&mut key_state, acquisition, ms);
        assert!(matches!(actions[..], [Action::Send { command, .. }] if command == renew), "{actions:?}");
        happen(&mut key_state, ms + 10, |key_state, ctx| {
            key_state.reply(token, renew, at(ms), Reply::Owner, ctx)
        });
    }
    let actions = let_go_within_a_second(&mut key_state, 3, 1_100);

    assert!(matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]), "{actions:?}");
}

#[test]
fn a_question_that_is_not_answered_does_not_prolong_the_budget_of_who_has_another_lease() {
    let (mut key_state, token) = held(TERMS);
    let shorter = HoldTerms::of_lease(Duration::from_secs(10));
    for (acquisition, terms) in [(2, TERMS), (3, shorter), (4, shorter)] {
        happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(acquisition, terms), ctx));
    }
    let_go_within_a_second(&mut key_state, 1, 600);
    let_go_within_a_second(&mut key_state, 2, 800);
    let renew = Command::Renew { lease: shorter.lease() };
    happen(&mut key_state, 810, |key_state, ctx| key_state.reply(token, renew, at(800), Reply::Owner, ctx));

    let actions = let_go_within_a_second(&mut key_state, 3, 1_100);

    assert!(matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]), "{actions:?}");
}

#[test]
fn a_lock_that_nobody_takes_when_it_is_offered_is_not_contended() {
    let (mut key_state, old, next) = yielding();
    let mut contended = true;

    happen_where(&mut contended, &mut key_state, 101, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), Reply::Owner, ctx);
    });

    assert!(!contended);
}

#[test]
fn the_answer_who_else_waits_says_nothing_to_who_is_asking_by_then() {
    let (mut key_state, _, token) = handed_on_twice();
    let other = HoldTerms::of_lease(Duration::from_secs(10));
    happen(&mut key_state, 601, |key_state, ctx| key_state.join(waiter(5, other), ctx));
    let_go_within_a_second(&mut key_state, 3, 610);
    let_go_within_a_second(&mut key_state, 4, 620);
    assert!(matches!(key_state.phase, KeyPhase::Contending(_)), "{key_state:?}");

    let refused = Reply::Refused(Failure::new(FailureKind::Lasting, "no permission"));
    let actions = happen(&mut key_state, 700, |key_state, ctx| {
        key_state.reply(token, Command::Inspect, at(600), refused, ctx)
    });

    assert!(actions.is_empty() && matches!(key_state.phase, KeyPhase::Contending(_)), "{actions:?}");
}

const RENEW: Command = Command::Renew { lease: TERMS.lease() };

#[test]
fn a_grant_is_confirmed_once_it_has_lasted_for_a_while() {
    let (mut key_state, token) = granted();

    assert_eq!(key_state.due(), at(110).plus(Duration::from_millis(1_088 - 110) / 200));
    assert!(happen(&mut key_state, 114, KeyState::tick).is_empty());
    let asked = happen(&mut key_state, 115, KeyState::tick);

    assert!(matches!(asked[..], [Action::Send { token: of, command: RENEW }] if of == token), "{asked:?}");
    assert!(happen(&mut key_state, 116, KeyState::tick).is_empty(), "it is asked once");
    happen(&mut key_state, 117, |key_state, ctx| key_state.reply(token, RENEW, at(115), Reply::Owner, ctx));
    assert!(
        key_state.due() > at(7_000),
        "from now on it is renewed as all others are: {:?}",
        key_state.due()
    );
}

#[test]
fn a_grant_is_confirmed_at_once_where_it_has_to_last_or_nobody_keeps_the_time() {
    let at_once = ProtocolConfig { confirm_grants_first: true, ..RULES };
    let minute = Some(Duration::from_secs(60));
    for (terms, rules) in [
        (TERMS, at_once),
        (TERMS.renew(false), RULES),
        (TERMS.max_hold(minute), RULES),
        (TERMS.min_hold(minute), RULES),
    ] {
        let (mut key_state, old, next) = yielding_to(terms);
        happen(&mut key_state, 101, |key_state, ctx| {
            key_state.reply(old, offer_of(next), at(100), Reply::Yielded, ctx)
        });
        let granted = happen(&mut key_state, 110, |key_state, ctx| {
            let mut ctx = ctx.under(&rules);
            key_state.on_grant(
                next,
                Grant { lease: rules.grant_lease, fleet_hold: FleetHold::UNKNOWN },
                &mut ctx,
            );
        });

        assert!(
            matches!(
                granted[..],
                [Action::Grant { acquisition: 2, .. }, Action::Send { command: RENEW, .. }]
            ),
            "{terms:?}: {granted:?}"
        );
        assert!(happen(&mut key_state, 116, KeyState::tick).is_empty(), "it is asked once");
    }
}

#[test]
fn a_grant_that_is_handed_on_to_a_turn_that_has_to_last_is_confirmed_at_once() {
    let (mut key_state, token) = granted_to(TERMS);
    let min_hold = Some(Duration::from_secs(60));
    happen(&mut key_state, 111, |key_state, ctx| key_state.join(waiter(3, TERMS.min_hold(min_hold)), ctx));

    let handed_on = let_go_within_a_second(&mut key_state, 2, 112);

    assert!(
        matches!(
            handed_on[..],
            [Action::Grant { acquisition: 3, .. }, Action::Send { token: of, command: RENEW }] if of == token
        ),
        "{handed_on:?}"
    );
    assert!(happen(&mut key_state, 116, KeyState::tick).is_empty(), "it is asked once");
}

#[test]
fn what_confirms_a_grant_waits_for_no_place() {
    let (mut key_state, _) = granted_to(HoldTerms::of_lease(Duration::from_secs(1)));

    assert!(!key_state.defer(at(115), at(120)), "there is time: a renewal would wait");
    assert_eq!(happen(&mut key_state, 115, KeyState::tick).len(), 1);
}

#[test]
fn a_grant_whose_task_lets_go_soon_costs_a_release_and_no_more() {
    let (mut key_state, token) = granted_to(TERMS);

    let mut released = ReleaseOutcome::HandedOff;
    let asked = happen(&mut key_state, 113, |key_state, ctx| released = key_state.release(&2, ctx));

    assert_eq!((released, asked.len()), (ReleaseOutcome::Send(token, Command::Release), 0), "{asked:?}");
    assert!(key_state.is_idle());
}

#[test]
fn a_grant_that_is_handed_on_is_confirmed_for_whoever_has_it_then() {
    let (mut key_state, token) = granted();

    let handed_on = let_go_within_a_second(&mut key_state, 2, 112);

    assert!(
        matches!(handed_on[..], [Action::Grant { acquisition: 3, token: of, .. }] if of == token),
        "{handed_on:?}"
    );
    let asked = happen(&mut key_state, 115, KeyState::tick);
    assert!(matches!(asked[..], [Action::Send { token: of, command: RENEW }] if of == token), "{asked:?}");
    let prolonged = happen(&mut key_state, 116, |key_state, ctx| {
        key_state.reply(token, RENEW, at(115), Reply::Owner, ctx)
    });
    assert!(matches!(prolonged[..], [Action::Extend { acquisition: 3, .. }]), "{prolonged:?}");
}

#[test]
fn a_grant_whose_confirmation_is_late_or_was_not_answered_is_confirmed_before_it_is_handed_on() {
    let (mut late, _) = granted();
    let (mut unanswered, token) = granted();
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    happen(&mut unanswered, 115, KeyState::tick);
    happen(&mut unanswered, 117, |key_state, ctx| key_state.reply(token, RENEW, at(115), unknown, ctx));

    for (key_state, ms) in [(&mut late, 700), (&mut unanswered, 118)] {
        let asked = let_go_within_a_second(key_state, 2, ms);
        assert!(matches!(asked[..], [Action::Send { command: RENEW, .. }]), "{asked:?}");
    }
}

#[test]
fn a_hold_whose_renewal_was_not_answered_while_it_was_on_offer_is_renewed_when_it_is_kept() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 10_001, KeyState::tick);
    happen(&mut key_state, 10_002, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 10_003, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let KeyPhase::Yielding(yielding) = &key_state.phase else { panic!("{key_state:?}") };
    let offer = offer_of(yielding.next);
    let busy = Reply::Refused(Failure::new(FailureKind::Passing, "busy"));
    let renew = Command::Renew { lease: TERMS.lease() };
    happen(&mut key_state, 10_004, |key_state, ctx| key_state.reply(token, renew, at(10_001), busy, ctx));

    let kept = happen(&mut key_state, 10_005, |key_state, ctx| {
        key_state.reply(token, offer, at(10_003), Reply::Owner, ctx)
    });

    assert!(matches!(kept[..], [Action::Grant { acquisition: 2, .. }]), "{kept:?}");
    assert!(key_state.due() <= at(11_005), "{:?}", key_state.due());
}

/// A lane in which a hold is prolonged, at 100 ms, for the next task, which wants it for longer; its token, and what that task wants.
fn confirming() -> (KeyState<u32>, Token, HoldTerms) {
    let (mut key_state, held) = held(TERMS);
    let terms = HoldTerms::of_lease(2 * TERMS.lease());
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, terms), ctx));
    let rules = ProtocolConfig { handoff_budget: Duration::from_secs(1), ..RULES };
    happen(&mut key_state, 100, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.release(&1, &mut ctx);
    });
    (key_state, held, terms)
}

#[test]
fn a_lock_that_is_gone_before_it_is_handed_on_is_asked_for_anew_where_nobody_queues() {
    let (mut key_state, held, terms) = confirming();
    let renew = Command::Renew { lease: terms.lease() };
    happen(&mut key_state, 101, |key_state, ctx| key_state.reply(held, renew, at(100), Reply::NotOwner, ctx));

    let again =
        Command::Enqueue { lease: terms.lease(), mode: crate::protocol::command::EnqueueMode::Recheck };
    let free = Reply::NotQueued { ttl: Some(Duration::ZERO) };
    happen(&mut key_state, 102, |key_state, ctx| key_state.reply(held, again, at(101), free, ctx));

    let asked = happen(&mut key_state, 104, KeyState::tick);
    assert!(matches!(asked[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{asked:?}");
}

#[test]
fn a_lock_is_let_go_of_that_nobody_said_is_still_ours_where_nobody_queues() {
    let (mut key_state, held, terms) = confirming();
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    let renew = Command::Renew { lease: terms.lease() };
    happen(&mut key_state, 600, |key_state, ctx| key_state.reply(held, renew, at(100), unknown, ctx));

    let again =
        Command::Enqueue { lease: terms.lease(), mode: crate::protocol::command::EnqueueMode::Recheck };
    let kept = Reply::NotQueued { ttl: Some(TERMS.lease()) };
    let let_go =
        happen(&mut key_state, 800, |key_state, ctx| key_state.reply(held, again, at(790), kept, ctx));

    assert!(
        matches!(let_go[..], [Action::Send { token, command: Command::Release }] if token == held),
        "{let_go:?}"
    );
}

#[test]
fn a_yield_without_an_answer_leaves_both_its_tokens() {
    let (mut key_state, old, next) = yielding();

    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    let actions = happen(&mut key_state, 600, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), unknown, ctx)
    });

    let abandoned =
        |wanted| actions.iter().any(|action| matches!(action, Action::Orphan { token } if *token == wanted));
    assert!(abandoned(old) && abandoned(next), "{actions:?}");
}

#[test]
fn on_another_server_a_hold_is_confirmed_before_it_is_due() {
    let (mut key_state, held) = held(TERMS);

    assert!(happen(&mut key_state, 100, |key_state, ctx| key_state.on_reconnect(false, ctx)).is_empty());
    assert!(key_state.due() > at(200), "{:?}", key_state.due());
    assert!(
        happen(&mut key_state, 200, |key_state, ctx| key_state.on_reconnect(true, ctx)).is_empty(),
        "it waits for its place"
    );
    assert_eq!(key_state.due(), at(200));
    let actions = happen(&mut key_state, 200, KeyState::tick);

    assert!(
        matches!(actions[..], [Action::Send { token, command: Command::Renew { .. } }] if token == held),
        "{actions:?}"
    );
}

#[test]
fn on_another_server_a_hold_with_little_time_waits_for_no_place() {
    let (mut key_state, _) = held(HoldTerms::of_lease(Duration::from_millis(300)));

    let actions = happen(&mut key_state, 20, |key_state, ctx| key_state.on_reconnect(true, ctx));

    assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
}

#[test]
fn on_another_server_a_hold_with_a_second_waits_for_its_place() {
    let (mut key_state, _) = held(TERMS);

    let actions =
        happen(&mut key_state, 30_000 - 302 - 1_000, |key_state, ctx| key_state.on_reconnect(true, ctx));

    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn on_another_server_a_fixed_lease_is_not_prolonged() {
    let (mut key_state, _) = held(TERMS.renew(false));

    let mut actions = happen(&mut key_state, 200, |key_state, ctx| key_state.on_reconnect(true, ctx));
    actions.extend(happen(&mut key_state, 200, KeyState::tick));

    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn a_turn_is_lost_when_its_max_hold_is_over_and_released_when_its_body_is_gone() {
    let (mut key_state, held) = held(TERMS.max_hold(Some(Duration::from_secs(40))));
    let renewed = Command::Renew { lease: TERMS.lease() };
    happen(&mut key_state, 30_000, |key_state, ctx| {
        key_state.reply(held, renewed, at(29_999), Reply::Owner, ctx)
    });
    assert_eq!(happen(&mut key_state, 40_000, KeyState::tick).len(), 1, "a renewal");
    assert_eq!(key_state.due(), at(40_001));

    let actions = happen(&mut key_state, 40_001, KeyState::tick);

    let [Action::Revoke { cause: LossCause::MaxHold, left: Some(left), .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    let gone =
        happen(&mut key_state, 41_000, |key_state, ctx| key_state.release_residual(&1, left, true, ctx));
    assert!(
        matches!(gone[..], [Action::Send { token, command: Command::Release }] if token == held),
        "{gone:?}"
    );
}

#[test]
fn a_turn_that_was_handed_on_has_a_max_hold_of_its_own() {
    let (mut key_state, _) = held(TERMS);
    let terms = TERMS.max_hold(Some(Duration::from_secs(1)));
    happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(2, terms), ctx));
    let rules = ProtocolConfig { handoff_budget: Duration::from_secs(1), ..RULES };

    let actions = happen(&mut key_state, 400, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.release(&1, &mut ctx);
    });

    assert!(
        matches!(actions[..], [Action::Grant { acquisition: 2, ends, .. }] if ends == at(1_400)),
        "{actions:?}"
    );
    assert_eq!(key_state.due(), at(1_400));
}

#[test]
fn a_hold_takes_more_memory_only_for_the_bounds_of_its_turn() {
    let minute = Some(Duration::from_secs(60));

    for (terms, has_more) in [(TERMS, false), (TERMS.max_hold(minute), true), (TERMS.min_hold(minute), true)]
    {
        let (key_state, _) = held(terms);
        let KeyPhase::Held(hold) = &key_state.phase else { panic!("{key_state:?}") };
        assert_eq!(hold.more.is_some(), has_more, "{terms:?}");
    }
}

#[test]
fn grant_that_is_not_confirmed_in_time_is_lost_by_that() {
    let deadline = 100 + 1_000 - 12;
    let lease = TERMS.lease();
    for (is_confirmed, cause) in [(false, LossCause::GrantUnconfirmed), (true, LossCause::Expired)] {
        let (mut key_state, token) = granted_to(TERMS.renew(false));
        let mut ends = deadline;
        if is_confirmed {
            happen(&mut key_state, 200, |key_state, ctx| {
                key_state.reply(token, Command::Renew { lease }, at(110), Reply::Owner, ctx);
            });
            ends = 110 + 30_000 - 302;
        }

        assert!(
            happen(&mut key_state, ends - 1, KeyState::tick)
                .iter()
                .all(|action| !matches!(action, Action::Revoke { .. }))
        );
        let lost = happen(&mut key_state, ends, KeyState::tick);

        assert!(matches!(lost[..], [Action::Revoke { cause: of, .. }] if of == cause), "{lost:?}");
    }
}

#[test]
fn round_trip_of_a_yield_counts_for_the_grant_that_follows() {
    let (mut key_state, old, next) = yielding();
    happen(&mut key_state, 400, |key_state, ctx| {
        key_state.reply(old, offer_of(next), at(100), Reply::Yielded, ctx)
    });

    let offer = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
    let actions = happen(&mut key_state, 500, |key_state, ctx| {
        key_state.on_grant(next, offer, ctx);
    });

    assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
}
