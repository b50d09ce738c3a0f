use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Failure, RecordInfo};
use crate::protocol::scene::{RULES, TERMS, at, failure, happen, happen_where, held, waiter};

/// Returns a key state whose first task released the lock while a second waits, and which sent its
/// yield at 100 ms. Also returns the two tokens of the yield.
fn yielding() -> (KeyState<u32>, Token, Token) {
    yielding_to(TERMS)
}

/// Like [`yielding`], with the terms of the second task.
fn yielding_to(terms: HoldTerms) -> (KeyState<u32>, Token, Token) {
    let (mut key_state, old) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, terms), ctx));
    happen(&mut key_state, 100, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let Some(yielding) = key_state.contender() else { panic!("{key_state:?}") };
    let next = yielding.token;
    (key_state, old, next)
}

fn yield_to(next: Token) -> Command {
    Command::Yield { next, fleet_hold: FleetHold::UNKNOWN }
}

#[test]
fn duplicate_reply_does_not_answer_the_next_yield() {
    let (mut key_state, old, next) = yielding();
    let earlier = Token::of_numbers(1, next.number() + 1).expect("a small number");

    let actions = happen(&mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(old, yield_to(earlier), at(50), Reply::Owner, ctx);
    });

    assert!(actions.is_empty() && key_state.holds.yielded().is_some(), "{actions:?}");
}

#[test]
fn accepted_yield_marks_the_lock_contended() {
    let (mut key_state, old, next) = yielding();
    let mut contended = false;

    happen_where(&mut contended, &mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::Yielded, ctx);
    });

    assert!(contended);
}

#[test]
fn grant_after_a_yield_counts_from_the_yield() {
    let (mut key_state, old, next) = yielding();
    happen(&mut key_state, 1_000, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::Yielded, ctx);
    });

    let actions = happen(&mut key_state, 1_100, |key_state, ctx| {
        let grant = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        key_state.on_grant(next, grant, ctx);
    });

    assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
}

#[test]
fn yield_without_a_queue_leaves_time_for_others() {
    let (mut key_state, old, next) = yielding();
    let freed = Reply::NotQueued { ttl: Some(Duration::from_millis(8)) };

    let actions = happen(&mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), freed, ctx);
    });

    assert!(actions.is_empty(), "{actions:?}");
    assert_eq!(key_state.next_timeout(), at(110));
    assert!(
        happen(&mut key_state, 102, KeyState::on_invalidation).is_empty(),
        "this process receives its own release message"
    );
    let again = happen(&mut key_state, 109, KeyState::on_timeout);
    assert!(matches!(again[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{again:?}");
}

/// Returns a key state whose task was granted the lock at 110 ms, by a proof of 100 ms, while
/// another task waits. Also returns the token.
fn granted() -> (KeyState<u32>, Token) {
    let (mut key_state, token) = granted_to(TERMS);
    happen(&mut key_state, 110, |key_state, ctx| key_state.join(waiter(3, TERMS), ctx));
    (key_state, token)
}

/// Like [`granted`], with the terms of the task, and no other task waits.
fn granted_to(terms: HoldTerms) -> (KeyState<u32>, Token) {
    let (mut key_state, old, next) = yielding_to(terms);
    happen(&mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::Yielded, ctx);
    });
    happen(&mut key_state, 110, |key_state, ctx| {
        let grant = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        key_state.on_grant(next, grant, ctx);
    });
    (key_state, next)
}

/// Releases the lock of `acquisition` under a hand-off budget of `seconds`, while other processes
/// wait.
fn release_with_budget(
    seconds: u64,
    key_state: &mut KeyState<u32>,
    acquisition: u32,
    ms: u64,
) -> Vec<Action<u32>> {
    let rules = ProtocolConfig { handoff_budget: Duration::from_secs(seconds), ..RULES };
    happen(key_state, ms, |key_state, ctx| {
        key_state.release(&acquisition, &mut ctx.under(&rules));
    })
}

fn release_within_a_second(key_state: &mut KeyState<u32>, acquisition: u32, ms: u64) -> Vec<Action<u32>> {
    release_with_budget(1, key_state, acquisition, ms)
}

/// Releases the lock of `acquisition` within the hand-off budget.
fn release_in_time(key_state: &mut KeyState<u32>, acquisition: u32, ms: u64) -> Vec<Action<u32>> {
    release_with_budget(60, key_state, acquisition, ms)
}

