//! Unit tests of `fencing`.

use super::*;

#[test]
fn tokens_rise_when_the_clock_stands_still_or_goes_back() {
    assert_eq!(next(Some(100), 100), 101);
    assert_eq!(next(Some(100), 50), 101);
}

#[test]
fn a_lost_counter_restarts_above_all_that_were_given() {
    let given = next(Some(1_000), 1_500);

    assert!(next(None, 1_501) > given);
}
