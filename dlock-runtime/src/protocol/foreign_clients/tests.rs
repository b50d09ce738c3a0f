//! Unit tests of `yield_to_foreign`.

use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{EnqueueMode, Reply};
use crate::protocol::hold::ReleaseOutcome;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::Action;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::scene::{LEASE, TERMS, at, happen, held, waiter};
use crate::retry::RetryPolicy;
use crate::token::Token;

const RULES: ProtocolConfig = ProtocolConfig { yield_to_foreign: true, ..ProtocolConfig::DEFAULT };

/// Lets `event` happen to a lane that shares.
fn sharing<R>(
    key_state: &mut KeyState<u32>,
    ms: u64,
    event: impl FnOnce(&mut KeyState<u32>, &mut EventContext<'_, u32>) -> R,
) -> (R, Vec<Action<u32>>) {
    let mut result = None;
    let actions = happen(key_state, ms, |key_state, ctx| {
        let mut ctx = ctx.under(&RULES);
        result = Some(event(key_state, &mut ctx));
    });
    (result.expect("it has happened"), actions)
}

fn release(key_state: &mut KeyState<u32>, ms: u64, acquisition: u32) -> (ReleaseOutcome, Vec<Action<u32>>) {
    sharing(key_state, ms, |key_state, ctx| key_state.release(&acquisition, ctx))
}

/// A lane whose contender stands in the server's queue since 1 ms, and its token.
fn queued() -> (KeyState<u32>, Token) {
    let mut key_state = KeyState::new();
    sharing(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let KeyPhase::Contending(Contender { token, .. }) = key_state.phase else { panic!("{key_state:?}") };
    let (acquire, enqueue) =
        (Command::Acquire { lease: LEASE }, Command::Enqueue { lease: LEASE, mode: EnqueueMode::Join });
    sharing(&mut key_state, 1, |key_state, ctx| {
        key_state.reply(token, acquire, at(0), Reply::Contended, ctx)
    });
    let queued = Reply::Queued { ttl: Some(LEASE) };
    sharing(&mut key_state, 1, |key_state, ctx| key_state.reply(token, enqueue, at(1), queued, ctx));
    (key_state, token)
}

/// A lane whose contender was granted the lock at 100 ms, from a family that had had it for `streak`.
fn granted(fleet_hold: FleetHold) -> KeyState<u32> {
    let (mut key_state, token) = queued();
    let offer = Grant { lease: RULES.grant_lease, fleet_hold };
    let (_, actions) = sharing(&mut key_state, 100, |key_state, ctx| key_state.on_grant(token, offer, ctx));
    assert!(matches!(actions[0], Action::Grant { .. }), "{actions:?}");
    key_state
}

#[test]
fn a_family_hands_over_for_half_a_second_and_then_frees_the_lock() {
    let (mut young, _) = held(TERMS);
    let (mut old, _) = held(TERMS);

    let (passed, _) = release(&mut young, 400, 1);
    let (freed, _) = release(&mut old, 501, 1);

    assert!(
        matches!(
            passed,
            ReleaseOutcome::Send(_, Command::ReleaseWithFleetHold { fleet_hold: FleetHold(399) })
        ),
        "{passed:?}"
    );
    assert!(matches!(freed, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{freed:?}");
}

#[test]
fn a_streak_goes_with_the_grant() {
    let (young, _) = release(&mut granted(FleetHold(300)), 150, 1);
    let (old, _) = release(&mut granted(FleetHold(300)), 300, 1);

    assert!(
        matches!(
            young,
            ReleaseOutcome::Send(_, Command::ReleaseWithFleetHold { fleet_hold: FleetHold(350) })
        ),
        "{young:?}"
    );
    assert!(matches!(old, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{old:?}");
}

#[test]
fn a_streak_that_nobody_told_of_is_over() {
    let (told_nothing, _) = release(&mut granted(FleetHold::UNKNOWN), 101, 1);

    assert!(
        matches!(told_nothing, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)),
        "{told_nothing:?}"
    );
}

#[test]
fn a_grant_that_was_missed_and_found_by_asking_counts_as_untold() {
    let (mut key_state, token) = queued();
    let again = Command::Enqueue { lease: LEASE, mode: EnqueueMode::Recheck };
    sharing(&mut key_state, 600, |key_state, ctx| key_state.reply(token, again, at(599), Reply::Owner, ctx));

    let (released, _) = release(&mut key_state, 601, 1);

    assert!(matches!(released, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{released:?}");
}

#[test]
fn a_yield_tells_the_streak_and_one_that_was_kept_does_not_end_it() {
    let (mut key_state, token) = held(TERMS);
    sharing(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    let (_, actions) = release(&mut key_state, 301, 1);
    let [Action::Send { command: yields @ Command::Yield { fleet_hold, .. }, .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    sharing(&mut key_state, 302, |key_state, ctx| key_state.reply(token, yields, at(301), Reply::Owner, ctx));

    let (freed, _) = release(&mut key_state, 502, 2);

    assert_eq!(fleet_hold, FleetHold(300));
    assert!(matches!(freed, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{freed:?}");
}

#[test]
fn who_waits_here_stays_away_from_a_lock_that_was_freed() {
    let (mut key_state, _) = held(TERMS);
    sharing(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    let (_, asks) = release(&mut key_state, 1_000, 1);

    assert!(asks.is_empty(), "{asks:?}");
    assert!((at(1_100)..=at(1_300)).contains(&key_state.due()), "{:?}", key_state.due());
    assert!(
        sharing(&mut key_state, 1_099, KeyState::on_invalidation).1.is_empty(),
        "a hint brings nothing forward"
    );
    let ((), back) = sharing(&mut key_state, 1_300, KeyState::tick);
    assert!(matches!(back[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{back:?}");
}

#[test]
fn who_waits_elsewhere_is_told_asks_and_stays_away() {
    let (mut key_state, token) = queued();

    let (known, asks) =
        sharing(&mut key_state, 100, |key_state, ctx| key_state.on_grant(token, Grant::NONE, ctx));
    let [Action::Send { command: confirm, .. }] = asks[..] else { panic!("{asks:?}") };
    let ((), again) = sharing(&mut key_state, 101, |key_state, ctx| {
        key_state.reply(token, confirm, at(100), Reply::NotOwner, ctx)
    });
    let [Action::Send { command: enqueue, .. }] = again[..] else { panic!("{again:?}") };
    let ((), then) = sharing(&mut key_state, 102, |key_state, ctx| {
        key_state.reply(token, enqueue, at(101), Reply::Absent, ctx)
    });

    assert!(known && then.is_empty(), "{then:?}");
    assert!((at(202)..=at(402)).contains(&key_state.due()), "{:?}", key_state.due());
}

#[test]
fn a_try_that_falls_due_meanwhile_is_put_off() {
    let (mut key_state, _) = held(TERMS);
    let limits = RetryLimits {
        retries: 3,
        wait: None,
        backoff: RetryPolicy::exponential(Duration::from_millis(20), Duration::from_millis(20)),
        response_timeout: LEASE,
        try_only: false,
    };
    let retries = QueueEntry { retry_state: RetryState::new(at(990), limits, 2), ..waiter(2, TERMS) };
    sharing(&mut key_state, 990, |key_state, ctx| key_state.join(retries, ctx));

    release(&mut key_state, 1_000, 1);

    assert!(sharing(&mut key_state, 1_099, KeyState::tick).1.is_empty());
    assert_eq!(sharing(&mut key_state, 1_300, KeyState::tick).1.len(), 1);
}

#[test]
fn who_comes_to_a_lock_that_was_freed_stays_away_too_unless_his_time_is_short() {
    let freed = || {
        let (mut key_state, _) = held(TERMS);
        release(&mut key_state, 1_000, 1);
        key_state
    };
    let short = |wait| {
        let limits = RetryLimits {
            retries: 0,
            wait,
            backoff: RetryPolicy::DEFAULT,
            response_timeout: LEASE,
            try_only: false,
        };
        QueueEntry { retry_state: RetryState::new(at(1_001), limits, 2), ..waiter(2, TERMS) }
    };

    let join = |joining| sharing(&mut freed(), 1_001, |key_state, ctx| key_state.join(joining, ctx)).1.len();

    assert_eq!(join(waiter(2, TERMS)), 0);
    assert_eq!(join(short(Some(Duration::from_millis(50)))), 1);
    assert_eq!(join(short(None)), 1);
}

#[test]
fn a_gap_that_no_poll_need_see_does_not_end_a_streak_and_a_long_one_does() {
    let back_after = |ms: u64| {
        let (mut key_state, _) = held(TERMS);
        release(&mut key_state, 400, 1);
        sharing(&mut key_state, 400 + ms, KeyState::tick);
        sharing(&mut key_state, 400 + ms, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
        key_state.phase.fleet_hold(at(400 + ms))
    };

    assert_eq!(back_after(99), FleetHold(399));
    assert_eq!(back_after(100), FleetHold::NEW);
}

#[test]
fn a_lane_that_stays_away_is_forgotten_in_the_end() {
    let (mut key_state, _) = held(TERMS);
    release(&mut key_state, 1_000, 1);
    assert!(!key_state.is_idle());

    sharing(&mut key_state, 1_300, KeyState::tick);

    assert!(key_state.is_idle());
}

#[test]
fn by_default_nothing_is_told_and_nobody_stays_away() {
    let (mut key_state, _) = held(TERMS);

    let mut released = None;
    happen(&mut key_state, 10_000, |key_state, ctx| released = Some(key_state.release(&1, ctx)));

    assert!(matches!(released, Some(ReleaseOutcome::Send(_, Command::Release))), "{released:?}");
    assert!(key_state.is_idle());
}

#[test]
fn a_streak_is_told_in_milliseconds_and_one_that_is_not_known_is_not_told() {
    assert_eq!(FleetHold::NEW.millis(), Some(0));
    assert_eq!(FleetHold::of(Duration::from_micros(399_900)).millis(), Some(399));
    assert_eq!(FleetHold::UNKNOWN.millis(), None);
    assert_eq!(FleetHold::of(Duration::MAX).millis(), None, "too long to be told is not known");
    assert!(FleetHold::UNKNOWN.is_over(), "what is not known counts as long");
}

#[test]
fn a_streak_is_counted_once_however_many_have_another_lease_than_the_one_before() {
    let rules = ProtocolConfig { handoff_budget: std::time::Duration::from_secs(10), ..RULES };
    let (mut key_state, token) = held(TERMS);
    let [shorter, longer] = [10, 40].map(std::time::Duration::from_secs);
    for (acquisition, lease) in [(2, shorter), (3, longer), (4, shorter)] {
        happen(&mut key_state, 1, |key_state, ctx| {
            key_state.join(waiter(acquisition, HoldTerms::of_lease(lease)), ctx)
        });
    }
    let let_go = |key_state: &mut KeyState<u32>, acquisition, ms| {
        happen(key_state, ms, |key_state, ctx| {
            let released = key_state.release(&acquisition, &mut ctx.under(&rules));
            assert_eq!(
                matches!(released, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)),
                ms > 500,
                "{ms}"
            );
        })
    };

    for (acquisition, ms, lease) in [(1, 200, shorter), (2, 400, longer)] {
        let_go(&mut key_state, acquisition, ms);
        let renew = Command::Renew { lease };
        happen(&mut key_state, ms + 10, |key_state, ctx| {
            key_state.reply(token, renew, at(ms), Reply::Owner, &mut ctx.under(&rules));
        });
    }

    let mut later = key_state.clone();
    let_go(&mut key_state, 3, 490);
    let_go(&mut later, 3, 510);
}
