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
    assert_eq!((value.append(b), value.append(c)), (Place::Queued, Place::Queued));

    assert_eq!(value.release(a, |_| true), LetGo::Granted(b));
    assert_eq!(value.release(b, |_| true), LetGo::Granted(c));
    assert_eq!(value.release(c, |_| true), LetGo::Freed);
}

#[test]
fn a_waiter_that_nobody_listens_for_is_passed_over() {
    let [a, dead, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(dead);
    value.append(c);

    assert_eq!(value.release(a, |token| token != dead), LetGo::Granted(c));
}

#[test]
fn a_release_that_is_not_the_holders_changes_nothing() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    let before = value.clone();

    assert_eq!(value.release(b, |_| true), LetGo::NotOwner);
    assert_eq!(value.hand_on(b, c, |_| true), LetGo::NotOwner);
    assert_eq!(value, before);
}

#[test]
fn its_holder_alone_frees_a_lock_and_all_who_wait_are_told() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);
    let mut told = Vec::new();

    assert_eq!(value.free(b, |waiter| told.push(waiter)), LetGo::NotOwner);
    assert!(told.is_empty());
    assert_eq!(value.free(a, |waiter| told.push(waiter)), LetGo::Freed);

    assert_eq!(told, [b, c]);
    assert_eq!(value.waiters(), 0);
}

#[test]
fn who_leaves_the_queue_is_never_granted_and_who_leaves_as_holder_hands_over() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);

    assert_eq!(value.leave(b, |_| true), LetGo::NotOwner);
    assert_eq!(value.place_of(b), Place::Gone);
    assert_eq!(value.leave(a, |_| true), LetGo::Granted(c));
}

#[test]
fn a_full_value_takes_no_more() {
    let source = TokenSource::new();
    let mut value = LockValue::held_by(source.next());
    for _ in 0..MAX_WAITERS {
        assert_eq!(value.append(source.next()), Place::Queued);
    }

    assert_eq!(value.append(source.next()), Place::Full);
}

#[test]
fn a_yield_queues_us_behind_all_who_wait() {
    let [a, b, c, next] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);

    assert_eq!(value.hand_on(a, next, |_| true), LetGo::Granted(b));
    assert_eq!(value.release(b, |_| true), LetGo::Granted(c));
    assert_eq!(value.release(c, |_| true), LetGo::Granted(next));
}
