use super::*;

const LEASE: Duration = Duration::from_secs(12);

fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

fn terms() -> OwnerTerms {
    OwnerTerms { lease: LEASE, validity: LEASE, ends: BootInstant::NEVER }
}

/// Returns a lease that a request sent at 1 s has begun. It is valid until 12.878 s.
fn lease() -> OwnerLease {
    OwnerLease::new(terms(), at(1_000), (0, 0))
}

#[test]
fn a_lease_is_lost_at_its_deadline() {
    assert_eq!(lease().loss_at(at(12_877)), None);
    assert_eq!(lease().loss_at(at(12_878)), Some(LossCause::Expired));
    assert_eq!(lease().ends(), at(12_878));
}

#[test]
fn a_renewal_extends_the_lease_from_its_request_on() {
    let mut lease = lease();

    lease.on_renewal_ended(Some(LeaseReply::Renewed), (at(5_000), at(9_000)));

    assert_eq!(lease.ends(), at(16_878));
    assert!((at(8_000)..=at(9_000)).contains(&lease.next_renewal()), "{lease:?}");
}

#[test]
fn an_older_renewal_does_not_move_the_deadline_back() {
    let mut lease = lease();

    lease.on_renewal_ended(Some(LeaseReply::Renewed), (at(5_000), at(5_001)));
    lease.on_renewal_ended(Some(LeaseReply::Renewed), (at(4_000), at(5_002)));

    assert_eq!(lease.ends(), at(16_878));
}

#[test]
fn owners_of_one_burst_renew_at_different_times() {
    let renewals: std::collections::BTreeSet<_> =
        (0..100).map(|number| OwnerLease::new(terms(), at(1_000), (0, 32 * number)).next_renewal()).collect();

    assert!(renewals.len() > 20, "{renewals:?}");
    assert!(renewals.iter().all(|renewal| (at(4_000)..=at(5_000)).contains(renewal)), "{renewals:?}");
}

#[test]
fn an_unanswered_renewal_is_retried_before_the_deadline() {
    let mut lease = lease();

    lease.on_renewal_ended(None, (at(5_000), at(5_500)));
    assert_eq!(lease.next_renewal(), at(6_100), "a twentieth of the lease later");
    assert_eq!(lease.ends(), at(12_878));

    lease.on_renewal_ended(None, (at(12_000), at(12_478)));
    assert_eq!(lease.next_renewal(), at(12_578), "a quarter of the rest later");
}

#[test]
fn the_limit_of_a_run_ends_a_renewed_lease() {
    let mut lease = OwnerLease::new(OwnerTerms { ends: at(13_000), ..terms() }, at(1_000), (0, 0));

    lease.on_renewal_ended(Some(LeaseReply::Renewed), (at(5_000), at(5_001)));

    assert_eq!((lease.ends(), lease.loss_at(at(12_999))), (at(13_000), None));
    assert_eq!(lease.loss_at(at(13_000)), Some(LossCause::MaxHold));
}

#[test]
fn an_owner_that_no_other_can_replace_outlives_its_lease() {
    let lease = OwnerLease::new(OwnerTerms { validity: 10 * LEASE, ..terms() }, at(1_000), (0, 0));

    assert_eq!(lease.loss_at(at(100_000)), None);
    assert!(lease.next_renewal() <= at(5_000), "{lease:?}");
}

#[test]
fn a_reply_after_the_deadline_does_not_revive_the_lease() {
    let mut lease = lease();

    lease.on_renewal_ended(Some(LeaseReply::Renewed), (at(12_000), at(13_000)));

    assert_eq!(lease.loss_at(at(13_000)), Some(LossCause::Expired));
}

#[test]
fn the_first_cause_of_a_loss_counts() {
    let mut lease = lease();

    let lost = Some(LeaseReply::Lost(LossCause::Cancelled));
    lease.on_renewal_ended(lost, (at(5_000), at(5_001)));
    lease.on_renewal_ended(Some(LeaseReply::Renewed), (at(5_000), at(5_002)));
    lease.mark_lost(LossCause::NotOwner);

    assert_eq!(lease.loss_at(at(5_003)), Some(LossCause::Cancelled));
    assert_eq!(lease.loss_at(at(20_000)), Some(LossCause::Cancelled));
}
