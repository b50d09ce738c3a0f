//! Checks of a history with failovers.
//!
//! A failover may lose a write that was not replicated. Only then, and only across the failover,
//! may two callers consider one lock theirs. Their fencing tokens rise nevertheless.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::sentinel::End;
use crate::work::{History, Hold, LEASE, WAIT};

/// A failover.
#[derive(Clone, Copy, Debug)]
pub struct FailOver {
    /// How the old primary was broken; `None` if the sentinels started the failover on their own.
    pub end: Option<End>,
    /// The time of the failure, or an earlier time.
    pub broken: Moment,
    /// The time at which the first sentinel announced the new primary.
    pub switched: Moment,
}

/// Checks that each call ends within its limit and 100 ms.
///
/// # Panics
///
/// Panics if a call took longer.
pub fn no_call_takes_longer_than_its_limit(history: &History) {
    let latest =
        history.tries.iter().max_by_key(|call| call.ended.since(call.began)).expect("there are calls");

    let took = latest.ended.since(latest.began);
    assert!(took <= WAIT + Duration::from_millis(100) + SLACK, "{took:?}: {latest:?}");
}

/// Checks that each failed call reports an unavailable server or a held lock.
///
/// # Panics
///
/// Panics if a call failed with another error.
pub fn every_refusal_has_its_type(history: &History) {
    for error in history.tries.iter().filter_map(|call| call.refused.as_ref()) {
        assert!(error.is_unavailable() || error.is_contended(), "{error:?}");
    }
}

/// Checks that holds end within one lease after their primary stopped replying.
///
/// Returns the number of holds that were checked.
///
/// # Panics
///
/// Panics if a hold was considered valid for longer.
#[must_use]
pub fn no_hold_outlives_its_lease(history: &History, fail_overs: &[FailOver]) -> usize {
    let mut concerned = 0;
    for FailOver { end, broken, switched } in fail_overs.iter().copied() {
        let last = broken + LEASE + SLACK;
        if !matches!(end, Some(End::Kill | End::Pause)) || switched <= last {
            continue;
        }
        let held = history.holds.iter().filter(|hold| hold.enter < broken && hold.until > broken);
        for hold in held {
            assert!(
                hold.until <= last,
                "considered valid {:?} after the failure: {hold:?}",
                hold.until.since(broken)
            );
            concerned += 1;
        }
    }
    concerned
}

/// Checks that two holds of a lock overlap only across a failover.
///
/// The first must be from the old primary and the second from the new one. Returns the number of
/// overlaps.
///
/// # Panics
///
/// Panics if two holds overlap otherwise.
#[must_use]
pub fn overlaps_only_across_a_fail_over(history: &History, fail_overs: &[FailOver]) -> usize {
    let mut overlaps = 0;
    for holds in by_key(history).values() {
        for (at, first) in holds.iter().enumerate() {
            for second in holds[at + 1..].iter().take_while(|second| second.enter < first.until) {
                let across = fail_overs.iter().any(|fail_over| {
                    first.enter < fail_over.switched + SLACK && second.enter >= fail_over.broken
                });
                assert!(across, "two hold at once: {first:?} and {second:?}");
                overlaps += 1;
            }
        }
    }
    overlaps
}

/// Checks that fencing tokens rise in the order of the holds, even if two holds overlap.
///
/// # Panics
///
/// Panics if a token did not rise.
pub fn tokens_rise(history: &History) {
    for holds in by_key(history).values() {
        let with_token: Vec<_> = holds.iter().filter(|hold| hold.token.is_some()).collect();
        for pair in with_token.windows(2) {
            assert!(pair[0].token < pair[1].token, "{:?} before {:?}", pair[0], pair[1]);
        }
    }
}

/// Checks that each uncontended lock is acquired within 1 s after the election of the new primary.
///
/// Returns the longest time.
///
/// # Panics
///
/// Panics if a lock took longer.
#[must_use]
pub fn work_goes_on_within_a_second(history: &History, fail_over: FailOver) -> Duration {
    let mut longest = Duration::ZERO;
    for key in &history.own {
        let entered = history.holds.iter().filter(|hold| hold.key == *key);
        let first = entered.map(|hold| hold.enter).filter(|enter| *enter > fail_over.switched).min();
        let took = first.expect("it was waited for").since(fail_over.switched);
        assert!(took <= Duration::from_secs(1), "`{key}` was acquired after {took:?}: {fail_over:?}");
        longest = longest.max(took);
    }
    longest
}

/// Returns the holds of each key, in the order of their entries.
fn by_key(history: &History) -> BTreeMap<&str, Vec<&Hold>> {
    let mut keys: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &history.holds {
        keys.entry(&hold.key).or_default().push(hold);
    }
    for holds in keys.values_mut() {
        holds.sort_by_key(|hold| hold.enter);
    }
    keys
}

/// The longest acceptable scheduling delay on a busy machine.
const SLACK: Duration = Duration::from_millis(150);

/// These histories contain violations that the checks must find.
#[cfg(test)]
mod seeded {
    use super::*;

    fn hold(enter: u64, until: u64, token: u64) -> Hold {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        Hold { key: "own:0".to_owned(), enter: at(enter), until: at(until), token: Some(token) }
    }

    fn history(holds: Vec<Hold>) -> History {
        History { tries: Vec::new(), holds, own: vec!["own:0".to_owned()] }
    }

    fn killed_at(broken: u64, switched: u64) -> [FailOver; 1] {
        let at = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        [FailOver { end: Some(End::Kill), broken: at(broken), switched: at(switched) }]
    }

    #[test]
    #[should_panic(expected = "two hold at once")]
    fn an_overlap_without_a_failover_is_detected() {
        let history = history(vec![hold(10_000, 10_500, 1), hold(10_400, 10_600, 2)]);

        let _ = overlaps_only_across_a_fail_over(&history, &killed_at(1_000, 3_000));
    }

    #[test]
    fn an_overlap_across_a_failover_is_counted() {
        let history = history(vec![hold(900, 3_200, 1), hold(3_100, 3_300, 2)]);

        assert_eq!(overlaps_only_across_a_fail_over(&history, &killed_at(1_000, 3_000)), 1);
    }

    #[test]
    #[should_panic(expected = "before")]
    fn a_falling_token_is_detected() {
        tokens_rise(&history(vec![hold(10, 20, 2), hold(30, 40, 1)]));
    }

    #[test]
    #[should_panic(expected = "considered valid")]
    fn a_hold_that_outlives_its_lease_is_detected() {
        let _ = no_hold_outlives_its_lease(&history(vec![hold(900, 2_500, 1)]), &killed_at(1_000, 3_000));
    }

    #[test]
    #[should_panic(expected = "was acquired after")]
    fn a_pause_of_more_than_a_second_is_detected() {
        let [fail_over] = killed_at(1_000, 3_000);

        let _ = work_goes_on_within_a_second(&history(vec![hold(4_100, 4_200, 1)]), fail_over);
    }
}
