//! Unit tests of `inquiry`.

use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Failure, FailureKind};
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::key_state::{AcquireFailure, Action};
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::scene::{ACQUIRE, LIMITS, TERMS, at, enqueue, failure, happen, queued, waiter};
use crate::protocol::wait_queue::QueueEntry;

/// When a queued contender asks again that was told, after so long a trip, that the key has so many milliseconds to live: how many
/// microseconds after it asked last.
fn asks_again_after(trip: u64, ttl: u64) -> u64 {
    let (mut key_state, token) = queued(waiter(1, TERMS));
    let (sent, reply) = (at(10), Reply::Queued { ttl: Some(Duration::from_millis(ttl)) });
    happen(&mut key_state, 10 + trip, |key_state, ctx| {
        key_state.reply(token, enqueue(EnqueueMode::Recheck), sent, reply, ctx)
    });
    u64::try_from(key_state.due().since(sent).as_micros()).expect("it is soon")
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
fn asks_about_what_expires() -> (KeyState<u32>, Token, Token) {
    asks_as_it_expires(queued(waiter(1, TERMS)), 11)
}

/// The same of a lane that asks at a time.
fn asks_as_it_expires(
    (mut key_state, token): (KeyState<u32>, Token),
    ms: u64,
) -> (KeyState<u32>, Token, Token) {
    let (again, ending) = (enqueue(EnqueueMode::Recheck), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut key_state, ms - 1, |key_state, ctx| key_state.reply(token, again, at(ms - 1), ending, ctx));

    let asked = happen(&mut key_state, ms, KeyState::tick);

    let [Action::Send { token: of, command }, Action::Send { token: spare, command: ACQUIRE }] = asked[..]
    else {
        panic!("{asked:?}");
    };
    assert!(of == token && command == again && spare != token, "{asked:?}");
    (key_state, token, spare)
}

#[test]
fn where_others_share_by_set_nx_they_have_a_chance_to_take_what_expires() {
    let rules = ProtocolConfig { yield_to_foreign: true, ..ProtocolConfig::DEFAULT };
    let (mut key_state, token) = queued(waiter(1, TERMS));
    let (again, ending) = (enqueue(EnqueueMode::Recheck), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut key_state, 10, |key_state, ctx| {
        key_state.reply(token, again, at(10), ending, &mut ctx.under(&rules))
    });

    let asked = happen(&mut key_state, 11, |key_state, ctx| key_state.tick(&mut ctx.under(&rules)));

    assert!(matches!(asked[..], [Action::Send { command: Command::Enqueue { .. }, .. }]), "{asked:?}");
}

#[test]
fn a_lock_that_has_expired_is_had_with_the_answer_that_says_so() {
    let (mut key_state, token, spare) = asks_about_what_expires();

    let again = enqueue(EnqueueMode::Recheck);
    let gone = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.reply(token, again, at(11), Reply::Absent, ctx)
    });
    let had = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.reply(spare, ACQUIRE, at(11), Reply::Owner, ctx)
    });

    assert!(gone.is_empty(), "{gone:?}");
    assert!(matches!(had[..], [Action::Grant { acquisition: 1, token, .. }] if token == spare), "{had:?}");
}

#[test]
fn who_finds_that_another_was_quicker_to_take_what_expired_queues_up_behind_him() {
    let (mut key_state, token, spare) = asks_about_what_expires();

    let again = enqueue(EnqueueMode::Recheck);
    happen(&mut key_state, 12, |key_state, ctx| key_state.reply(token, again, at(11), Reply::Absent, ctx));
    let queues = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.reply(spare, ACQUIRE, at(11), Reply::Contended, ctx)
    });

    let first = enqueue(EnqueueMode::Join);
    assert!(
        matches!(queues[..], [Action::Send { token, command }] if token == spare && command == first),
        "{queues:?}"
    );
}

