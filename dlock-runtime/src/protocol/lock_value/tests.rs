//! Unit tests of `value`.

use super::*;
use crate::token::TokenSource;

fn tokens<const N: usize>() -> [Token; N] {
    let source = TokenSource::new();
    std::array::from_fn(|_| source.next())
}

#[test]
fn the_lock_goes_to_those_who_wait_in_their_order() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    assert_eq!((value.append(b), value.append(c)), (QueuePosition::Queued, QueuePosition::Queued));

    assert_eq!(value.release(a, |_| true), ReleaseEffect::Granted(b));
    assert_eq!(value.release(b, |_| true), ReleaseEffect::Granted(c));
    assert_eq!(value.release(c, |_| true), ReleaseEffect::Freed);
}

#[test]
fn a_waiter_that_nobody_listens_for_is_passed_over() {
    let [a, dead, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(dead);
    value.append(c);

    assert_eq!(value.release(a, |token| token != dead), ReleaseEffect::Granted(c));
}

#[test]
fn a_release_that_is_not_the_holders_changes_nothing() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    let before = value.clone();

    assert_eq!(value.release(b, |_| true), ReleaseEffect::NotOwner);
    assert_eq!(value.hand_off(b, c, |_| true), ReleaseEffect::NotOwner);
    assert_eq!(value, before);
}

#[test]
fn its_holder_alone_frees_a_lock_and_all_who_wait_are_told() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);
    let mut told = Vec::new();

    assert_eq!(value.free(b, |waiter| told.push(waiter)), ReleaseEffect::NotOwner);
    assert!(told.is_empty());
    assert_eq!(value.free(a, |waiter| told.push(waiter)), ReleaseEffect::Freed);

    assert_eq!(told, [b, c]);
    assert_eq!(value.waiters(), 0);
}

#[test]
fn who_leaves_the_queue_is_never_granted_and_who_leaves_as_holder_hands_over() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);

    assert_eq!(value.leave(b, |_| true), ReleaseEffect::NotOwner);
    assert_eq!(value.position_of(b), QueuePosition::Gone);
    assert_eq!(value.leave(a, |_| true), ReleaseEffect::Granted(c));
}

#[test]
fn a_full_value_takes_no_more() {
    let source = TokenSource::new();
    let mut value = LockValue::held_by(source.next());
    for _ in 0..MAX_WAITERS {
        assert_eq!(value.append(source.next()), QueuePosition::Queued);
    }

    assert_eq!(value.append(source.next()), QueuePosition::Full);
}

#[test]
fn a_yield_queues_us_behind_all_who_wait() {
    let [a, b, c, next] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);

    assert_eq!(value.hand_off(a, next, |_| true), ReleaseEffect::Granted(b));
    assert_eq!(value.release(b, |_| true), ReleaseEffect::Granted(c));
    assert_eq!(value.release(c, |_| true), ReleaseEffect::Granted(next));
}
