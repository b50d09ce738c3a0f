use super::*;

#[test]
fn tokens_rise_when_the_clock_stands_still_or_goes_back() {
    assert_eq!(next(Some(100), 100), Some(101));
    assert_eq!(next(Some(100), 50), Some(101));
}

#[test]
fn a_lost_counter_restarts_above_all_issued_tokens() {
    let given = next(Some(1_000), 1_500);

    assert!(next(None, 1_501) > given);
}

#[test]
fn a_spent_counter_issues_no_token() {
    assert_eq!(next(Some(LAST_FENCE - 1), 1), Some(LAST_FENCE));
    for (last, micros) in [
        (Some(LAST_FENCE), 1),
        (Some(LAST_FENCE + 1), 1),
        (Some(u64::MAX), 1),
        (None, LAST_FENCE + 1),
        (Some(1), u64::MAX),
    ] {
        assert_eq!(next(last, micros), None, "{last:?} at {micros}");
    }
}
