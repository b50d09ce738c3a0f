//! Unit tests of `acquire`.

use super::*;
use crate::protocol::Rules;
use crate::protocol::lane::Action;
use crate::protocol::patience::{Limits, Patience};
use crate::protocol::scene::{LIMITS, TERMS, at, happen, waiter};

/// A lane whose head tries once, its acquire on its way since 0 ms; and the acquire's token.
fn trying_once(only_whether: bool) -> (Lane<u32>, Token) {
    let patience = Patience::new(at(0), Limits { only_whether, ..LIMITS }, 1);
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(Waiter { patience, ..waiter(1, TERMS) }, cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    (lane, token)
}

const ACQUIRE: Command = Command::Acquire { lease: TERMS.lease };

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

    let look = Command::Enqueue { lease: TERMS.lease, mode: Enqueue::Peek };
    let held = Reply::NotQueued { ttl: Some(TERMS.lease) };
    let answered = happen(&mut lane, 4, |lane, cx| lane.reply(token, look, at(1), held, cx));

    assert!(matches!(&answered[..], [Action::Send { command: ACQUIRE, .. }]), "{answered:?}");
}

const fn enqueue(mode: Enqueue) -> Command {
    Command::Enqueue { lease: TERMS.lease, mode }
}

/// A lane whose head stands in the server's queue since 2 ms, as it asked for at 1 ms; and its token.
fn queued() -> (Lane<u32>, Token) {
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    happen(&mut lane, 1, |lane, cx| lane.reply(token, ACQUIRE, at(0), Reply::Taken, cx));
    let queued = Reply::Queued { ttl: Some(TERMS.lease) };
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

const TERMS_LEASE: Duration = TERMS.lease;
