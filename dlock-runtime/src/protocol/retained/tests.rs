//! Unit tests of `keep`.

use super::*;
use crate::error::LossCause;
use crate::protocol::command::Failure;
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::hold::ReleaseOutcome;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::{Action, LastObserved};
use crate::protocol::scene::{RULES, TERMS, at, happen, held, waiter};

const JOB: HoldTerms = TERMS.min_hold(Some(Duration::from_secs(50)));

/// A lane whose task has let go 10 s after it took the lock, its token, and what the server was told.
fn kept() -> (KeyState<u32>, Token, Command) {
    let (mut key_state, token) = held(JOB);
    let mut told = None;
    happen(&mut key_state, 10_001, |key_state, ctx| told = Some(key_state.release(&1, ctx)));
    let Some(ReleaseOutcome::Send(told_of, command)) = told else { panic!("{told:?}") };
    assert_eq!(told_of, token);
    (key_state, token, command)
}

fn passing() -> Failure {
    Failure::new(FailureKind::Passing, "timeout")
}

#[test]
fn a_turn_that_ends_early_is_kept_for_the_rest_of_its_at_least() {
    let (mut key_state, token, command) = kept();
    assert!(!key_state.is_idle(), "a lane that is idle is forgotten");

    let over = happen(&mut key_state, 50_001, KeyState::tick);

    assert_eq!(command, Command::SetTtl { ttl: Duration::from_millis(40_100) });
    assert!(
        matches!(over[..], [Action::Send { token: released, command: Command::Release }] if released == token),
        "{over:?}"
    );
    assert!(key_state.is_idle());
}

#[test]
fn a_turn_that_ends_later_is_released() {
    let (mut key_state, token) = held(JOB);
    let renewed = Command::Renew { lease: TERMS.lease() };
    happen(&mut key_state, 40_000, |key_state, ctx| {
        key_state.reply(token, renewed, at(40_000), Reply::Owner, ctx)
    });

    let mut told = None;
    happen(&mut key_state, 50_001, |key_state, ctx| told = Some(key_state.release(&1, ctx)));

    assert_eq!(told, Some(ReleaseOutcome::Send(token, Command::Release)));
}

#[test]
fn a_turn_that_was_declined_is_released() {
    let (mut key_state, token) = held(JOB);

    let mut told = None;
    happen(&mut key_state, 10_001, |key_state, ctx| told = Some(key_state.cancel_granted(&1, ctx)));

    assert_eq!(told, Some(ReleaseOutcome::Send(token, Command::Release)));
}

#[test]
fn a_turn_that_was_handed_on_has_an_at_least_of_its_own() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, JOB), ctx));
    let hand_off = |key_state: &mut KeyState<u32>, ctx: &mut EventContext<'_, u32>| {
        let rules = crate::protocol::ProtocolConfig { handoff_budget: Duration::from_secs(1), ..RULES };
        let mut ctx = ctx.under(&rules);
        key_state.release(&1, &mut ctx);
    };
    happen(&mut key_state, 100, hand_off);

    let mut told = None;
    happen(&mut key_state, 200, |key_state, ctx| told = Some(key_state.release(&2, ctx)));

    let keep = Command::SetTtl { ttl: Duration::from_secs(50) };
    assert_eq!(told, Some(ReleaseOutcome::Send(token, keep)));
}

#[test]
fn whoever_comes_meanwhile_asks_the_server() {
    let (mut key_state, token, keep) = kept();
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.reply(token, keep, at(10_001), Reply::Owner, ctx)
    });

    let asks = happen(&mut key_state, 20_000, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    assert!(
        matches!(asks[..], [Action::Send { command: Command::Acquire { .. }, token: new }] if new != token),
        "{asks:?}"
    );
}

#[test]
fn what_was_heard_of_a_kept_lock_is_no_answer_to_who_comes_later() {
    let (mut key_state, _, _) = kept();

    happen(&mut key_state, 20_000, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    assert!(matches!(key_state.last_observed(), LastObserved::Nothing), "{:?}", key_state.last_observed());
}

#[test]
fn another_server_is_told_what_is_kept() {
    let (mut key_state, token, keep) = kept();
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.reply(token, keep, at(10_001), Reply::Owner, ctx)
    });

    let same = happen(&mut key_state, 20_001, |key_state, ctx| key_state.on_reconnect(false, ctx));
    let other = happen(&mut key_state, 20_001, |key_state, ctx| key_state.on_reconnect(true, ctx));

    let rest = Command::SetTtl { ttl: Duration::from_millis(30_100) };
    assert!(same.is_empty(), "{same:?}");
    assert!(
        matches!(other[..], [Action::Send { token: of, command }] if of == token && command == rest),
        "{other:?}"
    );
}

