use std::time::Duration;

use super::*;
use crate::protocol::retry_state::RetryLimits;
use crate::retry::RetryPolicy;

fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

fn waiter(acquisition: u32, retries: u32, wait: Option<u64>) -> QueueEntry<u32> {
    let limits = RetryLimits {
        retries,
        wait: wait.map(Duration::from_millis),
        backoff: RetryPolicy::DEFAULT,
        response_timeout: Duration::from_millis(500),
        try_only: false,
    };
    let retry_state = RetryState::new(at(0), limits, acquisition);
    let terms = HoldTerms::of_lease(Duration::from_secs(1));
    QueueEntry { acquisition, terms, retry_state }
}

fn ids(waiters: Vec<QueueEntry<u32>>) -> Vec<u32> {
    waiters.into_iter().map(|waiter| waiter.acquisition).collect()
}

/// Returns the first time at which a timer is due.
fn next_due(queue: &WaitQueue<u32>) -> BootInstant {
    let mut due = BootInstant::NEVER;
    queue.timers(&mut |_, at| due = due.min(at));
    due
}

/// Adds the waiters that give up at `now`, and returns `true` if a try of the head is due.
fn tick(
    queue: &mut WaitQueue<u32>,
    now: BootInstant,
    held: bool,
    unobserved: bool,
    given_up: &mut Vec<u32>,
) -> bool {
    let (retry_due, waiters) = queue.tick(now, held, unobserved);
    given_up.extend(ids(waiters));
    retry_due
}

#[test]
fn waiters_leave_in_order_of_arrival() {
    let mut queue = WaitQueue::new();
    (0..3).for_each(|acquisition| queue.push(waiter(acquisition, 0, Some(9)), LastObserved::Nothing));
    queue.remove(&1);

    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiter| waiter.acquisition).collect();

    assert_eq!(order, [0, 2]);
}

