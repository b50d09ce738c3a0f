use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, EnqueueMode, Failure, FailureKind, Reply};
use crate::protocol::key_state::{AcquireFailure, Action, KeyState};
use crate::protocol::scene::{TERMS, at, enqueue, happen, queued, waiter};
use crate::token::Token;

const RECHECK: Command = enqueue(EnqueueMode::Recheck);

/// Returns when the next recheck is due, in milliseconds after the last one was sent.
///
/// The reply to the last one arrived after `round_trip` ms: the key had `ttl` ms to live.
fn recheck_after(round_trip: u64, ttl: u64) -> u64 {
    let (mut key_state, token) = queued(waiter(1, TERMS));
    let (sent, reply) = (at(10), Reply::Queued { ttl: Some(Duration::from_millis(ttl)) });
    happen(&mut key_state, 10 + round_trip, |key_state, ctx| {
        key_state.on_reply(token, RECHECK, sent, reply, ctx);
    });
    u64::try_from(key_state.next_timeout().since(sent).as_millis()).expect("it is soon")
}

#[test]
fn recheck_is_due_when_the_key_has_expired() {
    for (round_trip, ttl, ms) in [(0, 0, 1), (0, 5, 6), (20, 5, 6), (20, 499, 500), (0, 501, 500)] {
        assert_eq!(recheck_after(round_trip, ttl), ms, "{ttl} ms to live, {round_trip} ms away");
    }
}

/// A queued contender whose key has less than 1 ms to live, and which has just sent a recheck.
fn rechecking() -> (KeyState<u32>, Token) {
    let (mut key_state, token) = queued(waiter(1, TERMS));
    let expiring = Reply::Queued { ttl: Some(Duration::ZERO) };
    happen(&mut key_state, 10, |key_state, ctx| key_state.on_reply(token, RECHECK, at(10), expiring, ctx));

    let sent = happen(&mut key_state, 11, KeyState::on_timeout);

    assert!(matches!(sent[..], [Action::Send { token: of, command: RECHECK }] if of == token), "{sent:?}");
    (key_state, token)
}

#[test]
fn recheck_is_not_repeated_while_in_flight() {
    let (mut key_state, _) = rechecking();

    let sent = happen(&mut key_state, 900, KeyState::on_timeout);

    assert!(sent.is_empty(), "{sent:?}");
}

#[test]
fn expired_lock_is_acquired_under_a_fresh_token() {
    let (mut key_state, token) = rechecking();

    let sent = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.on_reply(token, RECHECK, at(11), Reply::Absent, ctx);
    });
    let [Action::Send { token: fresh, command }] = sent[..] else { panic!("{sent:?}") };
    let granted = happen(&mut key_state, 13, |key_state, ctx| {
        key_state.on_reply(fresh, command, at(12), Reply::Owner, ctx);
    });

    assert!(fresh != token && command == enqueue(EnqueueMode::Join), "{sent:?}");
    assert!(
        matches!(granted[..], [Action::Grant { acquisition: 1, token, .. }] if token == fresh),
        "{granted:?}"
    );
}

#[test]
fn renewed_lock_is_rechecked_after_half_a_grant_lease() {
    let (mut key_state, token) = rechecking();

    let renewed = Reply::Queued { ttl: Some(TERMS.lease()) };
    happen(&mut key_state, 11, |key_state, ctx| key_state.on_reply(token, RECHECK, at(11), renewed, ctx));

    assert_eq!(key_state.next_timeout(), at(11).plus(ProtocolConfig::DEFAULT.grant_lease / 2));
}

#[test]
fn refused_recheck_withdraws_the_token() {
    let (mut key_state, token) = rechecking();

    let forbidden = Reply::Refused(Failure::new(FailureKind::Lasting, "no permission"));
    let actions = happen(&mut key_state, 12, |key_state, ctx| {
        key_state.on_reply(token, RECHECK, at(11), forbidden, ctx);
    });

    assert!(
        matches!(
            actions[..],
            [
                Action::Send { token: of, command: Command::Withdraw },
                Action::Reject { refusal: AcquireFailure::Failed(_), .. }
            ] if of == token
        ),
        "{actions:?}"
    );
}
