use super::*;
use crate::error::LossCause;
use crate::protocol::command::Failure;
use crate::protocol::foreign_clients::{FleetHold, Grant};
use crate::protocol::hold::ReleaseOutcome;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::{Action, LastObserved};
use crate::protocol::scene::{RULES, TERMS, at, happen, held, waiter};

const JOB: HoldTerms = TERMS.min_hold(Some(Duration::from_secs(50)));

/// Returns a key state whose task released the lock 10 s after its acquisition, the token, and the
/// command that the server received.
fn kept() -> (KeyState<u32>, Token, Command) {
    let (mut key_state, token) = held(JOB);
    let mut sent = None;
    happen(&mut key_state, 10_001, |key_state, ctx| sent = Some(key_state.release(&1, ctx)));
    let Some(ReleaseOutcome::Send(sent_token, command)) = sent else { panic!("{sent:?}") };
    assert_eq!(sent_token, token);
    (key_state, token, command)
}

fn passing() -> Failure {
    Failure::new(FailureKind::Passing, "timeout")
}

#[test]
fn early_release_retains_the_key_for_min_hold() {
    let (mut key_state, token, command) = kept();
    assert!(!key_state.is_idle(), "an idle key state is dropped");
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.on_reply(token, command, at(10_001), Reply::Owner, ctx);
    });

    let over = happen(&mut key_state, 50_001, KeyState::on_timeout);

    assert_eq!(command, Command::SetTtl { ttl: Duration::from_millis(40_100) });
    assert!(
        matches!(over[..], [Action::Send { token: released, command: Command::RELEASE }] if released == token),
        "{over:?}"
    );
    assert!(key_state.is_idle());
}

#[test]
fn release_after_min_hold_frees_the_key() {
    let (mut key_state, token) = held(JOB);
    let renewed = Command::Renew { lease: TERMS.lease() };
    happen(&mut key_state, 40_000, |key_state, ctx| {
        key_state.on_reply(token, renewed, at(40_000), Reply::Owner, ctx);
    });

    let mut sent = None;
    happen(&mut key_state, 50_001, |key_state, ctx| sent = Some(key_state.release(&1, ctx)));

    assert_eq!(sent, Some(ReleaseOutcome::Send(token, Command::RELEASE)));
}

#[test]
fn cancelled_grant_frees_the_key() {
    let (mut key_state, token) = held(JOB);

    let mut sent = None;
    happen(&mut key_state, 10_001, |key_state, ctx| sent = Some(key_state.cancel_granted(&1, ctx)));

    assert_eq!(sent, Some(ReleaseOutcome::Send(token, Command::RELEASE)));
}

#[test]
fn each_handed_off_hold_has_its_own_min_hold() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, JOB), ctx));
    let hand_off = |key_state: &mut KeyState<u32>, ctx: &mut EventContext<'_, u32>| {
        let rules = crate::protocol::ProtocolConfig { handoff_budget: Duration::from_secs(1), ..RULES };
        let mut ctx = ctx.under(&rules);
        key_state.release(&1, &mut ctx);
    };
    happen(&mut key_state, 100, hand_off);

    let mut sent = None;
    happen(&mut key_state, 200, |key_state, ctx| sent = Some(key_state.release(&2, ctx)));

    let keep = Command::SetTtl { ttl: Duration::from_secs(50) };
    assert_eq!(sent, Some(ReleaseOutcome::Send(token, keep)));
}

#[test]
fn new_task_contends_while_the_key_is_retained() {
    let (mut key_state, token, keep) = kept();
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.on_reply(token, keep, at(10_001), Reply::Owner, ctx);
    });

    let sent = happen(&mut key_state, 20_000, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    assert!(
        matches!(sent[..], [Action::Send { command: Command::Acquire { .. }, token: new }] if new != token),
        "{sent:?}"
    );
}

