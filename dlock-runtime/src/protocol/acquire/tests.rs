//! Unit tests of `acquire`.

use super::*;
use crate::protocol::Rules;
use crate::protocol::lane::Action;
use crate::protocol::patience::{Limits, Patience};
use crate::protocol::scene::{
    ACQUIRE, LIMITS, TERMS, at, enqueue, failure, happen, happen_where, queued, waiter,
};

/// A lane whose head tries once, its acquire on its way since 0 ms; and the acquire's token.
fn trying_once(only_whether: bool) -> (Lane<u32>, Token) {
    let patience = Patience::new(at(0), Limits { only_whether, ..LIMITS }, 1);
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(Waiter { patience, ..waiter(1, TERMS) }, cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    (lane, token)
}

#[test]
fn a_call_that_only_asks_whether_has_its_answer_with_the_first_and_who_waits_behind_it_queues_up() {
    let (mut lane, token) = trying_once(true);
    happen(&mut lane, 1, |lane, cx| lane.join(waiter(2, TERMS), cx));

    let answered = happen(&mut lane, 2, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));

    assert!(
        matches!(
            &answered[..],
            [
                Action::Refuse { seat: 1, refusal: Refusal::Contended { .. } },
                Action::Send { command: Command::Enqueue { mode: Enqueue::First, .. }, .. }
            ]
        ),
        "{answered:?}"
    );
}

#[test]
fn nothing_is_asked_on_for_a_call_that_only_asks_whether() {
    let (mut lane, token) = trying_once(true);

    let answered = happen(&mut lane, 2, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));

    assert!(matches!(&answered[..], [Action::Refuse { seat: 1, .. }]), "{answered:?}");
    assert!(lane.is_idle());
}

#[test]
fn who_waits_behind_a_call_that_looked_and_left_asks_for_itself() {
    let (mut lane, token) = trying_once(false);
    happen(&mut lane, 1, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));
    happen(&mut lane, 2, |lane, cx| lane.join(waiter(2, TERMS), cx));
    happen(&mut lane, 3, |lane, cx| {
        lane.leave(&1, cx);
    });

    let look = Command::Enqueue { lease: TERMS.lease(), mode: Enqueue::Peek };
    let held = Reply::NotQueued { ttl: Some(TERMS.lease()) };
    let answered = happen(&mut lane, 4, |lane, cx| lane.reply(token, look, at(1), held, cx));

    assert!(matches!(&answered[..], [Action::Send { command: ACQUIRE, .. }]), "{answered:?}");
}

#[test]
fn a_queued_contender_that_a_rule_of_the_server_stops_leaves_and_is_refused_at_once() {
    let (mut lane, token) = queued(waiter(1, TERMS));

    let forbidden = Reply::Unknown(Failure::new(FailureKind::Lasting, "no permission"));
    let actions = happen(&mut lane, 600, |lane, cx| {
        lane.reply(token, enqueue(Enqueue::Again), at(500), forbidden, cx);
    });

    assert!(
        matches!(
            actions[..],
            [
                Action::Send { command: Command::Leave, .. },
                Action::Refuse { refusal: Refusal::Failed(_), .. }
            ]
        ),
        "{actions:?}"
    );
}

#[test]
fn a_token_that_is_gone_is_never_queued_again() {
    let (mut lane, dead) = queued(waiter(1, TERMS));

    let again = enqueue(Enqueue::Again);
    let actions = happen(&mut lane, 600, |lane, cx| lane.reply(dead, again, at(500), Reply::Gone, cx));

    let first = enqueue(Enqueue::First);
    assert!(
        matches!(actions[..], [Action::Send { token, command }] if token != dead && command == first),
        "{actions:?}"
    );
}

#[test]
fn who_is_queued_does_not_rely_on_being_told_of_its_turn() {
    let (mut lane, queued) = queued(waiter(1, TERMS));

    assert_eq!(lane.due(), at(1).plus(Rules::DEFAULT.grant_lease / 2));
    let asked = happen(&mut lane, 501, Lane::tick);

    let again = enqueue(Enqueue::Again);
    assert!(
        matches!(asked[..], [Action::Send { token, command }] if token == queued && command == again),
        "{asked:?}"
    );
}

#[test]
fn who_does_not_get_the_lock_is_told_what_was_heard_of_it_last() {
    let (mut lane, token) = queued(waiter(1, TERMS));

    let ended = happen(&mut lane, 60_000, Lane::tick);
    let Action::Refuse { refusal, .. } = &ended[0] else { panic!("{ended:?}") };

    assert!(matches!(refusal, Refusal::Contended { ttl: Some(TERMS_LEASE), .. }), "{refusal:?}");
    assert!(
        matches!(ended[1..], [Action::Send { token: of, command: Command::Leave }] if of == token),
        "{ended:?}"
    );
}