#[test]
fn hold_is_handed_off_while_more_than_half_is_left() {
    let deadline = 30_000 - 302;
    for (left, is_handed_off) in [(15_001, true), (15_000, false)] {
        let (mut key_state, token) = held(TERMS);
        happen(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

        let actions = release_in_time(&mut key_state, 1, deadline - left);

        assert!(
            match actions[..] {
                [Action::Grant { acquisition: 2, token: of, .. }] => is_handed_off && of == token,
                [Action::Send { token: of, command: Command::Renew { .. } }] => !is_handed_off && of == token,
                _ => false,
            },
            "{left}: {actions:?}"
        );
    }
}

#[test]
fn unconfirmed_grant_is_handed_off_while_half_is_left() {
    let deadline = 100 + 1_000 - 12;
    for (left, is_handed_off) in [(501, true), (500, false)] {
        let (mut key_state, _) = granted();

        let actions = release_in_time(&mut key_state, 2, deadline - left);

        assert_eq!(
            matches!(actions[..], [Action::Grant { acquisition: 3, .. }]),
            is_handed_off,
            "{actions:?}"
        );
    }
}

#[test]
fn hold_without_renewals_is_lost_at_its_deadline() {
    let (mut key_state, _) = held(TERMS.renew(false));

    assert_eq!(key_state.next_timeout(), at(30_000 - 302));
    assert!(happen(&mut key_state, 29_697, KeyState::on_timeout).is_empty());
    let lost = happen(&mut key_state, 29_698, KeyState::on_timeout);

    assert!(
        matches!(lost[..], [Action::Revoke { acquisition: 1, cause: LossCause::Expired, .. }]),
        "{lost:?}"
    );
}

#[test]
fn reply_for_another_token_does_not_affect_a_hold() {
    let (mut key_state, _) = held(TERMS);
    let (_, other) = held(TERMS);

    let renew = Command::Renew { lease: TERMS.lease() };
    let actions = happen(&mut key_state, 50, |key_state, ctx| {
        key_state.on_reply(other, renew, at(40), Reply::NotOwner, ctx);
    });

    assert!(actions.is_empty() && key_state.holds.active().count() == 1, "{actions:?}");
}

#[test]
fn hold_is_lost_to_a_foreign_value_and_not_to_a_refusal() {
    for (kind, is_lost) in
        [(FailureKind::WrongKind, true), (FailureKind::Passing, false), (FailureKind::Lasting, false)]
    {
        let (mut key_state, token) = held(TERMS);
        let (renew, refused) =
            (Command::Renew { lease: TERMS.lease() }, Reply::Refused(Failure::new(kind, "no")));

        let actions = happen(&mut key_state, 50, |key_state, ctx| {
            key_state.on_reply(token, renew, at(40), refused, ctx);
        });

        let lost = matches!(actions[..], [Action::Revoke { cause: LossCause::NotOwner, left: None, .. }]);
        assert_eq!(lost, is_lost, "{kind:?}: {actions:?}");
    }
}

#[test]
fn renewal_answered_during_a_yield_counts() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 10_001, KeyState::on_timeout);
    happen(&mut key_state, 10_002, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 10_003, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let Some(yielding) = key_state.contender() else { panic!("{key_state:?}") };
    let (grant, renew) = (yield_to(yielding.token), Command::Renew { lease: TERMS.lease() });
    happen(&mut key_state, 10_004, |key_state, ctx| {
        key_state.on_reply(token, renew, at(10_001), Reply::Owner, ctx);
    });

    let kept = happen(&mut key_state, 10_005, |key_state, ctx| {
        key_state.on_reply(token, grant, at(10_003), Reply::Owner, ctx);
    });

    let until = Deadline::of_lease(at(10_001), TERMS.lease());
    assert!(
        matches!(kept[..], [Action::Grant { acquisition: 2, deadline, .. }] if deadline == until),
        "{kept:?}"
    );
}

#[test]
fn lock_lost_before_its_yield_is_contended_again() {
    let (mut key_state, old, next) = yielding();

    let actions = happen(&mut key_state, 110, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::NotOwner, ctx);
    });

    assert!(
        matches!(actions[..], [Action::Send { token, command: Command::Acquire { .. } }] if token != old && token != next),
        "{actions:?}"
    );
}