#[test]
fn old_observation_does_not_reject_a_later_task() {
    let (mut key_state, _, _) = kept();

    happen(&mut key_state, 20_000, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    assert!(matches!(key_state.last_observed(), LastObserved::Nothing), "{:?}", key_state.last_observed());
}

/// It could overtake `SetTtl`, which would find no hold, and report a loss.
#[test]
fn release_after_min_hold_follows_the_reply_to_the_ttl() {
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    for (reply, is_released) in [(Reply::Owner, true), (unknown, true), (Reply::NotOwner, false)] {
        let (mut key_state, token, keep) = kept();

        let at_the_end = happen(&mut key_state, 50_001, KeyState::on_timeout);
        assert!(at_the_end.is_empty() && key_state.keeps(token), "{at_the_end:?}");
        assert_eq!(key_state.next_timeout(), BootInstant::NEVER);
        let answered = happen(&mut key_state, 50_100, |key_state, ctx| {
            key_state.on_reply(token, keep, at(10_001), reply.clone(), ctx);
        });

        assert_eq!(
            matches!(answered[..], [Action::Send { token: of, command: Command::RELEASE }] if of == token),
            is_released,
            "{reply:?}: {answered:?}"
        );
        assert!(!key_state.keeps(token));
    }
}

/// A renewal that was in flight may have run after the time to live was set.
#[test]
fn renewal_that_is_answered_after_its_hold_sets_the_ttl_again() {
    let renew = Command::Renew { lease: TERMS.lease() };
    let unknown = Reply::Unknown(Failure::new(FailureKind::Passing, "timeout"));
    for (reply, is_set) in [(Reply::Owner, true), (unknown, true), (Reply::NotOwner, false)] {
        let (mut key_state, token, _) = kept();

        let sent = happen(&mut key_state, 11_000, |key_state, ctx| {
            key_state.on_reply(token, renew, at(9_000), reply.clone(), ctx);
        });

        assert_eq!(keeps(&sent), is_set, "{reply:?}: {sent:?}");
        assert!(key_state.keeps(token), "{reply:?}: an older renewal says nothing about the key now");
    }
}

#[test]
fn new_primary_gets_the_ttl_again() {
    let (mut key_state, token, keep) = kept();
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.on_reply(token, keep, at(10_001), Reply::Owner, ctx);
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
fn late_grant_of_a_retained_hold_is_not_stray() {
    let (mut key_state, token, _) = kept();

    let mut known = false;
    let actions = happen(&mut key_state, 10_050, |key_state, ctx| {
        let grant = Grant { lease: TERMS.lease(), fleet_hold: FleetHold::UNKNOWN };
        known = key_state.on_grant(token, grant, ctx);
    });

    assert!(known, "the reply to a stray grant releases the key");
    assert!(actions.is_empty(), "{actions:?}");
}

#[test]
fn failed_ttl_is_set_again() {
    for reply in [Reply::Unknown(passing()), Reply::Refused(passing())] {
        let (mut key_state, token, keep) = kept();

        let then = happen(&mut key_state, 10_501, |key_state, ctx| {
            key_state.on_reply(token, keep, at(10_001), reply, ctx);
        });
        let again = happen(&mut key_state, 11_501, KeyState::on_timeout);

        assert!(then.is_empty(), "it is no orphan, whose cleanup releases it: {then:?}");
        let left = Command::SetTtl { ttl: Duration::from_millis(38_600) };
        assert!(matches!(again[..], [Action::Send { command, .. }] if command == left), "{again:?}");
    }
}

#[test]
fn retained_hold_ends_when_its_key_is_lost() {
    let wrong_kind = Reply::Refused(Failure::new(FailureKind::WrongKind, "a list"));

    for reply in [Reply::NotOwner, wrong_kind] {
        let (mut key_state, token, keep) = kept();
        happen(&mut key_state, 10_002, |key_state, ctx| {
            key_state.on_reply(token, keep, at(10_001), reply, ctx);
        });
        assert!(key_state.is_idle());
    }
}

#[test]
fn older_reply_does_not_end_a_retained_hold() {
    let (mut key_state, token, _) = kept();

    let renew = Command::Renew { lease: JOB.lease() };
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.on_reply(token, renew, at(0), Reply::NotOwner, ctx);
    });

    assert!(key_state.keeps(token), "a late grant would be passed on, and the key released");
}

