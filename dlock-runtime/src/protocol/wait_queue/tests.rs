//! Unit tests of `queue`.

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

#[test]
fn turns_come_in_the_order_of_coming() {
    let mut queue = WaitQueue::new();
    (0..3).for_each(|acquisition| queue.push(waiter(acquisition, 0, Some(9)), LastObserved::Nothing));
    queue.remove(&1);

    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiter| waiter.acquisition).collect();

    assert_eq!(order, [0, 2]);
}

#[test]
fn who_came_and_left_behind_one_that_waits_takes_no_room() {
    let mut queue = WaitQueue::new();
    (0..2).for_each(|acquisition| queue.push(waiter(acquisition, 0, Some(90)), LastObserved::Nothing));

    for acquisition in 2..1_000 {
        queue.push(waiter(acquisition, 3, Some(20)), LastObserved::Nothing);
        if acquisition % 100 != 0 {
            queue.remove(&acquisition);
        }
    }

    let places = queue.waiters().map(|waiters| waiters.others.len());
    assert!(places <= Some(4 * queue.count() + FEW), "{places:?}");
    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiter| waiter.acquisition).collect();
    assert_eq!(order, [0, 1, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
}

#[test]
fn who_stands_behind_places_that_were_closed_is_told_all_the_same() {
    let mut queue = WaitQueue::new();
    (0..2).for_each(|acquisition| queue.push(waiter(acquisition, 0, Some(90)), LastObserved::Nothing));
    queue.push(waiter(2, 0, None), LastObserved::Nothing);
    queue.push(waiter(3, 0, Some(20)), LastObserved::Nothing);
    for acquisition in 4..1_000 {
        queue.push(waiter(acquisition, 0, Some(9)), LastObserved::Nothing);
        queue.remove(&acquisition);
    }

    let mut gone = Vec::new();
    queue.on_contended(at(1), |waiter| gone.push(waiter.acquisition));
    queue.tick(at(20), false, false, |waiter| gone.push(waiter.acquisition));

    assert_eq!((gone, queue.count()), (vec![2, 3], 2));
}

#[test]
fn who_tries_once_is_told_with_the_first_answer_and_the_others_stay() {
    let mut queue = WaitQueue::new();
    queue.push(waiter(0, 0, Some(9)), LastObserved::Nothing);
    queue.push(waiter(1, 0, None), LastObserved::Nothing);
    queue.push(waiter(2, 3, None), LastObserved::Nothing);

    let mut gone = Vec::new();
    queue.on_contended(at(1), |waiter| gone.push(waiter.acquisition));

    assert_eq!(gone, [1]);
    assert_eq!(queue.head().map(|head| head.acquisition), Some(0));
}

#[test]
fn a_wait_that_is_over_ends_in_the_middle_of_the_queue() {
    let mut queue = WaitQueue::new();
    queue.push(waiter(0, 0, Some(90)), LastObserved::Nothing);
    queue.push(waiter(1, 0, Some(20)), LastObserved::Nothing);
    assert_eq!(queue.due(), at(20));

    let mut gone = Vec::new();
    let head_tries = queue.tick(at(20), false, false, |waiter| gone.push(waiter.acquisition));

    assert_eq!((gone, head_tries, queue.due()), (vec![1], false, at(90)));
}

/// A queue in which the second of two has one further try, and when that is due.
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
fn the_last_try_of_who_stands_behind_another_is_its_end_and_not_before() {
    let (mut queue, due) = with_a_last_try();
    let mut gone = Vec::new();

    assert!(!queue.tick(at(1), false, false, |waiter| gone.push(waiter.acquisition)));
    assert_eq!((gone.len(), queue.due()), (0, due));
    assert!(!queue.tick(due, false, false, |waiter| gone.push(waiter.acquisition)));

    assert_eq!((gone, queue.count()), (vec![1], 1));
}

#[test]
fn the_last_try_of_who_contends_is_decided_by_the_answer_to_it() {
    for held in [false, true] {
        let (mut queue, due) = with_a_last_try();
        queue.pop();
        let mut gone = Vec::new();

        let tries = queue.tick(due, held, false, |waiter| gone.push(waiter.acquisition));

        // While one of us has the lock, that is the answer.
        assert_eq!((tries, gone), if held { (false, vec![1]) } else { (true, vec![]) });
    }
}

#[test]
fn who_tries_once_behind_others_waits_for_the_first_answer_as_long_as_one_may_take() {
    let mut queue = WaitQueue::new();
    queue.push(waiter(0, 0, Some(90_000)), LastObserved::Nothing);
    queue.push(waiter(1, 0, None), LastObserved::Nothing);
    let mut gone = Vec::new();

    queue.tick(at(499), false, true, |waiter| gone.push(waiter.acquisition));
    assert!(gone.is_empty(), "{gone:?}");
    queue.tick(at(500), false, true, |waiter| gone.push(waiter.acquisition));

    assert_eq!(gone, [1]);
}

/// Ticks at each of the times, and returns who was told at which that its wait is over.
fn ended<const N: usize>(queue: &mut WaitQueue<u32>, times: [u64; N]) -> Vec<(u64, u32)> {
    let mut ended = Vec::new();
    for ms in times {
        queue.tick(at(ms), false, false, |waiter| ended.push((ms, waiter.acquisition)));
    }
    ended
}

#[test]
fn each_wait_ends_at_its_own_time_whoever_went_before() {
    // Whether the head's turn comes first, whether the one behind it leaves, and who is left by then.
    for (turn, leaves, left) in [
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
        if turn {
            queue.pop();
        }
        queue.push(waiter(4, 0, Some(40)), LastObserved::Nothing);

        let ended = ended(&mut queue, [19, 20, 29, 30, 39, 40, 79, 80, 89, 90]);

        assert_eq!((&ended[..], queue.count()), (left, 0), "turn {turn}, leaves {leaves}");
    }
}

#[test]
fn who_tries_again_later_keeps_its_place_behind_others() {
    let mut queue = WaitQueue::new();
    let mut second = waiter(1, 3, None);
    second.retry_state.on_contended(at(0));
    let due = second.retry_state.due();
    queue.push(waiter(0, 0, Some(90_000)), LastObserved::Nothing);
    queue.push(second, LastObserved::Nothing);
    let mut gone = Vec::new();

    queue.tick(due, false, false, |waiter| gone.push(waiter.acquisition));

    assert!(gone.is_empty() && queue.due() > due, "{gone:?}");
    queue.pop();
    assert_eq!(queue.head().map(|head| (head.acquisition, head.retry_state.attempts())), Some((1, 2)));
}

#[test]
fn the_head_tries_when_that_is_due_unless_one_of_us_has_the_lock() {
    for held in [false, true] {
        let mut queue = WaitQueue::new();
        let mut head = waiter(0, 3, None);
        head.retry_state.on_contended(at(0));
        let due = head.retry_state.due();
        queue.push(head, LastObserved::Nothing);
        let mut gone = Vec::new();

        let tries = queue.tick(due, held, false, |waiter| gone.push(waiter.acquisition));

        assert_eq!((tries, gone.len(), queue.count()), (!held, 0, 1), "held: {held}");
    }
}

#[test]
fn a_head_whose_wait_is_over_makes_no_try_and_has_a_moment_more_where_nothing_was_heard() {
    for unheard in [false, true] {
        let mut queue = WaitQueue::new();
        queue.push(waiter(0, 0, Some(20)), LastObserved::Nothing);
        let mut gone = Vec::new();

        let tries = queue.tick(at(20), false, unheard, |waiter| gone.push(waiter.acquisition));

        assert_eq!((tries, gone), (false, if unheard { vec![] } else { vec![0] }), "unheard: {unheard}");
    }
}

#[test]
fn places_are_closed_once_more_have_left_than_still_wait_and_not_for_each_that_leaves() {
    for (left, places) in [(1, 101), (59, 101), (60, 41), (99, 2)] {
        let mut queue = WaitQueue::new();
        (0..101).for_each(|acquisition| queue.push(waiter(acquisition, 0, Some(90)), LastObserved::Nothing));
        for acquisition in 0..left {
            queue.remove(&(100 - acquisition));
        }

        queue.push(waiter(101, 0, Some(90)), LastObserved::Nothing);

        let of_others = queue.waiters().map(|waiters| waiters.others.len());
        assert_eq!(of_others, Some(places), "{left} have left");
        assert_eq!(queue.drain().count(), 102 - usize::try_from(left).expect("a few"));
    }
}

#[test]
fn a_waiter_stays_small() {
    // It is moved several times on its way; what is larger is moved by a call each time. A seat is a pointer.
    let size = size_of::<QueueEntry<Box<u8>>>();
    assert!(size <= 128, "{size}");
}