#[test]
fn refused_yield_cleans_up_the_old_token() {
    let (mut key_state, old, next) = yielding();

    let busy = Reply::Refused(Failure::new(FailureKind::Passing, "busy"));
    let actions = happen(&mut key_state, 110, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), busy, ctx);
    });

    assert!(matches!(actions[..], [Action::Orphan { token }] if token == old), "{actions:?}");
    assert!(key_state.next_timeout() < BootInstant::NEVER, "it is contended again");
}

#[test]
fn contender_queued_by_a_yield_rechecks_half_a_lease_later() {
    let (mut key_state, old, next) = yielding();

    happen(&mut key_state, 110, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::Yielded, ctx);
    });

    assert_eq!(key_state.next_timeout(), at(100).plus(RULES.grant_lease / 2));
}

#[test]
fn grant_before_the_reply_to_its_yield_is_confirmed() {
    let (mut key_state, _, next) = yielding();

    let sent = happen(&mut key_state, 105, |key_state, ctx| {
        let grant = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
        assert!(key_state.on_grant(next, grant, ctx));
    });
    let renew = Command::Renew { lease: TERMS.lease() };
    let confirmed = happen(&mut key_state, 110, |key_state, ctx| {
        key_state.on_reply(next, renew, at(105), Reply::Owner, ctx);
    });

    assert!(
        matches!(sent[..], [Action::Send { token, command }] if token == next && command == renew),
        "{sent:?}"
    );
    assert!(
        matches!(confirmed[..], [Action::Grant { acquisition: 2, token, .. }] if token == next),
        "{confirmed:?}"
    );
}

/// Returns a key state whose first two tasks released the lock at 400 and 600 ms, while more tasks
/// wait. Also returns the actions of each release, and the token.
fn handed_off_twice() -> (KeyState<u32>, [Vec<Action<u32>>; 2], Token) {
    let (mut key_state, token) = held(TERMS);
    for acquisition in [2, 3, 4] {
        happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(acquisition, TERMS), ctx));
    }
    let [early, later] = [(1, 400), (2, 600)]
        .map(|(acquisition, ms)| release_within_a_second(&mut key_state, acquisition, ms));
    (key_state, [early, later], token)
}

/// Returns the actions of the third release, at 1,100 ms, after this reply to the probe.
fn handed_off_after(answer: impl FnOnce(Token) -> Reply) -> Vec<Action<u32>> {
    let (mut key_state, _, token) = handed_off_twice();
    let answer = answer(token);
    happen(&mut key_state, 700, |key_state, ctx| {
        key_state.on_reply(token, Command::Inspect, at(600), answer, ctx);
    });
    release_within_a_second(&mut key_state, 3, 1_100)
}

fn waiters(waiters: usize) -> impl FnOnce(Token) -> Reply {
    move |token| {
        Reply::Info(Some(RecordInfo { holder: Some(token.process()), waiters, ttl: None, fence: None }))
    }
}

#[test]
fn hand_offs_end_when_another_process_waits() {
    let (_, [early, later], _) = handed_off_twice();
    let after_it = [
        handed_off_after(waiters(1)),
        handed_off_after(|_| Reply::Unknown(Failure::new(FailureKind::Passing, "no reply"))),
    ];

    assert!(matches!(early[..], [Action::Grant { acquisition: 2, .. }]), "{early:?}");
    assert!(
        matches!(
            later[..],
            [Action::Send { command: Command::Inspect, .. }, Action::Grant { acquisition: 3, .. }]
        ),
        "{later:?}"
    );
    let is_yielded =
        |actions: &Vec<_>| matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]);
    assert!(after_it.iter().all(is_yielded), "other processes get the lock: {after_it:?}");
}

#[test]
fn hand_offs_continue_without_other_waiters() {
    let after_it = handed_off_after(waiters(0));

    assert!(matches!(after_it[..], [Action::Grant { acquisition: 4, .. }]), "{after_it:?}");
}

