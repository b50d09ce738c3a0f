//! Unit tests of `hint`.

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

/// A lane whose contender found the lock held and looks what stands there since 1 ms; and the look.
fn looking() -> (KeyState<u32>, Token, Command) {
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let token = |key_state: &KeyState<u32>| -> Token {
        let KeyPhase::Contending(contender) = &key_state.phase else { panic!("{key_state:?}") };
        contender.token
    };
    let first = token(&key_state);
    let acquire = Command::Acquire { lease: TERMS.lease() };
    happen(&mut key_state, 1, |key_state, ctx| key_state.reply(first, acquire, at(0), Reply::Contended, ctx));
    let second = token(&key_state);
    (key_state, second, Command::Enqueue { lease: TERMS.lease(), mode: EnqueueMode::Join })
}

/// The same a moment later: it is held by somebody who queues nobody, and the contender pauses since 1 ms.
fn paused() -> KeyState<u32> {
    let (mut key_state, token, enqueue) = looking();
    happen(&mut key_state, 1, |key_state, ctx| key_state.reply(token, enqueue, at(1), FOREIGN, ctx));
    key_state
}

#[test]
fn a_hint_makes_a_paused_contender_look_at_once() {
    let mut key_state = paused();

    let actions = happen(&mut key_state, 20, KeyState::on_invalidation);

    assert!(matches!(actions[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{actions:?}");
}

#[test]
fn a_hint_that_overtakes_the_answer_to_a_look_is_not_forgotten() {
    let (mut key_state, token, enqueue) = looking();

    assert!(happen(&mut key_state, 2, KeyState::on_invalidation).is_empty());
    assert!(
        happen(&mut key_state, 3, |key_state, ctx| key_state.reply(token, enqueue, at(1), FOREIGN, ctx))
            .is_empty()
    );

    assert_eq!(key_state.due(), at(5));
    assert_eq!(happen(&mut key_state, 5, KeyState::tick).len(), 1);
}

#[test]
fn who_looks_while_a_connection_is_made_anew_looks_once_more() {
    let (mut key_state, token, enqueue) = looking();

    happen(&mut key_state, 2, |key_state, ctx| key_state.on_reconnect(false, ctx));
    happen(&mut key_state, 3, |key_state, ctx| key_state.reply(token, enqueue, at(1), FOREIGN, ctx));

    assert_eq!(key_state.due(), at(5));
}

#[test]
fn who_holds_back_looks_within_the_time_that_he_may() {
    let mut key_state = paused();
    let rules = ProtocolConfig { wakeup_jitter: Duration::from_millis(5), ..RULES };

    let actions = happen(&mut key_state, 20, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.on_invalidation(&mut ctx);
    });

    assert!(actions.is_empty() && key_state.due() > at(20) && key_state.due() <= at(25), "{key_state:?}");
    assert_eq!(happen(&mut key_state, 25, KeyState::tick).len(), 1);
}

#[test]
fn a_hint_that_comes_at_once_after_a_look_waits_for_the_floor() {
    let mut key_state = paused();

    assert!(happen(&mut key_state, 1, KeyState::on_invalidation).is_empty());

    assert_eq!(key_state.due(), at(3));
    assert_eq!(happen(&mut key_state, 3, KeyState::tick).len(), 1);
}

#[test]
fn a_hint_makes_a_holder_ask_and_a_flood_of_hints_does_not_make_a_flood_of_questions() {
    let (mut key_state, _) = held(TERMS);

    let asked: usize =
        (100..200).map(|ms| checks(&happen(&mut key_state, ms, KeyState::on_invalidation))).sum();

    assert_eq!(asked, 10);
    assert_eq!(checks(&happen(&mut key_state, 210, KeyState::tick)), 1, "the last hint is not forgotten");
}

#[test]
fn a_holder_that_is_answered_not_yours_has_lost_and_one_that_is_answered_yours_goes_on() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 100, KeyState::on_invalidation);
    assert!(
        !happen(&mut key_state, 101, |key_state, ctx| key_state.reply(
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
        key_state.reply(token, Command::Verify, at(200), Reply::NotOwner, ctx)
    });

    assert!(matches!(actions[..], [Action::Revoke { cause: LossCause::NotOwner, .. }]), "{actions:?}");
}

#[test]
fn where_changes_are_told_a_hold_is_asked_about_once_it_has_lived_and_after_each_gap() {
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
    let KeyPhase::Contending(contender) = &key_state.phase else { panic!("{key_state:?}") };
    let (token, acquire) = (contender.token, Command::Acquire { lease: TERMS.lease() });
    happen(&mut key_state, 7, &|key_state, ctx| key_state.reply(token, acquire, at(0), Reply::Owner, ctx));

    assert_eq!(key_state.due(), at(100));
    assert_eq!(happen(&mut key_state, 100, &KeyState::tick), 1);
    assert!(key_state.due() > at(5_000), "{:?}", key_state.due());
    for (ms, gap) in [(400, true), (500, false)] {
        let event = |key_state: &mut KeyState<u32>, ctx: &mut EventContext<'_, u32>| {
            if gap { key_state.on_reconnect(false, ctx) } else { key_state.on_invalidations_missed(ctx) }
        };
        assert_eq!(happen(&mut key_state, ms, &event), 0, "it waits for its place");
        assert_eq!(key_state.due(), at(ms));
        assert_eq!(happen(&mut key_state, ms, &KeyState::tick), 1);
    }
}