#[test]
fn waiters_that_left_use_no_memory() {
    let mut queue = WaitQueue::new();
    (0..2).for_each(|acquisition| queue.push(waiter(acquisition, 0, Some(90)), LastObserved::Nothing));

    for acquisition in 2..1_000 {
        queue.push(waiter(acquisition, 3, Some(20)), LastObserved::Nothing);
        if acquisition % 100 != 0 {
            queue.remove(&acquisition);
        }
    }

    let state = queue.0.as_ref().expect("some wait");
    assert_eq!((state.others.len(), state.due_times.len()), (10, 10));
    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiter| waiter.acquisition).collect();
    assert_eq!(order, [0, 1, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
}

#[test]
fn waiter_after_removed_entries_is_still_rejected() {
    let mut queue = WaitQueue::new();
    (0..2).for_each(|acquisition| queue.push(waiter(acquisition, 0, Some(90)), LastObserved::Nothing));
    queue.push(waiter(2, 0, None), LastObserved::Nothing);
    queue.push(waiter(3, 0, Some(20)), LastObserved::Nothing);
    for acquisition in 4..1_000 {
        queue.push(waiter(acquisition, 0, Some(9)), LastObserved::Nothing);
        queue.remove(&acquisition);
    }

    let mut given_up = Vec::new();
    given_up.extend(ids(queue.on_contended(at(1))));
    tick(&mut queue, at(20), false, false, &mut given_up);

    assert_eq!((given_up, queue.count()), (vec![2, 3], 2));
}

#[test]
fn single_tries_end_with_the_first_reply_and_others_stay() {
    let mut queue = WaitQueue::new();
    queue.push(waiter(0, 0, Some(9)), LastObserved::Nothing);
    queue.push(waiter(1, 0, None), LastObserved::Nothing);
    queue.push(waiter(2, 3, None), LastObserved::Nothing);

    let mut given_up = Vec::new();
    given_up.extend(ids(queue.on_contended(at(1))));

    assert_eq!(given_up, [1]);
    assert_eq!(queue.head().map(|head| head.acquisition), Some(0));
}

#[test]
fn wait_can_end_in_the_middle_of_the_queue() {
    let mut queue = WaitQueue::new();
    queue.push(waiter(0, 0, Some(90)), LastObserved::Nothing);
    queue.push(waiter(1, 0, Some(20)), LastObserved::Nothing);
    assert_eq!(next_due(&queue), at(20));

    let mut given_up = Vec::new();
    let retry_due = tick(&mut queue, at(20), false, false, &mut given_up);

    assert_eq!((given_up, retry_due, next_due(&queue)), (vec![1], false, at(90)));
}

/// Returns a queue in which the second of two waiters has one retry left, and when that is due.
fn with_a_last_try() -> (WaitQueue<u32>, BootInstant) {
    let mut queue = WaitQueue::new();
    let mut second = waiter(1, 1, None);
    second.retry_state.on_contended(at(0));
    let due = second.retry_state.due();
    queue.push(waiter(0, 0, Some(90_000)), LastObserved::Nothing);
    queue.push(second, LastObserved::Nothing);
    (queue, due)
}

#[test]
fn last_try_behind_another_waiter_ends_the_wait() {
    let (mut queue, due) = with_a_last_try();
    let mut given_up = Vec::new();

    assert!(!tick(&mut queue, at(1), false, false, &mut given_up));
    assert_eq!((given_up.len(), next_due(&queue)), (0, due));
    assert!(!tick(&mut queue, due, false, false, &mut given_up));

    assert_eq!((given_up, queue.count()), (vec![1], 1));
}

#[test]
fn last_try_of_the_contender_ends_with_its_reply() {
    for held in [false, true] {
        let (mut queue, due) = with_a_last_try();
        queue.pop();
        let mut given_up = Vec::new();

        let tries = tick(&mut queue, due, held, false, &mut given_up);

        // If a task of this process holds the lock, that decides the try.
        assert_eq!((tries, given_up), if held { (false, vec![1]) } else { (true, vec![]) });
    }
}

#[test]
fn single_try_behind_others_waits_for_the_first_reply() {
    let mut queue = WaitQueue::new();
    queue.push(waiter(0, 0, Some(90_000)), LastObserved::Nothing);
    queue.push(waiter(1, 0, None), LastObserved::Nothing);
    let mut given_up = Vec::new();

    tick(&mut queue, at(499), false, true, &mut given_up);
    assert!(given_up.is_empty(), "{given_up:?}");
    tick(&mut queue, at(500), false, true, &mut given_up);

    assert_eq!(given_up, [1]);
}

/// Ticks at each of the times, and returns which wait ended when.
fn ended<const N: usize>(queue: &mut WaitQueue<u32>, times: [u64; N]) -> Vec<(u64, u32)> {
    let mut ended = Vec::new();
    for ms in times {
        let (_, given_up) = queue.tick(at(ms), false, false);
        ended.extend(ids(given_up).into_iter().map(|acquisition| (ms, acquisition)));
    }
    ended
}

#[test]
fn each_wait_ends_at_its_own_time() {
    // Whether the head is granted the lock first, whether the waiter behind it leaves, and which
    // waiters are left then.
    for (granted, leaves, left) in [
        (false, false, &[(20, 2), (30, 3), (40, 4), (80, 1), (90, 0)][..]),
        (true, false, &[(20, 2), (30, 3), (40, 4), (80, 1)]),
        (false, true, &[(20, 2), (30, 3), (40, 4), (90, 0)]),
        (true, true, &[(20, 2), (30, 3), (40, 4)]),
    ] {
        let mut queue = WaitQueue::new();
        for (acquisition, wait) in [(0, 90), (1, 80), (2, 20), (3, 30)] {
            queue.push(waiter(acquisition, 0, Some(wait)), LastObserved::Nothing);
        }
        if leaves {
            queue.remove(&1);
        }
        if granted {
            queue.pop();
        }
        queue.push(waiter(4, 0, Some(40)), LastObserved::Nothing);

        let ended = ended(&mut queue, [19, 20, 29, 30, 39, 40, 79, 80, 89, 90]);

        assert_eq!((&ended[..], queue.count()), (left, 0), "granted {granted}, leaves {leaves}");
    }
}

#[test]
fn retrying_waiter_keeps_its_position() {
    let mut queue = WaitQueue::new();
    let mut second = waiter(1, 3, None);
    second.retry_state.on_contended(at(0));
    let due = second.retry_state.due();
    queue.push(waiter(0, 0, Some(90_000)), LastObserved::Nothing);
    queue.push(second, LastObserved::Nothing);
    let mut given_up = Vec::new();

    tick(&mut queue, due, false, false, &mut given_up);

    assert!(given_up.is_empty() && next_due(&queue) > due, "{given_up:?}");
    queue.pop();
    assert_eq!(queue.head().map(|head| (head.acquisition, head.retry_state.attempts())), Some((1, 2)));
}

#[test]
fn head_retries_when_due_unless_a_local_task_holds_the_lock() {
    for held in [false, true] {
        let mut queue = WaitQueue::new();
        let mut head = waiter(0, 3, None);
        head.retry_state.on_contended(at(0));
        let due = head.retry_state.due();
        queue.push(head, LastObserved::Nothing);
        let mut given_up = Vec::new();

        let tries = tick(&mut queue, due, held, false, &mut given_up);

        assert_eq!((tries, given_up.len(), queue.count()), (!held, 0, 1), "held: {held}");
    }
}

#[test]
fn head_without_a_reply_gets_an_extension_and_no_try() {
    for unobserved in [false, true] {
        let mut queue = WaitQueue::new();
        queue.push(waiter(0, 0, Some(20)), LastObserved::Nothing);
        let mut given_up = Vec::new();

        let tries = tick(&mut queue, at(20), false, unobserved, &mut given_up);

        assert_eq!(
            (tries, given_up),
            (false, if unobserved { vec![] } else { vec![0] }),
            "unobserved: {unobserved}"
        );
    }
}
