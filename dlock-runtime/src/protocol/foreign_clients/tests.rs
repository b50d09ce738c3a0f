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

/// Applies `event` to a key state that yields to foreign clients.
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

/// Returns a key state whose contender is queued since 1 ms, and its token.
fn queued() -> (KeyState<u32>, Token) {
    let mut key_state = KeyState::new();
    sharing(&mut key_state, 0, |key_state, ctx| key_state.join(waiter(1, TERMS), ctx));
    let Some(&Contender { token, .. }) = key_state.contender() else { panic!("{key_state:?}") };
    let (acquire, enqueue) =
        (Command::Acquire { lease: LEASE }, Command::Enqueue { lease: LEASE, mode: EnqueueMode::Join });
    sharing(&mut key_state, 1, |key_state, ctx| {
        key_state.on_reply(token, acquire, at(0), Reply::Contended, ctx);
    });
    let queued = Reply::Queued { ttl: Some(LEASE) };
    sharing(&mut key_state, 1, |key_state, ctx| key_state.on_reply(token, enqueue, at(1), queued, ctx));
    (key_state, token)
}

/// Returns a key state whose contender was granted the lock at 100 ms, by a fleet that had held it
/// for `fleet_hold`.
fn granted(fleet_hold: FleetHold) -> KeyState<u32> {
    let (mut key_state, token) = queued();
    let grant = Grant { lease: RULES.grant_lease, fleet_hold };
    let (_, actions) = sharing(&mut key_state, 100, |key_state, ctx| key_state.on_grant(token, grant, ctx));
    assert!(matches!(actions[0], Action::Grant { .. }), "{actions:?}");
    key_state
}

