//! Unit tests of `put_off`.

use std::time::Duration;

use super::*;
use crate::protocol::Rules;
use crate::protocol::command::{Command, Reply};
use crate::protocol::lane::Action;
use crate::protocol::patience::{Limits, Patience};
use crate::protocol::queue::Waiter;
use crate::protocol::scene::{LIMITS, RULES, TERMS, at, happen, held, waiter};

fn renewals(actions: &[Action<u32>]) -> usize {
    let is_renewal =
        |action: &&Action<u32>| matches!(action, Action::Send { command: Command::Renew { .. }, .. });
    actions.iter().filter(is_renewal).count()
}

fn checks(actions: &[Action<u32>]) -> usize {
    let is_check = |action: &&Action<u32>| matches!(action, Action::Send { command: Command::Check, .. });
    actions.iter().filter(is_check).count()
}

fn put_off(lane: &mut Lane<u32>, now: u64, until: u64) -> bool {
    lane.put_off(at(now), at(until))
}

#[test]
fn a_renewal_that_is_put_off_is_due_then_and_not_before() {
    let (mut lane, _) = held(TERMS);

    assert!(put_off(&mut lane, 10_001, 10_050));

    assert_eq!(lane.due(), at(10_050));
    assert!(happen(&mut lane, 10_049, Lane::tick).is_empty());
    assert_eq!(renewals(&happen(&mut lane, 10_050, Lane::tick)), 1);
}

#[test]
fn a_renewal_is_not_put_off_once_half_the_lease_has_gone() {
    let (mut lane, _) = held(TERMS);
    let half = u64::try_from((TERMS.lease() / 2).as_millis()).expect("it is short");

    let mut last = 10_001;
    for now in 10_001..30_000 {
        if !put_off(&mut lane, now, now + 1) {
            break;
        }
        last = now + 1;
    }

    assert!(last < half && last > half - 1_000, "{last}");
    assert_eq!(renewals(&happen(&mut lane, last, Lane::tick)), 1);
}

#[test]
fn a_renewal_is_put_off_until_half_a_lease_before_the_deadline_and_no_later() {
    let last = 30_000 - 302 - 15_000;
    for (until, can) in [(last - 1, true), (last, true), (last + 1, false), (20_000, false), (40_000, false)]
    {
        let (mut lane, _) = held(TERMS);
        let before = lane.due();

        assert_eq!(put_off(&mut lane, 10_001, until), can, "{until}");

        assert_eq!(lane.due(), if can { at(until) } else { before }, "{until}");
    }
}

#[test]
fn a_check_that_is_not_due_yet_keeps_its_time_while_a_renewal_is_put_off() {
    let (mut lane, _) = held(TERMS);
    assert_eq!(checks(&happen(&mut lane, 10_001, Lane::touched)), 1);
    assert!(happen(&mut lane, 10_003, Lane::touched).is_empty(), "checks are 10 ms apart");

    assert!(put_off(&mut lane, 10_005, 10_050));

    assert_eq!(lane.due(), at(10_011));
}

#[test]
fn a_hint_that_comes_after_a_renewal_was_put_off_is_followed_at_once() {
    let (mut lane, _) = held(TERMS);

    assert!(put_off(&mut lane, 10_001, 10_050));

    assert_eq!(checks(&happen(&mut lane, 10_002, Lane::touched)), 1);
}

#[test]
fn a_check_is_put_off_as_well() {
    let (mut lane, token) = held(TERMS);
    happen(&mut lane, 10_001, Lane::tick);
    let renewed = Command::Renew { lease: TERMS.lease() };
    happen(&mut lane, 10_002, |lane, cx| lane.reply(token, renewed, at(10_001), Reply::Ours, cx));
    let rules = Rules { tracking: true, ..RULES };
    happen(&mut lane, 10_100, |lane, cx| {
        let mut cx = cx.under(&rules);
        lane.untold(&mut cx);
    });
    assert_eq!(lane.due(), at(10_100));

    assert!(put_off(&mut lane, 10_100, 10_150));

    assert!(happen(&mut lane, 10_149, Lane::tick).is_empty());
    assert_eq!(checks(&happen(&mut lane, 10_150, Lane::tick)), 1);
}

#[test]
fn a_check_is_put_off_though_half_the_lease_has_gone() {
    let (mut lane, _) = held(TERMS.renew(false));
    let rules = Rules { tracking: true, ..RULES };
    happen(&mut lane, 20_000, |lane, cx| {
        let mut cx = cx.under(&rules);
        lane.untold(&mut cx);
    });

    assert!(put_off(&mut lane, 20_000, 20_050));

    assert_eq!(lane.due(), at(20_050));
}

#[test]
fn the_end_of_a_turn_is_not_put_off() {
    let bounded = TERMS.max_hold(Some(Duration::from_secs(10)));
    let expires = TERMS.renew(false);
    for (terms, over) in [(bounded, 10_001), (expires, 30_000)] {
        let (mut lane, _) = held(terms);

        assert!(!put_off(&mut lane, over, over + 50), "{terms:?}");

        let lost = happen(&mut lane, over, Lane::tick);
        assert!(lost.iter().any(|action| matches!(action, Action::Lose { .. })), "{lost:?}");
    }
}

#[test]
fn the_end_of_a_wait_is_not_put_off() {
    let (mut lane, _) = held(TERMS);
    let limits = Limits { wait: Some(Duration::from_secs(5)), ..LIMITS };
    let waits = Waiter { patience: Patience::new(at(0), limits, 2), ..waiter(2, TERMS) };
    happen(&mut lane, 50, |lane, cx| lane.join(waits, cx));

    assert!(!put_off(&mut lane, 5_000, 5_050));

    let refused = happen(&mut lane, 5_000, Lane::tick);
    assert!(matches!(refused[..], [Action::Refuse { seat: 2, .. }]), "{refused:?}");
}