#[test]
fn hold_is_checked_if_the_probe_reports_another_holder() {
    let other = Token::of_numbers(77, 1).expect("a small number").process();
    let held_by = |holder| Some(RecordInfo { holder, waiters: 0, ttl: None, fence: None });
    for seen in [None, held_by(None), held_by(Some(other))] {
        let (mut key_state, _, token) = handed_off_twice();

        let actions = happen(&mut key_state, 700, |key_state, ctx| {
            key_state.on_reply(token, Command::Inspect, at(600), Reply::Info(seen), ctx);
        });

        assert!(matches!(actions[..], [Action::Send { command: Command::Verify, .. }]), "{actions:?}");
        let after_it = release_within_a_second(&mut key_state, 3, 1_100);
        assert!(
            matches!(after_it[..], [Action::Send { command: Command::Yield { .. }, .. }]),
            "{after_it:?}"
        );
    }
}

#[test]
fn task_with_another_lease_continues_the_budget() {
    let (mut key_state, token) = held(TERMS);
    let [long, longer] = [40, 50].map(|seconds| HoldTerms::of_lease(Duration::from_secs(seconds)));
    for (acquisition, terms) in [(2, long), (3, longer), (4, longer)] {
        happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(acquisition, terms), ctx));
    }

    for (acquisition, ms, lease) in [(1, 400, long.lease()), (2, 800, longer.lease())] {
        let renew = Command::Renew { lease };
        let actions = release_within_a_second(&mut key_state, acquisition, ms);
        assert!(matches!(actions[..], [Action::Send { command, .. }] if command == renew), "{actions:?}");
        happen(&mut key_state, ms + 10, |key_state, ctx| {
            key_state.on_reply(token, renew, at(ms), Reply::Owner, ctx);
        });
    }
    let actions = release_within_a_second(&mut key_state, 3, 1_100);

    assert!(matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]), "{actions:?}");
}

/// Releases the hold for a task that wants `lease`. Returns the key state and the actions.
fn released_to(mut key_state: KeyState<u32>, lease: Duration) -> (KeyState<u32>, Vec<Action<u32>>) {
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, HoldTerms::of_lease(lease)), ctx));
    let actions = release_within_a_second(&mut key_state, 1, 100);
    (key_state, actions)
}

/// Returns `true` if the lock is yielded to other processes, though the budget is not used up.
fn is_yielded(actions: &[Action<u32>], old: Token) -> bool {
    matches!(*actions, [Action::Send { token, command: Command::Yield { .. } }] if token == old)
}

#[test]
fn hold_is_yielded_to_a_task_with_a_shorter_lease() {
    let (key_state, token) = held(TERMS);

    let (_, actions) = released_to(key_state, TERMS.lease() / 2);

    assert!(is_yielded(&actions, token), "{actions:?}");
}

#[test]
fn hold_is_yielded_after_an_extension() {
    for (extension, is_longer) in [(TERMS.lease() * 2, true), (TERMS.lease() / 2, false)] {
        let (mut key_state, token) = held(TERMS);
        let extend = Command::Renew { lease: extension };
        happen(&mut key_state, 20, |key_state, ctx| {
            assert_eq!(key_state.on_holder_request(&1, extend, ctx), Some(token));
        });

        // No reply has arrived: the server may have extended it.
        let (_, actions) = released_to(key_state, TERMS.lease());

        assert_eq!(is_yielded(&actions, token), is_longer, "{extension:?}: {actions:?}");
    }
}

#[test]
fn extension_that_has_ended_does_not_prevent_a_hand_off() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 0, |key_state, ctx| {
        key_state.on_holder_request(&1, Command::Renew { lease: TERMS.lease() * 2 }, ctx);
    });
    happen(&mut key_state, 30_000, |key_state, ctx| {
        key_state.on_reply(token, RENEW, at(29_999), Reply::Owner, ctx);
        key_state.join(waiter(2, TERMS), ctx);
    });

    let rules = ProtocolConfig { handoff_budget: TERMS.lease() * 2, ..RULES };
    let actions = happen(&mut key_state, 30_001, |key_state, ctx| {
        key_state.release(&1, &mut ctx.under(&rules));
    });

    assert!(matches!(actions.last(), Some(Action::Grant { acquisition: 2, .. })), "{actions:?}");
}

#[test]
fn task_with_a_shorter_lease_acquires_a_kept_lock_again() {
    let shorter = HoldTerms::of_lease(TERMS.lease() / 2);
    let (mut key_state, old, next) = yielding_to(shorter);

    let actions = happen(&mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::Owner, ctx);
    });

    assert!(
        matches!(
            actions[..],
            [
                Action::Send { token: released, command: Command::RELEASE },
                Action::Send { token, command: Command::Acquire { lease } },
            ] if released == old && token != old && lease == shorter.lease()
        ),
        "{actions:?}"
    );
}