#[test]
fn fleet_frees_the_lock_after_half_a_second() {
    let (mut young, _) = held(TERMS);
    let (mut old, _) = held(TERMS);

    let (passed, _) = release(&mut young, 400, 1);
    let (freed, _) = release(&mut old, 501, 1);

    assert!(
        matches!(passed, ReleaseOutcome::Send(_, Command::Release { fleet_hold: FleetHold(399) })),
        "{passed:?}"
    );
    assert!(matches!(freed, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{freed:?}");
}

#[test]
fn grant_carries_the_fleet_hold() {
    let (young, _) = release(&mut granted(FleetHold(300)), 150, 1);
    let (old, _) = release(&mut granted(FleetHold(300)), 300, 1);

    assert!(
        matches!(young, ReleaseOutcome::Send(_, Command::Release { fleet_hold: FleetHold(350) })),
        "{young:?}"
    );
    assert!(matches!(old, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{old:?}");
}

#[test]
fn unknown_fleet_hold_is_over() {
    let (told_nothing, _) = release(&mut granted(FleetHold::UNKNOWN), 101, 1);

    assert!(
        matches!(told_nothing, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)),
        "{told_nothing:?}"
    );
}

#[test]
fn grant_found_by_a_recheck_has_an_unknown_fleet_hold() {
    let (mut key_state, token) = queued();
    let again = Command::Enqueue { lease: LEASE, mode: EnqueueMode::Recheck };
    sharing(&mut key_state, 600, |key_state, ctx| {
        key_state.on_reply(token, again, at(599), Reply::Owner, ctx);
    });

    let (released, _) = release(&mut key_state, 601, 1);

    assert!(matches!(released, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{released:?}");
}

#[test]
fn yield_carries_the_fleet_hold_and_does_not_end_it() {
    let (mut key_state, token) = held(TERMS);
    sharing(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    let (_, actions) = release(&mut key_state, 301, 1);
    let [Action::Send { command: yields @ Command::Yield { fleet_hold, .. }, .. }] = actions[..] else {
        panic!("{actions:?}")
    };
    sharing(&mut key_state, 302, |key_state, ctx| {
        key_state.on_reply(token, yields, at(301), Reply::Owner, ctx);
    });

    let (freed, _) = release(&mut key_state, 502, 2);

    assert_eq!(fleet_hold, FleetHold(300));
    assert!(matches!(freed, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)), "{freed:?}");
}

#[test]
fn local_waiters_cool_down_after_the_lock_is_freed() {
    let (mut key_state, _) = held(TERMS);
    sharing(&mut key_state, 2, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));

    let (_, sent) = release(&mut key_state, 1_000, 1);

    assert!(sent.is_empty(), "{sent:?}");
    assert!((at(1_100)..=at(1_300)).contains(&key_state.next_timeout()), "{:?}", key_state.next_timeout());
    assert!(
        sharing(&mut key_state, 1_099, KeyState::on_invalidation).1.is_empty(),
        "an invalidation does not end the cooldown"
    );
    let ((), back) = sharing(&mut key_state, 1_300, KeyState::on_timeout);
    assert!(matches!(back[..], [Action::Send { command: Command::Acquire { .. }, .. }]), "{back:?}");
}

#[test]
fn remote_waiter_rechecks_and_cools_down() {
    let (mut key_state, token) = queued();

    let (known, sent) =
        sharing(&mut key_state, 100, |key_state, ctx| key_state.on_grant(token, Grant::NONE, ctx));
    let [Action::Send { command: confirm, .. }] = sent[..] else { panic!("{sent:?}") };
    let ((), again) = sharing(&mut key_state, 101, |key_state, ctx| {
        key_state.on_reply(token, confirm, at(100), Reply::NotOwner, ctx);
    });
    let [Action::Send { command: enqueue, .. }] = again[..] else { panic!("{again:?}") };
    let ((), then) = sharing(&mut key_state, 102, |key_state, ctx| {
        key_state.on_reply(token, enqueue, at(101), Reply::Absent, ctx);
    });

    assert!(known && then.is_empty(), "{then:?}");
    assert!((at(202)..=at(402)).contains(&key_state.next_timeout()), "{:?}", key_state.next_timeout());
}

#[test]
fn try_due_in_a_cooldown_is_deferred() {
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

    assert!(sharing(&mut key_state, 1_099, KeyState::on_timeout).1.is_empty());
    assert_eq!(sharing(&mut key_state, 1_300, KeyState::on_timeout).1.len(), 1);
}

#[test]
fn new_task_joins_the_cooldown_unless_its_wait_is_short() {
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
fn only_a_gap_that_polls_notice_ends_a_fleet_hold() {
    let back_after = |ms: u64| {
        let (mut key_state, _) = held(TERMS);
        release(&mut key_state, 400, 1);
        sharing(&mut key_state, 400 + ms, KeyState::on_timeout);
        sharing(&mut key_state, 400 + ms, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
        key_state.contender().map(|contender| contender.fleet_hold)
    };

    assert_eq!(back_after(99), Some(FleetHold(399)));
    assert_eq!(back_after(100), Some(FleetHold::NEW));
}

#[test]
fn key_state_is_idle_after_its_cooldown() {
    let (mut key_state, _) = held(TERMS);
    release(&mut key_state, 1_000, 1);
    assert!(!key_state.is_idle());

    sharing(&mut key_state, 1_300, KeyState::on_timeout);

    assert!(key_state.is_idle());
}

#[test]
fn without_the_option_there_is_no_cooldown() {
    let (mut key_state, _) = held(TERMS);

    let mut released = None;
    happen(&mut key_state, 10_000, |key_state, ctx| released = Some(key_state.release(&1, ctx)));

    assert!(matches!(released, Some(ReleaseOutcome::Send(_, Command::RELEASE))), "{released:?}");
    assert!(key_state.is_idle());
}

#[test]
fn fleet_hold_is_announced_in_milliseconds_if_known() {
    assert_eq!(FleetHold::NEW.millis(), Some(0));
    assert_eq!(FleetHold::of(Duration::from_micros(399_900)).millis(), Some(399));
    assert_eq!(FleetHold::UNKNOWN.millis(), None);
    assert_eq!(FleetHold::of(Duration::MAX).millis(), None, "a duration out of range is unknown");
    assert!(FleetHold::UNKNOWN.is_over(), "an unknown duration counts as long");
}

#[test]
fn fleet_hold_counts_once_across_different_leases() {
    let rules = ProtocolConfig { handoff_budget: std::time::Duration::from_secs(10), ..RULES };
    let (mut key_state, token) = held(TERMS);
    let [long, longer] = [40, 50].map(std::time::Duration::from_secs);
    for (acquisition, lease) in [(2, long), (3, longer), (4, longer)] {
        happen(&mut key_state, 1, |key_state, ctx| {
            key_state.join(waiter(acquisition, HoldTerms::of_lease(lease)), ctx);
        });
    }
    let release_at = |key_state: &mut KeyState<u32>, acquisition, ms| {
        happen(key_state, ms, |key_state, ctx| {
            let released = key_state.release(&acquisition, &mut ctx.under(&rules));
            assert_eq!(
                matches!(released, ReleaseOutcome::Send(_, Command::ReleaseWithoutHandoff)),
                ms > 500,
                "{ms}"
            );
        })
    };

    for (acquisition, ms, lease) in [(1, 200, long), (2, 400, longer)] {
        release_at(&mut key_state, acquisition, ms);
        let renew = Command::Renew { lease };
        happen(&mut key_state, ms + 10, |key_state, ctx| {
            key_state.on_reply(token, renew, at(ms), Reply::Owner, &mut ctx.under(&rules));
        });
    }

    let mut later = key_state.clone();
    release_at(&mut key_state, 3, 490);
    release_at(&mut later, 3, 510);
}