#[test]
fn who_tries_once_behind_a_contender_is_told_what_is_known_and_else_waits_for_the_answer() {
    let once = || Waiter { patience: Patience::new(at(0), LIMITS, 2), ..waiter(2, TERMS) };
    let (mut lane, _) = queued(waiter(1, TERMS));
    let mut unanswered = Lane::new();
    happen(&mut unanswered, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));

    let told = happen(&mut lane, 10, |lane, cx| lane.join(once(), cx));
    let untold = happen(&mut unanswered, 10, |lane, cx| lane.join(once(), cx));

    assert!(matches!(told[..], [Action::Refuse { seat: 2, refusal: Refusal::Contended { .. } }]), "{told:?}");
    assert!(untold.is_empty() && unanswered.head() == Some(&1), "{untold:?}");
}

const TERMS_LEASE: Duration = TERMS.lease();

/// A lane whose head waits for a minute, its acquire on its way since 0 ms; and the acquire's token.
fn trying() -> (Lane<u32>, Token) {
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    (lane, token)
}

/// A lane whose head cannot queue up, as the server says at 2 ms, for a lock that it says is held for `ttl`.
fn not_queued(head: Waiter<u32>, ttl: Option<Duration>) -> Lane<u32> {
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(head, cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    happen(&mut lane, 1, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));
    happen(&mut lane, 2, |lane, cx| {
        lane.reply(token, enqueue(Enqueue::First), at(1), Reply::NotQueued { ttl }, cx);
    });
    lane
}

#[test]
fn a_try_that_failed_is_undone_where_it_may_have_run_and_its_call_is_told_of_the_failure() {
    for (reply, may_have_run) in [(Reply::Refused(failure()), false), (Reply::Unknown(failure()), true)] {
        let (mut lane, token) = trying_once(false);

        let mut actions = happen(&mut lane, 2, |lane, cx| lane.reply(token, ACQUIRE, at(0), reply, cx));

        let told = actions.pop();
        assert!(
            matches!(told, Some(Action::Refuse { seat: 1, refusal: Refusal::Failed(_) })),
            "{may_have_run}: {told:?}"
        );
        let undone = matches!(actions[..], [Action::Abandon { token: of }] if of == token);
        assert!(
            undone == may_have_run && actions.len() == usize::from(undone),
            "{may_have_run}: {actions:?}"
        );
        assert!(lane.is_idle());
    }
}

