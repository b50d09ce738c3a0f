//! Unit tests of `patience`.

use super::*;

fn patience(started: BootTime, retries: u32, wait: Option<Duration>) -> Patience {
    let response_timeout = Duration::from_millis(500);
    let limits =
        Limits { retries, wait, backoff: RetryPolicy::DEFAULT, response_timeout, only_whether: false };
    Patience::new(started, limits, 1)
}

fn at(ms: u64) -> BootTime {
    BootTime::from_nanos(ms * 1_000_000)
}

#[test]
fn neither_retry_nor_wait_means_one_try() {
    let mut once = patience(at(0), 0, None);

    assert_eq!(once.not_yet(at(1)), Verdict::GiveUp);
    assert_eq!(once.attempts(), 1);
}

#[test]
fn three_retries_are_three_further_tries() {
    let mut patience = patience(at(0), 3, None);
    let mut now = at(1);
    let mut tries = 1;

    while patience.not_yet(now) == Verdict::Stay {
        now = patience.due();
        assert!(patience.take_try(now));
        tries += 1;
    }

    assert_eq!((tries, patience.attempts()), (4, 4));
}

#[test]
fn a_wait_ends_at_its_limit_whatever_retries_are_left() {
    let mut patience = patience(at(0), 1_000, Some(Duration::from_millis(50)));

    assert_eq!(patience.not_yet(at(49)), Verdict::Stay);
    assert!(patience.due() <= at(50));
    assert_eq!(patience.not_yet(at(50)), Verdict::GiveUp);
}

#[test]
fn an_answer_that_comes_again_uses_up_nothing() {
    let mut patience = patience(at(0), 1, None);
    assert_eq!(patience.not_yet(at(1)), Verdict::Stay);
    let due = patience.due();

    assert_eq!(patience.not_yet(at(2)), Verdict::Stay);

    assert_eq!((patience.due(), patience.attempts()), (due, 1));
}

#[test]
fn a_server_that_does_not_answer_ends_a_call_at_the_limit_of_its_tries() {
    let once = patience(at(0), 0, None);
    assert!(!once.is_over(at(499)) && once.is_over(at(500)));

    let mut retrying = patience(at(0), 1, None);
    assert_eq!(retrying.not_yet(at(500)), Verdict::Stay);
    let due = retrying.due();
    assert!(retrying.take_try(due));
    assert_eq!(retrying.due(), at(1_000).plus(due.since(at(500))));
}

#[test]
fn tries_that_take_longer_than_their_time_leave_less_for_the_others() {
    let mut slow = patience(at(0), 3, None);
    let (mut now, mut delays) = (at(0), Duration::ZERO);

    for _ in 0..3 {
        let answered = now.plus(Duration::from_millis(600)); // it has asked twice
        if slow.not_yet(answered) == Verdict::GiveUp || slow.is_over(answered) {
            break;
        }
        now = slow.due();
        delays = delays.saturating_add(now.since(answered));
        assert!(slow.take_try(now));
    }

    assert_eq!(slow.attempts(), 4);
    assert_eq!(slow.due(), at(2_000).plus(delays));
}

#[test]
fn a_process_that_was_stopped_still_makes_its_last_try() {
    let mut patience = patience(at(0), 1, None);
    assert_eq!(patience.not_yet(at(1)), Verdict::Stay);

    assert!(patience.take_try(at(30_000)));

    assert!(!patience.is_over(at(30_000)) && patience.is_over(at(30_500)));
}

#[test]
fn a_wait_of_nothing_is_one_try() {
    let mut patience = patience(at(5), 0, Some(Duration::ZERO));

    patience.await_first_answer(at(5));

    assert!(!patience.is_over(at(54)) && patience.is_over(at(55)));
    assert_eq!(patience.not_yet(at(6)), Verdict::GiveUp);
}

#[test]
fn who_has_heard_nothing_is_given_a_moment_more_and_only_one() {
    let mut patience = patience(at(0), 0, Some(Duration::from_millis(100)));

    patience.await_first_answer(at(99));
    assert!(patience.is_over(at(100)), "its wait is not over yet");
    patience.await_first_answer(at(100));
    assert!(!patience.is_over(at(149)));
    patience.await_first_answer(at(150));

    assert!(patience.is_over(at(150)));
}

#[test]
fn a_wait_without_end_does_not_overflow() {
    for retries in [0, u32::MAX] {
        let mut patience = patience(at(5), retries, Some(Duration::MAX));

        assert_eq!(patience.not_yet(at(6)), Verdict::Stay, "{retries}");
    }
}
