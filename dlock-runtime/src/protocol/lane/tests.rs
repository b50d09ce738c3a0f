//! Unit tests of `lane`.

use super::*;
use crate::protocol::command::{Enqueue, FailureKind};
use crate::protocol::patience::Limits;
use crate::protocol::scene::{ACQUIRE, LIMITS, RULES, TERMS, at, enqueue, happen, held, queued, waiter};
use crate::protocol::share::Streak;

const ENQUEUE: Command = enqueue(Enqueue::First);

fn unknown() -> Reply {
    Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"))
}

/// A task that gives up after this many further tries.
fn trying(seat: u32, retries: u32) -> Waiter<u32> {
    Waiter { patience: Patience::new(at(0), Limits { retries, ..LIMITS }, seat), ..waiter(seat, TERMS) }
}

/// A lane whose first task has let go while a second waits: the lock is on offer to other processes; and the token that had it.
fn yielding() -> (Lane<u32>, Token) {
    let (mut lane, token) = held(TERMS);
    happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, TERMS), cx));
    happen(&mut lane, 100, |lane, cx| {
        lane.release(&1, cx);
    });
    (lane, token)
}

/// Lanes as far with the lock as they can be, one of each kind.
fn lanes() -> [Lane<u32>; 6] {
    let (mut kept, _) = held(TERMS.min_hold(Some(TERMS.lease())));
    happen(&mut kept, 10, |lane, cx| {
        lane.release(&1, cx);
    });
    let (mut tries_behind, token) = queued(waiter(1, TERMS));
    let ending = Reply::Queued { ttl: Some(Duration::ZERO) };
    happen(&mut tries_behind, 10, |lane, cx| lane.reply(token, ENQUEUE, at(10), ending, cx));
    assert_eq!(happen(&mut tries_behind, 12, Lane::tick).len(), 2, "an acquire follows the question");
    [Lane::new(), queued(waiter(1, TERMS)).0, tries_behind, held(TERMS).0, yielding().0, kept]
}

/// What becomes of a token that nobody here has any more.
#[derive(Debug, PartialEq, Eq)]
enum Dead {
    /// It has left no trace.
    Rests,
    /// It is told to leave.
    Left,
    /// It is told to leave until that is proved to have come after all it was part of.
    Abandoned,
}

#[test]
fn what_an_answer_that_nobody_waits_for_any_more_tells_of_is_undone_however_far_the_lane_is_by_then() {
    let (_, dead) = held(TERMS);
    let (_, next) = held(TERMS);
    let offer = Command::Yield { next, streak: Streak::UNKNOWN };
    let renew = Command::Renew { lease: TERMS.lease() };
    let cases = [
        (ACQUIRE, unknown(), Dead::Abandoned),
        (ENQUEUE, unknown(), Dead::Abandoned),
        (offer, unknown(), Dead::Abandoned),
        (offer, Reply::Ours, Dead::Abandoned),
        (ACQUIRE, Reply::Ours, Dead::Left),
        (ENQUEUE, Reply::Ours, Dead::Left),
        (ENQUEUE, Reply::Queued { ttl: None }, Dead::Left),
        (ACQUIRE, Reply::Taken, Dead::Rests),
        (offer, Reply::NotOwner, Dead::Rests),
        (renew, Reply::NotOwner, Dead::Rests),
        (renew, unknown(), Dead::Rests),
    ];

    for lane in lanes() {
        for (command, reply, expected) in &cases {
            let mut lane = lane.clone();

            let actions =
                happen(&mut lane, 200, |lane, cx| lane.reply(dead, *command, at(60), reply.clone(), cx));

            let found = match actions[..] {
                [] => Dead::Rests,
                [Action::Send { token, command: Command::Leave }] if token == dead => Dead::Left,
                [Action::Abandon { token }] if token == dead => Dead::Abandoned,
                _ => panic!("{command:?} {reply:?}: {actions:?}"),
            };
            assert_eq!(found, *expected, "{command:?} {reply:?} in {lane:?}");
        }
    }
}

#[test]
fn a_grant_to_a_token_that_nobody_here_has_is_passed_on_however_far_the_lane_is() {
    let (_, dead) = held(TERMS);

    for mut lane in lanes() {
        let mut is_known = true;
        let actions = happen(&mut lane, 200, |lane, cx| {
            let offer = Offer { lease: RULES.grant_lease, streak: Streak::UNKNOWN };
            is_known = lane.granted(dead, offer, cx);
        });

        assert!(!is_known && actions.is_empty(), "{actions:?} in {lane:?}");
    }
}

