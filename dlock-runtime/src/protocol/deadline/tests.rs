use super::*;

fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

#[test]
fn a_hold_is_invalid_at_its_deadline() {
    let deadline = Deadline::of_lease(at(1_000), Duration::from_millis(600));

    assert!(deadline.holds_at(at(1_591)));
    assert!(!deadline.holds_at(at(1_592)));
}

#[test]
fn a_renewal_whose_reply_overtakes_an_older_one_still_counts() {
    let first = Deadline::of_lease(at(1_000), Duration::from_secs(1));
    let second = Deadline::of_lease(at(1_300), Duration::from_secs(1));

    assert_eq!(second.or_later(first), second);
}

#[test]
fn a_lease_shorter_than_its_margin_was_never_held() {
    let deadline = Deadline::of_lease(at(1_000), Duration::from_millis(1));

    assert!(!deadline.holds_at(at(1_000)));
}

#[test]
fn a_lease_without_end_does_not_wrap_around() {
    let deadline = Deadline::of_lease(at(1_000), Duration::MAX);

    assert!(deadline.holds_at(at(u64::MAX / 2_000_000)));
    assert_eq!(time_to_expire(Duration::MAX), Duration::MAX);
}

/// A holder with the slowest clock that A1 allows, the server, and a client with the fastest.
#[test]
fn a_deadline_precedes_the_expiry_and_that_the_time_to_expire() {
    for lease in [2, 100, 10_000, 86_400_000].map(Duration::from_millis) {
        let hold_lasts = Deadline::of_lease(at(0), lease).at().since(at(0)).mul_f64(1.0 / 0.99);
        let waits = time_to_expire(lease).mul_f64(1.0 / 1.01);

        assert!(hold_lasts <= lease && lease < waits, "{lease:?}: {hold_lasts:?}, {waits:?}");
    }
}
