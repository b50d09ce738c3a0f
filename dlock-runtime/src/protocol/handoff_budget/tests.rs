use std::time::Duration;

use super::*;
use crate::protocol::scene::at;

const RULES: ProtocolConfig =
    ProtocolConfig { handoff_budget: Duration::from_millis(20), ..ProtocolConfig::DEFAULT };

/// Returns a budget that started at 100 ms, with a probe in flight since 110 ms.
fn probed() -> HandoffBudget {
    let mut budget = HandoffBudget::starting_at(at(100));
    assert_eq!(budget.next(at(109), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(110), false, &RULES), HandoffDecision::HandOffAndProbe);
    budget.mark_probed();
    budget
}

/// Returns when probes are sent, from 110 ms on for 1 s. Tasks release every millisecond, each
/// reply takes `round_trip` ms, and no other process waits.
fn probes_without_waiters(round_trip: u64) -> Vec<u64> {
    let (mut budget, mut times) = (probed(), vec![110]);
    for now in 111..1_110 {
        match budget.next(at(now), false, &RULES) {
            HandoffDecision::HandOff => {}
            HandoffDecision::HandOffAndProbe => {
                budget.mark_probed();
                times.push(now);
            }
            HandoffDecision::Yield => panic!("no other process waits: {now}"),
        }
        if let Some(sent) = times.last().copied().filter(|sent| now == sent + round_trip) {
            budget = budget.answered(at(sent), at(now), true, &RULES);
        }
    }
    times
}

#[test]
fn without_waiters_each_budget_sends_one_probe() {
    let times = probes_without_waiters(7);

    assert!(times.windows(2).all(|two| two[1] - two[0] == 20), "{times:?}");
}

#[test]
fn without_waiters_a_distant_server_is_probed_once_per_reply() {
    let times = probes_without_waiters(120);

    assert!(times.windows(2).all(|two| two[1] - two[0] == 130), "{times:?}");
}

#[test]
fn with_waiters_hand_offs_end_with_the_budget() {
    let budget = probed().answered(at(110), at(115), false, &RULES);

    assert_eq!(budget.next(at(119), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120), false, &RULES), HandoffDecision::Yield);
}

#[test]
fn waiter_just_after_a_probe_waits_one_and_a_half_budgets() {
    let mut budget = probed().answered(at(110), at(111), true, &RULES);

    assert_eq!(budget.next(at(130), false, &RULES), HandoffDecision::HandOffAndProbe);
    budget.mark_probed();
    let budget = budget.answered(at(130), at(131), false, &RULES);
    assert_eq!(budget.next(at(139), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(140), false, &RULES), HandoffDecision::Yield);
}

#[test]
fn hand_offs_continue_while_the_probe_is_in_flight() {
    let budget = probed();

    assert_eq!(budget.next(at(120 + 499), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120 + 500), false, &RULES), HandoffDecision::Yield);

    let budget = budget.answered(at(110), at(400), false, &RULES);
    assert_eq!(budget.next(at(401), false, &RULES), HandoffDecision::Yield);
}

#[test]
fn unexpected_probe_reply_is_ignored() {
    let fresh = HandoffBudget::starting_at(at(100));
    let unprobed = probed().without_probe();

    for has_no_waiters in [true, false] {
        assert_eq!(fresh.answered(at(115), at(116), has_no_waiters, &RULES), fresh);
        assert_eq!(unprobed.answered(at(110), at(116), has_no_waiters, &RULES), unprobed);
    }
    assert_eq!(
        unprobed.next(at(112), false, &RULES),
        HandoffDecision::HandOffAndProbe,
        "a new probe is sent"
    );
}

#[test]
fn contended_lock_is_not_probed() {
    let budget = HandoffBudget::starting_at(at(100));

    assert_eq!(budget.next(at(119), true, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120), true, &RULES), HandoffDecision::Yield);
}

#[test]
fn known_waiters_pass_to_the_next_task() {
    let budget = probed().answered(at(110), at(115), false, &RULES);

    assert_eq!(budget.without_probe(), budget);
}

#[test]
fn backend_without_a_queue_is_not_probed() {
    let unqueued = ProtocolConfig { wakeup_jitter: Duration::from_millis(5), ..RULES };
    let none = ProtocolConfig { handoff_budget: Duration::ZERO, ..RULES };
    let budget = HandoffBudget::starting_at(at(100));

    assert_eq!(budget.next(at(119), false, &unqueued), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120), false, &unqueued), HandoffDecision::Yield);
    assert_eq!(budget.next(at(100), false, &none), HandoffDecision::Yield);
}