#[test]
fn unanswered_probe_does_not_extend_the_budget_of_another_lease() {
    let (mut key_state, token) = held(TERMS);
    let longer = HoldTerms::of_lease(Duration::from_secs(40));
    for (acquisition, terms) in [(2, TERMS), (3, longer), (4, longer)] {
        happen(&mut key_state, 1, |key_state, ctx| key_state.join(waiter(acquisition, terms), ctx));
    }
    release_within_a_second(&mut key_state, 1, 600);
    release_within_a_second(&mut key_state, 2, 800);
    let renew = Command::Renew { lease: longer.lease() };
    happen(&mut key_state, 810, |key_state, ctx| {
        key_state.on_reply(token, renew, at(800), Reply::Owner, ctx);
    });

    let actions = release_within_a_second(&mut key_state, 3, 1_100);

    assert!(matches!(actions[..], [Action::Send { command: Command::Yield { .. }, .. }]), "{actions:?}");
}

#[test]
fn kept_yield_marks_the_lock_uncontended() {
    let (mut key_state, old, next) = yielding();
    let mut contended = true;

    happen_where(&mut contended, &mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::Owner, ctx);
    });

    assert!(!contended);
}

#[test]
fn probe_reply_is_ignored_by_a_later_contender() {
    let (mut key_state, _, token) = handed_off_twice();
    let other = HoldTerms::of_lease(Duration::from_secs(40));
    happen(&mut key_state, 601, |key_state, ctx| key_state.join(waiter(5, other), ctx));
    release_within_a_second(&mut key_state, 3, 610);
    release_within_a_second(&mut key_state, 4, 620);
    assert!(key_state.contender().is_some(), "{key_state:?}");

    let refused = Reply::Refused(Failure::new(FailureKind::Lasting, "no permission"));
    let actions = happen(&mut key_state, 700, |key_state, ctx| {
        key_state.on_reply(token, Command::Inspect, at(600), refused, ctx);
    });

    assert!(actions.is_empty() && key_state.contender().is_some(), "{actions:?}");
}

const RENEW: Command = Command::Renew { lease: TERMS.lease() };

#[test]
fn grant_is_confirmed_after_5_ms() {
    let (mut key_state, token) = granted();

    assert_eq!(key_state.next_timeout(), at(110).plus(Duration::from_millis(1_088 - 110) / 200));
    assert!(happen(&mut key_state, 114, KeyState::on_timeout).is_empty());
    let sent = happen(&mut key_state, 115, KeyState::on_timeout);

    assert!(matches!(sent[..], [Action::Send { token: of, command: RENEW }] if of == token), "{sent:?}");
    assert!(happen(&mut key_state, 116, KeyState::on_timeout).is_empty(), "one confirmation is sent");
    happen(&mut key_state, 117, |key_state, ctx| {
        key_state.on_reply(token, RENEW, at(115), Reply::Owner, ctx);
    });
    assert!(
        key_state.next_timeout() > at(7_000),
        "from now on it is renewed like all others: {:?}",
        key_state.next_timeout()
    );
}

#[test]
fn grant_that_has_to_last_is_confirmed_at_once() {
    let minute = Some(Duration::from_secs(60));
    for terms in [TERMS.renew(false), TERMS.max_hold(minute), TERMS.min_hold(minute)] {
        let (mut key_state, old, next) = yielding_to(terms);
        happen(&mut key_state, 101, |key_state, ctx| {
            key_state.on_reply(old, yield_to(next), at(100), Reply::Yielded, ctx);
        });
        let granted = happen(&mut key_state, 110, |key_state, ctx| {
            let grant = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
            key_state.on_grant(next, grant, ctx);
        });

        assert!(
            matches!(
                granted[..],
                [Action::Grant { acquisition: 2, .. }, Action::Send { command: RENEW, .. }]
            ),
            "{terms:?}: {granted:?}"
        );
        assert!(happen(&mut key_state, 116, KeyState::on_timeout).is_empty(), "one confirmation is sent");
    }
}

