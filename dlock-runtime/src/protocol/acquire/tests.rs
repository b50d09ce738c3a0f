//! Unit tests of `acquire`.

use super::*;
use crate::protocol::Rules;
use crate::protocol::lane::Action;
use crate::protocol::patience::{Limits, Patience};
use crate::protocol::scene::{LIMITS, TERMS, at, happen, happen_where, waiter};

/// A lane whose head tries once, its acquire on its way since 0 ms; and the acquire's token.
fn trying_once(only_whether: bool) -> (Lane<u32>, Token) {
    let patience = Patience::new(at(0), Limits { only_whether, ..LIMITS }, 1);
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(Waiter { patience, ..waiter(1, TERMS) }, cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    (lane, token)
}

const ACQUIRE: Command = Command::Acquire { lease: TERMS.lease() };

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

const fn enqueue(mode: Enqueue) -> Command {
    Command::Enqueue { lease: TERMS.lease(), mode }
}

/// A lane whose head stands in the server's queue since 2 ms, as it asked for at 1 ms; and its token.
fn queued() -> (Lane<u32>, Token) {
    queued_for(waiter(1, TERMS))
}

fn queued_for(head: Waiter<u32>) -> (Lane<u32>, Token) {
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(head, cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    happen(&mut lane, 1, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));
    let queued = Reply::Queued { ttl: Some(TERMS.lease()) };
    happen(&mut lane, 2, |lane, cx| lane.reply(token, enqueue(Enqueue::First), at(1), queued, cx));
    (lane, token)
}

#[test]
fn a_queued_contender_that_a_rule_of_the_server_stops_leaves_and_is_refused_at_once() {
    let (mut lane, token) = queued();

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
    let (mut lane, dead) = queued();

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
    let (mut lane, queued) = queued();

    assert_eq!(lane.due(), at(1).plus(Rules::DEFAULT.grant_lease / 2));
    let asked = happen(&mut lane, 501, Lane::tick);

    let again = enqueue(Enqueue::Again);
    assert!(
        matches!(asked[..], [Action::Send { token, command }] if token == queued && command == again),
        "{asked:?}"
    );
}

/// When a queued contender asks again that was told, after so long a trip, that the key has so many milliseconds to live: how many
/// microseconds after it asked last.
fn asks_again_after(trip: u64, ttl: u64) -> u64 {
    let (mut lane, token) = queued();
    let (sent, reply) = (at(10), Reply::Queued { ttl: Some(Duration::from_millis(ttl)) });
    happen(&mut lane, 10 + trip, |lane, cx| lane.reply(token, enqueue(Enqueue::Again), sent, reply, cx));
    u64::try_from(lane.due().since(sent).as_micros()).expect("it is soon")
}

/// A server counts whole milliseconds: of a key that has none to live any more up to one is left.
#[test]
fn who_waits_near_the_server_for_a_lease_to_end_asks_a_millisecond_before_and_often_when_it_may_be_over() {
    let (near, half_a_grant_lease) = (0, 500_000);

    for (ttl, micros) in [(0, 250), (1, 1_000), (2, 1_000), (5, 4_000), (501, half_a_grant_lease)] {
        assert_eq!(asks_again_after(near, ttl), micros, "{ttl} ms");
    }
}

#[test]
fn who_waits_far_from_the_server_for_a_lease_to_end_asks_when_it_is_over_for_certain() {
    for (trip, ttl, micros) in [(1, 0, 1_000), (1, 5, 6_000), (20, 5, 6_000), (20, 499, 500_000)] {
        assert_eq!(asks_again_after(trip, ttl), micros, "{ttl} ms, {trip} ms away");
    }
}

/// A lane whose head stands in the queue of a key that has less than a millisecond to live, and asks about it; its token, and that of the
/// acquire which goes out behind the question.
fn asks_about_what_expires() -> (Lane<u32>, Token, Token) {
    asks_as_it_expires(queued(), 11)
}

/// The same of a lane that asks at a time.
fn asks_as_it_expires((mut lane, token): (Lane<u32>, Token), ms: u64) -> (Lane<u32>, Token, Token) {
    let (again, ending) = (enqueue(Enqueue::Again), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut lane, ms - 1, |lane, cx| lane.reply(token, again, at(ms - 1), ending, cx));

    let asked = happen(&mut lane, ms, Lane::tick);

    let [Action::Send { token: of, command }, Action::Send { token: spare, command: ACQUIRE }] = asked[..]
    else {
        panic!("{asked:?}");
    };
    assert!(of == token && command == again && spare != token, "{asked:?}");
    (lane, token, spare)
}

#[test]
fn where_others_share_by_set_nx_they_have_a_chance_to_take_what_expires() {
    let rules = Rules { share: Share::SetNx, ..Rules::DEFAULT };
    let (mut lane, token) = queued();
    let (again, ending) = (enqueue(Enqueue::Again), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut lane, 10, |lane, cx| lane.reply(token, again, at(10), ending, &mut cx.under(&rules)));

    let asked = happen(&mut lane, 11, |lane, cx| lane.tick(&mut cx.under(&rules)));

    assert!(matches!(asked[..], [Action::Send { command: Command::Enqueue { .. }, .. }]), "{asked:?}");
}

#[test]
fn a_lock_that_has_expired_is_had_with_the_answer_that_says_so() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let again = enqueue(Enqueue::Again);
    let gone = happen(&mut lane, 12, |lane, cx| lane.reply(token, again, at(11), Reply::Gone, cx));
    let had = happen(&mut lane, 12, |lane, cx| lane.reply(spare, ACQUIRE, at(11), Reply::Ours, cx));

    assert!(gone.is_empty(), "{gone:?}");
    assert!(matches!(had[..], [Action::Admit { seat: 1, token, .. }] if token == spare), "{had:?}");
}