/// Returns the token of an acquire that follows on what may have been taken by `old` and is given back first.
fn tried_again_after(old: Token, actions: &[Action<u32>]) -> Token {
    match actions {
        [
            Action::Abandon { token: given_up },
            Action::Send { token: left, command: Command::Leave },
            Action::Send { token, command },
        ] if *given_up == old && *left == old && *token != old && *command == ACQUIRE => *token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_single_try_whose_connection_was_lost_tries_again_once_under_a_new_token() {
    let (mut lane, first) = trying_once(false);
    let mut lose = |ms, token| {
        let lost = Reply::Unknown(failure().with_connection_lost());
        happen(&mut lane, ms, |lane, cx| lane.reply(token, ACQUIRE, at(0), lost, cx))
    };

    let second = tried_again_after(first, &lose(2, first));
    let over = lose(3, second);

    assert!(
        matches!(over[..], [Action::Abandon { token }, Action::Refuse { seat: 1, refusal: Refusal::Failed(_) }] if token == second),
        "{over:?}"
    );
    assert!(lane.is_idle());
}

#[test]
fn a_single_try_has_the_lock_by_its_second_token() {
    let (mut lane, first) = trying_once(false);
    let lost = Reply::Unknown(failure().with_connection_lost());
    let actions = happen(&mut lane, 2, |lane, cx| lane.reply(first, ACQUIRE, at(0), lost, cx));
    let second = tried_again_after(first, &actions);

    let stale = happen(&mut lane, 3, |lane, cx| lane.reply(first, ACQUIRE, at(0), Reply::Ours, cx));
    let held = happen(&mut lane, 4, |lane, cx| lane.reply(second, ACQUIRE, at(2), Reply::Ours, cx));

    assert!(
        matches!(stale[..], [Action::Send { token, command: Command::Leave }] if token == first),
        "{stale:?}"
    );
    assert!(matches!(held[..], [Action::Admit { seat: 1, token, .. }] if token == second), "{held:?}");
}

#[test]
fn a_single_try_whose_limit_has_passed_does_not_try_again() {
    let (mut lane, token) = trying_once(false);
    let lost = Reply::Unknown(failure().with_connection_lost());

    let over = happen(&mut lane, 30_000, |lane, cx| lane.reply(token, ACQUIRE, at(0), lost, cx));

    assert!(matches!(over[..], [Action::Abandon { .. }, Action::Refuse { seat: 1, .. }]), "{over:?}");
}

#[test]
fn each_of_the_single_tries_that_wait_together_tries_again_once() {
    let (mut lane, first) = trying_once(false);
    let once = |seat| Waiter { patience: Patience::new(at(0), LIMITS, seat), ..waiter(seat, TERMS) };
    happen(&mut lane, 1, |lane, cx| lane.join(once(2), cx));
    let lose = |lane: &mut Lane<u32>, ms, token| {
        let lost = Reply::Unknown(failure().with_connection_lost());
        happen(lane, ms, |lane, cx| lane.reply(token, ACQUIRE, at(0), lost, cx))
    };
    let second = tried_again_after(first, &lose(&mut lane, 2, first));
    happen(&mut lane, 3, |lane, cx| lane.join(once(3), cx));

    let mut actions = lose(&mut lane, 4, second);

    let refused: Vec<_> = actions
        .iter()
        .filter_map(|action| if let Action::Refuse { seat, .. } = action { Some(*seat) } else { None })
        .collect();
    assert_eq!(refused, [1, 2], "they have tried again");
    actions.retain(|action| !matches!(action, Action::Refuse { .. }));
    let third = tried_again_after(second, &actions);
    let over = lose(&mut lane, 5, third);
    assert!(matches!(over[..], [Action::Abandon { .. }, Action::Refuse { seat: 3, .. }]), "{over:?}");
}

#[test]
fn what_an_attempt_may_have_left_is_undone_once_though_its_failure_is_heard_twice() {
    let (mut lane, token) = trying();
    let mut fails = |ms| {
        happen(&mut lane, ms, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Unknown(failure()), cx))
    };

    let (first, second) = (fails(2), fails(3));

    assert!(matches!(first[..], [Action::Abandon { token: of }] if of == token), "{first:?}");
    assert!(second.is_empty(), "{second:?}");
}

#[test]
fn a_lock_is_not_started_on_when_word_of_it_took_longer_than_the_lease() {
    let deadline = 30_000 - 302;
    for (ms, is_late) in [(deadline - 1, false), (deadline, true)] {
        let (mut lane, token) = trying();

        let actions = happen(&mut lane, ms, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Ours, cx));

        assert!(
            match actions[..] {
                [Action::Admit { seat: 1, token: of, .. }] => !is_late && of == token,
                [Action::Send { token: of, command: Command::Release }] => is_late && of == token,
                _ => false,
            },
            "{ms}: {actions:?}"
        );
        assert_eq!(lane.head(), is_late.then_some(&1), "who is not admitted goes on waiting");
    }
}

#[test]
fn a_grant_is_relied_on_unconfirmed_only_where_being_told_is_being_given_and_no_replica_counts() {
    for (told_is_given, replica_acks, is_proof) in
        [(true, 0, true), (true, 1, false), (false, 0, false), (false, 1, false)]
    {
        let (mut lane, token) = queued(waiter(1, TERMS));
        let rules = Rules { replica_acks, told_is_given, ..Rules::DEFAULT };

        let actions = happen(&mut lane, 10, |lane, cx| {
            let mut cx = cx.under(&rules);
            let offer = Offer { lease: rules.grant_lease, streak: Streak::UNKNOWN };
            assert!(lane.granted(token, offer, &mut cx));
        });

        assert!(
            match actions[..] {
                [Action::Admit { seat: 1, token: of, .. }] => is_proof && of == token,
                [Action::Send { token: of, command: Command::Renew { .. } }] => !is_proof && of == token,
                _ => false,
            },
            "{told_is_given}, {replica_acks}: {actions:?}"
        );
    }
}

#[test]
fn who_is_queued_asks_no_sooner_for_being_woken() {
    let (mut lane, _) = queued(waiter(1, TERMS));

    assert!(happen(&mut lane, 10, Lane::touched).is_empty(), "a grant will tell it");
    assert!(happen(&mut lane, 500, Lane::tick).is_empty(), "a grant will tell it");

    assert_eq!(happen(&mut lane, 501, Lane::tick).len(), 1);
}

