//! Unit tests of `nesting`.

use std::time::Duration;

use super::*;
use crate::protocol::Rules;
use crate::protocol::command::{Command, Reply};
use crate::protocol::patience::Limits;
use crate::protocol::scene::{LIMITS, RULES, TERMS, at, happen, held, waiter};
use crate::token::Token;

/// A call on `depth` wants the key at `ms`; the hold is that of seat 1.
fn join(lane: &mut Lane<u32>, ms: u64, depth: usize, seat: u32, wait: Option<Duration>) -> Vec<Action<u32>> {
    let patience = Patience::new(at(ms), Limits { wait, ..LIMITS }, seat);
    happen(lane, ms, |lane, cx| lane.join_nested(&1, depth, seat, patience, cx))
}

/// A hold with a call inside it, 2, whose sibling 3 waits for 100 ms and sibling 4 for as long as it may.
fn siblings() -> (Lane<u32>, Token) {
    let (mut lane, token) = held(TERMS);
    assert!(matches!(join(&mut lane, 10, 0, 2, None)[..], [Action::Join { seat: 2 }]));
    assert!(join(&mut lane, 10, 0, 3, Some(Duration::from_millis(100))).is_empty());
    assert!(join(&mut lane, 10, 0, 4, None).is_empty());
    (lane, token)
}

#[test]
fn siblings_go_on_one_after_the_other_and_a_call_inside_one_at_once() {
    let (mut lane, _) = siblings();

    assert!(matches!(join(&mut lane, 20, 1, 5, None)[..], [Action::Join { seat: 5 }]));
    let mut ends = |seat| happen(&mut lane, 30, |lane, cx| assert!(lane.leave(&seat, cx)));

    assert!(ends(5).is_empty());
    assert!(matches!(ends(2)[..], [Action::Join { seat: 3 }]));
    assert!(matches!(ends(3)[..], [Action::Join { seat: 4 }]));
    assert!(ends(4).is_empty());
}

#[test]
fn who_does_not_want_to_wait_for_its_sibling_any_more_is_not_let_in() {
    let (mut lane, _) = siblings();

    assert!(happen(&mut lane, 20, |lane, cx| assert!(lane.leave(&3, cx))).is_empty());
    let next = happen(&mut lane, 30, |lane, cx| assert!(lane.leave(&2, cx)));

    assert!(matches!(next[..], [Action::Join { seat: 4 }]), "{next:?}");
    assert!(happen(&mut lane, 40, |lane, cx| assert!(!lane.leave(&3, cx), "it is gone")).is_empty());
}

#[test]
fn a_sibling_waits_for_its_wait_or_a_lease() {
    let (mut lane, token) = siblings();
    let mut refused = |ms| {
        let actions = happen(&mut lane, ms, |lane, cx| {
            let renew = Command::Renew { lease: TERMS.lease() };
            lane.reply(token, renew, at(ms), Reply::Ours, cx); // the hold goes on
            lane.tick(cx);
        });
        let refused = actions.into_iter().filter_map(|action| match action {
            Action::Refuse { seat, refusal: Refusal::Contended { attempts: 1, waited, ttl: None } } => {
                Some((seat, waited))
            }
            _ => None,
        });
        refused.collect::<Vec<_>>()
    };

    assert!(refused(109).is_empty());
    assert_eq!(refused(110), [(3, Duration::from_millis(100))]);
    assert!(refused(30_009).is_empty());
    assert_eq!(refused(30_010), [(4, TERMS.lease())]);
}

#[test]
fn a_lane_is_due_when_a_sibling_has_waited() {
    assert_eq!(siblings().0.due(), at(110));
}

#[test]
fn nobody_joins_a_hold_that_is_over() {
    for is_lost in [false, true] {
        let (mut lane, _) = siblings();

        let over = happen(&mut lane, 20, |lane, cx| {
            if is_lost {
                lane.lose(crate::error::LossCause::NotOwner, cx);
            } else {
                lane.release(&1, cx);
            }
        });
        let refused_late = join(&mut lane, 30, 0, 6, None);

        let refused = over.iter().chain(&refused_late).filter_map(|action| match action {
            Action::Refuse { seat, refusal: Refusal::RootLost } => Some(*seat),
            _ => None,
        });
        assert_eq!(refused.collect::<Vec<_>>(), [3, 4, 6], "{over:?} {refused_late:?}");
    }
}

#[test]
fn a_call_inside_a_turn_that_is_over_does_not_join_the_next_tasks_turn() {
    let (mut lane, _) = held(TERMS);
    happen(&mut lane, 10, |lane, cx| lane.join(waiter(7, TERMS), cx));
    let rules = Rules { handoff_budget: Duration::from_secs(1), ..RULES };
    happen(&mut lane, 20, |lane, cx| {
        let mut cx = cx.under(&rules);
        lane.release(&1, &mut cx);
    });
    assert!(matches!(&lane.stage, Stage::Held(hold) if hold.seat == 7), "{lane:?}");

    let actions = join(&mut lane, 30, 0, 2, None);

    assert!(matches!(actions[..], [Action::Refuse { seat: 2, refusal: Refusal::RootLost }]), "{actions:?}");
}