#[test]
fn who_finds_that_another_was_quicker_to_take_what_expired_queues_up_behind_him() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let again = enqueue(Enqueue::Again);
    happen(&mut lane, 12, |lane, cx| lane.reply(token, again, at(11), Reply::Gone, cx));
    let queues = happen(&mut lane, 12, |lane, cx| lane.reply(spare, ACQUIRE, at(11), Reply::Taken, cx));

    let first = enqueue(Enqueue::First);
    assert!(
        matches!(queues[..], [Action::Send { token, command }] if token == spare && command == first),
        "{queues:?}"
    );
}

/// Returns how many commands are sent at a time by who was told at 10 ms, after a trip, that the key has so long to live.
fn sent_at(ms: u64, trip: u64, ttl: u64) -> usize {
    let (mut lane, token) = queued();
    let queued = Reply::Queued { ttl: Some(Duration::from_millis(ttl)) };
    happen(&mut lane, 10 + trip, |lane, cx| lane.reply(token, enqueue(Enqueue::Again), at(10), queued, cx));
    happen(&mut lane, ms, Lane::tick).len()
}

#[test]
fn an_acquire_follows_each_question_that_comes_when_the_key_may_be_gone_and_no_other() {
    let (nothing, question, both) = (0, 1, 2);

    for (sent, ms, trip, ttl) in [
        (nothing, 108, 0, 100),
        (question, 109, 0, 100), // a millisecond before
        (both, 110, 0, 100),     // late
        (nothing, 110, 20, 100),
        (both, 111, 20, 100),
        (question, 510, 0, 700), // half a grant lease later
        (both, 720, 0, 700),     // very late
        (both, 510, 20, 499),
    ] {
        assert_eq!(sent_at(ms, trip, ttl), sent, "at {ms} ms, {trip} ms away, {ttl} ms to live");
    }
}

/// However long the machine has been up: what is not known is no time.
#[test]
fn no_acquire_follows_where_nothing_is_known_of_the_time_to_live() {
    const DAYS: u64 = 24 * 3_600_000;
    let (mut lane, token) = queued();
    let offer = Offer { lease: Rules::DEFAULT.grant_lease, streak: Streak::UNKNOWN };
    happen(&mut lane, 60 * DAYS, |lane, cx| {
        lane.granted(token, offer, cx);
    });

    let renew = Command::Renew { lease: TERMS.lease() };
    let asked =
        happen(&mut lane, 60 * DAYS, |lane, cx| lane.reply(token, renew, at(60 * DAYS), Reply::NotOurs, cx));

    assert!(matches!(asked[..], [Action::Send { command: Command::Enqueue { .. }, .. }]), "{asked:?}");
}

