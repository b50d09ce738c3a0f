use super::*;
use crate::protocol::scene::{TERMS, happen, held, waiter};

#[test]
fn a_hold_is_found_by_its_token_and_its_acquisition() {
    let (mut key_state, token) = held(TERMS);
    let other = Token::of_numbers(1, token.number() + 1).expect("a small number");
    let holds = &mut key_state.holds;

    assert!(holds.with_token(token).is_some() && holds.of_acquisition(&1).is_some());
    assert!(holds.with_token(other).is_none() && holds.of_acquisition(&2).is_none());

    holds.remove(other);
    assert!(!holds.is_empty());
    holds.remove(token);
    assert!(holds.is_empty());
}

#[test]
fn a_yielded_hold_has_no_acquisition() {
    let (mut key_state, token) = held(TERMS);
    happen(&mut key_state, 50, |key_state, ctx| key_state.join(waiter(2, TERMS), ctx));
    happen(&mut key_state, 100, |key_state, ctx| {
        key_state.release(&1, ctx);
    });
    let holds = &mut key_state.holds;

    assert_eq!(holds.yielded().map(|hold| hold.token), Some(token));
    assert_eq!((holds.iter().count(), holds.active().count(), holds.active_mut().count()), (1, 0, 0));
    assert!(holds.with_token(token).is_some() && holds.of_acquisition(&1).is_none());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "an exclusive lock has one holder")]
fn an_exclusive_lock_has_one_holder() {
    let (mut key_state, token) = held(TERMS);
    let hold = key_state.holds.with_token(token).cloned().expect("task 1 holds the lock");

    key_state.holds.insert(hold);
}