#[test]
fn who_is_queued_and_hears_nothing_soon_asks_again_and_is_told_of_the_failure_when_its_wait_ends() {
    for reply in [Reply::Refused(failure()), Reply::Unknown(failure())] {
        let (mut lane, token) = queued(waiter(1, TERMS));
        happen(&mut lane, 501, Lane::tick);

        let again = enqueue(Enqueue::Again);
        let actions = happen(&mut lane, 1_001, |lane, cx| lane.reply(token, again, at(501), reply, cx));

        assert!(actions.is_empty(), "it keeps its place in the queue: {actions:?}");
        assert_eq!(lane.due(), at(1_001).plus(Rules::DEFAULT.grant_lease / 8));
        let asked = happen(&mut lane, 1_126, Lane::tick);
        assert!(
            matches!(asked[..], [Action::Send { token: of, command }] if of == token && command == again),
            "{asked:?}"
        );
        let ended = happen(&mut lane, 60_000, Lane::tick);
        assert!(matches!(ended[0], Action::Refuse { refusal: Refusal::Failed(_), .. }), "{ended:?}");
    }
}

#[test]
fn who_cannot_queue_looks_again_after_about_a_poll_and_not_in_step_with_others() {
    let looks: Vec<_> = (0..20).map(|_| not_queued(waiter(1, TERMS), None).due()).collect();

    let poll = Rules::DEFAULT.poll_interval;
    let (soonest, latest) = (at(2).plus(poll / 2), at(2).plus(poll / 2).plus(poll));
    assert!(looks.iter().all(|look| (soonest..=latest).contains(look)), "{looks:?}");
    assert!(looks.iter().any(|look| *look != looks[0]), "{looks:?}");
}

#[test]
fn who_cannot_queue_and_has_retries_asks_at_its_next_try_and_not_before() {
    let backoff = crate::retry::RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(1));
    let patience = Patience::new(at(0), Limits { retries: 3, backoff, ..LIMITS }, 1);
    let mut lane = not_queued(Waiter { patience, ..waiter(1, TERMS) }, Some(Duration::from_millis(5)));

    let due = lane.due();
    assert!((at(102)..=at(1_002)).contains(&due), "a delay of its own policy: {due:?}");
    assert!(happen(&mut lane, 101, Lane::tick).is_empty());
    let asked = happen(&mut lane, 1_002, Lane::tick);

    assert!(matches!(asked[..], [Action::Send { command: ACQUIRE, .. }]), "{asked:?}");
}

/// What a call asks first where the lock is contended, or is not; the lane, and its token.
fn first_asked(contended: bool, waiter: Waiter<u32>) -> (Lane<u32>, Token, Command) {
    let mut lane = Lane::new();
    let asked = happen_where(&mut { contended }, &mut lane, 0, |lane, cx| lane.join(waiter, cx));
    let [Action::Send { token, command }] = asked[..] else { panic!("{asked:?}") };
    (lane, token, command)
}

#[test]
fn who_waits_for_a_contended_lock_queues_up_at_once_and_who_does_not_wait_tries() {
    let once = Waiter { patience: Patience::new(at(0), LIMITS, 1), ..waiter(1, TERMS) };

    assert_eq!(first_asked(true, waiter(1, TERMS)).2, enqueue(Enqueue::First));
    assert_eq!(first_asked(true, once).2, ACQUIRE);
    assert_eq!(first_asked(false, waiter(1, TERMS)).2, ACQUIRE);
}

#[test]
fn a_lock_is_contended_as_the_last_answer_to_who_queued_up_for_it_says() {
    let not_queued = Reply::NotQueued { ttl: None };
    for (before, reply, after) in [
        (false, Reply::Queued { ttl: None }, true),
        (true, Reply::Queued { ttl: None }, true),
        (true, Reply::Ours, false),
        (false, not_queued.clone(), false),
        (true, not_queued, false),
    ] {
        let (mut lane, token, command) = first_asked(true, waiter(1, TERMS));

        let mut contended = before;
        let said = reply.clone();
        happen_where(&mut contended, &mut lane, 2, |lane, cx| lane.reply(token, command, at(1), said, cx));

        assert_eq!(contended, after, "{before}, {reply:?}");
    }
}