#[test]
fn grant_handed_to_a_bounded_hold_is_confirmed_at_once() {
    let (mut key_state, token) = granted_to(TERMS);
    let min_hold = Some(Duration::from_secs(60));
    happen(&mut key_state, 111, |key_state, ctx| key_state.join(waiter(3, TERMS.min_hold(min_hold)), ctx));

    let handed_on = release_within_a_second(&mut key_state, 2, 112);

    assert!(
        matches!(
            handed_on[..],
            [Action::Grant { acquisition: 3, .. }, Action::Send { token: of, command: RENEW }] if of == token
        ),
        "{handed_on:?}"
    );
    assert!(happen(&mut key_state, 116, KeyState::on_timeout).is_empty(), "one confirmation is sent");
}

#[test]
fn confirmation_of_a_grant_is_not_deferred() {
    let (mut key_state, _) = granted_to(HoldTerms::of_lease(Duration::from_secs(1)));

    assert!(!key_state.defer(at(115), at(120)), "a renewal could be deferred this long");
    assert_eq!(happen(&mut key_state, 115, KeyState::on_timeout).len(), 1);
}

#[test]
fn short_grant_costs_only_a_release() {
    let (mut key_state, token) = granted_to(TERMS);

    let mut released = ReleaseOutcome::HandedOff;
    let sent = happen(&mut key_state, 113, |key_state, ctx| released = key_state.release(&2, ctx));

    assert_eq!((released, sent.len()), (ReleaseOutcome::Send(token, Command::RELEASE), 0), "{sent:?}");
    assert!(key_state.is_idle());
}

#[test]
fn handed_off_grant_is_confirmed_for_its_present_task() {
    let (mut key_state, token) = granted();

    let handed_on = release_within_a_second(&mut key_state, 2, 112);

    assert!(
        matches!(handed_on[..], [Action::Grant { acquisition: 3, token: of, .. }] if of == token),
        "{handed_on:?}"
    );
    let sent = happen(&mut key_state, 115, KeyState::on_timeout);
    assert!(matches!(sent[..], [Action::Send { token: of, command: RENEW }] if of == token), "{sent:?}");
    let prolonged = happen(&mut key_state, 116, |key_state, ctx| {
        key_state.on_reply(token, RENEW, at(115), Reply::Owner, ctx);
    });
    assert!(matches!(prolonged[..], [Action::Extend { acquisition: 3, .. }]), "{prolonged:?}");
}

#[test]
fn grant_without_a_confirmation_is_confirmed_before_a_hand_off() {
    let (mut late, _) = granted();
    let (mut unanswered, token) = granted();
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    happen(&mut unanswered, 115, KeyState::on_timeout);
    happen(&mut unanswered, 117, |key_state, ctx| key_state.on_reply(token, RENEW, at(115), unknown, ctx));

    for (key_state, ms) in [(&mut late, 700), (&mut unanswered, 118)] {
        let sent = release_within_a_second(key_state, 2, ms);
        assert!(matches!(sent[..], [Action::Send { command: RENEW, .. }]), "{sent:?}");
    }
}

#[test]
fn unanswered_renewal_in_a_kept_yield_is_repeated() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 10_001, KeyState::on_timeout);
    happen(&mut key_state, 10_002, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 10_003, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let Some(yielding) = key_state.contender() else { panic!("{key_state:?}") };
    let grant = yield_to(yielding.token);
    let busy = Reply::Refused(Failure::new(FailureKind::Passing, "busy"));
    let renew = Command::Renew { lease: TERMS.lease() };
    happen(&mut key_state, 10_004, |key_state, ctx| key_state.on_reply(token, renew, at(10_001), busy, ctx));

    let kept = happen(&mut key_state, 10_005, |key_state, ctx| {
        key_state.on_reply(token, grant, at(10_003), Reply::Owner, ctx);
    });

    assert!(matches!(kept[..], [Action::Grant { acquisition: 2, .. }]), "{kept:?}");
    assert!(key_state.next_timeout() <= at(11_005), "{:?}", key_state.next_timeout());
}

/// Returns a key state that renews its hold at 100 ms for the next task, which wants a longer
/// lease. Also returns the token and the terms of that task.
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

