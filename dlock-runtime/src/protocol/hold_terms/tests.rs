use super::*;

const LEASE: Duration = Duration::from_secs(30);

#[test]
fn terms_without_bounds_set_no_end_and_no_min_hold() {
    let since = BootInstant::from_nanos(7);
    for terms in
        [HoldTerms::of_lease(LEASE), HoldTerms::of_lease(LEASE).max_hold(None).min_hold(Some(Duration::ZERO))]
    {
        assert!(!terms.has_bounds() && terms.is_renewed());
        assert_eq!(terms.lease(), LEASE);
        assert_eq!((terms.ends(since), terms.kept_until(since)), (BootInstant::NEVER, BootInstant::START));
    }
}

#[test]
fn bounds_count_from_the_start_of_the_hold() {
    let (since, at) =
        (BootInstant::from_nanos(7), |seconds| BootInstant::from_nanos(7).plus(Duration::from_secs(seconds)));
    let ends = HoldTerms::of_lease(LEASE).max_hold(Some(Duration::from_secs(9)));
    let kept = HoldTerms::of_lease(LEASE).min_hold(Some(Duration::from_secs(5))).renew(false);

    assert!(ends.has_bounds() && kept.has_bounds() && !kept.is_renewed());
    assert_eq!((ends.ends(since), kept.kept_until(since)), (at(9), at(5)));
}
