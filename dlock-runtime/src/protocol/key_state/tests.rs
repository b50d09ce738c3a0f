//! Unit tests of `lane`.

use super::*;
use crate::protocol::command::{EnqueueMode, FailureKind};
use crate::protocol::foreign_clients::FleetHold;
use crate::protocol::retry_state::RetryLimits;
use crate::protocol::scene::{ACQUIRE, LIMITS, RULES, TERMS, at, enqueue, happen, held, queued, waiter};

const ENQUEUE: Command = enqueue(EnqueueMode::Join);

fn unknown() -> Reply {
    Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"))
}

/// A task that gives up after this many further tries.
fn trying(acquisition: u32, retries: u32) -> QueueEntry<u32> {
    QueueEntry {
        retry_state: RetryState::new(at(0), RetryLimits { retries, ..LIMITS }, acquisition),
        ..waiter(acquisition, TERMS)
    }
}

/// A lane whose first task has let go while a second waits: the lock is on offer to other processes; and the token that had it.
fn yielding() -> (KeyState<u32>, Token) {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 100, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    (key_state, token)
}

/// KeyTable as far with the lock as they can be, one of each kind.
fn lanes() -> [KeyState<u32>; 6] {
    let (mut kept, _) = held(TERMS.min_hold(Some(TERMS.lease())));
    happen(&mut kept, 10, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let (mut tries_behind, token) = queued(waiter(1, TERMS));
    let ending = Reply::Queued { ttl: Some(Duration::ZERO) };
    happen(&mut tries_behind, 10, |key_state, ctx| key_state.reply(token, ENQUEUE, at(10), ending, ctx));
    assert_eq!(happen(&mut tries_behind, 12, KeyState::tick).len(), 2, "an acquire follows the question");
    [KeyState::new(), queued(waiter(1, TERMS)).0, tries_behind, held(TERMS).0, yielding().0, kept]
}

/// What becomes of a token that nobody here has any more.
#[derive(Debug, PartialEq, Eq)]
enum Dead {
    /// It has left no trace.
    Rests,
    /// It is told to leave.
    ResidualHold,
    /// It is told to leave until that is proved to have come after all it was part of.
    OrphanedToken,
}

#[test]
fn what_an_answer_that_nobody_waits_for_any_more_tells_of_is_undone_however_far_the_lane_is_by_then() {
    let (_, dead) = held(TERMS);
    let (_, next) = held(TERMS);
    let offer = Command::Yield { next, fleet_hold: FleetHold::UNKNOWN };
    let renew = Command::Renew { lease: TERMS.lease() };
    let cases = [
        (ACQUIRE, unknown(), Dead::OrphanedToken),
        (ENQUEUE, unknown(), Dead::OrphanedToken),
        (offer, unknown(), Dead::OrphanedToken),
        (offer, Reply::Owner, Dead::OrphanedToken),
        (ACQUIRE, Reply::Owner, Dead::ResidualHold),
        (ENQUEUE, Reply::Owner, Dead::ResidualHold),
        (ENQUEUE, Reply::Queued { ttl: None }, Dead::ResidualHold),
        (ACQUIRE, Reply::Contended, Dead::Rests),
        (offer, Reply::NotOwner, Dead::Rests),
        (renew, Reply::NotOwner, Dead::Rests),
        (renew, unknown(), Dead::Rests),
    ];

    for key_state in lanes() {
        for (command, reply, expected) in &cases {
            let mut key_state = key_state.clone();

            let actions = happen(&mut key_state, 200, |key_state, ctx| {
                key_state.reply(dead, *command, at(60), reply.clone(), ctx)
            });

            let found = match actions[..] {
                [] => Dead::Rests,
                [Action::Send { token, command: Command::Withdraw }] if token == dead => Dead::ResidualHold,
                [Action::Orphan { token }] if token == dead => Dead::OrphanedToken,
                _ => panic!("{command:?} {reply:?}: {actions:?}"),
            };
            assert_eq!(found, *expected, "{command:?} {reply:?} in {key_state:?}");
        }
    }
}

#[test]
fn a_grant_to_a_token_that_nobody_here_has_is_passed_on_however_far_the_lane_is() {
    let (_, dead) = held(TERMS);

    for mut key_state in lanes() {
        let mut is_known = true;
        let actions = happen(&mut key_state, 200, |key_state, ctx| {
            let offer = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
            is_known = key_state.on_grant(dead, offer, ctx);
        });

        assert!(!is_known && actions.is_empty(), "{actions:?} in {key_state:?}");
    }
}

#[test]
fn a_grant_that_is_told_again_of_a_lock_that_is_ours_is_not_passed_on() {
    for (mut key_state, token) in [held(TERMS), yielding()] {
        let mut is_known = false;
        let actions = happen(&mut key_state, 200, |key_state, ctx| {
            let offer = Grant { lease: RULES.grant_lease, fleet_hold: FleetHold::UNKNOWN };
            is_known = key_state.on_grant(token, offer, ctx);
        });

        assert!(is_known && actions.is_empty(), "{actions:?} in {key_state:?}");
    }
}

#[test]
fn only_the_task_that_holds_the_lock_has_its_token() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    let of = |key_state: &mut KeyState<u32>, acquisition| {
        let mut found = None;
        happen(key_state, 60, |key_state, ctx| found = key_state.token_of(&acquisition, ctx));
        found
    };

    assert_eq!([1, 2].map(|acquisition| of(&mut key_state, acquisition)), [Some(token), None]);
    let mut on_offer = yielding().0;
    assert_eq!(
        [1, 2].map(|acquisition| of(&mut on_offer, acquisition)),
        [None, None],
        "nobody runs under it"
    );
}

