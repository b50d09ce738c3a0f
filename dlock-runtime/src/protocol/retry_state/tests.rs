use super::*;

fn retry_state(started: BootInstant, retries: u32, wait: Option<Duration>) -> RetryState {
    let response_timeout = Duration::from_millis(500);
    let limits =
        RetryLimits { retries, wait, backoff: RetryPolicy::DEFAULT, response_timeout, try_only: false };
    RetryState::new(started, limits, 1)
}

fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

#[test]
fn neither_retry_nor_wait_means_one_try() {
    let mut once = retry_state(at(0), 0, None);

    assert_eq!(once.on_contended(at(1)), RetryDecision::GiveUp);
    assert_eq!(once.attempts(), 1);
}

#[test]
fn three_retries_are_three_further_tries() {
    let mut retry_state = retry_state(at(0), 3, None);
    let mut now = at(1);
    let mut tries = 1;

    while retry_state.on_contended(now) == RetryDecision::Stay && tries < 100 {
        now = retry_state.due();
        assert!(retry_state.consume_retry(now));
        tries += 1;
    }

    assert_eq!((tries, retry_state.attempts()), (4, 4));
}

#[test]
fn wait_ends_at_its_limit_with_retries_left() {
    let mut retry_state = retry_state(at(0), 1_000, Some(Duration::from_millis(50)));

    assert_eq!(retry_state.on_contended(at(49)), RetryDecision::Stay);
    assert!(retry_state.due() <= at(50));
    assert_eq!(retry_state.on_contended(at(50)), RetryDecision::GiveUp);
}

#[test]
fn an_answer_that_comes_again_uses_up_nothing() {
    let mut retry_state = retry_state(at(0), 1, None);
    assert_eq!(retry_state.on_contended(at(1)), RetryDecision::Stay);
    let due = retry_state.due();

    assert_eq!(retry_state.on_contended(at(2)), RetryDecision::Stay);

    assert_eq!((retry_state.due(), retry_state.attempts()), (due, 1));
}

#[test]
fn silent_server_ends_a_call_at_the_limit_of_its_tries() {
    let once = retry_state(at(0), 0, None);
    assert!(!once.is_over(at(499)) && once.is_over(at(500)));

    let mut retrying = retry_state(at(0), 1, None);
    assert_eq!(retrying.on_contended(at(500)), RetryDecision::Stay);
    let due = retrying.due();
    assert!(retrying.consume_retry(due));
    assert_eq!(retrying.due(), at(1_000).plus(due.since(at(500))));
}

#[test]
fn a_slow_try_leaves_less_time_for_the_others() {
    let mut slow = retry_state(at(0), 3, None);
    let (mut now, mut delays) = (at(0), Duration::ZERO);

    for _ in 0..3 {
        let answered = now.plus(Duration::from_millis(600)); // it sent two requests
        if slow.on_contended(answered) == RetryDecision::GiveUp || slow.is_over(answered) {
            break;
        }
        now = slow.due();
        delays = delays.saturating_add(now.since(answered));
        assert!(slow.consume_retry(now));
    }

    assert_eq!(slow.attempts(), 4);
    assert_eq!(slow.due(), at(2_000).plus(delays));
}

#[test]
fn a_process_that_was_stopped_still_makes_its_last_try() {
    let mut retry_state = retry_state(at(0), 1, None);
    assert_eq!(retry_state.on_contended(at(1)), RetryDecision::Stay);

    assert!(retry_state.consume_retry(at(30_000)));

    assert!(!retry_state.is_over(at(30_000)) && retry_state.is_over(at(30_500)));
}

#[test]
fn a_wait_of_nothing_is_one_try() {
    let mut retry_state = retry_state(at(5), 0, Some(Duration::ZERO));

    retry_state.await_first_reply(at(5));

    assert!(!retry_state.is_over(at(54)) && retry_state.is_over(at(55)));
    assert_eq!(retry_state.on_contended(at(6)), RetryDecision::GiveUp);
}

