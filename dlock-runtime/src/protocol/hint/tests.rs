//! Unit tests of `hint`.

use super::*;
use crate::error::LossCause;
use crate::protocol::Rules;
use crate::protocol::command::{Enqueue, Reply};
use crate::protocol::hold::Released;
use crate::protocol::lane::Action;
use crate::protocol::scene::{RULES, TERMS, at, happen, held, waiter};
use crate::protocol::terms::Terms;
use crate::token::{Token, TokenSource};

const FOREIGN: Reply = Reply::NotQueued { ttl: Some(TERMS.lease()) };

fn checks(actions: &[Action<u32>]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Send { command: Command::Check, .. })).count()
}

/// A lane whose contender found the lock held and looks what stands there since 1 ms; and the look.
fn looking() -> (Lane<u32>, Token, Command) {
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));
    let token = |lane: &Lane<u32>| -> Token {
        let Stage::Asking(asking) = &lane.stage else { panic!("{lane:?}") };
        asking.token
    };
    let first = token(&lane);
    let acquire = Command::Acquire { lease: TERMS.lease() };
    happen(&mut lane, 1, |lane, cx| lane.reply(first, acquire, at(0), Reply::Taken, cx));
    let second = token(&lane);
    (lane, second, Command::Enqueue { lease: TERMS.lease(), mode: Enqueue::First })
}

/// The same a moment later: it is held by somebody who queues nobody, and the contender pauses since 1 ms.
fn paused() -> Lane<u32> {
    let (mut lane, token, enqueue) = looking();
    happen(&mut lane, 1, |lane, cx| lane.reply(token, enqueue, at(1), FOREIGN, cx));
    lane
}