#[test]
fn who_tries_once_while_a_task_of_this_process_has_the_lock_is_refused_at_once() {
    for (mut key_state, _) in [held(TERMS), yielding()] {
        let waiting = key_state.queue.count();

        let told = happen(&mut key_state, 110, |key_state, ctx| key_state.join(trying(3, 0), ctx));

        let [
            Action::Reject {
                acquisition: 3,
                refusal: AcquireFailure::Contended { attempts: 1, waited, ttl: None },
            },
        ] = told[..]
        else {
            panic!("{told:?}")
        };
        assert_eq!((waited, key_state.queue.count()), (Duration::from_millis(110), waiting));
    }
}

#[test]
fn the_last_try_of_a_contender_asks_the_server_and_ends_with_the_answer() {
    let (mut key_state, token) = queued(trying(1, 1));
    let due = key_state.due();
    let tick = u64::try_from(due.since(at(0)).as_millis()).expect("a few milliseconds") + 1;

    let asked = happen(&mut key_state, tick, KeyState::tick);
    let again = Command::Enqueue { lease: TERMS.lease(), mode: EnqueueMode::Recheck };
    let behind = Reply::Queued { ttl: Some(TERMS.lease()) };
    let ended = happen(&mut key_state, tick + 1, |key_state, ctx| {
        key_state.reply(token, again, at(tick), behind, ctx)
    });

    assert!(due < at(500), "this is no test of the look that is taken half a grant lease later: {due:?}");
    assert!(
        matches!(asked[..], [Action::Send { token: of, command }] if of == token && command == again),
        "{asked:?}"
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
fn the_last_try_behind_a_task_of_this_process_asks_nobody() {
    let (mut key_state, _) = held(TERMS);
    happen(&mut key_state, 5, |key_state, ctx| key_state.join(trying(2, 1), ctx));
    let tick = u64::try_from(key_state.due().since(at(0)).as_millis()).expect("a few milliseconds") + 1;

    let ended = happen(&mut key_state, tick, KeyState::tick);

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
fn a_manager_that_shuts_down_lets_nobody_wait_and_leaves_the_servers_queue() {
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
fn a_manager_that_shuts_down_leaves_the_lock_to_the_task_that_has_it() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    let closed = happen(&mut key_state, 60, KeyState::close);

    assert!(
        matches!(closed[..], [Action::Reject { acquisition: 2, refusal: AcquireFailure::Shutdown }]),
        "{closed:?}"
    );
    happen(&mut key_state, 61, |key_state, ctx| assert_eq!(key_state.token_of(&1, ctx), Some(token)));
}
