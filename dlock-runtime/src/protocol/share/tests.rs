//! Unit tests of `yield_to_foreign`.

use super::*;
use crate::protocol::Rules;
use crate::protocol::command::{Enqueue, Reply};
use crate::protocol::hold::Released;
use crate::protocol::lane::Action;
use crate::protocol::patience::{Limits, Patience};
use crate::protocol::scene::{LEASE, TERMS, at, happen, held, waiter};
use crate::protocol::terms::Terms;
use crate::retry::RetryPolicy;
use crate::token::Token;

const RULES: Rules = Rules { yield_to_foreign: true, ..Rules::DEFAULT };

/// Lets `event` happen to a lane that shares.
fn sharing<R>(
    lane: &mut Lane<u32>,
    ms: u64,
    event: impl FnOnce(&mut Lane<u32>, &mut Cx<'_, u32>) -> R,
) -> (R, Vec<Action<u32>>) {
    let mut result = None;
    let actions = happen(lane, ms, |lane, cx| {
        let mut cx = cx.under(&RULES);
        result = Some(event(lane, &mut cx));
    });
    (result.expect("it has happened"), actions)
}

fn release(lane: &mut Lane<u32>, ms: u64, seat: u32) -> (Released, Vec<Action<u32>>) {
    sharing(lane, ms, |lane, cx| lane.release(&seat, cx))
}

/// A lane whose contender stands in the server's queue since 1 ms, and its token.
fn queued() -> (Lane<u32>, Token) {
    let mut lane = Lane::new();
    sharing(&mut lane, 0, |lane, cx| lane.join(waiter(1, TERMS), cx));
    let Stage::Asking(Asking { token, .. }) = lane.stage else { panic!("{lane:?}") };
    let (acquire, enqueue) =
        (Command::Acquire { lease: LEASE }, Command::Enqueue { lease: LEASE, mode: Enqueue::First });
    sharing(&mut lane, 1, |lane, cx| lane.reply(token, acquire, at(0), Reply::Taken, cx));
    let queued = Reply::Queued { ttl: Some(LEASE) };
    sharing(&mut lane, 1, |lane, cx| lane.reply(token, enqueue, at(1), queued, cx));
    (lane, token)
}

/// A lane whose contender was granted the lock at 100 ms, from a family that had had it for `streak`.
fn granted(streak: Streak) -> Lane<u32> {
    let (mut lane, token) = queued();
    let offer = Offer { lease: RULES.grant_lease, streak };
    let (_, actions) = sharing(&mut lane, 100, |lane, cx| lane.granted(token, offer, cx));
    assert!(matches!(actions[0], Action::Admit { .. }), "{actions:?}");
    lane
}

#[test]
fn a_family_hands_over_for_half_a_second_and_then_frees_the_lock() {
    let (mut young, _) = held(TERMS);
    let (mut old, _) = held(TERMS);

    let (passed, _) = release(&mut young, 400, 1);
    let (freed, _) = release(&mut old, 501, 1);

    assert!(matches!(passed, Released::ToServer(_, Command::PassOn { streak: Streak(399) })), "{passed:?}");
    assert!(matches!(freed, Released::ToServer(_, Command::Free)), "{freed:?}");
}

#[test]
fn a_streak_goes_with_the_grant() {
    let (young, _) = release(&mut granted(Streak(300)), 150, 1);
    let (old, _) = release(&mut granted(Streak(300)), 300, 1);

    assert!(matches!(young, Released::ToServer(_, Command::PassOn { streak: Streak(350) })), "{young:?}");
    assert!(matches!(old, Released::ToServer(_, Command::Free)), "{old:?}");
}

#[test]
fn a_streak_that_nobody_told_of_is_over() {
    let (told_nothing, _) = release(&mut granted(Streak::UNKNOWN), 101, 1);

    assert!(matches!(told_nothing, Released::ToServer(_, Command::Free)), "{told_nothing:?}");
}

#[test]
fn a_grant_that_was_missed_and_found_by_asking_counts_as_untold() {
    let (mut lane, token) = queued();
    let again = Command::Enqueue { lease: LEASE, mode: Enqueue::Again };
    sharing(&mut lane, 600, |lane, cx| lane.reply(token, again, at(599), Reply::Ours, cx));

    let (released, _) = release(&mut lane, 601, 1);

    assert!(matches!(released, Released::ToServer(_, Command::Free)), "{released:?}");
}

#[test]
fn a_yield_tells_the_streak_and_one_that_was_kept_does_not_end_it() {
    let (mut lane, token) = held(TERMS);
    sharing(&mut lane, 2, |lane, cx| lane.join(waiter(2, TERMS), cx));
    let (_, actions) = release(&mut lane, 301, 1);
    let [Action::Send { command: yields @ Command::Yield { streak, .. }, .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    sharing(&mut lane, 302, |lane, cx| lane.reply(token, yields, at(301), Reply::Ours, cx));

    let (freed, _) = release(&mut lane, 502, 2);

    assert_eq!(streak, Streak(300));
    assert!(matches!(freed, Released::ToServer(_, Command::Free)), "{freed:?}");
}

#[test]
fn who_waits_here_stays_away_from_a_lock_that_was_freed() {
    let (mut lane, _) = held(TERMS);
    sharing(&mut lane, 2, |lane, cx| lane.join(waiter(2, TERMS), cx));

    let (_, asks) = release(&mut lane, 1_000, 1);

    assert!(asks.is_empty(), "{asks:?}");
    assert!((at(1_100)..=at(1_300)).contains(&lane.due()), "{:?}", lane.due());
    assert!(sharing(&mut lane, 1_099, Lane::touched).1.is_empty(), "a hint brings nothing forward");
    let ((), back) = sharing(&mut lane, 1_300, Lane::tick);
    assert!(matches!(back[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{back:?}");
}

#[test]
fn who_waits_elsewhere_is_told_asks_and_stays_away() {
    let (mut lane, token) = queued();

    let (known, asks) = sharing(&mut lane, 100, |lane, cx| lane.granted(token, Offer::NONE, cx));
    let [Action::Send { command: confirm, .. }] = asks[..] else { panic!("{asks:?}") };
    let ((), again) =
        sharing(&mut lane, 101, |lane, cx| lane.reply(token, confirm, at(100), Reply::NotOwner, cx));
    let [Action::Send { command: enqueue, .. }] = again[..] else { panic!("{again:?}") };
    let ((), then) = sharing(&mut lane, 102, |lane, cx| lane.reply(token, enqueue, at(101), Reply::Gone, cx));

    assert!(known && then.is_empty(), "{then:?}");
    assert!((at(202)..=at(402)).contains(&lane.due()), "{:?}", lane.due());
}

#[test]
fn a_try_that_falls_due_meanwhile_is_put_off() {
    let (mut lane, _) = held(TERMS);
    let limits = Limits {
        retries: 3,
        wait: None,
        backoff: RetryPolicy::exponential(Duration::from_millis(20), Duration::from_millis(20)),
        response_timeout: LEASE,
        only_whether: false,
    };
    let retries = Waiter { patience: Patience::new(at(990), limits, 2), ..waiter(2, TERMS) };
    sharing(&mut lane, 990, |lane, cx| lane.join(retries, cx));

    release(&mut lane, 1_000, 1);

    assert!(sharing(&mut lane, 1_099, Lane::tick).1.is_empty());
    assert_eq!(sharing(&mut lane, 1_300, Lane::tick).1.len(), 1);
}

#[test]
fn who_comes_to_a_lock_that_was_freed_stays_away_too_unless_his_time_is_short() {
    let freed = || {
        let (mut lane, _) = held(TERMS);
        release(&mut lane, 1_000, 1);
        lane
    };
    let short = |wait| {
        let limits = Limits {
            retries: 0,
            wait,
            backoff: RetryPolicy::DEFAULT,
            response_timeout: LEASE,
            only_whether: false,
        };
        Waiter { patience: Patience::new(at(1_001), limits, 2), ..waiter(2, TERMS) }
    };

    let join = |joining| sharing(&mut freed(), 1_001, |lane, cx| lane.join(joining, cx)).1.len();

    assert_eq!(join(waiter(2, TERMS)), 0);
    assert_eq!(join(short(Some(Duration::from_millis(50)))), 1);
    assert_eq!(join(short(None)), 1);
}

#[test]
fn a_gap_that_no_poll_need_see_does_not_end_a_streak_and_a_long_one_does() {
    let back_after = |ms: u64| {
        let (mut lane, _) = held(TERMS);
        release(&mut lane, 400, 1);
        sharing(&mut lane, 400 + ms, Lane::tick);
        sharing(&mut lane, 400 + ms, |lane, cx| lane.join(waiter(2, TERMS), cx));
        lane.stage.streak(at(400 + ms))
    };

    assert_eq!(back_after(99), Streak(399));
    assert_eq!(back_after(100), Streak::NEW);
}

#[test]
fn a_lane_that_stays_away_is_forgotten_in_the_end() {
    let (mut lane, _) = held(TERMS);
    release(&mut lane, 1_000, 1);
    assert!(!lane.is_idle());

    sharing(&mut lane, 1_300, Lane::tick);

    assert!(lane.is_idle());
}

#[test]
fn by_default_nothing_is_told_and_nobody_stays_away() {
    let (mut lane, _) = held(TERMS);

    let mut released = None;
    happen(&mut lane, 10_000, |lane, cx| released = Some(lane.release(&1, cx)));

    assert!(matches!(released, Some(Released::ToServer(_, Command::Release))), "{released:?}");
    assert!(lane.is_idle());
}

#[test]
fn a_streak_is_told_in_milliseconds_and_one_that_is_not_known_is_not_told() {
    assert_eq!(Streak::NEW.millis(), Some(0));
    assert_eq!(Streak::of(Duration::from_micros(399_900)).millis(), Some(399));
    assert_eq!(Streak::UNKNOWN.millis(), None);
    assert_eq!(Streak::of(Duration::MAX).millis(), None, "too long to be told is not known");
    assert!(Streak::UNKNOWN.is_over(), "what is not known counts as long");
}

#[test]
fn a_streak_is_counted_once_however_many_have_another_lease_than_the_one_before() {
    let rules = Rules { handoff_budget: std::time::Duration::from_secs(10), ..RULES };
    let (mut lane, token) = held(TERMS);
    let [shorter, longer] = [10, 40].map(std::time::Duration::from_secs);
    for (seat, lease) in [(2, shorter), (3, longer), (4, shorter)] {
        happen(&mut lane, 1, |lane, cx| lane.join(waiter(seat, Terms::of_lease(lease)), cx));
    }
    let let_go = |lane: &mut Lane<u32>, seat, ms| {
        happen(lane, ms, |lane, cx| {
            let released = lane.release(&seat, &mut cx.under(&rules));
            assert_eq!(matches!(released, Released::ToServer(_, Command::Free)), ms > 500, "{ms}");
        })
    };

    for (seat, ms, lease) in [(1, 200, shorter), (2, 400, longer)] {
        let_go(&mut lane, seat, ms);
        let renew = Command::Renew { lease };
        happen(&mut lane, ms + 10, |lane, cx| {
            lane.reply(token, renew, at(ms), Reply::Ours, &mut cx.under(&rules));
        });
    }

    let mut later = lane.clone();
    let_go(&mut lane, 3, 490);
    let_go(&mut later, 3, 510);
}
