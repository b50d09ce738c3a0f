//! [`Calendar`], the instants of one job.

use std::fmt;
use std::time::Duration;

use croner::Cron;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, Zoned};

use crate::CalendarError;
use crate::{expression, fixed_times};

/// The longest time before an instant for which a call already belongs to it.
const LONGEST_EARLY: Duration = Duration::from_secs(10);

/// The shortest period of [`Calendar::every`].
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// The longest period of [`Calendar::every`]: 366 days.
const LONGEST_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The instants at which a job is due.
///
/// # Examples
///
/// ```
/// use dlock_calendar::Calendar;
///
/// let nightly = Calendar::cron("0 2 * * *")?.tz("Europe/Berlin")?;
/// // 2026-11-26 00:00 UTC is 01:00 in Berlin: the next tick is one hour later.
/// assert_eq!(nightly.next_after(1_795_651_200_000), Some(1_795_654_800_000));
/// # Ok::<_, dlock_calendar::CalendarError>(())
/// ```
#[derive(Clone)]
pub struct Calendar {
    form: Form,
}

#[derive(Clone)]
enum Form {
    Cron {
        cron: Box<Cron>,
        expression: String,
        zone: TimeZone,
        /// Whether it has fixed times, whose instants [`fixed_times`] finds.
        is_fixed: bool,
    },
    /// Multiples of a number of milliseconds since the epoch.
    Every(u64),
}

impl Calendar {
    /// Returns the instants of a cron expression of five fields, in UTC.
    ///
    /// The fields are minute, hour, day of month, month, and day of week. `*`, ranges, lists,
    /// steps, and names such as `MON` and `JAN` are allowed. A range does not end before it starts,
    /// and a step is not longer than its range.
    ///
    /// - The day of month can have `L` for the last day, `15W` for the day from Monday to Friday
    ///   that is nearest to the 15th, and `LW` for the last such day.
    /// - The day of week can have `MON#2` for the second Monday, and `FRIL` for the last Friday.
    ///   Sunday is 0 and 7.
    /// - If one field for days starts with `*`, also as `*/2`, a day must match both, as in
    ///   `crontab(5)`. Otherwise, a day that matches one of them matches. With a `+` before the
    ///   day of week, it must match both: `0 0 13 * +FRI` is each Friday the 13th. In these two
    ///   fields, `?` is `*`.
    ///
    /// # Errors
    ///
    /// The expression does not have five fields, a field is invalid, or the expression never
    /// matches, such as `0 0 30 2 *`.
    pub fn cron(expression: &str) -> Result<Self, CalendarError> {
        let cron = Box::new(expression::parse(expression)?);
        let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_fixed = fixed_times::names_its_times(&expression);
        Ok(Self { form: Form::Cron { cron, expression, zone: TimeZone::UTC, is_fixed } })
    }

    /// Returns the multiples of `period` since the Unix epoch, in UTC.
    ///
    /// # Errors
    ///
    /// The period is under 1 s, over 366 days, or not a whole number of milliseconds.
    pub fn every(period: Duration) -> Result<Self, CalendarError> {
        if period < SHORTEST_PERIOD || period > LONGEST_PERIOD {
            let problem = format!("{period:?} is not between 1 s and 366 days");
            return Err(CalendarError::new("every", problem));
        }
        let millis = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        if Duration::from_millis(millis) != period {
            let problem = format!("{period:?} is not a whole number of milliseconds");
            return Err(CalendarError::new("every", problem));
        }
        Ok(Self { form: Form::Every(millis) })
    }

    /// Sets the time zone of a cron expression, such as `Europe/Berlin`. Default: UTC.
    ///
    /// # Errors
    ///
    /// The IANA database that is part of the binary has no such zone, or the schedule is a period:
    /// a period is the same in all zones.
    pub fn tz(self, name: &str) -> Result<Self, CalendarError> {
        let wrong = |problem| Err(CalendarError::new("tz", problem));
        let Form::Cron { cron, expression, is_fixed, .. } = self.form else {
            return wrong("a period has no time zone: remove `tz`, or use `cron`".to_owned());
        };
        let Ok(zone) = TimeZoneDatabase::bundled().get(name) else {
            return wrong(format!(
                "`{name}` is not a zone of the IANA database: write a name such as `Europe/Berlin` or `UTC`"
            ));
        };
        Ok(Self { form: Form::Cron { cron, expression, zone, is_fixed } })
    }

    /// Returns the first instant after `now`, or `None` if there is none before the year 5000.
    #[must_use]
    pub fn next_after(&self, now: u64) -> Option<u64> {
        match &self.form {
            Form::Every(period) => (now / period).checked_add(1)?.checked_mul(*period),
            Form::Cron { cron, zone, is_fixed, .. } => {
                let now = whole_second(now, zone)?;
                millis(if *is_fixed {
                    fixed_times::next_after(cron, &now)?
                } else {
                    cron.find_next_occurrence(&now, false).ok()?.timestamp()
                })
            }
        }
    }