/// Task 3 wants another lease than task 2, which leaves during its confirmation.
#[test]
fn a_second_confirmation_continues_the_budget() {
    let (mut key_state, token, of_2) = confirming();
    let of_3 = HoldTerms::of_lease(3 * TERMS.lease());
    happen(&mut key_state, 110, |key_state, ctx| {
        key_state.join(waiter(3, of_3), ctx);
        key_state.join(waiter(4, of_3), ctx);
        key_state.leave(&2, ctx);
    });
    for (ms, sent, terms) in [(120, 100, of_2), (130, 120, of_3)] {
        let renew = Command::Renew { lease: terms.lease() };
        happen(&mut key_state, ms, |key_state, ctx| {
            key_state.on_reply(token, renew, at(sent), Reply::Owner, ctx);
        });
    }

    let rules = ProtocolConfig { handoff_budget: Duration::from_secs(1), ..RULES };
    let ended = happen_where(&mut true, &mut key_state, 1_050, |key_state, ctx| {
        key_state.release(&3, &mut ctx.under(&rules));
    });

    assert!(
        matches!(ended[..], [Action::Send { token: of, command: Command::Yield { .. } }] if of == token),
        "task 1 acquired it more than 1 s ago: {ended:?}"
    );
}

#[test]
fn lock_lost_before_a_hand_off_is_contended_without_a_queue() {
    let (mut key_state, held, terms) = confirming();
    let renew = Command::Renew { lease: terms.lease() };
    happen(&mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(held, renew, at(100), Reply::NotOwner, ctx);
    });

    let again =
        Command::Enqueue { lease: terms.lease(), mode: crate::protocol::command::EnqueueMode::Recheck };
    let free = Reply::NotQueued { ttl: Some(Duration::ZERO) };
    happen(&mut key_state, 102, |key_state, ctx| key_state.on_reply(held, again, at(101), free, ctx));

    let sent = happen(&mut key_state, 104, KeyState::on_timeout);
    assert!(matches!(sent[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{sent:?}");
}

#[test]
fn unconfirmed_hold_is_released_without_a_queue() {
    let (mut key_state, held, terms) = confirming();
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    let renew = Command::Renew { lease: terms.lease() };
    happen(&mut key_state, 600, |key_state, ctx| key_state.on_reply(held, renew, at(100), unknown, ctx));

    let again =
        Command::Enqueue { lease: terms.lease(), mode: crate::protocol::command::EnqueueMode::Recheck };
    let kept = Reply::NotQueued { ttl: Some(TERMS.lease()) };
    let release_in_time =
        happen(&mut key_state, 800, |key_state, ctx| key_state.on_reply(held, again, at(790), kept, ctx));

    assert!(
        matches!(release_in_time[..], [Action::Send { token, command: Command::RELEASE }] if token == held),
        "{release_in_time:?}"
    );
}

#[test]
fn unanswered_yield_cleans_up_both_tokens() {
    let (mut key_state, old, next) = yielding();

    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    let actions = happen(&mut key_state, 600, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), unknown, ctx);
    });

    let is_orphan =
        |wanted| actions.iter().any(|action| matches!(action, Action::Orphan { token } if *token == wanted));
    assert!(is_orphan(old) && is_orphan(next), "{actions:?}");
}

#[test]
fn new_primary_makes_a_renewal_due() {
    let (mut key_state, held) = held(TERMS);

    assert!(happen(&mut key_state, 100, |key_state, ctx| key_state.on_reconnect(false, ctx)).is_empty());
    assert!(key_state.next_timeout() > at(200), "{:?}", key_state.next_timeout());
    assert!(
        happen(&mut key_state, 200, |key_state, ctx| key_state.on_reconnect(true, ctx)).is_empty(),
        "it is deferred"
    );
    assert_eq!(key_state.next_timeout(), at(200));
    let actions = happen(&mut key_state, 200, KeyState::on_timeout);

    assert!(
        matches!(actions[..], [Action::Send { token, command: Command::Renew { .. } }] if token == held),
        "{actions:?}"
    );
}

#[test]
fn new_connection_makes_an_unanswered_renewal_due() {
    let (mut key_state, held) = held(TERMS);
    let renewals = happen(&mut key_state, 15_000, KeyState::on_timeout);
    let [Action::Send { command: renew, .. }] = renewals[..] else { panic!("{renewals:?}") };
    happen(&mut key_state, 15_100, |key_state, ctx| {
        key_state.on_reply(held, renew, at(15_000), Reply::Unknown(failure()), ctx);
    });
    assert!(key_state.next_timeout() > at(15_101), "{:?}", key_state.next_timeout());

    happen(&mut key_state, 15_101, |key_state, ctx| key_state.on_reconnect(false, ctx));

    assert_eq!(key_state.next_timeout(), at(15_101));
}

