//! Unit tests of `queue`.

use std::time::Duration;

use super::*;
use crate::protocol::patience::Limits;
use crate::retry::RetryPolicy;

fn at(ms: u64) -> BootTime {
    BootTime::from_nanos(ms * 1_000_000)
}

fn waiter(seat: u32, retries: u32, wait: Option<u64>) -> Waiter<u32> {
    let limits = Limits {
        retries,
        wait: wait.map(Duration::from_millis),
        backoff: RetryPolicy::DEFAULT,
        response_timeout: Duration::from_millis(500),
        only_whether: false,
    };
    let patience = Patience::new(at(0), limits, seat);
    let terms = Terms { lease: Duration::from_secs(1), renew: true, max_hold: None, at_least: None };
    Waiter { seat, terms, patience }
}

#[test]
fn turns_come_in_the_order_of_coming() {
    let mut queue = LocalQueue::new();
    (0..3).for_each(|seat| queue.push(waiter(seat, 0, Some(9)), Heard::Nothing));
    queue.remove(&1);

    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiter| waiter.seat).collect();

    assert_eq!(order, [0, 2]);
}

#[test]
fn who_came_and_left_behind_one_that_waits_takes_no_room() {
    let mut queue = LocalQueue::new();
    (0..2).for_each(|seat| queue.push(waiter(seat, 0, Some(90)), Heard::Nothing));

    for seat in 2..1_000 {
        queue.push(waiter(seat, 3, Some(20)), Heard::Nothing);
        if seat % 100 != 0 {
            queue.remove(&seat);
        }
    }

    let places = queue.0.as_ref().map(|waiters| waiters.others.len());
    assert!(places <= Some(4 * queue.count() + FEW), "{places:?}");
    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiter| waiter.seat).collect();
    assert_eq!(order, [0, 1, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
}

#[test]
fn who_stands_behind_places_that_were_closed_is_told_all_the_same() {
    let mut queue = LocalQueue::new();
    (0..2).for_each(|seat| queue.push(waiter(seat, 0, Some(90)), Heard::Nothing));
    queue.push(waiter(2, 0, None), Heard::Nothing);
    queue.push(waiter(3, 0, Some(20)), Heard::Nothing);
    for seat in 4..1_000 {
        queue.push(waiter(seat, 0, Some(9)), Heard::Nothing);
        queue.remove(&seat);
    }

    let mut gone = Vec::new();
    queue.not_yet(at(1), |waiter| gone.push(waiter.seat));
    queue.tick(at(20), false, false, |waiter| gone.push(waiter.seat));

    assert_eq!((gone, queue.count()), (vec![2, 3], 2));
}

#[test]
fn who_tries_once_is_told_with_the_first_answer_and_the_others_stay() {
    let mut queue = LocalQueue::new();
    queue.push(waiter(0, 0, Some(9)), Heard::Nothing);
    queue.push(waiter(1, 0, None), Heard::Nothing);
    queue.push(waiter(2, 3, None), Heard::Nothing);

    let mut gone = Vec::new();
    queue.not_yet(at(1), |waiter| gone.push(waiter.seat));

    assert_eq!(gone, [1]);
    assert_eq!(queue.head().map(|head| head.seat), Some(0));
}

#[test]
fn a_wait_that_is_over_ends_in_the_middle_of_the_queue() {
    let mut queue = LocalQueue::new();
    queue.push(waiter(0, 0, Some(90)), Heard::Nothing);
    queue.push(waiter(1, 0, Some(20)), Heard::Nothing);
    assert_eq!(queue.due(), at(20));

    let mut gone = Vec::new();
    let head_tries = queue.tick(at(20), false, false, |waiter| gone.push(waiter.seat));

    assert_eq!((gone, head_tries, queue.due()), (vec![1], false, at(90)));
}

/// A queue in which the second of two has one further try, and when that is due.
fn with_a_last_try() -> (LocalQueue<u32>, BootTime) {
    let mut queue = LocalQueue::new();
    let mut second = waiter(1, 1, None);
    second.patience.not_yet(at(0));
    let due = second.patience.due();
    queue.push(waiter(0, 0, Some(90_000)), Heard::Nothing);
    queue.push(second, Heard::Nothing);
    (queue, due)
}

#[test]
fn the_last_try_of_who_stands_behind_another_is_its_end_and_not_before() {
    let (mut queue, due) = with_a_last_try();
    let mut gone = Vec::new();

    assert!(!queue.tick(at(1), false, false, |waiter| gone.push(waiter.seat)));
    assert_eq!((gone.len(), queue.due()), (0, due));
    assert!(!queue.tick(due, false, false, |waiter| gone.push(waiter.seat)));

    assert_eq!((gone, queue.count()), (vec![1], 1));
}

#[test]
fn the_last_try_of_who_contends_is_decided_by_the_answer_to_it() {
    for held in [false, true] {
        let (mut queue, due) = with_a_last_try();
        queue.pop();
        let mut gone = Vec::new();

        let tries = queue.tick(due, held, false, |waiter| gone.push(waiter.seat));

        // While one of us has the lock, that is the answer.
        assert_eq!((tries, gone), if held { (false, vec![1]) } else { (true, vec![]) });
    }
}

#[test]
fn who_tries_once_behind_others_waits_for_the_first_answer_as_long_as_one_may_take() {
    let mut queue = LocalQueue::new();
    queue.push(waiter(0, 0, Some(90_000)), Heard::Nothing);
    queue.push(waiter(1, 0, None), Heard::Nothing);
    let mut gone = Vec::new();

    queue.tick(at(499), false, true, |waiter| gone.push(waiter.seat));
    assert!(gone.is_empty(), "{gone:?}");
    queue.tick(at(500), false, true, |waiter| gone.push(waiter.seat));

    assert_eq!(gone, [1]);
}
