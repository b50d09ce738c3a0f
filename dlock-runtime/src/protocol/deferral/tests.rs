//! Unit tests of `deferral`.

use std::time::Duration;

use super::*;
use crate::protocol::ProtocolConfig;
use crate::protocol::command::{Command, Reply};
use crate::protocol::key_state::Action;
use crate::protocol::retry_state::{RetryLimits, RetryState};
use crate::protocol::scene::{LIMITS, RULES, TERMS, at, happen, held, waiter};
use crate::protocol::wait_queue::QueueEntry;

fn renewals(actions: &[Action<u32>]) -> usize {
    let is_renewal =
        |action: &&Action<u32>| matches!(action, Action::Send { command: Command::Renew { .. }, .. });
    actions.iter().filter(is_renewal).count()
}

fn verifications(actions: &[Action<u32>]) -> usize {
    let is_verification =
        |action: &&Action<u32>| matches!(action, Action::Send { command: Command::Verify, .. });
    actions.iter().filter(is_verification).count()
}

fn defer(key_state: &mut KeyState<u32>, now: u64, until: u64) -> bool {
    key_state.defer(at(now), at(until))
}

#[test]
fn a_deferred_renewal_is_due_at_its_new_time() {
    let (mut key_state, _) = held(TERMS);

    assert!(defer(&mut key_state, 10_001, 10_050));

    assert_eq!(key_state.next_timeout(), at(10_050));
    assert!(happen(&mut key_state, 10_049, KeyState::on_timeout).is_empty());
    assert_eq!(renewals(&happen(&mut key_state, 10_050, KeyState::on_timeout)), 1);
}

#[test]
fn a_renewal_is_not_deferred_after_half_the_lease() {
    let (mut key_state, _) = held(TERMS);
    let half = u64::try_from((TERMS.lease() / 2).as_millis()).expect("it is short");

    let mut last = 10_001;
    for now in 10_001..30_000 {
        if !defer(&mut key_state, now, now + 1) {
            break;
        }
        last = now + 1;
    }

    assert!(last < half && last > half - 1_000, "{last}");
    assert_eq!(renewals(&happen(&mut key_state, last, KeyState::on_timeout)), 1);
}

#[test]
fn a_renewal_is_deferred_to_half_the_lease_at_most() {
    let last = 30_000 - 302 - 15_000;
    for (until, can) in [(last - 1, true), (last, true), (last + 1, false), (20_000, false), (40_000, false)]
    {
        let (mut key_state, _) = held(TERMS);
        let before = key_state.next_timeout();

        assert_eq!(defer(&mut key_state, 10_001, until), can, "{until}");

        assert_eq!(key_state.next_timeout(), if can { at(until) } else { before }, "{until}");
    }
}

#[test]
fn a_deferred_renewal_keeps_the_time_of_the_verification() {
    let (mut key_state, _) = held(TERMS);
    assert_eq!(verifications(&happen(&mut key_state, 10_001, KeyState::on_invalidation)), 1);
    assert!(
        happen(&mut key_state, 10_003, KeyState::on_invalidation).is_empty(),
        "verifications are 10 ms apart"
    );

    assert!(defer(&mut key_state, 10_005, 10_050));

    assert_eq!(key_state.next_timeout(), at(10_011));
}

#[test]
fn an_invalidation_after_a_deferral_is_verified_at_once() {
    let (mut key_state, _) = held(TERMS);

    assert!(defer(&mut key_state, 10_001, 10_050));

    assert_eq!(verifications(&happen(&mut key_state, 10_002, KeyState::on_invalidation)), 1);
}

#[test]
fn a_verification_is_deferred() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 10_001, KeyState::on_timeout);
    let renewed = Command::Renew { lease: TERMS.lease() };
    happen(&mut key_state, 10_002, |key_state, ctx| {
        key_state.on_reply(token, renewed, at(10_001), Reply::Owner, ctx);
    });
    let rules = ProtocolConfig { tracking: true, ..RULES };
    happen(&mut key_state, 10_100, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.on_invalidations_missed(&mut ctx);
    });
    assert_eq!(key_state.next_timeout(), at(10_100));

    assert!(defer(&mut key_state, 10_100, 10_150));

    assert!(happen(&mut key_state, 10_149, KeyState::on_timeout).is_empty());
    assert_eq!(verifications(&happen(&mut key_state, 10_150, KeyState::on_timeout)), 1);
}

#[test]
fn a_verification_is_deferred_after_half_the_lease() {
    let (mut key_state, _) = held(TERMS.renew(false));
    let rules = ProtocolConfig { tracking: true, ..RULES };
    happen(&mut key_state, 20_000, |key_state, ctx| {
        let mut ctx = ctx.under(&rules);
        key_state.on_invalidations_missed(&mut ctx);
    });

    assert!(defer(&mut key_state, 20_000, 20_050));

    assert_eq!(key_state.next_timeout(), at(20_050));
}

#[test]
fn the_loss_of_a_hold_is_not_deferred() {
    let bounded = TERMS.max_hold(Some(Duration::from_secs(10)));
    let expires = TERMS.renew(false);
    for (terms, end) in [(bounded, 10_001), (expires, 30_000)] {
        let (mut key_state, _) = held(terms);

        assert!(!defer(&mut key_state, end, end + 50), "{terms:?}");

        let lost = happen(&mut key_state, end, KeyState::on_timeout);
        assert!(lost.iter().any(|action| matches!(action, Action::Revoke { .. })), "{lost:?}");
    }
}

#[test]
fn the_timeout_of_a_waiter_is_not_deferred() {
    let (mut key_state, _) = held(TERMS);
    let limits = RetryLimits { wait: Some(Duration::from_secs(5)), ..LIMITS };
    let waits = QueueEntry { retry_state: RetryState::new(at(0), limits, 2), ..waiter(2, TERMS) };
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waits, ctx));

    assert!(!defer(&mut key_state, 5_000, 5_050));

    let refused = happen(&mut key_state, 5_000, KeyState::on_timeout);
    assert!(matches!(refused[..], [Action::Reject { acquisition: 2, .. }]), "{refused:?}");
}