/// Returns how many commands are sent at a time by who was told at 10 ms, after a trip, that the key has so long to live.
fn sent_at(ms: u64, trip: u64, ttl: u64) -> usize {
    let (mut key_state, token) = queued(waiter(1, TERMS));
    let queued = Reply::Queued { ttl: Some(Duration::from_millis(ttl)) };
    happen(&mut key_state, 10 + trip, |key_state, ctx| {
        key_state.reply(token, enqueue(EnqueueMode::Recheck), at(10), queued, ctx)
    });
    happen(&mut key_state, ms, KeyState::tick).len()
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
    let (mut key_state, token) = queued(waiter(1, TERMS));
    let offer = Grant { lease: ProtocolConfig::DEFAULT.grant_lease, fleet_hold: FleetHold::UNKNOWN };
    happen(&mut key_state, 60 * DAYS, |key_state, ctx| {
        key_state.on_grant(token, offer, ctx);
    });

    let renew = Command::Renew { lease: TERMS.lease() };
    let asked = happen(&mut key_state, 60 * DAYS, |key_state, ctx| {
        key_state.reply(token, renew, at(60 * DAYS), Reply::NotOwner, ctx)
    });

    assert!(matches!(asked[..], [Action::Send { command: Command::Enqueue { .. }, .. }]), "{asked:?}");
}

/// Nothing is waited for that has been answered, in whichever order the answers come.
#[test]
fn an_acquire_that_took_nothing_before_the_queue_was_gone_is_not_waited_for() {
    let (mut key_state, token, spare) = asks_about_what_expires();

    let again = enqueue(EnqueueMode::Recheck);
    let refused = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.reply(spare, ACQUIRE, at(11), Reply::Contended, ctx)
    });
    let meanwhile = happen(&mut key_state, 900, KeyState::tick);
    let queues = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.reply(token, again, at(11), Reply::Absent, ctx)
    });

    assert!(refused.is_empty() && meanwhile.is_empty(), "{refused:?}, {meanwhile:?}");
    let first = enqueue(EnqueueMode::Join);
    assert!(
        matches!(queues[..], [Action::Send { token: fresh, command }]
            if fresh != token && fresh != spare && command == first),
        "{queues:?}"
    );
}

/// The key expired between the two.
#[test]
fn what_has_expired_is_had_behind_an_answer_that_the_token_is_still_queued() {
    let (mut key_state, token, spare) = asks_about_what_expires();

    let (again, ending) = (enqueue(EnqueueMode::Recheck), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut key_state, 12, |key_state, ctx| key_state.reply(token, again, at(11), ending, ctx));
    let had = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.reply(spare, ACQUIRE, at(11), Reply::Owner, ctx)
    });
    let after = happen(&mut key_state, 13, |key_state, ctx| {
        key_state.reply(token, again, at(12), Reply::Absent, ctx)
    });

    assert!(matches!(had[..], [Action::Grant { acquisition: 1, token, .. }] if token == spare), "{had:?}");
    assert!(after.is_empty(), "{after:?}");
}

/// An answer in time: nothing expires any more.
#[test]
fn who_asked_about_what_expires_and_hears_that_it_was_renewed_asks_no_sooner_than_others() {
    let (mut key_state, token, spare) = asks_about_what_expires();

    let renewed = Reply::Queued { ttl: Some(TERMS.lease()) };
    happen(&mut key_state, 11, |key_state, ctx| {
        key_state.reply(token, enqueue(EnqueueMode::Recheck), at(11), renewed, ctx)
    });
    happen(&mut key_state, 11, |key_state, ctx| {
        key_state.reply(spare, ACQUIRE, at(11), Reply::Contended, ctx)
    });

    assert_eq!(key_state.due(), at(11).plus(ProtocolConfig::DEFAULT.grant_lease / 2));
    let asked = happen(&mut key_state, 511, KeyState::tick);
    assert!(matches!(asked[..], [Action::Send { command: Command::Enqueue { .. }, .. }]), "{asked:?}");
}

#[test]
fn who_asked_about_what_has_not_expired_asks_again_for_both() {
    let (mut key_state, token, spare) = asks_about_what_expires();

    let (again, ending) = (enqueue(EnqueueMode::Recheck), Reply::Queued { ttl: Some(Duration::ZERO) });
    happen(&mut key_state, 11, |key_state, ctx| key_state.reply(token, again, at(11), ending, ctx));
    happen(&mut key_state, 11, |key_state, ctx| {
        key_state.reply(spare, ACQUIRE, at(11), Reply::Contended, ctx)
    });

    assert_eq!(key_state.due(), at(11).plus(Duration::from_micros(250)));
    let asked = happen(&mut key_state, 12, KeyState::tick);
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
    let (mut key_state, token, spare) = asks_about_what_expires();

    let left = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.leave(&1, ctx);
    });
    let answered = happen(&mut key_state, 13, |key_state, ctx| {
        key_state.reply(spare, ACQUIRE, at(11), Reply::Owner, ctx)
    });

    let leaves = |of| move |action: &Action<u32>| matches!(action, Action::Send { token, command: Command::Withdraw } if *token == of);
    assert!(left.len() == 2 && left.iter().any(leaves(token)) && left.iter().any(leaves(spare)), "{left:?}");
    assert!(answered.len() == 1 && answered.iter().any(leaves(spare)), "{answered:?}");
}

