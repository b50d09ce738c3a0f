//! Unit tests of `budget`.

use std::time::Duration;

use super::*;
use crate::protocol::scene::at;

const RULES: ProtocolConfig =
    ProtocolConfig { handoff_budget: Duration::from_millis(20), ..ProtocolConfig::DEFAULT };

/// A budget that began at 100 ms, asked at 110 ms.
fn asked() -> HandoffBudget {
    let mut budget = HandoffBudget::begun(at(100));
    assert_eq!(budget.next(at(109), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(110), false, &RULES), HandoffDecision::HandOffAndProbe);
    budget.ask();
    budget
}

/// When the server is asked, from 110 ms on for a second, where tasks let go each millisecond and each answer takes `trip`: nobody waits.
fn asked_while_nobody_waits(trip: u64) -> Vec<u64> {
    let (mut budget, mut times) = (asked(), vec![110]);
    for now in 111..1_110 {
        match budget.next(at(now), false, &RULES) {
            HandoffDecision::HandOff => {}
            HandoffDecision::HandOffAndProbe => {
                budget.ask();
                times.push(now);
            }
            HandoffDecision::Yield => panic!("nobody waits: {now}"),
        }
        if let Some(sent) = times.last().copied().filter(|sent| now == sent + trip) {
            budget = budget.answered(at(sent), at(now), true, &RULES);
        }
    }
    times
}

#[test]
fn where_nobody_waits_the_lock_is_handed_on_for_ever_and_the_server_asked_once_in_each_budget() {
    let times = asked_while_nobody_waits(7);

    assert!(times.windows(2).all(|two| two[1] - two[0] == 20), "{times:?}");
}

#[test]
fn so_it_is_where_the_server_is_farther_away_than_a_budget() {
    let times = asked_while_nobody_waits(120);

    assert!(times.windows(2).all(|two| two[1] - two[0] == 130), "{times:?}");
}

#[test]
fn where_somebody_waits_the_budget_is_used_up_and_no_more() {
    let budget = asked().answered(at(110), at(115), false, &RULES);

    assert_eq!(budget.next(at(119), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120), false, &RULES), HandoffDecision::Yield);
}

#[test]
fn who_comes_just_after_a_question_waits_for_one_and_a_half_budgets() {
    let mut budget = asked().answered(at(110), at(111), true, &RULES);

    assert_eq!(budget.next(at(130), false, &RULES), HandoffDecision::HandOffAndProbe);
    budget.ask();
    let budget = budget.answered(at(130), at(131), false, &RULES);
    assert_eq!(budget.next(at(139), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(140), false, &RULES), HandoffDecision::Yield);
}

#[test]
fn tasks_go_on_while_the_answer_is_on_its_way_within_its_timeout() {
    let budget = asked();

    assert_eq!(budget.next(at(120 + 499), false, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120 + 500), false, &RULES), HandoffDecision::Yield);

    let budget = budget.answered(at(110), at(400), false, &RULES);
    assert_eq!(budget.next(at(401), false, &RULES), HandoffDecision::Yield);
}

#[test]
fn an_answer_that_nobody_waits_for_says_nothing() {
    let begun = HandoffBudget::begun(at(100));
    let left = asked().left();

    for nobody in [true, false] {
        assert_eq!(begun.answered(at(115), at(116), nobody, &RULES), begun);
        assert_eq!(left.answered(at(110), at(116), nobody, &RULES), left);
    }
    assert_eq!(left.next(at(112), false, &RULES), HandoffDecision::HandOffAndProbe, "it is asked again");
}

#[test]
fn where_others_are_known_to_want_it_the_server_is_not_asked() {
    let budget = HandoffBudget::begun(at(100));

    assert_eq!(budget.next(at(119), true, &RULES), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120), true, &RULES), HandoffDecision::Yield);
}

#[test]
fn that_somebody_waits_is_known_to_the_task_that_follows() {
    let budget = asked().answered(at(110), at(115), false, &RULES);

    assert_eq!(budget.left(), budget);
}

#[test]
fn where_nobody_queues_or_nothing_is_handed_on_the_server_is_not_asked() {
    let unqueued = ProtocolConfig { wakeup_jitter: Duration::from_millis(5), ..RULES };
    let none = ProtocolConfig { handoff_budget: Duration::ZERO, ..RULES };
    let budget = HandoffBudget::begun(at(100));

    assert_eq!(budget.next(at(119), false, &unqueued), HandoffDecision::HandOff);
    assert_eq!(budget.next(at(120), false, &unqueued), HandoffDecision::Yield);
    assert_eq!(budget.next(at(100), false, &none), HandoffDecision::Yield);
}