#[test]
fn new_primary_renews_a_short_hold_at_once() {
    let (mut key_state, _) = held(HoldTerms::of_lease(Duration::from_millis(300)));

    let actions = happen(&mut key_state, 20, |key_state, ctx| key_state.on_reconnect(true, ctx));

    assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
}

#[test]
fn new_primary_defers_a_hold_with_a_second_left() {
    let (mut key_state, _) = held(TERMS);

    let actions =
        happen(&mut key_state, 30_000 - 302 - 1_000, |key_state, ctx| key_state.on_reconnect(true, ctx));

    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn new_primary_does_not_renew_a_fixed_lease() {
    let (mut key_state, _) = held(TERMS.renew(false));

    let mut actions = happen(&mut key_state, 200, |key_state, ctx| key_state.on_reconnect(true, ctx));
    actions.extend(happen(&mut key_state, 200, KeyState::on_timeout));

    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn max_hold_revokes_the_hold_and_its_body_releases_it() {
    let (mut key_state, held) = held(TERMS.max_hold(Some(Duration::from_secs(40))));
    let renewed = Command::Renew { lease: TERMS.lease() };
    happen(&mut key_state, 30_000, |key_state, ctx| {
        key_state.on_reply(held, renewed, at(29_999), Reply::Owner, ctx);
    });
    assert_eq!(happen(&mut key_state, 40_000, KeyState::on_timeout).len(), 1, "a renewal");
    assert_eq!(key_state.next_timeout(), at(40_001));

    let actions = happen(&mut key_state, 40_001, KeyState::on_timeout);

    let [Action::Revoke { cause: LossCause::MaxHold, left: Some(left), .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    let released =
        happen(&mut key_state, 41_000, |key_state, ctx| key_state.release_residual(left, true, ctx));
    assert!(
        matches!(released[..], [Action::Send { token, command: Command::RELEASE }] if token == held),
        "{released:?}"
    );
}

#[test]
fn each_handed_off_hold_has_its_own_max_hold() {
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
    assert_eq!(key_state.next_timeout(), at(1_400));
}

#[test]
fn hold_without_bounds_allocates_nothing() {
    let minute = Some(Duration::from_secs(60));

    for (terms, has_more) in [(TERMS, false), (TERMS.max_hold(minute), true), (TERMS.min_hold(minute), true)]
    {
        let (key_state, _) = held(terms);
        let Some(hold) = key_state.holds.active().next() else { panic!("{key_state:?}") };
        assert_eq!(hold.more.is_some(), has_more, "{terms:?}");
    }
}

#[test]
fn unconfirmed_grant_is_lost_with_its_own_cause() {
    let deadline = 100 + 1_000 - 12;
    let lease = TERMS.lease();
    for (is_confirmed, cause) in [(false, LossCause::GrantUnconfirmed), (true, LossCause::Expired)] {
        let (mut key_state, token) = granted_to(TERMS.renew(false));
        let mut ends = deadline;
        if is_confirmed {
            happen(&mut key_state, 200, |key_state, ctx| {
                key_state.on_reply(token, Command::Renew { lease }, at(110), Reply::Owner, ctx);
            });
            ends = 110 + 30_000 - 302;
        }

        assert!(
            happen(&mut key_state, ends - 1, KeyState::on_timeout)
                .iter()
                .all(|action| !matches!(action, Action::Revoke { .. }))
        );
        let lost = happen(&mut key_state, ends, KeyState::on_timeout);

        assert!(matches!(lost[..], [Action::Revoke { cause: of, .. }] if of == cause), "{lost:?}");
    }
}

#[test]
fn round_trip_of_a_yield_counts_for_the_grant_that_follows() {
    let (mut key_state, old, next) = yielding();
    happen(&mut key_state, 400, |key_state, ctx| {
        key_state.on_reply(old, yield_to(next), at(100), Reply::Yielded, ctx);
    });

    let grant = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
    let actions = happen(&mut key_state, 500, |key_state, ctx| {
        key_state.on_grant(next, grant, ctx);
    });

    assert!(matches!(actions[..], [Action::Send { command: Command::Renew { .. }, .. }]), "{actions:?}");
}
