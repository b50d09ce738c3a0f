use std::time::Duration;

use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{EnqueueMode, Reply};
use crate::protocol::deadline::BootInstant;
use crate::protocol::hold_terms::HoldTerms;
use crate::protocol::key_state::KeyState;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::scene::{LEASE, LIMITS, RULES, TERMS, enqueue, happen, held, queued, waiter};
use crate::protocol::wait_queue::QueueEntry;

/// Returns the timer that is due first.
fn next(key_state: &KeyState<u32>) -> Option<KeyTimer> {
    let mut timers = Vec::new();
    key_state.timers(&mut |timer, at| timers.push((at, timer)));
    timers.retain(|(at, _)| *at != BootInstant::NEVER);
    timers.into_iter().min_by_key(|(at, _)| *at).map(|(_, timer)| timer)
}

/// Returns a key state whose task 1 holds the lock, with other rules from then on.
fn held_under(rules: &ProtocolConfig) -> KeyState<u32> {
    let (mut key_state, _) = held(TERMS);
    happen(&mut key_state, 1, |key_state, ctx| key_state.on_reconnect(false, &mut ctx.under(rules)));
    key_state
}

/// Returns a key state whose head is not queued, because the backend has no queue.
fn polling(limits: RetryLimits) -> KeyState<u32> {
    let head = QueueEntry { retry_state: RetryState::new(BootInstant::START, limits, 1), ..waiter(1, TERMS) };
    let (mut key_state, token) = queued(head);
    let reply = Reply::NotQueued { ttl: None };
    happen(&mut key_state, 3, |key_state, ctx| {
        key_state.on_reply(token, enqueue(EnqueueMode::Recheck), ctx.now, reply, ctx);
    });
    key_state
}

/// Returns a key state whose task 1 has released the lock, which it acquired at 1 ms.
fn released(terms: HoldTerms, rules: &ProtocolConfig) -> KeyState<u32> {
    let (mut key_state, _) = held(terms);
    happen(&mut key_state, 2, |key_state, ctx| {
        key_state.release(&1, &mut ctx.under(rules));
    });
    key_state
}

#[test]
fn each_state_has_its_timer() {
    let ms = Duration::from_millis;
    let tracking = ProtocolConfig { tracking: true, ..RULES };
    let yields = ProtocolConfig { yield_to_foreign: true, ..RULES };
    let waits = |wait: u64| RetryLimits { wait: Some(ms(wait)), ..LIMITS };
    let retries = RetryLimits { retries: 9, ..LIMITS };

    for (key_state, timer) in [
        (KeyState::new(), None),
        (released(TERMS, &RULES), None),
        (held(TERMS).0, Some(KeyTimer::Renewal)),
        (held_under(&tracking), Some(KeyTimer::Verification)),
        (held(TERMS.renew(false)).0, Some(KeyTimer::Expiry)),
        (held(TERMS.max_hold(Some(ms(9)))).0, Some(KeyTimer::MaxHold)),
        (released(TERMS.min_hold(Some(LEASE)), &RULES), Some(KeyTimer::MinHold)),
        (queued(waiter(1, TERMS)).0, Some(KeyTimer::QueueCheck)),
        (polling(waits(10_000)), Some(KeyTimer::Poll)),
        (polling(retries), Some(KeyTimer::Poll)),
        (polling(waits(5)), Some(KeyTimer::WaitTimeout)),
        (released(TERMS, &yields), Some(KeyTimer::Cooldown)),
    ] {
        assert_eq!(next(&key_state), timer, "{key_state:?}");
    }
}

#[test]
fn a_retry_is_due_at_its_own_time() {
    let (mut key_state, _) = held(TERMS);
    let limits = RetryLimits { retries: 9, ..LIMITS };
    let retry_state = RetryState::new(BootInstant::START, limits, 2);
    let terms = TERMS.renew(false);
    happen(&mut key_state, 2, |key_state, ctx| {
        key_state.join(QueueEntry { acquisition: 2, terms, retry_state }, ctx);
    });

    assert_eq!(next(&key_state), Some(KeyTimer::Retry), "{key_state:?}");
}

#[test]
fn only_renewals_and_verifications_are_deferred() {
    let (mut key_state, _) = held(TERMS.max_hold(Some(LEASE / 3 * 2)));
    let due = key_state.next_timeout();
    assert_eq!(next(&key_state), Some(KeyTimer::Renewal));

    assert!(key_state.defer(due, due.plus(Duration::from_millis(9))));
    assert!(
        !key_state.defer(BootInstant::from_nanos(20_001_000_000), BootInstant::LAST),
        "`max_hold` is over"
    );
}
