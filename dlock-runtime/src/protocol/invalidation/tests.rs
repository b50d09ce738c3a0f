use super::*;
use crate::error::LossCause;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{EnqueueMode, Reply};
use crate::protocol::hold::ReleaseOutcome;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::Action;
use crate::protocol::scene::{RULES, TERMS, at, happen, held, waiter};
use crate::token::{Token, TokenSource};

const FOREIGN: Reply = Reply::NotQueued { ttl: Some(TERMS.lease()) };

fn checks(actions: &[Action<u32>]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Send { command: Command::Verify, .. })).count()
}

/// Returns a key state whose contender found the lock held and sent an enqueue in mode `TryOnly` at
/// 1 ms. Also returns its token and command.
fn trying_only() -> (KeyState<u32>, Token, Command) {
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let token = |key_state: &KeyState<u32>| -> Token {
        let Some(contender) = key_state.contender() else { panic!("{key_state:?}") };
        contender.token
    };
    let first = token(&key_state);
    let acquire = Command::Acquire { lease: TERMS.lease() };
    happen(&mut key_state, 1, |key_state, ctx| {
        key_state.on_reply(first, acquire, at(0), Reply::Contended, ctx);
    });
    let second = token(&key_state);
    (key_state, second, Command::Enqueue { lease: TERMS.lease(), mode: EnqueueMode::Join })
}

/// Returns a key state whose contender was not queued, and polls since 1 ms.
fn polling() -> KeyState<u32> {
    let (mut key_state, token, enqueue) = trying_only();
    happen(&mut key_state, 1, |key_state, ctx| key_state.on_reply(token, enqueue, at(1), FOREIGN, ctx));
    key_state
}

#[test]
fn invalidation_makes_a_polling_contender_retry_at_once() {
    let mut key_state = polling();

    let actions = happen(&mut key_state, 20, KeyState::on_invalidation);

    assert!(matches!(actions[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{actions:?}");
}

#[test]
fn invalidation_during_an_enqueue_is_remembered() {
    let (mut key_state, token, enqueue) = trying_only();

    assert!(happen(&mut key_state, 2, KeyState::on_invalidation).is_empty());
    assert!(
        happen(&mut key_state, 3, |key_state, ctx| key_state.on_reply(token, enqueue, at(1), FOREIGN, ctx))
            .is_empty()
    );

    assert_eq!(key_state.next_timeout(), at(5));
    assert_eq!(happen(&mut key_state, 5, KeyState::on_timeout).len(), 1);
}

#[test]
fn reconnect_during_an_enqueue_is_remembered() {
    let (mut key_state, token, enqueue) = trying_only();

    happen(&mut key_state, 2, |key_state, ctx| key_state.on_reconnect(false, ctx));
    happen(&mut key_state, 3, |key_state, ctx| key_state.on_reply(token, enqueue, at(1), FOREIGN, ctx));

    assert_eq!(key_state.next_timeout(), at(5));
}

#[test]
fn jittered_retry_stays_within_its_bound() {
    let mut key_state = polling();
    let rules = ProtocolConfig { wakeup_jitter: Duration::from_millis(5), ..RULES };

    let actions = happen(&mut key_state, 20, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.on_invalidation(&mut ctx);
    });

    assert!(
        actions.is_empty() && key_state.next_timeout() > at(20) && key_state.next_timeout() <= at(25),
        "{key_state:?}"
    );
    assert_eq!(happen(&mut key_state, 25, KeyState::on_timeout).len(), 1);
}

#[test]
fn invalidation_right_after_an_attempt_waits_for_the_minimum() {
    let mut key_state = polling();

    assert!(happen(&mut key_state, 1, KeyState::on_invalidation).is_empty());

    assert_eq!(key_state.next_timeout(), at(3));
    assert_eq!(happen(&mut key_state, 3, KeyState::on_timeout).len(), 1);
}

#[test]
fn flood_of_invalidations_causes_few_checks() {
    let (mut key_state, _) = held(TERMS);

    let sent: usize =
        (100..200).map(|ms| checks(&happen(&mut key_state, ms, KeyState::on_invalidation))).sum();

    assert_eq!(sent, 10);
    assert_eq!(
        checks(&happen(&mut key_state, 210, KeyState::on_timeout)),
        1,
        "the last invalidation is remembered"
    );
}

#[test]
fn a_check_answered_not_owner_revokes_the_hold() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 100, KeyState::on_invalidation);
    assert!(
        !happen(&mut key_state, 101, |key_state, ctx| key_state.on_reply(
            token,
            Command::Verify,
            at(100),
            Reply::Owner,
            ctx
        ))
        .iter()
        .any(|action| matches!(action, Action::Revoke { .. }))
    );

    happen(&mut key_state, 200, KeyState::on_invalidation);
    let actions = happen(&mut key_state, 201, |key_state, ctx| {
        key_state.on_reply(token, Command::Verify, at(200), Reply::NotOwner, ctx);
    });

    assert!(matches!(actions[..], [Action::Revoke { cause: LossCause::NotOwner, .. }]), "{actions:?}");
}