#[test]
fn a_grant_that_is_told_again_of_a_lock_that_is_ours_is_not_passed_on() {
    for (mut lane, token) in [held(TERMS), yielding()] {
        let mut is_known = false;
        let actions = happen(&mut lane, 200, |lane, cx| {
            let offer = Offer { lease: RULES.grant_lease, streak: Streak::UNKNOWN };
            is_known = lane.granted(token, offer, cx);
        });

        assert!(is_known && actions.is_empty(), "{actions:?} in {lane:?}");
    }
}

#[test]
fn only_the_task_that_holds_the_lock_has_its_token() {
    let (mut lane, token) = held(TERMS);
    happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, TERMS), cx));
    let of = |lane: &mut Lane<u32>, seat| {
        let mut found = None;
        happen(lane, 60, |lane, cx| found = lane.token_of(&seat, cx));
        found
    };

    assert_eq!([1, 2].map(|seat| of(&mut lane, seat)), [Some(token), None]);
    let mut on_offer = yielding().0;
    assert_eq!([1, 2].map(|seat| of(&mut on_offer, seat)), [None, None], "nobody runs under it");
}

#[test]
fn who_tries_once_while_a_task_of_this_process_has_the_lock_is_refused_at_once() {
    for (mut lane, _) in [held(TERMS), yielding()] {
        let waiting = lane.queue.count();

        let told = happen(&mut lane, 110, |lane, cx| lane.join(trying(3, 0), cx));

        let [Action::Refuse { seat: 3, refusal: Refusal::Contended { attempts: 1, waited, ttl: None } }] =
            told[..]
        else {
            panic!("{told:?}")
        };
        assert_eq!((waited, lane.queue.count()), (Duration::from_millis(110), waiting));
    }
}

#[test]
fn the_last_try_of_a_contender_asks_the_server_and_ends_with_the_answer() {
    let (mut lane, token) = queued(trying(1, 1));
    let due = lane.due();
    let tick = u64::try_from(due.since(at(0)).as_millis()).expect("a few milliseconds") + 1;

    let asked = happen(&mut lane, tick, Lane::tick);
    let again = Command::Enqueue { lease: TERMS.lease(), mode: Enqueue::Again };
    let behind = Reply::Queued { ttl: Some(TERMS.lease()) };
    let ended = happen(&mut lane, tick + 1, |lane, cx| lane.reply(token, again, at(tick), behind, cx));

    assert!(due < at(500), "this is no test of the look that is taken half a grant lease later: {due:?}");
    assert!(
        matches!(asked[..], [Action::Send { token: of, command }] if of == token && command == again),
        "{asked:?}"
    );
    assert!(
        matches!(
            ended[..],
            [
                Action::Refuse { seat: 1, refusal: Refusal::Contended { attempts: 2, .. } },
                Action::Send { command: Command::Leave, .. }
            ]
        ),
        "{ended:?}"
    );
}

#[test]
fn the_last_try_behind_a_task_of_this_process_asks_nobody() {
    let (mut lane, _) = held(TERMS);
    happen(&mut lane, 5, |lane, cx| lane.join(trying(2, 1), cx));
    let tick = u64::try_from(lane.due().since(at(0)).as_millis()).expect("a few milliseconds") + 1;

    let ended = happen(&mut lane, tick, Lane::tick);

    assert!(
        matches!(
            ended[..],
            [Action::Refuse { seat: 2, refusal: Refusal::Contended { attempts: 2, ttl: None, .. } }]
        ),
        "{ended:?}"
    );
}

#[test]
fn a_manager_that_shuts_down_lets_nobody_wait_and_leaves_the_servers_queue() {
    let (mut lane, token) = queued(waiter(1, TERMS));
    happen(&mut lane, 3, |lane, cx| lane.join(waiter(2, TERMS), cx));

    let closed = happen(&mut lane, 10, Lane::close);

    assert!(
        matches!(
            closed[..],
            [
                Action::Refuse { seat: 1, refusal: Refusal::Shutdown },
                Action::Refuse { seat: 2, refusal: Refusal::Shutdown },
                Action::Send { token: of, command: Command::Leave }
            ] if of == token
        ),
        "{closed:?}"
    );
    assert!(lane.is_idle());
}

#[test]
fn a_manager_that_shuts_down_leaves_the_lock_to_the_task_that_has_it() {
    let (mut lane, token) = held(TERMS);
    happen(&mut lane, 50, |lane, cx| lane.join(waiter(2, TERMS), cx));

    let closed = happen(&mut lane, 60, Lane::close);

    assert!(matches!(closed[..], [Action::Refuse { seat: 2, refusal: Refusal::Shutdown }]), "{closed:?}");
    happen(&mut lane, 61, |lane, cx| assert_eq!(lane.token_of(&1, cx), Some(token)));
}
