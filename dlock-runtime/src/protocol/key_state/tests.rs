use super::*;
use crate::protocol::command::{EnqueueMode, FailureKind};
use crate::protocol::foreign_clients::FleetHold;
use crate::protocol::retry_state::RetryLimits;
use crate::protocol::scene::{ACQUIRE, LIMITS, RULES, TERMS, at, enqueue, happen, held, queued, waiter};

const ENQUEUE: Command = enqueue(EnqueueMode::Join);

fn unknown() -> Reply {
    Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"))
}

/// Returns a task that gives up after `retries` retries.
fn trying(acquisition: u32, retries: u32) -> QueueEntry<u32> {
    QueueEntry {
        retry_state: RetryState::new(at(0), RetryLimits { retries, ..LIMITS }, acquisition),
        ..waiter(acquisition, TERMS)
    }
}

/// Returns a key state whose first task released the lock while a second waits, so that a yield is
/// in flight. Also returns the old token.
fn yielding() -> (KeyState<u32>, Token) {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 100, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    (key_state, token)
}

/// Returns a key state for each combination of parts.
fn key_states() -> [KeyState<u32>; 5] {
    let (mut kept, _) = held(TERMS.min_hold(Some(TERMS.lease())));
    happen(&mut kept, 10, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    [KeyState::new(), queued(waiter(1, TERMS)).0, held(TERMS).0, yielding().0, kept]
}

/// The outcome of a token that no acquisition uses.
#[derive(Debug, PartialEq, Eq)]
enum Dead {
    /// Nothing is sent for the token.
    Nothing,
    /// The token is withdrawn once.
    Withdrawn,
    /// The token is withdrawn until that is proved to have run after its command.
    Orphaned,
}

#[test]
fn stale_reply_is_cleaned_up_in_every_state() {
    let (_, dead) = held(TERMS);
    let (_, next) = held(TERMS);
    let yields = Command::Yield { next, fleet_hold: FleetHold::UNKNOWN };
    let renew = Command::Renew { lease: TERMS.lease() };
    let cases = [
        (ACQUIRE, unknown(), Dead::Orphaned),
        (ENQUEUE, unknown(), Dead::Orphaned),
        (yields, unknown(), Dead::Orphaned),
        (yields, Reply::Owner, Dead::Orphaned),
        (ACQUIRE, Reply::Owner, Dead::Withdrawn),
        (ENQUEUE, Reply::Owner, Dead::Withdrawn),
        (ENQUEUE, Reply::Queued { ttl: None }, Dead::Withdrawn),
        (ACQUIRE, Reply::Contended, Dead::Nothing),
        (yields, Reply::NotOwner, Dead::Nothing),
        (renew, Reply::NotOwner, Dead::Nothing),
        (renew, unknown(), Dead::Nothing),
    ];

    for key_state in key_states() {
        for (command, reply, expected) in &cases {
            let mut key_state = key_state.clone();

            let actions = happen(&mut key_state, 200, |key_state, ctx| {
                key_state.on_reply(dead, *command, at(60), reply.clone(), ctx);
            });

            let found = match actions[..] {
                [] => Dead::Nothing,
                [Action::Send { token, command: Command::Withdraw }] if token == dead => Dead::Withdrawn,
                [Action::Orphan { token }] if token == dead => Dead::Orphaned,
                _ => panic!("{command:?} {reply:?}: {actions:?}"),
            };
            assert_eq!(found, *expected, "{command:?} {reply:?} in {key_state:?}");
        }
    }
}

#[test]
fn unknown_grant_is_passed_on_in_every_state() {
    let (_, dead) = held(TERMS);

    for mut key_state in key_states() {
        let mut is_known = true;
        let actions = happen(&mut key_state, 200, |key_state, ctx| {
            let grant = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
            is_known = key_state.on_grant(dead, grant, ctx);
        });

        assert!(!is_known && actions.is_empty(), "{actions:?} in {key_state:?}");
    }
}

#[test]
fn duplicate_grant_of_a_held_lock_is_not_passed_on() {
    for (mut key_state, token) in [held(TERMS), yielding()] {
        let mut is_known = false;
        let actions = happen(&mut key_state, 200, |key_state, ctx| {
            let grant = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
            is_known = key_state.on_grant(token, grant, ctx);
        });

        assert!(is_known && actions.is_empty(), "{actions:?} in {key_state:?}");
    }
}

#[test]
fn only_the_task_that_holds_the_lock_has_its_token() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    assert_eq!([1, 2].map(|acquisition| key_state.token_of(&acquisition)), [Some(token), None]);
    let on_offer = yielding().0;
    assert_eq!(
        [1, 2].map(|acquisition| on_offer.token_of(&acquisition)),
        [None, None],
        "no body runs under it"
    );
}

