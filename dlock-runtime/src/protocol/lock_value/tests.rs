use super::*;
use crate::token::TokenSource;

fn tokens<const N: usize>() -> [Token; N] {
    let source = TokenSource::new();
    std::array::from_fn(|_| source.next())
}

#[test]
fn waiters_are_granted_the_lock_in_order() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    assert_eq!((value.append(b), value.append(c)), (QueuePosition::Queued, QueuePosition::Queued));

    assert_eq!(value.release(a, |_| true), ReleaseEffect::Granted(b));
    assert_eq!(value.release(b, |_| true), ReleaseEffect::Granted(c));
    assert_eq!(value.release(c, |_| true), ReleaseEffect::Freed);
}

#[test]
fn waiter_without_a_subscriber_is_skipped() {
    let [a, dead, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(dead);
    value.append(c);

    assert_eq!(value.release(a, |token| token != dead), ReleaseEffect::Granted(c));
}

#[test]
fn release_by_another_token_changes_nothing() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    let before = value.clone();

    assert_eq!(value.release(b, |_| true), ReleaseEffect::NotOwner);
    assert_eq!(value.hand_off(b, c, |_| true), ReleaseEffect::NotOwner);
    assert_eq!(value, before);
}

#[test]
fn only_the_holder_frees_a_lock_and_all_waiters_are_notified() {
    let [a, b, c] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);
    let mut notified = Vec::new();

    assert_eq!(value.free(b, |waiter| notified.push(waiter)), ReleaseEffect::NotOwner);
    assert!(notified.is_empty());
    assert_eq!(value.free(a, |waiter| notified.push(waiter)), ReleaseEffect::Freed);

    assert_eq!(notified, [b, c]);
    assert_eq!(value.waiters(), 0);
}

#[test]
fn withdrawn_waiter_is_never_granted_the_lock() {
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
fn yield_appends_the_next_token_to_the_queue() {
    let [a, b, c, next] = tokens();
    let mut value = LockValue::held_by(a);
    value.append(b);
    value.append(c);

    assert_eq!(value.hand_off(a, next, |_| true), ReleaseEffect::Granted(b));
    assert_eq!(value.release(b, |_| true), ReleaseEffect::Granted(c));
    assert_eq!(value.release(c, |_| true), ReleaseEffect::Granted(next));
}
