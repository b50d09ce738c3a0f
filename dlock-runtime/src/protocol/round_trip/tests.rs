use super::*;
use crate::protocol::scene::at;

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn longer_round_trip_counts_at_once_and_shorter_by_half() {
    let near = RoundTrip::UNKNOWN.measured(at(100), at(110));
    let far = near.measured(at(200), at(500));
    let nearer = far.measured(at(600), at(700));

    assert_eq!([near, far, nearer], [RoundTrip(10), RoundTrip(300), RoundTrip(200)]);
}

#[test]
fn part_of_a_millisecond_counts_as_one() {
    let took = Duration::from_micros(20);

    assert_eq!(RoundTrip::UNKNOWN.measured(at(1), at(1).plus(took)), RoundTrip(1));
    assert_eq!(RoundTrip::UNKNOWN.measured(at(1), at(1)), RoundTrip::UNKNOWN);
}

#[test]
fn two_round_trips_fit_into_exactly_twice_the_time() {
    let far = RoundTrip::UNKNOWN.measured(at(0), at(300));

    assert!(far.fits_twice_into(millis(600)) && !far.fits_twice_into(millis(599)));
    assert!(RoundTrip::UNKNOWN.fits_twice_into(Duration::ZERO));
}

#[test]
fn round_trip_beyond_a_minute_is_the_longest() {
    let far = RoundTrip::UNKNOWN.measured(at(0), at(1_000_000));

    assert!(!far.fits_twice_into(millis(131_069)) && far.fits_twice_into(millis(131_070)));
}