/// Nothing is waited for that has been answered, in whichever order the answers come.
#[test]
fn an_acquire_that_took_nothing_before_the_queue_was_gone_is_not_waited_for() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let again = enqueue(Enqueue::Again);
    let refused = happen(&mut lane, 12, |lane, cx| lane.reply(spare, ACQUIRE, at(11), Reply::Taken, cx));
    let meanwhile = happen(&mut lane, 900, Lane::tick);
    let queues = happen(&mut lane, 12, |lane, cx| lane.reply(token, again, at(11), Reply::Gone, cx));

    assert!(refused.is_empty() && meanwhile.is_empty(), "{refused:?}, {meanwhile:?}");
    let first = enqueue(Enqueue::First);
    assert!(
        matches!(queues[..], [Action::Send { token: fresh, command }]
            if fresh != token && fresh != spare && command == first),
        "{queues:?}"
    );
}

/// The key expired between the two.
#[test]
fn what_has_expired_is_had_behind_an_answer_that_the_token_is_still_queued() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let (again, ending) = (enqueue(Enqueue::Again), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut lane, 12, |lane, cx| lane.reply(token, again, at(11), ending, cx));
    let had = happen(&mut lane, 12, |lane, cx| lane.reply(spare, ACQUIRE, at(11), Reply::Ours, cx));
    let after = happen(&mut lane, 13, |lane, cx| lane.reply(token, again, at(12), Reply::Gone, cx));

    assert!(matches!(had[..], [Action::Admit { seat: 1, token, .. }] if token == spare), "{had:?}");
    assert!(after.is_empty(), "{after:?}");
}

/// An answer in time: nothing expires any more.
#[test]
fn who_asked_about_what_expires_and_hears_that_it_was_renewed_asks_no_sooner_than_others() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let renewed = Reply::Queued { ttl: Some(TERMS.lease()) };
    happen(&mut lane, 11, |lane, cx| lane.reply(token, enqueue(Enqueue::Again), at(11), renewed, cx));
    happen(&mut lane, 11, |lane, cx| lane.reply(spare, ACQUIRE, at(11), Reply::Taken, cx));

    assert_eq!(lane.due(), at(11).plus(Rules::DEFAULT.grant_lease / 2));
    let asked = happen(&mut lane, 511, Lane::tick);
    assert!(matches!(asked[..], [Action::Send { command: Command::Enqueue { .. }, .. }]), "{asked:?}");
}

#[test]
fn who_asked_about_what_has_not_expired_asks_again_for_both() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let (again, ending) = (enqueue(Enqueue::Again), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut lane, 11, |lane, cx| lane.reply(token, again, at(11), ending, cx));
    happen(&mut lane, 11, |lane, cx| lane.reply(spare, ACQUIRE, at(11), Reply::Taken, cx));

    assert_eq!(lane.due(), at(11).plus(Duration::from_micros(250)));
    let asked = happen(&mut lane, 12, Lane::tick);
    assert!(
        matches!(
            asked[..],
            [Action::Send { command: Command::Enqueue { .. }, .. }, Action::Send { command: ACQUIRE, .. }]
        ),
        "{asked:?}"
    );
}

/// Its acquire may have taken the lock: a process that ends next must not leave it taken for a lease.
#[test]
fn who_leaves_while_an_acquire_follows_its_question_leaves_under_both_tokens() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let left = happen(&mut lane, 12, |lane, cx| {
        lane.leave(&1, cx);
    });
    let answered = happen(&mut lane, 13, |lane, cx| lane.reply(spare, ACQUIRE, at(11), Reply::Ours, cx));

    let leaves = |of| move |action: &Action<u32>| matches!(action, Action::Send { token, command: Command::Leave } if *token == of);
    assert!(left.len() == 2 && left.iter().any(leaves(token)) && left.iter().any(leaves(spare)), "{left:?}");
    assert!(answered.len() == 1 && answered.iter().any(leaves(spare)), "{answered:?}");
}

#[test]
fn who_may_not_wait_any_more_leaves_under_both_tokens_too() {
    let (mut lane, token, spare) = asks_about_what_expires();

    let forbidden = Reply::Refused(Failure::new(FailureKind::Lasting, "no permission"));
    let left = happen(&mut lane, 12, |lane, cx| {
        lane.reply(token, enqueue(Enqueue::Again), at(11), forbidden, cx);
    });

    assert!(
        matches!(
            left[..],
            [
                Action::Send { token: first, command: Command::Leave },
                Action::Send { token: second, command: Command::Leave },
                Action::Refuse { refusal: Refusal::Failed(_), .. }
            ] if first == token && second == spare
        ),
        "{left:?}"
    );
}

