//! Unit tests of `renew`.

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Returns how many of 10,000 holds that were taken at once are due at each of the times at which any is.
fn burst() -> Vec<usize> {
    let lease = Duration::from_secs(30);
    let mut dues = std::collections::BTreeMap::new();
    for number in 0..10_000 {
        *dues.entry(due(BootTime::from_nanos(7 * SECOND), lease, 3 * number)).or_insert(0) += 1;
    }
    dues.into_values().collect()
}

#[test]
fn holds_that_were_taken_in_one_burst_are_not_renewed_in_one() {
    assert!(burst().into_iter().all(|together| together <= 80), "{:?}", burst());
}

#[test]
fn renewals_go_out_many_at_a_time() {
    assert!(burst().len() <= 160, "{}", burst().len());
}

#[test]
fn a_renewal_is_due_between_a_quarter_and_a_third_of_the_lease() {
    for ms in [100, 999, 30_000, 3_600_000] {
        let lease = Duration::from_millis(ms);
        let sent = BootTime::from_nanos(7 * SECOND + 123_456_789);

        for number in 0..1_000 {
            let after = due(sent, lease, number).since(sent);
            assert!(after <= lease / 3 && after >= lease / 4, "{ms}: {after:?}");
        }
    }
}