#[test]
fn a_hint_makes_a_paused_contender_look_at_once() {
    let mut lane = paused();

    let actions = happen(&mut lane, 20, Lane::touched);

    assert!(matches!(actions[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{actions:?}");
}

#[test]
fn a_hint_that_overtakes_the_answer_to_a_look_is_not_forgotten() {
    let (mut lane, token, enqueue) = looking();

    assert!(happen(&mut lane, 2, Lane::touched).is_empty());
    assert!(happen(&mut lane, 3, |lane, cx| lane.reply(token, enqueue, at(1), FOREIGN, cx)).is_empty());

    assert_eq!(lane.due(), at(5));
    assert_eq!(happen(&mut lane, 5, Lane::tick).len(), 1);
}

#[test]
fn who_looks_while_a_connection_is_made_anew_looks_once_more() {
    let (mut lane, token, enqueue) = looking();

    happen(&mut lane, 2, |lane, cx| lane.reconnected(false, cx));
    happen(&mut lane, 3, |lane, cx| lane.reply(token, enqueue, at(1), FOREIGN, cx));

    assert_eq!(lane.due(), at(5));
}

#[test]
fn who_holds_back_looks_within_the_time_that_he_may() {
    let mut lane = paused();
    let rules = Rules { hold_back: Duration::from_millis(5), ..RULES };

    let actions = happen(&mut lane, 20, |lane, cx| {
        let mut cx = cx.under(&rules);
        lane.touched(&mut cx);
    });

    assert!(actions.is_empty() && lane.due() > at(20) && lane.due() <= at(25), "{lane:?}");
    assert_eq!(happen(&mut lane, 25, Lane::tick).len(), 1);
}

#[test]
fn a_hint_that_comes_at_once_after_a_look_waits_for_the_floor() {
    let mut lane = paused();

    assert!(happen(&mut lane, 1, Lane::touched).is_empty());

    assert_eq!(lane.due(), at(3));
    assert_eq!(happen(&mut lane, 3, Lane::tick).len(), 1);
}

#[test]
fn a_hint_makes_a_holder_ask_and_a_flood_of_hints_does_not_make_a_flood_of_questions() {
    let (mut lane, _) = held(TERMS);

    let asked: usize = (100..200).map(|ms| checks(&happen(&mut lane, ms, Lane::touched))).sum();

    assert_eq!(asked, 10);
    assert_eq!(checks(&happen(&mut lane, 210, Lane::tick)), 1, "the last hint is not forgotten");
}

#[test]
fn a_holder_that_is_answered_not_yours_has_lost_and_one_that_is_answered_yours_goes_on() {
    let (mut lane, token) = held(TERMS);
    happen(&mut lane, 100, Lane::touched);
    assert!(
        !happen(&mut lane, 101, |lane, cx| lane.reply(token, Command::Check, at(100), Reply::Ours, cx))
            .iter()
            .any(|action| matches!(action, Action::Lose { .. }))
    );

    happen(&mut lane, 200, Lane::touched);
    let actions =
        happen(&mut lane, 201, |lane, cx| lane.reply(token, Command::Check, at(200), Reply::NotOwner, cx));

    assert!(matches!(actions[..], [Action::Lose { cause: LossCause::NotOwner, .. }]), "{actions:?}");
}

#[test]
fn where_changes_are_told_a_hold_is_asked_about_once_it_has_lived_and_after_each_gap() {
    let (tokens, rules) = (TokenSource::of_process(1), Rules { tracking: true, ..RULES });
    let happen = |lane: &mut Lane<u32>, ms, event: &dyn Fn(&mut Lane<u32>, &mut Cx<'_, u32>)| {
        let mut actions = Vec::new();
        event(
            lane,
            &mut Cx {
                now: at(ms),
                rules: &rules,
                tokens: &tokens,
                actions: &mut actions,
                contended: &mut false,
            },
        );
        checks(&actions)
    };
    let mut lane = Lane::new();
    happen(&mut lane, 0, &|lane, cx| lane.join(waiter(1, TERMS), cx));
    let Stage::Asking(asking) = &lane.stage else { panic!("{lane:?}") };
    let (token, acquire) = (asking.token, Command::Acquire { lease: TERMS.lease() });
    happen(&mut lane, 7, &|lane, cx| lane.reply(token, acquire, at(0), Reply::Ours, cx));

    assert_eq!(lane.due(), at(100));
    assert_eq!(happen(&mut lane, 100, &Lane::tick), 1);
    assert!(lane.due() > at(5_000), "{:?}", lane.due());
    for (ms, gap) in [(400, true), (500, false)] {
        let event = |lane: &mut Lane<u32>, cx: &mut Cx<'_, u32>| {
            if gap { lane.reconnected(false, cx) } else { lane.untold(cx) }
        };
        assert_eq!(happen(&mut lane, ms, &event), 0, "it waits for its place");
        assert_eq!(lane.due(), at(ms));
        assert_eq!(happen(&mut lane, ms, &Lane::tick), 1);
    }
}

#[test]
fn where_nobody_told_of_changes_a_young_hold_is_asked_about_at_once_and_none_twice_within_ten_milliseconds() {
    let rules = Rules { tracking: true, ..RULES };
    let mut lane = Lane::new();
    happen(&mut lane, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));
    let Stage::Asking(asking) = &lane.stage else { panic!("{lane:?}") };
    let (token, acquire) = (asking.token, Command::Acquire { lease: TERMS.lease() });
    happen(&mut lane, 7, |lane, cx| {
        let mut cx = cx.under(&rules);
        lane.reply(token, acquire, at(0), Reply::Ours, &mut cx);
    });

    for (untold, due) in [(50, 50), (55, 60), (90, 90)] {
        assert_eq!(checks(&happen(&mut lane, untold, Lane::untold)), 0, "it waits for its place");
        assert_eq!(lane.due(), at(due));
        assert_eq!(checks(&happen(&mut lane, due, Lane::tick)), 1);
    }
}

#[test]
fn a_hold_is_watched_from_its_first_check_on_and_while_it_is_confirmed_for_who_is_next() {
    let (tokens, rules) = (TokenSource::of_process(1), Rules { tracking: true, ..Rules::DEFAULT });
    let happen = |lane: &mut Lane<u32>, ms, event: &dyn Fn(&mut Lane<u32>, &mut Cx<'_, u32>)| {
        let (mut actions, contended) = (Vec::new(), &mut false);
        event(
            lane,
            &mut Cx { now: at(ms), rules: &rules, tokens: &tokens, actions: &mut actions, contended },
        );
        let sent = actions.into_iter().find_map(|action| match action {
            Action::Send { token, command } => Some((token, command)),
            _ => None,
        });
        (sent, lane.is_watched())
    };
    let another = Terms::of_lease(TERMS.lease() / 2);
    let mut lane = Lane::new();

    let (Some((token, acquire)), false) = happen(&mut lane, 0, &|lane, cx| lane.join(waiter(1, TERMS), cx))
    else {
        panic!("it is watched while it is asked for, or nothing is asked: {lane:?}")
    };
    let ours = |command| {
        move |lane: &mut Lane<u32>, cx: &mut Cx<'_, u32>| lane.reply(token, command, cx.now, Reply::Ours, cx)
    };
    assert_eq!(happen(&mut lane, 1, &ours(acquire)), (None, false), "it may be over in a moment");
    assert_eq!(happen(&mut lane, 101, &Lane::tick), (Some((token, Command::Check)), true));
    assert_eq!(happen(&mut lane, 102, &ours(Command::Check)), (None, true));

    happen(&mut lane, 103, &|lane, cx| lane.join(waiter(2, another), cx));
    let (Some((_, offer @ Command::Yield { .. })), true) = happen(&mut lane, 104, &|lane, cx| {
        assert_eq!(lane.release(&1, cx), Released::Kept);
    }) else {
        panic!("it is not watched while it is offered to others, or it is not: {lane:?}")
    };
    let renew = Command::Renew { lease: another.lease() };
    assert_eq!(
        happen(&mut lane, 105, &ours(offer)),
        (Some((token, renew)), true),
        "its renewal tells nobody"
    );
    assert_eq!(happen(&mut lane, 106, &ours(renew)), (None, false), "the next one may be over in a moment");
}