/// The last try of a call ends with its last answer.
#[test]
fn who_tries_for_the_last_time_has_the_lock_or_is_told_why_not_by_the_acquire_behind_the_question() {
    let retries = Limits { retries: 1, ..LIMITS };
    let head = || Waiter { patience: Patience::new(at(0), retries, 1), ..waiter(1, TERMS) };
    let answered = |reply| {
        let (mut lane, token, spare) = asks_as_it_expires(queued_for(head()), 10_000);
        let (again, ending) = (enqueue(Enqueue::Again), Reply::Queued { ttl: Some(Duration::ZERO) });
        let first = happen(&mut lane, 10_000, |lane, cx| lane.reply(token, again, at(10_000), ending, cx));
        assert!(first.is_empty(), "{first:?}");
        happen(&mut lane, 10_000, |lane, cx| lane.reply(spare, ACQUIRE, at(10_000), reply, cx))
    };

    let let_in = answered(Reply::Ours);
    let taken = answered(Reply::Taken);
    let refused = answered(Reply::Refused(failure()));
    let unknown = answered(Reply::Unknown(failure()));

    assert!(matches!(let_in[..], [Action::Admit { seat: 1, .. }]), "{let_in:?}");
    let leaves = |action: &Action<u32>| matches!(action, Action::Send { command: Command::Leave, .. });
    assert!(
        matches!(&taken[..], [Action::Refuse { refusal: Refusal::Contended { .. }, .. }, last] if leaves(last)),
        "{taken:?}"
    );
    assert!(
        matches!(&refused[..], [Action::Refuse { refusal: Refusal::Failed(_), .. }, last] if leaves(last)),
        "{refused:?}"
    );
    assert!(
        matches!(&unknown[..], [Action::Abandon { .. }, Action::Refuse { refusal: Refusal::Failed(_), .. }, last] if leaves(last)),
        "{unknown:?}"
    );
}

/// Where an answer is lost both may have run, or the second alone.
#[test]
fn an_acquire_behind_a_question_is_undone_where_nobody_knows_whether_it_has_run() {
    let unknown = || Reply::Unknown(failure());
    let ending = Reply::Queued { ttl: Some(Duration::ZERO) };
    for answer in [None, Some(unknown()), Some(ending)] {
        let (mut lane, token, spare) = asks_about_what_expires();
        if let Some(answer) = answer.clone() {
            let again = enqueue(Enqueue::Again);
            happen(&mut lane, 12, |lane, cx| lane.reply(token, again, at(11), answer, cx));
        }

        let undone = happen(&mut lane, 12, |lane, cx| lane.reply(spare, ACQUIRE, at(11), unknown(), cx));

        assert!(
            matches!(undone[..], [Action::Abandon { token }] if token == spare),
            "{answer:?}: {undone:?}"
        );
        if answer.is_some() {
            assert!(lane.due() <= at(12).plus(Rules::DEFAULT.grant_lease / 8), "{:?}", lane.due());
            let asked = happen(&mut lane, 200, Lane::tick);
            assert!(matches!(asked[0], Action::Send { token: of, .. } if of == token), "{asked:?}");
        }
    }
}

#[test]
fn who_does_not_get_the_lock_is_told_what_was_heard_of_it_last() {
    let (mut lane, token) = queued();

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
    let (mut lane, _) = queued();
    let mut unanswered = Lane::new();
    happen(&mut unanswered, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));

    let told = happen(&mut lane, 10, |lane, cx| lane.join(once(), cx));
    let untold = happen(&mut unanswered, 10, |lane, cx| lane.join(once(), cx));

    assert!(matches!(told[..], [Action::Refuse { seat: 2, refusal: Refusal::Contended { .. } }]), "{told:?}");
    assert!(untold.is_empty() && unanswered.head() == Some(&1), "{untold:?}");
}

const TERMS_LEASE: Duration = TERMS.lease();

fn failure() -> Failure {
    Failure::new(FailureKind::Passing, "away")
}

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
        let (mut lane, token) = queued();
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
    let (mut lane, _) = queued();

    assert!(happen(&mut lane, 10, Lane::touched).is_empty(), "a grant will tell it");
    assert!(happen(&mut lane, 500, Lane::tick).is_empty(), "a grant will tell it");

    assert_eq!(happen(&mut lane, 501, Lane::tick).len(), 1);
}

#[test]
fn who_is_queued_and_hears_nothing_soon_asks_again_and_is_told_of_the_failure_when_its_wait_ends() {
    for reply in [Reply::Refused(failure()), Reply::Unknown(failure())] {
        let (mut lane, token) = queued();
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

    let poll = Rules::DEFAULT.poll;
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