#[test]
fn who_may_not_wait_any_more_leaves_under_both_tokens_too() {
    let (mut key_state, token, spare) = asks_about_what_expires();

    let forbidden = Reply::Refused(Failure::new(FailureKind::Lasting, "no permission"));
    let left = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.reply(token, enqueue(EnqueueMode::Recheck), at(11), forbidden, ctx);
    });

    assert!(
        matches!(
            left[..],
            [
                Action::Send { token: first, command: Command::Withdraw },
                Action::Send { token: second, command: Command::Withdraw },
                Action::Reject { refusal: AcquireFailure::Failed(_), .. }
            ] if first == token && second == spare
        ),
        "{left:?}"
    );
}

/// The last try of a call ends with its last answer.
#[test]
fn who_tries_for_the_last_time_has_the_lock_or_is_told_why_not_by_the_acquire_behind_the_question() {
    let retries = RetryLimits { retries: 1, ..LIMITS };
    let head = || QueueEntry { retry_state: RetryState::new(at(0), retries, 1), ..waiter(1, TERMS) };
    let answered = |reply| {
        let (mut key_state, token, spare) = asks_as_it_expires(queued(head()), 10_000);
        let (again, ending) = (enqueue(EnqueueMode::Recheck), Reply::Queued { ttl: Some(Duration::ZERO) });
        let first = happen(&mut key_state, 10_000, |key_state, ctx| {
            key_state.reply(token, again, at(10_000), ending, ctx)
        });
        assert!(first.is_empty(), "{first:?}");
        happen(&mut key_state, 10_000, |key_state, ctx| {
            key_state.reply(spare, ACQUIRE, at(10_000), reply, ctx)
        })
    };

    let let_in = answered(Reply::Owner);
    let taken = answered(Reply::Contended);
    let refused = answered(Reply::Refused(failure()));
    let unknown = answered(Reply::Unknown(failure()));

    assert!(matches!(let_in[..], [Action::Grant { acquisition: 1, .. }]), "{let_in:?}");
    let leaves = |action: &Action<u32>| matches!(action, Action::Send { command: Command::Withdraw, .. });
    assert!(
        matches!(&taken[..], [Action::Reject { refusal: AcquireFailure::Contended { .. }, .. }, last] if leaves(last)),
        "{taken:?}"
    );
    assert!(
        matches!(&refused[..], [Action::Reject { refusal: AcquireFailure::Failed(_), .. }, last] if leaves(last)),
        "{refused:?}"
    );
    assert!(
        matches!(&unknown[..], [Action::Orphan { .. }, Action::Reject { refusal: AcquireFailure::Failed(_), .. }, last] if leaves(last)),
        "{unknown:?}"
    );
}

/// Where an answer is lost both may have run, or the second alone.
#[test]
fn an_acquire_behind_a_question_is_undone_where_nobody_knows_whether_it_has_run() {
    let unknown = || Reply::Unknown(failure());
    let ending = Reply::Queued { ttl: Some(Duration::ZERO) };
    for answer in [None, Some(unknown()), Some(ending)] {
        let (mut key_state, token, spare) = asks_about_what_expires();
        if let Some(answer) = answer.clone() {
            let again = enqueue(EnqueueMode::Recheck);
            happen(&mut key_state, 12, |key_state, ctx| key_state.reply(token, again, at(11), answer, ctx));
        }

        let undone = happen(&mut key_state, 12, |key_state, ctx| {
            key_state.reply(spare, ACQUIRE, at(11), unknown(), ctx)
        });

        assert!(matches!(undone[..], [Action::Orphan { token }] if token == spare), "{answer:?}: {undone:?}");
        if answer.is_some() {
            assert!(
                key_state.due() <= at(12).plus(ProtocolConfig::DEFAULT.grant_lease / 8),
                "{:?}",
                key_state.due()
            );
            let asked = happen(&mut key_state, 200, KeyState::tick);
            assert!(matches!(asked[0], Action::Send { token: of, .. } if of == token), "{asked:?}");
        }
    }
}