/// Where nobody can be told of grants nobody is queued, however often he asks for a place.
#[test]
fn who_is_not_queued_though_the_lock_was_contended_tries_next() {
    let (mut lane, token, command) = first_asked(true, waiter(1, TERMS));
    let (mut contended, not_queued) = (true, Reply::NotQueued { ttl: None });
    happen_where(&mut contended, &mut lane, 2, |lane, cx| lane.reply(token, command, at(1), not_queued, cx));

    let asked = happen_where(&mut contended, &mut lane, 1_000, Lane::tick);

    assert!(matches!(asked[..], [Action::Send { command: ACQUIRE, .. }]), "{asked:?}");
}

/// A lane whose head's token is queued since `answered`, as it asked for at 1 ms; and the token.
fn queued_at_distance(answered: u64) -> (Lane<u32>, Token) {
    let (mut lane, token) = trying();
    happen(&mut lane, 1, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));
    let queued = Reply::Queued { ttl: None };
    happen(&mut lane, answered, |lane, cx| lane.reply(token, enqueue(Enqueue::First), at(1), queued, cx));
    (lane, token)
}

fn grant(lane: &mut Lane<u32>, token: Token, ms: u64) -> Vec<Action<u32>> {
    let offer = Offer { lease: Rules::DEFAULT.grant_lease, streak: Streak::UNKNOWN };
    happen(lane, ms, |lane, cx| assert!(lane.granted(token, offer, cx)))
}

const RENEW: Command = Command::Renew { lease: TERMS_LEASE };

#[test]
fn grant_with_less_than_two_round_trips_left_is_confirmed_before_the_body_starts() {
    let deadline = 1 + 1_000 - 12;
    for (round_trip, left, is_confirmed_first) in [
        (300, 600, false),
        (300, 599, true),
        (100, 200, false),
        (100, 199, true),
        (480, 508, true),
        (1, 2, false),
    ] {
        let (mut lane, token) = queued_at_distance(1 + round_trip);

        let actions = grant(&mut lane, token, deadline - left);

        assert!(
            match actions[..] {
                [Action::Admit { is_unconfirmed, .. }] => !is_confirmed_first && is_unconfirmed,
                [Action::Send { token: of, command: RENEW }] => is_confirmed_first && of == token,
                _ => false,
            },
            "{round_trip} ms, {left} ms left: {actions:?}"
        );
    }
}

#[test]
fn grant_that_is_confirmed_first_counts_from_its_confirmation() {
    let (mut lane, token) = queued_at_distance(481);
    grant(&mut lane, token, 500);

    let actions = happen(&mut lane, 980, |lane, cx| lane.reply(token, RENEW, at(500), Reply::Ours, cx));

    let until = Deadline::of_lease(at(500), TERMS_LEASE);
    let is_let_in = |action: &Action<u32>| matches!(action, Action::Admit { deadline, is_unconfirmed: false, .. } if *deadline == until);
    assert!(actions.len() == 1 && is_let_in(&actions[0]), "{actions:?}");
}

/// Forged, or of another server, or ended: nothing has run under it.
#[test]
fn denied_grant_costs_a_contender_nothing_but_time() {
    let far = || queued_at_distance(481);
    let near = || queued(waiter(1, TERMS));
    for ((mut lane, token), rules) in [
        (far(), Rules::DEFAULT),
        (near(), Rules { told_is_given: false, ..Rules::DEFAULT }),
        (near(), Rules { replica_acks: 1, ..Rules::DEFAULT }),
    ] {
        let mut happens = |ms, event: &dyn Fn(&mut Lane<u32>, &mut Cx<'_, u32>)| {
            happen(&mut lane, ms, |lane, cx| event(lane, &mut cx.under(&rules)))
        };
        let offer = Offer { lease: rules.grant_lease, streak: Streak::UNKNOWN };

        happens(500, &|lane, cx| assert!(lane.granted(token, offer, cx)));
        let denied = happens(510, &|lane, cx| lane.reply(token, RENEW, at(500), Reply::NotOwner, cx));
        let again = enqueue(Enqueue::Again);
        assert!(
            matches!(denied[..], [Action::Send { token: of, command }] if of == token && command == again),
            "{denied:?}"
        );
        let queued = happens(520, &|lane, cx| {
            lane.reply(token, again, at(510), Reply::Queued { ttl: None }, cx);
        });
        let granted = happens(530, &|lane, cx| assert!(lane.granted(token, offer, cx)));
        let confirmed = happens(540, &|lane, cx| lane.reply(token, RENEW, at(530), Reply::Ours, cx));

        assert!(queued.is_empty(), "it keeps its place: {queued:?}");
        let is_let_in = |action: &Action<u32>| matches!(action, Action::Admit { seat: 1, .. });
        assert!(granted.iter().chain(&confirmed).any(is_let_in), "{granted:?} {confirmed:?}");
    }
}