#[test]
fn tracked_hold_is_checked_after_100_ms_and_after_each_gap() {
    let (tokens, rules) = (TokenSource::of_process(1), ProtocolConfig { tracking: true, ..RULES });
    let happen = |key_state: &mut KeyState<u32>,
                  ms,
                  event: &dyn Fn(&mut KeyState<u32>, &mut EventContext<'_, u32>)| {
        let mut actions = Vec::new();
        event(
            key_state,
            &mut EventContext {
                now: at(ms),
                rules: &rules,
                tokens: &tokens,
                actions: &mut actions,
                contended: &mut false,
            },
        );
        checks(&actions)
    };
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, &|key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let Some(contender) = key_state.contender() else { panic!("{key_state:?}") };
    let (token, acquire) = (contender.token, Command::Acquire { lease: TERMS.lease() });
    happen(&mut key_state, 7, &|key_state, ctx| key_state.on_reply(token, acquire, at(0), Reply::Owner, ctx));

    assert_eq!(key_state.next_timeout(), at(100));
    assert_eq!(happen(&mut key_state, 100, &KeyState::on_timeout), 1);
    assert!(key_state.next_timeout() > at(5_000), "{:?}", key_state.next_timeout());
    for (ms, gap) in [(400, true), (500, false)] {
        let event = |key_state: &mut KeyState<u32>, ctx: &mut EventContext<'_, u32>| {
            if gap { key_state.on_reconnect(false, ctx) } else { key_state.on_invalidations_missed(ctx) }
        };
        assert_eq!(happen(&mut key_state, ms, &event), 0, "it is deferred");
        assert_eq!(key_state.next_timeout(), at(ms));
        assert_eq!(happen(&mut key_state, ms, &KeyState::on_timeout), 1);
    }
}

#[test]
fn gap_checks_a_recent_hold_at_once_but_none_twice_in_10_ms() {
    let rules = ProtocolConfig { tracking: true, ..RULES };
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let Some(contender) = key_state.contender() else { panic!("{key_state:?}") };
    let (token, acquire) = (contender.token, Command::Acquire { lease: TERMS.lease() });
    happen(&mut key_state, 7, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.on_reply(token, acquire, at(0), Reply::Owner, &mut ctx);
    });

    for (missed_at, due) in [(50, 50), (55, 60), (90, 90)] {
        assert_eq!(
            checks(&happen(&mut key_state, missed_at, KeyState::on_invalidations_missed)),
            0,
            "it is deferred"
        );
        assert_eq!(key_state.next_timeout(), at(due));
        assert_eq!(checks(&happen(&mut key_state, due, KeyState::on_timeout)), 1);
    }
}

#[test]
fn hold_is_tracked_from_its_first_check_on() {
    let (tokens, rules) =
        (TokenSource::of_process(1), ProtocolConfig { tracking: true, ..ProtocolConfig::DEFAULT });
    let happen = |key_state: &mut KeyState<u32>,
                  ms,
                  event: &dyn Fn(&mut KeyState<u32>, &mut EventContext<'_, u32>)| {
        let (mut actions, contended) = (Vec::new(), &mut false);
        event(
            key_state,
            &mut EventContext {
                now: at(ms),
                rules: &rules,
                tokens: &tokens,
                actions: &mut actions,
                contended,
            },
        );
        let sent = actions.into_iter().find_map(|action| match action {
            Action::Send { token, command } => Some((token, command)),
            _ => None,
        });
        (sent, key_state.is_tracked())
    };
    let another = HoldTerms::of_lease(TERMS.lease() * 2);
    let mut key_state = KeyState::new();

    let (Some((token, acquire)), false) =
        happen(&mut key_state, 0, &|key_state, ctx| key_state.join(waiter(1, TERMS), ctx))
    else {
        panic!("it is tracked while it is requested, or nothing is asked: {key_state:?}")
    };
    let owner = |command| {
        move |key_state: &mut KeyState<u32>, ctx: &mut EventContext<'_, u32>| {
            key_state.on_reply(token, command, ctx.now, Reply::Owner, ctx);
        }
    };
    assert_eq!(happen(&mut key_state, 1, &owner(acquire)), (None, false), "it may end soon");
    assert_eq!(happen(&mut key_state, 101, &KeyState::on_timeout), (Some((token, Command::Verify)), true));
    assert_eq!(happen(&mut key_state, 102, &owner(Command::Verify)), (None, true));

    happen(&mut key_state, 103, &|key_state, ctx| key_state.join(waiter(2, another), ctx));
    let (Some((_, yield_command @ Command::Yield { .. })), true) =
        happen(&mut key_state, 104, &|key_state, ctx| {
            assert_eq!(key_state.release(&1, ctx), ReleaseOutcome::HandedOff);
        })
    else {
        panic!("it is not tracked during the yield, or there is none: {key_state:?}")
    };
    let renew = Command::Renew { lease: another.lease() };
    assert_eq!(
        happen(&mut key_state, 105, &owner(yield_command)),
        (Some((token, renew)), true),
        "its renewal does not start tracking"
    );
    assert_eq!(happen(&mut key_state, 106, &owner(renew)), (None, false), "the next hold may end soon");
}