#[test]
fn call_without_a_reply_gets_one_extension() {
    let mut retry_state = retry_state(at(0), 0, Some(Duration::from_millis(100)));

    retry_state.await_first_reply(at(99));
    assert!(retry_state.is_over(at(100)), "its wait is not over yet");
    retry_state.await_first_reply(at(100));
    assert!(!retry_state.is_over(at(149)));
    retry_state.await_first_reply(at(150));

    assert!(retry_state.is_over(at(150)));
}

#[test]
fn a_wait_without_end_does_not_overflow() {
    for retries in [0, u32::MAX] {
        let mut retry_state = retry_state(at(5), retries, Some(Duration::MAX));

        assert_eq!(retry_state.on_contended(at(6)), RetryDecision::Stay, "{retries}");
    }
}

#[test]
fn a_call_goes_on_while_it_has_both_time_and_tries_left() {
    let ten_seconds = Some(Duration::from_secs(10));
    let waits = retry_state(at(0), 0, ten_seconds);
    assert!(waits.may_keep_waiting(at(9_999)) && !waits.may_keep_waiting(at(10_000)));

    let mut tries = retry_state(at(0), 1, ten_seconds);
    assert!(tries.may_keep_waiting(at(1)), "it has a retry left");
    assert_eq!(tries.on_contended(at(1)), RetryDecision::Stay);
    let due = tries.due();
    assert!(tries.may_keep_waiting(due), "its retry is due, and not made yet");
    assert!(!tries.consume_retry(at(1)) && tries.consume_retry(due));
    assert!(!tries.may_keep_waiting(due), "its retry is used up");
    assert_eq!(tries.attempts(), 2);
}

#[test]
fn call_lasts_beyond_times_before_its_end() {
    let waits = retry_state(at(0), 0, Some(Duration::from_millis(100)));
    let (tries, once) = (retry_state(at(0), 1, None), retry_state(at(0), 0, None));

    assert!(waits.lasts_beyond(at(99)) && !waits.lasts_beyond(at(100)));
    assert!(tries.lasts_beyond(at(100)) && !once.lasts_beyond(at(1)));
}

#[test]
fn only_a_call_with_retries_has_a_time_for_its_next_try() {
    let mut waits = retry_state(at(0), 0, Some(Duration::from_secs(10)));
    let mut tries = retry_state(at(0), 1, None);
    for retry_state in [&mut waits, &mut tries] {
        assert_eq!(retry_state.on_contended(at(1)), RetryDecision::Stay);
    }

    assert_eq!((waits.next_try(), tries.next_try()), (None, Some(tries.due())));
}

#[test]
fn retries_of_concurrent_calls_are_spread_evenly() {
    let mut calls_in_tenth = [0_u32; 10];

    for seed in 0..10_000 {
        let second = Duration::from_secs(1);
        let backoff = RetryPolicy::exponential(second, second);
        let limits =
            RetryLimits { retries: 1, wait: None, backoff, response_timeout: second, try_only: false };
        let mut retry_state = RetryState::new(at(0), limits, seed);
        assert_eq!(retry_state.on_contended(at(0)), RetryDecision::Stay);
        let tenth = retry_state.due().since(at(500)).as_millis() / 50;
        calls_in_tenth[usize::try_from(tenth).expect("a tenth of 500 ms")] += 1;
    }

    assert!(calls_in_tenth.iter().all(|calls| (850..1_150).contains(calls)), "{calls_in_tenth:?}");
}

/// The finalizer is that of `MurmurHash3`. These are its known hashes of nothing.
#[test]
fn the_draws_are_mixed_as_published() {
    for (input, mixed) in [(0, 0), (1, 0x514e_28b7), (0xffff_ffff, 0x81f1_6f39)] {
        let mut retry_state = retry_state(at(0), 1, None);
        retry_state.draw = u32::wrapping_sub(input, 0x9e37_79b9);

        assert_eq!(retry_state.draw(), mixed, "{input:#x}");
    }
}
