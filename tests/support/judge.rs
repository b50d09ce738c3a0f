//! Judges of a history with fail-overs in it.
//!
//! A fail-over may lose a write that was not replicated: only then may two believe that they hold one lock, and only across it. Their
//! fencing tokens rise all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::sentinel::End;
use crate::work::{History, Hold, LEASE, WAIT};

/// A fail-over.
#[derive(Clone, Copy, Debug)]
pub struct FailOver {
    /// How the old master was broken; `None` where the sentinels thought so by themselves.
    pub end: Option<End>,
    /// When, or a time before.
    pub broken: Moment,
    /// When the first sentinel told of the new one.
    pub switched: Moment,
}

/// A call ends within its limit and a tenth of a second.
///
/// # Panics
///
/// Panics if one did not.
pub fn no_call_takes_longer_than_its_limit(history: &History) {
    let latest =
        history.tries.iter().max_by_key(|call| call.ended.since(call.began)).expect("there are calls");

    let took = latest.ended.since(latest.began);
    assert!(took <= WAIT + Duration::from_millis(100) + SLACK, "{took:?}: {latest:?}");
}

/// Who is refused is told that the server could not be asked, or that the lock is held.
///
/// # Panics
///
/// Panics if one was told something else.
pub fn every_refusal_has_its_type(history: &History) {
    for error in history.tries.iter().filter_map(|call| call.refused.as_ref()) {
        assert!(error.is_unavailable() || error.is_contended(), "{error:?}");
    }
}

/// A master that answers nothing renews nothing: what it had granted is believed for one lease at most. Returns how many holds that
/// concerned.
///
/// # Panics
///
/// Panics if one was believed for longer.
#[must_use]
pub fn nothing_is_believed_beyond_its_lease(history: &History, fail_overs: &[FailOver]) -> usize {
    let mut concerned = 0;
    for FailOver { end, broken, switched } in fail_overs.iter().copied() {
        let last = broken + LEASE + SLACK;
        if !matches!(end, Some(End::Kill | End::Pause)) || switched <= last {
            continue;
        }
        let held = history.holds.iter().filter(|hold| hold.enter < broken && hold.until > broken);
        for hold in held {
            assert!(hold.until <= last, "believed {:?} after the end: {hold:?}", hold.until.since(broken));
            concerned += 1;
        }
    }
    concerned
}

/// Two believe in one lock only where the first had it of the old master and the second has it of the new one. Returns how often.
///
/// # Panics
///
/// Panics if two did otherwise.
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

/// Fencing tokens rise in the order of holding, also where two hold at once.
///
/// # Panics
///
/// Panics if one did not.
pub fn tokens_rise(history: &History) {
    for holds in by_key(history).values() {
        let with_token: Vec<_> = holds.iter().filter(|hold| hold.token.is_some()).collect();
        for pair in with_token.windows(2) {
            assert!(pair[0].token < pair[1].token, "{:?} before {:?}", pair[0], pair[1]);
        }
    }
}

/// Each manager gets each lock that it alone wants within a second of the new master's election. Returns the longest that it took.
///
/// # Panics
///
/// Panics if one does not.
#[must_use]
pub fn work_goes_on_within_a_second(history: &History, fail_over: FailOver) -> Duration {
    let mut longest = Duration::ZERO;
    for key in &history.own {
        let entered = history.holds.iter().filter(|hold| hold.key == *key);
        let first = entered.map(|hold| hold.enter).filter(|enter| *enter > fail_over.switched).min();
        let took = first.expect("it was waited for").since(fail_over.switched);
        assert!(took <= Duration::from_secs(1), "`{key}` is had again after {took:?}: {fail_over:?}");
        longest = longest.max(took);
    }
    longest
}

/// The holds of each key, in the order in which they were entered.
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

/// How late a task may be scheduled on a busy machine.
const SLACK: Duration = Duration::from_millis(150);

/// A judge that cannot fail proves nothing.
#[cfg(test)]
mod planted {
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
    fn two_who_hold_at_once_without_a_fail_over_are_seen() {
        let history = history(vec![hold(10_000, 10_500, 1), hold(10_400, 10_600, 2)]);

        let _ = overlaps_only_across_a_fail_over(&history, &killed_at(1_000, 3_000));
    }

    #[test]
    fn two_who_hold_at_once_across_a_fail_over_are_counted() {
        let history = history(vec![hold(900, 3_200, 1), hold(3_100, 3_300, 2)]);

        assert_eq!(overlaps_only_across_a_fail_over(&history, &killed_at(1_000, 3_000)), 1);
    }

    #[test]
    #[should_panic(expected = "before")]
    fn a_token_that_falls_is_seen() {
        tokens_rise(&history(vec![hold(10, 20, 2), hold(30, 40, 1)]));
    }

    #[test]
    #[should_panic(expected = "believed")]
    fn a_belief_that_outlives_its_lease_is_seen() {
        let _ = nothing_is_believed_beyond_its_lease(
            &history(vec![hold(900, 2_500, 1)]),
            &killed_at(1_000, 3_000),
        );
    }

    #[test]
    #[should_panic(expected = "is had again after")]
    fn work_that_rests_for_more_than_a_second_is_seen() {
        let [fail_over] = killed_at(1_000, 3_000);

        let _ = work_goes_on_within_a_second(&history(vec![hold(4_100, 4_200, 1)]), fail_over);
    }
}