#[test]
fn revoked_hold_keeps_min_hold_unless_its_key_is_lost() {
    let (mut stopped, token) = held(JOB);
    let (mut stolen, _) = held(JOB);

    let lost = happen(&mut stopped, 100, |key_state, ctx| key_state.mark_all_lost(LossCause::Shutdown, ctx));
    let ended = happen(&mut stolen, 100, |key_state, ctx| key_state.mark_all_lost(LossCause::NotOwner, ctx));

    // The time to live is set at once, since the body may outlive the key.
    let [Action::Revoke { left: Some(left), .. }, Action::Send { command: Command::SetTtl { .. }, .. }] =
        lost[..]
    else {
        panic!("{lost:?}")
    };
    assert!(matches!(ended[..], [Action::Revoke { left: None, .. }]), "{ended:?}");
    let ran = happen(&mut stopped, 200, |key_state, ctx| key_state.release_residual(left, true, ctx));
    assert!(
        matches!(ran[..], [Action::Send { token: of, command: Command::SetTtl { .. } }] if of == token),
        "{ran:?}"
    );
    let never_ran = happen(&mut stolen, 200, |key_state, ctx| key_state.release_residual(left, false, ctx));
    assert!(matches!(never_ran[..], [Action::Send { command: Command::RELEASE, .. }]), "{never_ran:?}");
}

/// The terms of a hold with a `min_hold` shorter than its lease.
const SHORT_JOB: HoldTerms = TERMS.min_hold(Some(Duration::from_secs(10)));

/// The last millisecond in which `min_hold` applies, and the first in which it does not.
const WITHIN_AND_AFTER: [(u64, bool); 2] = [(10_000, true), (10_001, false)];

/// Revokes the hold at `ms`. Returns what it leaves to its body, and the commands sent at once.
fn stop(key_state: &mut KeyState<u32>, ms: u64) -> (ResidualHold, Vec<Action<u32>>) {
    let mut lost = happen(key_state, ms, |key_state, ctx| key_state.mark_all_lost(LossCause::Shutdown, ctx));
    let sent = lost.split_off(1);
    let [Action::Revoke { left: Some(left), .. }] = lost[..] else { panic!("{lost:?}") };
    (left, sent)
}

/// Returns `true` if exactly one command was sent and it retains the key.
fn keeps(actions: &[Action<u32>]) -> bool {
    matches!(actions, [Action::Send { command: Command::SetTtl { .. }, .. }])
}

#[test]
fn revoked_hold_past_min_hold_is_retained_for_its_body() {
    for (ms, is_within) in WITHIN_AND_AFTER {
        let (mut stopped_then, _) = held(SHORT_JOB);
        let (_, sent) = stop(&mut stopped_then, ms);
        let (mut moved_then, _) = held(SHORT_JOB);
        stop(&mut moved_then, 100);
        let moved = happen(&mut moved_then, ms, |key_state, ctx| key_state.on_reconnect(true, ctx));
        let (mut gone_then, _) = held(SHORT_JOB);
        let (left, _) = stop(&mut gone_then, 100);
        let ended = happen(&mut gone_then, ms, |key_state, ctx| key_state.release_residual(left, true, ctx));

        for commands in [&sent, &moved] {
            assert_eq!(keeps(commands), is_within, "{ms}: {commands:?}");
            assert!(is_within || commands.is_empty(), "{commands:?}");
        }
        assert!(keeps(&ended) == is_within && ended.len() == 1, "{ms}: {ended:?}");
    }
}