#[test]
fn a_late_grant_of_a_kept_lock_is_no_strangers() {
    let (mut key_state, token, _) = kept();

    let mut known = false;
    let actions = happen(&mut key_state, 10_050, |key_state, ctx| {
        let offer = Grant { lease: TERMS.lease(), fleet_hold: FleetHold::UNKNOWN };
        known = key_state.on_grant(token, offer, ctx);
    });

    assert!(known, "it would be answered by a leave, which releases");
    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn a_server_that_did_not_answer_or_refused_for_now_is_told_again_what_is_left() {
    for reply in [Reply::Unknown(passing()), Reply::Refused(passing())] {
        let (mut key_state, token, keep) = kept();

        let then = happen(&mut key_state, 10_501, |key_state, ctx| {
            key_state.reply(token, keep, at(10_001), reply, ctx)
        });
        let again = happen(&mut key_state, 11_501, KeyState::tick);

        assert!(then.is_empty(), "it is not abandoned, which would release it: {then:?}");
        let left = Command::SetTtl { ttl: Duration::from_millis(38_600) };
        assert!(matches!(again[..], [Action::Send { command, .. }] if command == left), "{again:?}");
    }
}

#[test]
fn what_is_not_ours_any_more_or_no_lock_is_not_kept() {
    let wrong_kind = Reply::Refused(Failure::new(FailureKind::WrongKind, "a list"));

    for reply in [Reply::NotOwner, wrong_kind] {
        let (mut key_state, token, keep) = kept();
        happen(&mut key_state, 10_002, |key_state, ctx| key_state.reply(token, keep, at(10_001), reply, ctx));
        assert!(key_state.is_idle());
    }
}

#[test]
fn an_answer_that_may_be_older_than_the_grant_does_not_end_what_is_kept() {
    let (mut key_state, token, _) = kept();

    let renew = Command::Renew { lease: JOB.lease() };
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.reply(token, renew, at(0), Reply::NotOwner, ctx)
    });

    assert!(key_state.keeps(token), "a late grant would be passed on, and the lock let go of");
}

#[test]
fn a_turn_that_is_stopped_is_kept_once_its_body_is_gone_and_one_that_was_stolen_is_not() {
    let (mut stopped, token) = held(JOB);
    let (mut stolen, _) = held(JOB);

    let lost = happen(&mut stopped, 100, |key_state, ctx| key_state.mark_lost(LossCause::Shutdown, ctx));
    let gone = happen(&mut stolen, 100, |key_state, ctx| key_state.mark_lost(LossCause::NotOwner, ctx));

    // The server is told at once, since the body may outlive the key.
    let [Action::Revoke { left: Some(left), .. }, Action::Send { command: Command::SetTtl { .. }, .. }] =
        lost[..]
    else {
        panic!("{lost:?}")
    };
    assert!(matches!(gone[..], [Action::Revoke { left: None, .. }]), "{gone:?}");
    let ran = happen(&mut stopped, 200, |key_state, ctx| key_state.release_residual(&1, left, true, ctx));
    assert!(
        matches!(ran[..], [Action::Send { token: of, command: Command::SetTtl { .. } }] if of == token),
        "{ran:?}"
    );
    let never_ran =
        happen(&mut stolen, 200, |key_state, ctx| key_state.release_residual(&1, left, false, ctx));
    assert!(matches!(never_ran[..], [Action::Send { command: Command::Release, .. }]), "{never_ran:?}");
}

/// What a task asks of its hold that is to be kept for less than a lease.
const SHORT_JOB: HoldTerms = TERMS.min_hold(Some(Duration::from_secs(10)));

/// The last millisecond in which a turn of such a task is kept for it, and the first in which it is not.
const WITHIN_AND_AFTER: [(u64, bool); 2] = [(10_000, true), (10_001, false)];

/// Stops the turn of the lane at `ms`, and returns what it leaves to its body, and what the server is told at once.
fn stop(key_state: &mut KeyState<u32>, ms: u64) -> (ResidualHold, Vec<Action<u32>>) {
    let mut lost = happen(key_state, ms, |key_state, ctx| key_state.mark_lost(LossCause::Shutdown, ctx));
    let told = lost.split_off(1);
    let [Action::Revoke { left: Some(left), .. }] = lost[..] else { panic!("{lost:?}") };
    (left, told)
}