    /// Returns the last instant that is not after `now`, or `None` if there is none since 1970.
    #[must_use]
    pub fn last_before(&self, now: u64) -> Option<u64> {
        match &self.form {
            Form::Every(period) => Some(now / period * period),
            Form::Cron { cron, zone, is_fixed, .. } => {
                let now = whole_second(now, zone)?;
                millis(if *is_fixed {
                    fixed_times::last_before(cron, &now)?
                } else {
                    cron.find_previous_occurrence(&now, true).ok()?.timestamp()
                })
            }
        }
    }

    /// Returns the tick to which a call at `now` belongs.
    ///
    /// It is the next instant if that is at most *early* after `now`, and otherwise the last one.
    /// *Early* is half of the distance between the two, and at most 10 s. So timers on
    /// machines whose clocks differ mean the same tick, and a call between two distant instants
    /// belongs to the earlier.
    #[must_use]
    pub fn tick_at(&self, now: u64) -> Option<u64> {
        let last = self.last_before(now);
        let Some(next) = self.next_after(now) else { return last };
        if next - now <= early(last.map_or(u64::MAX, |last| next - last)) { Some(next) } else { last }
    }

    /// Returns how long before `tick` a call already belongs to it.
    #[must_use]
    pub fn early_of(&self, tick: u64) -> Duration {
        let before = tick.checked_sub(1).and_then(|before| self.last_before(before));
        Duration::from_millis(early(before.map_or(u64::MAX, |before| tick - before)))
    }

    /// Returns the instants after `after` that are before `before`, the latest `max` of them, in
    /// order, and how many there are in all, up to `limit`.
    ///
    /// It is computed backward from `before`, so its cost is that of `limit` instants.
    #[must_use]
    pub fn between(&self, after: u64, before: u64, max: usize, limit: u64) -> (Vec<u64>, u64) {
        let mut latest = Vec::new();
        let mut count = 0;
        let mut at = before;
        while count < limit
            && let Some(previous) = at.checked_sub(1).and_then(|before| self.last_before(before))
            && previous > after
        {
            if latest.len() < max {
                latest.push(previous);
            }
            count += 1;
            at = previous;
            if latest.len() >= max
                && let Form::Every(period) = self.form
            {
                count = ((before - 1) / period - after / period).min(limit);
                break;
            }
        }
        latest.reverse();
        (latest, count)
    }

    /// Returns the period, or `None` for a cron expression, whose distances between two instants
    /// differ.
    #[must_use]
    pub fn fixed_period(&self) -> Option<Duration> {
        match self.form {
            Form::Every(period) => Some(Duration::from_millis(period)),
            Form::Cron { .. } => None,
        }
    }

    /// Returns the longest time for which a run that starts at its instant may block the next one
    /// without that one being skipped, which may start early. `None` for a cron expression.
    #[must_use]
    pub fn longest_min_hold(&self) -> Option<Duration> {
        match self.form {
            Form::Every(period) => Some(Duration::from_millis(period - early(period))),
            Form::Cron { .. } => None,
        }
    }

    /// Returns the distance between the two instants around `now`; the longest period if there are
    /// no two.
    #[must_use]
    pub fn period_at(&self, now: u64) -> Duration {
        let (last, next) = (self.last_before(now), self.next_after(now));
        let distance = last.zip(next).map(|(last, next)| Duration::from_millis(next - last));
        distance.unwrap_or(LONGEST_PERIOD)
    }
}

/// Describes the schedule: the expression and its zone, or the period. Equal schedules have equal
/// texts.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.form {
            Form::Cron { expression, zone, .. } => match zone.iana_name() {
                None | Some("UTC") => f.write_str(expression),
                Some(zone) => write!(f, "{expression} {zone}"),
            },
            Form::Every(period) => write!(f, "every {period} ms"),
        }
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Calendar").field(&self.to_string()).finish()
    }
}

/// Returns how long before an instant a call already belongs to it, for that distance to the one
/// before.
fn early(distance: u64) -> u64 {
    (distance / 2).min(u64::try_from(LONGEST_EARLY.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the second of an instant in a zone, or `None` if it is outside the range of dates.
fn whole_second(at: u64, zone: &TimeZone) -> Option<Zoned> {
    let second = i64::try_from(at / 1_000).ok()?;
    Some(Timestamp::from_second(second).ok()?.to_zoned(zone.clone()))
}

/// Returns milliseconds since the epoch, or `None` before it.
fn millis(at: Timestamp) -> Option<u64> {
    u64::try_from(at.as_millisecond()).ok()
}