#[test]
fn revoked_hold_whose_min_hold_needs_a_success_is_kept_only_after_one() {
    let terms = JOB.min_hold_on_success(true);
    for has_succeeded in [true, false] {
        let (mut key_state, _) = held(terms);

        let (left, sent) = stop(&mut key_state, 100);
        let moved = happen(&mut key_state, 150, |key_state, ctx| key_state.on_reconnect(true, ctx));
        let ended = happen(&mut key_state, 200, |key_state, ctx| {
            key_state.release_residual(left, has_succeeded, ctx);
        });

        assert!(sent.is_empty() && moved.is_empty(), "no body has succeeded: {sent:?} {moved:?}");
        assert_eq!(keeps(&ended), has_succeeded, "{ended:?}");
        let is_released = matches!(ended[..], [Action::Send { command: Command::RELEASE, .. }]);
        assert_eq!(is_released, !has_succeeded, "{ended:?}");
    }
}

#[test]
fn shutdown_releases_a_revoked_hold_whose_body_has_not_succeeded() {
    let (mut key_state, _) = held(JOB.min_hold_on_success(true));
    stop(&mut key_state, 100);

    let sent = happen(&mut key_state, 200, KeyState::release_all);

    assert!(matches!(sent[..], [Action::Send { command: Command::RELEASE, .. }]), "{sent:?}");
}

#[test]
fn revoked_hold_without_min_hold_sends_nothing_to_a_new_primary() {
    let (mut key_state, _) = held(TERMS);
    let (_, sent) = stop(&mut key_state, 100);

    let moved = happen(&mut key_state, 200, |key_state, ctx| key_state.on_reconnect(true, ctx));

    assert!(sent.is_empty() && moved.is_empty(), "{sent:?} {moved:?}");
}

/// Returns a key state with two revoked holds whose bodies still run, the first of which also lost
/// its key. Also returns what they left.
fn two_revoked() -> (KeyState<u32>, [ResidualHold; 2]) {
    let (mut key_state, _) = held(TERMS);
    let (first, _) = stop(&mut key_state, 100);
    let sent = happen(&mut key_state, 200, |key_state, ctx| key_state.join(waiter(2, SHORT_JOB), ctx));
    let [Action::Send { token, command }] = sent[..] else { panic!("{sent:?}") };
    happen(&mut key_state, 201, |key_state, ctx| {
        key_state.on_reply(token, command, at(200), Reply::Owner, ctx);
    });
    let (second, _) = stop(&mut key_state, 300);
    (key_state, [first, second])
}

#[test]
fn retained_holds_are_independent() {
    let keep = Command::SetTtl { ttl: TERMS.lease() };
    let (mut answered, [of_the_first, of_the_second]) = two_revoked();
    let (mut body_gone, [first, second]) = two_revoked();

    happen(&mut answered, 400, |key_state, ctx| {
        key_state.on_reply(of_the_second.token, keep, at(300), Reply::NotOwner, ctx);
    });
    let released = happen(&mut body_gone, 400, |key_state, ctx| key_state.release_residual(first, true, ctx));

    assert!(answered.keeps(of_the_first.token) && !answered.keeps(of_the_second.token));
    assert!(
        matches!(released[..], [Action::Send { token, command: Command::RELEASE }] if token == first.token),
        "{released:?}"
    );
    assert!(!body_gone.keeps(first.token) && body_gone.keeps(second.token));
}

#[test]
fn release_all_releases_for_bodies_and_keeps_min_hold() {
    let (mut stopped, [first, second]) = two_revoked();
    let (mut ended, token, _) = kept();

    let released = happen(&mut stopped, 400, KeyState::release_all);
    let undisturbed = happen(&mut ended, 20_000, KeyState::release_all);

    let sent = released.iter().map(|action| match *action {
        Action::Send { token, command } => (token, command),
        _ => panic!("{released:?}"),
    });
    let rest = Command::SetTtl { ttl: Duration::from_millis(9_901) };
    assert_eq!(sent.collect::<Vec<_>>(), [(first.token, Command::RELEASE), (second.token, rest)]);
    assert!(undisturbed.is_empty() && ended.keeps(token), "{undisturbed:?}");
}
