use super::*;

const SECOND: u64 = 1_000_000_000;

/// Returns how many of 10,000 holds, acquired at once, are due at each time at which any is.
fn burst() -> Vec<usize> {
    burst_of(Duration::from_secs(30))
}

/// Like [`burst`], for holds with that lease.
fn burst_of(lease: Duration) -> Vec<usize> {
    let mut dues = std::collections::BTreeMap::new();
    for number in 0..10_000 {
        *dues.entry(due(BootInstant::from_nanos(7 * SECOND), lease, (1, 3 * number))).or_insert(0) += 1;
    }
    dues.into_values().collect()
}

#[test]
fn holds_of_one_burst_are_not_renewed_in_one() {
    assert!(burst().into_iter().all(|together| together <= 80), "{:?}", burst());
}

#[test]
fn renewals_go_out_many_at_a_time() {
    assert!(burst().len() <= 160, "{}", burst().len());
}

#[test]
fn a_hundred_holds_wake_a_machine_eight_times() {
    for first in 0..64_u64 {
        // Each call draws one number more than that of its token.
        let due =
            |at: u64| due(BootInstant::from_nanos(7 * SECOND), Duration::from_secs(30), (1, first + 2 * at));

        let dues = (0..100_u64).map(due).collect::<std::collections::BTreeSet<_>>();

        assert!(dues.len() <= 8, "{dues:?}");
    }
}

#[test]
fn holds_of_many_processes_are_not_renewed_in_one_burst() {
    let mut dues = std::collections::BTreeMap::new();
    for process in 0..1_000_u64 {
        let process = process.wrapping_mul(0xbf58_476d_1ce4_e5b9); // process ids are random
        for number in 0..10 {
            let lease = Duration::from_secs(30);
            let at = due(BootInstant::from_nanos(7 * SECOND), lease, (process, 2 * number));
            *dues.entry(at).or_insert(0) += 1;
        }
    }

    assert!(dues.values().all(|together| *together <= 200), "{dues:?}");
}

#[test]
fn a_renewal_is_due_between_a_quarter_and_a_third_of_the_lease() {
    for ms in [100, 999, 30_000, 3_600_000] {
        let lease = Duration::from_millis(ms);
        let sent = BootInstant::from_nanos(7 * SECOND + 123_456_789);

        for number in 0..1_000 {
            let after = due(sent, lease, (9, number)).since(sent);
            assert!(after <= lease / 3 && after >= lease / 4, "{ms}: {after:?}");
        }
    }
}

#[test]
fn holds_with_a_short_lease_are_not_renewed_in_one_burst() {
    for ms in [100, 1_000, 5_000] {
        let together = burst_of(Duration::from_millis(ms)).into_iter().max();

        assert!(together.is_some_and(|together| together <= 100), "{ms}: {together:?}");
    }
}

#[test]
fn unanswered_renewal_is_retried_at_a_bounded_rate() {
    let now = BootInstant::from_nanos(7 * SECOND);
    let again = |lease, left| {
        retry_at(now, Duration::from_millis(lease), Duration::from_millis(left)).since(now).as_millis()
    };

    assert_eq!(again(10_000, 8_000), 500, "twenty times in a lease");
    assert_eq!(again(10_000, 1_000), 250, "more often towards its end");
    assert_eq!(again(3_600_000, 3_000_000), 1_000, "a server that is back is noticed within a second");
    assert_eq!(again(10_000, 0), 5, "it is not flooded at the very end");
}