/// Returns whether one command was sent and keeps the lock; false where another was, or none.
fn keeps(actions: &[Action<u32>]) -> bool {
    matches!(actions, [Action::Send { command: Command::SetTtl { .. }, .. }])
}

#[test]
fn a_stopped_turn_whose_at_least_is_over_is_kept_for_its_body_alone() {
    for (ms, is_within) in WITHIN_AND_AFTER {
        let (mut stopped_then, _) = held(SHORT_JOB);
        let (_, told) = stop(&mut stopped_then, ms);
        let (mut moved_then, _) = held(SHORT_JOB);
        stop(&mut moved_then, 100);
        let moved = happen(&mut moved_then, ms, |key_state, ctx| key_state.on_reconnect(true, ctx));
        let (mut gone_then, _) = held(SHORT_JOB);
        let (left, _) = stop(&mut gone_then, 100);
        let gone =
            happen(&mut gone_then, ms, |key_state, ctx| key_state.release_residual(&1, left, true, ctx));

        for what_the_server_is_told in [&told, &moved] {
            assert_eq!(keeps(what_the_server_is_told), is_within, "{ms}: {what_the_server_is_told:?}");
            assert!(is_within || what_the_server_is_told.is_empty(), "{what_the_server_is_told:?}");
        }
        assert!(keeps(&gone) == is_within && gone.len() == 1, "{ms}: {gone:?}");
    }
}

#[test]
fn a_stopped_turn_without_an_at_least_is_no_matter_of_another_server() {
    let (mut key_state, _) = held(TERMS);
    let (_, told) = stop(&mut key_state, 100);

    let moved = happen(&mut key_state, 200, |key_state, ctx| key_state.on_reconnect(true, ctx));

    assert!(told.is_empty() && moved.is_empty(), "{told:?} {moved:?}");
}

/// A lane with two turns that were stopped while their bodies ran on, the first of which was taken away from outside; and what they left.
fn two_stopped() -> (KeyState<u32>, [ResidualHold; 2]) {
    let (mut key_state, _) = held(TERMS);
    let (first, _) = stop(&mut key_state, 100);
    let asks = happen(&mut key_state, 200, |key_state, ctx| key_state.join(waiter(2, SHORT_JOB), ctx));
    let [Action::Send { token, command }] = asks[..] else { panic!("{asks:?}") };
    happen(&mut key_state, 201, |key_state, ctx| key_state.reply(token, command, at(200), Reply::Owner, ctx));
    let (second, _) = stop(&mut key_state, 300);
    (key_state, [first, second])
}

#[test]
fn what_happens_to_one_kept_lock_does_not_concern_another() {
    let keep = Command::SetTtl { ttl: TERMS.lease() };
    let (mut answered, [of_the_first, of_the_second]) = two_stopped();
    let (mut body_gone, [first, second]) = two_stopped();

    happen(&mut answered, 400, |key_state, ctx| {
        key_state.reply(of_the_second.token, keep, at(300), Reply::NotOwner, ctx);
    });
    let let_go =
        happen(&mut body_gone, 400, |key_state, ctx| key_state.release_residual(&1, first, true, ctx));

    assert!(answered.keeps(of_the_first.token) && !answered.keeps(of_the_second.token));
    assert!(
        matches!(let_go[..], [Action::Send { token, command: Command::Release }] if token == first.token),
        "{let_go:?}"
    );
    assert!(!body_gone.keeps(first.token) && body_gone.keeps(second.token));
}

#[test]
fn bodies_that_nobody_waits_for_have_their_locks_let_go_of_and_an_at_least_goes_on() {
    let (mut stopped, [first, second]) = two_stopped();
    let (mut ended, token, _) = kept();

    let let_go = happen(&mut stopped, 400, KeyState::release_all);
    let undisturbed = happen(&mut ended, 20_000, KeyState::release_all);

    let told = let_go.iter().map(|action| match *action {
        Action::Send { token, command } => (token, command),
        _ => panic!("{let_go:?}"),
    });
    let rest = Command::SetTtl { ttl: Duration::from_millis(9_901) };
    assert_eq!(told.collect::<Vec<_>>(), [(first.token, Command::Release), (second.token, rest)]);
    assert!(undisturbed.is_empty() && ended.keeps(token), "{undisturbed:?}");
}