#[test]
fn where_nobody_told_of_changes_a_young_hold_is_asked_about_at_once_and_none_twice_within_ten_milliseconds() {
    let rules = ProtocolConfig { tracking: true, ..RULES };
    let mut key_state = KeyState::new();
    happen(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let KeyPhase::Contending(contender) = &key_state.phase else { panic!("{key_state:?}") };
    let (token, acquire) = (contender.token, Command::Acquire { lease: TERMS.lease() });
    happen(&mut key_state, 7, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.reply(token, acquire, at(0), Reply::Owner, &mut ctx);
    });

    for (untold, due) in [(50, 50), (55, 60), (90, 90)] {
        assert_eq!(
            checks(&happen(&mut key_state, untold, KeyState::on_invalidations_missed)),
            0,
            "it waits for its place"
        );
        assert_eq!(key_state.due(), at(due));
        assert_eq!(checks(&happen(&mut key_state, due, KeyState::tick)), 1);
    }
}

#[test]
fn a_hold_is_watched_from_its_first_check_on_and_while_it_is_confirmed_for_who_is_next() {
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
    let another = HoldTerms::of_lease(TERMS.lease() / 2);
    let mut key_state = KeyState::new();

    let (Some((token, acquire)), false) =
        happen(&mut key_state, 0, &|key_state, ctx| key_state.join(waiter(1, TERMS), ctx))
    else {
        panic!("it is watched while it is asked for, or nothing is asked: {key_state:?}")
    };
    let ours = |command| {
        move |key_state: &mut KeyState<u32>, ctx: &mut EventContext<'_, u32>| {
            key_state.reply(token, command, ctx.now, Reply::Owner, ctx)
        }
    };
    assert_eq!(happen(&mut key_state, 1, &ours(acquire)), (None, false), "it may be over in a moment");
    assert_eq!(happen(&mut key_state, 101, &KeyState::tick), (Some((token, Command::Verify)), true));
    assert_eq!(happen(&mut key_state, 102, &ours(Command::Verify)), (None, true));

    happen(&mut key_state, 103, &|key_state, ctx| key_state.join(waiter(2, another), ctx));
    let (Some((_, offer @ Command::Yield { .. })), true) = happen(&mut key_state, 104, &|key_state, ctx| {
        assert_eq!(key_state.release(&1, ctx), ReleaseOutcome::HandedOff);
    }) else {
        panic!("it is not watched while it is offered to others, or it is not: {key_state:?}")
    };
    let renew = Command::Renew { lease: another.lease() };
    assert_eq!(
        happen(&mut key_state, 105, &ours(offer)),
        (Some((token, renew)), true),
        "its renewal tells nobody"
    );
    assert_eq!(
        happen(&mut key_state, 106, &ours(renew)),
        (None, false),
        "the next one may be over in a moment"
    );
}
