//! The instants of fixed times, such as `0 2,14 * * *`, in a zone whose clocks change.
//!
//! A fixed time is a time of the wall clock. The search runs over times of the wall clock, which
//! have no gaps, and each is then mapped to one instant: a time that the zone skips to the end of
//! the gap, and a time that it repeats to the first of the two instants. The mapping keeps the
//! order, so the search works in both directions.

use croner::Cron;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, Zoned};

/// Returns `true` if the expression names its minutes and hours, by values, lists, or ranges.
pub(crate) fn names_its_times(expression: &str) -> bool {
    let is_named = |field: &str| field.chars().all(|c| c.is_ascii_digit() || c == ',' || c == '-');
    expression.split_whitespace().take(2).all(is_named)
}

/// Returns the first instant after `now`.
pub(crate) fn next_after(cron: &Cron, now: &Zoned) -> Option<Timestamp> {
    let mut time = now.datetime();
    loop {
        let from = time.to_zoned(TimeZone::UTC).ok()?;
        time = cron.find_next_occurrence(&from, false).ok()?.datetime();
        // In the second pass through a repeated hour, the times of that hour have passed.
        let at = instant(time, now.time_zone())?;
        if at > now.timestamp() {
            return Some(at);
        }
    }
}

/// Returns the last instant that is not after `now`.
pub(crate) fn last_before(cron: &Cron, now: &Zoned) -> Option<Timestamp> {
    let mut time = latest_passed(now);
    let mut is_inclusive = true;
    loop {
        let from = time.to_zoned(TimeZone::UTC).ok()?;
        time = cron.find_previous_occurrence(&from, is_inclusive).ok()?.datetime();
        let at = instant(time, now.time_zone())?;
        if at <= now.timestamp() {
            return Some(at);
        }
        is_inclusive = false;
    }
}

/// Returns a time of the wall clock that is not before any time that has passed.
fn latest_passed(now: &Zoned) -> DateTime {
    match now.time_zone().to_ambiguous_timestamp(now.datetime()).offset() {
        // In the second pass through a repeated hour, all times of that hour have passed.
        AmbiguousOffset::Fold { before, .. } => before.to_datetime(now.timestamp()),
        _ => now.datetime(),
    }
}

/// Returns the instant at which a time of the wall clock is due.
fn instant(time: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(time).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(time).ok(),
        AmbiguousOffset::Gap { after, .. } => {
            // With the later offset, a time in the gap is shortly before the change.
            let before_change = after.to_timestamp(time).ok()?;
            zone.following(before_change).next().map(|change| change.timestamp())
        }
    }
}