#[test]
fn single_try_is_rejected_while_this_process_holds_the_lock() {
    for (mut key_state, _) in [held(TERMS), yielding()] {
        let waiting = key_state.queue.count();

        let rejected = happen(&mut key_state, 110, |key_state, ctx| key_state.join(trying(3, 0), ctx));

        let [
            Action::Reject {
                acquisition: 3,
                refusal: AcquireFailure::Contended { attempts: 1, waited, ttl: None },
            },
        ] = rejected[..]
        else {
            panic!("{rejected:?}")
        };
        assert_eq!((waited, key_state.queue.count()), (Duration::from_millis(110), waiting));
    }
}

#[test]
fn last_try_of_a_contender_ends_with_its_reply() {
    let (mut key_state, token) = queued(trying(1, 1));
    let due = key_state.next_timeout();
    let tick = u64::try_from(due.since(at(0)).as_millis()).expect("a few milliseconds") + 1;

    let sent = happen(&mut key_state, tick, KeyState::on_timeout);
    let again = Command::Enqueue { lease: TERMS.lease(), mode: EnqueueMode::Recheck };
    let behind = Reply::Queued { ttl: Some(TERMS.lease()) };
    let ended = happen(&mut key_state, tick + 1, |key_state, ctx| {
        key_state.on_reply(token, again, at(tick), behind, ctx);
    });

    assert!(due < at(500), "this does not test the recheck half a grant lease later: {due:?}");
    assert!(
        matches!(sent[..], [Action::Send { token: of, command }] if of == token && command == again),
        "{sent:?}"
    );
    assert!(
        matches!(
            ended[..],
            [
                Action::Reject { acquisition: 1, refusal: AcquireFailure::Contended { attempts: 2, .. } },
                Action::Send { command: Command::Withdraw, .. }
            ]
        ),
        "{ended:?}"
    );
}

#[test]
fn last_try_behind_a_local_task_sends_nothing() {
    let (mut key_state, _) = held(TERMS);
    happen(&mut key_state, 5, |key_state, ctx| key_state.join(trying(2, 1), ctx));
    let tick =
        u64::try_from(key_state.next_timeout().since(at(0)).as_millis()).expect("a few milliseconds") + 1;

    let ended = happen(&mut key_state, tick, KeyState::on_timeout);

    assert!(
        matches!(
            ended[..],
            [Action::Reject {
                acquisition: 2,
                refusal: AcquireFailure::Contended { attempts: 2, ttl: None, .. }
            }]
        ),
        "{ended:?}"
    );
}

#[test]
fn shutdown_rejects_waiters_and_withdraws() {
    let (mut key_state, token) = queued(waiter(1, TERMS));
    happen(&mut key_state, 3, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    let closed = happen(&mut key_state, 10, KeyState::close);

    assert!(
        matches!(
            closed[..],
            [
                Action::Reject { acquisition: 1, refusal: AcquireFailure::Shutdown },
                Action::Reject { acquisition: 2, refusal: AcquireFailure::Shutdown },
                Action::Send { token: of, command: Command::Withdraw }
            ] if of == token
        ),
        "{closed:?}"
    );
    assert!(key_state.is_idle());
}

#[test]
fn shutdown_keeps_the_lock_of_a_running_task() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    let closed = happen(&mut key_state, 60, KeyState::close);

    assert!(
        matches!(closed[..], [Action::Reject { acquisition: 2, refusal: AcquireFailure::Shutdown }]),
        "{closed:?}"
    );
    assert_eq!(key_state.token_of(&1), Some(token));
}
